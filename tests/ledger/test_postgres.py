"""A real server that is stopped, crashes, is set up carelessly, or is held by somebody."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

import npmdask.ledger.database as database
from benchmarks.postgres import Server, postgres_server
from npmdask.errors import LostError, RefusedError
from npmdask.ledger import Ledger, open_ledger
from tests.ledger.conftest import BUDGET, FINGERPRINT, RELATION, reserve, share

pytestmark = pytest.mark.slow


@pytest.fixture
def own_server() -> Iterator[Server]:
    """One that may be hurt."""
    with postgres_server() as running:
        yield running


@pytest.fixture
def address(server: Server) -> str:
    return server.new_database()


def test_a_server_that_crashes_stops_everything_and_forgets_nothing(own_server: Server) -> None:
    ledger = open_ledger(own_server.new_database())
    ledger.grant("visits", fingerprint=FINGERPRINT, relation=RELATION, budget=BUDGET)
    reserve(ledger, "run", share(0.7))
    ledger.begin("run", 1)
    own_server.stop(signal.SIGQUIT)
    for ask in (lambda: reserve(ledger, "next", share(0.1)), lambda: ledger.commit("run", 1, "d"), ledger.entries):
        with pytest.raises(LostError, match=r"cannot be used .*without the ledger nothing private is computed"):
            ask()
    own_server.start()
    ledger.commit("run", 1, "d")
    assert ledger.status("visits").spent == share(0.7)
    assert ledger.run("run").committed == {1: "d"}
    with pytest.raises(RefusedError, match="does not suffice"):
        reserve(ledger, "next", share(0.4))


def test_a_server_that_does_not_flush_is_refused(own_server: Server) -> None:
    ledger = open_ledger(own_server.new_database())
    ledger.grant("visits", fingerprint=FINGERPRINT, relation=RELATION, budget=BUDGET)
    own_server.stop()
    with open(own_server.folder / "data" / "postgresql.conf", "a") as settings:
        settings.write("fsync = off\n")
    own_server.start()
    with pytest.raises(RefusedError, match="runs with fsync or full_page_writes off: a power cut would undo"):
        reserve(ledger, "run", share(0.1))


@pytest.mark.parametrize(("set_to", "used"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
def test_a_commit_waits_for_the_disk(address: str, set_to: str, used: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = {set_to}")
    with database.find_database(address).writing(make=True) as book:
        assert book._connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == used


def test_a_ledger_that_somebody_holds(ledger: Ledger, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 1)
    with psycopg.connect(address) as holder:
        holder.execute("SELECT * FROM npmdask_ledger FOR UPDATE")
        with pytest.raises(LostError, match=r"lock timeout.* another process holds it"):
            reserve(ledger, "run", share(0.1))
        assert ledger.status("visits").runs == (), "reading does not wait"
    reserve(ledger, "run", share(0.1))


def test_a_careless_default_isolation_changes_nothing(ledger: Ledger, address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    with database.find_database(address).writing() as book:
        level = book._connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
    assert level == "read committed", "whoever waited for the lock must see what its holder wrote"


def test_a_password_is_not_said(tmp_path: Path) -> None:
    ledger = open_ledger(f"postgresql://me:geheim@/nowhere?host={tmp_path}")
    with pytest.raises(LostError, match=r"postgresql://me:\*\*\*@.* cannot be used") as refused:
        ledger.status("visits")
    assert "geheim" not in str(refused.value) + repr(ledger) + ledger.where


def test_a_stranger_is_refused_for_good(own_server: Server) -> None:
    """Not tried again and again, as a server that is away is."""
    url = sa.make_url(own_server.new_database()).set(database="there-is-no-such-database")
    with pytest.raises(RefusedError, match="does not exist"):
        open_ledger(url.render_as_string(hide_password=False)).status("visits")
