"""Mixtures and independent components as a Prefect flow; also ``python -m flows.latent '{"kind": "ica", ...}'``.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Annotated, Any, Literal

from prefect import flow

from npmdask.prefect.flow_run import end_state, place_of, said_in_a_sentence
from npmdask.prefect.heartbeat import tended
from npmdask.prefect.parameters import Folder, Memory, Restarts, RunId, Seed, Threads, Workers, said
from npmdask.prefect.staged_runs import find_components
from npmdask.prefect.tasks import report


@flow(name="latent", persist_result=False)
@said_in_a_sentence
@tended
def latent(
    kind: Annotated[Literal["mixture", "ica"], said("spherical Gaussians, or independent components")],
    samples: Annotated[str, said("a Zarr store of rows of numbers")],
    count: Annotated[int, said("how many components", ge=1)],
    restarts: Restarts = None,
    seed: Seed = 0,
    memory: Memory = None,
    threads: Threads = None,
    workers: Workers = 0,
    run_id: RunId = "latent",
    folder: Folder = "runs",
) -> Any:
    """A mixture of spherical Gaussians, or independent components, out of core; the same run id again goes on."""
    store = place_of(folder, run_id)
    asked = {"restarts": restarts, "seed": seed}
    facts = find_components(run_id, kind, samples, count, store, asked, (memory, threads, workers))
    report(run_id, facts)
    return end_state(facts)
