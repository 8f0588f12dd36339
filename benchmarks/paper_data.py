"""The data of Arora and Marinov 2019, section 7, prepared as their programs prepare them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npmdask.errors import BadInputError
from npmdask.formats.numpy_files import open_idx

IMAGES = "mnist-10k-images-idx3-ubyte.gz"
SURROGATE = Path("surrogate")  # in place of a file: rows that are no images, with a spectrum like that of MNIST


@dataclass(frozen=True)
class Split:
    """80 % of the rows to learn from, 10 % (never looked at while learning) to judge by; 10 % were for tuning.

    Both are centred by the mean of the first. The first are divided so that their lambda_k = 1; then
    ``gap`` = 1 - lambda_{k+1}. The moment that judges, test^T test / n, is kept by its rows.
    """

    train: np.ndarray
    test: np.ndarray
    gap: float


def deviations(k: int, d: int = 1000, gap: float = 0.1) -> np.ndarray:
    """Standard deviations of the coordinates (d): variances 1 (k times), then gap 2^(-0.1 j), j = 0, 1, ...

    The paper prints the exponent -0.1 i for coordinate i; the programs begin with 0 behind the k-th.
    """
    return np.sqrt(np.concatenate([np.ones(k), gap * 2 ** (-0.1 * np.arange(d - k))]))


def synthetic(k: int, *, d: int, rows: int, seed: int) -> Split:
    """Gaussian rows of variances ``deviations``^2, split."""
    rng = np.random.default_rng(seed)
    return split(rng.standard_normal((rows, d)) * deviations(k, d), k)


def surrogate(rows: int = 10_000, *, d: int = 784, seed: int = 0) -> np.ndarray:
    """Gaussian rows (rows x d) in a random basis, divided by their largest norm: where there is no MNIST.

    Variances (1 + i / 8)^(-1.8), i = 0, 1, ...: within 20 % those of the centred images at i = 10, 20, 50, 100, 200 and
    300 (0.23, 0.11, 0.033, 0.010, 0.0029 and 0.0012 of the first). So what is said of the ranks of projected steps can
    be seen; nothing else of images can.
    """
    rng = np.random.default_rng(seed)
    variances = (1 + np.arange(d) / 8) ** -1.8
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    drawn = (rng.standard_normal((rows, d)) * np.sqrt(variances)) @ basis.T
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1).max())


def images(path: Path) -> np.ndarray:
    """Pixels (rows x 784) of an IDX file, divided by the largest norm of a row: the paper assumes norms of at most 1.

    ``SURROGATE`` gives :func:`surrogate`. Raises BadInputError if there is no such file.
    """
    if path == SURROGATE:
        return surrogate()
    if not path.exists():
        raise BadInputError(
            f"there is no {path}: name the images of MNIST's test set (IDX, gzipped or not) by --images"
        )
    pixels = np.concatenate(list(open_idx(path).batches(0))).astype(np.float64)
    return pixels / np.linalg.norm(pixels, axis=1).max()


def split(rows: np.ndarray, k: int) -> Split:
    """The first 80 % and the last 10 % of ``rows``, centred and scaled."""
    tenth = len(rows) // 10
    mean = rows[: 8 * tenth].mean(axis=0)
    train, test = rows[: 8 * tenth] - mean, rows[9 * tenth :] - mean
    values = np.linalg.eigvalsh(train.T @ train / len(train))[::-1]
    return Split(train / np.sqrt(values[k - 1]), test, float(1 - values[k] / values[k - 1]))
