"""Moments of samples, and the way back from eigenpairs to models: exact identities first, then recovery from data."""

from __future__ import annotations

from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import npmdask.core.operators._protocol as protocol
from npmdask.core.algorithms import Query
from npmdask.core.execution.executor import Threads, single_threaded_blas
from npmdask.core.execution.reduction import PassCheckpoint, compute_node, pack, root, runs_of, tasks_of, unpack
from npmdask.core.numerics.subspaces import Block, symmetric_part
from npmdask.core.operators import Gram, View
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.latent.sample_moments import MixtureSpread, MixtureTriples, SampleFourth, SampleTriples
from npmdask.tensors.moments import (
    LDA,
    IndependentSources,
    SingleTopic,
    SphericalMixture,
    largest_form,
    lda_cube,
    lda_pairs,
    lda_triples,
    match,
    multilinear,
    on_simplex,
    whiten,
)
from npmdask.topics.word_moments import WhitenedTriples, WordPairs, WordTotals
from tests.conftest import write_zarr
from tests.core.operators.test_operators import ignore
from tests.topics.test_word_moments import reader_of, run, task_peak


def cubes(weights: np.ndarray, vectors: Block) -> np.ndarray:
    """``sum_i weight_i v_i (x) v_i (x) v_i``."""
    return np.einsum("k,ak,bk,ck->abc", weights, vectors, vectors, vectors)


def power_pairs(contract: Any, m: int, k: int, order: int = 3, steps: int = 40) -> tuple[np.ndarray, Block]:
    """Eigenpairs by a plain power iteration with 20 starts and deflation of the tensor that ``contract`` applies."""
    rng = np.random.default_rng(0)
    weights, vectors = np.zeros(0), np.zeros((m, 0))

    def step(u: Block) -> Block:
        return contract(u) - vectors @ (weights[:, None] * (vectors.T @ u) ** (order - 1))

    for _ in range(k):
        u = np.linalg.qr(rng.standard_normal((20, m)))[0].T if m >= 20 else rng.standard_normal((m, 20))
        for _ in range(steps):
            u /= np.linalg.norm(u, axis=0)
            last, u = u, step(u)
        scores = np.einsum("al,al->l", last, u)
        best = np.abs(scores).argmax() if order == 4 else scores.argmax()
        weights = np.append(weights, scores[best])
        vectors = np.column_stack([vectors, last[:, best]])
    return weights, vectors


def dense_contraction(tensor: np.ndarray) -> Any:
    return lambda u: np.einsum("abc,bl,cl->al", tensor, u, u)


# --- the way back, exactly -------------------------------------------------------------------------------------------


def mixing_moments(topics: Block, alpha: np.ndarray) -> tuple[np.ndarray, Block, np.ndarray]:
    """E[x1], E[x1 x2^T], E[x1 (x) x2 (x) x3] of LDA by the moments of a Dirichlet vector, by counting repetitions."""
    k, a0 = len(alpha), alpha.sum()
    pairs, triples = np.empty((k, k)), np.empty((k, k, k))
    for a in range(k):
        for b in range(k):
            pairs[a, b] = alpha[a] * (alpha[b] + (a == b)) / (a0 * (a0 + 1))
            for c in range(k):
                rising = alpha[a] * (alpha[b] + (a == b)) * (alpha[c] + (a == c) + (b == c))
                triples[a, b, c] = rising / (a0 * (a0 + 1) * (a0 + 2))
    return topics @ (alpha / a0), multilinear(pairs, topics.T, topics.T), multilinear(triples, *[topics.T] * 3)


def test_lda_from_exact_moments() -> None:
    rng = np.random.default_rng(0)
    topics, alpha = rng.dirichlet(np.ones(12), 4).T, np.array([0.9, 0.5, 0.3, 0.1])
    a0 = float(alpha.sum())
    mean, second, third = mixing_moments(topics, alpha)
    cube = lda_cube(third, second, mean, a0)
    np.testing.assert_allclose(cube, cubes(2 * alpha / (a0 * (a0 + 1) * (a0 + 2)), topics), atol=1e-16)
    m2 = lda_pairs(second, mean, np.eye(12), a0)
    np.testing.assert_allclose(m2, topics * (alpha / (a0 * (a0 + 1))) @ topics.T, atol=1e-16)
    block = rng.standard_normal((12, 3))
    contracted = lda_triples(dense_contraction(third)(block), second @ block, mean, block, a0)
    np.testing.assert_allclose(contracted, dense_contraction(cube)(block), atol=1e-14)
    found = recovered(LDA(alpha0=a0), m2, cube, 4)
    assert_recovered(topics, alpha, found)


