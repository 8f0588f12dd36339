"""Weights of rows and columns."""
