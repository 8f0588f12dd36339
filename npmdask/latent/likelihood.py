"""From the answer of the moments towards that of the likelihood: what the sums of one pass over the rows change.

Moments give a consistent answer whatever the start, the likelihood one with a smaller error. From the first a step or
two lead to the second (a one-step estimator, Le Cam 1956; van der Vaart 1998, section 5.7):

* mixtures of spherical Gaussians: a step of EM (Dempster, Laird and Rubin 1977), a variance for each component;
* independent components: a step of FastICA (Hyvaerinen 1999, equation 20) with the best of three contrasts for each
  source, and symmetric decorrelation in which a source counts as much as is known of it (Koldovsky, Tichavsky and Oja
  2006). Kurtoses may have both signs: the step is Newton's, for maxima and minima alike.

Changes are in units of the sampling error, so that one tolerance holds for both, for any scale and number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.core.numerics.subspaces import Block

# Mixtures of spherical Gaussians.


LEAST_ROWS = 2.0  # a component that explains no more keeps its mean and variance: one row tells no variance
SMALLEST = 1e-12  # of the rows: the least weight, so that it has a logarithm


@dataclass(frozen=True, kw_only=True)
class SphericalGaussians:
    """``means`` (d x k), ``weights`` (k, of sum 1), ``variances`` (k) of an entry."""

    means: Block
    weights: np.ndarray
    variances: np.ndarray

    def log_joint(self, squares: np.ndarray, images: Block) -> tuple[Block, Block]:
        """Return ``log w_i N(x; mu_i, v_i I)`` and ``|x - mu_i|^2`` (both n x k).

        Parameters
        ----------
        squares, images : ``|x|^2`` (n) and ``x^T mu_i`` (n x k) of the rows, both about a common centre: far from it
            the difference of large numbers has few digits.
        """
        apart = np.maximum(squares[:, None] - 2 * images + np.square(self.means).sum(axis=0), 0.0)
        heights = np.log(self.weights) - len(self.means) / 2 * np.log(2 * np.pi * self.variances)
        return heights - apart / (2 * self.variances), apart


def log_sums(logs: Block) -> tuple[np.ndarray, Block]:
    """Return the logarithms of the sums of ``exp(logs)`` over each row (n), and the shares of each sum (n x k)."""
    largest = logs.max(axis=1, keepdims=True)
    shares = np.exp(logs - largest)
    sums = shares.sum(axis=1, keepdims=True)
    return (largest + np.log(sums))[:, 0], shares / sums


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """The sums of an E-step over all rows, with r the probabilities of the components given a row.

    ``sums`` (d x k) of ``r_i x``, ``counts`` (k) of r_i, ``squares`` (k) of ``r_i |x - mu_i|^2``, ``log_likelihood``.
    """

    sums: Block
    counts: np.ndarray
    squares: np.ndarray
    log_likelihood: float


def maximized(model: SphericalGaussians, found: Expectation, floor: float) -> SphericalGaussians:
    """Return the model of the M-step: the most likely one that has these expectations, and no variance below ``floor``.

    With a variance for each component the likelihood is unbounded: a component on a single row has any density there.
    A floor makes the maximum exist (Hathaway 1985), and leaves EM monotone, as the likelihood of one variance falls
    on both sides of its maximum.
    """
    d, enough = len(model.means), found.counts > LEAST_ROWS
    counts = np.where(enough, found.counts, 1.0)
    means: Block = np.where(enough, found.sums / counts, model.means)
    spread = found.squares / counts - np.square(means - model.means).sum(axis=0)
    shares = np.maximum(found.counts, SMALLEST * found.counts.sum())
    return SphericalGaussians(
        means=means,
        weights=shares / shares.sum(),
        variances=np.where(enough, np.maximum(spread / d, floor), model.variances),
    )


def ascent(model: SphericalGaussians, other: SphericalGaussians, found: Expectation) -> float:
    """Return a lower bound of the log-likelihood of ``other`` less that of ``model``, whose expectations ``found`` are.

    It is ``Q(other) - Q(model)`` (Dempster, Laird and Rubin 1977, theorem 1): known without another pass.
    """
    step = other.means - model.means
    along = np.einsum("dk,dk->k", step, found.sums - found.counts * model.means)
    squares = found.squares - 2 * along + found.counts * np.square(step).sum(axis=0)
    d, n = len(step), found.counts
    gained = n * np.log(other.weights / model.weights) - d / 2 * n * np.log(other.variances / model.variances)
    return float((gained - squares / (2 * other.variances) + found.squares / (2 * model.variances)).sum())


def component_shifts(before: SphericalGaussians, after: SphericalGaussians, rows: int) -> np.ndarray:
    """Return how far components moved, in sampling errors (k): of the mean or the weight, whichever moved farther.

    Given the component of each row the root mean square error of a mean is ``sqrt(v d / (n w))``, of a weight
    ``sqrt(w (1 - w) / n)``.
    """
    weights = np.maximum(after.weights, 1 / rows)
    lengths = np.linalg.norm(after.means - before.means, axis=0)
    shares = np.abs(after.weights - before.weights)
    errors = np.sqrt(after.variances * len(after.means) / (rows * weights))
    return np.maximum(lengths / errors, shares / np.sqrt(np.maximum(weights * (1 - weights), 1 / rows) / rows))


# Independent components, in white coordinates.


CONTRASTS = ("cube", "logcosh", "logcosh3")
# Variances of ``s g(s) - g'(s)`` of Gaussian noise, times the number of rows, where the variance of s is fixed (24 is
# that of a kurtosis): integrals, which tests/latent/test_likelihood.py computes.
OF_NOISE = np.array([24.0, 0.12494, 1.14431])
NOISE = 3.0  # deviations below which a contrast does not tell a source from Gaussian noise
LEAST_VARIANCE = 0.01  # of a contrast, times the number of rows: two-valued sources have none


def contrasts(s: Block) -> Block:
    """Return g, g' and G of each contrast (3 x 3 x n x r): s^4 / 4, and ``log cosh(a s) / a`` with a = 1 and 3.

    s^4 is for sources that are flat or of two values, log cosh for heavy tails (Hyvaerinen 1999, section 4.1), the more
    so the sharper they peak: of Laplace sources errors have the variances 6.1, 2.0 and 1.35 over n. -exp(-s^2 / 2),
    the paper's third one, was the best for none of eight sources.
    """
    squares, size = s * s, np.abs(s)
    found = [np.stack([squares * s, 3 * squares, squares * squares / 4])]
    for a in (1.0, 3.0):
        tangent = np.tanh(a * s)
        cosh = size + (np.log1p(np.exp(-2 * a * size)) - np.log(2)) / a
        found.append(np.stack([tangent, a * (1 - tangent * tangent), cosh]))
    return np.stack(found)


@dataclass(frozen=True, kw_only=True)
class ContrastMeans:
    """Means over the rows, of each of the ``CONTRASTS``: ``back`` (3 x k x r) of ``y g(s)``, y the white row and s the
    r sources, and 3 x r of g', g^2 and G."""

    back: np.ndarray
    slopes: np.ndarray
    squares: np.ndarray
    values: np.ndarray

    @property
    def kurtoses(self) -> np.ndarray:
        """The excess kurtosis of each source (r)."""
        return 4 * self.values[CONTRASTS.index("cube")] - 3


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """A step of FastICA.

    Attributes
    ----------
    basis : k x r, orthonormal, after it.
    chosen : r numbers of ``CONTRASTS``; -1 of a source that none of them tells from Gaussian noise.
    signs : what the value of the chosen contrast counts in the sum that the step makes larger (r).
    errors : the sampling error of each column (r); infinite of sources that no contrast tells from noise.
    change : how far columns turned, in sampling errors (r).
    """

    basis: Block
    chosen: np.ndarray
    signs: np.ndarray
    errors: np.ndarray
    change: np.ndarray

    def objective(self, found: ContrastMeans) -> float:
        """Return the sum of contrasts that this step makes larger, where ``found`` was measured."""
        known = self.chosen >= 0
        return float((self.signs * found.values[self.chosen, np.arange(len(known))])[known].sum())


