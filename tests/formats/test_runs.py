"""Runs of ingested data: they go on with the same bits, and are as sure as before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix, save_npz

import npmdask
from npmdask import api
from npmdask.core.algorithms import gram
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs import automatic
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from tests.core.algorithms.families import of_spectrum
from tests.core.algorithms.test_gram import normal
from tests.core.algorithms.test_mixed_precision import MIXED


@pytest.mark.slow
@pytest.mark.parametrize("single", [False, True])
def test_a_run_that_is_cut_short_goes_on_with_the_same_bits(
    single: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gram, "SINGLE_COLUMNS", 0 if single else 1024)
    x = normal(np.random.default_rng(2), 2000, 50).astype(np.float32)
    asked: dict[str, Any] = {"kind": "samples", "center": True, "tol": 1e-7, "algorithm": "gram"}
    np.save(tmp_path / "x.npy", x)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    whole = npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "whole", **asked)
    short = npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "short", max_steps=1, **asked)
    assert short.converged != single
    if single:
        assert "max_steps = 1" in short.outcome.sentence
        again = npmdask.resume(tmp_path / "short", max_steps=10)
        assert again.basis.tobytes() == whole.basis.tobytes() and again.values.tobytes() == whole.values.tobytes()
    assert RunStore(tmp_path / "whole").read_spec()["algorithm"]["name"] == "gram"  # type: ignore[index]


@pytest.mark.slow
def test_further_components_are_no_surer_than_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of a float32 matrix, locked as if they were exact, were bounded by 3e-14 and off by 4e-9."""
    monkeypatch.setattr(gram, "SINGLE_COLUMNS", 0)
    x = normal(np.random.default_rng(1), 4000, 80).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    asked: dict[str, Any] = {"kind": "samples", "algorithm": "gram", "tol": 1e-3}
    first = npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "first", **asked)
    assert first.steps == 1
    for number, more in enumerate((2, 4)):
        found = npmdask.deflate(tmp_path / "first", more, store=tmp_path / f"more-{number}")
        values = np.linalg.eigvalsh(x.T.astype(float) @ x.astype(float) / 4000)[::-1][: 3 + more]
        assert found.converged and found.data_passes == 1
        certificate: Any = found.certificate
        for level in certificate["levels"]:
            bounds = [np.inf if error is None else error for error in level["value_errors"]]
            assert (np.abs(found.values - values) <= bounds).all(), level["ground"]


