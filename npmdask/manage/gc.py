"""Delete what old runs no longer need: ``npmdask gc``.

Of a finished run it deletes the checkpoints (its steps, those of its stages, a partial pass): report, inspect, export,
a resume that returns the answer, deflation and warm starts need only the answer. If asked, it also deletes whole
finished runs, and whole runs that were never finished.

It never deletes what a process uses, or may use; streams, which continue from their steps; whole private runs (their
answer was paid for, and their key may be needed); files in a store that are not part of it; anything behind a link.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from npmdask.core import features
from npmdask.core.checkpoint.lease import holder_of
from npmdask.core.checkpoint.reader import GOING, KEY, OWN, folders_below, is_store, size_of, stores_below
from npmdask.core.checkpoint.schema import is_protected
from npmdask.core.checkpoint.store import REPLACED, RunStore
from npmdask.core.storage.bundle import MANIFEST
from npmdask.core.storage.paths import local_path, locked, require_no_link, unless_locked
from npmdask.errors import NpmdaskError, RefusedError, require
from npmdask.manage.kinds import Keeps, all_kinds, kind_of

PARTIAL = ".partial"


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Rule of deletion: all older than ``seconds``, except the newest ``keep`` finished runs of each folder.

    ``results``: also whole finished runs; ``unfinished``: whole runs that were not finished.
    """

    seconds: float
    keep: int = 0
    results: bool = False
    unfinished: bool = False

    def __post_init__(self) -> None:
        require(self.keep >= 0, f"keep = {self.keep} is a number of runs: 0 or more")


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A file or folder that was, or would be, deleted. ``why`` says in a few words why."""

    path: Path
    bytes: int
    why: str


@dataclass(frozen=True, kw_only=True)
class GcReport:
    """``gone``: what was deleted; ``left``: what a process uses, or what could not be read, in sentences."""

    gone: tuple[Removed, ...]
    left: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.gone)


def sweep(folder: str | Path, rule: Retention, *, dry: bool = False) -> GcReport:
    """Delete what ``rule`` allows from all runs in ``folder`` or below it. ``dry``: only list it.

    Raises
    ------
    BadInputError
        There is no such folder.
    RefusedError
        The folder is / or holds a home.
    """
    root = _require_modest(local_path(folder, "the folder of the runs"))
    broom = _Collector(rule, dry)
    stores = stores_below(root)
    kept = _newest_finished(stores, rule.keep)
    for store in stores:
        if store not in kept:
            broom.visit(store)
    for place in sorted(folders_below(root)):
        if place.name.endswith(PARTIAL):
            broom.visit_partial(place)
        elif place.name == GOING:
            broom.remove(place, "left by an interrupted gc")
    return GcReport(gone=tuple(broom.gone), left=tuple(broom.left))


def sweep_cache(*, dry: bool = False) -> GcReport:
    """Delete the copies in the cache that no process uses: they are made again where they are needed.

    ``dry``: only list them. A copy of a run in a bucket stays while it holds what was not carried there.
    """
    broom = _Collector(Retention(seconds=0), dry)
    for key in features.keys("caches"):
        features.found("caches", key)(broom)
    return GcReport(gone=tuple(broom.gone), left=tuple(broom.left))


def _require_modest(folder: Path) -> Path:
    root = folder.resolve()
    if Path.home().resolve().is_relative_to(root):
        raise RefusedError(f"{root} is / or contains your home: name the folder of your runs")
    return root


def _newest_finished(stores: list[Path], keep: int) -> set[Path]:
    """The newest ``keep`` finished runs of each folder."""
    kept: set[Path] = set()
    for parent in {store.parent for store in stores} if keep else ():
        finished = [store for store in stores if store.parent == parent and _keep_rule(store) == "answer"]
        kept |= set(sorted(finished, key=_end_time, reverse=True)[:keep])
    return kept


def _end_time(store: Path) -> float:
    """Return the time of the last commit or, without one, of the last change."""
    size = size_of(store)
    return size.committed or size.changed


def _keep_rule(store: Path) -> Keeps:
    """Look up what must be kept of a run, as its kind says; of a damaged one, everything."""
    try:
        run = RunStore(store)
        spec = run.read_spec()
        return "run" if spec is None else kind_of(spec).keeps(run, spec)
    except Exception:  # whatever is wrong with it, it is not for us to remove
        return "everything"


class _Collector:
    """Visits stores and collects what to delete."""

    def __init__(self, rule: Retention, dry: bool) -> None:
        self.rule, self.dry = rule, dry
        self.gone: list[Removed] = []
        self.left: list[str] = []

    def visit(self, store: Path) -> None:
        """Collect what may be deleted of one run."""
        if time.time() - _end_time(store) < self.rule.seconds:
            return
        work = self._plan(store)
        if work is None:
            return
        if self.dry:
            holder = holder_of(store)
            if holder is None or holder.gone:
                work(store)
            else:
                self.left.append(f"{store} is in use by {holder}")
            return
        try:
            with RunStore(store).open(take_over=False):
                if time.time() - _end_time(store) >= self.rule.seconds:  # it may have been gone on with meanwhile
                    work(store)
        except NpmdaskError as error:
            self.left.append(str(error))

    def _plan(self, store: Path) -> Callable[[Path], None] | None:
        """Return the function that cleans up a store; None: nothing is to be done."""
        keeps, private = _keep_rule(store), _is_private(store)
        if keeps == "answer":
            whole = self.rule.results and not private
            return self._store_remover("a finished run") if whole and self._is_only_ours(store) else self._checkpoints
        if keeps == "run" and self.rule.unfinished and not private and self._is_only_ours(store):
            return self._store_remover("an unfinished run")
        return None

    def _is_only_ours(self, store: Path) -> bool:
        others = sorted(path.name for path in store.iterdir() if not _is_ours(path))
        if others:
            self.left.append(f"{store} holds {', '.join(others)}, which does not belong to a run")
        return not others

    def _store_remover(self, why: str) -> Callable[[Path], None]:
        def remove(store: Path) -> None:
            nbytes = size_of(store).bytes
            if not self.dry:
                going = store.parent / GOING
                require_no_link(store.parent, [GOING])
                going.mkdir(exist_ok=True)
                aside = going / f"{store.name}-{time.time_ns()}"
                store.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
                if not any(going.iterdir()):
                    going.rmdir()
            self.took(store, nbytes, why)

        return remove

    def _checkpoints(self, store: Path) -> None:
        for run in (store, *_stages(store)):
            if (run / "result").is_dir() or run == store:
                for path in _removable_paths(run):
                    self.remove(path, "a checkpoint of a finished run")

    def visit_partial(self, partial: Path) -> None:
        """Collect a data store that was begun and that no process is writing."""
        target = partial.with_name(partial.name.removesuffix(PARTIAL))
        if partial.is_symlink() or not partial.is_dir() or not _is_partial_store(partial):
            return
        if time.time() - size_of(partial).changed < self.rule.seconds:
            return
        if any(is_store(target.with_name(target.name + more)) for more in (".perturbing", ".partial.passes")):
            return  # a run that goes on with it
        if self.dry:
            with unless_locked(target.with_name(f"{partial.name}.lock")) as free:
                if free:
                    self.remove(partial, "a data store that was begun")
            return
        try:
            with locked(target):
                self.remove(partial, "a data store that was begun")
        except NpmdaskError as error:
            self.left.append(str(error))

    def remove(self, path: Path, why: str) -> None:
        nbytes = size_of(path).bytes
        if not self.dry:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        self.took(path, nbytes, why)

    def took(self, path: Path, nbytes: int, why: str) -> None:
        """Note what was deleted, or would be."""
        self.gone.append(Removed(path=path, bytes=nbytes, why=why))


def _is_private(store: Path) -> bool:
    try:
        return is_protected(RunStore(store).read_spec() or {}) or (store / KEY).exists()
    except NpmdaskError:
        return True


def _is_ours(path: Path) -> bool:
    """Say whether this belongs to a run's store; a link never does."""
    if path.is_symlink():
        return False
    if path.name in OWN or (path.name in _folders() and path.is_dir()) or path.name.startswith(".writing-"):
        return True
    return path.is_dir() and ((path / MANIFEST).is_file() or is_store(path) or (path / "zarr.json").is_file())


def _folders() -> set[str]:
    """Names of the folders in which runs of some kind keep stages."""
    return {name for kind in all_kinds() for name in kind.folders}


def _stages(store: Path) -> list[Path]:
    below = [path for path in store.iterdir() if path.is_dir() and not path.is_symlink()]
    searched = [path for folder in below if folder.name in _folders() for path in folder.iterdir()]
    return sorted(path for path in (*below, *searched) if is_store(path))


def _removable_paths(run: Path) -> Iterator[Path]:
    """Yield the checkpoints and leftovers that a finished run no longer needs."""
    for folder in ("steps", "pass"):
        place = run / folder
        if place.is_dir() and not place.is_symlink():
            found = [p for p in place.iterdir() if p.name.removesuffix(REPLACED).isdigit() or p.name[:9] == ".writing-"]
            yield from sorted(p for p in found if not p.is_symlink())
    yield from sorted(path for path in run.glob(".writing-*") if not path.is_symlink())
    yield from sorted(path for path in run.glob("blocks") if path.is_dir() and not path.is_symlink())


def _is_partial_store(partial: Path) -> bool:
    """Say whether a writer of data stores leaves this behind when it is killed."""
    return (partial / "journal").is_dir() and all(not path.is_symlink() for path in partial.iterdir())
