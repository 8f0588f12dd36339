"""Common parts of flows: names of runs, steps as tasks, and steps of flows with a configuration of stored data."""

import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from prefect import Flow, Task, get_run_logger
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Completed, Failed, State

from npmdask.cli.main import SHORT
from npmdask.cli.models import NOT_CONVERGED
from npmdask.config import RunConfig
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.driver import solve
from npmdask.core.runs.observers import Observers
from npmdask.core.runs.problem import Problem
from npmdask.core.runs.progress import ProgressBar
from npmdask.core.storage.paths import data_name
from npmdask.errors import NpmdaskError, warnings_to
from npmdask.manage.report import summary, write_report
from npmdask.planning.plan import Plan, plan_lines
from npmdask.prefect.heartbeat import require_progress, tended
from npmdask.prefect.parameters import DATE, configuration, day_of, name_of_run, of_day, require_no_other_flow
from npmdask.prefect.publish import PLAN, Publisher, show, try_to
from npmdask.prefect.reports import URL, page_url
from npmdask.report import Report, Text, as_markdown
from npmdask.report.blocks import section, table
from npmdask.report.render import markdown
from npmdask.theory.private import dist_comm

# Names of flow and task runs that say what runs: ``PCA of samples.zarr, k = 10``; those of flows also say when. Prefect
# keeps and shows them, so they are made of public parameters alone: of a path or URL the last part, without a query or
# a login; no value of the data.

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
        made = configuration(**given)
        return what_runs(of_day(made, day_of(parameters.get("date"))) if DATE in made.source.path else made)
    return _job_text(parameters) or str(parameters.get("run_id") or parameters.get("name") or "")


def _job_text(parameters: Mapping[str, Any]) -> str:
    """Describe the data of topics, latent components and two fields, which take no configuration."""
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


def _step_name(step: str) -> Any:
    """Return what Prefect calls for the name of a task run.

    Examples
    --------
    >>> _step_name("find_topics")(parameters={"documents": "/data/docword.txt", "count": 20})
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


# What the flows share: steps as tasks, errors as sentences, the state that a run ends in.


Made = TypeVar("Made", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


def said_in_a_sentence(function: Made) -> Made:
    """An error that a user can act on fails the task or flow with its sentence, not with a page of traceback; warnings
    about data go to its log."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with warnings_to(lambda said: get_run_logger().warning(said)):
                return function(*args, **kwargs)
        except NpmdaskError as error:
            return Failed(message=str(error), data=error)

    return call  # type: ignore[return-value]


def tended_flow(
    description: str | None = None, said: Callable[[Any], Any] = said_in_a_sentence, **options: Any
) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Make a flow, of its function's name, whose errors are sentences and which its keeper can start again.

    What it returns is kept nowhere. ``options`` : others of ``prefect.flow``.
    """

    def flow_of(body: Callable[P, R]) -> Flow[P, R]:
        name = run_name(body.__name__.replace("_", "-"))
        return Flow(said(tended(body)), description=description, flow_run_name=name, persist_result=False, **options)

    return flow_of


class FlowStep(Task[P, R]):
    """A task that, when it is called, returns its result or raises its error, also one that is a sentence of ours.

    A task of Prefect would return a State in place of such an error.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("return_state", False):
            return super().__call__(*args, return_state=True, **kwargs)
        return super().__call__(*args, return_state=True, **kwargs).result()

    def with_options(self, **options: Any) -> "FlowStep[P, R]":
        """Return the same step with other options of ``prefect.task``, like ``retries=2``."""
        changed = super().with_options(**options)
        changed.__class__ = FlowStep
        return changed  # type: ignore[return-value]


def step(function: Callable[P, R], said: Callable[[Any], Any] = said_in_a_sentence) -> FlowStep[P, R]:
    """A task of a flow run. What it takes and returns is kept nowhere, and its errors are sentences."""
    name = _step_name(function.__name__)
    return FlowStep(said(function), cache_policy=NO_CACHE, persist_result=False, retries=0, task_run_name=name)


class NotConvergedError(NpmdaskError):
    """
    A run that ended without reaching its tolerance.

    Parameters
    ----------
    facts : dict
        How far it came: the facts that a run which converged returns.

    Examples
    --------
    >>> from npmdask.prefect import NotConvergedError
    >>> try:
    ...     raise NotConvergedError({"sentence": "not converged: max_steps = 2 reached", "steps": 2})
    ... except NotConvergedError as error:
    ...     print(error.facts["steps"], error)
    2 not converged: max_steps = 2 reached
    """

    exit_code = NOT_CONVERGED

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(facts["sentence"])
        self.facts = facts


