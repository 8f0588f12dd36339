"""The Python interface of streams: ``stream_pca``, ``stream_components``, and what commands and flows go through."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError
from npmdask.execution.reduction import COMMIT_SECONDS
from npmdask.numerics.units import parse_memory
from npmdask.runs.observers import Observer
from npmdask.runs.progress import with_progress
from npmdask.runs.solution import Resources
from npmdask.runs.weights import find_weights
from npmdask.storage.containers import values_of
from npmdask.storage.readers.gaps import checked_marks
from npmdask.storage.source import open_source
from npmdask.streaming.loop import StreamDriver
from npmdask.streaming.problem import BATCH_ROWS, StreamProblem, StreamRequest, make_stream_problem, problem_of_store
from npmdask.streaming.solution import StreamSolution
from npmdask.streaming.source import Reading


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
    Learn the k leading principal directions of rows that come once, or once in each epoch.

    Parameters
    ----------
    source : str, Path, zarr.Array, array_like, iterable or callable
        A Zarr store (path, URL, object), an array or table in memory or lazy, as for :func:`npmdask.top_k`, a file or
        a directory of files that grows (path), "-" (standard input), an iterable of batches (n x d), or a callable
        that returns one.
    k : int
        How many.
    dim : str or int, optional
        Of an array of xarray, Dask or NumPy: the dimension that rows lie along, as for :func:`npmdask.top_k`.
    algorithm : str, default "spm"
        "spm" (the streaming power method), "oja", "msg", "rmsg", "mb-msg", "mb-rmsg" or "frequent-directions"
        (docs/streaming.md says which for what). "online-tensor-power" has a function of its own:
        :func:`stream_components`.
    options : dict, optional
        Further parameters of the algorithm, see its class.
    batch_rows : int, optional
        Rows read at once, where the algorithm does not say how many it wants.
    half_life : float, optional
        Rows after which a row counts half, for streams that drift; by default nothing is forgotten.
    center : bool, default False
        Subtract the mean of the rows, learnt on the way: the scatter is exactly that about the final mean.
    unit : float, optional
        Typical norm of a row, where the algorithm has a step size; by default that of the first batch.
    order : {"sequential", "shuffled"}, default "sequential"
        Of a stored array; "shuffled": by chunk and within.
    epochs : int, default 1
        How many times a stored array is read.
    non_finite : {"refuse", "skip"}, default "refuse"
        What happens to rows that are not finite; those that are skipped are counted.
    missing : {"refuse", "impute"}, default "refuse"
        What happens to missing values (NaN): they are not finite, or become what the model so far expects there, given
        what is observed of their rows (docs/missing.md). Rows without any value are skipped and counted then.
    missing_values : float or list of float, optional
        Numbers that mark missing values, beside NaN, like -9999.
    row_weights : array_like, shape (n,), or str or Path, optional
        How much each row counts, not negative: with 2 like two equal rows, with 0 like none. Of a stored array, or one
        in memory, as for :func:`npmdask.top_k`; "spm" and "frequent-directions" know weights.
    pattern : str, default "*"
        Which files of a directory.
    full_batches : bool, default False
        Leave a batch that is not full for the next call.
    format : {"csv", "npy", "float32"}, optional
        Of standard input.
    columns : int, optional
        Width of standard input.
    header : bool, optional
        Whether a first line of standard input holds names.
    held_out : str, Path or array_like, optional
        Rows that are not learnt from and on which the objective is measured.
    memory : str or int, optional
        Limit for the process, like "1GiB", checked before the first row.
    store : str or Path, optional
        Folder of the model. Called again, only rows that are new are taken; killed, it goes on from its last commit
        and ends in the same bits. By default a temporary folder.
    seed : int, default 0
        Of the random start and of the shuffle.
    measure_rows : int, optional
        Rows between the first measurements.
    commit_seconds : float, optional
        Seconds between two commits: what a kill costs at most.
    observer : Observer, optional
        Told of steps.
    progress : bool, default False
        Show how far it is and how long it takes: on stderr, or below the cell of a notebook.

    Returns
    -------
    StreamSolution
        What was learnt so far.

    Raises
    ------
    BadInputError
        Rows or parameters that cannot be, or too few rows for an answer. What was learnt before is kept in the store.
    RefusedError
        Too little memory, a store of another stream, a source that shrank, or a store held by another process.

    See Also
    --------
    StreamingPCA : A model that is fed by hand.
    top_k : Data that can be read several times.

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
        missing_values=checked_marks(missing_values),
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
        weights = find_weights(open_source(source, dim=dim, gaps=missing != "refuse"), weights, None, source)
    problem = make_stream_problem(rows, request, reading, held_out, row_weights=weights)
    resources = Resources(memory=parse_memory(memory), commit_seconds=commit_seconds)
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
    Learn the k heaviest components of the third moment ``E x (x) x (x) x`` of rows, each row used once.

    By the online tensor power method, in memory O(d (k + restarts)). The rows are meant to be whitened, and not
    Gaussian: see ``npmdask.algorithms.OnlineTensorPower``, also for the four parameters.

    Parameters
    ----------
    source : str, Path, zarr.Array, array_like, iterable or callable
        A Zarr store (path, URL, object or 2-D array), a file or a directory of files that grows (path), "-" (standard
        input), an iterable of batches (n x d), or a callable that returns one.
    k : int
        How many.
    block_rows : int, optional
        Rows of an iteration. By default as many as find all components in half of the rows of a stored array; of any
        other source it must be said.
    iterations : int, optional
        Of each component.
    restarts : int, optional
        Random starts of each component.
    refine : bool, default True
        Iterate once more with what is left of the rows.
    **reading
        ``batch_rows``, ``memory``, ``store``, ``seed`` and whatever else :func:`stream_pca` knows of sources.

    Returns
    -------
    StreamSolution
        Its ``basis`` are the components that were found (d x j unit vectors, j <= k), ``values`` their weights.
        ``facts`` holds their ``standard_errors`` and the ``status`` of all k: "found", "surplus" (a weight that
        noise would have, too) or "open" (the rows did not suffice; more may be given, with the same store).

    Raises
    ------
    BadInputError
        As :func:`stream_pca`; also for ``center``, ``half_life`` and ``held_out``, which mean nothing here.
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
        raise BadInputError(
            "a stream is learnt from by one process, in the order of its rows: leave workers and cluster out"
        )
    if store is None:
        with tempfile.TemporaryDirectory(prefix="npmdask-") as folder:
            return run_stream(problem, Path(folder) / "run", resources, observer)
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
    if "stream" not in spec:
        raise BadInputError(f"{store} is not the store of a stream: name the folder in which the stream was started")
    resources = Resources(**spec.get("resources", {}))
    problem = problem_of_store(spec, str(store))
    return run_stream(problem, store, resources if memory is None else replace(resources, memory=memory), observer)
