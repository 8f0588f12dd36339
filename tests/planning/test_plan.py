"""What `npmdask plan` says before a run is held to what the run then does."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from scipy.sparse import csr_matrix
from zarr.codecs import BloscCodec, BytesCodec

import npmdask
from npmdask.cli.main import main
from npmdask.config import load_config, validate_config
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.memory import MemoryPlan, plan_memory
from npmdask.core.operators import Gram, SparseGram
from npmdask.core.runs import automatic, forming
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.readers.dense import DenseReader, ReadStats
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.planning import plan
from npmdask.planning import plan as planning
from npmdask.planning.chunk_advice import how_read
from npmdask.planning.plan import plan_lines, plan_run
from npmdask.planning.row_sample import spectrum_of
from npmdask.planning.throughput import Throughput, measure_throughput, spread_positions
from npmdask.synthetic import generate
from npmdask.theory.power import MOST, predict_passes
from tests.advice.test_mean_notes import rows_of
from tests.conftest import often, write_zarr
from tests.core.algorithms.test_gram import normal
from tests.core.operators.test_operators import ignore, write_csr

NPMDASK = [sys.executable, "-m", "npmdask.cli.main"]


def configure(folder: Path, store: str = "x.zarr", rank: int = 4, memory: str = "6GiB", more: str = "") -> Path:
    path = folder / "c.toml"
    path.write_text(
        f'[source]\npath = "{store}"\n[algorithm]\ntarget_rank = {rank}\n{more}\n'
        f'[run]\nmemory = "{memory}"\nthreads = 2\n'
    )
    return path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NPMDASK, *arguments], cwd=folder, capture_output=True, text=True)


def everything_in(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*")}


@pytest.mark.slow
def test_the_run_does_what_the_plan_said_and_the_plan_left_nothing_behind(tmp_path: Path) -> None:
    generate(tmp_path / "x.zarr", problem="spectrum", rows=80_000, columns=200, rank=4, spectrum="harmonic", length=200)
    configure(tmp_path, memory="2GiB")
    before = everything_in(tmp_path)
    said = command(tmp_path, "plan", "c.toml", "--json")
    assert said.returncode == 0, said.stderr
    assert everything_in(tmp_path) == before
    plan = json.loads(said.stdout)
    done = command(tmp_path, "run", "c.toml", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["bytes_read"] == plan["pass_bytes"] * facts["data_passes"]
    assert facts["data_passes"] / 2 <= plan["passes"] <= 2 * facts["data_passes"]
    assert plan["total_bytes"] == plan["passes"] * plan["pass_bytes"]
    assert facts["peak_rss_bytes"] <= plan["memory"]["predicted_peak"] <= 2 * 2**30
    lines = [json.loads(x) for x in (tmp_path / "runs" / "c" / "telemetry.jsonl").read_text().splitlines()]
    planned = next(line for line in lines if line["event"] == "plan")
    for name in ("state", "task", "threads", "workers", "limit"):
        assert planned[name] == plan["memory"][name], name
    assert plan["runs"] == next(line for line in lines if line["event"] == "pass")["tasks"]


@pytest.mark.slow
def test_the_lines_for_people(tmp_path: Path, capsys: Any) -> None:
    generate(tmp_path / "x.zarr", problem="spectrum", rows=20_000, columns=100, rank=4)
    assert main(["plan", str(configure(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert [line.split("  ")[0] for line in out.splitlines()] == [
        "data", "passes", "bytes", "seconds", "memory", "tasks", "reading", "chunks", "columns", "routes", "method",
        "steps", "noise", "advice", "sampling",
    ]  # fmt: skip
    assert re.search(r"about \d+ \(estimated from a sample of \d+ rows from \d+ places?, 1 of them", out)
    assert "at most 201 (max_steps = 200)" in out
    assert "iteration_rank = 14; " in out


# How chunks are read, and why not directly

PLAIN = {"compressors": None}
LAYOUTS = [
    ("directly", "plain bytes", PLAIN),
    ("decoded", "compressed (zstd)", {}),
    ("decoded", "blosc lz4 bitshuffle", {"compressors": BloscCodec(cname="lz4", shuffle="bitshuffle")}),
    ("decoded", "in shards", {**PLAIN, "chunks": (100, 40), "shards": (1000, 40)}),
    ("directly", "plain bytes", {**PLAIN, "zarr_format": 2}),
    ("through zarr", "Zarr format 2", {**PLAIN, "zarr_format": 2, "order": "F"}),
    ("through zarr", "big-endian", {**PLAIN, "serializer": BytesCodec(endian="big")}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "why", "options"), LAYOUTS, ids=str)
def test_how_the_chunks_are_read_and_why(
    tmp_path: Path, capsys: Any, how: str, why: str, options: dict[str, Any]
) -> None:
    data = np.random.default_rng(0).standard_normal((4000, 40))
    write_zarr(tmp_path / "x.zarr", data, **{"chunks": (1000, 40), **options})
    assert main(["plan", str(configure(tmp_path)), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["reading"]["how"] == how
    assert why in plan["reading"]["why"]
    assert (how == "directly") == (open_source(tmp_path / "x.zarr").reader.access.way == "direct")  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_store_in_memory_says_so() -> None:
    plan = plan_run(make_problem(open_source(np.eye(50) * np.arange(1, 51)), Request(target_rank=3)), Resources())
    assert (plan.reading.how, plan.sample_rows) == ("decoded", 50)
    assert "MemoryStore" in plan.reading.why


def test_a_big_endian_array_object_is_not_read_as_if_it_were_little_endian(tmp_path: Path) -> None:
    """Zarr writes little-endian bytes and keeps the asked dtype in the object: raw bytes would be misread."""
    data = np.random.default_rng(0).standard_normal((50, 6))
    array = zarr.create_array(tmp_path / "x.zarr", shape=data.shape, chunks=(50, 6), dtype=">f8", compressors=None)
    array[...] = data
    tiles = DenseReader(array=array).tiles(0, ReadStats())
    np.testing.assert_array_equal(np.concatenate([tile[0][1].copy() for _, tile in tiles]), data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape", "options", "complaint"),
    often(
        [
            ("matrix", (12_000, 100), {**PLAIN, "chunks": (500, 25)}, "cut the rows"),
            ("samples", (12_000, 100), {"chunks": (12_000, 100)}, "zstd without shuffle"),
            ("symmetric", (1200, 1200), {**PLAIN, "chunks": (600, 60)}, "oblong"),
            ("samples", (100_000, 100), {**PLAIN, "chunks": (100_000, 100)}, "are large"),
        ],
        0,
        1,
    ),
)
def test_the_command_that_is_advised_makes_a_store_with_nothing_to_advise(
    tmp_path: Path, kind: str, shape: tuple[int, int], options: dict[str, Any], complaint: str
) -> None:
    data = np.random.default_rng(0).standard_normal(shape)
    data = data + data.T if kind == "symmetric" else data
    write_zarr(tmp_path / "my x.zarr", data, **options)
    problem = make_problem(open_source(tmp_path / "my x.zarr", kind), Request(target_rank=2))
    layout = plan_run(problem, Resources()).layout
    assert complaint in "; ".join(layout.reasons)
    assert layout.command is not None
    words = shlex.split(layout.command)
    assert words[0] == "npmdask"
    assert main([*words[1:], "--quiet"]) == 0
    better = open_source(tmp_path / "my x-rechunked.zarr")
    plan = plan_run(make_problem(better, Request(target_rank=2)), Resources())
    assert plan.layout.reasons == ()
    assert (plan.kind, plan.reading.how) == (kind, "directly")


# Memory


@pytest.mark.slow
def test_too_little_memory_is_refused_as_by_the_run(tmp_path: Path) -> None:
    generate(tmp_path / "x.zarr", problem="spectrum", rows=1000, columns=2000, rank=4, length=50)
    configure(tmp_path, memory="50MiB")
    planned, run = command(tmp_path, "plan", "c.toml"), command(tmp_path, "run", "c.toml")
    assert (planned.returncode, run.returncode) == (3, 3)
    assert not planned.stdout
    without_figures = [re.sub(r"\d+", "N", done.stderr.splitlines()[-1]) for done in (planned, run)]
    assert without_figures[0] == without_figures[1]
    assert "memory = NMiB is too small: one thread needs N MiB" in without_figures[0]
    least = re.search(r"set memory to at least (\d+)MiB", planned.stderr)
    assert least is not None
    configure(tmp_path, memory=f"{int(least[1]) + 8}MiB")  # two processes of the same program differ by a page or two
    assert command(tmp_path, "plan", "c.toml").returncode == 0


def refusal(reader: DenseReader, p: int, limit: int, **options: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        plan_memory(Gram(reader=reader), p, 8, limit=limit, base=2**20, threads=2, workers=0, **options)
    return str(caught.value)


@pytest.mark.parametrize("locked", [0, 7])
def test_the_rank_that_is_said_to_fit_is_the_largest_that_fits(tmp_path: Path, locked: int) -> None:
    reader = DenseReader(array=zarr.open_array(write_zarr(tmp_path / "x", np.ones((64, 50_000)), compressors=None)))
    limit = 300 * 2**20
    said = refusal(reader, 60, limit, locked=locked)
    rank = int(re.search(r"iteration_rank of at most (\d+)", said)[1])  # type: ignore[index]
    assert 0 < rank < 60
    options: dict[str, Any] = {"limit": limit, "base": 2**20, "threads": 1, "workers": 0, "locked": locked}
    assert plan_memory(Gram(reader=reader), rank, 8, **options).predicted_peak <= limit
    with pytest.raises(RefusedError):
        plan_memory(Gram(reader=reader), rank + 1, 8, **options)
    default = int(re.search(r"target_rank up to (\d+) if it is left out", said)[1])  # type: ignore[index]
    assert max(2 * default, default + 10) <= rank < max(2 * (default + 1), default + 11)


def test_the_chunks_that_are_said_to_fit_do(tmp_path: Path) -> None:
    data = np.ones((16_384, 100))
    large = DenseReader(array=zarr.open_array(write_zarr(tmp_path / "large", data)))
    limit = 90 * 2**20
    rows = int(re.search(r"chunks of at most (\d+) rows", refusal(large, 10, limit))[1])  # type: ignore[index]
    small = DenseReader(array=zarr.open_array(write_zarr(tmp_path / "small", data, chunks=(rows, 100))))
    plan = plan_memory(Gram(reader=small), 10, 8, limit=limit, base=2**20, threads=1, workers=0)
    assert plan.predicted_peak <= limit
    assert "no smaller rank or chunk would fit (the processes alone take more)" in refusal(large, 10, 2**20)


def test_every_task_of_every_process_is_counted(tmp_path: Path) -> None:
    """A limit that all threads just fit is kept by all, and one that is a byte less by one fewer."""
    operator = Gram(reader=DenseReader(array=zarr.open_array(write_zarr(tmp_path / "x", np.ones((640, 50)), (64, 50)))))

    def planned(threads: int, workers: int = 0, limit: int | None = None) -> MemoryPlan:
        return plan_memory(operator, 10, 8, limit=limit, base=2**20, threads=threads, workers=workers)

    for workers, processes in ((0, 1), (3, 3)):
        one, three = planned(1, workers), planned(3, workers)
        assert three.predicted_peak - one.predicted_peak == 2 * processes * one.task > 0
        assert planned(3, workers, three.predicted_peak).threads == 3
        assert planned(3, workers, three.predicted_peak - 1).threads == 2


# The number of passes

PLANTED: list[tuple[dict[str, Any], int]] = [
    ({"problem": "spectrum", "spectrum": "harmonic", "columns": 200, "length": 200}, 6),
    ({"problem": "spectrum", "spectrum": "power", "columns": 200, "length": 200}, 6),
    ({"problem": "spectrum", "spectrum": "logspace", "columns": 200, "length": 200}, 3),
    ({"problem": "spectrum", "spectrum": "clustered", "columns": 200, "length": 200}, 6),
    ({"problem": "spiked", "columns": 1500, "stddev": 0.5}, 6),
]
NAMES = [options.get("spectrum", "spiked") for options, _ in PLANTED]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "k"), often(PLANTED, 0, 2), ids=NAMES)
def test_the_estimate_is_within_a_factor_of_two_of_real_runs(tmp_path: Path, options: dict[str, Any], k: int) -> None:
    generate(tmp_path / "x.zarr", rows=8000, rank=6, **options)
    plan = plan_run(make_problem(open_source(tmp_path / "x.zarr"), Request(target_rank=k)), Resources(threads=2))
    solution = npmdask.top_k(tmp_path / "x.zarr", k, threads=2)
    assert solution.converged
    assert plan.steps is not None
    assert plan.passes == plan.steps + (options["problem"] == "spectrum")
    assert solution.steps / 2 <= plan.steps <= 2 * solution.steps


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["symmetric", "sparse", "samples"])
def test_the_estimate_for_the_other_kinds(tmp_path: Path, kind: str) -> None:
    extra: dict[str, Any] = {"center": True, "scale": True} if kind == "samples" else {}
    problem = {"samples": "spiked"}.get(kind, kind)
    rows = {} if kind == "symmetric" else {"rows": 5000}
    generate(tmp_path / "x.zarr", problem=problem, columns=400, rank=4, **rows)
    plan = plan_run(make_problem(open_source(tmp_path / "x.zarr"), Request(target_rank=4, **extra)), Resources())
    solution = npmdask.top_k(tmp_path / "x.zarr", 4, **extra)
    assert solution.converged
    assert plan.steps is not None
    assert solution.steps / 2 <= plan.steps <= 2 * solution.steps


@pytest.mark.slow
def test_what_cannot_be_reached_is_not_promised(tmp_path: Path, capsys: Any) -> None:
    data = np.linalg.qr(np.random.default_rng(0).standard_normal((500, 100)))[0]  # all values are 1
    write_zarr(tmp_path / "x.zarr", data + 1e-4 * np.eye(500, 100), compressors=None)
    assert main(["plan", str(configure(tmp_path, more='max_steps = 30\nname = "power"'))]) == 0
    assert "will probably not be reached" in capsys.readouterr().out
    noisy = Request(target_rank=4, mechanism="gaussian", stddev=0.1)
    plan = plan_run(make_problem(open_source(tmp_path / "x.zarr"), noisy), Resources())
    assert plan.outlook is not None and not plan.outlook.reached
    assert plan.outlook.residual is not None and plan.outlook.residual > 0.1


def test_predicted_steps_fall_with_columns_and_rise_with_digits() -> None:
    spectrum = 1 / np.arange(1, 301)
    steps = [predict_passes(spectrum, 10, p, 1e-9) for p in (10, 15, 20, 40, 80)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 2 * steps[2] > 2 * steps[4]
    tight = [predict_passes(spectrum, 10, 20, tol) for tol in (1e-3, 1e-6, 1e-12)]
    # Ten digits more cost log(1e-10) / log(lambda_21 / lambda_10) multiplications in the end: q near p.
    assert tight == sorted(tight)
    np.testing.assert_allclose((tight[2] - tight[1]) / (6 * np.log(10) / np.log(21 / 10)), 1, atol=0.15)
    assert predict_passes(spectrum, 10, 12, 1e-9, "krylov") < predict_passes(spectrum, 10, 12, 1e-9, "power")
    assert predict_passes(spectrum, 10, 12, 1e-9, "krylov") < predict_passes(
        spectrum, 10, 12, 1e-9, "krylov", definite=False
    )
    with pytest.raises(ValueError, match="oja"):
        predict_passes(spectrum, 10, 12, 1e-9, "oja")


def test_predicted_steps_at_the_limits() -> None:
    assert predict_passes(np.ones(50), 5, 15, 1e-9) == MOST
    assert predict_passes(np.array([3.0, 2.0, 1.0, 0.0, 0.0]), 3, 4, 1e-9) == 2  # p is more than the rank
    assert predict_passes(np.zeros(5), 3, 4, 1e-9) == 2
    # A flat rest and a Chebyshev polynomial of it: the residual formula solved by NumPy's own T_l.
    spectrum = np.concatenate([np.full(5, 1.0), np.full(200, 0.9)])
    predicted = predict_passes(spectrum, 5, 5, 1e-8, "krylov")
    at = [np.polynomial.chebyshev.Chebyshev.basis(degree)(1 + 2 * (1 - 0.9) / 0.9) for degree in range(80)]
    residual = 200**0.5 * 0.1 / np.abs(at)
    assert predicted == 1 + int(np.argmax(residual <= 1e-8))


def test_the_spectrum_of_a_sample_is_that_of_the_whole_with_its_bias_taken_off() -> None:
    rng = np.random.default_rng(1)
    data = rng.standard_normal((6000, 300)) * np.sqrt(np.r_[30.0, 20.0, 10.0, np.ones(297)])
    data += 5.0
    mean = data.mean(axis=0)
    true = np.linalg.eigvalsh(np.cov(data.T, bias=True))[::-1]
    np.testing.assert_allclose(spectrum_of(data, mean, of_rows=6000), true, rtol=1e-8)
    for part in (data[::30], data[::8]):  # fewer rows than columns, and more
        raw = spectrum_of(part, mean, of_rows=len(part))
        corrected = spectrum_of(part, mean, of_rows=6000)
        assert np.abs(np.log(corrected[:20] / true[:20])).mean() < 0.6 * np.abs(np.log(raw[:20] / true[:20])).mean()
    thin = np.where(rng.random((90, 40)) < 0.2, 1.0, 0.0)
    for rows in (thin, thin[:30]):
        sparse, dense = (spectrum_of(form, thin.mean(axis=0), of_rows=500) for form in (csr_matrix(rows), rows))
        np.testing.assert_allclose(sparse, dense, atol=1e-12)


def test_places_are_spread_and_all_there() -> None:
    for count in (1, 2, 5, 64, 100):
        assert sorted(spread_positions(count)) == list(range(count))
    assert max(np.diff(sorted(spread_positions(1000)[:16]))) < 150


# iteration_rank = "auto"


def times(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """The real measurement, as if on a machine whose arithmetic is ``factor`` times as slow."""
    real = planning.measure_throughput

    def slower(*arguments: Any, **options: Any) -> Throughput:
        found = real(*arguments, **options)
        return replace(found, column=found.column * factor)

    monkeypatch.setattr(planning, "measure_throughput", slower)


def held_rank(store: Path) -> int:
    return int(json.loads((store / "run.json").read_text())["algorithm"]["iteration_rank"])


@pytest.mark.slow
def test_auto_is_chosen_once_and_then_pinned(tmp_path: Path) -> None:
    generate(tmp_path / "x.zarr", problem="spectrum", rows=4000, columns=150, rank=3)
    options: dict[str, Any] = {"iteration_rank": "auto", "threads": 2}
    with pytest.MonkeyPatch.context() as fast:
        times(fast, 1e-6)
        first = npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "run", **options)
    assert held_rank(tmp_path / "run") == 128
    with pytest.MonkeyPatch.context() as slow:
        times(slow, 1e6)
        again = npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "run", **options)
        npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "other", **options)
        with pytest.raises(RefusedError, match="target_rank"):
            npmdask.top_k(tmp_path / "x.zarr", 4, store=tmp_path / "run", **options)
    assert held_rank(tmp_path / "run") == 128
    assert (again.data_passes, again.basis.tobytes()) == (0, first.basis.tobytes())
    assert held_rank(tmp_path / "other") == 13  # the default: never fewer columns than that
    same = npmdask.top_k(tmp_path / "x.zarr", 3, iteration_rank=128, store=tmp_path / "given")
    assert same.basis.tobytes() == first.basis.tobytes()


@pytest.mark.slow
def test_auto_keeps_to_the_memory_limit_and_to_the_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 1e-6)
    generate(tmp_path / "x.zarr", problem="spectrum", rows=200, columns=60, rank=3)
    npmdask.top_k(tmp_path / "x.zarr", 3, iteration_rank="auto", store=tmp_path / "run")
    assert held_rank(tmp_path / "run") == 60
    source = open_source(write_zarr(tmp_path / "wide", np.ones((64, 30_000), np.float32), compressors=None))
    asked = Request(target_rank=3, iteration_rank="auto")
    base = planning.tree_rss()
    chosen = posed(asked, source, Resources(memory=base + 260 * 2**20, threads=1))
    free = posed(asked, source, Resources(threads=1))
    assert 13 <= chosen.algorithm.iteration_rank < 100
    assert free.algorithm.iteration_rank == 128


@pytest.mark.slow
def test_auto_in_a_configuration(tmp_path: Path, capsys: Any) -> None:
    generate(tmp_path / "x.zarr", problem="spectrum", rows=4000, columns=100, rank=3)
    path = configure(tmp_path, more='iteration_rank = "auto"')
    assert main(["run", str(path), "--quiet"]) == 0
    rank = held_rank(tmp_path / "runs" / "c")
    assert 14 <= rank <= 100
    assert load_config(path).problem().algorithm.iteration_rank == rank
    assert main(["run", str(path), "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["data_passes"] == 0
    for wrong in ("many", 0, True, 1.5):
        with pytest.raises(BadInputError, match=r'iteration_rank = .*must be a whole number from 1 on, or "auto"'):
            validate_config({"source": {"path": "x"}, "algorithm": {"target_rank": 1, "iteration_rank": wrong}})
    with pytest.raises(BadInputError, match="give a number"):
        make_problem(open_source(tmp_path / "x.zarr"), Request(target_rank=3, iteration_rank="auto"))


def test_no_run_takes_less_than_no_time() -> None:
    """Fewer columns than were measured, on a slope that noise made too steep. Mutant: the line as it is."""
    problem: Any = make_problem(open_source(np.eye(50)), Request(target_rank=2, iteration_rank=20))
    steep: Any = SimpleNamespace(late=1e-9, column=1e-9, step_seconds=1e-6, later=lambda more, fine=False: 1e-9 * more)
    seconds = planning._run_seconds(problem, steep, 3, 0, 2)
    assert seconds is not None and 0 < seconds < 1e-3


# algorithm = "auto" of large data


def _timed(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """Let small data count as large, and the clock say that to form the matrix takes as long as ``ratio`` passes.

    Chunks, sample and rehearsal are real; of the clock alone no test may depend.
    """
    monkeypatch.setattr(forming, "TIMED", dict.fromkeys(forming.TIMED, 0))
    for name in ("FEW", "SURE"):
        monkeypatch.setattr(automatic, name, 0)
    monkeypatch.setattr(planning, "DECOMPOSING", 0)

    def measured(*args: Any, **options: Any) -> Throughput:
        found = measure_throughput(*args, **options)
        rates = dict.fromkeys(("early", "late", "again", "late_again"), 1e-9)
        return replace(found, **rates, column=1e-13, step_seconds=0.0, formed=ratio * 1e-9)

    monkeypatch.setattr(planning, "measure_throughput", measured)


def _rows(decay: float) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((2000, 60)) * decay ** np.arange(60)
    return x @ np.linalg.qr(np.random.default_rng(1).standard_normal((60, 60)))[0]


def _chosen(x: np.ndarray, **resources: Any) -> str:
    asked = Request(target_rank=3, iteration_rank=5, tol=1e-6)
    return str(posed(asked, open_source(x, "samples"), Resources(**resources)).algorithm.name)


@pytest.mark.parametrize("ratio, steep, slow", [(1, "gram", "gram"), (9, "krylov", "gram"), (999, "krylov", "krylov")])
def test_auto_measures_what_is_large(ratio: float, steep: str, slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks need 5 passes of the steep spectrum and about 20 of the slow one: the sample tells them apart."""
    _timed(monkeypatch, ratio)
    assert (_chosen(_rows(0.5)), _chosen(_rows(0.97))) == (steep, slow)


