"""Mechanisms: what is added to a product before anything else may see it."""

from __future__ import annotations

from npmdask.privacy.mechanisms.gaussian_laplace import (
    EntriesGaussian,
    PrivateGaussian,
    PrivateLaplace,
    SymmetricGaussian,
    TensorGaussian,
)
from npmdask.privacy.mechanisms.noise_key import Entropy, destroy_key
from npmdask.privacy.mechanisms.simulated import (
    Mechanism,
    NoiseNorms,
    NoiseOracle,
    NoNoise,
    SimulatedGaussian,
    block_noise,
    noise_norms,
)

REGISTRY = {
    "none": NoNoise,
    "gaussian": SimulatedGaussian,
}  # private ones need a budget: npmdask.privacy.mechanisms.gaussian_laplace

__all__ = [
    "REGISTRY",
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
