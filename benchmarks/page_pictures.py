"""``python -m benchmarks.page_pictures``: pictures of README.md and of pages in docs/howto.

Half a minute. Each function draws what the executed example beside its picture computes.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

import npmdask
from benchmarks.docs import ROOT
from benchmarks.paper_page import save
from npmdask.report.plots import BLUE, GREY, ORANGE, axes

DOCS = ROOT / "docs"
HOWTO = DOCS / "howto"
GREEN = "#4d9221"
NIGHTS = 14
SIMPLE = np.kron(np.eye(3), np.ones((4, 1)))  # three groups of four columns
LATITUDES = np.linspace(-87, 87, 30)


def counted() -> Any:
    """How many: values of planted rows against the thresholds of the criteria."""
    rng = np.random.default_rng(0)
    planted = np.linalg.qr(rng.standard_normal((100, 3)))[0]
    rows = rng.standard_normal((2000, 100)) + (rng.standard_normal((2000, 3)) * [4, 3, 2]) @ planted.T
    figure, axis = axes("Three planted components in noise of 100 columns", "component", "variance")
    with tempfile.TemporaryDirectory() as folder:
        store = npmdask.gram(rows, f"{folder}/G", kind="samples")
        values, found = store.spectrum(center=True), store.component_counts()
    axis.semilogy(range(1, 31), values[:30], "o", color=BLUE, ms=4)
    lines = zip(
        (ORANGE, GREEN, GREY), ("Marchenko-Pastur edge", "Gavish-Donoho threshold", "parallel analysis"), strict=True
    )
    for color, name in lines:
        one = next(one for one in found if one.criterion == name)
        axis.axhline(one.threshold, color=color, ls="--", lw=1.2, label=f"{name}: {one.components}")
    axis.legend(frameon=False, fontsize=8)
    return figure


def sure() -> Any:
    """How sure: standard errors by North's rule and by bootstrap, of rows that depend on their neighbours."""
    rows = smooth_rows()
    figure, axis = axes("The same rows, independent or not?", "component", "variance ± standard error")
    with tempfile.TemporaryDirectory() as folder:
        store = npmdask.gram(rows, f"{folder}/G", kind="samples", groups=np.arange(len(rows)) // 100)
        found = store.bootstrap(4)
        run = npmdask.top_k(f"{folder}/G", 4, center=True)
        north = run.north_errors()[0]
    numbers = np.arange(1, 5)
    axis.errorbar(
        numbers - 0.08,
        run.explained_variance,
        north,
        fmt="o",
        color=GREY,
        capsize=3,
        label="North, all rows independent",
    )
    mixed = np.isin(numbers - 1, [i for group in found.mixed for i in group])
    for which, color, label in ((~mixed, BLUE, "bootstrap over 40 groups"), (mixed, ORANGE, "bootstrap: mixed")):
        at = numbers[which] + 0.08
        axis.errorbar(at, found.values[which], found.value_errors[which], fmt="s", color=color, capsize=3, label=label)
    axis.set_xticks(numbers)
    axis.set_ylim(0, None)
    axis.legend(frameon=False, fontsize=8)
    return figure


def smooth_rows() -> np.ndarray:
    """4,000 rows of 20 columns, each like the one before it: three planted components, the last two nearly alike."""
    rng = np.random.default_rng(1)
    waves = rng.standard_normal((4000, 3))
    for row in range(1, 4000):
        waves[row] += 0.9 * waves[row - 1]
    planted = np.linalg.qr(rng.standard_normal((20, 3)))[0]
    return (waves * [1.5, 1.0, 0.95]) @ planted.T + 0.5 * rng.standard_normal((4000, 20))


def night(seed: int) -> np.ndarray:
    """The rows of a night: three groups of four columns, of nearly equal variance."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((500, 3)) * [1.05, 1.0, 0.95]) @ SIMPLE.T + 0.3 * rng.standard_normal((500, 12))


def nights() -> Any:
    """How turned: what the first four columns have in each component, as found and aligned with the night before."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    before, found, aligned = None, [], []
    for seed in range(NIGHTS):
        tonight = npmdask.top_k(night(seed), 3, kind="samples", center=True)
        turned = tonight.basis if before is None else tonight.aligned(before, rotate=True).basis
        found.append(tonight.basis[:4].mean(axis=0))
        aligned.append(turned[:4].mean(axis=0))
        before = turned
    for axis, drawn, title in ((left, found, "as found"), (right, aligned, "aligned with the night before")):
        for i, (color, mark) in enumerate(((BLUE, "o-"), (ORANGE, "s--"), (GREY, "^:"))):
            axis.plot(range(1, NIGHTS + 1), np.array(drawn)[:, i], mark, color=color, ms=4, label=f"component {i + 1}")
        axis.set(title=title, xlabel="night")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    left.set_ylabel("mean entry of the columns 0 to 3")
    right.legend(frameon=False, fontsize=8)
    return figure


def field() -> tuple[np.ndarray, np.ndarray]:
    """500 fields of 30 latitudes x 12 longitudes, a wave of the tropics under noise of the poles; and the wave."""
    rng = np.random.default_rng(0)
    wave = np.exp(-((LATITUDES / 25) ** 2))
    noise = np.where(np.abs(LATITUDES) > 75, 3.0, 0.3)[:, None] * rng.standard_normal((500, 30, 1))
    values = rng.standard_normal((500, 1, 1)) * wave[:, None] + noise + 0.3 * rng.standard_normal((500, 30, 12))
    return values, wave


def areas() -> Any:
    """Weights: the first pattern along a meridian, with and without the areas of the cells."""
    import xarray as xr

    values, wave = field()
    data = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"lat": LATITUDES, "lon": np.arange(0, 360, 30)})
    figure, axis = axes(
        "First EOF of a tropical wave under polar noise", "latitude, degrees", "pattern, largest entry 1"
    )
    axis.plot(LATITUDES, wave, color=GREY, lw=5, alpha=0.4, label="planted")
    for weights, color, mark, label in (("coslat", BLUE, "o-", "coslat"), (None, ORANGE, "s--", "without weights")):
        found = npmdask.top_k(data, 1, dim="time", center=True, column_weights=weights)
        pattern = found.patterns()[:, 0].reshape(30, 12).mean(axis=1)
        axis.plot(LATITUDES, pattern / pattern[np.abs(pattern).argmax()], mark, color=color, ms=4, label=label)
    axis.legend(frameon=False, fontsize=8)
    return figure


