"""How often in a row a run was started and died without getting any further: STORE/starts.json.

What a run gets further by is what it commits: a step, a part, a kept piece of a pass; of a job also in its stages. So
nothing is counted at commits: a start is compared with the one before it by the names of all bundles that there are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npmdask.storage.bundle import MANIFEST
from npmdask.storage.paths import open_plain

STARTS = "starts.json"
EPOCH = "epoch"  # written when a store is opened, and at no other time


def count_start(folder: Path) -> None:
    """A process begins, or goes on with, the run in ``folder``."""
    _write(folder, _deaths(folder) + 1)


def count_end(folder: Path, *, finished: bool) -> None:
    """It did not die: it came to its end (``finished``) or said why it does not go on."""
    found = 0 if finished else _deaths(folder) - 1  # 0 too where something was committed meanwhile
    if found > 0:
        _write(folder, found)
    else:
        (folder / STARTS).unlink(missing_ok=True)


def deaths(folder: Path, *, held: bool) -> tuple[int, str]:
    """How many starts in a row died without a commit, and where: ("step 13"). ``held``: the last one lives."""
    found = _deaths(folder) - held
    return (found, place_of_death(folder)) if found > 0 else (0, "")


def _deaths(folder: Path) -> int:
    """Starts since the last commit."""
    try:
        found: Any = json.loads((folder / STARTS).read_text())
        return int(found["starts"]) if found["mark"] == _mark(folder) else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _write(folder: Path, starts: int) -> None:
    """Without a flush: a count that is lost with the power is begun again."""
    aside = folder / f".writing-{STARTS}-{os.getpid()}"
    with open(aside, "w", opener=open_plain) as file:
        file.write(json.dumps({"starts": starts, "mark": _mark(folder)}) + "\n")
    os.replace(aside, folder / STARTS)


def _mark(folder: Path) -> str:
    """Of everything that is committed, by name."""
    names = sorted(str(path.relative_to(folder)) for path, files in _folders(folder) if MANIFEST in files)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def _folders(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """All folders of a store but those of its arrays."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if ".zarr" not in name and not name.startswith(".writing-")]
        yield Path(place), files


def place_of_death(folder: Path) -> str:
    """What comes next in the run: of a job in the stage that was opened last."""
    stores = [path for path, files in _folders(folder) if EPOCH in files]
    last = max(stores, key=lambda path: (path / EPOCH).stat().st_mtime, default=folder)
    stage = "" if last == folder else f"{last.relative_to(folder)}, "
    if (last / "result").is_dir():
        return f"{stage}its end" if last == folder else f"after {last.relative_to(folder)}"
    steps = [int(path.name) for path in (last / "steps").glob("[0-9]*") if path.name.isdigit()]
    return f"{stage}step {max(steps) + 1}" if steps else f"{stage}its beginning"
