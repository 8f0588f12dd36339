"""
Missing values
==============

A tenth to a half of the values is taken away at random, from rows with three components. Filling gaps with the mean
turns the components away from the truth; a model fitted to what is observed hardly turns.
"""

import matplotlib.pyplot as plt
import numpy as np

import npmdask
from npmdask.theory.diagnostics import max_sin_theta

rng = np.random.default_rng(0)
truth = np.linalg.qr(rng.standard_normal((30, 3)))[0]
rows = rng.standard_normal((1000, 3)) * [5, 4, 3] @ truth.T + 0.5 * rng.standard_normal((1000, 30))

shares = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
for rule in ("mean", "pairwise", "em"):
    angles = []
    for share in shares:
        gappy = np.where(np.random.default_rng(1).random(rows.shape) < share, np.nan, rows)
        found = npmdask.top_k(gappy, 3, kind="samples", center=True, missing=rule, tol=1e-6)
        angles.append(np.rad2deg(np.arcsin(max_sin_theta(found.basis, truth))))
    axis.plot(shares, angles, "o-", label=rule)
axis.set(xlabel="share of values missing", ylabel="angle to the truth, degrees", ylim=(0, None))
axis.legend(frameon=False, title="missing =")
