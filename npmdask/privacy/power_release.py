"""Assemble a private run from public numbers: relation, operator, mechanism, rule, and the answer.

Nothing here looks at the data. What the answer contains is made of releases and public numbers only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.accounting import Budget, mu_for, paper_stddev
from npmdask.algorithms import (
    Algorithm,
    AlternatingState,
    PrivateAlternating,
    PrivatePower,
    PrivateState,
    Query,
    Result,
)
from npmdask.algorithms import value_stddevs as stddevs_of_values
from npmdask.algorithms.stopping import FixedSteps
from npmdask.errors import BadInputError, RefusedError
from npmdask.operators import (
    BoundedProduct,
    BoundedSymmetric,
    BoundedTriangle,
    ClippedGram,
    ClippedSparseGram,
)
from npmdask.privacy.concerns import Asked, ReleaseNoise, first_query, largest_of
from npmdask.privacy.mechanisms import PrivateGaussian, PrivateLaplace
from npmdask.privacy.neighbors import MatrixRelation, Relation, make_relation
from npmdask.privacy.public_rule import PublicRule, said_of
from npmdask.privacy.release import PrivateRecipe
from npmdask.privacy.request import Privacy
from npmdask.storage.ingest import file_of
from npmdask.storage.paths import is_url
from npmdask.storage.readers.packed import TriangleReader
from npmdask.storage.readers.sparse import CsrReader
from npmdask.storage.source import Source
from npmdask.theory.certificates.statements import plane_sine
from npmdask.theory.start import gaussian_norm

MECHANISMS = {"gaussian": PrivateGaussian, "laplace": PrivateLaplace}
FULL = 0.95  # of the largest trace that clipped records can have: then nearly all of them are clipped


def public_statement(privacy: Privacy, relation: Any, mechanism: Any) -> dict[str, Any]:
    """What every statement of a private run begins with: who is protected, by what, and what it cost."""
    charge = mechanism.charge()
    rule = said_of(mechanism.event().get("public_rule", {}))
    return {
        "relation": relation.spec(),
        "protects": relation.describe(),
        **({"public_rule": rule} if rule else {}),
        "mechanism": mechanism.event(),
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "mu": float(np.sqrt(charge.mu_squared)),
        "charge": charge.as_dict(),
        "epsilon_spent": charge.epsilon_at(privacy.delta),
    }


@dataclass(frozen=True, kw_only=True)
class MatrixRecipe(PrivateRecipe):
    """What releases of a matrix, or of A^T A, have in common: their relation, their number, and the units of values.

    ``public_rule``: what is done to records before they are clipped.
    """

    relation: Relation
    mechanism: Any
    algorithm: Any
    rule: FixedSteps
    public_rule: PublicRule

    @property
    def releases(self) -> int:
        return self.rule.max_steps

    @property
    def target_rank(self) -> int:
        return int(self.algorithm.target_rank)

    def largest(self, source: Source) -> float | None:
        """The largest value that data within the public bounds can have, as released; None where none is public."""
        largest = largest_of(self.relation, source.shape)
        return None if largest is None else self.as_released(largest, source)

    def as_released(self, norm: float, source: Source) -> float:
        """A norm as a value: singular values of sparse data, of whose A^T A it is."""
        scaled = norm * self.scale(source)
        return sqrt(scaled) if source.kind == "sparse" else scaled

    def scale(self, source: Source) -> float:
        """1 / n for samples, where n is public (of weighted rows 1 / their weight); the sum where it is not."""
        weight = self.public_rule.view.weight_of_rows(source.shape[0])
        return 1 / weight if source.kind == "samples" and self.relation.public_rows else 1.0

    def values_are(self, source: Source) -> str:
        """What the released values are, in words."""
        scaled = self.relation.public_rows and source.kind == "samples"
        by = "number of rows" if self.public_rule.view.row_weight is None else "weight of all rows"
        return f"divided by the (public) {by}" if scaled else "sums, not divided by anything"


@dataclass(frozen=True, kw_only=True)
class PowerRecipe(MatrixRecipe):
    """The noisy power method with calibrated noise."""

    def release_noise(self, problem: Asked) -> ReleaseNoise:
        """How loud the noise of a release is at the public start block."""
        query, operator = first_query(problem), self.operator(problem.source)
        block, p = operator.prepare(query.block), problem.algorithm.iteration_rank
        rows = problem.source.shape[0] if problem.source.kind == "matrix" else problem.d
        later = self.mechanism_of(operator, p, query).noise_stddev(block, rows=rows)
        smallest = self.as_released(gaussian_norm(later, rows, p), problem.source)
        if query.image_norm is None:
            return ReleaseNoise(first=later, later=later, smallest=smallest)
        clipped = self.mechanism_of(replace(operator, image_norm=query.image_norm), p, query)
        return ReleaseNoise(first=clipped.noise_stddev(block, rows=rows), later=later, smallest=smallest)

    def operator(self, source: Source) -> Any:
        """The operator of clipped data, in arithmetic whose sensitivity is known."""
        return private_operator(source, self.relation, self.public_rule)

    def mechanism_of(self, operator: Any, p: int, query: Query) -> Any:
        """The mechanism for one side of alternating products, whose arithmetic differs; the multiplier does not."""
        image_norm = getattr(operator, "image_norm", None)  # of records only
        return replace(self.mechanism, rounding=operator.rounding(p), image_norm=image_norm)

    def answer(
        self, source: Source, state: Any, result: Result, history: list[dict[str, Any]], p: int
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of the release, and the statement that goes with them: all of it post-processing."""
        arrays = self._arrays(source, state, result, p)
        return arrays, self.statement(source, state, history, p)

    def _arrays(self, source: Source, state: Any, result: Result, p: int) -> dict[str, np.ndarray]:
        if isinstance(state, AlternatingState):
            return {
                "basis": result.vectors,
                "values": result.values,
                "residual_norms": result.residual_norms,
                "left_basis": result.products,
                "factor_left": state.left,
                "factor_right": state.product,
            }
        return released_arrays(state, result, p, scale=self.scale(source), root=source.kind == "sparse")

    def statement(self, source: Source, state: Any, history: list[dict[str, Any]], p: int) -> dict[str, Any]:
        """What is promised, and what it cost, in public numbers: the page of the report and the JSON."""
        return public_statement(self.privacy, self.relation, self.mechanism) | {
            "releases": self.releases,
            "iteration_rank": p,
            "columns": source.shape[1],
            "noise_stddev": [step["noise_stddev"] for step in history],
            "image_norms": [step["image_norm"] for step in history],
            "noise_to_paper": self._noise_to_paper(source, state, p),
            "predicted_error": self._predicted(source, state, p),
            "values_are": self.values_are(source),
            "warnings": self.warnings(source, state, p),
        }

    def _noise_to_paper(self, source: Source, state: Any, p: int) -> float | None:
        """The noise, over that of the paper's formula for the same releases; the largest of all steps."""
        if not isinstance(state, PrivateState):
            return None
        d, ratios = source.shape[1], []
        for step, stddev in enumerate(state.stddevs[: state.step]):
            block = state.blocks[:, step * p : (step + 1) * p]
            paper = paper_stddev(
                self.relation.name,
                block,
                p,
                self.releases,
                self.mechanism.budget,
                self.privacy.mechanism,
                unit=self.relation.unit,
            )
            ratios.append(float(stddev) / paper)
        return max(ratios) if d and ratios else None

    def _predicted(self, source: Source, state: Any, p: int) -> float | None:
        """The likely sine of the largest angle to the true vectors, from what was released."""
        if not isinstance(state, PrivateState):
            return None
        return likely_sine_of_release(state, p, self.target_rank)

    def warnings(self, source: Source, state: Any, p: int) -> list[str]:
        """What the releases themselves say about the choices that were made."""
        if not self.relation.public_rows or not isinstance(state, PrivateState):
            return []
        # X_0 is random: (d / p) tr(X_0^T Y_1) estimates the trace, which is at most n clip_norm^2.
        d = source.shape[1]
        trace = d / p * float(np.einsum("ij,ij->", state.blocks[:, :p], state.products[:, :p]))
        spread = d / p * float(state.stddevs[0]) * p**0.5
        return clipped_nearly_all(trace - 3 * spread, source, self.relation.clip_norm)


