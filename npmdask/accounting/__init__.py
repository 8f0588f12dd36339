"""Privacy accounting: exact Gaussian differential privacy, budgets and charges, calibration, the papers' formulas."""

from __future__ import annotations

from npmdask.accounting.amplification import (
    WAYS,
    allocation_delta,
    allocation_stddev,
    mean_stddev,
    shuffled_epsilon,
    shuffled_multiplier,
)
from npmdask.accounting.budget import (
    Budget,
    Charge,
    gaussian_charge,
    gaussian_multiplier,
    laplace_charge,
    laplace_multiplier,
    pure_as_gaussian,
    release_charge,
)
from npmdask.accounting.gdp import delta_for, epsilon_for, log_delta, mu_for
from npmdask.accounting.published_formulas import (
    paper_charge,
    paper_laplace_scale,
    paper_stddev,
    paper_tensor_stddev,
    require_sound,
)

__all__ = [
    "WAYS",
    "Budget",
    "Charge",
    "allocation_delta",
    "allocation_stddev",
    "delta_for",
    "epsilon_for",
    "gaussian_charge",
    "gaussian_multiplier",
    "laplace_charge",
    "laplace_multiplier",
    "log_delta",
    "mean_stddev",
    "mu_for",
    "paper_charge",
    "paper_laplace_scale",
    "paper_stddev",
    "paper_tensor_stddev",
    "pure_as_gaussian",
    "release_charge",
    "require_sound",
    "shuffled_epsilon",
    "shuffled_multiplier",
]
