"""
Components that can be read: varimax
====================================

Three groups of four columns vary together, with nearly equal variances, so principal components mix the groups. The
varimax rotation of the same plane gives each component one group.
"""

import matplotlib.pyplot as plt
import numpy as np

import npmdask

groups = np.kron(np.eye(3), np.ones((4, 1)))
rng = np.random.default_rng(0)
rows = rng.standard_normal((500, 3)) * [1.05, 1.0, 0.95] @ groups.T + 0.3 * rng.standard_normal((500, 12))
found = npmdask.top_k(rows, 3, kind="samples", center=True)

figure, axes = plt.subplots(1, 2, figsize=(7, 4.2), layout="constrained", sharey=True)
for axis, basis, title in ((axes[0], found.basis, "as found"), (axes[1], found.rotated("varimax").basis, "varimax")):
    image = axis.imshow(basis, cmap="RdBu_r", vmin=-0.6, vmax=0.6, aspect="auto")
    axis.set(title=title, xlabel="component", xticks=range(3), xticklabels=[1, 2, 3])
axes[0].set_ylabel("column")
figure.colorbar(image, ax=axes)
