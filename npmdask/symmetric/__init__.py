"""Symmetric matrices and tensors, of which a half or a sixth is stored."""
