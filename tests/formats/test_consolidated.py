"""Consolidated metadata are a copy: where an array was changed since, every door reads what it says of itself."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import npmdask
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
X = np.random.default_rng(3).standard_normal((30, 5))


def written(place: Any, form: int, *, stale: bool) -> Any:
    """A group whose array has 30 rows; ``stale``: its consolidated metadata know of 20."""
    group = zarr.create_group(place, zarr_format=form)
    names = (
        {"dimension_names": ("time", "column")}
        if form == 3
        else {"attributes": {"_ARRAY_DIMENSIONS": ["time", "column"]}}
    )
    array = group.create_array("x", shape=(20, 5), chunks=(10, 5), dtype="f8", **names)
    array[:] = X[:20]
    if stale:
        zarr.consolidate_metadata(place)
    array.append(X[20:])
    if not stale:
        zarr.consolidate_metadata(place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("form", [2, 3])
@pytest.mark.parametrize("stale", [True, False])
def test_every_door_reads_the_same_rows(form: int, stale: bool, tmp_path: Path) -> None:
    place = str(written(tmp_path / "x.zarr", form, stale=stale))
    assert zarr.open_group(place)["x"].shape == (20 if stale else 30, 5)  # as xarray has it
    ingest(place, tmp_path / "y.zarr")
    doors = (place, f"{place}/x", zarr.open_group(place, mode="r"), tmp_path / "y.zarr")
    for source in doors:
        np.testing.assert_array_equal(open_source(source).reader.array[:], X)
    assert open_source(place, dim="time").shape == (30, 5)
    assert len({npmdask.top_k(source, 2, kind="matrix").values.tobytes() for source in doors[:3]}) == 1


class Counting(zarr.storage.MemoryStore):
    """One that counts what it is asked for."""

    asked: ClassVar[Counter[str]] = Counter()

    async def get(self, key: str, *given: Any, **more: Any) -> Any:
        self.asked[key] += 1
        return await super().get(key, *given, **more)


def test_one_request_more_however_many_arrays_there_are() -> None:
    store = written(Counting(), 3, stale=False)
    group = zarr.open_group(store)
    for number in range(20):
        group.create_array(f"one{number}", shape=(3,), dtype="f8")
    zarr.consolidate_metadata(store)
    opened = zarr.open_group(store, mode="r")
    Counting.asked.clear()
    assert open_source(opened).shape == (30, 5)
    assert Counting.asked == {"x/zarr.json": 1}


@pytest.mark.slow
def test_the_parts_of_a_sparse_matrix(tmp_path: Path) -> None:
    thin = sp.csr_matrix(np.where(np.abs(X) > 0.5, X, 0))
    group = zarr.create_group(tmp_path / "thin.zarr", attributes={"encoding-type": "csr_matrix", "shape": thin.shape})
    for name, values in (("data", thin.data), ("indices", thin.indices), ("indptr", thin.indptr)):
        array = group.create_array(name, shape=(len(values) - 3,), chunks=(50,), dtype=values.dtype)
        array[:] = values[:-3]
        zarr.consolidate_metadata(tmp_path / "thin.zarr")
        array.append(values[-3:])
    assert open_source(tmp_path / "thin.zarr").reader.entries == thin.nnz
    ingest(tmp_path / "thin.zarr", tmp_path / "y.zarr")
    assert open_source(tmp_path / "y.zarr").reader.entries == thin.nnz


def test_what_it_says_of_itself_is_not_believed_blindly(tmp_path: Path) -> None:
    """An array that is gone is named; one that would have to be unpickled is not, where its copy says otherwise."""
    gone, pickled = written(tmp_path / "gone.zarr", 2, stale=False), written(tmp_path / "p.zarr", 2, stale=False)
    (gone / "x" / ".zarray").unlink()
    own = json.loads((pickled / "x" / ".zarray").read_text()) | {"compressor": {"id": "pickle", "protocol": 5}}
    own |= {"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "fill_value": ""}
    (pickled / "x" / ".zarray").write_text(json.dumps(own))
    for place, said in (
        (gone, "in the consolidated metadata of the group, and not in its place"),
        (pickled, "holds pickled Python objects"),
    ):
        with pytest.raises(BadInputError, match=said):
            open_source(place)
