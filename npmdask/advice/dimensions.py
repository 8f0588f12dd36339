"""Choose the number of components by criteria of the spectrum alone, each with its assumptions. NumPy only.

``values`` are all eigenvalues of the covariance of n rows of d columns, falling; n counts degrees of freedom: n - 1
where the rows were centred. Noise is what all directions have alike.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from npmdask.core.numerics.domains import counts, probability
from npmdask.core.numerics.random import generator
from npmdask.errors import BadInputError, require

TRACY_WIDOM_95 = 0.9793  # the 95 % point of the law of order 1 (Johnstone 2001, Table 1)
POINTS = 20_001  # of a quadrature of the Marchenko-Pastur law
REPLICATES = 50
NO_NOISE = 1e-14  # of the largest value: below is rounding


def checked_spectrum(values: np.ndarray) -> np.ndarray:
    """A spectrum as float64, falling, rounding below 0 taken off.

    Raises
    ------
    BadInputError
        Values that are not finite or not falling, or no variance at all.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all() or (np.diff(found) > 0).any():
        raise BadInputError(
            "a spectrum must be a list of finite numbers, the largest first: sort it, and replace the others"
        )
    require(found[0] > 0, "no direction has any variance: there are no components to count")
    return np.maximum(found, 0.0)


def leading(values: np.ndarray, thresholds: np.ndarray | float) -> int:
    """Count the values that exceed their thresholds before the first that does not."""
    above = values > thresholds
    return len(above) if above.all() else int(above.argmin())


def broken_stick(d: int) -> np.ndarray:
    """
    Compute the expected shares of a stick broken at random into d parts, the largest first.

    Frontier, J. exp. mar. Biol. Ecol. 25 (1976) 67; Jackson, Ecology 74 (1993) 2204.

    Parameters
    ----------
    d : int
        How many parts.

    Returns
    -------
    numpy.ndarray, shape (d,)
        Their sum is 1.
    """
    counts(d=d)
    return np.asarray(np.cumsum(1.0 / np.arange(d, 0, -1))[::-1] / d)


@lru_cache(maxsize=32)
def marchenko_pastur_median(aspect: float) -> float:
    """
    Compute the median of the Marchenko-Pastur law of noise of variance 1.

    Parameters
    ----------
    aspect : float
        The shorter side over the longer one, above 0, at most 1.

    Returns
    -------
    float
        Of the eigenvalues of the shorter side, over the longer side; right to 1e-6 or so.
    """
    require(0 < aspect <= 1, f"aspect = {aspect}: it is the shorter side divided by the longer one, between 0 and 1")
    angles = (np.arange(POINTS) + 0.5) * np.pi / POINTS  # x falls as they grow; no singularity at the ends
    x = 1 + aspect + 2 * np.sqrt(aspect) * np.cos(angles)
    mass = np.cumsum(np.sin(angles) ** 2 / x)
    return float(np.interp(0.5, mass / mass[-1], x))


def noise_variance(values: np.ndarray, n: int) -> float:
    """
    Estimate the variance of the noise from the median of those eigenvalues that can differ from 0.

    Gavish and Donoho, IEEE Trans. Inf. Theory 60 (2014) 5040, Section III-E. Right where less than a few tenths of
    the components are signal, and the noise is alike and independent in all columns.

    Parameters
    ----------
    values : array, shape (d,)
        All eigenvalues.
    n : int
        Rows, less one where they were centred.

    Returns
    -------
    float
        Of one entry.
    """
    values, short, long = _sides(values, n)
    return float(np.median(values[:short]) * n / (long * marchenko_pastur_median(short / long)))


def marchenko_pastur_edge(d: int, n: int, noise: float, *, margin: bool = True) -> float:
    """
    Compute what the largest eigenvalue of pure noise hardly exceeds.

    Parameters
    ----------
    d, n : int
        Columns; rows, less one where they were centred.
    noise : float
        Variance of an entry.
    margin : bool, default True
        With the margin that 5 of 100 matrices of noise exceed (Johnstone, Ann. Statist. 29 (2001) 295, Theorem 1.1);
        without it is the edge of the law, which about 17 of 100 exceed.

    Returns
    -------
    float
        ``noise (1 + sqrt(d / n))^2``, and a little more.
    """
    counts(d=d, n=n)
    if not margin:
        return float(noise * (1 + np.sqrt(d / n)) ** 2)
    root, other = np.sqrt(max(max(n, d) - 1, 1)), np.sqrt(min(n, d))  # the law is the same for the transpose
    centre = (root + other) ** 2
    spread = (root + other) * (1 / root + 1 / other) ** (1 / 3)
    return float(noise * (centre + TRACY_WIDOM_95 * spread) / n)