def recovered(model: Any, m2: Block, m3: np.ndarray, k: int) -> Any:
    white = whiten(*np.linalg.eigh(m2), k)
    np.testing.assert_allclose(white.matrix.T @ m2 @ white.matrix, np.eye(k), atol=1e-9)
    np.testing.assert_allclose(white.matrix.T @ white.back, np.eye(k), atol=1e-9)
    weights, vectors = power_pairs(dense_contraction(multilinear(m3, *[white.matrix] * 3)), k, k)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-6)
    turn = np.array([-1.0 if i % 2 else 1.0 for i in range(k)])  # the sign of a pair must not matter
    return model.unwhiten(white, weights * turn, vectors * turn)


def assert_recovered(components: Block, weights: np.ndarray, found: Any, within: float = 1e-7) -> None:
    matched = match(components, weights, found.components, found.weights)
    assert matched.errors.max() < within
    assert matched.weight_errors.max() < within
    assert (matched.recovered, matched.duplicates) == (len(weights), 0)


@pytest.mark.parametrize("model", [SingleTopic(), SphericalMixture()])
def test_single_topics_and_mixtures_from_exact_moments(model: Any) -> None:
    rng = np.random.default_rng(1)
    means, weights = rng.standard_normal((9, 4)), np.array([0.4, 0.3, 0.2, 0.1])
    assert_recovered(means, weights, recovered(model, means * weights @ means.T, cubes(weights, means), 4))
    assert model.alpha0 == 0


def test_whitening_keeps_positive_eigenvalues_only() -> None:
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    white = whiten(np.array([-5.0, 1.0, 4.0, 0.05]), vectors[:, :4], 3)
    np.testing.assert_array_equal(white.eigenvalues, [4.0, 1.0, 0.05])
    assert (white.kept, white.condition) == (3, 80.0)
    assert "condition number of M2 is 80" in white.warning
    assert whiten(np.array([4.0, 1.0]), vectors[:, :2], 2).warning == ""
    with pytest.raises(
        BadInputError, match=r"M2 supports only 2 of 4 components: its .*-0.5 is noise.* take k = 2 or fewer"
    ):
        whiten(np.array([-0.5, 1.0, 4.0, 0.05]), vectors[:, :4], 4)  # what is smaller than what is negative is noise
    with pytest.raises(BadInputError, match="no positive eigenvalue above the size of"):
        whiten(np.array([-5.0, 1.0, 4.0, 0.05]), vectors[:, :4], 4)
    with pytest.raises(BadInputError, match="supports only 1 of 2"):
        whiten(np.array([1.0, 1e-17]), vectors[:, :2], 2)
    with pytest.raises(BadInputError, match="no positive eigenvalue"):
        whiten(np.array([-1.0]), vectors[:, :1], 1)
    with pytest.raises(BadInputError, match="k = 3 components need as many eigenvalues"):
        whiten(np.array([2.0, 1.0]), vectors[:, :2], 3)


def test_wrong_models() -> None:
    with pytest.raises(BadInputError, match=r"alpha0 = 0.* use SingleTopic"):
        LDA(alpha0=0.0)
    white = whiten(np.array([2.0, 1.0]), np.eye(4)[:, :2], 2)
    with pytest.raises(BadInputError, match="weight 0 has no parameters"):
        SingleTopic().unwhiten(white, np.array([1.0, 0.0]), np.eye(2))


# --- small dense tensors ---------------------------------------------------------------------------------------------


