"""What ``npmdask ledger grant`` does: a budget for the data in a store, known by their fingerprint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from npmdask.accounting.budget import Budget
from npmdask.errors import BadInputError
from npmdask.ledger.ledger import Ledger
from npmdask.ledger.status import Status
from npmdask.relations import make_relation, protected
from npmdask.storage.layout import Source, open_source


def default_address() -> str:
    """``NPMDASK_LEDGER``, or a file of this user. Not in the folder of a run: a budget outlives every run, and whoever
    deletes or copies a run folder must not delete or double what was spent."""
    if named := os.environ.get("NPMDASK_LEDGER"):
        return named
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return str(Path(data) / "npmdask" / "ledger.sqlite")


def grant_source(
    ledger: Ledger,
    dataset: str,
    source: Any,
    *,
    relation: str,
    clip_norm: float,
    change: float,
    budget: Budget,
    kind: str | None = None,
    larger: bool = False,
    data_changed: bool = False,
) -> tuple[Status, list[str]]:
    """Grant ``budget`` for the data at ``source``; returns the account, and warnings for whoever grants it.

    Raises
    ------
    BadInputError
        The store was never ingested: without checksums of its content nobody can tell whether it changed.
    """
    opened = open_source(source, kind)
    if not opened.registered:
        raise BadInputError(
            f"{opened.path} was never ingested: a budget is bound to the content of the data, which is only known of "
            "an ingested store. Run `npmdask ingest` on it and grant the budget for that"
        )
    made = make_relation(relation, clip_norm=clip_norm, change=change)
    if opened.kind not in made.kinds:
        raise BadInputError(
            f"{relation} does not fit {opened.path} (kind {opened.kind}); it fits: {', '.join(made.kinds)}"
        )
    status = ledger.grant(
        dataset,
        fingerprint=opened.fingerprint,
        relation=made.spec(),
        budget=budget,
        larger=larger,
        data_changed=data_changed,
    )
    return status, delta_warnings(opened, relation, budget)


def delta_warnings(source: Source, relation: str, budget: Budget) -> list[str]:
    """For relations of which n is a number of things that are protected: records, or entries of a matrix or tensor.

    For whoever runs it, on a terminal: the sentence holds n, and must not go into what is released.
    """
    count = protected(relation, source.shape)
    warning = "" if count is None else budget.warning(count)
    return [warning] if warning else []
