"""Processes that reserve at the same time and are killed: the short form of the benchmark row `ledger-concurrent`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ledger_crowd import Crowd, count_again
from npmdask.accounting import Budget
from tests.ledger.conftest import execute

pytestmark = pytest.mark.slow


def test_no_reservation_is_lost_and_no_budget_exceeded(address: str, tmp_path: Path) -> None:
    crowd = Crowd(address, tmp_path, processes=3, count=16, kills=2)
    found = crowd.run()
    assert found["violations"] == []
    assert found["granted"] + found["refused"] == 48
    assert min(found["granted"], found["refused"]) > 6


def test_the_count_finds_what_it_is_there_for(address: str, tmp_path: Path) -> None:
    crowd = Crowd(address, tmp_path, processes=1, count=8, kills=0, covered=2.0)
    crowd.run()
    lines = [{"run_id": f"0-{number}", "granted": True} for number in range(8)]
    assert count_again(address, Budget(3.0, 1e-8), lines, 8) == []
    assert any("more than" in s for s in count_again(address, Budget(1e-3, 1e-8), lines, 8))
    lines[3]["granted"] = False
    found = count_again(address, Budget(3.0, 1e-8), lines, 8)
    assert found == ["0-3 was refused and is there", "0-3 was refused and fits"]
    lines[3]["granted"] = True
    execute(address, "DELETE FROM npmdask_ledger_entries WHERE run_id = '0-3'")
    found = count_again(address, Budget(3.0, 1e-8), lines, 8)
    assert found[0] == "0-3 was acknowledged and is lost"
    assert "was changed by another program than npmdask" in found[1]
