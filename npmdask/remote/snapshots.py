"""Snapshots of icechunk: versions of Zarr data that never change, of a session, or in a repository on this machine.

A session shows a snapshot as a store of zarr's, and is read as any other store is: a chunk that was never written is an
error, and no zeros. A run is bound to the id of the snapshot and to the place in it. What a session holds that can
still be written is in no snapshot, and is refused: it could change during a pass, and not be found again after a kill.

``REPOSITORY[@SNAPSHOT][/NAME]`` is a path to the same: without an id to what is the newest of the branch main now, and
kept with its id, so that a run goes on with that. The package is imported for such a path only.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import zarr

from npmdask.core.storage.safe_open import open_node
from npmdask.errors import BadInputError, extra

PINNED = re.compile(r"(.+)@([0-9A-HJKMNP-TV-Z]{20})")  # Crockford's base 32, as icechunk writes its ids
LISTED = 5  # names of arrays in a sentence


def is_of_icechunk(given: Any) -> bool:
    """Say whether this is a session, its store, or another object of icechunk."""
    return type(given).__module__.partition(".")[0] == "icechunk"


def snapshot_of(store: Any) -> str | None:
    """The id of the snapshot that a store of zarr's shows; None of all but those of icechunk.

    Raises
    ------
    BadInputError
        Its session may be written.
    """
    if not is_of_icechunk(store):
        return None
    session = store.session
    if session.read_only:
        return str(session.snapshot_id)
    uncommitted = " and has changes that are not committed" if session.has_uncommitted_changes else ""
    raise BadInputError(
        f"the session of icechunk is writable{uncommitted}, so its data may change during a run: commit, and give "
        "repository.readonly_session('main')"
    )


def node_of(given: Any) -> Any:
    """The Zarr group or array that a session, or its store, shows.

    Raises
    ------
    BadInputError
        It is neither, it may be written, it holds nothing, or something that would have to be unpickled.
    """
    session = getattr(given, "session", given)
    if not hasattr(session, "snapshot_id"):
        raise BadInputError(
            f"the {type(given).__name__} of icechunk is not a session: give repository.readonly_session('main')"
        )
    snapshot = snapshot_of(session.store)
    try:
        return open_node(session.store)
    except FileNotFoundError:
        raise BadInputError(
            f"snapshot {snapshot} of icechunk contains no Zarr array or group: commit one, or check its storage"
        ) from None
    except Exception as error:
        if not is_of_icechunk(error):
            raise
        raise BadInputError(
            f"snapshot {snapshot} of icechunk cannot be read ({reason_of(error)}): check the storage of the repository"
        ) from error


def in_repository(path: Path) -> tuple[Path, str | None, str] | None:
    """The repository that a path leads into, the snapshot that it names, and the place in that; None elsewhere.

    Raises
    ------
    BadInputError
        What follows the ``@`` behind a repository is no id, and there is nothing else of that name.
    """
    for part in (path, *path.parents):
        name = path.relative_to(part).as_posix().removeprefix(".")
        if _is_repository(part):
            return part, None, name
        if (pinned := PINNED.fullmatch(part.name)) and _is_repository(part.with_name(pinned[1])):
            return part.with_name(pinned[1]), pinned[2], name
        before, _, asked = part.name.rpartition("@")
        if before and not part.exists() and _is_repository(folder := part.with_name(before)):
            raise BadInputError(
                f"the icechunk repository {folder} has no snapshot {asked!r}: an id has 20 digits and capital letters "
                f"(repository.ancestry(branch='main') lists them); without @ID, {folder} is the newest of main"
            )
    return None


def _is_repository(folder: Path) -> bool:
    """Say whether a folder is an icechunk repository of format 1, or of format 2, which has a file called repo."""
    return (folder / "snapshots").is_dir() and ((folder / "repo").is_file() or (folder / "refs").is_dir())


def open_repository(folder: Path, snapshot: str | None, name: str) -> tuple[Any, str]:
    """The array or group ``name`` in a snapshot, by default the newest of main, and the path that leads to it for good.

    Raises
    ------
    BadInputError
        There is no such snapshot, or nothing of that name in it.
    MissingExtraError
        icechunk is not installed.
    """
    with extra(None):
        import icechunk
    icechunk.set_logs_filter("error")  # it warns, on stdout, of commits to a local folder; nothing is committed here
    try:
        repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
        asked = {"branch": "main"} if snapshot is None else {"snapshot_id": snapshot}
        session = repository.readonly_session(**asked)
    except icechunk.IcechunkError as error:
        at = "the branch main" if snapshot is None else f"snapshot {snapshot}"
        raise BadInputError(
            f"{at} of the icechunk repository {folder} cannot be opened ({reason_of(error)}): name a snapshot that it "
            f"has, as {folder}@ID, or give a session, in Python"
        ) from error
    finally:
        icechunk.set_logs_filter(None)
    node, place = node_of(session), f"{folder}@{session.snapshot_id}"
    if not name:
        return node, place
    found = node.get(name) if isinstance(node, zarr.Group) else None
    if found is None:
        raise BadInputError(f"there is no {name} in {place}; it has {arrays_in(node)}")
    return found, f"{place}/{name}"


def arrays_in(node: Any) -> str:
    """The names of arrays at any depth of a group, for a sentence."""
    members = node.members(max_depth=None) if isinstance(node, zarr.Group) else ()
    names = sorted(name for name, one in members if isinstance(one, zarr.Array))
    return ", ".join([*names[:LISTED], *(["..."] if len(names) > LISTED else [])]) or "none"


def reason_of(error: BaseException) -> str:
    """Return the text of an icechunk error, without its drawing of where it came from."""
    lines = (line.strip(" x×|`->") for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)
