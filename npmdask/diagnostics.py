"""How good an answer is, where the truth is known."""

from __future__ import annotations

import numpy as np

from npmdask.linalg import Block


def principal_angle_sines(basis: Block, target: Block) -> Block:
    """Sines of the principal angles between range(``basis``) (d x p) and range(``target``) (d x k), k <= p.

    Both orthonormal. Computed from the residual ``(I - X X^T) U`` and not from ``1 - cos^2``, so that angles
    down to machine precision are exact. In falling order: the first is ``sin theta_k = ||(I - X X^T) U||_2``
    of Hardt and Price, section 2.
    """
    residual = target - basis @ (basis.T @ target)
    return np.minimum(np.linalg.svd(residual, compute_uv=False), 1.0)


def max_sin_theta(basis: Block, target: Block) -> float:
    """The largest sine of the principal angles: 0 when range(``target``) lies inside range(``basis``)."""
    return float(principal_angle_sines(basis, target)[0])
