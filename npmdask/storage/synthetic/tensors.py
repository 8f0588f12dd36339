"""The planted tensor: sum_r weight_r v_r (x) v_r (x) v_r and one of the noises of Wang and Anandkumar 2016.

Blocks are made one by one, the randomness of each being named by its position: any worker can make it, and again
after a kill. What is stored is symmetric bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from npmdask.errors import closest, require
from npmdask.numerics.subspaces import Block, random_orthonormal
from npmdask.storage.readers.packed import choose_side, packed_tensor_bytes, place_of, tetrahedral_number
from npmdask.storage.synthetic.matrices import PlantedProblem, PlantedSize, SlabPlan
from npmdask.storage.writers.packed import in_order

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
        require(self.spacing in SPACINGS, f"unknown spacing {self.spacing!r}: {closest(self.spacing, list(SPACINGS))}")
        require(self.noise in NOISES, f"unknown noise {self.noise!r}: {closest(self.noise, list(NOISES))}")
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


def _weak(problem: Tensor, size: PlantedSize, components: Block) -> Noise:
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
    scaled: Block = vectors / np.linalg.norm(vectors, axis=0)
    return scaled


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
    "weak": _weak,
    "adversarial": _adversarial,
}
