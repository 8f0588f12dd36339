"""A private run from end to end: what is released, what is charged, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import stat
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npmdask.accounting import Budget, mu_for
from npmdask.api import resume, solve
from npmdask.cli.main import main
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.labels import of_columns
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, BudgetError, NpmdaskError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.manage.report import export, summary, write_report
from npmdask.manage.status import inspect
from npmdask.privacy.account import same_ledger
from npmdask.privacy.request import Privacy
from tests.privacy.runs.conftest import STEPS, World, make_world, records


@pytest.mark.slow
def test_the_released_directions_are_those_of_the_data(world: World) -> None:
    x = np.load(world.folder / "x.npy")
    clipped = x * np.minimum(1, 1.5 / np.linalg.norm(x, axis=1))[:, None]
    truth, exact = np.linalg.eigh(clipped.T @ clipped / len(x))
    solution = world.solve("run")
    assert solution.answered and not solution.converged and solution.outcome.name == "released"
    assert np.linalg.norm(solution.basis.T @ exact[:, -2:]) ** 2 > 1.95
    assert solution.value_stddevs is not None
    off = np.abs(solution.values - truth[::-1][:2])
    assert (off < 6 * solution.value_stddevs).all() and (off > 0).all()


@pytest.mark.slow
def test_two_runs_carry_different_noise_and_one_run_always_the_same(world: World) -> None:
    first, second = world.solve("a"), world.solve("b")
    assert (first.basis != second.basis).any()
    assert (world.solve("a").basis == first.basis).all()


@pytest.mark.slow
def test_the_ledger_is_charged_once_for_the_whole_run(world: World) -> None:
    world.solve("run")
    world.solve("run")  # answers from its store
    status = world.ledger.status("people")
    (run,) = status.runs
    assert run.finished and set(run.committed) == set(range(1, STEPS + 1))
    mu = mu_for(1.0, 1e-6)
    assert mu**2 * (1 - 1e-6) <= status.spent.mu_squared <= mu**2


@pytest.mark.slow
def test_the_budget_ends_and_nothing_more_is_computed(world: World) -> None:
    for store in "abc":
        world.solve(store)
    with pytest.raises(BudgetError, match="does not suffice"):
        world.solve("d")
    assert not (world.folder / "d" / "entropy").exists() and not list((world.folder / "d" / "steps").iterdir())
    assert len(world.ledger.status("people").runs) == 3


@pytest.mark.slow
def test_nothing_of_the_run_folder_is_readable_by_others_and_the_key_is_gone(world: World) -> None:
    world.solve("run")
    folder = world.folder / "run"
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert not (folder / "entropy").exists()
    assert not (folder / "pass").exists() and not (folder / "telemetry.jsonl").exists()


@pytest.mark.slow
def test_what_is_said_of_a_run_is_public(world: World) -> None:
    solution = world.solve("run")
    facts = json.dumps(summary(solution)) + json.dumps(inspect(world.folder / "run"))
    page = write_report(world.folder / "run").read_text()
    fingerprint = world.problem().source.fingerprint
    for told in (facts, page):
        assert fingerprint not in told and fingerprint[:12] not in told  # all the rest: test_taint
    assert solution.fingerprint is None and solution.bytes_read is None and solution.peak_rss_bytes is None


@pytest.mark.slow
def test_export_gives_the_release(world: World, tmp_path: Path) -> None:
    solution = world.solve("run")
    export(world.folder / "run", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as out:
        assert (out["basis"] == solution.basis).all()
        assert {"value_stddevs", "factor_left", "factor_right"} <= set(out.files)


@pytest.mark.slow
def test_low_rank_factors_are_the_last_block_and_its_release(world: World) -> None:
    """Hardt and Price, Corollary 4.3: B = X Y^T, from the last of the products that are paid for."""
    x = np.load(world.folder / "x.npy")
    x = x * np.minimum(1, 1.5 / np.linalg.norm(x, axis=1))[:, None]
    factors = world.solve("run").low_rank_factors
    left, right = (np.load(world.folder / "run" / "result" / f"factor_{side}.npy") for side in ("left", "right"))
    assert factors is not None
    np.testing.assert_array_equal(factors[0], left)
    np.testing.assert_array_equal(factors[1], right)
    exact = x.T @ x / len(x)
    assert np.linalg.norm(left.T @ left - np.eye(4)) < 1e-10
    assert np.linalg.norm(left @ right.T - exact, 2) < 0.2 * np.linalg.norm(exact, 2)


@pytest.mark.slow
def test_low_rank_factors_without_delta(world: World) -> None:
    """Corollary 4.7 with Laplace noise: all L releases share epsilon, the last of them is Y. Mutants: Y without noise,
    or noise that is not counted: the budget would buy L - 1 releases."""
    x = np.load(world.folder / "x.npy")
    x = x * np.minimum(1, 1.5 / np.linalg.norm(x, axis=1))[:, None]
    solution = world.solve("run", world.problem({"mechanism": "laplace", "delta": 0.0}))
    left, right = (np.load(world.folder / "run" / "result" / f"factor_{side}.npy") for side in ("left", "right"))
    assert solution.statement is not None and solution.statement["epsilon_spent"] == pytest.approx(1.0)
    noise = right - (x.T @ (x @ left)) / len(x)
    levels = solution.statement["noise_stddev"]
    assert len(levels) == solution.statement["releases"] == 3
    # 48 Laplace numbers, their key drawn anew in every run: beyond these limits with a probability below 1e-7
    assert 0.3 < noise.std() * len(x) / levels[-1] < 2.5


BAD = [
    ({"epsilon": 0.0}, {}, "epsilon"),
    ({"epsilon": -1.0}, {}, "epsilon"),
    ({"delta": 1.0}, {}, "delta"),
    ({"delta": 0.0}, {}, "delta"),
    ({"neighboring_relation": None}, {}, "say what is protected"),
    ({"neighboring_relation": "record_replaced"}, {}, "did you mean"),
    ({"neighboring_relation": "symmetric_entry"}, {}, "kind samples"),
    ({"clip_norm": None}, {}, "clip_norm"),
    ({"clip_norm": 0.0}, {}, "clip_norm"),
    ({"clip_norm": float("inf")}, {}, "clip_norm"),
    ({"calibration": "papre"}, {}, "did you mean"),
    ({}, {"max_steps": None}, "max_steps"),
    ({}, {"max_steps": 0}, "max_steps"),
    ({}, {"target_rank": 0.9, "iteration_rank": None}, "share"),
    ({}, {"iteration_rank": "auto"}, "auto"),
    ({}, {"tol": 1e-3}, "tolerance"),
    ({}, {"low_rank_tol": 0.1}, "whatever their results"),
    ({}, {"center": True}, "centre"),
    ({}, {"mechanism": "gaussian", "stddev": 1.0}, "is not for private runs: leave it out"),
    ({}, {"algorithm": "krylov"}, "is not for private runs: leave it out"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("privacy", "request_", "sentence"), BAD)
def test_bad_input_gets_a_sentence(world: World, privacy: dict, request_: dict, sentence: str) -> None:
    with pytest.raises(NpmdaskError, match=sentence):
        world.problem(privacy, **request_)
    assert not world.ledger.status("people").runs


@pytest.mark.slow
def test_a_password_has_no_place_in_a_configuration(world: World) -> None:
    with pytest.raises(BadInputError, match="NPMDASK_LEDGER"):
        world.problem({"ledger": "postgresql://me:secret@host/db"})


@pytest.mark.slow
def test_data_that_were_never_ingested_have_no_budget(world: World) -> None:
    with pytest.raises(RefusedError, match="ingest"):
        make_problem(
            open_source(np.ones((50, 4)), "samples"), Request(target_rank=1, max_steps=2, privacy=world.privacy)
        )


@pytest.mark.slow
def test_data_that_changed_since_the_grant_are_refused(world: World) -> None:
    np.save(world.folder / "x.npy", records(4000, seed=1))
    ingest(world.folder / "x.npy", world.data, kind="samples", chunks=(64, 12), overwrite=True)
    with pytest.raises(BudgetError, match="changed"):
        world.solve("run")


@pytest.mark.slow
def test_a_run_needs_a_grant_and_a_store(world: World) -> None:
    with pytest.raises(BudgetError, match="grant"):
        world.solve("run", world.problem({"dataset": "others"}))
    with pytest.raises(BadInputError, match="store"):
        solve(world.problem(), None, Resources())


@pytest.mark.slow
def test_a_refused_run_leaves_its_store_free(world: World) -> None:
    """Whoever follows the advice of the refusal may use the same store; one that has begun stays bound."""
    for store in "abc":
        world.solve(store)
    with pytest.raises(BudgetError, match="smaller epsilon"):
        world.solve("d")
    left = world.ledger.status("people").left_epsilon
    smaller = world.problem({"epsilon": 0.9 * left})
    assert world.solve("d", smaller).answered
    with pytest.raises(RefusedError, match=r"privacy\.epsilon"):
        world.solve("d")


@pytest.mark.slow
def test_a_ledger_is_the_same_by_any_path(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run answers whichever way its ledger is named, and refuses another ledger that exists, too."""
    world.solve("run")
    monkeypatch.chdir(world.folder)
    Path("link.sqlite").symlink_to("ledger.sqlite")
    os.mkdir("below")
    url = f"sqlite:///{world.folder}/ledger.sqlite"
    for name in ("ledger.sqlite", "below/../ledger.sqlite", "link.sqlite", url):
        again = world.solve("run", world.problem({"ledger": name}))
        assert (again.answered, again.data_passes) == (True, 0), name
    monkeypatch.setenv("NPMDASK_LEDGER", "ledger.sqlite")
    assert world.solve("run", world.problem({"ledger": None})).answered
    shutil.copy("ledger.sqlite", "other.sqlite")
    with pytest.raises(RefusedError, match=r"privacy\.ledger"):
        world.solve("run", world.problem({"ledger": "other.sqlite"}))


