"""Principal components under differential privacy, in the manner of scikit-learn.

Nothing is computed here: ``fit`` is a run of ``top_k(..., privacy=Privacy(...))``, and what it keeps is what that run
released. Every array below comes out of the solution; the data are not looked at otherwise, not even for a mean.
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from npmdask.containers.containers import values_of
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.components import AS_RUN
from npmdask.core.runs.driver import solve
from npmdask.core.runs.problem import Request
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import asked_resources
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.estimators.base import in_memory, seed_of
from npmdask.estimators.pca import Components
from npmdask.missing.gaps import Marks, checked_marks
from npmdask.missing.rules import find_gaps
from npmdask.privacy.matrix_release import require_store
from npmdask.privacy.request import Privacy
from npmdask.weights.aspect import find_weights

RELATIONS = ("record_replace", "record_zero_out", "record_add_remove")  # of rows, whose norm row_norm bounds


@dataclass(eq=False, repr=False)
class PrivatePCA(Components):
    """
    Release the principal components of private rows, and charge their budget in the ledger.

    A fit is a private run of :func:`npmdask.top_k`: it spends (epsilon, delta) once, before it reads a row, and the
    budget is never refunded. The same ``store`` returns the same release at no cost; a new store spends again. Rows are
    not centred, because their mean would have to be released too; subtract a public mean when you write them. No mean,
    variance or number of rows is kept, so the corresponding attributes of scikit-learn's PCA are missing. Private rows
    cannot be passed in memory, so cross-validation and scikit-learn's checks that fit arrays are refused.

    Parameters
    ----------
    n_components : int, default 2
        How many (k).
    epsilon : float
        The epsilon that a fit may spend.
    delta : float
        The delta of a fit; well below one over the number of rows.
    row_norm : float
        Public bound on the 2-norm of a row; longer rows are scaled down to it. Do not choose it by looking at the data.
    neighboring_relation : {"record_replace", "record_zero_out", "record_add_remove"}
        Which data sets must be indistinguishable (docs/explanation/private-guarantee.md); no default.
    store : str or Path
        Folder of the run. A killed fit resumes from it without spending again.
    missing : {"refuse", "fill"}, default "refuse"
        "fill": missing values of a store that keeps them count as ``missing_fill``, before rows are shortened
        (docs/howto/private-gaps.md).
    missing_fill : float, array_like, str or Path, shape (d,), optional
        Public: one number, one per column, or the path of an array. Never a statistic of the data.
    missing_values : float or list of float, optional
        Public: numbers that mark missing values, beside NaN, like -9999.
    column_weights : array_like, str or Path, shape (d,), optional
        Public weights of columns, as in :class:`npmdask.PCA`; ``row_norm`` bounds the weighted rows.
    max_steps : int, optional
        Number of noisy products that the private power method releases. By default the covariance is released once,
        unless public numbers predict that the power method captures more; they then also give this number
        (docs/explanation/planning.md).
    ledger : str, optional
        File or database URL of the budgets; by default ``NPMDASK_LEDGER`` or a file of the user.
    dataset : str, optional
        Name of the data set in the ledger; the path of the data by default.
    memory : str or int, optional
        Limit for the fit, like "1GiB"; by default none.
    random_state : int, RandomState or None, default None
        Seed of the public start, not of the noise, whose key is secret. None uses a fixed seed.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Attributes
    ----------
    components_ : numpy.ndarray, shape (k, d)
        Orthonormal rows, as released; the entry of largest size in each is positive.
    values_ : numpy.ndarray, shape (k,)
        Mean squares of the scaled-down rows along the components, not centred, as released. Sums with
        "record_add_remove", which keeps the number of rows private; singular values for sparse rows.
    value_stddevs_ : numpy.ndarray or None
        Standard deviations of the noise on ``values_``, where they are known.
    statement_ : dict
        Public statement of who is protected, and what the release cost.
    n_components_, n_features_in_ : int
        k and d.

    See Also
    --------
    npmdask.Privacy : Further options of a private run, for ``npmdask.top_k``.

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
    ...     private = npmdask.PrivatePCA(
    ...         2,
    ...         epsilon=1.0,
    ...         delta=1e-8,
    ...         row_norm=1.5,
    ...         neighboring_relation="record_replace",
    ...         store=f"{folder}/run",
    ...         ledger=ledger,
    ...         dataset="people",
    ...     ).fit(people)  # doctest: +ELLIPSIS
    /...
    >>> private.components_.shape, bool(private.components_[0, 0] > 0.9)
    ((2, 6), True)
    """

    n_components: int = 2
    _: KW_ONLY
    epsilon: float
    delta: float
    row_norm: float
    neighboring_relation: str
    store: str | Path
    missing: str = "refuse"
    missing_fill: Any = None
    missing_values: Any = None
    column_weights: Any = None
    max_steps: int | None = None
    ledger: str | None = None
    dataset: str | None = None
    memory: str | int | None = None
    random_state: Any = None
    progress: bool = False

    def fit(self, X: Any, y: Any = None) -> Self:
        """
        Release the components and spend (epsilon, delta), unless ``store`` already holds this release.

        Parameters
        ----------
        X : str, Path or zarr.Array, shape (n, d)
            Ingested rows that have a budget; a budget is bound to their content.
        y : None
            Ignored; it is there for pipelines.

        Returns
        -------
        PrivatePCA
            This object.

        Raises
        ------
        BadInputError
            The rows were not ingested, or a parameter is wrong: nothing was spent.
        BudgetError
            The budget is too small: nothing was spent.
        RefusedError
            The noise would bury every component, or ``store`` belongs to another run.
        """
        if in_memory(values_of(X)):
            raise BadInputError(
                "private rows cannot come from memory, because their budget belongs to ingested data: run `npmdask "
                "ingest` and `npmdask ledger grant`, and give the path of the store"
            )
        if self.neighboring_relation not in RELATIONS:
            raise BadInputError(
                f"neighboring_relation = {self.neighboring_relation!r}: for rows use one of {', '.join(RELATIONS)}; "
                "for others use npmdask.top_k(..., privacy=npmdask.Privacy(...))"
            )
        if self.store is None:
            raise BadInputError(
                "store = None: name a folder. The budget that a fit spends cannot be refunded, and only its store "
                "can resume it"
            )
        promise = Privacy(
            clip_norm=self.row_norm,
            **attributes(self, "epsilon", "delta", "neighboring_relation", "ledger", "dataset"),
        )
        require_store(X)
        opened = open_source(X, exact=False)
        gaps = find_gaps(**attributes(self, "missing", "missing_fill", "missing_values"))
        weights = find_weights(opened, X, None, self.column_weights)
        request = Request(
            target_rank=self.n_components,
            privacy=promise,
            max_steps=self.max_steps,
            aspects=(gaps, weights),
            seed=seed_of(self.random_state),
        )
        resources = asked_resources(self.memory)
        problem = posed(request, opened, resources, self.store)
        with with_progress(None, self.progress) as told:
            released = solve(problem, self.store, resources, told)
        for said in released.warnings:
            warnings.warn(said, RuntimeWarning, stacklevel=2)
        # Functions of the release alone, from here on.
        self.components_ = np.ascontiguousarray(released.basis.T)
        self.values_, self.value_stddevs_ = released.values, released.value_stddevs
        self.statement_ = released.statement
        self._column_weight = None if weights is None else weights.columns
        self.n_components_, self.n_features_in_ = self.components_.shape
        return self

    @property
    def _marks(self) -> Marks:
        return checked_marks(self.missing_values)

    def transform(self, X: Any, *, missing: str = AS_RUN) -> Block:
        """
        Get the scores of rows along the released components; scores of private rows are not protected.

        Parameters
        ----------
        X : array_like, sparse matrix, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, in memory, lazy, or the path or URL of a store. For rows that have a budget it warns.
        missing : {"as-run", "least-squares"}, default "as-run"
            Rows with missing values (NaN) are refused, or their scores are fitted to what is observed: see
            :meth:`npmdask.Solution.scores`.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Scores, in memory, without noise.

        Raises
        ------
        BadInputError
            Rows of another width, or before ``fit``.
        """
        self._require_fit()
        return super().transform(X, missing=missing)