def end_state(facts: dict[str, Any]) -> State[Any]:
    """The state that a flow run ends in: red if it did not converge, so that it is not taken for an answer."""
    if facts["answered"]:
        return Completed(message=facts["sentence"], data=facts)
    return Failed(message=facts["sentence"], data=NotConvergedError(facts))


def publish_report(run_id: str, facts: dict[str, Any]) -> str:
    """Write the page of the run beside its checkpoints; an artifact links it (or says where), with the figures."""
    page = str(write_report(facts["store"]))
    link = page_url(page)
    index = Text(text="All runs and schedules", address=f"{os.environ[URL]}/") if link else None
    where = section("Report", Text(text=link, address=link) if link else None, Text(text=page, style="code"), index)
    rows = ((name, value) for name, value in facts.items() if not isinstance(value, list))
    shown = Report(
        title=run_id,
        outcome=facts["sentence"],
        good=bool(facts["answered"]),
        error_statement=facts.get("assurance", ""),
        sections=(where, section("Facts", table(rows, ("fact", "value")))),
    )
    text = as_markdown(shown)
    try_to(partial(show, run_id, "report", text, facts["sentence"]))
    return page


AnyConfig = RunConfig | str | os.PathLike[str] | dict[str, Any]  # what `configuration` makes a RunConfig of


def plain_configuration(config: AnyConfig) -> RunConfig:
    """The configuration, with its store, of a run that is neither private nor of nodes: those have other steps."""
    made = configuration(config)
    require_no_other_flow(made)
    return made


@step
def validate(config: AnyConfig) -> dict[str, Any]:
    """
    Open the source and check everything that can be checked without reading it.

    A task of Prefect, for a flow of yours; the first step of :func:`npm`.

    Parameters
    ----------
    config : RunConfig, str, PathLike or dict
        A configuration, the path of its file (.toml), or what :func:`configuration` makes of data and options.

    Returns
    -------
    dict
        "shape", "kind" and "dtype" of the data.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import validate
    >>> @flow
    ... def is_it_good():
    ...     return validate("first.toml")["shape"]
    """
    made = configuration(config)
    if made.privacy is not None:
        require_no_other_flow(made)  # the shape of private data is not for a log
    source = made.check().source
    facts = {"shape": source.shape, "kind": source.kind, "dtype": str(source.dtype)}
    get_run_logger().info("%s: %s, fingerprint %s", source.path, facts, source.fingerprint[:16])
    return facts


@step
def plan(config: AnyConfig, run_id: str | None = None) -> RunConfig:
    """
    Say what the run will do and need: in the log, and in the artifact of the run.

    A task of Prefect, for a flow of yours. A run that has begun was planned already, and is not planned again.

    Parameters
    ----------
    config : RunConfig, str, PathLike or dict
        As for :func:`validate`.
    run_id : str, optional
        Name of the run in Prefect's artifacts; that of its store if left out.

    Returns
    -------
    RunConfig
        The configuration, with a number for ``iteration_rank = "auto"``: give it to :func:`iterate`.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import iterate, plan
    >>> @flow
    ... def planned():
    ...     return iterate(plan("first.toml"))["values"]
    """
    made = configuration(config)
    return show_plan(made, name_of_run(made, run_id))


@step
def iterate(config: AnyConfig, run_id: str | None = None) -> dict[str, Any]:
    """
    Run the computation to its end, from wherever its store is. No array leaves it.

    A task of Prefect, for a flow of yours. Called again with the same store, in another process too, it goes on from
    the last commit, or returns the answer without a pass over the data.

    Parameters
    ----------
    config : RunConfig, str, PathLike or dict
        As for :func:`validate`.
    run_id : str, optional
        Name of the run in Prefect's artifacts; that of its store if left out.

    Returns
    -------
    dict
        The facts of the run as plain numbers and strings, those of ``npmdask run --json``: "values", "store",
        "outcome", "converged", ... A run that gave up before its tolerance returns, too: look at "answered".

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import configuration, iterate
    >>> @flow
    ... def values():
    ...     return iterate(configuration("samples.zarr", 10, center=True, store="runs/first"))["values"]
    """
    made = plain_configuration(config)
    problem, store = made.problem(), str(made.run.store)
    observer = Observers(ProgressBar(), Publisher(name_of_run(made, run_id), store, problem.rule.tol))
    require_progress(store)
    return summary(solve(problem, store, made.resources(), observer))


