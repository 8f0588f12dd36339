"""Fields of xarray as rows and columns, and vectors over columns as maps: one grid, or several side by side.

Several dimensions of samples are one of rows. A Dataset or a list of DataArrays is one matrix: the grid points of its
parts are columns beside each other. Answers come back as what was given: :class:`Fields` knows how.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np

from npmdask.complex.parts import fix_phases
from npmdask.containers.lazy import beside, rows_of_a_block
from npmdask.containers.wholeness import conventions_left
from npmdask.core.numerics.domains import one_of
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.components import AS_RUN, StoredComponents
from npmdask.core.storage.labels import DESCRIBED, Axis, axis_of
from npmdask.core.storage.names import matched
from npmdask.errors import BadInputError, NpmdaskError, require
from npmdask.missing.gaps import DROP, REFUSE, checked_marks, unmarked
from npmdask.missing.rules import Missing
from npmdask.rotations.turned import simple_structure
from npmdask.weights.aspect import COSLAT, over, weights_called

SAMPLES, POINTS = "_samples", "_points"  # of rows that are made of several dimensions, or of several grids
SOLVERS = ("auto", "full", "randomized")
SEEN = ("basis", "scale", "column_weight")  # what scores rows beside the mean: least squares need them apart


@dataclass(frozen=True)
class Gridded:
    """The grid of a DataArray: its first sample (``grid``, with coordinates), the dimensions of samples, and all.

    Columns are grid points, in the order of the dimensions of the grid.
    """

    grid: Any
    samples: tuple[Any, ...]
    dims: tuple[Any, ...]

    @classmethod
    def of(cls, X: Any, samples: tuple[Any, ...]) -> Gridded:
        """Make one from a DataArray.

        Raises
        ------
        BadInputError
            No DataArray, nothing along the dimensions of samples, or no other dimension.
        """
        if type(X).__name__ != "DataArray":
            said = f"a DataArray of xarray is needed, not a {type(X).__name__}"
            raise BadInputError(f"{said}: give one, as ds['name'], a Dataset, or a list of DataArrays")
        for dim in samples:
            if dim in X.dims and not X.sizes[dim]:
                raise BadInputError(f"the DataArray has length 0 along {dim!r}: there are no data to analyse")
        if not {*samples} <= {*X.dims} or X.ndim <= len(samples) or len({*samples}) < max(1, len(samples)):
            dim, has = samples[0] if len(samples) == 1 else samples, ", ".join(map(str, X.dims))
            raise BadInputError(f"dim = {dim!r} and others are needed; the DataArray has {has}")
        return cls(X.isel(dict.fromkeys(samples, 0), drop=True), samples, X.dims)

    def rows(self, X: Any) -> Any:
        """The samples of a DataArray in rows, in blocks, so that nothing is copied."""
        rows = X.transpose(*self.samples, ...)
        first, several = self.samples[0], len(self.samples)
        if rows.chunks is None:
            rows = rows.chunk({first: rows_of_a_block((len(rows), rows[0].size), rows.dtype)})
        if several == 1:
            return rows
        on_grid = {name: held for name, held in X.coords.items() if held.dims and {*held.dims} <= {*self.grid.dims}}
        data = rows.data.reshape((-1, *rows.shape[several:]))
        found = type(X)(data, dims=(SAMPLES, *rows.dims[several:]), coords=on_grid, attrs=X.attrs)
        found.encoding = X.encoding
        return found

    def flat(self, X: Any, known: Gridded, said: str, *, gaps: bool = True) -> Any:
        """The samples of a DataArray as rows over the grid points of ``known``, by their coordinates: a Dask array.

        Raises
        ------
        BadInputError
            Other grid points.
        """
        places, notes = matched(known.axes, self.axes, f"the field{said}", f"the field{said} that was fitted")
        for sentence in notes:
            warnings.warn(sentence, RuntimeWarning, stacklevel=5)
        if self.grid.size != known.grid.size:
            raise BadInputError(
                f"the field{said} has {self.grid.size} columns and the components have {known.grid.size}"
            )
        rows = self.rows(X)
        data = rows.data.reshape((len(rows), -1))
        meant = conventions_left(X.attrs, X.encoding, X.dtype, f"the field{said}", gaps=gaps)
        if meant is not None:
            data = data.map_blocks(meant.required, f"the field{said}", dtype=np.result_type(X.dtype, np.float32))
        return data if places is None else data[:, places]

    def column_weights(self, weights: Any, *, use_coslat: bool) -> np.ndarray | None:
        """Return the weights of squares of columns: the squares of ``weights``, times the cosines of latitudes.

        None: all alike.
        """
        columns = None
        if weights is not None:
            if type(weights).__name__ != "DataArray":
                said = f"weights are a DataArray over dimensions of the grid, not a {type(weights).__name__}"
                raise BadInputError(said)
            roots = over(self.axes, weights, "weights").astype(np.float64)
            columns = roots * np.abs(roots)  # negative ones stay so, and are refused
        if use_coslat:
            columns = self.coslat() * (1.0 if columns is None else columns)
        return columns

    def coslat(self) -> np.ndarray:
        """The cosines of latitudes, all over the grid."""
        return np.asarray(weights_called(COSLAT, "columns", self.axes, self.grid, "use_coslat"))

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The names of grid points."""
        return _axes(self.grid, self.grid.dims)

    def map(self, vectors: np.ndarray, name: Any) -> Any:
        """Vectors over all grid points (k x d) as maps."""
        grid = _rename_mode(self.grid)
        coords, attrs = {**_modes(len(vectors)), **grid.coords}, DESCRIBED.get(name, {})
        return type(grid)(
            vectors.reshape(-1, *grid.shape), coords=coords, dims=("mode", *grid.dims), name=name, attrs=attrs
        )


