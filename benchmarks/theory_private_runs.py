"""Runs of the private power method for the theory experiments: this project's algorithm, relation and mechanism.

The noise is exact Gaussian noise on a grid, as in every private run, from keys that are made of seeds here, so that
the figures come out again: nothing that these runs release protects anything.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.linalg import hadamard

from npmdask.accounting import Budget
from npmdask.core.numerics.random import Rounding, generator
from npmdask.core.numerics.subspaces import Block, max_sin_theta
from npmdask.privacy.exact_sums import on_grid
from npmdask.privacy.mechanisms import Entropy, PrivateGaussian
from npmdask.privacy.neighbors import SymmetricEntry
from npmdask.privacy.private_power import PrivatePower

DELTA, GRID, TOP = 1e-6, 2.0**-20, 2e4  # of every run; s_k
RATIO = 0.3  # s_{k+1} / s_k


@dataclass(frozen=True)
class Matrix:
    """A = basis diag(spectrum) basis^T (d x d), falling, the entries of ``basis`` all 0 or 1 / sqrt(spread)."""

    dense: np.ndarray
    spectrum: np.ndarray
    basis: np.ndarray

    @property
    def coherence(self) -> float:
        """mu = d max |V_ij|^2 over the whole eigenbasis, which is unique but for signs."""
        return float(len(self.basis) * np.abs(self.basis).max() ** 2)


@lru_cache(maxsize=4)
def matrix(d: int, k: int, spread: int, tail: str = "falling") -> Matrix:
    """``spread`` (a power of two): in how many coordinates each eigenvector lies; d: Hadamard's basis, 1: unit vectors.

    Eigenvalues from 1.2 s_k to s_k, then RATIO s_k / j, j = 1, 2, ..., or ``flat``: from RATIO s_k to a tenth less; all
    different.
    """
    basis = np.kron(np.eye(d // spread), hadamard(spread) / np.sqrt(spread))
    rest = np.linspace(1.0, 0.9, d - k) if tail == "flat" else 1 / np.arange(1, d - k + 1)
    spectrum = TOP * np.concatenate([np.linspace(1.2, 1.0, k), RATIO * rest])
    return Matrix(basis * spectrum @ basis.T, spectrum, basis)


def mechanism_of(
    epsilon: float, releases: int, shape: tuple[int, int], *, calibration: str, coherence: float | None = None
) -> PrivateGaussian:
    """The mechanism of one symmetric entry; ``shape``: of the products. Rounding moves an entry by up to two grids."""
    return PrivateGaussian(
        relation=SymmetricEntry(clip_norm=2 * TOP, change=1.0, coherence=coherence),
        budget=Budget(epsilon, DELTA),
        releases=releases,
        rounding=Rounding(grid=GRID, l2=2 * GRID * float(np.sqrt(shape[0] * shape[1]))),
        calibration=calibration,
    )


@contextmanager
def key(*purpose: str | int) -> Iterator[Entropy]:
    """A key made of ``purpose``: the same noise again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        path.touch(mode=0o600)
        path.write_bytes(hashlib.sha256(repr(purpose).encode()).digest())
        yield Entropy.open(path)


@dataclass(frozen=True)
class Released:
    """All of one run: X_0 ... X_L, Y_1 ... Y_L, the noise of each, and the vectors that the project answers with."""

    blocks: list[Block]
    products: list[Block]
    stddevs: list[float]
    vectors: Block

    @property
    def largest_entry(self) -> float:
        """max over l < L of max |X_ij|, by which the printed noise is scaled."""
        return max(float(np.abs(block).max()) for block in self.blocks[:-1])


def release(given: Matrix, k: int, p: int, mechanism: PrivateGaussian, seed: int) -> Released:
    """Figure 3 of the paper, L = ``mechanism.releases`` noisy products."""
    d = len(given.dense)
    method = PrivatePower(target_rank=k, iteration_rank=p, releases=mechanism.releases, noise=mechanism)
    state, blocks, products = method.init(d, rng=generator(seed, "start")), [], []
    with key("theory private", d, k, p, seed) as entropy:
        for step in range(1, mechanism.releases + 1):
            block = on_grid(method.query(state).block)
            exact = np.rint(given.dense @ block / GRID).astype(np.int64)
            products.append(mechanism.release(exact, block=block, entropy=entropy, step=step))
            blocks.append(block)
            state, _ = method.update(state, products[-1])
    vectors = method.finalize(state).vectors
    return Released([*blocks, state.basis], products, state.stddevs.tolist(), vectors)


def errors(given: Matrix, k: int, released: Released) -> tuple[float, float]:
    """||(I - X_L X_L^T) U_k||, and the same of the k vectors that the project answers with."""
    truth = given.basis[:, :k]
    return max_sin_theta(released.blocks[-1], truth), max_sin_theta(released.vectors, truth)
