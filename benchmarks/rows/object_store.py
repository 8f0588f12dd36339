"""Passes over an object store behind a link of 50 ms: the share of the link that they use.

The server (:mod:`benchmarks.object_server`) and the link in front of it (:mod:`benchmarks.link`) are processes of their
own on loopback. What is measured is the second of two passes by a run that has 1 GiB, the way to the store measured as
a run does. Small data go over a slow link in small chunks, so that a pass takes as many round trips as a large one.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.children import started
from benchmarks.products import one_pass, operator_of, relative_error, start_block
from benchmarks.registry import CannotRunError, Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.memory import plan_memory, tree_rss
from npmdask.remote.prefetch import link_of

DELAY = 50  # milliseconds of a round trip
RATE = 125_000_000  # bytes a second: 1 Gbit/s
SMALLER = 20  # times, of link and chunks, where the data are small
COLUMNS, P = 1024, 20
MEMORY = 2**30  # beyond what the process has
MIB = 2**20
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "reader",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "us-east-1",
}


def measure(context: Context, *, chunk: int, shard: int | None = None, sparse: bool = False) -> Measured:
    """The share of the link in a pass with chunks of so many bytes, in shards of so many."""
    smaller = SMALLER if context.scale == "small" else 1
    rate, height = RATE / smaller, chunk // smaller // (4 * COLUMNS)
    rows = context.sized(8 * MIB, 2048 * MIB) // (4 * COLUMNS) // height * height
    folder = context.folder / "objects"
    shutil.rmtree(folder, ignore_errors=True)
    each = None if shard is None else shard // chunk * height
    written = _written_entries if sparse else _written
    try:
        local = written(folder / "bucket" / "x.zarr", rows, height, each)
        with served(folder, context.folder, rate):
            return _measured(context, local, rate, chunk // smaller, "sparse" if sparse else "matrix")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _written(store: Path, rows: int, height: int, shard: int | None) -> Path:
    """Random numbers, uncompressed: a link knows no other bytes."""
    shards = None if shard is None else (shard, COLUMNS)
    array = zarr.create_array(
        store, shape=(rows, COLUMNS), dtype="f4", chunks=(height, COLUMNS), shards=shards, compressors=None
    )
    random, step = np.random.default_rng(0), shard or height
    for start in range(0, rows, step):
        array[start : start + step] = random.standard_normal((min(step, rows - start), COLUMNS), np.float32)
    return store


def _written_entries(store: Path, rows: int, height: int, shard: int | None) -> Path:
    """Half of the numbers of as many rows, as a sparse matrix; as many bytes are their columns."""
    group, each = zarr.open_group(store, mode="w"), COLUMNS // 2
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [rows, COLUMNS]})
    chunks, shards = (height * COLUMNS,), None if shard is None else (shard * COLUMNS,)
    layout: dict[str, Any] = {"shape": (rows * each,), "chunks": chunks, "shards": shards, "compressors": None}
    arrays = {
        name: group.create_array(name, dtype=dtype, **layout) for name, dtype in (("data", "f4"), ("indices", "i4"))
    }
    group.create_array("indptr", data=np.arange(rows + 1) * each)
    random, step = np.random.default_rng(0), 2 * (shard or height)
    for start in range(0, rows, step):
        part = slice(start * each, min(start + step, rows) * each)
        count = part.stop - part.start
        arrays["data"][part] = random.standard_normal(count, np.float32)
        arrays["indices"][part] = (2 * np.arange(count) + random.integers(0, 2, count)) % COLUMNS
    return store


@contextmanager
def served(folder: Path, own: Path, rate: float, delay: int = DELAY) -> Iterator[None]:
    """The folder as an object store behind the link, and what a client needs to know of it in the environment.

    Without ``delay`` there is no link.
    """
    server, link = _free_port(), _free_port()
    before = {name: os.environ.get(name) for name in (*SETTINGS, "AWS_ENDPOINT_URL")}
    with ExitStack() as stack:
        for name, port, *words in (
            ("object_server", server, str(folder)),
            *([("link", link, str(server), str(delay), str(rate))] if delay else []),
        ):
            command = [sys.executable, "-m", f"benchmarks.{name}", str(port), *words]
            child = stack.enter_context(started(command, folder=own))
            _wait_for(port, child)
        os.environ.update(SETTINGS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{link if delay else server}")
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, child: Any) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until and child.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise CannotRunError(f"nothing listens on port {port} of this machine")


def _measured(context: Context, local: Path, rate: float, chunk: int, kind: str) -> Measured:
    operator = operator_of("s3://bucket/x.zarr", kind)  # type: ignore[arg-type]
    block, nbytes = start_block(COLUMNS, P), operator.reader.nbytes
    limit = tree_rss() + MEMORY
    plan = plan_memory(operator, P, 4, limit=limit, base=limit - MEMORY, threads=context.cores, workers=0)
    link = link_of(operator.reader.remote, MEMORY)
    found, record = _pass(plan.threads, plan.in_flight, operator, block)
    ways = {"ahead": partial(_pass, plan.threads, plan.in_flight, operator, block)}
    slow = {"one by one": partial(_pass, plan.threads, 0, operator, block)}  # once: it is not what is judged
    seconds = interleaved(ways, context.rounds) | interleaved(slow, 1)
    expected = one_pass(Threads(context.cores), operator_of(local, kind), block)[0]
    middle = medians(seconds)
    share = nbytes / middle["ahead"] / rate
    details: dict[str, Any] = {
        "bytes": nbytes,
        "chunk_bytes": chunk,
        "link": {"milliseconds": DELAY, "bytes_per_s": rate},
        "measured": {"bytes_per_s": round(link.rate), "seconds_of_a_request": round(link.seconds, 4)},
        "bytes_in_flight": plan.in_flight,
        "requests": record.requests,
        "share_one_by_one": round(nbytes / middle["one by one"] / rate, 3),
        "relative_error": {"npmdask": relative_error(found, expected)},
        "seconds": rounded(seconds),
    }
    wrong = () if (found == expected).all() else ("the product differs from that of local files",)
    why = "the first chunks have to come before anything is computed, and the last are computed when all have come"
    return Measured(share, details, why, wrong)


def _pass(threads: int, in_flight: int, operator: Any, block: np.ndarray) -> tuple[np.ndarray, Any]:
    executor = Threads(threads, in_flight)
    try:
        return one_pass(executor, operator, block)
    finally:
        executor.close()


WHAT = "share of a link (1 Gbit/s, 50 ms) that a pass from S3 uses:"
ROWS = (
    Row(name="remote-16", what=f"{WHAT} chunks of 16 MiB", target=0.95, run=partial(measure, chunk=16 * MIB)),
    Row(name="remote-1", what=f"{WHAT} chunks of 1 MiB", target=0.9, run=partial(measure, chunk=MIB)),
    Row(
        name="remote-shards",
        what=f"{WHAT} chunks of 1 MiB, in shards of 64 MiB",
        target=0.9,
        run=partial(measure, chunk=MIB, shard=64 * MIB),
    ),
    Row(
        name="remote-shards-sparse",
        what=f"{WHAT} CSR, of 1 MiB, in shards of 64 MiB",
        target=0.9,
        run=partial(measure, chunk=MIB, shard=64 * MIB, sparse=True),
    ),
)
