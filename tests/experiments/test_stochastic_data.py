"""The generators give what they say: images of matrices, means, spreads, and the same again."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq

from npmdask.errors import BadInputError
from npmdask.experiments import matrix_streams
from npmdask.experiments.matrix_streams import ROWS, MatrixStream, gaussian, signal_and_noise, spiked, violation
from npmdask.theory.diagnostics import assumption_a

LAMBDAS = np.array([3.0, 2.0])
MAKERS: dict[str, Callable[[int, int], MatrixStream]] = {
    "signal": lambda n, seed: signal_and_noise(n, 6, LAMBDAS, 0.8, seed),
    "example 1": lambda n, seed: spiked(n, 6, 1.0, 0.5, seed),
    "appendix": lambda n, seed: spiked(n, 6, 3.0, 0.5, seed),
    "gaussian": lambda n, seed: gaussian(n, 6, LAMBDAS, 0.7, seed),
    "violation": lambda n, seed: violation(n, 6, 0.2, seed),
    "violation, common": lambda n, seed: violation(n, 6, 0.6, seed),
}


def formed(stream: MatrixStream) -> np.ndarray:
    """All matrices (n x d x d)."""
    batch = stream.batch(0, stream.n)
    shared = (stream.vectors * stream.common) @ stream.vectors.T
    return shared + np.einsum("ni,nj->nij", batch.rows, batch.rows)


@pytest.mark.parametrize("name", MAKERS)
def test_what_a_batch_gives_is_what_its_matrices_give(name: str) -> None:
    """Mutant: images, traces, diagonals or products without the common part, or weights that it does not get."""
    stream = MAKERS[name](7, 0)
    batch, matrices = stream.batch(0, 7), formed(stream)
    rng = np.random.default_rng(1)
    w, block, weights = rng.standard_normal(6), rng.standard_normal((6, 3)), rng.random(7)
    total = np.einsum("n,nij->ij", weights, matrices)
    np.testing.assert_allclose(batch.images(w), matrices @ w, atol=1e-12)
    np.testing.assert_allclose(batch.traces(), np.trace(matrices, axis1=1, axis2=2), rtol=1e-12)
    np.testing.assert_allclose(batch.diagonals(), np.einsum("nii->ni", matrices), rtol=1e-12)
    np.testing.assert_allclose(batch.product(weights, block), total @ block, atol=1e-12)
    np.testing.assert_allclose(batch.total(weights), total, atol=1e-12)


Laws = list[list[tuple[float, float, float]]]


def laws_of_forms(name: str, stream: MatrixStream) -> Laws:
    """Of x along the signal (and across it, if that can be worse): shares, centres and deviations of normal parts."""
    if name.startswith("violation"):
        share = 1 - stream.floor
        along, across = share**-0.25, 0.0
        return [[(share, jump, 0.0), (1 - share, 0.0, 1.0)] for jump in (along, across)]
    if name == "gaussian":
        return [[(1.0, 0.0, float(np.sqrt(stream.values[0])))]]
    centre = float(np.sqrt(stream.values[0] - stream.floor - stream.common[0]))
    return [[(1.0, centre, float(np.sqrt(stream.floor)))]]


def tail(stream: MatrixStream, laws: Laws) -> float:
    """K of A.4 with "<= 2": the least t with E exp(|(u^T x)^2 - E (u^T x)^2| / t) <= 2, by quadrature."""

    def worst(law: list[tuple[float, float, float]]) -> float:
        mean = sum(share * (centre**2 + scale**2) for share, centre, scale in law)

        def excess(t: float) -> float:
            def density(g: float) -> float:
                sizes = [(share, abs((centre + scale * g) ** 2 - mean) / t - g * g / 2) for share, centre, scale in law]
                return sum(share * math.exp(min(size, 600.0)) for share, size in sizes) / math.sqrt(2 * math.pi)

            return float(quad(density, -150, 150, limit=1000, points=[-1, 0, 1])[0]) - 2

        return float(brentq(excess, 2.002 * max(scale for _, _, scale in law) ** 2, 100))

    return max(map(worst, laws)) / (stream.model.gamma * float(stream.values[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_the_mean_and_the_spread_are_those_of_the_model(name: str) -> None:
    """Estimated from 100,000 matrices, against closed forms and, of K, quadrature (by how much it comes out low is
    seen: exp of the tail has no variance). Mutants: another Sigma (the sign slip of Example 3), V or gamma off by a
    factor 1.3; of the estimates: V without the mean taken off, gamma without its root, K without gamma, no common part.
    """
    stream = MAKERS[name](100_000, 3)
    sigma = stream.sigma(np.eye(6))
    values, vectors = np.linalg.eigh(sigma)
    k = len(stream.values)
    np.testing.assert_allclose(values[::-1][: k + 1], stream.eigenvalues, rtol=1e-10)
    np.testing.assert_allclose(abs(np.sum(vectors[:, ::-1][:, :k] * stream.vectors, axis=0)), 1, rtol=1e-10)
    assert np.abs(formed(stream).mean(axis=0) - sigma).max() < 0.03 * values[-1]
    common = (stream.vectors * stream.common) @ stream.vectors.T
    found = assumption_a(lambda: (batch.rows for batch in stream.batches()), k, common=common)
    assert found.rows == 100_000
    np.testing.assert_allclose(found.values, stream.eigenvalues, rtol=0.02)
    assert found.model.V == pytest.approx(stream.model.V, rel=0.05)
    assert found.model.gamma == pytest.approx(stream.model.gamma, rel=0.04)
    assert found.model.kappa == pytest.approx(stream.model.kappa, rel=0.06)
    sharp = tail(stream, laws_of_forms(name, stream))
    assert 0.88 * sharp < found.model.K < 1.02 * sharp
    assert found.model.M > stream.model.M  # the largest of 100,000, no typical one


@pytest.mark.parametrize("kept", [0, 1, 10])
def test_every_range_is_the_same_whenever_it_is_asked_for(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether blocks are kept, or drawn again. Mutant: rows drawn in the order of asking."""
    monkeypatch.setattr(matrix_streams, "KEPT_BYTES", kept * ROWS * 6 * 8)
    n = 2 * ROWS + 10
    stream = MAKERS["gaussian"](n, 5)
    whole = np.concatenate([batch.rows for batch in stream.batches()])
    assert whole.shape == (n, 6)
    held = matrix_streams._drawn_blocks(stream)
    assert sum(rows.nbytes for rows in held.values()) <= kept * ROWS * 6 * 8 and bool(held) == bool(kept)
    late = stream.batch(ROWS - 3, 2 * ROWS + 5).rows
    np.testing.assert_array_equal(late, whole[ROWS - 3 : 2 * ROWS + 5])
    np.testing.assert_array_equal(MAKERS["gaussian"](n, 5).batch(n - 1, n).rows, whole[-1:])
    np.testing.assert_array_equal(stream.batch(0, 1).rows, whole[:1])
    assert len(np.unique(whole[:, 0])) == n, "no block repeats another"
    assert (MAKERS["gaussian"](n, 6).batch(0, 1).rows != whole[:1]).all()
    with pytest.raises(BadInputError, match="but the stream has"):
        stream.batch(0, n + 1)


def test_the_two_forms_of_one_spike_differ_by_the_square() -> None:
    """Appendix G's lambda_1 is a length, not an eigenvalue."""
    assert spiked(10, 6, 10.0, 0.1, 0).values[0] == pytest.approx(100.01)
    assert spiked(10, 6, 1.0, 0.1, 0).values[0] == pytest.approx(1.01)


def test_a_deterministic_signal_is_less_spread_than_example_1() -> None:
    """gamma goes with sigma^2 where only z z^T is random, with sigma where the signal meets the noise."""
    for sigma in (0.1, 0.01):
        assert signal_and_noise(10, 50, np.array([1.0]), sigma, 0).model.gamma == pytest.approx(
            np.sqrt(2) * sigma**2, rel=0.02
        )
        assert spiked(10, 50, 1.0, sigma, 0).model.gamma == pytest.approx(2 * sigma, rel=0.02)
