"""Files of a run between its local copy and an object store: what differs goes, and nothing else."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from npmdask.checkpoint.remote.manifest import Carried, Pointer, key_of
from npmdask.checkpoint.remote.mirror import Copy, Signature, checksum_of, is_carried, signature_of
from npmdask.checkpoint.remote.objects import Objects
from npmdask.errors import BadInputError
from npmdask.storage.checksum import crc32c_bytes

AT_ONCE = 8  # small objects under way
SMALL = 2**22  # bytes of a file that is read whole

Signatures = dict[str, Signature]


def fetch_files(copy: Copy, objects: Objects, pointer: Pointer) -> Signatures:
    """Make the folder of a copy what a commit has: whatever else counted in it goes.

    Raises
    ------
    ObjectError
        An object is not there (a newer commit was made meanwhile), or cannot be had.
    BadInputError
        One is damaged, or is none that is ever carried: a lock, a key.
    """
    for path in pointer.files:
        if not is_carried(path):
            raise BadInputError(f"{copy.url} names {path!r}, which no run carries: who wrote it is not to be trusted")
    here = copy.files()
    for path in here.keys() - pointer.files.keys():
        here.pop(path).unlink()
    wanted = {p: f for p, f in pointer.files.items() if p not in here or checksum_of(here[p]) != (f.size, f.crc)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda item: _fetch(copy, objects, *item), wanted.items()))
    _drop_empty(copy.folder)
    (copy.folder / "steps").mkdir(parents=True, exist_ok=True)
    for path in (
        "run.json",
        *pointer.files,
    ):  # the store, and those of its stages: folders with a lock are no strangers'
        if path.rpartition("/")[2] == "run.json":
            (copy.folder / path).with_name("lock").touch()
    return {path: signature_of(copy.folder / path) for path in pointer.files}


def _fetch(copy: Copy, objects: Objects, path: str, carried: Carried) -> None:
    target, key = copy.folder / path, key_of(path, carried)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".writing-{target.name}-{os.getpid()}")
    try:
        if objects.fetch(key, aside) != (carried.size, carried.crc):
            raise BadInputError(f"{copy.url}/{key} is damaged (its checksum does not match); restore it from a backup")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _drop_empty(folder: Path) -> None:
    """A bundle is never empty: its folder would be taken for one."""
    for base, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # it is not empty
            Path(base).rmdir()


def send_files(
    workers: ThreadPoolExecutor, copy: Copy, objects: Objects, before: Pointer, signatures: Signatures, commit: str
) -> tuple[dict[str, Carried], Signatures]:
    """The files of a copy as the next ``commit`` will have them, those that are new or changed written.

    Raises ObjectError where that is refused, or no server answers.
    """
    files: dict[str, Carried] = {}
    seen: Signatures = {}
    changed: dict[str, Path] = {}
    for path, place in copy.files().items():
        held, seen[path] = before.files.get(path), signature_of(place)
        if held is not None and seen[path] is not None and seen[path] == signatures.get(path):
            files[path] = held
            continue
        size, crc = checksum_of(place)
        files[path] = Carried(commit, size, crc)
        if held is not None and (held.size, held.crc) == (size, crc):
            files[path] = held
        else:
            changed[path] = place
    small = [path for path in changed if files[path].size <= SMALL]
    sent = workers.map(lambda path: _send(objects, path, changed[path], commit), small)
    files |= dict(zip(small, sent, strict=True))
    for path in changed.keys() - set(small):  # one after the other: each has pieces of its own under way
        objects.put_file(key_of(path, files[path]), changed[path])
    return files, seen


def _send(objects: Objects, path: str, place: Path, commit: str) -> Carried:
    data = place.read_bytes()
    carried = Carried(commit, len(data), crc32c_bytes(data))
    objects.put(key_of(path, carried), data)
    return carried
