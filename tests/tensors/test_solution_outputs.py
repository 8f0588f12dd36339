"""What a solution of a tensor does not have."""

from __future__ import annotations

import numpy as np
import pytest

import npmdask
from npmdask.errors import BadInputError


def test_of_a_symmetric_matrix_and_of_a_tensor() -> None:
    solution = npmdask.top_k(np.diag([1.0, -7.0, 3.0]), 2, kind="symmetric")
    np.testing.assert_allclose(solution.singular_values, [7.0, 3.0])
    cube = np.zeros((3, 3, 3))
    cube[0, 0, 0], cube[1, 1, 1] = 2.0, 1.0
    tensor = npmdask.top_k(cube, 2, kind="tensor")
    for ask in (lambda: tensor.singular_values, lambda: tensor.scores(np.eye(3))):
        with pytest.raises(BadInputError, match="a run of kind tensor has no"):
            ask()
