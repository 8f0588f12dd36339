"""A model that is fed by hand: ``partial_fit``, ``transform``, and a bundle on disk in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from scipy.sparse import issparse

from npmdask.core.algorithms import StreamInfo, StreamResult
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.components import AS_RUN, LEAST_SQUARES, StoredComponents, require_rule
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.progress import with_progress
from npmdask.core.storage.bundle import write_bundle
from npmdask.core.storage.kinds import real_array
from npmdask.core.storage.paths import local_path
from npmdask.errors import BadInputError, require
from npmdask.estimators.base import TRANSFORMER, Estimator, NotFittedError, in_memory, weighed
from npmdask.missing.gaps import unmarked
from npmdask.streaming.algorithms.model import IMPUTE, REFUSE, Model, ModelState
from npmdask.streaming.metrics import HeldOut, Measurement, last_step, measure_model
from npmdask.streaming.problem import BATCH_ROWS, StreamRequest, make_model
from npmdask.streaming.solution import read_model
from npmdask.streaming.source import Reading, open_stream, weights_of


@dataclass(eq=False, repr=False)
class StreamingPCA(*TRANSFORMER, Estimator):  # type: ignore[misc]
    """
    Learn the k leading principal directions of rows that arrive in batches, in memory O(d (k + batch)).

    The same batches give the same bits. If a batch is refused, the model does not change.

    Parameters
    ----------
    target_rank : int, default 2
        Directions (k).
    algorithm : str, default "spm"
        "spm" (the streaming power method), "oja", "msg", "rmsg", "mb-msg", "mb-rmsg" or "frequent-directions";
        docs/howto/streaming.md says which to choose. "online-tensor-power" finds components of the third moment
        instead: ``basis`` are those found so far (d x j, j <= k), ``values`` their weights.
    options : dict, optional
        Further parameters of the algorithm, such as ``{"gap": 0.1}`` (docs/howto/streaming.md).
    half_life : float, optional
        Number of rows after which a row counts half, for streams that drift; by default all rows count fully.
    center : bool, default False
        Subtract the mean of the rows, which is estimated on the way.
    unit : float, optional
        Typical norm of a row, for algorithms with a step size; by default that of the first batch.
    seed : int, default 0
        Seed of the random start.
    missing : {"refuse", "impute"}, default "refuse"
        "impute": missing values (NaN) are replaced by what the model so far expects, given the observed values of the
        row (docs/howto/missing.md); rows without any value are skipped.
    missing_values : float or list of float, optional
        Numbers that mark missing values, in addition to NaN, such as -9999.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Attributes
    ----------
    n_features_in_ : int
        Columns of the rows (d).

    See Also
    --------
    IncrementalPCA : With scikit-learn's attributes, for all rows after every batch.
    stream_pca : The same for a whole source, with commits on the way.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> model = npmdask.StreamingPCA(1, center=True)
    >>> for _ in range(10):
    ...     model = model.partial_fit(rng.standard_normal((1000, 5)) * [9, 3, 1, 1, 1])
    >>> model.rows, bool(abs(model.basis[0, 0]) > 0.99)
    (10000, True)
    """

    _model = cast("Model | None", None)
    _state = cast("ModelState | None", None)
    _info = StreamInfo(rows=0, rank=0, steps=0)

    target_rank: int = 2
    algorithm: str = "spm"
    _: KW_ONLY
    options: Mapping[str, Any] | None = None
    half_life: float | None = None
    center: bool = False
    unit: float | None = None
    seed: int = 0
    missing: str = REFUSE
    missing_values: Any = None
    progress: bool = False

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """
        Learn from all rows, starting again; the result has the bits of :func:`stream_pca`.

        Parameters
        ----------
        X : array_like, sparse matrix, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, in memory, lazy, or the path or URL of a store or of files; they are read once.
        y : None
            Ignored; it is there for pipelines.
        sample_weight : array_like, shape (n,), optional
            Weight of each row, not negative: 2 counts like two equal rows, 0 like none. For stored rows or rows in
            memory; only "spm" and "frequent-directions" accept weights.

        Returns
        -------
        StreamingPCA
            This object.

        Raises
        ------
        BadInputError
            The rows, the weights or a parameter are wrong.
        """
        request = self._checked_request(BATCH_ROWS)
        held = self._checked_input(X, first=True, gaps=self._imputes)
        reading = Reading(gaps="give-some" if self._imputes else REFUSE, missing_values=request.missing_values)
        opened = open_stream(held, reading, seed=request.seed, row_weights=sample_weight)
        stream = opened.stream
        model = self._set_model(make_model(request, stream.columns, opened.rows))
        with with_progress(Observer(), self.progress) as told:
            told.on_begin(0, opened.rows, "row")
            while (rows := stream.read(model.wanted(self._require_state()[1], BATCH_ROWS))) is not None:
                self._absorb_rows(rows, weights_of(stream))
                told.on_rows(stream.rows_read, stream.skipped, 0.0)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """
        Learn from a batch.

        Parameters
        ----------
        X : array_like, table or sparse matrix, shape (n, d)
            Rows, n >= 1 and of any size, in memory.
        y : None
            Ignored; it is there for pipelines.
        sample_weight : array_like, shape (n,), optional
            How much each row counts, as for ``fit``; rows of other batches without weights count as 1.

        Returns
        -------
        StreamingPCA
            This object.

        Raises
        ------
        BadInputError
            Wrong width, an empty batch, or rows that are not finite real numbers: nothing was learnt.
        """
        rows = _as_rows(self._checked_input(X, first=self._model is None, gaps=self._imputes))
        if self._model is None:
            if rows.ndim != 2 or 0 in rows.shape:
                raise BadInputError(f"a first batch of shape {rows.shape}: give rows x columns, at least one of each")
            # The half life counts rows, the memory of a step follows from its rows: those of the first batch.
            self._set_model(make_model(self._checked_request(len(rows)), rows.shape[1]))
        assert self._model is not None
        given, rows = len(rows), unmarked(rows, self._model.missing_values)
        rows, weights = weighed(rows, sample_weight, gaps=self._imputes)
        if given and not len(rows):  # none of them says anything
            return self
        self._absorb_rows(rows, weights)
        return self

    @property
    def _imputes(self) -> bool:
        return bool(self.missing == IMPUTE)

    def _checked_request(self, batch_rows: int) -> StreamRequest:
        """The parameters, checked: not before they are used, as scikit-learn sets them one by one."""
        return StreamRequest(
            **attributes(self, "target_rank", "algorithm", "half_life", "center", "unit", "seed", "missing"),
            options={} if self.options is None else self.options,
            batch_rows=batch_rows,
            missing_values=self.missing_values,
        )

    def _set_model(self, model: Model) -> Model:
        self._model, self._state, self._info = model, model.init(), type(self)._info
        self.n_features_in_ = model.d
        return model

    def _absorb_rows(self, rows: np.ndarray, weights: np.ndarray | None) -> None:
        assert self._model is not None
        assert self._state is not None
        with single_threaded_blas():
            try:
                self._state, info = self._model.absorb(self._state, rows, weights)
                self._info = last_step(self._info, info)
            except BadInputError:
                if not self._state.rows:
                    self._model = self._state = None  # the width of a refused batch says nothing
                raise
        self._results: list[StreamResult] = []  # of the state, once they were asked for

    def _require_state(self) -> tuple[Model, ModelState]:
        if self._model is None or self._state is None:
            raise NotFittedError("no rows were given yet: call partial_fit first")
        return self._model, self._state

    def __sklearn_is_fitted__(self) -> bool:
        """For scikit-learn, which would look for attributes that end in _."""
        return self._state is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self._imputes
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self.basis.shape[1])

    def result(self) -> StreamResult:
        """
        Compute directions and values so far.

        Returns
        -------
        StreamResult
            ``vectors`` (d x k) and ``values`` (k).

        Raises
        ------
        BadInputError
            There are too few rows yet.
        """
        model, state = self._require_state()
        if not self._results:
            with single_threaded_blas():
                self._results.append(model.answer(state))
        return self._results[0]

    @property
    def basis(self) -> Block:
        """Return the k leading directions, d x k, orthonormal."""
        return self.result().vectors

    @property
    def values(self) -> np.ndarray:
        """Return the mean squares of the rows along the basis (variances, if the model is centred), descending."""
        return self.result().values

    @property
    def mean(self) -> np.ndarray | None:
        """Return the mean of the rows so far (d), of a centred model."""
        model, state = self._require_state()
        return state.mean if model.center else None

    @property
    def rows(self) -> int:
        """Return the number of rows given so far."""
        return 0 if self._state is None else self._state.rows

    @property
    def rows_waiting(self) -> int:
        """Those of them that wait for the step that they will be used in."""
        return 0 if self._state is None else self._state.rows - self._state.rows_used

    def transform(self, X: Any, *, missing: str = AS_RUN) -> Block:
        """
        Compute the scores of rows along the basis as it is now.

        Parameters
        ----------
        X : array_like, sparse matrix, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for ``fit``; those that are not in memory are read once, some at a time.
        missing : {"as-run", "least-squares"}, default "as-run"
            Rows with missing values (NaN) are refused, or their scores are fitted to what is observed: see
            :meth:`npmdask.Solution.scores`.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Scores.

        Raises
        ------
        BadInputError
            Too few rows were learnt from, or those of ``X`` do not fit.
        """
        model, state = self._require_state()
        fit = require_rule(missing) == LEAST_SQUARES
        basis, held = self.basis, self._checked_input(X, first=False, gaps=fit)
        if fit or model.missing_values:
            components = StoredComponents(basis=basis, mean=self.mean, marks=model.missing_values)
            return components.all_scores(held, missing=missing)
        if in_memory(held):
            return model.project(state, basis, _as_rows(held))
        return np.concatenate([model.project(state, basis, rows) for rows in self._in_batches(held)])

    def measure(self, *, held_out: np.ndarray | None = None, truth: Block | None = None) -> Measurement:
        """
        Measure what is known of the model now.

        Parameters
        ----------
        held_out : array_like, shape (n, d), optional
            Rows that were not learnt from, for the share of their variance that the directions explain.
        truth : numpy.ndarray, shape (d, k), optional
            Orthonormal directions to compare with.

        Returns
        -------
        Measurement
            Values, share of the variance, and angles.
        """
        model, state = self._require_state()
        k = model.algorithm.target_rank
        held = None if held_out is None else HeldOut(_as_rows(held_out), k, model.d, center=model.center)
        return measure_model(model, state, self._info, before=None, truth=truth, held_out=held)[0]

    def save(self, path: str | Path) -> None:
        """
        Write the model as a folder of arrays and JSON (no pickle), whole or not at all.

        Parameters
        ----------
        path : str or Path
            A folder that does not exist.

        Raises
        ------
        BadInputError
            ``path`` exists already, or nothing was learnt.
        CommitError
            It cannot be written.
        """
        model, state = self._require_state()
        target = local_path(path, "a model that is saved")
        require(not target.exists(), f"{path} exists already: choose another name, or remove it first")
        arrays, numbers = model.saved(state)
        write_bundle(target, arrays, {"state": numbers, "info": asdict(self._info), "model": model.facts()})

    @classmethod
    def load(cls, path: str | Path) -> StreamingPCA:
        """
        Read a model that was saved, or the last checkpoint of a stream's store; it can be fed further.

        Parameters
        ----------
        path : str or Path
            What :meth:`save` wrote, or the store of a stream.

        Returns
        -------
        StreamingPCA
            The model.

        Raises
        ------
        BadInputError
            There is no model.
        """
        model, state, info = read_model(path)
        facts = model.facts()
        options = {name: value for name, value in facts["algorithm"].items() if name not in ("name", "target_rank")}
        if model.half_life is not None:
            options.pop("memory")  # which follows from it
        made = cls(
            target_rank=model.algorithm.target_rank,
            algorithm=model.algorithm.name,
            options=options,
            **attributes(model, "half_life", "center", "unit", "seed", "missing"),
            missing_values=list(model.missing_values) or None,
        )
        made._set_model(model)
        made._state, made._info, made._results = state, info, []
        return made


def _as_rows(given: Any) -> np.ndarray:
    """An array of real numbers; which shape it must have is not asked here."""
    return real_array(given.toarray() if issparse(given) else given, "the rows")
