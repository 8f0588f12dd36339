"""Print the messages of these programs on the terminal, and return their exit codes; no Prefect in here."""

import signal
import sys
from collections.abc import Callable

from httpx import HTTPError

from npmdask.checkpoint.logging import tell
from npmdask.cli.main import INTERRUPTED, end_when_asked
from npmdask.errors import NpmdaskError
from npmdask.runs.progress import stop_bars


def exit_code(run: Callable[[], int]) -> int:
    """What ``run`` returns, or the code of the error that it raised: the same codes as ``npmdask``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` leaves it ignored
    end_when_asked()
    try:
        try:
            return run()
        finally:
            stop_bars()
    except NpmdaskError as error:
        say(str(error))
        return error.exit_code
    except HTTPError as error:
        say(f"the Prefect server is gone ({error}); everything committed is kept; run the same command again")
        return INTERRUPTED
    except KeyboardInterrupt:
        say("interrupted, everything committed is kept; run the same command again to go on")
        return INTERRUPTED


def say(sentence: str) -> None:
    """A line for the person, apart from the output."""
    print(f"npmdask: {sentence}", file=sys.stderr, flush=True)


def announce(sentence: str) -> None:
    """The same, of something that runs for long; and a line of the log."""
    say(sentence)
    tell("service", sentence)
