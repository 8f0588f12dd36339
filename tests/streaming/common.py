"""What the tests of models of streams share: every algorithm that finds directions, with options that fit; rows, a
counter of rows. (Components of the third moment: test_components.)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.core.checkpoint.store import RunStore
from npmdask.streaming.algorithms.model import Model, ModelState
from npmdask.streaming.problem import StreamRequest, make_model

D, K = 6, 2
OPTIONS: dict[str, dict[str, Any]] = {
    "spm": {"block_rows": 12},
    "oja": {},
    "msg": {},
    "rmsg": {"ridge": 0.1},
    "mb-msg": {"gap": 0.2, "batch_rows": 24, "warm_rows": 24},
    "mb-rmsg": {"gap": 0.2, "shift": 10.0, "batch_rows": 24, "warm_rows": 24},
    "frequent-directions": {},
}
every = pytest.mark.parametrize("name", OPTIONS)
# p = d, one block a row, nothing forgotten: the state is the exact sum of x x^T over all rows.
EXACT = {"iteration_rank": D, "block_rows": 1}


def rows_of(n: int, d: int = D, seed: int = 0) -> np.ndarray:
    """Rows with falling variances, none like another."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * np.linspace(2.0, 0.5, d) + rng.standard_normal(d)


def model_of(name: str, d: int = D, options: dict[str, Any] | None = None, **more: Any) -> Model:
    """The model that ``request`` makes of this algorithm."""
    return make_model(StreamRequest(target_rank=K, algorithm=name, options=options or OPTIONS[name], **more), d)


def fed(model: Model, rows: np.ndarray, sizes: list[int], state: ModelState | None = None) -> ModelState:
    """The state after ``rows``, cut into batches of these sizes over and over."""
    state, start, turn = model.init() if state is None else state, 0, 0
    while start < len(rows):
        state, _ = model.absorb(state, rows[start : start + sizes[turn % len(sizes)]])
        start, turn = start + sizes[turn % len(sizes)], turn + 1
    return state


def bits(model: Model, state: ModelState) -> tuple[dict[str, bytes], str]:
    """All that a checkpoint would hold."""
    arrays, numbers = model.saved(state)
    return {name: array.tobytes() for name, array in arrays.items()}, json.dumps(numbers, sort_keys=True)


def scatter(state: ModelState) -> np.ndarray:
    """The exact sum of x x^T over all rows of a model with ``EXACT``."""
    inner = state.inner
    return np.asarray(inner.basis @ inner.core @ inner.basis.T)


def kept_state(store: Path) -> tuple[Model, ModelState]:
    """The model in the last checkpoint of a store."""
    held = RunStore(store).last_step()
    assert held is not None
    arrays, meta = held
    model = Model.of(meta["model"])
    return model, model.load({n: a for n, a in arrays.items() if n != "measured_basis"}, meta["state"])


def same_end(left: Path, right: Path) -> None:
    """Assert that two stores end with the same bytes: the last checkpoint and the answer."""
    ends = [max((store / "steps").glob("[0-9]*[0-9]"), key=lambda p: int(p.name)) for store in (left, right)]
    assert ends[0].name == ends[1].name
    for one, other in (ends, (left / "result", right / "result")):
        names = sorted(p.name for p in one.iterdir())
        assert names == sorted(p.name for p in other.iterdir())
        for name in names:
            assert (one / name).read_bytes() == (other / name).read_bytes(), (one.name, name)
