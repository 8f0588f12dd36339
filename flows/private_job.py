"""``make private``: a scheduled private release of 4 GiB, three times, until the budget refuses the fourth."""

import argparse
import os
import shutil
import sys
from typing import Any

os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "INFO")  # one line for every run

from flows.main_job import ensure_data
from flows.private_release import release_on_schedule
from flows.run import exit_code, say
from flows.server import ROOT
from npmdask.accounting import Budget, epsilon_for, mu_for
from npmdask.config import load_config
from npmdask.errors import BudgetError
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.ledger.show import show_lines
from npmdask.storage.bundle import read_bundle

CONFIG = ROOT / "data" / "private-job.toml"
HOME = ROOT / "runs" / "private"
RELEASES = 3
EVERY = 20.0  # seconds: a day, for the impatient


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
    a = argparse.Namespace(every=EVERY, cron=None, timezone="UTC", port=None)
    try:
        release_on_schedule(a, config, "main")
    except BudgetError as error:
        say(str(error))
    return verdict(ledger)


def verdict(ledger: Any) -> int:
    """Say what was released and what the ledger holds; 0 if it was three releases and a refusal."""
    print("\n".join(show_lines(ledger, "main")))
    made = sorted(HOME.glob("main/*/result"))
    for folder in made:
        arrays, meta = read_bundle(folder)
        values = ", ".join(f"{v:.3g}" for v in arrays["values"][:5])
        print(
            f"{folder.parent.name}  {meta['outcome']['name']}  values {values}, ...  page {folder.parent}/report.html"
        )
    kept = len(made) == RELEASES and (HOME / "main" / "stopped").exists()
    print("kept" if kept else "NOT KEPT")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(exit_code(run))
