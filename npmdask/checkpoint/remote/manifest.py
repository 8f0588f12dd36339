"""The one object of a run that is ever replaced: who writes, and which files the last commit has."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from npmdask.errors import BadInputError
from npmdask.storage.checksum import crc32c_bytes
from npmdask.storage.paths import require_below

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
                f"{url}/{POINTER} is damaged ({error}), or of another version: restore it from a backup, or begin anew "
                "under another name"
            ) from error


def _carried(commit: str, size: int, crc: int) -> Carried:
    if "/" in require_below(commit):
        raise ValueError(f"{commit!r} is the name of no commit")
    return Carried(commit, size, crc)


def key_of(path: str, carried: Carried) -> str:
    """Of the object that holds a file."""
    return f"{FILES}/{carried.commit}/{path}"
