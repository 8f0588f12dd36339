"""Moments of words: every operator against documents taken apart word by word, and against exact expectations."""

from __future__ import annotations

import threading
import tracemalloc
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import npmdask.core.operators._protocol as protocol
from npmdask.core.execution.executor import Threads, single_threaded_blas
from npmdask.core.execution.reduction import PassCheckpoint, compute_node, pack, root, runs_of, tasks_of, unpack
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Operator
from npmdask.core.storage.readers.sparse import CsrReader
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, MemoryRefusedError
from npmdask.tensors.moments import unique_blocks, unit_groups
from npmdask.topics.word_moments import TripleBlocks, WhitenedTriples, WordPairs, WordSums, WordTotals, WordTriples
from tests.core.operators.test_operators import ignore, write_csr

WORDS = 7
HALF = 6.0  # words of a document that counts half: weights from a third to 0.6 here
NOTHING = np.zeros((1, 1))


def documents(count: int = 60, words: int = WORDS, seed: int = 0) -> sp.csr_matrix:
    """Documents of 0 to 9 words, some words frequent, so that words are repeated."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(words, 0.5))
    counts = np.stack([rng.multinomial(length, shares) for length in rng.integers(0, 10, count)])
    return sp.csr_matrix(counts.astype("i4"))


def reader_of(folder: Path, counts: sp.csr_matrix, chunk: int = 11) -> CsrReader:
    return open_source(write_csr(folder / "words.zarr", counts, chunk, rows_at_once=1000)).reader  # type: ignore[return-value]


def run(operator: Operator, block: Block = NOTHING, threads: int = 2) -> np.ndarray:
    return Threads(threads).run_pass(operator, block, ignore)[0]


def sums_of(reader: CsrReader) -> WordSums:
    totals = WordTotals(reader=reader, half_length=HALF)
    return totals.sums_of(run(totals))


def weights_of(lengths: np.ndarray) -> np.ndarray:
    """Of documents of so many words: N / (N + HALF) over their sum."""
    weights = lengths / (lengths + HALF)
    return np.asarray(weights / weights.sum())


def taken_apart(counts: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weighted means of x1, x1 x2^T, x1 (x) x2 (x) x3 over all different places of each document of three words."""
    d = counts.shape[1]
    moments = np.zeros(d), np.zeros((d, d)), np.zeros((d, d, d))
    texts = [np.repeat(np.arange(d), row) for row in counts.toarray()]
    texts = [text for text in texts if len(text) >= 3]
    for text, weight in zip(texts, weights_of(np.array([len(text) for text in texts])), strict=True):
        for order, moment in enumerate(moments, start=1):
            places = list(permutations(range(len(text)), order))
            for place in places:
                moment[tuple(text[list(place)])] += weight / len(places)
    return moments


def lda_moments(counts: sp.csr_matrix, a0: float) -> tuple[np.ndarray, np.ndarray]:
    """M2 and M3 of theorem 3.5 (Anandkumar et al. 2014), written out."""
    one, two, three = taken_apart(counts)
    second = two - a0 / (a0 + 1) * np.outer(one, one)
    mixed = np.einsum("ij,k->ijk", two, one) + np.einsum("ik,j->ijk", two, one) + np.einsum("jk,i->ijk", two, one)
    alone = np.einsum("i,j,k->ijk", one, one, one)
    return second, three - a0 / (a0 + 2) * mixed + 2 * a0**2 / ((a0 + 1) * (a0 + 2)) * alone


