"""Models of streams: the algorithms over real rows, measured, committed, resumed."""

from typing import TYPE_CHECKING, Any

from npmdask.streaming.api import resume_stream, run_stream, stream_components, stream_pca
from npmdask.streaming.solution import StreamSolution, stream_summary

if TYPE_CHECKING:
    from npmdask.streaming.streaming_pca import StreamingPCA

__all__ = [
    "StreamSolution",
    "StreamingPCA",
    "resume_stream",
    "run_stream",
    "stream_components",
    "stream_pca",
    "stream_summary",
]


def __getattr__(name: str) -> Any:
    """Import StreamingPCA when it is asked for: it imports scikit-learn, which commands have no need of."""
    if name != "StreamingPCA":
        raise AttributeError(f"module 'npmdask.streaming' has no attribute {name!r}")
    from npmdask.streaming.streaming_pca import StreamingPCA

    return StreamingPCA
