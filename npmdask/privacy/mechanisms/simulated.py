"""No noise, and noise for studying noise: neither is private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block


@dataclass(frozen=True, kw_only=True)
class NoNoise:
    """G_l = 0: the plain power method. Not private."""

    stddev = 0.0

    def release(self, product: Block, *, block: Block, entropy: int, step: int) -> Block:
        """The product as it is."""
        return product

    def event(self) -> dict[str, Any]:
        """What a ledger would write down."""
        return {"mechanism": "none", "private": False}


@dataclass(frozen=True, kw_only=True)
class SimulatedGaussian:
    """G_l with independent N(0, stddev^2) entries, for studying noise (Hardt and Price, Theorem 2.4).

    Not private: the noise comes from a seeded float64 generator.
    """

    stddev: float

    def release(self, product: Block, *, block: Block, entropy: int, step: int) -> Block:
        """``product + G_l``, the same G_l for the same entropy and step."""
        noise = self.stddev * generator(entropy, "noise", step).standard_normal(product.shape)
        if not np.isfinite(product + noise).all():
            raise BadInputError(f"noise of stddev {self.stddev} overflows; use a smaller one")
        return product + noise

    def event(self) -> dict[str, Any]:
        """What a ledger would write down."""
        return {"mechanism": "simulated-gaussian", "private": False, "stddev": self.stddev}
