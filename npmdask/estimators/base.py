"""Share what the scikit-learn-like estimators need.

With scikit-learn installed they are estimators of its own: for pipelines, searches, ``clone`` and ``set_output``. It is
no dependency: without it they have the same methods. They lie in this room because StreamingPCA is one of them. No
command imports this module, since scikit-learn takes a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Self

import numpy as np
import zarr
from scipy.sparse import issparse

from npmdask.containers.containers import labels_of, values_of
from npmdask.containers.lazy import BlockRows
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.solution import TemporaryStore
from npmdask.core.storage.kinds import real_array
from npmdask.core.storage.labels import Axis
from npmdask.core.storage.names import matched
from npmdask.errors import BadInputError, require_known
from npmdask.streaming.source import Reading, open_stream, weights_of
from npmdask.weights.aspect import Weights

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, DensityMixin, TransformerMixin
    from sklearn.exceptions import NotFittedError as _NotFittedError
    from sklearn.utils.validation import validate_data
except ModuleNotFoundError:

    class _Transformer:
        def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Any:
            """Fit to X, with options like ``sample_weight``, and transform it."""
            return self.fit(X, **options).transform(X)  # type: ignore[attr-defined]

        def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
            """Name the columns of what ``transform`` returns, as scikit-learn does."""
            count = self._n_features_out  # type: ignore[attr-defined]
            return np.array([f"{type(self).__name__.lower()}{i}" for i in range(count)], object)

    WITH_SCIKIT_LEARN = False
    _NotFittedError = AttributeError
    ESTIMATOR: Any = (object,)
    TRANSFORMER: Any = (_Transformer,)
    DENSITY: Any = ()
else:
    WITH_SCIKIT_LEARN = True
    ESTIMATOR = (BaseEstimator,)
    TRANSFORMER = (ClassNamePrefixFeaturesOutMixin, TransformerMixin)
    DENSITY = (DensityMixin,)

REAL = (np.float64, np.float32)  # other numbers become float64
BATCH_BYTES = 16 * 2**20  # of rows as float64 that are read at once


class NotFittedError(BadInputError, _NotFittedError):
    """Before ``fit``; an AttributeError too, so that ``hasattr`` says that an attribute is not there yet."""


@contextmanager
def run_store(store: str | Path | None) -> Iterator[str | Path]:
    """``store``, or a temporary folder for one fit."""
    if store is not None:
        yield store
        return
    with TemporaryStore() as kept:
        yield kept.folder / "run"


def in_memory(held: Any) -> bool:
    """Say whether these are numbers that scikit-learn can look at, and not a path or a recipe for them."""
    if isinstance(held, str | os.PathLike | zarr.Array | zarr.Group | BlockRows):
        return False
    return isinstance(held, list | tuple) or hasattr(held, "__array__") or issparse(held)


def _input_objection(held: Any) -> BadInputError | None:
    """Return our objection to numbers in memory, or None; scikit-learn checks whether objects are numbers."""
    try:
        if not issparse(held):
            real_array(held, "the rows")
    except BadInputError as error:
        return error
    return None


def seed_of(random_state: Any) -> int:
    """A seed of a run, from what scikit-learn takes as one; None is always the same."""
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return int(random_state)
    raise BadInputError(f"random_state = {random_state!r}: give a whole number, a numpy.random.RandomState or None")


def require_words(estimator: Any, words: dict[str, tuple[Any, ...]]) -> None:
    """Raise BadInputError, a ValueError, where a parameter is not one of its words, or of its least number on."""
    for name, known in words.items():
        given = getattr(estimator, name)
        least = [each for each in known if not isinstance(each, str)]
        number = isinstance(given, int | np.integer) and not isinstance(given, bool)
        if (isinstance(given, str) and given in known) or (least and number and given >= least[0]):
            continue
        said = [repr(each) if isinstance(each, str) else f"a whole number of at least {each}" for each in known]
        raise BadInputError(
            f"The {name!r} parameter of {type(estimator).__name__} must be {' or '.join(said)}: got {given!r}"
        )


def weighed(rows: np.ndarray, weights: Any, *, gaps: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """A batch (n x d) without the rows that say nothing, and what the others weigh (None: all the same).

    Nothing say rows of weight 0 and, where ``gaps`` are let through, those without any value.

    Raises
    ------
    BadInputError
        Weights that are none, or not one for each row; rows of weight 0 that are not numbers.
    """
    if rows.ndim != 2 or not rows.shape[1]:
        return rows, None  # which is refused
    says = ~np.isnan(rows).all(axis=1) if gaps and rows.dtype.kind == "f" else np.ones(len(rows), bool)
    if weights is not None:
        found = Weights(rows=weights)
        found.require_fit(rows.shape, "the batch")
        weights = found.rows
        assert weights is not None
        left_out = rows[weights == 0]
        if not (np.isfinite(left_out) | (gaps & np.isnan(left_out))).all():
            raise BadInputError("rows of weight 0 hold NaN or infinite values: leave these rows out of the batch")
        says &= weights > 0
    return (rows, weights) if says.all() else (rows[says], None if weights is None else weights[says])


def weighted_batches(stream: Any, count: int) -> Iterator[tuple[Block, np.ndarray | None]]:
    """All rows of a stream, ``count`` at a time, and what they weigh."""
    for rows in batches(stream, count):
        yield rows, weights_of(stream)


def batches(stream: Any, count: int | None = None) -> Iterator[Block]:
    """All rows of a stream, ``count`` or some MiB at a time."""
    count = count or max(1, BATCH_BYTES // (8 * stream.columns))
    while (rows := stream.read(count)) is not None:
        yield rows


class Estimator(*ESTIMATOR):  # type: ignore[misc]
    """Parameters by name, what scikit-learn wants to see of data, and the model that ``fit`` leaves in ``model_``."""

    store: str | Path | None
    progress = False  # of what was pickled before there was such a parameter
    _axes: tuple[Axis, ...] = ()  # what the columns of the fit were called

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """
        Get the parameters by name, as scikit-learn's ``clone`` asks for them.

        Parameters
        ----------
        deep : bool, default True
            Ignored: no parameter is an estimator.

        Returns
        -------
        dict
            Of the constructor.
        """
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """
        Set parameters by name.

        Parameters
        ----------
        **params
            Of the constructor.

        Returns
        -------
        Estimator
            This object.

        Raises
        ------
        BadInputError
            There is no such parameter.
        """
        known = list(signature(type(self)).parameters)
        for name, value in params.items():
            require_known(name, known, f"{type(self).__name__} has no parameter")
            setattr(self, name, value)
        return self

    def _checked_input(self, X: Any, *, first: bool, least: int = 1, dtype: Any = "numeric", gaps: bool = False) -> Any:
        """X as it is taken, after scikit-learn's own look at it where that is installed, and it is in memory.

        ``first``: the columns are those of the fit, and not compared with them. ``least``: rows. ``gaps``: NaN is let
        through.
        """
        held, labels = values_of(X, gaps=gaps), labels_of(X)
        axes = () if labels is None else labels.columns
        if first:
            self._axes = axes
        elif (
            not (WITH_SCIKIT_LEARN and hasattr(X, "iloc"))
            and matched(self._axes, axes, "X", "the fit").places is not None
        ):
            raise BadInputError("the columns of X are in another order than in the fit: bring them into the same")
        if not WITH_SCIKIT_LEARN or not in_memory(held):
            return held
        given = X if hasattr(X, "iloc") else held  # a table of pandas has names, which are kept
        ours = _input_objection(held)
        try:
            found = validate_data(
                self,
                given,
                reset=first,
                accept_sparse=True,
                dtype=dtype,
                ensure_min_samples=least,
                ensure_all_finite="allow-nan" if gaps else True,
            )
        except (ValueError, RuntimeError) as error:
            theirs, first_line = str(error), str(error).splitlines()[0]
            if "NaN" in first_line or "infinity" in first_line:  # further lines name estimators of scikit-learn
                theirs = f"{first_line.rstrip('.')}: fill these values in, or drop their rows"
            raise BadInputError(f"{ours} ({first_line})" if ours else theirs) from error
        if ours is not None and np.asanyarray(held).dtype != object:  # a mask, which scikit-learn does not see
            raise ours
        return found

    def _in_batches(self, held: Any) -> Iterator[Block]:
        """Rows that are not in memory, a few at a time, if they are as wide as those of the fit."""
        stream = open_stream(held, Reading()).stream
        self._require_width((0, stream.columns))
        return batches(stream)

    def _require_width(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 2 or shape[1] != self.n_features_in_:
            raise BadInputError(
                f"X has {shape[-1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features as "
                "input"
            )

    def _require_fit(self, name: str = "components_") -> None:
        if not hasattr(self, name):
            raise NotFittedError(f"{type(self).__name__} is not fitted yet: call fit first")

    def _fitted_model(self) -> Any:
        """The model. Raises NotFittedError before ``fit``."""
        self._require_fit("model_")
        return self.model_
