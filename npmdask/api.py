"""The Python interface: ``top_k``. The command line and flows end in the same driver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npmdask.core.aspects import Aspect, asked
from npmdask.core.execution.reduction import COMMIT_SECONDS
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.driver import solve
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Request
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import asked_resources
from npmdask.core.runs.restore import find_start
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.source import open_source

if TYPE_CHECKING:
    from npmdask.privacy.request import Privacy


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
    aspects: Sequence[Aspect] = (),
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
        ``LinearOperator`` of SciPy, which is only asked for products (docs/howto/lazy.md). Dense rows may be complex
        (docs/howto/complex.md).
        Values of a Zarr array are decoded by the CF conventions (scale_factor, add_offset, _FillValue, ...), as
        xarray does; missing values, also masked ones, are treated as ``missing`` says.
    k : int, float or "auto"
        Number of components, 1 <= k <= min(m, d). A float strictly between 0 and 1 is the share of the variance to
        explain (of the trace of the operator; for a matrix, of the sum of squares); k is then searched for. "auto",
        with ``missing="em"``, takes the number that best predicts held-out entries (docs/howto/missing.md).
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
        path may say the same: ``"x.csv?leave_out=id,date"``, wherever one is taken (docs/tutorials/tour.md).
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
        samples. ``Solution.missing`` has the numbers of missing values (docs/howto/missing.md). "fill", for private
        runs: a gap counts as a public number before records are clipped, and the number of gaps is not revealed
        (docs/howto/private-gaps.md).
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
        measured if that is worth its time; otherwise "krylov", and "power" with noise (docs/explanation/passes.md). A
        resumed run keeps its algorithm. With
        ``privacy``, "covariance" (released once, whole, for every number of components) or "power", where "auto" is the
        one that public numbers predict to capture more (docs/explanation/planning.md); also "k-dp-pca", "k-dp-ojas" and
        "k-dp-power" (private oracles of records, one direction after the other: docs/papers/kdppca.md).
    options : dict, optional
        Parameters of k-dp-pca and its relatives, such as ``{"variant": "tight", "steps": 8}``. For "krylov":
        ``basis_blocks`` (number of blocks of products that are kept, 2 or more) and ``precision`` ("mixed": dense
        float32 data are first multiplied in float32; or "float64"). For "power" on sparse data: ``{"blocks": "disk"}``
        (blocks lie in the folder of the run: docs/explanation/passes.md); in private runs, also of nodes,
        ``{"answer": "last"}`` (vectors of the last release, as in the paper, not of all). For "power", also private:
        ``{"momentum": "auto"}`` or a share of the k-th value, below which values are damped alike: fewer steps where
        they fall slowly. By default they are chosen from the shape, the tolerance and the memory, and kept in the
        store.
    memory : str or int, optional
        Limit for all processes of the run together, like "1GiB" or a number of bytes; checked before the first pass. By
        default none.
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
        Name of your own operator, instead of that of the data: see :func:`register_operator`.
    row_weights : array_like, DataArray, str or Path, shape (m,), optional
        Weight of each row, not negative: 2 counts like two equal rows, 0 like none. Means, deviations and covariances
        are weighted as well. Also the name of a coordinate of the data, or the path of an array (.npy or Zarr). No
        weighted copy is made (docs/howto/weights.md).
    column_weights : array_like, DataArray, str or Path, shape (d,), optional
        Weights of the squares in the inner product of rows, such as areas of grid cells; entries are multiplied by
        their square roots. A name or path as for ``row_weights``, or "coslat": cosines of the latitudes of labelled
        data. ``Solution.patterns`` are in the units of the data.
    aspects : sequence of Aspect, optional
        How the question sees the data besides, by objects of other packages: :class:`npmdask.core.aspects.Aspect`.
    workers : int, default 0
        Worker processes; 0 uses only this one. Like the next two, it changes no bit of the result.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    cluster : str, Path, distributed.Client or cluster object, optional
        Cluster whose workers compute the products instead: the address of a Dask scheduler (``tcp://host:8786``), the
        path of the JSON file that it wrote, "current" for the client of this program, a client (which stays open), or
        an object with a ``scheduler_address`` (LocalCluster, SLURMCluster, ...: docs/howto/clusters.md).
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
        Seconds between two commits (sums so far, written to ``store``) within a pass: the most that a kill costs, in
        addition to the tasks in progress.
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
        from npmdask.privacy.matrix_release import require_store

        require_store(source)
    opened = open_source(
        source, kind, dim, spill, gaps=missing != "refuse", of_complex=True, columns=columns, exact=privacy is None
    )
    keywords = {"row_weights": row_weights, "column_weights": column_weights, "missing": missing}
    keywords |= {"missing_fill": missing_fill, "missing_values": missing_values, "missing_limit": missing_limit}
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
        operator=operator,
        aspects=(*asked(opened, source, keywords), *aspects),
    )
    resources = asked_resources(memory, threads, workers, cluster, certificates, commit_seconds, device, device_memory)
    problem = posed(request, opened, resources, store, begun)
    with with_progress(observer, progress) as told:
        return solve(problem, store, resources, told)


def __getattr__(name: str) -> Any:
    """Find what lay here before it went to its feature."""
    import npmdask

    if name not in npmdask.LATER:
        raise AttributeError(f"module 'npmdask.api' has no attribute {name!r}")
    return getattr(npmdask, name)
