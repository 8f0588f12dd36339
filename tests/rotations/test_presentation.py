"""Answers that are rotated or aligned with an earlier run, by configuration, command line and resume; what is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.config import config_of_source
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.restore import solution_of
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.manage.report import export, report_of
from npmdask.report import as_json
from npmdask.rotations.presentation import PART
from tests.cli.test_contract import run
from tests.conftest import write_zarr

SIMPLE = np.kron(np.eye(3), np.ones((4, 1)))


def night(seed: int, shapes: np.ndarray = SIMPLE, sizes: tuple[float, ...] = (2.0, 1.4, 1.0)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((600, 3)) * sizes @ shapes.T + 0.3 * rng.standard_normal((600, 12))


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nights of the same shapes, whose variances change places; of the first there is a run."""
    folder = tmp_path_factory.mktemp("nights")
    for name, sizes in (("mon", (2.0, 1.4, 1.0)), ("tue", (1.0, 2.0, 1.4)), ("wed", (1.4, 1.0, 2.0))):
        write_zarr(folder / f"{name}.zarr", night(len(name + str(sizes)), sizes=sizes), (100, 12))
    solved(folder, "mon")
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def solved(folder: Path, name: str, store: str | None = None, **report: Any) -> npmdask.Solution:
    changes = {"algorithm.target_rank": 3, "source.center": True, "source.kind": "samples"}
    changes |= {f"report.{key}": str(folder / value) if key == "align_to" else value for key, value in report.items()}
    found = config_of_source(str(folder / f"{name}.zarr"), store=str(folder / (store or name)), changes=changes).solve()
    assert isinstance(found, npmdask.Solution)
    return found


def arrays(folder: Path, store: str, **how: Any) -> dict[str, np.ndarray]:
    export(folder / store, folder / "out.npz", **how)
    with np.load(folder / "out.npz") as held:
        return dict(held)


@pytest.mark.slow
def test_nights_are_shown_in_one_order_and_with_one_sign(nights: Path) -> None:
    """The third night follows the second as it was shown: with that one's own order, components would flip back.

    Mutant: ``earlier_of`` that reads the answer of the earlier run and not what was shown.
    """
    solved(nights, "tue", align_to="mon")
    found = solved(nights, "wed", align_to="tue")
    mon, tue, wed = (arrays(nights, name) for name in ("mon", "tue", "wed"))
    for one in (tue, wed):
        assert (np.einsum("ij,ij->j", one["basis"], mon["basis"]) > 0.9).all()
        assert one["order"].tolist() != [0, 1, 2]
        np.testing.assert_allclose(one["score_weights"], one["basis"])
    assert found.facts[PART]["order"] == wed["order"].tolist()
    assert found.facts[PART]["align_to"] == str(nights / "tue")
    assert max(found.facts[PART]["degrees"]) < 20 and min(found.facts[PART]["inside"]) > 0.98
    assert not [said for said in found.warnings if "turned" in said or "moved" in said]
    plain = arrays(nights, "wed", rotate="none")
    np.testing.assert_array_equal(plain["basis"], found.basis)
    assert {"values", "residual_norms"} <= plain.keys() and "order" not in plain
    # One definition under one name, in every export: it was n - 1 in an aligned one, and n in all others.
    np.testing.assert_allclose(plain["explained_variance"], found.explained_variance, rtol=1e-15)
    np.testing.assert_allclose(plain["explained_variance"][wed["order"]], wed["explained_variance"], rtol=1e-12)
    np.testing.assert_allclose(plain["explained_variance_ratio"][wed["order"]], wed["explained_variance_ratio"])
    assert not {"variances"} & (plain.keys() | wed.keys())
    again = arrays(nights, "wed", align_to=str(nights / "tue"))
    assert all(np.array_equal(again[name], wed[name]) for name in wed), "the flag says what the configuration says"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["varimax", "promax"])
