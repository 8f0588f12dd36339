"""What the papers predict: explicit bounds where there are any, and every constant that had to be assumed."""

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
