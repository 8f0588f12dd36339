"""Certificates of whole runs on small stores: against the truth, without a pass, in the result, summary and page."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import npmdask
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.storage.bundle import read_bundle, write_bundle
from npmdask.core.storage.source import open_source
from npmdask.formats.ingest import ingest
from npmdask.manage.report import summary, write_report
from npmdask.synthetic import generate

K = 3


def matrix(kind: str) -> np.ndarray:
    rng = np.random.default_rng(5)
    a = rng.standard_normal((300, 40)) * 0.85 ** np.arange(40) + 0.3
    if kind == "symmetric":
        a = a.T @ a - 40 * np.eye(40)  # of both signs
        return np.asarray((a + a.T) / 2)
    return a * (rng.random(a.shape) < 0.3) if kind == "sparse" else a


def put(folder: Path, kind: str, a: np.ndarray) -> Path:
    if kind == "sparse":
        source = folder / "a.npz"
        sp.save_npz(source, sp.csr_matrix(a))
        ingest(source, folder / "a.zarr")
        return folder / "a.zarr"
    np.save(folder / "a.npy", a)
    ingest(folder / "a.npy", folder / "a.zarr", kind=kind)
    return folder / "a.zarr"


def exact(kind: str, a: np.ndarray, center: bool) -> tuple[np.ndarray, np.ndarray]:
    """Values by falling magnitude, and their vectors."""
    if kind == "symmetric":
        values, vectors = np.linalg.eigh(a)
        order = np.argsort(-np.abs(values))
        return values[order], vectors[:, order]
    sigma, vt = np.linalg.svd(a - a.mean(axis=0) if center else a)[1:]
    return (sigma**2 / len(a) if kind == "samples" else sigma), vt.T


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, None])
@pytest.mark.parametrize(
    "kind, algorithm",
    [
        (kind, algorithm)
        for algorithm in ("power", "krylov", "gram")
        for kind in ("samples", "samples centred", "matrix", "sparse", "symmetric")[: 4 if algorithm == "gram" else 5]
    ],
)
def test_bounds_of_runs_hold_and_cost_no_pass(tmp_path: Path, kind: str, algorithm: str, steps: int | None) -> None:
    kind, center = kind.split()[0], kind.endswith("centred")
    a = matrix(kind)
    store = put(tmp_path, kind, a)
    read = open_source(store).kind if kind != "symmetric" else kind
    solution = npmdask.top_k(
        store,
        K,
        algorithm=algorithm,
        max_steps=steps,
        center=center,
        store=tmp_path / "run",
        **{"kind": kind} if read != kind else {},
    )
    values, vectors = exact(kind, a, center)
    certificate: dict[str, Any] = solution.certificate
    assert solution.total_data_passes == solution.data_passes == solution.steps + (kind == "matrix")
    assert json.loads(json.dumps(summary(solution)))["certificate"] == certificate
    sines = np.linalg.norm(vectors[:, :K] - solution.basis @ (solution.basis.T @ vectors[:, :K]), 2)
    for level in certificate["levels"]:
        off = [math.inf if bound is None else bound for bound in level["value_errors"]]
        assert (np.abs(np.abs(solution.values) - np.abs(values[:K])) <= off).all(), level["ground"]
        assert (level["sine"] or math.inf) >= sines
        assert (level["following"] or math.inf) >= abs(values[K])
        rest = a if kind == "symmetric" else a - a.mean(axis=0) * center
        left = np.linalg.norm(rest - (rest @ solution.basis) @ solution.basis.T, 2)
        left = left**2 / len(a) if kind == "samples" else left
        assert (level["low_rank_error"] or math.inf) >= left * (1 - 1e-12)
    assert (
        solution.assurance.endswith(".")
        and solution.assurance == RunStore(tmp_path / "run").part_meta("result")["assurance"]
    )


@pytest.mark.slow
def test_a_converged_run_says_how_many_digits_are_right(tmp_path: Path) -> None:
    solution = npmdask.top_k(put(tmp_path, "samples", matrix("samples")), K, store=tmp_path / "run")
    assert solution.certificate is not None and solution.certificate["health"]["word"] == "good"
    assert "accurate to 1" in solution.assurance and "off by at most" in solution.assurance
    assert solution.certificate["levels"][-1]["value_errors"][0] > 0, "never that nothing is wrong at all"
    page = write_report(tmp_path / "run").read_text()
    assert "How wrong can it be" in page and "State of the iteration" in page and solution.assurance[:30] in page


@pytest.mark.slow
def test_the_planted_truth_stands_beside_its_bound(tmp_path: Path) -> None:
    generate(tmp_path / "data", problem="spectrum", rows=300, columns=40, rank=K, dtype="float64")
    solution = npmdask.top_k(tmp_path / "data", K, max_steps=3, store=tmp_path / "run")
    assert solution.max_sin_theta is not None and solution.certificate is not None
    assert solution.max_sin_theta <= solution.certificate["levels"][-1]["sine"] + 1e-12
    assert "to the planted truth" in write_report(tmp_path / "run").read_text()


@pytest.mark.slow
def test_the_noise_of_a_run_is_counted_in(tmp_path: Path) -> None:
    store, a = put(tmp_path, "samples", matrix("samples")), matrix("samples")
    solution = npmdask.top_k(store, 2, max_steps=12, store=tmp_path / "run", mechanism="gaussian", stddev=1e-7)
    certificate: Any = solution.certificate
    values, vectors = exact("samples", a, False)
    sine = np.linalg.norm(vectors[:, :2] - solution.basis @ (solution.basis.T @ vectors[:, :2]), 2)
    last = certificate["levels"][-1]
    assert "including the noise of the run" in solution.assurance
    assert sine <= last["sine"] and (np.abs(solution.values - values[:2]) <= last["value_errors"]).all()
    assert last["value_errors"][0] > 1e-7 * math.sqrt(40)
    assert [level["ground"] for level in certificate["levels"]] == ["always", "none missed"]
    assert certificate["recursion"]["sine"] is None or certificate["recursion"]["sine"] >= sine
    assert "recursion of the noisy power method" in write_report(tmp_path / "run").read_text()


@pytest.mark.slow
def test_a_start_that_is_not_random_is_not_claimed(tmp_path: Path) -> None:
    store = put(tmp_path, "samples", matrix("samples"))
    first = npmdask.top_k(store, K, algorithm="power", store=tmp_path / "first")
    warm = npmdask.top_k(store, K, algorithm="power", store=tmp_path / "warm", start=tmp_path / "first")
    more = npmdask.deflate(tmp_path / "first", 2, store=tmp_path / "more")
    lanczos = npmdask.top_k(store, K, algorithm="krylov", store=tmp_path / "krylov", start=tmp_path / "first")
    assert warm.assurance == first.assurance or "none missed" in [x["ground"] for x in warm.certificate["levels"]]
    for solution, claimed in ((first, True), (warm, True), (lanczos, False), (more, False)):
        grounds = [level["ground"] for level in solution.certificate["levels"]]  # type: ignore[index]
        assert ("random start" in grounds) == claimed


@pytest.mark.slow
def test_a_run_of_an_earlier_version_goes_on_and_gets_a_certificate(tmp_path: Path) -> None:
    """Its checkpoints hold nothing of the pairs beyond k: one more step brings them; a result without one is shown."""
    store = put(tmp_path, "samples", matrix("samples"))
    whole = npmdask.top_k(store, K, algorithm="power", max_steps=4, store=tmp_path / "whole")
    npmdask.top_k(store, K, algorithm="power", max_steps=3, store=tmp_path / "run")
    (last,) = sorted((tmp_path / "run" / "steps").iterdir())[-1:]
    arrays, meta = read_bundle(last)
    del arrays["seen_values"], arrays["seen_gram"]
    shutil.rmtree(last)
    write_bundle(last, arrays, meta, inline=True)
    resumed = npmdask.resume(tmp_path / "run", max_steps=4)
    assert resumed.certificate == whole.certificate and resumed.assurance == whole.assurance
