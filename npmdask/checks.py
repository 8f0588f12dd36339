"""What the first products show of the data, free of charge: too large or too small, not symmetric. Not in private
runs, where a refusal that depends on the data would tell of them."""

from __future__ import annotations

import numpy as np

from npmdask.errors import BadInputError
from npmdask.linalg import Block
from npmdask.problem import Problem


def require_scale(problem: Problem, product: Block) -> None:
    """Residuals are norms: where the squares of a product leave float64, a residual would read as 0 or inf."""
    if problem.private is not None:
        return
    size = float(np.abs(product).max())
    if size and not 1e-140 < size < 1e140:
        raise BadInputError(
            f"products with {problem.source.path} are of size {size:.0e}, whose squares float64 cannot hold: "
            "multiply the data by a constant that brings them near 1"
        )


def require_symmetric(problem: Problem, asymmetry: float, *, first: bool) -> None:
    """X^T (A X) is symmetric if A is. Only meaningful in the first step, without noise, in float64."""
    source = problem.source
    if source.kind != "symmetric" or not first or problem.private is not None or problem.mechanism.stddev:
        return
    machine_eps = np.finfo(source.reader.dtype).eps if source.reader.dtype.kind == "f" else 0.0
    allowed = max(8 * float(machine_eps), 1e-12)
    if asymmetry > allowed:
        raise BadInputError(
            f"{source.path} is called symmetric but is not: X^T (A X) is asymmetric by {asymmetry:.1e} (relative; "
            f"rounding explains {allowed:.0e}). Use kind = 'matrix', or store (A + A.T) / 2"
        )
