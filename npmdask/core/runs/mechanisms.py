"""No noise, and noise for studying noise: neither is private."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError


@dataclass(frozen=True, kw_only=True)
class NoNoise:
    """G_l = 0: the plain power method. Not private."""

    stddev = 0.0

    def release(self, product: Block, *, block: Block, entropy: int, step: int) -> Block:
        """The product as it is."""
        return product

    def event(self) -> dict[str, Any]:
        """Return what a ledger would write down."""
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
        """Return what a ledger would write down."""
        return {"mechanism": "simulated-gaussian", "private": False, "stddev": self.stddev}


# Noise that an experimenter chooses, for studying it: random, fixed, adversarial, or made of what it has seen so far.
#
# Hardt and Price (2014, Figure 1) let G_l be anything: their theorems ask only how large it is, in all directions and
# towards the wanted subspace. What is added here is whatever a function says, and those two norms are written down step
# by step. Nothing here is private. The noise of a stream is of the same kind: it is not chosen, but it is
# G_l = (A_l - A) X_{l-1} with A_l the moment of block l (:func:`block_noise`).


class NoiseNorms(NamedTuple):
    """Size of the noise of one step; spectral norms, in the units of the product."""

    step: int
    whole: float  # ||G_l||
    inside: float  # ||U^T G_l||, U the wanted eigenvectors; NaN where they are not known


def noise_norms(step: int, noise: Block, truth: Block | None = None) -> NoiseNorms:
    """The two norms that every theorem on the noisy power method asks for.

    Parameters
    ----------
    noise : G_l (d x p). truth : U (d x k, orthonormal), if it is known.
    """
    inside = float("nan") if truth is None else float(np.linalg.norm(truth.T @ noise, 2))
    return NoiseNorms(step, float(np.linalg.norm(noise, 2)), inside)


def block_noise(rows: Block, block: Block, moment: Callable[[Block], Block]) -> Block:
    """G_l = (A_l - A) X_{l-1} (d x p) of one block of a stream, A_l the mean of z z^T over its rows.

    Hardt and Price 2014, section 3: the streaming power method is the noisy one with this noise. (They print A_l as a
    sum; their analysis needs the average.)

    Parameters
    ----------
    rows : the T rows of the block (T x d). block : X_{l-1} (d x p), the basis at its beginning.
    moment : X -> A X for the true second moment A, known where the stream was made.

    Raises
    ------
    BadInputError
        No rows, or rows that do not fit the block.
    """
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(block):
        raise BadInputError(f"rows of {len(block)} columns are needed, at least one, not an array of {rows.shape}")
    return rows.T @ (rows @ block) / len(rows) - moment(block)


@dataclass(frozen=True, kw_only=True)
class NoiseOracle:
    """G_l = ``noise(l, X_{l-1}, A X_{l-1})``, whatever it is; never private, however large.

    Parameters
    ----------
    noise : called once a step with the step (from 1), the block (d x p) and the product; the two are the oracle's to
        read, not to change. An object that is called may remember earlier steps: an adaptive adversary.
    truth : U (d x k), for ``trace``.
    trace : the norms of every step, in the order of the calls; a step that is done again is listed again.
    stddev : what the driver takes for the size of an entry of the noise: where a run cannot get better. With 0 it
        knows of no noise, and holds a first product that is not symmetric against the data.
    """

    noise: Callable[[int, Block, Block], Block]
    truth: Block | None = None
    trace: list[NoiseNorms] = field(default_factory=list)
    stddev: float = 0.0

    def release(self, product: Block, *, block: Block, entropy: Any, step: int) -> Block:
        """``product + G_l``.

        Raises
        ------
        BadInputError
            Noise of another shape than the product, or noise that is not finite.
        """
        chosen = np.asarray(self.noise(step, block, product), dtype=np.float64)
        if chosen.shape != product.shape or not np.isfinite(chosen).all():
            raise BadInputError(
                f"the oracle gave noise of shape {chosen.shape} in step {step}: finite noise of shape "
                f"{product.shape} is needed, that of the product"
            )
        self.trace.append(noise_norms(step, chosen, self.truth))
        return np.asarray(product + chosen)

    def event(self) -> dict[str, Any]:
        """Return what a ledger would write down."""
        return {"mechanism": "oracle", "private": False}


# What a mechanism is: the border between what touched the data and what is public.


class Mechanism(Protocol):
    """Turns a product into something that may be released.

    ``block`` is the X of the product A X: public, as it was released (or drawn from a public seed) before. The
    noise is a function of ``entropy`` (a seed in simulations, a secret key in private runs), of the step and of
    what is public: a step that is done again after a crash releases the same block.
    """

    def release(self, product: Block, *, block: Block, entropy: Any, step: int) -> Block: ...
    def event(self) -> dict[str, Any]: ...
    @property
    def stddev(self) -> float: ...


REGISTRY = {
    "none": NoNoise,
    "gaussian": SimulatedGaussian,
}  # private ones need a budget
