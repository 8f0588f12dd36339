"""The sums over rows that a step towards the likelihood is made of: EM for mixtures, FastICA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    Partial,
    Sums,
    add_back,
    finite_partial,
    least_run,
    pending_sums,
    split_rows,
    strip_bytes,
    strips,
)
from npmdask.core.operators.gram import Gram
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.errors import BadInputError
from npmdask.latent.likelihood import CONTRASTS, ContrastMeans, Expectation, SphericalGaussians, contrasts, log_sums
from npmdask.tensors.moments import require_whitening


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
        return strips(rows.stop - rows.start, len(block) + 6 * block.shape[1], np.float64)

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
        return self.reader.buffer_bytes + strip_bytes(self.block_rows, 6 * p) + 3 * (self.block_rows + 3) * p * 8

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self.block_rows + 3, p, runs)


@dataclass(frozen=True, kw_only=True)
class SourceContrasts(Gram):
    """Operator of the sums that a step of FastICA needs of r sources, for each of the contrasts.

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
        return strips(rows.stop - rows.start, len(block) + 16 * block.shape[1], np.float64)

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
        return self.reader.buffer_bytes + strip_bytes(d, 2 * k + 16 * max(k, p)) + (2 * d * k + sums) * 8

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(len(CONTRASTS) * (self.block_rows + 3), p, runs)
