"""A run whose store is a URL: it works in a local copy, and every commit is carried to the object store.

::

    URL/commit.json                     who writes (epoch, token, process), and the files of the last commit
    URL/files/000003-1f..-000017/...    the files that commit 17 of epoch 3 was the first to have

Files are written first, each under a name of its own, and never again; then the one object ``commit.json`` is replaced,
on condition that it is still what this process wrote last. So a reader sees whole commits only, and a process that was
taken for dead cannot change anything. Files that are in no commit any more go one commit later (docs/decisions/0031).
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from npmdask.checkpoint.remote.mirror import AT_ONCE, TRIES, ChangedError, Fetcher, LocalCopy, send_files
from npmdask.checkpoint.remote.objects import FILES, POINTER, ObjectError, Pointer, Version
from npmdask.errors import HeldError, NpmdaskError, RefusedError

TRIALS = "trials"  # objects that conditions are tried out on
BEAT = 15.0  # seconds between two signs of life
SILENCE = 60.0  # seconds without one, by the server's clock: dead


class CommitPublisher(Fetcher):
    """Between the local copy of a run and the object store. ``claim`` before anything is carried, ``close`` at last."""

    def __init__(self, copy: LocalCopy) -> None:
        super().__init__(copy)
        self._mine: Pointer | None = None
        self._version: Version | None = None
        self._turn = threading.Lock()  # of the two threads that write the pointer
        self._over = threading.Event()
        self._ready = self._fenced = False
        self._tried = 0  # commits of this epoch
        self._gone: set[str] = set()  # objects that the last commit has and this one does not
        self._workers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="carrier")

    def claim(self) -> None:
        """Become the only one who writes, and have what the object store has in the local folder.

        Raises
        ------
        HeldError
            Another process has the run, and was heard of in the last SILENCE seconds.
        RefusedError
            The object store does not honour conditions; the run was there and is gone.
        BadInputError, LostError
            As ``refresh``.
        """
        token = secrets.token_hex(4)
        self._workers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="carrier")
        self._over, self._ready, self._fenced = threading.Event(), False, False
        self._tried, self._gone = 0, set()
        with self._in_sentences(), self.copy.alone():
            kept, now = self._objects.now(f"{TRIALS}/{token}")
            if not kept:
                raise RefusedError(
                    f"the server of {self.url} ignores conditional writes (If-None-Match, If-Match), so two "
                    "processes could write to one run: use a server that honours them (infra/README.md names some), "
                    "or a folder"
                )
            before = self._take(token, now)
            threading.Thread(target=self._beat, args=(self._over,), name="carrier", daemon=True).start()
            try:
                if before.commit:
                    self._bring(before)
                self._write_note(before, token)
                self._forget_strays(before.epoch + 1)
                self._delete(set(self._objects.keys(TRIALS, before=now - timedelta(hours=1))))
            except BaseException:
                self._let_go()
                raise
            self._ready = True

    def _take(self, token: str, now: datetime) -> Pointer:
        """Put this process into the pointer; what it said before."""
        for _ in range(TRIES):
            found = self._read()
            before, version = (found[0], found[1]) if found else (Pointer(), None)
            if found:
                self._require_free(before, (now - found[2]).total_seconds())
            if not before.commit:
                self._require_never_carried()
            named = replace(before, token=token, holder=_myself(), owner=os.environ.get("NPMDASK_OWNER", ""))
            with suppress(ChangedError):
                self._point(replace(named, epoch=before.epoch + 1, held=True, beats=0, number=0), version)
                return before
        raise HeldError(f"run {self.url} is being taken over by another process; try again")

    def _require_free(self, found: Pointer, silent: float) -> None:
        """A holder that had this very copy is dead: its lock on the copy is ours."""
        if not found.held or found.token == self.copy.note()["token"] or silent >= SILENCE:
            return
        raise HeldError(
            f"run {self.url} is held by {found.holder}, last heard of {max(silent, 0.0):.0f} s ago; wait for it, or "
            f"stop it first (if its machine is gone: try again when it has been silent for {SILENCE:.0f} s)",
            found.owner,
        )

    def carry(self) -> None:
        """Commit what lies in the local folder, as one.

        Raises
        ------
        FencedOutError
            Another process took the run over; nothing of this was committed.
        CommitError
            The object store refuses (rights, room); the local copy has it all.
        LostError
            It does not answer; the local copy has it all.
        """
        with self._in_sentences(committing=True):
            before = self._require_mine()
            self._tried += 1
            try:
                commit = before.commit_name(self._tried)
                files, signatures = send_files(
                    self._workers, self.copy, self._objects, before, self._signatures, commit
                )
                if files == before.files:
                    return
                with self._turn:
                    after = self._require_mine().after(self._tried, files)
                    self._point(after, self._version)
            except (ObjectError, ChangedError) as error:
                self._ready, self._fenced = False, isinstance(error, ChangedError)
                raise
            self._ready, self._signatures = True, signatures
            self._write_note(after, after.token)
            # One commit late: another process may be reading. This one does not wait.
            self._workers.submit(self._delete, self._gone)
            self._gone = before.keys - after.keys

    def _delete(self, keys: set[str]) -> None:
        with suppress(ObjectError):  # the next owner of the run clears them away
            self._objects.delete(sorted(keys))

    def _require_mine(self) -> Pointer:
        if self._mine is None or self._fenced:
            raise ChangedError
        return self._mine

    def _point(self, pointer: Pointer, before: Version | None) -> None:
        """Replace the pointer. Raises ChangedError where it is another's."""
        data = pointer.encode()
        for _ in range(TRIES):
            try:
                before = self._objects.replace(POINTER, data, before)
                break
            except ObjectError as error:
                if error.kind != "changed":
                    raise
            found = self._read()  # an answer may have been lost on its way to us, and the request been sent again
            if found is None or found[0].token != pointer.token:
                raise ChangedError
            before = found[1]
            if found[0] == pointer:
                break
        else:
            raise ObjectError("lost", "it contradicts itself")
        self._mine, self._version = pointer, before

    def _beat(self, over: threading.Event) -> None:
        """Signs of life, until the run is closed or another's."""
        while not over.wait(BEAT):
            with self._turn:
                if over.is_set() or self._mine is None:
                    return
                try:
                    self._point(replace(self._mine, beats=self._mine.beats + 1), self._version)
                except ChangedError:
                    self._fenced = True
                    return
                except (ObjectError, NpmdaskError):
                    continue  # the next commit says so, unless it is over by then

    def close(self) -> None:
        """Carry what is left to tell, and let others have the run. Where the last request failed they have to wait, and
        nothing is carried of a folder that is not known to be whole.
        """
        if self._ready:
            with suppress(NpmdaskError):
                self.carry()
        self._workers.shutdown()
        if self._ready:
            with suppress(ObjectError, ChangedError):  # also what a server did not take away when it was asked to
                self._forget_strays(self._require_mine().epoch + 1)
            self._let_go()
        self._over.set()
        self._mine, self._ready = None, False

    def abandon(self) -> None:
        """Write nothing more: another process has the local copy now, and the run with it."""
        self._ready = False
        self.close()

    def _let_go(self) -> None:
        self._over.set()
        with self._turn, suppress(ObjectError, NpmdaskError, ChangedError):
            if self._mine is not None:
                self._point(replace(self._mine, held=False, beats=self._mine.beats + 1), self._version)
        self._mine = None

    def _forget_strays(self, epoch: int) -> None:
        """Delete what epochs before this one left and no commit has: what a killed or fenced process was about to
        commit, what a server did not take away at once. Not of later ones: if we hang, another has the run by then.
        """
        kept, end = self._require_mine().keys, f"{FILES}/{epoch:06d}-"
        self._delete({key for key in self._objects.keys(FILES) if key < end and key not in kept})


def _myself() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
