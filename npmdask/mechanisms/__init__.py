"""Mechanisms: what is added to a product before anything else may see it."""

from __future__ import annotations

from npmdask.mechanisms._protocol import Mechanism
from npmdask.mechanisms.simulated import NoNoise, SimulatedGaussian

REGISTRY = {"none": NoNoise, "gaussian": SimulatedGaussian}

__all__ = ["REGISTRY", "Mechanism", "NoNoise", "SimulatedGaussian"]
