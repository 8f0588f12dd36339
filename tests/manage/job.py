"""A job that stops itself (SIGSTOP, as one that hangs) at a place: :func:`hang`.

``where`` and ``number``: "pass" (inside of the n-th pass), "written" (the n-th bundle lies aside, and is not
published yet) or "publishing" (in the middle of publishing the n-th one).
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from npmdask import resume, top_k
from npmdask.core.checkpoint.lease import Ownership
from npmdask.core.execution.threads import Threads
from npmdask.core.storage import bundle
from npmdask.errors import NpmdaskError
from npmdask.latent.fit import fit_mixture
from npmdask.streaming import stream_pca


def run(folder: Path, store: Path, **more: Any) -> None:
    """A run of a dozen steps."""
    top_k(folder / "x.zarr", 3, iteration_rank=8, algorithm="power", tol=1e-3, store=store, commit_seconds=0, **more)


def stream(folder: Path, store: Path) -> None:
    """A stream that commits every batch."""
    stream_pca(folder / "x.zarr", 3, batch_rows=100, commit_seconds=0, store=store)


def mixture(folder: Path, store: Path) -> None:
    """A job of stages, with stores of their own."""
    fit_mixture(folder / "x.zarr", 2, store=store)


def private(folder: Path, store: Path) -> None:
    """A private run that was prepared: it has its key."""
    resume(store)


KINDS = {"run": run, "stream": stream, "mixture": mixture, "private": private}


def stop() -> None:
    """As long as nobody sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_in_pass(number: int) -> None:
    real, passes = Threads.run_pass, 0

    def run_pass(self: Any, operator: Any, block: Any, on_task: Any, keeper: Any = None) -> Any:
        nonlocal passes
        passes += 1
        place = passes

        def told(record: Any) -> None:
            if place == number:
                stop()
            on_task(record)

        return real(self, operator, block, told, keeper)

    Threads.run_pass = run_pass  # type: ignore[method-assign]


def stop_before_publishing(number: int) -> None:
    real, bundles = Ownership.publishing, 0

    @contextmanager
    def publishing(self: Ownership) -> Any:
        nonlocal bundles
        if any(self.folder.rglob(".writing-*")):
            bundles += 1
            if bundles == number:
                stop()
        with real(self):
            yield

    Ownership.publishing = publishing  # type: ignore[method-assign]


def stop_while_publishing(number: int) -> None:
    real, bundles = bundle.fsync_folder, 0

    def fsync_folder(path: Path) -> None:
        nonlocal bundles
        if path.name == "steps":
            bundles += 1
            if bundles == number:
                stop()
        real(path)

    bundle.fsync_folder = fsync_folder


STOPS = {"pass": stop_in_pass, "written": stop_before_publishing, "publishing": stop_while_publishing}


def hang(environment: dict[str, str], errors: Path, kind: str, folder: Path, where: str, number: str) -> None:
    """Do the job of ``kind``, writing to ``errors`` what goes to stderr, and stop on the way."""
    os.environ.update(environment)
    os.dup2(os.open(errors, os.O_WRONLY), 2)
    STOPS[where](int(number))
    try:
        KINDS[kind](folder, folder / "run")
    except NpmdaskError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
