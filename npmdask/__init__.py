"""npmdask: top-k singular vectors of data larger than memory, checkpointed, resumable, with an honest error.

>>> import npmdask
>>> solution = npmdask.top_k("data.zarr", 10, memory="1GiB", store="runs/first")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from npmdask.api import deflate, resume, top_k
from npmdask.errors import BadInputError, BudgetError, CommitError, NpmdaskError, RefusedError
from npmdask.privacy.request import Privacy
from npmdask.runs.solution import Solution

if TYPE_CHECKING:
    from npmdask.models.latent.estimators import ICA, Mixture
    from npmdask.models.topics.estimator import Topics
    from npmdask.streaming import StreamingPCA, StreamSolution, stream_components, stream_pca

LATER = {
    "ICA": "npmdask.models.latent.estimators",
    "Mixture": "npmdask.models.latent.estimators",
    "StreamSolution": "npmdask.streaming",
    "StreamingPCA": "npmdask.streaming",
    "Topics": "npmdask.models.topics.estimator",
    "stream_components": "npmdask.streaming",
    "stream_pca": "npmdask.streaming",
}

__all__ = [
    "ICA",
    "BadInputError",
    "BudgetError",
    "CommitError",
    "Mixture",
    "NpmdaskError",
    "Privacy",
    "RefusedError",
    "Solution",
    "StreamSolution",
    "StreamingPCA",
    "Topics",
    "deflate",
    "resume",
    "stream_components",
    "stream_pca",
    "top_k",
]


def __getattr__(name: str) -> Any:
    """What brings the readers of every format: a tenth of a second that other runs do not need."""
    if name not in LATER:
        raise AttributeError(f"module 'npmdask' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(LATER[name]), name)
