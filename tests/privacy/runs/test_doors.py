"""Every command on a private run: what it says, what it refuses, how it exits; and a plan that does not look."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask.planning.plan as planning
import npmdask.planning.throughput as measurement
from npmdask.cli.main import main
from npmdask.core.execution.threads import Threads
from npmdask.core.storage.readers.dense import DenseReader
from tests.privacy.runs.conftest import World, make_world, records

ROWS = 4507
TOML = """
[source]
path = "x.zarr"
[algorithm]
target_rank = 2
iteration_rank = 4
max_steps = 3
[privacy]
epsilon = 1.0
delta = 1e-6
neighboring_relation = "record_replace"
clip_norm = 1.5
ledger = "ledger.sqlite"
dataset = "people"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = make_world(tmp_path / "world", records(ROWS))
    monkeypatch.chdir(world.folder)
    Path("p.toml").write_text(TOML)
    return world


def say(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def altered(old: str, new: str, name: str = "other.toml") -> str:
    assert old in TOML
    Path(name).write_text(TOML.replace(old, new))
    return name


@pytest.mark.slow
def test_from_plan_to_export(home: World, capsys: Any) -> None:
    code, out, err = say(capsys, "run", "p.toml", "-v")
    assert code == 0 and "released 3 noisy products" in out and "step 3: released" in err
    facts = dict(line.split(maxsplit=1) for line in out.splitlines() if " " in line)
    assert facts["statement.mechanism.relation.name"] == "record_replace" and "{" not in out
    code, again, _ = say(capsys, "resume", "runs/p", "-v")
    assert (code, again) == (0, out), "the same release"
    code, out, _ = say(capsys, "inspect", "runs/p")
    assert code == 0 and "3 of 3" in out and str(ROWS) not in out
    assert say(capsys, "report", "runs/p")[0] == 0
    code, out, _ = say(capsys, "export", "runs/p", "o.npz")
    assert code == 0 and "factor_right" in out
    with np.load("o.npz", allow_pickle=False) as released:
        assert np.linalg.norm(released["factor_left"] @ released["factor_right"].T) > 0
        assert (released["value_stddevs"] > 0).all()
    assert len(home.ledger.status("people").runs) == 1


REFUSED = [
    (("run", "other.toml"), 'dataset = "people"', 'dataset = "peple"', 3, "nothing is granted"),
    (("run", "other.toml"), "epsilon = 1.0", "epsilon = 5.0", 3, "does not suffice"),
    (("run", "other.toml"), "max_steps = 3", 'max_steps = 3\nname = "covariance"', 2, "released once"),
    (
        ("run", "other.toml"),
        "iteration_rank = 4\nmax_steps = 3",
        'name = "covariance"\noptions = { a = 1 }',
        2,
        "options",
    ),
    (("run", "other.toml"), "iteration_rank = 4", 'iteration_rank = "auto"', 3, "looking at the data"),
    (("plan", "other.toml"), "iteration_rank = 4", 'iteration_rank = "auto"', 3, "looking at the data"),
    (("plan", "other.toml"), "clip_norm = 1.5", "clip_norm = -1", 2, "clip_norm"),
    (("plan", "other.toml"), "target_rank = 2", "target_rank = 0.9", 3, "share"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "old", "new", "exit_code", "sentence"), REFUSED)
def test_what_is_refused_before_it_starts(
    home: World, capsys: Any, command: tuple[str, ...], old: str, new: str, exit_code: int, sentence: str
) -> None:
    altered(old, new)
    code, out, err = say(capsys, *command)
    assert (code, out) == (exit_code, "") and sentence in err
    assert not home.ledger.status("people").runs


FINISHED = [
    (("resume", "runs/p", "--max-steps", "9"), 3, "fixed before its first release"),
    (("resume", "runs/p", "--tol", "1e-3"), 3, "fixed before its first release"),
    (("resume", "runs/q"), 2, "no run"),
    (("deflate", "runs/p", "1", "--store", "more"), 3, "no one has paid for"),
    (("deflate", "runs/p", "99", "--store", "more"), 3, "no one has paid for"),
    (("deflate", "runs/q", "1", "--store", "more"), 2, "no run"),
    (("run", "exact.toml", "--start", "runs/p"), 3, "is a private release"),
    (("run", "p.toml", "--store", "new", "--start", "runs/p"), 3, "is a private release"),
    (("run", "p.toml", "--store", "new", "--start", "runs/exact"), 3, "starts from its public seed"),
    (("run", "p.toml", "--store", "runs/exact"), 3, "belongs to another run"),
    (("report", "runs"), 2, "no run"),
    (("report", "x.zarr"), 2, "no run"),
    (("report", "runs/q"), 2, "no run"),
    (("inspect", "runs/p/result"), 2, ""),
    (("inspect", "runs/q"), 2, "runs/q"),
    (("inspect", "p.toml"), 2, "p.toml"),
    (("export", "runs/q", "o.npz"), 2, "no run"),
    (("export", "x.zarr", "o.npz"), 2, "no run"),
    (("export", "runs/p", "nowhere/o.npz"), 2, "is not a folder"),
]


@pytest.mark.slow
def test_what_is_refused_of_a_finished_release(home: World, capsys: Any) -> None:
    exact = '[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 2\n[run]\nstore = "runs/exact"\n'
    Path("exact.toml").write_text(exact)
    assert say(capsys, "run", "exact.toml", "--quiet")[0] == 0
    assert say(capsys, "run", "p.toml", "--quiet")[0] == 0
    for command, exit_code, sentence in FINISHED:
        if "exact.toml" in command:
            command = (*command, "--store", "new")
        code, _, err = say(capsys, *command)
        assert code == exit_code and sentence in err, (command, code, err)
    assert len(home.ledger.status("people").runs) == 1


@pytest.mark.slow
def test_delta_that_permits_to_publish_a_record_is_said_where_their_number_is_public(home: World, capsys: Any) -> None:
    altered("delta = 1e-6", "delta = 1e-3")
    warned = "1 / (number of records)"
    _, out, err = say(capsys, "run", "other.toml", "--json")
    assert warned in err and warned in json.loads(out)["warnings"][0]
    altered("record_replace", "record_add_remove")
    Path("other.toml").write_text(Path("other.toml").read_text().replace("1e-6", "1e-3"))
    assert warned not in say(capsys, "run", "other.toml")[2], "there the number of records is private"
    _, _, err = say(capsys, "run", "p.toml")
    assert warned not in err


@pytest.fixture
def blind(home: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Nothing may be read, measured or sampled."""

    def look(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a plan looked at the data")

    for name in ("tiles", "decode"):
        monkeypatch.setattr(DenseReader, name, look)
    real = zarr.Array.__getitem__
    monkeypatch.setattr(zarr.Array, "__getitem__", lambda a, key: (look if a.path == "data" else real)(a, key))
    monkeypatch.setattr(Threads, "run_pass", look)
    for module in (measurement, planning):
        monkeypatch.setattr(module, "measure_throughput", look)
    return home


@pytest.mark.slow
def test_a_plan_does_not_look_at_the_data(blind: World, capsys: Any) -> None:
    before = sorted(blind.folder.rglob("*"))
    code, out, err = say(capsys, "plan", "p.toml")
    assert code == 0, err
    for line in ("promise", "releases", "noise", "signal", "budget", "memory"):
        assert re.search(rf"^{line} ", out, re.M), line
    assert "which leaves epsilon = 1.497" in out
    assert sorted(blind.folder.rglob("*")) == before, "nothing was written"
    altered("iteration_rank = 4", 'iteration_rank = "auto"')
    for command in ("plan", "run"):
        assert say(capsys, command, "other.toml")[0] == 3, "refused before anything was measured"


@pytest.mark.slow
def test_a_plan_says_what_the_run_then_does(home: World, capsys: Any) -> None:
    facts = json.loads(say(capsys, "plan", "p.toml", "--json")[1])
    solution = home.solve("run")
    assert solution.statement is not None
    stddevs = solution.statement["noise_stddev"]
    assert facts["first_noise_stddev"] == pytest.approx(stddevs[0], rel=1e-5)
    assert facts["noise_stddev"] == pytest.approx(stddevs[-1], rel=1e-5)
    expected = stddevs[-1] * (12**0.5 + 2 + (2 * np.log(10)) ** 0.5) / ROWS
    assert facts["smallest_value"] == pytest.approx(expected, rel=1e-5)
    assert facts["mu"] == pytest.approx(solution.statement["mu"])
    assert facts["expense"]["left"] == pytest.approx(home.ledger.status("people").left_epsilon)


@pytest.mark.slow
def test_a_plan_asks_the_ledger(home: World, capsys: Any) -> None:
    def budget(config: str) -> dict[str, Any]:
        code, out, err = say(capsys, "plan", config, "--json")
        made: dict[str, Any] = json.loads(out)["expense"]
        assert code == (0 if made["covered"] else 3), "as the run would exit"
        assert ("would be refused: see expense" in err) is not made["covered"]
        return made

    assert not budget(altered("epsilon = 1.0", "epsilon = 5.0"))["covered"]
    assert "nothing is granted" in budget(altered('"people"', '"others"'))["said"]
    assert "there is no ledger" in budget(altered("ledger.sqlite", "none.sqlite"))["said"]
    assert "cannot be added up" in budget(altered("record_replace", "record_zero_out"))["said"]
    home.solve("a")
    home.solve("b")
    assert budget("p.toml")["covered"]
    home.solve("runs/p")
    assert "already reserved" in budget("p.toml")["said"]
    assert not budget(altered("[privacy]", '[run]\nstore = "runs/new"\n[privacy]'))["covered"]


@pytest.mark.slow
def test_memory_is_not_said_where_the_rows_are_private(home: World, capsys: Any) -> None:
    assert "predicted peak" in say(capsys, "plan", "p.toml")[1]
    out = say(capsys, "plan", altered("record_replace", "record_add_remove"))[1]
    assert "predicted peak" not in out and "sums" in out


@pytest.mark.slow
def test_the_page_names_the_release_and_lists_every_one(home: World, capsys: Any) -> None:
    home.solve("daily/000007")
    assert say(capsys, "report", "daily/000007")[0] == 0
    page = Path("daily/000007/report.html").read_text()
    about = re.search(r'class="about">(.*?)</p>', page)
    assert "<title>Private PCA of x.zarr: 2 components" in page and "mechanism.relation.clip_norm" in page
    assert about is not None and about[1] == "Asked for: 2 components. Run daily, release 7.", "no number of rows"
    (run,) = home.ledger.status("people").runs
    assert all(digest[:16] in page for digest in run.committed.values())
    assert "not clipped" in page and re.search(r"<td>1\.08\d*</td>", page), "the first release clips images"
    assert "{" not in page.split("</style>")[1].split("<svg")[0]
