"""
Handwritten digits
==================

The first components of 1,797 images of digits, 8 by 8 pixels each, drawn as the images that they are.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import npmdask

digits = load_digits()
solution = npmdask.top_k(digits.data, 8, kind="samples", center=True)
print(solution.explained_variance_ratio.round(3))

figure, axes = plt.subplots(2, 4, figsize=(7, 3.8), layout="constrained")
for number, (axis, component) in enumerate(zip(axes.flat, solution.components, strict=True), start=1):
    axis.imshow(component.reshape(8, 8), cmap="RdBu_r", vmin=-0.4, vmax=0.4)
    axis.set(title=f"{number}: {solution.explained_variance_ratio[number - 1]:.0%}", xticks=[], yticks=[])

# %%
# Scores of the images along the first two components, coloured by digit: zeros, fours and sixes part at once.

scores = solution.scores(digits.data)
figure, axis = plt.subplots(figsize=(6, 4.5), layout="constrained")
points = axis.scatter(scores[:, 0], scores[:, 1], c=digits.target, cmap="tab10", s=6)
figure.colorbar(points, ax=axis, label="digit", ticks=range(10))
axis.set(xlabel="component 1", ylabel="component 2")
