"""npmdask: top-k singular vectors of data larger than memory, checkpointed, resumable, with an honest error.

>>> import npmdask
>>> solution = npmdask.top_k("data.zarr", 10, memory="1GiB", store="runs/first")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from npmdask.errors import BadInputError, BudgetError, CommitError, NpmdaskError, RefusedError

if TYPE_CHECKING:
    from npmdask.api import deflate, gram, private_components, resume, singular_triplets, top_k
    from npmdask.models.incremental_pca import IncrementalPCA
    from npmdask.models.latent.estimators import ICA, Mixture
    from npmdask.models.pca import PCA, TruncatedSVD
    from npmdask.models.private_pca import PrivatePCA
    from npmdask.models.topics.estimator import Topics
    from npmdask.models.two_fields.answers import CoupledModes, FieldModes, cca, mca
    from npmdask.models.two_fields.estimators import CCA, MCA
    from npmdask.privacy.request import Privacy
    from npmdask.runs.gram_store import GramStore
    from npmdask.runs.solution import Solution
    from npmdask.streaming import StreamingPCA, StreamSolution, stream_components, stream_pca

    __version__: str

LATER = {
    "CCA": "npmdask.models.two_fields.estimators",
    "CoupledModes": "npmdask.models.two_fields.answers",
    "FieldModes": "npmdask.models.two_fields.answers",
    "GramStore": "npmdask.runs.gram_store",
    "ICA": "npmdask.models.latent.estimators",
    "IncrementalPCA": "npmdask.models.incremental_pca",
    "MCA": "npmdask.models.two_fields.estimators",
    "Mixture": "npmdask.models.latent.estimators",
    "PCA": "npmdask.models.pca",
    "Privacy": "npmdask.privacy.request",
    "PrivatePCA": "npmdask.models.private_pca",
    "Solution": "npmdask.runs.solution",
    "StreamSolution": "npmdask.streaming",
    "StreamingPCA": "npmdask.streaming.streaming_pca",
    "Topics": "npmdask.models.topics.estimator",
    "TruncatedSVD": "npmdask.models.pca",
    "cca": "npmdask.models.two_fields.answers",
    "deflate": "npmdask.api",
    "gram": "npmdask.api",
    "mca": "npmdask.models.two_fields.answers",
    "private_components": "npmdask.api",
    "resume": "npmdask.api",
    "singular_triplets": "npmdask.api",
    "stream_components": "npmdask.streaming",
    "stream_pca": "npmdask.streaming",
    "top_k": "npmdask.api",
}

__all__ = [
    "CCA",
    "ICA",
    "MCA",
    "PCA",
    "BadInputError",
    "BudgetError",
    "CommitError",
    "CoupledModes",
    "FieldModes",
    "GramStore",
    "IncrementalPCA",
    "Mixture",
    "NpmdaskError",
    "Privacy",
    "PrivatePCA",
    "RefusedError",
    "Solution",
    "StreamSolution",
    "StreamingPCA",
    "Topics",
    "TruncatedSVD",
    "cca",
    "deflate",
    "gram",
    "mca",
    "private_components",
    "resume",
    "singular_triplets",
    "stream_components",
    "stream_pca",
    "top_k",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: Zarr, Dask and SciPy take a second, which `--help` need not."""
    if name == "__version__":
        from npmdask.errors import package_version

        return package_version()
    if name not in LATER:
        raise AttributeError(f"module 'npmdask' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
