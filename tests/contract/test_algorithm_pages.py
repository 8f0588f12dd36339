"""What every algorithm of the five papers says of itself, and that it refuses what it cannot do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.accounting import Budget
from npmdask.core.algorithms import REGISTRY, PowerMethod
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.storage.source import open_source
from npmdask.dp_pca.exact_oracles import PowerOracle, TightOracle
from npmdask.dp_pca.paper_oracles import DPOjas, ModifiedDPPCA, PlainOja
from npmdask.errors import NpmdaskError
from npmdask.privacy.neighbors import REGISTRY as RELATIONS
from npmdask.privacy.neighbors import TENSORS
from npmdask.privacy.private_power import PrivateAlternating, PrivatePower
from npmdask.privacy.private_tensor_power import PrivateTensorPower
from npmdask.streaming.algorithms import STREAM_REGISTRY
from npmdask.streaming.algorithms.frequent_directions import FrequentDirections
from npmdask.streaming.algorithms.msg import MSG, RMSG, MiniBatchMSG, MiniBatchRMSG
from npmdask.streaming.algorithms.oja import Oja
from npmdask.streaming.algorithms.power import StreamPower
from npmdask.streaming.algorithms.tensor_power import OnlineTensorPower
from npmdask.tensors.power import TensorPower
from tests.dp_pca.made import full_ojas, ojas, paper, power, tight

ORACLES = (PlainOja, DPOjas, ModifiedDPPCA, PowerOracle, TightOracle)
OTHERS = (PrivatePower, PrivateAlternating, TensorPower, PrivateTensorPower)
ALL: tuple[type[Any], ...] = (PowerMethod, *STREAM_REGISTRY.values(), *OTHERS, *ORACLES)
NOTES = ("Neighbours:", "Guarantee:", "Needs:", "Cost:")
PRIVATE = {PrivatePower, PrivateAlternating, PrivateTensorPower, DPOjas, ModifiedDPPCA, PowerOracle, TightOracle}


def said(algorithm: type[Any]) -> str:
    """Its own words, and those of what it is a variant of."""
    return "\n".join(inspect.cleandoc(kind.__doc__ or "") for kind in algorithm.__mro__ if kind is not object)


def test_every_algorithm_is_here() -> None:
    """But block Krylov and the matrices that are formed, which are of none of the papers and take no noise."""
    others = {REGISTRY[name] for name in ("krylov", "gram", "row-gram")}
    assert {*REGISTRY.values(), *STREAM_REGISTRY.values()} - {*ALL} == others


@pytest.mark.parametrize("algorithm", ALL, ids=lambda kind: kind.__name__)
def test_it_says_whom_it_protects_what_it_guarantees_what_it_needs_and_what_it_costs(algorithm: type[Any]) -> None:
    """And the relations that it names exist; one that is not private says so. Fails where a line is left out."""
    words = said(algorithm)
    for note in NOTES:
        assert re.search(rf"^{note} \S", words, re.MULTILINE), f"{algorithm.__name__} does not say {note}"
    protects = re.search(r"^Neighbours: (.*)$", words, re.MULTILINE)[1]  # type: ignore[index]
    assert ("none" in protects) == (algorithm not in PRIVATE)
    named = re.findall(r"\b(?:record|tensor|symmetric|spectral|frobenius)_\w+", protects)
    assert set(named) <= {*RELATIONS, *TENSORS}


def posed(kind: str, data: np.ndarray, **request: Any) -> Any:
    return make_problem(open_source(data, kind), Request(**request))


ROWS = np.random.default_rng(0).standard_normal((30, 5))
CUBE = np.zeros((3, 3, 3))
RNG = np.random.default_rng(0)
IMPOSSIBLE: list[tuple[type[Any], Callable[[], Any], str]] = [
    (PowerMethod, lambda: npmdask.top_k(ROWS, 3, iteration_rank=2, algorithm="power"), "smaller than target_rank"),
    (PowerMethod, lambda: npmdask.top_k(np.triu(ROWS[:5]), 2, kind="symmetric", algorithm="power"), "but is not"),
    (StreamPower, lambda: StreamPower(target_rank=3, iteration_rank=2, block_rows=9), "less than target_rank"),
    (Oja, lambda: Oja(target_rank=6).init(5, rng=RNG), "between 1 and 5"),
    (MSG, lambda: MSG(target_rank=1, eta0=-1.0), "positive"),
    (RMSG, lambda: RMSG(target_rank=1, ridge=-0.1), "half the gap"),
    (MiniBatchMSG, lambda: MiniBatchMSG(target_rank=1, gap=0.0), "tuned"),
    (MiniBatchRMSG, lambda: MiniBatchRMSG(target_rank=1, gap=0.1, failure=0.0), "probability"),
    (FrequentDirections, lambda: FrequentDirections(target_rank=3, sketch_rows=2), "less than target_rank"),
    (OnlineTensorPower, lambda: OnlineTensorPower(target_rank=1, block_rows=1, restarts=3), "at least two rows"),
    (TensorPower, lambda: TensorPower(target_rank=1, restarts=2, seed=0, order=2), "order = 2"),
    (PrivatePower, lambda: posed("samples", ROWS, target_rank=1, max_steps=2, privacy=PROMISE), "ingest"),
    (PrivateAlternating, lambda: posed("matrix", ROWS, target_rank=1, max_steps=3, privacy=PROMISE), "ingest"),
    (PrivateTensorPower, lambda: posed("tensor", CUBE, target_rank=4, algorithm="tensor-power"), "at most 3"),
    (PlainOja, lambda: PlainOja(records=4, target_rank=1, batch=5, rates=((1.0, 1.0),)), "batch"),
    (DPOjas, lambda: ojas(relation="record_add_remove"), "would shift all that follow"),
    (DPOjas, lambda: full_ojas(batch=4), "leave batch out"),
    (ModifiedDPPCA, lambda: paper(budget=Budget(1.0)), "delta is positive"),
    (PowerOracle, lambda: power(steps=0), "steps"),
    (TightOracle, lambda: tight(range_share=1.0), "range_share"),
]
PROMISE = npmdask.Privacy(epsilon=1.0, delta=1e-6, neighboring_relation="record_replace", clip_norm=1.0, dataset="x")


@pytest.mark.parametrize("algorithm, call, sentence", IMPOSSIBLE, ids=lambda each: getattr(each, "__name__", ""))
def test_what_it_cannot_do_is_refused_with_a_sentence(
    algorithm: type[Any], call: Callable[[], Any], sentence: str
) -> None:
    """At least one of what it needs, for every algorithm. Fails where a check is left out."""
    with pytest.raises(NpmdaskError, match=sentence):
        call()


def test_every_algorithm_refuses_something() -> None:
    assert {algorithm for algorithm, _, _ in IMPOSSIBLE} == {*ALL}
