"""Opening what people point at: an npmdask store, a plain Zarr array or group, an AnnData CSR group, an array."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import zarr

from npmdask.core import features
from npmdask.core.storage.checksum import crc32c, fingerprint
from npmdask.core.storage.chunk_access import PLAIN, Boxes, fetcher_of, location
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.columns import addressed, at, genotypes
from npmdask.core.storage.conventions import (
    ALONG,
    convention_facts,
    decoded,
    dimensions_of,
    member,
    require_plain_parts,
    require_undecoded,
    the_only,
)
from npmdask.core.storage.kinds import (
    HERE,
    KINDS,
    MATRICES,
    TENSOR,
    Traits,
    number_array,
    real_array,
    require_cube,
    require_square_matrices,
    traits_of,
)
from npmdask.core.storage.labels import Axis, Labels, axis_of, gene_labels
from npmdask.core.storage.paths import is_url, is_zarr, local_path, require_no_credentials
from npmdask.core.storage.readers import Reader
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.readers.sparse import open_csr
from npmdask.core.storage.safe_open import mark_of, of_budget, open_node, require_no_pickle
from npmdask.errors import BadInputError, closest, first_of, require, warn

RUN = "run.json"  # a file in a folder that is no array and yet may be data: a stored Gram
IN_MEMORY = "memory, "  # of what a program holds: so begins what is written down instead of a path
Opener = Callable[[str], Any]  # of a URL: npmdask.containers.computed.Rows
OF_URL = "://"  # so end schemes among the keys of the table of sources
ENTRY_POINTS = "npmdask.sources"  # group of an installed package: scheme = module:opener
_OPENERS: dict[str, Opener] = {}


def register_source(scheme: str, opener: Opener) -> None:
    """
    Let ``opener`` open the URLs that begin with ``scheme://``, everywhere in this process.

    A package that is installed needs no call: ``[project.entry-points."npmdask.sources"]`` with ``scheme =
    "module:opener"`` makes the command line and worker processes know it too.

    Parameters
    ----------
    scheme : str
        Two characters or more: a lower case letter, then these, digits and ``+.-``.
    opener : callable
        Makes :class:`npmdask.containers.computed.Rows` of a URL: an object that gives its rows a unit (``unit_rows`` of
        them, 4 to 32 MiB) at a time.

    Raises
    ------
    BadInputError
        No scheme, or one that npmdask opens itself.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> class Waves:
    ...     shape, dtype = (500, 20), np.dtype("float64")
    ...     unit_rows = 100
    ...     identity = "waves, version 1"  # changes whenever the rows do
    ...     needs = 2 * 100 * 20 * 8  # bytes, to make a unit
    ...     def tiles(self, unit):
    ...         yield np.random.default_rng(unit).standard_normal((100, 20)) * np.geomspace(8, 1, 20)
    >>> npmdask.register_source("waves", lambda url: Waves())
    >>> solution = npmdask.top_k("waves://all", 3)
    >>> rows = np.concatenate([tile for unit in range(5) for tile in Waves().tiles(unit)])
    >>> np.allclose(solution.values, np.linalg.svd(rows)[1][:3])
    True
    """
    if scheme in (*schemes(), "file") or not re.fullmatch(r"[a-z][a-z0-9+.-]+", scheme):
        raise BadInputError(f"no source can be registered for {scheme!r}: use your own scheme, such as 'lab'")
    _OPENERS[scheme] = opener


def schemes() -> list[str]:
    """Return the schemes of URLs that features open."""
    return [key.removesuffix(OF_URL) for key in features.keys("sources", ours=True) if key.endswith(OF_URL)]


def is_remote(source: object) -> bool:
    """Say whether ``source`` is the URL of an object store."""
    return isinstance(source, str) and OF_URL in source and source.partition(OF_URL)[0] in schemes()


def is_registered(source: Any) -> bool:
    """Say whether ``source`` is a URL that a registered opener takes."""
    return _opener_of(source) is not None


def _opener_of(source: Any) -> Callable[[str, Asked], Source] | None:
    """Who opens this URL: registered here, or by an installed package; None for all others."""
    scheme, found, _ = source.partition("://") if isinstance(source, str) else ("", "", "")
    if not found or scheme in (*schemes(), "file"):
        return None
    if scheme not in _OPENERS:
        _OPENERS.update((scheme, opener) for opener in features.loaded(ENTRY_POINTS, name=scheme))
    if scheme not in _OPENERS:
        return features.found("sources", scheme + OF_URL)
    return lambda text, asked: features.required("sources", "rows")(text, _OPENERS[scheme], asked)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The planted answer of a generated problem: basis (d x k) and values (k)."""

    basis: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set, opened but not read.

    ``kind`` says how it is analysed; ``fingerprint`` is of the content for an ingested store and of the
    outside (shape, chunk files, sizes) for a plain Zarr array, whose checksums are taken in the first pass.
    ``digests``: SHA-256 of every chunk of an ingested store, of which the fingerprint is made, in the form that the
    reader takes; None of a store of an older version, whose fingerprint is made of checksums and can be forged.
    ``mark``: what ``npmdask ledger grant`` noted in a store whose data have a privacy budget, and who copies rows of it
    notes again; ``budget``: the name of that budget.
    ``statistics``: of the columns: their means and deviations, where these are known: recorded at ingest, or surveyed.
    ``mirrored``: that the matrix is symmetric was found when it was stored. ``trace``, ``squared_frobenius``: of
    such a matrix, recorded at ingest; of a tensor the latter. ``side``: d, of kind matrices, whose rows are d x d
    matrices, flattened.
    ``words``: what the columns count, of documents, as recorded (npmdask.topics.documents).
    ``labels``: what rows and columns are called, where that is known. ``dim``: the dimension of the file at ``path``
    that rows lie along, where that was asked for. ``gaps``: of an ingested store, whether NaN were kept as missing
    values; that is how it was ingested, and does not say whether there are any. ``notes``: what was decided about the
    data that their owner may not expect, in sentences: columns that were left out, names that were not compared.
    ``order``: where the columns that are asked for lie among those that are read; None: they are those.
    """

    path: str
    kind: str
    reader: Any  # npmdask.core.storage.readers.Reader
    fingerprint: str
    registered: bool
    mirrored: bool = False
    trace: float | None = None
    squared_frobenius: float | None = None
    statistics: ColumnStatistics | None = None
    truth: Truth | None = None
    side: int | None = None
    words: np.ndarray | None = None
    labels: Labels | None = None
    dim: str | None = None
    digests: np.ndarray | dict[str, np.ndarray] | None = None
    mark: dict[str, Any] | None = None
    gaps: bool = False
    notes: tuple[str, ...] = ()
    order: np.ndarray | None = None

    @property
    def traits(self) -> Traits:
        """Traits of data of this kind."""
        return traits_of(self.kind)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns; (d, d, d) of a tensor."""
        return tuple(self._stored_reader.shape)

    @property
    def column_mean(self) -> np.ndarray | None:
        """Means of the columns (d), where they are known."""
        return None if self.statistics is None else self.statistics.mean

    @property
    def dtype(self) -> np.dtype:
        """Type of the entries."""
        return np.dtype(self._stored_reader.dtype)

    @property
    def parts(self) -> int:
        """Real numbers in an entry, of which vectors have as many for each column: 2 of complex ones, else 1."""
        return int(getattr(self.reader, "parts", 1))

    @property
    def _stored_reader(self) -> Any:
        """The reader of entries as they are stored."""
        return self.reader.inner if self.parts == 2 else self.reader

    @property
    def of_csr(self) -> bool:
        """Say whether sums over the columns are of CSR rows, and so about zero."""
        return bool(getattr(self.reader, "of_csr", self.reader.layout == "csr"))

    @property
    def budget(self) -> str | None:
        """The name under which the data have a privacy budget."""
        return None if self.mark is None else str(self.mark.get("dataset"))

    @property
    def said(self) -> dict[str, Any]:
        """Statements about the data when the run began, which it remembers."""
        budget = {} if self.budget is None else {"budget": self.budget}
        return {"notes": [*self.notes], **budget} if self.notes else {}

    @property
    def kept(self) -> dict[str, Any]:
        """Facts of the source that a run remembers as they were when it began."""
        return {"source": self.path} | ({} if self.dim is None else {"dim": self.dim}) | self.said

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Sentences for an answer of one pass, where nothing would tell of bytes that came damaged."""
        array = getattr(getattr(self.reader, "inner", self.reader), "array", None)
        far = fetcher_of(array) if hasattr(array, "store_path") else None
        return () if self.registered or far is None else far.unchecked(self)

    @property
    def dimension(self) -> int:
        """d: real numbers in the vectors that are looked for."""
        return self.reader.shape[1] if self.side is None else self.side

    def with_checksums(self, table: np.ndarray | dict[str, np.ndarray]) -> Source:
        """The same source, its chunks held to the checksums of an earlier pass."""
        return replace(self, reader=replace(self.reader, checksums=table))

    def held_to_digests(self) -> Source:
        """The same source, every chunk compared with its SHA-256 as it is read: what a private run reads.

        So nothing else than what the fingerprint says is ever released. A store of an older version has no digests,
        and is returned as it is.
        """
        if self.digests is None:
            return self
        return replace(self, reader=self.reader.held_to(self.digests))


def notes_in(spec: dict[str, Any]) -> list[str]:
    """Return what was said of the data of a run when it began; an older version noted their budget only."""
    return list(spec.get("notes") or ([of_budget(spec["budget"])] if spec.get("budget") else []))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Arguments of :func:`open_source` beside the data, for who opens them."""

    kind: str | None = None
    dim: str | int | None = None
    spill: str | Path | None = None
    gaps: bool = False
    columns: Any = None


