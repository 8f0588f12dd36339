"""A budget follows the people: the same records in other bytes are found under any name, and other people are not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from npmdask.accounting import Budget
from npmdask.api import top_k
from npmdask.cli.main import main
from npmdask.core.storage.safe_open import BUDGET_MARK
from npmdask.core.storage.source import open_source
from npmdask.errors import BudgetError, DataWarning, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.latent.answers import read_latent
from npmdask.latent.fit import fit_mixture
from npmdask.ledger import Ledger, Status, export_lines, open_ledger
from npmdask.ledger.format import require_whole_export
from npmdask.ledger.granting import grant_source, sketch_of
from npmdask.ledger.sketch import MOST, SHARE, Overlap, Sketch, sketch, weights
from npmdask.manage.report import write_report
from npmdask.streaming import stream_pca
from tests.ledger.conftest import execute

KEY = bytes(range(32))
N, D = 1500, 20
SMALL = Budget(1.0, 1e-8)


def people(seed: int = 0, n: int = N) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, D)) * np.r_[3, 2, 0.5 * np.ones(D - 2)] / 4


def one_changed(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[1:], people(9, 1)])


class Owner:
    """The owner of the data: ingests and grants."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address

    @property
    def ledger(self) -> Ledger:
        return open_ledger(self.address)

    def store(self, name: str, x: Any, **options: Any) -> Path:
        file, store = self.folder / f"{name}.npy", self.folder / f"{name}.zarr"
        if sp.issparse(x):
            file = file.with_suffix(".npz")
            sp.save_npz(file, x)
        else:
            np.save(file, x)
        ingest(file, store, overwrite=True, **options)
        return store

    def grant(self, name: str, x: Any, **options: Any) -> tuple[Status, list[str]]:
        ingested = {key: options.pop(key) for key in ("chunks", "kind", "layout") if key in options}
        relation = {"relation": "record_replace", "clip_norm": 1.5, "change": 1.0, "budget": SMALL}
        return grant_source(self.ledger, name, self.store(name, x, **ingested), **{**relation, **options})


@pytest.fixture
def owner(tmp_path: Path, address: str) -> Owner:
    made = Owner(tmp_path, address)
    made.grant("people", people(), chunks=(500, D))
    return made


@pytest.fixture
def sqlite(tmp_path: Path) -> Owner:
    made = Owner(tmp_path, str(tmp_path / "kept" / "ledger.sqlite"))
    made.grant("people", people(), chunks=(500, D))
    return made


