"""docs/howto/complex-waves.svg: phases along the equator of the two modes of the field in docs/howto/complex.md.

python -m benchmarks.complex_page
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from benchmarks.docs import ROOT
from npmdask.report.blocks import Plot, series
from npmdask.report.plots import draw
from npmdask.xarray import HilbertEOF


def waves() -> xr.DataArray:
    """A wave that travels east in 20 time steps, a weaker one that stands, and noise."""
    time, lat, lon = np.arange(240), np.linspace(-60, 60, 13), np.arange(0, 360, 10)
    x, y = np.deg2rad(lon), np.cos(np.deg2rad(lat))[:, None]
    east = y * np.cos(2 * x - 2 * np.pi * time[:, None, None] / 20)
    stands = 0.6 * np.cos(2 * np.pi * time / 33)[:, None, None] * (y * np.cos(3 * x))
    noise = 0.3 * np.random.default_rng(0).standard_normal((240, 13, 36))
    return xr.DataArray(east + stands + noise, dims=("time", "lat", "lon"), coords={"lat": lat, "lon": lon})


def main() -> None:
    """Draw it."""
    phases = HilbertEOF(n_modes=2, use_coslat=True).fit(waves()).components_phase().sel(lat=0)
    drawn = Plot(
        title="A mode that travels, and one that stands",
        x="longitude",
        y="phase / pi",
        series=tuple(
            series(phases.lon.values, phases.sel(mode=mode).values / np.pi, name, style="points")
            for mode, name in ((1, "mode 1"), (2, "mode 2"))
        ),
    )
    (ROOT / "docs" / "howto" / "complex-waves.svg").write_text(draw(drawn) + "\n")


if __name__ == "__main__":
    main()
