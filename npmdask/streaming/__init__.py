"""Models of streams: the algorithms over real rows, measured, committed, resumed."""

from npmdask.streaming.api import resume_stream, run_stream, stream_components, stream_pca
from npmdask.streaming.solution import StreamSolution, stream_summary
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
