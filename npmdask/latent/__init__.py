"""Latent variables of samples by tensor decomposition: mixtures of spherical Gaussians, independent components."""

from npmdask.latent.fit import GaussianMixture, IndependentComponents, fit_independent_components, fit_mixture

__all__ = ["GaussianMixture", "IndependentComponents", "fit_independent_components", "fit_mixture"]
