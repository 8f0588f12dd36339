"""Gaps and weights of private runs: what counts as what, that neighbours stay neighbours, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask
from npmdask.accounting import Budget
from npmdask.api import resume
from npmdask.cli.main import main
from npmdask.config import load_config
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.manage.report import write_report
from npmdask.missing.gaps import RULES, with_missing
from npmdask.missing.rules import Fill, find_fill
from npmdask.privacy.account import bound_to
from npmdask.privacy.clipped_rows import ClippedGram
from npmdask.privacy.neighbors import make_relation
from npmdask.privacy.public_rule import PublicRule
from npmdask.privacy.request import Privacy
from npmdask.private_pca.estimator import PrivatePCA
from npmdask.streaming.transform import transform
from npmdask.weights.aspect import Weights
from tests.privacy.runs.conftest import (
    COLUMNS,
    POWER,
    RANK,
    World,
    gappy,
    make_world,
    ruled,
    with_aspects,
    with_rule,
)

PROMISE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.5}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ingested store with gaps, which no test changes."""
    folder = tmp_path_factory.mktemp("gaps")
    np.save(folder / "x.npy", gappy(60))
    ingest(folder / "x.npy", folder / "x.zarr", non_finite="missing")
    return folder / "x.zarr"


def asked(store: Path, relation: str, **request: Any) -> Any:
    """The problem of a request; no ledger is looked at."""
    privacy = Privacy(neighboring_relation=relation, **PROMISE | request.pop("privacy", {}))
    kind = request.pop("kind", "samples")
    return make_problem(
        open_source(store, kind, exact=False), Request(privacy=privacy, **with_aspects(POWER | request))
    )


def exact(problem: Any, block: np.ndarray) -> np.ndarray:
    """What is released of the data before its noise, in units of the grid."""
    operator = problem.operator()
    parts = (operator.partial(range(i, i + 1), operator.prepare(block)) for i in range(operator.units))
    found: np.ndarray = operator.finish(reduce(operator.join, parts), operator.prepare(block))
    return found


def test_a_run_multiplies_by_the_records_that_the_rule_makes(store: Path) -> None:
    x, rule = gappy(60), ruled(60)
    made = np.where(np.isnan(x), rule["fill"].values, x)
    made *= np.sqrt(rule["aspects"][-1].columns)
    made *= np.sqrt(rule["aspects"][-1].rows)[:, None]
    reader: Any = open_source(made, "samples").reader
    block = np.linalg.qr(np.random.default_rng(0).standard_normal((COLUMNS, 4)))[0]
    for whole in (False, True):
        X = np.eye(COLUMNS) if whole else block
        extra = {"algorithm": "covariance", "max_steps": None, "iteration_rank": None} if whole else {}
        problem = asked(store, "record_replace", **rule | extra)
        plain = replace(problem, recipe=Plain(ClippedGram(reader=reader, clip_norm=1.5, whole=whole)))
        np.testing.assert_array_equal(exact(problem, X), exact(plain, X))
        assert problem.recipe.scale(problem.source) == 1 / rule["aspects"][-1].rows.sum()
        assert "weight of all rows" in problem.recipe.values_are(problem.source)


class Plain:
    """A recipe that is an operator and nothing else."""

    def __init__(self, operator: Any) -> None:
        self.made = operator

    def operator(self, source: Any) -> Any:
        return self.made


