"""When to stop, and why, as a sentence. A fixed count of steps is never called convergence."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np

DOUBLE_EPS = float(np.finfo(np.float64).eps)
MISSED = 0.01  # of the k-th value (or tol, if that is less): by no more may a value exceed it that a start could hide
PATIENCE = 5  # steps without progress, at the rounding or noise floor, before giving up


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Why a run ended; ``sentence`` says it to a person.

    ``name`` is one of converged, low_rank (what is left over is as little as was asked for, the components may still
    turn), held_out (to go on would predict worse what was held out), stagnated, max_steps, or, of a private run,
    released.
    """

    name: str
    sentence: str

    @property
    def converged(self) -> bool:
        return self.name == "converged"

    @property
    def answered(self) -> bool:
        """Say whether the answer is what was asked for: converged, the best there is, or all to be released."""
        return self.name in ("converged", "low_rank", "held_out", "released")


def default_tol(dtype: np.dtype) -> float:
    """Relative residual that is the default: a function of the dtype of the data."""
    return 1e-6 if np.dtype(dtype) == np.float32 else 1e-9


@dataclass(frozen=True, kw_only=True)
class StepView:
    """The public facts of a step that a stopping rule may look at."""

    step: int
    ritz_values: np.ndarray
    residual_norms: np.ndarray
    precision: str
    finished: bool = False  # the algorithm says that there is nothing more to ask
    settled: bool = True  # and that it has found what was to be found
    said: str = ""  # the same in a sentence
    excess: float = math.inf  # of what is left over, where a rule asks for it: stopping_rules.py
    missed: float = 0.0  # of a warm start: a value so large may still be hidden from it
    left: float = math.inf  # about how far values still have to go, where an algorithm says so


ARRAYS = ("ritz_values", "residual_norms")  # of a view
OF_INFO = (*ARRAYS, "precision", "finished", "settled", "said", "missed", "left")


def view_of(step: int, info: Any) -> StepView:
    """Make the view of a step for a rule, from what an algorithm says of it (its ``Info``)."""
    return StepView(step=step, **{name: getattr(info, name) for name in OF_INFO})


def remembered(view: StepView) -> dict[str, Any]:
    """A view as a checkpoint remembers it, see :func:`views_of`."""
    more: dict[str, Any] = {"excess": view.excess} if math.isfinite(view.excess) else {}
    more |= {"missed": view.missed} if view.missed else {}
    more |= {"left": view.left} if math.isfinite(view.left) else {}
    more |= {name: value for name, value in vars(view).items() if name not in ("excess", "missed", "left")}
    return more | {name: more[name].tolist() for name in ARRAYS}


def views_of(history: list[dict[str, Any]]) -> list[StepView]:
    """The views of the steps that a checkpoint remembers."""
    known = [{f.name: line[f.name] for f in fields(StepView) if f.name in line} for line in history]
    return [StepView(**line | {name: np.array(line[name]) for name in ARRAYS}) for line in known]


class StoppingRule(Protocol):
    """Decides from public facts of the steps; part of the parameters of a run."""

    @property
    def tol(self) -> float: ...
    @property
    def max_steps(self) -> int: ...
    @property
    def until_share(self) -> float | None: ...
    def __call__(self, history: list[StepView]) -> Outcome | None: ...
    def relative(self, view: StepView) -> np.ndarray: ...
    def unresolved(self, view: StepView, values: np.ndarray) -> Outcome | None: ...


@dataclass(frozen=True, kw_only=True)
class FixedSteps:
    """Stop after ``max_steps`` releases, whatever they say: of a private run the number is public, fixed in advance."""

    max_steps: int
    promise: str  # what was promised, in words
    noun: str = "product"  # what is released each time

    tol: ClassVar[float] = 0.0
    until_share: ClassVar[None] = None

    def __call__(self, history: list[StepView]) -> Outcome | None:
        """Released, after the last step; before, None."""
        if not history or history[-1].step < self.max_steps:
            return None
        noun = self.noun if self.max_steps == 1 else f"{self.noun}s"
        return Outcome(name="released", sentence=f"released {self.max_steps} noisy {noun}: {self.promise}")

    def relative(self, view: StepView) -> np.ndarray:
        """Residuals of what was released over its values: post-processing, and mostly noise."""
        size = np.abs(view.ritz_values)
        return np.asarray(view.residual_norms / np.where(size > 0, size, np.inf))

    def unresolved(self, view: StepView, values: np.ndarray) -> None:
        """Nothing to find: there is no further pass."""


