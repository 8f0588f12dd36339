"""Tests, file by file as the package is."""

import os

# One thread of BLAS in test oracles too: the machines are small and the matrices smaller. Before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
