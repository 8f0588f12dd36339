"""Private noise on a whole symmetric matrix, once: what is released is A + Z (Analyze Gauss).

    Z_ii ~ N(0, s^2),    Z_ij = Z_ji ~ N(0, s^2 / 2),    s = multiplier * max ||A - A'||_F

Dwork, Talwar, Thakurta and Zhang, Analyze Gauss: optimal bounds for privacy-preserving principal component analysis,
STOC 2014, Algorithm 1, which gives all entries on and above the diagonal the same noise. Here an entry off the diagonal
has 1 / sqrt(2) of it, which is enough: the vector

    svec(A) = (A_11, ..., A_dd, sqrt(2) A_12, sqrt(2) A_13, ...),    ||svec(A)||_2 = ||A||_F,

holds all that is released, d (d + 1) / 2 numbers, and svec(Z) has the same independent noise of stddev s everywhere. So
the release is the Gaussian mechanism on svec(A), whose sensitivity is the Frobenius norm of a change: for records of
norm at most C it is C^2 where one is added, removed or zeroed, and where a is replaced by b

    ||a a^T - b b^T||_F^2 = |a|^4 + |b|^4 - 2 (a.b)^2 <= 2 C^4,

attained by a and b at a right angle, and C^4 where d = 1 leaves none. mu is that of one release, exactly (decision 18).
Z is the Gaussian orthogonal ensemble: its law is that of Q Z Q^T for every orthogonal Q, v^T Z v has stddev s for
every unit v, and its norm is hardly ever above 2 (s / sqrt(2)) sqrt(d).

The numbers are integers on the grid of the sum, rounded deviates of the same sampler from the same secret key, as in
every release (:mod:`npmdask.privacy.mechanisms.gaussian_laplace`); only one of A_ij and A_ji is drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from npmdask.accounting import Budget
from npmdask.errors import BadInputError, RefusedError
from npmdask.numerics.subspaces import Block
from npmdask.privacy.mechanisms.gaussian_laplace import PrivateGaussian, leading_bits, require_64_bits, require_integers
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.neighbors import up

RELEASE_KIND = "symmetric matrix"  # as the history of a run has it


@dataclass(frozen=True, kw_only=True)
class SymmetricGaussian(PrivateGaussian):
    """Gaussian noise on a symmetric matrix, half of its entries drawn. Parameters: as of :class:`PrivateGaussian`.

    Raises
    ------
    BadInputError
        A budget with delta = 0.
    RefusedError
        More than one release, or the paper's calibration, which is of products.
    """

    name: ClassVar[str] = "symmetric-gaussian"

    def __post_init__(self) -> None:
        require_gaussian(self.budget, self.calibration)
        if self.releases != 1:
            raise RefusedError(f"the covariance is released once, not {self.releases} times: leave max_steps out")
        super().__post_init__()

    @property
    def release_kind(self) -> str:
        return RELEASE_KIND

    def sensitivity(self, block: Block, *, rows: int | None = None) -> float:
        """How far the matrix can move in Frobenius norm, arithmetic included; ``block``: the identity."""
        exact = self.relation.of_matrix(len(block))
        return up(up(exact * up(1.0 + self.rounding.relative)) + self.rounding.l2)

    def off_diagonal_stddev(self, block: Block) -> float:
        """Standard deviation of the noise on every entry off the diagonal: public."""
        return self._off_diagonal(self._grid_scale(block, None)) * float(self.rounding.grid)

    def _off_diagonal(self, scale: int) -> int:
        """The least scale, of 20 leading bits, whose square is at least half of that of ``scale``."""
        least = math.isqrt((scale * scale + 1) // 2)
        return leading_bits(least if 2 * least * least >= scale * scale else least + 1)

    def release(self, product: np.ndarray, *, block: Block, entropy: Entropy, step: int) -> Block:
        """``(product + noise) * grid``, exactly symmetric, of the upper triangle of ``product``.

        Parameters
        ----------
        product : int64, d x d: A in units of the grid. All other arguments but the key are public.
        block : the identity, d x d, as it was multiplied.
        entropy : the secret key of the run.
        step : 1.

        Raises
        ------
        BadInputError
            A product that is not int64 or not square, a seed instead of a key.
        RefusedError
            A step that is not paid for, a scale that the grid cannot carry, a sum that could leave 64 bits.
        """
        if not isinstance(entropy, Entropy):
            raise BadInputError(f"private noise is drawn from an Entropy (a secret key), not from {type(entropy)}")
        if isinstance(step, bool) or step != 1:
            raise RefusedError(f"step {step} is not the one release that was charged")
        require_integers(product)
        d, scale = len(product), self._grid_scale(block, None)
        if product.shape != (d, d) or block.shape != (d, d):
            raise BadInputError(
                f"a symmetric matrix is released whole: {product.shape} and {block.shape} are not d x d"
            )
        require_64_bits(product, scale)
        released = np.zeros((d, d), np.int64)
        for scale_here, here in ((scale, np.diag_indices(d)), (self._off_diagonal(scale), np.triu_indices(d, 1))):
            count = len(here[0])
            if count:
                stream = entropy.keystream(*self._purpose((count, 1), block, step, scale_here))
                released[here] = product[here] + self._draw(scale_here, (count,), stream)
        noisy = released * float(self.rounding.grid)
        return np.asarray(noisy + np.triu(noisy, 1).T)


def require_gaussian(budget: Budget, calibration: str) -> None:
    """Refuse what a noisy symmetric matrix is not offered for: pure epsilon, and the formula of the power method."""
    if budget.delta == 0:
        raise BadInputError(
            'algorithm = "covariance" has Gaussian noise, and delta = 0 asks for pure epsilon: give a delta, or leave '
            "algorithm out, for the private power method with Laplace noise"
        )
    if calibration != "exact":
        raise RefusedError(
            'calibration = "paper" applies only to the private power method: leave it out for the covariance'
        )
