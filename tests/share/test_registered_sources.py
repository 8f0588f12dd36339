"""Sources of others, and a share of the variance."""

from __future__ import annotations

import numpy as np
import pytest

import npmdask
from tests.core.storage import test_registered_sources as sources
from tests.core.storage.test_registered_sources import Toy

toy = sources.toy  # a fixture


@pytest.mark.slow
def test_symmetric_data_and_a_share_of_the_variance(toy: dict[str, Toy]) -> None:
    a = toy["here"].values[:12] @ toy["here"].values[:12].T
    toy["square"] = Toy((a + a.T) / 2, unit_rows=12)
    found = npmdask.top_k("toy://square", 2, kind="symmetric")
    np.testing.assert_allclose(np.sort(found.values), np.linalg.eigvalsh(toy["square"].values)[-2:])
    share = npmdask.top_k("toy://here", 0.8, kind="samples", center=True)
    values = np.linalg.eigvalsh(np.cov(toy["here"].values.T))[::-1]
    assert len(share.values) == 1 + int(np.searchsorted(np.cumsum(values) / values.sum(), 0.8))
