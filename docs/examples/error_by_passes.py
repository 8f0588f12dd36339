"""
Error against passes over the data
==================================

Data larger than memory cost what their passes cost. Values fall slowly here, sigma = 1 / sqrt(i), the case where
subspace iteration needs many. Block Krylov keeps its last products and needs a few; one pass that forms A^T A, where
it fits, needs no more.
"""

import matplotlib.pyplot as plt
import numpy as np

import npmdask
from npmdask.theory.diagnostics import max_sin_theta

rng = np.random.default_rng(0)
left = np.linalg.qr(rng.standard_normal((600, 120)))[0]
right = np.linalg.qr(rng.standard_normal((120, 120)))[0]
matrix = left / np.sqrt(np.arange(1, 121)) @ right.T
truth = right[:, :5]


def subspace_iteration(passes):
    block = np.linalg.qr(np.random.default_rng(1).standard_normal((120, 15)))[0]
    for _ in range(passes):
        block = np.linalg.qr(matrix.T @ (matrix @ block))[0]
    inside = np.linalg.svd(matrix @ block, full_matrices=False)[2][:5].T
    return max_sin_theta(block @ inside, truth)


def npmdask_error(passes, algorithm):
    found = npmdask.top_k(matrix, 5, kind="samples", algorithm=algorithm, max_steps=passes, tol=1e-12)
    return max_sin_theta(found.basis, truth), found.steps


counts = np.array([2, 5, 9, 14])
figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
axis.semilogy(counts, [subspace_iteration(n) for n in counts], "s--", color="0.5", label="subspace iteration")
for algorithm in ("power", "krylov"):
    errors, steps = zip(*(npmdask_error(int(n), algorithm) for n in counts), strict=True)
    axis.semilogy(steps, errors, "o-", ms=4, label=f'algorithm = "{algorithm}"')
axis.semilogy(1, npmdask_error(1, "gram")[0], "D", label='algorithm = "gram"')
axis.set(xlabel="passes", ylabel="sin of the angle to the truth", ylim=(1e-16, 1))
axis.legend(frameon=False)
