"""Topics, mixtures, independent components and tensors as flows: finished runs with a report, refusals in sentences."""

import json
from typing import Any

import numpy as np
import pytest

from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.formats.ingest import ingest
from npmdask.latent.answers import fit_latent
from npmdask.topics.run import read_topics, run_topics
from tests.prefect.conftest import Shop, committed
from tests.tensors.tensor_jobs import make, planted_tensor


def flow(shop: Shop, name: str, parameters: dict[str, Any]) -> int:
    return shop.run("-m", f"flows.{name}", json.dumps(parameters), "--json")


@pytest.mark.slow
def test_topics_of_a_file(client: Shop) -> None:
    make("topics-held", client.folder)
    asked = {"documents": "docword.txt", "vocabulary": "vocab.txt", "count": 4, "run_id": "papers"}
    assert flow(client, "topics", asked) == 0, client.err
    facts, store = json.loads(client.out.splitlines()[-1]), client.folder / "runs" / "papers"
    assert facts["answered"] and len(facts["topics"]) == 4 and facts["store"] == str(store)
    assert (store / "report.html").exists() and str(store / "report.html") in client.artifacts()["papers"]
    assert client.states() == {"COMPLETED": 1} and set(client.artifacts()) == {"papers"}
    documents, words = client.folder / "docword.txt", client.folder / "vocab.txt"
    run_topics(documents, 4, words, store=client.folder / "by-python")
    assert (read_topics(store).model.topics == read_topics(client.folder / "by-python").model.topics).all()

    telemetry = (store / "telemetry.jsonl").read_text()
    assert flow(client, "topics", asked) == 0, client.err
    assert json.loads(client.out.splitlines()[-1]) == facts
    assert (store / "telemetry.jsonl").read_text() == telemetry  # no pass

    assert flow(client, "topics", asked | {"alpha0": 2.0}) == 3
    assert "algorithm.alpha0 (1.0 in the checkpoint, 2.0 now)" in client.err and "Traceback" not in client.err
    assert client.states()["FAILED"] == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"documents": "x", "count": 0}, "at least 1 is needed"),
    ({"documents": "x", "count": 3, "cuont": 3}, "it has no parameter 'cuont'"),
    ({"documents": "x"}, "count is missing"),
    ({"documents": "x", "count": 3, "run_id": "../elsewhere"}, "it names a folder"),
    ({"documents": "x", "count": 3, "held_out": 0.9}, "at most 0.5 is possible"),
]


@pytest.mark.slow
def test_parameters_that_are_wrong_are_said_so_before_a_server_is_asked(client: Shop) -> None:
    for parameters, said in WRONG:
        assert flow(client, "topics", parameters) == 2
        assert said in client.err and "Prefect at" not in client.err and "Traceback" not in client.err


@pytest.mark.slow
def test_a_mixture(client: Shop) -> None:
    (client.folder / "made").mkdir()
    make("mixture", client.folder / "made")
    asked = {"kind": "mixture", "samples": "made/x.zarr", "count": 4, "run_id": "four"}
    assert flow(client, "latent", asked) == 0, client.err
    facts = json.loads(client.out.splitlines()[-1])
    assert len(facts["weights"]) == 4 and "four" in client.artifacts()
    fit_latent(
        "mixture",
        client.folder / "made" / "x.zarr",
        4,
        store=client.folder / "by-python",
        resources=Resources(),
        observer=Observer(),
    )
    assert committed(client.folder / "runs" / "four") == committed(client.folder / "by-python")


@pytest.mark.slow
def test_a_tensor_through_the_flow_of_runs(client: Shop) -> None:
    np.save(client.folder / "t.npy", planted_tensor(12, np.array([3.0, 2.0])))
    ingest(client.folder / "t.npy", client.folder / "t.zarr", kind="tensor")
    config = client.folder / "tensor.toml"
    config.write_text('[source]\npath = "t.zarr"\nkind = "tensor"\n[algorithm]\ntarget_rank = 3\n')
    assert client.run("-m", "flows.npm", config, "--json") == 0, client.err
    facts = json.loads(client.out.splitlines()[-1])
    assert facts["facts"]["status"] == ["found", "found", "surplus"]
    assert (client.folder / "runs" / "tensor" / "report.html").exists() and client.states() == {"COMPLETED": 1}
