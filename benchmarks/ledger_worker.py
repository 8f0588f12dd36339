"""One process of the crowd on a ledger: ``python -m benchmarks.ledger_worker JSON``; it may be killed at any time.

It reserves run after run and writes a line to its own file only after the ledger has answered. Started again, it goes
on behind its last line: the run that it was killed in is asked for again, under the same name.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from npmdask.accounting import Charge
from npmdask.errors import BudgetError
from npmdask.ledger import Ledger, open_ledger

DATASET, FINGERPRINT = "crowded", "f" * 64
RELATION = {"name": "record_replace", "clip_norm": 1.0}
UNIT = 2.0**-12  # of mu squared: sums of it are exact


def cost(worker: int, number: int) -> Charge:
    """Small and large runs in turn, so that something still fits when the large ones do not."""
    return Charge(mu_squared=UNIT * (1 + (7 * worker + 5 * number) % 9))


def work(ledger: Ledger, worker: int, count: int, said: Path, allowed: Path) -> None:
    """Reserve the runs that have no line yet, each when the file ``allowed`` holds a larger number."""
    most = 0
    with open(said, "a") as file:
        for number in range(_answered(said), count):
            while number >= most and number >= (most := int(allowed.read_text())):
                time.sleep(0.002)
            begun = time.monotonic()
            line = _ask(ledger, worker, number) | {"seconds": time.monotonic() - begun}
            file.write(json.dumps(line) + "\n")
            file.flush()


def _answered(said: Path) -> int:
    """Whole lines; one that a kill cut is taken away."""
    whole = said.read_bytes().rpartition(b"\n")
    said.write_bytes(whole[0] + whole[1])
    return whole[0].count(b"\n") + bool(whole[1])


def _ask(ledger: Ledger, worker: int, number: int) -> dict[str, Any]:
    run_id, charge = f"{worker}-{number}", cost(worker, number)
    try:
        ledger.reserve(
            DATASET, run_id=run_id, fingerprint=FINGERPRINT, relation=RELATION, charge=charge, releases=1, event={}
        )
    except BudgetError as error:
        return {"run_id": run_id, "granted": False, "why": str(error)}
    if number % 4 == 0:  # a run that goes through: what it spent must not come back
        ledger.begin(run_id, 1)
        ledger.commit(run_id, 1, "d" * 64)
        ledger.finish(run_id)
    return {"run_id": run_id, "granted": True}


def main(argument: str) -> None:
    asked = json.loads(argument)
    work(open_ledger(asked["ledger"]), asked["worker"], asked["count"], Path(asked["said"]), Path(asked["allowed"]))


if __name__ == "__main__":
    main(sys.argv[1])