def test_rotated_components_are_aligned_with_rotated_ones(nights: Path, method: str) -> None:
    first = arrays(nights, "mon", rotate=method)
    twin = solution_of(RunStore(nights / "mon")).rotated(method)
    np.testing.assert_array_equal(first["basis"], twin.basis)
    np.testing.assert_allclose(first["explained_variance"], twin.variances)
    shares = solution_of(RunStore(nights / "mon")).explained_variance_ratio
    assert first["explained_variance_ratio"].sum() == pytest.approx(shares.sum())
    solved(nights, "tue", f"tue-{method}", rotate=method, align_to="mon")
    second = arrays(nights, f"tue-{method}")
    assert (np.einsum("ij,ij->j", second["basis"], first["basis"]) > 0.95).all()
    np.testing.assert_allclose(second["similarity"], np.einsum("ij,ij->j", second["basis"], first["basis"]), rtol=1e-9)


@pytest.mark.slow
def test_a_space_that_moved_is_warned_of(nights: Path) -> None:
    """One of three directions is new; the others stay, and nothing is said of them."""
    shapes = SIMPLE.copy()
    shapes[:, 2] = np.tile([1.0, -1.0], 6)
    write_zarr(nights / "new.zarr", night(9, shapes), (100, 12))
    found = solved(nights, "new", align_to="mon")
    said = [said for said in found.warnings if "the space of the components moved since" in said]
    assert len(said) == 1 and "component 3 lies partly outside" in said[0]
    report = json.dumps(as_json(report_of(nights / "new")))
    assert "the space of the components moved since" in report and "Turned since the earlier run" in report
    # the same shapes with equal variances mix inside of a space that stays
    write_zarr(nights / "equal.zarr", night(5, sizes=(1, 1, 1)), (100, 12))
    mixed = solved(nights, "equal", align_to="mon")
    assert not [said for said in mixed.warnings if "moved" in said]
    assert [said for said in mixed.warnings if 'rotate = "procrustes" turns them back' in said]
    back = solved(nights, "equal", "back", align_to="mon", rotate="procrustes")
    assert not back.warnings and max(back.facts[PART]["degrees"]) < 10


@pytest.mark.slow
def test_what_is_asked_of_a_report_changes_no_bit_of_the_run(nights: Path) -> None:
    """And a run that is finished takes it on; asked again it is the same files; without, what is kept stays."""
    before = solved(nights, "tue", "twice")
    spec = (nights / "twice" / "run.json").read_text()
    answer = files_of(nights / "twice" / "result")
    assert "report" not in json.loads(spec)
    found = solved(nights, "tue", "twice", align_to="mon")
    assert found.data_passes == 0 and np.array_equal(found.basis, before.basis)
    assert files_of(nights / "twice" / "result") == answer
    kept = files_of(nights / "twice" / PART)
    assert npmdask.resume(nights / "twice").facts[PART] == found.facts[PART]
    solved(nights, "tue", "twice")
    assert files_of(nights / "twice" / PART) == kept


@pytest.mark.slow
def test_a_resume_presents_what_a_killed_run_was_asked_for(nights: Path) -> None:
    """Killed between the answer and its presentation: here the part is gone, as if it had not been written."""
    solved(nights, "tue", "killed", align_to="mon", rotate="varimax")
    kept = files_of(nights / "killed" / PART)
    with RunStore(nights / "killed") as held:
        held.drop_part(PART)
    npmdask.resume(nights / "killed")
    assert files_of(nights / "killed" / PART) == kept
    npmdask.resume(nights / "killed", tol=1e-6)  # another answer, which is presented instead
    assert (nights / "killed" / PART).is_dir()


@pytest.mark.slow
def test_an_earlier_run_that_is_gone_keeps_no_run_from_its_answer(nights: Path) -> None:
    shutil.copytree(nights / "mon", nights / "old")
    solved(nights, "tue", "after", align_to="old")
    kept = files_of(nights / "after" / PART)
    shutil.rmtree(nights / "old")
    assert "any more" not in " ".join(solved(nights, "tue", "after", align_to="old").warnings)
    assert files_of(nights / "after" / PART) == kept, "what was kept is still good"
    with RunStore(nights / "after") as held:
        held.drop_part(PART)
    assert "any more: the components are not aligned" in npmdask.resume(nights / "after").warnings[-1]
    with pytest.raises(BadInputError, match="there is no run to align with"):
        solved(nights, "tue", "never", align_to="old")
    assert not (nights / "never" / "result").exists(), "refused before the first pass"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"rotate": "procrustes"}, "name that run with align_to"),
        ({"align_to": "refused"}, "aligned with itself"),
        ({"align_to": "wide"}, "is of 13 columns, and the data have 12"),
        ({"independent_rows": 601}, "count as fewer, never as more"),
        ({"bootstrap": 200}, "npmdask gram .* --by-chunks 1"),
    ],
)
def test_what_cannot_be_presented_is_refused_before_the_first_pass(
    nights: Path, report: dict[str, Any], said: str
) -> None:
    if not (nights / "wide").exists():
        write_zarr(nights / "wide.zarr", np.column_stack([night(1), night(2)[:, 0]]), (100, 13))
        solved(nights, "wide")
    with pytest.raises(NpmdaskError, match=said):
        solved(nights, "tue", "refused", **report)
    assert not (nights / "refused" / "result").exists()