def open_source(
    source: Any,
    kind: str | None = None,
    dim: str | int | None = None,
    spill: str | Path | None = None,
    *,
    gaps: bool = False,
    of_complex: bool = False,
    columns: Any = None,
    exact: bool = True,
) -> Source:
    """Open ``source``: a path, a URL (of a registered scheme too), a ``zarr.Array``, a ``zarr.Group``, a 2-D NumPy
    array or lists of rows (3-D of kind matrices or tensor; a tensor is checked to be symmetric), a SciPy sparse matrix,
    or what :func:`~npmdask.containers.containers.values_of` finds one of these in, or rows that are computed or read
    when they are asked for: a table, a labelled array (its rows along ``dim``), AnnData, a Dask array, a dataset of
    HDF5.

    ``kind`` (samples, symmetric, matrix, sparse, matrices, tensor) overrides what the store says of itself;
    without either a plain 2-D array is a matrix. ``spill``: a folder for rows that are computed, so that they are
    computed once. ``gaps``: missing values of tables, masked arrays and files become NaN, for a rule that treats them.
    ``of_complex``: the caller can take complex numbers, which are refused otherwise. ``columns``: of a table, as of
    :func:`npmdask.ingest`; an address chooses them, too (:mod:`npmdask.core.storage.columns`).
    ``exact``: False where nothing is made of the data, or only what their privacy budget pays for.

    What their user has to know (``notes``), that they have such a budget first of all, is warned of here.

    Raises
    ------
    BadInputError
        Nothing there, not a Zarr store, wrong dimensions or dtype, or a kind that the data cannot have.
    """
    if kind is not None and kind not in KINDS:
        raise BadInputError(f"unknown kind {kind!r}: {closest(kind, list(KINDS))}")
    opened = opened_as(source, Asked(kind=kind, dim=dim, spill=spill, gaps=gaps, columns=columns))
    if opened.parts == 2:
        _require_complex(opened, taken=of_complex)
    notes = opened.notes
    if exact and opened.budget is not None:
        notes = (of_budget(opened.budget), *notes)
    warn(*notes)
    labels = None if opened.labels is None else opened.labels.fitting(opened.shape)
    return replace(opened, labels=labels, notes=notes if exact else ())


