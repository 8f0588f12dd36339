"""Tensor decompositions as runs: what is asked for, moments as lenses before the data, and the stages of longer jobs."""
