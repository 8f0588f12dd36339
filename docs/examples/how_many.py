"""
How many components?
====================

Three components are planted in noise of 60 columns. Criteria that know what noise does count them; the share of the
variance alone does not tell.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import npmdask

rng = np.random.default_rng(0)
planted = np.linalg.qr(rng.standard_normal((60, 3)))[0]
rows = rng.standard_normal((1500, 60)) + rng.standard_normal((1500, 3)) * [4, 3, 2] @ planted.T

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
with tempfile.TemporaryDirectory() as folder:
    store = npmdask.gram(rows, f"{folder}/G", kind="samples")  # one pass; every line below reads no row
    axis.semilogy(range(1, 31), store.spectrum(center=True)[:30], "o", ms=4)
    for number, one in enumerate(store.component_counts()):
        print(f"{one.criterion}: {one.components}")
        if one.threshold is not None:
            label = f"{one.criterion}: {one.components}"
            axis.axhline(one.threshold, ls="--", lw=1, color=f"C{number + 1}", label=label)
axis.set(xlabel="component", ylabel="variance")
axis.legend(frameon=False, fontsize=8)
