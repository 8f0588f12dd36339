"""The file: who may read it, what happens when it is damaged, held or gone, and how durable an answer is."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import npmdask.ledger.database as database
from benchmarks.children import ROOT
from npmdask.errors import BadInputError, BudgetError, RefusedError
from npmdask.ledger import Ledger, default_address, open_ledger
from tests.ledger.conftest import BUDGET, FINGERPRINT, RELATION, execute, reserve, share


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "kept" / "ledger.sqlite")


def test_the_file_is_for_its_owner_only(ledger: Ledger, address: str) -> None:
    path = Path(address)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["ledger.sqlite"], "nothing lies about"
    path.chmod(0o640)
    with pytest.raises(RefusedError, match="as secret as the data; run `chmod 600"):
        reserve(ledger, "run", share(0.1))
    path.chmod(0o600)
    reserve(ledger, "run", share(0.1))


def test_the_journal_is_for_its_owner_only(ledger: Ledger, address: str) -> None:
    with database.find_database(address).writing() as book:
        book.append("visits", "finish", {}, "ghost")
        assert Path(address + "-journal").stat().st_mode & 0o777 == 0o600


def test_an_answer_is_on_disk(ledger: Ledger, address: str) -> None:
    """EXTRA (3): the folder is flushed after the journal is removed, or a power cut could bring it back."""
    with database.find_database(address).engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"
    execute(address, "PRAGMA user_version = 0")
    with sqlite3.connect(address) as other:
        other.execute("PRAGMA journal_mode = WAL")
    other.close()
    reserve(ledger, "run", share(0.1))
    assert not Path(address + "-wal").exists(), "a copy of the one file is a copy of the ledger"


def test_every_spelling_of_the_address(ledger: Ledger, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for spelling in (Path(address), f"sqlite:///{address}"):
        assert open_ledger(spelling).status("visits").grant.budget == BUDGET
    for wrong in ("sqlite://", "sqlite:///:memory:", "mysql://u:secret@h/d", "postgresql://u:secret@h:port/d"):
        with pytest.raises(BadInputError, match="the address of the ledger is not understood") as refused:
            open_ledger(wrong)
        assert "secret" not in str(refused.value)
    folder = open_ledger(Path(address).parent)
    with pytest.raises(BadInputError, match="is not a file"):
        folder.status("visits")
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    monkeypatch.delenv("NPMDASK_LEDGER", raising=False)
    assert default_address() == "/somewhere/npmdask/ledger.sqlite"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_address() == str(Path.home() / ".local/share/npmdask/ledger.sqlite")
    monkeypatch.setenv("NPMDASK_LEDGER", "postgresql://host/database")
    assert default_address() == "postgresql://host/database"


@pytest.mark.parametrize("damage", ["garbage", "cut", "removed"])
def test_a_file_that_is_damaged_or_gone_stops_everything(ledger: Ledger, address: str, damage: str) -> None:
    reserve(ledger, "run", share(0.1))
    path = Path(address)
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(b"no database" * 900 if damage == "garbage" else path.read_bytes()[:5000])
    for ask in (
        lambda: reserve(ledger, "next", share(0.1)),
        lambda: ledger.begin("run", 1),
        lambda: ledger.status("visits"),
    ):
        with pytest.raises(RefusedError, match=r"cannot be used|there is no ledger"):
            ask()
    assert path.exists() == (damage != "removed")


def test_a_ledger_that_somebody_holds(ledger: Ledger, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.2)
    holder = sqlite3.connect(address, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(RefusedError, match=r"cannot be used .*locked.* another process holds it"):
        reserve(ledger, "run", share(0.1))
    holder.close()
    monkeypatch.setattr(database, "LOCK_SECONDS", 30)
    reserve(ledger, "run", share(0.1))


@pytest.mark.slow
def test_a_ledger_that_somebody_holds_for_a_while(ledger: Ledger, address: str) -> None:
    holder = sqlite3.connect(address, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    released: list[bool] = []

    def let_go() -> None:
        released.append(True)
        holder.close()

    release = threading.Timer(0.3, let_go)
    release.start()
    reserve(ledger, "run", share(0.1))
    assert released, "it has waited"
    release.join()


def test_nothing_changes_between_looking_and_writing(ledger: Ledger, address: str) -> None:
    """Two that look at the same balance: the second has to wait before it looks, not only before it writes."""
    order: list[str] = []

    def second() -> None:
        try:
            reserve(open_ledger(address), "second", share(0.6))
        except BudgetError:
            order.append("second refused")

    with database.find_database(address).writing() as book:
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        asked = {"data": "", "relation": {}, "charge": {}, "releases": 1, "event": {}}
        book.append("visits", "reserve", {**asked, "spent": share(0.6).as_dict()}, "first")
        order.append("first writes")
    thread.join()
    assert order == ["first writes", "second refused"]


def test_a_file_of_another_program_is_not_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    path.chmod(0o600)
    with pytest.raises(RefusedError, match="there is no ledger"):
        open_ledger(path).status("visits")


@pytest.mark.slow
def test_a_fork_shares_nothing(ledger: Ledger, address: str) -> None:
    """A forked child that exits must not take the parent's locks or its connection with it."""
    reserve(ledger, "before", share(0.1))
    code = (
        "import os, sys\n"
        "from npmdask.ledger import open_ledger\n"
        "from tests.ledger.conftest import reserve, share\n"
        f"ledger = open_ledger({address!r})\n"
        "reserve(ledger, 'parent', share(0.1))\n"
        "child = os.fork()\n"
        "reserve(ledger, 'child' if child == 0 else 'parent again', share(0.1))\n"
        "os._exit(0) if child == 0 else sys.exit(os.waitpid(child, 0)[1])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert len(ledger.status("visits").runs) == 4
    ledger.entries()


@pytest.mark.slow
def test_a_grant_makes_a_ledger_once(address: str) -> None:
    """Threads that make it together get the same one."""
    failed: list[BaseException] = []

    def grant(name: str) -> None:
        try:
            open_ledger(address).grant(name, fingerprint=FINGERPRINT + name, relation=RELATION, budget=BUDGET)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=grant, args=(f"data {i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(open_ledger(address).entries()) == 6
