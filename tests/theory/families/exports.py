"""The command line: run, export and transform in every format, read back by the libraries that own the formats.

Components and values to the bit, scores and shares up to rounding.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import xarray as xr
import zarr

import npmdask
from npmdask.cli.main import main
from npmdask.errors import BadInputError
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, stored, whole
from tests.theory.families.judging import Findings, Prepared, Problem, Unasked, prepared

NAMES: dict[str, Callable[[int], str]] = {  # of columns
    "plain": lambda j: f"g{j}",
    "quotes": lambda j: f'é,{j}"x',
    "words": lambda j: f"a b\t{j}",
    "not available": lambda j: f"NA{j or ''}",
    "numbers": lambda j: f"{j}.5",
    "formulas": lambda j: f"=SUM({j})",
}
INGESTED = ("csv", "h5ad")


@dataclass(frozen=True)
class Exported(Problem):
    x: np.ndarray
    format: str
    names: str
    k: int
    center: bool
    scale: bool
    rows: np.ndarray | None
    columns: np.ndarray | None
    missing: str  # "none", "mean", "drop-columns" or "limit": mean, and columns of mostly gaps left out
    rotate: str


def problem(rng: Rng) -> Exported:
    n, d = whole(rng, 5, 149), whole(rng, 2, 24)
    x = rng.standard_normal((n, d)) * np.geomspace(3, 0.1, d) + rng.standard_normal(d) * power_of_ten(rng, 0, 5)
    x = (x * 10.0 ** one_of(rng, (0, 0, 0, -20, 20))).astype(np.float32 if chance(rng, 0.2) else float)
    k, center = whole(rng, 1, min(n - 1, d)), chance(rng, 0.75)
    storage = one_of(rng, ("csv", "parquet", "npy", "zarr", "h5ad"))
    missing = "none"
    if center and storage not in INGESTED and chance(rng, 0.3):
        missing = one_of(rng, ("mean", "drop-columns", "limit"))
        if missing == "drop-columns":
            x[:, rng.random(d) < 0.3] = np.nan
        else:
            x[rng.random(x.shape) < 0.15] = np.nan
        if missing == "limit":
            x[: int(0.9 * n), 0] = np.nan
        if (~np.isnan(x)).sum(axis=0).max() < 3 or np.isnan(x).all(axis=1).any():
            raise Unasked("a row, or every column, without values")
    rows = rng.integers(0, 4, n) * one_of(rng, (1.0, 0.37)) if chance(rng, 0.3) else None
    columns = rng.random(d) * (rng.random(d) < 0.85) if chance(rng, 0.3) else None
    if (rows is not None and (rows > 0).sum() < 3) or (columns is not None and not columns.any()):
        raise Unasked("weights that leave nothing")
    rotate = one_of(rng, ("none", "none", "varimax", "promax")) if center else "none"
    names = one_of(rng, tuple(NAMES))
    scale = chance(rng, 0.3)
    return Exported(x, storage, names, k, center, scale, rows, columns, missing, rotate)


def command(*arguments: str) -> tuple[int, str, str]:
    """The exit status of ``npmdask ARGUMENTS`` and what it writes."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status = main(list(arguments))
        except SystemExit as stop:
            status = int(stop.code or 0)
    return status, out.getvalue(), error.getvalue()


def required(*arguments: str) -> str:
    status, out, error = command(*arguments)
    if status:
        raise BadInputError(f"npmdask {arguments[0]} ended with {status}: {error[-300:]}")
    return out