def _require_complex(opened: Source, *, taken: bool) -> None:
    """Raise BadInputError of complex numbers for a caller, or a kind of data, that knows real ones only."""
    if not taken:
        raise BadInputError(
            f"{opened.path} holds {opened.dtype}, but real numbers are needed here: only npmdask.top_k and `npmdask "
            "run` on dense rows accept complex numbers. Give real and imaginary parts as separate columns"
        )
    if not opened.traits.may_be_complex:
        raise BadInputError(
            f"{opened.path} holds {opened.dtype}, which kind = {opened.kind!r} does not allow: use kind = 'samples', "
            "'matrix' or 'symmetric' (Hermitian)"
        )


def opened_as(source: Any, asked: Asked) -> Source:
    """Open what is given: here where it is NumPy's or Zarr's, else as the feature for it does."""
    if isinstance(source, str | os.PathLike):
        return _opened_at(at(source, asked.columns), asked)
    if asked.columns is None:
        if hasattr(type(source), "as_source"):  # it knows better what it is
            return source.as_source(asked.kind)
        if isinstance(source, zarr.Array | zarr.Group):
            return open_node_of(source, asked)
        if type(source) in HERE and asked.dim is None:
            return open_array(source, asked)
    return (features.of_type("sources", type(source)) or features.required("sources", "object")).opened(source, asked)


