"""Rows with missing values (NaN), completed by what was learnt of the rows before them.

A gap becomes what the model so far expects there, given what is observed of its row: the conditional mean of
probabilistic PCA (Tipping and Bishop, J. R. Statist. Soc. B 61 (1999) 611; its E-step for rows with gaps)

    x_M = mean_M + V_M t,      t = (V_O^T V_O + noise diag(1 / values))^-1 V_O^T (x_O - mean_O)

with means over observed values only. GROUSE (Balzano, Nowak and Recht 2010) and PETRELS (Chi, Eldar and Calderbank
2013) complete rows in this way, too, without the noise. Nothing is drawn: the same batches give the same bits.

What is imputed has no scatter of its own, so that values are too small by about the share that is missing of the noise
(not of the values, as with means). Where gaps depend on the values that they hide, nothing here corrects that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npmdask.numerics.incomplete_rows import grams_of_observed
from npmdask.numerics.subspaces import Block

LEAST_NOISE = 1e-12  # of the largest value: keeps what the observed entries do not determine at the mean


class Levels(NamedTuple):
    """By column (d): the weight of the values observed so far, their mean, and how many were missing."""

    seen: np.ndarray
    mean: np.ndarray
    missing: np.ndarray


class Learnt(NamedTuple):
    """Leading directions so far (d x k) and the mean square of the rows along each (k)."""

    vectors: Block
    values: np.ndarray


def no_levels(d: int) -> Levels:
    """Those before the first row of ``d`` columns."""
    return Levels(np.zeros(d), np.zeros(d), np.zeros(d))


def completed(
    rows: Block, before: Levels, learnt: Learnt | None, *, center: bool, fade: float = 1.0
) -> tuple[Block, Levels]:
    """Rows (n x d, each with a value) without gaps, and the levels after them.

    ``learnt``: None while nothing is; then gaps are at the mean, as they are in a column that has had no value yet.
    ``fade``: what one row leaves of the weight of those before it. Rows without gaps stay as they are, bit for bit.
    """
    gaps = np.isnan(rows)
    count, old = (~gaps).sum(axis=0), before.seen * fade ** len(rows)
    seen = old + count
    from_level = np.where(gaps, 0.0, rows - before.mean)
    moved = np.divide(from_level.sum(axis=0), np.where(seen > 0, seen, 1.0))
    levels = Levels(seen, before.mean + moved, before.missing + gaps.sum(axis=0))
    if not gaps.any():
        return rows, levels
    shift = levels.mean if center else np.zeros_like(levels.mean)
    centred = np.where(gaps, 0.0, rows - shift)
    filled = np.broadcast_to(shift, rows.shape).copy()
    if learnt is not None:
        filled += _expected(centred, gaps, learnt) * (seen > 0)
    return np.where(gaps, filled, rows), levels


def _expected(centred: Block, gaps: np.ndarray, learnt: Learnt) -> Block:
    """``V t`` of rows (n x d) whose gaps are 0; 0 of rows without gaps."""
    kept = learnt.values > 0
    basis, values = learnt.vectors[:, kept], learnt.values[kept]
    expected, d, k = np.zeros_like(centred), len(basis), int(kept.sum())
    if not k:
        return expected
    total = float((centred**2).sum()) / max(1, gaps.size - int(gaps.sum())) * d
    noise = max((total - float(values.sum())) / max(1, d - k), LEAST_NOISE * float(values[0]))
    for some, grams in grams_of_observed(gaps, np.flatnonzero(gaps.any(axis=1)), basis):
        grams[:, np.arange(k), np.arange(k)] += noise / values
        scores = np.linalg.solve(grams, (centred[some] @ basis)[:, :, None])[:, :, 0]
        expected[some] = scores @ basis.T
    return expected
