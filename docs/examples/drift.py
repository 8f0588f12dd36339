"""
A stream that drifts
====================

Rows come once, 1,000 a day. From day 6 to day 15 one of two directions turns by 8 degrees a day. A model that forgets
follows; one that does not is left behind.
"""

import matplotlib.pyplot as plt
import numpy as np

from npmdask import StreamingPCA
from npmdask.theory.diagnostics import max_sin_theta


def plane(day):
    turn = np.deg2rad(8.0 * np.clip(day - 5, 0, 10))
    basis = np.zeros((50, 2))
    basis[0, 0], basis[1, 1], basis[2, 1] = 1, np.cos(turn), np.sin(turn)
    return basis


def rows(day):
    rng = np.random.default_rng(day)
    return rng.standard_normal((1000, 2)) * [3, 2] @ plane(day).T + 0.5 * rng.standard_normal((1000, 50))


figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for half_life, label in ((None, "nothing is forgotten"), (2000, "half life of two days"), (500, "half a day")):
    model, angles = StreamingPCA(2, center=True, half_life=half_life), []
    for day in range(1, 26):
        for batch in np.split(rows(day), 5):
            model.partial_fit(batch)
        angles.append(np.rad2deg(np.arcsin(max_sin_theta(model.basis, plane(day)))))
    axis.plot(range(1, 26), angles, "o-", ms=3, label=label)
axis.set(xlabel="day", ylabel="angle to the plane of the day, degrees")
axis.legend(frameon=False)
