"""Components of rows with missing entries by EM: probabilistic PCA, a step a pass (Tipping and Bishop 1999).

Line by line::

    Input: rows with gaps, k, a share h of entries to hold out, tolerance tol
    1. Q random orthonormal (d x k)                                         MissingEM.init
    2. A pass with Q: the scale, and Q one step of the power method on      MissingEM.query, first_model
    3. EM without the entries held out, until little is left to go, or      MissingEM.update
       until they are predicted worse and worse: then the best model is
       the answer
    4. EM with all entries, until at most tol is left to go                 UntilStationary
    5. Every second step of 3 and 4 is stretched to where both point; if    extrapolated
       the next pass finds that less likely, it goes on from the step,
       and stretches less from then on
    Output: principal axes of the loadings, and their variances with noise

What is left to go is estimated from two steps, which shrink by one factor in the end (Dempster, Laird and Rubin 1977,
section 3), in the norm of ``(C - C_before) v_i`` over the i-th value of C = W W^T + s2 I; it is never less than the
last step, so that fast directions cannot hide slow ones for long. The formulas of a step are in
:mod:`npmdask.missing.factor_model`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from npmdask.core.algorithms.base import Info, Query, Result, restored
from npmdask.core.certificates.wording import Assurance, at_most_percent, percent, the_components
from npmdask.core.numerics.subspaces import Block, orth
from npmdask.missing.factor_model import LEAST_NOISE, FactorModel, ModelSums, extrapolated, first_model, next_model

SHORT = 1e-3  # length of the axes of line 2: beside a noise of 1 they change no scale
NEAR = 1e-3  # left to go, where the entries held out have said what they can
SLOWEST = 0.999  # factor of two steps above which it is taken for this one: nearer to 1 they do not tell it
LEAST_REACH, MOST_REACH, FARTHER = 2.0, 1024.0, 4.0  # times a step; by what factor more, or less, next time
ROUNDING = 1e-12  # of a likelihood: near the end its differences are smaller than what sums are rounded by
WORSE = 1.01  # times the least error of the entries held out: from here on it is not its scatter
PATIENCE = 3  # steps that it is so, one after the other
LEAST_HELD = 100  # entries, below which their error scatters too much to end anything


@dataclass(frozen=True, kw_only=True)
class MissingState:
    """The model that the next pass is about, what is known of the last steps, and the best model by what is held out.

    ``first``: of a pair of steps, the model before both; ``second``: the next pass is about the model between them.
    ``stretch``: if not 0, it is about one that was extrapolated, from where ``plain`` goes on if that is less likely;
    ``reach``: the most.
    ``floor``: of the noise. ``withholds``: entries are held out in the next pass. ``change``: of the last step, in
    terms of the values. ``left``: about what is left to go. ``log_likelihood``: of the last model that was kept and
    measured. ``held_error``: mean square of the entries held out less their prediction, ``held_square``: less the mean.
    ``worse``: steps in a row that predicted clearly worse than the ``best``.
    """

    step: int
    model: FactorModel
    first: FactorModel
    plain: FactorModel
    best: FactorModel
    residual_norms: np.ndarray
    withholds: bool
    second: bool = False
    stretch: float = 0.0
    reach: float = LEAST_REACH
    floor: float = 0.0
    change: float = 0.0
    left: float = sys.float_info.max  # plain JSON knows no infinity
    log_likelihood: float = 0.0
    entries: float = 0.0
    held: float = 0.0
    held_error: float = 0.0
    held_square: float = 0.0
    best_error: float = sys.float_info.max
    worse: int = 0
    went_back: bool = False

    @property
    def found(self) -> FactorModel:
        """Return the model of the last step of EM: one that is extrapolated has not been measured yet."""
        return self.plain if self.stretch else self.model

    @property
    def ritz_vectors(self) -> Block:
        """Its axes."""
        return self.found.axes


@dataclass(frozen=True, kw_only=True)
class MissingEM:
    """The k leading components of the most likely factor model of rows with missing entries.

    Parameters
    ----------
    target_rank : k.
    withheld : share of the entries that are held out, 0 for none.

    Notes
    -----
    Neighbours: none; it is not private.
    Guarantee: the likelihood of what is observed never falls; where it ends may be a local maximum.
    Needs: entries that are missing whatever their values are (missing at random), and rows that are alike.
    Cost: a pass a step, with ``d (k + 1)^2`` numbers; entries that are missing make steps shorter.
    """

    name: ClassVar[str] = "em"
    mixed_precision: ClassVar[bool] = False
    beside_rank: ClassVar[int] = 1  # columns of a block that are no loadings: the mean

    target_rank: int
    withheld: float = 0.0

    @property
    def iteration_rank(self) -> int:
        """Columns of the block: loadings and the mean."""
        return self.target_rank + 1

    @property
    def state_blocks(self) -> int:
        """In blocks of k + 1 columns: twice the sums of a pass, the matrices that are solved, and the models."""
        width = -(-ModelSums(self.target_rank).width // self.iteration_rank)
        return 2 * width + 2 * self.iteration_rank + 16

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> MissingState:
        """Line 1. ``locked`` and ``start`` are refused before (build)."""
        assert locked is None and start is None
        k = self.target_rank
        axes = orth(rng.standard_normal((d, k)), rng)
        model = FactorModel(axes=axes, lengths=np.full(k, SHORT), mean=np.zeros(d), noise=1.0)
        return MissingState(
            step=0,
            model=model,
            first=model,
            plain=model,
            best=model,
            residual_norms=np.zeros(k),
            withholds=self.withheld > 0,
        )

    def query(self, state: MissingState) -> Query:
        """The part of a step that touches the data."""
        block = np.concatenate([state.model.loadings, state.model.mean[:, None]], axis=1)
        return Query(block, noise=state.model.noise, held_out=self.withheld if state.withholds else 0.0)

    def update(self, state: MissingState, released: Block) -> tuple[MissingState, Info]:
        """Lines 2 to 5."""
        if not state.step:
            return self._first_step(state, released)
        facts = ModelSums(self.target_rank).facts(released)
        least = state.log_likelihood - ROUNDING * abs(state.log_likelihood)
        if state.stretch and not facts["log_likelihood"] >= least:
            reach = max(state.stretch / FARTHER, LEAST_REACH)
            after = replace(state, step=state.step + 1, model=state.plain, stretch=0.0, second=False, reach=reach)
            return after, self._info(after)
        reach = min(state.reach * FARTHER, MOST_REACH) if state.stretch >= state.reach else state.reach
        state = replace(state, stretch=0.0, reach=reach)
        state = replace(state, log_likelihood=facts["log_likelihood"], entries=facts["entries"])
        state = self._measured(state, facts) if state.withholds else state
        if state.worse >= PATIENCE and facts["held"] >= LEAST_HELD:
            return self._stop_at_best(state)
        return self._em_step(state, next_model(state.model, released, state.floor))

    def _em_step(self, state: MissingState, model: FactorModel) -> tuple[MissingState, Info]:
        """To the ``model`` that a step has made; after the second of a pair also beyond it."""
        residuals = np.linalg.norm(state.model.times(model.axes) - model.axes * model.values, axis=0)
        change = float((residuals / model.values).max())
        after = replace(
            state, step=state.step + 1, first=state.model, model=model, second=True, residual_norms=residuals
        )
        if not state.second:
            after = replace(after, change=change, left=sys.float_info.max)
            return after, self._info(after)
        left = _distance_left(state.change, change)
        after = replace(after, second=False, change=change, left=left)
        if state.withholds and left <= NEAR:
            after = replace(after, withholds=False)
            return after, self._info(after)
        beyond, stretch = extrapolated(state.first, state.model, model, state.floor, state.reach)
        if beyond is not None:
            after = replace(after, model=beyond, plain=model, stretch=stretch)
        return after, self._info(after, left=math.inf if state.withholds else left)

    def _first_step(self, state: MissingState, released: Block) -> tuple[MissingState, Info]:
        """Line 2."""
        model = first_model(state.model, released)
        floor = LEAST_NOISE * model.noise
        after = replace(state, step=1, model=model, best=model, residual_norms=model.values, floor=floor)
        return after, self._info(after)

    def _measured(self, state: MissingState, facts: dict[str, float]) -> MissingState:
        """Record the error of the entries held out, which is that of the model before the step."""
        if not facts["held"]:
            return replace(state, withholds=False)
        error, square = facts["held_error"] / facts["held"], facts["held_square"] / facts["held"]
        state = replace(state, held=facts["held"], held_error=error, held_square=square)
        if error < state.best_error:
            return replace(state, best=state.model, best_error=error, worse=0)
        return replace(state, worse=state.worse + 1 if error > WORSE * state.best_error else 0)

    def _stop_at_best(self, state: MissingState) -> tuple[MissingState, Info]:
        """The model that predicts the entries held out best is the answer."""
        square = state.held_square or sys.float_info.min
        rose, before = state.held_error / square, state.best_error / square
        said = (
            f"stopped after {state.step + 1} steps: the likelihood still rises, and entries that were held out are "
            f"predicted worse ({before:.3g}, then {rose:.3g} of their variance is left over); the answer is the model "
            f"that predicts them best. Fewer than {self.target_rank} components may be all that these data tell"
        )
        error, left = state.best_error, sys.float_info.max
        after = replace(
            state, step=state.step + 1, model=state.best, second=False, held_error=error, went_back=True, left=left
        )
        return after, self._info(after, said=said)

    def _info(self, state: MissingState, *, said: str = "", left: float = math.inf) -> Info:
        return Info(
            ritz_values=state.found.values,
            residual_norms=state.residual_norms,
            asymmetry=0.0,
            precision="float64",
            finished=bool(said),
            said=said,
            left=left,
        )

    def finalize(self, state: MissingState) -> Result:
        """The answer, and what is known of it."""
        model, known = state.found, state.held > 0
        facts: dict[str, Any] = {
            "noise": model.noise,
            "log_likelihood": state.log_likelihood / state.entries if state.entries else None,
            "entries": state.entries,
            "left_to_go": state.left if state.left < sys.float_info.max else None,
            "last_change": float((state.residual_norms / model.values).max()),
            "held_out_entries": state.held,
            "held_out_error": float(np.sqrt(state.held_error)) if known else None,
            "held_out_share": state.held_error / state.held_square if known and state.held_square else None,
            "went_back": state.went_back,
        }
        return Result(
            values=model.values,
            vectors=model.axes,
            products=model.axes * model.values,
            residual_norms=state.residual_norms,
            facts=facts,
        )

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> MissingState:
        """The state of a checkpoint."""
        like = self.init(self.target_rank, rng=np.random.default_rng(0))
        return restored(like, arrays, scalars)


def _distance_left(before: float, last: float) -> float:
    """Estimate the distance left from two steps: the sum of all that follow if they shrink as these."""
    factor = min(last / before, SLOWEST) if before else 0.0
    return max(last, last * factor / (1 - factor))


def of_factor_model(facts: Mapping[str, Any], k: int) -> Assurance:
    """State how wrong k components of a factor model found by EM can be.

    Parameters
    ----------
    facts : of the answer: ``left_to_go``, ``last_change``, ``held_out_share``, ``went_back``.
    k : how many components.
    """
    left = facts["left_to_go"]
    which = the_components(k)
    if facts["went_back"]:
        said = f"The model of {which} is not the likeliest: EM was stopped where it predicts best."
    elif left is None:
        said = "EM has made fewer than two steps: its distance from convergence is unknown."
    else:
        said = (
            f"EM changed the values of {which} by at most {at_most_percent(facts['last_change'])} in its last step, "
            f"and about {at_most_percent(left)} is left to go (an estimate from two steps)."
        )
    if facts["held_out_share"] is not None:
        said += (
            f" The prediction of {facts['held_out_entries']:,.0f} entries that were held out at first leaves "
            f"{percent(min(facts['held_out_share'], 1.0))} of their variance unexplained."
        )
    said += (
        " There is no certificate: the likelihood can have other maxima, and the error against complete data is not "
        "known; values whose absence depends on their size bias the answer undetected."
    )
    return Assurance(said, {name: facts[name] for name in ("left_to_go", "last_change", "held_out_share")})
