"""One pass that forms A^T A, on i.i.d. rows: passes by spectrum and seconds from a cold disk against block Krylov, and
its speed against plain NumPy programs on the same files.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import random_array

import npmdask
from benchmarks import cache
from benchmarks.children import last_json, solve_command
from benchmarks.data import require_disk, write_samples
from benchmarks.floor import gram_programs, slab_files
from benchmarks.products import one_pass, relative_error, start_block
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.core.algorithms.gram import PROBES
from npmdask.core.execution.executor import Threads
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.core.operators.gram_matrix import GramMatrix
from npmdask.core.storage.source import open_source
from npmdask.writers.sparse import SparseWriter

K = 10
SPECTRA = {
    "1/sqrt(i)": lambda i: i**-0.5,
    "1/i": lambda i: 1.0 / i,
    "0.95^i": lambda i: 0.95**i,
    "5 % gap": lambda i: np.where(i <= K, 1.05, 1 - 0.5 * (i - K) / (i[-1] - K)),
}  # of eigenvalues
TOLERANCES = (1e-3, 1e-6, 1e-9)
WORST_ANGLE = 1e-4
FLOOR_ROWS = 131_072
COLD_COLUMNS, COLD_ROWS, COLD_MEMORY = 2048, 3_932_160, "4GiB"


def passes(context: Context) -> Measured:
    """Passes by spectrum, tolerance and way; the figure is the most that forming the matrix takes at 1e-6."""
    d, rows = context.sized(64, 512), context.sized(4096, 65_536)
    details: dict[str, Any] = {}
    for name, spectrum in SPECTRA.items():
        place = context.folder / f"spectrum-{len(details)}"
        store = write_samples(place, rows, spectrum(np.arange(1.0, d + 1)), "f8")
        table: dict[str, Any] = {}
        for algorithm in ("power", "krylov", "gram"):
            runs = {tol: npmdask.top_k(store, K, kind="samples", algorithm=algorithm, tol=tol) for tol in TOLERANCES}
            steps = {f"{tol:.0e}": run.steps if run.converged else None for tol, run in runs.items()}
            seconds = {f"{tol:.0e}": round(run.seconds or 0.0, 2) for tol, run in runs.items()}
            table[algorithm] = {"passes": steps, "seconds": seconds}
        details[name] = table
    most = max(table["gram"]["passes"]["1e-06"] or 99 for table in details.values())
    return Measured(float(most), details)


def gap(context: Context) -> Measured:
    """Passes of "auto", and of block Krylov beside it, where ten values are 5 % above a bulk."""
    columns, rows = context.sized(128, 1024), context.sized(4096, 65_536)
    store = write_samples(context.folder / "gap", rows, SPECTRA["5 % gap"](np.arange(1.0, columns + 1)))
    truth = np.load(store.parent / "truth.npy")[:, :K]
    details: dict[str, Any] = {}
    for algorithm in ("auto", "krylov"):
        found = npmdask.top_k(store, K, kind="samples", algorithm=algorithm)
        angle = max_sin_theta(found.basis, truth)
        details[algorithm] = {"passes": found.total_data_passes, "converged": found.converged, "max_sin_theta": angle}
    wrong = [n for n, facts in details.items() if facts["max_sin_theta"] > WORST_ANGLE or not facts["converged"]]
    why = "small data are left to blocks, which are as fast" if context.scale == "small" else ""
    failures = tuple(f"{n}: sin(theta) {details[n]['max_sin_theta']:.1e}" for n in wrong)
    return Measured(float(details["auto"]["passes"]), details, why, failures)


def cold(context: Context) -> Measured:
    """Seconds of "auto" over those of block Krylov, from a disk whose pages are not in memory when a run begins."""
    columns, rows = context.sized(256, COLD_COLUMNS), context.sized(4096, COLD_ROWS)
    require_disk(rows * columns * 4, context.folder)
    store = write_samples(context.folder / "cold", rows, np.arange(1, columns + 1) ** -0.5)
    job = {"source": str(store), "k": K, "kind": "samples", "memory": COLD_MEMORY}
    found: dict[str, list[dict[str, Any]]] = {"auto": [], "krylov": []}
    left = []
    for number in range(min(2, context.rounds)):
        for algorithm in list(found)[:: -1 if number % 2 else 1]:
            cache.drop(store)
            left.append(round(cache.cached_share(store), 4))
            command = solve_command(**job, algorithm=algorithm, truth=str(store.parent / "truth.npy"))
            found[algorithm].append(last_json(command, folder=context.folder))
    details: dict[str, Any] = {"bytes": rows * columns * 4, "cached_share_at_start_of_a_run": max(left)}
    for name, runs in found.items():
        details[name] = runs[0] | {"seconds": statistics.median(run["seconds"] for run in runs)}
    wrong = [n for n in found if details[n]["max_sin_theta"] > WORST_ANGLE or not details[n]["converged"]]
    failures = tuple(f"{n}: sin(theta) {details[n]['max_sin_theta']:.1e}" for n in wrong)
    speed = details["bytes"] / 1e9 / details["auto"]["seconds"]
    why = (
        f"auto reads {speed:.2f} GB/s, and block Krylov {details['krylov']['passes'] * details['bytes'] / 1e9:.0f} GB "
    )
    why += f"in {details['krylov']['seconds']:.0f} s, of which later passes find in memory what fits there"
    return Measured(details["auto"]["seconds"] / details["krylov"]["seconds"], details, why, failures)


def floor(context: Context, columns: int) -> Measured:
    """The fastest plain program over our pass, which multiplies probes in float64 beside; float32 tiles, all cores."""
    d, rows = context.sized(columns // 8, columns), context.sized(16_384, FLOOR_ROWS)
    store = write_samples(context.folder / f"floor-{columns}", rows, np.arange(1, d + 1) ** -0.5)
    reader: Any = open_source(store, "samples").reader
    files = slab_files(store / "c", reader.shape, reader.chunks, reader.dtype)
    operator, probes = GramMatrix(reader=reader, single=True), start_block(d, min(PROBES, d), "f8")
    threads, floors = Threads(context.cores), gram_programs(files, context.cores)
    cache.warm(store)
    ways = floors | {"npmdask": lambda: one_pass(threads, operator, probes)}
    seconds = interleaved(ways, context.rounds)
    middle = medians(seconds)
    best = min(floors, key=lambda name: middle[name])
    error = relative_error(one_pass(threads, operator, probes)[0][:, :d], floors[best]())
    details = {"bytes": reader.nbytes, "seconds": rounded(seconds), "relative_difference": error}
    why = f"{middle['npmdask'] - middle[best]:.2f} s more: checksums, sums in float64, and {PROBES} columns in float64"
    failures = (f"differs by {error:.1e}",) if error > WORST_ANGLE else ()
    return Measured(middle[best] / middle["npmdask"], details, why, failures)


def few_sparse_rows(context: Context) -> Measured:
    """Seconds of "auto", from a store, over those of SciPy in memory: A A^T, all of its eigenvectors, and theirs."""
    m, d = context.sized(200, 2000), context.sized(5000, 100_000)
    details: dict[str, Any] = {}
    for share in (0.01, 0.05):
        rng, path = generator(0, "benchmarks", "few sparse rows", int(1000 * share)), context.folder / f"csr-{share}"
        rows = random_array((m, d), density=share, rng=rng, format="csr", dtype="f4")
        left, right = rng.standard_normal((m, K)) * 2.0 ** -np.arange(K), rng.standard_normal((d, K))
        for i in range(m):  # ten directions among noise
            own = slice(rows.indptr[i], rows.indptr[i + 1])
            rows.data[own] += 3 * right[rows.indices[own]] @ left[i]
        writer = SparseWriter(path, columns=d, dtype=rows.dtype, identity={})
        writer.write(rows.indptr, rows.indices, rows.data)
        writer.finish()
        found: dict[str, Any] = {}

        def ours(path: Any = path, found: dict[str, Any] = found) -> None:
            found["npmdask"] = npmdask.top_k(path, K, kind="sparse").values

        def scipys(rows: Any = rows, found: dict[str, Any] = found) -> None:
            wide = rows.astype("f8")
            vectors = np.linalg.eigh((wide @ wide.T).toarray())[1]
            found["SciPy"] = np.linalg.norm(wide.T @ vectors[:, : -K - 1 : -1], axis=0)

        seconds = interleaved({"npmdask": ours, "SciPy": scipys}, context.rounds)
        off = float(np.abs(found["npmdask"] / found["SciPy"] - 1).max())
        details[f"{share:.0%}"] = {"seconds": rounded(seconds), "relative_difference": off}
        details[f"{share:.0%}"]["ratio"] = medians(seconds)["npmdask"] / medians(seconds)["SciPy"]
    failures = tuple(f"{n}: differs" for n, facts in details.items() if facts["relative_difference"] > WORST_ANGLE)
    why = f"{details['5%']['ratio']:.2f} at 5 %; at 1 % a sixth is what a run writes"
    return Measured(max(facts["ratio"] for facts in details.values()), details, why, failures)


ROWS = (
    Row(
        name="gram-sparse-rows",
        what="`auto` / SciPy's `A @ A.T` and eigenvectors, CSR, 2,000 x 100,000, 1 and 5 %: the larger",
        target=1.1,
        better="lower",
        run=few_sparse_rows,
    ),
    Row(
        name="gram-passes",
        what="most passes to a relative residual of 1e-6 where A^T A is formed, four spectra",
        target=2.0,
        better="lower",
        run=passes,
    ),
    Row(
        name="gram-gap",
        what="passes of `auto`, ten eigenvalues 5 % above a bulk, 65,536 x 1024",
        target=2.0,
        better="lower",
        run=gap,
    ),
    Row(
        name="gram-cold",
        what="`auto` / block Krylov, cold, 3,932,160 x 2048 (30 GiB), k = 10, memory 4 GiB",
        target=0.5,
        better="lower",
        run=cold,
    ),
    *(
        Row(
            name=f"gram-floor-{columns}",
            what=f"speed of forming A^T A, certified, / the fastest NumPy program that forms it, 131,072 x {columns}",
            target=0.85,
            run=partial(floor, columns=columns),
        )
        for columns in (1024, 2048)
    ),
)
