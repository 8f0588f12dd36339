"""A model that is fed by hand: ``partial_fit``, ``transform``, and a bundle on disk in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse

from npmdask.algorithms import StreamInfo, StreamResult
from npmdask.algorithms.streaming.model import Model, ModelState
from npmdask.checkpoint.store import RunStore, folder_of
from npmdask.errors import BadInputError
from npmdask.execution.executor import single_threaded_blas
from npmdask.numerics.subspaces import Block
from npmdask.storage.bundle import read_bundle, write_bundle
from npmdask.storage.kinds import real_array
from npmdask.storage.paths import local_path
from npmdask.streaming.metrics import HeldOut, Measurement, last_step, measure_model
from npmdask.streaming.problem import StreamRequest, make_model


class StreamingPCA:
    """
    Learn the k leading principal directions of rows that come in batches, in memory O(d (k + batch)).

    The same batches give the same bits. A batch that is refused leaves the model as it was.

    Parameters
    ----------
    target_rank : int
        Directions (k).
    algorithm : str, default "spm"
        "spm" (the streaming power method), "oja", "msg", "rmsg", "mb-msg", "mb-rmsg" or "frequent-directions";
        docs/streaming.md says which for what. "online-tensor-power" finds components of the third moment instead:
        ``basis`` are those found so far (d x j, j <= k), ``values`` their weights.
    options : dict, optional
        Further parameters of the algorithm, like ``{"gap": 0.1}``; see its class.
    half_life : float, optional
        Rows after which a row counts half, for streams that drift; by default nothing is forgotten.
    center : bool, default False
        Subtract the mean of the rows, which is learnt on the way.
    unit : float, optional
        Typical norm of a row, where the algorithm has a step size; by default that of the first batch.
    seed : int, default 0
        Of the random start.

    See Also
    --------
    stream_pca : The same for a whole source, committed on the way.

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

    def __init__(
        self,
        target_rank: int,
        algorithm: str = "spm",
        *,
        options: Mapping[str, Any] | None = None,
        half_life: float | None = None,
        center: bool = False,
        unit: float | None = None,
        seed: int = 0,
    ) -> None:
        self._request = StreamRequest(
            target_rank=target_rank,
            algorithm=algorithm,
            options=options or {},
            half_life=half_life,
            center=center,
            unit=unit,
            seed=seed,
        )
        self._model: Model | None = None
        self._state: ModelState | None = None
        self._info = StreamInfo(rows=0, rank=0, steps=0)
        self._result: StreamResult | None = None

    def partial_fit(self, batch: np.ndarray, y: Any = None) -> StreamingPCA:
        """
        Learn from a batch.

        Parameters
        ----------
        batch : array_like or scipy.sparse matrix, shape (n, d)
            Rows, n >= 1 and of any size.
        y : None
            Ignored; it is there for pipelines.

        Returns
        -------
        StreamingPCA
            This object.

        Raises
        ------
        BadInputError
            Wrong width, an empty batch, or rows that are not finite real numbers: nothing was learnt.
        """
        rows = _as_rows(batch)
        if self._model is None:
            if rows.ndim != 2 or 0 in rows.shape:
                raise BadInputError(f"a first batch of shape {rows.shape}: give rows x columns, at least one of each")
            # The half life counts rows, the memory of a step follows from its rows: those of the first batch.
            self._model = make_model(self._request.of_batches(len(rows)), rows.shape[1])
            self._state = self._model.init()
        assert self._state is not None
        with single_threaded_blas():
            try:
                self._state, info = self._model.absorb(self._state, rows)
                self._info = last_step(self._info, info)
            except BadInputError:
                if not self._state.rows:
                    self._model = self._state = None  # the width of a refused batch says nothing
                raise
        self._result = None
        return self

    def _known(self) -> tuple[Model, ModelState]:
        if self._model is None or self._state is None:
            raise BadInputError("no rows were given yet: call partial_fit first")
        return self._model, self._state

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
        model, state = self._known()
        if self._result is None:
            with single_threaded_blas():
                self._result = model.answer(state)
        return self._result

    @property
    def basis(self) -> Block:
        """The k leading directions, d x k, orthonormal."""
        return self.result().vectors

    @property
    def values(self) -> np.ndarray:
        """The mean squares of the rows along the basis (variances, where the model is centred), falling."""
        return self.result().values

    @property
    def mean(self) -> np.ndarray | None:
        """The mean of the rows so far (d), of a centred model."""
        model, state = self._known()
        return state.mean if model.center else None

    @property
    def rows(self) -> int:
        """Rows given so far."""
        return 0 if self._state is None else self._state.rows

    @property
    def rows_waiting(self) -> int:
        """Those of them that wait for the step that they will be used in."""
        return 0 if self._state is None else self._state.rows - self._state.rows_used

    def transform(self, rows: np.ndarray) -> Block:
        """
        Compute the scores of rows along the basis as it is now.

        Parameters
        ----------
        rows : array_like or scipy.sparse matrix, shape (n, d)
            Rows, in memory.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Scores.

        Raises
        ------
        BadInputError
            Too few rows were learnt from, or ``rows`` do not fit.
        """
        model, state = self._known()
        return model.project(state, self.basis, _as_rows(rows))

    def measure(self, *, held_out: np.ndarray | None = None, truth: Block | None = None) -> Measurement:
        """
        Measure what is known of the model now.

        Parameters
        ----------
        held_out : array_like, shape (n, d), optional
            Rows that were not learnt from, for the objective.
        truth : numpy.ndarray, shape (d, k), optional
            Orthonormal directions to compare with.

        Returns
        -------
        Measurement
            Values, objective and angles.
        """
        model, state = self._known()
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
        model, state = self._known()
        target = local_path(path, "a model that is saved")
        if target.exists():
            raise BadInputError(f"{path} exists already: choose another name, or take it away first")
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
        arrays, meta = _read(folder_of(path))
        made = cls(target_rank=int(meta["model"]["algorithm"]["target_rank"]))
        made._model = Model.of(meta["model"])
        made._state = made._model.load(
            {name: array for name, array in arrays.items() if name != "measured_basis"}, meta["state"]
        )
        made._info = StreamInfo(**meta["info"])
        return made


def _as_rows(given: Any) -> np.ndarray:
    """An array of real numbers; which shape it must have is not asked here."""
    return real_array(given.toarray() if issparse(given) else given, "the rows")


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    found = RunStore(path).last_step() if (path / "steps").is_dir() else read_bundle(path) if path.is_dir() else None
    if found is None or "model" not in found[1]:
        raise BadInputError(f"{path} holds no model of a stream: name what `save` wrote, or the store of a stream")
    return found
