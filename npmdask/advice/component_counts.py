"""Count the components that each criterion recommends, from a stored Gram or a finished run, and why they differ."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from npmdask.advice.dimensions import (
    NO_NOISE,
    broken_stick,
    checked_spectrum,
    leading,
    marchenko_pastur_edge,
    noise_variance,
    optimal_threshold,
    parallel_analysis,
)
from npmdask.core.numerics.domains import whole_seed
from npmdask.core.runs.postprocessing import CountAdvice
from npmdask.errors import BadInputError, require

ASK_A_GRAM = "form a Gram matrix (`npmdask gram SOURCE G`) and use that"
WEIGHTED = (
    "the rows are weighted, and what noise makes of them depends on how many of them count alike, which weights do not "
    "say: run without row_weights"
)


@dataclass(frozen=True, kw_only=True)
class KnownSpectrum:
    """Facts that criteria need: leading ``values`` (variances), as many of ``d`` as are known, and the number of rows.

    ``rows``: None where they are weighted. ``total``: of the values over all d, None if not known. ``variances``: of
    the columns, for parallel analysis. ``left_out``: log-likelihoods of groups of rows, of each (a row) with 0, 1, ...
    components of the others.
    """

    values: np.ndarray
    d: int
    rows: int | None
    centred: bool
    total: float | None
    variances: np.ndarray | None = None
    left_out: np.ndarray | None = None

    @property
    def whole(self) -> bool:
        """All values are known."""
        return len(self.values) == self.d

    @property
    def free(self) -> int | None:
        """Degrees of freedom; None of weighted rows."""
        return None if self.rows is None else self.rows - self.centred


def advise(known: KnownSpectrum, *, share: float, noise: float | None, seed: int) -> tuple[CountAdvice, ...]:
    """List what each criterion says, in a fixed order."""
    whole_seed(seed)
    require(isinstance(share, Real) and 0 < share < 1, f"share = {share!r} must lie strictly between 0 and 1, like 0.9")
    if noise is not None and not (isinstance(noise, Real) and 0 < noise < np.inf):
        raise BadInputError(f"noise = {noise!r} is the variance of an entry: it must be positive")
    if known.free is not None and known.free < 2:
        raise BadInputError(f"{known.rows} rows say nothing of the number of components: at least 3 are needed")
    values = checked_spectrum(known.values)
    return (
        _share(known, values, share),
        _stick(known, values),
        *_of_noise(known, values, noise),
        _parallel(known, values, seed),
        _held_out(known),
    )


def _count_above(known: KnownSpectrum, values: np.ndarray, thresholds: np.ndarray | float, **said: Any) -> CountAdvice:
    found = leading(values, thresholds)
    at = np.broadcast_to(np.asarray(thresholds), (len(values),))
    return CountAdvice(
        components=found,
        at_least=found == len(values) < known.d,
        threshold=float(at[min(found, len(at) - 1)]),
        **said,
    )


def _no_advice(criterion: str, why: str) -> CountAdvice:
    return CountAdvice(criterion=criterion, components=None, reason=why)


def _share(known: KnownSpectrum, values: np.ndarray, share: float) -> CountAdvice:
    name = f"{share:.4g} of the variance"
    if not known.total:
        return _no_advice(name, f"the variance of all columns is not known: {ASK_A_GRAM}")
    enough = np.cumsum(values) >= share * known.total * (1 - 1e-12)
    reached = bool(enough.any())
    return CountAdvice(
        criterion=name,
        components=int(enough.argmax()) + 1 if reached else len(values),
        at_least=not reached,
        reason="counts noise as well: the more columns of noise there are, the more components it takes",
    )


def _stick(known: KnownSpectrum, values: np.ndarray) -> CountAdvice:
    if not known.total:
        return _no_advice("broken stick", f"the variance of all columns is not known: {ASK_A_GRAM}")
    return _count_above(
        known,
        values,
        broken_stick(known.d)[: len(values)] * known.total,
        criterion="broken stick",
        reason="the variance is shared out at random; ignores the number of rows, and as a rule finds too few",
    )


def _of_noise(known: KnownSpectrum, values: np.ndarray, noise: float | None) -> tuple[CountAdvice, CountAdvice]:
    names = ("Marchenko-Pastur edge", "Gavish-Donoho threshold")
    said, free = "given", known.free
    if free is None:
        return _no_advice(names[0], WEIGHTED), _no_advice(names[1], WEIGHTED)
    if noise is None:
        if not known.whole:
            why = f"the noise is estimated from the median of all values, and {len(values)} of {known.d} are known: "
            why += f"give its variance (--noise), or {ASK_A_GRAM}"
            return _no_advice(names[0], why), _no_advice(names[1], why)
        noise, said = noise_variance(values, free), "estimated from the median"
        if noise <= NO_NOISE * values[0]:
            why = "half of the values and more are zero, so that their median says nothing of the noise: give its "
            why += "variance (--noise), or leave out columns that are constant or repeat others"
            return _no_advice(names[0], why), _no_advice(names[1], why)
    of = f"noise of variance {noise:.4g} ({said}), independent and alike in all columns"
    return (
        _count_above(
            known,
            values,
            marchenko_pastur_edge(known.d, free, noise),
            criterion=names[0],
            reason=f"what the largest value of noise exceeds in 5 of 100 cases; {of}",
        ),
        _count_above(
            known,
            values,
            optimal_threshold(known.d, free, noise),
            criterion=names[1],
            reason=f"what lessens the error of the data denoised, more than what can be detected; {of}",
        ),
    )


def _parallel(known: KnownSpectrum, values: np.ndarray, seed: int) -> CountAdvice:
    name = "parallel analysis"
    if known.free is None:
        return _no_advice(name, WEIGHTED)
    if known.variances is None:
        return _no_advice(name, f"the variances of the columns are not known: {ASK_A_GRAM}")
    return _count_above(
        known,
        values,
        parallel_analysis(known.variances, known.free, seed=seed)[: len(values)],
        criterion=name,
        reason="95 % of simulations of independent columns with the same variances are below, place by place; rows "
        "independent; a large component hides small ones, where columns are not scaled",
    )


def _held_out(known: KnownSpectrum) -> CountAdvice:
    name = "held-out likelihood"
    if known.left_out is None:
        return _no_advice(name, "no groups of rows can be left out: form a Gram of several (by_chunks, or a merge)")
    told = np.isfinite(known.left_out).all(axis=0)
    most = len(told) if told.all() else int(told.argmin())
    mean = known.left_out[:, :most].mean(axis=0)
    if not most or (most < known.d and int(mean.argmax()) == most - 1):
        why = "the more components, the likelier are rows that were left out, until no variance is left for noise"
        return _no_advice(name, why)
    return CountAdvice(
        criterion=name,
        components=int(mean.argmax()),
        reason="what makes rows likeliest that were left out, by probabilistic PCA of the others "
        f"({len(known.left_out)} parts in turn); noise alike in all columns, groups of rows independent",
    )


def differences(advice: tuple[CountAdvice, ...]) -> str:
    """Why they differ, in a sentence."""
    told = [one for one in advice if one.components is not None]
    if not told:
        return "the known values do not allow an answer"
    least, most = (pick(one.components or 0 for one in told) for pick in (min, max))
    if all(one.at_least for one in told):
        return f"all {most} known components pass, and there may be more: a larger target rank shows where it ends"
    if least == most:
        return f"all applicable criteria agree on {least}"
    return (
        f"they differ ({least} to {most}) as they ask different questions: a share counts noise as well, the broken "
        "stick ignores the number of rows, the Marchenko-Pastur edge asks what can be distinguished from noise, "
        "Gavish-Donoho "
        "what is worth keeping, parallel analysis what correlations of independent columns do not explain, the "
        "likelihood what predicts other rows. Where noise is correlated or has heavy tails, the Marchenko-Pastur edge, "
        "Gavish-Donoho and parallel analysis find too many; where it is unlike in columns, the likelihood does"
    )
