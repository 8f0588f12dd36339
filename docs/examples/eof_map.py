"""
EOFs of sea-surface temperature
===============================

The first empirical orthogonal function of winter temperatures of the central Pacific is El Niño. The field is the
example of the package eofs: anomalies of the months November to March, 1962 to 2012. Land is missing and comes back
as NaN.
"""

from importlib.resources import files
from pathlib import Path

import matplotlib.pyplot as plt
import xarray as xr

from npmdask.xarray import EOF

path = next(path for path in Path(str(files("eofs"))).rglob("*.nc") if "sst" in path.name)
field = xr.open_dataset(path)["sst"]
model = EOF(n_modes=3, use_coslat=True).fit(field, dim="time")
share = model.explained_variance_ratio()
print(share.round(3).values)

figure, (above, below) = plt.subplots(2, 1, figsize=(7, 6), layout="constrained")
model.components().sel(mode=1).plot(ax=above, cmap="RdBu_r", cbar_kwargs={"label": "EOF"})
above.set_title(f"First EOF: {float(share.sel(mode=1)):.0%} of the variance")
model.scores().sel(mode=1).plot(ax=below, marker=".")
below.set_title("Its scores: large in years of El Niño")