@pytest.mark.slow
@pytest.mark.parametrize("marks", [(), (-7.0, 1e9)])
@pytest.mark.parametrize("relation", ["record_replace", "record_zero_out", "record_add_remove"])
def test_neighbours_with_gaps_and_weights_are_no_further_apart_than_the_sensitivity(
    relation: str, marks: tuple[float, ...]
) -> None:
    """A record that has gaps in one world and none, or others, in the other; wild sizes; some pairs come near."""
    rng, d, nearest = np.random.default_rng(0), 5, 0.0
    rel = make_relation(relation, clip_norm=0.8)
    for _ in range(60):
        x = rng.standard_normal((9, d)) * np.exp(rng.uniform(-2, 4, (9, 1)))
        x[rng.random(x.shape) < 0.3] = np.nan
        other = x.copy()
        other[4] = 0.0 if relation == "record_zero_out" else rng.standard_normal(d) * np.exp(rng.uniform(-2, 6))
        if relation == "record_replace" and rng.random() < 0.5:
            other[4] = np.where(np.isnan(x[4]), other[4], np.nan)  # what was missing is there, and the other way round
        other = np.delete(x, 4, axis=0) if relation == "record_add_remove" else other
        rows = None if relation == "record_add_remove" else np.exp(rng.uniform(-3, 3, 9))
        view = npmdask.core.operators.View(column_weight=np.exp(rng.uniform(-3, 3, d)), row_weight=rows)
        fill = float(np.exp(rng.uniform(-3, 6)))
        block = np.linalg.qr(rng.standard_normal((d, 2)))[0]
        sums = []
        for data in (x, other):
            if marks:
                data = np.where(np.isnan(data), rng.choice(marks, data.shape), data)
            reader: Any = with_missing(open_source(data, "samples"), "fill", fill, marks).reader
            operator = ClippedGram(reader=reader, clip_norm=0.8, view=view)
            X = operator.prepare(block)
            sums.append(operator.finish(operator.partial(range(operator.units), X), X) * operator.rounding(2).grid)
        moved = float(np.linalg.norm(sums[0] - sums[1]))
        allowed = rel.sensitivity(operator.prepare(block)) + operator.rounding(2).l2
        assert moved <= allowed
        nearest = max(nearest, moved / allowed)
    assert nearest > 0.7


@pytest.mark.slow
def test_an_entry_may_be_missing_where_it_may_change_as_far(tmp_path: Path) -> None:
    """From there to missing is as far as the sum of the bound and of what gaps count as."""
    x = np.random.default_rng(0).uniform(-1, 1, (20, 6))
    x[3, 2] = np.nan
    np.save(tmp_path / "x.npy", x)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="matrix", non_finite="missing")
    how = {"kind": "matrix", "missing": "fill", "max_steps": 2}
    with pytest.raises(RefusedError, match=r"moves by up to 1\.5 .*Set change = 1\.5"):
        asked(tmp_path / "x.zarr", "entry", **how, fill=Fill(values=0.5), privacy={"clip_norm": 1.0, "change": 1.4})
    allowed = {"clip_norm": 1.0, "change": 1.5}
    problem = asked(tmp_path / "x.zarr", "entry", **how, fill=Fill(values=0.5), privacy=allowed)
    block = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 4)))[0]
    moved = []
    for value in (-1.0, 1.0, -9.0):  # of the entry that is missing
        other = np.where(np.isnan(x), value, x)
        np.save(tmp_path / "y.npy", other)
        ingest(tmp_path / "y.npy", tmp_path / "y.zarr", kind="matrix", overwrite=True)
        there = asked(tmp_path / "y.zarr", "entry", kind="matrix", max_steps=2, privacy=allowed)
        grid = there.mechanism.rounding.grid
        moved.append(np.linalg.norm((exact(there, block) - exact(problem, block)) * grid))
    allowed_move = problem.mechanism.sensitivity(problem.operator().prepare(block), rows=20)
    row = np.linalg.norm(block[2])
    np.testing.assert_allclose(moved, np.array([1.5, 0.5, 1.5]) * row, rtol=1e-6)
    assert max(moved) <= allowed_move


