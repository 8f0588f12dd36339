"""Tensor decompositions as runs: what is asked for, moments as lenses, and the stages of longer jobs."""