SAME: dict[str, Any] = {
    "other chunks": lambda x: (x, {"chunks": (177, 7)}),
    "float32": lambda x: (x.astype(np.float32), {}),
    "another order": lambda x: (np.random.default_rng(1).permutation(x), {}),
    "one row less": lambda x: (x[:-1], {}),
    "another scale": lambda x: (x * 1.0000001, {}),
    "another unit": lambda x: (x * 25.4, {}),
    "one row changed": lambda x: (one_changed(x), {}),
    "one row more": lambda x: (np.concatenate([x, people(9, 1)]), {}),
    "a tenth": lambda x: (x[:150], {}),
    "ten times as many": lambda x: (np.concatenate([people(9, 9 * N), x]), {}),
    "half": lambda x: (np.concatenate([x[: N // 2], people(9, N // 2)]), {}),
    "sparse": lambda x: (sp.csr_matrix(x), {}),
    "another kind": lambda x: (x, {"kind": "matrix", "relation": "entry"}),
    "four decimals": lambda x: (np.round(x, 4), {}),
    "half precision": lambda x: (x.astype(np.float16), {}),
    "repeated": lambda x: (np.repeat(x, 2, axis=0), {}),
    "beside rows of zeros": lambda x: (np.concatenate([np.zeros((N, D)), x]), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", SAME)
def test_the_same_people_have_one_budget(sqlite: Owner, how: str) -> None:
    x, options = SAME[how](people())
    before = len(sqlite.ledger.entries())
    with pytest.raises(BudgetError, match=r"and 'people', which has a budget, have about \d+ % of their records in"):
        sqlite.grant("others", x, **options)
    assert len(sqlite.ledger.entries()) == before
    with pytest.raises(BudgetError, match="nothing is granted"):
        sqlite.ledger.status("others")


@pytest.mark.slow
def test_and_so_on_both_databases(owner: Owner) -> None:
    with pytest.raises(BudgetError, match="about 100 %"):
        owner.grant("others", people().astype(np.float32))
    owner.grant("neighbours", people(7))
    assert [s.dataset for s in owner.ledger.statuses()] == ["people", "neighbours"]


@pytest.mark.slow
def test_the_same_people_may_be_granted_under_the_same_name(sqlite: Owner) -> None:
    sqlite.grant("people", one_changed(people()), data_changed=True)
    with pytest.raises(BudgetError, match="in common"):
        sqlite.grant("others", people(0, N - 1))  # of what the data once were


@pytest.mark.slow
def test_other_people_of_the_same_kind_are_not_refused(sqlite: Owner) -> None:
    for seed in range(1, 6):
        sqlite.grant(f"town {seed}", people(seed))
    assert len(sqlite.ledger.statuses()) == 6


def halves(x: np.ndarray, seed: int) -> tuple[Sketch, Sketch]:
    order = np.random.default_rng(seed).permutation(len(x))
    first, second = np.array_split(x[order], 2)
    return of_array(first), of_array(second)


def of_array(x: np.ndarray, key: bytes = KEY) -> Sketch:
    return sketch([x.astype(float) @ weights(key, x.shape[1])], key, x.shape[1])


def digits() -> np.ndarray:
    from sklearn.datasets import load_digits

    x: np.ndarray = load_digits().data
    return x


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", *(f"gaussian {d}" for d in (1, 2, 3, 200))])
def test_halves_of_real_and_random_data_have_nearly_nothing_in_common(name: str) -> None:
    d = int(name.split()[-1]) if " " in name else 0
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((4000, d)) if d else digits()
        one, other = halves(x, seed)
        assert one.overlap_with(other).share < SHARE / 10 and not one.repeats


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01])
def test_what_is_shared_is_estimated(share: float) -> None:
    """Of data with far more records than a sketch has hashes."""
    x = people(0, 40000)
    part = x[: int(share * len(x))]
    for seed in range(3):
        key = np.random.default_rng(seed).bytes(32)
        other = np.concatenate([part, people(seed + 1, len(x) - len(part))])
        found = of_array(x, key).overlap_with(of_array(other, key)).share
        assert abs(found - share) < 5 * np.sqrt(share * (1 - share) / MOST) + 1e-9
        assert of_array(x, key).overlap_with(of_array(part, key)).share == 1.0, "of the smaller one"
        assert abs(of_array(x, key).different / len(x) - 1) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("common", "said"), [(0, None), (1, "about 0.067 %"), (45, "about 3 %"), (74, "about 4.9 %")])
def test_a_few_of_the_same_people_are_granted_with_a_warning(sqlite: Owner, common: int, said: str | None) -> None:
    """Of small data sets every one is seen. Mutants: said of none; said from 5 % on only."""
    x = np.concatenate([people()[:common], people(5, N - common)])
    _, told = sqlite.grant("others", x)
    about = [line for line in told if "in common" in line]
    assert about == told and len(about) == (said is not None)
    if said:
        assert said in about[0] and "'people', which has a budget" in about[0] and "not be seen" not in about[0]
        assert sqlite.grant("others", x)[1] == about  # and when it is granted again
        assert sqlite.grant("people", people(), chunks=(500, D))[1] == [
            about[0]
            .replace("'people', which", "'others', which")
            .replace("'people' and under 'others'", "'others' and under 'people'")
        ]


@pytest.mark.slow
def test_an_overlap_that_was_said_to_be_of_other_people_is_not_warned_of(sqlite: Owner) -> None:
    _, told = sqlite.grant("others", people()[:200], other_people="twins")
    assert told == []


@pytest.mark.slow
def test_of_large_data_sets_it_says_how_little_can_be_seen(sqlite: Owner) -> None:
    """Of 100,000 records a sketch holds 4 %. Of 300 other people 12 or so can be looked for, and that is said; of
    60,000 it sees enough, and says what would be too little. Mutant: nothing said of what was not compared."""
    town = people(11, 100_000)
    sqlite.grant("town", town)
    (line,) = sqlite.grant("club", people(12, 300))[1]
    found = re.search(r"only (\d+) records of the smaller one .* less than about (\d+) % in common", line)
    assert found and int(found[1]) <= 40 and 10 <= int(found[2]) <= 100 and "'town' and 'club'" in line
    _, told = sqlite.grant("county", np.concatenate([town[:1500], people(13, 58_500)]))
    (line,) = [line for line in told if "in common (of" in line]
    share, least = (float(found) for found in re.findall(r"about ([\d.]+) %", line))
    assert 0.9 < share < 4.1  # 2.5 % +- 0.3 %
    assert 0.15 < least < 0.23 and not any("hardly known" in line and "'town'" in line for line in told)


@pytest.mark.slow
@pytest.mark.parametrize(("records", "others"), [(6000, 6000), (300, 12_000)])
def test_the_resolution_is_what_is_seen_in_99_of_100(records: int, others: int) -> None:
    """Of 400 pairs that have so much in common at most 12 are missed (4 expected; by chance with probability 3e-4), and
    of those with a tenth of it most: both sides."""
    rng = np.random.default_rng(0)

    def found(share: float) -> Overlap:
        hashes = rng.integers(0, 2**64, records + others, dtype=np.uint64)
        common = int(rng.binomial(records, share))  # of the people there are, each is in both with this probability
        one, other = hashes[:records], np.concatenate([hashes[:common], hashes[records : records + others - common]])
        return Sketch(np.sort(one)[:MOST], records).overlap_with(Sketch(np.sort(other)[:MOST], others))

    resolution = found(0.0).resolution
    assert 0 < resolution < 0.1
    assert sum(not found(resolution).common for _ in range(400)) <= 12
    assert sum(not found(resolution / 10).common for _ in range(100)) > 40


@pytest.mark.slow
def test_records_that_repeat_are_said_to_and_may_be_overridden(sqlite: Owner) -> None:
    """Few different records: other people have the same ones, and only the owner can know."""
    rng = np.random.default_rng(3)
    answers, others = (np.eye(8)[rng.integers(0, 8, 400)] for _ in range(2))
    sqlite.grant("answers", answers)
    with pytest.raises(
        BudgetError, match=r"only 8 different records here, which other people may well share by chance"
    ):
        sqlite.grant("others", others)
    status, _ = sqlite.grant("others", others, other_people="asked in another year")
    assert status.grant.other_people == {"than": ["answers"], "because": "asked in another year"}
    sqlite.grant("others", others, budget=Budget(2.0, 1e-8), larger=True)  # said once
    entries = [entry.content for entry in sqlite.ledger.entries()]
    assert [c["other_people"]["because"] for c in entries if "other_people" in c] == ["asked in another year"] * 2
    assert require_whole_export(export_lines(sqlite.ledger)) == len(entries)


@pytest.mark.slow
def test_rows_of_zeros_are_not_compared(sqlite: Owner) -> None:
    zeros = np.zeros((50, D))
    zeros[0, 0] = 1
    sqlite.grant("zeros", zeros)
    other = np.zeros((60, D))
    other[0, 1] = 1
    sqlite.grant("more zeros", other)


def symmetric(seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((60, 60))
    total: np.ndarray = x + x.T
    return total


def tensor(seed: int) -> np.ndarray:
    u = np.random.default_rng(seed).standard_normal((6, 24))
    total: np.ndarray = np.einsum("ri,rj,rk->ijk", u, u, u)
    return (total + total.transpose(1, 2, 0) + total.transpose(2, 0, 1)) / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "make", "relation", "again"),
    [
        ("symmetric", symmetric, "symmetric_entry", {"layout": "full"}),
        ("tensor", tensor, "tensor_entry", {"chunks": (5, 5, 5)}),
        ("matrices", lambda seed: np.random.default_rng(seed).standard_normal((90, 4, 4)), "record_replace", {}),
    ],
)
def test_every_kind(tmp_path: Path, kind: str, make: Any, relation: str, again: dict[str, Any]) -> None:
    owner = Owner(tmp_path, str(tmp_path / "ledger.sqlite"))
    owner.grant("first", make(0), kind=kind, relation=relation, clip_norm=9.0)
    owner.grant("second", make(1), kind=kind, relation=relation, clip_norm=9.0)
    with pytest.raises(BudgetError, match="and 'first', which has a budget, have about"):
        owner.grant("third", make(0).astype(np.float32) * 3, kind=kind, relation=relation, clip_norm=9.0, **again)


def test_a_sketch_says_nothing_without_its_key() -> None:
    x = people()
    one, other = of_array(x), of_array(x, bytes(32))
    assert one.overlap_with(one).share == 1.0 and one.overlap_with(other).share == 0.0
    assert not np.isclose(weights(KEY, D), weights(bytes(32), D)).any()
    assert (Sketch.unpack(one.pack()).hashes == one.hashes).all() and Sketch.unpack(one.pack()).records == N


@pytest.mark.slow
def test_a_sketch_that_was_changed_is_found(owner: Owner) -> None:
    blank = "X''" if owner.address.endswith(".sqlite") else "''"
    execute(owner.address, f"UPDATE npmdask_ledger_sketches SET sketch = {blank}")
    with pytest.raises(RefusedError, match="sketch of a data set was changed"):
        owner.grant("others", people(1))


def of_before(address: str) -> None:
    """What the version before would have left: no sketches, and an entry that knows of none."""
    execute(address, "DROP TABLE npmdask_ledger_sketches")
    execute(address, "UPDATE npmdask_ledger SET version = 1")


@pytest.mark.slow
def test_a_ledger_of_before_is_used_and_grows_with_the_first_grant(tmp_path: Path, address: str) -> None:
    owner, x = Owner(tmp_path, address), people()
    old = open_source(owner.store("people", x, chunks=(500, D)), exact=False)
    relation = {"name": "record_replace", "clip_norm": 1.5}
    owner.ledger.grant("people", fingerprint=old.fingerprint, relation=relation, budget=SMALL)
    of_before(address)
    kept = list(export_lines(owner.ledger))
    assert owner.ledger.status("people").runs == ()  # read as it is
    _, told = owner.grant("others", people(1))
    assert any("'people': granted by an earlier version" in line for line in told)
    _, told = owner.grant("people", x, chunks=(500, D))  # the same again, as that warning says
    assert told == []
    with pytest.raises(BudgetError, match="about 100 %"):
        owner.grant("third", x.astype(np.float32))
    lines = list(export_lines(owner.ledger))
    assert lines[: len(kept)] == kept and require_whole_export(lines) == 3


@pytest.mark.slow
def test_the_data_are_read_once_for_a_grant(sqlite: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again with a larger budget nothing is read: the sketch is there."""
    monkeypatch.setattr("npmdask.ledger.granting.sketch_of", lambda *_: pytest.fail("read again"))
    sqlite.grant("people", people(), chunks=(500, D), budget=Budget(2.0, 1e-8), larger=True)


@pytest.mark.slow
def test_sketches_of_a_store_do_not_follow_its_layout(tmp_path: Path) -> None:
    owner, x = Owner(tmp_path, ""), people()
    one = sketch_of(open_source(owner.store("one", x, chunks=(100, 3))), KEY)
    other = sketch_of(open_source(owner.store("other", x)), KEY)
    cut = sketch_of(open_source(owner.store("cut", sp.csr_matrix(x))), KEY)
    assert (
        min(one.overlap_with(other).share, one.overlap_with(cut).share) > 0.99
        and one.records == other.records == cut.records == N
    )


# Exact runs


@pytest.mark.slow
def test_an_exact_run_on_data_with_a_budget_says_so(sqlite: Owner, capsys: pytest.CaptureFixture[str]) -> None:
    store = sqlite.folder / "people.zarr"
    warning = "these data have a privacy budget (as 'people' in the ledger), and what is made of them here is not"
    with pytest.warns(DataWarning, match=re.escape(warning)) as said:
        solution = top_k(store, 2, store=sqlite.folder / "run")
    assert any(warning in told for told in solution.warnings)
    assert [Path(one.filename).name for one in said] == [Path(__file__).name], "once, and at this line"
    with pytest.warns(DataWarning, match=re.escape(warning)):
        assert "have a privacy budget" in write_report(sqlite.folder / "run").read_text()
    with pytest.warns(DataWarning, match=re.escape(warning)):
        assert any(warning in told for told in top_k(store, 0.5, store=sqlite.folder / "share").warnings)
    config = sqlite.folder / "run.toml"
    config.write_text(
        f'[source]\npath = "{store}"\n[algorithm]\ntarget_rank = 2\n[run]\nstore = "{config.parent}/cli"\n'
    )
    capsys.readouterr()
    assert main(["run", str(config), "--quiet"]) == 0
    assert capsys.readouterr().err.count(warning) == 1, "once, and with --quiet, too"
    other = sqlite.store("free", people(3))
    assert not top_k(other, 2, store=sqlite.folder / "other").warnings


@pytest.mark.slow
def test_other_jobs_on_such_data_say_so_too(sqlite: Owner) -> None:
    rng, warning = np.random.default_rng(0), "have a privacy budget"
    x = np.eye(6)[rng.integers(0, 2, 2000)] * 5 + 0.3 * rng.standard_normal((2000, 6))
    sqlite.grant("clusters", x, kind="samples")
    store = sqlite.folder / "clusters.zarr"
    with pytest.warns(DataWarning, match=warning):
        streamed = stream_pca(store, 2, store=sqlite.folder / "stream")
    assert any(warning in told for told in streamed.warnings)
    with pytest.warns(DataWarning, match=warning):
        assert warning in write_report(sqlite.folder / "stream").read_text()
    with pytest.warns(DataWarning, match=warning):
        fit_mixture(store, 2, store=sqlite.folder / "mixture")
    assert any(warning in told for told in read_latent(sqlite.folder / "mixture").warnings)


@pytest.mark.slow
def test_a_store_that_cannot_be_written_is_granted_with_a_warning(
    sqlite: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("npmdask.ledger.ledger.mark_data", refuse)
    _, told = sqlite.grant("others", people(1))
    assert any("exact runs on it will not warn" in line for line in told)
    assert BUDGET_MARK not in dict(zarr.open_group(sqlite.folder / "others.zarr").attrs)


@pytest.mark.slow
def test_the_command_takes_the_reason(sqlite: Owner, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(sqlite.store("others", people().astype(np.float32)))
    asked = ["ledger", "grant", "others", store, "--relation", "record_replace", "--clip-norm", "1.5"]
    asked += ["--epsilon", "1", "--delta", "1e-8", "--ledger", sqlite.address]
    assert main(asked) == 3
    assert "--other-people REASON" in capsys.readouterr().err
    assert main([*asked, "--other-people", "twins"]) == 0
    (entry,) = [e for e in sqlite.ledger.entries() if e.dataset == "others"]
    assert entry.content["other_people"] == {"than": ["people"], "because": "twins"}
