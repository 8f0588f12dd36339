"""Algorithms: public configuration and the three lines in which they differ. They never import each other."""

from typing import Any

from npmdask.core import features
from npmdask.core.algorithms.base import (
    Algorithm,
    Info,
    Query,
    Question,
    Result,
    RowsQuery,
    Seen,
    StreamAlgorithm,
    StreamInfo,
    StreamResult,
    restored,
    state_fields,
)
from npmdask.core.algorithms.gram import GramKrylov, RowGramKrylov, StoredGramPairs
from npmdask.core.algorithms.krylov import BlockKrylov
from npmdask.core.algorithms.power import PowerMethod, PowerOnDisk
from npmdask.errors import BadInputError, require

REGISTRY: dict[str, type[Any]] = {
    "power": PowerMethod,
    "krylov": BlockKrylov,
    "gram": GramKrylov,
    "row-gram": RowGramKrylov,
}


def is_ours(algorithm: Any) -> bool:
    """Say whether what an algorithm, or a class of them, says is proved and tested; a plugin's is held to the data."""
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def register_algorithm(kind: type[Any]) -> type[Any]:
    """
    Make an algorithm known by its name to Python, the command line and flows.

    Its answer is made of a pass of npmdask with its vectors, not of what it says of them: one pass more.

    Parameters
    ----------
    kind : type
        A frozen dataclass with the methods of :class:`npmdask.core.algorithms.Algorithm` (``init``, ``query``,
        ``update``, ``finalize``), a class method ``make`` and a ``name``, by which ``algorithm=`` asks for it.

    Returns
    -------
    type
        The class itself, so that this may be used as a decorator.

    Raises
    ------
    BadInputError
        The name is taken, or a method is missing.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> from npmdask.algorithms import REGISTRY, PowerMethod
    >>> @npmdask.register_algorithm
    ... class Slow(PowerMethod):
    ...     name = "slow-power"
    >>> rows = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    >>> npmdask.top_k(rows, 3, algorithm="slow-power").converged
    True
    >>> REGISTRY.pop("slow-power") is Slow
    True
    """
    wanted = ("name", "make", "init", "query", "update", "finalize", "load", "state_blocks")
    missing = [name for name in wanted if not hasattr(kind, name)]
    require(not missing, f"{kind.__name__} is not an algorithm: it has no {', '.join(missing)}")
    if (
        REGISTRY.get(kind.name, kind) is not kind
        or kind.name in features.keys("stream_algorithms")
        or kind.name == "auto"
    ):
        raise BadInputError(f"there is already an algorithm {kind.name!r}: give {kind.__name__} another name")
    REGISTRY[kind.name] = kind
    return kind


__all__ = [
    "REGISTRY",
    "Algorithm",
    "BlockKrylov",
    "GramKrylov",
    "Info",
    "PowerMethod",
    "PowerOnDisk",
    "Query",
    "Question",
    "Result",
    "RowGramKrylov",
    "RowsQuery",
    "Seen",
    "StoredGramPairs",
    "StreamAlgorithm",
    "StreamInfo",
    "StreamResult",
    "is_ours",
    "register_algorithm",
    "restored",
    "state_fields",
]
