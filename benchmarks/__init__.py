"""Reproducible measurements; figures are kept in benchmarks/results with the machine's description."""