def test_the_multilinear_form_and_symmetric_tensors() -> None:
    rng = np.random.default_rng(2)
    tensor, a, b = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 2)), rng.standard_normal((5, 6))
    np.testing.assert_allclose(multilinear(tensor, a, None, b), np.einsum("ijk,ia,kc->ajc", tensor, a, b), atol=1e-14)
    with pytest.raises(BadInputError, match="order 3 needs as many maps, not 2"):
        multilinear(tensor, a, b)
    with pytest.raises(BadInputError, match="mode 1 has 4 entries and its map 3 rows"):
        multilinear(tensor, None, a, None)
    cube = rng.standard_normal((4, 4, 4))
    part = symmetric_part(cube)
    np.testing.assert_allclose(part, part.transpose(2, 0, 1), atol=1e-15)
    u = rng.standard_normal(4)
    np.testing.assert_allclose(multilinear(part, *[u[:, None]] * 3), multilinear(cube, *[u[:, None]] * 3), atol=1e-13)


@pytest.mark.slow
def test_the_largest_form_of_a_tensor_is_reached_from_below() -> None:
    """The largest weight of orthogonal components, of either sign; of random tensors what a grid of directions shows,
    and never more than the norm of the unfolding. Mutants: no shift (a column oscillates), the mean over starts."""
    rng = np.random.default_rng(4)
    vectors = np.linalg.qr(rng.standard_normal((9, 9)))[0][:, :3]
    assert largest_form(cubes(np.array([2.0, -3.0, 1.0]), vectors)) == pytest.approx(3.0, rel=1e-9)
    angles = np.linspace(0, np.pi, 20_001)
    grid = np.stack([np.cos(angles), np.sin(angles)])
    for _ in range(20):
        tensor = symmetric_part(rng.standard_normal((2, 2, 2)))
        highest = np.abs(np.einsum("ijk,il,jl,kl->l", tensor, grid, grid, grid)).max()
        assert highest * (1 - 1e-9) <= largest_form(tensor) <= highest * (1 + 1e-6)
    tensor = symmetric_part(rng.standard_normal((8, 8, 8)))
    assert 0.3 * np.linalg.norm(tensor) / 8**0.5 < largest_form(tensor) <= np.linalg.norm(tensor.reshape(8, 64), 2)
    assert largest_form(np.zeros((3, 3, 3))) == 0.0
    with pytest.raises(BadInputError, match="operator norm"):
        largest_form(np.zeros((3, 3, 2)))


def embedded(tensor: np.ndarray) -> np.ndarray:
    """A symmetric tensor of side ``n_1 + ... + n_q`` that holds any tensor and its transposes as blocks.

    Block symmetrisation (Ragnarsson and Van Loan 2013): with z = (u_1, ..., u_q) stacked,
    ``S(z, ..., z) = q! T(u_1, ..., u_q)``, so that a singular tuple of T is an eigenvector of S.
    """
    edges = np.concatenate([[0], np.cumsum(tensor.shape)])
    places = [slice(int(a), int(b)) for a, b in pairwise(edges)]
    whole = np.zeros((int(edges[-1]),) * tensor.ndim)
    for order in permutations(range(tensor.ndim)):
        whole[tuple(places[mode] for mode in order)] = tensor.transpose(order)
    return whole


def test_any_tensor_embedded_in_a_symmetric_one() -> None:
    rng = np.random.default_rng(3)
    tensor = rng.standard_normal((2, 3, 4))
    whole = embedded(tensor)
    assert whole.shape == (9, 9, 9)
    np.testing.assert_array_equal(whole, whole.transpose(1, 0, 2))
    np.testing.assert_array_equal(whole, whole.transpose(0, 2, 1))
    u, v, w = (rng.standard_normal((n, 1)) for n in tensor.shape)
    z = np.concatenate([u, v, w])
    np.testing.assert_allclose(multilinear(whole, z, z, z), 6 * multilinear(tensor, u, v, w), rtol=1e-12)


def test_projection_on_the_simplex_is_the_nearest_point() -> None:
    rng = np.random.default_rng(4)
    columns = rng.dirichlet(np.ones(6), 50).T + 0.1 * rng.standard_normal((6, 50))
    projected, negative = on_simplex(columns)
    np.testing.assert_allclose(projected.sum(axis=0), 1.0)
    assert (projected >= 0).all()
    others = rng.dirichlet(np.ones(6), 4000).T
    for column, nearest in zip(columns.T, projected.T, strict=True):
        # the nearest point of a convex set: no other is on its far side
        assert ((others - nearest[:, None]).T @ (column - nearest)).max() <= 1e-12
    np.testing.assert_allclose(negative, -columns.clip(max=0).sum(0) / np.abs(columns).sum(0))
    kept, none = on_simplex(projected)
    np.testing.assert_allclose(kept, projected, atol=1e-15)
    assert (none == 0).all()


