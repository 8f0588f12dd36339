"""How the chunks of an array can be read: as files of plain bytes, decoded here, or only through zarr.

zarr-python copies every chunk about three times and hands it from thread to thread: 2.5 to 5 times slower than
reading the file where the data are in the page cache (docs/decisions/0015). What is not understood here is left
to zarr, and the plan says why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from npmdask.errors import BadInputError, LostError, NpmdaskError

Decode = Callable[[np.ndarray, np.ndarray], None]  # (packed bytes, the whole chunk to fill)


@dataclass(frozen=True)
class Access:
    """``way``: direct, decoded or zarr; ``reason``: a sentence for people; ``folder``: of local chunk files."""

    way: str
    reason: str
    folder: Path | None = None
    decode: Decode | None = None


def access_of(array: Any) -> Access:
    """How to read ``array`` (a ``zarr.Array``)."""
    store, metadata = array.store_path.store, array.metadata
    if (conventions := getattr(array, "conventions", None)) is not None:
        return Access("zarr", f"through zarr: the stored values are decoded ({', '.join(conventions.attributes)})")
    if type(store) is not zarr.storage.LocalStore:
        return Access("zarr", f"through zarr: the store is not a local folder ({type(store).__name__})")
    if metadata.zarr_format != 3:
        return Access("zarr", "through zarr: the array is in Zarr format 2")
    folder = Path(str(store.root)) / array.path
    names = [type(codec).__name__ for codec in metadata.codecs]
    if names[:1] != ["BytesCodec"] or array.dtype.hasobject:
        return Access("zarr", f"through zarr: the chunks are stored with {', '.join(names)}", folder)
    if array.dtype.byteorder == ">":  # how values look in memory; in the file they may lie the other way round
        return Access("zarr", "through zarr: the values are big-endian", folder)
    endian = getattr(metadata.codecs[0], "endian", None)
    if array.dtype.itemsize > 1 and getattr(endian, "value", endian) != "little":
        return Access("zarr", "through zarr: the bytes are big-endian", folder)
    if len(names) == 1:
        return Access("direct", "directly: the chunks are plain bytes in local files", folder)
    decode = DECODERS.get(names[1]) if len(names) == 2 else None
    if decode is None:
        return Access("zarr", f"through zarr: the chunks are encoded with {', '.join(names[1:])}", folder)
    return Access("decoded", f"decoded here: the chunks are local files encoded with {names[1]}", folder, decode)


def _blosc(packed: np.ndarray, whole: np.ndarray) -> None:
    from numcodecs import blosc

    blosc.decompress(packed, whole)


def _zstd(packed: np.ndarray, whole: np.ndarray) -> None:
    from numcodecs import zstd

    zstd.decompress(packed, whole)


DECODERS: dict[str, Decode] = {"BloscCodec": _blosc, "ZstdCodec": _zstd}


UNREADABLE = (OSError, ValueError, RuntimeError, BaseError)  # what reading a chunk may end with


def unreadable(chunk: str, where: str, error: Exception) -> NpmdaskError:
    """What to say of a chunk that cannot be read."""
    if isinstance(error, BaseError):
        return LostError(
            f"chunk {chunk} of {where} cannot be fetched ({first_line(error)}): check the network, the "
            "credentials and AWS_ENDPOINT_URL, then resume; everything committed is kept"
        )
    return BadInputError(
        f"chunk {chunk} of {where} cannot be decoded ({error}); restore it from a backup or ingest the source again"
    )


DENIED = re.compile(r"status code: (40[0-6]|41\d|507)|169\.254\.169\.254|metadata\.google|[Cc]redential")
ANSWERS = (AlreadyExistsError, NotFoundError, PermissionDeniedError, PreconditionError, UnauthenticatedError)


def no_answer(error: BaseException) -> bool:
    """Whether an object store is away, as far as can be told, and not of another mind."""
    return isinstance(error, BaseError) and not isinstance(error, ANSWERS) and not DENIED.search(str(error))


SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|SAS|SIGNATURE", re.IGNORECASE)


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that may follow and without credentials, which servers repeat in their
    answers; its name if it says nothing.
    """
    said = str(error).partition("\n")[0] or type(error).__name__
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) > 3:
            said = said.replace(value, "***")
    return said


def location(node: Any) -> str:
    """Where an array or group lies, as a person would write it."""
    store, name = node.store_path.store, node.path
    if isinstance(store, zarr.storage.ObjectStore):
        inner = store.store
        bucket = getattr(inner, "config", {}).get("bucket", "")
        return "/".join(part for part in (f"s3://{bucket}", str(inner.prefix or ""), name) if part)
    return str(node.store_path).removeprefix("file://")


def read_file(path: Path, whole: np.ndarray, decode: Decode | None) -> None:
    """Fill ``whole`` from a chunk file.

    Raises
    ------
    FileNotFoundError, ValueError, RuntimeError
        It is not there, is too short, or cannot be decoded.
    """
    packed = np.fromfile(path, np.uint8) if decode else whole.reshape(-1).view(np.uint8)
    if decode:
        decode(packed, whole)
        return
    with open(path, "rb", buffering=0) as file:
        got = 0
        while got < len(packed):
            count = file.readinto(packed[got:].data)
            if not count:
                raise ValueError(f"it is truncated: {got} of {len(packed)} bytes")
            got += count


AHEAD_BYTES = 64 * 2**20  # of a file: more would push out what is about to be used
AHEAD_STEP = 2**19  # of one piece of advice: what the disk does not take at once, the kernel forgets


def read_ahead(path: Path) -> None:
    """Ask the kernel to fetch a file that is not in the page cache; returns at once.

    A file that is not there is found when it is read.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        if not _cached(file):
            for start in range(0, min(os.fstat(file).st_size, AHEAD_BYTES), AHEAD_STEP):
                os.posix_fadvise(file, start, AHEAD_STEP, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(file)


def _cached(file: int) -> bool:
    """Whether the last byte of a file can be had without the disk: asking costs far less than advice not needed."""
    try:
        return os.preadv(file, [bytearray(1)], max(0, os.fstat(file).st_size - 1), os.RWF_NOWAIT) == 1
    except OSError:
        return False  # not in the cache, or a file system that cannot say
