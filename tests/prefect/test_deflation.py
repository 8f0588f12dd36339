"""Deflation as a flow finds what one larger run finds."""

import json

import numpy as np
import pytest

from npmdask import top_k
from tests.prefect.conftest import Shop

pytestmark = pytest.mark.slow


@pytest.mark.heavy
def test_k_then_more_is_k_plus_more(client: Shop) -> None:
    config = client.config("defl", tol=1e-10)
    assert client.run("-m", "flows.npm_deflation", config, "--more", "3", "--json") == 0, client.err
    facts = json.loads(client.out.splitlines()[-1])
    whole = top_k(client.folder / "a.zarr", 8, kind="samples", tol=1e-10)
    np.testing.assert_allclose(facts["values"], whole.values, rtol=1e-12)
    basis = np.load(client.folder / "runs" / "defl-deflated" / "result" / "basis.npy")
    np.testing.assert_allclose(np.linalg.norm(whole.basis.T @ basis, axis=0), 1.0, atol=1e-12)

    assert client.run("-m", "flows.npm_deflation", config, "--more", "3", "--json") == 0, client.err
    assert json.loads(client.out.splitlines()[-1])["data_passes"] == 0
