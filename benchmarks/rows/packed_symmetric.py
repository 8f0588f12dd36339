"""Packed storage of a symmetric matrix (each pair of mirrored chunks once) against full storage, from a cold disk."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import cache
from benchmarks.products import one_pass, operator_of, relative_error, start_block
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.core.execution.executor import Threads
from npmdask.core.storage.source import open_source
from npmdask.symmetric.operator import Symmetric

P = 16
MOST_BYTES = 0.55  # 0.5 (1 + chunk rows / rows): the chunks of the diagonal are there in both
WHOLE = ("full, row slabs", "full, square chunks")


def measure(context: Context) -> Measured:
    """The same matrix and product, the cache dropped before every round; full storage has its better layout."""
    stores = [context.data[name] for name in ("symmetric", "slabs", "packed")]
    operators: dict[str, Any] = {
        "full, row slabs": operator_of(context.data["slabs"], "symmetric"),
        "full, square chunks": Symmetric(reader=open_source(context.data["symmetric"]).reader),  # type: ignore[arg-type]
        "full, square chunks, upper triangle": operator_of(context.data["symmetric"], "symmetric"),
        "packed": operator_of(context.data["packed"], "symmetric"),
    }
    block = start_block(operators["packed"].block_rows, P)
    threads = Threads(context.cores)
    found = {name: one_pass(threads, operator, block) for name, operator in operators.items()}
    ways = {name: partial(one_pass, threads, operator, block) for name, operator in operators.items()}
    warm = interleaved(ways, min(3, context.rounds), partial(cache.warm, *stores))
    cold = interleaved(ways, context.rounds, partial(cache.drop, *stores))
    middle, middle_warm = medians(cold), medians(warm)
    share = found["packed"][1].bytes_read / found[WHOLE[0]][1].bytes_read
    errors = {name: relative_error(product, found[WHOLE[0]][0]) for name, (product, _) in found.items()}
    details = {
        "bytes_read": {name: record.bytes_read for name, (_, record) in found.items()},
        "share_of_bytes": round(share, 4),
        "p": P,
        "warm_speed_up": round(min(middle_warm[name] for name in WHOLE) / middle_warm["packed"], 3),
        "relative_error": errors,
        "seconds_cold": rounded(cold),
        "seconds_warm": rounded(warm),
    }
    failures = [f"{name} is wrong by {error:.1e}" for name, error in errors.items() if error > 1e-5]
    failures += [f"packed reads {share:.2f} of the bytes"] if share > MOST_BYTES and context.scale == "full" else []
    why = f"{share:.2f} of the bytes are read; both products of a chunk remain"
    return Measured(min(middle[name] for name in WHOLE) / middle["packed"], details, why, tuple(failures))


ROWS = (
    Row(
        name="packed-symmetric",
        what="cold pass over full symmetric storage (4 GiB) / packed storage (half the bytes)",
        target=1.8,
        run=measure,
        data=("symmetric", "slabs", "packed"),
    ),
)