def overview() -> Any:
    """A field, cells and images: the data of docs/examples, side by side."""
    import warnings
    from importlib.resources import files
    from importlib.util import find_spec
    from pathlib import Path

    import anndata
    import xarray as xr
    from matplotlib.figure import Figure
    from sklearn.datasets import load_digits

    import npmdask.anndata
    from npmdask.xarray import EOF

    figure = Figure(figsize=(11.0, 2.9), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, width_ratios=(1.3, 1, 1.3))
    path = next(path for path in Path(str(files("eofs"))).rglob("*.nc") if "sst" in path.name)
    mode = EOF(n_modes=1, use_coslat=True).fit(xr.open_dataset(path)["sst"], dim="time").components()[0]
    mode.plot(ax=left.subplots(), cmap="RdBu_r", add_colorbar=False, rasterized=True)
    left.axes[0].set(title="EOF: El Niño", xlabel="longitude", ylabel="latitude")
    with warnings.catch_warnings(action="ignore"):  # the file is of an early anndata
        cells = anndata.read_h5ad(Path(str(find_spec("scanpy").origin)).parent / "datasets/10x_pbmc68k_reduced.h5ad")
    npmdask.anndata.pca(cells, 2)
    middle.subplots().scatter(
        *cells.obsm["X_pca"].T, c=cells.obs["bulk_labels"].cat.codes, cmap="tab10", s=3, rasterized=True
    )
    middle.axes[0].set(title="cells by type", xlabel="component 1", ylabel="component 2", xticks=[], yticks=[])
    found = npmdask.top_k(load_digits().data, 6, kind="samples", center=True)
    for axis, component in zip(right.subplots(2, 3).flat, found.components, strict=True):
        axis.imshow(component.reshape(8, 8), cmap="RdBu_r", vmin=-0.4, vmax=0.4)
        axis.set(xticks=[], yticks=[])
    right.suptitle("components of digits")
    return figure


PICTURES = {
    DOCS / "overview.svg": overview,
    HOWTO / "components-count.svg": counted,
    HOWTO / "components-errors.svg": sure,
    HOWTO / "components-nights.svg": nights,
    HOWTO / "weights-areas.svg": areas,
}


def main() -> None:
    """Draw them all."""
    for path, draw in PICTURES.items():
        save(draw(), path)


if __name__ == "__main__":
    main()
