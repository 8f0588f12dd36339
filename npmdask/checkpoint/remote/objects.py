"""The objects of one run below a URL: written whole, and replaced only if they are still what was read.

What a store of objects answers is one of four words, since what to say of it depends on who asks: ``missing``,
``denied`` (no access, no room, no such bucket to write to), ``lost`` (no answer; it may come back) and ``changed``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from npmdask.errors import BadInputError, Later, MissingExtraError
from npmdask.storage.checksum import crc32c_bytes
from npmdask.storage.chunk_access import first_line, no_answer
from npmdask.storage.object_url import RETRIES
from npmdask.storage.paths import require_below

obstore, stores = Later("obstore", "objects"), Later("obstore.store", "objects")
exceptions = Later("obstore.exceptions", "objects")
Kind = Literal["missing", "denied", "lost", "changed"]
Version = dict[str, Any]  # what a server calls the version of an object: entity tag, generation
PIECE = 4 * 2**20  # bytes of a large object under way at once
CONFLICT = re.compile(r"status code: 409")  # of two writers at once


class ObjectError(Exception):
    """What went wrong with an object, in a word and as the server says it."""

    def __init__(self, kind: Kind, said: str) -> None:
        super().__init__(said)
        self.kind: Kind = kind


class Objects:
    """Objects by their keys below ``url``. Every method raises ObjectError."""

    def __init__(self, url: str) -> None:
        try:
            self._store = stores.from_url(url, retry_config=RETRIES)
        except MissingExtraError:
            raise
        except (exceptions.BaseError, ValueError, TypeError) as error:
            raise ObjectError("denied", first_line(error)) from None

    def read(self, key: str) -> tuple[bytes, Version, datetime] | None:
        """Content, version and time of the last change by the server's clock; None if there is no such object."""
        try:
            with _told():
                found = obstore.get(self._store, key)
                return bytes(found.bytes()), _version(found.meta), found.meta["last_modified"]
        except ObjectError as error:
            if error.kind == "missing":
                return None
            raise

    def replace(self, key: str, data: bytes, before: Version | None) -> Version:
        """Write an object if it is still at the version ``before``, or is not there (None); the new version."""
        with _told(writing=True):
            return _version(obstore.put(self._store, key, data, mode=before or "create", use_multipart=False))

    def put(self, key: str, data: bytes) -> None:
        """Write an object that no other process writes."""
        with _told(writing=True):
            obstore.put(self._store, key, data, use_multipart=False)

    def put_file(self, key: str, path: Path) -> None:
        """The same with the content of a file, of which little is in memory at once."""
        with open(path, "rb") as file, _told(writing=True):
            obstore.put(self._store, key, file, chunk_size=2 * PIECE, max_concurrency=2)

    def fetch(self, key: str, target: Path) -> tuple[int, int]:
        """Write an object to a file; its size and CRC-32C."""
        size = crc = 0
        with open(target, "wb") as file, _told():
            for piece in obstore.get(self._store, key).stream(min_chunk_size=PIECE):
                data = bytes(piece)
                file.write(data)
                size, crc = size + len(data), crc32c_bytes(data, crc)
        return size, crc

    def delete(self, keys: list[str]) -> None:
        """Take objects away; some may be gone."""
        if keys:
            try:
                with _told():
                    obstore.delete(self._store, keys)
            except ObjectError as error:
                if error.kind != "missing":
                    raise

    def keys(self, prefix: str, before: datetime | None = None) -> list[str]:
        """The keys that begin with the folder ``prefix``, of objects written before a time."""
        with _told():
            found = [meta for batch in obstore.list(self._store, prefix=prefix) for meta in batch]
        return [str(meta["path"]) for meta in found if before is None or meta["last_modified"] < before]

    def now(self, key: str) -> tuple[bool, datetime]:
        """Whether the server keeps its word on conditions, tried out on the object ``key``; and its time."""
        first = self.replace(key, b"1", None)
        kept = not self._replaces(key, b"2", None) and self._replaces(key, b"3", first)
        kept = kept and not self._replaces(key, b"4", first)
        found = self.read(key)
        self.delete([key])
        if found is None:
            raise ObjectError("lost", "an object that was just written is not there")
        return kept, found[2]

    def _replaces(self, key: str, data: bytes, before: Version | None) -> bool:
        try:
            self.replace(key, data, before)
        except ObjectError as error:
            if error.kind != "changed":
                raise
            return False
        return True


