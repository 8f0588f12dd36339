"""Two sources of the same rows, opened together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.runs.build import prepared
from npmdask.runs.problem import Request
from npmdask.runs.weights import Weights, find_weights
from npmdask.storage.checksum import fingerprint
from npmdask.storage.readers.dense import DenseReader
from npmdask.storage.readers.gaps import REFUSE, GapReader, as_nan
from npmdask.storage.readers.side_by_side import SideBySide
from npmdask.storage.source import Source, open_source


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Two fields: each as it was opened, and both as one source of p + q columns, as passes read them.

    ``weights`` are of the rows, and of the columns of both, one after the other; None: nothing is weighted.
    """

    left: Source
    right: Source
    joined: Source
    weights: Weights | None

    @property
    def split(self) -> int:
        """p: how many columns of the first are read."""
        reader, p = self.joined.reader, self.left.shape[1]
        if isinstance(reader, GapReader) and reader.kept is not None:
            return int((reader.kept < p).sum())
        return p

    def weights_of(self, side: str) -> Weights | None:
        """Those of one field alone."""
        weights, p = self.weights, self.left.shape[1]
        if weights is None:
            return None
        part = slice(None, p) if side == "left" else slice(p, None)
        return Weights(rows=weights.rows, columns=None if weights.columns is None else weights.columns[part])


def open_fields(
    left: Any,
    right: Any,
    request: Request,
    *,
    dims: tuple[Any, Any] = (None, None),
    row_weights: Any = None,
    left_weights: Any = None,
    right_weights: Any = None,
    kept: Weights | None = None,
) -> Fields:
    """Open both fields; nothing is read but what says how they are stored.

    Parameters
    ----------
    left, right : what :func:`npmdask.storage.source.open_source` takes, dense, with the same rows.
    request : says whether missing values are filled, and columns centred.
    dims : the dimension of rows of each.
    row_weights, left_weights, right_weights : as :func:`npmdask.runs.weights.find_weights` takes them; names of rows
        are looked up in the first field.
    kept : the weights that a run was begun with, instead of these three.

    Raises
    ------
    BadInputError
        Data without dense rows, other rows in one than in the other, or weights that do not fit.
    """
    gaps = request.missing != REFUSE
    first, second = (open_source(given, None, dim, gaps=gaps) for given, dim in zip((left, right), dims, strict=True))
    for opened in (first, second):
        _require_rows(opened)
    _require_same_rows(first, second)
    weights = kept or _joined_weights(
        (first, second),
        find_weights(first, row_weights, left_weights, left),
        find_weights(second, None, right_weights, right),
    )
    readers: list[Any] = [as_nan(opened.reader) if gaps else opened.reader for opened in (first, second)]
    both = (first, second)
    joined = Source(
        path=f"{first.path} beside {second.path}",
        kind="samples",
        reader=SideBySide.of(*readers),
        fingerprint=joined_fingerprint(*both),
        registered=first.registered and second.registered,
        gaps=first.gaps or second.gaps,
    )
    if (weights is None or weights.rows is None) and not joined.gaps:
        joined = replace(joined, column_mean=_both("column_mean", both), column_std=_both("column_std", both))
    return Fields(left=first, right=second, joined=prepared(joined, request), weights=weights)


def joined_fingerprint(left: Source, right: Source) -> str:
    """Compute that of both fields together, of all columns that are stored."""
    facts = []
    for opened in (left, right):
        reader = opened.reader.inner if isinstance(opened.reader, GapReader) else opened.reader
        facts.append({"shape": list(reader.shape), "fingerprint": opened.fingerprint})
    return fingerprint({"side by side": facts}, [])


def _both(name: str, sources: tuple[Source, Source]) -> np.ndarray | None:
    """What is recorded of the columns of both, if it is."""
    parts = [getattr(source, name) for source in sources]
    return None if any(part is None for part in parts) else np.concatenate(parts)


def _joined_weights(sources: tuple[Source, Source], first: Weights | None, second: Weights | None) -> Weights | None:
    """The weights of rows, and of the columns of both."""
    if first is None and second is None:
        return None
    columns = [None if weights is None else weights.columns for weights in (first, second)]
    for source, weights in zip(sources, (first, second), strict=True):
        if weights is not None:
            weights.require_fit(source.shape, source.path)
    if all(side is None for side in columns):
        return first
    ones = [np.ones(source.shape[1]) if side is None else side for source, side in zip(sources, columns, strict=True)]
    return Weights(rows=None if first is None else first.rows, columns=np.concatenate(ones))


def _require_rows(opened: Source) -> None:
    if opened.kind in ("samples", "matrix") and isinstance(opened.reader, DenseReader):
        return
    what = "sparse" if opened.reader.layout == "csr" else f"of kind {opened.kind}"
    raise BadInputError(f"{opened.path} is {what}, but two fields must be dense rows: give samples or dense matrices")


def _require_same_rows(left: Source, right: Source) -> None:
    """Refuse fields of other rows, or of the same in another order, as far as rows are named.

    Raises
    ------
    BadInputError
        Their numbers differ, or what they are called does.
    """
    if left.shape[0] != right.shape[0]:
        raise BadInputError(
            f"{left.path} has {left.shape[0]} rows and {right.path} has {right.shape[0]}: row i of both must belong "
            "to the same time or sample; keep the rows that both have (xarray.align(a, b, join='inner'))"
        )
    axes = [source.labels.rows if source.labels is not None else () for source in (left, right)]
    if any(len(side) != 1 or side[0].values is None for side in axes):
        return
    first, second = (side[0] for side in axes)
    assert first.values is not None and second.values is not None
    if np.array_equal(first.values, second.values):
        return
    same = first.values == second.values if first.values.dtype.kind == second.values.dtype.kind else np.array([False])
    row = int(np.argmin(same))
    raise BadInputError(
        f"row {row} of {left.path} is {first.name} = {first.values[row]} and that of {right.path} is {second.name} = "
        f"{second.values[row]}: row i of both must belong to the same time or sample; bring both into the same order "
        "(xarray.align(a, b, join='inner'))"
    )
