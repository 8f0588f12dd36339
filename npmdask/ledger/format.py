"""The ledger as lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import npmdask.ledger.messages as text
from npmdask.errors import RefusedError
from npmdask.ledger.journal import GENESIS, LedgerEntry, canonical
from npmdask.ledger.ledger import Ledger, Run, Status, relation_unit


def facts(ledger: Ledger, dataset: str | None = None) -> dict[str, Any]:
    """Return the content of ``show`` as one JSON object; the whole book is verified first."""
    entries = ledger.entries()
    statuses = ledger.statuses() if dataset is None else [ledger.status(dataset)]
    return {
        "ledger": ledger.where,
        "entries": len(entries),
        "head": entries[-1].hash if entries else None,
        "datasets": [_status_facts(status) for status in statuses],
    }


def _status_facts(status: Status) -> dict[str, Any]:
    return {
        "dataset": status.dataset,
        "relation": relation_unit(status.grant.relation),
        "granted": status.grant.content()["budget"],
        "spent": status.spent.as_dict(),
        "spent_epsilon": status.spent_epsilon,
        "left_epsilon": status.left_epsilon,
        "runs": [_run_facts(run, status) for run in status.runs],
    }


def _run_facts(run: Run, status: Status) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "epsilon": run.charge.epsilon_at(status.grant.budget.delta),
        "charge": run.charge.as_dict(),
        "releases": run.releases,
        "begun": len(run.begun),
        "committed": len(run.committed),
        "finished": run.finished,
        "reserved": dict(run.witness),
    }


def show_lines(ledger: Ledger, dataset: str | None = None) -> list[str]:
    """For the terminal."""
    said = facts(ledger, dataset)
    statuses = ledger.statuses() if dataset is None else [ledger.status(dataset)]
    head = f", the last is {said['head'][:16]}" if said["head"] else ""
    count = said["entries"]
    lines = [f"{ledger.where}: {count} {'entry' if count == 1 else 'entries'}, chain intact{head}"]
    for status in statuses:
        lines += ["", *status_lines(status)]
    return lines


def status_lines(status: Status) -> list[str]:
    """One account."""
    budget = status.grant.budget
    return [
        f"{status.dataset}: {text.relation_words(relation_unit(status.grant.relation))}",
        f"  granted  {text.amount(budget)}",
        f"  spent    {text.cost(status.spent, budget)}, by {len(status.runs)} run{'s' * (len(status.runs) != 1)}",
        f"  left     {text.left(status.askable_epsilon)} for one more run",
        *(_run_line(run, status) for run in status.runs),
    ]


def _run_line(run: Run, status: Status) -> str:
    state = "finished" if run.finished else "running or abandoned (stays spent)"
    by = f"{run.witness['time']}, process {run.witness['pid']} on {run.witness['host']}"
    return (
        f"  run {run.run_id}: {text.cost(run.charge, status.grant.budget)}, {len(run.committed)} of {run.releases} "
        f"releases committed, {state}; reserved {by}"
    )


# The book as JSON lines, for a reviewer: everything that the chain is made of, and nothing that is secret.
#
# An export is a prefix of every later one, byte for byte, so that one that was kept elsewhere shows whether anything
# before it was changed since, by whomever. Fingerprints, clock, process and host are not in it (see ``chain``).


def export_lines(ledger: Ledger) -> Iterator[str]:
    """One line of JSON an entry, oldest first; the book is verified before the first."""
    for entry in ledger.entries():
        yield canonical({name: value for name, value in vars(entry).items() if name != "witness"})


def require_whole_export(lines: Iterable[str], name: str | Path = "the export") -> int:
    """Check the chain of an export without its ledger; returns the number of entries.

    Raises
    ------
    RefusedError
        A line was changed, removed from the middle, or put in.
    """
    number, previous = 0, GENESIS
    for line in lines:
        try:
            entry = LedgerEntry(witness={}, **json.loads(line))
            whole = (entry.number, entry.previous, entry.computed_hash()) == (number + 1, previous, entry.hash)
        except (ValueError, TypeError):
            whole = False
        if not whole:
            raise RefusedError(text.damaged(str(name), f"line {number + 1} does not follow the one before it"))
        number, previous = entry.number, entry.hash
    return number
