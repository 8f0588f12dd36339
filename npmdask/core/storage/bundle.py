"""A folder of arrays that exists whole or not at all: the unit of every checkpoint and journal.

Written aside, flushed to disk, then renamed: a reader never sees a half-written one. The manifest holds the
CRC-32C of every file and its own, so that what rots on disk is found. Plain ``.npy`` and JSON; nothing is ever
unpickled.

Where a bundle is written again and again, small arrays lie in the manifest: a file of its own costs each of them a
flush to disk, which takes longer than the step that it remembers.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from npmdask.core.storage.checksum import crc32c, crc32c_bytes
from npmdask.core.storage.paths import JSON_BYTES, Facts, facts_in, open_plain, read_plain, require_below
from npmdask.errors import BadInputError, CommitError, NpmdaskError, require

MANIFEST = "manifest.json"
SMALL_BYTES = 2**10
PIECE_BYTES = 8 * 2**20
SEAL = re.compile(rb', "crc32c": "([0-9a-f]{8})"\}\n\Z')
Arrays = dict[str, np.ndarray]


def write_bundle(
    path: Path,
    arrays: Arrays,
    meta: dict[str, Any],
    *,
    private: bool = False,
    inline: bool = False,
    publishing: AbstractContextManager[Any] | None = None,
) -> None:
    """Create the folder ``path`` atomically; ``private``: readable by its owner only (files 0600, folder 0700).

    ``inline``: arrays of at most SMALL_BYTES are kept in the manifest. ``publishing``: entered when all is written
    aside and flushed, left when ``path`` is there; what it raises leaves nothing behind.

    Raises
    ------
    CommitError
        The disk is full or the file system failed; nothing is left behind, whatever was there stays.
    """
    aside = _temporary_path(path)
    try:
        aside.mkdir(parents=True, mode=0o700 if private else 0o777)
        mode = 0o600 if private else 0o666
        small = {name: array for name, array in arrays.items() if inline and array.nbytes <= SMALL_BYTES}
        large = {name: array for name, array in arrays.items() if name not in small}
        files = {f"{name}.npy": _write_array(aside / f"{name}.npy", array, mode) for name, array in large.items()}
        content: dict[str, Any] = {"meta": meta, "files": files} | ({"small": _as_text(small)} if small else {})
        mapped = sorted(name for name, array in large.items() if hasattr(array, "pieces"))
        content |= {"mapped": mapped} if mapped else {}
        text = json.dumps(content, sort_keys=True).encode()  # an indent would take the slow encoder
        with open(aside / MANIFEST, "wb", opener=_opener(mode)) as file:
            file.write(sealed(text))
        for name in (*files, MANIFEST):  # after all is written: the first flush then takes most of the others along
            fsync(aside / name)
        fsync_folder(aside)
        with publishing or nullcontext():
            os.rename(aside, path)  # fails if `path` exists: a bundle is never empty
            fsync_folder(path.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise uncommitted(f"write {path}", error) from error
    except NpmdaskError:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def uncommitted(what: str, error: OSError) -> CommitError:
    """Say what could not be done for a commit, and that the one before it is intact."""
    return CommitError(
        f"cannot {what}: {error.strerror or error}. What was committed before is intact; free some space (or fix the "
        "disk) and resume"
    )


def _temporary_path(path: Path) -> Path:
    """Return where it is written first: no other process writes there, not even of another machine with the same id."""
    return path.parent / f".writing-{path.name}-{os.getpid()}-{token_hex(4)}"


def read_bundle(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and meta of a bundle, every byte checked.

    What was written in pieces, as memory might not hold it, is mapped: a ``numpy.memmap`` that cannot be written to.

    Raises
    ------
    BadInputError
        The manifest or a file is missing, truncated or does not have its checksum; the file is named.
    """
    manifest = _read_manifest(path)
    small, files = manifest.get("small", {}), manifest["files"]
    _require_plain_names(path, [*small, *files])
    with _decoding(path / MANIFEST):
        arrays = _from_text(small)
    mapped = list(manifest.get("mapped") or ())
    for name, crc in files.items():
        file, stem = path / name, name.removesuffix(".npy")
        stays = stem in mapped  # on disk, after one look at all of its bytes
        try:
            data = b"" if stays else read_plain(file)
            found = _sum_of(file) if stays else crc32c_bytes(data)
        except OSError as error:
            raise BadInputError(f"{file} cannot be read: {error.strerror}") from error
        require(found == crc, f"{file} is corrupt: its checksum does not match the manifest")
        with _decoding(file):
            held: Any = file if stays else io.BytesIO(data)
            arrays[stem] = np.load(held, mmap_mode="r" if stays else None, allow_pickle=False)
    return arrays, manifest["meta"]


