"""Data with a planted answer: how its slabs of rows, or blocks of a tensor, are made and written, and what is true.

The randomness of a slab is named by its index: it can be made by any worker, and again after a kill.

Except for ``spiked`` the truth is that of the very data, exact up to the rounding of the stored entries:
values are off by up to about ``machine_eps`` of the dtype times the largest one (float32: 1e-7, and zeros
are not zero), vectors by that over their gap.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np
import psutil
from scipy.special import ndtri
from threadpoolctl import threadpool_limits

from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, random_orthonormal
from npmdask.core.storage.paths import NEW_STORE, local_path, locked, require_path
from npmdask.errors import RefusedError, closest, require, require_known
from npmdask.symmetric.reader import choose_side, packed_tensor_bytes, place_of, tetrahedral_number
from npmdask.symmetric.writer import PackedWriter, TensorWriter, in_order, packed_bytes
from npmdask.writers.dense import DenseWriter
from npmdask.writers.layouts import choose_layout, require_cubic
from npmdask.writers.sparse import SparseWriter

SLAB_BYTES = 4 * 2**20  # stays in cache between the draw, the product and the copy into the chunk
TILE = 256  # side of the products of a symmetric matrix
LENGTH = 512  # singular values of a planted spectrum, unless told
LEFT_FACTORS = ("gaussian", "heavy-tailed", "sorted", "cosine")
DEGREES = 3  # of freedom of Student's t, the law of heavy-tailed rows
TALL = 4  # rows to a column from which a Cholesky factor of the Gram matrix orthonormalises to rounding
PARTS = 16  # of the pass that sums this Gram matrix


@dataclass(frozen=True, kw_only=True)
class PlantedSize:
    """Size of a problem: the shape, how many vectors are the truth, the dtype and the seed."""

    rows: int
    columns: int
    rank: int
    dtype: np.dtype
    seed: int

    @property
    def height(self) -> int:
        """Rows of a dense slab."""
        return max(16, SLAB_BYTES // (self.columns * self.dtype.itemsize))

    def rng(self, *purpose: str | int) -> np.random.Generator:
        return generator(self.seed, "generate", *purpose)

    def signs(self, index: int, count: int) -> Block:
        """Random signs of the rows of slab ``index``."""
        return self.rng("signs", index).choice([-1.0, 1.0], count)


@dataclass(frozen=True, kw_only=True)
class SlabPlan:
    """Rows ``span`` of slab ``index`` on demand (thread safe), ``height`` rows a slab, and the truth.

    ``upper``: the same rows with anything left of the diagonal block of the slab (a symmetric matrix).
    """

    height: int
    slab: Callable[[int, range], Any]
    truth: dict[str, np.ndarray]
    note: str
    upper: Callable[[int, range], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class PlantedProblem:
    """Base of the problems: the fields are the options."""

    kind: str = field(default="matrix", init=False)

    def check(self, size: PlantedSize) -> None:
        """Raise BadInputError for options that do not fit the size."""

    def data_bytes(self, size: PlantedSize) -> int:
        return size.rows * size.columns * size.dtype.itemsize

    def count(self, size: PlantedSize) -> int:
        """Return the number of pieces that are written: rows, or blocks of a tensor."""
        return size.rows

    def width(self, size: PlantedSize) -> int:
        """Columns of the right factor, which is held in memory."""
        return size.rank

    def held_bytes(self, size: PlantedSize) -> int:
        """Memory for the right factor and its QR: about five copies."""
        return 5 * 8 * size.columns * self.width(size)

    def plan(self, size: PlantedSize) -> SlabPlan:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Spiked(PlantedProblem):
    """Samples x = V Lambda g + stddev z, g and z standard normal (Hardt and Price, section 3).

    ``strengths`` is Lambda (rank, falling); V is columns x rank, Haar distributed. The truth is that of the
    population covariance V Lambda^2 V^T + stddev^2 I, not of the sample.
    """

    kind: str = field(default="samples", init=False)
    strengths: tuple[float, ...] | None = None
    stddev: float = 0.05

    def _strengths(self, size: PlantedSize) -> Block:
        given = self.strengths
        return np.linspace(20.0, 10.0, size.rank) if given is None else np.array(given, float)

    def check(self, size: PlantedSize) -> None:
        given = self._strengths(size)
        require(given.shape == (size.rank,), f"strengths: give {size.rank} of them, one for each of rank")
        falling = bool((given > 0).all() and (np.diff(given) <= 0).all() and np.isfinite(given).all())
        require(falling, "strengths must be positive and in falling order")
        require(0 <= self.stddev < math.inf, f"stddev must be at least 0, not {self.stddev}")

    def plan(self, size: PlantedSize) -> SlabPlan:
        basis = random_orthonormal(size.columns, size.rank, size.rng("basis"))
        spikes = np.ascontiguousarray((basis * self._strengths(size)).T.astype(size.dtype))

        def slab(index: int, span: range) -> np.ndarray:
            rng = size.rng("spiked", index)
            latent = rng.standard_normal((len(span), size.rank), dtype=size.dtype.type)
            rows = np.empty((len(span), size.columns), size.dtype)
            rng.standard_normal(dtype=size.dtype.type, out=rows)
            rows *= self.stddev
            rows += latent @ spikes
            return rows

        note = (
            "eigenvectors and eigenvalues of the population covariance: those of the sample differ, "
            "vector k by about stddev * sqrt(columns / rows) / strengths[k]"
        )
        truth = {"basis": basis, "values": self._strengths(size) ** 2 + self.stddev**2}
        return SlabPlan(height=size.height, slab=slab, truth=truth, note=note)


@dataclass(frozen=True, kw_only=True)
class Decaying(PlantedProblem):
    """A chosen spectrum, falling from 1.

    ``power``: i^-alpha. ``harmonic``: i^-1/2. ``step``: 1 up to rank, then tail. ``logspace``: 1 down to
    10^-decades. ``clustered``: groups of ``group`` values within a relative ``spread`` below 1, 1/2, 1/3 ...
    """

    spectrum: str = "power"
    alpha: float = 1.0
    tail: float = 0.1
    decades: float = 3.0
    group: int = 4
    spread: float = 1e-3

    def check(self, size: PlantedSize) -> None:
        known = f"unknown spectrum {self.spectrum!r}: {closest(str(self.spectrum), list(SPECTRA))}"
        require(self.spectrum in SPECTRA, known)
        require(self.alpha > 0 and self.decades > 0, "alpha and decades must be positive")
        require(0 <= self.tail < 1, f"tail must be at least 0 and below 1, not {self.tail}")
        require(self.group >= 1 and 0 <= self.spread < 1, "group must be at least 1, spread in [0, 1)")

    def _sorted_values(self, length: int, rank: int) -> Block:
        """``length`` values in falling order."""
        return np.sort(SPECTRA[self.spectrum](self, np.arange(1, length + 1, dtype=float), rank))[::-1].copy()


def _clustered(p: Decaying, i: Block, rank: int) -> Block:
    group, place = np.divmod(i - 1, p.group)
    return (1 - p.spread * place / p.group) / (group + 1)


SPECTRA: dict[str, Callable[[Decaying, Block, int], Block]] = {
    "power": lambda p, i, rank: i**-p.alpha,
    "harmonic": lambda p, i, rank: i**-0.5,
    "step": lambda p, i, rank: np.where(i <= rank, 1.0, p.tail),
    "logspace": lambda p, i, rank: np.logspace(0, -p.decades, len(i)),
    "clustered": _clustered,
}


def dct_rows(span: range, r: int, m: int) -> Block:
    """Rows ``span`` of r orthonormal columns (m long): DCT-II, sqrt(2/m) cos(pi (i + 1/2) j / m), j = 1..r.

    The angle is reduced in integers, so that every entry is exact to rounding. Column m, which would be
    zero, is the constant one instead.
    """
    j = np.arange(1, r + 1) % m
    turn = (2 * np.arange(span.start, span.stop)[:, None] + 1) * j % (4 * m)
    return np.cos(turn * (math.pi / (2 * m))) * np.sqrt(np.where(j == 0, 1.0, 2.0) / m)


def draw_rows(law: str, rng: np.random.Generator, span: range, m: int, r: int) -> Block:
    """Rows ``span`` of m of a left factor with r columns, before these are orthonormalised."""
    rows = rng.standard_normal((len(span), r))
    if law == "heavy-tailed":
        rows /= np.sqrt(rng.chisquare(DEGREES, (len(span), 1)) / DEGREES)
    elif law == "sorted":  # the first column stays sorted: Cholesky and QR only scale it
        rows[:, 0] = ndtri((m - np.arange(span.start, span.stop)) / (m + 2))
    return rows


def _spans(size: PlantedSize) -> list[tuple[int, range]]:
    starts = enumerate(range(0, size.rows, size.height))
    return [(index, range(start, min(start + size.height, size.rows))) for index, start in starts]


def _gram_of(draw: Callable[[int, range], Block], slabs: list[tuple[int, range]], r: int) -> Block:
    """G^T G of all drawn rows G, in one pass over them; the order of the sums does not depend on the threads."""
    ends = [len(slabs) * part // PARTS for part in range(PARTS + 1)]

    def part(span: tuple[int, int]) -> Block:
        gram = np.zeros((r, r))
        for slab in slabs[slice(*span)]:
            drawn = draw(*slab)
            gram += drawn.T @ drawn
        return gram

    with ThreadPoolExecutor(2) as pool:
        return np.sum(list(pool.map(part, pairwise(ends))), axis=0)


def _left_rows(size: PlantedSize, scaled: Block, law: str) -> tuple[Callable[[int, range], Block], Block]:
    """Rows of G by slab and index, and M with G M = U ``scaled``, the r columns of U orthonormal to rounding.

    U = G R^-1, R being the Cholesky factor of G^T G: for Gaussian rows U is Haar distributed. A matrix that is not
    TALL times as high as wide is ill-conditioned, so it is held and Householder's QR takes the place of Cholesky's.
    """
    r = len(scaled)
    if law == "cosine":
        return lambda index, span: dct_rows(span, r, size.rows) * size.signs(index, len(span))[:, None], scaled

    def draw(index: int, span: range) -> Block:
        return draw_rows(law, size.rng("left", index), span, size.rows, r)

    if size.rows <= TALL * r:
        drawn = np.concatenate([draw(*slab) for slab in _spans(size)])
        q, upper = np.linalg.qr(drawn)
        q *= np.where(np.diagonal(upper) < 0, -1.0, 1.0)
        return lambda index, span: q[span.start : span.stop], scaled
    lower = np.linalg.cholesky(_gram_of(draw, _spans(size), r))
    return draw, np.linalg.solve(lower.T, scaled)


def _factored(size: PlantedSize, sigma: Block, kind: str, law: str) -> SlabPlan:
    """A = U diag(sigma) V^T, V columns x r Haar, the rows of U by ``law``."""
    right = random_orthonormal(size.columns, len(sigma), size.rng("right"))
    rows, turn = _left_rows(size, np.ascontiguousarray((right * sigma).T), law)

    def slab(index: int, span: range) -> np.ndarray:
        return (rows(index, span) @ turn).astype(size.dtype)

    values, note = sigma, "right singular vectors and singular values of the matrix, exact to rounding"
    if kind == "samples":
        values = sigma**2 / size.rows
        note = "eigenvectors and eigenvalues of X^T X / rows (not centred), exact to rounding"
    truth = {"basis": right[:, : size.rank].copy(), "values": values[: size.rank], "spectrum": values}
    return SlabPlan(height=size.height, slab=slab, truth=truth, note=note)


@dataclass(frozen=True, kw_only=True)
class PlantedSpectrum(Decaying):
    """A = U diag(sigma) V^T with exact truth; ``length`` singular values are not zero.

    ``kind`` samples makes the values those of the second moment X^T X / rows instead.

    ``left_factor`` says how the rows of U are distributed before its columns are orthonormalised:

    * ``gaussian``: independent and normal (U is Haar distributed);
    * ``heavy-tailed``: independent, Student's t with 3 degrees of freedom, so that few rows carry much;
    * ``sorted``: normal, sorted by their component along the first right singular vector;
    * ``cosine``: DCT-II columns and random signs. A regular sample of rows is nearly exact here, which flatters
      everything that rests on samples of rows.
    """

    kind: str = "matrix"
    length: int | None = None
    left_factor: str = "gaussian"

    def width(self, size: PlantedSize) -> int:
        return self.length or min(size.rows, size.columns, max(LENGTH, size.rank))

    def held_bytes(self, size: PlantedSize) -> int:
        r = self.width(size)
        return super().held_bytes(size) + (3 * 8 * size.rows * r if size.rows <= TALL * r else 0)

    def check(self, size: PlantedSize) -> None:
        super().check(size)
        law = self.left_factor
        require_known(law, LEFT_FACTORS, "unknown left_factor")
        require(self.kind in ("matrix", "samples"), f"kind must be matrix or samples, not {self.kind!r}")
        _check_length(self.width(size), size)

    def plan(self, size: PlantedSize) -> SlabPlan:
        return _factored(size, self._sorted_values(self.width(size), size.rank), self.kind, self.left_factor)


def _check_length(length: int, size: PlantedSize) -> None:
    most = min(size.rows, size.columns)
    require(size.rank <= length <= most, f"length must be from rank {size.rank} to {most}, not {length}")


@dataclass(frozen=True, kw_only=True)
class RankDeficient(PlantedSpectrum):
    """Like ``spectrum`` with only ``true_rank`` < rank non-zero values; the other vectors are arbitrary."""

    length: int | None = field(default=None, init=False)
    true_rank: int | None = None

    def width(self, size: PlantedSize) -> int:
        return size.rank

    def _true(self, size: PlantedSize) -> int:
        return size.rank // 2 if self.true_rank is None else self.true_rank

    def check(self, size: PlantedSize) -> None:
        super().check(size)
        require(1 <= self._true(size) < size.rank, f"true_rank must be at least 1 and below rank {size.rank}")

    def plan(self, size: PlantedSize) -> SlabPlan:
        true = self._true(size)
        sigma = np.pad(self._sorted_values(true, size.rank), (0, size.rank - true))
        plan = _factored(size, sigma, self.kind, self.left_factor)
        note = f"{plan.note}; only the first {true} vectors are determined, the others have value 0"
        return replace(plan, note=note)


@dataclass(frozen=True, kw_only=True)
class PlantedSymmetric(Decaying):
    """A = V diag(lambda) V^T, d x d, signs alternating unless ``definite``; symmetric bit for bit.

    Tiles (I, J) and (J, I) are the same product, transposed. The truth is ordered by falling magnitude.
    """

    kind: str = field(default="symmetric", init=False)
    length: int | None = None
    definite: bool = False

    def width(self, size: PlantedSize) -> int:
        return self.length or min(size.columns, max(LENGTH, size.rank))

    def check(self, size: PlantedSize) -> None:
        super().check(size)
        shape = f"{size.rows} x {size.columns}"
        require(size.rows == size.columns, f"a symmetric matrix is square, not {shape}: leave rows out")
        _check_length(self.width(size), size)

    def plan(self, size: PlantedSize) -> SlabPlan:
        values = self._sorted_values(self.width(size), size.rank)
        values[1::2] *= 1.0 if self.definite else -1.0
        basis = random_orthonormal(size.columns, len(values), size.rng("basis"))

        def slab(index: int, span: range, first: int = 0) -> np.ndarray:
            rows = np.zeros((len(span), size.columns), size.dtype)
            for other in range(first, -(-size.columns // TILE)):
                rows[:, other * TILE : (other + 1) * TILE] = _tile(basis, values, index, other)
            return rows

        def upper(index: int, span: range) -> np.ndarray:
            return slab(index, span, first=index)

        note = "eigenvectors and signed eigenvalues of the matrix by falling magnitude, exact to rounding"
        truth = {"basis": basis[:, : size.rank].copy(), "values": values[: size.rank], "spectrum": values}
        return SlabPlan(height=TILE, slab=slab, truth=truth, note=note, upper=upper)


def _tile(basis: Block, values: Block, i: int, j: int) -> Block:
    """Tile (i, j) of V diag(values) V^T, the exact transpose of tile (j, i)."""
    if i > j:
        return _tile(basis, values, j, i).T
    tile = (basis[i * TILE : (i + 1) * TILE] * values) @ basis[j * TILE : (j + 1) * TILE].T
    return np.triu(tile) + np.triu(tile, 1).T if i == j else tile


@dataclass(frozen=True, kw_only=True)
class Sparse(Decaying):
    """CSR sum_b sigma_b u_b v_b^T with disjoint supports: an exact SVD. About ``row_entries`` entries a row.

    Every row is in one of about columns / row_entries blocks, scattered by an affine permutation (nothing is
    held for a row); u_b is +-1/sqrt(rows of b), v_b is random on the columns of b, which are scattered too.
    """

    kind: str = field(default="sparse", init=False)
    row_entries: int = 16

    def _blocks(self, size: PlantedSize) -> int:
        return max(size.rank, min(size.rows, size.columns // self.row_entries))

    def check(self, size: PlantedSize) -> None:
        super().check(size)
        require(self.row_entries >= 1, f"row_entries must be at least 1, not {self.row_entries}")

    def data_bytes(self, size: PlantedSize) -> int:
        blocks = self._blocks(size)
        entries = int(np.diff(_starts(size.rows, blocks)) @ np.diff(_starts(size.columns, blocks)))
        return entries * (size.dtype.itemsize + 4) + 8 * (size.rows + 1)

    def plan(self, size: PlantedSize) -> SlabPlan:
        blocks = self._blocks(size)
        sigma, first = self._sorted_values(blocks, size.rank), _starts(size.columns, blocks)
        block_rows, widths = np.diff(_starts(size.rows, blocks)), np.diff(first)
        columns, vector = _scattered_vectors(size, first)
        step, shift = _affine(size)

        def slab(index: int, span: range) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            place = (step * np.arange(span.start, span.stop) + shift) % size.rows
            block = place * blocks // size.rows
            scale = sigma[block] / np.sqrt(block_rows[block]) * size.signs(index, len(span))
            counts = widths[block]
            indptr = np.concatenate([[0], np.cumsum(counts)])
            entry = np.arange(indptr[-1]) + np.repeat(first[block] - indptr[:-1], counts)
            return indptr, columns[entry], (vector[entry] * np.repeat(scale, counts)).astype(size.dtype)

        basis = np.zeros((size.columns, size.rank))
        for b in range(size.rank):
            here = slice(first[b], first[b + 1])
            basis[columns[here], b] = vector[here]
        note = "right singular vectors and singular values of the matrix, exact to rounding"
        truth = {"basis": basis, "values": sigma[: size.rank], "spectrum": sigma}
        height = max(16, SLAB_BYTES // (int(widths.max()) * 16))
        return SlabPlan(height=height, slab=slab, truth=truth, note=note)


def _starts(count: int, blocks: int) -> np.ndarray:
    """Return where each block starts (blocks + 1): block b holds the i < count with i * blocks // count == b."""
    return -(-np.arange(blocks + 1) * count // blocks)


def _scattered_vectors(size: PlantedSize, first: np.ndarray) -> tuple[np.ndarray, Block]:
    """The columns of every block, one block after the other, ascending within, and a unit vector on each."""
    rng = size.rng("columns")
    owner = np.repeat(np.arange(len(first) - 1), np.diff(first))
    columns = rng.permutation(size.columns)
    columns = columns[np.lexsort((columns, owner))]
    vector = rng.choice([-1.0, 1.0], size.columns) * rng.uniform(0.5, 1.5, size.columns)
    return columns, vector / np.sqrt(np.add.reduceat(vector**2, first[:-1]))[owner]


def _affine(size: PlantedSize) -> tuple[int, int]:
    """A step and a shift: i -> (step i + shift) mod rows is a permutation that leaves no block together."""
    rng, limit = size.rng("rows"), min(size.rows, 2**31) + 1
    step = int(rng.integers(1, limit))
    while math.gcd(step, size.rows) != 1:
        step = int(rng.integers(1, limit))
    return step, int(rng.integers(size.rows))


# The planted tensor: sum_r weight_r v_r (x) v_r (x) v_r and one of the noises of Wang and Anandkumar 2016.
#
# Blocks are made one by one, the randomness of each being named by its position: any worker can make it, and again
# after a kill. What is stored is symmetric bit for bit.

STRIP_BYTES = 4 * 2**20  # of the products of two factors, in cache until they meet the third


@dataclass(frozen=True, kw_only=True)
class Tensor(PlantedProblem):
    """T = sum_r weight_r v_r (x) v_r (x) v_r + noise, d x d x d, with ``rank`` components.

    ``orthogonal``: the v_r are Haar distributed; otherwise independent directions, uniform on the sphere (and
    linearly independent, with probability one). ``weights`` fall from ``largest`` to ``smallest``, in equal steps
    (``linear``) or ratios (``geometric``). ``side`` of a block: chosen if None; noise depends on it.

    ``noise``, of size ``noise_level`` = s; V are the components, P is the projection that removes their span:

    * ``gaussian``: entries i <= j <= k independent and normal, standard deviation s (spectral norm about 4 s sqrt(d));
    * ``round``: the same with random signs, s or -s;
    * ``weak``: s sym(w (x) P), w a unit vector that V^T w = 0: nothing of it is seen along a component, Delta(v, ., .)
      = 0, its spectral norm is s, at w (Theorem 2.2 of the paper; ERR-24 of this project's sheet of errors);
    * ``adversarial``: -s sqrt(27/4) sym(v (x) P), v the mean direction of the components: T(I, u, u) is pushed away
      from all of them by every u that is in none. Its spectral norm is s.

    sym is the mean over the orders of the indices.
    """

    kind: str = field(default="tensor", init=False)
    orthogonal: bool = True
    largest: float = 3.0
    smallest: float = 1.0
    spacing: str = "linear"
    noise: str = "none"
    noise_level: float = 0.01
    side: int | None = None

    def check(self, size: PlantedSize) -> None:
        d = size.columns
        require(size.rows == d, f"a tensor is {d} x {d} x {d}: leave rows out")
        require_known(self.spacing, SPACINGS, "unknown spacing")
        require_known(self.noise, NOISES, "unknown noise")
        falling = 0 < self.smallest <= self.largest < math.inf
        require(falling, f"weights fall from {self.largest} to {self.smallest}: give 0 < smallest <= largest")
        require(0 <= self.noise_level < math.inf, f"noise_level must be at least 0, not {self.noise_level}")
        require(self.side is None or 1 <= self.side <= d, f"side must be from 1 to {d}, not {self.side}")
        outside = self.noise in ("weak", "adversarial") and size.rank >= d
        require(not outside, f"noise {self.noise!r} needs directions outside the components: take rank below {d}")

    def cut(self, size: PlantedSize) -> int:
        """Side of a block."""
        return self.side or choose_side(size.columns, size.dtype.itemsize)

    def count(self, size: PlantedSize) -> int:
        return tetrahedral_number(-(-size.columns // self.cut(size)))

    def data_bytes(self, size: PlantedSize) -> int:
        return packed_tensor_bytes(size.columns, self.cut(size), size.dtype.itemsize)

    def weights(self, size: PlantedSize) -> np.ndarray:
        """The weight of every component, falling."""
        return SPACINGS[self.spacing](self.largest, self.smallest, size.rank)

    def plan(self, size: PlantedSize) -> SlabPlan:
        components, weights, side = self._components(size), self.weights(size), self.cut(size)
        noise, grid = NOISES[self.noise](self, size, components), -(-size.columns // side)

        def block(index: int, span: range) -> tuple[np.ndarray]:
            place = place_of(index, grid)
            rows = [slice(i * side, min((i + 1) * side, size.columns)) for i in place]
            i, j, k = (components[part] for part in rows)
            values = _signal(i, j, k, weights)
            if noise is not None:
                values += self.noise_level * noise(index, rows)
            return (in_order(values, place).astype(size.dtype),)

        note = "components and weights of the tensor without noise, exact to rounding"
        return SlabPlan(height=1, slab=block, truth={"basis": components, "values": weights}, note=note)

    def _components(self, size: PlantedSize) -> Block:
        if self.orthogonal:
            return random_orthonormal(size.columns, size.rank, size.rng("basis"))
        return normalized(size.rng("basis").standard_normal((size.columns, size.rank)))


SPACINGS: dict[str, Callable[[float, float, int], np.ndarray]] = {
    "linear": np.linspace,
    "geometric": np.geomspace,
}

Rows = list[slice]  # of the tensor, along the three axes of a block
Noise = Callable[[int, Rows], np.ndarray]  # of a block, by its unit and rows


def _signal(left: Block, middle: Block, right: Block, weights: np.ndarray) -> np.ndarray:
    """sum_r weight_r left_ir middle_jr right_kr, some i at a time."""
    out, scaled = np.empty((len(left), len(middle), len(right))), left * weights
    step = max(1, STRIP_BYTES // (8 * middle.size))
    for first in range(0, len(left), step):
        some = slice(first, first + step)
        np.matmul(scaled[some, None, :] * middle, right.T, out=out[some])
    return out


def _gaussian(problem: Tensor, size: PlantedSize, components: Block) -> Noise:
    return lambda unit, rows: size.rng("tensor noise", unit).standard_normal(_extent(rows))


def _round(problem: Tensor, size: PlantedSize, components: Block) -> Noise:
    return lambda unit, rows: size.rng("tensor noise", unit).choice([-1.0, 1.0], _extent(rows))


def _extent(rows: Rows) -> list[int]:
    return [part.stop - part.start for part in rows]


def _weak_noise(problem: Tensor, size: PlantedSize, components: Block) -> Noise:
    basis = np.linalg.qr(components)[0]
    across = normalized(size.rng("tensor noise").standard_normal(size.columns))
    for _ in range(2):  # once leaves what rounding put in
        across = normalized(across - basis @ (basis.T @ across))
    return _with_projection(across, basis)


def _adversarial(problem: Tensor, size: PlantedSize, components: Block) -> Noise:
    mean = normalized(components.sum(axis=1))
    return _with_projection(-math.sqrt(27 / 4) * mean, np.linalg.qr(components)[0])


def normalized(vectors: Block) -> Block:
    """A vector, or every column of a block, over its norm."""
    return vectors / np.linalg.norm(vectors, axis=0)


def _with_projection(vector: np.ndarray, basis: Block) -> Noise:
    """sym(vector (x) P), P = I - basis basis^T."""

    def projection(a: slice, b: slice) -> np.ndarray:
        same = np.arange(a.start, a.stop)[:, None] == np.arange(b.start, b.stop)
        return same - basis[a] @ basis[b].T

    def noise(unit: int, rows: Rows) -> np.ndarray:
        i, j, k = rows
        total: np.ndarray = vector[i][:, None, None] * projection(j, k)
        total += vector[j][:, None] * projection(i, k)[:, None, :]
        total += vector[k] * projection(i, j)[:, :, None]
        return total / 3

    return noise


NOISES: dict[str, Callable[[Tensor, PlantedSize, Block], Noise | None]] = {
    "none": lambda problem, size, components: None,
    "gaussian": _gaussian,
    "round": _round,
    "weak": _weak_noise,
    "adversarial": _adversarial,
}


# Any of them, of any size, written out of core with the truth beside it.
#
# Rows are made in slabs; a killed write goes on at ``writer.next_row`` and ends in the same bytes, whatever the
# number of workers. BLAS is pinned to one thread: otherwise the order of its sums, and with it the last bit,
# would depend on the machine. The truth is ``truth/basis`` (columns x rank, orthonormal) and ``truth/values``
# (rank), with what they are in the record.

VERSION = 1  # of the bytes: a write that another version began is not continued
UNNAMED = (("left_factor", "cosine"),)  # what stores hold that were made before there was a choice
Progress = Callable[[int, int, int], None]

REGISTRY: dict[str, type[PlantedProblem]] = {
    "spiked": Spiked,
    "spectrum": PlantedSpectrum,
    "symmetric": PlantedSymmetric,
    "rank_deficient": RankDeficient,
    "sparse": Sparse,
    "tensor": Tensor,
}


@dataclass(frozen=True, kw_only=True)
class GenerateSummary:
    """Summary of data that were written; ``bytes`` counts them before compression and without the truth."""

    dest: Path
    kind: str
    shape: tuple[int, ...]
    dtype: str
    fingerprint: str
    seconds: float
    bytes: int


def generate(
    dest: Path | str,
    *,
    problem: str,
    rows: int | None = None,
    columns: int,
    dtype: Any = "float32",
    seed: int = 0,
    rank: int = 10,
    overwrite: bool = False,
    chunks: tuple[int, ...] | None = None,
    layout: str | None = None,
    progress: Progress | None = None,
    workers: int = 2,
    **options: Any,
) -> GenerateSummary:
    """Write the planted ``problem`` (a name in ``REGISTRY``; ``options`` are its fields) to ``dest``.

    ``columns`` is the length of the vectors that are the truth: of a tensor, d x d x d, all there is to say.
    ``chunks``: rows and columns of a chunk, or three equal numbers for a tensor. ``layout`` of a symmetric problem:
    packed (default; the upper triangle, half the bytes) or full.

    Run again after a kill, it goes on where the journal ends. ``progress(done_rows, rows, done_bytes)`` is called
    after every slab (of a tensor: blocks, after every one). ``workers`` make slabs while another is written; the
    bytes do not depend on them.

    Raises
    ------
    BadInputError
        A shape, rank, dtype or option that makes no sense; nothing was written.
    RefusedError
        ``dest`` exists, another process is writing it, or the disk or the memory is too small.
    """
    began, dest = time.monotonic(), local_path(dest, NEW_STORE)
    require_path(dest)
    planted = _with_chunks(_configure(problem, options), chunks)
    pair = None if chunks is None or planted.kind == "tensor" else (chunks[0], chunks[1])
    size = _size(rows, columns, rank, dtype, seed, planted)
    planted.check(size)
    require(workers >= 1, f"workers must be at least 1, not {workers}")
    packed = choose_layout(planted.kind, layout, pair) == "packed"
    total = packed_bytes(size.columns, size.dtype, pair) if packed else planted.data_bytes(size)
    _require_room(dest, planted, size, total)
    chosen = {name: value for name, value in asdict(planted).items() if (name, value) not in UNNAMED}
    generated = {"problem": problem, **asdict(size), "dtype": size.dtype.name, "options": chosen}
    generated |= {"version": VERSION, "numpy": np.__version__}
    with locked(dest), threadpool_limits(limits=1):
        writer = _writer(dest, planted, size, generated, pair, overwrite, packed)
        plan = planted.plan(size)
        if packed and plan.upper is not None:
            plan = replace(plan, slab=plan.upper)
        count = planted.count(size)
        for made in _slabs(plan, count, _written_count(writer), workers):
            writer.write(*made)
            if progress is not None:
                progress(_written_count(writer), count, total * _written_count(writer) // count)
        arrays = {f"truth/{name}": array for name, array in plan.truth.items()}
        printed = writer.finish({"truth": {"note": plan.note}, "generated": generated}, arrays)
    return GenerateSummary(
        dest=dest,
        kind=planted.kind,
        shape=(size.columns,) * 3 if planted.kind == "tensor" else (size.rows, size.columns),
        dtype=size.dtype.name,
        fingerprint=printed,
        seconds=time.monotonic() - began,
        bytes=total,
    )


def _configure(problem: str, options: dict[str, Any]) -> PlantedProblem:
    require_known(problem, REGISTRY, "unknown problem")
    known = {option.name: str(option.type) for option in fields(REGISTRY[problem]) if option.init}
    for name, value in options.items():
        require_known(name, known, f"{problem} has no option")
        require(_has_type(value, known[name]), f"{name} must be of type {known[name]}, not {value!r}")
    listed = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    return REGISTRY[problem](**listed)


def _with_chunks(planted: PlantedProblem, chunks: tuple[int, ...] | None) -> PlantedProblem:
    """The problem, a tensor with the side of its blocks."""
    if not isinstance(planted, Tensor):
        require(chunks is None or len(chunks) == 2, f"chunks={chunks}: rows and columns are needed")
        return planted
    return planted if chunks is None else replace(planted, side=require_cubic(chunks))


def _written_count(writer: Any) -> int:
    return int(writer.next_unit if isinstance(writer, TensorWriter) else writer.next_row)


def _has_type(value: Any, annotation: str) -> bool:
    """Say whether an option's value is of the annotated type; None only where it is allowed."""
    if value is None:
        return "None" in annotation
    if annotation.startswith("tuple"):
        return isinstance(value, list | tuple) and all(_has_type(entry, "float") for entry in value)
    kind = {"int": Integral, "float": Real, "bool": bool, "str": str}[annotation.split()[0]]
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def _size(rows: int | None, columns: int, rank: int, dtype: Any, seed: int, planted: PlantedProblem) -> PlantedSize:
    if rows is None:
        require(planted.kind in ("symmetric", "tensor"), "rows: say how many to make")
        rows = columns
    for name, value, least in (
        ("rows", rows, 1),
        ("columns", columns, 1),
        ("rank", rank, 1),
        ("seed", seed, 0),
    ):
        fine = _has_type(value, "int") and value >= least
        require(fine, f"{name} must be a whole number from {least} on, not {value!r}")
    require(rank <= min(rows, columns), f"rank {rank} exceeds the smaller side of {rows} x {columns}: lower it")
    name = getattr(dtype, "__name__", str(dtype))
    require(name in ("float32", "float64"), f"dtype must be float32 or float64, not {name}")
    return PlantedSize(rows=int(rows), columns=int(columns), rank=int(rank), dtype=np.dtype(name), seed=int(seed))


def _require_room(dest: Path, planted: PlantedProblem, size: PlantedSize, total: int) -> None:
    """Disk for the data and the truth, memory for the factors."""
    partial = dest.with_name(dest.name + ".partial")
    written = sum(f.stat().st_size for f in partial.rglob("*") if f.is_file())
    there = next(folder for folder in dest.parents if folder.exists())
    needed, free = total + size.columns * size.rank * 8, disk_usage(there).free + written
    if needed > free:
        raise RefusedError(
            f"{dest} would take {needed / 2**30:.1f} GiB and {there} has {free / 2**30:.1f} GiB free: "
            "free some space, choose another folder or fewer rows"
        )
    held, memory = planted.held_bytes(size), psutil.virtual_memory().available
    if held > memory:
        raise RefusedError(
            f"{planted.width(size)} vectors of {size.columns} entries need {held / 2**30:.1f} GiB of memory "
            f"and {memory / 2**30:.1f} GiB are free: choose a smaller length or rank"
        )


def _writer(
    dest: Path | str,
    planted: PlantedProblem,
    size: PlantedSize,
    generated: dict[str, Any],
    chunks: tuple[int, int] | None,
    overwrite: bool,
    packed: bool,
) -> Any:
    common: dict[str, Any] = {"dtype": size.dtype, "overwrite": overwrite, "identity": {"generated": generated}}
    if isinstance(planted, Tensor):
        return TensorWriter(dest, size=size.columns, side=planted.cut(size), **common)
    common["columns"] = size.columns
    if planted.kind == "sparse":
        require(chunks is None, "chunks cannot be chosen for sparse data: leave them out")
        return SparseWriter(dest, **common)
    require(chunks is None or min(chunks) >= 1, f"chunks must be at least 1 x 1, not {chunks}")
    if packed:
        return PackedWriter(dest, rows=size.rows, chunks=chunks, mirrored=True, **common)
    return DenseWriter(dest, kind=planted.kind, rows=size.rows, chunks=chunks, **common)


def _slabs(plan: SlabPlan, rows: int, first: int, workers: int) -> Iterator[tuple[np.ndarray, ...]]:
    """The slabs from row ``first`` on, in order, as arguments of ``write``; at most ``workers`` are ahead."""

    def make(index: int) -> tuple[np.ndarray, ...]:
        start = index * plan.height
        made = plan.slab(index, range(start, min(start + plan.height, rows)))
        return made if isinstance(made, tuple) else (made[max(0, first - start) :],)

    ahead: deque[Future[tuple[np.ndarray, ...]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for index in range(first // plan.height, -(-rows // plan.height)):
            ahead.append(pool.submit(make, index))
            if len(ahead) > workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
