"""The release path as a run takes it, for many runs side by side: product, noise, orthonormalisation, again.

What is exercised is the product's own code: the integer operators, the sensitivity of the relation, calibration, key,
keystream, sampler and the mechanism's ``release``. Only the loop is the audit's, so that N runs go together:

* a product is linear in every column, so in a pass over the data the blocks of all runs are side by side as one
  block of N p columns; not where images are clipped: there every run has its pass, runs with the same block have one;
* noise is independent for every entry; its scale depends on the public X alone, its stream on the key and on all that
  is public. So the products of runs that need the same scale are side by side too, and ``release`` is called once for
  them, with the block of the run that needs most. "The same" is up to ``SAME`` (blocks are on a grid, so that even with
  d = p sensitivities differ in the tenth digit); the path-wise check has every run's own scale.

``together=False`` calls ``release`` for every run by itself, under a key of its own, as the driver does. A test holds
both to the same distribution; nothing but the number of calls differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npmdask.algorithms.tensor.components import unit_columns
from npmdask.operators import Partial
from npmdask.privacy.audit.attacks import Publication, Transcript, Values
from npmdask.privacy.audit.instances import Instance
from npmdask.privacy.mechanisms.noise_key import Entropy

SAME = 1e-6  # relative: moves mu by less than a hundredth of what any feasible number of runs resolves
Integers = NDArray[np.int64]
OperatorOf = Callable[[Instance, NDArray[np.float64]], Any]


class ReleasePath:
    """What is audited. A mutant overrides one method, or is given another mechanism or operator.

    Parameters
    ----------
    instance : the neighbours.
    mechanism : what noises (npmdask.privacy.mechanisms.gaussian_laplace).
    steps : releases of a run, which need not be what the mechanism was calibrated for.
    operator_of : from (instance, data) to the operator that forms the products.
    """

    def __init__(self, instance: Instance, mechanism: Any, *, steps: int, operator_of: OperatorOf) -> None:
        self.instance = instance
        self.mechanism = mechanism
        self.steps = steps
        self.operators = {world: operator_of(instance, getattr(instance, world)) for world in ("here", "there")}
        self.operator_on = partial(operator_of, instance)
        self.grid = float(mechanism.rounding.grid)

    def run(
        self, world: str, keys: Sequence[Entropy], runs: int, *, together: bool = True, seed: int = 0
    ) -> Transcript:
        """The transcript of ``runs`` runs on the data of ``world`` ("here" or "there").

        ``keys`` : one key for all, or one a run if not ``together``. ``seed`` : of the public X_0.
        """
        transcript: Transcript = []
        blocks = self._start(runs, seed)
        for step in range(1, self.steps + 1):
            blocks = _apart(self.operators[world].prepare(_aside(blocks)), runs)
            published = self.step(world, blocks, keys, step, together)
            transcript += published
            blocks = self.following(published[0].value, blocks)
        return transcript

    def following(self, released: Values, asked: Values) -> Values:
        """The blocks of the next step, from what was released in this one, when ``asked`` of the data."""
        return orth_many(released)

    def step(self, world: str, blocks: Values, keys: Sequence[Entropy], step: int, together: bool) -> Transcript:
        """Everything that one step makes public; the first is the release that the run goes on with."""
        return [self.released(world, blocks, keys, step, together)]

    def released(
        self,
        world: str,
        blocks: Values,
        keys: Sequence[Entropy],
        step: int,
        together: bool,
        *,
        label: int | None = None,
    ) -> Publication:
        """The release of ``step``; ``label`` is the number that the mechanism gets instead."""
        queries = {name: self._product(operator, blocks) for name, operator in self.operators.items()}
        noise = np.array([self.mechanism.noise_stddev(block) for block in blocks]) / self.mechanism.stddev_per_scale
        value = np.empty(queries[world].shape)
        groups = _alike(noise) if together else [np.array([i]) for i in range(len(blocks))]
        for number, runs in enumerate(groups):
            value[runs] = _apart(
                self.mechanism.release(
                    _aside(queries[world][runs]),
                    block=blocks[runs[np.argmax(noise[runs])]],
                    entropy=keys[0 if together else number],
                    step=step if label is None else label,
                ),
                len(runs),
            )
        here, there = (np.float64(self.grid) * queries[name] for name in ("here", "there"))
        return Publication(step=step, value=value, here=here, there=there, noise=noise, grid=self.grid)

    def _start(self, runs: int, seed: int) -> Values:
        """X_0: public, of the instance or random."""
        instance, rng = self.instance, np.random.default_rng(seed)
        if instance.start is not None:
            return np.tile(np.asarray(instance.start, dtype=np.float64), (runs, 1, 1))
        return orth_many(rng.standard_normal((runs, instance.d, instance.p)))

    def _product(self, operator: Any, blocks: Values) -> Integers:
        """A X of every run: one pass, unit by unit, for all of them; the integers of every run by themselves."""
        if getattr(operator, "image_norm", None) is not None and len(blocks) > 1:
            different, which = np.unique(blocks, axis=0, return_inverse=True)
            return np.concatenate([self._product(operator, block[None]) for block in different])[which.ravel()]
        p, wide = blocks.shape[2], _aside(blocks)
        total = reduce(operator.join, (operator.partial(range(i, i + 1), wide) for i in range(operator.units)))
        parts = (
            Partial(
                {name: sums[:, p * i : p * (i + 1)] for name, sums in total.sums.items()}, total.record, total.fragments
            )
            for i in range(len(blocks))
        )
        return np.stack([operator.finish(part, block) for part, block in zip(parts, blocks, strict=True)])


def _aside(blocks: NDArray[Any]) -> NDArray[Any]:
    """N blocks (N x d x p) side by side (d x N p)."""
    runs, d, p = blocks.shape
    return np.ascontiguousarray(blocks.transpose(1, 0, 2)).reshape(d, runs * p)


def _apart(wide: NDArray[Any], runs: int) -> NDArray[Any]:
    """The inverse of :func:`_aside`."""
    return wide.reshape(len(wide), runs, -1).transpose(1, 0, 2)


def _alike(noise: Values) -> list[NDArray[np.intp]]:
    """The runs whose noise agrees up to ``SAME``, as lists of indices in the order of the runs."""
    order = np.argsort(noise, kind="stable")
    number = np.floor(np.log(noise[order] / noise[order[0]]) / SAME)
    return [np.sort(runs) for runs in np.split(order, np.flatnonzero(np.diff(number)) + 1)]


def orth_many(blocks: Values) -> Values:
    """``linalg.orth`` of every block (N x d x p) of full rank: QR with the diagonal of R made positive."""
    scaled = blocks / np.linalg.norm(blocks, axis=1, keepdims=True)
    q, r = np.linalg.qr(scaled)
    return q * np.where(np.diagonal(r, axis1=1, axis2=2) < 0, -1.0, 1.0)[:, None, :]


# The release path of a run on a tensor: contractions, and in the last step scores, with noise column by column.
#
# The pair of :func:`npmdask.privacy.audit.instances.instances` has d = 1: there every u is 1 or -1, a run asks the same
# of the tensor in all its columns and steps, and the diagonal entry that changes attains the sensitivity in each of
# them.


class TensorPath(ReleasePath):
    """As :class:`ReleasePath`; ``mechanism`` is a ``TensorGaussian`` of as many columns as the instance has."""

    def step(self, world: str, blocks: Values, keys: Sequence[Entropy], step: int, together: bool) -> Transcript:
        """The release of every column; all of them have the same noise, as d = 1."""
        scores = step == self.steps
        queries = {
            name: self._product(replace(operator, scores=scores), blocks) for name, operator in self.operators.items()
        }
        mechanism = replace(self.mechanism, scores=scores)
        if together:
            value = self._side_by_side(mechanism, queries[world], blocks[0], keys[0], step)
        else:
            value = np.stack([
                mechanism.release(query, block=block, entropy=key, step=step)
                for query, block, key in zip(queries[world], blocks, keys, strict=True)
            ])  # fmt: skip
        noise = np.array([mechanism.noise_stddev(block) for block in blocks])
        here, there = (np.float64(self.grid) * queries[name] for name in ("here", "there"))
        return [Publication(step=step, value=value, here=here, there=there, noise=noise, grid=self.grid)]

    @staticmethod
    def _side_by_side(mechanism: object, query: np.ndarray, block: np.ndarray, key: Entropy, step: int) -> Values:
        """One call of the mechanism for each column, with that column of all runs."""
        each, columns = mechanism.each(block), block.shape[1]  # type: ignore[attr-defined]
        released = [
            each.release(query[:, :, at].T, block=block[:, [at]], entropy=key, step=(step - 1) * columns + at + 1).T
            for at in range(columns)
        ]
        return np.stack(released, axis=2)

    def following(self, released: Values, asked: Values) -> Values:
        """The columns over their norms; where all of a column was rounded to zero, the one that was asked of."""
        return np.stack([unit_columns(*each) for each in zip(released, asked, strict=True)])


# The release of a whole symmetric matrix: once, so that a run has one step, and all runs ask the same.


class WholePath(ReleasePath):
    """As :class:`ReleasePath`; ``mechanism`` is a ``SymmetricGaussian``, and every run has a key of its own.

    Diagonal and upper triangle are publications of their own, as their noise has sizes of its own; so is the lower
    triangle, where it is not the same again.
    """

    def run(
        self, world: str, keys: Sequence[Entropy], runs: int, *, together: bool = True, seed: int = 0
    ) -> Transcript:
        block = np.eye(self.instance.d)
        products = {name: self._product(operator, block[None])[0] for name, operator in self.operators.items()}
        each = keys if len(keys) == runs else [Entropy.open(keys[0].path, bound_to=f"run {i}") for i in range(runs)]
        released = np.stack([
            self.mechanism.release(products[world], block=block, entropy=key, step=1) for key in each
        ])  # fmt: skip
        on, off = self.mechanism.noise_stddev(block), self.mechanism.off_diagonal_stddev(block)
        places = [(np.diag_indices(len(block)), on), (np.triu_indices(len(block), 1), off)]
        if (released != released.transpose(0, 2, 1)).any():
            places.append((np.tril_indices(len(block), -1), off))
        return [self._published(released, products, place, stddev) for place, stddev in places if len(place[0])]

    def _published(
        self, released: Values, products: dict[str, Integers], place: tuple[NDArray[Any], ...], stddev: float
    ) -> Publication:
        """Entries of the matrix at some places, in all runs."""
        here, there = (np.float64(self.grid) * products[name][place] for name in ("here", "there"))
        shape = (len(released), len(place[0]))
        return Publication(
            step=1,
            value=released[:, place[0], place[1]],
            here=np.broadcast_to(here, shape),
            there=np.broadcast_to(there, shape),
            noise=np.full(len(released), stddev),
            grid=self.grid,
        )