def _sum_of(file: Path) -> int:
    found = 0
    with open(open_plain(file, os.O_RDONLY), "rb") as held:
        while piece := held.read(PIECE_BYTES):
            found = crc32c_bytes(piece, found)
    return found


def _require_plain_names(path: Path, names: list[str]) -> None:
    """A manifest may come from elsewhere, as a model that was sent: it names files of its own folder only."""
    try:
        if any("/" in require_below(name) for name in names):
            raise ValueError("it names a file of another folder")
    except ValueError as error:
        raise BadInputError(
            f"{path / MANIFEST} was not written by npmdask ({error}): do not use the files in its folder"
        ) from error


@contextmanager
def _decoding(file: Path) -> Iterator[None]:
    """Around the bytes of arrays, whose checksums are good: what cannot be read then was never written by us."""
    try:
        yield
    except (ValueError, TypeError, EOFError) as error:
        raise BadInputError(f"{file} does not hold an array of numbers ({error}), and is never unpickled") from error


def read_meta(path: Path) -> dict[str, Any]:
    """Only the meta of a bundle; its arrays are not looked at.

    Raises
    ------
    BadInputError
        The manifest is missing or does not have its checksum.
    """
    return _read_manifest(path)["meta"]


def _read_manifest(path: Path) -> Facts:
    try:
        found = Facts(facts_in(unsealed(read_plain(path / MANIFEST, JSON_BYTES))))
        if not all(isinstance(found.get(name, {}), dict) for name in ("files", "small", "meta")):
            raise ValueError("its tables are none")
        return found
    except (OSError, ValueError, TypeError) as error:
        raise BadInputError(f"{path / MANIFEST} is missing or corrupt ({error})") from error


def sealed(text: bytes) -> bytes:
    """A JSON object as a manifest, which guards itself too: its last key is the checksum of the object without it."""
    return text[:-1] + f', "crc32c": "{crc32c_bytes(text):08x}"}}\n'.encode()


def unsealed(data: bytes) -> bytes:
    """The inverse of :func:`sealed`. Of manifests of earlier versions the checksum is a line after the object.

    Raises
    ------
    ValueError
        There is no checksum, or it is another one.
    """
    found = SEAL.search(data)
    if found is None:
        body, _, crc = data.rstrip(b"\n").rpartition(b"\n")
    else:
        body, crc = data[: found.start()] + b"}", found[1]
    if crc32c_bytes(body) != int(crc, 16):
        raise ValueError("checksum mismatch")
    return body


def _as_text(arrays: Arrays) -> dict[str, Any]:
    """Arrays as JSON: dtype, shape, and their bytes in hexadecimal."""
    held = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # a number stays one
    return {name: [array.dtype.str, list(array.shape), array.tobytes().hex()] for name, array in held.items()}


def _from_text(small: dict[str, Any]) -> Arrays:
    """The inverse of :func:`_as_text`; the checksum of the manifest is theirs too."""
    return {
        name: np.frombuffer(bytearray.fromhex(data), dtype=np.dtype(dtype)).reshape(shape)
        for name, (dtype, shape, data) in small.items()
    }


def _write_array(path: Path, array: np.ndarray, mode: int) -> int:
    """Write a ``.npy`` file, not yet flushed to disk, and return its checksum.

    What has ``pieces`` (and a shape and a dtype) is never whole in memory.
    """
    pieces = getattr(array, "pieces", lambda: [np.asarray(array, order="C")])  # a number stays one
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(header, facts)
    crc = crc32c_bytes(header.getvalue())
    with open(path, "wb", opener=_opener(mode)) as file:
        file.write(header.getvalue())
        for piece in pieces():
            held = np.ascontiguousarray(piece)
            file.write(held.reshape(-1).view(np.uint8).data)
            crc = crc32c(held, crc)
    return crc


def _opener(mode: int) -> Callable[[str, int], int]:
    return lambda name, flags: os.open(name, flags, mode)


UNKEPT: set[Path] = set()  # folders that end with what this process does: after a crash nothing looks for them


def fsync(path: Path) -> None:
    """Flush a file, or a folder, to disk, where that is kept."""
    if UNKEPT.isdisjoint(path.parents):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_file_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Replace ``path`` by ``data``, with ``mode`` less the umask: readers see the old or the new, never a mixture."""
    aside = _temporary_path(path)
    try:
        with open(aside, "wb", opener=_opener(mode)) as file:
            file.write(data)
        fsync(aside)
        os.replace(aside, path)
        fsync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise CommitError(f"cannot write {path}: {error.strerror or error}; the old content is intact") from error


def fsync_folder(path: Path) -> None:
    """Flush a folder's entries: a rename is durable only after this."""
    fsync(path)
