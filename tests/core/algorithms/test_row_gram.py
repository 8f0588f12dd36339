"""Few rows with many columns: the small side is formed, and what is called converged is right, whatever the data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask
from npmdask.core.algorithms import RowGramKrylov, gram
from npmdask.core.execution.memory import tree_rss
from npmdask.core.operators import row_gram
from npmdask.core.runs import forming
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.problem import Problem, Request
from npmdask.core.runs.resources import Resources, memory_for, needs_of
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from tests.core.algorithms.answers import ROUNDING, fault
from tests.core.algorithms.test_gram import FAMILIES, normal

ROW_GRAM: dict[str, Any] = {"algorithm": "row-gram", "threads": 1}


def tied(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """The k-th value and the next are the same to some digits."""
    x = normal(rng, n, d)
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    s[1:7] = s[1] * (1 - 10 ** -rng.uniform(3, 16) * np.arange(6))
    return np.asarray((u * s) @ vt)


def copies(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Few different rows, each several times."""
    return normal(rng, 5, d)[rng.integers(0, 5, n)]


def far(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Means of a million deviations."""
    return normal(rng, n, d) + 1e6 * rng.standard_normal(d)


def steep(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Singular values over twelve decades, of which the square loses the half."""
    turn = np.linalg.qr(rng.standard_normal((d, n)))[0]
    return np.asarray(np.linalg.qr(rng.standard_normal((n, n)))[0] * 10 ** -np.linspace(0, 12, n) @ turn.T)


def genotypes(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Counts 0, 1 and 2 of two populations."""
    shares = np.clip(rng.uniform(0.05, 0.95, d) + 0.2 * rng.standard_normal((2, d)), 0.01, 0.99)
    return rng.binomial(2, shares[rng.integers(0, 2, n)]).astype(float)


def turned(family: Any) -> Any:
    def rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        return np.ascontiguousarray(family(rng, d, n).T)

    rows.__name__ = f"{family.__name__}, turned"
    return rows


KINDS = (*FAMILIES, *map(turned, FAMILIES), tied, copies, far, steep, genotypes)


def stored(x: np.ndarray, rng: np.random.Generator) -> Any:
    """Chunks of some rows and columns, the last ones short."""
    chunks = (int(rng.integers(1, len(x) + 1)), int(rng.integers(1 + x.shape[1] // 8, x.shape[1] + 1)))
    z = zarr.create_array({}, shape=x.shape, dtype=x.dtype, chunks=chunks, config={"write_empty_chunks": True})
    z[...] = x
    return z


def parts_of(seed: int) -> dict[str, Any]:
    """Columns of chunks whole, or in up to eight parts, of some of which nothing is left."""
    parts = seed % 9
    return {"options": {"parts": parts}} if parts else {}


@contextmanager
def float32_of_few(seed: int) -> Iterator[None]:
    """Half of the problems form a matrix of float32 as large ones do, where data and tolerance allow it."""
    with pytest.MonkeyPatch.context() as patched:
        if seed // len(KINDS) % 2:
            patched.setattr(gram, "SINGLE_COLUMNS", 0)
        yield


def wrong(seed: int, *, weighted: bool = False) -> str:
    """What is wrong about the run on problem ``seed``; nothing, if nothing is. ``weighted``: only if its rows are."""
    rng = np.random.default_rng([44, seed])
    family = KINDS[seed % len(KINDS)]
    n, d = int(rng.integers(8, 60)), int(rng.integers(80, 300))
    x = family(rng, n, d)
    dtype = "i1" if family is genotypes else rng.choice(["f4", "f8"])
    x, kind = x.astype(dtype), str(rng.choice(["samples", "matrix"]))
    center, tol = bool(rng.random() < 0.6), 10 ** -rng.uniform(3, 10)
    k = int(rng.integers(1, 6)) if rng.random() < 0.7 else int(rng.integers(max(1, n - 3), n + 1))
    asked: dict[str, Any] = {
        "kind": kind,
        "center": center,
        "tol": tol,
        "seed": seed,
        "max_steps": 30,
        **parts_of(seed),
    }
    u = rng.uniform(0, 3, n) * (rng.random(n) < 0.8) + 1e-3 if rng.random() < 0.3 else None
    if weighted and u is None:
        return ""
    u = u if weighted else None  # rows have weights by their feature: tests/weights
    if u is not None:
        asked["row_weights"] = u
    with float32_of_few(seed):
        found = npmdask.top_k(stored(x, rng), k, **asked, **ROW_GRAM)
    wide = x.astype(np.longdouble)
    weights = np.ones(n, np.longdouble) if u is None else u.astype(np.longdouble)
    total = weights.sum() if kind == "samples" else np.longdouble(1)
    a = wide - (weights @ wide / weights.sum() if center else 0)
    a = a * np.sqrt(weights / total)[:, None]
    values = np.zeros(d)
    values[:n] = np.maximum(np.linalg.eigvalsh(np.asarray(a @ a.T, np.float64))[::-1], 0)
    size = float(((wide**2) * (weights / total)[:, None]).sum())
    image = np.asarray(a.T @ (a @ found.basis.astype(np.longdouble)), np.float64)
    how = {"tol": tol, "floor": ROUNDING * (values[0] + size * center), "samples": kind == "samples"}
    said = fault(found, image, values, **how)
    about = f"{seed}: {family.__name__}, {kind}, {n} x {d}, {dtype}, k = {k}, tol = {tol:.0e}, center = {center}"
    return said and f"{about}: {said}"


@pytest.mark.slow
def test_no_random_problem_is_wrong_and_called_converged() -> None:
    """Of ties, copies, far means, ranks below k, k = m, and all families of the other side, turned and not."""
    found = [said for seed in range(70) if (said := wrong(seed))]
    assert not found, found


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(10))
def test_none_of_thousands_is(part: int) -> None:
    found = [said for seed in range(300 * part, 300 * part + 300) if (said := wrong(seed))]
    assert not found, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "matrix"])
@pytest.mark.parametrize("center", [False, True])
def test_two_passes_find_means_and_components(kind: str, center: bool) -> None:
    """Of a source that was never ingested, too. A matrix takes one more for its left vectors, as ever."""
    x = normal(np.random.default_rng(0), 60, 900) + 3.0 * center
    found, other = (
        npmdask.top_k(x, 4, kind=kind, center=center, algorithm=name, tol=1e-9) for name in ("row-gram", "krylov")
    )
    assert found.total_data_passes == 2 + (kind == "matrix") < other.total_data_passes - 1
    np.testing.assert_allclose(found.values, other.values, rtol=1e-11)
    np.testing.assert_allclose(found.scores(x), other.scores(x), atol=1e-6)
    assert found.certificate is not None and found.certificate["ground"] in ("always", "random start")
    np.testing.assert_allclose(found.mean if center else x.mean(0), x.mean(axis=0), rtol=1e-13)


@pytest.mark.slow
def test_small_values_take_a_pass_that_verifies_them() -> None:
    """A fall of 10^4 costs eight digits of the bound of line 7: A^T A itself is asked. Mutants: it is not divided by
    the value, or not what was measured; with either the run ends after two steps.
    """
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((500, 20)))[0]
    x = np.linalg.qr(rng.standard_normal((50, 20)))[0] * np.geomspace(1, 1e-4, 20) @ turn.T
    few, many = (npmdask.top_k(x, k, kind="samples", tol=1e-7, **ROW_GRAM) for k in (3, 20))
    assert few.steps == 2 < many.steps and few.converged and many.converged
    np.testing.assert_allclose(many.values, np.geomspace(1, 1e-8, 20) / 50, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_residuals_of_the_second_pass_are_bounded_however_far_values_fall(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By up to 10^6, with and without a tail, of a matrix in float32 too; the truth is of extended precision. Mutants:
    the SVD of W in place of its QR (too small by up to 30 times, and residuals 10^4 times larger), no rounding, a bound
    of what follows as small as the last value.
    """
    rng, seen = np.random.default_rng(seed), []
    n, d, r = int(rng.integers(20, 200)), int(rng.integers(300, 1500)), 20
    fall = 10 ** rng.uniform(2, 6)
    turn = np.linalg.qr(rng.standard_normal((d, r)))[0]
    x = np.linalg.qr(rng.standard_normal((n, r)))[0] * np.geomspace(1, 1 / fall, r) @ turn.T
    x += 1e-3 / fall * rng.standard_normal((n, d)) * (seed % 2)
    x = x.astype(np.float32 if seed % 3 == 0 else np.float64)
    update = RowGramKrylov._right_vectors

    def watched(*args: Any) -> Any:
        seen.append(update(*args))
        return seen[-1]

    monkeypatch.setattr(RowGramKrylov, "_right_vectors", watched)
    monkeypatch.setattr(gram, "SINGLE_COLUMNS", 0)
    k = int(rng.integers(3, r + 1))
    npmdask.top_k(x, k, kind="samples", tol=1e-7, **ROW_GRAM)
    ((state, info),) = seen
    a, v = x.astype(np.longdouble) / np.sqrt(np.longdouble(n)), state.block[:, :k].astype(np.longdouble)
    true = np.linalg.norm(np.asarray(a.T @ (a @ v) - v * info.ritz_values, np.float64), axis=0)
    assert (true <= info.residual_norms).all()
    if x.dtype == np.float64:
        assert true.max() <= 1e-14 * info.ritz_values[0], "what squaring loses, and no more"


def test_zeros_have_no_components() -> None:
    found = npmdask.top_k(np.zeros((5, 40)), 3, kind="samples", **ROW_GRAM)
    assert found.converged and not found.values.any()
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(3), atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_a_run_that_is_cut_short_goes_on_with_the_same_bits(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = zarr.create_array(tmp_path / "x.zarr", shape=(40, 900), dtype="f4", chunks=(16, 100))
    z[...] = normal(np.random.default_rng(2), 40, 900) + 7
    asked: dict[str, Any] = {"kind": "matrix", "center": True, "tol": 1e-6, "algorithm": "row-gram"}
    whole = npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "whole", threads=2, **asked)
    with monkeypatch.context() as patched:
        patched.setattr(RowGramKrylov, "pairs_of_formed", 1)
        npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "short", max_steps=1, threads=threads, **asked)
    again = npmdask.resume(tmp_path / "short", max_steps=10, threads=threads)
    assert again.basis.tobytes() == whole.basis.tobytes() and again.values.tobytes() == whole.values.tobytes()
    more = npmdask.deflate(tmp_path / "whole", 2, store=tmp_path / "more")
    assert more.converged and len(more.values) == 5 and more.total_data_passes == 3


@pytest.mark.slow
def test_chunks_are_held_to_their_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the passes, of data that were never ingested. Mutant: columns of chunks are not compared."""
    z = zarr.create_array(tmp_path / "x.zarr", shape=(40, 300), dtype="f8", chunks=(16, 100), compressors=None)
    z[...] = normal(np.random.default_rng(2), 40, 300)
    asked: dict[str, Any] = {"kind": "samples", "store": tmp_path / "run", **ROW_GRAM}
    with monkeypatch.context() as patched:
        patched.setattr(RowGramKrylov, "pairs_of_formed", 1)  # as if it were killed between the passes
        npmdask.top_k(tmp_path / "x.zarr", 3, max_steps=1, **asked)
    chunk, stat = tmp_path / "x.zarr/c/1/2", (tmp_path / "x.zarr/c/1/2").stat()
    held = bytearray(chunk.read_bytes())
    held[80] ^= 1
    chunk.write_bytes(held)
    os.utime(chunk, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(BadInputError, match=r"chunk c/1/2 .* is corrupt"):
        npmdask.resume(tmp_path / "run", max_steps=9)
    chunk.unlink()
    with pytest.raises(BadInputError, match="c/1/2"):
        npmdask.top_k(tmp_path / "x.zarr", 3, kind="samples", **ROW_GRAM)


def test_a_column_of_chunks_is_cut_as_memory_has_room_and_two_passes_are_made_where_a_third_has_none() -> None:
    shape, chunks = (400, 700_000), (1, 700_000)  # 267 MiB; of float64 5 MiB a vector
    found = []
    for mib in (8000, 900, 520, 470):
        problem: Any = problem_of(shape, chunks, tree_rss() + mib * 2**20, algorithm="row-gram")
        found.append((problem.algorithm.parts, problem.rule.max_steps, problem.algorithm.iteration_rank))
    assert found[0] == (2, 200, 13), "a part for each thread"
    assert [steps for _, steps, _ in found] == [200, 2, 2, 2] and {p for _, _, p in found[1:]} == {5}
    assert 2 <= found[1][0] < found[2][0] < found[3][0]
    with pytest.raises(MemoryRefusedError):
        memory_for(
            needs_of(problem_of(shape, chunks, tree_rss() + 2**27, algorithm="row-gram")), Resources(memory=2**27)
        )


@pytest.mark.slow
def test_parts_are_read_in_turn_and_kept_by_a_run(tmp_path: Path) -> None:
    """Each reads all chunks. Mutant: the parts of a run follow memory again when it goes on."""
    z = zarr.create_array(tmp_path / "x.zarr", shape=(40, 900), dtype="f8", chunks=(16, 900))
    z[...] = normal(np.random.default_rng(2), 40, 900) + 7
    asked: dict[str, Any] = {"kind": "samples", "center": True, **ROW_GRAM}
    whole, cut = (
        npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / str(parts), options=parts and {"parts": parts}, **asked)
        for parts in (None, 7)
    )
    assert np.allclose(cut.values, whole.values, rtol=1e-13) and cut.converged
    assert cut.bytes_read == 7 * whole.bytes_read == 7 * 2 * 40 * 900 * 8
    assert cut.total_data_passes == 2
    again = npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "7", **asked)
    assert again.basis.tobytes() == cut.basis.tobytes() and again.steps == cut.steps
    more = npmdask.resume(tmp_path / "7", tol=1e-15, max_steps=4)
    assert more.steps > 2 and np.allclose(more.values, whole.values, rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 6])
def test_a_chunk_that_changes_between_its_parts_is_seen(
    tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one task and between two, of data without recorded checksums. Mutant: the last checksum is kept."""
    z = zarr.create_array(tmp_path / "x.zarr", shape=(40, 900), dtype="f8", chunks=(16, 900))
    z[...] = normal(np.random.default_rng(2), 40, 900)
    read = DenseReader.column_chunks

    def changing(reader: Any, unit: int, parts: int, record: Any) -> Any:
        yield from read(reader, unit, parts, record)
        if unit == 3:
            z[20, 850] = 7.0

    monkeypatch.setattr(DenseReader, "column_chunks", changing)
    if tasks > 1:
        monkeypatch.setattr(row_gram, "RUN_BYTES", 1)
        monkeypatch.setattr(row_gram, "FEW_RUNS", 10**9)
    with pytest.raises(BadInputError, match=r"chunk c/1/0 .* changed while it was read"):
        npmdask.top_k(tmp_path / "x.zarr", 3, kind="samples", options={"parts": 6}, **ROW_GRAM)


@pytest.mark.parametrize("options", [{"parts": 0}, {"parts": True}, {"part": 2}])
def test_parts_are_a_whole_number(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match=r"leave it out|unknown option 'part' of row-gram: .*parts"):
        npmdask.top_k(np.eye(9), 2, kind="samples", options=options, **ROW_GRAM)


@pytest.mark.parametrize(
    "data, asked, error, said",
    [
        (np.eye(9), {"kind": "symmetric"}, BadInputError, r"forms A A\^T, and .* is of kind symmetric"),
        (np.eye(9), {"k": 0.9}, RefusedError, 'leave algorithm = "row-gram" out'),
        (np.eye(9), {"mechanism": "gaussian", "stddev": 0.1}, RefusedError, "use 'power' with a noise mechanism"),
    ],
)
def test_what_it_cannot_do(data: Any, asked: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        npmdask.top_k(data, **{"k": 2, "kind": "samples", **ROW_GRAM, **asked})


def test_a_value_that_is_none_is_named() -> None:
    x = np.ones((5, 40))
    x[3, 21] = np.nan
    with pytest.raises(BadInputError, match="nan at row 3, column 21"):
        npmdask.top_k(x, 2, kind="samples", **ROW_GRAM)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    wide = zarr.create_array({}, shape=(8000, 40_000), chunks=(1000, 2000), dtype="f4")
    with pytest.raises(MemoryRefusedError, match='or algorithm = "krylov", which forms no matrix of rows x rows'):
        npmdask.top_k(wide, 3, kind="samples", algorithm="row-gram", memory="2GiB")


def test_a_run_that_was_refused_for_memory_is_chosen_again_with_more(tmp_path: Path) -> None:
    """Mutant: it keeps the parts that would have taken the least memory, and its few columns."""
    z = zarr.create_array(tmp_path / "x.zarr", shape=(40, 900), dtype="f8", chunks=(16, 900))
    z[...] = normal(np.random.default_rng(2), 40, 900)
    asked: dict[str, Any] = {"kind": "samples", "store": tmp_path / "run", **ROW_GRAM}
    with pytest.raises(MemoryRefusedError, match="at least"):
        npmdask.top_k(tmp_path / "x.zarr", 3, memory="20MiB", **asked)
    found, plain = (npmdask.top_k(tmp_path / "x.zarr", 3, **asked | more) for more in ({}, {"store": None}))
    assert found.bytes_read == plain.bytes_read and found.basis.tobytes() == plain.basis.tobytes()


@pytest.mark.parametrize("limit", range(200, 500, 50))
def test_the_memory_that_a_refusal_names_suffices(limit: int) -> None:
    """For both passes. Mutant: only the first is named, after which the other is refused."""

    def planned(mib: int) -> int:
        problem = problem_of((400, 700_000), (1, 700_000), mib * 2**20, algorithm="row-gram")
        resources = Resources(memory=mib * 2**20, threads=1)
        return memory_for(needs_of(problem), resources, base=100 * 2**20).predicted_peak

    with pytest.raises(MemoryRefusedError, match="at least") as refused:
        planned(limit)
    assert refused.value.least <= (enough := -(-refused.value.least // 2**20)) * 2**20
    assert planned(enough) <= enough * 2**20


def test_a_matrix_of_2000_rows_is_planned_in_half_a_gigabyte() -> None:
    """16 runs have four levels. Mutants: five of them; ten blocks of right vectors."""
    planned = memory_for(
        needs_of(problem_of((2000, 100_000), memory=2**29, target_rank=10, center=True, algorithm="row-gram")),
        Resources(memory=2**29, threads=1),
        base=115 * 2**20,
    )
    assert planned.predicted_peak <= 2**29


def problem_of(
    shape: tuple[int, int], chunks: tuple[int, int] | None = None, memory: int | None = None, **request: Any
) -> Problem:
    """What is asked of data of this shape, of which nothing is read."""
    array = zarr.create_array({}, shape=shape, dtype="i1", chunks=chunks or (shape[0], 2000))
    asked = Request(**{"target_rank": 3, **request})
    return posed(asked, open_source(array, "samples"), Resources(memory=memory, threads=2))


def chosen(*data: Any, **request: Any) -> str:
    """What ``auto`` takes."""
    return str(problem_of(*data, **request).algorithm.name)


def test_auto_forms_the_small_side_where_that_is_the_fastest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forming, "TIMED", dict.fromkeys(forming.TIMED, np.inf))  # there is nothing to be read
    assert chosen((400, 40_000)) == chosen((1800, 40_000)) == "row-gram"
    assert chosen((400, 10_000)) == "krylov", "a pass takes no time"
    assert chosen((2200, 40_000)) == chosen((2000, 9_000)) == "krylov", "nine passes are made meanwhile"
    assert chosen((600, 1_000_000), (600, 1_000_000)) == "row-gram", "in parts"
    assert chosen((600, 9_000_000), (1, 9_000_000), memory=tree_rss() + 2**34) == "row-gram"
    assert chosen((600, 9_000_000), (1, 9_000_000), memory=tree_rss() + 5 * 2**30) == "row-gram", "others have no room"
    assert chosen((1900, 300_000)) == "row-gram"
    assert chosen((1900, 300_000), (1, 300_000)) == "krylov", "every chunk is read twice a pass"
    assert chosen((400, 40_000), mechanism="gaussian", stddev=1.0) == "power"
    assert chosen((400, 40_000), target_rank=0.9) == "krylov"


def worth_timing(folder: Path, dtype: str, missing: Callable[[Source], Source] = lambda source: source) -> list[bool]:
    """Whether the machine is timed for a store of 60 million numbers, and of 72."""
    few, many = (
        missing(
            open_source(
                zarr.create_array(folder / f"{d}.zarr", shape=(2000, d), dtype=dtype, chunks=(2000, 2000)), "samples"
            )
        )
        for d in (30_000, 36_000)
    )
    assert not forming._worth_timing("gram", many, Resources())
    return [forming._worth_timing("row-gram", each, Resources()) for each in (few, many)]


@pytest.mark.parametrize("dtype", ["i1", "f4", "f8"])
def test_numbers_decide_what_is_measured_not_their_bytes(dtype: str, tmp_path: Path) -> None:
    """A byte takes as long to multiply as a float64. Mutant: bytes."""
    assert worth_timing(tmp_path, dtype) == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("tol, exact", [(None, False), (1e-9, True)])
def test_many_rows_of_float32_are_multiplied_in_it_where_the_tolerance_allows_that(
    tol: float | None, exact: bool
) -> None:
    """And the bound tells of it. Mutant: ``single`` of every tolerance."""
    x = normal(np.random.default_rng(1), 600, 2000).astype(np.float32)
    found = npmdask.top_k(x, 4, center=True, kind="samples", tol=tol, **ROW_GRAM)
    asked = Request(target_rank=4, center=True, tol=tol, algorithm="row-gram")
    formed: Any = posed(asked, open_source(x, "samples"), Resources()).algorithm
    assert formed.single != exact and found.total_data_passes == 2 and found.converged
    values = np.linalg.svd(x - x.mean(axis=0, dtype=float), compute_uv=False) ** 2 / 600
    np.testing.assert_allclose(found.values, values[:4], rtol=1e-11)
    told = found.certificate["levels"][1]["value_errors"][0]  # type: ignore[index]
    assert (told < 1e-10) == exact and told < 1e-6


@pytest.mark.parametrize("kind", ["samples", "matrix"])
def test_one_step_is_not_enough_for_vectors(kind: str) -> None:
    """The first step knows values and no vectors: they were told beside the random start, and a share with it."""
    x = normal(np.random.default_rng(1), 40, 200)
    found = npmdask.top_k(x, 20, kind=kind, center=True, max_steps=1, **ROW_GRAM)
    seen = x - x.mean(axis=0)
    captured = np.linalg.norm(seen @ found.basis) ** 2 / np.linalg.norm(seen) ** 2
    assert found.explained_share == pytest.approx(captured, rel=1e-9) and found.steps == 2
    sizes = np.square(np.linalg.norm(seen @ found.basis, axis=0)) / (40 if kind == "samples" else 1)
    np.testing.assert_allclose(found.values ** (1 if kind == "samples" else 2), sizes, rtol=1e-9)
