"""Settings of the embedded Prefect: its files in the project's folder, nothing sent anywhere, little said.

All of them are defaults: whatever the environment says already stays, so a real server keeps its settings.
"""

import os
from contextlib import suppress
from pathlib import Path

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


def apply() -> None:
    """Set what is not set. Prefect reads its settings when it is imported: call this before."""
    if "PREFECT_HOME" not in os.environ:
        home = Path("runs", ".prefect").absolute()
        os.environ["PREFECT_HOME"] = str(home)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)  # parameters and logs of all runs: of nobody else
        with suppress(OSError):  # another's: Prefect says what it cannot do there
            home.chmod(0o700)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
