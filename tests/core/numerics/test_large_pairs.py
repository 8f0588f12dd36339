"""Leading pairs of a formed matrix: ARPACK's where they are sooner, never ones that do not lead."""

from __future__ import annotations

import numpy as np
import pytest

from npmdask.core.algorithms.gram import are_leading, pairs_of_matrix
from npmdask.core.numerics.large_pairs import large_pairs

D = 1100


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many columns already."""
    monkeypatch.setattr("npmdask.core.numerics.large_pairs.LEAST", 1024)


def of_values(values: np.ndarray, seed: int = 0) -> np.ndarray:
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((D, len(values))))[0]
    matrix = (turn * values) @ turn.T
    return np.asarray((matrix + matrix.T) / 2)


SPECTRA = {
    "steep": 10.0 ** -np.arange(40),
    "slow": 1 / np.arange(1, D + 1),
    "many times": np.repeat([3.0, 1.0], [30, 200]),
    "flat": np.ones(D),
    "clustered": 1 + 1e-9 * np.arange(200),
    "one": np.ones(1),
    "none": np.zeros(1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("count", [2, 12, 60])
def test_the_pairs_lead_whatever_the_spectrum(name: str, count: int) -> None:
    """Values that come several times, or in clusters, may be missed by ARPACK: LAPACK's are taken then."""
    matrix = of_values(SPECTRA[name])
    values, vectors = pairs_of_matrix(matrix, count)
    true = np.zeros(D)
    true[: len(SPECTRA[name])] = np.sort(SPECTRA[name])[::-1]
    scale = max(true[0], 1e-300)
    assert np.abs(values - true[:count]).max() <= 1e-13 * scale and (np.diff(values) <= 0).all()
    assert np.linalg.norm(matrix @ vectors - vectors * values, axis=0).max() <= 1e-13 * scale
    assert np.abs(vectors.T @ vectors - np.eye(count)).max() <= 1e-12


@pytest.mark.slow
def test_a_value_that_arpack_misses_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: its pairs are not checked."""
    matrix = of_values(SPECTRA["slow"])
    first, second = large_pairs(matrix, 5)
    assert (
        np.allclose(first[0], second[0], rtol=1e-12) and np.abs(np.sum(first[1] * second[1], axis=0)).min() > 1 - 1e-9
    )
    wrong = (np.append(first[0][1:], 0.1), np.roll(first[1], -1, axis=1))
    assert not are_leading(matrix, *wrong)
    monkeypatch.setattr("npmdask.core.numerics.large_pairs.large_pairs", lambda *_: iter([wrong, second]))
    assert np.array_equal(pairs_of_matrix(matrix, 5)[0], second[0])
