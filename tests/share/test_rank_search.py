"""A share of the variance in place of a number of components: against scikit-learn, with passes counted, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import npmdask
from npmdask.cli.main import main
from npmdask.config import validate_config
from npmdask.core.algorithms import Result
from npmdask.core.algorithms.stopping import Outcome, StepView
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Request
from npmdask.core.runs.stopping_rules import ShareRule, next_columns, settle, smallest_rank
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.manage.report import write_report
from npmdask.planning.predicted_steps import rehearse_search
from tests.conftest import planted, same_bytes, write_zarr
from tests.core.runs.test_loop import CountingStore

DIGITS = load_digits().data
SLOW = 1 / np.sqrt(np.arange(1, 121))
ROOT = Path(__file__).resolve().parents[2]


class Stop(Exception):
    """The test pulls the plug."""


class Listener(Observer):
    """Remembers the stages; pulls the plug at one step of one of them."""

    def __init__(self, stage: int = -1, step: int = 0) -> None:
        self.labels: list[str] = []
        self.ends: list[int] = []
        self._stop = (stage, step)

    def on_stage(self, label: str) -> None:
        self.labels.append(label)

    def on_step(self, step: Any) -> None:
        if (len(self.labels), step.number) == self._stop:
            raise Stop

    def on_end(self, solution: Any) -> None:
        self.ends.append(solution.data_passes)


def needed(eigenvalues: np.ndarray, share: float) -> int:
    """The smallest k whose eigenvalues hold the share."""
    return int(np.searchsorted(np.cumsum(eigenvalues) / eigenvalues.sum(), share)) + 1


def eigenvalues(a: np.ndarray) -> np.ndarray:
    return np.linalg.svd(a, compute_uv=False) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.8, 0.95, 0.99])
def test_as_many_as_scikit_learn_finds(share: float) -> None:
    solution = npmdask.top_k(DIGITS, share, kind="samples", center=True, threads=1)
    pca = PCA(n_components=share, svd_solver="full").fit(DIGITS)
    assert solution.converged
    assert solution.target_rank == pca.n_components_ == len(solution.values)
    assert max_sin_theta(solution.basis, pca.components_.T) < 1e-7
    assert np.isclose(solution.explained_share or 0, pca.explained_variance_ratio_.sum(), rtol=1e-12)
    assert f"{solution.target_rank} components explain" in solution.outcome.sentence


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("case", ["matrix", "scaled", "centred and scaled", "sparse", "symmetric", "float32"])
def test_every_kind(tmp_path: Path, case: str, share: float) -> None:
    a = planted(400, 120, SLOW)[0] + 0.01
    options: dict[str, Any] = {"kind": "matrix"}
    if case == "matrix":
        spectrum = eigenvalues(a)
    elif case == "float32":
        a, options = a.astype(np.float32), {"kind": "samples"}
        spectrum = eigenvalues(a.astype(np.float64))
    elif case == "sparse":
        a = np.where(np.abs(a) > 0.02, a, 0)
        sp.save_npz(tmp_path / "a.npz", sp.csr_matrix(a))
        spectrum, options = eigenvalues(a), {}
    elif case == "symmetric":
        a, options = a.T @ a, {"kind": "symmetric"}
        spectrum = np.linalg.eigvalsh(a)[::-1]
    else:
        centre = "centred" in case
        options |= {"scale": True, "center": centre}
        spectrum = eigenvalues((a - a.mean(axis=0) * centre) / a.std(axis=0))
    source: Any = write_zarr(tmp_path / "a.zarr", a, (100, 50))
    if case == "sparse":
        ingest(tmp_path / "a.npz", tmp_path / "sparse.zarr", kind="sparse")
        source = tmp_path / "sparse.zarr"
    solution = npmdask.top_k(source, share, **options, threads=1)
    assert solution.converged
    assert solution.target_rank == needed(spectrum, share)
    assert np.isclose(solution.explained_share or 0, spectrum[: solution.target_rank].sum() / spectrum.sum(), rtol=1e-9)
    if options.get("kind") == "matrix":
        assert solution.basis.shape[1] == solution.target_rank


@pytest.mark.slow
def test_left_vectors_of_the_components_that_are_left(tmp_path: Path) -> None:
    a = planted(400, 120, SLOW)[0]
    solution = npmdask.top_k(a, 0.7, store=tmp_path / "run", threads=1)
    left = solution.left_basis()
    assert left.shape == (400, solution.target_rank)
    assert np.allclose(a @ solution.basis, left * solution.values, atol=1e-12)


@pytest.mark.slow
def test_all_passes_are_counted_and_a_second_call_makes_none(tmp_path: Path) -> None:
    store = CountingStore(zarr.storage.MemoryStore())
    a = planted(400, 120, SLOW)[0]
    z = zarr.create_array(store, shape=a.shape, dtype=a.dtype, chunks=(100, 60))
    z[...] = a
    store.fetched.clear()
    heard = Listener()
    solution = npmdask.top_k(z, 0.8, store=tmp_path / "run", threads=1, observer=heard)
    assert solution.data_passes == solution.total_data_passes
    sampled = [chunk for chunk, times in store.fetched.items() if times != solution.data_passes]  # for the prediction
    assert len(sampled) == 2 and {store.fetched[chunk] for chunk in sampled} == {solution.data_passes + 1}
    assert solution.bytes_read == solution.data_passes * a.nbytes
    assert heard.ends == [solution.data_passes]
    assert len(heard.labels) == len(list((tmp_path / "run" / "search").iterdir())) + 1
    again = npmdask.top_k(z, 0.8, store=tmp_path / "run", threads=1)
    assert (again.data_passes, again.total_data_passes) == (0, solution.total_data_passes)
    assert (again.basis == solution.basis).all()
    whole = npmdask.top_k(a, solution.target_rank, threads=1, algorithm="power")
    assert solution.data_passes < 1.5 * whole.data_passes  # the stages are not lost: the last run starts from them


@pytest.mark.slow
def test_a_stage_costs_a_few_passes_and_saves_some_of_the_last_run() -> None:
    a, heard = planted(400, 120, np.logspace(0, -3, 120))[0], Listener()
    options = {"kind": "samples", "threads": 1, "algorithm": "power"}
    share = npmdask.top_k(a, 0.99, observer=heard, **options)
    whole = npmdask.top_k(a, share.target_rank, iteration_rank=2 * share.target_rank, **options)
    survey, stages = 1, len(heard.labels) - 1
    assert share.steps <= whole.steps, "ten columns of the last run are random again"
    assert share.data_passes <= survey + 4 * stages + share.steps


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "step"), [(1, 1), (2, 2), (3, 1), (4, 2)])
def test_resumed_in_the_same_bits(tmp_path: Path, stage: int, step: int) -> None:
    a = write_zarr(tmp_path / "a.zarr", planted(400, 120, SLOW)[0], (100, 120))
    whole = npmdask.top_k(a, 0.8, store=tmp_path / "whole", threads=1)
    heard = Listener(stage, step)
    with pytest.raises(Stop):
        npmdask.top_k(a, 0.8, store=tmp_path / "cut", threads=2, observer=heard)
    assert len(heard.labels) == stage
    solution = npmdask.resume(tmp_path / "cut", threads=1)
    same_bytes(tmp_path / "whole", tmp_path / "cut", ("steps", "result", "survey", "start", "search/0016/result"))
    assert solution.total_data_passes == whole.total_data_passes > solution.data_passes
    assert npmdask.top_k(a, 0.8, store=tmp_path / "cut").data_passes == 0


@pytest.mark.slow
def test_resume_with_another_tolerance_and_deflate(tmp_path: Path) -> None:
    a = write_zarr(tmp_path / "a.zarr", planted(400, 120, SLOW)[0], (100, 120))
    with pytest.raises(Stop):
        npmdask.top_k(a, 0.6, store=tmp_path / "run", threads=1, observer=Listener(2, 1))
    coarse = npmdask.resume(tmp_path / "run", tol=1e-4)
    assert "tol 1.0e-04" in coarse.outcome.sentence
    fine = npmdask.resume(tmp_path / "run", tol=1e-9)
    assert fine.converged and fine.target_rank == coarse.target_rank == needed(SLOW**2, 0.6)
    assert 0 < fine.data_passes < fine.total_data_passes
    more = npmdask.deflate(tmp_path / "run", 4, store=tmp_path / "more")
    assert np.allclose(more.values, SLOW[: fine.target_rank + 4], rtol=1e-12)


def test_converged_without_the_share_is_not_called_converged() -> None:
    result = Result(values=np.array([3.0, 1.0]), vectors=np.eye(4)[:, :2], products=np.eye(4)[:, :2],
                    residual_norms=np.zeros(2))  # fmt: skip
    good = Outcome(name="converged", sentence="converged")
    assert settle(result, good, 10.0, 0.3)[2].converged
    assert len(settle(result, good, 10.0, 0.3)[0].values) == 1
    assert not settle(result, good, 10.0, 0.5)[2].converged
    assert settle(result, good, 10.0, None)[1:] == (0.4, good)


@pytest.mark.slow
def test_killed_in_the_middle_of_the_search(tmp_path: Path) -> None:
    a = write_zarr(tmp_path / "a.zarr", planted(400, 120, SLOW)[0], (100, 120))
    program = f"""
