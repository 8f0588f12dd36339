"""Algorithms: public configuration and the three lines in which they differ. They never import each other."""

from typing import Any

from npmdask.algorithms.base import Algorithm, Info, Query, Result, Seen, restored, state_fields
from npmdask.algorithms.krylov import BlockKrylov, KrylovState
from npmdask.algorithms.power import PowerMethod, PowerState
from npmdask.algorithms.private_alternating import AlternatingState, PrivateAlternating
from npmdask.algorithms.private_power import PrivatePower, PrivateState, value_stddevs
from npmdask.algorithms.streaming.base import RowsQuery, StreamAlgorithm, StreamInfo, StreamResult
from npmdask.algorithms.streaming.frequent_directions import FrequentDirections, SketchState
from npmdask.algorithms.streaming.minibatch_msg import BatchState, MiniBatchMSG, MiniBatchRMSG
from npmdask.algorithms.streaming.msg import MSG, RMSG, ConvexState
from npmdask.algorithms.streaming.oja import Oja, OjaState
from npmdask.algorithms.streaming.power import StreamPower, StreamPowerState
from npmdask.algorithms.streaming.tensor_power import OnlineTensorPower, OnlineTensorState
from npmdask.algorithms.tensor.power import TensorPower, restarts_for
from npmdask.algorithms.tensor.private_power import PrivateTensorPower, PrivateTensorState

REGISTRY = {"power": PowerMethod, "krylov": BlockKrylov}
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

__all__ = [
    "MSG",
    "REGISTRY",
    "RMSG",
    "STREAM_REGISTRY",
    "Algorithm",
    "AlternatingState",
    "BatchState",
    "BlockKrylov",
    "ConvexState",
    "FrequentDirections",
    "Info",
    "KrylovState",
    "MiniBatchMSG",
    "MiniBatchRMSG",
    "Oja",
    "OjaState",
    "OnlineTensorPower",
    "OnlineTensorState",
    "PowerMethod",
    "PowerState",
    "PrivateAlternating",
    "PrivatePower",
    "PrivateState",
    "PrivateTensorPower",
    "PrivateTensorState",
    "Query",
    "Result",
    "RowsQuery",
    "Seen",
    "SketchState",
    "StreamAlgorithm",
    "StreamInfo",
    "StreamPower",
    "StreamPowerState",
    "StreamResult",
    "TensorPower",
    "restarts_for",
    "restored",
    "state_fields",
    "value_stddevs",
]
