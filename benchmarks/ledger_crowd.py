"""Many processes reserve on one data set, some are killed and started again; then everything is counted again."""

from __future__ import annotations

import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.children import ROOT
from benchmarks.ledger_worker import DATASET, FINGERPRINT, RELATION, UNIT, cost
from npmdask.accounting import Budget, Charge, epsilon_for
from npmdask.errors import NpmdaskError
from npmdask.ledger import open_ledger
from npmdask.ledger.database import find_database

DELTA = 1e-8


@dataclass
class Crowd:
    """``processes`` x ``count`` reservations on the ledger ``address``; ``kills`` SIGKILLs in between.

    Until the first kill no process makes more than its part of the reservations, and so on: however long this process
    is kept waiting, there is work left to be killed in.
    """

    address: str
    folder: Path
    processes: int
    count: int
    kills: int
    seed: int = 0
    covered: float = 0.6  # share of what is asked for that the grant covers
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """What was counted; ``violations`` is a list of sentences, empty if all is well."""
        names = [(worker, number) for worker in range(self.processes) for number in range(self.count)]
        units = round(sum(cost(*name).mu_squared for name in names) / UNIT)
        covered = (int(self.covered * units) + 0.5) * UNIT  # between two sums, so that no rounding decides
        budget = Budget(epsilon_for(covered**0.5, DELTA), DELTA)
        open_ledger(self.address).grant(DATASET, fingerprint=FINGERPRINT, relation=RELATION, budget=budget)
        begun = time.monotonic()
        ended = self._let_them_work()
        seconds = time.monotonic() - begun
        lines = [json.loads(text) for worker in range(self.processes) for text in self._lines(worker)]
        waits = sorted(line["seconds"] for line in lines)
        return {
            "violations": ended + count_again(self.address, budget, lines, self.processes * self.count),
            "granted": sum(line["granted"] for line in lines),
            "refused": sum(not line["granted"] for line in lines),
            "kills": self.kills,
            "seconds": round(seconds, 1),
            "median_answer_ms": round(1000 * statistics.median(waits), 1),
            "slowest_answer_ms": round(1000 * waits[-1], 1),
        }

    def _let_them_work(self) -> list[str]:
        """Start, kill, start again, wait; sentences about those that ended in an error."""
        chance = random.Random(self.seed)
        self._allow(self.count // (self.kills + 1))
        try:
            for worker in range(self.processes):
                self._said(worker).touch()
                self._start(worker)
            for done in range(1, self.kills + 1):
                self._kill_one(chance)
                self._allow(self.count * (done + 1) // (self.kills + 1))
            for child in self._running.values():
                child.wait(600)
        finally:
            for child in self._running.values():
                child.kill()
                child.wait()
        codes = {worker: child.returncode for worker, child in self._running.items()}
        return [f"process {worker}: {self._error(worker)}" for worker, code in codes.items() if code]

    def _kill_one(self, chance: random.Random) -> None:
        """Somebody who has had an answer since it was started and is not through, at any moment of its work."""
        seen = {worker: len(self._lines(worker)) for worker in self._running}
        end = time.monotonic() + 240
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.02, 0.1))
            busy = [w for w in self._running if seen[w] < len(self._lines(w)) < self.count]
            if busy:
                worker = chance.choice(busy)
                time.sleep(chance.uniform(0, 0.01))
                self._running[worker].send_signal(signal.SIGKILL)
                self._running[worker].wait()
                self._start(worker)
                return
            if all(child.poll() is not None for child in self._running.values()):
                break
        raise NpmdaskError("no process has answered since the kill before: see what they said, in the files *.err")

    def _start(self, worker: int) -> None:
        asked = {"ledger": self.address, "worker": worker, "count": self.count, "said": str(self._said(worker))}
        asked |= {"allowed": str(self._allowed)}
        command = [sys.executable, "-m", "benchmarks.ledger_worker", json.dumps(asked)]
        with open(self.folder / f"{worker}.err", "ab") as err:
            self._running[worker] = subprocess.Popen(command, cwd=ROOT, stderr=err, stdin=subprocess.DEVNULL)

    def _allow(self, count: int) -> None:
        """Let every process make so many reservations."""
        aside = self._allowed.with_suffix(".new")
        aside.write_text(str(count))
        aside.replace(self._allowed)

    @property
    def _allowed(self) -> Path:
        return self.folder / "allowed"

    def _said(self, worker: int) -> Path:
        return self.folder / f"{worker}.jsonl"

    def _lines(self, worker: int) -> list[str]:
        return self._said(worker).read_text().rpartition("\n")[0].splitlines()

    def _error(self, worker: int) -> str:
        return ((self.folder / f"{worker}.err").read_text().strip().splitlines() or ["said nothing"])[-1]


def count_again(address: str, budget: Budget, lines: list[dict[str, Any]], asked: int) -> list[str]:
    """Compare what the processes were told with what is in the tables, read past the ledger's own code."""
    with find_database(address).engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT run_id FROM npmdask_ledger_entries WHERE kind = 'reserve'")).all()
    held = Counter(str(row.run_id) for row in rows)
    told = {line["run_id"]: line["granted"] for line in lines}
    spent = sum(_cost(run_id) * times for run_id, times in held.items())
    found = [f"{run_id} is there {times} times" for run_id, times in held.items() if times > 1]
    found += [f"{run_id} was acknowledged and is lost" for run_id, yes in told.items() if yes and run_id not in held]
    found += [f"{run_id} was refused and is there" for run_id, yes in told.items() if not yes and run_id in held]
    if len(told) != asked or len(lines) != asked:
        found.append(f"{asked} were asked for, {len(lines)} answered")
    if not Charge(mu_squared=spent).within(budget):
        found.append(f"mu^2 = {spent} was spent, more than {budget}")
    for run_id, yes in told.items():
        if not yes and Charge(mu_squared=spent + _cost(run_id)).within(budget):
            found.append(f"{run_id} was refused and fits")
    return found + _book_faults(address)


def _cost(run_id: str) -> float:
    worker, number = map(int, run_id.split("-"))
    return cost(worker, number).mu_squared


def _book_faults(address: str) -> list[str]:
    try:
        open_ledger(address).entries()
    except NpmdaskError as error:
        return [str(error)]
    return []
