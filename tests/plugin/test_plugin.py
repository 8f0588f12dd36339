"""A package from outside through every door, and what is left where it is gone. It changes no file of npmdask."""

from __future__ import annotations

import json
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.config import RunConfig, config_of_tables, load_config, render_config, schema_text, validate_config
from npmdask.core import features
from npmdask.core.aspects import Extent, ordered, seen
from npmdask.core.operators.view import AS_STORED
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.missing.rules import find_gaps
from npmdask.privacy.request import Privacy
from npmdask.weights.aspect import Weights
from tests.conftest import same_bytes
from tests.plugin.conftest import Package, Run

DATA, FIRST = "waves://400x12", 300
CONFIG = f"""
[source]
path = "{DATA}"
kind = "samples"
center = true
[algorithm]
target_rank = 3
[row_limit]
first = {FIRST}
[clip]
low = -3
high = 3.0
"""
SET = ("--set", f"row_limit.first={FIRST}", "--set", "clip.low=-3", "--set", "clip.high=3.0")
PLAIN = ("run", DATA, "-k", 3, "--kind", "samples", "--center")


def rows() -> np.ndarray:
    from npmdask_robust.waves import rows_at

    waves = rows_at(DATA)
    return np.concatenate([tile for unit in range(8) for tile in waves.tiles(unit)])


def values_of(x: np.ndarray) -> np.ndarray:
    return np.linalg.eigvalsh(x.T @ x / len(x))[:-4:-1]