@dataclass(frozen=True)
class Fields:
    """Rows and columns of what was fitted: a DataArray, or those of a Dataset or a list beside each other.

    ``parts`` by name; ``kind``: what they came as. ``axes``: what the samples are called.
    """

    parts: dict[Any, Gridded]
    kind: str
    axes: tuple[Axis, ...] = ()

    @classmethod
    def of(cls, X: Any, dim: Any) -> Fields:
        """Make one of a DataArray, a Dataset or a list, whose samples lie along ``dim``, one name or several.

        Raises
        ------
        BadInputError
            As of :class:`Gridded`; nothing is given; or the samples of one part are others than those of the first.
        """
        samples = tuple(dim) if isinstance(dim, list | tuple) else (dim,)
        kind, given = _parts_of(X)
        parts = {name: Gridded.of(one, samples) for name, one in given.items()}
        made = cls(parts, kind, tuple(_axes(next(iter(given.values())), samples)))
        for name, one in given.items():
            made.require_samples(_axes(one, samples), f"part {name!r}")
        return made

    def require_samples(self, axes: Sequence[Axis], said: str) -> None:
        """Raise BadInputError where samples are others, or in another order."""
        remedy = "give the same samples in the same order (xarray.align(a, b, join='inner'))"
        places = matched(self.axes, axes, said, "the first", what="samples", remedy=remedy).places
        same = [axis.size for axis in axes] == [axis.size for axis in self.axes]
        require(same and places is None, f"the samples of {said} are not those of the first, in their order: {remedy}")

    def sample_weights(self, given: Any) -> Any:
        """Weights of samples; a DataArray over several dimensions in the order of their rows."""
        return over(self.axes, given, "sample_weights") if len(self.axes) > 1 and hasattr(given, "dims") else given

    @property
    def one(self) -> Gridded:
        """The first part."""
        return next(iter(self.parts.values()))

    @property
    def samples(self) -> tuple[Any, ...]:
        """The dimensions of samples."""
        return self.one.samples

    @property
    def plain(self) -> bool:
        """Say whether it is a DataArray."""
        return self.kind == "DataArray"

    @property
    def of_complex(self) -> bool:
        """Say whether there are complex numbers."""
        return any(part.grid.dtype.kind == "c" for part in self.parts.values())

    @property
    def sizes(self) -> list[int]:
        """Numbers of columns of the parts."""
        return [part.grid.size for part in self.parts.values()]

    def rows(self, X: Any, *, kept: np.ndarray | None = None) -> Any:
        """The samples in rows, in blocks.

        ``kept``: the columns to be read, which are then compared by their names here.

        Raises
        ------
        BadInputError
            Other parts or, of several, other grid points.
        """
        there, given = self._there(X)
        if self.plain and kept is None:
            return there[""].rows(given[""])
        flat = [
            there[name].flat(given[name], part, "" if self.plain else f" {name!r}") for name, part in self.parts.items()
        ]
        whole = beside(flat)
        whole = whole if kept is None else whole[:, kept]
        return type(given[next(iter(given))])(whole, dims=(SAMPLES, POINTS))

    def present(self, X: Any) -> np.ndarray | None:
        """Which samples have a value, where data in memory have some without any; None: all are taken."""
        there, given = self._there(X)
        seen = [
            given[name].notnull().any(part.grid.dims).transpose(*self.samples).values.ravel()
            for name, part in there.items()
            if given[name].dtype.kind in "fc" and given[name].chunks is None and given[name].variable._in_memory
        ]
        found = np.any(seen, axis=0) if len(seen) == len(given) else np.ones(1, bool)
        return None if found.all() else found

    def _there(self, X: Any) -> tuple[dict[Any, Gridded], dict[Any, Any]]:
        """The parts of a field and their grids, if they are those of this one."""
        kind, given = _parts_of(X)
        if kind != self.kind or given.keys() != self.parts.keys():
            names, has = ([*map(str, some)] for some in (self.parts, given))
            more = f" ({', '.join(has)})", f" ({', '.join(names)})"
            raise BadInputError(
                f"a {kind}{more[0]} was given where a {self.kind}{more[1]} was fitted: give the same parts"
            )
        return {name: Gridded.of(given[name], self.samples) for name in self.parts}, given

    def column_weights(
        self, weights: Any, *, use_coslat: bool, missing: str, marks: tuple[float, ...] = (), rows: Any = None
    ) -> np.ndarray | None:
        """As of :class:`Gridded`, of all columns; ``weights`` of each part, or of all.

        0 over land, where nothing is read: the first of the ``rows`` has no value there, by default the first sample.
        ``marks``: numbers that mark missing values.
        """
        given = dict.fromkeys(self.parts, weights)
        if not self.plain and type(weights).__name__ in ("Dataset", "list", "tuple"):
            given = _parts_of(weights)[1]
            require(
                given.keys() == self.parts.keys(), "weights have other parts than the field: give one for each part"
            )
        found = [part.column_weights(given[name], use_coslat=use_coslat) for name, part in self.parts.items()]
        if all(one is None for one in found):
            return None
        columns = np.concatenate([np.ones(n) if one is None else one for one, n in zip(found, self.sizes, strict=True)])
        if missing == DROP and np.isnan(columns).any():
            first = [part.grid for part in self.parts.values()] if rows is None else [rows[0]]
            land = np.isnan(unmarked(np.concatenate([one.values.ravel() for one in first]), marks))
            columns = np.where(np.isnan(columns) & land, 0.0, columns)
        return columns

    # Answers.

    def maps(self, vectors: np.ndarray, missing: Missing | None, name: str) -> Any:
        """Vectors (columns that are there, or all, x k) as maps; NaN where there are no data at any time."""
        size = sum(self.sizes)
        seen = np.arange(size)
        if missing is not None:
            seen = missing.kept[missing.counts[missing.kept] < missing.rows]
        full = np.full((vectors.shape[1], size), np.nan, vectors.dtype)
        full[:, seen] = (vectors if len(vectors) == len(seen) else vectors[seen]).T
        cuts = np.split(full, np.cumsum(self.sizes)[:-1], axis=1)
        return self.together(part.map(cut, name) for part, cut in zip(self.parts.values(), cuts, strict=True))

    def together(self, found: Iterator[Any]) -> Any:
        """Answers for the parts as what was given."""
        if self.plain:
            return next(found)
        held = [*found]
        if self.kind == "list":
            return held
        from xarray import Dataset

        return Dataset(dict(zip(self.parts, held, strict=True)))

    def each(self, answer: Any) -> list[Any]:
        """The parts of an answer."""
        return [*_parts_of(answer)[1].values()]

    def series(self, values: np.ndarray, X: Any, present: np.ndarray | None = None) -> Any:
        """Scores (n x k) along the samples of ``X``, whose coordinates they have; NaN where no value is present."""
        if present is not None:
            whole = np.full((len(present), values.shape[1]), np.nan, values.dtype)
            whole[present] = values
            values = whole
        one = next(iter(_parts_of(X)[1].values()))
        along = {dim: _rename_mode(one[dim]) for dim in self.samples}
        dims = [held.dims[0] for held in along.values()]
        coords = {held.dims[0]: held for dim, held in along.items() if dim in one.coords}
        return type(one)(
            values.reshape(*(one.sizes[dim] for dim in self.samples), -1),
            dims=(*dims, "mode"),
            coords=_modes(values.shape[1]) | coords,
            name="scores",
            attrs=DESCRIBED["scores"],
        )

    def by_mode(self, values: np.ndarray, name: str) -> Any:
        """A number for each mode."""
        described = DESCRIBED.get(name, {})
        return type(self.one.grid)(values, dims=("mode",), coords=_modes(len(values)), name=name, attrs=described)

    def rebuilt(self, scores: Any, patterns: Any, mean: Any) -> Any:
        """The field that scores (a DataArray with modes) stand for, with dimensions, name and attributes of the first.

        Raises
        ------
        BadInputError
            No modes, or modes that there are not.
        """
        import xarray as xr

        require_scores(scores)
        scores = scores if "mode" in scores.dims else scores.expand_dims("mode")
        parts = zip(self.parts.values(), self.each(patterns), self.each(mean), strict=True)
        unknown = np.setdiff1d(scores["mode"], self.each(patterns)[0]["mode"])
        require(
            not len(unknown),
            f"there is no mode {unknown[:1]}: they are numbered from 1, and chosen by .sel(mode=[...])",
        )

        def whole() -> Iterator[Any]:
            for part, map_, mean_ in parts:
                found = xr.dot(scores, map_.sel(mode=scores["mode"]), dim="mode") + mean_.isel(mode=0, drop=True)
                order = [{"mode": "mode_"}.get(dim, dim) for dim in part.dims]
                found = found.transpose(*(dim for dim in order if dim in found.dims)).drop_vars("mode", errors="ignore")
                found = found if part.grid.dtype.kind == "c" else found.real
                kept = part.grid.dtype if part.grid.dtype.kind in "fc" else found.dtype
                yield found.astype(kept).rename(part.grid.name).assign_attrs(part.grid.attrs)

        return self.together(whole())


