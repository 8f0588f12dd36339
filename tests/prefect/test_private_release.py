"""A private release as a flow: one release, scheduled ones, killed ones, and what the server is told of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.core.checkpoint.store import RunStore
from npmdask.ledger import Status
from npmdask.prefect.heartbeat import EVENT
from npmdask.prefect.programs import AUTH, read_auth_string
from tests.prefect.conftest import Door, Running, Shop, start_server, wait_until
from tests.prefect.served import Served
from tests.prefect.told import Secrets, told
from tests.privacy.runs.conftest import COLUMNS, World, make_world, records

pytestmark = pytest.mark.slow

ROWS, CLIP, STEPS = 4507, 1.5, 40
CONFIG = """
[source]
path = "world/x.zarr"
[algorithm]
target_rank = 2
iteration_rank = 4
max_steps = {steps}
[privacy]
epsilon = {epsilon}
delta = 1e-7
neighboring_relation = "record_replace"
clip_norm = {clip}
ledger = "world/ledger.sqlite"
dataset = "people"
"""
SCHEDULES = """
[[schedule]]
name = "daily"
flow = "private-release"
config = "daily.toml"
every = 4
[schedule.parameters]
fresh = true
"""
TICK = """
import sys
from npmdask.prefect.private_release import private_release
from npmdask.prefect.programs import exit_code
from npmdask.config import load_config
def tick():
    private_release(load_config("daily.toml", store="runs/daily"), run_id="daily", fresh=True)
    return 0
sys.exit(exit_code(tick))
"""
# The real door, with a change; and a copy of the key, of which nothing else is left at the end.
DOOR = """
import sys
from pathlib import Path
from npmdask.privacy.mechanisms import Entropy
make = Entropy.create
def copied(path, **more):
    made = make(path, **more)
    Path("key").write_bytes(Path(path).read_bytes())
    return made
Entropy.create = copied
import npmdask.prefect.private_release as discretion
import npmdask.prefect.private_release as door
from npmdask.prefect.cli import main
from prefect import task
{change}
sys.exit(main(door.private_release, sys.argv[1:]))
"""
LOGS_THE_SHAPE = """
from prefect import get_run_logger
steps = discretion.Announcer.on_step
def on_step(self, step):
    import zarr
    get_run_logger().info("after %s", zarr.open_group("world/x.zarr", mode="r")["data"].shape)
    steps(self, step)
discretion.Announcer.on_step = on_step
"""
RETURNS_THE_SOURCE = """
def look(config):
    return config.check().source.fingerprint
door.validate = task(look, persist_result=True)
"""
QUOTES_AN_ERROR = """
def look(config, run_id):
    raise {kind}(f"the data are {ROWS} x 12, {config.check().source.fingerprint}, of 3.1 GB")
