"""Estimate the leading eigenvectors from all noisy products of a private power method together."""

from __future__ import annotations

import numpy as np

from npmdask.core.numerics.subspaces import Block, tall_qr
from npmdask.errors import require

# A (d x d) is symmetric and never formed. Given are ``Y_l = A X_l + G_l`` with the X_l, and s_l, the standard deviation
# of an entry of G_l. S and Y: all blocks and products side by side, weighted by s / s_l, s the least s_l; S = Q R. Let
# the rows of A Q be normal a priori, of covariance T. Their posterior mean is
#
#     B = argmin ||B R - Y||^2 / s^2 + tr(B T^-1 B^T) = Y Z^T (Z Z^T + s^2)^-1 T^(1/2),   Z = T^(1/2) R,
#
# which is asked twice:
#
# 1. T = t^2 I (ridge regression): all directions alike. t^2, the variance of an entry of A, from the first release.
# 2. T = Q^T (W diag(theta^2) W^T + tau^2 (I - W W^T)) Q / d from p vectors W and values theta of 1: A u is as long as
#    theta for u in their range, and far shorter beyond: tau, from the first release, too.
#
# Without 2 the vectors may be worse than those of the last product. X_1 and X_2 have much the same range if A is
# strong; they differ in a direction u that is seen only as their small difference, that is, with noise s /
# |difference|. 1 takes A u to be as long as A v of any v and lets in noise of nearly that length. u lies beyond W: in
# 2 little is let in.
#
# Little, however small s is: differences shrink from release to release, and there is always one of about s / tau. The
# left singular vectors of B, at the norm of what was let in, keep it. So B is a matrix to multiply by, as A is: its
# products with X_L carry that only as far as X_L has a part in u, which shrinks, too. Each is a step of the power
# method without new noise.
#
# Not in the papers. What was measured: docs/decisions/0026.


MOST = 3.0  # ridge in units of the prior variance of an entry: more would only shrink
LEAST = 1e-12  # the same without noise, where B is A on the range of all X_l
TAIL = 16.0  # times the mean square of the eigenvalues beyond W: they are not all alike
TAIL_OF_FIT = 4.0
PRODUCTS = 40  # with B at most


AUTO = "auto"
CLEARLY = 0.95  # of value k: what is damped lies below it, also where no further value shows how far


def momentum_of(block: Block, product: Block, k: int, momentum: float | str) -> float:
    """beta = (w / 2)^2, of which all values up to w are damped alike, from the Ritz values that a product shows.

    "auto": w is the last of p values, which lies below the p-th of A, and at most ``CLEARLY`` times the k-th. A number:
    so many times the k-th.
    """
    inner = block.T @ product
    values = np.sort(np.abs(np.linalg.eigvalsh((inner + inner.T) / 2)))[::-1]
    damped = min(values[-1], CLEARLY * values[k - 1]) if momentum == AUTO else float(momentum) * values[k - 1]
    return float(damped / 2) ** 2


def most_damped(blocks: Block, products: Block, p: int, k: int, momentum: float | str) -> float:
    """w, the largest of all steps (:func:`momentum_of`): directions of values up to w come in one proportion."""
    steps = (slice(at, at + p) for at in range(p, blocks.shape[1], p))
    return 2 * max((momentum_of(blocks[:, s], products[:, s], k, momentum) for s in steps), default=0.0) ** 0.5


def accelerated(blocks: Block, products: Block, p: int, k: int, momentum: float | str | None) -> Block:
    """Z_L, from whose range the next block comes: of the power method with momentum (arXiv 2602.03682)

    ``Z_l = Y_l - beta X_{l-2} R_{l-1}^-1``, ``X_l R_l = Z_l``; Y_L where there is none. All of it is released, so that
    nothing else needs to be kept.
    """
    made = products[:, :p]
    if momentum is None:
        return products[:, -p:]
    for at in range(p, blocks.shape[1], p):
        before, block, product = blocks[:, at - p : at], blocks[:, at : at + p], products[:, at : at + p]
        back = before @ np.linalg.pinv(block.T @ made, rcond=LEAST)  # columns that were drawn again have no past
        made = product - momentum_of(block, product, k, momentum) * back
    return made


def require_momentum(momentum: float | str | None) -> None:
    """Refuse what is neither "auto" nor a share of value k."""
    require(
        momentum is None or momentum == AUTO or (not isinstance(momentum, str) and 0 < momentum < 1),
        f'momentum = {momentum!r} must be "auto" or a number between 0 and 1: the share of the k-th value below which '
        "values are damped",
    )


