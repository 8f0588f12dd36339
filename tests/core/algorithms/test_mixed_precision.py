"""Block Krylov that begins in float32: right where it says so, whatever the data; and what is run by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask
from npmdask.core.algorithms import krylov
from npmdask.core.certificates.bounds import Certificate, Evidence, certify, rounding_of
from npmdask.core.execution.memory import tree_rss
from npmdask.core.operators import Gram, View
from npmdask.core.runs import forming, results
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import needs
from tests.core.algorithms.families import FAMILIES, of_spectrum

MIXED: dict[str, Any] = {"algorithm": "krylov", "options": {"precision": "mixed"}}
PER_FAMILY = 3


def wrong(seed: int) -> str:
    """What is wrong about the run on problem ``seed``; nothing, if nothing is."""
    rng = np.random.default_rng([45, seed])
    family = FAMILIES[seed % len(FAMILIES)]
    n, d, k = int(rng.integers(100, 2500)), int(rng.integers(25, 90)), int(rng.integers(1, 8))
    unit = float(rng.choice([1.0, 1.0, 1e-30, 1e12, 1e25]))
    x = (family(rng, n, d, k) * unit).astype(np.float32)
    kind, center = str(rng.choice(["samples", "matrix"])), bool(rng.random() < 0.6)
    scale = center and rng.random() < 0.4
    tol = 10 ** -rng.uniform(2, 10)
    asked: dict[str, Any] = {"kind": kind, "center": center, "scale": bool(scale), "tol": tol, "seed": seed}
    asked["options"] = {"precision": "mixed", "basis_blocks": int(rng.choice([2, 3, 8]))}
    asked["max_steps"] = int(rng.choice([1, 2, 4])) if rng.random() < 0.2 else 60
    if rng.random() < 0.3:
        asked["iteration_rank"] = min(k + int(rng.integers(0, 3)), d)
    solution = npmdask.top_k(x, k, algorithm="krylov", threads=1, **asked)
    a = x.astype(np.longdouble) - (x.astype(np.longdouble).mean(axis=0) if center else 0)
    moved = np.linalg.norm(x.astype(float).mean(axis=0)) if center else 0.0
    if scale:
        deviations = np.asarray(a.std(axis=0), dtype=float)
        divisor = np.where(deviations > 1e-13 * np.abs(x.mean(axis=0, dtype=float)), deviations, 1.0)
        a, moved = a / divisor, np.linalg.norm(x.astype(float).mean(axis=0) / divisor)
    weight = 1 / n if kind == "samples" else 1.0
    matrix = np.asarray(a.T @ a * weight, dtype=np.float64)
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[::-1], vectors[:, ::-1]
    found = solution.values if kind == "samples" else solution.values**2
    # What rounding in float64 leaves of a matrix of this size, and of the means that are taken off.
    floor = 1e-13 * (values[0] + moved * np.sqrt(values[0] * (n * weight)) + 1e-3 * moved**2 * (n * weight))
    about = f"{seed}: {family.__name__} x {unit:g}, n = {n}, d = {d}, k = {k}, {asked}"
    if not np.allclose(solution.basis.T @ solution.basis, np.eye(k), atol=1e-11):
        return f"{about}: not orthonormal"
    if solution.converged:
        off = np.linalg.norm(matrix @ solution.basis - solution.basis * found, axis=0)
        if (off > 1.01 * tol * np.maximum(found, 0) + floor).any():
            return f"{about}: residuals {off / found}"
        if (found < values[:k] * (1 - 2 * tol) - floor).any():
            return f"{about}: values {found} of {values[:k]}"
    sine = np.linalg.norm(vectors[:, :k] - solution.basis @ (solution.basis.T @ vectors[:, :k]), 2)
    slack = floor / np.maximum(solution.values, 1e-300) if kind == "matrix" else floor
    best = np.sqrt(np.maximum(values[:k], 0)) if kind == "matrix" else values[:k]
    certificate: Any = solution.certificate
    for level in certificate["levels"]:
        errors = np.array([np.inf if error is None else error for error in level["value_errors"]])
        if (np.abs(solution.values - best) > errors + slack).any():
            return f"{about}: {level['ground']} claims {errors} of {solution.values - best}"
        gap = values[k - 1] - values[k]
        if level["sine"] is not None and sine > level["sine"] + 2 * floor / max(gap, 1e-300):
            return f"{about}: {level['ground']} claims a sine of {level['sine']}, it is {sine}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("family", range(len(FAMILIES)), ids=[family.__name__ for family in FAMILIES])
def test_no_random_problem_is_wrong_and_called_converged(family: int) -> None:
    """Mutants that fail here: float32 that is called float64, products of float32 that are kept at the change."""
    seeds = [family + len(FAMILIES) * number for number in range(PER_FAMILY)]
    assert not [said for seed in seeds if (said := wrong(seed))]


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(10))
def test_none_of_thousands_is(part: int) -> None:
    assert not [said for seed in range(300 * part, 300 * part + 300) if (said := wrong(seed))]


# The product that it rests on


VIEWS = ["as stored", "centred", "scaled", "weighted"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("unit", [1e-30, 1e-20, 1.0, 1e18, 1e25])
@pytest.mark.parametrize("away", [0.0, 1e6])
def test_a_rounded_product_is_that_of_the_block_beside_it(view: str, unit: float, away: float) -> None:
    """Squares of 1e-30 and 1e25 are outside of float32, as means of a million deviations are beyond its digits.

    Mutants that fail here: a mean subtracted in float32 with nothing taken off afterwards, no look at what is too small
    or too large, the block returned as it was asked for.
    """
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((5000, 30)) * np.arange(1, 31) ** -0.5
    x = ((rows + (away if view in ("centred", "scaled") else 0.0) * rng.standard_normal(30)) * unit).astype(np.float32)
    mean, deviation = x.mean(axis=0, dtype=float), x.std(axis=0, dtype=float)
    shift, scale = (mean, deviation if view == "scaled" else None) if view in ("centred", "scaled") else (None, None)
    weight = rng.random(5000) if view == "weighted" else None
    operator = Gram(
        reader=open_source(x).reader,  # type: ignore[arg-type]
        weight=1 / 5000,
        view=View(shift=shift, scale=scale, row_weight=weight),
        rounded=True,
    )
    block = np.linalg.qr(rng.standard_normal((30, 4)))[0]
    answer = operator.finish(operator.partial(range(operator.units), block), block)
    product, multiplied = answer[:, :4], answer[:, 4:]
    a = (x.astype(float) - (0 if shift is None else shift)) / (1 if scale is None else scale)
    a = a if weight is None else a * np.sqrt(weight)[:, None]
    exact = a.T @ (a @ multiplied) / 5000
    assert np.linalg.norm(product - exact) < 6e-7 * np.linalg.norm(exact), "float32, whatever BLAS adds up at once"
    assert 0 < np.abs(multiplied - block).max() < 1e-7


@pytest.mark.slow
def test_no_more_rows_than_these_are_added_up_in_float32() -> None:
    """Of one column of ones with 2^20 rows every partial sum is a whole number, which float32 holds up to 2^24."""
    x = np.full((2**20, 1), 4097.0, np.float32)
    operator = Gram(reader=open_source(x).reader, rounded=True)  # type: ignore[arg-type]
    product = operator.finish(operator.partial(range(operator.units), np.ones((1, 1))), np.ones((1, 1)))[0, 0]
    assert abs(product / (2.0**20 * 4097.0**2) - 1) < 1e-6


def test_columns_that_float32_cannot_be_scaled_to_are_multiplied_in_float64() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 6)).astype(np.float32)
    operator = Gram(reader=open_source(x).reader, view=View(scale=np.full(6, 1e-42)), rounded=True)  # type: ignore[arg-type]
    block = np.linalg.qr(rng.standard_normal((6, 2)))[0]
    answer = operator.finish(operator.partial(range(operator.units), block), block)
    np.testing.assert_allclose(answer[:, 2:], block, rtol=1e-14)
    np.testing.assert_allclose(answer[:, :2], x.T.astype(float) @ (x.astype(float) @ block) / 1e-84, rtol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named_all_the_same(value: float) -> None:
    x = np.ones((300, 5), np.float32)
    x[17, 3] = value
    with pytest.raises(BadInputError, match="row 17, column 3"):
        npmdask.top_k(x, 2, kind="samples", **MIXED)


# What float32 must not pass off as found


@pytest.mark.slow
def test_residuals_of_float32_end_no_run() -> None:
    """Residuals in float32 are small long before the values are right: with values 1e-8 of the largest, nothing is."""
    rng = np.random.default_rng(3)
    x = of_spectrum(np.array([1.0, 1e-8, 0.9e-8, *np.full(37, 1e-9)]), 3000, rng).astype(np.float32)
    solution = npmdask.top_k(x, 3, kind="samples", tol=1e-4, **MIXED)
    matrix = x.T.astype(float) @ x / 3000
    assert solution.converged
    off = np.linalg.norm(matrix @ solution.basis - solution.basis * solution.values, axis=0)
    assert (off <= 1e-4 * solution.values).all()
    np.testing.assert_allclose(solution.values, np.linalg.eigvalsh(matrix)[:-4:-1], rtol=1e-7)


@pytest.mark.slow
def test_a_run_in_float32_that_is_cut_short_claims_no_more_than_float32_knows(tmp_path: Path) -> None:
    x = of_spectrum(np.arange(1, 61) ** -0.5, 4000, np.random.default_rng(4)).astype(np.float32)
    short = npmdask.top_k(x, 3, kind="samples", max_steps=3, **MIXED)
    certificate: Any = short.certificate
    assert not short.converged
    # 16 roundings of the largest value, in every ground.
    assert all(error > 1e-6 for level in certificate["levels"] for error in level["value_errors"] if error is not None)


@pytest.mark.slow
def test_the_certificate_of_a_run_that_began_in_float32_rests_on_its_random_start_too() -> None:
    """Its p Ritz vectors are the leading ones of a Krylov space; that was formed in float32, and so it is counted."""
    x = of_spectrum(np.append(np.full(5, 4.0), np.full(195, 0.01)), 6000, np.random.default_rng(5)).astype(np.float32)
    solution = npmdask.top_k(x, 5, kind="samples", **MIXED)
    certificate: Any = solution.certificate
    (level,) = [level for level in certificate["levels"] if level["ground"] == "random start"]
    values = np.linalg.eigvalsh(x.T.astype(float) @ x / 6000)[::-1]
    assert solution.converged and values[5] <= level["following"] < 1.0


@pytest.mark.slow
def test_what_formed_the_space_in_float32_counts_after_a_last_step_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the rounding of the last step for all. That of the start is what "random start" rests on."""
    seen: list[Evidence] = []

    def certified(evidence: Evidence) -> Certificate:
        seen.append(evidence)
        return certify(evidence)

    monkeypatch.setattr(results, "certify", certified)
    x = of_spectrum(np.arange(1, 31) ** -0.5, 500, np.random.default_rng(6)).astype(np.float32)
    for asked in (MIXED, {"algorithm": "krylov"}):
        assert npmdask.top_k(x, 3, kind="samples", **asked).converged
    single = rounding_of(30, seen[0].values[0], single=True)
    assert seen[0].start_rounding >= single > 1e6 * seen[0].rounding
    assert seen[1].start_rounding < single / 10, "no step was in float32"


