"""npmdask: top-k singular vectors of data larger than memory, checkpointed, resumable, with an honest error.

>>> import npmdask
>>> solution = npmdask.top_k("data.zarr", 10, memory="1GiB", store="runs/first")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from npmdask.errors import BadInputError, BudgetError, CommitError, NpmdaskError, RefusedError

if TYPE_CHECKING:
    from npmdask.api import resume, top_k
    from npmdask.models.dilation import singular_triplets
    from npmdask.models.incremental_pca import IncrementalPCA
    from npmdask.models.latent.estimators import ICA, Mixture
    from npmdask.models.pca import PCA, TruncatedSVD
    from npmdask.models.private_pca import PrivatePCA
    from npmdask.models.topics.estimator import Topics
    from npmdask.models.two_fields.answers import CoupledModes, FieldModes, cca, mca
    from npmdask.models.two_fields.estimators import CCA, MCA
    from npmdask.privacy.components import private_components
    from npmdask.privacy.request import Privacy
    from npmdask.runs.deflation import deflate
    from npmdask.runs.gram_store import GramStore, gram
    from npmdask.runs.solution import Solution
    from npmdask.streaming import StreamingPCA, StreamSolution, stream_components, stream_pca

    __version__: str

MODULES = {
    "npmdask.api": "resume top_k",
    "npmdask.models.dilation": "singular_triplets",
    "npmdask.models.incremental_pca": "IncrementalPCA",
    "npmdask.models.latent.estimators": "ICA Mixture",
    "npmdask.models.pca": "PCA TruncatedSVD",
    "npmdask.models.private_pca": "PrivatePCA",
    "npmdask.models.topics.estimator": "Topics",
    "npmdask.models.two_fields.answers": "CoupledModes FieldModes cca mca",
    "npmdask.models.two_fields.estimators": "CCA MCA",
    "npmdask.privacy.request": "Privacy",
    "npmdask.runs.deflation": "deflate",
    "npmdask.runs.gram_store": "GramStore gram",
    "npmdask.privacy.components": "private_components",
    "npmdask.runs.solution": "Solution",
    "npmdask.streaming": "StreamSolution stream_components stream_pca",
    "npmdask.streaming.streaming_pca": "StreamingPCA",
}
LATER = {name: module for module, names in MODULES.items() for name in names.split()}

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
