"""Mechanisms: what is added to a product before anything else may see it."""

from __future__ import annotations

from npmdask.core.runs.mechanisms import (
    Mechanism,
    NoiseNorms,
    NoiseOracle,
    NoNoise,
    SimulatedGaussian,
    block_noise,
    noise_norms,
)
from npmdask.privacy.mechanisms.gaussian_laplace import (
    EntriesGaussian,
    PrivateGaussian,
    PrivateLaplace,
    SymmetricGaussian,
    TensorGaussian,
)
from npmdask.privacy.mechanisms.noise_key import Entropy, destroy_key

__all__ = [
    "EntriesGaussian",
    "Entropy",
    "Mechanism",
    "NoNoise",
    "NoiseNorms",
    "NoiseOracle",
    "PrivateGaussian",
    "PrivateLaplace",
    "SimulatedGaussian",
    "SymmetricGaussian",
    "TensorGaussian",
    "block_noise",
    "destroy_key",
    "noise_norms",
]
