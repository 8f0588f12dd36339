"""Rows along the components that a store holds: of a stream, a model that was saved, a finished run or a release."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore, folder_of, not_finished
from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block
from npmdask.operators.view import column_scale
from npmdask.storage.source import open_source
from npmdask.streaming.status import answer_of, is_stream


@dataclass(frozen=True, kw_only=True)
class Components:
    """Scores are rows less ``mean`` (d, or None) times ``weights`` (d x k): the basis, each of its rows divided by the
    deviation of that column where the run was ``scaled``."""

    weights: Block
    mean: np.ndarray | None = None
    scaled: bool = False

    @property
    def d(self) -> int:
        return len(self.weights)

    @property
    def k(self) -> int:
        return int(self.weights.shape[1])

    def scores(self, rows: Block) -> Block:
        """Coordinates of ``rows`` (n x d) along the components: n x k."""
        product: Block = (rows if self.mean is None else rows - self.mean) @ self.weights
        return product


def components_of(store: str | Path) -> Components:
    """The components in ``store``, with what rows were centred and scaled by when they were found.

    Raises
    ------
    BadInputError
        No model, a run that is not finished, or one whose column means lay with a source that is gone or has changed.
    """
    store = folder_of(store)
    held = RunStore(store)
    spec = held.read_spec()
    if spec is None or is_stream(spec):
        arrays = answer_of(store)
        return Components(weights=arrays["basis"], mean=arrays.get("mean"))
    result = held.read_part("result")
    if result is None:
        raise not_finished(store)
    data = spec["data"]
    if "basis" not in result[0] or data["kind"] == "tensor":
        raise BadInputError(
            f"{store} holds no components of rows, but those of {'a' if data['kind'] != 'ica' else 'an'} "
            f"{data['kind']}: read its answer with `npmdask export {store} OUT.npz`"
        )
    basis = result[0]["basis"]
    if not (data["center"] or data["scale"]):
        return Components(weights=basis)
    mean, std = _statistics(held, spec)
    if data["scale"]:
        basis = basis / column_scale(mean, std, sparse=data["kind"] == "sparse")[:, None]
    return Components(weights=basis, mean=mean if data["center"] else None, scaled=data["scale"])


def _statistics(held: RunStore, spec: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations of the columns of a run: of its survey, or recorded with its source."""
    survey = held.read_part("survey")
    if survey is not None and "column_mean" in survey[0]:
        return survey[0]["column_mean"], survey[0]["column_std"]
    where = f"{held.path} is centred or scaled by statistics that lie with its source"
    try:
        source = open_source(spec["source"], spec["data"]["kind"])
    except BadInputError as error:
        raise BadInputError(f"{where}: {error}") from error
    if source.fingerprint != spec["data"]["fingerprint"] or source.column_mean is None or source.column_std is None:
        raise BadInputError(
            f"{where} {spec['source']}, which has changed since: put it back, or run again on what it is"
        )
    return source.column_mean, source.column_std
