"""Experiments of the papers: data generators, baselines and figures of Duengler and Sanyal 2025, to be run again.

* :mod:`~npmdask.experiments.matrix_streams`: random matrices A_i with a known mean (Example 1, Example 3, appendix G).
* :mod:`~npmdask.experiments.as_printed`: the papers' algorithms, line by line; what is drawn as "as printed".
* :mod:`~npmdask.experiments.baselines`: DP-Gauss-1 and DP-Gauss-2 (appendix G), made sound.
* :mod:`~npmdask.experiments.oracles`: BlackBoxPCA (Algorithm 4) with Oja, sounder k-DP-PCA and k-DP-Ojas, and ours.
* :mod:`~npmdask.experiments.figures`: what Figures 1 to 4 vary, and the methods they draw, with what each promises.

Noise is drawn from public seeds: right in size, private in no way. Private releases of data are those of
:func:`npmdask.top_k` (docs/howto/private-records.md). Nothing in npmdask imports this folder; docs/papers/kdppca.md
says what was found with it.
"""

from npmdask.experiments.as_printed import clip_diagonal, clip_factors, clip_trace, clipped_sum
from npmdask.experiments.baselines import ExactNoise, dp_gauss_1, dp_gauss_2, exact_noise, power_answer, symmetric_noise
from npmdask.experiments.figures import FIGURES, Figure, Method, Setting, methods
from npmdask.experiments.matrix_streams import MatrixBatch, MatrixStream, gaussian, signal_and_noise, spiked, violation
from npmdask.experiments.oracles import black_box_pca, k_dp_ojas, k_dp_pca_large, plain_oja, tight, tight_matched

__all__ = [
    "FIGURES",
    "ExactNoise",
    "Figure",
    "MatrixBatch",
    "MatrixStream",
    "Method",
    "Setting",
    "black_box_pca",
    "clip_diagonal",
    "clip_factors",
    "clip_trace",
    "clipped_sum",
    "dp_gauss_1",
    "dp_gauss_2",
    "exact_noise",
    "gaussian",
    "k_dp_ojas",
    "k_dp_pca_large",
    "methods",
    "plain_oja",
    "power_answer",
    "signal_and_noise",
    "spiked",
    "symmetric_noise",
    "tight",
    "tight_matched",
    "violation",
]
