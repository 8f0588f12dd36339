"""Latent variables of samples by tensor decomposition: mixtures of spherical Gaussians, independent components."""

from npmdask.models.latent.independent import IndependentComponents, fit_independent_components
from npmdask.models.latent.mixture import GaussianMixture, fit_mixture

__all__ = ["GaussianMixture", "IndependentComponents", "fit_independent_components", "fit_mixture"]