@dataclass(frozen=True, kw_only=True)
class UntilFinished(FixedSteps):
    """Stop where the algorithm has asked all that it was to ask: at most ``max_steps`` releases, often exactly."""

    def __call__(self, history: list[StepView]) -> Outcome | None:
        """Released, once the algorithm says that it is finished."""
        if not history or not history[-1].finished:
            return None
        return Outcome(name="released", sentence=f"made {history[-1].step} releases: {self.promise}")


@dataclass(frozen=True, kw_only=True)
class UntilSettled:
    """Stop where the algorithm knows its own end and says it: tensor power methods; or after ``max_steps``."""

    tol: float
    max_steps: int

    until_share: ClassVar[None] = None

    def __call__(self, history: list[StepView]) -> Outcome | None:
        """Converged, if what was asked for is found; stagnated, if the algorithm ended without."""
        if not history:
            return None
        now = history[-1]
        if now.finished:
            return Outcome(name="converged" if now.settled else "stagnated", sentence=now.said)
        if now.step < self.max_steps:
            return None
        found = int(np.count_nonzero(now.ritz_values))
        return Outcome(
            name="max_steps",
            sentence=f"not converged: max_steps = {self.max_steps} reached with {found} of {len(now.ritz_values)} "
            "components found so far; continue with `npmdask resume STORE --max-steps N` or use more restarts",
        )

    def relative(self, view: StepView) -> np.ndarray:
        """Residuals over weights; of a weight that is zero 1 until the end, and 0 from then on."""
        size = np.abs(view.ritz_values)
        zero = size == 0
        share = np.asarray(view.residual_norms / np.where(zero, 1.0, size))
        missing = 0.0 if view.finished else 1.0
        return np.where(zero, missing, share)

    def unresolved(self, view: StepView, values: np.ndarray) -> None:
        """Nothing to find: there is no further pass."""


