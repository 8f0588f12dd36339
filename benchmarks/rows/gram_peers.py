"""k = 10 of 131,072 i.i.d. rows from Zarr, warm: what "auto" takes against the best of the direct programs, by columns.

All find the principal components of the same array on disk, each in a process of its own, imports not counted. From the
same runs: memory, the ways that "auto" did not take, and how much faster it is than block Krylov in float64.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

import numpy as np

from benchmarks import cache
from benchmarks.contest import OURS, Found, attempted, best_peer, failures, finals, is_right, judged, run_contestant
from benchmarks.data import require_disk, write_samples
from benchmarks.registry import Context, Measured, Row

K, GOAL, TOL = 10, 1e-4, 1e-6
ROWS_OF_DATA = 131_072
AGAINST_KRYLOV = {256: 0.3, 1024: 0.45, 2048: 0.5, 4096: 0.55}  # columns, and the share of its seconds to reach
SKLEARN = "scikit-learn PCA covariance_eigh"
PEERS = {SKLEARN: 1, "scanpy PCA on Dask": 8192, "NumPy, X^T X in float32": 1, "NumPy, X^T X in float64": 1}
ROUTES = ("gram", "krylov")
DOUBLE = f"{OURS}, krylov in float64"  # and three blocks: all that there was when these targets were set
IN_DOUBLE = {"algorithm": "krylov", "options": {"precision": "float64", "basis_blocks": 3}}
SECONDS = 600.0  # for one run
OVER_ALL = (  # of the same runs: name, what, and the largest that it may be
    (
        "memory",
        "memory of these runs / scikit-learn's covariance_eigh: the largest",
        0.25,
    ),
    (
        "routes",
        "`auto` / the faster of gram and krylov: the largest",
        1.15,
    ),
    (
        "krylov",
        "`auto` / block Krylov in float64, over 0.3, 0.45, 0.5, 0.55 for the four widths: the largest",
        1.0,
    ),
)
KEPT: dict[tuple[str, int], Found] = {}


def _contest(context: Context, columns: int) -> Found:
    """The facts of every contestant at so many columns; measured once for all rows that need them."""
    if (context.scale, columns) not in KEPT:
        KEPT[context.scale, columns] = _contest_at(context, columns)
    return KEPT[context.scale, columns]


def _contest_at(context: Context, columns: int) -> Found:
    rows, wide = context.sized(4096, ROWS_OF_DATA), context.sized(columns // 8, columns)
    require_disk(rows * wide * 4, context.folder)
    whole, small = context.folder / f"iid-{columns}", context.folder / "small"
    store = write_samples(whole, rows, np.arange(1, wide + 1) ** -0.5)
    if not small.exists():
        write_samples(small, 4096, np.arange(1, 65) ** -0.5)
    cache.warm(store)

    def run(name: str) -> dict[str, Any]:
        route = name.removeprefix(f"{OURS}, ")
        asked = {"zarr": str(store), "truth": str(whole / "truth.npy"), "k": K}
        first = {"zarr": str(small / "x.zarr")} | ({"algorithm": "gram"} if name == OURS else {})
        job = asked | {"contestant": OURS if name.startswith(OURS) else name, "small": first}
        job |= {"setting": PEERS.get(name, TOL)} | ({"algorithm": route} if route in ROUTES else {})
        job |= IN_DOUBLE if name == DOUBLE else {}
        return judged(run_contestant(context, "samples", name, job, seconds=SECONDS), "max_sin_theta", GOAL)

    found = {OURS: attempted(OURS, lambda: run(OURS))}
    others = [f"{OURS}, {route}" for route in ROUTES if route != found[OURS].get("algorithm")]
    found |= {name: attempted(name, partial(run, name)) for name in [*others, DOUBLE, *PEERS]}
    finals(found, run, min(3, context.rounds))
    shutil.rmtree(whole)
    return found


def measure(context: Context, columns: int) -> Measured:
    """Our seconds over those of the best right one that is not ours."""
    found = _contest(context, columns)
    wrong, best = failures(found), best_peer(found)
    if best is None or not is_right(found[OURS]):
        return Measured(None, found, "", (*wrong, "no comparison was possible"))
    details = {"goal": GOAL, "k": K, **found, "best_peer": best}
    why = (
        f"{best} takes {found[best]['peak_anonymous_bytes'] / found[OURS]['peak_anonymous_bytes']:.1f} times our memory"
    )
    return Measured(found[OURS]["seconds"] / found[best]["seconds"], details, why, wrong)


def over_all(context: Context, what: str) -> Measured:
    """The worst over the columns of one of the ratios that the same runs give."""
    ratios: dict[str, float] = {}
    wrong: list[str] = []
    for columns, share in AGAINST_KRYLOV.items():
        found = _contest(context, columns)
        wrong += failures(found)
        ours = found[OURS]
        if what == "memory" and is_right(found[SKLEARN]):
            ratios[str(columns)] = ours["peak_anonymous_bytes"] / found[SKLEARN]["peak_anonymous_bytes"]
        routes = {name: facts["seconds"] for name, facts in found.items() if name.startswith(OURS) and is_right(facts)}
        if what == "routes" and is_right(ours):
            ratios[str(columns)] = ours["seconds"] / min(routes.values())
        if what == "krylov" and is_right(ours) and is_right(found[DOUBLE]):
            ratios[str(columns)] = ours["seconds"] / found[DOUBLE]["seconds"] / share
    if len(ratios) < len(AGAINST_KRYLOV):
        return Measured(None, ratios, "", (*wrong, "no comparison was possible"))
    worst = max(ratios, key=lambda columns: ratios[columns])
    return Measured(ratios[worst], {"by_columns": ratios}, f"the worst is that of {worst} columns", tuple(wrong))


ROWS = (
    *(
        Row(
            name=f"gram-peers-{columns}",
            what=f"`auto` / the best of {len(PEERS)} others, 131,072 x {columns}, k = {K}, from Zarr",
            target=1.1,
            better="lower",
            run=partial(measure, columns=columns),
        )
        for columns in AGAINST_KRYLOV
    ),
    *(
        Row(name=f"gram-peers-{name}", what=what, target=most, better="lower", run=partial(over_all, what=name))
        for name, what, most in OVER_ALL
    ),
)