def test_a_database_is_the_same_by_any_spelling_of_its_url() -> None:
    one = "postgresql://owner@Host/budgets"
    for other in ("postgres://host:5432/budgets", "postgresql+psycopg://reader@HOST/budgets"):
        assert same_ledger(one, other), other
    for other in ("postgresql://owner@host/budget", "postgresql://owner@host:5433/budgets", "mysql://host/budgets"):
        assert not same_ledger(one, other), other


@pytest.mark.slow
def test_a_private_run_cannot_be_made_longer(world: World) -> None:
    world.solve("run")
    with pytest.raises(RefusedError, match="fixed before its first release"):
        resume(world.folder / "run", max_steps=9)


@pytest.mark.slow
def test_resume_of_a_finished_run_answers_without_a_pass(world: World) -> None:
    first, again = world.solve("run"), resume(world.folder / "run")
    assert again.data_passes == 0 and (again.basis == first.basis).all()


@pytest.mark.slow
def test_other_parameters_are_another_run(world: World) -> None:
    world.solve("run")
    with pytest.raises(RefusedError, match="epsilon"):
        world.solve("run", world.problem({"epsilon": 0.5}))


@pytest.mark.slow
def test_records_that_are_not_finite_count_as_nothing_and_are_not_counted(tmp_path: Path) -> None:
    """The same bits as with zero rows in their place: they are zeroed before they are clipped."""
    x = records(500)
    x[7], x[100, 3], x[200, 0] = np.nan, np.inf, -np.inf
    zeroed = np.where(np.isfinite(x).all(axis=1)[:, None], x, 0.0)
    products = []
    for name, data in (("bad", x), ("zero", zeroed)):
        np.save(tmp_path / f"{name}.npy", data)
        with pytest.raises(BadInputError, match="nan") if name == "bad" else nullcontext():
            ingest(tmp_path / f"{name}.npy", tmp_path / f"{name}.zarr", kind="samples", chunks=(64, 12))
        path = tmp_path / f"{name}-kept.zarr"
        ingest(tmp_path / f"{name}.npy", path, kind="samples", chunks=(64, 12), non_finite="zero")
        products.append(product_of(path))
    assert (products[0] == products[1]).all()


