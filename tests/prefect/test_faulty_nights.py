"""Nights with faults: no day is lost, doubled, half written, or pointed at wrongly, whatever fails on the way."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.postgres import Server, postgres_server
from infra import postgres
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.prefect.programs import AUTH, read_auth_string
from tests.prefect.conftest import Shop, wait_until
from tests.prefect.served import Served

pd = pytest.importorskip("pandas")
pa_dataset = pytest.importorskip("pyarrow.dataset")
FIRST, ROWS, WIDE, FULL = date(2026, 11, 1), 400, 12, 3000
CONFIG = """
[source]
path = "../arrivals/{date}.parquet"
leave_out = ["id", "date"]
center = true
[algorithm]
name = "power"
target_rank = 3
[stop]
tol = 1e-10
[expect]
rows = 400
columns = ["id", "date"]
missing = 0.1
"""
SCHEDULES = """
[[schedule]]
name = "nightly"
flow = "npm"
config = "configs/nightly.toml"
store = "nights"
cron = "0 2 1 1 *"
parameters = { date = "yesterday", align_to = "previous" }
"""


class Nights:
    """Files that arrive, what is computed of them day by day, and what a warehouse has of it."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.days = folder, [str(FIRST + timedelta(days=n)) for n in range(count)]
        (folder / "configs").mkdir()
        (folder / "arrivals").mkdir()
        (folder / "configs" / "nightly.toml").write_text(CONFIG)
        (folder / "schedules.toml").write_text(SCHEDULES)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self.environment |= {"NPMDASK_CACHE": str(folder / "cache"), "PREFECT_HOME": str(folder / "prefect")}
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"  # which may not be cut off

    def table(self, day: str) -> Any:
        """The rows of a day: three directions whose order changes from one day to the next."""
        rng = np.random.default_rng(int(day.replace("-", "")))
        simple = np.kron(np.eye(3), np.ones((1, 4)))
        rows = rng.standard_normal((ROWS, 3)) * rng.permutation([3.0, 2.0, 1.3]) @ simple
        made = pd.DataFrame(rows + 0.3 * rng.standard_normal((ROWS, WIDE)), columns=[f"x{i}" for i in range(WIDE)])
        return made.assign(id=[f"{day}-{i:04d}" for i in range(ROWS)], date=day)

    def arrive(self, day: str, how: str = "whole") -> None:
        made = self.table(day)
        made = made.head(ROWS // 2) if how == "cut" else made.drop(columns=["id"]) if how == "bad" else made
        aside = self.folder / "arrivals" / f".{day}"
        made.to_parquet(aside, index=False)
        aside.rename(self.folder / "arrivals" / f"{day}.parquet")

    def start(self, *command: str, largest_file: int | None = None) -> subprocess.Popen[str]:
        def limit() -> None:
            if largest_file is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        line, how = [sys.executable, "-m", "npmdask.cli.main", *command], {"cwd": self.folder, "env": self.environment}
        pipe = subprocess.PIPE
        return subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, preexec_fn=limit, **how)  # type: ignore[call-overload,no-any-return]

    def run(self, *command: str, **how: Any) -> tuple[int, str]:
        process = self.start(*command, **how)
        out, err = process.communicate(timeout=900)
        return process.returncode, out + err

    def backfill(self, first: str, last: str) -> tuple[str, ...]:
        return ("backfill", "nightly", "--from", first, "--to", last)

    def load(self, day: str) -> tuple[str, ...]:
        """Write the scores of a day for the warehouse."""
        model, into = f"nights/{day}/latest", ("--keep", "id,date", "--partition", f"night={day}", "--overwrite")
        return ("transform", model, f"arrivals/{day}.parquet", "scores", "--leave-out", "id,date", *into)

    def wrong(self, *, whole: bool) -> Counter[str]:
        """Count what is wrong now; what may still come counts only of the ``whole``."""
        found: Counter[str] = Counter()
        answered: dict[str, list[Path]] = {}
        for day in self.days:
            stores = sorted((self.folder / "nights" / day).glob("0*"))
            answered[day] = [one for one in stores if RunStore(one).part_meta("result") is not None]
            found["lost"] += whole and not answered[day]
            found["doubled"] += len(answered[day]) > 1
            found["half written"] += whole and len(stores) > len(answered[day])
            latest = self.folder / "nights" / day / "latest"
            found["pointed at wrongly"] += latest.exists() and latest.resolve() not in answered[day]
            found["pointed at wrongly"] += whole and not latest.exists()
        link, pointed = self.folder / "nights" / "latest", self.folder / "nights" / "latest.json"
        done = [day for day in self.days if (self.folder / "nights" / day / "latest").exists()]
        if whole or link.exists():
            found["pointed at wrongly"] += link.resolve() not in answered[done[-1]] or not link.is_symlink()
        if whole:
            found["pointed at wrongly"] += Path(json.loads(pointed.read_text())["store"]) != link.resolve()
        if (self.folder / "scores").exists():
            found += self._wrong_scores(whole=whole)
        return +found

    def _wrong_scores(self, *, whole: bool) -> Counter[str]:
        found: Counter[str] = Counter()
        scores = (
            pa_dataset.dataset(self.folder / "scores", format="parquet", partitioning="hive").to_table().to_pandas()
        )
        found["doubled"] += int(scores["id"].duplicated().sum())
        for day in self.days:
            ids = set(scores.loc[scores["night"].astype(str) == day, "id"])
            found["half written"] += 0 < len(ids) < ROWS
            found["lost"] += whole and not ids
        return found

    def flipped(self) -> int:
        """Count components of days whose scores a table downstream would see with another sign or in another order."""
        count = 0
        groups = np.kron(np.eye(3), np.ones((1, 4)))
        for day in self.days:
            scores = pd.read_parquet(self.folder / "scores" / f"night={day}").sort_values("id")
            truth = self.table(day)[[f"x{i}" for i in range(WIDE)]].to_numpy() @ groups.T
            found = np.corrcoef(scores[[f"component{i + 1}" for i in range(3)]].to_numpy().T, truth.T)[:3, 3:]
            reference = self._reference = getattr(self, "_reference", found)
            places = np.abs(reference).argmax(axis=1)
            count += int((np.sign(found[range(3), places]) != np.sign(reference[range(3), places])).sum())
            count += int((np.abs(found).argmax(axis=1) != places).sum())
        return count


