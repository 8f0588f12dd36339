"""Names of flow and task runs that say what runs: ``PCA of samples.zarr, k = 10``; those of flows also say when.

Prefect keeps and shows them, so they are made of public parameters alone: of a path or URL the last part, without a
query or a login; no value of the data.
"""

from collections.abc import Callable, Mapping
from typing import Any

from prefect.runtime import flow_run

from npmdask.cli.main import SHORT
from npmdask.config import RunConfig
from npmdask.prefect.parameters import configuration
from npmdask.storage.paths import data_name

ASKED = {"samples": "PCA", "matrix": "SVD", "sparse": "SVD", "symmetric": "eigenvectors", "tensor": "tensor"}
WHEN = "%Y-%m-%d %H:%M"


def what_runs(config: RunConfig) -> str:
    """Return what a configuration asks for, in a few words.

    Examples
    --------
    >>> from npmdask.config import RunConfig
    >>> source = {"path": "/data/samples.zarr", "kind": "samples"}
    >>> what_runs(RunConfig.model_validate({"source": source, "algorithm": {"target_rank": 10}}))
    'PCA of samples.zarr, k = 10'
    """
    source, rank = config.source, config.algorithm.target_rank
    word = ASKED.get(source.kind or "", "PCA" if source.center or config.streams else "components")
    nodes = len(source.nodes or ())
    where = f"{nodes} node{'s' if nodes > 1 else ''}" if nodes else data_name(source.path)
    private = "private " if config.privacy is not None else ""
    size = f"k = {rank}" if isinstance(rank, int) else f"{100 * rank:g} % of the variance"
    return f"{private}{word} of {where}, {size}"


def subject(parameters: Mapping[str, Any]) -> str:
    """Return what the parameters of a flow or task are about; nothing where they do not say."""
    if parameters.get("config") is not None:
        given = {name: parameters[name] for name in (*SHORT, "config", "store", "changes") if name in parameters}
        return what_runs(configuration(**given))
    return _of_a_job(parameters) or str(parameters.get("run_id") or parameters.get("name") or "")


def _of_a_job(parameters: Mapping[str, Any]) -> str:
    """Of topics, latent components and two fields, which take no configuration."""
    count = parameters.get("count")
    if "documents" in parameters:
        of = data_name(str(parameters["documents"]))
        return of if count is None else f"{count} topics of {of}"
    if "samples" in parameters:
        word = "independent components" if parameters.get("kind") == "ica" else "Gaussians"
        return f"{count} {word} in {data_name(str(parameters['samples']))}"
    if "left" in parameters and "right" in parameters:
        both = " and ".join(data_name(str(parameters[side])) for side in ("left", "right"))
        return f"{count} modes of {both}"
    return ""


def run_name(default: str) -> Callable[[], str]:
    """Return what Prefect calls for the name of a flow run: what it does, and the time for which it is scheduled.

    ``default`` : what it does where its parameters are wrong, which the run itself says.

    Examples
    --------
    >>> run_name("npm")()  # outside a flow run there are no parameters, and the time is now
    'Npm, 20...'
    """

    def name() -> str:
        what = _whatever_comes(default, flow_run.parameters)
        when = flow_run.scheduled_start_time.astimezone().strftime(WHEN)  # in the time zone of this machine
        return f"{what[:1].upper()}{what[1:]}, {when}"

    return name


def step_name(step: str) -> Any:
    """Return what Prefect calls for the name of a task run.

    Examples
    --------
    >>> step_name("find_topics")(parameters={"documents": "/data/docword.txt", "count": 20})
    'find_topics: 20 topics of docword.txt'
    """

    def name(parameters: dict[str, Any]) -> str:
        found = _whatever_comes("", parameters)
        return f"{step}: {found}" if found else step

    return name


def _whatever_comes(default: str, parameters: Mapping[str, Any]) -> str:
    """A name must not make a run fail: what is wrong with the parameters the run says itself, in a sentence."""
    try:
        return subject(parameters) or default
    except Exception:
        return default
