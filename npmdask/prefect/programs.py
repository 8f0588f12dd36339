"""Common parts of our own programs: settings of the Prefect that they start, messages on the terminal, exit codes.

``npmdask serve``, the keeper, the server and the scripts of ``flows/`` apply the settings before they import prefect
(its files in the working folder, nothing sent, little said); nothing in here imports it. To import ``npmdask.prefect``
does not apply them: in a program of yours Prefect keeps the profile, server and settings that you chose.

All of them are defaults: whatever the environment says already stays, so a real server keeps its settings.
"""

import os
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from httpx import HTTPError

from npmdask.cli.main import INTERRUPTED, end_when_asked
from npmdask.core.checkpoint.logging import tell
from npmdask.core.runs.progress import stop_bars
from npmdask.core.storage.paths import open_plain, private
from npmdask.errors import NpmdaskError, RefusedError, warnings_to

POOL = "npmdask"  # the work pool of schedules
BELOW = "NPMDASK_REPORTS_BELOW"  # the folder whose runs are served: reports, and how schedules ended
FOLDER = "NPMDASK_FOLDER"  # where relative paths of a scheduled run start
AUTH = "auth"  # file in PREFECT_HOME with the auth string of servers that are started here
AUTH_VARIABLES = ("PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING")  # which count before it
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # 20 by default, and 18 were measured
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the terminal has our own lines; the UI gets all
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",  # what a server answers whose database is away for a moment
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",  # the run store is the memory, not pickles in PREFECT_HOME
}


def apply_settings() -> None:
    """Set what is not set. Prefect reads its settings when it is imported: call this before."""
    if "PREFECT_HOME" not in os.environ:
        home = home_folder()
        os.environ["PREFECT_HOME"] = str(home)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)  # parameters and logs of all runs: of this user alone
        with suppress(OSError):  # another's: Prefect says what it cannot do there
            home.chmod(0o700)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if urlsplit(os.environ.get("PREFECT_API_URL", "")).hostname in LOOPBACK and not os.environ.get("PREFECT_API_KEY"):
        with suppress(OSError, NpmdaskError):  # a server that was started elsewhere says itself what it asks for
            os.environ.setdefault("PREFECT_API_AUTH_STRING", read_auth_string(auth_file()))


def home_folder() -> Path:
    """Return the folder of our Prefect's files: PREFECT_HOME, or ``runs/.prefect`` of the working folder."""
    return Path(os.environ.get("PREFECT_HOME") or Path("runs", ".prefect").absolute())


def auth_file() -> Path:
    """Return the file of the auth string, which the environment may hold instead."""
    return home_folder() / AUTH


def auth_string() -> str:
    """Return the auth string (``user:password``) of a server that is started here; a random one is made at first.

    Raises
    ------
    RefusedError
        Others can read the file, or it is empty.
    """
    for name in AUTH_VARIABLES:
        if told := os.environ.get(name):
            return told
    file = auth_file()
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = file.with_name(f"{AUTH}.{secrets.token_hex(8)}")
        with open(made, "x", opener=private) as out:
            out.write(f"npmdask:{secrets.token_hex(20)}\n")
        with suppress(FileExistsError):  # of two that start at once the first one's counts
            os.link(made, file)
        made.unlink()
    return read_auth_string(file)


def read_auth_string(file: Path) -> str:
    """Return what such a file holds. Raises RefusedError where others can read it, or it is empty."""
    with open(file, opener=open_plain) as there:
        if os.fstat(there.fileno()).st_mode & 0o077:
            raise RefusedError(
                f"{file} can be read by other users, who could run code with it: delete it, and a new one is created"
            )
        found = there.read().strip()
    if not found:
        raise RefusedError(f"{file} is empty: delete it, and a new one is created")
    return found


def exit_code(run: Callable[[], int]) -> int:
    """Return what ``run`` returns, or the code of the error that it raised: the same codes as ``npmdask``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` leaves it ignored
    end_when_asked()
    try:
        try:
            with warnings_to(lambda said: say(f"warning: {said}")):
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


def counted(number: int, noun: str) -> str:
    """Say how many there are.

    Examples
    --------
    >>> counted(0, "schedule"), counted(1, "run")
    ('0 schedules', '1 run')
    """
    return f"{number} {noun}{'s'[: number != 1]}"


def say(sentence: str) -> None:
    """A line for the person, apart from the output."""
    print(f"npmdask: {sentence}", file=sys.stderr, flush=True)


def announce(sentence: str) -> None:
    """The same, of something that runs for long; and a line of the log."""
    say(sentence)
    tell("service", sentence)
