"""Models with a tensor of moments, and the way back from its eigenpairs to their parameters.

Eigenpairs ``(weight_i, v_i)`` are those of the whitened tensor. All third moments have positive weights in theory:
a pair with a negative weight is the same term with the other sign, and is turned. Formulas: Anandkumar et al. (2014),
theorems 3.1, 3.5 and 3.6; Hsu and Kakade (2013) for mixtures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.moments.whitening import Whitening
from npmdask.numerics.subspaces import Block


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """Parameters of a model: components (d x r: topics, means or mixing columns), and a weight of each (r)."""

    components: Block
    weights: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SingleTopic:
    """Every document has one topic i, with probability ``weights[i]``; words are independent given it.

    ``M2 = sum w_i mu_i mu_i^T``, ``M3 = sum w_i mu_i^(x)3``.
    """

    @property
    def alpha0(self) -> float:
        """That of the LDA of which this is the limit."""
        return 0.0

    def unwhiten(self, whitening: Whitening, weights: np.ndarray, vectors: Block) -> Recovered:
        """Topics (sum 1 in theory) and their probabilities: ``w = 1 / weight^2``, ``mu = weight (W^T)^+ v``."""
        weights, vectors = _turned(weights, vectors)
        return Recovered(components=(whitening.back @ vectors) * weights, weights=weights**-2.0)


@dataclass(frozen=True, kw_only=True)
class SphericalMixture(SingleTopic):
    """Gaussians with means ``mu_i`` and covariances ``sigma_i^2 I``: the same tensors, other estimates of them."""


@dataclass(frozen=True, kw_only=True)
class LDA:
    """Latent Dirichlet allocation with ``sum alpha_i = alpha0``; ``alpha0`` is given, the shares are found.

    ``M2 = sum alpha_i / (a0 (a0 + 1)) mu_i mu_i^T``, ``M3 = sum 2 alpha_i / (a0 (a0 + 1) (a0 + 2)) mu_i^(x)3``.
    """

    alpha0: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha0 < np.inf:
            raise BadInputError(
                f"alpha0 = {self.alpha0} must be a positive number; for a single topic per document use SingleTopic()"
            )

    def unwhiten(self, whitening: Whitening, weights: np.ndarray, vectors: Block) -> Recovered:
        """Topics (sum 1 in theory) and ``alpha_i``.

        Their sum is alpha0 wherever k topics explain M2, whose entries sum to 1 / (alpha0 + 1) whatever alpha0 is: a
        check of the model, and none of alpha0.
        """
        weights, vectors = _turned(weights, vectors)
        a0 = self.alpha0
        topics = (whitening.back @ vectors) * ((a0 + 2) / 2 * weights)
        return Recovered(components=topics, weights=4 * a0 * (a0 + 1) / ((a0 + 2) ** 2 * weights**2))


@dataclass(frozen=True, kw_only=True)
class IndependentSources:
    """``x = A h`` with independent sources of variance 1: ``M4 = sum kappa_i a_i^(x)4``, kappa the excess kurtosis.

    Whitened by the covariance: the eigenvalues are the kappa_i, of either sign.
    """

    def unwhiten(self, whitening: Whitening, weights: np.ndarray, vectors: Block) -> Recovered:
        """Columns of A, up to their signs, which no moment of even order knows; and the kappa_i."""
        return Recovered(components=whitening.back @ vectors, weights=np.array(weights, np.float64))


def _turned(weights: np.ndarray, vectors: Block) -> tuple[np.ndarray, Block]:
    """Positive weights of order 3: (weight, v) and (-weight, -v) are the same term."""
    weights = np.asarray(weights, np.float64)
    if not (weights != 0).all():
        raise BadInputError(
            "a component of weight 0 has no parameters: drop the components that were not found, or use a smaller k"
        )
    return np.abs(weights), vectors * np.sign(weights)
