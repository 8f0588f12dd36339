"""What a run will do and need, as ``npmdask plan`` says it, for Prefect to show: of private runs what is public."""

from npmdask.config import RunConfig
from npmdask.planning import plan_text
from npmdask.planning.plan import Plan
from npmdask.runs.problem import Problem
from npmdask.theory.private import dist_comm

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
        from npmdask.planning import private  # and with it the ledger and its database: half a second

        public = _pairs(private.lines(config.private_plan()))
        return [(name, said) for name, said in public if name != "memory"], None  # it follows the number of rows
    if config.source.nodes is not None:
        return _of_nodes(config.problem()), None
    found = config.plan()
    rank = found.iteration_rank if isinstance(found, Plan) and config.algorithm.iteration_rank == "auto" else None
    return _pairs(plan_text.lines(found)), rank


def planned_rank(config: RunConfig, rank: int | None) -> RunConfig:
    """The configuration with the ``iteration_rank`` of its plan, so that the run is the one that was planned."""
    if rank is None or isinstance(config.algorithm.target_rank, float):
        return config
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"iteration_rank": rank})})


def _pairs(lines: list[str]) -> Rows:
    """Back from lines: a name in 9 columns, and what is said."""
    return [(line[:9].strip(), line[10:]) for line in lines]


def _of_nodes(problem: Problem) -> Rows:
    """What nodes announce, and what will cross: all of it is public."""
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
