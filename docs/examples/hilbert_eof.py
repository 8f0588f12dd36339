"""
Waves that travel: Hilbert EOF
==============================

A planted wave runs around the globe in 20 months, another one stands. One complex mode holds each: the phase of the
first turns steadily along the equator, that of the second jumps by half a cycle.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

from npmdask.xarray import HilbertEOF

rng = np.random.default_rng(0)
time, lat, lon = np.arange(240), np.linspace(-60, 60, 13), np.arange(0, 360, 10)
x, y = np.deg2rad(lon), np.cos(np.deg2rad(lat))[:, None]
travels = y * np.cos(2 * x - 2 * np.pi * time[:, None, None] / 20)
stands = 0.6 * np.cos(2 * np.pi * time / 33)[:, None, None] * (y * np.cos(3 * x))
values = travels + stands + 0.3 * rng.standard_normal((240, 13, 36))
field = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"lat": lat, "lon": lon})

model = HilbertEOF(n_modes=2, use_coslat=True).fit(field, dim="time")
figure, axes = plt.subplots(2, 2, figsize=(8, 5), layout="constrained", sharex=True)
for mode, (left, right) in zip((1, 2), axes.T, strict=True):
    model.components_amplitude().sel(mode=mode).plot(ax=left, vmin=0, add_colorbar=False)
    left.set_title(f"mode {mode}: amplitude")
    right.plot(lon, model.components_phase().sel(mode=mode, lat=0), "o-", ms=3)
    right.set(title="phase along the equator", xlabel="longitude", ylabel="radians")
