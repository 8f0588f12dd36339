"""Real data, from the file as people have it to components equal to LAPACK's and ARPACK's."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import svds
from sklearn.datasets import load_digits

import npmdask
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.formats.ingest import ingest
from tests.conftest import shared_file


def best_separated(values: np.ndarray, k: int, count: int) -> list[int]:
    """The ``count`` of the first k components whose values are farthest from their neighbours."""
    gaps = np.abs(np.diff(values[: k + 1]))
    gap = np.minimum(gaps, np.concatenate([[np.inf], gaps[:-1]]))
    return sorted(np.argsort(-gap[:k])[:count])


def sin_each(found: np.ndarray, true: np.ndarray, which: list[int]) -> list[float]:
    """sin of the angle between each found vector and its true one."""
    return [max_sin_theta(found[:, [i]], true[:, [i]]) for i in which]


@pytest.mark.slow
def test_mnist_principal_components_equal_lapack(tmp_path: Path) -> None:
    file = shared_file("mnist-10k-images-idx3-ubyte.gz")
    ingest(file, tmp_path / "mnist.zarr")
    solution = npmdask.top_k(tmp_path / "mnist.zarr", 20, center=True, tol=1e-10)
    x = np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=16).reshape(10_000, 784).astype(float)
    x -= x.mean(0)
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    values, vectors = values[::-1], vectors[:, ::-1]
    sines = sin_each(solution.basis, vectors, best_separated(values, 20, 10))
    print(f"MNIST: {solution.steps} steps, worst sin(theta) of the 10 best separated {max(sines):.1e}")
    assert solution.converged
    assert max(sines) <= 1e-8
    np.testing.assert_allclose(solution.values, values[:20], rtol=1e-12)
    assert solution.data_passes == solution.steps, "column means were recorded at ingest: no survey"


@pytest.mark.slow
def test_nips_bag_of_words_equal_arpack(tmp_path: Path) -> None:
    file = shared_file("nips-docword.txt.gz")
    ingest(file, tmp_path / "nips.zarr")
    solution = npmdask.top_k(tmp_path / "nips.zarr", 20, tol=1e-10)
    doc, word, count = np.loadtxt(gzip.open(file), skiprows=3, dtype=int, unpack=True)
    matrix = sp.csr_matrix((count.astype(float), (doc - 1, word - 1)), shape=(1500, 7605))
    _, sigma, vt = svds(matrix, 21, tol=1e-14, random_state=0)
    order = np.argsort(-sigma)
    sigma, vectors = sigma[order], vt[order].T
    sines = sin_each(solution.basis, vectors, best_separated(sigma, 20, 10))
    print(f"NIPS: {solution.steps} steps, worst sin(theta) of the 10 best separated {max(sines):.1e}")
    assert solution.converged
    assert max(sines) <= 1e-8
    np.testing.assert_allclose(solution.values, sigma[:20], rtol=1e-10)


@pytest.mark.slow
def test_digits_always(tmp_path: Path) -> None:
    x = load_digits().data
    np.save(tmp_path / "digits.npy", x.astype(np.uint8))
    ingest(tmp_path / "digits.npy", tmp_path / "digits.zarr")
    solution = npmdask.top_k(tmp_path / "digits.zarr", 10, center=True, tol=1e-10)
    centred = x - x.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(x))
    values, vectors = values[::-1], vectors[:, ::-1]
    assert max(sin_each(solution.basis, vectors, best_separated(values, 10, 8))) <= 1e-8
    np.testing.assert_allclose(solution.values, values[:10], rtol=1e-12)
