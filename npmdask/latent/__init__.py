"""Mixtures and independent components."""
