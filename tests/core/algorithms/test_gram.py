"""A run that forms the matrix in one pass: right where it says so, whatever the data, and cheaper than blocks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import npmdask
from npmdask.core.algorithms import GramKrylov, gram, state_fields
from npmdask.core.execution.memory import tree_rss
from npmdask.core.numerics.random import generator
from npmdask.core.operators import gram_matrix
from npmdask.core.runs import automatic
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, MemoryRefusedError, NpmdaskError, RefusedError
from tests.conftest import needs, write_zarr
from tests.core.algorithms.answers import ROUNDING, fault

Rows = Callable[[np.random.Generator, int, int], np.ndarray]


def normal(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Rows whose eigenvectors lie along no axis, with a spectrum that falls like a power."""
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (rng.standard_normal((n, d)) * np.arange(1, d + 1) ** -rng.uniform(0.1, 3)) @ turn


def clusters(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Leading values that are (nearly) the same."""
    sizes = np.append(1 + 10 ** -rng.uniform(1, 12) * rng.random(d // 2), np.full(d - d // 2, rng.uniform(0.1, 0.99)))
    u, v = (np.linalg.qr(rng.standard_normal((rows, d)))[0] for rows in (max(n, d), d))
    return ((u * sizes) @ v.T)[:n]


def rare(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """A few rows alone carry the largest direction, which no sample would hold."""
    x = normal(rng, n, d)
    few = rng.choice(n, int(rng.integers(1, 4)), replace=False)
    x[few] = rng.standard_normal(d) * np.linalg.norm(x) / np.sqrt(d) * rng.uniform(0.5, 3)
    return x


def scales(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Columns over twelve decades, all of them far from zero."""
    return normal(rng, n, d) * 10 ** rng.uniform(-6, 6, d) + 10 ** rng.uniform(-3, 6, d)


def classes(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Sorted rows: every part of a pass has a mean of its own."""
    means = rng.standard_normal((7, d)) * 10 ** rng.uniform(0, 4)
    return normal(rng, n, d) + np.repeat(means, -(-n // 7), axis=0)[:n]


def counts(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    return rng.poisson(rng.gamma(0.3, 2.0, d), (n, d)).astype(float)


def deficient(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Fewer directions than are asked for, constant columns and copies among them."""
    x = rng.standard_normal((n, 3)) @ rng.standard_normal((3, d))
    x[:, 0] = 7.0
    x[:, -1] = x[:, 1]
    return x


def pixels(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Integers from 0 to 255."""
    x = normal(rng, n, d)
    return np.clip(np.rint(x / np.abs(x).max() * 300 + rng.uniform(0, 255)), 0, 255)


def interrupted(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Integers up to some row, and far from zero; then what is none, or what float64 cannot square exactly."""
    x = np.rint(normal(rng, n, d) * 10 ** rng.uniform(0, 3)) + float(rng.choice([0, 100_000]))
    x[int(rng.integers(0, n)) :] += rng.choice([0.25, 2.0**28])
    return x


def expressed(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Logarithms of counts, most of them none, in rows of very different sizes."""
    sizes = 10 ** rng.uniform(-3, 1, (n, 1))
    return np.log1p(rng.poisson(sizes * rng.gamma(0.3, 2.0, d), (n, d)))


FAMILIES: tuple[Rows, ...] = (
    *(normal, clusters, rare, scales, classes, counts, deficient),
    *(pixels, interrupted, expressed),
)


def wrong(seed: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is wrong about the run on problem ``seed``; nothing, if nothing is."""
    rng = np.random.default_rng([22, seed])
    family = FAMILIES[seed % len(FAMILIES)]
    n, d = int(rng.integers(30, 1500)), int(rng.integers(12, 90))
    dtype = rng.choice([np.float32, np.float64])
    x, kind = family(rng, n, d).astype(dtype), str(rng.choice(["samples", "sparse"]))
    center, tol = bool(rng.random() < 0.6), 10 ** -rng.uniform(3, 10)
    monkeypatch.setattr(gram, "SINGLE_COLUMNS", int(rng.choice([0, 1024])))  # float32 or float64
    monkeypatch.setattr(gram, "SINGLE_TOL", 0.0)
    monkeypatch.setattr(gram_matrix, "BATCH_ENTRIES", int(rng.choice([500, 2**20])))
    monkeypatch.setattr(gram_matrix, "SUMMING", int(rng.choice([0, 128])))
    k = int(rng.integers(1, 6))
    given: Any = sp.csr_matrix(x) if kind == "sparse" else x
    solution = npmdask.top_k(
        given, k, kind=kind, algorithm="gram", center=center, tol=tol, seed=seed, threads=1, max_steps=30
    )
    a = x.astype(np.longdouble) - (x.astype(np.longdouble).mean(axis=0) if center else 0)
    matrix = np.asarray(a.T @ a / (n if kind == "samples" else 1), dtype=np.float64)
    values = np.linalg.eigvalsh(matrix)[::-1]
    # What rounding leaves of a matrix of this size and of the mean that is taken off it.
    size = np.trace(x.T.astype(float) @ x) / (n if kind == "samples" else 1) if center else 0.0
    how = {"tol": tol, "floor": ROUNDING * (values[0] + size), "samples": kind == "samples"}
    said = fault(solution, matrix @ solution.basis, values, **how)
    about = f"{family.__name__}, {kind}, {n} x {d}, {dtype.__name__}, k = {k}, tol = {tol:.0e}, center = {center}"
    return said and f"{about}: {said}"


@pytest.mark.slow
@needs("containers")
def test_no_random_problem_is_wrong_and_called_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants that fail here: no bound of ||A - G|| in the residuals, means of the first rows kept, a lost last run."""
    found = [said for seed in range(100) if (said := wrong(seed, monkeypatch))]
    assert not found, found


def test_columns_that_are_rounding_where_no_direction_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """13 residuals of size 1e-8 in the 13 directions beside the first block: one came out inside of it, and Ritz values
    were above all eigenvalues, within bounds of 1e-13.
    """
    assert not wrong(1181, monkeypatch)


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(10))
def test_none_of_thousands_is(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [said for seed in range(300 * part, 300 * part + 300) if (said := wrong(seed, monkeypatch))]
    assert not found, found


@pytest.mark.slow
@needs("containers")
@pytest.mark.parametrize("kind", ["samples", "sparse"])
@pytest.mark.parametrize("center", [False, True])
def test_one_pass_finds_means_and_components(kind: str, center: bool) -> None:
    """Of a source that was never ingested, too: block Krylov takes one more for the means."""
    x = normal(np.random.default_rng(0), 2000, 60)
    given: Any = sp.csr_matrix(x) if kind == "sparse" else x
    solution = npmdask.top_k(given, 4, kind=kind, center=center, algorithm="gram")
    other = npmdask.top_k(given, 4, kind=kind, center=center, algorithm="krylov")
    assert solution.total_data_passes == 1 < other.total_data_passes - 1
    np.testing.assert_allclose(solution.values, other.values, rtol=1e-9)
    np.testing.assert_allclose(solution.scores(x), other.scores(x), atol=1e-6)
    assert solution.certificate is not None and solution.certificate["ground"] in ("always", "random start")
    assert "accurate to 1" in solution.assurance


@pytest.mark.slow
def test_slow_spectra_take_no_more_passes() -> None:
    """A gap of 5 % above a bulk takes block Krylov many."""
    rng = np.random.default_rng(0)
    sizes = np.append(np.full(5, 1.05), np.linspace(1, 0.5, 195)) ** 0.5
    u, v = np.linalg.qr(rng.standard_normal((3000, 200)))[0], np.linalg.qr(rng.standard_normal((200, 200)))[0]
    x = (u * sizes) @ v.T
    one, many = (npmdask.top_k(x, 5, kind="samples", algorithm=name, tol=1e-6) for name in ("gram", "krylov"))
    assert one.steps == 1 and many.steps > 10
    assert one.outcome.sentence.startswith("converged after 1 step: every relative residual")
    assert np.linalg.norm(v[:, :5] - one.basis @ (one.basis.T @ v[:, :5]), 2) < 1e-9


@pytest.mark.slow
def test_float32_ends_in_float64_where_the_tolerance_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "SINGLE_COLUMNS", 0)
    x = normal(np.random.default_rng(1), 4000, 80).astype(np.float32)
    steps = []
    for tol in (1e-3, 1e-7):
        solution = npmdask.top_k(x, 3, kind="samples", center=True, tol=tol, algorithm="gram")
        assert solution.converged and solution.residual_norms.max() <= tol * solution.values.max()
        steps.append(solution.steps)
    assert steps[0] == 1 < steps[1]
    a = x.astype(float) - x.mean(axis=0, dtype=float)
    np.testing.assert_allclose(solution.values, np.linalg.eigvalsh(a.T @ a / 4000)[::-1][:3], rtol=1e-11)


def test_a_state_is_what_a_checkpoint_holds_of_it() -> None:
    algorithm = GramKrylov(target_rank=2, iteration_rank=6)
    state = algorithm.init(20, rng=generator(0, "start"))
    again = algorithm.load(*state_fields(state))
    assert all(np.array_equal(getattr(again, name), value) for name, value in state_fields(state)[0].items())


@needs("privacy")
@pytest.mark.parametrize(
    "asked, error, said",
    [
        ({"kind": "symmetric"}, BadInputError, "forms A\\^T A, and .* is of kind symmetric"),
        ({"k": 0.9}, RefusedError, "a share of the variance needs an algorithm that multiplies blocks"),
        ({"mechanism": "gaussian", "stddev": 0.1}, RefusedError, "use 'power' with a noise mechanism"),
        ({"options": {"a": 1}}, BadInputError, "leave them out"),
    ],
)
def test_what_it_cannot_do(asked: dict[str, Any], error: type[Exception], said: str) -> None:
    x = np.random.default_rng(0).standard_normal((20, 20))
    with pytest.raises(error, match=said):
        npmdask.top_k(x + x.T, **{"k": 2, "kind": "samples", "algorithm": "gram", **asked})


def test_a_matrix_that_does_not_fit_is_refused_with_what_would() -> None:
    wide = zarr.create_array({}, shape=(2000, 9000), chunks=(500, 9000), dtype="f4")
    said = r'memory = 1024MiB is too small: one thread needs \d+ MiB .*, or algorithm = "krylov"'
    with pytest.raises(MemoryRefusedError, match=said):
        npmdask.top_k(wide, 3, kind="samples", algorithm="gram", memory="1GiB")


def spectra(d: int) -> dict[str, np.ndarray]:
    """Eigenvalues that are far apart, none, all the same, in clusters, few, and over all that float64 holds."""
    return {
        "power": np.arange(1, d + 1) ** -1.0,
        "zero": np.zeros(d),
        "flat": np.ones(d),
        "clusters": np.repeat([1.0, 1 - 1e-13, 0.5], [d // 3, d // 3, d - 2 * (d // 3)]),
        "few": np.where(np.arange(d) < 3, 1e9, 0.0),
        "decades": 10.0 ** -np.linspace(0, 30, d),
    }


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 2, 40, 700])
def test_leading_pairs_are_taken_for_such_whatever_the_spectrum(d: int) -> None:
    turn = np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))[0]
    for values in spectra(d).values():
        matrix = (turn * values) @ turn.T
        matrix = (matrix + matrix.T) / 2
        for count in {1, min(4, d), min(30, d), d}:
            found, _ = gram.pairs_of_matrix(matrix, count)
            assert np.allclose(found, values[:count], rtol=1e-10, atol=1e-12 * values[0])


def skips_one(values: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values[1:6], vectors[:, 1:6]


def skips_the_last_but_one(values: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values[[0, 1, 2, 4]], vectors[:, [0, 1, 2, 4]]


def smallest(values: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values[:-6:-1], vectors[:, :-6:-1]


def repeats(values: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One vector for all: each has a small residual, and the matrix less all of them is small."""
    return np.full(5, values[0]), vectors[:, [0] * 5]


@pytest.mark.parametrize("lie", [skips_one, skips_the_last_but_one, smallest, repeats])
@pytest.mark.parametrize("d", [30, 600])
def test_no_eigensolver_is_believed(lie: Any, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact eigenvectors that are not the leading ones have no residual. Mutants: no check; only of what V leaves."""
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0]
    values = np.arange(1, d + 1) ** -0.5
    matrix = (turn * values) @ turn.T
    assert gram.are_leading(matrix, values[:5], turn[:, :5])
    assert not gram.are_leading(matrix, *lie(values, turn))
    monkeypatch.setattr(gram, "SMALL", 0)
    with pytest.raises(NpmdaskError, match=r'not the leading ones, so there is no answer: try algorithm = "krylov"'):
        gram.pairs_of_matrix(matrix, 5, lambda matrix, count: lie(values, turn))


def test_a_run_whose_eigensolver_lies_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the run ends with a certificate of the second to sixth pairs."""
    real = np.linalg.eigh
    x = normal(np.random.default_rng(3), 2000, 40)
    asked: dict[str, Any] = {"kind": "samples", "algorithm": "gram"}
    assert npmdask.top_k(x, 3, **asked).converged
    monkeypatch.setattr(np.linalg, "eigh", lambda matrix: [part[..., :-1] for part in real(matrix)])
    with pytest.raises(NpmdaskError, match="LAPACK found eigenvectors of a 40 x 40 matrix that are not the leading"):
        npmdask.top_k(x, 3, **asked)


@pytest.mark.parametrize("seed", range(3))
def test_constant_data_have_components_without_variance(seed: int) -> None:
    """Their matrix is rounding, and may have no eigenvalue above 0. Mutant: ``scale`` of the largest alone."""
    rng = np.random.default_rng(2 * seed)
    x, weights = np.tile(1e9 * rng.standard_normal(3), (4, 1)), rng.random(4)
    found = npmdask.top_k(x, 1, center=True, kind="samples", algorithm="gram", row_weights=weights)
    assert found.converged and abs(found.values[0]) < 1e-14 * np.square(x).max()


def test_a_start_is_not_for_it(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((60, 10))
    npmdask.top_k(x, 2, kind="samples", store=tmp_path / "old")
    with pytest.raises(RefusedError, match="a start needs an algorithm that multiplies blocks"):
        npmdask.top_k(x, 2, kind="samples", start=tmp_path / "old", algorithm="gram")


def chosen(shape: tuple[int, int], memory: int | None = None, **request: Any) -> str:
    """What ``auto`` takes for data of this shape, of which nothing is read."""
    array = zarr.create_array({}, shape=shape, dtype="f4", chunks=(1024, shape[1]))
    asked = Request(**{"target_rank": 3, **request})
    return str(posed(asked, open_source(array, "samples"), Resources(memory=memory)).algorithm.name)


def test_auto_forms_the_matrix_where_that_is_the_fastest_way() -> None:
    """Many rows, few columns, enough memory, and a question that such a matrix answers."""
    assert chosen((65_536, 2048)) == "gram"
    assert chosen((65_536, 2048), memory=tree_rss() + 250 * 2**20) == "krylov", "the sums alone take 200 MiB"
    assert chosen((65_536, 2048), memory=tree_rss() + 600 * 2**20) == "gram"
    assert chosen((65_536, 2048), algorithm="krylov") == "krylov"


@needs("containers")
@pytest.mark.parametrize("entries", [160, 5])
def test_auto_forms_the_matrix_of_sparse_rows_by_pairs_of_their_entries(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured, processor time of gram over that of krylov: 5 entries 0.7 (p = 20) and 0.4 (p = 64), 160 less."""
    monkeypatch.setattr(automatic, "FEW", 0)
    rows = 40_000
    columns = np.tile(np.arange(entries, dtype=np.int32), rows)
    pointers = np.arange(0, rows * entries + 1, entries)
    matrix = sp.csr_matrix((np.ones(rows * entries, np.float32), columns, pointers), shape=(rows, 2000))
    assert posed(Request(target_rank=3), open_source(matrix), Resources()).algorithm.name == "gram"


def test_auto_leaves_alone_what_a_matrix_does_not_answer() -> None:
    assert chosen((30_000, 2048)) == chosen((65_536, 2049)) == chosen((8000, 500)) == "krylov"
    assert chosen((65_536, 2048), mechanism="gaussian", stddev=1.0) == "power"
    assert chosen((65_536, 2048), target_rank=0.9) == chosen((65_536, 2048), low_rank_tol=0.1) == "krylov"


@pytest.mark.slow
def test_a_store_keeps_what_it_was_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(np.random.default_rng(3), 2000, 40)
    asked: dict[str, Any] = {"kind": "samples", "store": tmp_path / "run", "tol": 1e-6}
    before = npmdask.top_k(x, 3, **asked)
    monkeypatch.setattr(automatic, "FEW", 0)
    assert npmdask.top_k(x, 3, kind="samples").steps == 1
    after = npmdask.top_k(x, 3, **asked)
    assert after.steps == before.steps > 1 and after.data_passes == 0
    assert after.basis.tobytes() == before.basis.tobytes()


@pytest.mark.slow
def test_threads_load_no_cluster(tmp_path: Path) -> None:
    """Dask looks for a client where a scheduler is given by name: that takes a fifth of a second of every short run."""
    write_zarr(tmp_path / "x", np.ones((80_000, 120)) * np.arange(120), (1000, 120))
    run = f"npmdask.top_k({str(tmp_path / 'x')!r}, 2, kind='samples', algorithm='gram', threads=2)"
    code = f"import sys, npmdask; assert {run}.converged; print('dask' in sys.modules, 'distributed' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "False"]
