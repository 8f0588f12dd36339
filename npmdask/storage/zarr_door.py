"""The one door to Zarr stores that somebody else may have made: what they hold is read, and never run.

A store names the codecs of its chunks. Of those that come with numcodecs one, ``pickle``, runs whatever code a chunk
holds when it is decoded, also where the array says that it holds plain numbers. So before the first chunk is read every
array of a store is looked at, and one that asks for that codec is refused: here, whatever numcodecs is told to allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zarr
from numcodecs.pickles import Pickle

from npmdask.errors import BadInputError

PICKLED = (
    "the array {} holds pickled Python objects, and reading those can run any code: write it again as plain numbers "
    "(array.astype(float), without filters) where you trust it"
)


def open_node(place: Any, mode: Any = "r") -> Any:
    """The array or group at ``place`` (a path, or a store of zarr's), as ``zarr.open`` gives it, once it is found good.

    Raises
    ------
    BadInputError
        An array in it would have to be unpickled.
    OSError, ValueError, KeyError, TypeError, AttributeError
        As ``zarr.open``.
    """
    with _refusing(place):
        node = zarr.open(place, mode=mode)
    require_no_pickle(node)
    return node


def note(place: Any, name: str, value: str) -> None:
    """Write an attribute of the group at ``place``; raises what a disk, a bucket or zarr has against it."""
    zarr.open_group(place, mode="r+").attrs[name] = value


def require_no_pickle(node: Any) -> None:
    """Raise BadInputError if an array, or one in a group or below it, has chunks that would have to be unpickled."""
    with _refusing(node.store_path):
        arrays = [node] if isinstance(node, zarr.Array) else _arrays(node)
    for array in arrays:
        if any(isinstance(codec, Pickle) for codec in _codecs(array.metadata)):
            raise BadInputError(PICKLED.format(array.store_path))


@contextmanager
def _refusing(place: Any) -> Iterator[None]:
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
