"""The Python interface of streams: ``stream_pca``, ``stream_components``, and what commands and flows go through."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npmdask.containers.containers import values_of
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.reduction import COMMIT_SECONDS
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import Resources, asked_resources
from npmdask.core.runs.restore import resources_of
from npmdask.core.runs.solution import TemporaryStore
from npmdask.core.storage.paths import is_url
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, require
from npmdask.streaming.loop import StreamDriver
from npmdask.streaming.problem import BATCH_ROWS, StreamProblem, StreamRequest, make_stream_problem, problem_of_store
from npmdask.streaming.solution import StreamSolution
from npmdask.streaming.source import Reading
from npmdask.streaming.sources.directory import Directory
from npmdask.weights.aspect import find_weights


def stream_pca(
    source: Any,
    k: int,
    *,
    dim: str | int | None = None,
    algorithm: str = "spm",
    options: Mapping[str, Any] | None = None,
    batch_rows: int = BATCH_ROWS,
    half_life: float | None = None,
    center: bool = False,
    unit: float | None = None,
    order: str = "sequential",
    epochs: int = 1,
    non_finite: str = "refuse",
    missing: str = "refuse",
    missing_values: Any = None,
    row_weights: Any = None,
    pattern: str = "*",
    full_batches: bool = False,
    format: str | None = None,
    columns: int | None = None,
    header: bool | None = None,
    held_out: Any = None,
    memory: str | int | None = None,
    store: str | Path | None = None,
    seed: int = 0,
    measure_rows: int | None = None,
    commit_seconds: float = COMMIT_SECONDS,
    observer: Observer | None = None,
    progress: bool = False,
) -> StreamSolution:
    """
    Learn the k leading principal directions of rows (of d columns) that are read once, or once per epoch.

    Parameters
    ----------
    source : str, Path, zarr.Array, array_like, iterable or callable
        A Zarr store (path, URL, object), an array or table in memory or lazy, as for :func:`npmdask.top_k`, a file or
        a directory of files that grows (path), "-" (standard input), an iterable of batches (n x d), or a callable
        that returns one.
    k : int
        Number of components.
    dim : str or int, optional
        The dimension along which rows lie, for an array of xarray, Dask or NumPy, as for :func:`npmdask.top_k`.
    algorithm : str, default "spm"
        "spm" (the streaming power method), "oja", "msg", "rmsg", "mb-msg", "mb-rmsg" or "frequent-directions"
        (docs/howto/streaming.md says which to choose). "online-tensor-power" has its own function:
        :func:`stream_components`.
    options : dict, optional
        Further parameters of the algorithm, such as ``{"gap": 0.1}`` (docs/howto/streaming.md).
    batch_rows : int, default 256
        Number of rows read at once, if the algorithm does not determine it.
    half_life : float, optional
        Number of rows after which a row counts half, for streams that drift; by default all rows count fully.
    center : bool, default False
        Subtract the mean of the rows, which is estimated on the way; the scatter is exactly that about the final mean.
    unit : float, optional
        Typical norm of a row, for algorithms with a step size; by default that of the first batch.
    order : {"sequential", "shuffled"}, default "sequential"
        Order of the rows of a stored array; "shuffled" shuffles the chunks, and the rows of each.
    epochs : int, default 1
        Number of times that a stored array is read.
    non_finite : {"refuse", "skip"}, default "refuse"
        Treatment of rows that are not finite; skipped rows are counted.
    missing : {"refuse", "impute"}, default "refuse"
        "impute": missing values (NaN) are replaced by what the model so far expects, given the observed values of the
        row (docs/howto/missing.md); rows without any value are skipped and counted. "refuse": they count as not finite.
    missing_values : float or list of float, optional
        Numbers that mark missing values, in addition to NaN, such as -9999.
    row_weights : array_like, shape (n,), or str or Path, optional
        Weight of each row, not negative: 2 counts like two equal rows, 0 like none. For a stored array or one in
        memory, as for :func:`npmdask.top_k`; only "spm" and "frequent-directions" accept weights.
    pattern : str, default "*"
        Pattern of the file names in a directory.
    full_batches : bool, default False
        Leave a batch that is not full for the next call.
    format : {"csv", "npy", "float32"}, optional
        Format of standard input.
    columns : int, optional
        Width of standard input.
    header : bool, optional
        Whether a first line of standard input holds names.
    held_out : str, Path or array_like, optional
        Rows on which the share of variance that the model explains is measured, and which are not learnt from.
    memory : str or int, optional
        Limit for the process, like "1GiB", checked before the first row; by default none.
    store : str or Path, optional
        Folder of the model. Another call with it processes only the new rows; after a kill, it resumes from the last
        commit and ends with the same bits. By default a temporary folder.
    seed : int, default 0
        Seed of the random start and of the shuffle.
    measure_rows : int, optional
        Number of rows between the first measurements; by default 16 batches.
    commit_seconds : float, default 30.0
        Seconds between two commits, which is the most that a kill can cost.
    observer : Observer, optional
        Called for every step.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    StreamSolution
        The components learnt so far.

    Raises
    ------
    BadInputError
        Rows or parameters are invalid, or there are too few rows for a result. The store keeps what was learnt before.
    RefusedError
        Too little memory, a store of another stream, a source that shrank, or a store that another process uses.

    See Also
    --------
    StreamingPCA : A model that you feed with batches yourself.
    top_k : For data that can be read several times.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((20000, 10)) * np.geomspace(8, 1, 10)
    >>> batches = (rows[i : i + 500] for i in range(0, 20000, 500))
    >>> solution = npmdask.stream_pca(batches, 1, algorithm="oja", center=True)
    >>> bool(abs(solution.basis[0, 0]) > 0.99)
    True
    """
    request = StreamRequest(
        target_rank=k,
        algorithm=algorithm,
        options=options or {},
        batch_rows=batch_rows,
        half_life=half_life,
        center=center,
        unit=unit,
        seed=seed,
        measure_rows=measure_rows,
        missing=missing,
        missing_values=missing_values,
    )
    reading = Reading(
        order=order,
        epochs=epochs,
        non_finite=non_finite,
        pattern=pattern,
        full_batches=full_batches,
        format=format,
        columns=columns,
        header=header,
    )
    rows = source if dim is None else values_of(source, dim, gaps=missing != "refuse")
    weights = row_weights
    if dim is not None and weights is not None:  # which may be a coordinate, that only the labelled data have
        weights = find_weights(open_source(source, dim=dim, gaps=missing != "refuse"), source, weights, None)
    problem = make_stream_problem(rows, request, reading, held_out, row_weights=weights)
    resources = asked_resources(memory, commit_seconds=commit_seconds)
    with with_progress(observer, progress) as told:
        return run_stream(problem, store, resources, told)


def stream_components(
    source: Any,
    k: int,
    *,
    block_rows: int | None = None,
    iterations: int | None = None,
    restarts: int | None = None,
    refine: bool = True,
    **reading: Any,
) -> StreamSolution:
    """
    Learn the k components of largest weight of the third moment ``E x (x) x (x) x`` of rows, using each row once.

    This uses the online tensor power method, in memory O(d (k + restarts)). The rows must be whitened and not Gaussian:
    see ``npmdask.streaming.algorithms.tensor_power.OnlineTensorPower``, also for the four parameters.

    Parameters
    ----------
    source : str, Path, zarr.Array, array_like, iterable or callable
        A Zarr store (path, URL, object or 2-D array), a file or a directory of files that grows (path), "-" (standard
        input), an iterable of batches (n x d), or a callable that returns one.
    k : int
        Number of components.
    block_rows : int, optional
        Number of rows of an iteration. By default all components are found in half of the rows of a stored array; for
        any other source it must be given.
    iterations : int, optional
        Number of iterations for each component.
    restarts : int, optional
        Number of random starts for each component.
    refine : bool, default True
        Iterate once more with the remaining rows.
    **reading
        ``batch_rows``, ``memory``, ``store``, ``seed`` and the other parameters of :func:`stream_pca` for sources.

    Returns
    -------
    StreamSolution
        Its ``basis`` holds the components found (d x j unit vectors, j <= k) and its ``values`` their weights.
        ``facts`` holds their ``standard_errors`` and the ``status`` of all k: "found", "surplus" (a weight that noise
        could have as well) or "open" (there were too few rows; give more, with the same store).

    Raises
    ------
    BadInputError
        As :func:`stream_pca`; also for ``center``, ``half_life`` and ``held_out``, which are not available here.
    RefusedError
        As :func:`stream_pca`.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> rows = np.sqrt(3) * np.eye(3)[rng.integers(3, size=60000)]  # E x x^T = I, weights sqrt(3)
    >>> solution = npmdask.stream_components(rows, 3)
    >>> solution.facts["status"]
    ['found', 'found', 'found']
    """
    own = {"block_rows": block_rows, "iterations": iterations, "restarts": restarts, "refine": refine}
    options = {name: value for name, value in own.items() if value is not None}
    return stream_pca(source, k, algorithm="online-tensor-power", options=options, **reading)


def run_stream(
    problem: StreamProblem, store: str | Path | None, resources: Resources, observer: Observer | None = None
) -> StreamSolution:
    """Take all rows that there are now into the model in ``store`` (a temporary folder if None)."""
    if not resources.commit_seconds >= 0:
        raise BadInputError(f"commit_seconds = {resources.commit_seconds} must be at least 0 (it is a time)")
    if resources.workers or resources.cluster is not None:
        raise BadInputError("one process reads a stream, in the order of its rows: leave workers and cluster out")
    if store is None:
        with TemporaryStore() as kept:
            return run_stream(problem, kept.folder / "run", resources, observer)
    if isinstance(stream := problem.opened.stream, Directory) and not is_url(store):
        stream.require_outside(Path(store))
    with RunStore(store) as held:
        return StreamDriver(problem, held, resources, observer or Observer()).run()


def resume_stream(store: str | Path, *, memory: int | None = None, observer: Observer | None = None) -> StreamSolution:
    """Go on with the stream in ``store``: the rows after its last commit, and what is new.

    Raises
    ------
    RefusedError
        It was fed from standard input or from Python: only that program can give the rows again.
    BadInputError
        It is no store of a stream.
    """
    spec = RunStore(store).read_spec() or {}
    require("stream" in spec, f"{store} is not the store of a stream: name the folder in which the stream was started")
    resources = resources_of(RunStore(store), **({} if memory is None else {"memory": memory}))
    return run_stream(problem_of_store(spec, str(store)), store, resources, observer)