def test_matching_whatever_the_order_the_number_or_the_sign() -> None:
    true, weights = np.eye(5)[:, :3], np.array([3.0, 2.0, 1.0])
    found = np.column_stack([true[:, 2], -true[:, 0], true[:, 2] + 0.01, 0.3 * np.ones(5)])
    matched = match(true, weights, found, np.array([1.1, 3.0, 1.0, 0.5]), either_sign=True)
    assert (matched.found[[0, 2]] == [1, 0]).all()
    assert (matched.recovered, matched.duplicates) == (2, 1)
    np.testing.assert_allclose(matched.weight_errors[[0, 2]], [0.0, 0.1])
    assert match(true, weights, found, np.ones(4)).recovered == 1, "signs count unless they are free"
    few = match(true, weights, true[:, 1:2], weights[1:2], norm=1)
    np.testing.assert_array_equal(few.found, [-1, 0, -1])
    np.testing.assert_array_equal(few.errors, [np.inf, 0.0, np.inf])


# --- operators on samples --------------------------------------------------------------------------------------------


def samples(folder: Path, chunks: tuple[int, int] = (37, 4), dtype: str = "f8") -> tuple[np.ndarray, DenseReader]:
    x = (np.random.default_rng(5).gamma(1.0, size=(300, 6)) + np.array([0, 1, 0, -1, 0, 2])).astype(dtype)
    return x.astype("f8"), open_source(write_zarr(folder / "x.zarr", x, chunks)).reader  # type: ignore[return-value]


@pytest.fixture
def many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 1)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("rows", [None, range(0, 300), range(40, 230), range(75, 76), range(290, 300)])
@pytest.mark.parametrize("white", [False, True])
def test_contractions_of_samples(tmp_path: Path, many_runs: None, dtype: str, rows: range | None, white: bool) -> None:
    raw, reader = samples(tmp_path, dtype=dtype)
    rng = np.random.default_rng(6)
    w = rng.standard_normal((6, 3)) if white else None
    u = rng.standard_normal((3 if white else 6, 5))
    batch = slice(rows.start, rows.stop) if rows else slice(None)
    for mean, scale in ((None, None), (raw.mean(0), None), (raw.mean(0), raw.std(0))):
        x = ((raw - (0 if mean is None else mean)) / (1 if scale is None else scale))[batch]
        y = x if w is None else x @ w
        common: dict[str, Any] = {"reader": reader, "view": View(shift=mean, scale=scale), "rows": rows, "whitening": w}
        third = np.einsum("na,nb,nc->abc", y, y, y) / len(y)
        expected = dense_contraction(third)(u)
        triples = SampleTriples(**common)
        np.testing.assert_allclose(run(triples, u), expected, atol=1e-12 * np.abs(expected).max())
        scores = run(SampleTriples(**common, scores=True), u)
        np.testing.assert_allclose(scores, [np.einsum("al,al->l", expected, u)], rtol=1e-10)
        s = y.T @ y / len(y)
        fourth = np.einsum("na,nb,nc,nd->abcd", y, y, y, y) / len(y)
        for order in ("ab,cd->abcd", "ac,bd->abcd", "ad,bc->abcd"):
            left, right = order.split("->")[0].split(",")
            fourth = fourth - np.einsum(f"{left},{right}->abcd", s, s)
        expected = np.einsum("abcd,bl,cl,dl->al", fourth, u, u, u)
        cumulant = run(SampleFourth(**common), u)
        np.testing.assert_allclose(cumulant, expected, atol=1e-11 * max(1, np.abs(fourth).max()))
        plain = np.einsum("na,nl->al", y, (y @ u) ** 3) / len(y) - 3 * (u**2).sum(0) * u
        np.testing.assert_allclose(run(SampleFourth(**common, sphered=True), u), plain, rtol=1e-8, atol=1e-9)


