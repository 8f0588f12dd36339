"""Data with a budget say so at every door: one seam opens them, writers of what is made of them carry the mark."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

import npmdask
from npmdask.accounting import Budget
from npmdask.cli.main import main
from npmdask.core.storage.safe_open import BUDGET_MARK, mark_data
from npmdask.core.storage.source import open_source
from npmdask.errors import BudgetError, DataWarning, NpmdaskError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from tests.conftest import often

SAID = "these data have a privacy budget (as 'people' in the ledger)"
ASKED: dict[str, Any] = {"relation": "record_replace", "clip_norm": 1.5, "change": 1.0, "budget": Budget(1.0, 1e-8)}
PRIVATE = ["--epsilon", "1", "--delta", "1e-8", "--relation", "record_replace", "--clip-norm", "1.5"]


def rows(seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.round(np.abs(rng.standard_normal((600, 8))) * np.r_[9, 7, np.full(6, 1.0)]) + 1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of the same rows, with and without a budget, and an exact run and scores of each."""
    folder = tmp_path_factory.mktemp("marked")
    for name in ("free", "people"):
        np.save(folder / f"{name}.npy", rows())
        ingest(folder / f"{name}.npy", folder / f"{name}.zarr")
    grant_source(open_ledger(folder / "l.sqlite"), "people", folder / "people.zarr", **ASKED)
    for name in ("free", "people"):
        for command in (
            [
                "run",
                f"{folder}/{name}.zarr",
                "-k",
                "2",
                "--kind",
                "samples",
                "--quiet",
                "--store",
                f"{folder}/{name}-run",
            ],
            ["transform", f"{folder}/{name}-run", f"{folder}/{name}.zarr", f"{folder}/{name}-scores.zarr", "--quiet"],
            ["ingest", f"{folder}/{name}.zarr", f"{folder}/{name}-copy.zarr", "--quiet"],
            ["moments", f"{folder}/{name}.zarr", f"{folder}/{name}-m3.zarr", "--quiet"],
        ):
            assert main(command) == 0
    return folder


def command(*words: str) -> Callable[[str, Path], Any]:
    """A command, in which X is the store, R its run and NEW what is made."""

    def door(x: str, new: Path) -> Any:
        given = {"X": x, "R": x.replace(".zarr", "-run"), "NEW": str(new), "CSV": f"{new}.csv", "S": f"{new}.zarr"}
        return main([given.get(word, word) for word in words])

    return door


DOORS: dict[str, Callable[[str, Path], Any]] = {
    "top_k": lambda x, new: npmdask.top_k(x, 2),
    "top_k of a group": lambda x, new: npmdask.top_k(zarr.open_group(x, mode="r"), 2),
    "top_k of its array": lambda x, new: npmdask.top_k(zarr.open_group(x, mode="r")["data"], 2),
    "top_k of its array by path": lambda x, new: npmdask.top_k(f"{x}/data", 2),
    "top_k of Dask": lambda x, new: npmdask.top_k(da.from_zarr(x, component="data"), 2),
    "top_k of a copy": lambda x, new: npmdask.top_k(x.replace(".zarr", "-copy.zarr"), 2),
    "top_k of scores": lambda x, new: npmdask.top_k(x.replace(".zarr", "-scores.zarr"), 1),
    "top_k of moments": lambda x, new: open_source(x.replace(".zarr", "-m3.zarr")),
    "singular_triplets": lambda x, new: npmdask.singular_triplets(x, 1),
    "stream_pca": lambda x, new: npmdask.stream_pca(x, 2, store=new),
    "scores": lambda x, new: npmdask.resume(x.replace(".zarr", "-run")).scores(x),
    **{
        name: lambda x, new, name=name: getattr(npmdask, name)(2).fit(x)  # type: ignore[misc]
        for name in ("PCA", "TruncatedSVD", "IncrementalPCA", "ICA")
    },
    **{
        name: lambda x, new, name=name: getattr(npmdask, name)(2).fit(x, x)  # type: ignore[misc]
        for name in ("MCA", "CCA")
    },
    "run": command("run", "X", "-k", "2", "--store", "NEW"),
    "run --quiet --json": command("run", "X", "-k", "2", "--quiet", "--json", "--store", "NEW"),
    "resume": command("resume", "R"),
    "gram": command("gram", "X", "NEW"),
    "ingest": command("ingest", "X", "S"),
    "moments": command("moments", "X", "S"),
    "transform to a table": command("transform", "R", "X", "CSV"),
    "export": command("export", "R", "CSV"),
    "report": command("report", "R", "-o", "NEW"),
    "components": command("components", "R"),
    "topics": command("topics", "X", "--topics", "1", "--store", "NEW"),
    "ica": command("ica", "X", "--components", "2", "--store", "NEW"),
    "mixture": command("mixture", "X", "--components", "2", "--store", "NEW"),
    "mca": command("mca", "X", "X", "-k", "2", "--store", "NEW"),
    "cca": command("cca", "X", "X", "-k", "2", "--store", "NEW"),
    "plan": command("plan", "X", "-k", "2"),
}


