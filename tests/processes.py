"""Processes that are killed or stopped, forked from one that has imported npmdask: that takes longer than most jobs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.two_fields.coupled_job", "tests.faults.job", "tests.manage.job"])


def started(job: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """A process that does the job."""
    process = _context.Process(target=job, args=arguments, daemon=True)
    process.start()
    return process


def exit_status(job: Callable[..., Any], *arguments: Any) -> int | None:
    """Of a process that did the job: the negative number of a signal that ended it."""
    process = started(job, *arguments)
    process.join()
    return process.exitcode