def written(problem: Exported, folder: Path, names: list[str]) -> str:
    """The path of the data as the command line gets them."""
    x, path = problem.x, folder / f"x.{problem.format}"
    match problem.format:
        case "csv":
            pd.DataFrame(x, columns=names).to_csv(path, index=False)
        case "parquet":
            pd.DataFrame(x, columns=names).to_parquet(path)
        case "npy":
            np.save(path, x)
        case "zarr":
            return stored(folder, x, max(1, len(x) // 3))
        case "h5ad":
            cells = pd.DataFrame(index=[f"c{i}" for i in range(len(x))])
            anndata.AnnData(x, var=pd.DataFrame(index=names), obs=cells).write_h5ad(path)
    if problem.format in INGESTED:
        said = ["--header"] if len(names) < 3 and (problem.format, problem.names) == ("csv", "numbers") else []
        required("ingest", str(path), str(folder / "ingested.zarr"), "--quiet", *said)  # two numbers may be data
        return str(folder / "ingested.zarr")
    return str(path)


def check(problem: Exported, folder: Path) -> Findings:
    found = Findings()
    names = [NAMES[problem.names](j) for j in range(problem.x.shape[1])]
    source = written(problem, folder, names)
    x = problem.x.astype(float)
    if problem.format == "csv":  # decimal digits of float32 are not its bits
        x = pd.read_csv(folder / "x.csv", float_precision="round_trip").to_numpy(float)
    observed = ~np.isnan(x)
    kept = np.arange(x.shape[1])
    if problem.missing == "drop-columns":
        kept = np.flatnonzero(observed.any(axis=0))
    elif problem.missing == "limit":
        kept = np.flatnonzero((~observed).mean(axis=0) <= 0.5)
    x, observed = x[:, kept], observed[:, kept]
    columns = None if problem.columns is None else problem.columns[kept]
    gaps = observed if problem.missing in ("mean", "limit") else None
    truth = prepared(x, center=problem.center, scale=problem.scale, rows=problem.rows, columns=columns, observed=gaps)
    if truth.is_noise:
        raise Unasked("constant data: nothing is left but the rounding of means")
    stated = json.loads(required(*run_arguments(problem, source, folder)))
    solution = npmdask.resume(folder / "run")
    compare_values(found, stated, truth)
    labels = None if problem.format in ("npy", "zarr") else [names[j] for j in kept]
    exported(found, problem, solution, labels, folder)
    scores = truth.rows_before @ np.asarray(solution.basis)
    transformed(found, source, scores, truth, folder, problem)
    return found


def run_arguments(problem: Exported, source: str, folder: Path) -> list[str]:
    found = [
        "run",
        source,
        "-k",
        str(problem.k),
        "--kind",
        "samples",
        "--store",
        str(folder / "run"),
        "--json",
        "--quiet",
    ]
    found += ["--center"] * problem.center + ["--scale"] * problem.scale
    for option, weights in (("row", problem.rows), ("column", problem.columns)):
        if weights is not None:
            np.save(folder / f"{option}.npy", weights)
            found += [f"--{option}-weights", str(folder / f"{option}.npy")]
    if problem.missing != "none":
        found += ["--missing", "drop-columns" if problem.missing == "drop-columns" else "mean"]
    return found + (["--missing-limit", "0.5"] if problem.missing == "limit" else [])


def compare_values(found: Findings, stated: dict[str, Any], truth: Prepared) -> None:
    factor = float(np.abs(truth.matrix).max())
    values = np.linalg.svd(truth.matrix / factor, compute_uv=False) ** 2 * factor**2 / truth.weight
    k = len(stated["values"])
    rounding = 16 * truth.rounding * np.sqrt(truth.matrix.size) / np.sqrt(values[0])
    found.close("values", stated["values"], values[:k], 1e-9 + rounding)
    if stated.get("explained_share") is not None:
        share = values[:k].sum() / values.sum()
        found.close("share", stated["explained_share"], share, 1e-7 + rounding, 1.0)


def exported(found: Findings, problem: Exported, solution: Any, labels: list[str] | None, folder: Path) -> None:
    """The same components, to the bit, and names in every format."""
    turned = solution if problem.rotate == "none" or len(solution.values) < 2 else solution.rotated(problem.rotate)
    basis = np.asarray(turned.basis)
    for suffix in ("csv", "parquet", "nc", "h5ad", "npz"):
        path = folder / f"out.{suffix}"
        option = [] if turned is solution else ["--rotate", problem.rotate]
        status, _, error = command("export", str(folder / "run"), str(path), *option)
        if status:
            found.expect(False, f"export to {suffix} failed:", error)
            continue
        components, seen = read_back(path)
        found.expect(np.array_equal(components, basis), f"{suffix}: components are not those of the run to the bit")
        if labels is not None and seen is not None and suffix in ("csv", "parquet"):
            found.expect(seen == labels, f"{suffix}: names", seen[:4], labels[:4])
        if suffix == "nc" and turned is solution and problem.center:
            with xr.open_dataset(path) as dataset:
                found.expect(np.array_equal(dataset["values"].values, solution.values), "nc: values")
        if suffix == "h5ad" and turned is solution and problem.center:
            variances = anndata.read_h5ad(path).uns["pca"]["variance"]
            found.close("h5ad: variances", variances, solution.explained_variance, 1e-12)


def read_back(path: Path) -> tuple[np.ndarray, list[str] | None]:
    """Components, one a column, and names of the columns of the data, by the library that owns the format."""
    match path.suffix:
        case ".csv" | ".parquet":
            table = (
                pd.read_parquet(path)
                if path.suffix == ".parquet"
                else pd.read_csv(path, float_precision="round_trip", keep_default_na=False)
            )
            shown = [name for name in table.columns if name.startswith("component")]
            return table[shown].to_numpy(float), [str(name) for name in table.iloc[:, 0]]
        case ".nc":
            with xr.open_dataset(path) as dataset:
                return np.asarray(dataset["components"].values.T), None
        case ".h5ad":
            return np.asarray(anndata.read_h5ad(path).varm["PCs"]), None
    with np.load(path) as arrays:
        return arrays["basis"], None


def transformed(
    found: Findings, source: str, scores: np.ndarray, truth: Prepared, folder: Path, problem: Exported
) -> None:
    for suffix in ("csv", "parquet", "npy", "zarr"):
        path = folder / f"scores.{suffix}"
        status, _, error = command("transform", str(folder / "run"), source, str(path), "--quiet")
        if status:
            found.expect(False, f"transform to {suffix} failed:", error)
            continue
        match suffix:
            case "npy":
                read = np.load(path)
            case "zarr":
                read = np.asarray(zarr.open_group(path, mode="r")["data"][...])
            case _:
                table = pd.read_csv(path, float_precision="round_trip") if suffix == "csv" else pd.read_parquet(path)
                read = table[[name for name in table.columns if str(name).startswith("component")]].to_numpy(float)
        rounding = truth.of_scores(scaled=problem.scale)
        size = float(np.abs(scores).max()) or 1.0
        found.close(f"scores in {suffix}", read, scores, 1e-12 + rounding / size, size)
