"""Opening what lies in an object store: ``s3://bucket/key``, ``gs://``, ``az://``.

Credentials and endpoints come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
``AWS_REGION``, ``AWS_ENDPOINT_URL`` for S3-compatible servers, ``AWS_ALLOW_HTTP=true`` for plain HTTP), of every
worker too; none is kept in a run.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zarr
from zarr.core.sync import sync

from npmdask.errors import BadInputError, Later, LostError
from npmdask.storage.checksum import fingerprint
from npmdask.storage.chunk_access import first_line, no_answer, of_an_object_store
from npmdask.storage.paths import require_not_withheld
from npmdask.storage.safe_open import open_node
from npmdask.storage.snapshots import snapshot_of

store = Later("obstore.store", "objects")
RETRIES: Any = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}  # then the run ends, and can be resumed
TOLD = ("size", "mtime", "LastModified", "ETag", "updated", "etag")  # of files and objects, by those who list them
SCHEMES = ("s3", "gs", "az", "abfs", "https")


def is_remote(source: object) -> bool:
    """Whether ``source`` is the URL of an object store."""
    return isinstance(source, str) and source.partition("://")[0] in SCHEMES and "://" in source


def require_no_credentials(url: str) -> None:
    """Raise BadInputError for a URL with a user, a password or a signature in it, as addresses are kept and shown; and
    for one that only a store asks for.
    """
    require_not_withheld(url)
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    container = parts.scheme == "abfs" and ":" not in user  # abfs://container@account.dfs.core.windows.net/path
    if (at and not container) or parts.query or parts.fragment:
        raise BadInputError(
            f"the address {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} contains credentials or "
            "other parameters, but addresses are kept in files and logs: remove them and set them in the "
            "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )


def open_remote(url: str) -> Any:
    """The Zarr array or group at ``url``, read-only.

    Raises
    ------
    BadInputError
        Nothing there, no access, not a Zarr store, or credentials in the URL.
    LostError
        No answer: it may come back.
    """
    require_no_credentials(url)
    try:
        opened = store.from_url(url.rstrip("/"), retry_config=RETRIES)
        return open_node(zarr.storage.ObjectStore(opened, read_only=True))
    except BadInputError:
        raise
    except Exception as error:
        ours = isinstance(error, OSError | ValueError | KeyError | TypeError | AttributeError)
        if not ours and not of_an_object_store(error):
            raise
        reason = first_line(error)
        raise (LostError if no_answer(error) else BadInputError)(
            f"{url} cannot be opened as a Zarr store ({reason}): check the address, the credentials in the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and, for an S3-compatible server, AWS_ENDPOINT_URL; "
            "of an icechunk repository give a session, in Python"
        ) from error


def objects(node: Any) -> list[tuple[str, int, str]]:
    """Name, size and entity tag of every object below ``node``: what can be seen of it without reading."""
    prefix = f"{node.path}/" if node.path else None
    listed = (meta for batch in node.store_path.store.store.list(prefix=prefix) for meta in batch)
    return sorted((m["path"], int(m["size"]), str(m["e_tag"] or m["last_modified"])) for m in listed)


def outside(node: Any, facts: dict[str, Any]) -> str:
    """Fingerprint of what can be seen without reading: layout; names, sizes, times or tags of the files or objects; of
    a snapshot of icechunk its id and the place in it.
    """
    held = node.store_path.store
    root = getattr(held, "root", None)
    if root is not None:
        folder = Path(str(root)) / node.path
        files = (Path(base) / name for base, _, names in os.walk(folder) for name in names)
        stats = ((str(f.relative_to(folder)), f.stat()) for f in files if f.exists())  # a link may lead nowhere
        facts = {**facts, "files": sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)}
    elif (snapshot := snapshot_of(held)) is not None:
        facts = {**facts, "snapshot": snapshot, "place": node.path}
    elif isinstance(held, zarr.storage.ObjectStore):
        facts = {**facts, "objects": objects(node)}
    elif isinstance(held, zarr.storage.FsspecStore):  # as Dask opens a path
        found = sync(held.fs._find("/".join(part for part in (held.path, node.path) if part), detail=True))
        facts = {**facts, "objects": sorted((name, *map(str, map(about.get, TOLD))) for name, about in found.items())}
    return fingerprint(facts, [])
