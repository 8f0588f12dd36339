"""Algorithms: public configuration and the three lines in which they differ. They never import each other."""

from typing import Any

from npmdask.algorithms.base import (
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
from npmdask.algorithms.covariance import CovarianceState, PrivateCovariance
from npmdask.algorithms.gram import GramKrylov, RowGramKrylov, StoredGramPairs
from npmdask.algorithms.krylov import BlockKrylov, KrylovState
from npmdask.algorithms.missing_em import MissingEM, MissingState
from npmdask.algorithms.power import DiskPowerState, PowerMethod, PowerOnDisk, PowerState
from npmdask.algorithms.private_power import (
    AlternatingState,
    PrivateAlternating,
    PrivatePower,
    PrivateState,
    value_stddevs,
)
from npmdask.algorithms.streaming.frequent_directions import FrequentDirections, SketchState
from npmdask.algorithms.streaming.msg import MSG, RMSG, BatchState, ConvexState, MiniBatchMSG, MiniBatchRMSG
from npmdask.algorithms.streaming.oja import Oja, OjaState
from npmdask.algorithms.streaming.power import StreamPower, StreamPowerState
from npmdask.algorithms.streaming.tensor_power import OnlineTensorPower, OnlineTensorState
from npmdask.algorithms.tensor.power import TensorPower, restarts_for
from npmdask.algorithms.tensor.private_power import PrivateTensorPower, PrivateTensorState
from npmdask.errors import BadInputError, require

REGISTRY: dict[str, type[Any]] = {
    "power": PowerMethod,
    "krylov": BlockKrylov,
    "gram": GramKrylov,
    "row-gram": RowGramKrylov,
}
# what these say of their own results is proved and tested
OURS = frozenset(
    {PowerMethod, PowerOnDisk, BlockKrylov, GramKrylov, RowGramKrylov, StoredGramPairs, MissingEM, TensorPower}
)


def is_ours(algorithm: Any) -> bool:
    """Whether an answer needs no further pass that holds it to the data: that of a plugin does."""
    return type(algorithm) in OURS or type(algorithm).__module__ == "npmdask.algorithms.momentum"  # loaded where asked


STREAM_REGISTRY: dict[str, type[Any]] = {
    "spm": StreamPower,
    "oja": Oja,
    "msg": MSG,
    "rmsg": RMSG,
    "mb-msg": MiniBatchMSG,
    "mb-rmsg": MiniBatchRMSG,
    "frequent-directions": FrequentDirections,
    "online-tensor-power": OnlineTensorPower,
}


def register_algorithm(kind: type[Any]) -> type[Any]:
    """Make an algorithm known by its name to Python, the command line and flows.

    Its answer is made of a pass of npmdask with its vectors, not of what it says of them: one pass more.

    Parameters
    ----------
    kind : a frozen dataclass with the methods of :class:`Algorithm`, a class method ``make`` and a ``name``.

    Returns
    -------
    kind
        The class itself, so that this may be used as a decorator.

    Raises
    ------
    BadInputError
        The name is taken, or a method is missing.

    Examples
    --------
    >>> from npmdask.algorithms import REGISTRY, PowerMethod, register_algorithm
    >>> @register_algorithm
    ... class Slow(PowerMethod):
    ...     name = "slow-power"
    >>> REGISTRY.pop("slow-power") is Slow
    True
    """
    wanted = ("name", "make", "init", "query", "update", "finalize", "load", "state_blocks")
    missing = [name for name in wanted if not hasattr(kind, name)]
    require(not missing, f"{kind.__name__} is not an algorithm: it has no {', '.join(missing)}")
    if REGISTRY.get(kind.name, kind) is not kind or kind.name in STREAM_REGISTRY or kind.name == "auto":
        raise BadInputError(f"there is already an algorithm {kind.name!r}: give {kind.__name__} another name")
    REGISTRY[kind.name] = kind
    return kind


__all__ = [
    "MSG",
    "OURS",
    "REGISTRY",
    "RMSG",
    "STREAM_REGISTRY",
    "Algorithm",
    "AlternatingState",
    "BatchState",
    "BlockKrylov",
    "ConvexState",
    "CovarianceState",
    "DiskPowerState",
    "FrequentDirections",
    "GramKrylov",
    "Info",
    "KrylovState",
    "MiniBatchMSG",
    "MiniBatchRMSG",
    "MissingEM",
    "MissingState",
    "Oja",
    "OjaState",
    "OnlineTensorPower",
    "OnlineTensorState",
    "PowerMethod",
    "PowerOnDisk",
    "PowerState",
    "PrivateAlternating",
    "PrivateCovariance",
    "PrivatePower",
    "PrivateState",
    "PrivateTensorPower",
    "PrivateTensorState",
    "Query",
    "Question",
    "Result",
    "RowGramKrylov",
    "RowsQuery",
    "Seen",
    "SketchState",
    "StoredGramPairs",
    "StreamAlgorithm",
    "StreamInfo",
    "StreamPower",
    "StreamPowerState",
    "StreamResult",
    "TensorPower",
    "is_ours",
    "register_algorithm",
    "restarts_for",
    "restored",
    "state_fields",
    "value_stddevs",
]
