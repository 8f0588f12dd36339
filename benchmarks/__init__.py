"""Benchmarks as a product: every number to reach is a row, run beside what it is measured against.

    make bench                      all rows, benchmarks/results/bench.json and docs/papers/benchmarks.md
    make bench ONLY=pass-warm       one row, one JSON line
    make bench SCALE=small          the same code on tiny data, in minutes; its figures mean nothing

A new row is one file in ``benchmarks/rows`` that holds its ``ROWS``.
"""
