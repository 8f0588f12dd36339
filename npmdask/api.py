"""The Python interface: ``top_k`` and what follows it. The command line and flows end in the same driver."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npmdask.algorithms.stopping import Outcome
from npmdask.checkpoint.rights import allow as allow_urls
from npmdask.checkpoint.store import RunStore, folder_of, no_run, not_finished
from npmdask.errors import BadInputError, RefusedError
from npmdask.execution.executor import scheduler_of
from npmdask.execution.reduction import COMMIT_SECONDS
from npmdask.manage.kinds import kind_of
from npmdask.models.dilation import Triplets, dilated, triplets_of
from npmdask.planning.plan import posed
from npmdask.planning.predicted_steps import drive
from npmdask.privacy.matrix_release import components_of_covariance, require_store
from npmdask.privacy.request import Privacy
from npmdask.runs.build import make_problem
from npmdask.runs.gram_parts import GramRequest, RowGroups, labels_called
from npmdask.runs.gram_store import GramStore, form_gram
from npmdask.runs.missing import find_fill
from npmdask.runs.observers import Observer
from npmdask.runs.problem import Locked, Problem, Request
from npmdask.runs.progress import with_progress
from npmdask.runs.resources import Resources, asked_resources
from npmdask.runs.restore import find_start, identity_of, locked_result, problem_of
from npmdask.runs.solution import WITHOUT_PASS, Solution, TemporaryStore
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
    columns: Any = None,
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
        rows, a SciPy sparse matrix, a table of pandas, Polars or PyArrow, an ``xarray.DataArray``, an AnnData. Without
        loading all of it: an array or DataFrame of Dask, a lazy DataArray, a memory map, a dataset of h5py, a backed
        AnnData, whose rows are computed or read a block at a time in every pass; a session of icechunk; a
        ``LinearOperator`` of SciPy, which is only asked for products (docs/lazy.md). Dense rows may be complex
        (docs/complex.md).
        Values of a Zarr array are decoded by the CF conventions (scale_factor, add_offset, _FillValue, ...), as
        xarray does; missing values, also masked ones, are treated as ``missing`` says.
    k : int, float or "auto"
        Number of components, 1 <= k <= min(m, d). A float strictly between 0 and 1 is the share of the variance to
        explain (of the trace of the operator; for a matrix, of the sum of squares); k is then searched for. "auto",
        with ``missing="em"``, takes the number that best predicts held-out entries (docs/missing.md).
    kind : {"samples", "symmetric", "matrix", "sparse", "matrices"}, optional
        What to compute: eigenpairs of ``X^T X / m`` ("samples"), eigenpairs of a symmetric (complex: Hermitian) matrix,
        singular triplets of a dense or singular pairs of a CSR matrix, or eigenpairs of the mean of matrices (private
        oracles of records). By default the kind recorded in the store, or else "matrix".
    dim : str or int, optional
        The dimension along which rows lie, for an array of xarray (name), Dask or NumPy (number). All others together
        form a row, so d is the product of their sizes.
    columns : list of str, "numeric" or dict, optional
        Columns of a table (a data frame, an AnnData, CSV, Parquet) to analyse: names, "numeric" (integers and floats
        only), or ``{"only": ..., "leave_out": [...]}``. By default all, but for an index that was stored with them. A
        path may say the same: ``"x.csv?leave_out=id,date"``, wherever one is taken (docs/tour.md).
    spill : str or Path, optional
        For sources that are computed (Dask, lazy xarray): a folder to which the first pass writes the rows, compressed,
        so that later passes can read them. It is not deleted. By default every pass computes the rows again.
    center : bool, default False
        Subtract the column means.
    scale : bool, default False
        Divide by the standard deviations of the columns (those of the population).
    missing : {"refuse", "drop-columns", "mean", "em", "pairwise", "fill"}, default "refuse"
        Treatment of missing values (NaN; CF fill values) of samples and dense matrices, without a filled copy.
        "drop-columns": columns without any value are left out; gaps in other columns are refused. "mean": a gap counts
        as the mean of the observed values of its column. "em": a factor model is fitted to the observed values, by
        passes of EM (``options={"held_out": share}``: share of the entries that measure the fit, 0.02). "pairwise":
        each covariance uses the rows that have both columns. These three need ``center``, and the last two need
        samples. ``Solution.missing`` has the numbers of missing values (docs/missing.md). "fill", for private runs: a
        gap counts as a public number before records are clipped, and the number of gaps is not revealed
        (docs/private-gaps.md).
    missing_fill : float, array_like, str or Path, shape (d,), optional
        That number, or one per column, or the path of an array (.npy or Zarr). Public, never a statistic of the data.
    missing_values : float or list of float, optional
        Numbers that mark missing values in the data, in addition to NaN, such as -9999.
    missing_limit : float, optional
        With "mean": leave out columns that lack more than this share of their values, counted in an additional pass.
    iteration_rank : int or "auto", optional
        Number of columns of the block (p); by default ``max(k + 10, min(2 k, 64))``. "auto": as many as cost no
        additional time on this machine and store, measured once (at most 5 s); a resumed run keeps its p.
    algorithm : str, default "auto"
        "gram" (A^T A is formed in one pass, where d x d numbers fit), "row-gram" (A A^T of fewer rows than columns is
        formed, and a second pass gives the components), "krylov" (restarted block Krylov, a third of the passes of
        subspace iteration on slow spectra), "power" (the noisy power method, the only one for noise), or "auto". For
        data from 16 MiB on "auto" is the faster of "krylov" and the matrix of the smaller side, by their shape, or
        measured if that is worth its time; otherwise "krylov", and "power" with noise (docs/passes.md). A resumed run
        keeps its algorithm. With
        ``privacy``, "covariance" (released once, whole, for every number of components) or "power", where "auto" is the
        one that public numbers predict to capture more (docs/planning.md); also "k-dp-pca", "k-dp-ojas" and
        "k-dp-power" (private oracles of records, one direction after the other: docs/kdppca.md).
    options : dict, optional
        Parameters of k-dp-pca and its relatives, such as ``{"variant": "tight", "steps": 8}``. For "krylov":
        ``basis_blocks`` (number of blocks of products that are kept, 2 or more) and ``precision`` ("mixed": dense
        float32 data are first multiplied in float32; or "float64"). For "power" on sparse data: ``{"blocks": "disk"}``
        (blocks lie in the folder of the run: docs/passes.md); in private runs, also of nodes, ``{"answer": "last"}``
        (vectors of the last release, as in the paper, not of all). For "power", also private: ``{"momentum": "auto"}``
        or a share of the k-th value, below which values are damped alike: fewer steps where they fall slowly. By
        default they are chosen from the shape, the tolerance and the memory, and kept in the store.
    memory : str or int, optional
        Limit for all processes of the run together, like "1GiB" or a number of bytes; checked before the first pass.
    tol : float, optional
        Relative residual to reach, ``||A v - theta v|| <= tol |theta|``; 1e-9, or 1e-6 for float32 data, by default.
    low_rank_tol : float, optional
        Also stop once the certificate shows that the residual of the k components is at most ``1 + low_rank_tol`` times
        the smallest residual of any k components (for a matrix ``||A - A V V^T||``, for samples the variance in any
        direction). This can take a few passes where, without a gap, the components themselves take hundreds. By default
        the components must converge.
    max_steps : int, optional
        Maximum number of passes, by default 200; then the run stops as not converged ("row-gram" takes two, whatever it
        is). For a private run: the number of releases of the private power method; by default the method and this
        number are chosen from public numbers.
    store : str or Path, optional
        Folder of the run, or a URL in an object store (``s3://bucket/name``). A killed run resumes from it, and a
        finished one returns its result without a pass. By default a temporary folder, which for a matrix holds the left
        singular vectors (m x k float64) until the solution is deleted.
    seed : int, default 0
        Seed of the random start block.
    start : str or Path, optional
        Folder of an earlier run (other k, tolerance, iteration_rank, or rows) from whose vectors this one starts. It
        saves passes; the tolerance is the same.
    mechanism : {"none", "gaussian"}, default "none"
        "gaussian" adds N(0, stddev^2) to every product. This is a simulation and not private.
    stddev : float, default 0.0
        Standard deviation of that noise, in the units of the product.
    privacy : Privacy, optional
        Makes the run a differentially private release. It needs a ``store``, and a budget granted in the ledger
        (``npmdask ledger grant``).
    operator : str, optional
        Name of your own operator, instead of that of the data: see :func:`npmdask.runs.problem.register_operator`.
    row_weights : array_like, DataArray, str or Path, shape (m,), optional
        Weight of each row, not negative: 2 counts like two equal rows, 0 like none. Means, deviations and covariances
        are weighted as well. Also the name of a coordinate of the data, or the path of an array (.npy or Zarr). No
        weighted copy is made (docs/weights.md).
    column_weights : array_like, DataArray, str or Path, shape (d,), optional
        Weights of the squares in the inner product of rows, such as areas of grid cells; entries are multiplied by
        their square roots. A name or path as for ``row_weights``, or "coslat": cosines of the latitudes of labelled
        data. ``Solution.patterns`` are in the units of the data.
    workers : int, default 0
        Worker processes; 0 uses only this one. Like the next two, it changes no bit of the result.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    cluster : str, Path, distributed.Client or cluster object, optional
        Cluster whose workers compute the products instead: the address of a Dask scheduler (``tcp://host:8786``), the
        path of the JSON file that it wrote, "current" for the client of this program, a client (which stays open), or
        an object with a ``scheduler_address`` (LocalCluster, SLURMCluster, ...: docs/clusters.md).
    certificates : str or Path, optional
        For an address at ``tls://host:8786``: a folder with ca.pem, cert.pem and key.pem; by default those in Dask's
        configuration. Clients and cluster objects have their own.
    device : {"cpu", "auto", "cuda"}, default "cpu"
        Where sums over the rows are computed: "cuda" is an NVIDIA GPU, through CuPy or PyTorch; "auto" uses one where
        the run ends sooner with it. The last bits differ from those of the processor, and are the same every time
        (docs/howto/gpu.md).
    device_memory : str or int, optional
        Limit for the memory of the GPU, for each process; by default most of what is free.
    commit_seconds : float, default 30.0
        Seconds between two commits within a pass: the most that a kill costs, in addition to the tasks in progress.
    observer : Observer, optional
        Called for the plan, and for every pass and step.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    Solution
        Vectors, values, bounds on their errors, and what they cost.

    Raises
    ------
    BadInputError
        Data or parameters are wrong; the message says what to do.
    RefusedError
        Too little memory, a store of another run, or a run held by another process.

    See Also
    --------
    resume : Resume a run that was killed or did not converge.
    deflate : Find further components of a finished run.
    stream_pca : For rows that are read once.

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
    opened = open_source(
        source, kind, dim, spill, gaps=missing != REFUSE, of_complex=True, columns=columns, exact=privacy is None
    )
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
    resources = asked_resources(memory, threads, workers, cluster, certificates, commit_seconds, device, device_memory)
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
    Compute the k leading singular triplets of a stored matrix, including very small ones, from its dilation.

    :func:`top_k` works with ``A^T A``, which loses singular values below 1e-8 of the largest. The dilation keeps them,
    but needs twice as many columns.

    Parameters
    ----------
    source : str, Path, zarr.Array, zarr.Group or array_like, shape (m, n)
        As for :func:`top_k`: dense or CSR. Samples are used as they are stored.
    k : int
        Number of triplets, 1 <= k <= min(m, n).
    kind : {"samples", "matrix", "sparse"}, optional
        As for :func:`top_k`.
    dim : str or int, optional
        As for :func:`top_k`.
    iteration_rank : int, optional
        Number of columns of the block (p), 2 k <= p <= m + n; by default ``max(2 k + 10, min(4 k, 64))``.
    algorithm : {"auto", "krylov", "power"}, default "auto"
        "auto" is "krylov". The certificate of "power" bounds what a random start can have missed.
    tol : float, optional
        Relative residual of every pair, ``||D x - theta x|| <= tol |theta|``; 1e-9, or 1e-6 for float32 data, by
        default. Rounding limits it to a few times 1e-16 sigma_1 / sigma_i: with a smaller tolerance the run stops there
        and says so.
    max_steps : int, optional
        Maximum number of passes, by default 200; then the run stops as not converged.
    seed : int, default 0
        Seed of the random start block.
    store : str or Path, optional
        Folder of the run, or a URL. To resume a killed run, call this again with the same store.
    memory : str or int, optional
        Limit for all processes of the run together, like "1GiB" or a number of bytes.
    workers : int, default 0
        Worker processes; 0 uses only this one.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    commit_seconds : float, default 30.0
        Seconds between two commits within a pass.
    observer : Observer, optional
        Called for the plan, and for every pass and step.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    Triplets
        ``values`` (k), ``left`` (m x k), ``right`` (n x k), their ``residual_norms``, and the ``solution`` of the run
        on the dilation.

    Raises
    ------
    BadInputError
        The data have no rows and columns, or the numbers do not fit them.
    RefusedError
        Too little memory, a store of another run, or a run held by another process.

    See Also
    --------
    top_k : With half the columns, if small singular values do not matter.

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
    resources = asked_resources(memory, threads, workers, commit_seconds=commit_seconds)
    with with_progress(observer, progress) as told:
        return triplets_of(solve(problem, store, resources, told), opened.shape[0], k)


def gram(
    source: Any,
    store: str | Path,
    *,
    kind: str | None = None,
    dim: str | int | None = None,
    columns: Any = None,
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
    Form the Gram matrix of all columns in one pass and keep it, so that later questions about them read no rows.

    Called again after rows were appended, it reads only those. A call that was killed resumes within its pass.

    Parameters
    ----------
    source : str, Path, zarr.Array, zarr.Group, array_like, sparse matrix, Dask array or table, shape (m, d)
        As for :func:`top_k`.
    store : str or Path
        Folder or URL to keep it in; about ``4 d^2`` bytes for each Gram matrix.
    kind : {"samples", "matrix", "sparse"}, optional
        As for :func:`top_k`.
    dim : str or int, optional
        As for :func:`top_k`.
    columns : list of str, "numeric" or dict, optional
        As for :func:`top_k`.
    by_chunks : int, optional
        Number of rows of chunks for each Gram matrix: groups of rows that a jackknife can leave out. By default one for
        all rows.
    groups : sequence or str, optional
        A label for each row (m), or the name of a column of ``obs`` of an AnnData or of a coordinate of the rows. Each
        label gets its own Gram matrix, all from the same pass; any of them can be used, left out or removed. Dense
        rows only. Labels are compared as text; a row without one (None, NaN, "") is refused.
    precision : {"float64", "float32"}, default "float64"
        Precision of the products of tiles, which are added up in float64. float32 takes half the arithmetic, and
        certifies 1e-6 only in about half of all cases: its error is measured in the same pass and included in every
        bound.
    seed : int, default 0
        Seed of the probes that measure this error; Gram matrices with the same seed can be merged.
    memory : str or int, optional
        Limit for all processes together, like "1GiB"; checked before the pass.
    workers : int, default 0
        Worker processes; 0 uses only this one. Like the next two, it changes no bit of the result.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    cluster : str, Path, distributed.Client or cluster object, optional
        As for :func:`top_k`.
    certificates : str or Path, optional
        As for :func:`top_k`.
    commit_seconds : float, default 30.0
        Seconds between two commits within a pass.
    observer : Observer, optional
        Called for the plan and for every pass.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    GramStore
        The open store; ``rows_read`` and ``bytes_read`` are those of this call.

    Raises
    ------
    BadInputError
        The data have no such Gram matrix, or values that are not finite or too large.
    RefusedError
        Too little memory; a store of other data; or rows that were changed instead of appended.

    See Also
    --------
    top_k : Accepts the store as its source.
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
    opened = open_source(source, kind, dim, columns=columns)
    resources = asked_resources(memory, threads, workers, cluster, certificates, commit_seconds)
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
    allow: str | Sequence[str] = (),
    observer: Observer | None = None,
    progress: bool = False,
) -> Solution | StreamSolution | TopicAnswer | LatentAnswer:
    """
    Resume the run in ``store`` from its last commit; a finished run returns its result without a pass.

    For a stream, this processes the rows that are new since its last commit; only ``memory`` may be given. A job
    (topics, a mixture, independent components) continues with its stages.

    Parameters
    ----------
    store : str or Path
        Folder or URL of the run.
    memory : str or int, optional
        Limit for all processes, like "1GiB". This and the next six keep their earlier values unless given; none but
        ``device`` changes a bit of the result.
    workers : int, optional
        Worker processes. A cluster replaces workers and threads, and vice versa.
    threads : int, optional
        Threads of each process.
    cluster : str, Path, distributed.Client or cluster object, optional
        As for :func:`top_k`; "" for none.
    certificates : str or Path, optional
        Certificates of a cluster at ``tls://``.
    device : {"cpu", "auto", "cuda"}, optional
        As for :func:`top_k`. A run that began on a GPU continues anywhere, and says so: its last bits may differ.
    device_memory : str or int, optional
        As for :func:`top_k`.
    max_steps : int, optional
        Maximum number of passes. This and the next two may be changed, because they decide when a run stops, not what
        its steps compute.
    tol : float, optional
        Relative residual to reach.
    low_rank_tol : float, optional
        Tolerance for the residual of a rank-k approximation, as for :func:`top_k`.
    allow : str or sequence of str, optional
        URLs of data, ledgers or runs that the run names and may open. A run that began here, as this user, needs none;
        one that was sent or moved does, once: a store alone does not decide what is opened over the network.
    observer : Observer, optional
        Called for the plan, and for every pass and step.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    Solution, StreamSolution, TopicAnswer or LatentAnswer
        The return value of the call that began the run.

    Raises
    ------
    BadInputError
        There is no run in ``store``, or its source is gone.
    RefusedError
        Too little memory, changed data, or a run held by another process.

    See Also
    --------
    top_k : Start a run.

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
        raise no_run(store)
    spec = RunStore(path).read_spec() or {}
    if allow:
        allow_urls([allow] if isinstance(allow, str) else allow, spec, path)
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

    This is post-processing of that one release. The data, the ledger and the key of the noise are not touched, and
    nothing is charged: the run has already paid for everything that its noisy covariance reveals.

    Parameters
    ----------
    store : str or Path
        Folder of a finished private run with ``algorithm="covariance"``.
    k : int
        How many components.
    columns : sequence of int, optional
        Numbers of the columns to analyse, counted from 0; by default all.

    Returns
    -------
    Solution
        Its basis has one row for each of these columns, in their order; it also has the statement of the release.

    Raises
    ------
    BadInputError
        No finished run, one that released products instead, or columns that were not released.

    See Also
    --------
    top_k : With another k and the store of the finished run, the same for all columns.

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
        **WITHOUT_PASS,
        total_data_passes=meta["total_data_passes"],
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

    This runs the power method on A restricted to the orthogonal complement of the components found so far, whose
    vectors are locked. The result holds the old and the new components, in order of decreasing magnitude, from one
    Rayleigh-Ritz step. If the finished run formed a matrix (``algorithm="gram"`` or ``"row-gram"``),
    one more such pass finds all of them.

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
        Limit for all processes, like "1GiB".
    workers : int, default 0
        Worker processes; 0 uses only this one.
    threads : int, optional
        Threads of each process.
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
