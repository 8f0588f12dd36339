"""Tests, file by file as the package is."""

import os
import platform

# One thread of BLAS in test oracles too: the machines are small and the matrices smaller. Before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same bits on every x86 machine: otherwise goldens (tests/goldens) would be compared to the byte only if OpenBLAS
# takes the kernels that made them. Others by name, for the whole run: OPENBLAS_CORETYPE=SkylakeX.
if platform.machine() == "x86_64":
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
