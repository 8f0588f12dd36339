"""Where the noise of a release comes from: a secret key, or a seed in simulations, which are not private."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.random import generator
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.mechanisms.sampler import LARGEST_SCALE, rounded_gaussian, rounded_laplace

LEADING_BITS = 20  # of a scale: at most 2e-6 more noise, and the same on every processor


class Noise(Protocol):
    """Independent nearest integers to N(0, stddev^2) or Laplace(scale): a function of the purpose, and of what is
    secret. ``private`` says whether there is a secret."""

    private: ClassVar[bool]

    def gaussian(self, stddev: int, shape: tuple[int, ...], purpose: str) -> np.ndarray: ...
    def laplace(self, scale: int, shape: tuple[int, ...], purpose: str) -> np.ndarray: ...


@dataclass(frozen=True)
class SecretNoise:
    """Exact rounded deviates from the key of a run (docs/decisions/0019)."""

    entropy: Entropy
    private: ClassVar[bool] = True

    def gaussian(self, stddev: int, shape: tuple[int, ...], purpose: str) -> np.ndarray:
        return rounded_gaussian(stddev, shape, self.entropy.keystream("stochastic", "gaussian", purpose, stddev))

    def laplace(self, scale: int, shape: tuple[int, ...], purpose: str) -> np.ndarray:
        return rounded_laplace(scale, shape, self.entropy.keystream("stochastic", "laplace", purpose, scale))


@dataclass(frozen=True)
class SimulatedNoise:
    """The same distributions from a seeded float64 generator, for experiments. Not private: the seed is public."""

    seed: int
    private: ClassVar[bool] = False

    def gaussian(self, stddev: int, shape: tuple[int, ...], purpose: str) -> np.ndarray:
        return np.rint(stddev * generator(self.seed, "gaussian", purpose).standard_normal(shape)).astype(np.int64)

    def laplace(self, scale: int, shape: tuple[int, ...], purpose: str) -> np.ndarray:
        return np.rint(generator(self.seed, "laplace", purpose).laplace(0.0, scale, shape)).astype(np.int64)


def whole_scale(scale: float) -> int:
    """``scale`` (in units of a grid) rounded up to an integer of 20 leading bits, in 1..2^48.

    Raises
    ------
    BadInputError
        Not positive, or above 2^47.
    """
    if not 0 < scale <= LARGEST_SCALE / 2:
        raise BadInputError(f"noise of {scale:.3g} units of the grid: it must be up to 2^47, with a smaller multiplier")
    units = -int(-scale // 1)
    shift = max(units.bit_length() - LEADING_BITS, 0)
    return -(-units >> shift) << shift


def purpose_of(public: dict[str, Any], *arrays: np.ndarray) -> str:
    """A digest of everything public about a release: another release never gets the same noise."""
    digest = hashlib.sha256(json.dumps(public, sort_keys=True).encode())
    for array in arrays:
        held = np.ascontiguousarray(array, dtype="<f8")
        digest.update(json.dumps(held.shape).encode() + b"\0" + held.tobytes())
    return digest.hexdigest()
