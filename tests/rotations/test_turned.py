"""Components that are rotated or aligned: their variances, their scores, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import npmdask
from npmdask.errors import BadInputError

SCALES = np.geomspace(9, 1, 8)


def rows(seed: int = 0, n: int = 300) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mix = np.kron(np.eye(2), np.ones((4, 1))) @ rng.standard_normal((2, n)) * 5
    return mix.T * [3, 3, 3, 3, 2.5, 2.5, 2.5, 2.5] + rng.standard_normal((n, 8)) * SCALES + 7


@pytest.fixture(scope="module")
def found() -> npmdask.Solution:
    return npmdask.top_k(rows(), 3, kind="samples", center=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["varimax", "promax"])
@pytest.mark.parametrize("normalize", [False, True])
def test_rotated_scores_give_the_same_rows_and_the_variances_the_same_sum(
    found: npmdask.Solution, method: str, normalize: bool
) -> None:
    turned, x = found.rotated(method, normalize=normalize), rows()
    scores = turned.scores(x)
    np.testing.assert_allclose(scores @ turned.basis.T, found.scores(x) @ found.basis.T, atol=1e-9)
    assert turned.variances.sum() == pytest.approx(found.explained_variance.sum(), rel=1e-12)
    assert (np.diff(turned.variances) <= 0).all()
    np.testing.assert_allclose(np.corrcoef(scores.T), turned.correlations, atol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(turned.basis, axis=0), 1)
    if method == "varimax":
        np.testing.assert_allclose(scores.var(axis=0, ddof=1), turned.variances, rtol=1e-10)
        np.testing.assert_allclose(turned.correlations, np.eye(3), atol=1e-10)
    else:
        assert np.abs(turned.correlations - np.eye(3)).max() > 1e-3


@pytest.mark.slow
def test_rotation_of_scaled_columns_scores_rows_in_their_own_units() -> None:
    found, x = npmdask.top_k(rows(), 2, kind="samples", center=True, scale=True), rows()
    turned = found.rotated()
    np.testing.assert_allclose(turned.scores(x) @ turned.basis.T, found.scores(x) @ found.basis.T, atol=1e-9)


def test_one_component_is_its_own_rotation(found: npmdask.Solution) -> None:
    turned = found.rotated("varimax", k=1)
    np.testing.assert_allclose(np.abs(turned.basis[:, 0] @ found.basis[:, 0]), 1, rtol=1e-12)
    np.testing.assert_allclose(turned.variances, found.explained_variance[:1])
    np.testing.assert_allclose(found.rotated("promax", k=1).basis, turned.basis, atol=1e-12)


@pytest.mark.slow
def test_columns_and_components_without_variance() -> None:
    """k = d with a constant column: the direction without variance is refused, the others are rotated."""
    x = np.c_[rows()[:, :3], np.full(300, 4.0)]
    found = npmdask.top_k(x, 4, kind="samples", center=True)
    with pytest.raises(BadInputError, match=r"only 3 of 4 .* k=3"):
        found.rotated()
    turned = found.rotated(k=3)
    assert np.isfinite(turned.basis).all() and np.abs(turned.basis[3]).max() < 1e-12
    constant = npmdask.top_k(np.ones((10, 3)), 1, kind="samples", center=True)
    with pytest.raises(BadInputError, match="nothing varies"):
        constant.rotated()


def test_what_has_no_rotation_is_refused(found: npmdask.Solution) -> None:
    with pytest.raises(BadInputError, match="varimax, promax"):
        found.rotated("quartimax")
    for k in (0, 4, 1.5):
        with pytest.raises(BadInputError, match="take 1 to 3"):
            found.rotated(k=k)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="kind symmetric"):
        npmdask.top_k(np.diag([3.0, 2.0, 1.0]), 1, kind="symmetric").rotated()


@pytest.mark.slow
def test_aligned_undoes_flips_and_swaps(found: npmdask.Solution) -> None:
    earlier = found.basis[:, [2, 0, 1]] * [-1, 1, -1]
    turned, x = found.aligned(earlier), rows()
    np.testing.assert_allclose(turned.basis, earlier, atol=1e-13)
    assert turned.order is not None and turned.order.tolist() == [2, 0, 1]
    np.testing.assert_allclose(turned.similarity, 1)
    np.testing.assert_allclose(turned.variances, found.explained_variance[[2, 0, 1]])
    np.testing.assert_allclose(turned.scores(x), found.scores(x) @ turned.rotation, atol=1e-9)


@pytest.mark.slow
def test_the_best_order_is_found_where_the_greedy_one_is_not(found: npmdask.Solution) -> None:
    """The largest cosine of all, 0.8, would leave 0 for the other one; 0.6 and 0.78 are better."""
    v = found.basis
    outside = np.linalg.svd(v)[0][:, 3]
    earlier = np.stack([0.8 * v[:, 0] + 0.6 * v[:, 1], 0.78 * v[:, 0] + np.sqrt(1 - 0.78**2) * outside], axis=1)
    assert found.aligned(earlier).order.tolist() == [1, 0, 2]  # type: ignore[union-attr]


@pytest.mark.slow
def test_other_numbers_of_components(found: npmdask.Solution) -> None:
    fewer = found.aligned(-found.basis[:, [1]])
    assert fewer.order.tolist() == [1, 0, 2]  # type: ignore[union-attr]
    np.testing.assert_allclose(fewer.similarity, [1, np.nan, np.nan])
    few = npmdask.top_k(rows(), 2, kind="samples", center=True)
    assert few.aligned(found.basis[:, [2, 1, 0]]).order.tolist() == [1, 0]  # type: ignore[union-attr]
    with pytest.raises(BadInputError, match="3 components are not rotated onto 1"):
        found.aligned(found.basis[:, :1], rotate=True)


@pytest.mark.slow
def test_rotated_onto_an_earlier_run_they_span_the_same(found: npmdask.Solution) -> None:
    other = npmdask.top_k(rows(seed=1), 3, kind="samples", center=True)
    turned, x = found.aligned(other, rotate=True), rows()
    plain = found.aligned(other)
    assert turned.similarity.sum() >= plain.similarity.sum()  # type: ignore[union-attr]
    assert turned.variances.sum() == pytest.approx(found.explained_variance.sum())
    scores = turned.scores(x)
    np.testing.assert_allclose(scores @ turned.basis.T, found.scores(x) @ found.basis.T, atol=1e-9)
    np.testing.assert_allclose(np.corrcoef(scores.T), turned.correlations, atol=1e-10)


def test_other_columns_are_no_earlier_answer(found: npmdask.Solution) -> None:
    for earlier in (np.eye(5), np.full((8, 2), np.nan), np.zeros(8)):
        with pytest.raises(BadInputError, match="no earlier answer"):
            found.aligned(earlier)
    with pytest.raises(BadInputError, match=r"'runs/a' is a name: .* npmdask.resume\('runs/a'\)"):
        found.aligned("runs/a")  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="is zero"):
        found.aligned(np.zeros((8, 1)))


@pytest.mark.parametrize("missing", ["mean", "drop-columns"])
def test_turned_components_score_rows_with_gaps_and_weights_as_the_run_does(missing: str) -> None:
    x, u, v = rows(), np.linspace(0, 3, 300), np.linspace(2, 0.5, 8)
    x[:, 3] = np.nan if missing == "drop-columns" else x[:, 3]
    x[20:40, 5] = np.nan if missing == "mean" else x[20:40, 5]
    found = npmdask.top_k(x, 3, kind="samples", center=True, missing=missing, row_weights=u, column_weights=v)
    here = np.flatnonzero(~np.isnan(x).all(axis=0))
    seen = np.isfinite(x[:, here])
    mean = (u[:, None] * np.nan_to_num(x[:, here])).sum(axis=0) / (u[:, None] * seen).sum(axis=0)
    full = (np.where(seen, x[:, here], mean) - mean) * np.sqrt(v[here])
    planted = np.linalg.svd(np.sqrt(u)[:, None] * full, full_matrices=False)[2][:3].T
    for turned in (
        found.rotated(),
        found.rotated("promax"),
        found.aligned(planted),
        found.aligned(planted, rotate=True),
    ):
        scores = turned.scores(x)
        np.testing.assert_allclose(scores @ turned.basis.T, full @ planted @ planted.T, atol=1e-7)
        spread = scores.T @ (u[:, None] * scores) / (u.sum() - 1)
        np.testing.assert_allclose(
            spread / np.sqrt(np.outer(np.diag(spread), np.diag(spread))), turned.correlations, atol=1e-7
        )


def test_mean_squares_of_rows_that_weigh_less_than_one_together() -> None:
    found = npmdask.top_k(rows(), 2, row_weights=np.full(300, 1e-3))
    np.testing.assert_allclose(found.north_errors(independent_rows=2)[0], found.singular_values**2 / 0.3, rtol=1e-12)


@pytest.mark.slow
def test_how_much_of_a_component_lies_in_the_earlier_space(found: npmdask.Solution) -> None:
    """Components that mix among themselves stay inside; one that is new lies outside, however the others are turned."""
    v = found.basis
    outside = np.linalg.svd(v)[0][:, 3]
    c, s = np.cos(0.7), np.sin(0.7)
    mixed = v.copy()
    mixed[:, 1:] = v[:, 1:] @ np.array([[c, -s], [s, c]])
    same = found.aligned(mixed)
    np.testing.assert_allclose(same.inside, 1, atol=1e-12)
    np.testing.assert_allclose(same.similarity, [1, c, c], atol=1e-12)
    new = np.column_stack([v[:, 0], outside, v[:, 2] * c + v[:, 1] * s])
    moved = found.aligned(new)
    assert moved.earlier.tolist() == [0, 1, 2] and sorted(moved.order.tolist()) == [0, 1, 2]  # type: ignore[union-attr]
    np.testing.assert_allclose(np.sum(moved.inside), 2, atol=1e-12)  # type: ignore[arg-type]
    assert np.min(moved.inside) < 0.6  # type: ignore[type-var]
    twice = found.aligned(np.column_stack([v[:, 0], v[:, 0] + 1e-17, v[:, 1]]))  # of rank 2
    assert np.min(twice.inside) < 1e-9  # type: ignore[type-var]


@pytest.mark.slow
def test_rotated_components_are_aligned_with_earlier_ones(found: npmdask.Solution) -> None:
    x = rows()
    for method in ("varimax", "promax"):
        turned = found.rotated(method)
        shuffled = -turned.basis[:, [2, 0, 1]]
        again = turned.aligned(shuffled)
        np.testing.assert_allclose(again.basis, shuffled)
        np.testing.assert_allclose(again.similarity, 1)
        np.testing.assert_allclose(again.variances, turned.variances[[2, 0, 1]])
        scores = again.scores(x)
        np.testing.assert_allclose(scores @ again.basis.T, found.scores(x) @ found.basis.T, atol=1e-9)
        np.testing.assert_allclose(np.corrcoef(scores.T), again.correlations, atol=1e-10)
    with pytest.raises(BadInputError, match="no earlier answer"):
        turned.aligned(np.eye(5))


@pytest.mark.slow
def test_columns_of_other_names_are_not_compared() -> None:
    frame = pytest.importorskip("pandas").DataFrame(rows(), columns=list("abcdefgh"))
    here = npmdask.top_k(frame, 2, kind="samples", center=True)
    other = npmdask.top_k(frame.rename(columns={"b": "z"}), 2, kind="samples", center=True)
    with pytest.raises(BadInputError, match="the earlier run has no column 'b', which the run has"):
        here.aligned(other)
    x, y = rows(), rows()
    x[:, 3], y[:, 4] = np.nan, np.nan
    dropped = [npmdask.top_k(z, 2, kind="samples", center=True, missing="drop-columns") for z in (x, y)]
    with pytest.raises(BadInputError, match="left out different columns"):
        dropped[0].aligned(dropped[1])
