"""Every kind of run ends with a sentence that says how wrong its answer can be: in its JSON, on its page, in what
``npmdask inspect`` says, and made anew for stores that were written without. A kind that is new and has none fails."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import pytest

from npmdask.accounting import Budget
from npmdask.api import solve, top_k
from npmdask.cli.main import main
from npmdask.core.certificates.statements import assurance_of
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.dp_pca.release import RECORD_ORACLES
from npmdask.formats.ingest import ingest
from npmdask.latent.answers import fit_latent
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.manage.report import summary, write_report
from npmdask.manage.status import inspect, status_of
from npmdask.privacy.perturb import perturb
from npmdask.privacy.request import Privacy
from npmdask.streaming import stream_components, stream_pca
from npmdask.streaming.algorithms import STREAM_REGISTRY
from npmdask.streaming.solution import is_stream, stream_status
from npmdask.topics.run import CorpusFilter, run_topics
from tests.federated.conftest import Sites, records, run_centre, sites
from tests.privacy.runs.conftest import OF_RECORDS, World, make_world, of_records, of_tensor, planted
from tests.privacy.runs.conftest import records as private_records
from tests.privacy.runs.test_perturbation import whole
from tests.streaming.common import OPTIONS, K, rows_of
from tests.streaming.test_components import OPTIONS as OF_COMPONENTS
from tests.streaming.test_components import rows_of as rows_of_components
from tests.topics.made import a_model, documents_from

__all__ = ["sites"]

# Without privacy: their certificates are tested in a room of their own.
JOBS = ("topics", "mixture", "ica")  # of stages
MATRICES = {"power", "krylov", "gram", "row-gram"}
Made = Callable[[Path], dict[str, Any]]  # makes a run in a folder below; returns its summary


def of_stream(name: str, *, held: bool) -> Made:
    def made(folder: Path) -> dict[str, Any]:
        rows, more = rows_of(2300), {"measure_rows": 900} | ({"held_out": rows_of(2300)[2000:]} if held else {})
        solution = stream_pca(rows[:2000], K, algorithm=name, options=OPTIONS[name], store=folder / "run", **more)
        return summary(solution)

    return made


def of_third_moment(folder: Path) -> dict[str, Any]:
    return summary(stream_components(rows_of_components(3300), 2, store=folder / "run", **OF_COMPONENTS))


def of_tensor_run(folder: Path) -> dict[str, Any]:
    np.save(folder / "x.npy", planted(8, 3.0))
    ingest(folder / "x.npy", folder / "x.zarr", kind="tensor", chunks=(4, 4, 4))
    return summary(top_k(folder / "x.zarr", 2, store=folder / "run"))


def of_missing(folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 2)) @ rng.standard_normal((2, 8)) + 0.3 * rng.standard_normal((400, 8))
    rows[rng.random(rows.shape) < 0.1] = np.nan
    return summary(top_k(rows, 2, kind="samples", center=True, missing="em", store=folder / "run"))


def of_topics(folder: Path) -> dict[str, Any]:
    counts = documents_from(a_model(), 400, 30)
    return summary(run_topics(counts, 4, store=folder / "run", cut=CorpusFilter(held_out=0.1)))


def of_latent(kind: str) -> Made:
    def made(folder: Path) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        rows = rng.exponential(size=(2000, 2)) @ rng.standard_normal((2, 5)) + 0.1 * rng.standard_normal((2000, 5))
        rows += 4 * rng.integers(0, 2, (2000, 1)) * np.arange(5) if kind == "mixture" else 0.0
        found = fit_latent(kind, rows, 2, store=folder / "run", resources=Resources(), observer=Observer())
        return summary(found)

    return made


def in_world(world: World, link: Path) -> dict[str, Any]:
    solution = world.solve("run")
    link.symlink_to(world.folder / "run")
    return summary(solution)


def of_private_power(folder: Path) -> dict[str, Any]:
    return in_world(make_world(folder / "world", private_records(4000)), folder / "run")


def of_private_covariance(folder: Path) -> dict[str, Any]:
    world = make_world(folder / "world", private_records(4000))
    return in_world(replace(world, asked={"target_rank": 2, "algorithm": "covariance"}), folder / "run")


def of_private_matrix(folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", 40 * rng.standard_normal((60, 2)) @ rng.standard_normal((2, 12)))
    ingest(folder / "x.npy", folder / "x.zarr", kind="matrix", chunks=(16, 12))
    promise: dict[str, Any] = {"neighboring_relation": "entry", "clip_norm": 200.0, "dataset": "x"}
    privacy = Privacy(epsilon=1.0, delta=1e-6, ledger=str(folder / "ledger.sqlite"), **promise)
    shown = {"relation": "entry", "clip_norm": 200.0, "change": 1.0, "budget": Budget(1.0, 1e-6)}
    grant_source(open_ledger(folder / "ledger.sqlite"), "x", folder / "x.zarr", **shown)
    asked = Request(privacy=privacy, target_rank=2, iteration_rank=4, max_steps=4)
    return summary(
        solve(make_problem(open_source(folder / "x.zarr", exact=False), asked), folder / "run", Resources(), Observer())
    )


def of_oracle(name: str) -> Made:
    case = next(case for case, asked in OF_RECORDS.items() if asked["algorithm"] == name and case != "paper")
    return lambda folder: in_world(of_records(folder, case), folder / "run")


def of_private_tensor(folder: Path) -> dict[str, Any]:
    return in_world(of_tensor(folder / "world", planted(size=10_000.0), clip_norm=10_000.0), folder / "run")


RUNS: dict[str, Made] = {
    **{f"stream {name}": of_stream(name, held=True) for name in OPTIONS},
    "stream online-tensor-power": of_third_moment,
    "tensor-power": of_tensor_run,
    "em": of_missing,
    "private private-power": of_private_power,
    "private covariance": of_private_covariance,
    "private private-alternating": of_private_matrix,
    "private tensor-power": of_private_tensor,
    **{f"private {name}": of_oracle(name) for name in RECORD_ORACLES},
    "topics": of_topics,
    "mixture": of_latent("mixture"),
    "ica": of_latent("ica"),
}


def test_no_kind_is_forgotten() -> None:
    """Every algorithm, oracle and job by the names that they are registered with."""
    folders = ("core.algorithms", "missing", "privacy", "streaming.algorithms", "tensors")
    packages = [import_module(f"npmdask.{folder}") for folder in folders]
    modules = [import_module(m.name) for one in packages for m in walk_packages(one.__path__, f"{one.__name__}.")]
    found = {c for module in modules for c in vars(module).values() if getattr(c, "__module__", "") == module.__name__}
    classes = [c for c in found if isinstance(c, type) and hasattr(c, "finalize")]
    named = {c.name for c in classes if isinstance(getattr(c, "name", None), str)}
    private = {f"private {c.name}" for c in classes if c.__name__.startswith("Private") and hasattr(c, "name")}
    plain = named - {name.removeprefix("private ") for name in private} | {"tensor-power"}
    kinds = {f"stream {name}" for name in STREAM_REGISTRY} | {f"private {name}" for name in RECORD_ORACLES} | private
    kinds |= plain - set(STREAM_REGISTRY) | set(JOBS)
    assert kinds - MATRICES == set(RUNS)


def sentence_of(store: Path, told: dict[str, Any]) -> str:
    """The sentence, which is one and the same wherever it is said."""
    said = told["assurance"]
    assert isinstance(said, str) and len(said) > 80 and said[0].isupper() and said.endswith("."), said
    assert not any(word in said for word in ("nan", "inf ", "None", "e+")), said
    page = write_report(store).read_text()
    assert page.count("How wrong can it be?") == 1 and html.escape(said) in page
    assert inspect(store)["assurance"] == said and status_of(store, "run").assurance == said
    return str(said)


def made_anew(store: Path) -> str:
    """What is said of the store where it was written before there were such sentences."""
    held = RunStore(store)
    found, spec = held.read_part("result"), held.read_spec()
    assert found is not None and spec is not None
    arrays, meta = found
    meta.pop("assurance")
    if is_stream(spec):
        stood = stream_status(held)
        assert stood is not None
        return replace(stood, answered=meta).assurance
    return assurance_of(spec, (arrays, meta))


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_a_run_says_how_wrong_its_answer_can_be(kind: str, tmp_path: Path) -> None:
    told = RUNS[kind](tmp_path)
    said = sentence_of(tmp_path / "run", told)
    if kind in (*JOBS, "em"):  # of which no store is older than its sentence
        return
    assert made_anew(tmp_path / "run") == said


@pytest.mark.slow
def test_a_stream_without_held_out_rows_says_what_it_does_not_know(tmp_path: Path) -> None:
    told = of_stream("oja", held=False)(tmp_path)
    assert (
        " the answer turned by " in told["assurance"]
        and "was not measured" in sentence_of(tmp_path / "run", told)
        and "held_out" in told["assurance"]
    )


@pytest.mark.slow
def test_a_copy_says_how_far_off_its_entries_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """19 of 20 entries are within what is said: 95.6 +- 0.6 % of 1140, so that both bounds are 6 deviations away.

    Mutants: one deviation; that of the diagonal.
    """
    world = of_tensor(tmp_path / "world", planted(size=100.0))
    said = perturb(world.data, tmp_path / "noisy.zarr", world.privacy).statement["assurance"]
    stated = float(said.split("19 of 20 by less than ")[1].split(";")[0])
    off = np.abs(whole(tmp_path / "noisy.zarr") - np.clip(np.load(world.folder / "x.npy"), -40, 40))
    different = np.array([off[i, j, k] for i in range(20) for j in range(i) for k in range(j)])
    assert 0.92 <= np.mean(different <= stated) <= 0.99 and np.mean(different <= stated / 2) < 0.78
    asked = ["perturb", str(world.data), str(tmp_path / "again.zarr"), "--epsilon", "0.5", "--delta", "1e-7"]
    asked += ["--relation", "tensor_entry", "--clip-norm", "40", "--quiet"]
    asked += ["--ledger", str(world.folder / "ledger.sqlite"), "--dataset", "people"]
    assert main(asked) == 0 and "19 of 20" in capsys.readouterr().out


@pytest.mark.slow
def test_the_commands_say_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr in words, in the JSON by its name."""
    np.save(tmp_path / "x.npy", planted(8, 3.0))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="tensor", chunks=(4, 4, 4))
    (tmp_path / "run.toml").write_text(
        f'[source]\npath = "{tmp_path}/x.zarr"\n[algorithm]\ntarget_rank = 2\n[run]\nstore = "{tmp_path}/run"\n'
    )
    assert main(["run", str(tmp_path / "run.toml"), "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["assurance"] in err


@pytest.mark.slow
def test_distributed_runs_say_it(sites: Sites, tmp_path: Path) -> None:
    """Real nodes, with and without noise."""
    rows = records(600, 20)
    for name, epsilon, parts, word in (
        ("private", 3.0, [rows[:300], rows[300:]], "all nodes together"),
        ("plain", None, [rows], "accurate to"),
    ):
        made = sites(parts, epsilon=epsilon, p=4, steps=4)
        more = "" if epsilon else "max_steps = 4\n"
        solution = run_centre(
            tmp_path / name, [site.url for site in made], f'{more}[run]\nstore = "{tmp_path / name}-run"\n'
        )
        assert word in sentence_of(Path(f"{tmp_path / name}-run"), summary(solution))
