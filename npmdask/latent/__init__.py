"""Latent variables of samples by tensor decomposition: mixtures of spherical Gaussians, independent components."""
