"""The one way to open Zarr stores that others may have made: what they hold is read, and never run.

A store names the codecs of its chunks. Of those that come with numcodecs one, ``pickle``, runs whatever code a chunk
holds when it is decoded, also where the array says that it holds plain numbers. So before the first chunk is read every
array of a store is looked at, and one that asks for that codec is refused: here, whatever numcodecs is set to allow.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import zarr
from numcodecs.pickles import Pickle

from npmdask.core.storage.paths import is_zarr
from npmdask.errors import BadInputError

PICKLED = (
    "the array {} holds pickled Python objects, and reading those can run any code: write it again as plain numbers "
    "(array.astype(float), without filters) where you trust it"
)


class PlainFiles(zarr.storage.LocalStore):
    """A local folder, of which plain files are read and nothing else: of a FIFO zarr would wait for a writer."""

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """As ``LocalStore.get``."""
        self._require_plain(key)
        return await super().get(key, prototype, byte_range)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        """As ``LocalStore.get_sync``."""
        self._require_plain(key)
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)

    def _require_plain(self, key: str) -> None:
        path = self.root / key
        try:
            mode = os.stat(path).st_mode
        except OSError:
            return  # it is not there, or zarr says what is wrong
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise BadInputError(f"{path} is a FIFO or a device; files of a Zarr store must be plain files")


def open_node(place: Any, mode: Any = "r") -> Any:
    """The array or group at ``place`` (a path, or a store of zarr's), as ``zarr.open`` gives it, once it is found good.

    Raises
    ------
    BadInputError
        An array in it would have to be unpickled.
    OSError, ValueError, KeyError, TypeError, AttributeError
        As ``zarr.open``.
    """
    store = PlainFiles(place, read_only=mode == "r") if isinstance(place, str | Path) else place
    with _refusing_pickles(place):
        node = zarr.open(store, mode=mode)
    require_no_pickle(node)
    return node


BUDGET_MARK = "npmdask_budget"  # attribute of a store whose data have a privacy budget: its name, or that and more


def mark_data(place: Any, mark: Any) -> None:
    """Note in a store that its data have a budget; raises what a disk, a bucket or zarr has against it."""
    zarr.open_group(place, mode="r+").attrs[BUDGET_MARK] = mark


def carried(mark: Any) -> dict[str, Any]:
    """Return what the identity of a writer says of the mark of what it copies from."""
    return {} if mark is None else {BUDGET_MARK: mark}


def mark_of(node: Any) -> Any:
    """The mark of a store, or of the one that an array lies in; None where there is none."""
    store, path = node.store_path.store, PurePosixPath(node.store_path.path)
    above = [(store, folder.as_posix() if folder.name else "") for folder in path.parents]
    if isinstance(store, zarr.storage.LocalStore):
        above += [(PlainFiles(one, read_only=True), "") for one in takewhile(is_zarr, store.root.absolute().parents)]
    found = dict(node.attrs).get(BUDGET_MARK)
    for place, inside in above:
        with suppress(OSError, ValueError, KeyError, TypeError):  # an array, or nothing
            found = found or dict(zarr.open_group(place, path=inside, mode="r").attrs).get(BUDGET_MARK)
    return found if isinstance(found, dict | None) else {"dataset": str(found)}  # of a version that noted the name


def of_budget(name: str | None) -> str:
    """Say that data have a privacy budget, where nothing protects what is made of them."""
    return (
        f"these data have a privacy budget (as {name!r} in the ledger), and what is made of them here "
        "is not protected by it: it may tell of single records; to share an answer, run with a [privacy] table"
    )


def require_no_pickle(node: Any) -> None:
    """Raise BadInputError if an array, or one in a group or below it, has chunks that would have to be unpickled."""
    with _refusing_pickles(node.store_path):
        arrays = [node] if isinstance(node, zarr.Array) else _arrays(node)
    for array in arrays:
        if any(isinstance(codec, Pickle) for codec in _codecs(array.metadata)):
            raise BadInputError(PICKLED.format(array.store_path))


@contextmanager
def _refusing_pickles(place: Any) -> Iterator[None]:
    """Around metadata that zarr reads: of numbers that are pickled it says that it knows no such type."""
    try:
        yield
    except ValueError as error:
        if "'pickle'" in str(error):
            raise BadInputError(PICKLED.format(f"{place}, or one in it,")) from error
        raise


def _arrays(group: Any) -> list[Any]:
    return [member for _, member in group.members(max_depth=None) if isinstance(member, zarr.Array)]


def _codecs(metadata: Any) -> Iterator[Any]:
    """Those of format 2, where every codec of numcodecs can be named; format 3 has codecs of its own, and no pickle."""
    if metadata.zarr_format == 2:
        yield from metadata.filters or ()
        yield metadata.compressor


def numbers_in(path: Path, name: str) -> np.ndarray:
    """The numbers in a file, .npy or else a Zarr array, which is given as ``name``. Nothing is unpickled.

    Raises
    ------
    BadInputError
        It cannot be read.
    """
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(path, allow_pickle=False))
        node = open_node(path)
        if not hasattr(node, "dtype"):
            raise ValueError("it is a group")
        return np.asarray(node[...])
    except BadInputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise BadInputError(f"{name}: {path} cannot be read ({error}): give a .npy file or a Zarr array") from error
