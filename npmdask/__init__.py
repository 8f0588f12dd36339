"""npmdask: top-k singular vectors of data larger than memory, checkpointed, resumable, with an honest error.

>>> import npmdask
>>> solution = npmdask.top_k("data.zarr", 10, memory="1GiB", store="runs/first")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from npmdask.errors import BadInputError, BudgetError, CommitError, NpmdaskError, RefusedError

if TYPE_CHECKING:
    from npmdask.api import top_k
    from npmdask.core.algorithms import register_algorithm
    from npmdask.core.runs.deflation import deflate
    from npmdask.core.runs.observers import Observer
    from npmdask.core.runs.problem import register_operator
    from npmdask.core.runs.solution import Solution
    from npmdask.core.storage.source import register_source
    from npmdask.dilation.triplets import singular_triplets
    from npmdask.estimators.incremental_pca import IncrementalPCA
    from npmdask.estimators.pca import PCA, TruncatedSVD
    from npmdask.formats.ingest import ingest
    from npmdask.latent.estimators import ICA, Mixture
    from npmdask.privacy.components import private_components
    from npmdask.privacy.request import Privacy
    from npmdask.private_pca.estimator import PrivatePCA
    from npmdask.resuming import resume
    from npmdask.stored_gram.store import GramStore, gram
    from npmdask.streaming import StreamingPCA, StreamSolution, stream_components, stream_pca
    from npmdask.topics.estimator import Topics
    from npmdask.two_fields.answers import CoupledModes, FieldModes, cca, mca
    from npmdask.two_fields.estimators import CCA, MCA

    __version__: str

MODULES = {
    "npmdask.api": "top_k",
    "npmdask.resuming": "resume",
    "npmdask.dilation.triplets": "singular_triplets",
    "npmdask.estimators.incremental_pca": "IncrementalPCA",
    "npmdask.latent.estimators": "ICA Mixture",
    "npmdask.estimators.pca": "PCA TruncatedSVD",
    "npmdask.private_pca.estimator": "PrivatePCA",
    "npmdask.topics.estimator": "Topics",
    "npmdask.two_fields.answers": "CoupledModes FieldModes cca mca",
    "npmdask.two_fields.estimators": "CCA MCA",
    "npmdask.privacy.request": "Privacy",
    "npmdask.core.algorithms": "register_algorithm",
    "npmdask.core.runs.deflation": "deflate",
    "npmdask.core.runs.observers": "Observer",
    "npmdask.core.runs.problem": "register_operator",
    "npmdask.core.storage.source": "register_source",
    "npmdask.formats.ingest": "ingest",
    "npmdask.stored_gram.store": "GramStore gram",
    "npmdask.privacy.components": "private_components",
    "npmdask.core.runs.solution": "Solution",
    "npmdask.streaming": "StreamSolution StreamingPCA stream_components stream_pca",
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
    "Observer",
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
    "ingest",
    "mca",
    "private_components",
    "register_algorithm",
    "register_operator",
    "register_source",
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
