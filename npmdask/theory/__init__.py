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
from npmdask.theory.stochastic import (
    Model,
    condition_number,
    dpojas_zeta,
    dppca_learning_rate,
    dppca_min_n,
    dppca_noise_beta,
    dppca_zeta,
    spiked_lower_bound,
    top_lower_bound,
    zeta,
    zeta_from_frobenius,
)

__all__ = [
    "Model",
    "Prediction",
    "coherence_linf_bound",
    "condition_number",
    "dist_comm",
    "dist_error",
    "dpojas_zeta",
    "dppca_learning_rate",
    "dppca_min_n",
    "dppca_noise_beta",
    "dppca_zeta",
    "gaussian_norm",
    "lowrank_error",
    "ppm_error",
    "ppm_error_coherent",
    "predicted_sine",
    "spiked_lower_bound",
    "top_lower_bound",
    "zeta",
    "zeta_from_frobenius",
]