def product_of(path: Path) -> np.ndarray:
    from npmdask.core.execution.executor import Threads
    from npmdask.privacy.clipped_rows import ClippedGram

    operator = ClippedGram(reader=open_source(path, exact=False).reader, clip_norm=1.5)  # type: ignore[arg-type]
    block = operator.prepare(np.linalg.qr(np.random.default_rng(0).standard_normal((12, 3)))[0])
    return np.asarray(Threads(1).run_pass(operator, block, lambda record: None)[0])


@pytest.mark.slow
def test_clipping_everything_is_said_by_the_releases_themselves(tmp_path: Path) -> None:
    world = make_world(tmp_path / "w", records(4000), clip_norm=0.2)
    assert any("nearly every record" in w for w in world.solve("run").warnings)
    other = make_world(tmp_path / "v", records(4000), clip_norm=5.0)
    assert not other.solve("run").warnings


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["record_add_remove", "record_zero_out", "record_replace"])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_every_record_relation_and_mechanism(tmp_path: Path, relation: str, mechanism: str) -> None:
    delta = 0.0 if mechanism == "laplace" else 1e-6
    world = make_world(tmp_path / "w", records(3000), neighboring_relation=relation, mechanism=mechanism, delta=delta)
    solution = world.solve("run")
    assert solution.statement is not None and solution.statement["epsilon_spent"] <= 1.0
    scaled = relation != "record_add_remove"
    assert (solution.values.max() < 3) == scaled, "divided by n only where n is public"