def test_a_batch_reads_only_its_slabs(tmp_path: Path) -> None:
    _, reader = samples(tmp_path)
    operator = SampleTriples(reader=reader, rows=range(40, 80))
    _, record = Threads(1).run_pass(operator, np.ones((6, 2)), ignore)
    assert record.bytes_read == operator.pass_bytes == 2 * 37 * 6 * 8
    assert record.chunks == operator.pass_chunks == 4
    assert SampleTriples(reader=reader, rows=range(37, 74)).units == 1, "a batch that ends with a slab"
    zarr.open_array(tmp_path / "x.zarr")[80, 1] = np.nan
    assert np.isfinite(run(operator, np.ones((6, 2)))).all(), "the row is not of the batch"
    with pytest.raises(BadInputError, match="holds nan at row 80, column 1: remove or impute"):
        run(SampleTriples(reader=reader, rows=range(78, 100)), np.ones((6, 2)))
    with pytest.raises(BadInputError, match="a batch is a range of the 300 records"):
        SampleTriples(reader=reader, rows=range(290, 301))
    with pytest.raises(BadInputError, match="the whitening has 5 rows, but the data have 6 columns"):
        SampleTriples(reader=reader, whitening=np.eye(5))


@pytest.mark.parametrize("white", [False, True])
def test_mixtures_with_their_spread_taken_off(tmp_path: Path, many_runs: None, white: bool) -> None:
    x, reader = samples(tmp_path)
    mean, rng = x.mean(0), np.random.default_rng(7)
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    last = run(
        MixtureSpread(reader=reader, view=View(shift=mean)), vectors[:, 1:]
    )  # all but one: the formula as it is printed
    np.testing.assert_allclose(last[6], values[0])
    along = ((x - mean) @ vectors[:, 0]) ** 2
    np.testing.assert_allclose(last[:6, 0], (x * along[:, None]).mean(0))
    two = run(MixtureSpread(reader=reader, view=View(shift=mean)), vectors[:, 4:])
    np.testing.assert_allclose(two[6], values[:4].mean())
    w, spread = rng.standard_normal((6, 3)) if white else np.eye(6), two[:6, 0]
    u = rng.standard_normal((w.shape[1], 4))
    third = np.einsum("na,nb,nc->abc", x, x, x) / len(x)
    for order in ("a,bc->abc", "b,ac->abc", "c,ab->abc"):
        third = third - np.einsum(order, spread, np.eye(6))
    operator = MixtureTriples(reader=reader, spread=spread, whitening=w if white else None)
    expected = dense_contraction(multilinear(third, w, w, w))(u)
    np.testing.assert_allclose(run(operator, u), expected, atol=1e-11 * np.abs(expected).max())
    with pytest.raises(BadInputError, match="a mixture is of the rows as they are"):
        MixtureTriples(reader=reader, spread=spread, view=View(shift=mean))
    with pytest.raises(BadInputError, match="give mean, and no scale"):
        MixtureSpread(reader=reader)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["third", "white", "fourth", "batch", "spread"])
