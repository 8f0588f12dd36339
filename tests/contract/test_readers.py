"""The protocol of readers, of every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from npmdask.core.storage.readers import Reader
from npmdask.core.storage.source import open_source
from tests.conftest import write_zarr
from tests.core.operators.test_operators import write_csr
from tests.core.storage import test_registered_sources as sources
from tests.core.storage.test_registered_sources import Toy
from tests.symmetric.test_packed_symmetric import pack, symmetric

toy = sources.toy  # a fixture


@pytest.mark.slow
def test_every_reader_is_one(toy: dict[str, Toy], tmp_path: Path) -> None:
    """The protocol that loop, planner and operators hold to, of every layout: the types say so, and the values."""
    x = toy["here"].values
    square = symmetric(12)
    cube = np.einsum("i,j,k->ijk", x[0], x[0], x[0])
    given: list[tuple[str, Any, np.ndarray]] = [
        ("dense", write_zarr(tmp_path / "x.zarr", x, (20, 5)), x),
        ("dense", "toy://here", x),
        ("csr", write_csr(tmp_path / "csr", sp.csr_matrix(x), 50), x),
        ("triangle", pack(tmp_path / "packed", square, 12), square),
        ("tensor", cube, cube),
    ]
    for layout, source, values in given:
        reader: Reader = open_source(source, "tensor" if layout == "tensor" else None).reader
        assert reader.layout == layout and reader.where and reader.nbytes >= values.nbytes and reader.buffer_bytes >= 0
        seen = [(part.size, float((part**2).sum())) for unit in range(reader.units) for part in reader.values(unit)]
        assert sum(size for size, _ in seen) == values.size
        assert sum(squares for _, squares in seen) == pytest.approx((values**2).sum(), rel=1e-12)
        assert all(reader.non_finite(unit) is None for unit in range(reader.units))
        assert reader.recorded_digests({}) is None and reader.held_to(None).layout == layout
