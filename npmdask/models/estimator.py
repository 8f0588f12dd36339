"""What the estimators in the manner of scikit-learn share, without needing it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Self

from npmdask.errors import BadInputError, closest


@contextmanager
def run_store(store: str | Path | None) -> Iterator[str | Path]:
    """``store``, or a temporary folder for one fit."""
    if store is not None:
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="npmdask-") as folder:
        yield Path(folder) / "run"


class Estimator:
    """Parameters by name, the folder of a fit, and the model that ``fit`` leaves in ``model_``."""

    store: str | Path | None

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
            if name not in known:
                raise BadInputError(f"{type(self).__name__} has no parameter {name!r}: {closest(name, known)}")
            setattr(self, name, value)
        return self

    def _fitted(self) -> Any:
        """The model. Raises BadInputError before ``fit``."""
        found = getattr(self, "model_", None)
        if found is None:
            raise BadInputError(f"{type(self).__name__} knows nothing yet: call fit first")
        return found