def _parts_of(X: Any) -> tuple[str, dict[Any, Any]]:
    """The kind of a field, and its DataArrays by name."""
    kind = type(X).__name__
    if kind == "Dataset":
        found = dict(X.data_vars)
    elif isinstance(X, list | tuple):
        kind, found = "list", dict(enumerate(X))
    else:
        return "DataArray", {"": X}
    require(bool(found), f"the {kind} is empty: there are no data to analyse")
    return kind, found


def _axes(held: Any, dims: Sequence[Any]) -> tuple[Axis, ...]:
    index = held.indexes
    return tuple(axis_of(dim, index[dim].to_numpy() if dim in index else None, held.sizes[dim]) for dim in dims)


def _stacked(held: Any) -> dict[str, list[str]]:
    """The dimensions that are several, by what these are called: no file has indexes of several levels."""
    return {dim: [*index.names] for dim, index in held.indexes.items() if dim in held.dims and hasattr(index, "levels")}


def picked(rows: Any, present: np.ndarray | None) -> Any:
    """Rows that are present; None: all."""
    return rows if present is None else rows.isel({rows.dims[0]: np.flatnonzero(present)})


def require_scores(held: Any) -> None:
    """Raise BadInputError where these are no scores."""
    require(type(held).__name__ == "DataArray" and "mode" in held.coords, "scores are a DataArray with `mode`")


