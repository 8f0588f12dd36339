"""Topics of documents as a Prefect flow; also ``python -m flows.topics '{"documents": ..., "count": 20}'``.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Annotated, Any, Literal

from prefect import flow

from npmdask.models.topics.prepare import Cut
from npmdask.prefect.flow_run import end_state, place_of, said_in_a_sentence
from npmdask.prefect.heartbeat import tended
from npmdask.prefect.parameters import Folder, Memory, Restarts, RunId, Seed, Threads, Workers, said
from npmdask.prefect.staged_runs import find_topics, look
from npmdask.prefect.tasks import report


@flow(name="topics", persist_result=False)
@said_in_a_sentence
@tended
def topics(
    documents: Annotated[str, said("counts of words: a file or a store")],
    count: Annotated[int, said("how many topics", ge=1)],
    vocabulary: Annotated[str | None, said("a file with a word on each line")] = None,
    alpha0: Annotated[float, said("sum of the Dirichlet parameters of a document; 0: one topic each", ge=0)] = 1.0,
    half_length: Annotated[float, said("a document of N words counts N / (N + this)", ge=0)] = 100.0,
    min_df: Annotated[int, said("leave out words in fewer documents", ge=1)] = 1,
    max_df: Annotated[float, said("leave out words in more than this share of them", gt=0, le=1)] = 1.0,
    held_out: Annotated[float, said("share of documents for the perplexity; 0: none", ge=0, le=0.5)] = 0.1,
    moments: Annotated[Literal["held", "implicit"], said("implicit: a pass for each product")] = "held",
    restarts: Restarts = None,
    seed: Seed = 0,
    memory: Memory = None,
    threads: Threads = None,
    workers: Workers = 0,
    run_id: RunId = "topics",
    folder: Folder = "runs",
) -> Any:
    """Topics of documents, out of core. The same run id again: goes on after a kill, or returns the answer."""
    store = place_of(folder, run_id)
    cut = Cut(held_out=held_out, min_df=min_df, max_df=max_df)
    asked = {"alpha0": alpha0, "half_length": half_length, "moments": moments, "restarts": restarts, "seed": seed}
    look(documents)
    facts = find_topics(run_id, documents, count, vocabulary, store, cut, asked, (memory, threads, workers))
    report(run_id, facts)
    return end_state(facts)
