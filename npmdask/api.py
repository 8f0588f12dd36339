"""The Python door: ``top_k``, ``resume``, ``deflate``. All doors end in the same driver."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npmdask.checkpoint.store import RunStore, folder_of, not_finished
from npmdask.errors import BadInputError, RefusedError
from npmdask.execution.reduction import COMMIT_SECONDS
from npmdask.federated import centre as _centre  # noqa: F401  (registers runs whose data lie with nodes)
from npmdask.manage.kinds import kind_of
from npmdask.manage.matrix import drive
from npmdask.numerics.units import parse_memory
from npmdask.planning.plan import resolve_rank
from npmdask.privacy.request import Privacy
from npmdask.runs.build import make_problem
from npmdask.runs.observers import Observer
from npmdask.runs.problem import Locked, Problem, Request
from npmdask.runs.restore import identity_of, keep_locked, locked_result, problem_of
from npmdask.runs.solution import Resources, Solution, TemporaryStore
from npmdask.runs.warm_start import find_start, keep_start
from npmdask.storage.bundle import read_bundle
from npmdask.storage.source import open_source

if TYPE_CHECKING:
    from npmdask.models.latent.answers import LatentAnswer
    from npmdask.models.topics.run import TopicAnswer
    from npmdask.streaming import StreamSolution


def top_k(
    source: Any,
    k: int | float,
    *,
    kind: str | None = None,
    center: bool = False,
    scale: bool = False,
    iteration_rank: int | Literal["auto"] | None = None,
    algorithm: str = "auto",
    options: dict[str, Any] | None = None,
    memory: str | int | None = None,
    tol: float | None = None,
    low_rank_tol: float | None = None,
    max_steps: int | None = None,
    store: str | Path | None = None,
    seed: int = 0,
    start: str | Path | None = None,
    mechanism: str = "none",
    stddev: float = 0.0,
    privacy: Privacy | None = None,
    workers: int = 0,
    threads: int | None = None,
    cluster: str | None = None,
    certificates: str | Path | None = None,
    commit_seconds: float = COMMIT_SECONDS,
    observer: Observer | None = None,
) -> Solution:
    """The k leading singular vectors or eigenvectors of ``source``, out of core.

    Parameters
    ----------
    source : path of a Zarr store, ``zarr.Array``, ``zarr.Group`` (AnnData CSR), 2-D NumPy array or lists of rows,
        m x d. Values of a Zarr array are decoded by the CF conventions (scale_factor, add_offset, _FillValue, ...), as
        xarray does; missing values, also masked ones, are refused.
    k : how many, 1 <= k <= min(m, d); or, a float strictly between 0 and 1, the share of the variance that they
        are to explain (of the trace of the operator: for a matrix of the sum of squares), and k is found.
    kind : "samples" (eigenpairs of ``X^T X / m``), "symmetric", "matrix" (singular triplets), "sparse" (CSR,
        singular pairs), "matrices" (their mean, for private oracles of records). What the store says of itself, or
        "matrix", if None.
    center, scale : subtract column means, divide by column deviations (population convention), on the fly.
    iteration_rank : p, columns iterated; ``max(k + 10, min(2 k, 64))`` if None. "auto": as many as cost no time on
        this machine and store, measured once (at most 5 s); a store that has a run keeps the p of that run.
    algorithm : "krylov" (restarted block Krylov, a third of the passes on slow spectra), "power" (the noisy power
        method, the only one for noise), or "auto": the first without noise, the second with it. With ``privacy`` also
        "k-dp-pca", "k-dp-ojas" and "k-dp-power" (private oracles of records, one direction after the other:
        docs/kdppca.md).
    options : parameters of k-dp-pca and its relatives, like ``{"variant": "tight", "steps": 8}``.
    memory : limit for all processes of the run, e.g. "1GiB"; checked before the first pass.
    tol : relative residual to reach, ``||A v - theta v|| <= tol |theta|``; 1e-9, or 1e-6 for float32 data.
    low_rank_tol : stop too as soon as the k components leave at most 1 + low_rank_tol times the least that any k leave
        (of a matrix ||A - A V V^T||, of samples the variance in any direction), by the certificate: a few passes where
        a missing gap makes the components themselves take hundreds. None or 0: only settled components will do.
    max_steps : give up (not converged) after so many passes, 200 if None. Of a private run: how many are released.
    store : folder of the run, or a URL in an object store (``s3://bucket/name``). A killed run goes on from there, a
        finished one answers without a pass. A temporary folder if None; of a matrix it holds the left singular vectors
        (m x k float64) until the solution is gone.
    seed : of the random start block.
    start : folder of an earlier run (other k, tolerance, iteration_rank, or rows) whose vectors this one begins
        with. It saves passes; the answer is held to the same tolerance.
    mechanism, stddev : "gaussian" adds N(0, stddev^2) to every product (simulation, not private).
    privacy : the promise that makes the run a differentially private release; needs a ``store`` and a budget granted in
        the ledger (``npmdask ledger grant``).
    workers, threads : processes (0: none but this one) and threads each; neither changes a bit of the result.
    cluster : address of a Dask scheduler (``tcp://host:8786``) whose workers form the products instead.
    certificates : of a cluster at ``tls://host:8786``: a folder with ca.pem, cert.pem and key.pem; if None, those that
        Dask's own configuration names.
    commit_seconds : between two commits inside a pass: what a kill costs at most, beside the tasks under way.
    observer : told of plan, passes and steps.

    Raises
    ------
    BadInputError
        Data or parameters are wrong; a sentence says what and what to do.
    RefusedError
        Too little memory, a store of another run, or a run held by another process.
    """
    request = Request(
        target_rank=k,
        iteration_rank=iteration_rank,
        algorithm=algorithm,
        options=options,
        max_steps=max_steps,
        tol=tol,
        low_rank_tol=low_rank_tol,
        center=center,
        scale=scale,
        seed=seed,
        mechanism=mechanism,
        stddev=stddev,
        privacy=privacy,
    )
    resources = Resources(
        memory=parse_memory(memory),
        threads=threads,
        workers=workers,
        cluster=cluster,
        certificates=None if certificates is None else str(Path(certificates).absolute()),
        commit_seconds=commit_seconds,
    )
    begun = None if start is None else find_start(start, store)
    opened = open_source(source, kind)
    problem = make_problem(opened, resolve_rank(request, opened, resources, store), start=begun)
    return solve(problem, store, resources, observer)


def solve(
    problem: Problem, store: str | Path | None, resources: Resources, observer: Observer | None = None
) -> Solution:
    """Run a problem to its end in ``store``; if None in a temporary folder, which is kept of a matrix as long as the
    solution is used: ``left_basis`` reads it.
    """
    if store is None and problem.private is not None:
        raise BadInputError(
            "a private run needs a store: what it spends of the budget is spent for good, and only the store of the "
            "run can go on with it after a crash"
        )
    if store is None and problem.source.kind == "matrix":
        kept = TemporaryStore()  # the left singular vectors may be asked for
        return replace(solve(problem, kept.folder / "run", resources, observer), temporary_store=kept)
    if store is None:
        with tempfile.TemporaryDirectory(prefix="npmdask-") as folder:
            return solve(problem, Path(folder) / "run", resources, observer)
    with RunStore(store, private=problem.private is not None) as held:
        if problem.locked is not None:
            keep_locked(held, problem.locked)
        if problem.start is not None:
            keep_start(held, problem.start)
        return drive(problem, held, resources, observer)


def resume(
    store: str | Path,
    *,
    memory: str | int | None = None,
    workers: int | None = None,
    threads: int | None = None,
    cluster: str | None = None,
    certificates: str | Path | None = None,
    max_steps: int | None = None,
    tol: float | None = None,
    low_rank_tol: float | None = None,
    observer: Observer | None = None,
) -> Solution | StreamSolution | TopicAnswer | LatentAnswer:
    """Go on with the run in ``store`` from its last commit; a finished one answers without a pass.

    ``memory``, ``workers``, ``threads`` and ``cluster`` stay what they were unless given (a cluster takes the place
    of workers and threads, and the other way round; ``cluster=""``: none; ``certificates`` go with it); none changes a
    bit of the result.
    ``max_steps``, ``tol`` and ``low_rank_tol`` may be changed: they decide when a run stops, not what its steps are.

    The store of a stream takes what is new since its last commit; only ``memory`` may be given. That of a job (topics,
    a mixture, independent components) goes on with its stages. Returned is what its first call would have returned: a
    ``Solution``, or the answer of a stream or of a job.

    Raises
    ------
    BadInputError
        There is no run in ``store``, or its source is gone.
    """
    path = folder_of(store)
    if not (path / "run.json").exists():
        raise BadInputError(f"there is no run in {store}; start one with `npmdask run CONFIG.toml --store {store}`")
    spec = RunStore(path).read_spec() or {}
    asked = {
        "memory": memory,
        "workers": workers,
        "threads": threads,
        "cluster": cluster,
        "certificates": certificates,
        "max_steps": max_steps,
        "tol": tol,
        "low_rank_tol": low_rank_tol,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    kind = kind_of(spec)
    if not given.keys() <= kind.may_change:
        raise BadInputError(kind.refusal(path))
    answer: Solution = kind.resume(path, given, observer)
    return answer


def deflate(
    finished: str | Path,
    more: int,
    *,
    store: str | Path,
    iteration_rank: int | None = None,
    memory: str | int | None = None,
    workers: int = 0,
    threads: int | None = None,
    observer: Observer | None = None,
) -> Solution:
    """``more`` further components of a finished run, without starting over.

    The power method on A restricted to the complement of what is found (its vectors are locked); the answer
    holds the old and the new components, by falling magnitude, from one Rayleigh-Ritz.

    Raises
    ------
    BadInputError
        ``finished`` holds no answer yet, or there are not so many components.
    RefusedError
        The finished run did not converge, or is a private release.
    """
    path = folder_of(finished)
    if "privacy" in (RunStore(path).read_spec() or {}):
        raise RefusedError(
            f"{path} is a private release, and more components would be further products with the data, which nobody "
            "has paid for; start a new private run with a larger target_rank, on what is left of the budget"
        )
    if kind_of(RunStore(path).read_spec()).staged:
        raise RefusedError(f"{path} is a job of several stages, which are not deflated: ask for more in a new store")
    if not (path / "result").is_dir():
        raise not_finished(path)
    arrays, meta = read_bundle(path / "result")
    if meta["outcome"]["name"] != "converged":
        raise RefusedError(f"{path} did not converge ({meta['outcome']['sentence']}); deflating it would add its error")
    with RunStore(path) as held:
        base = problem_of(held)
    locked = Locked(result=locked_result(arrays), identity=identity_of(arrays))
    request = replace(base.request, target_rank=more, iteration_rank=iteration_rank)
    problem = make_problem(base.source, request, locked)
    return solve(problem, store, Resources(memory=parse_memory(memory), threads=threads, workers=workers), observer)