def test_samples_give_the_same_bits_with_any_threads_and_parts(tmp_path: Path, many_runs: None, name: str) -> None:
    x, reader = samples(tmp_path, (19, 4))
    w = np.random.default_rng(8).standard_normal((6, 3))
    operator = {
        "third": SampleTriples(reader=reader, view=View(shift=x.mean(0))),
        "white": SampleTriples(reader=reader, whitening=w),
        "fourth": SampleFourth(reader=reader, view=View(shift=x.mean(0))),
        "batch": SampleFourth(reader=reader, view=View(shift=x.mean(0)), whitening=w, rows=range(5, 260)),
        "spread": MixtureSpread(reader=reader, view=View(shift=x.mean(0))),
    }[name]
    runs, rng = runs_of(operator), np.random.default_rng(9)
    assert len(runs) > 12
    block = rng.standard_normal((operator.block_rows, 3))
    whole, record = Threads(1).run_pass(operator, block, ignore)
    for threads in (2, 3):
        assert (run(operator, block, threads) == whole).all()
    done = {
        node: compute_node(operator, runs, node, block)
        for node in tasks_of(root(len(runs)), len(runs), [], 1)
        if rng.random() < 0.6
    }
    again, other = Threads(2).run_pass(operator, block, ignore, PassCheckpoint(unpack(operator, *pack(operator, done))))
    assert (again == whole).all()
    assert other == record


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(60_000, 20), (20_000, 200)])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_a_task_on_samples_stays_within_what_it_says(tmp_path: Path, shape: tuple[int, int], dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    path = write_zarr(tmp_path / "x.zarr", x, (shape[0] // 3, shape[1]), compressors=None)
    reader: Any = open_source(path).reader
    mean, white = x.mean(0, "f8"), np.ones((shape[1], 10))
    for p in (1, 40):
        for operator in (
            SampleTriples(reader=reader, view=View(shift=mean)),
            SampleTriples(reader=reader, view=View(shift=mean), whitening=white),
            SampleFourth(reader=reader, view=View(shift=mean)),
            SampleFourth(reader=reader, view=View(shift=mean), whitening=white, rows=range(100, shape[0])),
            MixtureTriples(reader=reader, spread=mean),
            MixtureSpread(reader=reader, view=View(shift=mean)),
        ):
            said, peak = (
                operator.task_bytes(p, runs_of(operator)),
                task_peak(operator, np.ones((operator.block_rows, p))),
            )
            print(f"{type(operator).__name__} p = {p}: peak {peak / 2**20:.1f}, said {said / 2**20:.1f} MiB")
            assert said / 8 < peak < said


# --- recovery from data ----------------------------------------------------------------------------------------------


def corpus(alpha: np.ndarray, words: int, count: int, length: int, seed: int) -> tuple[Block, sp.csr_matrix]:
    """Topics (words x k), and documents of ``length`` words by LDA."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(words, 0.1), len(alpha)).T
    shares = rng.dirichlet(alpha, count) @ topics.T
    return topics, sp.csr_matrix(rng.multinomial(length, shares / shares.sum(axis=1, keepdims=True)).astype("i4"))


ALPHA = np.array([0.4, 0.3, 0.2, 0.2, 0.1])
A0 = float(ALPHA.sum())


def relative(estimate: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))


@pytest.mark.slow
def test_with_six_words_a_document_moments_need_their_diagonals_taken_off(tmp_path: Path) -> None:
    topics, counts = corpus(ALPHA, 40, 20_000, 6, 0)
    reader = reader_of(tmp_path, counts, 2**15)
    totals = WordTotals(reader=reader)
    common: dict[str, Any] = {"reader": reader, "sums": totals.sums_of(run(totals)), "alpha0": A0}
    m2 = topics * (ALPHA / (A0 * (A0 + 1))) @ topics.T
    m3 = cubes(2 * ALPHA / (A0 * (A0 + 1) * (A0 + 2)), topics)

    x = counts.toarray() / 6
    with single_threaded_blas():
        raw = np.stack([(column[:, None] * x).T @ x for column in x.T]) / len(x)
    naive_m2 = lda_pairs(x.T @ x / len(x), x.mean(0), np.eye(40), A0)
    naive_m3 = lda_cube(raw, x.T @ x / len(x), x.mean(0), A0)

    def accurate(pairs: Block, cube: np.ndarray) -> bool:
        return relative(pairs, m2) < 0.05 and relative(cube, m3) < 0.1

    cube = run(WhitenedTriples(**common, whitening=np.eye(40))).reshape(40, 40, 40)
    assert accurate(run(WordPairs(**common), np.eye(40)), cube)
    assert not accurate(naive_m2, naive_m3)
    assert relative(naive_m2, m2) > 0.5
    assert relative(naive_m3, m3) > 0.8


@pytest.mark.slow
def test_topics_of_short_documents(tmp_path: Path) -> None:
    """20,000 documents of 8 words, V = 200, k = 5: L1 error per topic at most 0.08, alpha within 10 per cent."""
    topics, counts = corpus(ALPHA, 200, 20_000, 8, 0)
    reader = reader_of(tmp_path, counts, 2**15)
    totals = WordTotals(reader=reader)
    common: dict[str, Any] = {"reader": reader, "sums": totals.sums_of(run(totals)), "alpha0": A0}
    white = whiten(*np.linalg.eigh(run(WordPairs(**common), np.eye(200))), 5)
    cube = run(WhitenedTriples(**common, whitening=white.matrix)).reshape(5, 5, 5)
    found = LDA(alpha0=A0).unwhiten(white, *power_pairs(dense_contraction(cube), 5, 5))
    np.testing.assert_allclose(found.components.sum(axis=0), 1.0, atol=0.03)
    projected, negative = on_simplex(found.components)
    assert 0 < negative.max() < 0.06
    matched = match(topics, ALPHA, projected, found.weights, norm=1, within=0.15)
    assert matched.errors.mean() <= 0.08
    assert matched.weight_errors.max() <= 0.1
    assert abs(found.weights.sum() - A0) < 0.05 * A0, "the sum of alpha checks alpha0"
    assert (matched.recovered, matched.duplicates) == (5, 0)


@pytest.mark.slow
def test_means_of_a_mixture(tmp_path: Path) -> None:
    """Two Gaussians of unequal spread and a third, their whitened tensor applied by passes over the rows."""
    rng = np.random.default_rng(10)
    d, n, weights, spreads = 12, 60_000, np.array([0.5, 0.3, 0.2]), np.array([0.5, 1.0, 0.7])
    means = 2 * np.linalg.qr(rng.standard_normal((d, 3)))[0] + 0.5 * rng.standard_normal((d, 1))
    which = rng.choice(3, n, p=weights)
    x = means.T[which] + spreads[which, None] * rng.standard_normal((n, d))
    reader: Any = open_source(write_zarr(tmp_path / "x.zarr", x, (8192, d))).reader
    centred = Gram(reader=reader, view=View(shift=x.mean(0)), weight=1 / n)
    lead = np.linalg.eigh(run(centred, np.eye(d)))[1][:, -2:]
    spread = run(MixtureSpread(reader=reader, view=View(shift=x.mean(0))), lead)
    assert spread[d, 0] == pytest.approx((weights * spreads**2).sum(), rel=0.01)
    values, vectors = np.linalg.eigh(run(Gram(reader=reader, weight=1 / n), np.eye(d)))
    white = whiten(values - spread[d, 0], vectors, 3)
    operator = MixtureTriples(reader=reader, spread=spread[:d, 0], whitening=white.matrix)
    pairs = power_pairs(lambda u: run(operator, u), 3, 3, steps=8)
    found = SphericalMixture().unwhiten(white, *pairs)
    matched = match(means, weights, found.components, found.weights, within=0.1)
    assert matched.recovered == 3
    assert matched.weight_errors.max() < 0.05


@pytest.mark.slow
def test_independent_components_of_both_signs_of_kurtosis(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    n, d = 60_000, 5
    sources = np.stack(
        [rng.uniform(-np.sqrt(3), np.sqrt(3), n), rng.laplace(0, np.sqrt(0.5), n), rng.choice([-1.0, 1.0], n)], axis=1
    )
    mixing, kappa = rng.standard_normal((d, 3)), np.array([-1.2, 3.0, -2.0])
    x = sources @ mixing.T + rng.standard_normal(d)
    reader: Any = open_source(write_zarr(tmp_path / "x.zarr", x, (8192, d))).reader
    mean = x.mean(0)
    white = whiten(*np.linalg.eigh(run(Gram(reader=reader, view=View(shift=mean), weight=1 / n), np.eye(d))), 3)
    operator = SampleFourth(reader=reader, view=View(shift=mean), whitening=white.matrix)
    weights, vectors = power_pairs(lambda u: run(operator, u), 3, 3, order=4, steps=8)
    found = IndependentSources().unwhiten(white, weights, vectors)
    matched = match(mixing, kappa, found.components, found.weights, either_sign=True, within=0.05)
    assert matched.recovered == 3
    assert matched.weight_errors.max() < 0.1
    u = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    sphered = SampleFourth(reader=reader, view=View(shift=mean), whitening=white.matrix, sphered=True)
    np.testing.assert_allclose(run(sphered, u), run(operator, u), atol=1e-9)


def test_where_weights_mean_nothing(tmp_path: Path) -> None:
    _, reader = samples(tmp_path)
    for operator in (SampleTriples, MixtureSpread):
        with pytest.raises(BadInputError, match="of weighted rows or columns is not defined"):
            operator(reader=reader, view=View(row_weight=np.linspace(0.5, 2, reader.shape[0]), to_centre=True))


def test_what_a_query_asks_for_is_answered_by_the_operator_that_lists_it() -> None:
    x = np.arange(12.0).reshape(4, 3)
    reader: Any = open_source(x).reader
    assert SampleTriples(reader=reader).asked(Query(block=x, scores=True)).scores