@pytest.mark.slow
def test_runs_without_components_of_rows_are_refused(tmp_path: Path) -> None:
    write_zarr(tmp_path / "s.zarr", np.diag(np.arange(1.0, 9)), (8, 8))
    changes = {"algorithm.target_rank": 2, "source.kind": "symmetric", "report.rotate": "varimax"}
    with pytest.raises(BadInputError, match="a run of kind symmetric has no components of rows"):
        config_of_source(str(tmp_path / "s.zarr"), store=str(tmp_path / "s"), changes=changes).solve()
    npmdask.top_k(str(tmp_path / "s.zarr"), 2, kind="symmetric", store=tmp_path / "t")
    with pytest.raises(BadInputError, match="is not a run on samples or a matrix"):
        export(tmp_path / "t", tmp_path / "t.npz", rotate="varimax")
    npmdask.gram(np.ones((20, 3)) + np.eye(20, 3), tmp_path / "G")
    with pytest.raises(BadInputError, match="is a run of kind gram: only components of rows"):
        export(tmp_path / "G", tmp_path / "t.npz", rotate="varimax")
    np.save(tmp_path / "rows.npy", night(0))
    private = {"epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.0, "neighboring_relation": "record_replace"}
    changes = {"algorithm.target_rank": 2, "report.rotate": "varimax"} | {f"privacy.{k}": v for k, v in private.items()}
    ingest(tmp_path / "rows.npy", tmp_path / "rows", kind="samples")
    with pytest.raises(RefusedError, match=r"leave the \[report\] table out, .* `npmdask export"):
        config_of_source(str(tmp_path / "rows"), store=str(tmp_path / "p"), changes=changes).solve()


@pytest.mark.slow
def test_on_the_command_line(nights: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(nights)
    options = ("-k", "3", "--center", "--kind", "samples", "--quiet", "--json")
    code, out, err = run(capsys, "run", "tue.zarr", *options, "--align-to", "mon", "--store", "cli")
    assert code == 0, err
    found = json.loads(out)["facts"][PART]
    assert found["earlier"] == [0, 1, 2] and found["align_to"] == str(nights / "mon")
    assert json.loads(run(capsys, "inspect", "cli", "--json")[1])[f"{PART}.degrees"] == found["degrees"]
    for name, said in (("a.csv", "component3"), ("a.nc", "similarity"), ("a.npz", "score_weights")):
        code, out, err = run(capsys, "export", "mon", name, "--rotate", "promax", "--align-to", "cli")
        assert code == 0 and said in out, err
    assert "did you mean 'varimax'?" in run(capsys, "export", "mon", "a.csv", "--rotate", "varimx")[2]
    assert "there is no run in" in run(capsys, "export", "mon", "a.csv", "--align-to", "nowhere")[2]
    page = Path(run(capsys, "report", "cli", "-o", "cli.html")[1].strip()).read_text()
    assert "Aligned components" in page and "In the order and with the signs of the components of" in page


@pytest.mark.slow
def test_north_of_a_run_on_its_page_and_in_the_terminal(tmp_path: Path, capsys: Any) -> None:
    """Errors of singular values are those of their squares, halved; rows that are no observations have none."""
    write_zarr(tmp_path / "x.zarr", night(3, sizes=(2.0, 1.0, 0.99)), (100, 12))
    for name, kind, options in (
        ("samples", "samples", ["--center"]),
        ("matrix", "matrix", ["--center"]),
        ("plain", "matrix", []),
    ):
        where = ("--store", str(tmp_path / name), "--quiet", "--kind", kind)
        assert run(capsys, "run", str(tmp_path / "x.zarr"), "-k", "3", *options, *where)[0] == 0
    samples, matrix = (
        json.loads(run(capsys, "components", str(tmp_path / name), "--json")[1])["sampling"]
        for name in ("samples", "matrix")
    )
    np.testing.assert_allclose(samples["errors"], np.array(samples["values"]) * np.sqrt(2 / 600), rtol=1e-12)
    np.testing.assert_allclose(matrix["errors"], np.array(matrix["values"]) * np.sqrt(2 / 600) / 2, rtol=1e-12)
    assert samples["mixed"] == matrix["mixed"] == [[1, 2]]
    assert "sampling" not in json.loads(run(capsys, "components", str(tmp_path / "plain"), "--json")[1])
    fewer = run(capsys, "components", str(tmp_path / "samples"), "--independent-rows", "6")[1]
    assert "Mixed: components 1, 2, 3." in fewer and "assuming 6 independent" in fewer
    for wrong in ("0", "601"):
        assert run(capsys, "components", str(tmp_path / "samples"), "--independent-rows", wrong)[0] == 2
    page = as_json(report_of(tmp_path / "samples"))
    spectrum = next(b for s in page["sections"] for b in s["blocks"] if b.get("title") == "Spectrum")
    assert [one["x"] for one in spectrum["series"]] == [(1.0,), (2.0, 3.0)]
    np.testing.assert_allclose([e for one in spectrum["series"] for e in one["spread"]], samples["errors"])
    weighted = npmdask.top_k(
        str(tmp_path / "x.zarr"), 2, kind="samples", center=True, row_weights=np.ones(600), store=tmp_path / "w"
    )
    for store in (tmp_path / "plain", weighted.store):
        assert "Sampling" not in [s["title"] for s in as_json(report_of(store))["sections"]]
    rows = night(3, sizes=(2.0, 1.0, 0.99))
    rows[3, 2] = np.nan
    write_zarr(tmp_path / "n.zarr", rows, (50, 12))
    how = {"kind": "samples", "center": True, "missing": "mean", "store": tmp_path / "gaps"}
    gaps = npmdask.top_k(str(tmp_path / "n.zarr"), 2, **how)
    worth = "Rows with missing values are worth less"
    assert worth in run(capsys, "components", str(gaps.store))[1] and worth not in fewer


@pytest.mark.slow
def test_bootstrap_of_a_run_over_a_stored_gram(tmp_path: Path) -> None:
    """What GramStore.bootstrap says, kept with the run; killed and run again, by another process, the same bytes."""
    write_zarr(tmp_path / "x.zarr", night(3, sizes=(2.0, 1.0, 0.99)), (50, 12))
    store = npmdask.gram(str(tmp_path / "x.zarr"), tmp_path / "G", kind="samples", by_chunks=1)
    changes = {"algorithm.target_rank": 3, "source.center": True, "report.bootstrap": 60}
    found = config_of_source(str(tmp_path / "G"), store=str(tmp_path / "run"), changes=changes).solve()
    assert isinstance(found, npmdask.Solution)
    facts = json.loads(json.dumps(store.bootstrap(3, replicates=60).facts()))
    assert found.facts[PART]["bootstrap"] == facts and facts["mixed"] == [[1, 2]]
    assert "Bootstrap" in [s["title"] for s in as_json(report_of(tmp_path / "run"))["sections"]]
    kept = files_of(tmp_path / "run" / PART)
    killed = (
        "import os, npmdask.rotations.presentation as p\n"
        "p._write = lambda *_: os._exit(9)\n"  # the bootstrap is done, and nothing of it is on disk
        f"import npmdask; npmdask.resume({str(tmp_path / 'run')!r})"
    )
    with RunStore(tmp_path / "run") as held:
        held.drop_part(PART)
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == 9
    assert not (tmp_path / "run" / PART).exists()
    again = f"import npmdask; npmdask.resume({str(tmp_path / 'run')!r})"
    subprocess.run([sys.executable, "-c", again], check=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    assert files_of(tmp_path / "run" / PART) == kept
    npmdask.gram(str(tmp_path / "x.zarr"), tmp_path / "H", kind="samples")
    with pytest.raises(BadInputError, match="has 1 group of rows, and a bootstrap needs 8"):
        config_of_source(str(tmp_path / "H"), store=str(tmp_path / "few"), changes=changes).solve()
