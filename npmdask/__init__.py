"""npmdask: top-k singular vectors of data larger than memory, checkpointed, resumable, with an honest error.

>>> import npmdask
>>> solution = npmdask.top_k("data.zarr", 10, memory="1GiB", store="runs/first")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from npmdask.api import deflate, resume, top_k
from npmdask.driver import Solution
from npmdask.errors import BadInputError, BudgetError, CommitError, NpmdaskError, RefusedError
from npmdask.privacy import Privacy

if TYPE_CHECKING:
    from npmdask.streaming import StreamingPCA, StreamSolution, stream_components, stream_pca

__all__ = [
    "BadInputError",
    "BudgetError",
    "CommitError",
    "NpmdaskError",
    "Privacy",
    "RefusedError",
    "Solution",
    "StreamSolution",
    "StreamingPCA",
    "deflate",
    "resume",
    "stream_components",
    "stream_pca",
    "top_k",
]


def __getattr__(name: str) -> Any:
    """Streams bring the readers of every format: a tenth of a second that other runs do not need."""
    if name in ("StreamSolution", "StreamingPCA", "stream_components", "stream_pca"):
        import npmdask.streaming

        return getattr(npmdask.streaming, name)
    raise AttributeError(f"module 'npmdask' has no attribute {name!r}")
