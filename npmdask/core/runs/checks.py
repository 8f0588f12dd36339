"""Check what first products and a survey show of the data, free of charge: scale, symmetry, constant columns, mean.

Releases of private data do not ask: a refusal that depends on the data would tell of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.problem import Problem, representation_of
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError

SMALLEST, LARGEST = 1e-140, 1e140  # of products: beyond, squares and sums of them leave float64
NAMED = 5  # columns that a warning names


def require_scale(problem: Problem, product: Block, *, first: bool) -> None:
    """Residuals are norms: where the squares of a product leave float64, a residual would read as 0 or inf.

    A first product that is exactly zero is that of zeros, or of data so small that nothing is left of it. Then alone
    the entries are looked at again, to tell which.
    """
    size = float(np.abs(product).max())
    if size and not SMALLEST < size < LARGEST:
        raise BadInputError(_scale_text(f"products with {problem.source.path} are", size))
    if first and not size and problem.derived is None and problem.recipe is None:
        entry = _largest_entry(problem.source.reader)
        if 0 < entry < SMALLEST:
            raise BadInputError(_scale_text(f"the largest entry of {problem.source.path} is", entry))


def _scale_text(what: str, size: float) -> str:
    return (
        f"{what} of size {size:.0e}, whose squares float64 cannot hold: multiply the data by a constant that brings "
        "them near 1"
    )


def _largest_entry(reader: Any) -> float:
    """The size of the largest entry; or of the first that is not too small."""
    known = getattr(reader, "largest_mean", None)
    if known is not None:  # no rows are left to look at: entries too small to be squared have such means
        return float(known)
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
    columns, plain = source.statistics, problem.recipe is None and problem.derived is None
    if not problem.request.scale or not plain or columns is None:
        return np.empty(0, np.int64)
    own = representation_of(source.reader)
    columns = columns if own is None else columns.of_moduli(own.moduli)
    small = (columns.mean != 0) & (np.abs(columns.mean) < SMALLEST)
    return np.flatnonzero(~columns.varies & ((columns.deviation > 0) | small))[:: source.parts] // source.parts


def constant_columns_warning(constant: np.ndarray, *, centred: bool) -> list[str]:
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


def require_symmetric_product(problem: Problem, asymmetry: float, *, first: bool) -> None:
    """X^T (A X) is symmetric if A is. Only meaningful in the first step, without noise, in float64."""
    source, name = problem.source, problem.request.operator
    if (not source.traits.square and name is None) or not first or problem.mechanism.stddev:
        return
    machine_eps = np.finfo(source.reader.dtype).eps if source.reader.dtype.kind == "f" else 0.0
    allowed = max(8 * float(machine_eps), 1e-12)
    if asymmetry > allowed and name is not None:
        raise BadInputError(
            f"the operator {name!r} is not symmetric: X^T (A X) is asymmetric by {asymmetry:.1e} (relative; rounding "
            f"explains {allowed:.0e}). Correct it, or register (A + A.T) / 2"
        )
    mirrored = "A.conj().T" if source.parts == 2 else "A.T"
    if asymmetry > allowed:
        raise BadInputError(
            f"{source.path} is called symmetric but is not: X^T (A X) is asymmetric by {asymmetry:.1e} (relative; "
            f"rounding explains {allowed:.0e}). Use kind = 'matrix', or store (A + {mirrored}) / 2"
        )


MOSTLY = 0.9  # of the first value that belongs to the mean, or of the square of a cosine: up to 18 degrees


def mean_of_rows(problem: Problem, operator: Any, mean: np.ndarray | None) -> np.ndarray | None:
    """The mean row as the operator sees it, times the root of what all rows weigh together; None where it plays no
    part, or is not known.

    Its square is what centring takes off the operator: ``A^T A = (A - 1 m^T)^T (A - 1 m^T) + n m m^T``.
    """
    source, request = problem.source, problem.request
    plain = problem.recipe is None and problem.derived is None and source.parts == 1
    if mean is None or not plain or request.center or not source.traits.of_rows:
        return None
    seen = operator.view.on_columns(mean[:, None])[:, 0]
    return np.asarray(seen * math.sqrt(operator.weight * operator.view.weight_of_rows(source.shape[0])))


def mean_said(what: str, cosine: float, *, least: bool = False) -> str:
    """A sentence that ``what`` is the mean of the columns, and the remedy; the cosine is rounded down."""
    bound = f"{'at least ' if least else ''}{math.floor(1e4 * cosine) / 1e4:.4g}"
    return f"{what} the mean of the columns (cosine {bound}): set center = true for PCA"
