"""Apply operators to a block of p vectors in ONE pass over the stored bytes.

An operator is public configuration plus a reader. It says how a run of slabs acts on a block (``partial``),
how two neighbouring partial products join (``join``) and how the last one becomes ``A @ block`` (``finish``).
Who calls that, in which process, is not its business (see :mod:`npmdask.core.execution.executor`).
"""

from typing import Any

from npmdask.core import features
from npmdask.core.operators._protocol import Operator, Partial, PrivateOperator
from npmdask.core.operators.column_moments import ColumnMoments
from npmdask.core.operators.gram import Gram, LeftProduct
from npmdask.core.operators.gram_matrix import GramMatrix
from npmdask.core.operators.sparse_gram import SparseGram
from npmdask.core.operators.view import View

OF_LAYOUT: dict[str, Any] = {"dense": Gram, "csr": SparseGram}  # plain products


def of_layout(layout: str) -> Any:
    """Return the operator of plain products with data of a layout, which may be a feature's."""
    return OF_LAYOUT.get(layout) or features.found("operators", layout)


__all__ = [
    "ColumnMoments",
    "Gram",
    "GramMatrix",
    "LeftProduct",
    "Operator",
    "Partial",
    "PrivateOperator",
    "SparseGram",
    "View",
    "of_layout",
]