def rotation(basis: Block, found: ContrastMeans, rows: int) -> Rotation:
    """Return a step of FastICA from an orthonormal ``basis`` (k x r), by the means of one pass over the ``rows``.

    The error of source j by contrast g has the variance ``V_j = (E g^2 - (E s g)^2) / (E s g - E g')^2`` over n in each
    direction (Hyvaerinen and Oja 1997): the contrast with the smallest is chosen. Columns of length 1 / V_j are made
    orthogonal by the polar factor, so that of two sources the one that is known better decides. Sources that no
    contrast tells from Gaussian noise decide nothing: they keep their direction as far as the others leave it.
    """
    k, r = basis.shape
    along = np.einsum("kr,ckr->cr", basis, found.back)
    tau = along - found.slopes
    known = np.abs(tau) >= NOISE * np.sqrt(OF_NOISE * k / rows)[:, None]
    variances = np.where(known, np.maximum(found.squares - along**2, 0.0) / np.where(known, tau, 1.0) ** 2, np.inf)
    chosen, at = variances.argmin(axis=0), np.arange(r)
    strong, best = known.any(axis=0), np.maximum(variances.min(axis=0), LEAST_VARIANCE)
    lengths, turned = 1 / best, basis.copy()
    if strong.any():
        steps = found.back[chosen, :, at].T - found.slopes[chosen, at] * basis  # k x r
        turned[:, strong] = _polar((steps / np.where(strong, tau[chosen, at], 1.0) * lengths)[:, strong])
        if not strong.all():
            others, held = basis[:, ~strong], turned[:, strong]
            turned[:, ~strong] = _polar(others - held @ (held.T @ others))
    pairs = 1 / np.maximum(lengths[:, None] + lengths[None], 1e-300)
    inside = (pairs.sum(axis=0) - pairs.diagonal())[strong] + (r - 1) / 4  # 1/4: of the decorrelation itself
    errors = np.full(r, np.inf)
    errors[strong] = np.sqrt((inside + (k - r) * best[strong] + (k == 1)) / rows)
    return Rotation(
        basis=turned,
        chosen=np.where(strong, chosen, -1),
        signs=np.where(strong, lengths / np.where(strong, tau[chosen, at], 1.0), 0.0),
        errors=errors,
        change=np.linalg.norm(turned - basis, axis=0) / errors,
    )


def _polar(columns: Block) -> Block:
    """The orthonormal columns nearest to ``columns``: ``C (C^T C)^(-1/2)``."""
    left, _, right = np.linalg.svd(columns, full_matrices=False)
    return left @ right


def orthonormal(columns: Block) -> tuple[Block, float]:
    """Return the orthonormal columns nearest to ``columns``, and their smallest singular value: 1 if they are so."""
    return _polar(columns), float(np.linalg.svd(columns, compute_uv=False)[-1])