def _opened_at(source: str | Path, asked: Asked) -> Source:
    """Open what a path or a URL leads to."""
    text, local = os.fspath(source), not is_url(source)
    far = None if local or isinstance(source, Path) else features.found("sources", text.partition(OF_URL)[0] + OF_URL)
    if asked.dim is not None and far is None:
        return features.required("sources", "grid")(text, asked)
    if (opener := _opener_of(source)) is not None:
        require_no_credentials(text)
        return opener(text, asked)
    gram = features.found("sources", RUN) if local and (Path(text) / RUN).is_file() else None
    if gram is not None and (opened := gram(Path(text), asked)) is not None:
        return opened
    if far is not None:
        require_stored(source, asked)
        return far(text, asked)
    if text.startswith(IN_MEMORY):
        require_stored(source, asked)
        raise BadInputError(
            f"the data were in the memory of a program ({text}): to resume, that program must call the same "
            "function again, with the same data and store"
        )
    path = local_path(source, "an array that is opened", schemes())
    if not is_zarr(path):
        for where in ("repository", "file"):  # what lies in them has a path, too
            if (opener := features.found("sources", where)) and (opened := opener(source, path, asked)):
                return opened
    require_stored(source, asked)
    return open_stored(_node_at(path), str(path), asked)


def _numbers_of(kind: str | None) -> Callable[[Any, str], np.ndarray]:
    """Return what makes an array of what lies in memory, of a kind that may be complex and of others."""
    return number_array if kind is None or traits_of(kind).may_be_complex else real_array


def _array_of(given: Any, *, gaps: bool, numbers: Callable[[Any, str], np.ndarray]) -> np.ndarray:
    """Return what lies in memory, as an array of ``numbers``; with ``gaps`` masked ones are NaN."""
    masked: Any = given
    if gaps and isinstance(given, np.ma.MaskedArray) and given.dtype.kind in "iuf" and np.ma.is_masked(given):
        given = masked.astype(np.promote_types(given.dtype, np.float32)).filled(np.nan)
    if not isinstance(given, np.ndarray | list | tuple) and not hasattr(given, "__array__"):
        raise BadInputError(
            f"data of type {type(given).__name__} are not accepted: give the path or URL of a Zarr store, a zarr.Array "
            "or zarr.Group, a NumPy or Dask array of real numbers, lists of rows, a SciPy sparse matrix, a table of "
            "pandas, Polars or PyArrow, an xarray.DataArray, an AnnData, a dataset of h5py, a session of icechunk or a "
            "LinearOperator of SciPy"
        )
    return numbers(given, "the values")


def require_stored(source: Any, asked: Asked) -> None:
    """Raise BadInputError for arguments that data in a store cannot have."""
    if asked.dim is not None:
        raise BadInputError(
            f"dim = {asked.dim!r} applies only to arrays in memory or opened lazily: open {source} with xarray, as "
            "xarray.open_zarr(path, chunks={})['name'], and give that"
        )
    require_computed(asked)


def require_computed(asked: Asked) -> None:
    """Raise BadInputError for a folder for computed rows where none are computed."""
    require(
        asked.spill is None,
        "spill applies only to rows that are computed (Dask, xarray): leave it out for stored data",
    )


def open_array(given: Any, asked: Asked) -> Source:
    """Open what lies in memory: an array, or what NumPy makes one of."""
    array, side = _array_of(given, gaps=asked.gaps, numbers=_numbers_of(asked.kind)), None
    require_computed(asked)
    if (traits := traits_of(asked.kind)).cube:
        return features.required("sources", asked.kind or "")(array, asked)
    if traits.flattened:
        n, side = require_square_matrices(array.shape, "the array")
        array = array.reshape(n, -1)
    if array.ndim != 2:
        more = "; or pass kind='tensor' (d x d x d) or kind='matrices' (n x d x d)" if array.ndim == 3 else ""
        raise BadInputError(f"the array has {array.ndim} dimensions; 2 are needed (rows x columns){more}")
    return open_stored(_in_memory(array), content_of(array), asked, side=side)