def symmetric(tmp_path: Path, layout: str) -> tuple[Path, np.ndarray]:
    rng = np.random.default_rng(3)
    v = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    a = (v * np.array([400.0, -300.0, *[3.0] * 38])) @ v.T
    a = (a + a.T) / 2
    np.save(tmp_path / "a.npy", a)
    ingest(tmp_path / "a.npy", tmp_path / "a.zarr", kind="symmetric", chunks=(16, 16), layout=layout)
    return tmp_path / "a.zarr", a


def granted(world: Path, data: Path, relation: str, clip_norm: float) -> Privacy:
    ledger = open_ledger(world / "l.sqlite")
    budget = Budget(2.0, 1e-6)
    grant_source(ledger, "a", data, relation=relation, clip_norm=clip_norm, change=1.0, budget=budget)
    return Privacy(
        epsilon=1.0,
        delta=1e-6,
        neighboring_relation=relation,
        clip_norm=clip_norm,
        ledger=str(world / "l.sqlite"),
        dataset="a",
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "full"])
@pytest.mark.parametrize("relation", ["symmetric_entry", "spectral_norm", "frobenius_norm"])
def test_symmetric_matrices_keep_the_signs_of_their_values(tmp_path: Path, layout: str, relation: str) -> None:
    data, a = symmetric(tmp_path, layout)
    privacy = granted(tmp_path, data, relation, 500.0)
    problem = make_problem(
        open_source(data, exact=False), Request(target_rank=2, iteration_rank=4, max_steps=4, privacy=privacy)
    )
    solution = solve(problem, tmp_path / "run", Resources())
    assert solution.statement is not None
    noise = solution.statement["noise_stddev"][-1]
    assert np.allclose(solution.values, [400, -300], atol=8 * noise), noise
    exact = np.linalg.eigh(a)[1][:, [39, 0]]
    assert np.linalg.norm(solution.basis.T @ exact) ** 2 > 1.5
    assert solution.statement["noise_to_paper"] < 1


