"""What inspect and export say of a stream's store, at any moment of its life."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from npmdask.errors import BadInputError
from npmdask.manage.report import export
from npmdask.manage.status import inspect
from npmdask.streaming import StreamingPCA, stream_pca
from tests.streaming.test_report import K, cut_short, rows_of


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, seed in (("a", 0), ("b", 1)):
        np.save(folder / f"{name}.npy", rows_of(200, seed))
    return folder


def test_facts_of_a_directory_that_is_up_to_date(incoming: Path, tmp_path: Path) -> None:
    """Fails when a number is of another moment, or of another kind than JSON can hold."""
    rows = rows_of(50, seed=2)
    rows[7, 3] = np.inf
    np.save(incoming / "c.npy", rows)
    found = stream_pca(incoming, K, batch_rows=30, non_finite="skip", held_out=rows_of(40), store=tmp_path / "s")
    facts = inspect(tmp_path / "s")
    assert json.loads(json.dumps(facts)) == facts
    assert facts["state"] == "up to date" and facts["outcome"].startswith("up to date: 449 rows were taken")
    assert (facts["rows"], facts["skipped"], facts["steps"]) == (449, 1, found.steps)
    assert facts["rows_waiting"] == found.rows_waiting
    assert (facts["files_done"], facts["file_begun"]) == (3, None)
    assert facts["measured_after"] == 449 and facts["explained"] == found.last.explained
    assert facts["suboptimality"] == found.last.suboptimality and facts["max_sin_theta"] is None
    assert facts["source"] == str(incoming) and facts["algorithm.name"] == "spm" and facts["run.batch_rows"] == 30


def test_facts_of_a_file_that_stopped_the_stream(incoming: Path, tmp_path: Path) -> None:
    """Fails when what was committed before the bad row is not told, or the file that is begun counts as done."""
    rows = rows_of(200, seed=1)
    rows[150] = np.nan
    np.save(incoming / "b.npy", rows)
    with pytest.raises(BadInputError, match="row 150"):
        stream_pca(incoming, K, batch_rows=20, store=tmp_path / "s")
    facts = inspect(tmp_path / "s")
    assert facts["state"] == "unfinished" and facts["outcome"] == "not finished: go on with `npmdask resume`"
    assert (facts["rows"], facts["files_done"], facts["file_begun"]) == (340, 1, "b.npy")


def interrupted() -> Iterator[np.ndarray]:
    yield rows_of(2)
    raise KeyboardInterrupt


def test_facts_before_anything_is_committed_or_measured(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stream_pca(interrupted(), K, store=tmp_path / "none")
    facts = inspect(tmp_path / "none")
    assert (facts["state"], facts["rows"], facts["algorithm.name"]) == ("unfinished", 0, "spm")
    with pytest.raises(BadInputError, match="the line is dead"):
        stream_pca(cut_short(60), K, batch_rows=20, store=tmp_path / "few")
    facts = inspect(tmp_path / "few")
    assert (facts["rows"], facts["measured_after"], facts["rank"]) == (60, None, None) and "files_done" not in facts


def exported(store: Path, target: Path) -> dict[str, np.ndarray]:
    names = export(store, target)
    with np.load(target, allow_pickle=False) as held:
        assert names == list(held)
        return dict(held)


@pytest.mark.parametrize("center", [False, True])
def test_export_is_the_solution_bit_for_bit(tmp_path: Path, center: bool) -> None:
    """Fails when the export is of another commit than the answer, or has a mean where there is none."""
    found = stream_pca(iter([rows_of(500)]), K, batch_rows=30, center=center, store=tmp_path / "s")
    arrays = exported(tmp_path / "s", tmp_path / "s.npz")
    assert set(arrays) == {"basis", "values"} | ({"mean"} if center else set())
    assert (arrays["basis"] == found.basis).all() and (arrays["values"] == found.values).all()
    assert not center or (found.mean is not None and (arrays["mean"] == found.mean).all())


def test_export_of_a_stream_that_was_cut_short_is_its_last_commit(tmp_path: Path) -> None:
    """Fails when export waits for a result."""
    with pytest.raises(BadInputError, match="the line is dead"):
        stream_pca(cut_short(300), K, batch_rows=30, store=tmp_path / "s")
    arrays, model = exported(tmp_path / "s", tmp_path / "s.npz"), StreamingPCA.load(tmp_path / "s")
    assert model.rows == 300 and (arrays["basis"] == model.basis).all() and (arrays["values"] == model.values).all()


def test_export_without_an_answer_is_refused(tmp_path: Path) -> None:
    """Fails when an empty or half-written file is left."""
    with pytest.raises(KeyboardInterrupt):
        stream_pca(interrupted(), K, store=tmp_path / "none")
    with pytest.raises(BadInputError, match="committed no rows yet"):
        export(tmp_path / "none", tmp_path / "x.npz")
    options = {"gap": 0.1, "warm_rows": 64}
    with pytest.raises(BadInputError, match="kept in"):
        stream_pca(iter([rows_of(5)]), K, algorithm="mb-msg", options=options, store=tmp_path / "few")
    with pytest.raises(BadInputError, match="rows"):
        export(tmp_path / "few", tmp_path / "x.npz")
    assert not list(tmp_path.glob("*x.npz*"))