def test_nothing_is_measured_where_the_workers_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine says nothing of them; and a store that has a run knows its way."""
    _timed(monkeypatch, 999)
    assert _chosen(_rows(0.5), cluster="tcp://127.0.0.1:1") == "gram"


@pytest.mark.slow
def test_what_to_measure_leaves_behind_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix that fitted before, and does not any more, is not formed: the run would be refused. Mutant: one look."""
    x, held = _rows(0.97), list[np.ndarray]()
    _timed(monkeypatch, 1)
    limit = planning.tree_rss() + 400 * 2**20
    assert _chosen(x, memory=limit) == "gram"
    measured = planning.measure_throughput

    def leaving(*args: Any, **options: Any) -> Throughput:
        held.append(np.ones((limit - planning.tree_rss() - 10 * 2**20) // 8))
        return measured(*args, **options)

    monkeypatch.setattr(planning, "measure_throughput", leaving)
    assert _chosen(x, memory=limit) == "krylov"


@pytest.mark.slow
def test_a_resume_goes_the_way_that_was_measured_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = _rows(0.9)
    asked: dict[str, Any] = {"kind": "samples", "tol": 1e-6, "store": tmp_path / "run"}
    _timed(monkeypatch, 1)
    before = npmdask.top_k(x, 3, **asked)
    _timed(monkeypatch, 999)
    after = npmdask.top_k(x, 3, **asked)
    assert before.steps == 1 and after.data_passes == 0
    assert after.basis.tobytes() == before.basis.tobytes()
    assert npmdask.top_k(x, 3, kind="samples", tol=1e-6).steps > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_auto_and_plan_agree_on_data_that_fit_into_memory(kind: str) -> None:
    """12000 x 180 float64 are 16.5 MiB, and one pass is sooner than several: auto forms the matrix, and plan says so.

    Of less data auto does not, and the plan says why it is not the fastest. Mutant: a threshold of 128 MiB.
    """
    rows = np.random.default_rng(0).standard_normal((12_000, 180)) / np.sqrt(np.arange(1, 181))
    for some, name in ((rows, "gram"), (rows[:700], "krylov")):
        given = csr_matrix(some) if kind == "sparse" else some
        problem = posed(Request(target_rank=3), open_source(given), Resources())
        plan = plan_run(problem, Resources())
        assert (problem.algorithm.name, plan.algorithm, plan.routes[0].algorithm) == (name, name, name)
        slower = next(route for route in plan.routes if route.algorithm != name and route.algorithm != "power").seconds
        if slower < plan.routes[0].seconds:
            assert plan.why.startswith(f"{name}, although ")
            assert ("of less than 16 MiB auto forms no matrix" in plan.why) == (name == "krylov")
    assert npmdask.top_k(rows, 3).steps == 1


@pytest.mark.slow
def test_a_plan_shows_every_way_and_why_one_is_taken(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", _rows(0.9))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples")
    problem = posed(Request(target_rank=3), open_source(tmp_path / "x.zarr"), Resources())
    plan = plan_run(problem, Resources())
    assert [route.algorithm for route in plan.routes] == ["krylov", "gram", "power"]
    krylov, gram, power = plan.routes
    assert gram.passes == 1 < krylov.passes < power.passes
    ratio = gram.seconds / krylov.seconds
    assert plan.why.startswith("krylov: gram is expected to take" if ratio >= 1 else "krylov, although gram is")
    assert f"{ratio:.2g}" in plan.why and any(line.startswith("method    krylov") for line in plan_lines(plan))


@pytest.mark.slow
def test_large_data_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the clock no test may depend: passes as slow as a disk make the small side win, free ones make it lose."""
    monkeypatch.setattr(forming, "TIMED", dict.fromkeys(forming.TIMED, 0))
    for name in ("MANY_ENTRIES", "SURE"):
        monkeypatch.setattr(automatic, name, 0)
    measured, x = plan.measure_throughput, normal(np.random.default_rng(0), 60, 2000)
    for slow, wanted in ((1.0, "row-gram"), (1e4, "krylov")):

        def clock(*args: Any, slow: float = slow, **options: Any) -> Any:
            found = measured(*args, **options)
            assert found.formed is not None and found.formed > 0
            rates = dict.fromkeys(("early", "late", "again", "late_again"), 1e-6)
            return replace(found, **rates, column=1e-13, step_seconds=0.0, formed=slow * 1e-6)

        monkeypatch.setattr(plan, "measure_throughput", clock)
        asked = Request(target_rank=3, iteration_rank=5, tol=1e-6)
        assert posed(asked, open_source(x, "samples"), Resources()).algorithm.name == wanted


@pytest.mark.slow
def test_a_plan_shows_the_small_side() -> None:
    problem = posed(Request(target_rank=3), open_source(normal(np.random.default_rng(0), 60, 2000)), Resources())
    found = plan.plan_run(problem, Resources())
    assert [route.algorithm for route in found.routes] == ["krylov", "row-gram", "power"]
    assert found.routes[1].passes == 3 < found.routes[0].passes


@pytest.mark.slow
def test_what_is_said_of_reading_sparse_data_is_what_is_done(tmp_path: Path) -> None:
    matrix = sp.random(300, 40, density=0.2, format="csr", rng=np.random.default_rng(0))
    reader = open_source(write_csr(tmp_path / "s.zarr", matrix, 500)).reader
    assert {access.way for access in reader.access.values()} == {"decoded"}
    assert how_read(reader).how == "decoded"
    (tmp_path / "s.zarr" / "X" / "data" / "c" / "1").unlink()
    with pytest.raises(BadInputError, match=r"chunk c/1 of .*X/data is missing"):
        Threads(1).run_pass(SparseGram(reader=reader), np.ones((40, 2)), ignore)


@pytest.mark.slow
def test_the_plan_is_silent_where_the_mean_is_not_what_is_found(tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "x.npy", rows_of(0.7))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    (tmp_path / "c.toml").write_text(
        f'[source]\npath = "{tmp_path}/x.zarr"\nkind = "matrix"\n[algorithm]\ntarget_rank = 2\n'
        f'[run]\nstore = "{tmp_path}/run"\n'
    )
    assert main(["plan", str(tmp_path / "c.toml")]) == 0
    assert "mean of the columns" not in capsys.readouterr().out