@pytest.mark.slow
def test_means_that_a_store_does_not_have_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later passes, of blocks, need them: float32 was not enough."""
    monkeypatch.setattr(gram, "SINGLE_COLUMNS", 0)
    x = (normal(np.random.default_rng(4), 2000, 40) + 3.0).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples")
    source = replace(open_source(tmp_path / "x.zarr"), statistics=None)
    problem = make_problem(source, Request(target_rank=3, center=True, tol=1e-7, algorithm="gram"))
    found = api.solve(problem, tmp_path / "run", Resources(), Observer())
    a = x.astype(float) - x.mean(axis=0, dtype=float)
    assert found.steps > 1 and found.converged
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(a.T @ a / 2000)[::-1][:3], rtol=1e-11)
    np.testing.assert_allclose(found.mean, x.mean(axis=0, dtype=float), rtol=1e-12)


@pytest.mark.slow
def test_nobody_is_sent_on_where_more_steps_will_not_help(tmp_path: Path) -> None:
    """Centring a sparse matrix with large means leaves a floor that its stopping rule does not know."""
    save_npz(tmp_path / "x.npz", csr_matrix(1e4 + np.random.default_rng(0).standard_normal((400, 30))))
    ingest(tmp_path / "x.npz", tmp_path / "x.zarr")
    solution = npmdask.top_k(tmp_path / "x.zarr", 3, center=True, max_steps=30)
    assert solution.certificate is not None and solution.certificate["health"]["word"] == "stagnating"
    assert "more steps will not help" in solution.outcome.sentence and "resume" not in solution.outcome.sentence
    short = npmdask.top_k(tmp_path / "x.zarr", 3, max_steps=1)
    assert "npmdask resume" in short.outcome.sentence


@pytest.mark.slow
def test_nor_are_those_of_a_sparse_matrix(tmp_path: Path) -> None:
    save_npz(tmp_path / "x.npz", csr_matrix(1e-300 * np.eye(20)))
    ingest(tmp_path / "x.npz", tmp_path / "x.zarr")
    with pytest.raises(BadInputError, match=r"largest entry of .* is of size 1e-300"):
        npmdask.top_k(tmp_path / "x.zarr", 2)


@pytest.mark.slow
def test_a_run_in_mixed_precision_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    x = of_spectrum(np.arange(1, 61) ** -0.5, 4000, np.random.default_rng(2)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples")
    asked: dict[str, Any] = {"center": True, "scale": True, **MIXED}
    whole = npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "whole", **asked)
    precisions = [step["precision"] for step in (RunStore(tmp_path / "whole").last_meta() or {})["history"]]
    change = precisions.index("float64")
    assert 2 < change == len(precisions) - 1
    for steps in (2, change):  # in float32, and where float64 is about to begin
        store = tmp_path / f"after-{steps}"
        assert not npmdask.top_k(tmp_path / "x.zarr", 3, store=store, max_steps=steps, **asked).converged
        again = npmdask.resume(store, max_steps=50)
        assert again.steps == whole.steps and again.basis.tobytes() == whole.basis.tobytes()
        assert again.certificate == whole.certificate
    spec = RunStore(tmp_path / "whole").read_spec() or {}
    assert spec["algorithm"]["options"] == {"precision": "mixed"}
    with pytest.raises(RefusedError, match="algorithm\\.options"):
        npmdask.top_k(
            tmp_path / "x.zarr", 3, store=tmp_path / "whole", **{**asked, "options": {"precision": "float64"}}
        )


@pytest.mark.slow
def test_further_components_are_found_in_float64(tmp_path: Path) -> None:
    x = of_spectrum(np.arange(1, 41) ** -0.5, 3000, np.random.default_rng(6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples")
    npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "first", **MIXED)
    more = npmdask.deflate(tmp_path / "first", 2, store=tmp_path / "more")
    assert more.converged
    np.testing.assert_allclose(more.values, np.linalg.eigvalsh(x.T.astype(float) @ x / 3000)[:-6:-1], rtol=1e-8)


@pytest.mark.slow
def test_a_store_keeps_what_it_was_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of an earlier version has no options: it goes on with three blocks in float64."""
    rows = of_spectrum(np.arange(1, 31) ** -0.5, 2000, np.random.default_rng(3)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    x = tmp_path / "x.zarr"
    ingest(tmp_path / "x.npy", x, kind="samples")
    asked: dict[str, Any] = {"tol": 1e-6}
    before = npmdask.top_k(x, 3, store=tmp_path / "old", max_steps=2, **asked)
    assert "options" not in (RunStore(tmp_path / "old").read_spec() or {})["algorithm"]
    monkeypatch.setattr(automatic, "LARGE", 0)
    monkeypatch.setattr(automatic, "TALL", 10**9)  # no matrix is formed
    new = npmdask.top_k(x, 3, store=tmp_path / "new", **asked)
    assert (RunStore(tmp_path / "new").read_spec() or {})["algorithm"]["options"] == {"precision": "mixed"}
    monkeypatch.setattr(automatic, "LARGE", 2**40)
    again = npmdask.top_k(x, 3, store=tmp_path / "new", **asked)
    assert again.data_passes == 0 and again.basis.tobytes() == new.basis.tobytes()
    monkeypatch.setattr(automatic, "LARGE", 0)
    same = npmdask.top_k(x, 3, store=tmp_path / "old", max_steps=2, **asked)
    assert same.data_passes == 0 and same.basis.tobytes() == before.basis.tobytes()
    old = npmdask.resume(tmp_path / "old", max_steps=50)
    assert before.steps == 2 and old.converged
    history = (RunStore(tmp_path / "old").last_meta() or {})["history"]
    assert {step["precision"] for step in history} == {"float64"}
