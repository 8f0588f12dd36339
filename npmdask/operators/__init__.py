"""Apply operators to a block of p vectors in ONE pass over the stored bytes.

An operator is public configuration plus a reader. It says how a run of slabs acts on a block (``partial``),
how two neighbouring partial products join (``join``) and how the last one becomes ``A @ block`` (``finish``).
Who calls that, in which process, is not its business (see :mod:`npmdask.execution.executor`).
"""

from typing import Any

from npmdask.operators._protocol import RUN_BYTES, Operator, Partial, PrivateOperator
from npmdask.operators.clipped_entries import (
    BoundedProduct,
    BoundedSymmetric,
    BoundedTensor,
    BoundedTransposed,
    BoundedTriangle,
)
from npmdask.operators.clipped_rows import ClippedGram, ClippedSparseGram
from npmdask.operators.column_moments import ColumnMoments
from npmdask.operators.complex_parts import ComplexGram, ComplexGramMatrix, ComplexSymmetric
from npmdask.operators.dilation import CrossCovariance, Dilation, SparseDilation
from npmdask.operators.gram import (
    ColumnsByRange,
    Gram,
    LeftProduct,
    MatrixFree,
    RowsByRange,
    SparseGram,
    TiledGram,
    columns_of,
)
from npmdask.operators.gram_matrix import GramMatrix
from npmdask.operators.likelihood_sums import FactorExpectations, MixtureExpectations, SourceContrasts
from npmdask.operators.packed import PackedMultilinear, PackedTensor, Symmetric, Triangle
from npmdask.operators.pairwise_gram import PairwiseGram
from npmdask.operators.record_images import RecordImages
from npmdask.operators.row_gram import RowGram, RowProducts
from npmdask.operators.sample_moments import MixtureSpread, MixtureTriples, SampleFourth, SampleTriples
from npmdask.operators.stored_gram import GramOfGroups, GramOfSlabs, GramReader, StoredGram
from npmdask.operators.view import View
from npmdask.operators.word_moments import TripleBlocks, WhitenedTriples, WordPairs, WordSums, WordTotals, WordTriples

OF_LAYOUT: dict[str, Any] = {  # plain products
    "dense": Gram,
    "csr": SparseGram,
    "triangle": Triangle,
    "tensor": PackedTensor,
    "matrix-free": MatrixFree,
    "gram": StoredGram,
}

__all__ = [
    "OF_LAYOUT",
    "RUN_BYTES",
    "BoundedProduct",
    "BoundedSymmetric",
    "BoundedTensor",
    "BoundedTransposed",
    "BoundedTriangle",
    "ClippedGram",
    "ClippedSparseGram",
    "ColumnMoments",
    "ColumnsByRange",
    "ComplexGram",
    "ComplexGramMatrix",
    "ComplexSymmetric",
    "CrossCovariance",
    "Dilation",
    "FactorExpectations",
    "Gram",
    "GramMatrix",
    "GramOfGroups",
    "GramOfSlabs",
    "GramReader",
    "LeftProduct",
    "MatrixFree",
    "MixtureExpectations",
    "MixtureSpread",
    "MixtureTriples",
    "Operator",
    "PackedMultilinear",
    "PackedTensor",
    "PairwiseGram",
    "Partial",
    "PrivateOperator",
    "RecordImages",
    "RowGram",
    "RowProducts",
    "RowsByRange",
    "SampleFourth",
    "SampleTriples",
    "SourceContrasts",
    "SparseDilation",
    "SparseGram",
    "StoredGram",
    "Symmetric",
    "TiledGram",
    "Triangle",
    "TripleBlocks",
    "View",
    "WhitenedTriples",
    "WordPairs",
    "WordSums",
    "WordTotals",
    "WordTriples",
    "columns_of",
]
