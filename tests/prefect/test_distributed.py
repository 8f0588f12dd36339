"""The centre of a distributed run as a flow: real nodes, one release, and what the server is told of it."""

import json
import os

import numpy as np
import pytest

from npmdask.federated.protocol import TOKENS
from npmdask.ledger import open_ledger
from tests.federated.conftest import Sites, centre_file, records, sites
from tests.prefect.conftest import Shop, committed

__all__ = ["sites"]
pytestmark = pytest.mark.slow


def test_a_centre_releases_once_and_keeps_the_tokens(client: Shop, sites: Sites) -> None:
    """Fails when the flow asks the nodes for another job at the second call, shows nothing, or tells a token."""
    made = sites(np.array_split(records(300, 12), 2), epsilon=2.0, p=4, steps=3)
    config = centre_file(client.folder, [site.url for site in made])
    client.environment |= {TOKENS: os.environ[TOKENS]}
    assert client.run("-m", "flows.distributed_private_pca", config, "--json") == 0, client.err
    facts = json.loads(client.out.splitlines()[-1])
    assert facts["outcome"] == "released" and len(facts["values"]) == 2
    before = committed(client.folder / "runs" / "centre")

    assert client.run("-m", "flows.distributed_private_pca", config, "--json") == 0, client.err
    assert json.loads(client.out.splitlines()[-1])["values"] == facts["values"]
    assert committed(client.folder / "runs" / "centre") == before
    for site in made:
        assert len(open_ledger(site.folder / "ledger.sqlite").status("here").runs) == 1

    artifacts = client.artifacts()
    assert set(artifacts) == {"centre"}
    assert "each of 2 nodes promises epsilon = 2" in artifacts["centre"]
    assert "576 numbers" in artifacts["centre"]  # 2 L s p d
    told = b"".join(path.read_bytes() for path in client.home.rglob("*") if path.is_file())
    for site in made:
        assert site.token.encode() not in told and site.token not in client.out + client.err
