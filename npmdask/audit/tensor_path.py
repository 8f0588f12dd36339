"""The release path of a run on a tensor: contractions, and in the last step scores, with noise column by column.

The pair of :func:`npmdask.privacy.audit.instances.instances` has d = 1: there every u is 1 or -1, a run asks the same of the
tensor in all its columns and steps, and the diagonal entry that changes attains the sensitivity in each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from npmdask.algorithms._tensors import unit_columns
from npmdask.privacy.audit.release_path import ReleasePath
from npmdask.privacy.audit.transcript import Publication, Transcript, Values
from npmdask.privacy.mechanisms.noise_key import Entropy


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