def _modes(count: int) -> dict[str, Any]:
    return {"mode": np.arange(1, count + 1)}


def _rename_mode(held: Any) -> Any:
    """A DataArray whose own ``mode``, if it has one, is called ``mode_``, as in :meth:`npmdask.Solution.to_xarray`."""
    return held.rename(mode="mode_") if "mode" in (*held.dims, *held.coords) else held


# Models.


@dataclass(frozen=True)
class Found:
    """Modes as models know them: unit vectors over the columns that were read (d x k), what scores them, what the
    field gains by a score (d x k), its mean (d), numbers by mode, and what was missing.

    ``kept``: the columns that ``scored`` is of, of a model that was loaded: these compare names themselves. ``turn``:
    what its scores are multiplied by, and ``rotation``: what loadings were, of modes that were rotated.
    """

    vectors: Block
    scored: StoredComponents
    patterns: Block
    mean: np.ndarray
    numbers: dict[str, np.ndarray]
    missing: Missing | None = None
    kept: np.ndarray | None = None
    turn: np.ndarray | None = None
    rotation: np.ndarray | None = None


class Results(Mapping[str, Any]):
    """The answers of a model by the names that xeofs has for them, each made when it is asked for."""

    def __init__(self, made: dict[str, Callable[[], Any]]) -> None:
        self._made = made

    def __getitem__(self, name: str) -> Any:
        return self._made[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


@dataclass(eq=False, repr=False)
class Words:
    """Words of the constructors of xeofs that change nothing here, or little."""

    _: KW_ONLY
    check_nans: bool = True
    sample_name: str = "sample"
    feature_name: str = "feature"
    compute: bool = True
    solver: str = "auto"
    solver_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.solver_kwargs = dict(self.solver_kwargs or {})

    def get_params(self) -> dict[str, Any]:
        """
        Get what the model was made with.

        Returns
        -------
        dict
            Parameters by name.
        """
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def _missing_rule(self, missing: str) -> str:
        """The rule for gaps: where they are not to be looked for, they are refused when they are met."""
        one_of(SOLVERS, solver=self.solver)
        return missing if self.check_nans else REFUSE


class Saved:
    """Base of models that are written and read: ``_content`` is what is said about one, and its arrays."""

    get_params: Any
    _content: Any
    _take: Any

    def serialize(self) -> Any:
        """
        Put the model into a tree of xarray: all that answers and projections need, and not the field.

        Returns
        -------
        xarray.DataTree
            For :meth:`deserialize`, or to be written.

        Raises
        ------
        BadInputError
            A rule for gaps, other than that of points without data.
        """
        from xarray import DataTree

        about, whole = self._content()
        about = {"model": type(self).__name__, "params": self.get_params(), **about}
        said = json.dumps(about, default=lambda one: getattr(one, "tolist", one.__str__)())
        return DataTree(whole.assign_attrs(npmdask=said), name=type(self).__name__)

    @classmethod
    def deserialize(cls, dt: Any) -> Self:
        """
        Make the model again that :meth:`serialize` gave.

        Parameters
        ----------
        dt : xarray.DataTree
            The tree.

        Returns
        -------
        object
            It answers and projects as before; ``solution_`` and the certificate are of the run, and are not there.

        Raises
        ------
        BadInputError
            It holds no such model.
        """
        with _told("there is no model of npmdask", "give what save or serialize made"):
            about = json.loads(dt.attrs["npmdask"])
            saved, own = about["model"], cls.__name__
            require(saved == own, f"this is a model of {saved!r}, not of {own!r}: let that class load it")
            model = cls(**about["params"])
            model._take(about, dt.to_dataset().load())
            return model

    def save(
        self, path: str | Path, overwrite: bool = False, save_data: bool = False, engine: str = "zarr", **kwargs: Any
    ) -> None:
        """
        Write the model.

        Parameters
        ----------
        path : str or Path
            File, or folder of Zarr.
        overwrite : bool, default False
            Replace what is there.
        save_data : bool, default False
            Without effect: the field is never written.
        engine : str, default "zarr"
            That, or one of xarray's for NetCDF: "h5netcdf", "netcdf4" or "scipy".
        **kwargs : dict
            For ``to_zarr`` or ``to_netcdf`` of xarray.

        Raises
        ------
        BadInputError
            There is something at that path, a folder that holds no model of npmdask, or this engine cannot write it.
        """
        whole, place = self.serialize().to_dataset(), Path(path).resolve()
        require(overwrite or not place.exists(), f"there is something at {path}: say overwrite=True to replace it")
        if place.is_dir():
            said, remedy = f"the folder {path} holds", "take another path, or remove it"
            with warnings.catch_warnings(action="ignore"), _told(f"{said} no model of npmdask", remedy):
                held = _opened(place, "zarr")
            own = {".zattrs", ".zgroup", ".zmetadata", "zarr.json", *held.variables} if "npmdask" in held.attrs else {}
            more = sorted({*os.listdir(place)}.difference(own))
            require(not more, f"{said} {more[:1]}, which is of no model of npmdask: {remedy}")
        with (
            _told(f"{path} cannot be written by {engine}", "take another engine, or another path"),
            TemporaryDirectory(prefix=".npmdask-", dir=place.parent) as folder,
        ):
            made, old = Path(folder) / "model", Path(f"{folder}-old")
            if engine == "zarr":
                whole.to_zarr(made, mode="w", **{"consolidated": False, "zarr_format": 2, **kwargs})  # 3 has no text
            else:
                whole.to_netcdf(made, engine=engine, **kwargs)
            if place.is_dir():  # which cannot be replaced at once; a kill here leaves it under the other name
                os.replace(place, old)
            os.replace(made, place)
            shutil.rmtree(old, ignore_errors=True)

    @classmethod
    def load(cls, path: str | Path, engine: str = "zarr", **kwargs: Any) -> Self:
        """
        Read a model that :meth:`save` wrote.

        Parameters
        ----------
        path : str or Path
            Where it is.
        engine : str, default "zarr"
            As of :meth:`save`.
        **kwargs : dict
            For ``open_dataset`` of xarray.

        Returns
        -------
        object
            As :meth:`deserialize` makes it.

        Raises
        ------
        BadInputError
            It holds no such model.
        """
        from xarray import DataTree

        with _told(f"no model of npmdask is read from {path} by {engine}", "give the path and engine of save"):
            return cls.deserialize(DataTree(_opened(path, engine, **kwargs)))


class FieldModel(Saved):
    """Answers of a model of one field, however its modes were found."""

    preprocessor: Fields
    _found: Found
    _given: Any = None  # the field that was fitted
    _held: Any = None  # scores, of a model that was loaded

    def components(self, normalized: bool = True) -> Any:
        """
        Get the modes as maps.

        Parameters
        ----------
        normalized : bool, default True
            Of unit length; else times the singular values.

        Returns
        -------
        DataArray, Dataset or list of DataArray, shape (n_modes, ...)
            As what was fitted: of the weighted field, as those of xeofs and eofs, on the grid; NaN where there are no
            data. The entry of largest size in each is positive.
        """
        found = self._modes
        sizes = np.ones(1) if normalized else found.numbers["singular_values"]
        return self._maps(found.vectors * sizes, "components")

    def patterns(self) -> Any:
        """
        Get the modes as fields in the units of the data: what the field gains where a score grows by 1.

        The mean field and the sum of scores times patterns make up the field, as far as the modes reach. With weights
        w (and standard deviations s) they are ``components() * s / w``, orthonormal where squares count ``w^2 / s^2``.

        Returns
        -------
        DataArray, Dataset or list of DataArray, shape (n_modes, ...)
            On the grid; NaN where there are no data, or where the weight is 0.
        """
        return self._maps(self._modes.patterns, "patterns")

    def scores(self, normalized: bool = False, *, missing: str = AS_RUN) -> Any:
        """
        Get the scores of the data that the modes were found of; they are read once more.

        Parameters
        ----------
        normalized : bool, default False
            Of unit length: divided by the singular values.
        missing : {"as-run", "least-squares"}, default "as-run"
            Missing values are treated as in ``fit``, or scores are fitted to what is observed: see
            :meth:`npmdask.Solution.scores`.

        Returns
        -------
        xarray.DataArray, shape (n, n_modes)
            Along the dimensions of samples.
        """
        self._require_fit()
        found = self._sample_scores(self._given, missing) if self._held is None else self._held
        return self._scaled(found, normalized)

    def transform(self, X: Any, normalized: bool = False, *, missing: str = AS_RUN) -> Any:
        """
        Get the scores of other data on the same grid.

        Parameters
        ----------
        X : DataArray, Dataset or list of DataArray
            With the dimensions and grid of what the modes were found of.
        normalized : bool, default False
            Divided by the singular values of the data that the modes were found of.
        missing : {"as-run", "least-squares"}, default "as-run"
            As for :meth:`scores`; with "least-squares" samples that do not determine their scores get NaN.

        Returns
        -------
        xarray.DataArray, shape (n, n_modes)
            Along the dimensions of samples.

        Raises
        ------
        BadInputError
            Another grid, or values that are missing where the first data had some and gaps are refused.
        """
        self._require_fit()
        return self._scaled(self._sample_scores(X, missing), normalized)

    def inverse_transform(self, scores: Any, normalized: bool = False) -> Any:
        """
        Get the field that scores stand for: its mean, and the sum of scores times patterns.

        Parameters
        ----------
        scores : xarray.DataArray
            Scores of this model or others, of some modes or all: ``scores().sel(mode=[1, 3])``. With blocks of Dask
            the field has blocks, too, and is computed when it is asked for.
        normalized : bool, default False
            Whether the scores were divided by the singular values.

        Returns
        -------
        DataArray, Dataset or list of DataArray
            As what was fitted: with its dimensions in their order, its name, attributes and type of numbers. NaN where
            there are no data.

        Raises
        ------
        BadInputError
            No scores, or modes that there are not.
        """
        found = self._modes
        require_scores(scores)
        if normalized:
            scores = scores * self.singular_values().sel(mode=scores["mode"])
        return self.preprocessor.rebuilt(scores, self.patterns(), self._maps(found.mean[:, None], "mean"))

    def explained_variance(self) -> Any:
        """
        Get the variance of each mode, n - 1 in the denominator; of weighted samples the sum of their weights less 1.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        return self._of_modes("explained_variance")

    def explained_variance_ratio(self) -> Any:
        """
        Get the share of each mode in the (weighted) variance of all grid points.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        return self._of_modes("explained_variance_ratio")

    def singular_values(self) -> Any:
        """
        Get the singular values of the centred, weighted data: the lengths of the scores.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first; of rotated modes in their order.
        """
        return self._of_modes("singular_values")

    @property
    def data(self) -> Results:
        """Return the answers by the names of xeofs, each made when it is asked for."""
        names = {"norms": self.singular_values, "explained_variance": self.explained_variance}
        return Results({"components": self.components, "scores": self.scores, **names})

    def _content(self) -> tuple[dict[str, Any], Any]:
        from xarray import Dataset

        found, field_ = self._modes, self.preprocessor
        rule = DROP if found.missing is None else found.missing.rule
        require(rule == DROP, f"missing = {rule!r} needs the run: give `store`, and fit again, which reads nothing")
        kept = found.kept if found.missing is None else found.missing.kept
        kept = np.arange(len(found.vectors)) if kept is None else kept
        held: dict[str, Any] = {name: (("column", "along"), getattr(found, name)) for name in ("vectors", "patterns")}
        held |= {"mean": ("column", found.mean), "kept": ("column", kept)}
        seen = {name: getattr(found.scored, name) for name in SEEN}
        held |= {name: (("column", "read")[: array.ndim], array) for name, array in seen.items() if array is not None}
        if found.turn is not None:
            held |= {"turn": (("read", "along"), found.turn), "rotation": (("turned", "along"), found.rotation)}
        held |= {name: ("along", array) for name, array in found.numbers.items()}
        frames, grids = {"scores": self.scores()}, [one.grid for one in field_.parts.values()]
        frames |= {f"grid{i}": grid.copy(data=np.zeros_like(grid)) for i, grid in enumerate(grids)}
        whole = Dataset(held)
        stacked = {prefix: _stacked(frame) for prefix, frame in frames.items()}
        for prefix, frame in frames.items():
            frame = frame.reset_index([*stacked[prefix]])
            own = frame.rename({name: f"{prefix}_{name}" for name in (*frame.dims, *frame.coords)})
            whole = whole.merge(own.rename(prefix).to_dataset())
        about = {"kind": field_.kind, "parts": [*field_.parts], "samples": field_.samples, "stacked": stacked}
        about |= {"dims": [one.dims for one in field_.parts.values()], "names": [grid.name for grid in grids]}
        about |= {"marks": [] if found.missing is None else found.missing.values}
        return about, whole

    def _take(self, about: dict[str, Any], whole: Any) -> None:
        """Take what :meth:`_content` gave."""
        from xarray.indexes import PandasMultiIndex

        one_of(("DataArray", "Dataset", "list"), kind=about["kind"])

        def frame(prefix: str) -> Any:
            own = [name for name in whole.variables if str(name).startswith(f"{prefix}_")]
            found = whole.reset_coords().set_coords(own)[prefix]
            found = found.rename({name: str(name)[len(prefix) + 1 :] for name in (*found.dims, *found.coords)})
            for levels in about.get("stacked", {}).get(prefix, {}).values():
                found = found.set_xindex(levels, PandasMultiIndex)  # of one level, too
            return found

        samples = tuple(about["samples"])
        parts = {
            name: Gridded(frame(f"grid{i}").rename(called), samples, tuple(dims))
            for i, (name, called, dims) in enumerate(zip(about["parts"], about["names"], about["dims"], strict=True))
        }
        self.preprocessor, self._held = Fields(parts, about["kind"]), frame("scores").rename("scores")
        arrays = {one.name: whole[one.name].values for one in fields(Found) if one.name in whole}
        counts, seen = np.zeros(sum(self.preprocessor.sizes), int), [name for name in SEEN if name in whole]
        marks = checked_marks(about["marks"])
        missing = Missing(rule=DROP, counts=counts, rows=1, rows_with_gaps=0, kept=arrays["kept"], values=marks)
        scored = StoredComponents(mean=arrays["mean"], marks=marks, **{name: whole[name].values for name in seen})
        numbers = {name: whole[name].values for name, held in whole.variables.items() if held.dims == ("along",)}
        self._found = Found(**arrays, scored=scored, numbers=numbers, missing=missing)

    def _require_fit(self) -> None:
        require(hasattr(self, "_found"), f"{type(self).__name__} is not fitted yet: call fit first")

    @property
    def _modes(self) -> Found:
        self._require_fit()
        return self._found

    def _of_modes(self, name: str) -> Any:
        """A number for each mode, as the answer calls it."""
        found = self._modes
        require(name in found.numbers, "modes of data that were not centred have no share of the variance")
        return self.preprocessor.by_mode(found.numbers[name], name)

    def _maps(self, columns: np.ndarray, name: str) -> Any:
        """Vectors over the grid points that have data, as maps."""
        return self.preprocessor.maps(columns, self._found.missing, name)

    def _scaled(self, scores: Any, normalized: bool) -> Any:
        if not normalized:
            return scores
        lengths = self.singular_values()
        return (scores / lengths.where(lengths > 0, 1.0)).rename("scores").assign_attrs(scores.attrs)

    def _sample_scores(self, X: Any, missing: str) -> Any:
        found = self._found
        present = self.preprocessor.present(X) if found.missing is None or found.missing.rule == DROP else None
        rows = picked(self.preprocessor.rows(X, kept=found.kept), present)
        if present is not None and not present.any():
            return self.preprocessor.series(np.empty((0, found.vectors.shape[1])), X, present)
        values = found.scored.all_scores(rows, rows.dims[0], missing=missing)
        return self.preprocessor.series(values if found.turn is None else values @ found.turn, X, present)


@contextmanager
def _told(said: str, remedy: str) -> Iterator[None]:
    """Turn whatever xarray and its engines raise into a sentence."""
    try:
        yield
    except (NpmdaskError, MemoryError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInputError(f"{said} ({why}): {remedy}") from error


def _opened(path: str | Path, engine: str, **kwargs: Any) -> Any:
    """Read a Dataset into memory."""
    from xarray import open_dataset

    with open_dataset(path, engine=engine, **({"consolidated": False} if engine == "zarr" else {}) | kwargs) as opened:
        return opened.load().drop_encoding()  # of text that is of another type now


def found_of(stored: StoredComponents, vectors: Block, numbers: dict[str, np.ndarray], missing: Any) -> Found:
    """Vectors over the columns of a run, with what it knows of these."""
    mean = np.zeros(len(vectors)) if stored.mean is None else stored.mean
    return Found(vectors, stored, replace(stored, basis=vectors).patterns, mean, numbers, missing)


def rotated_modes(before: Found, k: int, power: float) -> Found:
    """The leading modes after varimax, or with a power above 1 promax, of rows of loadings of length 1, as in xeofs."""
    sizes, variances = (before.numbers[name] for name in ("singular_values", "explained_variance"))
    k = min(k, len(sizes))
    there = np.isfinite(before.vectors[:, 0])  # no land
    rotation = simple_structure(before.vectors[there], variances, k, float(power), normalize=True)
    roots = np.sqrt(variances[:k])
    loadings = (before.vectors[:, :k] * roots) @ rotation
    squares = np.square(np.abs(loadings[there])).sum(axis=0)
    order = np.argsort(-squares, kind="stable")
    phases, lengths = fix_phases(loadings[there][:, order]), np.sqrt(squares[order])
    rotation, vectors = rotation[:, order] * phases, loadings[:, order] * phases / lengths
    share = before.numbers["explained_variance_ratio"][0] / variances[0]
    numbers = {"singular_values": sizes[0] / roots[0] * lengths, "explained_variance": lengths**2}
    numbers["explained_variance_ratio"] = lengths**2 * share
    # Samples with gaps are fitted along the modes of the model: what scores rotated ones is no basis of patterns.
    turn = np.zeros((before.scored.k, k), rotation.dtype)
    turn[:k] = np.linalg.inv(rotation).conj().T / roots[:, None] * lengths
    patterns = replace(before.scored, basis=vectors).patterns
    return replace(before, vectors=vectors, patterns=patterns, numbers=numbers, turn=turn, rotation=rotation)


def rotation_answers(rotation: Any) -> dict[str, Callable[[], Any]]:
    """Return what loadings were multiplied by, and how the factors are correlated; signs are in the rotation."""
    from xarray import DataArray

    numbers = np.arange(1, len(rotation) + 1)
    made = partial(DataArray, coords={"mode_m": numbers, "mode_n": numbers}, dims=("mode_m", "mode_n"))
    phi = np.linalg.inv(rotation.conj().T @ rotation)
    signs = DataArray(np.ones(len(rotation)), coords=_modes(len(rotation)), dims="mode")
    return {"rotation_matrix": partial(made, rotation), "phi_matrix": partial(made, phi), "modes_sign": signs.copy}
