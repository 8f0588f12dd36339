"""What the papers predict, with their unspecified constants said aloud and sharper explicit bounds where there are any."""

from __future__ import annotations

from npmdask.theory.private import (
    Prediction,
    coherence_linf_bound,
    dist_comm,
    dist_error,
    gaussian_norm,
    lowrank_error,
    ppm_error,
    ppm_error_coherent,
    predicted_sine,
)

__all__ = [
    "Prediction",
    "coherence_linf_bound",
    "dist_comm",
    "dist_error",
    "gaussian_norm",
    "lowrank_error",
    "ppm_error",
    "ppm_error_coherent",
    "predicted_sine",
]
