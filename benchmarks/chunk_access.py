"""Zarr's codec pipelines and zarrs beside our own chunk access: speed, memory, and what becomes of damaged chunks.

python -m benchmarks.chunk_access FOLDER [--mib 64] [--rounds 5] [--damaged 400] [--only pass memory far damage] prints
the tables that docs/decisions/0059-chunk-access.md sums up. The fused pipeline needs zarr 3.4 (Python 3.12), zarrs its
package; a way that is not installed is left out. Every way takes the CRC-32C of what it reads, as passes do, and the
pipelines read into a buffer that is reused. CPU seconds are of all threads; of several rounds in turn the least counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import zarr
from threadpoolctl import threadpool_limits
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.core import codec_pipeline
from zarr.core.buffer import default_buffer_prototype

from benchmarks.children import as_child, in_child
from benchmarks.floor import transposed
from benchmarks.products import one_pass, operator_of, relative_error, start_block
from benchmarks.rows.object_store import COLUMNS, RATE, served
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.memory import usable_cores
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.chunk_access import WholeStore, access_of, lost_file, naming, read_chunk
from npmdask.core.storage.readers import ReadStats
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.safe_open import PlainFiles
from npmdask.core.storage.source import open_source
from npmdask.errors import NpmdaskError
from npmdask.remote.object_url import open_remote

MIB = 2**20
OURS = "ours"
FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"
PIPELINES = {"zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
if hasattr(codec_pipeline, "FusedCodecPipeline"):
    PIPELINES |= {"fused": FUSED, "fused, checked": FUSED}
if find_spec("zarrs"):
    PIPELINES["zarrs"] = "zarrs.ZarrsCodecPipeline"
WAYS = (OURS, *PIPELINES)


class AtOnce(PlainFiles):
    """Plain files whose coroutines never wait."""

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """As ``get_sync``."""
        return self.get_sync(key, prototype=prototype or default_buffer_prototype(), byte_range=byte_range)

    async def getsize(self, key: str) -> int:
        """Size of a file."""
        return (self.root / key).stat().st_size


class Checked(WholeStore):
    """Our checks in front of the fused pipeline, in the thread that reads."""

    _supports_sync_io = True

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        """As ``get``."""
        try:
            self.get(key, prototype, byte_range).send(None)
        except StopIteration as done:
            return done.value
        raise RuntimeError("a file was waited for")

    def get_ranges_sync(self, key: str, byte_ranges: Any, *, prototype: Any, **_: Any) -> Any:
        """As ``get_ranges``, each inner chunk by itself: several in one piece are no frame to check."""
        spans = enumerate(byte_ranges)
        return [(number, self.get_sync(key, prototype=prototype, byte_range=span)) for number, span in spans]


def opened(way: str, path: str) -> Any:
    """The array at a path or URL, to be read by one of the ``PIPELINES``."""
    with zarr.config.set({"codec_pipeline.path": PIPELINES[way]}):
        if "://" in path:
            return open_remote(path)
        array = zarr.open_array(path, mode="r")
        if way != "fused, checked":
            return array
        return Checked(AtOnce(path, read_only=True), {"": array}, lost_file).over(array)


# A pass over local files


def codecs(name: str, itemsize: int) -> list[Any]:
    """Compressors by the name of a layout."""
    found = {
        "zstd": ZstdCodec(),
        "blosc": BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=itemsize),
        "crc": Crc32cCodec(),
    }
    return [found[word] for word in name.split("+") if word in found]


CUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {  # of float32: chunks, shards
    "chunks of 100 KB": ((100, 256), None),
    "chunks of 8 MiB": ((1024, 2048), None),
    "shards of 32 MiB": ((128, 2048), (4096, 2048)),
    "entries in 100 KB": ((25_600,), None),
    "entries in 8 MiB": ((2 * MIB,), None),
}


def layouts() -> Iterator[tuple[str, str, str]]:
    """Cuts, codecs and dtypes of what is read."""
    for codec in ("none", "zstd", "blosc"):
        yield from ((cut, codec, "f4") for cut in CUTS)
        yield "chunks of 8 MiB", codec, "f8"


def written(path: Path, cut: str, codec: str, dtype: str, nbytes: int) -> Path:
    """Random numbers of which six bits are behind the point, so that codecs have something to do."""
    wide, (chunks, shards) = np.dtype(dtype).itemsize // 4, CUTS[cut]
    count = nbytes // np.dtype(dtype).itemsize
    shape = (count,) if len(chunks) == 1 else (count // 2048, 2048)
    chunks, shards = (chunks[0] // wide, *chunks[1:]), shards and (shards[0] // wide, *shards[1:])
    array = zarr.create_array(
        path, shape=shape, dtype=dtype, chunks=chunks, shards=shards, compressors=codecs(codec, 4 * wide) or None
    )
    array[...] = np.round(np.random.default_rng(0).standard_normal(shape) * 64) / 64
    return path


def each_thread(work: Callable[[int, int], Any]) -> None:
    """Run ``work(thread, threads)`` on as many threads as there are cores; an error of one is raised."""
    errors: list[BaseException] = []

    def kept(number: int) -> None:
        try:
            work(number, usable_cores())
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=kept, args=(number,)) for number in range(usable_cores())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def pass_of(way: str, path: str, box: int = 8 * MIB) -> Callable[[], None]:
    """What reads an array once: ours tile by tile, a pipeline boxes of whole rows of chunks, of about ``box`` bytes."""
    if way == OURS:
        array = zarr.open_array(path, mode="r")
        return partial(each_thread, partial(_our_entries if array.ndim == 1 else _our_tiles, array))
    return partial(each_thread, partial(read_boxes, opened(way, path), box, lambda values: crc32c(values)))


def _our_tiles(array: Any, thread: int, threads: int) -> None:
    reader = DenseReader(array=array)
    for slab in range(thread, reader.grid[0], threads):
        for _ in reader.tiles(slab, ReadStats()):
            pass


def _our_entries(array: Any, thread: int, threads: int) -> None:
    access = access_of(array)
    for number in range(thread, -(-array.shape[0] // array.chunks[0]), threads):
        whole = np.empty(array.chunks, array.dtype)
        read_chunk(array, access, array.metadata.encode_chunk_key((number,)), whole)
        crc32c(whole[: array.shape[0] - number * array.chunks[0]])


def read_boxes(array: Any, box: int, use: Callable[[np.ndarray], Any], thread: int, threads: int) -> None:
    """Read every ``threads``-th box of whole rows of chunks into one buffer, and ``use`` it."""
    line = math.prod(array.shape[1:]) * array.dtype.itemsize
    high = max(1, box // (array.chunks[0] * line)) * array.chunks[0]
    buffer, wrap = np.empty((high, *array.shape[1:]), array.dtype), default_buffer_prototype().nd_buffer
    for first in range(thread * high, array.shape[0], threads * high):
        values = buffer[: array.shape[0] - first]
        array.get_basic_selection(slice(first, first + len(values)), out=wrap.from_numpy_array(values))
        use(values)


def in_turn(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """The least CPU and wall seconds of each, every other round backwards; one round before does not count."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name in list(calls)[:: -1 if number % 2 else 1]:
            cpu, wall = time.process_time(), time.perf_counter()
            calls[name]()
            seconds[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: (min(c for c, _ in each[1:]), min(w for _, w in each[1:])) for name, each in seconds.items()}


