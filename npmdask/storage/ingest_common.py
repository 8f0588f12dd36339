"""What every ingest shares: its summary, the stamp of its source, values in the stored dtype, what a failure leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from npmdask.errors import BadInputError
from npmdask.storage.paths import require_no_link

Progress = Callable[[int, "int | None", int], None]  # rows done, rows in all if known, bytes done


@dataclass(frozen=True, kw_only=True)
class IngestSummary:
    """What came out: ``bytes`` is what ``dest`` takes on disk, ``seconds`` of this run alone.

    ``side``: d, of rows that are d x d matrices. ``header``: the first line of a table of text, where it was taken for
    the names of the columns, and not for data.
    """

    dest: Path
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fingerprint: str
    seconds: float
    bytes: int
    side: int | None = None
    header: tuple[str, ...] | None = None


def files_of(path: Path) -> Iterator[tuple[int, int]]:
    """Size and modification time (ns) of a file, or of every file below a folder."""
    found = [path] if path.is_file() else [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    for file in found:
        with suppress(FileNotFoundError):  # a link to nothing: a chunk that is missing is found when it is read
            stat = file.stat()
            yield stat.st_size, stat.st_mtime_ns


def stamp(path: Path) -> dict[str, int]:
    stamps = list(files_of(path))
    return {
        "size": sum(size for size, _ in stamps),
        "mtime_ns": max((time_ns for _, time_ns in stamps), default=0),
    }


def cast_values(
    values: np.ndarray,
    dtype: np.dtype,
    place: Callable[[list[int]], tuple[int, ...]],
    rounding: str = "error",
) -> np.ndarray:
    """``values`` as ``dtype``, ``place`` being where an entry is in the source (row and column, or three indices).

    Raises
    ------
    BadInputError
        A value that ``dtype`` does not have; the first is named. With ``rounding`` "nearest" the nearest float is
        taken: losing an integer, a fraction or the whole number is an error all the same.
    """
    exact = np.can_cast(values.dtype, dtype, "safe") and not (values.dtype.kind in "iu" and values.dtype.itemsize == 8)
    if values.dtype == dtype or exact or np.can_cast(values.dtype, dtype, "equiv"):
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(dtype)
        lost = _not_held(values, stored) if dtype.kind in "iu" else ~np.isfinite(stored) & np.isfinite(values)
        if dtype.kind == "f" and rounding == "error":
            lost |= _rounded(values, stored)
    if lost.any():
        at = [int(i) for i in np.argwhere(lost)[0]]
        where = place(at)
        said = "row {}, column {}".format(*where) if len(where) == 2 else f"entry {where}"
        remedy = "leave out dtype or choose a wider one"
        if dtype.kind == "f" and np.isfinite(stored[tuple(at)]):
            remedy += ", or let it be rounded to the nearest with rounding='nearest' (--rounding nearest)"
        raise BadInputError(f"{values[tuple(at)]!s} at {said} cannot be stored as {dtype}: {remedy}")
    return stored


def _not_held(values: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Which values are not the integers that they are stored as."""
    lost = np.asarray(stored != values)
    if values.dtype.kind in "iu":
        return lost | ((stored < 0) != (values < 0))  # NumPy wraps around and then finds both equal
    return lost | (np.abs(values) > 2.0**53)  # a float of this size may stand for any of several integers


def _rounded(values: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Which values are no longer themselves as floats. NaN stays NaN."""
    if values.dtype.kind == "f":
        return np.asarray((stored != values) & ~np.isnan(values))
    beyond = 2.0 ** (8 * values.dtype.itemsize - (values.dtype.kind == "i"))  # rounded up to this, it fits no integer
    return np.asarray((stored >= beyond) | (stored.astype(values.dtype) != values))


@contextmanager
def discarded_if_bad(target: Path) -> Iterator[None]:
    """A source that is wrong will be another one when it is mended: nothing written from it is of use."""
    try:
        yield
    except BadInputError:
        shutil.rmtree(target.with_name(target.name + ".partial"), ignore_errors=True)
        raise
    except MemoryError as error:
        shutil.rmtree(target.with_name(target.name + ".partial"), ignore_errors=True)
        raise BadInputError(
            f"the source of {target} declares more than the memory of this machine takes ({error}): correct its "
            "header, or ingest it where there is more"
        ) from error


def require_room(path: Path, target: Path, rows: int | None, columns: int, itemsize: int) -> None:
    """Raise BadInputError for a source that declares what neither memory nor disk could take.

    That is more columns than there is memory for a few sums over each, or a hundred times more values (sparse:
    row pointers) than there is disk: a header that is damaged declares anything.
    """
    memory, free = psutil.virtual_memory().total, shutil.disk_usage(target.parent).free
    if 64 * columns > memory:
        raise BadInputError(
            f"{path} declares {columns} columns, and the sums over them alone take more than the memory of this "
            "machine: correct its header"
        )
    if (rows or 0) * itemsize > 100 * free + 2**30:
        size = (rows or 0) * itemsize
        raise BadInputError(
            f"{path} declares {rows} rows, whose values take {size:.2g} bytes, and {target.parent} has {free:.2g} "
            "left: correct its header, or choose a larger disk"
        )


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` for temporary files; what a killed run left in it goes first."""
    folder = target.with_name(target.name + ".partial.scratch")
    require_no_link(folder)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
