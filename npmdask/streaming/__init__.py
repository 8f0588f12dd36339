"""Models of streams: the algorithms over real rows, measured, committed, resumed."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
LATER = {"StreamSolution": "solution", "stream_summary": "solution", "StreamingPCA": "streaming_pca"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for: a command that shows runs needs neither algorithms nor scikit-learn."""
    if name not in __all__:
        raise AttributeError(f"module 'npmdask.streaming' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"npmdask.streaming.{LATER.get(name, 'api')}"), name)
