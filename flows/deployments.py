"""A schedule that fires on an otherwise empty machine: ``python flows/deployments.py CONFIG.toml --every 3600``.

Starts a Prefect server (unless PREFECT_API_URL names one) and serves the npm flow until it is stopped. Every
tick has the same run id: an unfinished run goes on, a finished one returns its answer without a pass.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a script: Python put flows/ on the path, not the folder above it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "INFO")  # one line for every run

from prefect.runner import Runner
from prefect.schedules import Cron, Interval

from flows.doors import add_arguments, add_schedule, load
from flows.npm import npm
from flows.run import exit_code, say
from flows.server import local_server, python_path
from npmdask.errors import BadInputError


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    add_schedule(parser, required=True)
    a = parser.parse_args(argv)
    return exit_code(lambda: _serve(a))


def _serve(a: argparse.Namespace) -> int:
    config, run_id = load(a)
    serve(a, npm, run_id, {"config": config.model_dump(mode="json"), "run_id": run_id})
    return 0


def serve(
    a: argparse.Namespace, flow: Any, run_id: str, parameters: dict[str, Any], over: Callable[[], bool] | None = None
) -> None:
    """Run ``flow`` by the schedule in ``a`` until a signal comes, or until ``over`` (asked every second) says so."""
    if a.every is not None and not 0 < a.every < inf:
        raise BadInputError(f"the schedule cannot be: --every {a.every:g} is not a time between two runs, in seconds")
    try:
        schedule = Cron(a.cron, timezone=a.timezone) if a.cron else Interval(a.every)
    except ValueError as error:
        raise BadInputError(f"the schedule cannot be: {error}") from error
    os.environ["PYTHONPATH"] = python_path()  # of the processes of the runs
    with local_server(a.port) as url:
        # One run at a time: a tick that comes too early waits, it does not fail on the lock of the run.
        runner = Runner(name=run_id, limit=1)
        runner.add_flow(flow, name=run_id, schedule=schedule, parameters=parameters)
        when = f"at {a.cron} ({a.timezone})" if a.cron else f"every {a.every:g} s"
        say(f"Prefect at {url.removesuffix('/api')}; {run_id} runs {when}; Ctrl-C stops both")
        asyncio.run(_until_told(runner, over))


async def _until_told(runner: Runner, over: Callable[[], bool] | None) -> None:
    """Serve until a signal; then stop the run that is still there, while there is a server that it can tell.

    Prefect's own handlers do not: SIGTERM leaves the run behind without its server, SIGINT waits for its end.
    """
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, told.set)
    runner.handle_sigterm = lambda *_: loop.call_soon_threadsafe(told.set)  # type: ignore
    serving, waiting = asyncio.create_task(runner.start()), asyncio.create_task(_told_or_over(told, over))
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not serving.done():
        say("stopping; everything committed is kept, the next tick goes on")
        await runner.astop()
    await serving


async def _told_or_over(told: asyncio.Event, over: Callable[[], bool] | None) -> None:
    while not (told.is_set() or (over is not None and over())):
        with suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), 1.0)


if __name__ == "__main__":
    sys.exit(main())
