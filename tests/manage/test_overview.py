"""The end of a command: at most eight lines that a person reads, of every kind of run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import npmdask
from npmdask.cli.main import main
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.latent.answers import fit_latent
from npmdask.manage import kind_of_answer
from npmdask.manage.matrix import MatrixKind
from npmdask.topics.run import CorpusFilter, run_topics
from npmdask.two_fields.answers import fit_coupled
from tests.conftest import planted

COST = {"time": "1.0 s: 2 passes, 1.0 MB read", "memory": "peak 100 MiB of this process"}


def rows() -> np.ndarray:
    return planted(400, 12, np.geomspace(1, 0.1, 12))[0]


def one_latent(kind: str, folder: Path) -> Any:
    data = np.random.default_rng(0).laplace(size=(4000, 2)) * [3, 1]
    return fit_latent(kind, data, 2 if kind == "ica" else 1, store=folder, resources=Resources(), observer=Observer())


def one_coupled(kind: str, folder: Path) -> Any:
    left = rows()
    right = left[:, :5] + 0.1
    asked: dict[str, Any] = {} if kind == "mca" else {"pcs": (4, 4)}
    return fit_coupled(kind, left, right, 2, store=folder, resources=Resources(), observer=Observer(), **asked)


def topics(folder: Path) -> Any:
    rng = np.random.default_rng(0)
    words = np.array([[0.45, 0.45, 0.05, 0.05], [0.05, 0.05, 0.45, 0.45]])
    counts = np.array([rng.multinomial(60, p) for p in rng.dirichlet([0.2, 0.2], size=1500) @ words])
    return run_topics(sp.csr_matrix(counts), 2, store=folder, cut=CorpusFilter(held_out=0.1), alpha0=0.4)


MADE = {
    "samples": lambda f: npmdask.top_k(rows(), 7, kind="samples", center=True, memory="4GiB", store=f),
    "matrix": lambda f: npmdask.top_k(rows(), 1, kind="matrix", store=f),
    "not converged": lambda f: npmdask.top_k(rows(), 2, iteration_rank=3, algorithm="power", max_steps=2, store=f),
    "search": lambda f: npmdask.top_k(rows(), 0.9, kind="samples", center=True, store=f),
    "stream": lambda f: npmdask.stream_pca(rows(), 2, store=f),
    "gram": lambda f: npmdask.gram(rows(), f, kind="samples"),
    "ica": lambda f: one_latent("ica", f),
    "mca": lambda f: one_coupled("mca", f),
    "cca": lambda f: one_coupled("cca", f),
    "topics": topics,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MADE)
def test_eight_lines_say_what_was_found_and_what_comes_next(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = MADE[kind](tmp_path / "a run")
    lines = kind_of_answer(answer).overview(answer, COST)
    said = dict(lines)
    assert len(lines) == len(said) <= 8
    assert all("\n" not in line and line for line in said.values())
    assert {"found", "time", "memory", "result", "next"} <= said.keys()
    assert said["result"] == "a run" and "'a run'" in said["next"]  # for a shell, as it stands
    if kind == "samples":
        assert "4 GiB allowed" in said["memory"] and "and 2 more" in said["explained"]
        assert f"{100 * answer.explained_share:.3g} % of the variance" in said["explained"]
        assert said["error"] == answer.assurance and said["outcome"] == answer.outcome.sentence
        assert f"{answer.data_passes} passes" in said["time"]
    if kind == "not converged":
        assert said["outcome"] == f"finished, {answer.outcome.sentence}" and "explained" not in said
        assert said["next"].startswith("npmdask resume")
    if kind == "gram":
        assert said["time"] == COST["time"]  # its answer does not say it


@pytest.mark.slow
def test_a_tolerance_that_the_type_of_the_data_chose_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", rows().astype(np.float32))
    command = ["run", str(tmp_path / "x.npy"), "-k", "2", "--center"]
    assert main([*command, "--store", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.count("(tol 1.0e-06, the default for float32)") == 1
    assert main([*command, "--tol", "1e-5", "--store", str(tmp_path / "b")]) == 0
    assert "default" not in capsys.readouterr().out


@pytest.mark.slow
def test_what_no_person_needs_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of real data there is no truth; a store's fingerprint is for `npmdask inspect`; tiles are read one by one."""
    np.save(tmp_path / "x.npy", rows())
    assert main(["ingest", str(tmp_path / "x.npy"), str(tmp_path / "x.zarr")]) == 0
    assert main(["inspect", str(tmp_path / "x.zarr")]) == 0
    said = capsys.readouterr().out
    assert said.count("fingerprint") == 1 and "truth" not in said and "KiB in" in said
    assert main(["run", str(tmp_path / "x.zarr"), "-k", "2", "--center", "--store", str(tmp_path / "run")]) == 0
    assert main(["report", str(tmp_path / "run")]) == main(["components", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "to the truth" not in page and "</b><span>" not in page
    assert "variance (n in the denominator) ± its standard error by sampling" in capsys.readouterr().out
    assert "<th" in page and "variance (n in the denominator)" in page


@pytest.mark.slow
def test_what_is_shown() -> None:
    solution = npmdask.top_k(np.diag([9.0, 8, 7, 6, 5, 4, 3]), 6)
    assert repr(solution).startswith("<Solution: 6 components of 7 columns, converged after ")
    said = "singular values of rows that are not centred"
    assert f"; {said}: 9, 8, 7, 6, 5, ...; store" in repr(solution) and len(repr(solution)) < 300
    assert f"<th>{said}</th>" in solution._repr_html_()
    assert (
        "found",
        f"6 singular triplets of 7 columns and 7 rows; {said} 9, 8, 7, 6, 5 and 1 more",
    ) in MatrixKind().overview(solution, {})
    page = solution._repr_html_()
    assert "<td>9</td>" in page and "of 6" in page and solution.outcome.sentence in page
    odd = npmdask.top_k(np.diag([2.0, 1.0]), 1)
    object.__setattr__(odd, "store", "<script>")
    assert "<script>" not in odd._repr_html_()
