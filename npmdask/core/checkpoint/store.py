"""The store of a run: what must survive a kill, and who may write it.

::

    STORE/run.json           what is computed: parameters, fingerprint of the data, versions
    STORE/steps/000012/      one bundle a step (arrays + history), written aside and renamed; the last two stay
    STORE/pass/000003/       the finished parts of the pass under way, for its owner's eyes only; gone at the commit
    STORE/blocks/            blocks that memory cannot hold, of the last steps, for their owner's eyes only
    STORE/labels/            what rows and columns are called, where the data say so; of two fields left_labels/ and
                             right_labels/
    STORE/weights/           what rows and columns weigh, where that was asked for
    STORE/missing/           which values were missing, where the run does something about them
    STORE/survey/            checksums (and column statistics) of a source that was never ingested
    STORE/result/            the answer, once there is one
    STORE/columns/           means and deviations of the columns of a source that was ingested, with the answer
    STORE/row_scores/        scores of a sample of rows, and densities of all, once a report has drawn them
    STORE/locked/, start/    what the run took over from an earlier one (deflation, warm start)
    STORE/left.zarr          A @ V, for the left singular vectors of a matrix; its checksums are in the result
    STORE/telemetry.jsonl    when, how fast, how much memory: for people, never read back into a result
    STORE/entropy            of a private run (folder 0700): the key of its noise, 0600, destroyed at its end
    STORE/ledger.json        of a private run: where the ledger was when the run last wrote to it
    STORE/lock, lock.taking, epoch    one writer at a time; one that lost its turn cannot commit (``lease``)
    STORE/starts.json        how often in a row it was started and died without getting further

A store may be a URL (``s3://bucket/name``): then the folder is a local copy, and what is committed there is carried to
the object store before observers learn of it (:mod:`npmdask.remote.run_store`).

Everything under steps, survey and result is a function of data and parameters only: two interfaces that run the
same thing leave the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

from npmdask.core.checkpoint.lease import EPOCH, PRIVATE, HeldStore, carrier_of, folders_of
from npmdask.core.checkpoint.reader import CHECKPOINT_FORMAT, REPLACED, SPEC, is_store
from npmdask.core.checkpoint.schema import REQUIRED as SPEC_TABLES
from npmdask.core.checkpoint.schema import VALID, is_public, known_keys
from npmdask.core.storage.bundle import MANIFEST, Arrays, write_bundle, write_file_atomically
from npmdask.core.storage.paths import is_url, require_path
from npmdask.errors import BadInputError, CommitError

__all__ = ["CHECKPOINT_FORMAT", "PRIVATE", "REPLACED", "SPEC_TABLES", "RunStore", "carrier_of", "folder_of"]

KEPT_STEPS = 2
NAMED = 2  # runs below a folder that is none
GIVEN = ("labels", "weights", "missing", "fill", "groups", "locked", "start")  # parts that cost no pass


class RunStore(HeldStore):
    """The folder of one run, held by this process from ``open`` to ``close`` (or until it dies).

    ``path`` may be a URL: then what it holds is brought down first, unless a process of this machine is at work on it.
    ``place`` is what a person calls the store, a URL or the path. Reading does not need it open.
    """

    def write_spec(self, spec: dict[str, Any]) -> None:
        """Replace the parameters."""
        text = json.dumps(spec, indent=1, sort_keys=True).encode() + b"\n"
        with self._turn.publishing():
            write_file_atomically(self.path / SPEC, text)
        VALID.append((text, known_keys()))
        self._carry()

    def drop_spec(self) -> None:
        """Forget the parameters of a run that never began: the store may be bound again."""
        with self._turn.publishing():
            (self.path / "run.json").unlink(missing_ok=True)
        self._carry()

    @property
    def unbegun(self) -> bool:
        """Say whether the store has parameters, and nothing was committed or spent under them.

        What a run is given (its names and weights, what it starts from) lies there before it begins. A private run, or
        one of nodes, never counts as unbegun: its key, and what its ledger says, belong to its parameters.
        """
        spec = self.read_spec()
        if spec is None or self._private or not is_public(spec):
            return False
        bundles = {path.relative_to(self.path).parts for path, files in folders_of(self.path) if MANIFEST in files}
        return all(len(parts) == 1 and parts[0] in GIVEN for parts in bundles)

    def forget_unbegun(self) -> None:
        """Forget the parameters of an ``unbegun`` run, and all that was kept for it."""
        for name in GIVEN:
            self.drop_part(name)
        stages = [path for path, files in folders_of(self.path) if EPOCH in files and path != self.path]
        with self._turn.publishing():
            for stage in stages:
                shutil.rmtree(stage, ignore_errors=True)
            (self.path / "telemetry.jsonl").unlink(missing_ok=True)  # what was predicted was of other parameters
        self.drop_spec()

    def commit_step(self, step: int, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Remember a step: after this returns it survives a power cut, and before it the last one does."""
        path = self.path / "steps" / f"{step:06d}"
        self._write(path, arrays, meta, inline=True, publishing=self._replacing_step(path))
        self._carry()

    @contextmanager
    def _replacing_step(self, path: Path) -> Iterator[None]:
        """Around the instant at which a step appears: what it takes the place of, and what goes with it."""
        # There already if it was damaged (see last_step), or if a stream has ended there meanwhile.
        before = path.with_name(f"{path.name}{REPLACED}")
        with self._turn.publishing():
            if path.exists():
                shutil.rmtree(before, ignore_errors=True)
                path.rename(before)
            yield
            shutil.rmtree(before, ignore_errors=True)
            self._delete_pass()
            self._delete_older_steps()

    def _delete_older_steps(self) -> None:
        for older in self._steps()[:-KEPT_STEPS]:
            shutil.rmtree(older, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Besides, the rest of an older step whose removal was interrupted: no later commit may come."""
        super()._remove_leftovers()
        with self._turn.publishing():
            self._delete_older_steps()

    def _write(self, path: Path, arrays: Arrays, meta: dict[str, Any], **how: Any) -> None:
        """A bundle, unless the run was taken over: then also what else goes wrong comes of that."""
        self.require_turn()
        try:
            write_bundle(path, arrays, meta, **how)
        except CommitError:
            self.require_turn()
            raise

    def keep_pass(self, key: dict[str, Any], arrays: Arrays, facts: list[dict[str, Any]]) -> None:
        """Remember the finished parts of the pass that ``key`` describes; what was kept of it before goes.

        They are sums over the data before any noise: readable by their owner only.
        """
        kept = self._kept_parts()
        path = self.path / "pass" / f"{int(kept[-1].name) + 1 if kept else 0:06d}"
        self._write(path, arrays, {"key": key, "parts": facts}, private=True, publishing=self._replacing_parts(kept))
        self._carry()

    @contextmanager
    def _replacing_parts(self, kept: list[Path]) -> Iterator[None]:
        with self._turn.publishing():
            yield
            for older in kept:
                shutil.rmtree(older, ignore_errors=True)

    def _delete_pass(self) -> None:
        shutil.rmtree(self.path / "pass", ignore_errors=True)

    def write_part(self, name: str, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Write the bundle ``name`` (labels, survey or result) once."""
        self.require_turn()
        if not (self.path / name).exists():
            self._write(self.path / name, arrays, meta, publishing=self._turn.publishing())
        if name not in ("labels", "left_labels", "right_labels", "survey"):  # the step under way is not committed yet
            with self._turn.publishing():
                self._delete_pass()
        self._carry()

    def drop_result(self) -> None:
        """Forget the answer (not the steps): the run goes on under a new stopping rule."""
        self.drop_part("result")

    def drop_part(self, name: str) -> None:
        """Forget the bundle ``name``, at once: a kill leaves all of it or nothing."""
        aside = self.path / f".writing-{name}-dropped"  # a name that ``open`` clears away
        with self._turn.publishing():
            try:
                os.rename(self.path / name, aside)
            except FileNotFoundError:
                return
            shutil.rmtree(aside, ignore_errors=True)
        self._carry()


def folder_of(store: str | Path) -> Path:
    """The folder of a store: itself, or the local copy of a URL, as new as what the object store has.

    Raises
    ------
    BadInputError
        No path; a URL that is none of a store, or that cannot be reached with what the environment says.
    LostError
        The object store does not answer.
    """
    require_path(store)
    return RunStore(store).path if is_url(store) else Path(store).absolute()


def no_run(store: str | Path) -> BadInputError:
    """The error of a command that needs a run, where there is none at ``store``: it names what is near."""
    said = f"there is no run in {store}"
    if is_url(store):
        return BadInputError(f"{said}: check the name of the bucket and of the run")
    place = Path(store).absolute()
    if place.is_file():
        return BadInputError(f"{said}: it is a file, and runs are kept in folders (`npmdask status FOLDER` lists runs)")
    if around := [folder for folder in place.parents if is_store(folder)]:
        return BadInputError(f"{said}: it is a part of the run {quote(str(around[0]))}, which is the one to name")
    if below := runs_near(place):
        names = " or ".join(quote(str(Path(store) / path.relative_to(place))) for path in below)
        return BadInputError(f"{said} itself, but there are runs below it: name one, like {names}")
    return BadInputError(
        f"{said}: check the name (`npmdask status FOLDER` lists runs), or begin one with `npmdask run SOURCE -k K "
        f"--store {quote(str(store))}`"
    )


def runs_near(folder: Path) -> list[Path]:
    """The first few runs at most two levels below a folder that is none."""
    locks = (lock for pattern in ("*/lock", "*/*/lock") for lock in sorted(folder.glob(pattern)))
    return list(islice((lock.parent for lock in locks if is_store(lock.parent)), NAMED))


def answer_of_job(held: RunStore, name: str) -> tuple[Arrays, dict[str, Any], dict[str, Any]]:
    """The arrays and facts of the answer ``name`` of a job of stages, with its parameters.

    Raises
    ------
    BadInputError
        There is none yet.
    """
    found, spec = held.read_part(name), held.read_spec()
    if found is None or spec is None:
        raise BadInputError(f"{held.place} holds no answer yet; `npmdask resume {held.place}` finishes the job")
    return *found, spec


def not_finished(store: str | Path) -> BadInputError:
    """The error of a command that needs a finished run, where there is none at ``store``."""
    spec = RunStore(store).read_spec()
    if spec is None:
        return no_run(store)
    place = quote(str(store))
    if spec["data"].get("kind") == "gram":
        return BadInputError(
            f"{store} is a stored Gram, which has no components yet: run it (`npmdask run {place} -k K --store RUN`), "
            "and name that run"
        )
    return BadInputError(f"{store} holds no finished run; `npmdask resume {place}` finishes it")