def clipped_nearly_all(trace: float, source: Source, clip_norm: float) -> list[str]:
    """A warning, where all squares add up to ``trace`` at least, so that hardly a record was shorter than the bound."""
    if trace < FULL * source.shape[0] * clip_norm**2:
        return []
    return [
        f"the releases say that nearly every record is longer than clip_norm = {clip_norm:g} and was "
        "clipped to it: the components are those of directions, without lengths; a larger clip_norm (from public "
        "knowledge) keeps lengths, at the price of more noise"
    ]


def private_operator(source: Source, relation: Relation, rule: PublicRule) -> Any:
    """The operator of clipped data for a relation, gaps filled by its reader; what fits was checked before."""
    reader: Any = source.reader
    clip = relation.clip_norm
    if isinstance(relation, MatrixRelation):
        if isinstance(reader, TriangleReader):
            return BoundedTriangle(reader=reader, clip_norm=clip, change=relation.change)
        bounded = BoundedSymmetric if source.kind == "symmetric" else BoundedProduct
        return bounded(reader=reader, clip_norm=clip, change=relation.change)
    if isinstance(reader, CsrReader):
        return ClippedSparseGram(reader=reader, clip_norm=clip, view=rule.view)
    return ClippedGram(reader=reader, clip_norm=clip, view=rule.view)


def released_arrays(state: PrivateState, result: Result, p: int, *, scale: float, root: bool) -> dict[str, np.ndarray]:
    """The arrays of an answer made of releases; ``root``: values are singular values, of A^T A was multiplied."""
    last = slice((state.step - 1) * p, state.step * p)
    values, spread = result.values * scale, stddevs_of_values(state, p, result.vectors) * scale
    if root:
        square_root = np.sqrt(np.maximum(values, 0.0))
        values, spread = square_root, spread / np.maximum(2 * square_root, np.sqrt(spread))
    return {
        "basis": result.vectors,
        "values": values,
        "residual_norms": result.residual_norms * scale,
        "value_stddevs": spread,
        "factor_left": state.blocks[:, last],
        "factor_right": state.products[:, last] * scale,
    }


