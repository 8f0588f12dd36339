"""Further components of a finished run, without starting over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from npmdask.core.checkpoint.schema import is_protected
from npmdask.core.checkpoint.store import RunStore, folder_of, not_finished
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.driver import solve
from npmdask.core.runs.kinds import kind_of
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Locked
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import Resources, asked_resources
from npmdask.core.runs.restore import identity_of, locked_result, problem_of
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.bundle import read_bundle
from npmdask.errors import RefusedError


def deflate(
    finished: str | Path,
    more: int,
    *,
    store: str | Path,
    iteration_rank: int | None = None,
    memory: str | int | None = None,
    workers: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    device_memory: str | int | None = None,
    observer: Observer | None = None,
    progress: bool = False,
) -> Solution:
    """
    Find further components of a finished run without starting over.

    This runs the power method on the matrix of that run (of samples ``X^T X / n``), restricted to the orthogonal
    complement of the components found so far, whose vectors are locked. The result holds the old and the new
    components, in order of decreasing magnitude, from one Rayleigh-Ritz step. Tolerance and maximum number of passes
    are those of the finished run. If that run formed a matrix (``algorithm="gram"`` or ``"row-gram"``), one more such
    pass finds all of them.

    Parameters
    ----------
    finished : str or Path
        Store of a run that converged.
    more : int
        Number of further components.
    store : str or Path
        Store of this run.
    iteration_rank : int, optional
        Number of columns of the block; default as for :func:`top_k`.
    memory : str or int, optional
        Limit for all processes, like "1GiB"; by default none.
    workers : int, default 0
        Worker processes; 0 uses only this one.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    device : {"cpu", "auto", "cuda"}, default "cpu"
        As for :func:`top_k`.
    device_memory : str or int, optional
        As for :func:`top_k`.
    observer : Observer, optional
        Called for the plan, and for every pass and step.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    Solution
        All components, the old and the new ones.

    Raises
    ------
    BadInputError
        ``finished`` has no result yet, or there are not that many components.
    RefusedError
        The finished run did not converge, or is a private release.

    See Also
    --------
    top_k : All components at once.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask, zarr
    >>> rows = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     zarr.save(folder + "/rows.zarr", rows)
    ...     first = npmdask.top_k(folder + "/rows.zarr", 2, kind="samples", store=folder + "/two")
    ...     all_five = npmdask.deflate(folder + "/two", 3, store=folder + "/five")
    >>> all_five.basis.shape
    (20, 5)
    """
    resources = asked_resources(memory, threads, workers, device=device, device_memory=device_memory)
    with with_progress(observer, progress) as told:
        return deflated(folder_of(finished), more, store, resources, told, iteration_rank)


def deflated(
    path: Path,
    more: int,
    store: str | Path,
    resources: Resources,
    observer: Observer | None = None,
    iteration_rank: int | None = None,
) -> Solution:
    """Find ``more`` components of the finished run at ``path``, with whatever resources: a cluster, too."""
    if is_protected(RunStore(path).read_spec() or {}):
        raise RefusedError(
            f"{path} is a private release, and more components would be further products with the data, which no one "
            "has paid for; start a new private run with a larger target_rank, on what is left of the budget"
        )
    if kind_of(RunStore(path).read_spec()).staged:
        raise RefusedError(f"{path} is a job of several stages, which are not deflated: ask for more in a new store")
    if not (path / "result").is_dir():
        raise not_finished(path)
    arrays, meta = read_bundle(path / "result")
    if meta["outcome"]["name"] != "converged":
        raise RefusedError(f"{path} did not converge ({meta['outcome']['sentence']}); deflating it would add its error")
    if "operator_products" not in arrays:
        raise RefusedError(
            f"{path} kept its blocks on disk, and deflation takes them into memory: run again with a larger k in a new "
            "store"
        )
    with RunStore(path) as held:
        base = problem_of(held)
    kept = {name: value for name, value in (base.request.options or {}).items() if name != "precision"}
    request = replace(base.request, target_rank=more, iteration_rank=iteration_rank, options=kept or None)
    if request.algorithm in ("gram", "row-gram"):
        # One pass finds all of them. Products with vectors of a matrix that was formed in float32 are not exact, and a
        # run that took them as they are would be sure of more digits than it has.
        problem = make_problem(base.source, replace(request, target_rank=len(arrays["values"]) + more))
    else:
        locked = Locked(result=locked_result(arrays), identity=identity_of(arrays))
        problem = make_problem(base.source, request, locked)
    return solve(problem, store, resources, observer)