@pytest.mark.slow
def test_a_matrix_is_multiplied_from_both_sides_in_turn(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    u, v = (np.linalg.qr(rng.standard_normal((n, 3)))[0] for n in (60, 30))
    b = (u * np.array([900.0, 700.0, 20.0])) @ v.T
    np.save(tmp_path / "b.npy", b)
    ingest(tmp_path / "b.npy", tmp_path / "b.zarr", kind="matrix", chunks=(16, 30))
    privacy = granted(tmp_path, tmp_path / "b.zarr", "entry", 1000.0)
    source = open_source(tmp_path / "b.zarr", exact=False)
    with pytest.raises(BadInputError, match="even"):
        make_problem(source, Request(target_rank=2, max_steps=3, privacy=privacy))
    problem = make_problem(source, Request(target_rank=2, iteration_rank=4, max_steps=4, privacy=privacy))
    solution = solve(problem, tmp_path / "run", Resources())
    assert solution.statement is not None and len(solution.statement["noise_stddev"]) == 4
    assert np.allclose(solution.values, [900, 700], atol=8 * max(solution.statement["noise_stddev"]))
    left = np.load(tmp_path / "run" / "result" / "left_basis.npy")
    assert np.linalg.norm(left.T @ u[:, :2]) ** 2 > 1.9 and np.linalg.norm(solution.basis.T @ v[:, :2]) ** 2 > 1.9
    assert np.allclose(left.T @ left, np.eye(2), atol=1e-10)


@pytest.mark.slow
def test_coherence_makes_the_noise_the_same_whatever_was_released(tmp_path: Path) -> None:
    """ERR-2: with the public cap the scale does not follow X, as Theorem 4.9 needs; without it, it does."""
    data, _ = symmetric(tmp_path, "packed")
    privacy = granted(tmp_path, data, "symmetric_entry", 500.0)
    spreads = []
    for name, coherence in (("free", None), ("capped", 40.0)):
        asked = replace(privacy, coherence=coherence, epsilon=0.9)
        problem = make_problem(
            open_source(data, exact=False), Request(target_rank=2, iteration_rank=4, max_steps=3, privacy=asked)
        )
        statement = solve(problem, tmp_path / name, Resources()).statement
        assert statement is not None
        spreads.append(np.ptp(statement["noise_stddev"]))
    assert spreads[0] > 0 and spreads[1] == 0


def test_the_papers_formula_is_refused_where_it_is_unsound(tmp_path: Path) -> None:
    data, _ = symmetric(tmp_path, "packed")
    privacy = granted(tmp_path, data, "symmetric_entry", 500.0)
    asked = replace(privacy, calibration="paper", epsilon=10.0)
    with pytest.raises(RefusedError, match=r"exact accounting gives epsilon = 10\.35"):
        make_problem(open_source(data, exact=False), Request(target_rank=2, max_steps=3, privacy=asked))
    make_problem(
        open_source(data, exact=False), Request(target_rank=2, max_steps=3, privacy=replace(asked, epsilon=4.0))
    )


@pytest.mark.slow
def test_names_that_are_public_are_attached_to_what_is_written_and_not_kept(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """By who publishes the release: the run knows none. Mutant: names that do not fit cut off."""
    run, names = world.folder / "run", world.folder / "names.txt"
    world.solve("run")
    called = [f"gene-{i}" for i in range(12)]
    names.write_text("\n".join(called) + "\n")
    table, page = world.folder / "out.csv", world.folder / "page.html"
    assert main(["export", str(run), str(table), "--columns", str(names)]) == 0
    assert [line.split(",")[0] for line in table.read_text().splitlines()] == ["column", *called]
    assert main(["report", str(run), "--output", str(page), "--columns", str(names)]) == 0
    assert "gene-0" in page.read_text() and not [p for p in run.rglob("*") if p.is_file() and b"gene" in p.read_bytes()]
    names.write_text("\n".join(called[:-1]))
    capsys.readouterr()
    for command in (["export", str(run), str(table)], ["report", str(run)]):
        assert main([*command, "--columns", str(names)]) == 2
        assert "11 names of columns are given, and the components have 12" in " ".join(capsys.readouterr().err.split())
    assert main(["export", str(run), str(table), "--columns", str(world.folder / "none.txt")]) == 2
    np.save(world.folder / "plain.npy", records(50))
    assert main(["run", str(world.folder / "plain.npy"), "-k", "2", "--store", str(world.folder / "p"), "--quiet"]) == 0
    assert main(["report", str(world.folder / "p"), "--columns", str(names)]) == 2


@pytest.mark.slow
def test_no_name_and_no_number_of_rows_is_in_a_release(world: World) -> None:
    """Names of columns may have been made from the data, and the number of rows is data of theirs."""
    problem = world.problem()
    named = replace(problem.source, labels=of_columns([f"patient-{i}" for i in range(problem.d)]))
    solution = world.solve("run", replace(problem, source=named))
    again = world.solve("run", replace(problem, source=named))
    for found in (solution, again):
        assert not found.labels.columns and found.analysed.rows is None and found.mean is None
        with pytest.raises(BadInputError, match="the number of rows is not released"):
            _ = found.singular_values
        assert "patient" not in repr(found) + found._repr_html_() + str(found.to_xarray())
    files = [path for path in (world.folder / "run").rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"patient" in path.read_bytes()]