def open_node_of(node: Any, asked: Asked) -> Source:
    """Open a Zarr array or group that a program has opened."""
    require_stored(node, asked)
    require_no_pickle(node)
    far = fetcher_of(node)
    return open_stored(node, (IN_MEMORY if far and far.of_a_program else "") + location(node), asked)


def open_stored(node: Any, path: str, asked: Asked, *, side: int | None = None) -> Source:
    """Open the Zarr array or group that ``path`` leads to. ``side``: of rows that are matrices.

    Raises
    ------
    BadInputError
        Its record is damaged, or its data have not the kind that is asked for.
    """
    try:
        opened = _open_any(node, path, asked.kind)
        opened = replace(opened, side=opened.side if side is None else side, mark=mark_of(node))
    except (KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        if isinstance(error, BadInputError):
            raise
        said = f"{type(error).__name__}: {error}"
        raise BadInputError(f"the record of {path} is damaged ({said}); ingest the source again") from error
    return consistent(opened)


def in_parts(reader: Any) -> Any:
    """Return a reader of rows as it is read: complex ones as the feature for them does."""
    return reader if reader.dtype.kind != "c" else features.required("readers", "complex")(reader)


def _open_any(node: Any, path: str, kind: str | None) -> Source:
    if isinstance(node, zarr.Array):
        return _array_source(node, path, kind)
    record = dict(node.attrs).get("npmdask")
    if record is None:
        return _group(node, path, kind)
    return _registered(node, path, kind or record["kind"], record)


def _node_at(path: Path) -> Any:
    """Open the Zarr store at a path, or say what else is there."""
    make = f"make one with `npmdask ingest {quote(str(path))} {quote(f'{path.stem}.zarr')}`"
    if addressed(path)[1] is not None and Path(addressed(path)[0]).exists():
        raise BadInputError(f"columns are chosen of tables (CSV, Parquet, data frames), not of {path}: leave them out")
    if not path.exists():
        partial = path.with_name(path.name + ".partial")
        begun = f"; {partial.name} beside it is an unfinished ingest: run that again"
        hint = begun if partial.exists() else "; check the path"
        raise BadInputError(f"there is nothing at {path}{hint}")
    if path.name.endswith(".partial"):
        raise BadInputError(f"{path} is an unfinished ingest: run the same `npmdask ingest` or `generate` again")
    if (path / RUN).exists() and not (path / "zarr.json").exists():
        features.require("sources", RUN)
        raise BadInputError(
            f"{path} is the store of a run or a Gram, but rows are needed here: give the data that it was made from"
        )
    try:
        return open_node(path)
    except BadInputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInputError(f"{path} is not a Zarr store, or its zarr.json is damaged; {make}") from error


def _in_memory(array: np.ndarray) -> Any:
    chunks = (max(1, min(1024, array.shape[0])), max(1, array.shape[1]))
    held = zarr.create_array({}, shape=array.shape, dtype=array.dtype, chunks=chunks, **PLAIN)
    held[...] = array
    return held


def content_of(array: np.ndarray) -> str:
    return f"memory, content {crc32c(np.ascontiguousarray(array)):08x}"


def _array_source(array: Any, path: str, kind: str | None) -> Source:
    if traits_of(kind).cube:
        raise _never_packed(array, path)
    if array.ndim != 2 or 0 in array.shape:
        first = "matrices (n x d x d) and tensors (d x d x d) are ingested first, with `--kind matrices` or `tensor`"
        more = f"; {first}" if array.ndim == 3 else ""
        raise BadInputError(f"{path} has shape {array.shape}; a 2-D array that is not empty is needed{more}")
    require(array.dtype.kind in "iufbc", f"{path} holds {array.dtype}; real numbers are needed")
    reader = DenseReader(array=decoded(array))
    names = dimensions_of(array)
    labels = None if names is None else Labels(*((Axis(*one),) for one in zip(names, array.shape, strict=True)))
    facts = {"shape": reader.shape, "dtype": reader.dtype.str, "where": _memory(path), **convention_facts(reader.array)}
    return Source(
        path=path,
        kind=kind or "matrix",
        reader=in_parts(reader),
        fingerprint=outside(array, facts),
        registered=False,
        labels=labels,
    )


def outside(node: Any, facts: dict[str, Any]) -> str:
    """Fingerprint of what can be seen without reading: layout; names, sizes, times or tags of the files or objects; of
    a snapshot of icechunk its id and the place in it.
    """
    if (root := getattr(node.store_path.store, "root", None)) is not None:
        folder = Path(str(root)) / node.path
        files = (Path(base) / name for base, _, names in os.walk(folder) for name in names)
        stats = ((str(f.relative_to(folder)), f.stat()) for f in files if f.exists())  # a link may lead nowhere
        facts = {**facts, "files": sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)}
    elif (far := fetcher_of(node)) is not None:
        facts = {**facts, **far.seen(node)}
    return fingerprint(facts, [])


