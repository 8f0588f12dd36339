"""The sums over rows that a step towards the likelihood is made of: EM for mixtures and rows with gaps, FastICA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    FEW_RUNS,
    STRIP_BYTES,
    SUMS_READ,
    BySlabs,
    Partial,
    Sums,
    add_back,
    finite_partial,
    least_run,
    pending_sums,
    split_rows,
)
from npmdask.core.operators.gram import Gram
from npmdask.core.operators.view import View
from npmdask.core.storage.readers.dense import ReadStats, scratch
from npmdask.errors import BadInputError
from npmdask.latent.likelihood import CONTRASTS, ContrastMeans, Expectation, SphericalGaussians, contrasts, log_sums
from npmdask.latent.moments import require_whitening
from npmdask.missing.factor_model import FactorModel, ModelSums, expectations, held_out


@dataclass(frozen=True, kw_only=True)
class MixtureExpectations(Gram):
    """The E-step of one or more mixtures of k spherical Gaussians, over all rows.

    The block (d x J k) holds the means of J mixtures about ``shift``, side by side. ``finish`` gives (d + 3) x J k:
    sums of ``r_i (x - shift)``, then rows of sums of r_i and of ``r_i |x - mu_i|^2``, with r_i the probability of
    component i given the row, then the log-likelihood of each mixture, in its first column.

    Parameters
    ----------
    reader, view : as of :class:`Gram`, with a ``shift`` (far from zero squares would leave no digits) and no ``scale``.
    weights, variances : of each mixture (J x k).
    """

    weights: np.ndarray
    variances: np.ndarray

    def __post_init__(self) -> None:
        self.view.require_unweighted("the likelihood of a mixture")
        if self.view.shift is None or self.view.scale is not None:
            raise BadInputError(
                "the likelihood of a mixture is computed about the mean of its rows: give it, and no scale"
            )

    def models(self, block: Block) -> list[tuple[slice, SphericalGaussians]]:
        """The mixtures whose means are in ``block``, and their columns."""
        k = self.weights.shape[1]
        parts = [slice(start, start + k) for start in range(0, block.shape[1], k)]
        given = zip(parts, self.weights, self.variances, strict=True)
        return [(at, SphericalGaussians(means=block[:, at], weights=w, variances=v)) for at, w, v in given]

    def partial(self, slabs: range, block: Block) -> Partial:
        record, p, models = ReadStats(), block.shape[1], self.models(block)
        sums = {
            "sums": np.zeros(block.shape),
            **{name: np.zeros((1, p)) for name in ("counts", "squares", "likelihood")},
        }
        for _, tile, z in self._products(slabs, block, record):
            squares = np.zeros(len(z))
            for _, values in tile:
                squares += np.einsum("nd,nd->n", values, values)
            for at, model in models:
                joint, apart = model.log_joint(squares, z[:, at])
                logs, shares = log_sums(joint)
                sums["likelihood"][0, at.start] += logs.sum()
                sums["squares"][0, at] += np.einsum("nk,nk->k", shares, apart)
                sums["counts"][0, at] += shares.sum(axis=0)
                z[:, at] = shares
            for columns, values in tile:
                add_back(sums["sums"][columns], values, z)
        return finite_partial(sums, self.reader, slabs, record)

    def _strips(self, rows: slice, block: Block) -> list[slice]:
        return _in_cache(rows, len(block) + 6 * block.shape[1])

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return split_rows(stacked, {"sums": self.block_rows, "counts": 1, "squares": 1, "likelihood": 1})

    def finish(self, total: Partial, block: Block) -> Block:
        return self.stacked(total.sums)

    def expectations(self, product: np.ndarray) -> list[Expectation]:
        """The sums of each mixture in the product of a pass."""
        d, k = self.block_rows, self.weights.shape[1]
        each = (product[:, start : start + k] for start in range(0, product.shape[1], k))
        return [
            Expectation(sums=part[:d], counts=part[d], squares=part[d + 1], log_likelihood=float(part[d + 2, 0]))
            for part in each
        ]

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return self.reader.buffer_bytes + _strip_bytes(self.block_rows, 6 * p) + 3 * (self.block_rows + 3) * p * 8

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self.block_rows + 3, p, runs)


@dataclass(frozen=True, kw_only=True)
class SourceContrasts(Gram):
    """What a step of FastICA needs to know of r sources, for each of the contrasts.

    The block (k x r) takes white rows ``y = W^T (x - shift)`` to their sources s. ``finish`` gives (3 k + 9) x r: for
    each contrast the means of ``y g(s)`` (k rows), of g', of g^2 and of G.

    Parameters
    ----------
    reader, view : as of :class:`Gram`, with a ``shift``: contrasts are of centred rows.
    whitening : W (d x k).
    """

    whitening: Block

    def __post_init__(self) -> None:
        self.view.require_unweighted("a contrast")
        require_whitening(self.whitening, self.reader.shape[1])

    @property
    def block_rows(self) -> int:
        return int(self.whitening.shape[1])

    @property
    def run_bytes(self) -> int:
        return least_run(self.block_rows)

    def partial(self, slabs: range, block: Block) -> Partial:
        record, (k, r) = ReadStats(), block.shape
        back, means = np.zeros((len(CONTRASTS), k, r)), np.zeros((len(CONTRASTS), 3, r))
        white = self.view.on_columns(self.whitening).astype(block.dtype, copy=False)
        for _, _, images in self._products(slabs, white, record):
            for of_contrast, mean, (g, slope, value) in zip(back, means, contrasts(images @ block), strict=True):
                of_contrast += images.T @ g
                mean += np.stack([slope.sum(axis=0), np.einsum("nr,nr->r", g, g), value.sum(axis=0)])
        sums = {"product": np.concatenate([back, means], axis=1).reshape(-1, r)}
        return finite_partial(sums, self.reader, slabs, record)

    def _strips(self, rows: slice, block: Block) -> list[slice]:
        return _in_cache(rows, len(block) + 16 * block.shape[1])

    def finish(self, total: Partial, block: Block) -> Block:
        return total.sums["product"] / self.reader.shape[0]

    def means(self, product: np.ndarray) -> ContrastMeans:
        """The means in the product of a pass, by name."""
        each = product.reshape(len(CONTRASTS), self.block_rows + 3, -1)
        slopes, squares, values = each[:, -3:].transpose(1, 0, 2)
        return ContrastMeans(back=each[:, :-3], slopes=slopes, squares=squares, values=values)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        d, k = self.whitening.shape
        sums = 3 * len(CONTRASTS) * (k + 3) * p
        return self.reader.buffer_bytes + _strip_bytes(d, 2 * k + 16 * max(k, p)) + (2 * d * k + sums) * 8

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(len(CONTRASTS) * (self.block_rows + 3), p, runs)


@dataclass(frozen=True, kw_only=True)
class FactorExpectations(BySlabs):
    """The sums of a step of EM for a factor model of rows with missing entries (NaN).

    The block (d x (k + 1)) holds the loadings and, last, the mean about ``shift``, both of columns as the view has
    them. ``finish`` gives the table of :class:`npmdask.missing.factor_model.ModelSums` (d + 2 rows).

    Parameters
    ----------
    reader, view : as of :class:`Gram`, with a ``shift``; columns of weight 0 count as never observed.
    noise : s2.
    held_out : share of the entries that are left out, and predicted instead.
    seed : of which these are.
    """

    reader: Any
    view: View
    weight: float = 1.0
    noise: float = 1.0
    held_out: float = 0.0
    seed: int = 0

    answers: ClassVar[tuple[str, ...]] = ("noise", "held_out")

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: wide sums of many columns are not added up more often than that pays."""
        return max(least_run(self.block_rows), min(SUMS_READ * 8 * self.block_rows, self.pass_bytes // FEW_RUNS))

    def partial(self, slabs: range, block: Block) -> Partial:
        record, layout = ReadStats(), ModelSums(block.shape[1] - 1)
        loadings = np.ascontiguousarray(block[:, :-1], np.float64)
        model = FactorModel(
            axes=loadings, lengths=np.ones(layout.rank), mean=block[:, -1].astype(np.float64), noise=self.noise
        )
        table = np.zeros((self.block_rows + 2, layout.width))
        times = self.view.on_columns(np.ones((self.block_rows, 1)))[:, 0]
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for part in _in_cache(rows, self._beside(layout)):
                    here = slice(rows.start + part.start, rows.start + part.stop)
                    self._add(model, here, [(c, values[part]) for c, values in tile], times, table)
        return finite_partial({"table": table}, self.reader, slabs, record)

    def _add(self, model: FactorModel, rows: slice, tile: Any, times: np.ndarray, table: np.ndarray) -> None:
        assert self.view.shift is not None
        height = _height(self._beside(ModelSums(model.rank)))
        values = scratch("observed", (height, self.block_rows), np.float64)[: rows.stop - rows.start]
        for columns, part in tile:
            np.subtract(part, self.view.shift[columns], out=values[:, columns], dtype=np.float64, casting="unsafe")
        values *= times
        there = ~np.isnan(values) & (times > 0)
        held = None
        if self.held_out:
            drawn = held_out(rows, self.block_rows, self.held_out, self.seed)
            held, there = there & drawn, there & ~drawn
        weights = None if self.view.row_weight is None else self.view.row_weight[rows]
        expectations(model, values, there, held, weights, table, [columns for columns, _ in tile])

    def _beside(self, layout: ModelSums) -> int:
        """Numbers beside each row of a strip: entries, which of them are there, and what is made of them."""
        return 6 * self.block_rows + 3 * (layout.width + layout.rank**2)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return {"table": stacked}

    def finish(self, total: Partial, block: Block) -> Block:
        return total.sums["table"]

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        layout = ModelSums(p - 1)
        sums = 2 * (self.block_rows + 2) * layout.width * 8
        return self.reader.buffer_bytes + _strip_bytes(0, self._beside(layout)) + sums

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self.block_rows + 2, ModelSums(p - 1).width, runs)


# Rows that stay in cache together with so many numbers beside each.


def _height(columns: int) -> int:
    return max(64, STRIP_BYTES // (8 * columns))


def _in_cache(rows: slice, columns: int) -> list[slice]:
    last, height = rows.stop - rows.start, _height(columns)
    return [slice(start, min(start + height, last)) for start in range(0, last, height)]


def _strip_bytes(d: int, beside: int) -> int:
    """Of a strip of rows and what is made of it, and of the one before, which Python has not let go of."""
    return 2 * 8 * _height(d + beside) * (d + beside)
