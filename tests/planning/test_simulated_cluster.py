"""The simulated cluster is held to closed forms, to bounds that no cluster can break, and to what Dask really does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from npmdask.errors import BadInputError
from npmdask.execution.distributed_pass import TASKS_PER_SLOT
from npmdask.execution.executor import Processes
from npmdask.execution.reduction import runs_of
from npmdask.planning.cluster_plan import PlannedCluster, binding, work_of
from npmdask.planning.simulated_cluster import (
    ADDING,
    HANDLING_SECONDS,
    HOP,
    LINKS,
    TASK_SECONDS,
    ClusterModel,
    PassWork,
    simulate_pass,
    task_level,
)
from npmdask.runs.build import make_problem
from npmdask.runs.problem import Request
from npmdask.storage.source import open_source
from tests.conftest import write_zarr

FINE = 3e-3  # events nearer than a thousandth of a task are one
IDEAL = ClusterModel(workers=4, task_seconds=0.0, handling_seconds=0.0, commit_seconds=math.inf, joined=2)


def work(runs: int = 64, nbytes: float = 1e9, **more: Any) -> PassWork:
    return PassWork(**{"runs": (nbytes,) * runs, "chunk": 16e6, "core_seconds": 1e-9, **more})


def seconds(of: PassWork, cluster: ClusterModel, seed: int = 0) -> float:
    return simulate_pass(of, cluster, seed).seconds


# Closed forms.


def test_one_worker_takes_the_sum_of_its_parts() -> None:
    cluster = replace(IDEAL, workers=1, latency=0.05, connection=80e6, network=1e9)
    of = work(sum_bytes=24e6, block_bytes=48e6, step_seconds=3.0)
    chunks = 64e9 / 16e6
    reading = chunks * (0.05 + 16e6 / 80e6 + 16e6 * 1e-9)
    tasks = 4  # of one slot
    joins = (tasks - 1) * ADDING * 24e6
    travel = 48e6 / 1e9 + 24e6 / 1e9 + 4 * HOP
    assert seconds(of, cluster) == pytest.approx(reading + joins + travel + 3.0, rel=FINE)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 64 / 4),  # arithmetic, on four workers of one thread
        ({"threads": 4}, 64 / 16),
        ({"threads": 4, "cores": 2}, 64 / 8),
        ({"shared_cores": 2}, 64 / 2),
        ({"store_rate": 1e9}, 64),
        ({"worker_rate": 0.25e9, "in_flight": 1e9}, 64),
        ({"request_rate": 10}, 64e9 / 16e6 / 10),
        ({"latency": 0.084}, 64 / 4 * (0.084 + 0.016) / 0.016),  # each chunk is waited for
        ({"latency": 0.084, "in_flight": 32e6}, 64 / 4 * (0.084 + 0.016) / 0.032),  # two at a time
        ({"latency": 0.084, "in_flight": 160e6}, 64 / 4),  # always one that is there
        ({"connection": 100e6}, 64 / 4 * (0.16 + 0.016) / 0.016),
        ({"slow_share": 1.0, "slow_factor": 3.0}, 64 / 4 * 3),
    ],
    ids=str,
)
def test_what_binds_alone_decides(more: dict[str, float], expected: float) -> None:
    assert seconds(work(), replace(IDEAL, **more)) == pytest.approx(expected, rel=FINE, abs=0.03)  # some messages


def test_the_scheduler_does_one_after_the_other() -> None:
    """4,096 tasks that take no time: each costs its scheduling, and that of its join."""
    none = work(4096, 1.0, core_seconds=1e-12)
    found = simulate_pass(none, ClusterModel(workers=1024, commit_seconds=math.inf, joined=2))
    assert found.tasks == 4096
    assert found.seconds == pytest.approx(4096 * 2 * TASK_SECONDS, rel=0.02)


def test_a_worker_handles_every_task_and_join() -> None:
    """Mutants: it takes no time; it is left out of joins."""
    found = simulate_pass(work(64, 1.0, core_seconds=1e-12), replace(IDEAL, workers=1, handling_seconds=0.5))
    assert found.seconds == pytest.approx(0.5 * (found.tasks + found.tasks - 1), rel=0.05)


def test_a_pass_is_cut_by_what_its_values_take_and_not_by_what_is_stored() -> None:
    packed, cluster = work(4096, 1e6), ClusterModel(workers=4)
    assert task_level(replace(packed, decoded=1e13), cluster) < task_level(packed, cluster)


def test_a_commit_that_is_under_way_delays_the_end() -> None:
    of, slow = work(sum_bytes=1e9), replace(IDEAL, network=1e8)
    without = simulate_pass(of, slow)
    found = simulate_pass(
        of, replace(slow, commit_seconds=without.seconds - 10.5)
    )  # half a second before the last join
    assert (found.commits, found.gathered, without.gathered) == (1, 2e9, 0)
    assert found.seconds == pytest.approx(without.seconds - 0.5 + 20, rel=FINE)


def test_the_block_reaches_all_by_those_that_have_it() -> None:
    """One worker serves ten at once: 11 workers wait eleven times as long as one, 121 only twenty-one times."""
    for workers, times in ((1, 1), (1 + LINKS, 1 + LINKS), ((1 + LINKS) ** 2, 1 + 2 * LINKS)):
        of = work(workers, 1.0, block_bytes=1e9, core_seconds=1e-12)
        assert seconds(of, replace(IDEAL, workers=workers, network=1e9)) == pytest.approx(times, rel=0.05)


# Bounds that hold for any cluster, and what must never help.


def drawn(number: int) -> tuple[PassWork, ClusterModel]:
    rng = np.random.default_rng(number)
    uniform = lambda low, high: float(10 ** rng.uniform(np.log10(low), np.log10(high)))  # noqa: E731
    of = work(
        int(rng.integers(1, 300)), uniform(1e7, 1e10), chunk=uniform(1e6, 1e8), core_seconds=uniform(1e-10, 1e-8),
        sum_bytes=uniform(1e3, 1e8), block_bytes=uniform(1e3, 1e8), step_seconds=uniform(1e-3, 10),
    )  # fmt: skip
    cluster = ClusterModel(
        workers=int(rng.integers(1, 40)), threads=int(rng.integers(1, 5)), latency=uniform(1e-3, 0.3),
        connection=uniform(1e7, 1e9), in_flight=float(rng.choice([0.0, 1e8, 1e9])), worker_rate=uniform(1e8, 1e10),
        store_rate=uniform(1e8, 1e11), request_rate=uniform(1e2, 1e4), network=uniform(1e8, 1e10),
        shared_cores=None if rng.random() < 0.7 else float(rng.integers(1, 9)), joined=int(rng.choice([2, 4])),
    )  # fmt: skip
    return of, cluster


@pytest.mark.parametrize("number", range(40))
def test_no_cluster_is_faster_than_its_parts_or_slower_than_all_of_them_in_a_row(number: int) -> None:
    of, cluster = drawn(number)
    found, slots = simulate_pass(of, cluster), cluster.workers * cluster.threads
    nbytes, rate = of.nbytes, min(cluster.connection, cluster.worker_rate)
    cores = min(slots, cluster.shared_cores or math.inf)
    least = [
        nbytes * of.core_seconds / cores,
        nbytes / min(cluster.store_rate, cluster.request_rate * of.chunk, cluster.workers * cluster.worker_rate),
        max(of.runs) * of.core_seconds,
        TASK_SECONDS * found.tasks,
    ]
    assert found.seconds >= max(least) * (1 - FINE) + of.step_seconds
    chunks = nbytes / of.chunk
    in_a_row = [
        nbytes * of.core_seconds, chunks * cluster.latency, nbytes / rate, nbytes / cluster.store_rate,
        chunks / cluster.request_rate, of.step_seconds,
        4 * found.tasks * (TASK_SECONDS + HANDLING_SECONDS + HOP + of.sum_bytes / cluster.network),
        found.tasks * ADDING * of.sum_bytes, (cluster.workers + 2) * (of.block_bytes / cluster.network + 2 * HOP),
    ]  # fmt: skip
    assert found.seconds <= sum(in_a_row) * (1 + FINE)
    assert found.nbytes == pytest.approx(nbytes) and found.redone == 0


BETTER = [
    {"latency": 0.5}, {"connection": 2}, {"worker_rate": 2}, {"store_rate": 2}, {"request_rate": 2}, {"network": 2},
    {"task_seconds": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("number", range(0, 40, 2))
@pytest.mark.parametrize("better", BETTER, ids=lambda better: next(iter(better)))
def test_more_of_a_resource_is_never_slower(number: int, better: dict[str, float]) -> None:
    """But for the last tasks, whose order may be a less lucky one (Graham 1969): one task for each slot has none."""
    of, cluster = drawn(number)
    of = replace(of, runs=of.runs[:1] * cluster.workers * cluster.threads)
    more = replace(cluster, **{name: getattr(cluster, name) * by for name, by in better.items()})
    assert seconds(of, more) <= seconds(of, cluster) * (1 + FINE)


@pytest.mark.parametrize("number", range(0, 40, 2))
def test_losses_and_slow_workers_never_help(number: int) -> None:
    of, cluster = drawn(number)
    cluster = replace(cluster, commit_seconds=math.inf)
    calm = simulate_pass(of, cluster)
    losing = replace(cluster, losses_per_hour=2 * 3600 / (calm.seconds * cluster.workers))  # about two in a pass
    found = simulate_pass(of, losing)
    # A loss may put the last tasks into a luckier order; it never saves a whole task.
    assert found.seconds >= calm.seconds - calm.seconds / (TASKS_PER_SLOT + 1)
    assert found.nbytes == pytest.approx(of.nbytes + found.redone)
    slow = replace(cluster, slow_share=1.0, slow_factor=2.0)
    assert calm.seconds * (1 - FINE) <= seconds(of, slow) <= 2 * calm.seconds * (1 + FINE)


def test_a_lost_worker_costs_its_task_and_the_sums_that_it_held() -> None:
    """One worker that is lost once: what it had, and the time until another one is there."""
    one = replace(IDEAL, workers=1, losses_per_hour=3600 / 40, restart=10.0)
    for seed in range(20):
        found = simulate_pass(work(8), one, seed)
        assert found.losses or found.seconds == pytest.approx(8, rel=0.02)
        assert found.seconds == pytest.approx(8 + found.redone / 1e9 + 10 * found.losses, rel=0.02)
        assert found.redone <= found.losses * 8e9
    assert any(simulate_pass(work(8), one, seed).redone > 2e9 for seed in range(20)), "sums are lost with the worker"


def test_what_was_committed_is_not_made_again_where_the_pass_keeps_it() -> None:
    """Commits each half second: at most a task that was done since, and what had begun, are read again."""
    one = replace(IDEAL, workers=1, losses_per_hour=3600 / 40, restart=10.0, commit_seconds=0.5)
    kept = [simulate_pass(work(8), replace(one, keeps_committed=True), seed) for seed in range(20)]
    lost = [simulate_pass(work(8), replace(one, keeps_committed=False), seed) for seed in range(20)]
    assert all(found.redone <= found.losses * 2.6e9 for found in kept)
    assert any(found.redone > found.losses * 2.6e9 for found in lost)
    for found in kept:
        assert found.seconds == pytest.approx(8 + found.redone / 1e9 + 10 * found.losses, rel=0.02)


def test_four_sums_at_a_time_travel_less_often_one_after_the_other() -> None:
    """64 sums that arrive at once, over a slow network: in three levels of three each, not in six of one."""
    of, wide = work(64, core_seconds=1e-12, sum_bytes=1e9), replace(IDEAL, workers=64, network=1e9)
    for joined, travels in ((2, 6), (4, 9)):
        found = simulate_pass(of, replace(wide, joined=joined))
        adding = 6 if joined == 2 else 9
        assert found.seconds == pytest.approx(travels + adding + 1, rel=0.02)


def test_others_do_what_a_lost_worker_had_although_it_never_comes_back() -> None:
    """Fast workers are idle when a slow one is lost: they need not be asked twice."""
    four = replace(IDEAL, slow_share=0.5, slow_factor=20.0, losses_per_hour=3600 / 40, restart=1e6)
    found = [simulate_pass(work(4), four, seed) for seed in range(20)]
    some = [one for one in found if 1 <= one.losses <= 3]
    assert len(some) > 5 and all(one.seconds < 200 for one in some)


def test_a_pass_that_cannot_end_says_so_and_does_not_hang() -> None:
    found = simulate_pass(work(8), replace(IDEAL, workers=2, losses_per_hour=3600.0 * 4, restart=0.0))
    assert found.seconds == math.inf


def test_a_seed_decides_everything() -> None:
    cluster = replace(IDEAL, workers=8, losses_per_hour=360, slow_share=0.3, slow_factor=2)
    first = [simulate_pass(work(), cluster, seed) for seed in range(6)]
    assert first == [simulate_pass(work(), cluster, seed) for seed in range(6)]
    assert len({found.seconds for found in first}) > 1


def test_a_hundred_terabytes_on_a_thousand_workers_are_seconds() -> None:
    """Counted in tasks, not by a clock: no chunk is simulated, of which there are six million."""
    found = simulate_pass(work(4096, 100e12 / 4096), replace(IDEAL, workers=1000, threads=4))
    assert found.tasks == 4096 and found.seconds == pytest.approx(2 * 100e12 / 4096 * 1e-9, rel=FINE)


# The real cut, and what binds.


def test_tasks_and_bytes_are_those_that_dask_is_given(tmp_path: Any) -> None:
    data = np.random.default_rng(0).standard_normal((40_000, 300)).astype("f4")
    write_zarr(tmp_path / "x.zarr", data, chunks=(1000, 300), compressors=None)
    operator = make_problem(open_source(tmp_path / "x.zarr", "samples"), Request(target_rank=3)).operator(None, None)
    of, seen = work_of(operator, 5, 1e-9), list[int]()
    assert len(of.runs) == len(runs_of(operator)) and of.nbytes == data.nbytes and of.chunk == 1000 * 300 * 4
    assert of.sum_bytes == of.block_bytes == 300 * 5 * 8
    executor = Processes(2, 1)
    try:
        _, record = executor.run_pass(operator, np.eye(300, 5), lambda record: seen.append(record.bytes_read))
    finally:
        executor.close()
    found = simulate_pass(of, ClusterModel(workers=2))
    assert (found.tasks, found.nbytes) == (len(seen), record.bytes_read)


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ({"store_rate": 1e9}, "the store's bandwidth"),
        ({"latency": 0.5}, "the wait for single requests (raise in_flight)"),
        ({"task_seconds": 1.0}, "the scheduler"),
        ({}, "arithmetic"),
    ],
    ids=str,
)
def test_what_binds_is_named(more: dict[str, float], first: str) -> None:
    assert binding([work()], replace(IDEAL, **more))[0][0] == first


def test_a_few_runs_too_many_for_the_workers_are_named() -> None:
    """64 runs on 60 workers take two rounds: with finer ones a quarter would be saved."""
    assert dict(binding([work()], replace(IDEAL, workers=60)))["the cut into few runs"] > 0.2
    assert "the cut into few runs" not in dict(binding([work()], replace(IDEAL, workers=64)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, "workers = 0: give a whole number from 1 on"),
        ({"workers": 2, "threads": 0}, "threads = 0"),
        ({"workers": 2, "known": {"latency": -1.0}}, "latency = -1.0: give 0 or more"),
        ({"workers": 2, "known": {"store_rate": 0.0}}, "store_rate = 0.0: give a number above 0"),
        ({"workers": 2, "known": {"latency": math.nan}}, "latency = nan"),
        ({"workers": 2, "known": {"latencies": 1.0}}, "did you mean 'latency'"),
        ({"workers": 2, "known": {"slow_factor": 0.5}}, "slow_factor = 0.5: give 1 or more"),
    ],
    ids=str,
)
def test_a_cluster_that_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=r"no cluster|a cluster has no") as raised:
        PlannedCluster(**given)
    assert said in str(raised.value)