Found = Iterator[tuple[str, dict[str, tuple[float, float]]]]


def passes(folder: Path, nbytes: int, rounds: int) -> Found:
    """Seconds of every way over every layout, which is deleted again."""
    for cut, codec, dtype in layouts():
        path = str(written(folder / "x.zarr", cut, codec, dtype, nbytes))
        yield f"{cut}, {codec}, {dtype}", in_turn({way: pass_of(way, path) for way in WAYS}, rounds)
        shutil.rmtree(path)


# Memory


def peak(job: dict[str, Any]) -> dict[str, Any]:
    """Bytes by which a pass raises the peak of this process, which has read a little before."""
    call, status = pass_of(job["way"], job["path"]), Path("/proc/self/status")
    pass_of(job["way"], job["warm"])()

    def field(name: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024

    before = field("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    call()
    return {"peak": field("VmHWM") - before}


def peaks(folder: Path, nbytes: int) -> Iterator[str]:
    """Peaks of every way, each in a process of its own."""
    for cut, codec in (("shards of 32 MiB", "zstd"), ("chunks of 8 MiB", "none"), ("chunks of 100 KB", "none")):
        path = written(folder / "x.zarr", cut, codec, "f4", nbytes)
        warm = written(folder / "warm.zarr", "chunks of 100 KB", codec, "f4", MIB)
        jobs = {way: {"way": way, "path": str(path), "warm": str(warm)} for way in WAYS}
        found = {way: in_child("benchmarks.chunk_access", job, folder=folder)["peak"] for way, job in jobs.items()}
        yield f"{cut}, {codec}: {', '.join(f'{way} {n / MIB:.0f} MiB' for way, n in found.items())}"
        shutil.rmtree(path)
        shutil.rmtree(warm)


# Object stores


def far(folder: Path, nbytes: int, rounds: int) -> Found:
    """Products with an array behind a server of S3, without delay and 50 ms away: ours, and obstore through zarr."""
    block, bound = start_block(COLUMNS, 4), 32 * MIB
    for name, chunk, shard in (("1 MiB", 256, None), ("8 MiB", 2048, None), ("1 MiB in shards of 32", 256, 8192)):
        path = folder / "bucket" / "x.zarr"
        shape, shards = (nbytes // (4 * COLUMNS), COLUMNS), shard and (shard, COLUMNS)
        array = zarr.create_array(
            path, shape=shape, dtype="f4", chunks=(chunk, COLUMNS), shards=shards, compressors=None
        )
        array[...] = values = np.random.default_rng(0).standard_normal(shape, np.float32)
        expected = values.T @ (values @ block)
        for delay in (0, 50):
            with served(folder, folder, RATE, delay):
                url, calls = "s3://bucket/x.zarr", dict[str, Callable[[], np.ndarray]]()
                calls[OURS] = partial(_our_product, Threads(usable_cores(), bound), operator_of(url, "matrix"), block)  # type: ignore[arg-type]
                for way in ("zarr", "fused"):
                    if way in PIPELINES:
                        calls[way] = partial(_product, opened(way, url), bound // usable_cores(), block)
                for way, call in calls.items():
                    if relative_error(call(), expected) > 1e-5:
                        raise ArithmeticError(f"{way} has another product")
                yield f"chunks of {name}, {delay} ms", in_turn(calls, rounds)
        shutil.rmtree(path)


def _our_product(threads: Threads, operator: Any, block: np.ndarray) -> np.ndarray:
    return one_pass(threads, operator, block)[0]


def _product(array: Any, box: int, block: np.ndarray) -> np.ndarray:
    parts: list[np.ndarray] = []
    with threadpool_limits(limits=1):
        each_thread(partial(read_boxes, array, box, lambda values: parts.append(_summed(values, block))))
    return np.sum(parts, axis=0).T


def _summed(values: np.ndarray, block: np.ndarray) -> np.ndarray:
    crc32c(values)
    return transposed(values, block)


# Damage

SHAPE, INNER, SHARD = (160, 20), (40, 10), (80, 20)
STORES = [f"{codec}{where}" for codec in ("none", "crc", "zstd", "zstd+crc", "blosc") for where in ("", " in shards")]
Spoil = Callable[[bytes, np.random.Generator], bytes]


def _cut(data: bytes, rng: np.random.Generator, most: int | None = None) -> bytes:
    return data[: len(data) - int(rng.integers(1, most or len(data)))]


def _flip(data: bytes, rng: np.random.Generator, first: int = 0, last: int | None = None) -> bytes:
    at = int(rng.integers(*slice(first, last).indices(len(data))[:2]))
    return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]


def _hole(data: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data) - 64))
    return data[:at] + b"\0" * 64 + data[at + 64 :]


def _digit(data: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.choice([i for i, byte in enumerate(data) if chr(byte).isdigit()]))
    return data[:at] + str(rng.integers(1, 10)).encode() + data[at + 1 :]


CHUNK_DAMAGE: dict[str, Spoil | None] = {  # None: no file is left
    "cut": _cut,
    "cut by a few bytes": partial(_cut, most=17),
    "bit flipped": _flip,
    "head flipped": partial(_flip, last=16),
    "end or index flipped": partial(_flip, first=-68),
    "zeros inside": _hole,
    "longer": lambda data, rng: data + rng.bytes(100),
    "empty": lambda data, rng: b"",
    "missing": None,
    "a folder": None,
}
METADATA_DAMAGE: dict[str, Spoil] = {"metadata, bit flipped": _flip, "metadata, another digit": _digit}
DAMAGE = [*CHUNK_DAMAGE, *METADATA_DAMAGE]


def values_of(number: int) -> np.ndarray:
    """What store ``number`` holds; never zero, the fill value."""
    return np.random.default_rng([1, number]).integers(1, 999, SHAPE) / 8


def damaged(path: Path, number: int) -> tuple[str, str]:
    """Write store ``number``, one file of it damaged; what was done to it, and the file."""
    kind, name = STORES[number % len(STORES)], DAMAGE[number // len(STORES) % len(DAMAGE)]
    rng = np.random.default_rng([2, number])
    shards = SHARD if kind.endswith("shards") else None
    array = zarr.create_array(
        path, shape=SHAPE, dtype="f8", chunks=INNER, shards=shards, compressors=codecs(kind.split()[0], 8) or None
    )
    array[...] = values_of(number)
    files = sorted(path.rglob("c/*/*"))
    file = path / "zarr.json" if name in METADATA_DAMAGE else files[int(rng.integers(len(files)))]
    spoil, data = {**CHUNK_DAMAGE, **METADATA_DAMAGE}[name], file.read_bytes()
    file.unlink()
    if spoil is not None:
        file.write_bytes(spoil(data, rng))
    elif name == "a folder":
        file.mkdir()
    return name, str(file.relative_to(path))


def verdict(way: str, path: Path, number: int, file: str) -> str:
    """What one way makes of store ``number``, of which ``file`` is damaged."""
    try:
        found = _values(way, path)
    except Exception as error:
        said = " ".join(map(str, (error, *getattr(error, "exceptions", ()))))
        where = str(path) if file == "zarr.json" else file
        named = where in said and (way != OURS or isinstance(error, NpmdaskError))
        return "refused, named" if named else "refused, not named"
    wanted = values_of(number)
    if found.shape == wanted.shape and found.dtype == wanted.dtype and (found == wanted).all():
        return "right"
    filled = found.shape != wanted.shape or not found[found != wanted].any()
    return "silently filled" if filled else "silently wrong"


def _values(way: str, path: Path) -> np.ndarray:
    if way != OURS:
        array = opened(way, str(path))
        store = array.store_path.store
        with naming([store] if isinstance(store, WholeStore) else []):
            return np.asarray(array[...])
    reader: Any = open_source(path).reader
    whole = np.empty(reader.shape, reader.dtype)
    for slab in range(reader.grid[0]):
        for rows, tile in reader.tiles(slab, ReadStats()):
            for columns, values in tile:
                whole[rows, columns] = values
    return whole


def judge(job: dict[str, Any]) -> dict[str, Any]:
    """Write the verdict on every store from the first on into the log, one a line."""
    with open(job["log"], "a") as log:
        for number in range(job["first"], len(job["files"])):
            said = verdict(job["way"], Path(job["folder"]) / str(number), number, job["files"][number])
            print(said, file=log, flush=True)
    return {}


def judged(way: str, folder: Path, files: list[str], seconds: float = 900) -> list[str]:
    """The verdicts of one way, in processes of their own: one that dies or hangs is a verdict, too."""
    log = folder / f"{way}.log"
    log.write_text("")
    while (first := len(log.read_text().splitlines())) < len(files):
        job = {"way": way, "folder": str(folder), "files": files, "first": first, "log": str(log)}
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.chunk_access", json.dumps(job)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        done, until, ended = first, time.monotonic() + seconds, "crashed"
        while child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(1)
            if (now := len(log.read_text().splitlines())) > done:
                done, until = now, time.monotonic() + seconds
            if time.monotonic() > until:
                child.kill()
                ended = "hung"
        if child.returncode:
            with open(log, "a") as more:
                print(ended, file=more)
    return log.read_text().splitlines()


def damages(folder: Path, stores: int) -> tuple[list[str], dict[str, list[str]]]:
    """The damage of every store, and what each way made of it."""
    made = [damaged(folder / str(number), number) for number in range(stores)]
    return [name for name, _ in made], {way: judged(way, folder, [file for _, file in made]) for way in WAYS}


# Tables


def speed_rows(found: Found) -> Iterator[str]:
    """Seconds of ours, and the speed of every way over that: by CPU, and by the clock."""
    for name, seconds in found:
        cpu, wall = seconds[OURS]
        rest = [f"{way} {cpu / c:.2f} / {wall / w:.2f}" for way, (c, w) in seconds.items() if way != OURS]
        yield f"{name} | {cpu:.3f} s / {wall:.3f} s | {' | '.join(rest)}"


def damage_table(names: list[str], found: dict[str, list[str]]) -> str:
    """How often each way gave each verdict, and what passed silently that ours refuses, by damage."""
    lines = []
    for way, said in found.items():
        passed = [
            name for name, a, b in zip(names, said, found[OURS], strict=True) if "silent" in a and "silent" not in b
        ]
        lines.append(f"{way}: {dict(Counter(said))}; silent where ours refuses: {dict(Counter(passed))}")
    return "\n".join(lines)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mib", type=int, default=64, help="size of the arrays")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--damaged", type=int, default=400, help="number of damaged stores")
    parser.add_argument("--only", nargs="+", default=["pass", "memory", "far", "damage"])
    a = parser.parse_args()
    a.folder.mkdir(parents=True)
    here = f"zarr {zarr.__version__}, {usable_cores()} threads, load {os.getloadavg()[0]:.0f}"
    print(f"{here}; speed over that of ours, by CPU time / by the clock", flush=True)
    if "pass" in a.only:
        for row in speed_rows(passes(a.folder, a.mib * MIB, a.rounds)):
            print(row, flush=True)
    if "memory" in a.only:
        for row in peaks(a.folder, a.mib * MIB):
            print(row, flush=True)
    if "far" in a.only:
        for row in speed_rows(far(a.folder / "far", a.mib * MIB, a.rounds)):
            print(row, flush=True)
    if "damage" in a.only:
        print(damage_table(*damages(a.folder / "damage", a.damaged)))
    shutil.rmtree(a.folder)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        as_child(judge if "log" in sys.argv[1] else peak)
    else:
        main()
