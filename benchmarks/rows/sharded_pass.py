"""One Gram pass over samples in shards against one over the same values in a file for each chunk."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import cache
from benchmarks.products import one_pass, operator_of, relative_error, start_block
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.core.execution.executor import Threads

P = 20


def measure(context: Context, *, codec: str) -> Measured:
    """A warm pass over both, in turns; the share of the speed that shards keep, and what a thread holds of each."""
    folder = context.data[f"sharded-{codec}"]
    stores = {"a file for each chunk": folder / "files.zarr", "shards": folder / "shards.zarr"}
    operators = {name: operator_of(store, "matrix") for name, store in stores.items()}
    readers = {name: operator.reader for name, operator in operators.items()}
    block, threads = start_block(readers["shards"].shape[1], P), Threads(context.cores)
    cache.warm(folder)
    found: dict[str, Any] = {}

    def timed(name: str) -> None:
        found[name] = one_pass(threads, operators[name], block)[0]

    seconds = interleaved({name: partial(timed, name) for name in stores}, context.rounds)
    middle, files, shards = medians(seconds), *found.values()
    nbytes = readers["shards"].nbytes
    details: dict[str, Any] = {
        "bytes": nbytes,
        "p": P,
        "gb_per_s": {name: round(nbytes / value / 1e9, 3) for name, value in middle.items()},
        "files": {name: reader.grid[0] * reader.grid[1] for name, reader in readers.items()},
        "buffer_bytes": {name: reader.buffer_bytes for name, reader in readers.items()},
        "shard_bytes": readers["shards"].chunks[0] * readers["shards"].shape[1] * readers["shards"].dtype.itemsize,
        "relative_difference": relative_error(shards, files),
        "seconds": rounded(seconds),
    }
    failures = () if details["relative_difference"] < 1e-5 else ("the two products differ",)
    more = middle["shards"] - middle["a file for each chunk"]
    why = f"a pass over shards takes {more:.2f} s more"
    return Measured(middle["a file for each chunk"] / middle["shards"], details, why, failures)


ROWS = tuple(
    Row(
        name=f"pass-sharded-{codec}",
        what=f"speed of a Gram pass over 128 MiB shards of 1 MiB chunks, {said} / files of 16 MiB, p = {P}",
        target=0.85,
        run=partial(measure, codec=codec),
        data=(f"sharded-{codec}",),
    )
    for codec, said in (("none", "not encoded"), ("zstd", "Zstandard"))
)
