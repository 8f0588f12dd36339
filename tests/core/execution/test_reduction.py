"""How a pass is cut and summed: the same bits from any known parts, and what a kill inside a pass leaves."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npmdask.core.operators._protocol as protocol
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import Threads, single_threaded_blas
from npmdask.core.execution.reduction import (
    PassCheckpoint,
    TreeNode,
    compute_node,
    inside,
    join_node,
    pack,
    quarters,
    root,
    runs_of,
    tasks_of,
    unpack,
)
from npmdask.core.operators import ColumnMoments, Gram, LeftProduct, Operator, Partial, SparseGram, View
from npmdask.core.runs.session import keeper_of
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import open_source
from tests.conftest import often, planted, same_bytes, write_zarr
from tests.core.operators.test_operators import ignore, write_csr


@pytest.mark.slow
@given(count=st.integers(1, 300))
def test_the_tree_covers_every_run_once(count: int) -> None:
    def leaves(node: TreeNode) -> list[int]:
        halves = node.children(count)
        return [i for half in halves for i in leaves(half)] if halves else list(node.runs(count))

    assert leaves(root(count)) == list(range(count))


@pytest.mark.slow
@given(count=st.integers(1, 200), level=st.integers(0, 8), seed=st.integers(0, 10**6), share=st.floats(0, 1))
def test_nothing_known_is_computed_again_and_nothing_is_left_out(
    count: int, level: int, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    nodes = tasks_of(root(count), count, [], int(rng.integers(0, 8)))
    known = [node for node in nodes if rng.random() < share]
    tasks = tasks_of(root(count), count, known, level)
    covered = sorted(i for node in (*known, *tasks) for i in node.runs(count))
    assert covered == list(range(count))
    assert all(node.level <= level or node.children(count) == [] for node in tasks)


@pytest.mark.slow
def test_joins_of_four_parts_have_the_bits_of_the_tree(
    operators: dict[str, Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the four are added in a row."""
    many_runs(monkeypatch)
    operator = operators["gram"]
    runs, block = runs_of(operator), np.random.default_rng(0).standard_normal((30, 4))
    count, joins = len(runs), 0

    def joined(node: TreeNode) -> Partial:
        nonlocal joins
        if node in parts:
            return parts[node]
        joins += 1
        names = quarters(node, count, parts, level)
        assert 2 <= len(names) <= 4
        return join_node(operator, node, count, {name: joined(name) for name in names})

    with single_threaded_blas():
        expected = compute_node(operator, runs, root(count), block).sums
        for level in range(4):
            parts = {n: compute_node(operator, runs, n, block) for n in tasks_of(root(count), count, [], level)}
            joins = 0
            found = joined(root(count)).sums
            assert all((found[name] == expected[name]).all() for name in expected)
            assert joins <= len(parts) / 3 + 2


def total(records: list[ReadStats]) -> int:
    return sum(record.bytes_read for record in records)


def many_runs(patch: Any) -> None:
    patch.setattr(protocol, "RUN_BYTES", 2000)
    patch.setattr(protocol, "COLUMN_BYTES", 1)


