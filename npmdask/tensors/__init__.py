"""Symmetric tensors: their components, by the robust tensor power method."""
