"""What can be applied to a block of p vectors in ONE pass over the stored bytes.

An operator is public configuration plus a reader. It says how a run of slabs acts on a block (``partial``),
how two neighbouring partial products join (``join``) and how the last one becomes ``A @ block`` (``finish``).
Who calls that, in which process, is not its business (see :mod:`npmdask.chunked`).
"""

from npmdask.operators._protocol import RUN_BYTES, Operator, Partial, PrivateOperator
from npmdask.operators.bounded import BoundedProduct, BoundedSymmetric, BoundedTransposed, BoundedTriangle
from npmdask.operators.bounded_tensor import BoundedTensor
from npmdask.operators.clipped import ClippedGram
from npmdask.operators.clipped_sparse import ClippedSparseGram
from npmdask.operators.dilation import Dilation, SparseDilation
from npmdask.operators.gram import Gram, LeftProduct
from npmdask.operators.moments import ColumnMoments
from npmdask.operators.multilinear import PackedMultilinear
from npmdask.operators.record_images import RecordImages
from npmdask.operators.samples import MixtureSpread, MixtureTriples, SampleFourth, SampleTriples
from npmdask.operators.sparse import SparseGram
from npmdask.operators.symmetric import Symmetric
from npmdask.operators.tensor import PackedTensor
from npmdask.operators.triangle import Triangle
from npmdask.operators.triple_blocks import TripleBlocks
from npmdask.operators.word_cubes import WhitenedTriples
from npmdask.operators.words import WordPairs, WordSums, WordTotals, WordTriples

__all__ = [
    "RUN_BYTES",
    "BoundedProduct",
    "BoundedSymmetric",
    "BoundedTensor",
    "BoundedTransposed",
    "BoundedTriangle",
    "ClippedGram",
    "ClippedSparseGram",
    "ColumnMoments",
    "Dilation",
    "Gram",
    "LeftProduct",
    "MixtureSpread",
    "MixtureTriples",
    "Operator",
    "PackedMultilinear",
    "PackedTensor",
    "Partial",
    "PrivateOperator",
    "RecordImages",
    "SampleFourth",
    "SampleTriples",
    "SparseDilation",
    "SparseGram",
    "Symmetric",
    "Triangle",
    "TripleBlocks",
    "WhitenedTriples",
    "WordPairs",
    "WordSums",
    "WordTotals",
    "WordTriples",
]
