"""From the moments to the likelihood: a few passes of EM, or of FastICA, and what they changed.

Each pass is a stage of the job: killed inside it goes on there, and what it found is kept. A step is taken if it makes
larger what it was made for: the log-likelihood of a mixture (by the theorem of EM, and measured by the next pass), the
contrast of sources (measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npmdask.numerics.likelihood import (
    CONTRASTS,
    LEAST_ROWS,
    ContrastMeans,
    Expectation,
    SphericalGaussians,
    ascent,
    component_shifts,
    maximized,
    orthonormal,
    rotation,
)
from npmdask.numerics.subspaces import Block
from npmdask.operators.likelihood_sums import MixtureExpectations, SourceContrasts
from npmdask.operators.view import View
from npmdask.runs.stages import Stages

PASSES = 3  # at most, unless refine= says otherwise
SETTLED = 0.1  # sampling errors: when no more is left to go, the rows do not tell where to
UNSETTLED = 1.0  # sampling errors that are left to go from which on it is a warning
FAR = 10.0  # sampling errors between the moments and the likelihood: the rows are hardly what the model says
SUM_TOLERANCE = 0.25  # of weights of the moments, beside 1: a component that is none adds its own to their sum
ROUNDING = 1e-9  # of a log-likelihood or a contrast: a fall by less is rounding
SPREAD = 10.0  # a variance that the moments give is at most so many times the mean one, and at least its inverse
NARROWEST = 0.01  # of the mean variance: the least that EM gives a component
POINTS = 1e-10  # variance over the squared distance of means: below it differences of squares have no digits


def skipped(method: str, reason: str) -> dict[str, Any]:
    """Facts of a refinement that was not made."""
    return {"method": method, "passes": 0, "settled": False, "reason": reason}


def too_narrow(model: SphericalGaussians, mean: np.ndarray) -> str:
    """Return a sentence where components are points beside the distances between them; empty where they are not."""
    farthest = np.square(model.means - mean[:, None]).sum(axis=0).max()
    narrow = not float(model.variances.min()) > POINTS * farthest
    return "the rows of a component do not scatter: their mean is as exact as arithmetic" if narrow else ""


def starts(means: Block, weights: np.ndarray, variance: float, spread: np.ndarray) -> list[SphericalGaussians]:
    """Return what the moments know of a mixture: with one variance for all, and one for each.

    ``spread`` is ``sum w_i v_i mu_i``: with independent means it tells every v_i. Where they are equal the first is the
    better estimate; the likelihood of the first pass says which one goes on.
    """
    shares = weights / weights.sum()
    each = np.linalg.lstsq(means, spread, rcond=None)[0] / weights
    each = np.clip(each, variance / SPREAD, variance * SPREAD)
    return [
        SphericalGaussians(means=means, weights=shares, variances=variances)
        for variances in (np.full(len(weights), variance), each)
    ]


def refine_mixture(
    job: Stages, mean: np.ndarray, tried: Sequence[SphericalGaussians], most: int
) -> tuple[SphericalGaussians, dict[str, Any]]:
    """Return the mixture after at most ``most`` steps of EM from the likeliest of ``tried``, and what changed."""
    rows, offset = job.source.shape[0], mean[:, None]
    floor = NARROWEST * float(tried[0].variances.mean())
    models = [_shifted(model, -offset) for model in tried]
    found = _expect(job, mean, models, 1, most)
    first = max(range(len(models)), key=lambda i: found[i].log_likelihood)
    start, here = models[first], found[first]
    before, held, passes, steps = here.log_likelihood, start, 1, Steps()
    while True:
        model = maximized(held, here, floor)
        after = here.log_likelihood + ascent(held, model, here)
        steps.add(float(component_shifts(held, model, rows).max()))
        if steps.left <= SETTLED or passes == most:
            break
        passes += 1
        (there,) = _expect(job, mean, [model], passes, most)
        if there.log_likelihood < here.log_likelihood - ROUNDING * max(abs(here.log_likelihood), rows):
            model, after = held, here.log_likelihood
            break
        held, here = model, there
    return _shifted(model, offset), {
        "method": "EM",
        "passes": passes,
        "settled": steps.left <= SETTLED,
        "log_likelihood_before": before / rows,
        "log_likelihood_after": after / rows,
        "largest_change": float(component_shifts(start, model, rows).max()),
        "left_to_go": steps.left,
        "narrowest": int((model.variances <= floor).sum()),
        "single_rows": int((model.weights * rows < LEAST_ROWS).sum()),
        "reason": "",
    }


SHRINKING = 0.95  # a factor above it is taken for this one: two steps do not tell it from 1


class Steps:
    """How far is left to go, by the last steps: those of EM shrink by one factor (Dempster et al. 1977, section 3)."""

    def __init__(self) -> None:
        self._lengths: list[float] = []

    def add(self, length: float) -> None:
        self._lengths.append(length)

    @property
    def left(self) -> float:
        """Sampling errors; of a single step as if the next ones halved, of steps that grow the last one at least."""
        last = self._lengths[-1]
        if len(self._lengths) < 2 or last == 0:
            return last
        factor = last / self._lengths[-2]
        return last * factor / (1 - factor) if factor < SHRINKING else last / (1 - SHRINKING)


def _shifted(model: SphericalGaussians, offset: np.ndarray) -> SphericalGaussians:
    return SphericalGaussians(means=model.means + offset, weights=model.weights, variances=model.variances)


def _expect(
    job: Stages, mean: np.ndarray, models: Sequence[SphericalGaussians], number: int, most: int
) -> list[Expectation]:
    """One pass: the expectations of models whose means are about ``mean``."""
    job.session.told.on_stage(f"refinement: EM, pass {number} of at most {most}")
    operator = MixtureExpectations(
        reader=job.reader,
        view=View(shift=mean),
        weights=np.stack([model.weights for model in models]),
        variances=np.stack([model.variances for model in models]),
    )
    block = np.ascontiguousarray(np.concatenate([model.means for model in models], axis=1))
    return operator.expectations(job.gather(f"refinement-{number}", operator, block, (number, most)))


def mixture_warnings(facts: dict[str, Any]) -> list[str]:
    """What a refinement of a mixture says against it, in sentences."""
    said = []
    if facts["left_to_go"] > UNSETTLED:
        said.append(
            f"EM has not settled after {facts['passes']} passes: about {facts['left_to_go']:.2g} sampling errors are "
            f"left to go; refine={10 * facts['passes']} goes farther, in another store"
        )
    if facts["largest_change"] > FAR:
        said.append(
            f"EM moved a component by {facts['largest_change']:.2g} times its sampling error from where "
            "the moments had it: it is rare, or the rows are no round clouds"
        )
    if facts["single_rows"]:
        said.append(f"{facts['single_rows']} components explain less than two rows each: outliers, and no clouds")
    if facts["narrowest"]:
        said.append(
            f"{facts['narrowest']} components shrank to a tenth of the others' deviation, which is the least allowed: "
            "single or equal rows, whose likelihood has no bound, and no clouds"
        )
    return said


def refinement_sentence(facts: dict[str, Any]) -> str:
    """Return what a refinement changed, in a sentence."""
    method, passes = facts["method"], f"{facts['passes']} pass{'es' * (facts['passes'] != 1)}"
    if facts["reason"]:
        return f"{method} changed nothing ({passes}): {facts['reason']}"
    change = f"by at most {facts['largest_change']:.2g} times their sampling error"
    if method == "FastICA":
        return f"{method} turned the components {change} in {passes}"
    before, after = facts["log_likelihood_before"], facts["log_likelihood_after"]
    return (
        f"{method} raised the log-likelihood of a row from {before:.6g} to at least {after:.6g} in {passes}, and moved "
        f"the components {change}"
    )


# Independent components.


ORTHOGONAL = (
    0.5  # the smallest singular value of the directions that the moments found, from which on they are so nearly
)


def refine_sources(
    job: Stages, mean: np.ndarray, whitening: Block, found: Block, most: int
) -> tuple[Block, np.ndarray | None, dict[str, Any]]:
    """Return the directions after at most ``most`` passes of FastICA from ``found`` (k x r), their excess kurtoses as
    last measured (None: nothing changed), and what changed.

    A step is taken when the next pass finds the contrast larger, or when it is shorter than a tenth of the sampling
    error: of one pass alone no other step is taken.
    """
    rows, (start, least) = job.source.shape[0], orthonormal(found)
    if least < ORTHOGONAL:
        return found, None, skipped("FastICA", "the moments gave directions that are far from orthogonal")
    basis = candidate = start
    step = here = None
    steps, gained, passes = 0, 0.0, 0
    while True:
        there = _contrast(job, mean, whitening, candidate, passes + 1, most)
        passes += 1
        if step is not None and here is not None:
            rise = step.objective(there) - step.objective(here)
            if rise < -ROUNDING * float(np.abs(step.signs).sum()):
                break
            steps, gained = steps + 1, gained + rise
        basis, here = candidate, there
        step = rotation(basis, here, rows)
        if (step.chosen < 0).all():
            return (
                found,
                None,
                skipped("FastICA", "no contrast distinguishes a source from Gaussian noise") | {"passes": passes},
            )
        candidate = step.basis
        if step.change.max() <= SETTLED or passes == most:
            break
    settled = bool(step.change.max() <= SETTLED)
    basis = candidate if settled else basis
    facts = {
        "method": "FastICA",
        "passes": passes,
        "settled": settled,
        "contrasts": [CONTRASTS[i] if i >= 0 else "none" for i in step.chosen],
        "contrast_gain": gained,
        "largest_change": float((np.linalg.norm(basis - start, axis=0) / step.errors).max()),
        "left_to_go": float(step.change.max()),
        "reason": "",
    }
    if not steps and not settled:
        return found, None, facts
    return basis, here.kurtoses, facts


def _contrast(job: Stages, mean: np.ndarray, whitening: Block, basis: Block, number: int, most: int) -> ContrastMeans:
    """One pass: the contrasts of the sources along ``basis``."""
    job.session.told.on_stage(f"refinement: FastICA, pass {number} of at most {most}")
    operator = SourceContrasts(reader=job.reader, view=View(shift=mean), whitening=whitening)
    return operator.means(job.gather(f"refinement-{number}", operator, np.ascontiguousarray(basis), (number, most)))
