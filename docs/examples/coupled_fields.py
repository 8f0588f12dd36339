"""
Two fields with one series in common
====================================

Sea-surface temperature and rain that one slow index drives, under noise. Maximum covariance analysis finds the
pattern of each field, and scores that vary together.
"""

import matplotlib.pyplot as plt
import numpy as np

import npmdask

rng = np.random.default_rng(0)
lat, lon, times = np.linspace(-20, 20, 9), np.arange(160, 280, 8), 300
warm = np.exp(-((lat[:, None] / 8) ** 2) - ((lon - 230) / 30.0) ** 2)
wet = np.exp(-(((lat[:, None] - 4) / 6) ** 2) - ((lon - 200) / 20.0) ** 2)
index = np.cumsum(rng.standard_normal(times)) / 8
sst, rain = (
    (index[:, None, None] * one + 0.5 * rng.standard_normal((times, *one.shape))).reshape(times, -1)
    for one in (warm, wet)
)

modes = npmdask.mca(sst, rain, 3)
print("correlation of the first scores:", modes.correlations[0].round(3))

figure, axes = plt.subplot_mosaic([["sst", "rain"], ["scores", "scores"]], figsize=(8, 5), layout="constrained")
for name, rows, side in (("sst", sst, modes.left), ("rain", rain, modes.right)):
    pattern = side.patterns[:, 0].reshape(len(lat), len(lon))
    axes[name].contourf(lon, lat, pattern, levels=np.linspace(-1, 1, 13) * abs(pattern).max(), cmap="RdBu_r")
    axes[name].set(title=f"first pattern: {name}", xlabel="longitude", ylabel="latitude")
    scores = side.scores(rows)[:, 0]
    axes["scores"].plot(scores / scores.std(), lw=1, label=name)
axes["scores"].set(title="scores", xlabel="time")
axes["scores"].legend(frameon=False)