def _never_packed(array: Any, path: str) -> BadInputError:
    """Return the error for a plain array that is to be a tensor."""
    require_cube(array.shape, path)
    chunks = " x ".join(map(str, array.chunks))
    cut = "" if len(set(array.chunks)) == 1 else f" in chunks of {chunks}, which are not cubes"
    return BadInputError(
        f"{path} holds all d x d x d entries of a tensor{cut}, and it is not known to be symmetric: first store its "
        "unique blocks with `npmdask ingest SRC DEST --kind tensor`, or give it as a NumPy array if it fits into "
        "memory"
    )


def _memory(path: str) -> str:
    """An array in memory is known by its content; what lies on disk may be moved."""
    return path if path.startswith("memory, content") else ""


def _registered(group: Any, path: str, kind: str, record: dict[str, Any]) -> Source:
    require(record.get("format") == 1, f"{path} has npmdask format {record.get('format')}; this version reads format 1")
    shape = tuple(int(n) for n in record["shape"])
    for array in (group["data"],) if "data" in group else ():
        require_undecoded(dict(array.attrs), array.dtype, location(array), "an npmdask store")
    try:
        beside = {name: _checked(group, path, name, crc) for name, crc in record["beside"].items()}
        truth = None
        if "truth/basis" in beside:
            truth = Truth(basis=beside["truth/basis"], values=beside["truth/values"])
        reader: Reader
        if (traits := traits_of(record["kind"])).cube:
            reader = features.required("readers", record["kind"])(group["data"], shape[0], beside["checksums"])
        elif record.get("layout") == "packed":
            reader = features.required("readers", "packed")(group["data"], shape[0], beside["checksums"])
        elif "X" in group:
            names = ("data", "indices", "indptr")
            reader = open_csr(group["X"], (shape[0], shape[1]), {n: beside[f"checksums/{n}"] for n in names})
        else:
            reader = DenseReader(array=group["data"], checksums=beside["checksums"])
            if reader.dtype.kind not in "iufb":
                raise BadInputError(f"{path} holds {reader.dtype}, which npmdask never stores: ingest the source again")
        require(reader.shape == shape, f"{path} holds {' x '.join(map(str, reader.shape))}, its record says {shape}")
    except (KeyError, OSError) as error:
        raise BadInputError(f"{path} is incomplete ({error} is missing); ingest the source again") from error
    digests = reader.recorded_digests(beside)
    if digests is not None and _printed(record, reader, beside) != record["fingerprint"]:
        raise BadInputError(f"the fingerprint of {path} is not that of its chunks; ingest the source again")
    known = {"column_mean", "column_m2"} <= beside.keys()
    return Source(
        path=path,
        kind=kind,
        reader=reader,
        fingerprint=record["fingerprint"],
        digests=digests,
        gaps=record.get("gaps", False),
        registered=True,
        mirrored=traits.mirrored,
        trace=record.get("trace"),
        squared_frobenius=record.get("squared_frobenius"),
        statistics=ColumnStatistics.of(beside, shape[0], sparse=reader.layout == "csr") if known else None,
        truth=truth,
        side=record.get("side"),
        words=beside.get("words"),
        labels=_recorded_labels(beside),
        notes=tuple(record.get("notes", ())),
    )


def _recorded_labels(beside: dict[str, np.ndarray]) -> Labels | None:
    """Read what a store says that its columns are called; of documents the words."""
    if "labels" in beside:
        return Labels.of_array(beside["labels"])
    if "words" in beside:
        return Labels(columns=(axis_of("word", beside["words"].tobytes().decode().split("\n")),))
    return None


