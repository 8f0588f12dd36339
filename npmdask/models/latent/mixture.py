"""Mixtures of spherical Gaussians by moments (Hsu and Kakade 2013; Anandkumar et al. 2014, theorem 3.2).

::

    1. covariance       leading directions of the centred rows: the means differ in these only
    2. spread           one pass: sigma^2 and M1 = sum w_i sigma_i^2 mu_i, in the others      MixtureSpread
    3. whitening        leading pairs of E[x x^T], less sigma^2: those of M2
    4. M3(W, W, W)      one pass, by polarisation                                             MixtureTriples
    5. decomposition    the tensor power method, then back to means and weights
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.models.latent.common import PAIRS_TOL, TENSOR_TOL, SampleRequest, answer_of
from npmdask.models.third_moment import cube_of, polarising_block
from npmdask.numerics.moments import SphericalMixture, whiten
from npmdask.numerics.subspaces import Block
from npmdask.operators.sample_moments import MixtureSpread, MixtureTriples
from npmdask.operators.view import View
from npmdask.runs.observers import Observer
from npmdask.runs.solution import Resources
from npmdask.runs.stages import Job
from npmdask.storage.bundle import Arrays

NAME = "mixture"


@dataclass(frozen=True, kw_only=True)
class GaussianMixture:
    """``means`` (d x k), ``weights`` (k, as the moments give them: their sum is a check), ``variance`` (of an entry,
    the mean over the components), and what else is known."""

    means: Block
    weights: np.ndarray
    variance: float
    facts: dict[str, Any] = field(default_factory=dict)

    def responsibilities(self, rows: np.ndarray) -> Block:
        """(n x k) probabilities of the components given each of ``rows`` (n x d), all with the same variance."""
        distances = (np.square(self.means).sum(axis=0) - 2 * rows @ self.means) / (2 * self.variance)
        scores = np.log(self.weights / self.weights.sum()) - distances
        scores -= scores.max(axis=1, keepdims=True)
        shares: Block = np.exp(scores)
        return shares / shares.sum(axis=1, keepdims=True)


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
    asked : further fields of :class:`npmdask.models.latent.common.SampleRequest`.

    Raises
    ------
    BadInputError
        Data that are no samples, k not below d, or means that the second moment cannot tell apart.
    RefusedError
        The store belongs to other data or parameters; the memory does not suffice.
    """
    request = SampleRequest(components=components, **asked)
    arrays, meta = answer_of(NAME, source, request, store, resources, observer, _solved)
    return GaussianMixture(
        means=arrays["means"], weights=arrays["weights"], variance=meta["variance"], facts=meta["facts"]
    )


def _solved(job: Job, mean: np.ndarray, request: SampleRequest) -> tuple[Arrays, dict[str, Any]]:
    k, d = request.components, job.source.dimension
    if k >= d:
        raise BadInputError(
            f"{k} components in {d} dimensions: the common spread is measured where no two means differ, which needs "
            "fewer components than columns"
        )
    spread = _spread(job, mean, k)
    variance = float(spread[d, 0])
    pairs = job.leading_rows("whitening", k, PAIRS_TOL, center=False)
    white = whiten(pairs.values - variance, pairs.basis, k)
    operator = MixtureTriples(reader=job.reader, whitening=white.matrix, spread=spread[:d, 0])
    cube = cube_of(job.gather("triples", operator, polarising_block(k)))
    found = job.components_of_held(cube, k, TENSOR_TOL, request.options())
    kept = found.kept
    recovered = SphericalMixture().unwhiten(white, found.solution.values[kept], found.solution.basis[:, kept])
    order = np.argsort(-recovered.weights, kind="stable")
    facts = {
        "spectrum": pairs.values.tolist(),
        "condition": white.condition,
        "warnings": [*([white.warning] if white.warning else []), *found.warnings("components")],
        "outcome": asdict(found.solution.outcome),
        "weights_sum": float(recovered.weights.sum()),
    }
    arrays = {"means": recovered.components[:, order], "weights": recovered.weights[order]}
    return arrays, {"variance": variance, "facts": facts}


def _spread(job: Job, mean: np.ndarray, k: int) -> np.ndarray:
    """(d + 1) x 1: M1 and sigma^2, measured across the k - 1 directions in which k means can differ."""
    differ: Block = np.zeros((len(mean), 0))
    if k > 1:
        differ = job.leading_rows("covariance", k - 1, PAIRS_TOL, center=True).basis
    return job.gather("spread", MixtureSpread(reader=job.reader, view=View(shift=mean)), differ)
