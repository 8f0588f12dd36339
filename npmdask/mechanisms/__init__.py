"""Mechanisms: what is added to a product before anything else may see it."""

from __future__ import annotations

from npmdask.mechanisms._protocol import Mechanism
from npmdask.mechanisms.entropy import Entropy, destroy_key
from npmdask.mechanisms.oracle import NoiseNorms, NoiseOracle, block_noise, noise_norms
from npmdask.mechanisms.private import PrivateGaussian, PrivateLaplace
from npmdask.mechanisms.private_entries import EntriesGaussian
from npmdask.mechanisms.private_tensor import TensorGaussian
from npmdask.mechanisms.simulated import NoNoise, SimulatedGaussian

REGISTRY = {"none": NoNoise, "gaussian": SimulatedGaussian}  # private ones need a budget: npmdask.mechanisms.private

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
    "TensorGaussian",
    "block_noise",
    "destroy_key",
    "noise_norms",
]
