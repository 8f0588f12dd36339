"""The Python interface: ``top_k`` and what follows it. The command line and flows end in the same driver."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npmdask.algorithms.stopping import Outcome
from npmdask.checkpoint.store import RunStore, folder_of, not_finished
from npmdask.errors import BadInputError, RefusedError
from npmdask.execution.clusters import scheduler_of
from npmdask.execution.reduction import COMMIT_SECONDS
from npmdask.federated import centre as _centre  # noqa: F401  (registers runs whose data lie with nodes)
from npmdask.manage.kinds import kind_of
from npmdask.models.dilation import Triplets, dilated, triplets_of
from npmdask.numerics.units import parse_memory
from npmdask.planning.plan import posed
from npmdask.planning.predicted_steps import drive
from npmdask.privacy.covariance_release import components_of_covariance
from npmdask.privacy.power_release import require_store
from npmdask.privacy.request import Privacy
from npmdask.runs.build import make_problem
from npmdask.runs.gram_parts import GramRequest, RowGroups, labels_called
from npmdask.runs.gram_store import GramStore, form_gram
from npmdask.runs.missing import find_fill
from npmdask.runs.observers import Observer
from npmdask.runs.problem import Locked, Problem, Request
from npmdask.runs.progress import with_progress
from npmdask.runs.restore import identity_of, locked_result, problem_of
from npmdask.runs.solution import Resources, Solution, TemporaryStore
from npmdask.runs.warm_start import find_start
from npmdask.runs.weights import find_weights
from npmdask.storage.bundle import read_bundle
from npmdask.storage.readers.gaps import REFUSE, checked_marks
from npmdask.storage.source import open_source

if TYPE_CHECKING:
    from npmdask.models.latent.answers import LatentAnswer
    from npmdask.models.topics.run import TopicAnswer
    from npmdask.streaming import StreamSolution


def top_k(
    source: Any,
    k: int | float | Literal["auto"],
    *,
    kind: str | None = None,
    dim: str | int | None = None,
    spill: str | Path | None = None,
    center: bool = False,
    scale: bool = False,
    missing: str = "refuse",
    missing_fill: Any = None,
    missing_values: Any = None,
    missing_limit: float | None = None,
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
    operator: str | None = None,
    row_weights: Any = None,
    column_weights: Any = None,
    workers: int = 0,
    threads: int | None = None,
    cluster: Any = None,
    certificates: str | Path | None = None,
    device: str = "cpu",
    device_memory: str | int | None = None,
    commit_seconds: float = COMMIT_SECONDS,
    observer: Observer | None = None,
    progress: bool = False,
) -> Solution:
    """
    Compute the k leading singular vectors or eigenvectors of data that need not fit in memory.

    Of an array, ``top_k(x, k)`` is a truncated SVD: its kind is "matrix", ``values`` are singular values, and nothing
    is centred. PCA is ``top_k(x, k, kind="samples", center=True)``, whose values are variances.

    Parameters
    ----------
    source : str, Path, zarr.Array, zarr.Group, array_like, sparse matrix, Dask array or table, shape (m, d)
        A Zarr store by path, URL or object (a group: CSR as AnnData writes it); in memory, a NumPy array or lists of
        rows, a SciPy sparse matrix, a table of pandas, Polars or PyArrow, an ``xarray.DataArray``, an AnnData. Never
        all in memory: an array or DataFrame of Dask, a lazy DataArray, a memory map, a dataset of h5py, a backed
        AnnData, whose rows are computed or read a block at a time in every pass; a session of icechunk; a
        ``LinearOperator`` of SciPy, of which products only are asked (docs/lazy.md). Dense rows may be complex
        (docs/complex.md).
        Values of a Zarr array are decoded by the CF conventions (scale_factor, add_offset, _FillValue, ...), as
        xarray does; missing values, also masked ones, are treated as ``missing`` says.
    k : int, float or "auto"
        How many, 1 <= k <= min(m, d). A float strictly between 0 and 1 is the share of the variance that they are to
        explain (of the trace of the operator: for a matrix of the sum of squares), and k is found. "auto", with
        ``missing="em"``: as many as predict entries that are held out (docs/missing.md).
    kind : {"samples", "symmetric", "matrix", "sparse", "matrices"}, optional
        What is asked of the data: eigenpairs of ``X^T X / m`` ("samples"), of a symmetric (complex: Hermitian) matrix,
        singular triplets of a dense or singular pairs of a CSR matrix, eigenpairs of the mean of matrices (private
        oracles of records). By default what the store says of itself, or else "matrix".
    dim : str or int, optional
        Of an array of xarray (name) or of Dask or NumPy (number): the dimension that rows lie along; all others
        together are a row, so that d is the product of their sizes.
    spill : str or Path, optional
        Of what is computed (Dask, lazy xarray): a folder that takes the rows, compressed, as the first pass computes
        them, for the later ones to read. Not deleted. By default every pass computes them again.
    center : bool, default False
        Subtract the column means, on the fly.
    scale : bool, default False
        Divide by the standard deviations of the columns (those of the population), on the fly.
    missing : {"refuse", "drop-columns", "mean", "em", "pairwise", "fill"}, default "refuse"
        What is done with missing values (NaN; CF fill values) of samples and dense matrices, without a filled copy.
        "drop-columns": columns without any value are left out, and others with gaps refused. "mean": a gap counts as
        the mean of its column over what is observed. "em": a factor model is fitted to what is observed, by passes of
        EM (``options={"held_out": share}``: of the entries that measure it, 0.02). "pairwise": each covariance is of
        the rows that have both columns. These three need ``center``, and the last two samples. How many were missing is
        in ``Solution.missing`` (docs/missing.md). "fill", of private runs: a gap counts as a public number before
        records are clipped, and nothing says how many there are (docs/private-gaps.md).
    missing_fill : float, array_like, str or Path, shape (d,), optional
        That number, or one for each column, or the path of them (.npy or Zarr): public, never a statistic of the data.
    missing_values : float or list of float, optional
        Numbers that mark missing values in the data, beside NaN, like -9999.
    missing_limit : float, optional
        Of "mean": columns that lack more than this share of their values are left out, found by a pass before the run.
    iteration_rank : int or "auto", optional
        Columns that are iterated (p); ``max(k + 10, min(2 k, 64))`` by default. "auto": as many as cost no time on
        this machine and store, measured once (at most 5 s); a store that has a run keeps the p of that run.
    algorithm : str, default "auto"
        "gram" (A^T A is formed in one pass, where d x d numbers fit), "row-gram" (A A^T of fewer rows than columns is
        formed, and a second pass gives the components), "krylov" (restarted block Krylov, a third of the passes of
        subspace iteration on slow spectra), "power" (the noisy power method, the only one for noise), or "auto": of
        data from 16 MiB on the faster of "krylov" and the matrix of the smaller side by their shape, or measured where
        that is worth its time, else "krylov", and "power" with noise (docs/passes.md); a store that has a run keeps its
        way. With ``privacy`` "covariance" (released once, whole, for every number of components) or "power", and "auto"
        the one that public numbers predict to capture more (docs/planning.md); also "k-dp-pca", "k-dp-ojas" and
        "k-dp-power" (private oracles of records, one direction after the other: docs/kdppca.md).
    options : dict, optional
        Parameters of k-dp-pca and its relatives, like ``{"variant": "tight", "steps": 8}``. Of "krylov":
        ``basis_blocks`` (how many blocks of products it remembers, 2 and more) and ``precision`` ("mixed": dense
        float32 data are multiplied in float32 at first; or "float64"). Left out with "krylov" or "auto" they are chosen
        from the shape, the tolerance and the memory, and kept in the store.
    memory : str or int, optional
        Limit for all processes of the run together, like "1GiB" or a number of bytes; checked before the first pass.
    tol : float, optional
        Relative residual to reach, ``||A v - theta v|| <= tol |theta|``; 1e-9, or 1e-6 for float32 data, by default.
    low_rank_tol : float, optional
        Stop too as soon as the k components leave at most ``1 + low_rank_tol`` times the least that any k leave (of a
        matrix ``||A - A V V^T||``, of samples the variance in any direction), by the certificate: a few passes where
        a missing gap makes the components themselves take hundreds. By default only settled components will do.
    max_steps : int, optional
        Give up (not converged) after so many passes, 200 by default. Of a private run: so many releases of the private
        power method; by default public numbers choose the method, and how many.
    store : str or Path, optional
        Folder of the run, or a URL in an object store (``s3://bucket/name``). A killed run goes on from there, a
        finished one answers without a pass. By default a temporary folder; of a matrix it holds the left singular
        vectors (m x k float64) until the solution is gone.
    seed : int, default 0
        Of the random start block.
    start : str or Path, optional
        Folder of an earlier run (other k, tolerance, iteration_rank, or rows) whose vectors this one begins with. It
        saves passes; the answer is held to the same tolerance.
    mechanism : {"none", "gaussian"}, default "none"
        "gaussian" adds N(0, stddev^2) to every product: a simulation, not private.
    stddev : float, default 0.0
        Standard deviation of that noise, in the units of the product.
    privacy : Privacy, optional
        The promise that makes the run a differentially private release; it needs a ``store``, and a budget granted in
        the ledger (``npmdask ledger grant``).
    operator : str, optional
        Name of an operator of yours in place of the data's own: see :func:`npmdask.runs.problem.register_operator`.
    row_weights : array_like, DataArray, str or Path, shape (m,), optional
        How much each row counts, not negative: with weight 2 like two equal rows, with 0 like none. Means, deviations
        and covariances are weighted, too. Or the name of a coordinate of the data, or the path of an array (.npy or
        Zarr). Nothing is multiplied in advance (docs/weights.md).
    column_weights : array_like, DataArray, str or Path, shape (d,), optional
        Of the squares in the inner product of rows, like areas of grid cells; entries count with their roots. Or as for
        ``row_weights``, or "coslat": cosines of the latitudes of labelled data. ``Solution.patterns`` are in the units
        of the data.
    workers : int, default 0
        Processes; 0: none but this one. Changes no bit of the result, as none of the next two does.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    cluster : str, Path, distributed.Client or cluster object, optional
        Whose workers form the products instead: the address of a Dask scheduler (``tcp://host:8786``), the path of
        the JSON file that it wrote, "current" for the client of this program, a client, which stays open, or an
        object with a ``scheduler_address`` (LocalCluster, SLURMCluster, ...: docs/clusters.md).
    certificates : str or Path, optional
        Of an address at ``tls://host:8786``: a folder with ca.pem, cert.pem and key.pem; by default those that Dask's
        own configuration names. Clients and cluster objects have their own.
    device : {"cpu", "auto", "cuda"}, default "cpu"
        What sums over the rows are formed on: "cuda" is an NVIDIA GPU, by CuPy or PyTorch; "auto" takes one where there
        is one. Its last bits are others than those of the processor, and the same every time.
    device_memory : str or int, optional
        Of the GPU, for each process; by default most of what is free.
    commit_seconds : float, default 30.0
        Seconds between two commits inside a pass: what a kill costs at most, beside the tasks under way.
    observer : Observer, optional
        Told of plan, passes and steps.
    progress : bool, default False
        Show how far it is and how long it takes: on stderr, or below the cell of a notebook.

    Returns
    -------
    Solution
        Vectors, values, how wrong they can be, and what they cost.

    Raises
    ------
    BadInputError
        Data or parameters are wrong; a sentence says what and what to do.
    RefusedError
        Too little memory, a store of another run, or a run held by another process.

    See Also
    --------
    resume : Go on with a run that was killed or gave up.
    deflate : Find further components of a finished run.
    stream_pca : Rows that come once.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    >>> solution = npmdask.top_k(rows, 3, kind="samples", center=True)
    >>> solution.converged, solution.basis.shape
    (True, (20, 3))
    >>> covariance = np.cov(rows.T, bias=True)
    >>> np.allclose(solution.values, np.linalg.eigvalsh(covariance)[:-4:-1])
    True
    """
    begun = None if start is None else find_start(start, store)
    if privacy is not None:
        require_store(source)
    opened = open_source(source, kind, dim, spill, gaps=missing != REFUSE, of_complex=True)
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
        missing=missing,
        fill=find_fill(missing, missing_fill),
        missing_values=checked_marks(missing_values),
        missing_limit=missing_limit,
        seed=seed,
        mechanism=mechanism,
        stddev=stddev,
        privacy=privacy,
        operator=operator,
        weights=find_weights(opened, row_weights, column_weights, source),
    )
    resources = Resources(
        memory=parse_memory(memory),
        threads=threads,
        workers=workers,
        cluster=scheduler_of(cluster) or None,
        certificates=None if certificates is None else str(Path(certificates).absolute()),
        commit_seconds=commit_seconds,
        device=device,
        device_memory=parse_memory(device_memory),
    )
    problem = posed(request, opened, resources, store, begun)
    with with_progress(observer, progress) as told:
        return solve(problem, store, resources, told)


def singular_triplets(
    source: Any,
    k: int,
    *,
    kind: str | None = None,
    dim: str | int | None = None,
    iteration_rank: int | None = None,
    algorithm: str = "auto",
    tol: float | None = None,
    max_steps: int | None = None,
    seed: int = 0,
    store: str | Path | None = None,
    memory: str | int | None = None,
    workers: int = 0,
    threads: int | None = None,
    commit_seconds: float = COMMIT_SECONDS,
    observer: Observer | None = None,
    progress: bool = False,
) -> Triplets:
    """
    Compute the k leading singular triplets of a stored matrix, small ones as well as large, from its dilation.

    :func:`top_k` works with ``A^T A``, which loses singular values below 1e-8 of the largest; the dilation does not, at
    the price of twice as many columns.

    Parameters
    ----------
    source : str, Path, zarr.Array, zarr.Group or array_like, shape (m, n)
        As for :func:`top_k`: dense or CSR; of samples the rows as they are stored.
    k : int
        How many, 1 <= k <= min(m, n).
    kind : {"samples", "matrix", "sparse"}, optional
        As for :func:`top_k`.
    dim : str or int, optional
        As for :func:`top_k`.
    iteration_rank : int, optional
        Columns that are iterated (p), 2 k <= p <= m + n; ``max(2 k + 10, min(4 k, 64))`` by default.
    algorithm : {"auto", "krylov", "power"}, default "auto"
        "auto" is "krylov". The certificate of "power" says what a random start cannot have missed.
    tol : float, optional
        Relative residual of every pair, ``||D x - theta x|| <= tol |theta|``; 1e-9, or 1e-6 for float32 data, by
        default. Rounding leaves a few times 1e-16 sigma_1 / sigma_i: with a smaller tolerance the run stops there, and
        says so.
    max_steps : int, optional
        Give up (not converged) after so many passes, 200 by default.
    seed : int, default 0
        Of the random start block.
    store : str or Path, optional
        Folder of the run, or a URL. A run that was killed goes on when this is called again with its store.
    memory : str or int, optional
        Limit for all processes of the run together, like "1GiB" or a number of bytes.
    workers : int, default 0
        Processes; 0: none but this one.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    commit_seconds : float, default 30.0
        Seconds between two commits inside a pass.
    observer : Observer, optional
        Told of plan, passes and steps.
    progress : bool, default False
        Show how far it is and how long it takes: on stderr, or below the cell of a notebook.

    Returns
    -------
    Triplets
        ``values`` (k), ``left`` (m x k), ``right`` (n x k), their ``residual_norms``, and the ``solution`` of the run
        on the dilation.

    Raises
    ------
    BadInputError
        Data without rows and columns, or numbers that do not fit them.
    RefusedError
        Too little memory, a store of another run, or a run held by another process.

    See Also
    --------
    top_k : Half the columns, where small singular values do not matter.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> left, right = (np.linalg.qr(rng.standard_normal((n, 4)))[0] for n in (200, 30))
    >>> A = (left * [1, 1e-3, 1e-6, 1e-9]) @ right.T
    >>> found = npmdask.singular_triplets(A, 4, tol=1e-4)
    >>> np.allclose(found.values, [1, 1e-3, 1e-6, 1e-9], rtol=1e-5, atol=0)
    True
    """
    opened = open_source(source, kind, dim)
    request = Request(target_rank=k, algorithm=algorithm, tol=tol, max_steps=max_steps, seed=seed)
    problem = dilated(opened, request, iteration_rank)
    resources = Resources(memory=parse_memory(memory), threads=threads, workers=workers, commit_seconds=commit_seconds)
    with with_progress(observer, progress) as told:
        return triplets_of(solve(problem, store, resources, told), opened.shape[0], k)


def gram(
    source: Any,
    store: str | Path,
    *,
    kind: str | None = None,
    dim: str | int | None = None,
    by_chunks: int | None = None,
    groups: Any = None,
    precision: Literal["float64", "float32"] = "float64",
    seed: int = 0,
    memory: str | int | None = None,
    workers: int = 0,
    threads: int | None = None,
    cluster: Any = None,
    certificates: str | Path | None = None,
    commit_seconds: float = COMMIT_SECONDS,
    observer: Observer | None = None,
    progress: bool = False,
) -> GramStore:
    """
    Form the Gram of all columns in one pass and keep it: every later question about them reads no row.

    Called again after rows were appended it reads those rows only. A call that was killed goes on inside its pass.

    Parameters
    ----------
    source : str, Path, zarr.Array, zarr.Group, array_like, sparse matrix, Dask array or table, shape (m, d)
        As for :func:`top_k`.
    store : str or Path
        Folder or URL to keep it in, about ``4 d^2`` bytes for each Gram.
    kind : {"samples", "matrix", "sparse"}, optional
        As for :func:`top_k`.
    dim : str or int, optional
        As for :func:`top_k`.
    by_chunks : int, optional
        A Gram for each so many rows of chunks: groups of rows that a jackknife can leave out. By default one for all.
    groups : sequence or str, optional
        A label for each row (m), or the name of a column of ``obs`` of an AnnData or of a coordinate of the rows: a
        Gram for each label, all from the same pass, of which any can be asked for, left out and removed. Dense rows
        only. Labels are compared as text; a row without one (None, NaN, "") is refused.
    precision : {"float64", "float32"}, default "float64"
        Of the products of tiles, which are added up in float64. float32 takes half of the arithmetic, and certifies
        1e-6 in about half of all cases only: what it is off is measured in the same pass, and counts in every answer.
    seed : int, default 0
        Of the probes, which measure that: Grams of one seed can be merged.
    memory : str or int, optional
        Limit for all processes together, like "1GiB"; checked before the pass.
    workers : int, default 0
        Processes; 0: none but this one. Changes no bit of the result, as none of the next two does.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    cluster : str, Path, distributed.Client or cluster object, optional
        As for :func:`top_k`.
    certificates : str or Path, optional
        As for :func:`top_k`.
    commit_seconds : float, default 30.0
        Seconds between two commits inside a pass.
    observer : Observer, optional
        Told of plan and passes.
    progress : bool, default False
        Show how far it is and how long it takes: on stderr, or below the cell of a notebook.

    Returns
    -------
    GramStore
        Open; ``rows_read`` and ``bytes_read`` say what this call took.

    Raises
    ------
    BadInputError
        Data that have no such Gram, or values that are not finite or too large.
    RefusedError
        Too little memory; a store of other data; or rows that were changed, and not appended.

    See Also
    --------
    top_k : Takes the store as its source.
    GramStore : Spectrum, choice of columns, merge, removal, jackknife.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = npmdask.gram(rows, folder + "/G", kind="samples")
    ...     counts = [store.components_for(share) for share in (0.5, 0.9, 0.99)]
    >>> counts
    [4, 11, 18]
    """
    opened = open_source(source, kind, dim)
    resources = Resources(
        memory=parse_memory(memory),
        threads=threads,
        workers=workers,
        cluster=scheduler_of(cluster) or None,
        certificates=None if certificates is None else str(Path(certificates).absolute()),
        commit_seconds=commit_seconds,
    )
    labels = None if groups is None else RowGroups.of_labels(labels_called(groups, source, opened))
    request = GramRequest(by_chunks=by_chunks, groups=labels, precision=precision, seed=seed)
    with with_progress(observer, progress) as told:
        return form_gram(opened, store, request, resources, told)


def solve(
    problem: Problem, store: str | Path | None, resources: Resources, observer: Observer | None = None
) -> Solution:
    """Run a problem to its end in ``store``; if None in a temporary folder, which is kept of a matrix as long as the
    solution is used: ``left_basis`` reads it.
    """
    if store is None and problem.private is not None:
        raise BadInputError(
            "a private run needs a store: the budget that it spends is gone for good, and only the store can resume it "
            "after a crash"
        )
    if store is None and problem.source.kind == "matrix":
        kept = TemporaryStore()  # the left singular vectors may be asked for
        return replace(solve(problem, kept.folder / "run", resources, observer), temporary_store=kept)
    if store is None:
        with tempfile.TemporaryDirectory(prefix="npmdask-") as folder:
            return solve(problem, Path(folder) / "run", resources, observer)
    with RunStore(store, private=problem.private is not None) as held:
        return drive(problem, held, resources, observer)


def resume(
    store: str | Path,
    *,
    memory: str | int | None = None,
    workers: int | None = None,
    threads: int | None = None,
    cluster: Any = None,
    certificates: str | Path | None = None,
    device: str | None = None,
    device_memory: str | int | None = None,
    max_steps: int | None = None,
    tol: float | None = None,
    low_rank_tol: float | None = None,
    observer: Observer | None = None,
    progress: bool = False,
) -> Solution | StreamSolution | TopicAnswer | LatentAnswer:
    """
    Go on with the run in ``store`` from its last commit; a finished one answers without a pass.

    The store of a stream takes what is new since its last commit; only ``memory`` may be given. That of a job (topics,
    a mixture, independent components) goes on with its stages.

    Parameters
    ----------
    store : str or Path
        Folder or URL of the run.
    memory : str or int, optional
        Limit for all processes, like "1GiB". This and the next six stay what they were unless given; none but
        ``device`` changes a bit of the result.
    workers : int, optional
        Processes. A cluster takes the place of workers and threads, and the other way round.
    threads : int, optional
        Threads of each process.
    cluster : str, Path, distributed.Client or cluster object, optional
        As for :func:`top_k`; "": none.
    certificates : str or Path, optional
        Of a cluster at ``tls://``; they go with it.
    device : {"cpu", "auto", "cuda"}, optional
        As for :func:`top_k`. A run that began on a GPU goes on anywhere, and says so: its last bits may be others.
    device_memory : str or int, optional
        As for :func:`top_k`.
    max_steps : int, optional
        Passes to make at most. This and the next two may be changed: they decide when a run stops, not what its
        steps are.
    tol : float, optional
        Relative residual to reach.
    low_rank_tol : float, optional
        How much more than the least may be left over.
    observer : Observer, optional
        Told of plan, passes and steps.
    progress : bool, default False
        Show how far it is and how long it takes: on stderr, or below the cell of a notebook.

    Returns
    -------
    Solution, StreamSolution, TopicAnswer or LatentAnswer
        What the first call of the run would have returned.

    Raises
    ------
    BadInputError
        There is no run in ``store``, or its source is gone.
    RefusedError
        Too little memory, changed data, or a run held by another process.

    See Also
    --------
    top_k : Begin a run.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask, zarr
    >>> rows = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     zarr.save(folder + "/rows.zarr", rows)
    ...     first = npmdask.top_k(folder + "/rows.zarr", 3, kind="samples", store=folder + "/run", max_steps=1)
    ...     second = npmdask.resume(folder + "/run", max_steps=100)
    >>> first.converged, second.converged
    (False, True)
    """
    path = folder_of(store)
    if not (path / "run.json").exists():
        raise BadInputError(f"there is no run in {store}; start one with `npmdask run CONFIG.toml --store {store}`")
    spec = RunStore(path).read_spec() or {}
    asked = {
        "memory": memory,
        "workers": workers,
        "threads": threads,
        "cluster": scheduler_of(cluster),
        "certificates": certificates,
        "device": device,
        "device_memory": device_memory,
        "max_steps": max_steps,
        "tol": tol,
        "low_rank_tol": low_rank_tol,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    kind = kind_of(spec)
    if not given.keys() <= kind.may_change:
        raise BadInputError(kind.refusal(path))
    with with_progress(observer, progress) as told:
        answer: Solution = kind.resume(path, given, told)
    return answer


def private_components(store: str | Path, k: int, *, columns: Sequence[int] | None = None) -> Solution:
    """
    Get the leading components of a covariance that a private run released: any number, of any columns.

    All of it is post-processing of that one release. The data, the ledger and the key of the noise are not touched, and
    nothing is charged: the run has paid for every answer that its noisy covariance gives.

    Parameters
    ----------
    store : str or Path
        Folder of a finished private run with ``algorithm="covariance"``.
    k : int
        How many components.
    columns : sequence of int, optional
        Numbers of the columns that are to be analysed, from 0 on; all of them by default.

    Returns
    -------
    Solution
        With a basis of as many rows as there are columns, in their order, and the statement of the release.

    Raises
    ------
    BadInputError
        No finished run, one that released products instead, or columns that were not released.

    See Also
    --------
    top_k : With another k, and the store of the finished run, the same, for all columns.

    Notes
    -----
    Dwork, Talwar, Thakurta and Zhang, Analyze Gauss, STOC 2014, Algorithm 1.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask
    >>> from npmdask.cli.main import main
    >>> rows = np.random.default_rng(0).standard_normal((20000, 6)) * [0.5, 0.3, 0.1, 0.1, 0.1, 0.1]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     people, ledger = f"{folder}/people.zarr", f"{folder}/ledger.sqlite"
    ...     np.save(f"{folder}/people.npy", rows)
    ...     assert not main(["ingest", f"{folder}/people.npy", people, "--quiet"])
    ...     assert not main(
    ...         ["ledger", "grant", "people", people, "--relation", "record_replace", "--clip-norm", "1.5"]
    ...         + ["--epsilon", "1", "--delta", "1e-8", "--ledger", ledger]
    ...     )
    ...     promise = npmdask.Privacy(
    ...         epsilon=1,
    ...         delta=1e-8,
    ...         neighboring_relation="record_replace",
    ...         clip_norm=1.5,
    ...         ledger=ledger,
    ...         dataset="people",
    ...     )
    ...     two = npmdask.top_k(people, 2, privacy=promise, algorithm="covariance", store=f"{folder}/run")
    ...     five = npmdask.private_components(f"{folder}/run", 5)
    ...     some = npmdask.private_components(f"{folder}/run", 1, columns=[1, 2, 3])  # doctest: +ELLIPSIS
    /...
    >>> bool(np.allclose(five.basis[:, :2], two.basis)), bool(some.basis[0, 0] > 0.9)
    (True, True)
    """
    path = folder_of(store)
    if not (path / "result").is_dir():
        raise not_finished(path)
    arrays, meta = components_of_covariance(*read_bundle(path / "result"), k, columns)
    statement = meta["statement"]
    return Solution(
        basis=arrays["basis"],
        values=arrays["values"],
        residual_norms=arrays["residual_norms"],
        outcome=Outcome(**meta["outcome"]),
        steps=len(meta["history"]),
        data_passes=0,
        total_data_passes=meta["total_data_passes"],
        bytes_read=None,
        dataset_bytes=None,
        seconds=None,
        peak_rss_bytes=None,
        memory_limit_bytes=None,
        max_sin_theta=None,
        store=str(path),
        fingerprint=None,
        warnings=tuple(statement["warnings"]),
        target_rank=k,
        value_stddevs=arrays["value_stddevs"],
        statement=statement,
        assurance=meta["assurance"],
    )


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

    The power method on A restricted to the complement of what is found (its vectors are locked); the answer
    holds the old and the new components, by falling magnitude, from one Rayleigh-Ritz. Where the finished run formed
    a matrix (``algorithm="gram"`` or ``"row-gram"``), one more such pass finds all of them.

    Parameters
    ----------
    finished : str or Path
        Store of a run that converged.
    more : int
        How many further components.
    store : str or Path
        Store of this run.
    iteration_rank : int, optional
        Columns that are iterated; as for :func:`top_k` by default.
    memory : str or int, optional
        Limit for all processes, like "1GiB".
    workers : int, default 0
        Processes; 0: none but this one.
    threads : int, optional
        Threads of each process.
    device : {"cpu", "auto", "cuda"}, default "cpu"
        As for :func:`top_k`.
    device_memory : str or int, optional
        As for :func:`top_k`.
    observer : Observer, optional
        Told of plan, passes and steps.
    progress : bool, default False
        Show how far it is and how long it takes: on stderr, or below the cell of a notebook.

    Returns
    -------
    Solution
        Of all components, the old and the new ones.

    Raises
    ------
    BadInputError
        ``finished`` holds no answer yet, or there are not so many components.
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
    path = folder_of(finished)
    if "privacy" in (RunStore(path).read_spec() or {}):
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
    resources = Resources(
        memory=parse_memory(memory),
        threads=threads,
        workers=workers,
        device=device,
        device_memory=parse_memory(device_memory),
    )
    with with_progress(observer, progress) as told:
        return solve(problem, store, resources, told)
