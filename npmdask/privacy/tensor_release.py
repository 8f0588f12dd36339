"""Assemble a private run on a tensor: relation, operator of bounded entries, noise column by column, and the answer.

The counterpart of :mod:`npmdask.privacy.matrix_release` for the tensor power method (Wang and Anandkumar 2016,
Algorithm 3). Nothing here looks at the data: what the answer contains is made of releases and public numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from npmdask.accounting import Budget, mu_for
from npmdask.core.algorithms import Query, Result
from npmdask.core.algorithms.stopping import FixedSteps
from npmdask.core.certificates.recursions import gaussian_norm
from npmdask.core.numerics.units import attributes, from_table
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError, closest, require_known
from npmdask.privacy.clipped_entries import BoundedTensor
from npmdask.privacy.concerns import Asked, ReleaseNoise, first_query
from npmdask.privacy.matrix_release import public_statement, require_registered
from npmdask.privacy.mechanisms import TensorGaussian
from npmdask.privacy.neighbors import TENSORS, TensorRelation, make_relation, no_laplace
from npmdask.privacy.private_tensor_power import PrivateTensorPower, PrivateTensorState
from npmdask.privacy.release import RecipeOfMechanism
from npmdask.privacy.request import Privacy
from npmdask.symmetric.reader import TensorReader

TENSOR_POWER = PrivateTensorPower.name
LOOKING = ("harvest", "tol")  # options of the plain method that would make the number of releases follow the data


@dataclass(frozen=True, kw_only=True)
class PrivateTensorOptions:
    """``algorithm.options`` of a private run on a tensor. Noise grows as sqrt(k restarts (iterations + 1)).

    Parameters
    ----------
    restarts : L, starts of each round. Measured at the edge of what noise leaves visible (d = 60, k = 3): 4 and 6 find
        most; 16 restarts bury the signal. Without noise more would find the larger components first.
    iterations : R, contractions of each round; then come the scores.
    """

    restarts: int = 4
    iterations: int = 6

    def __post_init__(self) -> None:
        for name in ("restarts", "iterations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class TensorRecipe(RecipeOfMechanism):
    """The private tensor power method."""

    mechanism: TensorGaussian
    algorithm: PrivateTensorPower
    rule: FixedSteps

    @property
    def target_rank(self) -> int:
        return self.algorithm.target_rank

    def release_noise(self, problem: Asked) -> ReleaseNoise:
        """Compute the noise level of a contraction, each column by itself."""
        query, operator = first_query(problem), self.operator(problem.source)
        mechanism = self.mechanism_of(operator, problem.algorithm.iteration_rank, query)
        stddev = mechanism.noise_stddev(operator.prepare(query.block))
        return ReleaseNoise(first=stddev, later=stddev, smallest=gaussian_norm(stddev, problem.d, 1))

    def largest(self, source: Source) -> float | None:
        """The largest weight of a component of a tensor whose entries are clipped."""
        return float(self.relation.clip_norm * source.dimension**1.5)

    def operator(self, source: Source) -> BoundedTensor:
        """The operator of clipped entries, in arithmetic whose sensitivity is known."""
        return bounded(source, self.relation)

    def mechanism_of(self, operator: Any, p: int, query: Query) -> TensorGaussian:
        """The mechanism for contractions or for scores, whose arithmetic differs; the multiplier does not."""
        return replace(self.mechanism, rounding=operator.rounding(p), scores=query.scores)

    def values_are(self, source: Source) -> str:
        """Describe in words what the released values are."""
        return "weights of the components, T(v, v, v) less what was found before"

    def answer(
        self, source: Source, state: PrivateTensorState, result: Result, history: list[dict[str, Any]], p: int
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of the release, and the statement that goes with them: all of it post-processing."""
        arrays = {
            "basis": result.vectors,
            "values": result.values,
            "residual_norms": result.residual_norms,
            "value_stddevs": np.array(result.facts["value_stddevs"]),
        }
        return arrays, self.statement(source, state, result, history)

    def statement(
        self, source: Source, state: PrivateTensorState, result: Result, history: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return what is promised and what it cost, in public numbers."""
        return public_statement(self.privacy, self.relation, self.mechanism) | {
            "releases": self.releases,
            "columns_released": self.releases * self.algorithm.restarts,
            "iteration_rank": self.algorithm.restarts,
            "columns": source.dimension,
            "noise_stddev": [step["noise_stddev"] for step in history],
            "image_norms": [None] * len(history),
            "noise_to_paper": state.to_paper,
            "predicted_error": max(result.facts["errors"]),
            "values_are": self.values_are(source),
            "status": result.facts["status"],
            "errors": result.facts["errors"],
            "warnings": _warnings(result),
        }


def _warnings(result: Result) -> list[str]:
    said = {
        "surplus": "their weights are no larger than the noise on them, and so their vectors are noise",
        "open": "noise turned their vectors, or their iterations had not come to rest",
    }
    numbered = {s: [str(i) for i, found in enumerate(result.facts["status"], 1) if found == s] for s in said}
    return [
        f"of {len(result.values)} components those numbered {', '.join(which)} are {status}: {said[status]}; ask for "
        "fewer components or for more iterations, or spend a larger epsilon"
        for status, which in numbered.items()
        if which
    ]


def bounded(source: Source, relation: TensorRelation) -> BoundedTensor:
    """The operator of clipped entries for a relation."""
    assert isinstance(source.reader, TensorReader)
    return BoundedTensor(reader=source.reader, clip_norm=relation.clip_norm, change=relation.unit)


def tensor_relation(source: Source, privacy: Privacy) -> TensorRelation:
    """Who is protected, checked against the data and the noise that is asked for.

    Raises
    ------
    BadInputError
        A relation of matrices, or no parameters that make sense. RefusedError: Laplace noise.
    """
    if privacy.neighboring_relation is not None and privacy.neighboring_relation not in TENSORS:
        known = closest(privacy.neighboring_relation, list(TENSORS))
        raise BadInputError(
            f"neighboring_relation = {privacy.neighboring_relation!r} is not for {source.path}, a tensor: {known}"
        )
    relation = make_relation(privacy.neighboring_relation, **attributes(privacy, "clip_norm", "change", "coherence"))
    if privacy.mechanism != "gaussian":
        raise RefusedError(no_laplace())
    assert isinstance(relation, TensorRelation)
    return relation


def make_tensor(source: Source, privacy: Privacy, options: Mapping[str, Any], k: int, seed: int) -> TensorRecipe:
    """Check what is asked against the source and put it together.

    Raises
    ------
    BadInputError
        A parameter is missing or out of range, or does not fit a tensor.
    RefusedError
        The data have no fingerprint, Laplace noise, or the paper's formula is unsound here.
    """
    require_registered(source)
    relation = tensor_relation(source, privacy)
    if not 1 <= k <= source.dimension:
        raise BadInputError(
            f"target_rank = {k} is not possible: a tensor of dimension {source.dimension} has at most "
            f"{source.dimension} orthogonal components"
        )
    asked, budget = read_options(options), Budget(privacy.epsilon, privacy.delta)
    steps = k * (asked.iterations + 1)
    mechanism = TensorGaussian(
        relation=relation,
        budget=budget,
        columns=asked.restarts,
        steps=steps,
        rounding=bounded(source, relation).rounding(asked.restarts),
        calibration=privacy.calibration,
    )
    algorithm = PrivateTensorPower(
        target_rank=k, restarts=asked.restarts, iterations=asked.iterations, noise=mechanism, seed=seed
    )
    mu = mu_for(budget.epsilon, budget.delta)
    promise = f"epsilon = {budget.epsilon:g}, delta = {budget.delta:g} ({mu:.4g}-GDP), for {relation.describe()}"
    rule = FixedSteps(max_steps=steps, promise=promise)
    return TensorRecipe(privacy=privacy, mechanism=mechanism, algorithm=algorithm, rule=rule)


def read_options(options: Mapping[str, Any]) -> PrivateTensorOptions:
    """``algorithm.options``, with what was left out.

    Raises
    ------
    BadInputError
        An unknown option, or a value that is out of range. RefusedError: one that would look at the data.
    """
    known = [f.name for f in fields(PrivateTensorOptions)]
    for name in options:
        if name in LOOKING:
            raise RefusedError(
                f"{name} is not for a private {TENSOR_POWER}, because the number of releases would depend on the data: "
                "leave it out; a private run makes target_rank (iterations + 1) releases"
            )
        require_known(name, known, f"a private {TENSOR_POWER} has no option")
    return from_table(TENSOR_POWER, PrivateTensorOptions, options)
