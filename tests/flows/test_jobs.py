"""Topics, mixtures, independent components and tensors as flows: finished runs with a report, refusals in sentences."""

import json
import sqlite3
from collections import Counter
from typing import Any

import numpy as np
import pytest

from npmdask.latent.answers import fit_latent
from npmdask.progress import Observer
from npmdask.solution import Resources
from npmdask.storage.ingest import ingest
from npmdask.topics.job import read_topics, run_topics
from tests.faults.tensor_jobs import make, planted_tensor
from tests.flows.conftest import Shop, committed


def flow(shop: Shop, name: str, parameters: dict[str, Any]) -> int:
    return shop.run("-m", f"flows.{name}", json.dumps(parameters), "--json")


def artifacts(shop: Shop) -> dict[str, str]:
    with sqlite3.connect(shop.folder / "prefect" / "prefect.db") as base:
        found = dict(base.execute("select key, data from artifact"))
    base.close()
    return found


def states(shop: Shop) -> Counter[str]:
    with sqlite3.connect(shop.folder / "prefect" / "prefect.db") as base:
        found = Counter(state for (state,) in base.execute("select state_type from flow_run"))
    base.close()
    return found


@pytest.mark.slow
def test_topics_of_a_file(shop: Shop) -> None:
    make("topics-held", shop.folder)
    asked = {"documents": "docword.txt", "vocabulary": "vocab.txt", "count": 4, "run_id": "papers"}
    assert flow(shop, "topics", asked) == 0, shop.err
    facts, store = json.loads(shop.out.splitlines()[-1]), shop.folder / "runs" / "papers"
    assert facts["answered"] and len(facts["topics"]) == 4 and facts["store"] == str(store)
    assert (store / "report.html").exists() and str(store / "report.html") in artifacts(shop)["papers-report"]
    assert states(shop) == {"COMPLETED": 1} and "papers-progress" in artifacts(shop)
    documents, words = shop.folder / "docword.txt", shop.folder / "vocab.txt"
    run_topics(documents, 4, words, store=shop.folder / "by-python")
    assert (read_topics(store).model.topics == read_topics(shop.folder / "by-python").model.topics).all()

    telemetry = (store / "telemetry.jsonl").read_text()
    assert flow(shop, "topics", asked) == 0, shop.err
    assert json.loads(shop.out.splitlines()[-1]) == facts
    assert (store / "telemetry.jsonl").read_text() == telemetry  # no pass

    assert flow(shop, "topics", asked | {"alpha0": 2.0}) == 3
    assert "algorithm.alpha0 (1.0 in the checkpoint, 2.0 now)" in shop.err and "Traceback" not in shop.err
    assert states(shop)["FAILED"] == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"documents": "x", "count": 0}, "greater than or equal to 1"),
    ({"documents": "x", "count": 3, "cuont": 3}, "unexpected keyword argument 'cuont'"),
    ({"documents": "x"}, "missing a required argument: 'count'"),
    ({"documents": "x", "count": 3, "run_id": "../elsewhere"}, "it names a folder"),
    ({"documents": "x", "count": 3, "held_out": 0.9}, "less than or equal to 0.5"),
]


@pytest.mark.slow
def test_parameters_that_are_wrong_are_said_so_before_a_server_starts(shop: Shop) -> None:
    """In processes of their own: Prefect writes to the stderr that it was loaded with."""
    for parameters, said in WRONG:
        assert flow(shop, "topics", parameters) == 2
        assert said in shop.err and "Prefect at" not in shop.err and "Traceback" not in shop.err


@pytest.mark.slow
def test_a_mixture(shop: Shop) -> None:
    (shop.folder / "made").mkdir()
    make("mixture", shop.folder / "made")
    asked = {"kind": "mixture", "samples": "made/x.zarr", "count": 4, "run_id": "four"}
    assert flow(shop, "latent", asked) == 0, shop.err
    facts = json.loads(shop.out.splitlines()[-1])
    assert len(facts["weights"]) == 4 and "four-report" in artifacts(shop)
    fit_latent(
        "mixture",
        shop.folder / "made" / "x.zarr",
        4,
        store=shop.folder / "by-python",
        resources=Resources(),
        observer=Observer(),
    )
    assert committed(shop.folder / "runs" / "four") == committed(shop.folder / "by-python")


@pytest.mark.slow
def test_a_tensor_through_the_flow_of_runs(shop: Shop) -> None:
    np.save(shop.folder / "t.npy", planted_tensor(12, np.array([3.0, 2.0])))
    ingest(shop.folder / "t.npy", shop.folder / "t.zarr", kind="tensor")
    config = shop.folder / "tensor.toml"
    config.write_text('[source]\npath = "t.zarr"\nkind = "tensor"\n[algorithm]\ntarget_rank = 3\n')
    assert shop.run("-m", "flows.npm", config, "--json") == 0, shop.err
    facts = json.loads(shop.out.splitlines()[-1])
    assert facts["facts"]["status"] == ["found", "found", "surplus"]
    assert (shop.folder / "runs" / "tensor" / "report.html").exists() and states(shop) == {"COMPLETED": 1}
