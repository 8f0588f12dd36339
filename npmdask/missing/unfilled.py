"""Answer by operators that see gaps themselves: EM of a factor model, and covariances of pairs of columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.core.algorithms import Query, Result
from npmdask.core.algorithms.stopping import Outcome, StepView, UntilSettled
from npmdask.core.aspects import named
from npmdask.core.numerics.units import options_from
from npmdask.core.operators.view import View
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.runs.plain_route import PlainRoute
from npmdask.core.runs.problem import AUTO, CHOSEN, DEFAULT_STEPS, Earlier, Problem, Request, Route
from npmdask.core.runs.release import Answer, Released
from npmdask.core.runs.session import Session
from npmdask.core.runs.stopping_rules import without_low_rank
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, first_of, require
from npmdask.missing.em import MissingEM, of_factor_model
from npmdask.missing.factor_model import ModelSums
from npmdask.missing.factor_sums import FactorExpectations
from npmdask.missing.gaps import EM, PAIRWISE, GapReader
from npmdask.missing.pairwise import FACTS, PairwiseGram

EM_TOL = 1e-5  # what may be left to go by default: sampling errors are larger, and every digit takes passes
WITHHELD = 0.02  # of the entries that are held out by default
CHOOSING = 0.1  # where they choose the number of components
MOST_WITHHELD = 0.5


@dataclass(frozen=True, kw_only=True)
class UntilStationary(UntilSettled):
    """Stop where little is left to go, as far as EM of rows with gaps can tell, or after ``max_steps``."""

    def __call__(self, history: list[StepView]) -> Outcome | None:
        """Converged, or held_out: going on would predict worse what was held out."""
        if not history:
            return None
        now = history[-1]
        if now.finished:
            return Outcome(name="held_out", sentence=now.said)
        if now.left <= self.tol:
            said = f"values are within about {now.left:.1e} (relative) of their limit (tol {self.tol:.1e})"
            return Outcome(name="converged", sentence=f"converged after {now.step} steps: {said}")
        if now.step < self.max_steps:
            return None
        return Outcome(
            name="max_steps",
            sentence=f"not converged: max_steps = {self.max_steps} reached, and the last step changed values by up to "
            f"{float(self.relative(now).max()):.1e} (relative); continue with `npmdask resume STORE --max-steps N`",
        )


@dataclass(frozen=True, kw_only=True)
class FactorOptions:
    """``algorithm.options`` of missing = "em": the share of the observed entries that are ``held_out`` at first."""

    held_out: float = WITHHELD

    def __post_init__(self) -> None:
        if not 0 <= self.held_out <= MOST_WITHHELD:
            raise ValueError(f"held_out = {self.held_out} must be a share from 0 to {MOST_WITHHELD}")


class ByModel(Route):
    """Rows with gaps as a factor model sees them; with one component, where entries held out choose."""

    certified = False  # of what it converges to nothing is proved
    chooses = True
    settled = True
    algorithms = (EM,)

    def takes(self, request: Request, source: Source, earlier: Earlier) -> str:
        """Return why the model cannot be asked this; "" where it can."""
        share = isinstance(request.target_rank, float)
        asked = f"target_rank = {request.target_rank}" if share else "a start or deflation"
        refused = {
            f"{asked} with missing = {EM!r}: the model needs a whole number of components and starts by itself. Give a "
            f"number, or {AUTO!r}, with which held-out entries choose it": share or earlier.locked or earlier.start,
            without_low_rank(request.low_rank_tol, f"missing = {EM!r} has none"): True,
        }
        return first_of(refused)

    def problem(self, request: Request, source: Source, earlier: Earlier) -> Problem:
        """Return the problem. Raises BadInputError for other columns than components, or for too many."""
        auto = AUTO in (request.target_rank, earlier.share)
        k, (rows, d) = 1 if request.target_rank == AUTO else int(request.target_rank), source.shape
        wrong = {
            f"missing = {EM!r} is an algorithm of its own, with as many columns as components: leave algorithm and "
            "iteration_rank out": request.algorithm not in ("auto", EM) or request.iteration_rank not in (None, k + 1),
            f"target_rank = {k} is not possible with missing = {EM!r}: the data are {rows} x {d}, and the model needs "
            f"a direction for noise alone, so at most {min(rows, d) - 1}": not 1 <= k < min(rows, d),
        }
        require(not (why := first_of(wrong)), why)
        options: FactorOptions = options_from(EM, FactorOptions, request.options)
        if auto and "held_out" not in (request.options or {}):
            options = FactorOptions(held_out=CHOOSING)
        if auto and not options.held_out:
            raise BadInputError(f"target_rank = {AUTO!r} is chosen by held-out entries: leave held_out = 0 out")
        tol = EM_TOL if request.tol is None else request.tol
        return Problem(
            source=source,
            request=request,
            algorithm=MissingEM(target_rank=k, withheld=options.held_out),
            rule=UntilStationary(tol=tol, max_steps=DEFAULT_STEPS if request.max_steps is None else request.max_steps),
            share=AUTO if auto else None,
        )

    def release(self, problem: Problem, session: Session) -> FactorRelease:
        """Return sums of steps of EM."""
        return FactorRelease(problem, session)

    def operator(self, problem: Problem, view: View) -> FactorExpectations:
        """Return what sums expectations of the model."""
        return FactorExpectations(reader=problem.source.reader, view=view, seed=problem.request.seed)


class ByPairs(PlainRoute):
    """Covariances of pairs of columns."""

    surveys = False  # its one pass finds the means
    settled = True

    def takes(self, request: Request, source: Source, earlier: Earlier) -> str:
        """Return why the matrix does not answer a question; "" where it does."""
        options, why = named(request.aspects, "rows"), "one pass forms the matrix, and what its components leave over"
        refused = {
            f"{options} with missing = {PAIRWISE!r}: a covariance is computed from the rows that have both columns, "
            f"which count alike. Leave the weights out, or set missing = {EM!r} or 'mean'": options,
            f"target_rank = {request.target_rank} is a share, and missing = {PAIRWISE!r} finds a number of components: "
            "give one (explained_share says how much they explain), or set missing = 'mean'": (
                isinstance(request.target_rank, float)
            ),
            f"missing = {PAIRWISE!r} forms its matrix in one pass, which nothing that was found before shortens: leave "
            "the earlier run (a start, deflation) out, and ask for all components at once": any(earlier),
            without_low_rank(request.low_rank_tol, f"{why} is known"): True,
        }
        return first_of(refused)

    def problem(self, request: Request, source: Source, earlier: Earlier) -> Problem:
        """Return the problem of a matrix that is formed. Raises BadInputError for another algorithm."""
        if request.algorithm not in ("auto", "gram"):
            raise BadInputError(
                f"missing = {PAIRWISE!r} forms a matrix of columns x columns, which algorithm = {request.algorithm!r} "
                "does not: leave algorithm out"
            )
        return super().problem(replace(request, algorithm="gram"), source, earlier)

    def release(self, problem: Problem, session: Session) -> PairwiseRelease:
        """Return the matrix, once."""
        return PairwiseRelease(problem, session)

    def operator(self, problem: Problem, view: View) -> PairwiseGram:
        """Return what sums products of pairs."""
        return PairwiseGram(reader=problem.source.reader, view=view, scaled=problem.request.scale)


class FactorRelease(PlainRelease):
    """Sums of steps of EM, the likelihood beside them, and an answer without a certificate."""

    def product(self, query: Query, step: int) -> Released:
        """The sums of one pass; the history keeps how likely the model is, and how well it predicts.

        Raises
        ------
        BadInputError
            As of :class:`PlainRelease`; or nothing varies.
        """
        released = super().product(query, step)
        table = released.product
        layout = ModelSums(query.block.shape[1] - 1)
        if not table[:-2, layout.triangle + layout.rank + 1].any():
            raise BadInputError(f"no column of {self._problem.source.path} varies: there are no data to analyse")
        if step == 1:  # of no model yet
            return released
        facts = layout.facts(table)
        share = facts["held_error"] / facts["held_square"] if facts["held_square"] else None
        return replace(released, said={"log_likelihood": facts["log_likelihood"], "held_out_share": share})

    def answer(
        self, state: Any, result: Result, view: StepView, outcome: Outcome, history: list[dict[str, Any]]
    ) -> Answer:
        """The answer, with the mean of the model and its statement; shares are of the variance that the model has."""
        noise, reader = float(result.facts["noise"]), self._source.reader
        counted = np.ones(self._problem.d, bool)
        if isinstance(reader, GapReader) and reader.observed is not None:
            counted &= reader.observed > 0
        times = self._operator.view.on_columns(np.ones((self._problem.d, 1)))[:, 0]
        counted &= times > 0
        chosen = self._session.store.part_meta(CHOSEN)
        if chosen is not None:
            shares = chosen["shares"]
            result = replace(result, facts=result.facts | {"held_out_shares": shares})
            k, tried = len(result.values), ", ".join(f"{share:.3g} with {name}" for name, share in shares.items())
            said = f"{k} component{'s' * (k > 1)} chosen by entries held out, of whose variance is left over {tried}"
            outcome = replace(outcome, sentence=f"{outcome.sentence}; {said}")
        self._trace = float((result.values - noise).sum() + noise * counted.sum())
        made = super().answer(state, result, view, outcome, history)
        back = np.divide(state.found.mean, times, out=np.zeros_like(times), where=times > 0)
        arrays = {**made.arrays, "model_mean": self._operator.view.shift + back}
        assurance = of_factor_model(result.facts, len(result.values)).sentence
        return Answer(arrays=arrays, meta={**made.meta, "assurance": assurance})


SHIFT, PASSES = "pair_shift", "pair_passes"  # of the survey: what sums of pairs are about, and in how many passes
FAR = 100.0  # deviations of a column, by which the shift may be off its mean: 4 of 16 digits are lost then


class PairwiseRelease(PlainRelease):
    """The matrix of pairwise covariances: what its projection took off is kept beside it.

    Its one pass sums deviations from the means of the first rows, and finds the means on the way. Where these turn out
    to be far from that, as deviations go, it is made again about the means.
    """

    _facts: dict[str, float] | None = None

    def product(self, query: Query, step: int) -> Released:
        """The product; the history keeps ``FACTS`` of the matrix."""
        passes = self._passes
        released = super().product(query, step)
        if query.whole is None:
            return released
        if passes == 0 and self._source.column_mean is None and self._has_lost_digits():
            passes = 2
            self._keep_moments(self._moments["column_mean"], passes)
            self._survey(step)
            released = super().product(query, step)
        if passes == 2:  # what the first pass found has lost digits
            self._session.store.drop_part("survey")
        self._keep_moments(self._operator.view.shift, max(passes, 1))
        column = np.append(released.product[:, -1], np.zeros(len(FACTS)))
        self._facts = dict(zip(FACTS, (float(value) for value in column), strict=False))
        return replace(released, product=released.product[:, :-1], said=self._facts)

    @property
    def _survey_arrays(self) -> dict[str, np.ndarray]:
        """The survey, empty before there is one."""
        part = self._session.store.read_part("survey")
        return {} if part is None else part[0]

    @property
    def _passes(self) -> int:
        """Return the number of passes that the sums take; 0 before it is known."""
        return int(self._survey_arrays[PASSES][0]) if PASSES in self._survey_arrays else 0

    def _keep_moments(self, shift: Any, passes: int) -> None:
        """Keep what the pass found of the columns, unless it was recorded with the data."""
        self._moments |= {SHIFT: shift, PASSES: np.array([passes])}
        if self._problem.source.column_mean is None:
            self._keep_survey(self._record, self._moments)

    def _has_lost_digits(self) -> bool:
        """Say whether the sums of a column have lost digits, which sums about means do not."""
        found = ColumnStatistics.of(self._moments, self._source.shape[0], sparse=False)
        return bool((np.abs(found.mean - self._operator.view.shift) > FAR * found.deviation).any())

    def _survey(self, step: int) -> None:
        super()._survey(step)
        shift = self._survey_arrays.get(SHIFT, self._source.column_mean)
        if shift is None:
            shift = means_of_first_rows(self._source.reader)
        self._operator = replace(self._operator, view=replace(self._operator.view, shift=shift))
        if self._facts is None and self._history:
            self._facts = {name: self._history[0][name] for name in FACTS}
        self._trace = None if self._facts is None else self._facts["trace"]

    def answer(
        self, state: Any, result: Result, view: StepView, outcome: Outcome, history: list[dict[str, Any]]
    ) -> Answer:
        """The answer, with what is to be known of the matrix."""
        assert self._facts is not None
        facts = dict(self._facts)
        made = super().answer(state, replace(result, facts=result.facts | facts), view, outcome, history)
        total = made.meta["total_data_passes"] + (self._passes == 2)
        return replace(made, meta=made.meta | {"total_data_passes": total})


def means_of_first_rows(reader: Any) -> np.ndarray:
    """Means of the columns (d) over the values of the first rows; 0 where these have none."""
    _, tile = next(iter(reader.tiles(0, ReadStats())))
    rows = np.concatenate([np.asarray(values, np.float64) for _, values in tile], axis=1)
    there = np.isfinite(rows)
    return np.asarray(np.where(there, rows, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1))


BY_MODEL, BY_PAIRS = ByModel(), ByPairs()
