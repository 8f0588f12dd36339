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

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from npmdask.numerics.incomplete_rows import grams_of_observed
from npmdask.numerics.subspaces import Block

PIECE_BYTES = 4 * 2**20  # of rows that are completed at once
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
    rows: Block,
    before: Levels,
    learnt: Learnt | None,
    *,
    center: bool,
    fade: float = 1.0,
    weights: np.ndarray | None = None,
) -> tuple[Block, Levels]:
    """Rows (n x d, each with a value) without gaps, and the levels after them.

    ``learnt``: None while nothing is; then gaps are at the mean, as they are in a column that has had no value yet.
    ``fade``: what one row leaves of the weight of those before it. ``weights`` (n): how much each counts. Rows without
    gaps stay as they are, bit for bit.
    """
    count, moved, lacking = (np.zeros(rows.shape[1]) for _ in range(3))
    for part, known in _pieces(rows, weights):
        gaps = np.isnan(part)
        lacking += gaps.sum(axis=0)
        away = np.where(gaps, 0.0, part - before.mean)
        count += (~gaps).sum(axis=0) if known is None else known @ ~gaps
        moved += away.sum(axis=0) if known is None else known @ away
    seen = before.seen * fade ** len(rows) + count
    mean = before.mean + moved / np.where(seen > 0, seen, 1.0)
    levels = Levels(seen, mean, before.missing + lacking)
    if not lacking.any():
        return rows, levels
    shift, whole = mean if center else np.zeros_like(mean), rows.copy()
    model = None if learnt is None else _model(rows, weights, shift, learnt)
    for part, _ in _pieces(whole, None):
        gaps = np.isnan(part)
        filled = np.broadcast_to(shift, part.shape)
        if model is not None:
            filled = filled + _expected(np.where(gaps, 0.0, part - shift), gaps, *model) * (seen > 0)
        np.copyto(part, filled, where=gaps)
    return whole, levels


def _pieces(rows: Block, weights: np.ndarray | None) -> Iterator[tuple[Block, np.ndarray | None]]:
    """The rows and their weights, a few at a time: what is computed of them beside them stays small."""
    step = max(1, PIECE_BYTES // (8 * rows.shape[1]))
    for start in range(0, len(rows), step):
        yield rows[start : start + step], None if weights is None else weights[start : start + step]


def _model(
    rows: Block, weights: np.ndarray | None, shift: np.ndarray, learnt: Learnt
) -> tuple[Block, np.ndarray] | None:
    """Directions that have variance (d x k), and the noise in a score over that variance (k); None without any."""
    kept = learnt.values > 0
    if not kept.any():
        return None
    basis, values = learnt.vectors[:, kept], learnt.values[kept]
    squares, entries = 0.0, 0.0
    for part, known in _pieces(rows, weights):
        gaps = np.isnan(part)
        away = np.where(gaps, 0.0, part - shift) ** 2
        squares += float(away.sum() if known is None else (known @ away).sum())
        entries += gaps.size - int(gaps.sum()) if known is None else float((known @ ~gaps).sum())
    (d, k), total = basis.shape, squares / entries * rows.shape[1]
    noise = max((total - float(values.sum())) / max(1, d - k), LEAST_NOISE * float(values[0]))
    return basis, noise / values


def _expected(centred: Block, gaps: np.ndarray, basis: Block, ridge: np.ndarray) -> Block:
    """``V t`` of rows (n x d) whose gaps are 0; 0 of rows without gaps."""
    expected, inside = np.zeros_like(centred), np.arange(len(ridge))
    for some, grams in grams_of_observed(gaps, np.flatnonzero(gaps.any(axis=1)), basis):
        grams[:, inside, inside] += ridge
        scores = np.linalg.solve(grams, (centred[some] @ basis)[:, :, None])[:, :, 0]
        expected[some] = scores @ basis.T
    return expected
