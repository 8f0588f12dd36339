"""The benchmarks: every row is a row, its line has its shape, and what is measured is what is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import combinations, permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anndata
import numpy as np
import pytest
import xarray as xr
import zarr
from scipy.sparse import csr_matrix

from benchmarks import cache, chunk_access, quick
from benchmarks.__main__ import BROKEN, MISSED, measure, status
from benchmarks.card import (
    FILLED,
    chunk_files,
    part_of,
    seconds_of_one_read,
    write_genotypes,
    write_rows,
)
from benchmarks.card import (
    write_cells as write_normalised,
)
from benchmarks.cell_counts import write_cells
from benchmarks.children import last_json, own_command
from benchmarks.contest import best_peer, failures, finals, judged
from benchmarks.data import RECIPES, DataSets, write_samples
from benchmarks.docs import PAGE, read_results, write_results, write_table
from benchmarks.floor import gram_programs, programs, slab_files
from benchmarks.private_cases import make_case
from benchmarks.registry import CannotRunError, Context, Measured, NoCardError, Row, all_rows
from benchmarks.rows.cells import exact_variances
from benchmarks.rows.era5 import exact_modes, write_field
from benchmarks.rows.gram_peers import SKLEARN
from benchmarks.rows.mca_xeofs import apart, exact_patterns, write_fields
from benchmarks.rows.orchestration import PLAIN, _measured
from benchmarks.rows.tensor_surplus import is_right
from benchmarks.step_cases import real_rows
from benchmarks.tensor_cases import matched, planted
from benchmarks.tensor_floor import block_files
from benchmarks.tensor_floor import programs as contraction_floors
from benchmarks.topic_cases import topic_errors
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.experiments import symmetric_noise
from npmdask.synthetic import generate
from npmdask.xarray import EOF, MCA
from tests.conftest import often

ROOT = Path(__file__).resolve().parents[1]
KEYS = {"row", "figure", "target", "holds", "command", "machine", "details"}


def test_every_row_has_a_name_a_target_and_data_that_exist() -> None:
    rows = all_rows()
    assert len({row.name for row in rows}) == len(rows) >= 12
    for row in rows:
        assert row.target >= 0 and row.what and set(row.data) <= set(RECIPES), row.name
        beyond = 2 * row.target if row.better == "higher" else row.target / 2
        short = row.target**2 / beyond if row.target else 1.0
        assert row.holds(beyond) and not row.holds(short) and not row.holds(None)


def test_the_page_lists_every_row() -> None:
    page = PAGE.read_text()
    for row in all_rows():
        assert page.count(f"\n`{row.name}` | {row.what} |") == 1, row.name


def test_the_page_is_made_of_the_kept_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.docs.PAGE", tmp_path / "page.md")
    write_table(all_rows(), read_results())
    assert (tmp_path / "page.md").read_text() == PAGE.read_text(), "python -m benchmarks --table"


def test_the_page_is_what_the_results_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.docs.PAGE", tmp_path / "page.md")
    rows = [Row(name="a", what="x | y", target=2.0, run=lambda context: Measured(1.0, {}))]
    good = {"verdict": "right", "seconds": 3.0, "max_sin_theta": 1e-5}
    details = {"good": good, "bad": {"verdict": "wrong: 8.2e-01 (at best)", "seconds": 0.1}, "goal": 1e-4}
    line = {"row": "a", "figure": 1.0, "holds": False, "why": "slow", "details": details, "machine": {}, "seconds": 1}
    line |= {"target": 2.0}
    write_table(rows, {"a": line, "gone": line})  # a row that is no more
    page = (tmp_path / "page.md").read_text()
    assert "\n`a` | x / y | **1** | ≥ 2\n" in page and "* `a`: slow." in page and "**0 of 1 targets hold**" in page
    assert "\ngood | 3.0 |  | 1.0e-05\n" in page
    assert "\nbad | wrong: 8.2e-01 |" in page and "0.1" not in page  # its time is no time to beat
    assert "gone" not in page
    write_table(rows, {"a": line | {"holds": True, "figure": 2.5}})
    page = (tmp_path / "page.md").read_text()
    assert "| 2.5 | ≥ 2\n" in page and "**1 of 1 targets hold**." in page and "Missed targets" not in page
    write_table(rows, {"a": line | {"target": 3.0}})  # it answered another question
    page = (tmp_path / "page.md").read_text()
    assert "\n`a` | x / y | not measured | ≥ 2\n" in page and "good" not in page and "; 1 not measured." in page


def test_a_row_that_breaks_fails_the_run_and_says_why(tmp_path: Path) -> None:
    def broken(context: Context) -> Measured:
        raise CannotRunError("no disk")

    context = Context(scale="full", folder=tmp_path, data=DataSets(tmp_path, "full"))
    rows = {
        "breaks": Row(name="breaks", what="", target=1, run=broken),
        "wrong": Row(name="wrong", what="", target=1, run=lambda c: Measured(9.0, {}, failures=("peer: wrong: 0.8",))),
        "missed": Row(name="missed", what="", target=1, run=lambda c: Measured(0.5, {}, "too slow")),
        "held": Row(name="held", what="", target=1, run=lambda c: Measured(1.5, {})),
    }
    lines = {name: measure(row, context, {}) for name, row in rows.items()}
    assert [line["holds"] for line in lines.values()] == [False, False, False, True]
    assert (
        "no disk" in lines["breaks"]["why"] and "0.8" in lines["wrong"]["why"] and lines["missed"]["why"] == "too slow"
    )
    expected = {"breaks": BROKEN, "wrong": BROKEN, "missed": MISSED, "held": 0}
    assert {name: status([line], "full") for name, line in lines.items()} == expected
    assert status([lines["missed"]], "small") == 0


def test_a_row_without_its_card_is_skipped_and_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(context: Context) -> Measured:
        raise NoCardError("no NVIDIA GPU is visible here")

    monkeypatch.setattr("benchmarks.docs.RESULTS", tmp_path / "results" / "bench.json")
    rows = [Row(name=name, what="", target=2.0, run=run) for name in ("card", "other")]
    context = Context(scale="full", folder=tmp_path, data=DataSets(tmp_path, "full"))
    line = measure(rows[0], context, {})
    assert line["skipped"] == line["why"] == "no NVIDIA GPU is visible here" and not line["failures"]
    assert status([line], "full") == 0 and status([line | {"skipped": ""}], "full") == BROKEN
    before = [line | {"row": name, "figure": 3.0, "skipped": ""} for name in ("card", "other")]
    write_results(before, rows, replace_all=True)
    write_results([line], rows, replace_all=True)
    assert {name: kept["figure"] for name, kept in read_results().items()} == {"card": 3.0}


def test_only_named_rows_run_where_packages_of_others_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks.rows.orchestration", None)  # its import fails
    lacking: dict[str, str] = {}
    names = {row.name for row in all_rows(lacking)}
    assert list(lacking) == ["orchestration"] and "gpu-gram" in names and "orchestration" not in names
    with pytest.raises(ModuleNotFoundError):
        all_rows()


@pytest.mark.slow
def test_data_of_a_card_hold_their_truth(tmp_path: Path) -> None:
    k = 5
    for write, name, size in ((write_rows, "rows", 2**22), (write_genotypes, "genotypes", 2**22)):
        write(tmp_path / name, size)
        stored: Any = zarr.open_array(tmp_path / name / "x.zarr", mode="r")
        rows = stored[...]
        values, vectors = np.linalg.eigh(np.cov(rows.T.astype("f8"), bias=True))
        np.testing.assert_allclose(np.load(tmp_path / name / "values.npy")[:k], values[: -k - 1 : -1], rtol=1e-9)
        assert max_sin_theta(np.load(tmp_path / name / "truth.npy")[:, :k], vectors[:, -k:]) < 1e-9
        assert rows.shape[0] * rows.shape[1] * rows.itemsize == 2**22
        part: Any = zarr.open_array(part_of(tmp_path / name / "x.zarr", 2, tmp_path / f"{name}-part"), mode="r")
        first = part[...]
        assert len(first) == len(rows) // 2 and np.array_equal(first, rows[: len(first)])
    assert set(np.unique(rows)) == {0, 1, 2}


def test_normalised_counts_are_as_full_as_is_said_and_hold_their_truth(tmp_path: Path) -> None:
    write_normalised(tmp_path, 2**20)
    group: Any = zarr.open_group(tmp_path / "x.zarr", mode="r")
    data, indices, pointers = (group[name][...] for name in ("data", "indices", "indptr"))
    cells, genes = group.attrs["shape"]
    assert abs(len(data) / (cells * genes) / FILLED - 1) < 0.1 and data.min() > 0
    dense = csr_matrix((data, indices, pointers), shape=(cells, genes)).toarray().astype("f8")
    np.testing.assert_allclose(np.expm1(dense).sum(axis=1), 1e4, rtol=1e-5)
    values = np.linalg.eigvalsh(np.cov(dense.T, bias=True))[::-1][:100]
    np.testing.assert_allclose(np.load(tmp_path / "values.npy"), values, rtol=1e-9)
    files = chunk_files(tmp_path / "x.zarr")
    assert sum(file.stat().st_size for file in files) == data.nbytes + indices.nbytes + pointers.nbytes
    assert seconds_of_one_read(tmp_path / "x.zarr", 2, to_card=False) > 0


@pytest.mark.slow
def test_the_floor_is_the_same_product(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, block = rng.standard_normal((1200, 40)).astype("f4"), rng.standard_normal((40, 5)).astype("f4")
    z = zarr.create_array(tmp_path / "x", shape=x.shape, dtype="f4", chunks=(300, 40), compressors=None)
    z[...] = x
    files = slab_files(tmp_path / "x" / "c", x.shape, (300, 40), x.dtype)
    for cold in (False, True):
        for name, program in programs(files, block, 2, cold).items():
            np.testing.assert_allclose(program(), (x.T @ (x @ block)).T, rtol=1e-4, atol=1e-2, err_msg=name)
    for name, program in gram_programs(files, 2).items():
        np.testing.assert_allclose(program(), x.T @ x, rtol=1e-4, atol=1e-2, err_msg=name)


@pytest.mark.slow
def test_the_noise_of_analyze_gauss_is_the_same_in_every_direction() -> None:
    d, draws = 4, 5000
    rng = np.random.default_rng(0)
    basis = [np.outer(e, e) for e in np.eye(d)]
    basis += [(np.outer(a, b) + np.outer(b, a)) / 2**0.5 for a, b in combinations(np.eye(d), 2)]
    flat = np.array([direction.ravel() for direction in basis])
    seen = np.array([flat @ symmetric_noise(d, rng).ravel() for _ in range(draws)])
    # 10 variances and 45 covariances of 5000 draws: standard errors of 0.02 and 0.014
    np.testing.assert_allclose(np.cov(seen.T), np.eye(len(basis)), atol=0.1)


@pytest.mark.slow
def test_both_private_methods_are_held_to_the_exact_components(tmp_path: Path) -> None:
    case = make_case(tmp_path, "10 spikes", 4000, 12, seed=0)
    exact = np.linalg.eigh(case.gram)[1]
    assert case.captured(exact[:, -10:]) == pytest.approx(1.0)
    assert case.captured(exact[:, :10]) < 0.85
    assert case.analyze_gauss("record_zero_out") > 0.98 and case.power_method("record_zero_out") > 0.95


def test_dropped_files_are_read_from_disk_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(2**22))
    cache.warm(tmp_path)
    if cache.cached_share(tmp_path) < 1:
        pytest.skip("this file system keeps no page cache")
    cache.drop(tmp_path)
    if cache.cached_share(tmp_path) == 1:
        pytest.skip("this file system is memory")
    assert cache.cached_share(tmp_path) < 0.05


def test_too_little_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.data.SPARE", 2**60)
    with pytest.raises(CannotRunError, match="free disk"):
        DataSets(tmp_path, "small")["slow"]
    assert not list(tmp_path.iterdir())


def test_a_component_that_was_not_found_counts_as_far_away() -> None:
    tensor, truth = planted(12, np.array([3.0, 2.0, 1.0]), noise=0.1)
    assert all(np.array_equal(tensor, tensor.transpose(order)) for order in permutations(range(3)))
    exact = planted(12, np.array([3.0, 2.0, 1.0]))[0]
    np.testing.assert_allclose(np.einsum("ijk,jr,kr->ir", exact, truth, truth), truth * [3.0, 2.0, 1.0], atol=1e-12)
    turned = np.stack([truth[:, 2] * 5, np.full(12, np.nan), truth[:, 0] + 0.1 * truth[:, 1]], axis=1)
    near = float(np.linalg.norm(np.array([1, 0.1]) / 1.01**0.5 - np.array([1, 0])))
    np.testing.assert_allclose(matched(turned, truth), [near, 1.0, 0.0], atol=1e-7)
    np.testing.assert_allclose(topic_errors(np.eye(4)[:, [2, 0]], np.eye(4)[:, :3]), [0, 2, 0])


def test_a_verdict_on_surplus_components_is_wrong_for_any_of_its_reasons() -> None:
    truth, facts = np.eye(5)[:, :2], {"status": ["found", "found", "surplus", "surplus"]}

    def judged(**change: Any) -> bool:
        answer = {"basis": np.eye(5)[:, :4], "values": np.ones(4), "residual_norms": np.zeros(4), "facts": facts}
        return is_right(SimpleNamespace(**(answer | change)), truth)

    assert judged()
    assert not judged(values=np.array([1, 1, np.nan, 0]))
    assert not judged(facts={"status": ["found", "found", "open", "surplus"]})
    assert not judged(facts={"status": ["found", "surplus", "surplus", "surplus"]})
    assert not judged(basis=np.eye(5)[:, [0, 2, 1, 3]])


@pytest.mark.slow
def test_the_floor_of_a_contraction_reads_every_block(tmp_path: Path) -> None:
    generate(tmp_path / "t", problem="tensor", columns=12, rank=2, dtype="float64", chunks=(4, 4, 4))
    files = block_files(tmp_path / "t", 3)
    assert [distinct for _, distinct in files].count(True) == 1 and len(files) == 10
    sums = [program() for program in contraction_floors(files, 4, 5, 2).values()]
    assert sums[0] != 0 and sums == pytest.approx([sums[0]] * 3)
    assert {path for path, _ in files} == {
        path for path in cache.files_of(tmp_path / "t" / "data") if path.name != "zarr.json"
    }
    os.truncate(files[7][0], 100)
    with pytest.raises(ValueError, match="holds 100 bytes"):
        contraction_floors(files, 4, 5, 2)["one thread"]()


def test_what_prefect_costs_is_what_a_flow_takes_beyond_the_command_line() -> None:
    def of(seconds: float, step: float, cpu: float = 2.0) -> dict[str, float]:
        return {"in_all": seconds, "a_step": step, "cpu": cpu}

    rounds = [{"flow": of(seconds + 4, 0.03, 5.0), PLAIN: of(seconds, 0.02)} for seconds in (3.0, 9.0, 5.0)]
    found = _measured(rounds, "")
    assert found.figure == pytest.approx(0.8) and found.why == "4.0 s in all (3.0 of CPU), 10.0 ms a step"
    assert found.details["of_them_constant"] == pytest.approx(3.0)
    slow = [{"flow": of(3.0, 0.05), PLAIN: of(2.0, 0.01)}] * 3
    assert _measured(slow, "").figure == pytest.approx(2.0), "40 ms a step are too many, whatever the whole takes"


@pytest.mark.slow
def test_rows_have_the_covariance_that_was_chosen_and_no_sample_of_them_flatters(tmp_path: Path) -> None:
    """Kills: the cosine basis, of which every eighth row is nearly as good as all; a mean that is not taken off."""
    rows, d, k = 8192, 60, 5
    chosen = np.arange(1, d + 1) ** -0.5
    for dtype, off in (("f8", 1e-13), ("f4", 1e-6)):
        store = write_samples(tmp_path / dtype, rows, chosen, dtype, npy=True)
        x = np.asarray(zarr.open_array(store, mode="r")[...], "f8")
        np.testing.assert_array_equal(np.load(tmp_path / dtype / "x.npy"), x.astype(dtype))
        truth = np.load(tmp_path / dtype / "truth.npy")
        assert np.abs(x.mean(axis=0)).max() < off
        np.testing.assert_allclose(x.T @ (x @ truth) / rows, truth * chosen[: truth.shape[1]], atol=off)
    # of an eighth of the rows: as far off as independent rows of this covariance are, however they are taken
    for some in (x[::8], x[: rows // 8], x[np.random.default_rng(0).permutation(rows)[: rows // 8]]):
        angle = max_sin_theta(np.linalg.eigh(some.T @ some)[1][:, : -k - 1 : -1], truth[:, :k])
        assert 0.1 < angle < 0.6


def test_direct_contestants_count_and_only_right_ones_do() -> None:
    """Kills: a contest that leaves a contestant out, or takes the time of an answer that is wrong or was not given."""
    right: dict[str, Any] = {"verdict": "right"}
    found = {"npmdask": right | {"seconds": 4.0}, "npmdask, gram": right | {"seconds": 1.0}}
    found |= {"direct": right | {"seconds": 2.0}, "slow": right | {"seconds": 9.0}}
    found |= {"quick": {"verdict": "wrong: 0.9", "seconds": 0.1}, "gone": {"verdict": "fails: exit code 1"}}
    assert best_peer(found) == "direct"
    assert failures(found) == ("quick: wrong: 0.9", "gone: fails: exit code 1")
    assert failures(found, known_wrong=("quick",)) == ("gone: fails: exit code 1",)
    assert failures({"npmdask": {"verdict": "too slow: slower than 9 s"}}) == ("npmdask: too slow: slower than 9 s",)
    again = {"npmdask": iter((6.0, 8.0)), "npmdask, gram": iter((3.0, 2.0)), "direct": iter((1.5, 5.0))}
    again["slow"] = iter((8.0, 7.0))
    finals(found, lambda name: {"seconds": next(again[name])}, rounds=3)
    assert [found[name]["seconds"] for name in again] == [6.0, 2.0, 2.0, 8.0]
    assert found["direct"]["rounds"] == [2.0, 1.5, 5.0] and "rounds" not in found["quick"]
    assert judged({"off": 1e-4}, "off", 1e-4)["verdict"] == "right"
    assert judged({"off": float("nan")}, "off", 1e-4)["verdict"].startswith("wrong")


@pytest.mark.slow
def test_contestants_find_the_same_components(tmp_path: Path) -> None:
    """Those whose packages are in this environment, each as the rows run them."""
    store = write_samples(tmp_path / "x", 3000, np.arange(1, 41) ** -0.5)
    paths = {"zarr": str(store), "truth": str(tmp_path / "x" / "truth.npy"), "k": 5}
    for name, setting in {
        "npmdask": 1e-6,
        "NumPy, X^T X in float32": 1,
        "NumPy, X^T X in float64": 1,
        SKLEARN: 1,
    }.items():
        job = paths | {"contestant": name, "setting": setting, "small": paths}
        facts = last_json(own_command("samples", job), folder=tmp_path)
        assert facts["max_sin_theta"] < 1e-5 and facts["seconds"] > 0, name
        assert 2**24 < facts["peak_anonymous_bytes"] <= facts["peak_rss_bytes"], name
        assert name != "npmdask" or (facts["converged"] and facts["algorithm"] in ("gram", "krylov"))
    told = last_json(
        own_command("samples", paths | {"contestant": "npmdask", "goal": 1e-3, "patience": 300}), folder=tmp_path
    )
    assert told["reached"] and told["max_sin_theta"] <= 1e-3 and told["setting"] >= 1e-4


@pytest.mark.slow
def test_the_file_of_cells_is_what_anndata_writes(tmp_path: Path) -> None:
    cells, genes, molecules = 12_000, 90, 20.0  # more than a block
    entries = write_cells(tmp_path / "counts.h5ad", cells, genes, molecules, logs=False)
    held = anndata.read_h5ad(tmp_path / "counts.h5ad")
    counts = held.X
    assert held.shape == (cells, genes) and counts.nnz == entries and counts.indptr.dtype == counts.indices.dtype
    assert counts.has_canonical_format and counts.data.min() >= 1 and np.array_equal(counts.data, counts.data.round())
    totals = np.asarray(counts.sum(axis=1)).ravel()
    assert totals.min() >= 1 and totals.mean() == pytest.approx(molecules, rel=0.1)
    write_cells(tmp_path / "logs.h5ad", cells, genes, molecules)
    logs = anndata.read_h5ad(tmp_path / "logs.h5ad").X.toarray()
    np.testing.assert_allclose(logs, np.log1p(counts.toarray() * (molecules / totals)[:, None]), rtol=1e-5)
    # components of types and paths, and beside them the bulk of the sampling
    values = np.linalg.svd(logs - logs.mean(axis=0), compute_uv=False) ** 2
    np.testing.assert_allclose(exact_variances(tmp_path / "logs.h5ad"), values[:50] / (cells - 1), rtol=1e-5)
    assert values[0] > 3 * values[20] and values[20] < 10 * values[60]


@pytest.mark.slow
def test_the_field_is_decoded_by_xarray_and_its_first_modes_are_exact(tmp_path: Path) -> None:
    write_field(tmp_path / "all", 250, 9, 18)
    write_field(tmp_path / "first", 150, 9, 18)
    fields = [xr.open_zarr(tmp_path / name, consolidated=False)["field"] for name in ("all", "first")]
    assert fields[0].dtype == np.float64 and float(fields[0].std()) > 1
    np.testing.assert_array_equal(fields[0][:150], fields[1])
    modes = EOF(n_modes=10, use_coslat=True, tol=1e-10).fit(fields[1], dim="time")
    maps = modes.components().values.reshape(10, -1).T
    assert max_sin_theta(maps, exact_modes(tmp_path / "first", 150)) < 1e-6
    assert float(modes.explained_variance_ratio().sum()) < 0.95, "not of low rank"


@pytest.mark.slow
def test_coupled_patterns_of_the_fields_are_exact_and_not_of_low_rank(tmp_path: Path) -> None:
    write_fields(tmp_path / "all", 250, 9, 18)
    write_fields(tmp_path / "first", 150, 9, 18)
    fields = [xr.open_zarr(tmp_path / name, consolidated=False) for name in ("all", "first")]
    np.testing.assert_array_equal(fields[0]["sea"][:150], fields[1]["sea"])
    model = MCA(n_modes=10, use_coslat=True, tol=1e-9).fit(fields[1]["sea"], fields[1]["air"])
    maps = [side.values.reshape(10, -1).T for side in model.components()]
    assert apart(maps, exact_patterns(tmp_path / "first")) < 1e-6
    assert 0.1 < float(model.fraction_variance_X_explained_by_X().sum()) < 0.9


def test_real_rows_are_of_two_packages_and_have_no_missing_values() -> None:
    (sst, temperatures), (digits, images) = real_rows(0), real_rows(1)
    assert (sst, digits) == ("sea-surface temperatures", "digits") and images.shape == (1797, 64)
    assert temperatures.shape == (450, 50) and 1 < np.abs(temperatures).max() < 50
    steps = np.diff(temperatures[:18], axis=0).std(), temperatures.std()
    assert steps[0] < 0.5 * steps[1], "neighbours are alike"


@pytest.mark.slow
def test_ways_to_read_chunks_are_compared_by_what_they_read(tmp_path: Path) -> None:
    """Every damage once, in chunks and shards of several codecs; and a pass that reads every value once."""
    said = {}
    for number in (10 * at + at % 10 for at in range(len(chunk_access.DAMAGE))):
        name, file = chunk_access.damaged(tmp_path / str(number), number)
        said[name] = [chunk_access.verdict(way, tmp_path / str(number), number, file) for way in ("ours", "zarr")]
    assert set(said) == set(chunk_access.DAMAGE)
    assert said["missing"] == said["a folder"] == ["refused, named", "silently filled"]
    assert not any(ours == "silently filled" for ours, _ in said.values())
    table = chunk_access.damage_table(
        list(said), {way: [each[i] for each in said.values()] for i, way in enumerate(("ours", "zarr"))}
    )
    assert "'missing': 1, 'a folder': 1" in table
    path = str(chunk_access.written(tmp_path / "x.zarr", "chunks of 100 KB", "zstd", "f4", 2**21))
    sums: list[np.ndarray] = []
    chunk_access.read_boxes(
        chunk_access.opened("zarr", path), 2**18, lambda values: sums.append(values.sum(axis=0)), 0, 1
    )
    assert len(sums) > 2
    np.testing.assert_allclose(sum(sums), zarr.open_array(path)[...].sum(axis=0), rtol=1e-4, atol=1e-3)
    for way in ("ours", "zarr"):
        chunk_access.pass_of(way, path)()


def bits_came_over_the_link(details: Any) -> bool:
    return details["relative_error"]["npmdask"] == 0 and details["requests"] > 2


RIGHT: dict[str, Callable[[Any], bool]] = {
    "peak-memory": lambda details: details["npmdask"]["max_sin_theta"] < 1e-3,
    "pass-warm": lambda details: max(details["relative_error"].values()) < 1e-4,
    "lazy-counts": lambda details: details["max_sin_theta"] < 1e-6,
    "gram-cold": lambda details: max(details[way]["max_sin_theta"] for way in ("auto", "krylov")) < 1e-4,
    **dict.fromkeys(("remote-16", "remote-1", "remote-shards", "remote-shards-sparse"), bits_came_over_the_link),
    "gpu-gram": lambda details: details["max_sin_theta"]["on the card"] < 1e-7,
    "gpu-cells": lambda details: details["relative_error"] < 1e-6,
    "gpu-genotypes": lambda details: details["sums_have_the_bits_of_cores"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    often(
        [
            # Over a slower link, and what is for a card on the processor.
            ["pass-warm", "peak-memory", "tensor-bytes", "remote-shards-sparse", "gpu-gram"],
            ["sparse", "tensor-private-noise", "gram-cold", "lazy-counts", "remote-16", "remote-1", "remote-shards"],
            ["gpu-cells", "gpu-genotypes"],
        ],
        0,
    ),
    ids=["few", "others", "card"],
)
def test_some_rows_run_for_real(names: list[str], tmp_path: Path) -> None:
    env = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks", *names, "--scale", "small"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    lines = {line["row"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert set(lines) == set(names)
    for name, line in lines.items():
        assert set(line) >= KEYS
        assert line["command"] == f"make bench ONLY={name} SCALE=small" and line["machine"]["cores"] >= 1
        assert line["figure"] > 0 and line["failures"] == []
    for name, line in lines.items():
        assert name not in RIGHT or RIGHT[name](line["details"]), line
        assert not name.startswith("tensor-") or line["holds"]
    assert not list(tmp_path.iterdir())  # the data are gone


def test_some_rows_of_the_quick_comparison_are_measured_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails where other parts run, too, where a row belongs to none, or where a name that is none measures all."""
    known, ran = quick.PARTS, []
    assert sorted(row for rows in known.values() for row in rows) == sorted(quick.WHAT)

    def part(rows: Sequence[str]) -> Callable[[Any], dict[str, float | None]]:
        def run(_: Any) -> dict[str, float | None]:
            ran.append(rows)
            return dict.fromkeys(rows, 2.0)

        return run

    monkeypatch.setattr(quick, "PARTS", {part(rows): rows for rows in known.values()})
    assert quick.measured(["xeofs-mca"]) == {"xeofs-mca": 2.0} and ran == [["xeofs-mca"]]
    assert list(quick.measured()) == [row for rows in known.values() for row in rows]
    with pytest.raises(SystemExit):
        quick.main(["mca-xeofs"])
    assert "there is no row mca-xeofs: there are numpy-gram," in capsys.readouterr().err and len(ran) == 1 + len(known)
