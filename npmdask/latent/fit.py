"""Samples to mixtures of Gaussians or independent components, by moments: the stages, and the answer that is kept.

After the moments come a few passes of EM, or of FastICA, towards the likelihood. Each pass is a stage of the job:
killed inside it goes on there, and what it found is kept. A step is taken if it makes larger what it was made for: the
log-likelihood of a mixture (by the theorem of EM, and measured by the next pass), the contrast of sources (measured).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import ColumnMoments
from npmdask.core.operators.view import View
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.session import Session
from npmdask.core.runs.stages import MomentOperator, job_spec
from npmdask.core.storage.bundle import Arrays
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.readers import checksum_table
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, require
from npmdask.latent.likelihood import (
    CONTRASTS,
    LEAST_ROWS,
    ContrastMeans,
    Expectation,
    SphericalGaussians,
    ascent,
    component_shifts,
    log_sums,
    maximized,
    orthonormal,
    rotation,
)
from npmdask.latent.likelihood_sums import MixtureExpectations, SourceContrasts
from npmdask.latent.sample_moments import MixtureSpread, MixtureTriples, SampleFourth
from npmdask.latent.third_moment import cube_of, polarising_block
from npmdask.manage.staged_job import answered
from npmdask.tensors.moments import IndependentSources, SphericalMixture, whiten
from npmdask.tensors.stages import Decomposed, Stages

# From the moments to the likelihood.

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


def _narrow_reason(model: SphericalGaussians, mean: np.ndarray) -> str:
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


def _refine_mixture(
    job: Stages, mean: np.ndarray, tried: Sequence[SphericalGaussians], most: int
) -> tuple[SphericalGaussians, dict[str, Any]]:
    """Return the mixture after at most ``most`` steps of EM from the likeliest of ``tried``, and what changed."""
    rows, offset = job.source.shape[0], mean[:, None]
    floor = NARROWEST * float(tried[0].variances.mean())
    models = [_shifted(model, -offset) for model in tried]
    found = _expectation_pass(job, mean, models, 1, most)
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
        (there,) = _expectation_pass(job, mean, [model], passes, most)
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
    """Distance left to go, from the last steps: those of EM shrink by one factor (Dempster et al. 1977, section 3)."""

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


def _expectation_pass(
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


def _mixture_warnings(facts: dict[str, Any]) -> list[str]:
    """List the objections of a refinement to its mixture, in sentences."""
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


# the smallest singular value of the directions that the moments found, from which on they are nearly orthogonal
ORTHOGONAL = 0.5


def _refine_sources(
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


# What jobs on samples share: opening, binding, column means, and the answer that is kept.


PAIRS_TOL = 1e-9  # relative residual of leading pairs: samples say less
TENSOR_TOL = 1e-9
ANSWER = "result"


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """Parameters of a question about samples: public, part of a run's identity.

    ``components`` k; ``restarts``, ``iterations``, ``harvest`` as of the tensor power method; ``seed`` of the starts;
    ``refine``: the most passes from the answer of the moments towards that of the likelihood (0: none; None: 3, and of
    a store that was begun already as many as it was begun with).
    """

    components: int
    restarts: int | None = None
    iterations: int | None = None
    harvest: bool | None = None
    seed: int = 0
    refine: int | None = None

    def __post_init__(self) -> None:
        if self.refine is not None and (type(self.refine) is not int or self.refine < 0):
            raise BadInputError(
                f"refine = {self.refine!r} must be a whole number of passes: use 0 for the moments alone, or leave "
                f"it out for at most {PASSES}"
            )
        require(self.components >= 1, f"components = {self.components} must be at least 1")
        require(self.seed >= 0, f"seed = {self.seed} must not be negative")

    def options(self) -> dict[str, Any]:
        """Return the options given to the tensor power method."""
        asked = {"restarts": self.restarts, "iterations": self.iterations, "harvest": self.harvest}
        return {name: value for name, value in asked.items() if value is not None}


def run_job(
    name: str,
    source: Any,
    components: int,
    store: str | Path,
    resources: Resources | None,
    observer: Observer | None,
    solve: Callable[[Stages, np.ndarray, SampleRequest], tuple[Arrays, dict[str, Any]]],
    **asked: Any,
) -> tuple[Arrays, dict[str, Any]]:
    """Run the job ``name`` in ``store``, go on with it, or read its answer. ``solve`` is given the column means.

    Raises
    ------
    BadInputError
        Data that are no samples, or that do not have so many components.
    RefusedError
        The store belongs to other data or parameters; the memory does not suffice.
    """
    request = SampleRequest(components=components, **asked)
    opened = _require_samples(open_source(source, None if isinstance(source, str | Path) else "samples"), request)
    with RunStore(store) as held:
        begun = held.read_spec()
        if request.refine is None:
            request = replace(request, refine=PASSES if begun is None else begun["algorithm"].get("refine", 0))
        spec = _spec(name, opened, request)
        if begun is not None and request.refine == 0 and "refine" not in begun["algorithm"]:
            del spec["algorithm"]["refine"]  # of a version that knew no refinement

        def solved(session: Session) -> tuple[Arrays, dict[str, Any]]:
            job = Stages(session, opened, request.seed)
            arrays, meta = solve(job, with_means(job), request)
            meta["facts"]["warnings"] = [*opened.notes, *meta["facts"]["warnings"]]
            return arrays, meta

        return answered(held, spec, ANSWER, solved, resources or Resources(), observer or Observer(), once=opened.kept)


def with_means(job: Stages) -> np.ndarray:
    """The means of the columns, as recorded at ingest or from one pass; later passes see them recorded, and the same
    bytes."""
    if job.source.column_mean is None:
        moments = ColumnMoments(reader=job.source.reader)
        surveyed = moments.named(job.gather("means", moments, np.zeros((1, 1))))
        found = job.session.store.read_part("means")
        assert found is not None
        known = job.source.with_checksums(checksum_table(found[0]))
        job.source = replace(known, statistics=ColumnStatistics.of(surveyed, known.shape[0], sparse=known.of_csr))
    assert job.source.column_mean is not None
    return job.source.column_mean


def _require_samples(source: Source, request: SampleRequest) -> Source:
    require(
        source.reader.layout != "gram",
        f"{source.path} is the store of a run or a Gram, but rows are needed here: give the data that it was made from",
    )
    if source.reader.layout != "dense" or source.kind not in ("samples", "matrix"):
        raise BadInputError(
            f"{source.path} is of kind {source.kind}: mixtures and independent components are found in samples, dense "
            "rows of numbers (`npmdask ingest --kind samples`)"
        )
    n, d = source.shape[0], source.dimension
    if request.components > min(n, d):
        raise BadInputError(
            f"components = {request.components} of {n} x {d} samples: at most {min(n, d)} can be distinguished by "
            "moments"
        )
    return replace(source, kind="samples")


def _spec(name: str, source: Source, request: SampleRequest) -> dict[str, Any]:
    data = {"fingerprint": source.fingerprint, "shape": list(source.shape), "kind": name}
    stop = {"pairs_tol": PAIRS_TOL, "tensor_tol": TENSOR_TOL}
    return job_spec(data, {"name": name, **asdict(request)}, stop, request.seed)


# Mixtures of spherical Gaussians by moments (Hsu and Kakade 2013; Anandkumar et al. 2014, theorem 3.2).
#
# ::
#
#     1. covariance       leading directions of the centred rows: the means differ in these only
#     2. spread           one pass: sigma^2 and M1 = sum w_i sigma_i^2 mu_i, in the others      MixtureSpread
#     3. whitening        leading pairs of E[x x^T], less sigma^2: those of M2
#     4. M3(W, W, W)      one pass, by polarisation                                             MixtureTriples
#     5. decomposition    the tensor power method, then back to means and weights


MIXTURE = "mixture"


@dataclass(frozen=True, kw_only=True)
class GaussianMixture:
    """``means`` (d x k), ``weights`` (k), ``variance`` (of an entry, the mean over the components), ``variances`` (k),
    and what else is known.

    Of the moments alone (``refine=0``) weights are as they give them, not of sum 1, and all variances are the mean one.
    """

    means: Block
    weights: np.ndarray
    variance: float
    variances: np.ndarray
    facts: dict[str, Any] = field(default_factory=dict)

    def responsibilities(self, rows: np.ndarray) -> Block:
        """(n x k) probabilities of the components given each of ``rows`` (n x d)."""
        return self._log_sums(rows)[1]

    def log_densities(self, rows: np.ndarray) -> np.ndarray:
        """(n) logarithms of the density of the mixture at each of ``rows`` (n x d)."""
        return self._log_sums(rows)[0]

    def _log_sums(self, rows: np.ndarray) -> tuple[np.ndarray, Block]:
        centre, shares = self.means.mean(axis=1), self.weights / self.weights.sum()
        about, means = rows - centre, self.means - centre[:, None]
        model = SphericalGaussians(means=means, weights=shares, variances=self.variances)
        return log_sums(model.log_joint(np.square(about).sum(axis=1), about @ means)[0])


def fit_mixture(
    source: Any,
    components: int,
    *,
    store: str | Path,
    resources: Resources | None = None,
    observer: Observer | None = None,
    **asked: Any,
) -> GaussianMixture:
    """The means and weights of ``components`` spherical Gaussians, out of core; k < d, and means that are independent.

    Parameters
    ----------
    source : samples (n x d): a store, a Zarr array or a NumPy array.
    store : folder of the run; a killed one goes on from there.
    asked : further fields of :class:`npmdask.latent.fit.SampleRequest`.

    Raises
    ------
    BadInputError
        Data that are no samples, k not below d, or means that the second moment cannot tell apart.
    RefusedError
        The store belongs to other data or parameters; the memory does not suffice.
    """
    arrays, meta = run_job(MIXTURE, source, components, store, resources, observer, _solved_mixture, **asked)
    alike = {"variances": np.full(len(arrays["weights"]), meta["variance"])}
    return GaussianMixture(**alike | arrays, variance=meta["variance"], facts=meta["facts"])


def _solved_mixture(job: Stages, mean: np.ndarray, request: SampleRequest) -> tuple[Arrays, dict[str, Any]]:
    k, d = request.components, job.source.dimension
    if k >= d:
        raise BadInputError(
            f"{k} components in {d} dimensions (n_features = {d}): the common variance is measured in directions in "
            "which no two means differ, so there must be fewer components than columns"
        )
    spread = _measure_spread(job, mean, k)
    variance = float(spread[d, 0])
    pairs = job.leading_rows("whitening", k, PAIRS_TOL, center=False)
    white = whiten(pairs.values - variance, pairs.basis, k)
    operator = MixtureTriples(reader=job.reader, whitening=white.matrix, spread=spread[:d, 0])
    cube = cube_of(job.gather("triples", operator, polarising_block(k)))
    found = job.components_of_held(cube, k, TENSOR_TOL, request.options())
    kept = found.kept
    recovered = SphericalMixture().unwhiten(white, found.solution.values[kept], found.solution.basis[:, kept])
    order = np.argsort(-recovered.weights, kind="stable")
    facts: dict[str, Any] = {
        "spectrum": pairs.values.tolist(),
        "condition": white.condition,
        "warnings": [*([white.warning] if white.warning else []), *found.warnings("components")],
        "outcome": asdict(found.solution.outcome),
        "weights_sum": float(recovered.weights.sum()),
    }
    arrays = {"means": recovered.components[:, order], "weights": recovered.weights[order]}
    if request.refine:
        tried = starts(arrays["means"], arrays["weights"], variance, spread[:d, 0])
        reason = _unrefined_reason(found, facts["weights_sum"]) or _narrow_reason(tried[0], mean)
        if reason:
            facts["refinement"] = skipped("EM", reason)
        else:
            model, facts["refinement"] = _refine_mixture(job, mean, tried, request.refine)
            order = np.argsort(-model.weights, kind="stable")
            arrays = {name: getattr(model, name)[..., order] for name in ("means", "weights", "variances")}
            variance = float(model.weights @ model.variances)
            facts["warnings"] += _mixture_warnings(facts["refinement"])
    return arrays, {"variance": variance, "facts": facts}


def _unrefined_reason(found: Decomposed, total: float) -> str:
    """Why the moments are no place to start from, in a sentence; empty where they are."""
    asked, kept = len(found.solution.values), len(found.kept)
    if not found.solution.outcome.converged:
        return "the moments have not converged"
    if kept < asked:
        return (
            f"the moments tell {kept} of {asked} components: EM would give the rows of the others to these; if there "
            f"are no others, ask for {kept}"
        )
    if abs(total - 1) > SUM_TOLERANCE:
        return f"the weights of the moments sum to {total:.2g} in place of 1: there are no {asked} round clouds"
    return ""


def _measure_spread(job: Stages, mean: np.ndarray, k: int) -> np.ndarray:
    """(d + 1) x 1: M1 and sigma^2, measured across the k - 1 directions in which k means can differ."""
    differ: Block = np.zeros((len(mean), 0))
    if k > 1:
        differ = job.leading_rows("covariance", k - 1, PAIRS_TOL, center=True).basis
    return job.gather("spread", MixtureSpread(reader=job.reader, view=View(shift=mean)), differ)


# Independent component analysis by the fourth-order tensor power method: FastICA's cube step, as passes over Zarr.
#
# ::
#
#     1. whitening        leading pairs of the covariance of the centred rows
#     2. decomposition    M4(I, u, u, u) in white coordinates, a pass for all restarts at once     SampleFourth
#     3. back             columns of A; the sources of any rows are (x - mean) W V^-T
#
# ``d^4`` is never stored. Kurtoses have both signs: a component is chosen by the size of its score (Anandkumar et al.
# 2014, section 3.2.1; Hyvaerinen 1999 for the step).


INDEPENDENT = "ica"
NOISE = 3.0  # deviations of a kurtosis below which it tells of no source


@dataclass(frozen=True, kw_only=True)
class IndependentComponents:
    """``mixing`` A (d x k, up to the sign of each column), ``unmixing`` (d x k), ``mean`` (d), ``kurtoses`` (k)."""

    mixing: Block
    unmixing: Block
    mean: np.ndarray
    kurtoses: np.ndarray
    facts: dict[str, Any] = field(default_factory=dict)

    def sources(self, rows: np.ndarray) -> Block:
        """(n x k) the sources of ``rows`` (n x d), of variance 1."""
        return (rows - self.mean) @ self.unmixing


def fit_independent_components(
    source: Any,
    components: int,
    *,
    store: str | Path,
    resources: Resources | None = None,
    observer: Observer | None = None,
    **asked: Any,
) -> IndependentComponents:
    """``components`` independent components of samples, out of core; at most one source may be Gaussian.

    Parameters
    ----------
    source : samples (n x d): a store, a Zarr array or a NumPy array.
    store : folder of the run; a killed one goes on from there.
    asked : further fields of :class:`npmdask.latent.fit.SampleRequest`.

    Raises
    ------
    BadInputError
        Data that are no samples, or of lower rank than ``components``.
    RefusedError
        The store belongs to other data or parameters; the memory does not suffice.
    """
    arrays, meta = run_job(INDEPENDENT, source, components, store, resources, observer, _solved_components, **asked)
    return IndependentComponents(**arrays, facts=meta["facts"])


def _solved_components(job: Stages, mean: np.ndarray, request: SampleRequest) -> tuple[Arrays, dict[str, Any]]:
    k = request.components
    pairs = job.leading_rows("whitening", k, PAIRS_TOL, center=True)
    white = whiten(pairs.values, pairs.basis, k)

    def made(reader: Any) -> SampleFourth:
        return SampleFourth(reader=reader, view=View(shift=mean), whitening=white.matrix)

    derived = MomentOperator(
        kind="tensor", name="fourth cumulant", side=k, made=made, facts={}, arrays=(mean, white.matrix)
    )
    found = job.components_of(derived, k, TENSOR_TOL, request.options(), order=4)
    kept = found.kept
    kurtoses, basis, refinement = found.solution.values[kept], found.solution.basis[:, kept], {}
    if request.refine:
        basis, measured, changes = _refine_sources(job, mean, white.matrix, basis, request.refine)
        kurtoses, refinement = kurtoses if measured is None else measured, {"refinement": changes}
    recovered = IndependentSources().unwhiten(white, kurtoses, basis)
    facts = {
        "spectrum": pairs.values.tolist(),
        "condition": white.condition,
        "warnings": [*found.warnings("components"), *_like_gaussian(recovered.weights, job.source.shape[0])],
        "outcome": asdict(found.solution.outcome),
        **refinement,
    }
    arrays = {
        "mixing": recovered.components,
        "unmixing": white.matrix @ np.linalg.pinv(basis).T,  # undoes the mixing exactly
        "mean": mean,
        "kurtoses": recovered.weights,
    }
    return arrays, {"facts": facts}


def _like_gaussian(kurtoses: np.ndarray, n: int) -> list[str]:
    """A sentence where n samples of Gaussian noise would show such kurtoses: sqrt(24 / n) is their deviation in one
    direction, and the largest of k dimensions is about sqrt(k) times as large."""
    bound = NOISE * float(np.sqrt(24 * len(kurtoses) / n))
    weak = int((np.abs(kurtoses) < bound).sum())
    if not weak:
        return []
    return [
        f"{weak} of {len(kurtoses)} components have a kurtosis below {bound:.2g}, which {n} samples of Gaussian noise "
        "would show as well: take fewer components, or more samples"
    ]
