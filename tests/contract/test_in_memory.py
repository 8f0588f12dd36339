"""What is given in memory: lists are arrays, and what is no array of real numbers is refused in a sentence."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.topics.documents import documents_of

ROWS = np.random.default_rng(0).standard_normal((40, 6))
MASKED = np.ma.masked_array(ROWS, mask=ROWS > 2)


class Masked:
    """As a variable of netCDF4, whose array is masked."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return MASKED


class Failing:
    """As a tensor of Torch that is learnt."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("requires grad")


BAD: dict[str, tuple[Any, str]] = {
    "None": (None, "NoneType|is None"),
    "number": (3.5, "float"),
    "object": (object(), "object"),
    "array of objects": (ROWS.astype(object), "of type object"),
    "array of text": (np.array([["a", "b"], ["c", "d"]]), "of type <U1"),
    "complex": (ROWS + 1j, "of type complex128"),
    "ragged": ([[1.0, 2.0], [3.0]], "cannot be converted to an array"),
    "list of text": ([["a", "b"], ["c", "d"]], "of type <U1"),
    "list with None": ([[1.0, None], [2.0, 3.0]], "of type object"),
    "masked rows": (list(MASKED), rf"{int((ROWS > 2).sum())} masked values of 240"),
    "object with a masked array": (Masked(), rf"{int((ROWS > 2).sum())} masked values of 240"),
    "object that fails": (Failing(), r"cannot be converted to an array \(requires grad\)"),
    "masked": (MASKED, rf"{int((ROWS > 2).sum())} masked values of 240, and missing values are refused"),
}


def fed(given: Any) -> Any:
    return npmdask.StreamingPCA(2).partial_fit(given)


DOORS: dict[str, Callable[[Any], Any]] = {
    "top_k": lambda given: npmdask.top_k(given, 1),
    "samples": lambda given: npmdask.top_k(given, 1, kind="samples"),
    "matrices": lambda given: npmdask.top_k(given, 1, kind="matrices"),
    "tensor": lambda given: npmdask.top_k(given, 1, kind="tensor"),
    "partial_fit": fed,
    "transform": lambda given: npmdask.StreamingPCA(2).partial_fit(ROWS).transform(given),
    "stream_pca": lambda given: npmdask.stream_pca(iter([given]), 1, batch_rows=2),
    "Mixture": lambda given: npmdask.Mixture(2).fit(given),
    "ICA": lambda given: npmdask.ICA(2).fit(given),
}
ESTIMATORS = ("partial_fit", "transform", "Mixture", "ICA")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("door", "name"),
    [pair for pair in itertools.product(DOORS, BAD) if pair not in (("top_k", "complex"), ("samples", "complex"))],
)
def test_what_is_no_array_of_real_numbers_is_refused(door: str, name: str) -> None:
    given, words = BAD[name]
    if name == "array of objects" and door in ESTIMATORS:
        DOORS[door](given)  # as everywhere in scikit-learn, if they are numbers
        return
    if door == "stream_pca" and given is None:
        words = "holds no rows"  # an iterator that gives None has ended
    with pytest.raises(BadInputError, match=words):
        DOORS[door](given)


def test_counts_that_are_masked_are_refused() -> None:
    with pytest.raises(BadInputError, match="masked values"):
        documents_of(np.ma.masked_array(np.ones((4, 3)), mask=np.eye(4, 3, dtype=bool)))


def test_the_refusal_names_what_is_accepted() -> None:
    with pytest.raises(BadInputError, match=r"of type NoneType are not accepted: give the path or URL of a Zarr store"):
        npmdask.top_k(None, 1)


@pytest.mark.slow
def test_lists_are_arrays() -> None:
    found, truth = npmdask.top_k(ROWS.tolist(), 2), npmdask.top_k(ROWS, 2)
    np.testing.assert_array_equal(found.values, truth.values)
    np.testing.assert_array_equal(npmdask.top_k([(1, 2), (3, 4), (5, 6)], 1).values, npmdask.top_k(
        np.array([[1, 2], [3, 4], [5, 6]]), 1).values)  # fmt: skip
    np.testing.assert_array_equal(fed(ROWS.tolist()).values, fed(ROWS).values)


@pytest.mark.slow
def test_nothing_masked_is_an_array() -> None:
    whole = np.ma.masked_array(ROWS, mask=False)
    np.testing.assert_array_equal(npmdask.top_k(whole, 2).values, npmdask.top_k(ROWS, 2).values)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["array", "list", "zarr", "path"])
@pytest.mark.parametrize("options", [{}, {"center": True, "scale": True}], ids=str)
def test_left_singular_vectors_without_a_store(tmp_path: Path, where: str, options: dict[str, Any]) -> None:
    source: Any = {"array": ROWS, "list": ROWS.tolist(), "zarr": zarr.array(ROWS, chunks=(7, 6))}.get(where)
    if source is None:
        np.save(tmp_path / "a.npy", ROWS)
        ingest(tmp_path / "a.npy", tmp_path / "a.zarr", kind="matrix")
        source = tmp_path / "a.zarr"
    found = npmdask.top_k(source, 3, **options)
    used = (ROWS - ROWS.mean(0)) / ROWS.std(0) if options else ROWS
    left, values, right = np.linalg.svd(used, full_matrices=False)
    signs = np.sign(np.sum(found.basis * right[:3].T, axis=0))
    np.testing.assert_allclose(found.left_basis() * signs, left[:, :3], atol=1e-7)
    rebuilt = found.left_basis() * found.values @ found.basis.T
    np.testing.assert_allclose(rebuilt, (left[:, :3] * values[:3]) @ right[:3], atol=1e-7)


@pytest.mark.slow
def test_the_temporary_folder_goes_with_the_solution() -> None:
    found = npmdask.top_k(ROWS, 2)
    store = Path(found.store)
    assert (store / "left.zarr").is_dir()
    del found
    gc.collect()
    assert not store.exists() and not store.parent.exists()
    samples = npmdask.top_k(ROWS, 2, kind="samples")
    assert not Path(samples.store).exists()  # they have no left vectors
