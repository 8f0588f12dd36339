"""What the first products show of the data, free of charge: too large or too small, not symmetric.

Releases of private data do not ask: a refusal that depends on the data would tell of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block
from npmdask.operators.view import column_scale
from npmdask.runs.problem import Problem
from npmdask.storage.readers.dense import SlabRecord
from npmdask.storage.source import Source

SMALLEST, LARGEST = 1e-140, 1e140  # of products: beyond, squares and sums of them leave float64
NAMED = 5  # columns that a warning names


def require_scale(problem: Problem, product: Block, *, first: bool) -> None:
    """Residuals are norms: where the squares of a product leave float64, a residual would read as 0 or inf.

    A first product that is exactly zero is that of zeros, or of data so small that nothing is left of it. Then alone
    the entries are looked at again, to tell which.
    """
    size = float(np.abs(product).max())
    if size and not SMALLEST < size < LARGEST:
        raise BadInputError(_out_of_scale(f"products with {problem.source.path} are", size))
    if first and not size and problem.lens is None and problem.recipe is None:
        entry = _largest_entry(problem.source.reader)
        if 0 < entry < SMALLEST:
            raise BadInputError(_out_of_scale(f"the largest entry of {problem.source.path} is", entry))


def _out_of_scale(what: str, size: float) -> str:
    return (
        f"{what} of size {size:.0e}, whose squares float64 cannot hold: multiply the data by a constant that brings "
        "them near 1"
    )


def _largest_entry(reader: Any) -> float:
    """The size of the largest entry; or of the first that is not too small."""
    largest = 0.0
    for values in (values for unit in range(reader.units) for values in reader.values(unit)):
        largest = max(largest, float(np.abs(values.astype(np.float64)).max(initial=0.0)))
        if largest >= SMALLEST:
            break
    return largest


def constant_columns(problem: Problem, source: Source) -> np.ndarray:
    """Numbers of the columns that are not scaled, as they count as constant, but may not be; ``source`` is surveyed.

    Deviations of exactly 0 are left out: those columns are constant (unless they are too small to be squared).
    """
    mean, std = source.column_mean, source.column_std
    plain = problem.recipe is None and problem.lens is None
    if not problem.request.scale or not plain or mean is None or std is None:
        return np.empty(0, np.int64)
    scale = column_scale(mean, std, sparse=source.reader.layout == "csr")
    small = (mean != 0) & (np.abs(mean) < SMALLEST)
    return np.flatnonzero((scale == 1) & (std != 1) & ((std > 0) | small))


def said_of(constant: np.ndarray, *, centred: bool) -> list[str]:
    """A warning of these columns, if there are any."""
    if not len(constant):
        return []
    numbers = ", ".join(str(number) for number in constant[:NAMED])
    numbers += ", ..." if len(constant) > NAMED else ""
    one = len(constant) == 1
    which, they, vary = ("1 column counts", "it is", "it varies") if one else ("columns count", "they are", "they vary")
    said = f"{'' if one else f'{len(constant)} '}{which} as constant, up to rounding, and {they} not scaled "
    said += f"(number {numbers}, from 0)"
    if centred:
        said += f"; the answer is about the data without {'it' if one else 'them'}"
    return [f"{said}. If {vary}, subtract a constant from {'it' if one else 'them'} and ingest the data again"]


def require_symmetric(problem: Problem, asymmetry: float, *, first: bool) -> None:
    """X^T (A X) is symmetric if A is. Only meaningful in the first step, without noise, in float64."""
    source = problem.source
    if source.kind != "symmetric" or not first or problem.mechanism.stddev:
        return
    machine_eps = np.finfo(source.reader.dtype).eps if source.reader.dtype.kind == "f" else 0.0
    allowed = max(8 * float(machine_eps), 1e-12)
    if asymmetry > allowed:
        raise BadInputError(
            f"{source.path} is called symmetric but is not: X^T (A X) is asymmetric by {asymmetry:.1e} (relative; "
            f"rounding explains {allowed:.0e}). Use kind = 'matrix', or store (A + A.T) / 2"
        )


# The checksums of a source that was never ingested: taken in the first pass, compared in all later ones.


def checksums_of(record: SlabRecord, *, sparse: bool) -> dict[str, np.ndarray]:
    """The checksums that a pass has taken, as the array (by row and column of chunks) that a survey keeps."""
    rows, columns = np.array(sorted(record.checksums)).max(axis=0) + 1
    table = np.zeros((rows, columns), np.uint32)
    for position, crc in record.checksums.items():
        table[position] = crc
    return {"checksums_csr" if sparse else "checksums": table}


def checksum_table(arrays: dict[str, np.ndarray]) -> Any:
    """The checksums of a survey in the form that the reader of the source takes, or None."""
    if "checksums_csr" in arrays:
        return {"indices": arrays["checksums_csr"][:, 0], "data": arrays["checksums_csr"][:, 1]}
    return arrays.get("checksums")
