"""The operator of a symmetric matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npmdask.core.execution.executor import Threads
from npmdask.core.storage.source import open_source
from npmdask.symmetric.operator import Symmetric
from tests.conftest import write_zarr
from tests.core.operators.test_operators import ignore


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [(500, 500), (64, 64), (100, 37), (1, 500), (500, 3)])
def test_symmetric_of_any_layout(tmp_path: Path, chunks: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((500, 500))
    a = a + a.T
    block = rng.standard_normal((500, 4))
    operator = Symmetric(reader=open_source(write_zarr(tmp_path / "a.zarr", a, chunks)).reader)
    product, record = Threads(2).run_pass(operator, block, ignore)
    np.testing.assert_allclose(product, a @ block, atol=1e-11)
    assert record.bytes_read == a.nbytes
