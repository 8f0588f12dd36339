"""Deflation as a flow finds what one larger run finds."""

import json

import numpy as np
import pytest

from npmdask import top_k
from tests.prefect.conftest import Shop

pytestmark = pytest.mark.slow


def test_further_components_are_found_where_the_configuration_says(client: Shop) -> None:
    """On its cluster, which is not there; the first ones are in the store, and need none."""
    config, address = client.config("elsewhere"), "tcp://127.0.0.1:1"
    assert client.run("-m", "npmdask", "run", config, "--quiet") == 0, client.err
    client.environment["DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT"] = "1s"
    assert client.run("-m", "flows.npm_deflation", config, "--more", "3", "--set", f"run.cluster={address}") == 130
    assert f"no Dask scheduler answers at {address}" in client.err and "Traceback" not in client.err


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
