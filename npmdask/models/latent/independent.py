"""Independent component analysis by the fourth-order tensor power method: FastICA's cube step, as passes over Zarr.

::

    1. whitening        leading pairs of the covariance of the centred rows
    2. decomposition    M4(I, u, u, u) in white coordinates, a pass for all restarts at once     SampleFourth
    3. back             columns of A; the sources of any rows are (x - mean) W V^-T

``d^4`` is never stored. Kurtoses have both signs: a component is chosen by the size of its score (Anandkumar et al.
2014, section 3.2.1; Hyvaerinen 1999 for the step).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.models.latent.common import PAIRS_TOL, TENSOR_TOL, SampleRequest, answer_of
from npmdask.numerics.moments import ICA, whiten
from npmdask.numerics.subspaces import Block
from npmdask.operators.sample_moments import SampleFourth
from npmdask.operators.view import View
from npmdask.runs.observers import Observer
from npmdask.runs.solution import Resources
from npmdask.runs.stages import Job, MomentLens
from npmdask.storage.bundle import Arrays

NAME = "ica"
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
        found: Block = (rows - self.mean) @ self.unmixing
        return found


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
    asked : further fields of :class:`npmdask.models.latent.common.SampleRequest`.

    Raises
    ------
    BadInputError
        Data that are no samples, or of lower rank than ``components``.
    RefusedError
        The store belongs to other data or parameters; the memory does not suffice.
    """
    request = SampleRequest(components=components, **asked)
    arrays, meta = answer_of(NAME, source, request, store, resources, observer, _solved)
    return IndependentComponents(**arrays, facts=meta["facts"])


def _solved(job: Job, mean: np.ndarray, request: SampleRequest) -> tuple[Arrays, dict[str, Any]]:
    k = request.components
    pairs = job.leading_rows("whitening", k, PAIRS_TOL, center=True)
    white = whiten(pairs.values, pairs.basis, k)

    def made(reader: Any) -> SampleFourth:
        return SampleFourth(reader=reader, view=View(shift=mean), whitening=white.matrix)

    lens = MomentLens(kind="tensor", name="fourth cumulant", side=k, made=made, facts={}, arrays=(mean, white.matrix))
    found = job.components_of(lens, k, TENSOR_TOL, request.options(), order=4)
    kept = found.kept
    recovered = ICA().unwhiten(white, found.solution.values[kept], found.solution.basis[:, kept])
    facts = {
        "spectrum": pairs.values.tolist(),
        "condition": white.condition,
        "warnings": [*found.warnings("components"), *_like_gaussian(recovered.weights, job.source.shape[0])],
        "outcome": asdict(found.solution.outcome),
    }
    arrays = {
        "mixing": recovered.components,
        "unmixing": white.matrix @ np.linalg.pinv(found.solution.basis[:, kept]).T,  # undoes the mixing exactly
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