door.release = {wrapped}(look)
"""


class Place(Shop):
    """A shop whose data are private."""

    world: World

    def write(self, name: str, *, epsilon: float = 0.5, steps: int = 3) -> Path:
        file = self.folder / f"{name}.toml"
        file.write_text(CONFIG.format(epsilon=epsilon, steps=steps, clip=CLIP))
        return file

    @property
    def status(self) -> Status:
        return self.world.ledger.status("people")

    def release(self, config: Path, change: str = "") -> int:
        return self.run("-c", DOOR.replace("{change}", change), config, "--json")

    @property
    def facts(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return made

    @property
    def secrets(self) -> Secrets:
        x = np.load(self.world.folder / "x.npy")
        x = x * np.minimum(1, CLIP / np.linalg.norm(x, axis=1))[:, None]
        values = np.linalg.eigvalsh(x.T @ x)[::-1][:2]
        return Secrets(
            fingerprint=self.world.problem().source.fingerprint,
            rows=ROWS,
            row_bytes=COLUMNS * 8,
            key=(self.folder / "key").read_bytes(),
            exact=(*values, *values / ROWS, np.trace(x.T @ x), np.trace(x.T @ x) / ROWS),
        )


@pytest.fixture
def place(shop: Shop) -> Place:
    made = shop
    made.__class__ = Place
    assert isinstance(made, Place)
    made.world = make_world(made.folder / "world", records(ROWS))
    return made


@pytest.fixture
def server(place: Place) -> Iterator[str]:
    """A real server for several runs, and its URL; gone with the shop."""
    url = start_server(place)
    place.environment = {"PREFECT_API_URL": url}
    yield url


def given_away(place: Place, url: str) -> list[str]:
    """What Prefect knows and should not: told to its server, written to its home, or kept there as a result."""
    home = place.folder / "prefect"
    text = told(url, read_auth_string(home / AUTH))
    (place.folder / "told.json").write_text(text)  # to look at, where a test fails
    results = ["a result" for path in (home / "storage").rglob("*") if path.is_file()]
    return place.secrets.found_in(text) + place.secrets.found_below(home) + results


def test_what_prefect_is_told(place: Place, server: str) -> None:
    config = place.write("daily")
    assert place.release(config) == 0, place.err
    first = place.facts
    assert first["answered"] and first["statement"]["epsilon_spent"] <= 0.5
    assert (place.folder / "runs" / "daily" / "report.html").exists()

    assert place.release(config) == 0, place.err  # the same run id: the same release
    assert place.facts == first and len(place.status.runs) == 1

    assert place.release(place.write("greedy", epsilon=5.0)) == 3
    assert "does not suffice" in place.err and "Traceback" not in place.err

    for name, kind, code in (("refuses", "discretion.LostError", 130), ("breaks", "ValueError", 1)):
        change = QUOTES_AN_ERROR.replace("{kind}", kind).replace("{wrapped}", "discretion.discreet_step")
        assert place.release(place.write(name, epsilon=0.1), change.replace("{ROWS}", str(ROWS))) == code
        assert f"{ROWS} x 12" in place.err, "the sentence is for whoever runs it"

    wanted = [
        "noisy products, one pass each; nothing else uses the data",  # the plan
        *("release 3 of 3 is made", first["sentence"], "daily"),
        "the budget of 'people' does not suffice",
    ]

    def missing() -> list[str]:
        text = told(server, read_auth_string(place.home / AUTH))
        return [said for said in wanted if said not in text]

    wait_until(lambda: not missing(), 120, "what is sent in the background is there", lambda: str(missing()))
    assert given_away(place, server) == []
    text = told(server, read_auth_string(place.home / AUTH))
    states = {run["state_name"] for run in _runs(text)}
    assert states == {"Completed", "Failed"}


def _runs(text: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(text)["flow_runs"]
    return runs


def test_a_flow_that_logs_a_shape_is_caught(place: Place, server: str) -> None:
    """The negative control of the test above."""
    assert place.release(place.write("logs"), LOGS_THE_SHAPE) == 0, place.err
    wait_until(lambda: bool(given_away(place, server)), 120, "the log is there")
    assert given_away(place, server) == ["number of rows"]


@pytest.mark.heavy
def test_a_flow_that_returns_its_source_or_quotes_an_error_is_caught(place: Place, server: str) -> None:
    assert place.release(place.write("returns"), RETURNS_THE_SOURCE) == 0, place.err
    assert given_away(place, server) == ["a result"]
    change = QUOTES_AN_ERROR.replace("{kind}", "discretion.NpmdaskError").replace("{ROWS}", str(ROWS))
    assert place.release(place.write("quotes", epsilon=0.1), change.replace("{wrapped}", "task")) != 0
    assert {"fingerprint", "size or rate"} <= set(given_away(place, server))


def test_ticks_release_until_the_budget_is_spent(place: Place, running: Running, door: Door) -> None:
    """Three of epsilon 0.5 fit a grant of 0.9; the fourth tick is red until more is granted."""
    place.home, place.door = running.home, door
    regrant(place, 0.9)
    place.write("daily")
    assert [place.run("-c", TICK) for _ in range(4)] == [0, 0, 0, 3], place.err
    assert "the budget of 'people' does not suffice" in place.err and not place.tracebacks
    require_three(place, 3)
    regrant(place, 1.05, "--raise")
    assert place.run("-c", TICK) == 0, place.err
    assert len(place.status.runs) == 4, "the refused run left nothing behind that would be in the way"
    assert place.states() == {"COMPLETED": 4, "FAILED": 1}


def require_three(place: Place, steps: int) -> None:
    made = [p.parent for p in sorted((place.folder / "runs" / "daily").glob("*/run.json"))]
    assert [one.name for one in made] == ["000001", "000002", "000003"]
    assert all((one / "result").exists() and not (one / "entropy").exists() for one in made)
    runs = place.status.runs
    assert len(runs) == 3 and all(run.finished for run in runs)
    digests = [digest for run in runs for digest in run.committed.values()]
    assert len(set(digests)) == 3 * steps, "every release has noise of its own"


def test_what_prefect_writes_down_of_times(place: Place, running: Running, door: Door) -> None:
    """Docs say: with record_add_remove begin and end of the run and of its steps, and nothing of its passes."""
    place.home, place.door = running.home, door
    place.world = make_world(place.folder / "counts", records(ROWS), neighboring_relation="record_add_remove")
    file = place.write("counted")
    asked = file.read_text().replace("record_replace", "record_add_remove")
    file.write_text(asked.replace("world/", "counts/"))
    assert place.run("-m", "flows.private_release", file, "--json") == 0, place.err
    (run,) = place.ask("select id, total_run_time from flow_run where {since}")
    steps = {name.partition(":")[0] for name in place.tasks(5)}
    assert run[1] is not None and steps == {"validate", "plan", "reserve", "release", "report"}

    def said(words: str) -> bool:
        return any(words in text for (text,) in place.ask("select message from log where {since}"))

    written = "Prefect writes down when this run and its steps begin and end"
    wait_until(lambda: said(written), 120, "the log is there")
    assert not said("is made"), "the time of a pass"
    assert set(place.artifacts()) == {"counted"}
    during = place.ask(
        "select r.resource_id, e.event from events e join event_resources r on r.event_id = e.id join task_run t "
        "on e.occurred > t.start_time and e.occurred < t.end_time "
        f"where t.name like 'release:%' and t.flow_run_id = '{run[0]}' and r.resource_id like '%' || t.flow_run_id"
    )
    assert {event for _, event in during} <= {EVENT, "prefect.flow-run.heartbeat"}, (
        "every so many seconds, whatever is done"
    )

    # The number of records is public here, and so is the time of each release.
    assert place.run("-m", "flows.private_release", place.write("replaced"), "--json") == 0, place.err
    wait_until(lambda: said("release 3 of 3 is made"), 120, "the log is there")


@pytest.mark.heavy
def test_a_schedule_releases_until_the_budget_is_spent_whatever_dies(place: Place) -> None:
    """The same, by the schedule; the first release is killed and goes on with the same store, key and reservation."""
    regrant(place, 0.9)
    place.write("daily", steps=STEPS)
    served, store = Served(place, SCHEDULES), place.folder / "runs" / "daily" / "000001"
    served.wait(lambda: (store / "steps" / "000004").exists(), 120, "step 4")
    served.flow(store)
    assert not (store / "result").exists(), "killed too late to test anything"
    key = (store / "entropy").read_bytes()
    (before,) = place.status.runs
    assert 4 <= len(before.committed) < STEPS
    served.wait(lambda: served.ended("the budget of 'people' does not suffice") > 0, 240, "refused")
    require_three(place, STEPS)
    after = next(run for run in place.status.runs if run.run_id == before.run_id)
    assert all(after.committed[step] == digest for step, digest in before.committed.items())
    last = RunStore(store).last_step()
    assert last is not None
    assert {h["step"]: h["digest"] for h in last[1]["history"]} == after.committed
    assert json.loads((store / "run.json").read_text())["release_id"] == before.run_id and len(key) >= 32

    regrant(place, 1.05, "--raise")
    served.wait(lambda: len(place.status.runs) == 4, 240, "it goes on by itself")
    served.stop()
    assert not place.tracebacks, place.err


def regrant(place: Place, epsilon: float, *more: str) -> None:
    """The grant of the world is for three runs of epsilon 1: here for less."""
    code = (
        "from npmdask.cli.main import main; import sys; sys.exit(main(['ledger', 'grant', 'people', 'world/x.zarr', "
        f"'--relation', 'record_replace', '--clip-norm', '{CLIP}', '--epsilon', '{epsilon}', '--delta', '1e-7', "
        f"'--ledger', 'world/ledger.sqlite', *{more}]))"
    )
    assert place.run("-c", code) == 0, place.err


def test_a_configuration_without_a_promise(place: Place) -> None:
    config = place.write("open")
    config.write_text(config.read_text().split("[privacy]")[0])
    assert place.run("-m", "flows.private_release", config) in (2, 3)
    assert "no [privacy] table" in place.err and "Traceback" not in place.err
