"""Images: against dense projections, no d x d matrix, what is not there."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from npmdask.core.numerics.subspaces import present, project_out
from npmdask.dp_pca.private_mean import DistanceRange
from npmdask.dp_pca.record_images import images_of_matrices, images_of_rows
from npmdask.errors import BadInputError


def test_images_are_those_of_the_dense_formula() -> None:
    """Fails if P is left out on either side, or rows and matrices differ."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((9, 6)), rng.standard_normal(6)
    u = np.linalg.qr(rng.standard_normal((6, 2)))[0]
    p = np.eye(6) - u @ u.T
    wanted = np.array([p @ np.outer(a, a) @ p @ w for a in x])
    np.testing.assert_allclose(images_of_rows(x, w, u), wanted, atol=3e-6)
    np.testing.assert_allclose(images_of_matrices(x[:, :, None] * x[:, None, :], w, u), wanted, atol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "j"), [(1, 0), (20, 0), (20, 1), (20, 2), (37, 1), (200, 1), (200, 2), (200, 8), (784, 3), (6000, 2)]
)
def test_an_image_is_a_function_of_the_record_wherever_it_lies(d: int, j: int) -> None:
    """Bit for bit, in strips of any height and any order of storage. Fails where BLAS rounds: its kernels sum the last
    rows of a strip in another order."""
    rng = np.random.default_rng(d + j)
    w, u = rng.standard_normal(d), np.linalg.qr(rng.standard_normal((d, max(j, 1))))[0][:, :j]
    x = rng.standard_normal(d) * 10.0 ** rng.uniform(-9, 9, d)
    alone = images_of_rows(x[None], w, u)
    height = max(2, 2**17 // d)
    for rows in (*range(2, 18), height - 1, height):
        for strip in (np.tile(x, (rows, 1)), np.asfortranarray(np.tile(x, (rows, 1)))):
            assert (images_of_rows(strip, w, u) == alone).all(), rows
    if d <= 37:
        a = np.outer(x, x) + rng.standard_normal((d, d))
        for rows in range(1, 18):
            assert (images_of_matrices(np.tile(a, (rows, 1, 1)), w, u) == images_of_matrices(a[None], w, u)).all()


@pytest.mark.parametrize("d", [1, 16, 200, 783, 10_000])
@pytest.mark.parametrize("same_sign", [False, True])
def test_no_sum_of_an_image_rounds(d: int, same_sign: bool) -> None:
    """Turning the coordinates around turns images around, to the last bit: no order of summation shows. Fails with
    two bits more in the grids, where all terms have one sign and are as large as they can be."""
    rng = np.random.default_rng(d)
    x, w = rng.standard_normal((9, d)), rng.standard_normal(d)
    if same_sign:
        x, w = 1 - np.abs(x) / 64, 1 - np.abs(w) / 64
    u = np.linalg.qr(np.column_stack([np.ones(d) if same_sign else rng.standard_normal(d), rng.standard_normal(d)]))[0]
    for found in (u[:, :0], u[:, :1], u[:, : min(d, 2)]) if not same_sign else (u[:, :0], u[:, 1:]):
        if found.shape[1] >= d:
            continue
        turned = rng.permutation(d)
        images = images_of_rows(x, w, found)
        np.testing.assert_array_equal(images_of_rows(x[:, turned], w[turned], found[turned]), images[:, turned])
        if d <= 200:
            a = x[:, :, None] * x[:, None, :] + 0.01
            images = images_of_matrices(a, w, found)
            moved = images_of_matrices(a[:, turned][:, :, turned], w[turned], found[turned])
            np.testing.assert_array_equal(moved, images[:, turned])


@pytest.mark.slow
@pytest.mark.parametrize("largest", [1.0, 3.0, 1e6, 1e-6])
def test_a_bin_is_a_function_of_the_image_and_the_floor_of_the_formula(largest: float) -> None:
    """Edges belong to the bin below. Fails where a sum of squares follows the place of a row, or for images that are
    far nearer than the bound."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((3000, 33)) * 2.0 ** rng.uniform(-44, 6, 3000)[:, None] * largest
    images[:4] = 0.0
    images[:3, 0] = largest, largest / 2, largest * 2**-20
    found = DistanceRange(relation="record_replace", largest=largest, multiplier=1.0)
    labels = [int(np.argmax(found.summary(one[None], np.zeros(33)))) for one in images[4:]]
    steps = np.floor(2 * np.log2(largest / np.linalg.norm(images[4:], axis=1)))
    assert (labels == np.clip(steps, 0, 79)).all()
    edges = [int(np.argmax(found.summary(one[None], np.zeros(33)))) for one in images[:3]]
    assert edges == [0, 2, 40] or largest != 1.0  # others are on no grid
    counts = np.bincount([*labels, *edges], minlength=80)
    for order in (slice(None), slice(None, None, -1)):
        np.testing.assert_array_equal(found.summary(images[order].copy(), np.zeros(33)), counts)


def test_what_is_projected_out_is_gone_to_rounding() -> None:
    """Fails with one projection only: a large component leaves 1e-8 of itself."""
    u = np.linalg.qr(np.random.default_rng(1).standard_normal((50, 3)))[0]
    assert np.abs(u.T @ project_out(1e8 * u[:, 0] + 1.0, u)).max() < 1e-13


def test_no_square_matrix_is_formed() -> None:
    """Fails where P (200 MB here) is formed."""
    rng = np.random.default_rng(2)
    x, w, u = rng.standard_normal((3, 5000)), rng.standard_normal(5000), np.eye(5000, 2)
    tracemalloc.start()
    images_of_rows(x, w, u)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


def test_a_record_that_is_not_finite_is_not_there() -> None:
    """Fails if NaN or inf gets into a sum, or a zero counts as present."""
    images, there = present(np.array([[np.nan, 1.0], [np.inf, 0.0], [0.0, -0.0], [1e-300, 0.0]]))
    assert there.tolist() == [False, False, False, True]
    assert np.isfinite(images).all()


@pytest.mark.parametrize(
    ("row", "counts"),
    [
        ([np.nan, 1.0], False),
        ([-np.inf, 1.0], False),
        ([0.0, 0.0], False),
        ([0.0, 1.0], True),
        ([1e200, 1e200], True),
        ([1e-200, 0.0], True),
    ],
)
def test_one_record_among_many_is_seen(row: list[float], counts: bool) -> None:
    """Squares that overflow or vanish too. Fails where the short way of ordinary batches is taken for this one."""
    given = np.ones((7, 2))
    given[4] = row
    images, there = present(given)
    assert there.tolist() == [True] * 4 + [counts] + [True] * 2
    np.testing.assert_array_equal(images[4], row if counts else [0.0, 0.0])


@pytest.mark.parametrize("columns", [0, 1, 3])
def test_a_vector_is_projected_like_a_row(columns: int) -> None:
    """Fails where the short way for none or one found direction is another projection."""
    rng = np.random.default_rng(3)
    rows, found = rng.standard_normal((40, 30)), np.linalg.qr(rng.standard_normal((30, 3)))[0][:, :columns]
    dense = np.eye(30) - found @ found.T
    np.testing.assert_allclose(project_out(rows, found), rows @ dense, atol=1e-14)
    np.testing.assert_allclose(project_out(rows[0], found), dense @ rows[0], atol=1e-14)


def test_records_of_another_dimension_are_refused() -> None:
    with pytest.raises(BadInputError, match="rows"):
        images_of_rows(np.zeros((3, 4)), np.zeros(5), np.zeros((5, 0)))
    with pytest.raises(BadInputError, match="matrices"):
        images_of_matrices(np.zeros((3, 4, 5)), np.zeros(5), np.zeros((5, 0)))
    with pytest.raises(BadInputError, match="float64"):
        present(np.zeros((3, 4), np.float32))
