"""Small singular values: singular triplets by the dilation of a matrix instead of ``B^T B``, out of core.

Through ``B^T B`` a singular value below about 1e-8 of the largest is lost: its square is below rounding. The dilation
``[[0, B], [B^T, 0]]`` has the values themselves, each with both signs, so that rounding leaves of sigma_i an absolute
error of the order of 1e-16 sigma_1. A run on it is one of the same driver: checkpoints, memory plan, certificate.

The price: blocks of m + n rows instead of n, two columns for a triplet, and steps by the ratio sigma_{k+1} / sigma_k
where those through ``B^T B`` have its square (Hardt and Price 2014, Theorem 2.4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from npmdask.core.algorithms.stopping import DOUBLE_EPS, ResidualRule
from npmdask.core.execution.reduction import COMMIT_SECONDS
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Operator
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.driver import solve
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Problem, Request, default_rank
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import asked_resources
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.source import Source, open_source
from npmdask.dilation.operator import Dilation, SparseDilation
from npmdask.errors import BadInputError

DILATIONS = {"dense": Dilation, "csr": SparseDilation}


@dataclass(frozen=True, kw_only=True)
class DilationOperator:
    """A stored matrix seen as its dilation."""

    kind: ClassVar[str] = "symmetric"
    certified: ClassVar[bool] = True

    def dimension(self, source: Source) -> int:
        return int(sum(source.shape))

    def operator(self, source: Source) -> Operator:
        reader: Any = source.reader
        return DILATIONS[reader.layout](reader=reader)

    def spec(self) -> dict[str, Any]:
        return {"dilation": True}


@dataclass(frozen=True, kw_only=True)
class Triplets:
    """Singular triplets, by falling value: ``B v_i = sigma_i u_i`` and ``B^T u_i = sigma_i v_i``.

    ``values`` (k); ``left`` (m x k) and ``right`` (n x k), columns of length 1, orthogonal to the residual over the
    value; of a value that is 0 to rounding the value is 0 and both columns are. ``residual_norms`` (k): bounds of
    ``(||B v_i - sigma_i u_i||^2 + ||B^T u_i - sigma_i v_i||^2)^(1/2)``. ``solution``: the run on the dilation, whose
    answer are 2 k eigenpairs of both signs, with its outcome, cost and certificate. Residuals below 1e-15 sigma_1 or so
    are those of rounding, theirs and of the comparison.
    """

    values: np.ndarray
    left: Block
    right: Block
    residual_norms: np.ndarray
    solution: Solution


def dilated(source: Source, request: Request, iteration_rank: int | None) -> Problem:
    """The problem of the dilation: 2 k pairs for the k triplets of ``request``; ``iteration_rank`` of their columns.

    Raises
    ------
    BadInputError
        As :func:`npmdask.singular_triplets`.
    """
    stored = source.traits.of_rows and source.reader.layout in DILATIONS
    if not stored or isinstance(request.target_rank, float):
        raise BadInputError(
            "the dilation needs a stored matrix with rows and columns, and a whole number of triplets k: "
            f"{source.path} of kind {source.kind} and k = {request.target_rank!r} do not fit; use npmdask.top_k"
        )
    plain = make_problem(source, request)
    algorithm: Any = plain.algorithm
    k, d = plain.algorithm.target_rank, int(sum(source.shape))
    p = default_rank(2 * k, d) if iteration_rank is None else iteration_rank
    if not 2 * k <= p <= d:
        raise BadInputError(
            f"iteration_rank = {p} applies to the dilation, which has two columns per triplet: give {2 * k} to {d}, or "
            "leave it out"
        )
    return replace(
        plain,
        request=replace(request, target_rank=2 * k, iteration_rank=p),
        algorithm=replace(algorithm, target_rank=2 * k, iteration_rank=p, mixed_precision=False),
        rule=ResidualRule(tol=plain.rule.tol, max_steps=plain.rule.max_steps, d=d),
        derived=DilationOperator(),
    )


def of_one_sign(values: np.ndarray, k: int) -> tuple[np.ndarray, float]:
    """Which of the 2 k pairs with these ``values`` give the k triplets, the largest first, and the sign of theirs.

    Those of positive values, as a rule. But of a singular value that comes several times the 2 k largest in size may be
    mostly negative ones: then these, which give the same triplets with the other sign of v. Of either sign vectors are
    orthonormal, and one of both has k of them, but for zeros.
    """
    least = 4 * DOUBLE_EPS * float(np.abs(values).max(initial=0.0))
    sign = -1.0 if (values < -least).sum() > (values > least).sum() else 1.0
    return np.argsort(-sign * values, kind="stable")[:k], sign


def triplets_of(solution: Solution, m: int, k: int) -> Triplets:
    """The triplets of a finished run on the dilation: of its pairs (theta, x = (u; v)) those of one sign of theta.

    Both parts are brought to length 1.

    Their residual is at most r = ||D x - theta x|| over the shorter length: what of D x - theta x is orthogonal to u
    and v grows by no more. Along them, with -alpha u and beta v (alpha |u|^2 = beta |v|^2, as x is a Ritz vector),
    theta (|u|^2 - |v|^2) = 2 alpha |u|^2, and alpha |u| (|u| - |v|) / (|v| (|u| + |v|)) is left of each.
    """
    leading, sign = of_one_sign(solution.values, k)
    values, vectors = sign * solution.values[leading], solution.basis[:, leading]
    floor = 4 * DOUBLE_EPS * len(vectors) ** 0.5 * np.abs(solution.values).max()  # what the stopping rule takes for 0
    there = values > floor
    left, right = vectors[:m] * there, vectors[m:] * (sign * there)
    lengths = [np.where(there, np.linalg.norm(part, axis=0), 1.0) for part in (left, right)]
    return Triplets(
        values=np.where(there, values, 0.0),
        left=left / lengths[0],
        right=right / lengths[1],
        residual_norms=solution.residual_norms[leading] / np.minimum(*lengths) * there,
        solution=solution,
    )


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

    :func:`top_k` works with ``A^T A``, which loses singular values below 1e-8 of the largest. The dilation D keeps
    them: a symmetric matrix with m + n columns, A and ``A^T`` beside blocks of zeros, whose eigenvalues are the
    singular values of A with both signs.

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
        Limit for all processes of the run together, like "1GiB" or a number of bytes; by default none.
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