@pytest.mark.slow
def test_a_few_nights_with_a_fault_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where a day that failed keeps others from being done, where a bad file is computed, where a killed day is
    begun twice, where `latest` moves to a day that failed or back to an earlier one, or where scores flip."""
    nights, chance = Nights(tmp_path, 4), random.Random(0)
    first, late, bad, last = nights.days
    monkeypatch.chdir(tmp_path)
    nights.arrive(first)
    nights.arrive(bad, "bad")
    nights.arrive(last)
    code, said = nights.run(*nights.backfill(first, last), largest_file=FULL)  # the disk is full
    assert code == 130 and "cannot write" in said, said
    assert not nights.wrong(whole=False)
    process = nights.start(*nights.backfill(first, last))
    wait_until(lambda: (tmp_path / "nights" / first).exists(), 120, "the first day has begun")
    time.sleep(chance.uniform(0, 0.5))
    process.kill()
    process.communicate()
    assert not nights.wrong(whole=False)
    code, said = nights.run(*nights.backfill(first, last))
    assert code == 1 and f"2 of 4 days failed, the others are done: {late}, {bad}" in said, said
    assert "1 of 2 expected columns is not there (id)" in said and "there is nothing at" in said
    assert (tmp_path / "nights" / "latest").resolve() == tmp_path / "nights" / last / "000001"
    assert not list((tmp_path / "nights" / bad).iterdir()), "no pass was spent"
    nights.arrive(late)
    nights.arrive(bad)
    code, said = nights.run(*nights.backfill(first, bad))  # `latest` stays at the last day
    assert code == 0 and said.count("is done already") == 1, said
    for day in nights.days:
        assert main([*nights.load(day), "--quiet"]) == 0
    assert not nights.wrong(whole=True) and nights.flipped() == 0


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Server | None]:
    """Where the Prefect server of the shop has its runs: None in a file."""
    if request.param == "sqlite":
        yield None
        return
    binaries = postgres.binaries()
    if binaries is None or not postgres.has_trigrams(binaries):
        pytest.skip("no PostgreSQL with pg_trgm, which Prefect needs: apt-get install postgresql")
    with postgres_server(binaries) as server:
        url = server.url("postgres").replace("postgresql:", "postgresql+asyncpg:")
        shop.environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = url
        yield server


@pytest.mark.heavy
def test_thirty_nights_of_a_server_with_faults(shop: Shop, database: Server | None) -> None:
    """As Prefect's runs, by a worker. Of 30 nights 20 have a fault, twice each: a bad file, one that is cut or late, a
    killed run, worker, keeper or server, a full disk, a backfill that is killed or interrupted; of PostgreSQL 22: it is
    stopped, once in order and once as in a crash, and started again in the middle of a night."""
    nights, chance, began = Nights(shop.folder, 30), random.Random(7), time.monotonic()
    shop.environment["NPMDASK_CACHE"] = nights.environment["NPMDASK_CACHE"]
    served = Served(shop, SCHEDULES)
    served.wait(lambda: "ready after" in shop.err, 240, "all services are there")
    auth = read_auth_string(shop.home / AUTH)
    nights.environment |= {
        "PREFECT_API_URL": f"http://127.0.0.1:{served.port}/api",
        "PREFECT_API_AUTH_STRING": auth,
    }

    def killed(what: Callable[[Path], None]) -> Callable[[str], None]:
        """Kill something at a random instant of a night's run, or before it has begun."""

        def fault(day: str) -> None:
            process = nights.start(*nights.backfill(day, day))
            time.sleep(chance.uniform(1, 12))
            store = nights.folder / "nights" / day / "000001"
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended, or has not begun
                what(store)
            process.communicate(timeout=900)

        return fault

    def ended(number: int) -> Callable[[str], None]:
        def fault(day: str) -> None:
            process = nights.start(*nights.backfill(day, day))
            time.sleep(chance.uniform(0.5, 8))
            process.send_signal(number)
            process.communicate(timeout=900)

        return fault

    def arrives(how: str) -> Callable[[str], None]:
        def fault(day: str) -> None:
            (nights.folder / "arrivals" / f"{day}.parquet").unlink()
            if how != "late":
                nights.arrive(day, how)
            before = os.readlink(nights.folder / "nights" / "latest") if day != nights.days[0] else ""
            code, said = nights.run(*nights.backfill(day, day))
            assert code == 1, said
            assert not before or os.readlink(nights.folder / "nights" / "latest") == before
            nights.arrive(day)

        return fault

    def full(day: str) -> None:
        code, _ = nights.run(*nights.load(nights.days[0]), largest_file=FULL)
        assert code != 0

    ways = iter((signal.SIGINT, signal.SIGQUIT))

    def restarted(_: Path) -> None:
        assert database is not None
        database.stop(next(ways))
        time.sleep(chance.uniform(0.5, 15))
        database.start()

    faults = [arrives("bad"), arrives("cut"), arrives("late"), full, ended(signal.SIGKILL), ended(signal.SIGINT)]
    faults += [killed(what) for what in (served.flow, served.worker, served.keeper, served.server)]
    faults += [killed(restarted)] * (database is not None)
    drawn = {day: faults[n % len(faults)] for n, day in enumerate(chance.sample(nights.days[1:], 2 * len(faults)))}
    seen: Counter[str] = Counter()
    for day in nights.days:
        nights.arrive(day)
        if day in drawn:
            drawn[day](day)
            seen += nights.wrong(whole=False)
        code, said = nights.run(*nights.backfill(day, day))
        assert code == 0, (said, served.states()[-3:])
        code, said = nights.run(*nights.load(day))
        assert code == 0, said
        seen += nights.wrong(whole=False)
    seen += nights.wrong(whole=True)
    flipped = nights.flipped()
    print(f"30 nights, {len(drawn)} faults, {time.monotonic() - began:.0f} s: wrong {dict(seen)}, flipped {flipped}")
    assert not seen and flipped == 0
    served.stop()