def heard(door: Callable[[str, Path], Any], x: Path, new: Path, capsys: Any) -> str:
    """What a person hears at a door: on stderr, or as warnings of Python; or what it is refused with."""
    capsys.readouterr()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DataWarning)
        try:
            door(str(x), new)
        except NpmdaskError as error:
            return str(error) + "".join(str(one.message) for one in said)
    return str(capsys.readouterr().err) + "".join(str(one.message) for one in said)


@pytest.mark.slow
@pytest.mark.parametrize("name", often(DOORS, 0, 3, 4, 6, 17, 21, 24))
def test_every_door_tells_of_a_budget(name: str, made: Path, tmp_path: Path, capsys: Any) -> None:
    """And says nothing of data that have none. Mutants: a door that opens by itself; a writer without the mark."""
    assert SAID in heard(DOORS[name], made / "people.zarr", tmp_path / "new", capsys)
    assert "privacy budget" not in heard(DOORS[name], made / "free.zarr", tmp_path / "other", capsys)


@pytest.mark.slow
def test_what_is_private_or_only_looks_is_not_warned_of(made: Path, tmp_path: Path, capsys: Any) -> None:
    x, promise = str(made / "people.zarr"), {"epsilon": 0.2, "delta": 1e-9, "neighboring_relation": "record_replace"}
    ledger: dict[str, Any] = {"ledger": str(made / "l.sqlite"), "dataset": "people"}
    asked = npmdask.Privacy(**promise, clip_norm=1.5, **ledger)  # type: ignore[arg-type]
    (tmp_path / "p.toml").write_text(
        f'[source]\npath = "{x}"\n[algorithm]\ntarget_rank = 1\nname = "covariance"\n[run]\nstore = "{tmp_path}/cli"\n'
        f'[privacy]\nepsilon = 0.2\ndelta = 1e-9\nneighboring_relation = "record_replace"\nclip_norm = 1.5\n'
        f'ledger = "{made}/l.sqlite"\ndataset = "people"\n'
    )
    private = {
        "top_k": lambda x, new: npmdask.top_k(x, 1, algorithm="covariance", privacy=asked, store=tmp_path / "run"),
        "resume": lambda x, new: npmdask.resume(tmp_path / "run"),
        "report": lambda x, new: main(["report", f"{tmp_path}/run"]),
        "export": lambda x, new: main(["export", f"{tmp_path}/run", f"{tmp_path}/a.csv"]),
        "plan": lambda x, new: main(["plan", f"{tmp_path}/p.toml"]),
        "run": lambda x, new: main(["run", f"{tmp_path}/p.toml"]),
        "status": lambda x, new: main(["status", str(made)]),
        "ledger show": lambda x, new: main(["ledger", "show", "--ledger", f"{made}/l.sqlite"]),
    }
    for name, door in private.items():
        assert "privacy budget (as" not in heard(door, Path(x), tmp_path / "new", capsys), name
    capsys.readouterr()
    assert main(["inspect", x]) == 0 and "'people' in the ledger" in capsys.readouterr().out, "that it is there"


@pytest.mark.slow
def test_a_warning_comes_once_and_where_npmdask_was_called(made: Path, capsys: Any) -> None:
    with pytest.warns(DataWarning) as said:
        found = npmdask.top_k(made / "people.zarr", 2)
    assert [one.filename for one in said] == [__file__] and sum(SAID in one for one in found.warnings) == 1
    capsys.readouterr()
    assert main(["mca", f"{made}/people.zarr", f"{made}/people.zarr", "-k", "1", "--store", f"{made}/once"]) == 0
    assert capsys.readouterr().err.count(f"npmdask: warning: {SAID}") == 1
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "npmdask", "export", f"{made}/people-run", f"{made}/out.csv"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count(SAID) == 1, "what Python is told to ignore is not this"


