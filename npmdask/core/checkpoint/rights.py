"""Rights that a run store cannot bring, from whatever hand it comes (docs/explanation/security.md).

A cluster, certificates, a device and every URL that run.json names are used only where this user gave them to this
run on this machine, which a note of the user's own says::

    $XDG_STATE_HOME/npmdask/runs.json    by the real path or URL of a run: a digest of its parameters, and what it got

Without a note - a store that was sent, moved, or begun by an earlier version - a run is resumed on the processor of
this machine, and its URLs are withheld until ``npmdask resume STORE --allow URL``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from npmdask.core.storage.bundle import write_file_atomically
from npmdask.core.storage.paths import Facts, Withheld, is_url, open_plain, read_facts, url_of_copy
from npmdask.errors import BadInputError, NpmdaskError

RESOURCES: dict[str, Any] = {"cluster": None, "certificates": None, "device": "cpu", "device_memory": None}
COUNTS = ("threads", "workers")  # no rights, but a store that came from elsewhere could exhaust a machine with them
LOCAL = ("file", "sqlite")  # schemes of what lies on this machine
SAME_RUN = ("data", "algorithm", "mechanism", "run")  # tables that no resumption changes
CORES = os.cpu_count() or 1
MOST_NOTES = 10_000


def notes_file() -> Path:
    """The file of notes: ``$XDG_STATE_HOME/npmdask/runs.json``, or below ``~/.local/state``."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~")
    return (state if state.is_absolute() else Path.home() / ".local" / "state") / "npmdask" / "runs.json"


def without_rights(spec: dict[str, Any], folder: Path, place: str) -> dict[str, Any]:
    """Take from the parameters of a run what a store cannot bring, unless a note of this user says that it has it.

    URLs become :class:`Withheld`. ``resources`` keeps, as an attribute ``withheld``, what was asked for and not given.
    """
    asked, urls = _rights_in(spec), {*_urls_in(spec)}
    if not asked and not urls:
        return spec
    note = _note_of(folder)
    allowed = {name: note["resources"].get(name, RESOURCES.get(name, CORES)) for name in asked}
    if urls - {*note["urls"]}:
        top = [path for path, _ in _enclosing_runs(folder)][-1]
        spec = _withhold_urls(spec, {*note["urls"]}, place if top == folder else str(top))
    if asked:
        spec["resources"] = Facts(spec["resources"] | allowed)
        spec["resources"].withheld = {name: value for name, value in asked.items() if allowed[name] != value}
    return spec


def what_is_withheld(resources: Facts, place: str, given: Mapping[str, Any]) -> str:
    """Say what a run asks for and is not ``given`` now, with the option that brings it; "": nothing."""
    refused = {name: value for name, value in (resources.withheld or {}).items() if name not in given}
    named = " and ".join(f"{name} = {value!r}" for name, value in refused.items())
    options = " ".join(f"--{name.replace('_', '-')} {quote(str(value))}" for name, value in refused.items())
    return named and (
        f"{place} asks for {named}, which a store alone does not decide: the processor of this machine is used; "
        f"`npmdask resume {quote(place)} {options}` uses it"
    )


def note_rights(spec: Mapping[str, Any], folder: Path) -> str:
    """Note what this user gives to the run with the parameters ``spec``; returns what went wrong, "" if nothing did."""
    note = {"run": _digest(spec), "resources": _rights_in(spec), "urls": sorted({*_urls_in(spec)})}
    known = _note_of(folder)  # of a stage, that of its job
    if known["resources"] == note["resources"] and {*note["urls"]} <= {*known["urls"]}:
        return ""
    try:
        _write(_key(folder), note)
    except (OSError, NpmdaskError) as error:
        return (
            f"{notes_file()} cannot be written ({error}): what this run was given beyond the processor of this machine "
            "is not noted, and has to be given again when it is resumed"
        )
    return ""