NAMES = ["gram", "left", "moments", "sparse moments", "sparse"]


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Operator]:
    """Those of the core; those of features are in tests/contract."""
    folder = tmp_path_factory.mktemp("operators")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((700, 30))
    matrix = sp.random(900, 40, density=0.3, format="csr", rng=rng)
    dense: Any = open_source(write_zarr(folder / "x", x, (11, 30))).reader
    csr: Any = open_source(write_csr(folder / "s", matrix, 101)).reader
    left = zarr.create_array({}, shape=(700, 3), dtype="f8", chunks=(11, 3))
    return {
        "gram": Gram(reader=dense, view=View(shift=x.mean(0))),
        "left": LeftProduct(reader=dense, view=View(shift=x.mean(0)), target=left),
        "moments": ColumnMoments(reader=dense),
        "sparse moments": ColumnMoments(reader=csr),
        "sparse": SparseGram(reader=csr),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_from_any_known_parts_the_same_bits(operators: dict[str, Operator], monkeypatch: Any, name: str) -> None:
    many_runs(monkeypatch)
    goes_on_from_known_parts(operators[name])


def goes_on_from_known_parts(operator: Operator) -> None:
    """Every task cut, every set of finished nodes, through a checkpoint and back."""
    runs = runs_of(operator)
    assert len(runs) > 12
    block = np.random.default_rng(1).standard_normal((operator.block_rows, 3))
    whole, record = Threads(2).run_pass(operator, block, ignore)
    rng = np.random.default_rng(2)
    for level in (0, 2, 9):
        nodes = tasks_of(root(len(runs)), len(runs), [], level)
        done = {node: compute_node(operator, runs, node, block) for node in nodes if rng.random() < 0.6}
        done = unpack(operator, *pack(operator, done))
        told: list[ReadStats] = []
        product, other = Threads(2).run_pass(operator, block, told.append, PassCheckpoint(done))
        assert (product == whole).all()
        assert other == record
        assert total(told) == record.bytes_read - PassCheckpoint(done).record().bytes_read


@pytest.mark.slow
def test_a_pass_of_one_run_is_the_same_with_and_without_a_graph(operators: dict[str, Operator]) -> None:
    for operator in operators.values():
        needs_no_graph(operator)


def needs_no_graph(operator: Operator) -> None:
    (run,) = runs_of(operator)
    block = np.random.default_rng(1).standard_normal((operator.block_rows, 3))
    told: list[ReadStats] = []
    product, record = Threads(2).run_pass(operator, block, told.append)
    assert len(told) == 1 and told[0].bytes_read == record.bytes_read == operator.pass_bytes
    keeper = PassCheckpoint({root(1): compute_node(operator, [run], root(1), block)})
    again, known = Threads(2).run_pass(operator, block, ignore, keeper)
    assert (again == product).all() and known == record


@pytest.mark.slow
def test_what_is_committed_inside_a_pass_is_finished_and_disjoint(
    operators: dict[str, Operator], monkeypatch: Any
) -> None:
    many_runs(monkeypatch)
    operator = operators["gram"]
    kept: list[dict[TreeNode, Partial]] = []
    block = np.random.default_rng(1).standard_normal((30, 3))
    keeper = PassCheckpoint(keep=lambda parts: kept.append(dict(parts)), seconds=0)
    whole, _ = Threads(2).run_pass(operator, block, ignore, keeper)
    assert len(kept) > 20
    bytes_kept = [PassCheckpoint(parts).record().bytes_read for parts in kept]
    assert bytes_kept == sorted(bytes_kept), "never less than before"
    assert bytes_kept[-1] == operator.pass_bytes
    for parts in kept[:: len(kept) // 6]:
        assert not any(a != b and inside(a, b) for a in parts for b in parts)
        assert len(parts) < 10, "neighbours are merged: a few sums stand for all that is done"
        product, _ = Threads(1).run_pass(operator, block, ignore, PassCheckpoint(parts))
        assert (product == whole).all()


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 50),
    rows=st.integers(1, 80),
    columns=st.integers(1, 60),
    dtype=st.sampled_from(["f4", "f8", "u1", "i2", ">f4", ">i4"]),
    layout=st.sampled_from(["2 C", "2 F", "3", "3 transposed", "3 sharded", "3 blosc", "3 gzip"]),
    threads=st.sampled_from([1, 2, 4, 9]),
    single=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_any_layout_any_order_any_number_of_threads(
    m: int, n: int, rows: int, columns: int, dtype: str, layout: str, threads: int, single: bool, seed: int
) -> None:
    """Ragged chunks, one row, one column, C and F order, shards, codecs, more threads than chunks."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 100, (m, n)).astype(dtype)
    chunks = (min(rows, m), min(columns, n))
    options: dict[str, Any] = {"compressors": None, "config": {"write_empty_chunks": True}}
    if layout.startswith("2"):
        options |= {"zarr_format": 2, "order": layout[-1]}
    elif layout == "3 transposed":
        options |= {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]}
    elif layout == "3 sharded":
        options |= {"shards": (2 * chunks[0], 2 * chunks[1])}
    elif layout in ("3 blosc", "3 gzip"):
        options |= {"compressors": [zarr.codecs.BloscCodec() if layout == "3 blosc" else zarr.codecs.GzipCodec()]}
    z = zarr.create_array({}, shape=(m, n), dtype=dtype, chunks=chunks, **options)
    z[...] = x
    operator = Gram(reader=open_source(z).reader)
    block = rng.standard_normal((n, 2)).astype("f4" if single else "f8")
    with pytest.MonkeyPatch.context() as patch:
        many_runs(patch)
        one, record = Threads(1).run_pass(operator, block, ignore)
        many, _ = Threads(threads).run_pass(operator, block, ignore)
    assert (one == many).all()
    expected = x.astype("f8").T @ (x.astype("f8") @ block)
    np.testing.assert_allclose(one, expected, atol=(1e-5 if single else 1e-12) * max(1, m * n * 1e4))
    assert record.bytes_read == x.nbytes


SCRIPT = """
import os, signal, sys, npmdask
from npmdask.core.checkpoint.store import RunStore
source, store, workers, seconds, where = sys.argv[1:]
keep = RunStore.keep_pass
def kept(self, key, *given):
    keep(self, key, *given)
    if key["label"] == where:
        os.killpg(0, signal.SIGKILL)  # with its workers
RunStore.keep_pass = kept
if __name__ == "__main__":
    npmdask.top_k(source, 4, iteration_rank=120, kind="matrix", max_steps=3, store=store, threads=1,
                  workers=int(workers), commit_seconds=float(seconds))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", often([0, 1], 0))
def test_a_kill_inside_a_pass_costs_what_came_after_the_last_commit(tmp_path: Path, workers: int) -> None:
    """Killed in the middle of the first pass and of the pass for the left vectors: the same bytes."""
    x = planted(24_000, 1500, 1 / np.sqrt(np.arange(1, 40)))[0].astype("f4")
    write_zarr(tmp_path / "x.zarr", x, (1000, 1500), compressors=None)

    def run(store: Path, workers: int, seconds: float, where: str = "") -> int:
        given = map(str, (tmp_path / "x.zarr", store, workers, seconds, where))
        return subprocess.run([sys.executable, "-c", SCRIPT, *given], start_new_session=True).returncode

    assert run(tmp_path / "whole", 0, 30) == 0
    store = tmp_path / "killed"
    for label in ("step 1", "left singular vectors"):
        assert run(store, workers, 0.0, label) == -signal.SIGKILL, label
        lines = RunStore(store).telemetry()
        assert [t["label"] for t in lines if t["event"] == "pass"][-1] == label
        modes = [stat.S_IMODE(p.stat().st_mode) for p in (store / "pass").glob("*/*")]
        assert modes and set(modes) <= {0o600}
    assert run(store, 0, 0.05) == 0
    same_bytes(tmp_path / "whole", store)
    assert not (store / "pass").exists()
    resumed = [t["bytes_resumed"] for t in RunStore(store).telemetry() if t["event"] == "passed" and t["bytes_resumed"]]
    assert len(resumed) == 2, "both passes went on from what was committed inside them"


def test_parts_of_another_pass_or_rotten_ones_are_not_used(tmp_path: Path) -> None:
    part = Partial({"product": np.ones((3, 2))}, ReadStats(bytes_read=5, chunks=1, checksums={(0, 0): 7}))
    operator = Gram(reader=open_source(np.ones((3, 3))).reader)  # type: ignore[arg-type]
    with RunStore(tmp_path / "run") as store:
        key = {"label": "step 1", "block": 1}
        store.keep_pass(key, *pack(operator, {TreeNode(0, 0): part}))
        found = store.read_pass(key)
        assert found is not None
        assert unpack(operator, *found)[TreeNode(0, 0)].record == part.record
        assert store.read_pass({**key, "block": 2}) is None
        file = next((tmp_path / "run" / "pass").glob("*/0-product.npy"))
        file.write_bytes(file.read_bytes()[:-1] + b"\x01")
        assert store.read_pass(key) is None
        store.commit_step(1, {"a": np.ones(1)}, {})
        assert not (tmp_path / "run" / "pass").exists()


def test_parts_are_known_by_all_that_they_are_made_of(tmp_path: Path) -> None:
    """Parts of another block, summed into the pass under way, would be a wrong product that nothing notices."""
    part = Partial({"product": np.ones((3, 2))}, ReadStats(bytes_read=5, chunks=1))
    operator = Gram(reader=open_source(np.ones((3, 3))).reader)  # type: ignore[arg-type]
    block = np.eye(3)[:, :2]
    with RunStore(tmp_path / "run") as store:
        keeper_of(store, "step 1", operator, block, 0.0).commit({TreeNode(0, 0): part})
        assert keeper_of(store, "step 1", operator, block.copy(), 0.0).parts.keys() == {TreeNode(0, 0)}
        others: list[tuple[str, np.ndarray, dict[str, str] | None]] = [
            ("step 2", block, None),
            ("step 1", np.nextafter(block, 2), None),
            ("step 1", block, {"device": "another"}),
        ]
        for label, other, device in others:
            assert not keeper_of(store, label, operator, other, 0.0, device).parts