# The run


@pytest.mark.slow
def test_threads_change_no_bit(tmp_path: Path) -> None:
    x = of_spectrum(np.arange(1, 41) ** -0.5, 3000, np.random.default_rng(2)).astype(np.float32)
    array = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(250, 40), dtype="f4")
    array[:] = x
    one, two = (npmdask.top_k(tmp_path / "x.zarr", 3, kind="samples", threads=t, **MIXED) for t in (1, 2))
    assert one.basis.tobytes() == two.basis.tobytes()


@needs("containers")
@pytest.mark.parametrize(
    "asked, error, said",
    [
        ({"options": {"blocks": 8}}, BadInputError, "unknown option 'blocks' of krylov"),
        ({"options": {"basis_blocks": 1}}, BadInputError, "basis_blocks = 1 is too small"),
        ({"options": {"basis_blocks": 2.5}}, BadInputError, "basis_blocks = 2.5 is not a whole number"),
        ({"options": {"precision": "float32"}}, BadInputError, "precision = 'float32' is not known"),
        ({"kind": "symmetric"}, RefusedError, 'use "float64"'),
        ({"kind": "sparse"}, RefusedError, 'use "float64"'),
        ({"dtype": np.float64}, RefusedError, "is only for dense samples and matrices in float32"),
    ],
)
def test_what_it_cannot_do(asked: dict[str, Any], error: type[Exception], said: str) -> None:
    x = np.random.default_rng(0).standard_normal((20, 20)).astype(asked.pop("dtype", np.float32))
    if asked.get("kind") == "sparse":
        sparse = pytest.importorskip("scipy.sparse")
        x = sparse.csr_matrix(x)
    with pytest.raises(error, match=said):
        npmdask.top_k(x if asked.get("kind") != "symmetric" else x + x.T, 2, **{"kind": "samples", **MIXED, **asked})


