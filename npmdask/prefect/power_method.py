"""The noisy power method as flows, on the same driver as ``npmdask run``: of stored data, and of what nodes hold.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Annotated, Any, Literal

from prefect.runtime import flow_run
from prefect.states import Completed

from npmdask.config import RunConfig
from npmdask.core.checkpoint.store import folder_of
from npmdask.core.runs.deflation import deflated
from npmdask.core.runs.driver import solve
from npmdask.core.runs.observers import Observers
from npmdask.core.runs.progress import ProgressBar
from npmdask.errors import RefusedError
from npmdask.manage.report import summary
from npmdask.prefect.heartbeat import require_progress
from npmdask.prefect.parameters import (
    Changes,
    Config,
    DeviceName,
    Memory,
    OptionalRunId,
    RunId,
    Source,
    at_store,
    due,
    name_of_run,
    point_to,
    require_no_other_flow,
    said,
)
from npmdask.prefect.private_release import Announcer
from npmdask.prefect.publish import Publisher
from npmdask.prefect.tasks import (
    AnyConfig,
    iterate,
    plain_configuration,
    plan,
    reported,
    step,
    tended_flow,
    validate,
)


@tended_flow("Top-k singular vectors of stored data, out of core.")
def npm(
    config: Source,
    k: Annotated[
        int | float | Literal["auto"] | None,
        said("number of components, or fraction of the variance to explain (e.g. 0.95); with missing = em also auto"),
    ] = None,
    *,
    kind: Annotated[str | None, said("kind of data: samples, matrix, symmetric, sparse")] = None,
    center: Annotated[bool | None, said("subtract the column means, on the fly")] = None,
    scale: Annotated[bool | None, said("divide by the column standard deviations, on the fly")] = None,
    missing: Annotated[str | None, said("missing values: refuse, mean, drop-columns, em or pairwise")] = None,
    missing_limit: Annotated[
        float | None, said("with missing = mean: leave out columns with a larger fraction missing")
    ] = None,
    missing_values: Annotated[list[float] | None, said("numbers that mark missing values, e.g. [-9999]")] = None,
    algorithm: Annotated[str | None, said("gram, krylov or power; the best one if left out")] = None,
    operator: Annotated[str | None, said("name under which you registered an operator")] = None,
    row_weights: Annotated[str | None, said("weight of each row: an array on disk (.npy or Zarr)")] = None,
    column_weights: Annotated[str | None, said("weight of the square of each column, likewise, or coslat")] = None,
    tol: Annotated[float | None, said("stop at this relative residual")] = None,
    memory: Memory = None,
    device: DeviceName = None,
    seed: Annotated[int | None, said("seed of the random start block", ge=0)] = None,
    rotate: Annotated[
        str | None, said("rotation of the reported components: varimax, promax, procrustes (onto align_to)")
    ] = None,
    align_to: Annotated[
        str | None, said("store of an earlier run, or previous: report in its order and with its signs")
    ] = None,
    colour: Annotated[
        str | None, said("colour of rows in the report: a column, or a file with a value for each")
    ] = None,
    grid: Annotated[str | None, said("rows x columns of images in the report, e.g. 28x28")] = None,
    fresh: Annotated[bool, said("compute a new run at every call, in numbered stores, for data that change")] = False,
    date: Annotated[
        str | None, said("day of the data, in place of {date} in source.path: like 2026-11-27, today or yesterday")
    ] = None,
    store: Annotated[str | None, said("folder or URL of the run, instead of runs/NAME or the one configured")] = None,
    changes: Changes = None,
    run_id: OptionalRunId = None,
) -> Any:
    """
    Compute the k leading singular vectors or eigenvectors of stored data, out of core.

    As a run of its own, or as a sub-flow of yours. Called again with the same store it goes on after a kill, or returns
    the answer without a pass over the data. No array goes through Prefect: the vectors are in the store.

    Parameters
    ----------
    config : str, PathLike, dict or RunConfig
        With ``k``, data: the path or URL of what :func:`npmdask.top_k` takes by its path. Otherwise a configuration:
        the path of a file for ``npmdask run`` (.toml), or its tables. Relative paths are those of the working directory
        of the process; in a file, those of its folder.
    k : int, float or "auto", optional
        How many components, or, strictly between 0 and 1, the share of the variance that they are to explain; with
        missing = "em" also "auto".
    kind : str, optional
        How to read the data: "samples", "matrix", "symmetric" or "sparse"; what the store says if left out.
    center : bool, optional
        Subtract the column means.
    scale : bool, optional
        Divide by the standard deviations of the columns.
    missing : str, optional
        What is done with missing values: "refuse", "mean", "drop-columns", "em" or "pairwise".
    missing_limit : float, optional
        Of "mean": columns that lack more than this share of their values are left out.
    missing_values : list of float, optional
        Numbers that mark missing values, beside NaN.
    algorithm : str, optional
        "gram", "row-gram", "krylov" or "power"; the best one if left out.
    operator : str, optional
        An operator of yours, by its registered name.
    row_weights : str, optional
        How much each row counts: the path of an array (.npy or Zarr).
    column_weights : str, optional
        Of squares of columns: the same, or "coslat", cosines of the latitudes of labelled data.
    tol : float, optional
        Relative residual to reach.
    memory : str, optional
        Limit for all processes of the run together, like "1GiB".
    device : str, optional
        What sums over the rows are formed on: "cpu", "cuda" (an NVIDIA GPU) or "auto".
    seed : int, optional
        Seed of the random start block.
    rotate : str, optional
        Report and export the components rotated: "varimax", "promax", or "procrustes" (onto those of ``align_to``).
    align_to : str, optional
        The store of an earlier run, in whose order and with whose signs the components are reported and exported; the
        report says how far each one turned, and warns where their space moved. With ``fresh`` "previous" is the run
        before (none the first time), of days that of the day before.
    colour : str, optional
        What rows are coloured by in the report: the name or number (from 0) of a column, or the path of a file with a
        value for each row.
    grid : str, optional
        Rows and columns of the images that components are drawn as in the report, like "28x28".
    fresh : bool, default False
        A new run at every call, in numbered folders below the store, of data that have changed since: for schedules. A
        run that was killed is finished first; of data that have not changed the last answer is given again. The link
        "latest", and latest.json, name the last run with an answer.
    date : str, optional
        Of data that lie in a file for each day, ``source.path`` with ``{date}`` in it: the day, like "2026-11-27". By
        default that of the tick, in the time zone of the schedule; "yesterday": the one before. The runs of a day are
        numbered in a folder of its own below the store, as with ``fresh``; "latest" names that of the last day.
    store : str, optional
        Folder or URL of the run. By default that of the configuration, or ``runs/NAME`` with the name of the run or of
        the data.
    changes : dict, optional
        Further keys of the configuration by their dotted names, like ``{"run.threads": 4}``.
    run_id : str, optional
        Name of the run in Prefect's artifacts; that of the store if left out.

    Returns
    -------
    dict
        The facts of the run as plain numbers and strings, those of ``npmdask run --json``: "values" (k), "store",
        "outcome", "assurance", ... ``npmdask.resume(facts["store"])`` is the solution with its vectors, without a pass.

    Raises
    ------
    NotConvergedError
        The tolerance was not reached; its ``facts`` say how far the run came.
    BadInputError
        Data or parameters are wrong; the message says what to do.
    RefusedError
        Too little memory, a store of another run, or a run held by another process.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import npm
    >>> @flow
    ... def nightly():
    ...     facts = npm("samples.zarr", 10, center=True, memory="1GiB", store="runs/first")
    ...     return facts["store"]
    """
    made, answered = due(**locals())  # all parameters
    run_id = name_of_run(made, run_id)
    require_no_other_flow(made)
    validate(made)
    made = plan(made, run_id)
    facts = iterate(made, run_id)
    state = reported(run_id, facts)
    if answered is not None:
        point_to(facts["store"])
    if answered and flow_run.run_count < 2:  # one that is started again may have found the answer itself
        said = f"the data have not changed since {facts['store']}: its answer holds, and is given again"
        return Completed(name="Skipped", message=said, data=facts)
    return state


@step
def deflate(config: AnyConfig, run_id: str | None = None, more: int = 1) -> dict[str, Any]:
    """
    Lock what a finished run found and search its complement, in a store of its own, resumable in the same way.

    A task of Prefect, for a flow of yours, after :func:`iterate`. No array leaves it.

    Parameters
    ----------
    config : RunConfig, str, PathLike or dict
        The configuration of the finished run (:func:`configuration`).
    run_id : str, optional
        Name of the new run in Prefect's artifacts; that of the new store if left out.
    more : int, default 1
        How many components after the first ones.

    Returns
    -------
    dict
        The facts of the new run; its "store" is that of the first one with ``-deflated``.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import configuration, deflate, iterate
    >>> @flow
    ... def ten_and_five():
    ...     config = configuration("samples.zarr", 10, memory="1GiB")
    ...     iterate(config)
    ...     return deflate(config, more=5)["values"]
    """
    config = plain_configuration(config)
    problem, finished = config.problem(), str(config.run.store)
    store = f"{finished}-deflated"
    observer = Observers(ProgressBar(), Publisher(run_id or f"{name_of_run(config)}-deflated", store, problem.rule.tol))
    require_progress(store)
    return summary(deflated(folder_of(finished), more, store, config.resources(), observer))


@tended_flow("The npm flow, then further components from one final Rayleigh-Ritz with the first ones.")
def npm_deflation(
    config: Config,
    more: Annotated[int, said("number of further components", ge=1)],
    run_id: RunId = "npm-deflation",
) -> Any:
    """
    Compute k components, then ``more`` of them without starting over, by deflation.

    The same run id again goes on after a kill, or returns the answer.

    Parameters
    ----------
    config : RunConfig
        The tables of a file for ``npmdask run``, as :func:`configuration` makes them.
    more : int
        How many components after the first ones.
    run_id : str, default "npm-deflation"
        Name of the run.

    Returns
    -------
    dict
        The facts of the second run, as those of :func:`npm`; its store is that of the first with ``-deflated``.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import configuration, npm_deflation
    >>> @flow
    ... def nightly():
    ...     return npm_deflation(configuration("samples.zarr", 10), 5, run_id="first")["values"]
    """
    config = at_store(config, run_id)
    require_no_other_flow(config)
    validate(config)
    config = plan(config, run_id)
    facts = iterate(config, run_id)
    if facts["converged"]:
        run_id, facts = f"{run_id}-deflated", deflate(config, run_id, more)
    return reported(run_id, facts)


@step
def release(config: RunConfig, run_id: str) -> dict[str, Any]:
    """Send blocks, sum what the nodes answer, from wherever the store is. No array leaves it."""
    problem, store = config.problem(), str(config.run.store)
    private = problem.nodes is not None and problem.nodes.private
    shown = Announcer(run_id, problem.rule.max_steps) if private else Publisher(run_id, store, problem.rule.tol)
    require_progress(store)
    return summary(solve(problem, store, config.resources(), Observers(ProgressBar(), shown)))


@tended_flow("Top-k components of what several nodes hold, each adding its own noise.")
def distributed_private_pca(config: Config, run_id: RunId = "distributed") -> Any:
    """
    Compute the top-k components of what several nodes hold, each adding its own noise.

    The same run id again goes on.

    Parameters
    ----------
    config : RunConfig
        The tables of a file for ``npmdask run``, with ``source.nodes``.
    run_id : str, default "distributed"
        Name of the run.

    Returns
    -------
    dict
        What was released of values, and the statement that goes with it.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import configuration, distributed_private_pca
    >>> @flow
    ... def nightly():
    ...     return distributed_private_pca(configuration("coordinator.toml"), run_id="coordinator")["values"]
    """
    config = at_store(config, run_id)
    if config.source.nodes is None:
        raise RefusedError("the configuration names no source.nodes: run it with `python -m flows.npm`")
    validate(config)
    plan(config, run_id)
    return reported(run_id, release(config, run_id))
