"""Data of the goldens that came second: weights, gaps, complex and whole numbers, groups, grids. Small and made up.

No product of matrices and no power, whose last bits are those of a kernel: they are the same on every machine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr
import zarr

ROWS, COLUMNS = 120, 14
MARK = -9999.0
GROUPS = tuple("abcdefgh")


def measured(rows: int = ROWS, columns: int = COLUMNS, seed: int = 2) -> np.ndarray:
    """Rows whose columns are alike, have a mean each, and variances that fall."""
    falling = 8 * np.multiply.accumulate(np.full(columns, 0.7))
    found = np.random.default_rng(seed).standard_normal((rows, columns)) * falling
    for shift in (1, 3):
        found = found + np.roll(found, shift, axis=1) * 0.5
    return found + np.linspace(0, 2, columns)


def with_gaps(rows: np.ndarray, share: float = 0.06, seed: int = 3) -> np.ndarray:
    """The same with values missing here and there."""
    return np.where(np.random.default_rng(seed).random(rows.shape) < share, np.nan, rows)


def gappy() -> np.ndarray:
    return with_gaps(measured())


def factored() -> np.ndarray:
    """Rows of two factors and noise, with gaps."""
    rng = np.random.default_rng(9)
    scores, patterns = rng.standard_normal((ROWS, 2)) * (3, 2), rng.standard_normal((2, COLUMNS))
    rows = scores[:, :1] * patterns[0] + scores[:, 1:] * patterns[1] + rng.standard_normal((ROWS, COLUMNS)) / 2
    return with_gaps(rows)


def marked() -> np.ndarray:
    """The same, with a mark in the place of some values; one column has two values, another none."""
    rows = gappy()
    rows[np.isnan(rows) & (np.arange(ROWS) % 2 == 0)[:, None]] = MARK
    rows[2:, 7] = MARK
    rows[:, 4] = np.nan
    return rows


def hollow() -> np.ndarray:
    """Rows of which one column has no value, and all others have all."""
    rows = measured()
    rows[:, 4] = np.nan
    return rows


def waves() -> np.ndarray:
    """Complex rows."""
    return measured() + 1j * np.random.default_rng(4).standard_normal((ROWS, COLUMNS))


def hermitian() -> np.ndarray:
    """Its eigenvalues are about those of rows."""
    square = waves()[:COLUMNS] + np.diag(np.linspace(60, 1, COLUMNS))
    return np.asarray((square + square.conj().T) / 2)


def counts(largest: int) -> np.ndarray:
    """Whole numbers up to about so much."""
    rows = measured()
    return np.rint(rows * (largest / np.abs(rows).max()))


def row_weights(size: int = ROWS) -> np.ndarray:
    """Weights that differ by a factor of 15; some rows weigh nothing."""
    weights = np.random.default_rng(5).uniform(0.2, 3, size)
    weights[3::25] = 0
    return weights


def column_weights(size: int = COLUMNS) -> np.ndarray:
    return np.random.default_rng(6).uniform(0.2, 2, size)


def groups() -> list[str]:
    """The group of each row; neighbours are of different ones."""
    return [GROUPS[row * (row + 1) // 2 % 8] for row in range(ROWS)]


def field() -> xr.DataArray:
    """A grid of 3 x 5 places at each time."""
    values = np.random.default_rng(7).standard_normal((ROWS, 3, 5)) * np.arange(1, 6) + np.arange(3)[:, None]
    coords = {"time": np.arange(ROWS) * 6, "lat": [-60.0, 0.0, 45.0], "lon": np.arange(5) * 72.0}
    return xr.DataArray(values, dims=("time", "lat", "lon"), coords=coords, name="height")


def arrays() -> dict[str, tuple[np.ndarray, list[str]]]:
    """What is ingested, and how."""
    small, gaps = ["--kind", "samples", "--chunks", "40", str(COLUMNS)], ["--non-finite", "missing"]
    records = with_gaps(measured()[:, :8] / 8)
    return {
        "measured": (measured(), small),
        "measured_single": (measured().astype(np.float32), small),
        "bytes": (counts(100).astype(np.int8), small),
        "shorts": (counts(30_000).astype(np.int16), small),
        "wide": (measured()[:40].T.copy(), ["--kind", "samples", "--chunks", "5", "40"]),
        "gappy": (gappy(), small + gaps),
        "factored": (factored(), small + gaps),
        "marked": (marked(), small + gaps),
        "hollow": (hollow(), small + gaps),
        "gappy_records": (records.astype(np.float32), ["--kind", "samples", "--chunks", "40", "8", *gaps]),
    }


def write_plain(folder: Path) -> None:
    """What lies as it is: weights, complex numbers, a number for each gap, labels, and grids by path."""
    found = {
        "row_weights": row_weights(),
        "column_weights": column_weights(),
        "sparse_columns": column_weights(30),
        "wide_rows": row_weights(COLUMNS),
        "wide_columns": column_weights(40),
        "record_weights": np.minimum(row_weights(), 1.0),
        "fill": np.linspace(-0.1, 0.1, 8),
        "waves": waves(),
        "hermitian": hermitian(),
    }
    for name, array in found.items():
        written = zarr.create_array(
            folder / f"{name}.zarr",
            shape=array.shape,
            dtype=array.dtype,
            chunks=(min(40, len(array)), *array.shape[1:]),
        )
        written[...] = array
    (folder / "labels").mkdir()
    (folder / "labels" / "groups.txt").write_text("\n".join(groups()) + "\n")
    grid = field()
    grid.to_zarr(folder / "grid.zarr", zarr_format=2, encoding={"height": {"chunks": (40, 3, 5)}})
    (folder / "gridded").mkdir()
    grid.to_netcdf(folder / "gridded" / "field.nc", engine="scipy")