import os, signal, npmdask
from npmdask.core.runs.observers import Observer
from npmdask.manage.report import write_report
class Kill(Observer):
    stages = 0
    def on_stage(self, label):
        self.stages += 1
    def on_step(self, step):
        if self.stages == int(os.environ["STAGE"]) and step.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
npmdask.top_k({str(a)!r}, 0.8, store={str(tmp_path / "cut")!r}, threads=1, observer=Kill())
"""
    for stage in ("1", "2"):
        done = subprocess.run([sys.executable, "-c", program], env=os.environ | {"STAGE": stage}, cwd=ROOT)
        assert done.returncode == -signal.SIGKILL
        assert not (tmp_path / "cut" / "result").exists()
    npmdask.top_k(a, 0.8, store=tmp_path / "cut", threads=2)
    npmdask.top_k(a, 0.8, store=tmp_path / "whole", threads=1)
    same_bytes(tmp_path / "whole", tmp_path / "cut", ("steps", "result", "survey", "start", "search/0016/result"))


@pytest.mark.parametrize("rank", [0.0, 1.0, 1.5, -1, -0.5, 0, float("nan"), float("inf"), True, "0.9", None])
def test_what_is_neither_a_number_nor_a_share_gets_a_sentence(rank: Any) -> None:
    with pytest.raises(BadInputError, match="target_rank = "):
        npmdask.top_k(DIGITS, rank)
    with pytest.raises(BadInputError, match=r"algorithm\.target_rank = "):
        validate_config({"source": {"path": "x"}, "algorithm": {"target_rank": rank}})


@pytest.mark.slow
def test_what_does_not_go_with_a_share(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="for which the search chooses iteration_rank"):
        npmdask.top_k(DIGITS, 0.9, iteration_rank=40)
    with pytest.raises(RefusedError, match="cannot be measured under noise"):
        npmdask.top_k(DIGITS, 0.9, mechanism="gaussian", stddev=1.0)
    npmdask.top_k(DIGITS, 3, store=tmp_path / "run")
    with pytest.raises(RefusedError, match="leave `start` out"):
        npmdask.top_k(DIGITS, 0.9, start=tmp_path / "run")
    with pytest.raises(RefusedError, match=r"algorithm\.target_rank \(3 in the checkpoint, 0\.9 now"):
        npmdask.top_k(DIGITS, 0.9, store=tmp_path / "run")
    npmdask.top_k(DIGITS, 0.9, store=tmp_path / "share", threads=1)
    with pytest.raises(RefusedError, match=r"algorithm\.share \(0\.9 in the checkpoint, 0\.8 now"):
        npmdask.top_k(DIGITS, 0.8, store=tmp_path / "share")
    with pytest.raises(BadInputError, match=r"is a stage of a search; go on with .*share"):
        npmdask.resume(tmp_path / "share" / "search" / "0016")


@pytest.mark.slow
def test_data_without_variance_and_matrices_without_meaning() -> None:
    with pytest.raises(BadInputError, match="no variance to explain"):
        npmdask.top_k(np.ones((50, 20)), 0.9, kind="samples", center=True)
    q = np.linalg.qr(np.random.default_rng(0).standard_normal((60, 60)))[0]
    with pytest.raises(BadInputError, match=r"has a negative eigenvalue.*whole number"):
        npmdask.top_k((q * np.r_[np.linspace(9, 8, 59), -5.0]) @ q.T, 0.9, kind="symmetric")
    with pytest.raises(BadInputError, match="no variance to explain"):
        npmdask.top_k(-np.eye(30), 0.9, kind="symmetric")


@pytest.mark.slow
def test_too_little_memory_for_the_share_says_how_far_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What this process and all below it hold beside changes from one run to the next.
    monkeypatch.setattr("npmdask.core.runs.resources.tree_rss", lambda: 300 * 2**20)
    a = np.random.default_rng(0).standard_normal((1500, 1200)).astype(np.float32)
    path = write_zarr(tmp_path / "a.zarr", a, (100, 1200))
    npmdask.top_k(path, 16, iteration_rank=16, kind="samples", max_steps=1, threads=1, store=tmp_path / "one")
    plans = [t for t in RunStore(tmp_path / "one").telemetry() if t["event"] == "plan"]
    memory = plans[0]["predicted_peak"] + 20 * 2**20
    with pytest.raises(
        MemoryRefusedError, match=r"0\.95 of the variance needs more than 16 components: 16 reach 0\.0\d"
    ):
        npmdask.top_k(path, 0.95, kind="samples", memory=memory, threads=1, store=tmp_path / "run")


def test_a_flat_spectrum_is_not_doubled_up_to() -> None:
    """Sixteen values of which the first are 1, of a trace of 1000: at least 950 are needed for 0.95."""
    assert next_columns(np.ones(16), 950.0) == 1200
    assert next_columns(np.logspace(0, -8, 16), 1.0) == 32


def test_the_rule_ends_a_stage_for_the_right_reason() -> None:
    def views(*sums: list[float]) -> list[StepView]:
        return [
            StepView(step=i + 1, ritz_values=np.array(s), residual_norms=np.zeros(len(s)), precision="float64")
            for i, s in enumerate(sums)
        ]

    rule = ShareRule(tol=1e-9, max_steps=20, d=10, share=0.5, trace=10.0)
    assert rule(views([1, 1])) is None
    assert rule(views([3, 1], [4, 1])) is None  # reached, for the first time
    assert rule(views([3, 1], [4, 1], [4.9, 0.1])).name == "converged"  # type: ignore[union-attr]
    assert rule(views([2, 1], [2.1, 1])).name == "stagnated"  # type: ignore[union-attr]
    assert rule(views([2, 1], [3, 1], [3.8, 1.05])) is None  # its gains fall slowly: 5 is in reach


@pytest.mark.slow
def test_whole_numbers_say_their_share_where_it_costs_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", DIGITS)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    pca = PCA(5, svd_solver="full").fit(DIGITS)
    solution = npmdask.top_k(tmp_path / "x.zarr", 5, center=True, threads=1)
    assert np.isclose(solution.explained_share or 0, pca.explained_variance_ratio_.sum(), rtol=1e-12)
    assert solution.data_passes == solution.steps
    assert npmdask.top_k(DIGITS, 5, kind="samples", threads=1).explained_share is None


@pytest.mark.slow
def test_from_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write_zarr(tmp_path / "x.zarr", DIGITS, (600, 64))
    (tmp_path / "x.toml").write_text(
        '[source]\npath = "x.zarr"\nkind = "samples"\ncenter = true\n[algorithm]\ntarget_rank = 0.95\n'
    )
    assert main(["run", "x.toml", "--json", "-v"]) == 0
    said = capsys.readouterr()
    assert '"target_rank": 29' in said.out
    assert "search: does a run of 16 columns reach 0.95?" in said.err
    npmdask.top_k(tmp_path / "x.zarr", 0.95, kind="samples", center=True, store=tmp_path / "call")
    same_bytes(tmp_path / "call", tmp_path / "runs" / "x", ("steps", "result", "survey", "start"))
    assert main(["inspect", "runs/x"]) == 0
    assert main(["report", "runs/x"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "symmetric"])
def test_a_search_is_foretold_its_steps_and_its_components(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: steps of the stages left out."""
    monkeypatch.setattr("npmdask.planning.predicted_steps.SECONDS", 600.0)  # a slow machine is not what is asked about
    data, _, v = planted(2000, 120, 0.95 ** np.arange(120))
    matrix = data if kind == "samples" else (v * 0.9 ** np.arange(120)) @ v.T
    path = write_zarr(tmp_path / "x.zarr", matrix, (100, 120))
    solution = npmdask.top_k(path, 0.9, kind=kind, store=tmp_path / "run")
    telemetry = RunStore(tmp_path / "run").telemetry()
    (told,) = [line for line in telemetry if line["event"] == "foreseen"]
    (searched,) = [line for line in telemetry if line["event"] == "searched"]
    taken = searched["steps"] + solution.steps
    assert searched["steps"] > 2 and taken <= told["steps"] <= 1.5 * taken
    assert abs(told["components"] - solution.target_rank) <= 0.25 * solution.target_rank
    assert solution.prediction["prediction"] == (
        f"predicted {told['steps']} steps with those of the search, for {told['components']} components, took {taken}, "
        f"for {searched['rank']}"
    )
    page = write_report(tmp_path / "run").read_text()
    assert f"<td>{told['steps']}</td>" in page and f"<td>{taken}</td>" in page


def test_a_rehearsed_search_knows_the_variance() -> None:
    """Kills: the sum of the sampled values in its place, an answer of all of them where the share is out of reach."""
    values = 0.95 ** np.arange(120)
    problem = make_problem(open_source(planted(400, 120, values**0.5)[0], "samples"), Request(target_rank=0.5))
    for more in (1.0, 1.4):
        found = rehearse_search(problem, values, more * values.sum())
        needed = smallest_rank(values, 0.5 * more * values.sum())
        assert found is not None and needed is not None and needed <= found.components <= 1.1 * needed
        assert found.reached and found.steps > 4
    assert rehearse_search(problem, values, 2.1 * values.sum()) is None
    assert rehearse_search(problem, values, values.sum(), flops=1e4) is None, "too dear"