def _printed(record: dict[str, Any], reader: Reader, beside: dict[str, np.ndarray]) -> str:
    """The fingerprint that the record must have: what the writer has made it of."""
    sparse = reader.layout == "csr"
    facts = {name: record[name] for name in ("shape", "dtype", "chunks", *(["entries"] if sparse else []))}
    layout = record.get("layout", "csr" if sparse else "dense")
    names = [f"digests/{name}" for name in ("data", "indices", "indptr")] if sparse else ["digests"]
    return fingerprint({**facts, "layout": layout}, [beside[name] for name in names])


def _checked(group: Any, path: str, name: str, crc: int) -> np.ndarray:
    """A small array of the record: a lost chunk of it would silently read as zeros, too."""
    array = Boxes(group[name], fill=True)[...]
    require(crc32c(array) == crc, f"{name} of {path} is damaged or incomplete; ingest the source again")
    return array


def _group(group: Any, path: str, kind: str | None) -> Source:
    attrs = dict(group.attrs)
    if attrs.get("encoding-type") == "anndata" and "X" in group:
        return replace(_open_any(member(group, "X"), f"{path}/X", kind), labels=gene_labels(group, "X"))
    if attrs.get("encoding-type") == "csr_matrix":
        group = member(group)
        require_plain_parts(group)
        reader = open_csr(group, (int(attrs["shape"][0]), int(attrs["shape"][1])), None)
        facts = {
            "shape": reader.shape,
            "entries": reader.entries,
            "dtype": reader.dtype.str,
            "chunks": reader.chunk,
            **({"where": path} if _memory(path) else {}),
        }
        print_ = outside(group, facts)
        return Source(path=path, kind=kind or "sparse", reader=reader, fingerprint=print_, registered=False)
    if attrs.get("encoding-type") == "csc_matrix":
        raise BadInputError(
            f"{path} is sparse by columns (CSC), and runs read rows: store it by rows with `npmdask ingest "
            f"{quote(path)} NEW.zarr`, or in Python as adata.X.tocsr()"
        )
    if "call_genotype" in group:
        raise genotypes(path)
    dimensions, said = (3, "three") if traits_of(kind).cube else (2, "two")
    nodes = dict(group.arrays())
    only, arrays = the_only({name: array.shape for name, array in nodes.items()}, dimensions, nodes)
    if only is not None:
        return _array_source(member(group, only), f"{path}/{only}", kind)
    names, name = ", ".join(sorted(arrays)) or "none", f"{path}/NAME"
    if (far := fetcher_of(group)) is not None:
        names, name = far.named(group, names, path)
    larger = " or larger ones" if any(nodes[one].ndim > dimensions for one in arrays) else ""
    raise BadInputError(
        f"{path} is a group with {len(arrays)} {said}-dimensional arrays{larger} ({names}): name one, as {name}"
        + (f"; {ALONG}" if larger else "")
    )


def consistent(source: Source) -> Source:
    layout, traits, side = source.reader.layout, source.traits, source.side
    cubes, shape, unfit = layout == "tensor", source.shape, f"which kind = {source.kind!r} does not fit"
    stored = "sparse (CSR)" if layout == "csr" else "dense"
    wrong = {
        f"holds a symmetric tensor of order three ({source.dimension} x {source.dimension} x {source.dimension}), "
        f"{unfit}; use kind = 'tensor'": cubes and not traits.cube,
        f"has shape {shape}: {TENSOR}; leave kind out for what is stored here": traits.cube and not cubes,
        f"holds {side} x {side} matrices as rows of {shape[1]} numbers, {unfit}; use kind = 'matrices'": (
            side is not None and (not traits.flattened or side**2 != shape[1])
        ),
        f"has shape {shape}: {MATRICES}; make a store with `npmdask ingest SRC DEST --kind matrices`": (
            traits.flattened and side is None
        ),
        f"holds the upper triangle of a symmetric matrix only, {unfit}; use kind = 'symmetric', or store all of it "
        "with `npmdask ingest --kind symmetric --layout full`": layout == "triangle" and not traits.square,
        f"is stored {stored}, {unfit}": (layout == "csr") != traits.sparse,
        f"has shape {shape}: a symmetric matrix is square; use kind = 'matrix' or 'samples'": (
            traits.square and shape[0] != shape[1]
        ),
    }
    require(not (why := first_of(wrong)), f"{source.path} {why}")
    return source
