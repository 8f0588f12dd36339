"""One noisy covariance: what makes a run of it private, and what is made of it, then and later.

The whole symmetric matrix is released once (:class:`npmdask.privacy.mechanisms.SymmetricGaussian`), and kept with the
answer. The answer is a function of it and of public numbers, and so is every other one: for another k, or for some of
the columns, :func:`components_of_covariance` asks nothing of the data, and charges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from numbers import Integral
from typing import Any

import numpy as np

from npmdask.accounting import Budget
from npmdask.algorithms import PrivateCovariance, Query, Result
from npmdask.algorithms.stopping import FixedSteps
from npmdask.errors import BadInputError
from npmdask.operators import ClippedGram, ClippedSparseGram
from npmdask.privacy.concerns import Asked, ReleaseNoise
from npmdask.privacy.mechanisms import SymmetricGaussian
from npmdask.privacy.mechanisms.gaussian_laplace import require_gaussian
from npmdask.privacy.neighbors import Relation
from npmdask.privacy.power_release import (
    MatrixRecipe,
    clipped_nearly_all,
    private_operator,
    promise_line,
    public_statement,
    relation_of,
)
from npmdask.privacy.public_rule import PublicRule
from npmdask.privacy.request import Privacy
from npmdask.storage.source import Source
from npmdask.theory.certificates.statements import with_assurance
from npmdask.theory.noisy_symmetric import noise_norm

NAME = PrivateCovariance.name
KINDS = ("samples", "sparse", "symmetric")


@dataclass(frozen=True, kw_only=True)
class CovarianceFacts:
    """What is public of a released covariance besides its numbers, in their units; a table of the statement.

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
        """How loud the noise is: of a matrix that is symmetric, and nothing at all is above half of its norm."""
        d = problem.d
        whole = self.mechanism.noise_stddev(np.eye(d))
        norm = noise_norm(problem.algorithm.stddev, d)
        smallest, lasting = (self.as_released(value, problem.source) for value in (norm, norm / 2))
        return ReleaseNoise(first=whole, later=whole, smallest=smallest, lasting=lasting)

    def operator(self, source: Source) -> Any:
        """The operator of clipped data, which forms the matrix of records as it is."""
        return _operator(source, self.relation, self.public_rule)

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
        arrays, told = _made_of(matrix, public, self.target_rank)
        statement = public_statement(self.privacy, self.relation, self.mechanism) | {
            "releases": self.releases,
            "iteration_rank": p,
            "columns": source.shape[1],
            "noise_stddev": [step["noise_stddev"] for step in history],
            "image_norms": [None],
            "noise_to_paper": None,
            "values_are": self.values_are(source),
            "covariance": asdict(public),
            "warnings": [*self._of_all(source, state), *filter(None, [told["noise_warning"]])],
        }
        return {**arrays, "covariance": matrix}, statement | told

    def _of_all(self, source: Source, state: Any) -> list[str]:
        """What the whole matrix says of the choices that were made."""
        if not self.relation.public_rows or not self.algorithm.definite:
            return []
        spread = self.algorithm.stddev * sqrt(2 * len(state.matrix))
        return clipped_nearly_all(float(np.trace(state.matrix)) - 3 * spread, source, self.relation.clip_norm)

    def answer_for(
        self, problem: Any, arrays: dict[str, np.ndarray], meta: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The stored answer, or that for another k, of the same release."""
        k = problem.algorithm.target_rank
        return (arrays, meta) if len(arrays["values"]) == k else components_of_covariance(arrays, meta, k)


def _operator(source: Source, relation: Relation, rule: PublicRule) -> Any:
    """The operator; made before the recipe, whose mechanism needs its rounding."""
    made = private_operator(source, relation, rule)
    return replace(made, whole=True) if isinstance(made, ClippedGram | ClippedSparseGram) else made


def _made_of(matrix: np.ndarray, public: CovarianceFacts, k: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The k leading pairs of a released matrix, and what the statement says of them."""
    d = len(matrix)
    algorithm = PrivateCovariance(
        target_rank=k,
        columns=d,
        stddev=public.stddev,
        largest_trace=public.largest_trace,
        definite=public.definite,
    )
    found = algorithm.spectrum(matrix)
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
        "noise_warning": _below(found.above, k, noise_norm(public.stddev, d)),
    }


def _below(above: int, k: int, norm: float) -> str:
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
    made, told = _made_of(
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
    if source.kind not in KINDS:
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
    rounding = _operator(source, relation, rule).rounding(d)
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
        rule=FixedSteps(max_steps=1, promise=promise_line(relation, budget) + rule.clause, noun="covariance matrix"),
        public_rule=rule,
    )
