"""The run at a URL, brought down into its local copy; and what to say where that cannot be done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime

from npmdask.checkpoint.remote.manifest import POINTER, Pointer
from npmdask.checkpoint.remote.mirror import NOTE, SCHEMES, Copy
from npmdask.checkpoint.remote.objects import ObjectError, Objects, Version
from npmdask.checkpoint.remote.transfer import Signatures, fetch_files
from npmdask.errors import BadInputError, CommitError, FencedOutError, LostError, NpmdaskError, RefusedError

TRIES = 5


class ChangedError(Exception):
    """The pointer is not what this process wrote last."""


class Bringer:
    """Fills the local copy of a run from the object store."""

    def __init__(self, copy: Copy) -> None:
        self.copy, self.url = copy, copy.url
        with self._in_sentences():
            self._objects = Objects(self.url)
        self._signatures: Signatures = {}  # of the files of the commit that is here

    def refresh(self) -> None:
        """Make the local copy what the object store has, unless a process of this machine is at work on it.

        Raises
        ------
        BadInputError
            No such bucket, no access, or what is there is damaged.
        RefusedError
            The run was there and is gone.
        LostError
            The object store does not answer.
        """
        with self._in_sentences():
            found = self._read()
            if found is None or not found[0].commit:
                self._require_never_carried()
            elif not self._has(found[0]):
                with self.copy.alone():
                    if not self.copy.is_at_work():
                        self._bring(found[0])

    def _read(self) -> tuple[Pointer, Version, datetime] | None:
        found = self._objects.read(POINTER)
        return None if found is None else (Pointer.decode(found[0], self.url), *found[1:])

    def _require_never_carried(self) -> None:
        if self.copy.note()["commit"]:
            raise RefusedError(
                f"there is no run at {self.url} any more, but its local copy, {self.copy.folder}, is here: to begin "
                f"anew delete {self.copy.home}; to go on from the copy delete only {self.copy.home / NOTE}"
            )

    def _bring(self, pointer: Pointer) -> None:
        """The files of a commit into the local folder, unless that has them, or is further."""
        for attempt in range(TRIES):
            note = self.copy.note()
            if self._has(pointer):
                self._signatures = note["files"]
                return
            self.copy.write_note(commit=None, token=note["token"], files={})  # a kill from here on: all is compared
            try:
                self._signatures = fetch_files(self.copy, self._objects, pointer)
            except ObjectError as error:  # a commit may have been made meanwhile, and what it replaced be gone
                found = self._read() if error.kind == "missing" and attempt + 1 < TRIES else None
                if found is None or found[0].commit == pointer.commit:
                    raise
                pointer = found[0]
                continue
            self._write_note(pointer, note["token"])
            return

    def _has(self, pointer: Pointer) -> bool:
        """Whether a commit is here, or what comes after it; not so where files were taken away."""
        here = self.copy.files()
        whole = "run.json" in here or "run.json" not in pointer.files
        return whole and self.copy.note()["commit"] == pointer.commit and _last_step(here) >= _last_step(pointer.files)

    def _write_note(self, pointer: Pointer, token: str) -> None:
        files = {path: self._signatures.get(path) for path in pointer.files}
        self.copy.write_note(commit=pointer.commit or None, token=token, files=files)

    @contextmanager
    def _in_sentences(self, *, committing: bool = False) -> Iterator[None]:
        try:
            yield
        except ChangedError:
            raise FencedOutError(
                f"run {self.url} was taken over by another process; this one wrote nothing since"
            ) from None
        except ObjectError as error:
            raise _said(error, self.copy, committing) from None


def _last_step(files: Iterable[str]) -> int:
    """The highest number of a step; -1: there is none."""
    steps = (path.split("/")[1] for path in files if path.startswith("steps/"))
    return max((int(name.partition(".")[0]) for name in steps), default=-1)


def _said(error: ObjectError, copy: Copy, committing: bool) -> NpmdaskError:
    if error.kind in ("lost", "changed"):
        return LostError(
            f"{copy.url} does not answer ({error}): check the network and AWS_ENDPOINT_URL, then go on with the same "
            "command or with resume; everything committed is kept"
        )
    if committing:
        return CommitError(
            f"cannot write to {copy.url} ({error}). What was committed before is intact, and {copy.folder} has all "
            "that was done since: see to rights and room, and resume"
        )
    return BadInputError(
        f"{copy.url} cannot be used as store ({error}): check that the bucket is there, the credentials in the "
        "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and, for an S3-compatible server, AWS_ENDPOINT_URL"
    )


def holds_run(url: str) -> bool:
    """Whether there is a run at a URL, as far as can be told."""
    try:
        return url.partition("://")[0] in SCHEMES and Objects(url).read(POINTER) is not None
    except ObjectError:
        return False