def test_notes_of_a_source_go_the_same_road(tmp_path: Path, capsys: Any) -> None:
    """Whatever rule decided something: here a mark, as the only one that a store can hold by hand."""
    np.save(tmp_path / "x.npy", rows())
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    mark_data(tmp_path / "x.zarr", "old \x1b[2J name")  # of a version that noted a name alone
    with pytest.warns(DataWarning, match="privacy budget") as said:
        opened = open_source(tmp_path / "x.zarr")
    assert opened.notes == tuple(str(one.message) for one in said) and "\x1b" not in opened.notes[0]
    assert opened.budget == "old \x1b[2J name" and not open_source(tmp_path / "x.zarr", exact=False).notes


# What the mark means is the ledger's: whose it is, and how far that was.


def grant(folder: Path, ledger: str, name: str, store: str = "x.zarr", **more: Any) -> Any:
    return grant_source(open_ledger(folder / ledger), name, folder / store, **{**ASKED, **more})


@pytest.fixture
def granted(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", rows())
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    grant(tmp_path, "a.sqlite", "people")
    return tmp_path


@pytest.mark.slow
def test_a_second_ledger_is_refused_with_the_name_in_the_first(granted: Path) -> None:
    with pytest.raises(BudgetError, match="have a budget already, as 'people' in the ledger whose first entry"):
        grant(granted, "b.sqlite", "again")
    grant(granted, "a.sqlite", "people")  # the same one, again
    with pytest.warns(DataWarning, match="privacy budget"):
        ingest(granted / "x.zarr", granted / "copy.zarr")
    with pytest.raises(BudgetError, match="as 'people' in the ledger whose first entry"):
        grant(granted, "b.sqlite", "again", "copy.zarr")
    ingest(granted / "x.npy", granted / "fresh.zarr")
    grant(granted, "b.sqlite", "fresh", "fresh.zarr")  # from what the data were made of: the way out
    mark_data(granted / "x.zarr", "people")  # of a version that noted a name alone: which ledger is not known
    grant(granted, "a.sqlite", "people")
    assert dict(zarr.open_group(granted / "x.zarr").attrs)[BUDGET_MARK]["dataset"] == "people"


def private(folder: Path, ledger: str, store: str) -> Any:
    asked: dict[str, Any] = {"epsilon": 0.3, "delta": 1e-9, "neighboring_relation": "record_replace", "clip_norm": 1.5}
    promise = npmdask.Privacy(**asked, ledger=str(folder / ledger), dataset="people")
    return npmdask.top_k(folder / "x.zarr", 1, algorithm="covariance", privacy=promise, store=folder / store)


@pytest.mark.slow
def test_a_clone_of_the_ledger_is_noticed_by_runs_and_grants(granted: Path) -> None:
    """Twice the budget from one grant: a copy of the file, and runs on each. Mutant: the head is not noted by runs."""
    (granted / "clone.sqlite").write_bytes((granted / "a.sqlite").read_bytes())
    (granted / "clone.sqlite").chmod(0o600)
    private(granted, "a.sqlite", "one")
    with pytest.raises(RefusedError, match="another one, or an older copy of it"):
        private(granted, "clone.sqlite", "two")
    with pytest.raises(RefusedError, match="older copy"):
        grant(granted, "clone.sqlite", "people", larger=True, budget=Budget(2.0, 1e-8))
    private(granted, "a.sqlite", "three")
    with pytest.raises(BudgetError, match="another one"):
        private(granted, "none.sqlite", "four")


@pytest.mark.slow
def test_data_that_cannot_be_written_are_charged_all_the_same(granted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (granted / "x.zarr" / "zarr.json").read_bytes()
    monkeypatch.setattr("npmdask.ledger.ledger.mark_data", lambda *_: 1 / 0)
    assert private(granted, "a.sqlite", "one").statement["epsilon"] == 0.3
    assert (granted / "x.zarr" / "zarr.json").read_bytes() == before
