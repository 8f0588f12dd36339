"""Jobs of several stages as Prefect flows: topics of documents, mixtures, independent components.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import ParameterBindError, ParameterTypeError
from prefect.utilities.callables import get_call_parameters
from pydantic import Field

from flows.heart import tended
from flows.run import end_state, exit_code, place_of, report, said_in_a_sentence, say
from flows.server import local_server
from npmdask.errors import BadInputError
from npmdask.jobs import job_summary
from npmdask.latent.answers import fit_latent
from npmdask.progress import ProgressBar
from npmdask.sizes import parse_memory
from npmdask.solution import Resources
from npmdask.topics.documents import documents_of
from npmdask.topics.job import run_topics
from npmdask.topics.preparing import Cut

Topics = Annotated[int, Field(ge=1, description="how many topics")]
Components = Annotated[int, Field(ge=1, description="how many components")]
Memory = Annotated[str | None, Field(description="limit for all processes together, like 1GiB")]
RunId = Annotated[str, Field(description="name of the run; the same again goes on, or returns the answer")]
Folder = Annotated[str, Field(description="where the folder of the run is made")]


@task(cache_policy=NO_CACHE, persist_result=False)
@said_in_a_sentence
def look(documents: str) -> dict[str, Any]:
    """Open the corpus; nothing is read but its head."""
    found = documents_of(documents)
    facts = {"documents": found.rows, "words": found.columns}
    get_run_logger().info("%s: %s", documents, facts)
    return facts


@task(cache_policy=NO_CACHE, persist_result=False)
@said_in_a_sentence
def find_topics(documents: str, vocabulary: str | None, count: int, store: str, asked: dict[str, Any]) -> Any:
    """Every stage of the job, from wherever its store is. No array leaves it."""
    cut = Cut(**{name: asked.pop(name) for name in ("held_out", "min_df", "max_df")})
    resources = Resources(memory=parse_memory(asked.pop("memory")))
    answer = run_topics(
        documents, count, vocabulary, store=store, cut=cut, resources=resources, observer=ProgressBar(), **asked
    )
    return job_summary(answer) | {"answered": answer.answered}


@task(cache_policy=NO_CACHE, persist_result=False)
@said_in_a_sentence
def find_components(kind: str, samples: str, count: int, store: str, memory: str | None, seed: int) -> Any:
    """Every stage of the job, from wherever its store is. No array leaves it."""
    resources = Resources(memory=parse_memory(memory))
    answer = fit_latent(kind, samples, count, store=store, resources=resources, observer=ProgressBar(), seed=seed)
    return job_summary(answer) | {"answered": answer.answered}


@flow(name="topics", persist_result=False)
@said_in_a_sentence
@tended
def topics(
    documents: Annotated[str, Field(description="counts of words: a file or a store")],
    count: Topics,
    vocabulary: Annotated[str | None, Field(description="a file with a word on each line")] = None,
    alpha0: Annotated[float, Field(ge=0, description="sum of the Dirichlet parameters of a document")] = 1.0,
    min_df: Annotated[int, Field(ge=1, description="leave out words in fewer documents")] = 1,
    max_df: Annotated[float, Field(gt=0, le=1, description="leave out words in more than this share")] = 1.0,
    held_out: Annotated[float, Field(ge=0, le=0.5, description="share of documents for the perplexity")] = 0.1,
    memory: Memory = None,
    seed: Annotated[int, Field(ge=0)] = 0,
    run_id: RunId = "topics",
    folder: Folder = "runs",
) -> Any:
    """Topics of documents, out of core. The same run id again: goes on after a kill, or returns the answer."""
    store = place_of(folder, run_id)
    asked = {"alpha0": alpha0, "min_df": min_df, "max_df": max_df, "held_out": held_out, "memory": memory, "seed": seed}
    look(documents, return_state=True).result()
    facts = find_topics(documents, vocabulary, count, store, asked, return_state=True).result()
    report(run_id, facts, return_state=True).result()
    return end_state(facts)


@flow(name="latent", persist_result=False)
@said_in_a_sentence
@tended
def latent(
    kind: Literal["mixture", "ica"],
    samples: Annotated[str, Field(description="a Zarr store of rows of numbers")],
    count: Components,
    memory: Memory = None,
    seed: Annotated[int, Field(ge=0)] = 0,
    run_id: RunId = "latent",
    folder: Folder = "runs",
) -> Any:
    """A mixture of spherical Gaussians, or independent components, out of core; the same run id again goes on."""
    store = place_of(folder, run_id)
    facts = find_components(kind, samples, count, store, memory, seed, return_state=True).result()
    report(run_id, facts, return_state=True).result()
    return end_state(facts)


def checked(chosen: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a flow, if it takes them.

    Raises
    ------
    BadInputError
        One is unknown, missing or out of range.
    """
    try:
        chosen.validate_parameters(get_call_parameters(chosen.fn, (), asked, apply_defaults=False))
    except (ParameterBindError, ParameterTypeError) as error:
        said = str(error).partition("\nFunction")[0].replace("\n", " ")
        raise BadInputError(f"the parameters do not fit the flow {chosen.name}: {said}") from None
    place_of(asked.get("folder", "runs"), asked.get("run_id", chosen.name))
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m flows.jobs FLOW '{"documents": ..., "count": 20}'``: once, with a server of its own."""
    parser = argparse.ArgumentParser(description="Run a job as a Prefect flow.")
    parser.add_argument("flow", choices=["topics", "latent"])
    parser.add_argument("parameters", help="one JSON object: the parameters of the flow")
    a = parser.parse_args(argv)

    def run() -> int:
        try:
            asked = dict(json.loads(a.parameters))
        except ValueError as error:
            raise BadInputError(f"the parameters are not a JSON object: {error}") from None
        chosen: Any = {"topics": topics, "latent": latent}[a.flow]
        checked(chosen, asked)
        with local_server() as url:
            say(f"Prefect at {url.removesuffix('/api')}")
            facts: Any = chosen(**asked)
        print(json.dumps(facts))
        return 0

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main())
