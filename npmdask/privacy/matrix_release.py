"""Assemble a private run on a matrix from public numbers: relation, operator, mechanism, rule, and the answer.

A run releases products (:class:`PowerRecipe`), or the whole covariance once (:class:`CovarianceRecipe`). Nothing here
looks at the data. What the answer contains is made of releases and public numbers only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.accounting import Budget, mu_for, paper_stddev
from npmdask.core import features
from npmdask.core.algorithms import Algorithm, Query, Result
from npmdask.core.algorithms.stopping import FixedSteps
from npmdask.core.certificates.recursions import gaussian_norm
from npmdask.core.certificates.statements import with_assurance
from npmdask.core.numerics.units import attributes
from npmdask.core.storage.paths import is_url
from npmdask.core.storage.readers.sparse import CsrReader
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError
from npmdask.privacy.clipped_entries import BoundedProduct, BoundedSymmetric, BoundedTriangle
from npmdask.privacy.clipped_rows import ClippedGram, ClippedSparseGram
from npmdask.privacy.concerns import Asked, ReleaseNoise, first_query, largest_of
from npmdask.privacy.covariance import PrivateCovariance
from npmdask.privacy.mechanisms import PrivateGaussian, PrivateLaplace, SymmetricGaussian
from npmdask.privacy.mechanisms.gaussian_laplace import require_gaussian
from npmdask.privacy.neighbors import MatrixRelation, Relation, make_relation
from npmdask.privacy.noisy_products import most_damped
from npmdask.privacy.private_power import AlternatingState, PrivateAlternating, PrivatePower, PrivateState
from npmdask.privacy.private_power import value_stddevs as stddevs_of_values
from npmdask.privacy.public_rule import PublicRule, said_of
from npmdask.privacy.release import PrivateRecipe
from npmdask.privacy.request import Privacy
from npmdask.privacy.statements import plane_sine
from npmdask.symmetric.reader import TriangleReader
from npmdask.theory.noisy_symmetric import noise_norm

MECHANISMS: dict[str, Any] = {"gaussian": PrivateGaussian, "laplace": PrivateLaplace}
FULL = 0.95  # of the largest trace that clipped records can have: then nearly all of them are clipped


def public_statement(privacy: Privacy, relation: Any, mechanism: Any) -> dict[str, Any]:
    """Return the beginning of every statement of a private run: who is protected, by what, and what it cost."""
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
    """Base of releases of a matrix, or of A^T A: their relation, their number, and the units of values.

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
        """Describe in words what the released values are."""
        scaled = self.relation.public_rows and source.kind == "samples"
        by = "number of rows" if self.public_rule.view.row_weight is None else "weight of all rows"
        return f"divided by the (public) {by}" if scaled else "sums, not divided by anything"


@dataclass(frozen=True, kw_only=True)
class PowerRecipe(MatrixRecipe):
    """The noisy power method with calibrated noise."""

    def release_noise(self, problem: Asked) -> ReleaseNoise:
        """Compute the noise level of a release at the public start block."""
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
        return _private_operator(source, self.relation, self.public_rule)

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
        """Return what is promised and what it cost, in public numbers, for the page of the report and the JSON."""
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
        return likely_sine_of_release(state, p, self.target_rank, self.algorithm.momentum)

    def warnings(self, source: Source, state: Any, p: int) -> list[str]:
        """Return warnings about the choices that were made, as far as the releases themselves show them."""
        if not self.relation.public_rows or not isinstance(state, PrivateState):
            return []
        # X_0 is random: (d / p) tr(X_0^T Y_1) estimates the trace, which is at most n clip_norm^2.
        d = source.shape[1]
        trace = d / p * float(np.einsum("ij,ij->", state.blocks[:, :p], state.products[:, :p]))
        spread = d / p * float(state.stddevs[0]) * p**0.5
        return _clipped_nearly_all(trace - 3 * spread, source, self.relation.clip_norm)


def _clipped_nearly_all(trace: float, source: Source, clip_norm: float) -> list[str]:
    """A warning, where all squares add up to ``trace`` at least, so that hardly a record was shorter than the bound."""
    if trace < FULL * source.shape[0] * clip_norm**2:
        return []
    return [
        f"the releases say that nearly every record is longer than clip_norm = {clip_norm:g} and was "
        "clipped to it: the components are those of directions, without lengths; a larger clip_norm (from public "
        "knowledge) keeps lengths, at the price of more noise"
    ]