def optimal_threshold(d: int, n: int, noise: float) -> float:
    """
    Compute from which eigenvalue on keeping a component lessens the error of a denoised matrix.

    Gavish and Donoho, IEEE Trans. Inf. Theory 60 (2014) 5040, eq. 11: in the limit the best hard threshold of singular
    values, ``(4 / sqrt(3)) sqrt(n noise)`` of a square matrix. Where the noise is not known, :func:`noise_variance` of
    the same spectrum makes it theirs of eq. 13.

    Parameters
    ----------
    d, n : int
        Columns; rows, less one where they were centred.
    noise : float
        Variance of an entry.

    Returns
    -------
    float
        For eigenvalues.
    """
    counts(d=d, n=n)
    beta = min(d, n) / max(d, n)
    squared = 2 * (beta + 1) + 8 * beta / (beta + 1 + np.sqrt(beta**2 + 14 * beta + 1))
    return float(squared * noise * max(d, n) / n)


def parallel_analysis(
    variances: np.ndarray, n: int, *, replicates: int = REPLICATES, quantile: float = 0.95, seed: int = 0
) -> np.ndarray:
    """
    Simulate the spectrum of independent normal columns of given variances (Horn, Psychometrika 30 (1965) 179).

    Parameters
    ----------
    variances : array, shape (d,)
        Of the columns: of a correlation matrix ones.
    n : int
        Rows, less one where they were centred.
    replicates : int, default 50
        Data sets that are drawn; a d x d matrix of each, whatever n is.
    quantile : float, default 0.95
        Of the values in each place.
    seed : int, default 0
        The same draws for the same seed.

    Returns
    -------
    numpy.ndarray, shape (d,)
        Thresholds, falling.
    """
    counts(n=n, replicates=replicates)
    probability(quantile=quantile)
    scales, rng = np.sqrt(np.asarray(variances, np.float64)), generator(seed, "parallel analysis")
    d = len(scales)
    drawn = np.zeros((replicates, d))
    for values in drawn:
        if n <= d:
            factor = rng.standard_normal((n, d)) * scales
        else:  # Bartlett's factor of a Wishart matrix has d columns instead of n
            factor = np.tril(rng.standard_normal((d, d)), -1)
            np.fill_diagonal(factor, np.sqrt(rng.chisquare(n - np.arange(d))))
            factor *= scales[:, None]
        gram = factor @ factor.T
        values[: len(gram)] = np.linalg.eigvalsh(gram)[::-1] / n
    return np.asarray(np.quantile(drawn, quantile, axis=0))


def held_out_likelihoods(values: np.ndarray, moments: np.ndarray, total: float, most: int) -> np.ndarray:
    """
    Compute the log-likelihood of rows that were left out, under probabilistic PCA with 0 to ``most`` components.

    Tipping and Bishop, J. R. Statist. Soc. B 61 (1999) 611, eq. 4 to 8: normal rows whose covariance has q leading
    values and, in all other directions, the mean of the others. Of the rows that were left out nothing counts but their
    second moments, so that a Gram is enough.

    Parameters
    ----------
    values : array, shape (d,)
        All eigenvalues of the covariance of the rows that were kept.
    moments : array, shape (d,)
        Mean squares, along the eigenvectors, of rows that were left out less the mean of those that were kept.
    total : float
        Their sum over all directions.
    most : int
        Components at most, fewer than d.

    Returns
    -------
    numpy.ndarray, shape (most + 1,)
        The mean over rows. No number from where on no variance is left for the noise.
    """
    values, d = checked_spectrum(values), len(values)
    q = np.arange(most + 1)
    rest = np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])[: most + 1]
    noise = rest / (d - q)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.concatenate([[0.0], np.cumsum((np.log(values) + moments / values)[:most])])
        outside = (d - q) * np.log(noise) + (total - np.concatenate([[0.0], np.cumsum(moments)[:most]])) / noise
    found = -(d * np.log(2 * np.pi) + inside + outside) / 2
    return np.where(noise > NO_NOISE * values[0], found, np.nan)


def _sides(values: np.ndarray, n: int) -> tuple[np.ndarray, int, int]:
    counts(n=n)
    values = checked_spectrum(values)
    return values, min(len(values), n), max(len(values), n)