def _version(meta: Any) -> Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}


@contextmanager
def _told(*, writing: bool = False) -> Iterator[None]:
    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise ObjectError("changed", first_line(error)) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise ObjectError("denied", first_line(error)) from None
    except (FileNotFoundError, exceptions.NotFoundError) as error:
        no_bucket = writing or "NoSuchBucket" in str(error)
        raise ObjectError("denied" if no_bucket else "missing", first_line(error)) from None
    except exceptions.BaseError as error:
        if CONFLICT.search(str(error)):
            raise ObjectError("changed", first_line(error)) from None
        raise ObjectError("lost" if no_answer(error) else "denied", first_line(error)) from None


# The one object of a run that is ever replaced: who writes, and which files the last commit has.


POINTER, FILES = "commit.json", "files"


@dataclass(frozen=True)
class Carried:
    """A file as the object store has it: the commit that brought it there, its bytes, their CRC-32C."""

    commit: str
    size: int
    crc: int


@dataclass(frozen=True)
class Pointer:
    """The content of ``commit.json``.

    ``epoch``: how often the run was taken, ``token``: by whom, ``held``: whether it still is. ``commit``: the name of
    the last one, "" before the first; ``number``: which of those that the epoch tried. ``beats`` counts signs of life:
    it makes every version differ, which some servers know by their content.
    """

    epoch: int = 0
    token: str = ""
    held: bool = False
    holder: str = ""
    owner: str = ""
    beats: int = 0
    number: int = 0
    commit: str = ""
    files: dict[str, Carried] = field(default_factory=dict)

    def after(self, number: int, files: dict[str, Carried]) -> Pointer:
        """That of the commit ``number`` of this epoch."""
        return replace(self, number=number, beats=0, commit=self.commit_name(number), files=files)

    def commit_name(self, number: int) -> str:
        """Of a commit of this epoch: no two that are tried have the same."""
        return f"{self.epoch:06d}-{self.token}-{number:06d}"

    @property
    def keys(self) -> set[str]:
        """Of the objects that the commit needs."""
        return {key_of(path, carried) for path, carried in self.files.items()}

    def encode(self) -> bytes:
        """As JSON, its checksum on a line of its own."""
        plain = {**self.__dict__, "files": {path: [f.commit, f.size, f.crc] for path, f in self.files.items()}}
        text = json.dumps({"format": 1, **plain}).encode()
        return text + b"\n" + f"{crc32c_bytes(text):08x}\n".encode()

    @classmethod
    def decode(cls, data: bytes, url: str) -> Pointer:
        """Raises BadInputError where it is damaged or of another format."""
        try:
            body, _, crc = data.rstrip(b"\n").rpartition(b"\n")
            if crc32c_bytes(body) != int(crc, 16):
                raise ValueError("its checksum is another")
            plain = json.loads(body)
            if plain.pop("format") != 1:
                raise ValueError("it is of another format")
            files = {require_below(path): _carried(*entry) for path, entry in plain.pop("files").items()}
            return cls(**plain, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInputError(
                f"{url}/{POINTER} is damaged ({error}), or of another version: restore it from a backup, or start "
                "again under another name"
            ) from error


def _carried(commit: str, size: int, crc: int) -> Carried:
    if "/" in require_below(commit):
        raise ValueError(f"{commit!r} is not the name of a commit")
    return Carried(commit, size, crc)


def key_of(path: str, carried: Carried) -> str:
    """Of the object that holds a file."""
    return f"{FILES}/{carried.commit}/{path}"
