"""Weights of rows and of columns: found where a person says they are, checked, and kept with the run."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from npmdask.core.aspects import Aspect, Extent, kept_aspects
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.operators.view import View
from npmdask.core.storage.kinds import real_array
from npmdask.core.storage.labels import LATITUDES, Axis, axis_of
from npmdask.core.storage.safe_open import numbers_in
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError, closest, require

COSLAT = "coslat"
SIDES = ("rows", "columns")
NAMES = {"rows": "row_weights", "columns": "column_weights"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights(Aspect):
    """Weights of rows (m) and columns (d), as float64; None: all the same.

    Raises
    ------
    BadInputError
        Weights that are negative, missing or not finite, none that is positive, or not one after the other.
    """

    place: ClassVar[str] = "weights"
    noun: ClassVar[str] = "a weight of rows or columns"
    gone: ClassVar[str] = "the weights in {place} are gone, or are not those that the run began with"

    rows: np.ndarray | None = None
    columns: np.ndarray | None = None

    def __post_init__(self) -> None:
        for side in SIDES:
            given = getattr(self, side)
            if given is not None:
                object.__setattr__(self, side, _checked(given, NAMES[side]))

    def source(self, source: Source, request: Any) -> Source:
        """Return the source as it is, if it can be weighted.

        Raises
        ------
        BadInputError
            Data without rows or columns that could be weighted, or another number of weights.
        RefusedError
            A run that cannot have weights.
        """
        named, layout = " and ".join(self.options()), getattr(source.reader, "layout", "")
        if layout != "gram" and getattr(source.reader, "elsewhere", False):
            raise RefusedError(
                f"{named}: the coordinator does not see the rows of its nodes and cannot weight them; leave weights out"
            )
        if request.operator is not None:
            raise RefusedError(f"the operator {request.operator!r} does not take {named}: leave one of the two out")
        if source.kind not in ("samples", "matrix", "sparse"):
            raise BadInputError(
                f"{named} apply to data with rows and columns, and {source.path} is of kind {source.kind}: leave them "
                "out, or multiply the entries before you store them"
            )
        if self.rows is not None and layout == "gram":
            raise BadInputError(
                f"row_weights: {source.path} is a stored Gram matrix, in which the rows are already summed. Give the "
                "rows themselves (column_weights work with a Gram matrix)"
            )
        stored = source if getattr(source.reader, "kept", None) is None else source.reader.inner
        self.require_fit(stored.shape, source.path)
        Weights(columns=_read(self.columns, Extent.of(source)))  # positive ones are among those that are read
        return source

    def view(self, view: View, extent: Extent) -> View:
        """Return the view with rows and columns times the roots of their weights."""
        return view.weighing(self.rows, _read(self.columns, extent))

    def spec(self) -> dict[str, dict[str, Any]]:
        """Return SHA-256 of both."""
        return {self.place: self.digests()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return both."""
        return dict(self._by_side())

    @classmethod
    def restored(cls, spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self | None:
        """Return the weights that were kept."""
        return cls(**arrays) if arrays else None

    def options(self, side: str = "") -> list[str]:
        """Return the names of those that were given."""
        return [NAMES[each] for each, _ in self._by_side() if side in ("", each)]

    def exported(self, kept: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return both, of columns those that were analysed."""
        return {
            NAMES[side]: values if kept is None or side == "rows" else values[kept] for side, values in self._by_side()
        }

    def public(self, rule: Any) -> Any:
        """Return the rule with both: what is given is public."""
        return replace(rule, view=rule.view.weighing(self.rows, self.columns), weights=self.digests())

    def digests(self) -> dict[str, str]:
        """Return SHA-256 of both, by side."""
        return {side: hashlib.sha256(values.astype("<f8").tobytes()).hexdigest() for side, values in self._by_side()}

    def said(self) -> tuple[str, str]:
        """Say how many weights there are, and how large."""
        said = []
        for side, values in self._by_side():
            left_out = int((values == 0).sum())
            none = f", {left_out} of them weigh nothing and are left out" if left_out else ""
            heaviest, lightest = values.max(), values[values > 0].min()
            said.append(
                f"{len(values):,} {side} weigh {lightest:.4g} to {heaviest:.4g}, {values.sum():.6g} together{none}"
            )
        return "Weights", f"{'; '.join(said)}. Values, shares and bounds are those of the weighted data."

    @property
    def worth(self) -> float:
        """Compute how many equal rows an average row with weight is worth: ``(sum u)^2 / (n sum u^2)`` (Kish), of n."""
        if self.rows is None:
            return 1.0
        shares = self.rows[self.rows > 0] / self.rows.max()
        return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))

    def _by_side(self) -> list[tuple[str, np.ndarray]]:
        return [(side, getattr(self, side)) for side in SIDES if getattr(self, side) is not None]

    def require_fit(self, shape: tuple[int, ...], path: str) -> None:
        """Raise BadInputError where there are not as many as rows and columns."""
        for side, values in self._by_side():
            size = shape[SIDES.index(side)]
            if len(values) != size:
                raise BadInputError(
                    f"there are {len(values)} {NAMES[side]} and {path} has {size} {side}: give one number for each"
                )


SMALLEST, LARGEST = 1e-60, 1e60  # of the largest weight: squares and products with those of the other side stay exact


def _checked(given: Any, name: str) -> np.ndarray:
    if hasattr(given, "to_numpy") and getattr(given, "ndim", 1) == 1:  # a column of a table
        given = given.to_numpy()
    side = name.removesuffix("_weights")
    values = real_array(
        np.asarray(given) if isinstance(given, int | float) else given, name, f"one number for each {side}"
    )
    if values.ndim == 0:
        raise BadInputError(
            f"{name} = {values} is one number: give one for each {side}, or leave {name} out where all count alike"
        )
    require(values.ndim == 1, f"{name} have shape {values.shape}: give one number after the other, as weights.ravel()")
    values = np.ascontiguousarray(values, np.float64)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise BadInputError(
            f"{name}: {len(bad)} of {len(values)} are negative, missing or infinite (number {bad[0]}, counted from 0, "
            f"is {values[bad[0]]}): give 0 to what is to be left out, and finite numbers to all others"
        )
    require(
        bool((values > 0).any()), f"{name} are all zero: give positive weights to what is to count, of a size near 1"
    )
    if not SMALLEST < values.max() < LARGEST:
        raise BadInputError(
            f"{name}: the largest is {values.max():.3g}, and products of such weights are too small or too large for "
            "float64: only ratios matter, so divide all by the largest"
        )
    return values


def find_weights(source: Source, given: Any, row_weights: Any, column_weights: Any) -> Weights | None:
    """The weights of ``source`` that ``row_weights`` and ``column_weights`` say; None where neither says any.

    Parameters
    ----------
    source : opened, not read.
    given : what ``source`` was opened from: the coordinates of a DataArray are looked up there, of a file that was
        opened along a dimension in the file.
    row_weights, column_weights : numbers; a DataArray over dimensions of the data; the name of a coordinate; or a path
        (.npy, or a Zarr array). Of columns "coslat", too: cosines of latitudes.

    Raises
    ------
    BadInputError
        No such coordinate or file, or numbers that are no weights.
    """
    if row_weights is None and column_weights is None:
        return None
    if source.dim is not None and isinstance(given, str | Path | None):  # of a file: the coordinates lie in it
        from npmdask.containers.wholeness import open_grid  # which a plain matrix does not need

        given = open_grid(Path(source.path), source.dim)[0]
    labels = source.labels
    axes = {"rows": labels.rows if labels else (), "columns": labels.columns if labels else ()}
    if not axes["rows"] and hasattr(given, "iloc"):  # of pandas, whose labels leave out numbers
        axes["rows"] = (axis_of("row", given.index.to_numpy()),)
    found = {
        side: None if asked is None else _find_values(asked, side, axes[side], given, source.shape[SIDES.index(side)])
        for side, asked in (("rows", row_weights), ("columns", column_weights))
    }
    return Weights(**found)


def _find_values(asked: Any, side: str, axes: tuple[Axis, ...], given: Any, size: int) -> Any:
    if isinstance(asked, Path):
        return numbers_in(asked, NAMES[side])
    if isinstance(asked, str):
        return weights_called(asked, side, axes, given)
    if hasattr(asked, "dims") and hasattr(asked, "coords"):
        return over(axes, asked, NAMES[side])
    if hasattr(asked, "iloc") and asked.ndim == 1 and len(asked) == size:
        places = places_of(axes, [axis_of(side.removesuffix("s"), asked.index.to_numpy())], NAMES[side])
        return asked if places is None else asked.iloc[places]
    return asked


def places_of(known: Sequence[Axis], given: Sequence[Axis], name: str) -> np.ndarray | None:
    """Find the places of the data among those that weights are given for; None: they are the same."""
    from npmdask.core.storage.names import is_counted, matched

    if is_counted(given):
        return None
    places, said = matched(known, given, name, "the data", what="numbers")
    for sentence in said:
        warnings.warn(sentence, RuntimeWarning, stacklevel=4)
    return places


def weights_called(
    asked: str, side: str, axes: tuple[Axis, ...], given: Any, said: str = f'column_weights = "{COSLAT}"'
) -> Any:
    """The weights that a coordinate holds, or a file."""
    coords = dict(getattr(given, "coords", {}))
    places = {axis.name: axis.values for axis in axes if axis.values is not None}
    names = [str(name) for name in coords] + [name for name in places if name not in coords]
    name: str | None = asked
    if asked == COSLAT and side == "columns":
        name = next((each for each in LATITUDES if each in names), None)
        if name is None:
            raise BadInputError(
                f"{said} needs a coordinate called {', '.join(LATITUDES[:-1])} or "
                f"{LATITUDES[-1]}; there are {', '.join(names) or 'none'}: name it so, or give the weights themselves"
            )
    if name not in names:
        if asked.endswith((".npy", ".zarr")) or Path(asked).exists():
            return numbers_in(Path(asked), NAMES[side])
        among = closest(asked, names) if names else "the data have no coordinates"
        raise BadInputError(
            f"{NAMES[side]} = {asked!r} is neither a file (.npy, or a Zarr array) nor a coordinate of the data: {among}"
        )
    values = over(axes, coords[name], NAMES[side]) if name in coords else _repeat(axes, str(name), places[str(name)])
    units = getattr(coords.get(name), "attrs", {}).get("units")
    return cosines(values, units) if asked == COSLAT and side == "columns" else values


def cosines(latitudes: Any, units: Any = None) -> np.ndarray:
    """The cosines of latitudes, in degrees unless their ``units`` are radians, which areas of cells are in proportion
    to; not negative at the poles.

    Raises
    ------
    BadInputError
        Latitudes beyond 90 degrees.
    """
    degrees = real_array(latitudes, "latitudes").astype(np.float64)
    degrees = np.rad2deg(degrees) if str(units).lower().startswith("rad") else degrees
    if (np.abs(degrees) > 90.001).any():
        raise BadInputError(
            f"a latitude of {degrees[np.abs(degrees) > 90.001][0]:g} degrees is beyond the poles: give degrees from "
            "-90 to 90, or the weights themselves"
        )
    return np.asarray(np.cos(np.deg2rad(degrees)).clip(0.0, 1.0))


def over(axes: tuple[Axis, ...], array: Any, name: str) -> np.ndarray:
    """A DataArray over some of the ``axes``, repeated along the others."""
    held = {axis.name: axis.size for axis in axes}
    dims = [str(dim) for dim in array.dims]
    if any(dim not in held or held[dim] != size for dim, size in zip(dims, array.shape, strict=True)):
        raise BadInputError(
            f"{name} lie along {', '.join(dims) or 'nothing'} ({' x '.join(map(str, array.shape))}) and the data along "
            f"{', '.join(f'{dim} ({size})' for dim, size in held.items()) or 'dimensions without names'}: give one "
            "number for each place along one of these, or numbers without names"
        )
    for axis in axes:
        if axis.name in dims:
            index = array.indexes[axis.name].to_numpy() if axis.name in array.indexes else None
            places = places_of([axis], [axis_of(axis.name, index, axis.size)], name)
            array = array if places is None else array.isel({axis.name: places})
    order = [dim for dim in held if dim in dims]
    values = real_array(array.transpose(*order).values, name)
    return np.broadcast_to(
        values.reshape([held[dim] if dim in dims else 1 for dim in held]), tuple(held.values())
    ).ravel()


def _repeat(axes: tuple[Axis, ...], name: str, values: np.ndarray) -> np.ndarray:
    """The places of one axis, repeated along the others."""
    shape = [axis.size if axis.name == name else 1 for axis in axes]
    return np.broadcast_to(values.reshape(shape), tuple(axis.size for axis in axes)).ravel()


def _read(columns: np.ndarray | None, extent: Extent) -> np.ndarray | None:
    return None if columns is None else extent.columns(columns)


def kept_weights(store: RunStore, spec: dict[str, Any]) -> Weights | None:
    """Return the weights of a run, held to what its ``spec`` says of them. Raises RefusedError where they are not."""
    return next(iter(kept_aspects(store, spec, Weights)), None)
