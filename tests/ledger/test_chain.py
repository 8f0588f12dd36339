"""The chain of entries: changes by hand are found, and what leaves the house can be checked and says nothing secret."""

from __future__ import annotations

import json
import os
import socket

import pytest

from npmdask.accounting import epsilon_for
from npmdask.errors import RefusedError
from npmdask.ledger import Ledger, export_lines, open_ledger
from npmdask.ledger.format import facts, require_whole_export, show_lines
from npmdask.ledger.journal import LedgerEntry
from tests.ledger.conftest import BUDGET, FINGERPRINT, RELATION, execute, reserve, share


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
    reserve(ledger, "one", share(0.3))
    ledger.begin("one", 1)
    ledger.commit("one", 1, "d1")
    reserve(ledger, "two", share(0.3))
    ledger.finish("one")
    return ledger


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE npmdask_ledger_entries SET content = '{}' WHERE number = 4",
        "UPDATE npmdask_ledger_entries SET content = REPLACE(content, '\"epsilon\":3.0', '\"epsilon\":30.0')"
        " WHERE number = 1",
        "UPDATE npmdask_ledger_entries SET dataset = 'elsewhere' WHERE run_id = 'one'",
        "UPDATE npmdask_ledger_entries SET witness = REPLACE(witness, '20', '19') WHERE number = 2",
        "DELETE FROM npmdask_ledger_entries WHERE number = 6",
        "DELETE FROM npmdask_ledger_entries WHERE number = 3",
        "DELETE FROM npmdask_ledger_entries WHERE run_id = 'two'",
        "UPDATE npmdask_ledger SET head = previous, entries = 5 FROM npmdask_ledger_entries WHERE number = 6",
        "DELETE FROM npmdask_ledger",
    ],
)
def test_changes_by_hand_are_found(used: Ledger, address: str, statement: str) -> None:
    assert len(used.entries()) == 6
    execute(address, statement)
    with pytest.raises(RefusedError, match="was changed by another program than npmdask"):
        show_lines(used)
    with pytest.raises(RefusedError, match="was changed by another program than npmdask"):
        list(export_lines(used))


def test_nothing_is_reserved_on_an_entry_that_was_changed(used: Ledger, address: str) -> None:
    execute(address, "UPDATE npmdask_ledger_entries SET content = REPLACE(content, '0.', '0.0') WHERE run_id = 'two'")
    with pytest.raises(RefusedError, match="entry 5 was changed"):
        reserve(used, "three", share(0.5))


def test_an_export_can_be_checked_and_says_nothing_secret(used: Ledger, address: str) -> None:
    lines = list(export_lines(used))
    assert require_whole_export(lines) == 6
    text = "\n".join(lines)
    key = execute(address, "SELECT key FROM npmdask_ledger")[0][0]
    witness = used.run("one").witness
    assert (witness["pid"], witness["host"]) == (os.getpid(), socket.gethostname())
    for secret in (FINGERPRINT, key, '"pid"', witness["time"][:10]):
        assert secret not in text
    held = " ".join(str(row) for row in execute(address, "SELECT * FROM npmdask_ledger_entries"))
    assert FINGERPRINT not in held, "not even the ledger holds the fingerprint"
    assert {json.loads(line)["content"].get("data") for line in lines[:2]} == {json.loads(lines[0])["content"]["data"]}
    for broken in (lines[1:], lines[:2] + lines[3:], [*lines[:2], lines[2].replace('"one"', '"eno"'), *lines[3:]]):
        with pytest.raises(RefusedError, match="does not follow"):
            require_whole_export(broken)


@pytest.mark.slow
def test_an_entry_cannot_be_exchanged_alone(used: Ledger) -> None:
    """Not even with the right hash, and the next one pointing to it: that one's hash would have to change too."""
    lines = [json.loads(line) for line in export_lines(used)]
    lines[1]["content"]["charge"]["mu_squared"] /= 2
    lines[1]["hash"] = LedgerEntry(witness={}, **lines[1]).computed_hash()
    lines[2]["previous"] = lines[1]["hash"]
    with pytest.raises(RefusedError, match="line 3 does not follow"):
        require_whole_export(json.dumps(line) for line in lines)


def test_pseudonyms_differ_between_ledgers(used: Ledger, tmp_path: object) -> None:
    """The fingerprint itself, hashed without a secret, could be looked for by whoever can guess it."""
    other = open_ledger(f"{tmp_path}/other.sqlite")
    other.grant("visits", fingerprint=FINGERPRINT, relation=RELATION, budget=BUDGET)
    marks = [json.loads(next(export_lines(ledger)))["content"]["data"] for ledger in (used, other)]
    assert marks[0] != marks[1]


def test_an_export_is_the_beginning_of_every_later_one(used: Ledger) -> None:
    before = list(export_lines(used))
    reserve(used, "three", share(0.1))
    after = list(export_lines(used))
    assert after[: len(before)] == before
    assert len(after) == 7


def test_one_entry_is_no_entries(ledger: Ledger) -> None:
    assert "1 entry, chain intact" in show_lines(ledger)[0]


def test_what_is_shown(used: Ledger) -> None:
    lines = "\n".join(show_lines(used))
    assert "6 entries, chain intact" in lines
    assert "granted  epsilon = 3 at delta = 1e-08" in lines
    assert "by 2 runs" in lines
    assert "1 of 3 releases committed, finished" in lines
    assert "0 of 3 releases committed, running or abandoned (stays spent)" in lines
    assert FINGERPRINT not in lines
    told = facts(used, "visits")
    (account,) = told["datasets"]
    assert account["spent_epsilon"] == pytest.approx(epsilon_for(share(0.6).mu, 1e-8), rel=1e-9)
    assert [run["committed"] for run in account["runs"]] == [1, 0]
    assert told["head"] == json.loads(list(export_lines(used))[-1])["hash"]


def test_a_newer_ledger_is_left_alone(used: Ledger, address: str) -> None:
    execute(address, "UPDATE npmdask_ledger SET version = 3")
    with pytest.raises(RefusedError, match="schema version 3, this npmdask knows 2; update npmdask"):
        reserve(used, "three", share(0.1))


def test_the_database_itself_keeps_entries_apart(used: Ledger, address: str) -> None:
    """A writer that forgot the lock could not number an entry twice, nor reserve or commit twice."""
    columns = "dataset, kind, run_id, step, content, witness, seal, previous, hash"
    for number in (2, 7):  # the same number, then the same run and step
        with pytest.raises(Exception, match=r"(?i)unique"):
            execute(
                address,
                f"INSERT INTO npmdask_ledger_entries (number, {columns}) "
                f"SELECT {number}, {columns} FROM npmdask_ledger_entries WHERE number = 2",
            )
