"""Spectral norms that blocks of noise do not exceed: Lemmas A.2 and A.3 of Hardt and Price 2014, with constants."""

from __future__ import annotations

import math
from collections.abc import Callable

from npmdask.errors import BadInputError, closest
from npmdask.numerics.domains import counts, not_negative, probability

Norm = Callable[[float, int, int, int, float], float]


def gaussian_norm(stddev: float, rows: int, columns: int, releases: int = 1, fail_prob: float = 0.1) -> float:
    """Spectral norm that none of ``releases`` Gaussian blocks exceeds, except with probability ``fail_prob``.

    stddev (sqrt(rows) + sqrt(columns) + sqrt(2 ln(releases / fail_prob))): Gordon's bound of the mean, Gaussian
    concentration about it, union bound. Explicit where Lemma A.2 of Hardt and Price has a constant.
    """
    not_negative(stddev=stddev)
    counts(rows=rows, columns=columns, releases=releases)
    probability(fail_prob=fail_prob)
    return stddev * (math.sqrt(rows) + math.sqrt(columns) + math.sqrt(2 * math.log(releases / fail_prob)))


def laplace_norm(stddev: float, rows: int, columns: int, releases: int = 1, fail_prob: float = 0.1) -> float:
    """:func:`gaussian_norm` of independent Laplace numbers, whose tails are longer (in place of Lemma A.3).

    b (l + sqrt(l^2 + 4 max(rows, columns) l)) with l = ln((rows + columns) releases / fail_prob) and the scale
    b = stddev / sqrt(2): matrix Bernstein for subexponential entries (Tropp 2012, Theorem 6.2, applied to the
    dilation), as E |g|^m = m! b^m; union bound. It holds for U^T G, too, with ``rows`` orthonormal columns of U,
    which is not made of Laplace numbers. The lemma's own sqrt(rows columns) ln(...) with an open constant is larger
    for wide blocks; the variance of its proof is half of the true 2 b^2.
    """
    not_negative(stddev=stddev)
    counts(rows=rows, columns=columns, releases=releases)
    probability(fail_prob=fail_prob)
    log = math.log((rows + columns) * releases / fail_prob)
    return stddev / math.sqrt(2) * (log + math.sqrt(log**2 + 4 * max(rows, columns) * log))


NORMS: dict[str, Norm] = {"gaussian": gaussian_norm, "laplace": laplace_norm}


def norm_of(mechanism: str) -> Norm:
    """:func:`gaussian_norm` or :func:`laplace_norm`, by the name of the mechanism."""
    if mechanism not in NORMS:
        raise BadInputError(f"mechanism = {mechanism!r}: {closest(mechanism, list(NORMS))}")
    return NORMS[mechanism]
