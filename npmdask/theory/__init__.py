"""What the papers predict: explicit bounds where there are any, and every constant that had to be assumed.

Functions return a :class:`Prediction` (or :class:`Predictions`, several numbers): the value, the constants that no
paper gives, and flags: which conditions of the theorem hold. docs/theory.md has them by paper and by name.
"""

from __future__ import annotations

from npmdask.accounting import delta_for as gdp_delta
from npmdask.accounting import mu_for
from npmdask.accounting import shuffled_epsilon as shuffle_eps
from npmdask.numerics.accuracy_measures import condition_number, zeta, zeta_from_frobenius
from npmdask.theory.composition import (
    Share,
    dp_tpm_nu,
    drv,
    input_perturbation_min_eps,
    lemma16_split,
    ppm_sigma,
    zcdp,
)
from npmdask.theory.convex import (
    Schedule,
    bernstein_batch,
    mbmsg_bound,
    mbmsg_params,
    mbrmsg_bound,
    mbrmsg_expected,
    mbrmsg_params,
    total_cost,
)
from npmdask.theory.intermediate import (
    Form,
    best_q,
    compare_forms,
    gapfree_iterations,
    gapfree_noise,
    improved_eps_range,
    improved_iterations,
    improved_max_noise,
    improved_plateau,
    improved_recursion,
    improved_residual,
)
from npmdask.theory.power import (
    Noise,
    NoisePrediction,
    npm_basin,
    npm_error_recursion,
    npm_iterations,
    npm_max_noise,
    npm_plateau,
)
from npmdask.theory.private import (
    coherence_linf_bound,
    dist_comm,
    dist_error,
    lowrank_error,
    ppm_error,
    ppm_error_coherent,
    predicted_sine,
)
from npmdask.theory.rates import dist_rate, lowrank_rate, ppm_rate, ppm_rate_coherent
from npmdask.theory.result import Prediction, Predictions
from npmdask.theory.samples import (
    roundness_spiked,
    spm_block_noise,
    spm_samples,
    spm_samples_general,
    spm_samples_improved,
    spm_samples_powerlaw,
    spm_samples_spiked,
)
from npmdask.theory.start import gaussian_norm, init_tan_bound, init_tan_explicit, init_tan_quantile, laplace_norm
from npmdask.theory.stochastic import (
    Model,
    dpojas_zeta,
    dppca_learning_rate,
    dppca_min_n,
    dppca_noise_beta,
    dppca_zeta,
    spiked_lower_bound,
    top_lower_bound,
)
from npmdask.theory.subroutines import (
    hist_threshold,
    oja_rate,
    oja_shift,
    privmean_histogram,
    privmean_min_batch,
    privrange_groups,
)
from npmdask.theory.tensor import dp_tpm_min_eps, tpm_iterations, tpm_restarts
from npmdask.theory.tensor import sample_complexity as online_tpm_samples
from npmdask.theory.tensor import tolerated_noise as tpm_max_noise

__all__ = [
    "Form",
    "Model",
    "Noise",
    "NoisePrediction",
    "Prediction",
    "Predictions",
    "Schedule",
    "Share",
    "bernstein_batch",
    "best_q",
    "coherence_linf_bound",
    "compare_forms",
    "condition_number",
    "dist_comm",
    "dist_error",
    "dist_rate",
    "dp_tpm_min_eps",
    "dp_tpm_nu",
    "dpojas_zeta",
    "dppca_learning_rate",
    "dppca_min_n",
    "dppca_noise_beta",
    "dppca_zeta",
    "drv",
    "gapfree_iterations",
    "gapfree_noise",
    "gaussian_norm",
    "gdp_delta",
    "hist_threshold",
    "improved_eps_range",
    "improved_iterations",
    "improved_max_noise",
    "improved_plateau",
    "improved_recursion",
    "improved_residual",
    "init_tan_bound",
    "init_tan_explicit",
    "init_tan_quantile",
    "input_perturbation_min_eps",
    "laplace_norm",
    "lemma16_split",
    "lowrank_error",
    "lowrank_rate",
    "mbmsg_bound",
    "mbmsg_params",
    "mbrmsg_bound",
    "mbrmsg_expected",
    "mbrmsg_params",
    "mu_for",
    "npm_basin",
    "npm_error_recursion",
    "npm_iterations",
    "npm_max_noise",
    "npm_plateau",
    "oja_rate",
    "oja_shift",
    "online_tpm_samples",
    "ppm_error",
    "ppm_error_coherent",
    "ppm_rate",
    "ppm_rate_coherent",
    "ppm_sigma",
    "predicted_sine",
    "privmean_histogram",
    "privmean_min_batch",
    "privrange_groups",
    "roundness_spiked",
    "shuffle_eps",
    "spiked_lower_bound",
    "spm_block_noise",
    "spm_samples",
    "spm_samples_general",
    "spm_samples_improved",
    "spm_samples_powerlaw",
    "spm_samples_spiked",
    "top_lower_bound",
    "total_cost",
    "tpm_iterations",
    "tpm_max_noise",
    "tpm_restarts",
    "zcdp",
    "zeta",
    "zeta_from_frobenius",
]