# What is run by default


def chosen(shape: tuple[int, int], memory: int | None = None, dtype: str = "f4", **request: Any) -> dict[str, Any]:
    """The options that are taken for data of this shape, of which nothing is read."""
    array = zarr.create_array({}, shape=shape, dtype=dtype, chunks=(1024, shape[1]))
    asked = Request(**{"target_rank": 3, **request})
    return posed(asked, open_source(array, "samples"), Resources(memory=memory)).request.options or {}


@pytest.mark.slow
def test_more_blocks_where_they_cost_nothing() -> None:
    """Much memory, and many rows: beside few, a step with them takes longer than its pass."""
    assert chosen((20_000, 3000)) == {"basis_blocks": 8, "precision": "mixed"}
    assert chosen((20_000, 3000), tol=1e-9) == {"basis_blocks": 8}
    assert chosen((2000, 300)) == {}
    assert chosen((20_000, 40_000)) == {"precision": "mixed"}, "a step writes 0.1 GB"
    assert chosen((20_000, 3000), iteration_rank=200) == {"precision": "mixed"}
    assert chosen((20_000, 3000), memory=tree_rss() + 120 * 2**20).get("basis_blocks") is None, "one thread less"


@pytest.mark.slow
def test_float32_where_passes_are_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, dense, large, and no larger than what the machine keeps in memory."""
    monkeypatch.setattr(forming, "TIMED", dict.fromkeys(forming.TIMED, np.inf))  # there are no rows that could be read
    assert "precision" in chosen((20_000, 3000)) and "precision" in chosen((20_000, 3000), algorithm="krylov")
    for other in ({"dtype": "f8"}, {"tol": 1e-8}, {"low_rank_tol": 0.1}, {"target_rank": 0.9}):
        assert "precision" not in chosen((20_000, 3000), **other), other
    assert "precision" not in chosen((20_000, 3000), algorithm="power")
    assert "precision" not in chosen((20_000, 3000), mechanism="gaussian", stddev=1.0)
    assert "precision" not in chosen((500_000_000, 3000)), "read from a disk in every pass"
    assert chosen((20_000, 3000), algorithm="krylov", options={"precision": "float64"}) == {"precision": "float64"}


@pytest.mark.slow
def test_float32_is_as_near_as_its_rounding_before_it_changes() -> None:
    """What is kept for float64 is a start that needs one product: no run of these takes a third in float64."""
    for seed in range(4):
        x = of_spectrum(np.arange(1, 61) ** -(0.3 + 0.2 * seed), 4000, np.random.default_rng(seed)).astype(np.float32)
        coarse = npmdask.top_k(x, 4, kind="samples", **MIXED)
        fine = npmdask.top_k(x, 4, kind="samples", algorithm="krylov")
        assert coarse.converged and coarse.steps <= fine.steps + 2
        np.testing.assert_allclose(coarse.values, fine.values, rtol=1e-9)


def test_the_noise_that_is_seen_is_of_the_size_of_what_products_are_off() -> None:
    """It says when float32 has done what it can: from it, float32 is left neither at once nor never."""
    rng = np.random.default_rng(7)
    v = np.linalg.qr(rng.standard_normal((200, 30)))[0]
    values = np.linspace(2, 1, 30)
    error = 1e-6 * rng.standard_normal((200, 30)) / np.sqrt(200)
    products = v * values + v @ (1e-6 * rng.standard_normal((30, 30)) / np.sqrt(30)) + error
    seen = krylov._noise(v.T @ products, np.eye(30))
    assert (seen > 3e-7).all() and (seen < 3e-6).all()