@step
def report(run_id: str, facts: dict[str, Any]) -> str:
    """
    Write the HTML page of a run beside its checkpoints, and say where it is in the artifact of the run.

    A task of Prefect, for a flow of yours.

    Parameters
    ----------
    run_id : str
        Name of the run in Prefect's artifacts.
    facts : dict
        What :func:`iterate` returned.

    Returns
    -------
    str
        The path of the page.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import iterate, report
    >>> @flow
    ... def with_a_page():
    ...     return report("first", iterate("first.toml"))
    """
    return publish_report(run_id, facts)


def reported(run_id: str, facts: dict[str, Any]) -> State[Any]:
    """Write the page of a run that has come to its end, and return the state in which its flow run ends."""
    report(run_id, facts)
    return end_state(facts)


def show_plan(config: RunConfig, run_id: str) -> RunConfig:
    """The plan into the log and an artifact, as that of ``npmdask plan``. A run that is begun was planned already."""
    if RunStore(str(config.run.store)).read_spec() is not None:
        get_run_logger().info("the run is begun: it goes on as it was planned")
        return config
    rows, rank = table_of_plan(config)
    get_run_logger().info("\n".join(f"{name}: {said}" for name, said in rows))
    text = f"{PLAN}\n{markdown(table(rows, ('what', 'how')))}\n"
    try_to(partial(show, run_id, "plan", text, "planned"))
    return planned_rank(config, rank)


Rows = list[tuple[str, str]]


def table_of_plan(config: RunConfig) -> tuple[Rows, int | None]:
    """Names and sentences; and the ``iteration_rank`` that was found to cost no time, where "auto" is asked for.

    Of stored data a sample is read, as with ``npmdask plan``, for at most 5 seconds; of a stream, of private data and
    of nodes nothing.

    Raises
    ------
    NpmdaskError
        As the run itself would: the memory that is allowed does not suffice, for example.
    """
    if config.streams:
        return [(name, str(value)) for name, value in config.stream_plan().items()], None
    if config.privacy is not None:
        from npmdask.privacy import plan as private  # and with it the ledger and its database: half a second

        public = _pairs(private.private_lines(config.private_plan()))
        return [(name, said) for name, said in public if name != "memory"], None  # it follows the number of rows
    if config.source.nodes is not None:
        return _of_nodes(config.problem()), None
    found = config.plan()
    rank = found.iteration_rank if isinstance(found, Plan) and config.algorithm.iteration_rank == "auto" else None
    return _pairs(plan_lines(found)), rank


def planned_rank(config: RunConfig, rank: int | None) -> RunConfig:
    """The configuration with the ``iteration_rank`` of its plan, so that the run is the one that was planned."""
    if rank is None or not isinstance(config.algorithm.target_rank, int):
        return config
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"iteration_rank": rank})})


def _pairs(lines: list[str]) -> Rows:
    """Back from lines: a name in 9 columns, and its text."""
    return [(line[:9].strip(), line[10:]) for line in lines]


def _of_nodes(problem: Problem) -> Rows:
    """Describe what nodes announce, and what will cross: all of it is public."""
    assert problem.nodes is not None
    group, steps = problem.nodes.group, problem.rule.max_steps
    d, p = group.block_shape
    count = len(group.announced)
    numbers = int(dist_comm(count, p, d, steps, "point_to_point").value)
    promise = problem.nodes.promise if problem.nodes.private else "none: the nodes add no noise"
    return [
        ("data", f"kind {problem.source.kind}, {d} columns, in {count} nodes: {', '.join(group.link.urls)}"),
        ("promise", promise),
        ("passes", f"{steps}{'' if problem.nodes.private else ' at most'}, in every node"),
        ("columns", f"target_rank = {problem.nodes.target_rank}, iteration_rank = {p}"),
        ("crosses", f"{numbers} numbers{'' if problem.nodes.private else ' at most'}, {8 * numbers / 1e6:.3g} MB"),
    ]