@pytest.fixture
def many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run for every chunk: nearly every document is cut by a border."""
    monkeypatch.setattr(protocol, "RUN_BYTES", 1)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 0)


@pytest.mark.slow
def test_totals_and_what_was_skipped(tmp_path: Path, many_runs: None) -> None:
    counts = documents()
    reader = reader_of(tmp_path, counts)
    assert len(runs_of(WordTotals(reader=reader))) > 10
    sums, one, lengths = sums_of(reader), taken_apart(counts)[0], counts.toarray().sum(axis=1)
    used = counts.toarray()[lengths >= 3]
    n = lengths[lengths >= 3]
    assert (lengths < 3).any() and (lengths[0:1] >= 0).all()
    assert (sums.documents, sums.skipped) == ((lengths >= 3).sum(), (lengths < 3).sum())
    assert sums.words == n.sum()
    np.testing.assert_allclose(sums.mean, one, atol=1e-14)
    np.testing.assert_allclose(sums.second, used.T / (n * (n - 1)) @ weights_of(n), atol=1e-14)
    np.testing.assert_allclose(sums.third, used.T / (n * (n - 1) * (n - 2)) @ weights_of(n), atol=1e-14)
    np.testing.assert_array_equal(sums.frequency, used.sum(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("a0", [0.0, 1.3])
@pytest.mark.parametrize("chunk", [5, 1000])
def test_products_with_moments_taken_apart(tmp_path: Path, many_runs: None, a0: float, chunk: int) -> None:
    counts = documents()
    reader = reader_of(tmp_path, counts, chunk)
    second, third = lda_moments(counts, a0)
    rng = np.random.default_rng(1)
    block, white = rng.standard_normal((WORDS, 4)), rng.standard_normal((WORDS, 3))
    common: dict[str, Any] = {"reader": reader, "sums": sums_of(reader), "alpha0": a0}
    np.testing.assert_allclose(run(WordPairs(**common), block), second @ block, atol=1e-13)
    expected = np.einsum("ijk,jl,kl->il", third, block, block)
    np.testing.assert_allclose(run(WordTriples(**common), block), expected, atol=1e-13)
    scores = run(WordTriples(**common, scores=True), block)
    np.testing.assert_allclose(scores, [np.einsum("il,il->l", expected, block)], atol=1e-12)
    small = np.einsum("ijk,ia,jb,kc->abc", third, white, white, white)
    core = rng.standard_normal((3, 5))
    whitened = run(WordTriples(**common, whitening=white), core)
    np.testing.assert_allclose(whitened, np.einsum("abc,bl,cl->al", small, core, core), atol=1e-12)
    scores = run(WordTriples(**common, whitening=white, scores=True), core)
    np.testing.assert_allclose(scores, [np.einsum("abc,al,bl,cl->l", small, core, core, core)], atol=1e-12)
    cube = run(WhitenedTriples(**common, whitening=white)).reshape(3, 3, 3)
    np.testing.assert_allclose(cube, small, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("a0", [0.0, 0.7])
@pytest.mark.parametrize("side", [1, 2, 3, 7])
def test_blocks_of_the_explicit_tensor(tmp_path: Path, many_runs: None, a0: float, side: int) -> None:
    counts = documents()
    reader = reader_of(tmp_path, counts)
    sums, third = sums_of(reader), lda_moments(counts, a0)[1]
    grid = -(-WORDS // side)
    padded = np.zeros((grid * side,) * 3)
    padded[:WORDS, :WORDS, :WORDS] = third
    held = []
    for wanted in unit_groups(WORDS, side, memory=2**16):
        blocks = run(TripleBlocks(reader=reader, sums=sums, side=side, wanted=wanted, alpha0=a0))
        held.extend(blocks.reshape(-1, side, side, side))
    assert len(held) == len(unique_blocks(grid)) == grid * (grid + 1) * (grid + 2) // 6
    for values, (i, j, k) in zip(held, unique_blocks(grid), strict=True):
        a, b, c = (slice(row * side, (row + 1) * side) for row in (i, j, k))
        np.testing.assert_allclose(values, padded[a, b, c], atol=1e-14)
        if i == j:
            assert (values == values.transpose(1, 0, 2)).all(), "symmetric to the last bit"
        if j == k:
            assert (values == values.transpose(0, 2, 1)).all()


def test_a_word_listed_twice_in_a_document(tmp_path: Path) -> None:
    """A plain CSR group may list a column of a row twice: its counts are one count of that word."""
    counts = documents()
    listed = np.repeat(counts.indices, counts.data)  # every word by itself, with a count of 1
    pointers = np.concatenate([[0], np.cumsum(counts.toarray().sum(axis=1))])
    group = zarr.create_group(tmp_path / "listed.zarr")
    group.attrs.update({"encoding-type": "csr_matrix", "shape": list(counts.shape)})
    for name, values in (("data", np.ones(len(listed), "u1")), ("indices", listed), ("indptr", pointers)):
        group.create_array(name, data=values, chunks=(50,))
    reader: Any = open_source(tmp_path / "listed.zarr").reader
    common: dict[str, Any] = {"reader": reader, "sums": sums_of(reader), "alpha0": 1.3}
    third, eye = lda_moments(counts, 1.3)[1], np.eye(WORDS)
    expected = np.einsum("ijj->ij", third)
    np.testing.assert_allclose(run(WordTriples(**common), eye), expected, atol=1e-13)
    cube = run(WhitenedTriples(**common, whitening=eye)).reshape(third.shape)
    np.testing.assert_allclose(cube, third, atol=1e-13)
    blocks = run(TripleBlocks(**common, side=WORDS, wanted=range(1))).reshape(third.shape)
    np.testing.assert_allclose(blocks, third, atol=1e-13)


def test_groups_of_blocks_fit_the_memory() -> None:
    assert unit_groups(1000, 100, 2**35) == [range(0, 220)]
    groups = unit_groups(1000, 100, 2**29)
    assert [unit for group in groups for unit in group] == list(range(220))
    assert len(groups) > 10
    with pytest.raises(MemoryRefusedError, match=r"one block of side 100 needs .* use smaller blocks"):
        unit_groups(1000, 100, 2**20)


def every_text(shares: np.ndarray, length: int) -> np.ndarray:
    """All texts of ``length`` words, as often as their probability says: ``shares`` are whole multiples of 1/4."""
    letters = np.repeat(np.arange(len(shares)), (4 * shares).astype(int))
    texts = np.array(list(product(letters, repeat=length)))
    return np.stack([(texts == word).sum(axis=1) for word in range(len(shares))], axis=1)


@pytest.mark.slow
def test_exact_expectation_of_single_topics(tmp_path: Path) -> None:
    """Over all texts of 3 or 5 words of two topics the estimates ARE the moments; naive ones are far off."""
    topics = np.array([[0.5, 0.25, 0.25, 0.0], [0.0, 0.25, 0.25, 0.5]]).T
    counts = np.concatenate(
        [
            np.tile(every_text(topics[:, t], length), (4 ** (5 - length) * (1 + 2 * t), 1))
            for t in (0, 1)
            for length in (3, 5)
        ]
    )
    weights = np.array([0.25, 0.75])
    reader = reader_of(tmp_path, sp.csr_matrix(counts.astype("u1")), 1000)
    sums = sums_of(reader)
    np.testing.assert_allclose(sums.mean, topics @ weights, atol=1e-14)
    np.testing.assert_allclose(
        run(WordPairs(reader=reader, sums=sums), np.eye(4)), topics * weights @ topics.T, atol=1e-14
    )
    cube = run(WhitenedTriples(reader=reader, sums=sums, whitening=np.eye(4))).reshape(4, 4, 4)
    np.testing.assert_allclose(cube, np.einsum("k,ak,bk,ck->abc", weights, topics, topics, topics), atol=1e-14)
    shares = counts / counts.sum(axis=1, keepdims=True)
    naive = shares.T @ shares / len(shares)
    assert np.linalg.norm(naive - topics * weights @ topics.T) > 0.2 * np.linalg.norm(naive)


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Operator]:
    folder = tmp_path_factory.mktemp("operators")
    rng = np.random.default_rng(3)
    reader = reader_of(folder, documents(900, 40, seed=4), 220)
    common: dict[str, Any] = {"reader": reader, "sums": sums_of(reader), "alpha0": 0.8}
    white = rng.standard_normal((40, 3))
    return {
        "totals": WordTotals(reader=reader),
        "pairs": WordPairs(**common),
        "triples": WordTriples(**common),
        "white": WordTriples(**common, whitening=white),
        "cube": WhitenedTriples(**common, whitening=white),
        "blocks": TripleBlocks(**common, side=16, wanted=range(2, 9)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["totals", "pairs", "triples", "white", "cube", "blocks"])
def test_the_same_bits_with_any_threads_and_from_any_known_parts(
    operators: dict[str, Operator], many_runs: None, name: str
) -> None:
    operator = operators[name]
    runs = runs_of(operator)
    assert len(runs) > 12
    rng = np.random.default_rng(2)
    block = rng.standard_normal((operator.block_rows, 3))
    whole, record = Threads(1).run_pass(operator, block, ignore)
    for threads in (2, 3):
        assert (run(operator, block, threads) == whole).all()
    for level in (0, 2):
        nodes = tasks_of(root(len(runs)), len(runs), [], level)
        done = {node: compute_node(operator, runs, node, block) for node in nodes if rng.random() < 0.6}
        again, other = Threads(2).run_pass(
            operator, block, ignore, PassCheckpoint(unpack(operator, *pack(operator, done)))
        )
        assert (again == whole).all()
        assert other == record


@pytest.mark.slow
def test_single_precision_is_close(operators: dict[str, Operator]) -> None:
    for operator in operators.values():
        block = np.random.default_rng(5).standard_normal((operator.block_rows, 3))
        double, single = run(operator, block), run(operator, block.astype("f4"))
        assert np.abs(double - single).max() <= 1e-5 * np.abs(double).max()


def task_peak(operator: Operator, block: Block) -> int:
    """Peak of what NumPy allocates in a thread that begins with no buffer, over the largest run."""
    run = max(runs_of(operator), key=len)
    tracemalloc.start()
    try:
        thread = threading.Thread(target=lambda: operator.partial(run, block))
        with single_threaded_blas():
            thread.start()
            thread.join()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("words", "length", "m"), [(100, 5, 10), (3000, 50, 30)])
def test_a_task_on_words_stays_within_what_it_says(tmp_path: Path, words: int, length: int, m: int) -> None:
    count, rng = 400_000 // length, np.random.default_rng(7)
    places = np.sort(rng.integers(0, words, (count, length)), axis=1).ravel()
    counts = sp.csr_matrix((np.ones(len(places), "i4"), places, np.arange(0, len(places) + 1, length)))
    reader = reader_of(tmp_path, counts, 2**17)
    white = rng.standard_normal((words, m))
    common: dict[str, Any] = {"reader": reader, "sums": sums_of(reader), "alpha0": 0.8}
    for p in (1, 40):
        for operator in (
            WordTotals(reader=reader),
            WordPairs(**common),
            WordTriples(**common),
            WordTriples(**common, whitening=white),
            WhitenedTriples(**common, whitening=white),
            TripleBlocks(**common, side=20, wanted=range(5)),
        ):
            said, peak = (
                operator.task_bytes(p, runs_of(operator)),
                task_peak(operator, np.ones((operator.block_rows, p))),
            )
            print(f"{type(operator).__name__} p = {p}: peak {peak / 2**20:.1f}, said {said / 2**20:.1f} MiB")
            assert said / 8 < peak < said


@pytest.mark.slow
@pytest.mark.parametrize(("value", "chunk"), [(-1.0, 3), (0.5, 17), (np.nan, 17), (np.inf, 1000)])
def test_counts_that_are_no_counts(tmp_path: Path, many_runs: None, value: float, chunk: int) -> None:
    whole = documents().astype("f8")
    for row in np.flatnonzero(np.diff(whole.indptr) > 2)[5:13]:
        counts = whole.copy()
        counts.data[counts.indptr[row] + 2] = value
        group = zarr.create_group(tmp_path / f"{row}.zarr")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": list(counts.shape)})
        for part in ("data", "indices", "indptr"):
            group.create_array(part, data=getattr(counts, part), chunks=(chunk,))
        reader: Any = open_source(tmp_path / f"{row}.zarr").reader
        with pytest.raises(BadInputError, match=rf"document \(row\) {row} of .*zarr.* holds {value}.* raw counts"):
            run(WordTotals(reader=reader))


@pytest.mark.slow
def test_documents_too_short_and_wrong_settings(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, sp.csr_matrix(np.array([[1, 1, 0], [0, 0, 2]], "i4")))
    with pytest.raises(BadInputError, match=r"none of the 2 documents .* has three words"):
        sums_of(reader)
    ones = {name: np.ones(3) for name in ("mean", "second", "third", "frequency")}
    sums = WordSums(**ones, documents=1, skipped=0, words=3, half_length=0.0, total=1.0)
    for kind in (WordPairs, WordTriples):
        with pytest.raises(BadInputError, match="alpha0 = -1"):
            kind(reader=reader, sums=sums, alpha0=-1)
    with pytest.raises(BadInputError, match="the whitening has 4 rows, but the data have 3 columns"):
        WhitenedTriples(reader=reader, sums=sums, whitening=np.eye(4))
    with pytest.raises(BadInputError, match="the tensor has blocks 0 to 3"):
        TripleBlocks(reader=reader, sums=sums, side=2, wanted=range(3, 5))
