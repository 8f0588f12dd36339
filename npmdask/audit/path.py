"""The release path as a run takes it, for many runs side by side: product, noise, orthonormalisation, again.

What is exercised is the product's own code: the integer operators, the sensitivity of the relation, calibration, key,
keystream, sampler and the mechanism's ``release``. Only the loop is the audit's, so that N runs go together:

* a product is linear in every column, so the blocks of all runs stand side by side as one block of N p columns;
* noise is independent for every entry, its scale depends on the public X only, and the key stream on the key and on
  all that is public. So the runs that need the same scale in a step are stacked into one tall product, and ``release``
  is called once for them. With d = p that is nearly all of them.

``together=False`` calls ``release`` for every run by itself, under a key of its own, as the driver does. A test holds
both to the same distribution; nothing but the number of calls differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npmdask.audit.instances import Instance
from npmdask.audit.publication import Publication, Transcript, Values
from npmdask.mechanisms.entropy import Entropy
from npmdask.storage.layout import open_source

Integers = NDArray[np.int64]
OperatorOf = Callable[[Instance, NDArray[np.float64]], Any]


class ReleasePath:
    """What is audited. A mutant overrides one method, or is given another mechanism or operator.

    Parameters
    ----------
    instance : the neighbours.
    mechanism : what noises (npmdask.mechanisms.private).
    steps : releases of a run, which need not be what the mechanism was calibrated for.
    operator_of : from (instance, data) to the operator that forms the products.
    """

    def __init__(self, instance: Instance, mechanism: Any, *, steps: int, operator_of: OperatorOf) -> None:
        self.instance = instance
        self.mechanism = mechanism
        self.steps = steps
        self.operators = {world: operator_of(instance, getattr(instance, world)) for world in ("here", "there")}
        self.grid = float(mechanism.rounding.grid)

    def run(self, world: str, keys: list[Entropy], runs: int, *, together: bool = True, seed: int = 0) -> Transcript:
        """The transcript of ``runs`` runs on the data of ``world`` ("here" or "there").

        ``keys`` : one key for all, or one a run if not ``together``. ``seed`` : of the public X_0.
        """
        transcript: Transcript = []
        blocks = self._start(runs, seed)
        for step in range(1, self.steps + 1):
            blocks = self._side_by_side(self.operators[world].prepare, blocks)
            published = self.step(world, blocks, keys, step, together)
            transcript += published
            blocks = orth_many(published[0].value)
        return transcript

    def step(self, world: str, blocks: Values, keys: list[Entropy], step: int, together: bool) -> Transcript:
        """Everything that one step makes public; the first is the release that the run goes on with."""
        return [self.released(world, blocks, keys, step, together)]

    def released(
        self, world: str, blocks: Values, keys: list[Entropy], step: int, together: bool, *, label: int | None = None
    ) -> Publication:
        """The release of ``step``; ``label`` is the number that the mechanism is told instead."""
        products = {name: self._product(operator, blocks) for name, operator in self.operators.items()}
        noise = np.array([self.mechanism.noise_stddev(block) for block in blocks])
        value = np.empty(products["here"].shape)
        told = step if label is None else label
        groups = _equal(noise) if together else [np.array([i]) for i in range(len(blocks))]
        for number, members in enumerate(groups):
            tall = products[world][members].reshape(-1, blocks.shape[2])
            key = keys[0 if together else number]
            out = self.mechanism.release(tall, block=blocks[members[0]], entropy=key, step=told)
            value[members] = out.reshape(len(members), *value.shape[1:])
        here, there = (products[name] * self.grid for name in ("here", "there"))
        return Publication(step=step, value=value, here=here, there=there, noise=noise, grid=self.grid)

    def _start(self, runs: int, seed: int) -> Values:
        """X_0: public, of the instance or random."""
        instance, rng = self.instance, np.random.default_rng(seed)
        if instance.start is not None:
            return np.broadcast_to(instance.start, (runs, *instance.start.shape)).copy()
        return orth_many(rng.standard_normal((runs, instance.d, instance.p)))

    def _product(self, operator: Any, blocks: Values) -> Integers:
        return self._side_by_side(lambda wide: _multiply(operator, wide), blocks)

    def _side_by_side(self, apply: Callable[[Any], Any], blocks: Values) -> Any:
        """``apply`` to the blocks of all runs as one (d x N p), as N x rows x p again."""
        runs, d, p = blocks.shape
        wide = apply(blocks.transpose(1, 0, 2).reshape(d, runs * p))
        return wide.reshape(-1, runs, p).transpose(1, 0, 2)


def _multiply(operator: Any, block: Any) -> Any:
    """One pass over tiny data, in one piece."""
    return operator.finish(operator.partial(range(operator.units), block), block)


def _equal(noise: Values) -> list[NDArray[np.intp]]:
    """The runs with equal noise, as lists of indices."""
    order = np.argsort(noise, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(noise[order])) + 1)


def orth_many(blocks: Values) -> Values:
    """``linalg.orth`` of every block (N x d x p) of full rank: QR with the diagonal of R made positive."""
    scaled = blocks / np.linalg.norm(blocks, axis=1, keepdims=True)
    q, r = np.linalg.qr(scaled)
    return q * np.where(np.diagonal(r, axis1=1, axis2=2) < 0, -1.0, 1.0)[:, None, :]


def reader_of(data: NDArray[np.float64], kind: str) -> Any:
    """A reader of an array in memory, as of a store."""
    return open_source(data, kind).reader