def allow(urls: Iterable[str], spec: Mapping[str, Any], folder: Path) -> None:
    """Note that this user lets the run, whose parameters are ``spec``, open these URLs.

    Raises
    ------
    BadInputError
        The run names no such URL, or the note cannot be written.
    """
    named = {*_urls_in(spec, withheld=True)}
    if unknown := [url for url in urls if url not in named]:
        known = f"but {' and '.join(sorted(named))}: allow what it names" if named else "nor any other: leave it out"
        raise BadInputError(f"{folder} does not name the URL {unknown[0]}, {known}")
    note = _note_of(folder)
    try:
        _write(_key(folder), {**note, "run": _digest(spec), "urls": sorted({*note["urls"], *urls})})
    except OSError as error:
        raise BadInputError(f"{notes_file()} cannot be written ({error.strerror}): set XDG_STATE_HOME") from error


def _rights_in(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources of a run that are rights, or more of a machine than this one has."""
    held = spec.get("resources", {})
    found = {name: held[name] for name, none in RESOURCES.items() if held.get(name, none) not in (none, "", None)}
    return found | {name: held[name] for name in COUNTS if (held.get(name) or 0) > CORES}


def _urls_in(found: Any, *, withheld: bool = False) -> Iterator[str]:
    """Every URL of the network in parameters; ``withheld``: also those that were not allowed."""
    if isinstance(found, str):
        if is_url(found) and found.partition(":")[0].lower() not in LOCAL:
            if withheld or not isinstance(found, Withheld):
                yield str(found)
    elif isinstance(found, Mapping | list | tuple):
        for one in found.values() if isinstance(found, Mapping) else found:
            yield from _urls_in(one, withheld=withheld)


def _withhold_urls(found: Any, allowed: set[str], store: str) -> Any:
    if isinstance(found, str):
        return Withheld(found, store) if {*_urls_in(found)} - allowed else found
    if isinstance(found, list):
        return [_withhold_urls(one, allowed, store) for one in found]
    return Facts({k: _withhold_urls(v, allowed, store) for k, v in found.items()}) if isinstance(found, dict) else found


def _digest(spec: Mapping[str, Any]) -> str:
    facts = json.dumps([spec.get(name) for name in SAME_RUN], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def _key(folder: Path) -> str:
    return url_of_copy(folder) or os.path.realpath(folder)


def _enclosing_runs(folder: Path) -> Iterator[tuple[Path, Any]]:
    """The run in ``folder`` and, where it is a stage, the jobs around it, with their parameters as they are stored."""
    for path in (folder, *folder.parents):
        with suppress(OSError, ValueError, BadInputError):
            yield path, read_facts(path / "run.json")


def _note_of(folder: Path) -> dict[str, Any]:
    """Return what was noted of a run, or of a job that it is a stage of."""
    notes = _notes()
    for path, spec in _enclosing_runs(folder) if notes else ():
        note = notes.get(_key(path))
        if note is not None and note["run"] == _digest(spec):
            return dict(note)
    return {"resources": {}, "urls": []}


def _notes() -> dict[str, Any]:
    """All notes; none of a file that another user could have written, or that is damaged."""
    file = notes_file()
    try:
        about = os.stat(file)
        mine = about.st_uid == os.geteuid() and not about.st_mode & 0o022
        found = read_facts(file) if mine else {}
        return dict(found["runs"]) if found else {}
    except (OSError, ValueError, TypeError, BadInputError):
        return {}


def _write(key: str, note: Mapping[str, Any]) -> None:
    """Put a note into the file, whose other notes of runs that are gone leave it."""
    file = notes_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_plain(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = {place: old for place, old in _notes().items() if is_url(place) or os.path.isdir(place)}
        runs = {place: old for place, old in list(kept.items())[-MOST_NOTES:] if place != key} | {key: note}
        write_file_atomically(file, json.dumps({"runs": runs}, indent=1).encode() + b"\n", mode=0o600)
    finally:
        os.close(lock)
