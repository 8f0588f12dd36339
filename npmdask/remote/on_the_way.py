"""Bytes that may come damaged from an object store: compared where something vouches for them, and else said.

An object that was sent in one piece has the MD5 of its bytes for a tag. Ingested stores and some codecs have checksums.
Of all others passes are compared with each other, and one pass with nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any

import numpy as np
import zarr

from npmdask.remote.prefetch import Piece, take

SUMMED = re.compile("crc32|adler32|fletcher32|gzip|zlib|lzma|bz2")  # codecs that compare what they decode with a sum
# Of an array whether the tags of its objects are the MD5 of their bytes, with the store, so that no other has its id.
MOST_TAGS = 64  # stores that a long-lived process holds for this
_TAGS: dict[tuple[int, str], tuple[Any, bool]] = {}


async def as_tagged(wanted: Any, data: np.ndarray, seen: set[str]) -> bool:
    """Say whether an object has the MD5 that its tag names; assumed of parts of objects, and of other tags.

    With some encryptions of its server a tag only looks like an MD5: then the same bytes come twice. ``seen``: what
    came before.
    """
    known, tag = _TAGS.get(wanted.family, (None, None))[1], (wanted.version or "").strip('"')
    if known is False or len(data) != wanted.size or not re.fullmatch("[0-9a-f]{32}", tag):
        return True
    found = (await asyncio.to_thread(hashlib.md5, data.data, usedforsecurity=False)).hexdigest()
    taken = found == tag or (found in seen and not known)
    if taken:
        _TAGS[wanted.family] = wanted.store, found == tag
        if len(_TAGS) > MOST_TAGS:  # a store that is forgotten is asked again
            _TAGS.pop(next(iter(_TAGS)), None)
    seen.add(found)
    return taken


def unchecked(source: Any) -> tuple[str, ...]:
    """Return the warning about one pass over a plain array in an object store, where nothing vouches for its bytes."""
    array: Any = getattr(getattr(source.reader, "inner", source.reader), "array", None)
    store = getattr(getattr(array, "store_path", None), "store", None)
    if source.registered or not isinstance(store, zarr.storage.ObjectStore):
        return ()
    codecs = re.sub(r'"index_codecs": \[.*?\]', "", json.dumps(array.metadata.to_dict(), default=str))  # of a shard
    access, family = source.reader.access, (id(store), array.path)
    if access.way == "decoded" and access.shard is None and family not in _TAGS:  # other processes may have read it
        take(array, Piece(array.metadata.encode_chunk_key((0,) * array.ndim), array.nbytes))
    if SUMMED.search(codecs) or (access.shard is None and _TAGS.get(family, (None, False))[1]):
        return ()
    return (
        f"the bytes of {array.store_path} were read once, and nothing would tell if some were damaged on their way: "
        "its chunks have no checksum, and their ETags are no MD5. Ingest the data, write them with a checksum "
        "(zarr.codecs.Crc32cCodec), or compare with a second run",
    )
