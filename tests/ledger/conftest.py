"""The same contract on both databases: SQLite always, a real PostgreSQL server with the slow tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.postgres import Server, postgres_server
from npmdask.accounting import Budget, Charge, mu_for
from npmdask.ledger import Ledger, Run, open_ledger
from npmdask.ledger.database import find_database

RELATION = {"name": "record_replace", "clip_norm": 1.0}
FINGERPRINT = "a1" * 32
BUDGET = Budget(3.0, 1e-8)
EVENT = {"mechanism": "gaussian", "stddev": 12.5}


@pytest.fixture(scope="package")  # later tests count the memory of all processes below theirs
def server() -> Iterator[Server]:
    with postgres_server() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def address(request: Any, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "kept" / "ledger.sqlite")
    return str(request.getfixturevalue("server").new_schema())


@pytest.fixture
def ledger(address: str) -> Ledger:
    """With 3 at 1e-8 granted for ``visits``."""
    opened = open_ledger(address)
    opened.grant("visits", fingerprint=FINGERPRINT, relation=RELATION, budget=BUDGET)
    return opened


def share(part: float) -> Charge:
    """A charge that is this part of the whole budget (of its mu squared)."""
    return Charge(mu_squared=part * mu_for(BUDGET.epsilon, BUDGET.delta) ** 2)


def reserve(ledger: Ledger, run_id: str, charge: Charge, **other: Any) -> Run:
    asked = {"fingerprint": FINGERPRINT, "relation": RELATION, "releases": 3, "event": EVENT}
    return ledger.reserve("visits", run_id=run_id, charge=charge, **{**asked, **other})


def execute(address: str, statement: str) -> list[Any]:
    """SQL past the ledger's own code, as somebody with access to the database would."""
    with find_database(address).engine.begin() as connection:
        result = connection.exec_driver_sql(statement)
        return list(result) if result.returns_rows else []