@pytest.mark.slow
def test_marked_values_count_as_missing_ones(store: Path, tmp_path: Path) -> None:
    """The very sums of the store with NaN, of floats and of integers; what is not a mark is a value."""
    marked, whole = np.where(np.isnan(gappy(60)), -99.0, gappy(60)), np.arange(60 * COLUMNS).reshape(60, COLUMNS) % 7
    gaps = np.where(whole == 3, np.nan, whole)
    for name, values in {"marked": marked, "whole": whole, "gaps": gaps}.items():
        np.save(tmp_path / f"{name}.npy", values)
        ingest(tmp_path / f"{name}.npy", tmp_path / f"{name}.zarr", kind="samples", non_finite="missing")
    block = np.linalg.qr(np.random.default_rng(0).standard_normal((COLUMNS, 4)))[0]
    for one, other, mark in (
        (tmp_path / "marked.zarr", store, -99.0),
        (*(tmp_path / f"{n}.zarr" for n in ("whole", "gaps")), 3.0),
    ):
        wanted = exact(asked(other, "record_replace", **FILL), block)
        found = asked(one, "record_replace", **FILL, missing_values=(mark,))
        np.testing.assert_array_equal(exact(found, block), wanted)
        assert (exact(asked(one, "record_replace", **FILL, missing_values=(-5.5,)), block) != wanted).any()
        assert found.recipe.tables()["privacy"] is not None and found.spec()["data"]["missing_values"] == [mark]


def test_marks_are_in_the_rule_that_is_written_down() -> None:
    rule = PublicRule(fill=0.5, filled=0.5, marks=(-9.0, -8.0))
    assert rule.spec() == {"missing_fill": 0.5, "missing_values": [-9.0, -8.0]}
    assert rule.clause == "; before that a missing value (NaN or -9 or -8) counts as 0.5"
    assert PublicRule(fill=0.5, filled=0.5).clause == "; before that a missing value counts as 0.5"
    assert len({bound_to("print", {"public_rule": r.spec()}) for r in (rule, replace(rule, marks=(-9.0,)))}) == 2


def test_a_record_of_zeros_that_is_marked_as_missing_would_move_the_sum(tmp_path: Path) -> None:
    """Of record_zero_out a record of zeros is nobody: made one of fills it would be somebody."""
    np.save(tmp_path / "x.npy", gappy(60))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", non_finite="missing")
    how = {"missing": "fill", "fill": Fill(values=1.0), "missing_values": (0.0,)}
    asked(tmp_path / "x.zarr", "record_replace", **how)
    with pytest.raises(RefusedError, match="missing_values = 0 with record_zero_out"):
        asked(tmp_path / "x.zarr", "record_zero_out", **how)


FILL = {"missing": "fill", "fill": Fill(values=0.0)}
COLUMN, ROW = Weights(columns=np.ones(COLUMNS)), Weights(rows=np.ones(60))
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("record_replace", {}, r"may hold missing values \(whether it does was not checked\): set missing = 'fill'"),
    *(
        ("record_replace", {"missing": rule}, "depends on the data, which a private run may not reveal")
        for rule in RULES
        if rule not in ("refuse", "fill")
    ),
    ("record_add_remove", FILL | {"aspects": (ROW,)}, "gives all later records other weights"),
    (
        "record_replace",
        FILL | {"aspects": (ROW,), "algorithm": "k-dp-pca", "options": {}},
        "means over batches of equal",
    ),
    ("record_replace", FILL | {"aspects": (Weights(columns=np.ones(3)),)}, "there are 3 column_weights"),
    ("record_replace", {"missing_values": (-9.0,)}, "set missing = 'fill' with a public missing_fill"),
    ("entry", FILL | {"kind": "matrix", "max_steps": 2, "missing_values": (-9.0,)}, r"Set change = 1\.5"),
    ("record_replace", FILL | {"center": True}, "does not centre or scale"),
    ("record_replace", {"missing": "fill", "fill": Fill(values=np.ones(3))}, "missing_fill has shape"),
    ("entry", FILL | {"kind": "matrix", "max_steps": 2}, r"entry and change = 1: .*Set change = 1\.5"),
    (
        "entry",
        FILL | {"kind": "matrix", "aspects": (COLUMN,), "privacy": {"change": 9.0}},
        "change times the root of its weight",
    ),
    (
        "entry",
        FILL | {"kind": "matrix", "aspects": (ROW,), "privacy": {"change": 9.0}},
        "change times the root of its weight",
    ),
    ("spectral_norm", FILL | {"kind": "matrix"}, "where entries are missing is not defined"),
]