def vectors_of(
    answer: str,
    blocks: Block,
    products: Block,
    stddevs: np.ndarray,
    p: int,
    k: int,
    momentum: float | str | None = None,
) -> Block:
    """The k vectors that ``answer`` makes of releases (d x k), orthonormal.

    ``blocks`` and ``products`` (d x p L): X_l and Y_l side by side; ``stddevs`` (L): their noise. X_1 is random.
    One release has nothing to be weighed against: with p = d its vectors are those of the noisy covariance matrix.
    """
    steps = len(stddevs)
    if answer == "last":
        return _leading(accelerated(blocks, products, p, k, momentum), k)[0]
    basis, images, small = _posterior(blocks, products, stddevs, p, TAIL_OF_FIT if answer == "fit" else TAIL)
    if answer == "fit" or steps == 1:
        return np.asarray(images @ _leading(small, k)[0])
    found, _ = _leading(accelerated(blocks, products, p, k, momentum), k)
    for _ in range(min(4 * steps - 7, PRODUCTS)):
        found, _ = tall_qr(images @ (small @ (basis.T @ found)))
    inner = (found.T @ images) @ (small @ (basis.T @ found))
    values, turn = np.linalg.eigh((inner + inner.T) / 2)
    return np.asarray(found @ turn[:, np.argsort(-np.abs(values), kind="stable")])


def _posterior(blocks: Block, products: Block, stddevs: np.ndarray, p: int, wide: float) -> tuple[Block, Block, Block]:
    """B, as ``images @ small @ basis.T``: ``basis``, ``images`` and ``small``."""
    d, least, first = len(blocks), float(stddevs.min()), products[:, :p]
    entry = _entry_variance(first, float(stddevs[0]), least)
    variance = max(least**2, LEAST * entry)
    weights = np.repeat(least / stddevs, p) if least > 0 else np.ones(len(stddevs) * p)
    basis, seen = tall_qr(blocks * weights)
    images, made = tall_qr(_symmetric(blocks, products, p, weights))
    small = made @ posterior_weights(seen, variance, entry * np.eye(len(seen)))
    if len(stddevs) > 1:
        turned, squares = _leading(small, p)
        vectors = images @ turned
        tail = max(wide * _tail(first, vectors, float(stddevs[0])), variance * d / MOST)
        tail = min(tail, float(squares.min()))
        inside = basis.T @ vectors
        prior = tail * np.eye(len(seen)) + inside * (squares - tail) @ inside.T
        small = made @ posterior_weights(seen, variance, prior / d)
    return basis, images, small


def posterior_weights(seen: np.ndarray, variance: float, prior: np.ndarray) -> np.ndarray:
    """M (p L x m) that makes B = Y M, for R = ``seen`` (m x p L), noise of this ``variance`` and T = ``prior``."""
    values, vectors = np.linalg.eigh(prior)
    root = vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    left, values, right = np.linalg.svd(root @ seen, full_matrices=False)
    return np.asarray(right.T * (values / (values**2 + variance)) @ left.T @ root)


def _leading(matrix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The leading left singular vectors, and the squares of their values."""
    vectors, values, _ = np.linalg.svd(matrix, full_matrices=False)
    return vectors[:, :count], values[:count] ** 2


def _symmetric(blocks: Block, products: Block, p: int, weights: np.ndarray) -> Block:
    """The weighted products with ``X^T A X`` made symmetric, as it is: half the noise there.

    With p = d and one release the estimate is the noisy covariance matrix with symmetric noise (Analyze Gauss). Between
    releases nothing is made symmetric: X_1^T Y_1 holds the norm of the noise that X_1 was made of, X_0^T Y_2 does not.
    """
    made = products.copy()
    for start in range(0, products.shape[1], p):
        block, product = blocks[:, start : start + p], made[:, start : start + p]
        inner = block.T @ product
        product += block @ ((inner.T - inner) / 2)
    made *= weights
    return made


def _entry_variance(first: Block, stddev: float, least: float) -> float:
    """t^2, the mean square of an entry of A, from the first release: X_0 is random."""
    return max(float(np.mean(first**2)) - stddev**2, least**2 / MOST) or 1.0


def _tail(first: Block, vectors: Block, stddev: float) -> float:
    """tau^2, the mean square of the eigenvalues beyond ``vectors``, from the first release; noise can make it negative.

    ||(I - W W^T) Y_1||^2 is about p / d times the sum of their squares, and s_1^2 p (d - q) of noise, q columns of W.
    """
    (d, p), q = first.shape, vectors.shape[1]
    beyond = float(np.sum((first - vectors @ (vectors.T @ first)) ** 2))
    return d / p * (beyond / max(d - q, 1) - stddev**2 * p)
