"""Read a run store without a lock; :mod:`npmdask.core.checkpoint.store` says what lies where in
it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npmdask.core.checkpoint.rights import without_rights
from npmdask.core.checkpoint.schema import LINE, META, checked_spec, conforms
from npmdask.core.storage.bundle import MANIFEST, Arrays, read_bundle, read_meta
from npmdask.core.storage.paths import Facts, facts_in, read_plain, require_no_link
from npmdask.errors import BadInputError, RefusedError, require

# Run stores below a folder: which there are, and how large. Nothing is locked or written, and no link followed.


KEY = "entropy"  # of the noise of a private run
OWN = (
    "run.json",
    "ledger.json",
    "lock",
    "lock.taking",
    "epoch",
    "starts.json",
    "telemetry.jsonl",
    "report.html",
    "steps",
    "pass",
    "blocks",
)
GOING = ".npmdask-gc"  # where whole runs are moved before they are removed: a kill leaves no half of one


def is_store(folder: Path) -> bool:
    """Say whether a folder is the store of a run (or what a kill left of one)."""
    return (folder / "lock").is_file() and (folder / "steps").is_dir() and not folder.is_symlink()


def stores_below(folder: Path) -> list[Path]:
    """Every run store in ``folder`` or below it, by name; not the stages inside of a store.

    Raises
    ------
    BadInputError
        There is no such folder.
    """
    require(folder.is_dir(), f"there is no folder {folder}; name the folder of your runs")
    return sorted(path for path in folders_below(folder) if is_store(path))


def folders_below(folder: Path) -> Iterator[Path]:
    """The folder and those below it: not what lies in a run store or in an array, nor what is being removed."""
    yield folder
    if is_store(folder):
        return
    for place, folders, _ in os.walk(folder):  # which follows no links
        here = [Path(place) / name for name in folders if not os.path.islink(os.path.join(place, name))]
        yield from here
        folders[:] = [path.name for path in here if not (is_store(path) or _is_data(path) or path.name == GOING)]


def _is_data(folder: Path) -> bool:
    """Arrays have a folder for every row of chunks."""
    return (folder / "zarr.json").exists()


@dataclass(frozen=True, kw_only=True)
class StoreSize:
    """Size of all files below a folder. ``committed``: time (Unix) of the newest bundle, None if there is none."""

    bytes: int
    committed: float | None
    changed: float


def size_of(folder: Path) -> StoreSize:
    """Sizes and times of what lies in a folder, or of one file; what goes away meanwhile is not counted."""
    nbytes, committed, changed = 0, 0.0, 0.0
    for place, name in _files(folder):
        try:
            found = os.lstat(os.path.join(place, name))
        except OSError:
            continue
        nbytes += found.st_size
        changed = max(changed, found.st_mtime)
        if name == MANIFEST:
            committed = max(committed, found.st_mtime)
    return StoreSize(bytes=nbytes, committed=committed or None, changed=changed)


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    if not folder.is_dir() or folder.is_symlink():
        yield str(folder.parent), folder.name
        return
    for place, _, files in os.walk(folder):
        yield from ((place, name) for name in files)


CHECKPOINT_FORMAT = 2
NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)  # there is no file of this name, and there may never be
NO_LINKS = (
    *OWN,
    KEY,
    "labels",
    "left_labels",
    "right_labels",
    "survey",
    "weights",
    "missing",
    "presentation",
    "row_scores",
    "result",
    "locked",
    "start",
    "left.zarr",
    "releases",
    "search",
)  # of a store
REPLACED = ".replaced"  # a step of which a newer version is being written
SPEC, SPEC_BYTES = "run.json", 2**24
TELEMETRY = "telemetry.jsonl"
LOG_BYTES = 2**26  # of the telemetry, from its end


class StoreReader:
    """Reads the store in ``path``, which a person calls ``place``."""

    path: Path
    place: str

    def read_spec(self) -> dict[str, Any] | None:
        """The parameters of the run, less what a store cannot bring (rights.py); or None for a new one."""
        require_no_link(self.path, NO_LINKS)
        try:
            spec = checked_spec(read_plain(self.path / SPEC, SPEC_BYTES))
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in NOWHERE:
                return None
            raise BadInputError(f"{self.path / SPEC} is damaged ({error}); start again in a new store") from error
        _require_format(self.path, spec["version"])
        return without_rights(spec, self.path, self.place)

    def last_step(self) -> tuple[Arrays, dict[str, Any]] | None:
        """The newest whole step, or None. One that rotted on disk is passed over for the one before it."""
        for path in reversed(self._steps()):
            with suppress(BadInputError):
                arrays, meta = read_bundle(path)
                return arrays, _checked(meta, path)
        return None

    def last_meta(self) -> dict[str, Any] | None:
        """Return what :meth:`last_step` has beside its arrays, which are not read (and not checked)."""
        for path in reversed(self._steps()):
            with suppress(BadInputError):
                return _checked(read_meta(path), path)
        return None

    def history(self) -> list[dict[str, Any]]:
        """The steps of a run, as its last one tells; of a finished run whose steps were cleared away, as its answer."""
        found = self.last_meta() or self.part_meta("result") or {}
        return list(found.get("history", []))

    def _steps(self) -> list[Path]:
        """Oldest first; what a step has replaced comes before it."""
        found = [path for path in (self.path / "steps").glob("[0-9]*") if not path.is_symlink()]
        return sorted(found, key=lambda path: (int(path.name.removesuffix(REPLACED)), -len(path.name)))

    def read_pass(self, key: dict[str, Any]) -> tuple[Arrays, list[dict[str, Any]]] | None:
        """Return what was kept of the pass that ``key`` describes, or None. Parts of another pass are of no use."""
        for path in reversed(self._kept_parts()):
            with suppress(BadInputError):
                arrays, meta = read_bundle(path)
                if meta["key"] == key:
                    return arrays, meta["parts"]
        return None

    def pass_meta(self) -> dict[str, Any] | None:
        """The facts of the parts that were kept of the pass under way, whichever it is; or None."""
        for path in reversed(self._kept_parts()):
            with suppress(BadInputError):
                return _checked(read_meta(path), path)
        return None

    def _kept_parts(self) -> list[Path]:
        return sorted(path for path in (self.path / "pass").glob("[0-9]*") if not path.is_symlink())

    def read_part(self, name: str) -> tuple[Arrays, dict[str, Any]] | None:
        """The bundle ``name``, or None."""
        if not (self.path / name).exists():
            return None
        arrays, meta = read_bundle(self.path / name)
        return arrays, _checked(meta, self.path / name)

    def part_meta(self, name: str) -> dict[str, Any] | None:
        """Return what the bundle ``name`` has beside its arrays, which are not read; or None."""
        path = self.path / name
        return _checked(read_meta(path), path) if path.exists() else None

    def telemetry(self) -> list[dict[str, Any]]:
        """All telemetry lines that are whole."""
        try:
            found = read_plain(self.path / TELEMETRY, LOG_BYTES, end=True)
        except FileNotFoundError:
            return []
        lines: list[dict[str, Any]] = []
        for line in found.splitlines():
            with suppress(ValueError, TypeError):  # the line that a kill cut
                said = Facts(facts_in(line))
                lines += [said] if "event" in said and conforms(said, LINE) else []
        return lines


def _checked(meta: dict[str, Any], path: Path) -> dict[str, Any]:
    require(conforms(meta, META), f"{path / MANIFEST} was not written by npmdask: start again in a new store")
    return meta


def _require_format(path: Path, version: dict[str, Any]) -> None:
    """Raise RefusedError for a store that another npmdask wrote in a form that this one does not know."""
    found = version.get("checkpoint_format", CHECKPOINT_FORMAT)  # a noisy copy under way names none
    if found != CHECKPOINT_FORMAT:
        which = "an older" if isinstance(found, int) and found < CHECKPOINT_FORMAT else "a newer"
        named = version.get("npmdask", "?")
        raise RefusedError(
            f"{path} was written by {which} npmdask ({named}), in checkpoint format {found}; this one reads format "
            f"{CHECKPOINT_FORMAT} only: use npmdask {named} for this store, or start again in a new one"
        )
