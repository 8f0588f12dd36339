"""Intervals by bootstrap from the Grams of groups of rows, beside a pass that forms the Gram of all of them."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks import cache
from benchmarks.data import require_disk, write_samples
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.api import gram
from npmdask.stored_gram.store import GramStore

K, REPLICATES, GROUPS = 10, 200, 24
COLUMNS, ROWS_READ = 1024, 192_000


def measure(context: Context) -> Measured:
    """Seconds of 200 replicates over those of a pass; a pass that keeps groups, which is dearer, is shown too."""
    d, rows = context.sized(64, COLUMNS), context.sized(4096, ROWS_READ)
    grams = context.folder / "bootstrap-grams"
    require_disk(rows * d * 4 + 8 * d * d * (GROUPS + 1) * (context.rounds + 1), context.folder)
    values = np.append(np.geomspace(100, 2, K), np.linspace(1, 0.5, d - K))
    store = write_samples(context.folder / "bootstrap", rows, values)
    labels, made = np.arange(rows) * GROUPS // rows, iter(range(10**6))

    def formed(groups: np.ndarray | None = None) -> GramStore:
        return gram(store, grams / str(next(made)), kind="samples", groups=groups)

    held = formed(labels)
    cache.warm(store)
    ways = {
        "one pass": formed,
        "one pass, in groups": partial(formed, labels),
        "bootstrap": lambda: GramStore(held.store).bootstrap(K, replicates=REPLICATES),
    }
    seconds = interleaved(ways, context.rounds)
    middle, found = medians(seconds), held.bootstrap(K, replicates=REPLICATES)
    details = {
        "groups": found.groups,
        "seconds": rounded(seconds),
        "checked_error": found.checked_error,
        "over_a_pass_in_groups": middle["bootstrap"] / middle["one pass, in groups"],
    }
    failures = (f"mixed components: {found.mixed}",) if found.mixed else ()
    failures += () if found.checked_error > 0 else ("every replicate was decomposed in full",)
    return Measured(middle["bootstrap"] / middle["one pass"], details, "", failures)


ROWS = (
    Row(
        name="bootstrap-time",
        what=f"{REPLICATES} bootstrap replicates over {GROUPS} groups of rows / one pass forming A^T A, 192,000 x 1024",
        target=0.5,
        better="lower",
        run=measure,
    ),
)
