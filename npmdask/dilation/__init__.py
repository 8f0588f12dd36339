"""Singular triplets by the symmetric operator [[0, A], [A^T, 0]]."""
