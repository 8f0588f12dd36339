"""A run that does not centre says so where its first component is nearly the mean of the columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import npmdask
from npmdask.cli.main import main
from npmdask.core.runs.checks import MOSTLY
from npmdask.formats.ingest import ingest
from npmdask.manage.report import report_of

MEAN = 3.0


def rows_of(share: float, n: int = 400, d: int = 6) -> np.ndarray:
    """Rows of which exactly ``share`` of the first value (of the mean square) belongs to their mean."""
    rows = np.random.default_rng(0).standard_normal((n, d))
    rows = np.linalg.qr(rows - rows.mean(axis=0))[0] * np.sqrt(n)  # centred, of deviation 1, not correlated
    rows[:, 1:] *= 0.1
    rows[:, 0] *= MEAN * np.sqrt(1 / share - 1)
    rows[:, 0] += MEAN
    return rows


def noted(solution: npmdask.Solution) -> list[str]:
    return [text for text in solution.warnings if "the mean of the columns" in text]


@pytest.mark.parametrize("kind", ["matrix", "samples"])
@pytest.mark.parametrize("scale", [False, True])
def test_on_both_sides_of_the_threshold(kind: str, scale: bool) -> None:
    above, below = (
        npmdask.top_k(rows_of(share), 2, kind=kind, algorithm="gram", scale=scale)
        for share in (MOSTLY + 0.01, MOSTLY - 0.01)
    )
    assert noted(above) == ["component 1 is nearly the mean of the columns (cosine 1): set center = true for PCA"], (
        above.warnings
    )
    assert noted(below) == []
    assert noted(npmdask.top_k(rows_of(0.99), 2, kind=kind, algorithm="gram", scale=scale, center=True)) == []


def test_the_cosine_is_that_of_the_first_component_and_the_mean() -> None:
    rows = rows_of(0.95)
    rows[:, 1] += 0.3 * (rows[:, 0] - MEAN)  # the first component now leans away from the mean
    solution = npmdask.top_k(rows, 2, kind="matrix", algorithm="gram")
    mean = rows.mean(axis=0)
    cosine = abs(mean @ solution.basis[:, 0]) / np.linalg.norm(mean)
    said = noted(solution)[0]
    assert float(said.partition("cosine ")[2].partition(")")[0]) == pytest.approx(cosine, abs=1e-4)
    assert cosine < 0.9999


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("share", [MOSTLY + 0.01, MOSTLY - 0.01, 0.995])
def test_left_vectors_tell_where_the_means_are_not_known(share: float, weighted: bool) -> None:
    """As of a small array in memory, without a pass. The bound is below the cosine, and not far below.

    Mutants: rows that are weighted summed as they are; the bound without what the unknown components share.
    """
    rows = rows_of(share)
    rows[:, 1] += 0.5 * (rows[:, 0] - MEAN)
    weights = np.where(np.arange(400) % 2, 0.3, 2.0) if weighted else None
    plain = npmdask.top_k(rows, 2, kind="matrix", algorithm="krylov", row_weights=weights)
    known = npmdask.top_k(rows, 2, kind="matrix", algorithm="gram", row_weights=weights)
    assert len(noted(plain)) == len(noted(known)) and plain.data_passes == plain.steps + 1
    if not noted(plain):
        return
    bound = float(noted(plain)[0].partition("at least ")[2].partition(")")[0])
    cosine = float(noted(known)[0].partition("cosine ")[2].partition(")")[0])
    assert cosine - 0.01 < bound <= cosine


def test_weights_and_sparse_rows_are_seen_as_the_run_sees_them() -> None:
    rows, few = rows_of(0.95), np.ones(400)
    few[rows[:, 0] > MEAN] = 0.01  # nearly all weight on one side: less variance, the mean all the same
    assert noted(npmdask.top_k(rows, 2, kind="samples", algorithm="gram", row_weights=few))
    away = np.array([1e-4, 1, 1, 1, 1, 1])  # hardly a weight for the only column with a mean
    assert not noted(npmdask.top_k(rows, 2, kind="samples", algorithm="gram", column_weights=away))
    assert noted(npmdask.top_k(csr_matrix(rows), 2, kind="sparse", algorithm="gram"))


def test_the_note_stays_with_the_run(tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "x.npy", rows_of(0.97))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    configuration = tmp_path / "c.toml"
    configuration.write_text(
        f'[source]\npath = "{tmp_path}/x.zarr"\nkind = "matrix"\n[algorithm]\nname = "krylov"\ntarget_rank = 2\n'
        f'[run]\nstore = "{tmp_path}/run"\n'
    )
    said = "component 1 is nearly the mean of the columns"
    assert main(["plan", str(configuration)]) == 0
    assert "component 1 will be nearly the mean of the columns" in capsys.readouterr().out
    assert main(["run", str(configuration), "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert said in err
    assert any(said in text for text in json.loads(out)["warnings"])
    assert any(said in text for text in npmdask.resume(tmp_path / "run").warnings)
    assert said in repr(report_of(tmp_path / "run"))


def test_the_plan_is_silent_where_the_mean_is_not_what_is_found(tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "x.npy", rows_of(0.7))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    (tmp_path / "c.toml").write_text(
        f'[source]\npath = "{tmp_path}/x.zarr"\nkind = "matrix"\n[algorithm]\ntarget_rank = 2\n'
        f'[run]\nstore = "{tmp_path}/run"\n'
    )
    assert main(["plan", str(tmp_path / "c.toml")]) == 0
    assert "mean of the columns" not in capsys.readouterr().out
