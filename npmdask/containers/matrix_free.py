"""A matrix that is given by its products only: a ``LinearOperator`` of SciPy, m x n, which has no rows to read.

Nothing that it says is believed. Its products with fixed random vectors R, taken when it is opened and again in every
pass, are its fingerprint and must be the same, bit for bit; and with W = A R every other product is compared.
``R^T (A^T Z) = W^T Z`` shows for each column z of Z how far ``A^T z`` is from what the transpose of A gives, as R was
drawn without looking at A (Freivalds 1977); ``X^T (A^T Z) = Z^T Z`` shows that Z is A X.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from npmdask.containers.computed import REAL, traced
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, single_threaded_blas
from npmdask.core.storage.checksum import crc32c, fingerprint
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import IN_MEMORY, Asked, Source
from npmdask.errors import BadInputError, NpmdaskError, RefusedError

PROBES = 4  # random vectors; an error of a product is missed where all of them are nearly orthogonal to it
ROUNDING = 64  # times eps sqrt(max(m, n)): what sums in another order and a few transforms leave in float64
MARGIN = 1.25  # over the measured memory of a product: what the operator allocates without Python is not traced
DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True, kw_only=True)
class MatrixFreeReader:
    """Products with a linear operator, each of them checked; where others have a reader of rows.

    Parameters
    ----------
    operator : with ``matmat``, and ``rmatmat`` unless it is ``self_adjoint``.
    shape : m x n.
    self_adjoint : whether it claims to be.
    needs : bytes that a product takes for each column, beside what goes in and comes out.
    checksums : of the products with random vectors in the first pass (1 x 1), which later ones must have.
    """

    operator: Any
    shape: tuple[int, int]
    self_adjoint: bool = False
    needs: float = 0.0
    checksums: np.ndarray | None = None

    layout: ClassVar[str] = "matrix-free"
    dtype: ClassVar[np.dtype] = DOUBLE  # of all products
    units: ClassVar[int] = 1
    grid: ClassVar[tuple[int, int]] = (1, 1)

    @property
    def chunks(self) -> tuple[int, int]:
        return self.shape

    @property
    def nbytes(self) -> int:
        """Return the bytes of one input and one output vector: a pass reads nothing else."""
        return 8 * sum(self.shape)

    @property
    def where(self) -> str:
        return f"the {type(self.operator).__name__} ({self.shape[0]} x {self.shape[1]})"

    def tiles(self, unit: int, record: ReadStats) -> Any:
        """Raise RefusedError: an operator without a matrix has no rows to loop over."""
        raise RefusedError(
            f"{self.where} has no rows, but rows are needed here: give the matrix itself, or leave the option out"
        )

    def held_to(self, digests: Any) -> Any:
        """As ``tiles``: it has no bytes that could be compared."""
        return self.tiles(0, ReadStats())

    def slab_rows(self, slab: int) -> slice:
        return slice(0, self.shape[0])

    def read_ahead(self, slabs: range) -> None:
        """Nothing: what is computed cannot be asked for before."""

    def values(self, unit: int) -> tuple[np.ndarray, ...]:
        """The entries, which are not known."""
        return ()

    def recorded_digests(self, beside: dict[str, np.ndarray]) -> None:
        """None: it has no bytes that could be known."""

    def non_finite(self, unit: int) -> BadInputError:
        """Return the error for a product that is not finite."""
        return BadInputError(f"{self.where} returns products that are not finite: look for missing values in its data")

    def products(self, block: Block, record: ReadStats) -> tuple[Block, Block]:
        """``Z = A block`` and ``A^T Z`` (of a self-adjoint one Z again), looked at before anything is made of them.

        Raises
        ------
        BadInputError
            The operator fails, gives other shapes, other products than before, or is not the transpose that it says.
        """
        probe = self.probe()
        image = self._checked_product(probe)
        found = crc32c(image)
        if self.checksums is not None and int(self.checksums[0, 0]) != found:
            raise self.changed()
        z = self._checked_product(block)
        back = z if self.self_adjoint else self._checked_product(z, back=True)
        sums = (image, z, back)
        if all(np.isfinite(values).all() for values in sums):  # else the caller says what is wrong
            self._require_adjoint(probe, image, np.asarray(block, DOUBLE), z, back)
        record.checksums[0, 0] = found
        record.bytes_read += self.nbytes
        record.chunks += 1
        return z, back

    def probe(self) -> Block:
        """Random vectors (n x 4), the same in every process."""
        return generator(0, "linear operator", "probe").standard_normal((self.shape[1], PROBES))

    def changed(self) -> BadInputError:
        """Return the error for products that differ from those of before."""
        return BadInputError(
            f"{self.where} returns other products than before for the same vectors: it was changed, draws random "
            "numbers, or sums in a varying order. Make it deterministic, or start again in a new store"
        )

    def measured(self) -> tuple[Self, int]:
        """The same, knowing what a product needs, and the checksum of its products with the probe, given twice.

        Raises
        ------
        BadInputError
            As ``products``.
        """
        probe, first, second = self.probe(), ReadStats(), ReadStats()
        with single_threaded_blas():  # as in every pass
            self.products(probe, first)
            with traced() as allocated:
                self.products(probe, second)
                peak = allocated()
        seen = second.checksums[0, 0]
        if first.checksums[0, 0] != seen:
            raise self.changed()
        return replace(self, needs=MARGIN * peak / PROBES), seen

    def _checked_product(self, block: Block, *, back: bool = False) -> Block:
        """A copy of the product with a copy of ``block``: the operator may write into the one and keep the other."""
        name, rows = ("rmatmat", self.shape[1]) if back else ("matmat", self.shape[0])
        product: Callable[[Block], Any] = getattr(self.operator, name)
        try:
            given = np.asarray(product(np.array(block, DOUBLE)))
        except NpmdaskError:
            raise
        except Exception as error:  # whatever a program raises
            if back and self._lacks_adjoint():
                raise BadInputError(
                    f"{self.where} has no rmatvec, but the adjoint is needed: define it, or use kind = 'symmetric' "
                    "if it is self-adjoint"
                ) from error
            raise BadInputError(
                f"{self.where} fails in {name} ({type(error).__name__}: {error}): correct it"
            ) from error
        if given.dtype.kind not in REAL or given.shape != (rows, block.shape[1]):
            raise BadInputError(
                f"{self.where}: {name} gives {given.dtype} of shape {given.shape}, and real numbers of shape "
                f"({rows}, {block.shape[1]}) are needed: correct it"
            )
        return np.array(given, DOUBLE, order="C")

    def _lacks_adjoint(self) -> bool:
        """Say whether the operator declares that it has no adjoint; with several vectors SciPy raises another error."""
        try:
            self.operator.rmatvec(np.zeros(self.shape[0]))
        except NotImplementedError:
            return True
        except Exception:  # another fault, which the caller says
            return False
        return False

    def _require_adjoint(self, probe: Block, image: Block, block: Block, z: Block, back: Block) -> None:
        """Raise BadInputError for products that are not of one matrix and its transpose, beyond rounding."""
        into, size = np.linalg.norm(block, axis=0), np.linalg.norm(z, axis=0)
        drawn, seen = np.linalg.norm(probe, axis=0), np.linalg.norm(image, axis=0)
        if self.self_adjoint:
            pairs = [(probe.T @ z - image.T @ block, np.outer(drawn, into))]
        else:
            pairs = [(probe.T @ back - image.T @ z, np.outer(drawn, size))]
            pairs += [(block.T @ back - z.T @ z, np.outer(into, size))]
        scale = max(float((seen / drawn).max()), np.finfo(DOUBLE).tiny)  # of the root of the mean square of all values
        off = max(
            float((np.abs(gap) / np.where(sizes > 0, sizes * scale, np.inf)).max(initial=0.0)) for gap, sizes in pairs
        )
        allowed = ROUNDING * np.finfo(DOUBLE).eps * max(self.shape) ** 0.5
        if off <= allowed:
            return
        how = f"by {off:.1e} of its size, where rounding explains {allowed:.0e}"
        if self.self_adjoint:
            raise BadInputError(
                f"{self.where} is declared symmetric but is not: <A x, y> and <x, A y> differ {how}. Leave kind out, "
                "and define rmatvec"
            )
        raise BadInputError(
            f"the rmatvec of {self.where} is not the transpose of its matvec: <A x, y> and <x, A^T y> differ {how}. "
            "Correct it, and compute both in float64"
        )


def open_linear_operator(operator: Any, *, self_adjoint: bool) -> tuple[MatrixFreeReader, str]:
    """The reader of a linear operator, and its fingerprint: of its shape, dtype, and products with random vectors.

    Raises
    ------
    BadInputError
        It is complex or empty, fails, or gives products that are not those of one matrix and its transpose.
    """
    shape, dtype = tuple(int(n) for n in operator.shape), np.dtype(operator.dtype or DOUBLE)
    name = type(operator).__name__
    if dtype.kind not in REAL:
        raise BadInputError(
            f"the {name} is of dtype {dtype}; real numbers are needed: give its real and imaginary parts"
        )
    if len(shape) != 2 or 0 in shape:
        raise BadInputError(f"the {name} has shape {shape}: rows and columns are needed, at least one of each")
    if self_adjoint and shape[0] != shape[1]:
        raise BadInputError(f"the {name} has shape {shape}: a symmetric operator must be square; leave kind out")
    reader, seen = MatrixFreeReader(operator=operator, shape=(shape[0], shape[1]), self_adjoint=self_adjoint).measured()
    return reader, fingerprint({"shape": shape, "dtype": dtype.str, "source": "linear operator", "probe": seen}, [])


def open_operator(operator: Any, asked: Asked) -> Source:
    """Open a linear operator. Raises BadInputError for arguments that are of rows, which it has not."""
    kind, rows = asked.kind, asked.dim is not None or asked.spill is not None
    if rows or kind not in (None, "matrix", "symmetric"):
        said = "dim and spill are" if rows else f"kind = {kind!r} is"
        raise BadInputError(
            f"{said} for data with rows, and the {type(operator).__name__} has products only: leave it out (singular "
            "triplets), or say kind = 'symmetric' (eigenpairs of a self-adjoint one)"
        )
    reader: Any
    reader, printed = open_linear_operator(operator, self_adjoint=kind == "symmetric")
    path = f"{IN_MEMORY}{reader.where}, products {printed[:8]}"
    return Source(path=path, kind=kind or "matrix", reader=reader, fingerprint=printed, registered=False)