@pytest.mark.parametrize(("relation", "request_", "said"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_not_proved_is_refused_without_a_look(
    store: Path, monkeypatch: pytest.MonkeyPatch, relation: str, request_: dict[str, Any], said: str
) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(npmdask.core.storage.readers.dense.DenseReader, "tiles", lambda *a: looked.append(a))
    if request_.get("algorithm") == "k-dp-pca":
        request_ = request_ | {"max_steps": None, "iteration_rank": None}
    with pytest.raises((BadInputError, RefusedError), match=said) as caught:
        asked(store, relation, **request_)
    assert not looked
    assert not re.search(r"\b(row|column) \d|\d+ of \d+", str(caught.value)), "a place or a count"


def test_a_public_number_is_asked_for_and_checked(tmp_path: Path) -> None:
    assert find_fill("refuse", None) is None
    assert find_fill("fill", 2).spec == 2.0  # type: ignore[union-attr]
    np.save(tmp_path / "fill.npy", np.arange(3.0))
    assert find_fill("fill", tmp_path / "fill.npy").values.tolist() == [0.0, 1.0, 2.0]  # type: ignore[union-attr]
    for rule, given, said in (
        ("fill", None, "needs missing_fill"),
        ("mean", 0.0, "replaces gaps with missing = 'fill'"),
        ("fill", np.nan, "one finite number"),
        ("fill", np.zeros((2, 2)), "one finite number"),
        ("fill", [], "one finite number"),
        ("fill", str(tmp_path / "none.npy"), "missing_fill: .* cannot be read"),
    ):
        with pytest.raises(BadInputError, match=said):
            find_fill(rule, given)
    single = np.full((4, 3), np.nan, np.float32)
    with pytest.raises(BadInputError, match="1e\\+300, which float32 does not have"):
        with_missing(open_source(single, "samples"), "fill", 1e300)


def test_a_file_with_gaps_is_not_looked_at(tmp_path: Path) -> None:
    """Reading it into a store would say where the first gap is, which is private."""
    np.save(tmp_path / "x.npy", gappy(60))
    privacy = Privacy(neighboring_relation="record_replace", **PROMISE, ledger=str(tmp_path / "l.sqlite"), dataset="a")
    config = tmp_path / "p.toml"
    config.write_text(
        '[source]\npath = "x.npy"\n[algorithm]\ntarget_rank = 2\nmax_steps = 2\n[privacy]\nepsilon = 1.0\n'
        'delta = 1e-6\nneighboring_relation = "record_replace"\nclip_norm = 1.5\n'
    )
    for run in (
        lambda: npmdask.top_k(tmp_path / "x.npy", 2, privacy=privacy, store=tmp_path / "run"),
        lambda: npmdask.top_k(gappy(60), 2, privacy=privacy, store=tmp_path / "run"),
        lambda: load_config(config).problem(),
    ):
        with pytest.raises(RefusedError, match="was not read: a private run reads only rows that") as caught:
            run()
        assert "nan" not in str(caught.value)


def test_the_key_is_bound_to_the_rule() -> None:
    """The same step with other fills or weights is a product of other data, and must have other noise."""
    assert bound_to("print", {"mechanism": "any"}) == "print", "runs without a rule go on with their keys"
    rules = [{"missing_fill": 0.0}, {"missing_fill": 1.0}, {"column_weights": "a"}, {"row_weights": "a"}]
    assert len({bound_to("print", {"public_rule": rule}) for rule in rules}) == len(rules)


@pytest.mark.slow
def test_every_face_reaches_the_same_release(tmp_path: Path, capsys: Any) -> None:
    """Python, the command line with options and with a table, resume: one rule. Ledger and page name it."""
    world = with_rule(tmp_path)
    folder, rule = world.folder, ruled(4000)
    np.save(folder / "fill.npy", rule["fill"].values)
    np.save(folder / "rows.npy", rule["aspects"][-1].rows)
    np.save(folder / "columns.npy", rule["aspects"][-1].columns)
    table = (
        f'[source]\npath = "x.zarr"\nMORE\n[algorithm]\ntarget_rank = {RANK}\niteration_rank = 4\nmax_steps = 3\n'
        '[privacy]\nepsilon = 1.0\ndelta = 1e-6\nneighboring_relation = "record_replace"\nclip_norm = 1.5\n'
        'ledger = "ledger.sqlite"\ndataset = "people"\n'
    )
    more = 'missing = "fill"\nmissing_fill = "fill.npy"\nrow_weights = "rows.npy"\ncolumn_weights = "columns.npy"'
    (folder / "table.toml").write_text(table.replace("MORE", more))
    (folder / "bare.toml").write_text(table.replace("MORE", ""))
    found = world.solve("python")
    given = ["--missing", "fill", "--missing-fill", str(folder / "fill.npy")]
    given += ["--row-weights", str(folder / "rows.npy"), "--column-weights", str(folder / "columns.npy")]
    assert main(["plan", str(folder / "bare.toml"), *given]) == 0
    assert "a missing value counts as the public number of its column" in capsys.readouterr().out
    assert main(["run", str(folder / "bare.toml"), *given, "--store", str(folder / "options")]) == 0
    assert main(["run", str(folder / "table.toml"), "--store", str(folder / "table")]) == 0
    assert found.missing is None and found.statement is not None
    for name in ("python", "options", "table"):
        again = resume(folder / name)
        assert again.statement is not None and again.statement["mechanism"] == found.statement["mechanism"]
    assert (resume(folder / "python").basis == found.basis).all()
    block = np.eye(COLUMNS, 4)
    by_table = load_config(folder / "table.toml").problem()
    np.testing.assert_array_equal(exact(by_table, block), exact(world.problem(), block))
    rows = gappy(60)
    filled = np.where(np.isnan(rows), rule["fill"].values, rows)
    wanted = filled * np.sqrt(rule["aspects"][-1].columns) @ found.basis
    np.testing.assert_allclose(found.scores(rows), wanted)
    assert transform(found.store, rows, tmp_path / "scores").rows_with_gaps == np.isnan(rows).any(axis=1).sum()
    np.testing.assert_allclose(zarr.open_group(tmp_path / "scores")["data"][...], wanted)
    said = "a missing value counts as the public number of its column (SHA-256 "
    assert said in found.outcome.sentence and said in found.statement["public_rule"]
    (run, *_) = world.ledger.status("people").runs
    assert run.event["public_rule"] == {
        "missing_fill": rule["fill"].spec,
        "row_weights": rule["aspects"][-1].digests()["rows"],
        "column_weights": rule["aspects"][-1].digests()["columns"],
    }
    page = write_report(folder / "python").read_text()
    assert "counts as the public number of its column" in page
    count = str(int(np.isnan(gappy(4000)).sum()))
    assert count not in page and count not in json.dumps(found.statement)


@pytest.mark.slow
def test_a_run_keeps_its_marks(tmp_path: Path) -> None:
    """Resumed, scored and in the ledger; other marks are another run."""
    world = make_world(tmp_path / "world", np.where(np.isnan(gappy(4000)), -99.0, gappy(4000)))
    how: dict[str, Any] = {"privacy": world.privacy, "missing": "fill", "missing_fill": 0, "max_steps": 2}
    found = npmdask.top_k(world.data, RANK, store=tmp_path / "run", missing_values=-99, **how)
    again = resume(tmp_path / "run")
    np.testing.assert_array_equal(again.basis, found.basis)
    assert again.statement is not None and "(NaN or -99) counts as 0" in again.statement["public_rule"]
    (run, *_) = world.ledger.status("people").runs
    assert run.event["public_rule"] == {"missing_fill": 0.0, "missing_values": [-99.0]}
    rows, marked = gappy(60), np.where(np.isnan(gappy(60)), -99.0, gappy(60))
    wanted = np.where(np.isnan(rows), 0.0, rows) @ found.basis
    np.testing.assert_allclose(again.scores(marked), wanted)
    transform(tmp_path / "run", marked, tmp_path / "scores")
    np.testing.assert_allclose(zarr.open_group(tmp_path / "scores")["data"][...], wanted)
    with pytest.raises(RefusedError, match=r"data\.missing_values"):
        npmdask.top_k(world.data, RANK, store=tmp_path / "run", missing_values=-98, **how)


@pytest.mark.slow
def test_another_rule_is_another_run(tmp_path: Path) -> None:
    world = with_rule(tmp_path)
    world.solve("run")
    with pytest.raises(RefusedError, match=r"data\.missing_fill"):
        world.solve("run", world.problem(fill=Fill(values=0.0)))
    with pytest.raises(RefusedError, match=r"weights\.columns"):
        world.solve(
            "run", world.problem(aspects=(Weights(columns=np.ones(COLUMNS), rows=ruled(4000)["aspects"][-1].rows),))
        )
    assert len(world.ledger.status("people").runs) == 1


@pytest.mark.slow
def test_the_answer_is_that_of_the_filled_and_weighted_rows(tmp_path: Path) -> None:
    """With little noise, of a power method, of a covariance and as an estimator."""
    much: dict[str, Any] = {"budget": Budget(500.0, 1e-6), "epsilon": 60.0, "clip_norm": 3.0}
    world = make_world(tmp_path / "world", gappy(4000), non_finite="missing", **much)
    x, weights = gappy(4000), np.linspace(0.5, 2.0, COLUMNS)
    made = np.where(np.isnan(x), 0.0, x) * np.sqrt(weights)
    truth, vectors = np.linalg.eigh(made.T @ made / 4000)
    asked = {"privacy": world.privacy, "missing": "fill", "missing_fill": 0, "column_weights": weights}
    for name, how in {"power": {"max_steps": 4}, "covariance": {"algorithm": "covariance"}}.items():
        found = npmdask.top_k(world.data, RANK, store=tmp_path / name, **asked, **how)
        np.testing.assert_allclose(found.values, truth[:-3:-1], rtol=0.02)
        assert np.abs(vectors[:, :-3:-1].T @ found.basis).diagonal().min() > 0.999
    estimator = PrivatePCA(
        RANK,
        epsilon=60.0,
        delta=1e-6,
        row_norm=3.0,
        neighboring_relation="record_replace",
        store=tmp_path / "power",
        ledger=world.privacy.ledger,
        dataset="people",
        max_steps=4,
        missing="fill",
        missing_fill=0,
        column_weights=weights,
    )
    with pytest.warns(RuntimeWarning, match="epsilon = 60 is a very weak guarantee"):
        estimator.fit(world.data)
    assert np.abs(estimator.components_ @ vectors[:, :-3:-1]).diagonal().min() > 0.999
    rows = np.eye(COLUMNS)
    np.testing.assert_allclose(estimator.transform(rows), (rows * np.sqrt(weights)) @ estimator.components_.T)


@pytest.mark.slow
def test_people_with_gaps_are_found_again(tmp_path: Path) -> None:
    """The same records under another name, half of them with gaps: as zeros in their place."""
    world: World = make_world(tmp_path / "world", gappy(4000), non_finite="missing")
    np.save(tmp_path / "again.npy", gappy(4000)[::-1])
    ingest(tmp_path / "again.npy", tmp_path / "again.zarr", non_finite="missing")
    grant = ["ledger", "grant", "others", str(tmp_path / "again.zarr"), "--relation", "record_replace"]
    grant += [
        "--clip-norm",
        "1.5",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--ledger",
        str(world.folder / "ledger.sqlite"),
    ]
    assert main(grant) != 0
