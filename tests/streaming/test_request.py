"""What may be asked of a stream: every wrong option is a sentence with a remedy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from npmdask.errors import BadInputError
from npmdask.streaming.problem import StreamRequest, make_model

MB = {"algorithm": "mb-msg"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"target_rank": 0}, "target_rank = 0: a whole number of at least 1"),
    ({"target_rank": 2.0}, "target_rank = 2.0: a whole number"),
    ({"target_rank": True}, "target_rank = True: a whole number"),
    ({"target_rank": 6}, "target_rank = 6 is too large for rows with 5 columns: choose at most 5"),
    ({"batch_rows": 0}, "batch_rows = 0"),
    ({"batch_rows": "64"}, "batch_rows = '64'"),
    ({"measure_rows": 0}, "measure_rows = 0"),
    ({"algorithm": "smp"}, "unknown streaming algorithm 'smp': did you mean 'spm'"),
    ({"algorithm": 3}, "unknown streaming algorithm 3: known: "),
    ({"options": {"blok_rows": 3}}, "spm has no option 'blok_rows': did you mean 'block_rows'"),
    ({"options": {"target_rank": 3}}, "spm has no option 'target_rank'"),
    ({"options": [1]}, "options = .*: a table of names and values"),
    ({"options": {"block_rows": "4"}}, "spm option block_rows = '4': a whole number is needed"),
    ({"options": {"block_rows": 4.5}}, "spm option block_rows = 4.5"),
    ({"options": {"block_rows": object()}}, "spm option block_rows = "),
    ({"options": {"block_rows": 0}}, "^spm: block_rows = 0: a block has at least one row$"),
    ({"options": {"iteration_rank": 1}}, "iteration_rank = 1 is less than target_rank = 2"),
    ({"options": {"iteration_rank": 9}}, "iteration_rank = 9 does not fit rows with 5 columns"),
    ({**MB}, "mb-msg needs the option gap: .*to be tuned on a grid"),
    ({"algorithm": "mb-rmsg"}, "mb-rmsg needs the option gap"),
    ({"algorithm": "rmsg"}, "rmsg needs the option ridge: half of"),
    ({**MB, "options": {"gap": -1}}, "^mb-msg: gap = -1.0: the difference of two eigenvalues that is positive"),
    ({**MB, "options": {"gap": float("nan")}}, "gap = nan"),
    ({**MB, "options": {"gap": 0.1, "test": "exakt"}}, "mb-msg option test = 'exakt': did you mean 'exact'"),
    ({"half_life": 0}, "half_life = 0: a positive number of rows"),
    ({"half_life": "9"}, "half_life = '9': a positive number of rows"),
    ({"half_life": float("nan")}, "half_life = nan"),
    ({"half_life": 1e-3}, "half_life = 0.001: nothing would be left .* after one step of 256 rows; choose a longer"),
    ({"half_life": 9, "options": {"memory": 0.5}}, "give either half_life .* or the option memory"),
    ({"half_life": 9, "options": {"block_rows": "x"}}, "x"),
    ({"unit": 0}, "unit = 0: a positive number, the typical norm of a row; or leave it out"),
    ({"unit": "1"}, "unit = '1'"),
    ({"unit": float("inf")}, "unit = inf"),
    ({"seed": -1}, "seed = -1: a whole number of 0 or more"),
    ({"seed": "a"}, "seed = 'a'"),
    ({"center": "no"}, "center = 'no': True subtracts"),
]


@pytest.mark.parametrize(("asked", "sentence"), WRONG, ids=[f"{i}" for i in range(len(WRONG))])
def test_what_cannot_be_is_a_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        make_model(StreamRequest(**({"target_rank": 2} | asked)), 5)


def test_numbers_of_numpy_are_numbers_and_can_be_written_down() -> None:
    """Fails if what a notebook computed is refused, or cannot be kept in run.json."""
    options = {"block_rows": np.int64(4), "memory": np.float32(0.5)}
    request = StreamRequest(target_rank=np.int64(2), options=options, unit=np.float32(2), center=np.bool_(True))  # type: ignore[arg-type]
    model = make_model(request, 5)
    assert (model.algorithm.block_rows, model.algorithm.memory, model.unit) == (4, 0.5, 2.0)
    assert json.loads(json.dumps(request.options)) == {"block_rows": 4, "memory": 0.5}


def test_what_the_papers_leave_open() -> None:
    """p = 2 k but at most d; a block is a batch, unless 16 of them would not fit."""
    small = make_model(StreamRequest(target_rank=4), 5).algorithm
    assert (small.iteration_rank, small.block_rows, small.memory) == (5, 256, 1.0)
    assert make_model(StreamRequest(target_rank=2), 9, rows=160).algorithm.block_rows == 10
    assert make_model(StreamRequest(target_rank=2), 9, rows=3).algorithm.block_rows == 1
    assert make_model(StreamRequest(target_rank=2), 9, rows=10**6).algorithm.block_rows == 256
    assert make_model(StreamRequest(target_rank=2, algorithm="frequent-directions"), 9).algorithm.sketch_rows == 8


@pytest.mark.parametrize(("name", "step"), [("spm", 40), ("oja", 10), ("msg", 10), ("frequent-directions", 10)])
def test_the_half_life_is_in_rows_whatever_a_step_is(name: str, step: int) -> None:
    """Fails if a memory of a step is taken for one of a row, or a block for a batch."""
    options = {"block_rows": 40} if name == "spm" else {}
    request = StreamRequest(target_rank=2, algorithm=name, options=options, batch_rows=10, half_life=20)
    assert make_model(request, 5).algorithm.memory == pytest.approx(0.5 ** (step / 20))


def test_half_life_of_steps_that_the_data_size_is_refused() -> None:
    """Fails if a half life in rows becomes a memory of steps whose rows nobody knows."""
    with pytest.raises(BadInputError, match="give the option memory"):
        make_model(StreamRequest(target_rank=2, algorithm="mb-msg", options={"gap": 0.1}, half_life=1000.0), 10)
    kept = make_model(StreamRequest(target_rank=2, algorithm="mb-msg", options={"gap": 0.1, "memory": 0.9}), 10)
    assert kept.algorithm.memory == 0.9  # type: ignore[attr-defined]
