"""Packed storage of a symmetric matrix (each pair of mirrored chunks once) against full storage, from a cold disk."""

from __future__ import annotations

from functools import partial

from benchmarks import cache
from benchmarks.products import one_pass, operator_of, relative_error, start_block
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.chunked import Threads

P = 16
MOST_BYTES = 0.55  # 0.5 (1 + 1 / chunk rows): the diagonal chunks are there in both


def measure(context: Context) -> Measured:
    """The same matrix, the same product; cache dropped before every round."""
    stores = {name: context.data[name] for name in ("symmetric", "packed")}
    operators = {name: operator_of(store, "symmetric") for name, store in stores.items()}
    block = start_block(operators["packed"].block_rows, P)
    threads = Threads(context.cores)
    found = {name: one_pass(threads, operator, block) for name, operator in operators.items()}
    ways = {name: partial(one_pass, threads, operator, block) for name, operator in operators.items()}
    warm = interleaved(ways, context.rounds, partial(cache.warm, *stores.values()))
    cold = interleaved(ways, context.rounds, partial(cache.drop, *stores.values()))
    middle, middle_warm = medians(cold), medians(warm)
    share = found["packed"][1].bytes_read / found["symmetric"][1].bytes_read
    error = relative_error(found["packed"][0], found["symmetric"][0])
    details = {
        "bytes_read": {name: record.bytes_read for name, (_, record) in found.items()},
        "share_of_bytes": round(share, 4),
        "p": P,
        "warm_speed_up": round(middle_warm["symmetric"] / middle_warm["packed"], 3),
        "relative_error": {"packed against full": error},
        "seconds_cold": rounded(cold),
        "seconds_warm": rounded(warm),
    }
    failures = [f"packed and full differ by {error:.1e}"] if error > 1e-5 else []
    failures += [f"packed reads {share:.2f} of the bytes"] if share > MOST_BYTES and context.scale == "full" else []
    why = "half the bytes; both products of a chunk remain, and the disk is shared"
    return Measured(middle["symmetric"] / middle["packed"], details, why, tuple(failures))


ROWS = (
    Row(
        name="packed-symmetric",
        what="time of a cold pass over 4 GiB of full symmetric storage over that of packed storage (half the bytes)",
        target=1.8,
        run=measure,
        data=("symmetric", "packed"),
    ),
)