def _private_operator(source: Source, relation: Relation, rule: PublicRule) -> Any:
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


def likely_sine_of_release(state: PrivateState, p: int, k: int, momentum: float | str | None) -> float:
    """The likely sine of the largest angle to the true k leading vectors, from what was released.

    With momentum the last of p columns is a mixture of all that is damped: of what lies beyond p its Ritz value says
    nothing, but that it is at most as large as what is damped.
    """
    blocks, products = state.blocks[:, : state.step * p], state.products[:, : state.step * p]
    inner = blocks[:, -p:].T @ products[:, -p:]
    damped = 0.0 if momentum is None else most_damped(blocks[:, :-p], products[:, :-p], p, k, momentum)
    values = np.maximum(np.abs(np.linalg.eigvalsh((inner + inner.T) / 2)), damped)
    return plane_sine(values, [float(s) for s in state.stddevs[: state.step]], d=len(blocks), k=k)


def require_store(source: Any) -> None:
    """Refuse what cannot be an ingested store before it is opened: what is wrong with a value of a file or of an array
    in memory, and where, `npmdask ingest` says to those who have the data, and no private run does.

    Raises
    ------
    RefusedError
        A file, or what a program holds.
    """
    path, file_of = isinstance(source, str | os.PathLike), features.found("sources", "a path into a file")
    is_file = path and not is_url(source) and file_of is not None and file_of(Path(source)) is not None
    if isinstance(source, zarr.Array | zarr.Group) or (path and not is_file):
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
    relation = make_relation(privacy.neighboring_relation, **attributes(privacy, "clip_norm", "change", "coherence"))
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
    operator = _private_operator(source, relation, rule)
    mechanism = MECHANISMS[privacy.mechanism](
        relation=relation,
        budget=budget,
        releases=releases,
        rounding=operator.rounding(p),
        calibration=privacy.calibration,
        public_rule=rule.spec(),
    )
    records = not isinstance(relation, MatrixRelation)
    # The paper's formula has no less noise for it.
    clips = records and privacy.clip_images and privacy.calibration == "exact"
    if clips:
        replace(operator, image_norm=relation.clip_norm).rounding(p)  # refuses too many columns before the charge
    return PowerRecipe(
        privacy=privacy,
        relation=relation,
        mechanism=mechanism,
        algorithm=_algorithm(source, relation, k, p, releases, mechanism, clips),
        rule=FixedSteps(max_steps=releases, promise=_promise_line(relation, budget) + rule.clause),
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


def _promise_line(relation: Relation, budget: Budget) -> str:
    """The promise in a line: for the sentence of the outcome."""
    if budget.delta == 0:
        return f"epsilon = {budget.epsilon:g}, delta = 0, for {relation.describe()}"
    mu = mu_for(budget.epsilon, budget.delta)
    return f"epsilon = {budget.epsilon:g}, delta = {budget.delta:g} ({mu:.4g}-GDP), for {relation.describe()}"


# One noisy covariance: what makes a run of it private, and what is made of it, then and later.
#
# The whole symmetric matrix is released once (:class:`npmdask.privacy.mechanisms.SymmetricGaussian`), and kept with the
# answer. The answer is a function of it and of public numbers, and so is every other one: for another k, or for some of
# the columns, :func:`components_of_covariance` asks nothing of the data, and charges nothing.


COVARIANCE = PrivateCovariance.name
COVARIANCE_KINDS = ("samples", "sparse", "symmetric")


@dataclass(frozen=True, kw_only=True)
class CovarianceFacts:
    """Public facts of a released covariance besides its numbers, in their units; a table of the statement.

    ``stddev``: of the noise off the diagonal. ``largest_trace``: what the trace without noise is at most, None where
    that is not public. ``definite``: it is a sum of a a^T. ``root``: values are roots of its eigenvalues.
    """

    stddev: float
    largest_trace: float | None
    definite: bool
    root: bool


@dataclass(frozen=True, kw_only=True)
class CovarianceRecipe(MatrixRecipe):
    """The noisy covariance matrix (Analyze Gauss)."""

    def release_noise(self, problem: Asked) -> ReleaseNoise:
        """Compute the noise level: of a symmetric matrix, which hides values below half of its norm."""
        d = problem.d
        whole = self.mechanism.noise_stddev(np.eye(d))
        norm = noise_norm(problem.algorithm.stddev, d)
        smallest, lasting = (self.as_released(value, problem.source) for value in (norm, norm / 2))
        return ReleaseNoise(first=whole, later=whole, smallest=smallest, lasting=lasting)

    def operator(self, source: Source) -> Any:
        """The operator of clipped data, which forms the matrix of records as it is."""
        return _covariance_operator(source, self.relation, self.public_rule)

    def mechanism_of(self, operator: Any, p: int, query: Query) -> Any:
        """The one mechanism of the one release."""
        return self.mechanism

    def answer(
        self, source: Source, state: Any, result: Result, history: list[dict[str, Any]], p: int
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of the release, and the statement that goes with them: all of it post-processing."""
        scale, algorithm = self.scale(source), self.algorithm
        matrix = state.matrix * scale
        largest = None if algorithm.largest_trace is None else algorithm.largest_trace * scale
        public = CovarianceFacts(
            stddev=algorithm.stddev * scale,
            largest_trace=largest,
            definite=algorithm.definite,
            root=source.kind == "sparse",
        )
        arrays, told = _leading_pairs(matrix, public, self.target_rank)
        statement = public_statement(self.privacy, self.relation, self.mechanism) | {
            "releases": self.releases,
            "iteration_rank": p,
            "columns": source.shape[1],
            "noise_stddev": [step["noise_stddev"] for step in history],
            "image_norms": [None],
            "noise_to_paper": None,
            "values_are": self.values_are(source),
            "covariance": asdict(public),
            "warnings": [*self._matrix_warnings(source, state), *filter(None, [told["noise_warning"]])],
        }
        return {**arrays, "covariance": matrix}, statement | told

    def _matrix_warnings(self, source: Source, state: Any) -> list[str]:
        """Return warnings about the choices that were made, as far as the whole matrix shows them."""
        if not self.relation.public_rows or not self.algorithm.definite:
            return []
        spread = self.algorithm.stddev * sqrt(2 * len(state.matrix))
        return _clipped_nearly_all(float(np.trace(state.matrix)) - 3 * spread, source, self.relation.clip_norm)

    def answer_for(
        self, problem: Any, arrays: dict[str, np.ndarray], meta: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The stored answer, or that for another k, of the same release."""
        k = problem.algorithm.target_rank
        return (arrays, meta) if len(arrays["values"]) == k else components_of_covariance(arrays, meta, k)


def _covariance_operator(source: Source, relation: Relation, rule: PublicRule) -> Any:
    """The operator; made before the recipe, whose mechanism needs its rounding."""
    made = _private_operator(source, relation, rule)
    return replace(made, whole=True) if isinstance(made, ClippedGram | ClippedSparseGram) else made


def _leading_pairs(matrix: np.ndarray, public: CovarianceFacts, k: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The k leading pairs of a released matrix, and what the statement says of them."""
    d = len(matrix)
    known = attributes(public, "stddev", "largest_trace", "definite")
    found = PrivateCovariance(target_rank=k, columns=d, **known).spectrum(matrix)
    values, spread = found.values, np.full(k, sqrt(2) * public.stddev)
    if public.root:
        values = np.sqrt(values)
        spread = spread / np.maximum(2 * values, np.sqrt(spread))
    arrays = {
        "basis": found.vectors,
        "values": values,
        "residual_norms": np.full(k, public.stddev * sqrt(d)),
        "value_stddevs": spread,
    }
    return arrays, {
        "predicted_error": found.sine,
        "above_noise": found.above,
        "noise_warning": _noise_warning(found.above, k, noise_norm(public.stddev, d)),
    }


def _noise_warning(above: int, k: int, norm: float) -> str:
    """Which of the k components are noise as far as anybody can tell; nothing where none is."""
    if above == k:
        return ""
    which = "no value is" if not above else f"only {above} of {k} values {'is' if above == 1 else 'are'}"
    return (
        f"{which} above the noise, which alone has eigenvalues up to {norm:.3g}: the directions of the others are "
        "those of the noise; ask for fewer components, or use more records or a larger epsilon"
    )


def components_of_covariance(
    arrays: dict[str, np.ndarray], meta: dict[str, Any], k: int, columns: Sequence[int] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The k leading components of a covariance that was released, of some of its columns or of all.

    Parameters
    ----------
    arrays, meta : the answer of the run, as it is stored.
    k : how many components.
    columns : which columns; all of them if None. The rows and columns of the others are left out of the same matrix, so
        that the trace has the same bound and the noise the same size.

    Returns
    -------
    arrays, meta
        The same for this question: of the same release, with its own statement of how wrong it can be.

    Raises
    ------
    BadInputError
        No covariance was released, columns that there are not, or more components than columns.
    """
    if "statement" not in meta:
        raise BadInputError(
            "this run is not private and has released nothing: use `npmdask.top_k` for the components of its data"
        )
    if "covariance" not in arrays:
        raise BadInputError(
            "this run released products with blocks and no covariance, so that other components would be further "
            'products with the data; a run with algorithm = "covariance" keeps what answers for every k'
        )
    d = len(arrays["covariance"])
    chosen = list(range(d)) if columns is None else [_column(column, d) for column in columns]
    if len(set(chosen)) != len(chosen):
        raise BadInputError(f"of {len(chosen)} columns {len(set(chosen))} are different: name each column once")
    if not isinstance(k, Integral) or not 1 <= k <= len(chosen):
        raise BadInputError(
            f"k = {k!r} is not possible: give a whole number from 1 to {len(chosen)}, the number of columns"
        )
    here = np.ix_(chosen, chosen)
    made, told = _leading_pairs(
        np.ascontiguousarray(arrays["covariance"][here]), CovarianceFacts(**meta["statement"]["covariance"]), k
    )
    before = meta["statement"]
    kept = [said for said in before["warnings"] if said != before["noise_warning"]]
    statement = before | told | {"warnings": [*kept, *filter(None, [told["noise_warning"]])]}
    if columns is not None:
        statement |= {"columns": len(chosen), "iteration_rank": len(chosen), "of_columns": chosen}
    found = {**made, "covariance": arrays["covariance"]}
    facts = {name: value for name, value in meta.items() if name != "assurance"}
    return found, with_assurance("samples", found, facts | {"statement": statement})


def _column(column: Any, d: int) -> int:
    if isinstance(column, bool) or not isinstance(column, int | np.integer) or not 0 <= column < d:
        raise BadInputError(f"column {column!r} is not one of the {d} that were released: they are numbered from 0")
    return int(column)


def make_covariance(source: Source, privacy: Privacy, k: int, rule: PublicRule) -> CovarianceRecipe:
    """Check what is asked against the source and put it together; ``rule`` comes before the clipping.

    Raises
    ------
    BadInputError
        A parameter is missing or out of range, or does not fit the kind of the data; pure epsilon.
    RefusedError
        The data have no fingerprint, or the paper's calibration is asked for.
    """
    relation, budget = relation_of(source, privacy), Budget(privacy.epsilon, privacy.delta)
    if source.kind not in COVARIANCE_KINDS:
        raise BadInputError(
            f'algorithm = "covariance" releases a symmetric matrix, of records or as it is stored, and {source.path} '
            f"is of kind {source.kind}: leave algorithm out, for the private power method"
        )
    if privacy.mechanism != "gaussian":
        raise BadInputError(
            f'mechanism = "{privacy.mechanism}" needs the private power method: the covariance has Gaussian noise only'
        )
    if privacy.coherence is not None:
        raise BadInputError("coherence applies only to the private power method: leave it out for the covariance")
    require_gaussian(budget, privacy.calibration)
    d = source.dimension
    rounding = _covariance_operator(source, relation, rule).rounding(d)
    mechanism = SymmetricGaussian(
        relation=relation, budget=budget, releases=1, rounding=rounding, public_rule=rule.spec()
    )
    definite = source.kind != "symmetric"
    return CovarianceRecipe(
        privacy=privacy,
        relation=relation,
        mechanism=mechanism,
        algorithm=PrivateCovariance(
            target_rank=k,
            columns=d,
            stddev=mechanism.off_diagonal_stddev(np.eye(d)),
            largest_trace=source.shape[0] * relation.clip_norm**2 if definite and relation.public_rows else None,
            definite=definite,
        ),
        rule=FixedSteps(max_steps=1, promise=_promise_line(relation, budget) + rule.clause, noun="covariance matrix"),
        public_rule=rule,
    )