@dataclass(frozen=True, kw_only=True)
class ResidualRule:
    """Stop when ``||A v_i - theta_i v_i|| <= tol |theta_i|`` for every wanted pair, measured in float64.

    The residual costs nothing (products already made) and bounds the error: some eigenvalue of A lies within
    it of theta_i. A pair whose value is zero to rounding counts as found (rank-deficient data). After a warm start
    besides, when its random columns would have shown a larger value that the start cannot show (99 %). Gives up
    when the residuals sit at the floor of rounding or noise without progress, or after ``max_steps``.
    """

    tol: float
    max_steps: int
    d: int
    noise_stddev: float = 0.0
    squared: bool = False  # theta is the square of the value that is asked for (singular values)
    least_steps: int = 1  # until the algorithm has vectors that its values are of, whatever ``max_steps``

    @property
    def until_share(self) -> float | None:
        """A share of the variance that ends the run too (stages of a search); part of a run's parameters."""
        return None

    def __call__(self, history: list[StepView]) -> Outcome | None:
        """The outcome after the last step of ``history``, or None to go on."""
        if not history:
            return None
        now = history[-1]
        if now.precision == "float64" and self._open_pairs(now).size == 0 and not self._may_miss(now):
            return Outcome(name="converged", sentence=self._converged(now))
        if self._has_stagnated(history):
            return Outcome(name="stagnated", sentence=self._floor(now))
        if now.step >= max(self.max_steps, self.least_steps):
            return Outcome(name="max_steps", sentence=self._max_steps_text(history))
        return None

    def relative(self, view: StepView) -> np.ndarray:
        """Residuals over values; 0 where the value is zero to rounding, inf where it is 0 and that is not sure."""
        size = np.abs(view.ritz_values)
        zero = self._is_zero(view)
        with np.errstate(divide="ignore", over="ignore"):
            return np.where(zero, 0.0, view.residual_norms / np.where(zero, 1.0, size))

    def unresolved(self, view: StepView, values: np.ndarray) -> Outcome | None:
        """The outcome if a value that was taken for zero turns out, from A V itself, not to be zero.

        ``values``: singular values of the last pass, which resolve what eigenvalues of ``A^T A`` cannot.
        """
        floor = 64 * DOUBLE_EPS * self.d**0.5 * float(values.max(initial=0.0))
        open_ = int((self._is_zero(view) & (values > floor)).sum())
        if not open_:
            return None
        return Outcome(
            name="stagnated",
            sentence=f"not converged: {open_} of {len(values)} singular values are not zero but below "
            f"{(4 * DOUBLE_EPS * self.d**0.5) ** 0.5:.0e} of the largest, where float64 cannot resolve their vectors "
            "through A^T A; use a smaller target_rank, or npmdask.singular_triplets",
        )

    def _rounding(self, view: StepView) -> float:
        largest = float(np.max(np.abs(view.ritz_values), initial=0.0))
        return 4 * DOUBLE_EPS * self.d**0.5 * largest

    def _is_zero(self, view: StepView) -> np.ndarray:
        floor = self._rounding(view)
        return (np.abs(view.ritz_values) <= floor) & (view.residual_norms <= floor)

    def _open_pairs(self, view: StepView) -> np.ndarray:
        return np.flatnonzero(self.relative(view) > self.tol)

    def _may_miss(self, view: StepView) -> bool:
        """Say whether a value larger than the k-th may be missed, in a direction unknown to the start of the run.

        In float32 arithmetic that is not asked: a run ends in float64.
        """
        kth = float(np.abs(view.ritz_values).min(initial=math.inf))
        return view.missed > max((1 + min(self.tol, MISSED)) * kth, self._rounding(view))

    def _has_stagnated(self, history: list[StepView]) -> bool:
        if len(history) <= PATIENCE or any(v.precision != "float64" for v in history[-PATIENCE - 1 :]):
            return False
        now = history[-1]
        if self._open_pairs(now).size == 0:
            return False
        floor = 100 * self._rounding(now) + 10 * self.noise_stddev * self.d**0.5
        if (now.residual_norms[self._open_pairs(now)] > floor).any():
            return False
        worst = [float(self.relative(v).max()) for v in history]
        return min(worst[-PATIENCE:]) > 0.9 * min(worst[:-PATIENCE])

    def _converged(self, view: StepView) -> str:
        worst = float(self.relative(view).max(initial=0.0))
        rank = int((~self._is_zero(view)).sum())
        steps = f"{view.step} step{'s' * (view.step != 1)}"
        said = f"converged after {steps}: every relative residual is at most {worst:.1e} (tol {self.tol:.1e})"
        if rank < len(view.ritz_values):
            limit = 4 * DOUBLE_EPS * self.d**0.5
            below = f"{limit**0.5 if self.squared else limit:.0e}"
            said += f"; the data have numerical rank {rank}, fewer than the {len(view.ritz_values)} asked for"
            said += f" (values below {below} of the largest cannot be distinguished from zero)"
        return said

    def _floor(self, view: StepView) -> str:
        worst = float(self.relative(view).max())
        if self.noise_stddev:
            cause, remedy = "the noise of the mechanism", "less noise (stddev) or a larger tol"
        else:
            cause = "rounding in float64 for values this far below the largest"
            remedy = "a smaller target_rank or a larger tol"
        return (
            f"not converged: stopped after {view.step} steps because the relative residual {worst:.1e} is at the "
            f"floor set by {cause} and no longer falls (tol {self.tol:.1e}); use {remedy}"
        )

    def _max_steps_text(self, history: list[StepView]) -> str:
        now = history[-1]
        worst = float(self.relative(now).max())
        if self._open_pairs(now).size == 0 and self._may_miss(now):
            return (
                f"not converged: max_steps = {self.max_steps} reached; every pair has a relative residual of at most "
                f"{worst:.1e}, but the random columns added to the start have not yet ruled out a larger value in a "
                "direction that the start does not contain; continue with `npmdask resume STORE --max-steps N` or "
                "leave `start` out"
            )
        return (
            f"not converged: max_steps = {self.max_steps} reached with {self._open_pairs(now).size} of "
            f"{len(now.ritz_values)} pairs not converged, worst relative residual {worst:.1e} (tol {self.tol:.1e}); "
            "continue with `npmdask resume STORE --max-steps N` or raise iteration_rank"
        )
