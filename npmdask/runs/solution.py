"""What a run may use, what it tells while it goes, and what it leaves: the nouns of the driver."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.algorithms.stopping import Outcome
from npmdask.checkpoint.store import RunStore, folder_of
from npmdask.errors import BadInputError
from npmdask.execution.memory import ProcessPeak
from npmdask.numerics.subspaces import Block
from npmdask.runs.left_vectors import left_factor


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a run may use. Changes neither the result nor its bits."""

    memory: int | None = None  # bytes, all processes of the run together
    threads: int | None = None  # a process; all usable cores if None
    workers: int = 0  # processes; 0: threads of this process
    cluster: str | None = None  # address of a Dask scheduler, whose workers are used instead
    commit_seconds: float = 30.0  # between two commits inside a pass
    certificates: str | None = None  # folder with ca.pem, cert.pem and key.pem, for a cluster at tls://

    def require_possible(self) -> None:
        """Raise BadInputError for numbers that cannot be, or that do not go together."""
        counts = (self.workers, 1 if self.threads is None else self.threads)
        if not all(isinstance(count, int | np.integer) for count in counts) or counts[0] < 0 or counts[1] < 1:
            raise BadInputError("workers must be at least 0 and threads at least 1, both whole numbers")
        if self.cluster is not None and (self.workers or self.threads):
            raise BadInputError("give either a cluster or workers and threads: a cluster brings its own")
        if self.certificates is not None and self.cluster is None:
            raise BadInputError("certificates are for a cluster at tls://host:port: give that, too, or leave them out")
        if not self.commit_seconds >= 0:
            raise BadInputError(f"commit_seconds = {self.commit_seconds} must be at least 0 (it is a time)")


class TemporaryStore:
    """A folder on disk, for as long as this object: removed when it is collected, or when Python ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="npmdask-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A committed step, for observers."""

    number: int
    values: list[float]
    residual_norms: list[float]
    worst_residual: float
    max_sin_theta: float | None
    precision: str
    bytes_read: int
    chunks: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Solution:
    """
    Hold an answer: vectors, values, how wrong they can be, and what they cost.

    Costs are of this call unless noted. Of a private run what was not released is None (bytes, sizes,
    times, memory, fingerprint). Users get a solution from :func:`top_k`, :func:`resume` or :func:`deflate`.

    Attributes
    ----------
    basis : numpy.ndarray, shape (d, k)
        Orthonormal vectors. Of a tensor: unit vectors that need not be orthogonal.
    values : numpy.ndarray, shape (k,)
        Eigenvalues of ``X^T X / n`` for samples, signed eigenvalues of a symmetric matrix, singular values of a matrix
        (dense or sparse); of a tensor the weights.
    residual_norms : numpy.ndarray, shape (k,)
        ``||A v - theta v||_2`` in the units of the values; for singular pairs ``||A^T u - sigma v||_2``.
    outcome : Outcome
        How the run ended, as a name and a sentence.
    steps : int
        Steps of the whole run.
    data_passes : int
        Times that the data were read.
    total_data_passes : int
        The same of the whole run.
    bytes_read : int or None
        Decoded bytes.
    dataset_bytes : int or None
        Decoded bytes of all data.
    seconds : float or None
        Wall time.
    peak_rss_bytes : int or None
        Largest resident memory of all processes together.
    memory_limit_bytes : int or None
        What was allowed.
    max_sin_theta : float or None
        Sine of the largest angle to the true subspace, where a store knows it (synthetic data).
    store : str
        Folder or URL of the run.
    fingerprint : str or None
        Of the data.
    warnings : tuple of str
        Sentences.
    peak_rss_by_process : tuple of ProcessPeak
        Each process by itself.
    target_rank : int
        Components in the answer: the number found, where a share of the variance was asked for.
    explained_share : float or None
        Of the variance (trace), where that costs no pass.
    value_stddevs : numpy.ndarray or None
        Of a private run: what the noise does to each value.
    statement : dict or None
        Of a private run: what was promised and what it cost.
    facts : dict
        Of a tensor: the ``status`` of each component and the ``relative_residual`` of the whole.
    assurance : str
        How wrong the answer can be, in a sentence for everybody.
    certificate : dict or None
        The same in numbers, where there is one (docs/certificates.md).
    prediction : dict
        How many steps had been predicted.
    temporary_store : TemporaryStore or None
        Keeps the folder of a run that was given none.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> solution = npmdask.top_k(np.diag([3.0, 2.0, 1.0]), 1)
    >>> print(solution.values, solution.outcome.name)
    [3.] converged
    """

    basis: Block
    values: np.ndarray
    residual_norms: np.ndarray
    outcome: Outcome
    steps: int
    data_passes: int
    total_data_passes: int
    bytes_read: int | None
    dataset_bytes: int | None
    seconds: float | None
    peak_rss_bytes: int | None
    memory_limit_bytes: int | None
    max_sin_theta: float | None
    store: str
    fingerprint: str | None
    warnings: tuple[str, ...] = ()
    peak_rss_by_process: tuple[ProcessPeak, ...] = ()
    target_rank: int = 0
    explained_share: float | None = None
    value_stddevs: np.ndarray | None = None
    statement: dict[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    assurance: str = ""
    certificate: dict[str, Any] | None = None
    prediction: dict[str, Any] = field(default_factory=dict)
    temporary_store: TemporaryStore | None = field(default=None, repr=False, compare=False)

    @property
    def converged(self) -> bool:
        """Every component reached the tolerance."""
        return self.outcome.converged

    @property
    def answered(self) -> bool:
        """Converged, as little left over as was asked for, or all released that a private run was to release."""
        return self.outcome.answered

    def left_basis(self) -> Block:
        """
        Read the left singular vectors from the store (``kind = "matrix"`` only).

        Of a run without a store they lie in a temporary folder (m x k float64 on disk) until the solution is gone.

        Returns
        -------
        numpy.ndarray, shape (m, k)
            In memory.

        Raises
        ------
        BadInputError
            The run was of no matrix, or has not answered.
        """
        return left_factor(self.store)

    @property
    def low_rank_factors(self) -> tuple[Block, Block] | None:
        """Read X and Y, p columns each, from the store: released, and X Y^T is close to the matrix of the question.

        X (orthonormal) is the last block that was multiplied, Y its product with noise (Hardt and Price 2014,
        Corollary 4.3; with Laplace noise 4.7). The matrix is the second moment of samples, the symmetric one itself,
        A^T A of a sparse A, and A where both sides are released. None of a run without private power iterations.
        """
        part = RunStore(folder_of(self.store)).read_part("result")
        arrays = {} if part is None else part[0]
        return (arrays["factor_left"], arrays["factor_right"]) if "factor_left" in arrays else None
