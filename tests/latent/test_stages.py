"""Which components of a decomposition a job goes on with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from npmdask.core.algorithms.stopping import Outcome
from npmdask.errors import BadInputError
from npmdask.tensors.stages import Decomposed

OK = Outcome(name="converged", sentence="found")


def decomposed(status: list[str], weights: list[float], cosine: float, outcome: Outcome = OK) -> Decomposed:
    """The last component has this cosine with the first."""
    vectors = np.eye(5)[:, : len(status)]
    vectors[:, -1] = -cosine * np.eye(5)[:, 0] + (1 - cosine**2) ** 0.5 * np.eye(5)[:, 4]
    solution: Any = SimpleNamespace(facts={"status": status}, values=np.array(weights), basis=vectors, outcome=outcome)
    return Decomposed(solution=solution, where="x.zarr")


@pytest.mark.parametrize(
    ("status", "weights", "cosine", "kept"),
    [
        (["found", "found", "found"], [3.0, -2.0, 1.0], 0.0, [0, 1, 2]),  # weights of fourth moments have signs
        (["found", "surplus", "open"], [3.0, 2.0, 1.0], 0.98, [0, 2]),
        (["found", "found", "open"], [3.0, 2.0, 1.0], 0.995, [0, 1]),  # not at rest, and next to another
        (["found", "found", "found"], [3.0, 2.0, 1.0], 0.995, [0, 1, 2]),  # two fixed points are two
        (["open", "found", "found"], [3.0, 0.0, 1.0], 0.0, [0, 2]),  # nothing was found there
    ],
)
def test_what_is_kept(status: list[str], weights: list[float], cosine: float, kept: list[int]) -> None:
    found = decomposed(status, weights, cosine)
    assert found.kept == kept
    lost = 3 - len(kept)
    assert found.warnings("topics") == (
        [f"{lost} of 3 topics are surplus: indistinguishable from noise"] if lost else []
    )


def test_what_is_said_of_a_poor_one() -> None:
    poor = Outcome(name="stagnated", sentence="not converged: 1 of 2")
    assert decomposed(["found", "open"], [2.0, 1.0], 0.0, poor).warnings("topics") == ["not converged: 1 of 2"]
    with pytest.raises(BadInputError, match=r"moments of x\.zarr show no component at all"):
        assert decomposed(["surplus", "surplus"], [2.0, 1.0], 0.0).kept