def whole(done: Any) -> str:
    """What a process printed that did what it was asked."""
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def tree(folder: Path) -> dict[str, bytes]:
    """All files, but for the notes of which process came last and what ended it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    notes = ("lock", "epoch", "starts.json", "telemetry.jsonl")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.name not in notes}


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command in this process, in the folder of the test: its exit code, and what it says."""
    monkeypatch.chdir(tmp_path)
    Path("robust.toml").write_text(CONFIG)

    def run(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:  # argparse's
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return code, said.err if code else said.out

    return run


# What a person asks for, and what comes of it.


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_python_options_and_a_file_ask_the_same(command: Command) -> None:
    """Mutants: a table of the configuration that asks for nothing; a plan of another question."""
    from npmdask_robust.aspects import Clip, RowLimit

    both = RowLimit(first=FIRST), Clip(low=-3.0, high=3.0)
    npmdask.top_k(DATA, 3, kind="samples", center=True, store="python", aspects=both)
    for store, words in (("options", (*PLAIN, *SET)), ("file", ("run", "robust.toml"))):
        assert command(*words, "--store", store)[0] == 0
        same_bytes(Path("python"), Path(store))
        assert tree(Path("python"))["run.json"] == tree(Path(store))["run.json"]
    x = np.clip(rows()[:FIRST], -3, 3)
    wanted = values_of(x - x.mean(axis=0))
    np.testing.assert_allclose(npmdask.resume("file").values, wanted)
    plan = json.loads(command("plan", "robust.toml", "--json")[1])
    assert plan["outlook"]["largest"] == pytest.approx(wanted[0])
    code, said = command("plan", "robust.toml", "--set", "clip.low=4")
    assert code == BadInputError.exit_code and "low = 4.0 is not below high = 3.0" in said


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_what_was_found_says_what_was_asked_and_scores_so(command: Command) -> None:
    """Mutants: tables of other packages that no page names; rows that ``transform`` scores as they are stored."""
    command(*PLAIN, *SET, "--store", "run")
    facts = json.loads(command("inspect", "run", "--json")[1])
    assert (facts["row_limit.first"], facts["clip.high"]) == (FIRST, 3.0)
    assert command("report", "run", "-o", "run.md")[0] == 0
    page = Path("run.md").read_text()
    assert f"The first {FIRST} rows count, and no others." in page and "| clip.low | -3.0 |" in page
    np.save("other.npy", x := np.random.default_rng(1).standard_normal((70, 12)) * 5)
    found, mean = npmdask.resume("run"), np.clip(rows()[:FIRST], -3, 3).mean(axis=0)
    wanted = (np.clip(x, -3, 3) - mean) @ found.basis
    assert command("transform", "run", "other.npy", "scores.npy")[0] == 0
    for scores in (found.scores("other.npy"), np.load("scores.npy")):
        np.testing.assert_allclose(scores, wanted, atol=1e-12)
    assert command("deflate", "run", 1, "--store", "more")[0] == 0
    assert len(npmdask.resume("more").values) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_it_answers_by_a_route_of_its_own(command: Command) -> None:
    """Mutant: a question that is answered by products of the rows as they are."""
    signs = (*PLAIN, "--set", "signs.on=true")
    assert command(*signs, "--set", f"row_limit.first={FIRST}", "--store", "run")[0] == 0
    x = rows()[:FIRST]
    directions = (y := x - x.mean(axis=0)) / np.linalg.norm(y, axis=1)[:, None]
    found = npmdask.resume("run")
    np.testing.assert_allclose(found.values, wanted := values_of(directions))
    assert found.explained_share == pytest.approx(wanted.sum()) and found.certificate is None
    np.testing.assert_allclose(found.scores(x), y @ found.basis, atol=1e-12)
    code, said = command(*signs, "--algorithm", "gram")
    assert code == RefusedError.exit_code and "signs is for centred rows" in said


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_its_command_and_its_words_are_there_with_it(command: Command, package: Package) -> None:
    """Mutant: commands of other packages that are no part of the help."""
    wrong = BadInputError.exit_code
    assert "find the smallest and the largest entry" in command("--help")[1]
    assert json.loads(command("ranges", DATA, "--store", "r", "--json")[1])["high"][-1] == 100.0
    assert command("report", "r", "-o", "r.md")[0] == 0 and "| 11 | " in Path("r.md").read_text()
    assert json.loads(command("inspect", "r", "--json")[1])["absolute"] is False
    for words, said in (
        (("rangs", DATA), "did you mean 'ranges'?"),
        ((*PLAIN, "--set", "clip.lo=1"), "did you mean 'clip.low'?"),
        ((*PLAIN, "--set", "clip=1"), "clip is a table"),
    ):
        assert (found := command(*words))[0] == wrong and said in found[1]
    package.remove()
    assert "find the smallest" not in command("--help")[1]
    for words, said in (
        (("ranges", DATA, "--store", "s"), "there is no command ranges"),
        (("run", "robust.toml"), "unknown key 'row_limit'"),
        ((*PLAIN, *SET), "unknown key 'row_limit.first'"),
        (PLAIN, f"{DATA} is a URL"),
    ):
        assert (found := command(*words))[0] == wrong and said in found[1]


@pytest.mark.usefixtures("package")
def test_a_configuration_keeps_its_tables(tmp_path: Path) -> None:
    """As text, as JSON, with changes, in its schema; and refuses them where they mean nothing."""
    (tmp_path / "robust.toml").write_text(CONFIG)
    found = load_config(tmp_path / "robust.toml")
    specs = [table.aspect(Any).spec() for table in found.of_others.values()]  # type: ignore[arg-type, union-attr]
    assert specs == [{"row_limit": {"first": FIRST}}, {"clip": {"low": -3.0, "high": 3.0}}]
    assert RunConfig.model_validate(found.model_dump(mode="json")) == found
    assert validate_config(tomllib.loads(render_config(found))).of_others == found.of_others
    changed = config_of_tables(found, changes={"clip.low": -1.0})
    assert changed.of_others["clip"].low == -1.0  # type: ignore[attr-defined]
    assert {"row_limit", "clip", "signs"} <= json.loads(schema_text())["properties"].keys()
    tables = tomllib.loads(CONFIG)
    with pytest.raises(BadInputError, match=r"the configuration: clip\.low = 'x'"):
        validate_config(tables | {"clip": {"low": "x", "high": 1.0}})
    with pytest.raises(BadInputError, match="takes no row_limit, clip: leave it out"):
        validate_config(tables | {"stream": {}}).stream_problem()
    node = {"mechanism": {"name": "none"}, "source": {"path": DATA}}
    with pytest.raises(RefusedError, match=r"leave the table \[row_limit\] out"):
        validate_config(tables | node).node()


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_its_source_is_one_like_any_other(command: Command, package: Package) -> None:
    """Mutant: ``_opener_of`` that knows the group ``npmdask.sources`` alone."""
    assert json.loads(command("inspect", DATA, "--json")[1])["rows"] == 400
    plain = (*PLAIN, "--algorithm", "krylov")
    assert command(*plain, "--store", "whole")[0] == command(*plain, "--set", "stop.tol=1e-3", "--store", "run")[0] == 0
    np.testing.assert_allclose(found := npmdask.resume("whole").values, values_of((x := rows()) - x.mean(axis=0)))
    package.remove()
    answered = npmdask.resume("whole")  # without its data
    assert (answered.values == found).all() and f"{DATA} is a URL" in answered.warnings[-1]
    code, said = command("resume", "run", "--tol", "1e-9")
    assert code == BadInputError.exit_code and f"{DATA} is a URL" in said


# Processes: those of a cluster, one that is killed, and one that has not the package.


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_workers_import_it(there: Run, command: Command) -> None:
    """Asked for by Python and by a key of the configuration; bits are those of threads."""
    code = f"""
import sys
import npmdask
from npmdask.cli.main import main
from npmdask_robust.aspects import Clip, RowLimit
if __name__ == "__main__":
    from distributed import Client, LocalCluster
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        both = RowLimit(first={FIRST}), Clip(low=-3.0, high=3.0)
        npmdask.top_k("{DATA}", 3, kind="samples", center=True, store="cluster", aspects=both, cluster=cluster)
        key = f"run.cluster={{cluster.scheduler_address}}"
        assert main(["run", "robust.toml", "--set", key, "--store", "key"]) == 0
        with Client(cluster) as client:
            assert all(client.run(lambda: "npmdask_robust.aspects" in sys.modules).values())
"""
    whole(there(code))
    assert command("run", "robust.toml", "--store", "threads")[0] == 0
    for store in ("cluster", "key"):
        same_bytes(Path("threads"), Path(store))


KILLED = """
import os, signal, sys
from npmdask.core.checkpoint.store import RunStore
from npmdask.cli.main import main

commit = RunStore.commit_step
def commit_and_die(store, step, *more):
    commit(store, step, *more)
    if step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
RunStore.commit_step = commit_and_die
main(sys.argv[1:])
"""
POWER = ("--algorithm", "power", "--set", "algorithm.iteration_rank=4")
JOBS: dict[str, tuple[tuple[object, ...], type[NpmdaskError], str]] = {
    "aspects": ((*PLAIN, *SET, *POWER), RefusedError, "'clip' needs the feature 'clip'"),
    "route": ((*PLAIN, *POWER, "--set", "signs.on=true"), RefusedError, "'signs' needs the feature 'signs'"),
    "kind": (("ranges", DATA, "--absolute"), BadInputError, "no known kind of run: ranges; load the package"),
}


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_killed_run_waits_for_its_package(
    job: str, package: Package, command: Command, there: Run, gone: Run
) -> None:
    """It is refused by name where that is gone, is left as it is, and goes on to the same bits where that is back."""
    words, error, said = JOBS[job]
    assert command(*words, "--store", "runs/whole")[0] == 0
    assert there(KILLED, *words, "--store", "runs/run").returncode == -signal.SIGKILL
    package.remove()
    before = tree(Path("runs"))
    done = gone("resume", "runs/run")
    assert done.returncode == error.exit_code and said in done.stderr and len(done.stderr.splitlines()) == 1
    for asked in (("resume", "runs/whole"), ("report", "runs/whole", "-o", "page.md"), ("report", "runs/run")):
        assert (found := command(*asked))[0] == error.exit_code and said in found[1]
    assert states(command) == {"whole": "finished", "run": "unfinished"}
    if job == "kind":  # what may go of it, its package alone knows
        swept = command("gc", "runs", "--older-than", "0s", "--results", "--unfinished", "--json")[1]
        assert json.loads(swept)["gone"] == []
    assert tree(Path("runs")) == before
    whole(there("resume", "runs/run"))
    same_bytes(Path("runs/whole"), Path("runs/run"))
    package.install()
    assert states(command) == {"whole": "finished", "run": "finished"}


def states(command: Command) -> dict[str, str]:
    return {one["name"]: one["state"] for one in json.loads(command("status", "runs", "--json")[1])["runs"]}


@pytest.mark.slow
def test_packages_are_looked_for_only_where_something_is_asked_of_them(command: Command) -> None:
    """Looking takes a fifth of the time of the shortest command. Mutant: ``targets`` that asks them first."""
    np.save("x.npy", np.random.default_rng(0).standard_normal((60, 6)))
    features.from_outside.cache_clear()
    for words in (("run", "x.npy", "-k", 2, "--store", "r"), ("resume", "r"), ("inspect", "r"), ("status", ".")):
        assert command(*words)[0] == 0
    assert features.from_outside.cache_info().misses == 0
    assert "ingest" in command("--help")[1]
    assert features.from_outside.cache_info().misses == 1


# What would be certified and wrong, if the core did not hold the rule.


@pytest.mark.slow
@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
@pytest.mark.parametrize("how", [{"center": True}, {"center": True, "scale": True}])
def test_what_ingest_recorded_is_of_entries_as_they_are(how: dict[str, bool], dtype: str, tmp_path: Path) -> None:
    """A reading need not know that means are recorded. Mutant: ``prepared`` that keeps them."""
    from npmdask_robust.aspects import Clip

    x = (np.random.default_rng(0).standard_normal((400, 8)) * np.geomspace(50, 10, 8) + 30).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    npmdask.ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples")
    assert open_source(tmp_path / "x.zarr").statistics is not None
    found = npmdask.top_k(tmp_path / "x.zarr", 3, aspects=[Clip(low=-20, high=20)], **how)
    assert found.certificate is not None
    y = np.clip(x.astype(float), -20, 20)
    y = (y - y.mean(axis=0)) / (y.std(axis=0) if "scale" in how else 1)
    off = np.abs(found.values - values_of(y)).max()
    assert off <= found.certificate["levels"][0]["value_errors"][0] + 1e-13 * found.values[0]
    whole = npmdask.top_k(tmp_path / "x.zarr", 3, aspects=[Clip(low=-1e6, high=1e6)], **how)
    np.testing.assert_allclose(whole.values, npmdask.top_k(tmp_path / "x.zarr", 3, **how).values, rtol=1e-6)


@pytest.mark.usefixtures("package")
def test_only_a_reading_changes_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are scored later would be read as they are. Mutant: ``make_problem`` that believes an aspect."""
    from npmdask_robust.aspects import Clip, RowLimit

    assert npmdask.top_k(ROWS, 2, aspects=[RowLimit(first=50)], **HOW).converged
    monkeypatch.setattr(RowLimit, "source", lambda self, source, request: Clip(low=-1, high=1).source(source, request))
    with pytest.raises(BadInputError, match="a limit of rows changes entries: RowLimit must be a Reading"):
        npmdask.top_k(ROWS, 2, aspects=[RowLimit(first=50)], **HOW)


@pytest.mark.usefixtures("package")
def test_a_route_of_a_package_gets_no_certificate() -> None:
    """It says that it is certified. Mutant: ``Problem.certified`` that believes it."""
    from npmdask_robust.signs import BY_SIGNS, Signs

    assert BY_SIGNS.certified and npmdask.top_k(ROWS, 2, **HOW).certificate is not None
    found = npmdask.top_k(ROWS, 2, aspects=[Signs()], **HOW)
    assert found.converged and found.certificate is None


# Aspects of another package beside ours.


RNG = np.random.default_rng(0)
ROWS, WORTH = RNG.standard_normal((90, 6)) * np.arange(6.0, 0.0, -1.0), RNG.uniform(0.1, 2, 90)
HOW: dict[str, Any] = {"kind": "samples", "center": True, "tol": 1e-12}


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("algorithm", ["krylov", "gram"])
def test_views_multiply(algorithm: str) -> None:
    """Mutant: ``View.weighing`` that puts the new weights in the place of the old ones."""
    from npmdask_robust.aspects import RowLimit

    both = npmdask.top_k(ROWS, 2, row_weights=WORTH, aspects=[RowLimit(first=50)], algorithm=algorithm, **HOW)
    fewer = npmdask.top_k(ROWS[:50], 2, row_weights=WORTH[:50], algorithm=algorithm, **HOW)
    np.testing.assert_allclose(both.values, fewer.values, rtol=1e-9)
    one, two = RowLimit(first=50), Weights(rows=WORTH)
    views = [seen(each, Extent(90), AS_STORED).row_weight for each in ([one, two], [two, one])]
    assert views[0].tobytes() == views[1].tobytes()  # type: ignore[union-attr]
    assert ordered((one, None, two)) == ordered((two, one))


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_a_store_is_of_its_question(tmp_path: Path) -> None:
    """Without its package a run would be another question. Mutant: no ``version.aspects``."""
    from npmdask_robust.aspects import RowLimit

    np.save(tmp_path / "x.npy", ROWS)
    how = HOW | {"store": tmp_path / "run"}
    npmdask.top_k(tmp_path / "x.npy", 2, aspects=[RowLimit(first=50)], **how)
    spec = json.loads((tmp_path / "run" / "run.json").read_text())
    assert spec["row_limit"] == {"first": 50} and spec["version"]["aspects"] == ["row_limit"]
    first = npmdask.resume(tmp_path / "run")
    assert first.data_passes == 0 and first.analysed.row_weight == 50
    for other in ([], [RowLimit(first=49)]):
        with pytest.raises(RefusedError, match=r"row_limit\.first"):
            npmdask.top_k(tmp_path / "x.npy", 2, aspects=other, **how)


@pytest.mark.usefixtures("package")
def test_what_does_not_go_with_it_says_its_name() -> None:
    from npmdask_robust.aspects import Clip, RowLimit
    from npmdask_robust.signs import Signs

    gappy, limit = np.where(RNG.random(ROWS.shape) < 0.1, np.nan, ROWS), RowLimit(first=50)
    request = Request(target_rank=2, center=True, aspects=(limit, find_gaps(missing="pairwise")))
    with pytest.raises(RefusedError, match="row_limit with missing = 'pairwise'"):
        make_problem(open_source(gappy, "samples"), request)
    promise = Privacy(epsilon=1.0, delta=1e-6, neighboring_relation="record_replace", clip_norm=1.0, ledger="x")
    with pytest.raises(RefusedError, match="a limit of rows is not for private runs"):
        make_problem(
            open_source(ROWS, "samples"), Request(target_rank=2, max_steps=2, privacy=promise, aspects=(limit,))
        )
    for given, said in (([3], r"aspects = \[3\]: give objects"), ([limit, limit], "give one of each")):
        with pytest.raises(BadInputError, match=said):
            npmdask.top_k(ROWS, 2, aspects=given)
    with pytest.raises(BadInputError, match="clip and signs: give one of each, and one that changes entries"):
        npmdask.top_k(ROWS, 2, aspects=[Signs(), Clip(low=0, high=1)], **HOW)


def test_an_aspect_of_no_package_is_refused(package: Package) -> None:
    """Its run could not be resumed."""
    from npmdask_robust.aspects import RowLimit

    package.remove()
    with pytest.raises(BadInputError, match="no aspect that npmdask knows as 'row_limit'"):
        npmdask.top_k(ROWS, 2, aspects=[RowLimit(first=50)])


@pytest.mark.parametrize(
    ("value", "said"),
    [("broken_npm:IT", "ModuleNotFoundError"), ("math:pi", "float is no npmdask.core.features.Feature")],
)
def test_a_package_that_is_broken_is_named(
    value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence, also of the help; what asks for nothing of other packages works."""
    (tmp_path / "broken-1.dist-info").mkdir()
    (tmp_path / "broken-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (tmp_path / "broken-1.dist-info" / "entry_points.txt").write_text(f"[npmdask.features]\nit = {value}\n")
    monkeypatch.syspath_prepend(tmp_path)
    features.from_outside.cache_clear()
    assert npmdask.top_k(ROWS, 2).converged
    assert main(["--help"]) == BadInputError.exit_code
    shown = capsys.readouterr().err
    assert f"{value!r}, of a package, cannot be imported" in shown and said in shown
    features.from_outside.cache_clear()
