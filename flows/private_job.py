"""``make private``: a scheduled private release of 4 GiB, three times, until the budget refuses the fourth."""

import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from flows.main_job import ensure_data
from npmdask.accounting import Budget, epsilon_for, mu_for
from npmdask.config import load_config
from npmdask.core.storage.bundle import read_bundle
from npmdask.ledger import open_ledger
from npmdask.ledger.format import show_lines
from npmdask.ledger.granting import grant_source
from npmdask.prefect.processes import Supervisor
from npmdask.prefect.programs import exit_code, say
from npmdask.prefect.serve import services
from npmdask.prefect.server import ROOT, ask, free_port

CONFIG = ROOT / "data" / "private-job.toml"
SCHEDULES = ROOT / "data" / "private-schedules.toml"
HOME = ROOT / "runs" / "private"
RELEASES = 3


def run() -> int:
    """Data, grant for three releases, schedule, verdict."""
    ensure_data(ROOT / "data" / "generated" / "main.zarr")
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    config = load_config(CONFIG)
    assert config.privacy is not None and config.privacy.ledger is not None
    ledger, asked = open_ledger(config.privacy.ledger), config.privacy
    enough = epsilon_for(RELEASES**0.5 * mu_for(asked.epsilon, asked.delta), asked.delta) * (1 + 1e-6)
    grant_source(
        ledger,
        str(asked.dataset),
        config.source.path,
        relation=str(asked.neighboring_relation),
        clip_norm=float(asked.clip_norm or 0),
        change=asked.change,
        budget=Budget(enough, asked.delta),
    )
    port = free_port()
    all_of_them = services(HOME / ".serve", port, SCHEDULES, HOME, free_port())
    with Supervisor(HOME / ".serve", all_of_them, say) as supervisor:
        say(f"Prefect at http://127.0.0.1:{port}, until a release is refused")
        refused: list[str] = []
        supervisor.watch(_is_refused(port, refused))
    say(f"red, as it is every time from now on: {refused[0]}")
    return verdict(ledger, refused[0])


def _is_refused(port: int, refused: list[str]) -> Callable[[], bool]:
    """Whether a release of the schedule has failed from now on; ``refused`` gets its sentence."""
    since = datetime.now(UTC).isoformat()
    wanted = {"state": {"type": {"any_": ["FAILED"]}}, "start_time": {"after_": since}}

    def look() -> bool:
        query = {"flow_runs": wanted, "deployments": {"name": {"any_": ["main"]}}}
        with suppress(OSError):  # it does not answer
            found = ask(f"http://127.0.0.1:{port}/api", "/flow_runs/filter", query)
            refused.extend(run["state"]["message"] for run in found)
        return bool(refused)

    return look


def verdict(ledger: Any, refused: str) -> int:
    """Say what was released and what the ledger holds; 0 if it was three releases and a refusal."""
    print("\n".join(show_lines(ledger, "main")))
    made = sorted(HOME.glob("main/*/result"))
    for folder in made:
        arrays, meta = read_bundle(folder)
        values = ", ".join(f"{v:.3g}" for v in arrays["values"][:5])
        print(
            f"{folder.parent.name}  {meta['outcome']['name']}  values {values}, ...  page {folder.parent}/report.html"
        )
    kept = len(made) == RELEASES and "does not suffice" in refused
    print("kept" if kept else "NOT KEPT")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(exit_code(run))