def likely_sine_of_release(state: PrivateState, p: int, k: int) -> float:
    """The likely sine of the largest angle to the true k leading vectors, from what was released."""
    last = slice((state.step - 1) * p, state.step * p)
    inner = state.blocks[:, last].T @ state.products[:, last]
    values = np.linalg.eigvalsh((inner + inner.T) / 2)
    stddevs = [float(s) for s in state.stddevs[: state.step]]
    return plane_sine(values, stddevs, d=len(state.blocks), k=k)


def require_store(source: Any) -> None:
    """Refuse what cannot be an ingested store before it is opened: what is wrong with a value of a file or of an array
    in memory, and where, `npmdask ingest` says to those who have the data, and no private run does.

    Raises
    ------
    RefusedError
        A file, or what a program holds.
    """
    path = isinstance(source, str | os.PathLike)
    if isinstance(source, zarr.Array | zarr.Group) or (path and (is_url(source) or file_of(Path(source)) is None)):
        return
    raise RefusedError(
        f"{source if path else 'what a program holds'} was never ingested and was not read: a private run reads only "
        "rows that `npmdask ingest` has recorded. Ingest them first, and give the path of the store"
    )


def require_registered(source: Source) -> None:
    """Refuse data that were never ingested: RefusedError."""
    if not source.registered:
        raise RefusedError(
            f"{source.path} was never ingested: a budget is bound to the content of the data, which only `npmdask "
            "ingest` records. Ingest it first"
        )


def relation_of(source: Source, privacy: Privacy) -> Relation:
    """The relation that is asked for, if the source is one that a budget can be bound to, and of a kind that fits.

    Raises
    ------
    BadInputError, RefusedError
        Otherwise.
    """
    require_registered(source)
    relation = make_relation(
        privacy.neighboring_relation,
        clip_norm=privacy.clip_norm,
        change=privacy.change,
        coherence=privacy.coherence,
    )
    if source.kind not in relation.kinds:
        raise BadInputError(
            f"neighboring_relation = {relation.name!r} needs data of kind {' or '.join(relation.kinds)}, but "
            f"{source.path} is of kind {source.kind}"
        )
    return relation


def make_power(source: Source, privacy: Privacy, k: int, p: int, releases: int | None, rule: PublicRule) -> PowerRecipe:
    """Check what is asked against the source and put it together; ``rule`` comes before the clipping.

    Raises
    ------
    BadInputError
        A parameter is missing or out of range, or does not fit the kind of the data.
    RefusedError
        The data have no fingerprint, the paper's formula is unsound here, or the noise would bury any signal.
    """
    relation, budget = relation_of(source, privacy), Budget(privacy.epsilon, privacy.delta)
    if releases is None:
        raise BadInputError(
            "the private power method needs max_steps here: the number of noisy products, public and fixed in "
            "advance (4 to 8 suit most spectra; each takes a pass, and all share the budget)"
        )
    operator = private_operator(source, relation, rule)
    mechanism = MECHANISMS[privacy.mechanism](
        relation=relation,
        budget=budget,
        releases=releases,
        rounding=operator.rounding(p),
        calibration=privacy.calibration,
        public_rule=rule.spec(),
    )
    records = not isinstance(relation, MatrixRelation)
    clips = (
        records and privacy.clip_images and privacy.calibration == "exact"
    )  # the paper's formula has no less noise for it
    if clips:
        replace(operator, image_norm=relation.clip_norm).rounding(p)  # refuses too many columns before the charge
    return PowerRecipe(
        privacy=privacy,
        relation=relation,
        mechanism=mechanism,
        algorithm=_algorithm(source, relation, k, p, releases, mechanism, clips),
        rule=FixedSteps(max_steps=releases, promise=promise_line(relation, budget) + rule.clause),
        public_rule=rule,
    )


def _algorithm(
    source: Source, relation: Relation, k: int, p: int, releases: int, mechanism: Any, clips: bool
) -> Algorithm[Any]:
    if source.kind == "matrix":
        if releases % 2:
            raise BadInputError(
                f"max_steps = {releases} must be even: products with a matrix and with its transpose alternate"
            )
        return PrivateAlternating(target_rank=k, iteration_rank=p, releases=releases, rows=source.shape[0])
    records = relation.clip_norm if clips else None
    return PrivatePower(target_rank=k, iteration_rank=p, releases=releases, noise=mechanism, clip_norm=records)


def promise_line(relation: Relation, budget: Budget) -> str:
    """The promise in a line: for the sentence of the outcome."""
    if budget.delta == 0:
        return f"epsilon = {budget.epsilon:g}, delta = 0, for {relation.describe()}"
    mu = mu_for(budget.epsilon, budget.delta)
    return f"epsilon = {budget.epsilon:g}, delta = {budget.delta:g} ({mu:.4g}-GDP), for {relation.describe()}"
