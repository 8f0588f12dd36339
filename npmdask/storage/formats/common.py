"""Share what every format needs: the two kinds of source, their error messages, the shapes that are accepted."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy import sparse

from npmdask.errors import BadInputError, NpmdaskError, RefusedError, closest
from npmdask.storage.kinds import storage_dtype
from npmdask.storage.labels import Labels

MOST_EMPTY_ROWS = 10**8
ALONG = "where dimensions have names (NetCDF, xarray), run on it as it is, and say along which one rows lie: --dim time"

Item = TypeVar("Item")
Rows = TypeVar("Rows", np.ndarray, sparse.csr_matrix)


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """What is known of a file at once; ``rows`` is None where only reading to the end tells.

    ``facts``: what decided how its values are read, beside the options (attributes that decode them); ``header``: the
    line of text that was taken for the names of the columns; ``labels``: what they are called. ``refuse_marked`` is
    called when a value is not finite: it raises where the file says that this means "missing".
    """

    format: str
    rows: int | None
    columns: int
    dtype: np.dtype
    facts: dict[str, Any] = field(default_factory=dict)
    header: tuple[str, ...] | None = None
    labels: Labels | None = None
    refuse_marked: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class DenseSource(FileSource):
    """``batches(start)`` yields rows (b x columns) from row ``start`` on; memory is reused by the next batch."""

    batches: Callable[[int], Iterator[np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class SparseSource(FileSource):
    """``batches(start)`` yields canonical CSR matrices (b x columns) from row ``start`` on.

    Batches end at rows that depend on the file only, never on where reading began: the writer's column sums
    are then formed in the same order after a kill.
    """

    batches: Callable[[int], Iterator[sparse.csr_matrix]]


def after(start: int, batches: Iterator[Rows], row: int = 0) -> Iterator[Rows]:
    """Those of ``batches``, whose first row is ``row``, that lie at ``start`` or behind it."""
    for batch in batches:
        if row + batch.shape[0] > start:
            yield batch[max(0, start - row) :]
        row += batch.shape[0]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a library raises about a broken file into a sentence that names the file.

    That is any exception: tokenisers, decompressors and parsers have families of their own.
    """
    try:
        yield
    except NpmdaskError:
        raise
    except Exception as error:
        errno = getattr(error, "errno", None)
        if isinstance(error, OSError) and errno and not isinstance(error, FileNotFoundError):
            # The device or the network failed, not the content: what is written so far stays good.
            raise RefusedError(
                f"{path} cannot be read ({error.strerror or error}); once that is fixed, run the same "
                "command again: it continues from what is written"
            ) from error
        raise BadInputError(
            f"{path} cannot be read ({type(error).__name__}: {error}): it is truncated, corrupt or not "
            "what its name says; fetch or write it again, then ingest it again"
        ) from error


def require_regular_file(path: Path) -> None:
    """Raise BadInputError for a FIFO or a device: it would be waited for, and ends when it likes, if ever."""
    if path.exists() and not path.is_file():
        raise BadInputError(
            f"{path} is a FIFO or a device, but a source is read more than once: write it to a file first, or pipe "
            "the rows into `npmdask stream -`"
        )


def require_rows(path: Path, rows: int, entries: int) -> None:
    """Raise BadInputError for a size line by which nearly all of very many rows would be empty: nothing would end."""
    if rows > MOST_EMPTY_ROWS and rows > 100 * entries:
        raise BadInputError(
            f"{path} declares {rows} rows and {entries} entries, so most rows would be empty: correct its size line, "
            "or leave out the empty rows"
        )


def guarded(path: Path, batches: Iterator[Item]) -> Generator[Item, None, None]:
    """The same batches, with errors of reading (not of the consumer) turned into sentences."""
    while True:
        with reading(path):
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch


def truncated(path: Path, detail: str) -> BadInputError:
    return BadInputError(f"{path} is truncated or corrupt: {detail}; fetch or write it again, then ingest it again")


def require_2d(shape: Sequence[int], where: str) -> tuple[int, int]:
    """Rows and columns of a matrix that has both."""
    if len(shape) != 2:
        more = "; or pass kind='matrices' if it holds a square matrix for each record" if len(shape) == 3 else ""
        more += ", or kind='tensor' for a symmetric tensor" if len(shape) == 3 and len(set(shape)) == 1 else ""
        more += f"; {ALONG}" if len(shape) > 2 else ""
        raise BadInputError(
            f"{where} has shape {tuple(shape)}: rows and columns are needed; reshape it to two dimensions "
            f"and save it again, for example with array.reshape(len(array), -1){more}"
        )
    if 0 in shape:
        raise BadInputError(f"{where} has shape {tuple(shape)}: it has no data to analyse")
    return (int(shape[0]), int(shape[1]))


def require_numbers(dtype: np.dtype, where: str) -> np.dtype:
    """The dtype that values of ``dtype`` are stored in, or an error that names ``where`` they are."""
    if np.dtype(dtype).hasobject:
        raise BadInputError(
            f"{where} holds Python objects, which would have to be unpickled (and unpickling can run any code); "
            "convert it with array.astype(float) and save it again"
        )
    try:
        return storage_dtype(dtype)
    except BadInputError as error:
        raise BadInputError(f"{where}: {error}") from None


def choose_array(path: Path, dataset: str | None, shapes: dict[str, tuple[int, ...]], dimensions: int = 2) -> str:
    """The array that is meant: ``dataset``, or the only one with so many dimensions."""
    if dataset is not None:
        name = dataset.strip("/")
        if name not in shapes:
            raise BadInputError(f"{path} has no array {dataset!r}: {closest(name, list(shapes)) if shapes else 'none'}")
        return name
    matrices = [name for name, shape in shapes.items() if len(shape) == dimensions]
    if len(matrices) == 1:
        return matrices[0]
    shown = {name: shapes[name] for name in sorted(matrices or shapes)[:20]}
    listed = ", ".join(f"{name} {shape}" for name, shape in shown.items()) or "nothing"
    several = f"several {dimensions}-D arrays: choose one with dataset="
    reason = several if matrices else f"no {dimensions}-D array; there is"
    remedy = f"; {ALONG}" if not matrices and any(len(shape) > dimensions for shape in shown.values()) else ""
    raise BadInputError(f"{path} has {reason} ({listed}){remedy}")
