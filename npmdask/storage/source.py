"""Opening what people point at: an npmdask store, a plain Zarr array or group, an AnnData CSR group, an array."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from shlex import quote
from typing import Any, cast

import numpy as np
import zarr

from npmdask.errors import BadInputError, NpmdaskError, RefusedError, closest, require, warn
from npmdask.numerics.domains import one_of
from npmdask.storage.checksum import crc32c, fingerprint
from npmdask.storage.chunk_access import PLAIN, Boxes, location
from npmdask.storage.column_statistics import ColumnStatistics
from npmdask.storage.columns import addressed, at, choice_of, genotypes
from npmdask.storage.containers import is_linear_operator, is_sparse, labels_of, sparse_in_memory, table_of, values_of
from npmdask.storage.conventions import (
    convention_facts,
    decoded,
    dimensions_of,
    member,
    require_plain_parts,
    require_undecoded,
)
from npmdask.storage.formats.common import ALONG, the_only
from npmdask.storage.formats.compressed import gene_labels
from npmdask.storage.formats.numpy_files import raw_header
from npmdask.storage.ingest import copy_of, file_of, hold
from npmdask.storage.kinds import (
    KINDS,
    MATRICES,
    TENSOR,
    number_array,
    real_array,
    require_cube,
    require_square_matrices,
)
from npmdask.storage.labels import Axis, Labels, axis_of
from npmdask.storage.object_url import SCHEMES, is_remote, open_remote, outside, require_no_credentials
from npmdask.storage.paths import is_url, local_path
from npmdask.storage.readers.complex_parts import ComplexReader, in_parts
from npmdask.storage.readers.computed import Rows, open_rows
from npmdask.storage.readers.dense import DenseReader
from npmdask.storage.readers.gaps import (
    DROP,
    FILL,
    REFUSE,
    RULES,
    GapReader,
    Marks,
    as_nan,
    columns_with_values,
    lacking_values,
)
from npmdask.storage.readers.lazy import BlockRows, mapped_rows, open_block_rows, spilled
from npmdask.storage.readers.matrix_free import open_linear_operator
from npmdask.storage.readers.packed import TensorReader, TriangleReader, open_packed, open_packed_tensor
from npmdask.storage.readers.sparse import CsrReader, open_csr
from npmdask.storage.safe_open import mark_of, of_budget, open_node, require_no_pickle
from npmdask.storage.snapshots import arrays_in, in_repository, is_of_icechunk, open_repository
from npmdask.storage.writers.packed import packed_in_memory

IN_MEMORY = "memory, "  # of what a program holds: so begins what is written down instead of a path
Reader = DenseReader | ComplexReader | GapReader | CsrReader | TriangleReader | TensorReader
OF_COMPLEX = ("samples", "matrix", "symmetric")  # kinds of data that may be complex
Opener = Callable[[str], Rows]
ENTRY_POINTS = "npmdask.sources"  # group of an installed package: scheme = module:opener
_OPENERS: dict[str, Opener] = {}


def register_source(scheme: str, opener: Opener) -> None:
    """Let URLs that begin with ``scheme://`` be opened by ``opener``, everywhere in this process.

    A package that is installed needs no call: ``[project.entry-points."npmdask.sources"]`` with ``scheme =
    "module:opener"`` makes the command line and worker processes know it too.

    Parameters
    ----------
    scheme : two letters or more; lower case letters, digits and ``+.-``.
    opener : makes :class:`npmdask.storage.readers.computed.Rows` of a URL.

    Raises
    ------
    BadInputError
        No scheme, or one that npmdask opens itself.
    """
    if scheme in (*SCHEMES, "file") or not re.fullmatch(r"[a-z][a-z0-9+.-]+", scheme):
        raise BadInputError(f"no source can be registered for {scheme!r}: use your own scheme, such as 'lab'")
    _OPENERS[scheme] = opener


def is_registered(source: Any) -> bool:
    """Whether ``source`` is a URL that a registered opener takes."""
    return _opener_of(source) is not None


def _opener_of(source: Any) -> Opener | None:
    """Who opens this URL: registered here, or by an installed package; None for all others."""
    scheme, found, _ = source.partition("://") if isinstance(source, str) else ("", "", "")
    if not found or scheme in (*SCHEMES, "file"):
        return None
    if scheme not in _OPENERS:
        for entry in entry_points(group=ENTRY_POINTS, name=scheme):
            try:
                _OPENERS[scheme] = entry.load()
            except Exception as error:  # importing a foreign module may raise anything
                raise BadInputError(
                    f"the package that opens {scheme}:// cannot be imported ({type(error).__name__}: {error}); it "
                    f"names {entry.value!r}: repair or remove it"
                ) from error
    return _OPENERS.get(scheme)


# By a file in a folder that is no array and yet data, what makes a source of the folder, or None if it is something
# else. A room above this one registers itself (npmdask.runs.gram_store).
FOLDERS: dict[str, Callable[[Path, str | None], Source | None]] = {}


def _of_folder(source: str | Path, kind: str | None) -> Source | None:
    """What a room above knows to be data."""
    if is_url(source):
        return None
    known = (make for name, make in FOLDERS.items() if (Path(source) / name).is_file())
    return next((made for make in known if (made := make(Path(source), kind)) is not None), None)


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
    ``words``: what the columns count, of documents, as recorded (npmdask.models.topics.documents).
    ``labels``: what rows and columns are called, where that is known. ``dim``: the dimension of the file at ``path``
    that rows lie along, where that was asked for. ``gaps``: of an ingested store, whether NaN were kept as missing
    values; that is how it was ingested, and does not say whether there are any. ``notes``: what was decided about the
    data that their owner may not expect, in sentences: columns that were left out, names that were not compared.
    ``order``: where the columns that are asked for lie among those that are read; None: they are those.
    """

    path: str
    kind: str
    reader: Reader
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
    def shape(self) -> tuple[int, ...]:
        """Rows and columns; (d, d, d) of a tensor."""
        return self.reader.inner.shape if isinstance(self.reader, ComplexReader) else self.reader.shape

    @property
    def column_mean(self) -> np.ndarray | None:
        """Means of the columns (d), where they are known."""
        return None if self.statistics is None else self.statistics.mean

    @property
    def dtype(self) -> np.dtype:
        """Of the entries."""
        return self.reader.inner.dtype if isinstance(self.reader, ComplexReader) else self.reader.dtype

    @property
    def parts(self) -> int:
        """Real numbers in an entry, of which vectors have as many for each column: 2 of complex ones, else 1."""
        return 2 if isinstance(self.reader, ComplexReader) else 1

    @property
    def of_csr(self) -> bool:
        """Whether sums over the columns are of CSR rows, and so about zero."""
        return bool(getattr(self.reader, "of_csr", self.reader.layout == "csr"))

    @property
    def budget(self) -> str | None:
        """The name under which the data have a privacy budget."""
        return None if self.mark is None else str(self.mark.get("dataset"))

    @property
    def said(self) -> dict[str, Any]:
        """What a run remembers of what was said of its data when it began."""
        budget = {} if self.budget is None else {"budget": self.budget}
        return {"notes": [*self.notes], **budget} if self.notes else {}

    @property
    def kept(self) -> dict[str, Any]:
        """What a run remembers of its source as it was when the run began."""
        return {"source": self.path} | ({} if self.dim is None else {"dim": self.dim}) | self.said

    @property
    def unchecked(self) -> tuple[str, ...]:
        """What to say with an answer of one pass, where nothing would tell of bytes that came damaged."""
        if "://" not in self.path:
            return ()
        from npmdask.storage.on_the_way import unchecked

        return unchecked(self)

    @property
    def dimension(self) -> int:
        """d: real numbers in the vectors that are looked for."""
        return self.reader.shape[1] if self.side is None else self.side

    def with_checksums(self, table: np.ndarray | dict[str, np.ndarray]) -> Source:
        """The same source, its chunks held to the checksums of an earlier pass."""
        return replace(self, reader=replace(self.reader, checksums=table))  # type: ignore[arg-type]

    def held_to_digests(self) -> Source:
        """The same source, every chunk compared with its SHA-256 as it is read: what a private run reads.

        So nothing else than what the fingerprint says is ever released. A store of an older version has no digests,
        and is returned as it is.
        """
        if self.digests is None:
            return self
        return replace(self, reader=self.reader.held_to(self.digests))


def notes_in(spec: dict[str, Any]) -> list[str]:
    """What was said of the data of a run when it began; an older version noted their budget only."""
    return list(spec.get("notes") or ([of_budget(spec["budget"])] if spec.get("budget") else []))


def with_missing(
    source: Source,
    rule: str,
    fill: float | np.ndarray | None = None,
    marks: Marks = (),
    limit: float | None = None,
) -> Source:
    """The same source, its missing values treated as ``rule`` says: "refuse", "drop-columns", "mean" or "fill".

    Columns are left out where the first row has no value; passes hold them to having none at all. What was ingested
    has no missing values, unless they were kept, and integers have none: they are returned as they are, unless there
    are ``marks``: values that mark missing ones. ``fill``: of "fill" what a gap is read as, one number or one for every
    column (d). ``limit``: of "mean" columns that lack more than this share of their values are left out, which a pass
    over the data finds, once in this process.

    Raises
    ------
    BadInputError
        Another rule, no column has a value in the first row, or what gaps are filled with does not fit the data.
    RefusedError
        Data that are not rows of a dense array.
    """
    one_of(RULES, missing=rule)
    reader = source.reader
    if rule == REFUSE or isinstance(reader, GapReader):
        return source
    if source.parts == 2:
        raise RefusedError(
            f"missing = {rule!r} needs real numbers, but {source.path} holds {source.dtype}: leave it out, and fill "
            "in missing values first"
        )
    if source.kind not in ("samples", "matrix") or not isinstance(reader, DenseReader):
        what, remedy = f"of kind {source.kind}", "leave it out, and fill missing values in before"
        if reader.layout == "gram":
            what = "a stored Gram, which has no missing values"
        if reader.layout == "csr":
            what = "sparse, whose entries that are not stored are zeros"
            remedy = "leave it out; or, where they mean missing, give rows with NaN there (docs/missing.md: ratings)"
        raise RefusedError(f"missing = {rule!r} needs samples or a dense matrix, but {source.path} is {what}: {remedy}")
    if not marks and ((source.registered and not source.gaps) or reader.dtype.kind != "f"):
        return source
    if marks:  # means that were recorded took them for values
        source = replace(source, statistics=None)
    reader, axes = as_nan(reader), () if source.labels is None else source.labels.columns
    known: dict[str, Any] = {"axes": axes, "checksums": reader.checksums, "marks": marks}
    if rule == FILL:
        assert fill is not None
        return replace(source, reader=GapReader(inner=reader, rule=rule, fill=_filling(fill, reader), **known))
    if rule != DROP and limit is None:
        return replace(source, reader=GapReader(inner=reader, rule=rule, **known))
    if limit is not None:
        counts = _lacking(source, GapReader(inner=reader, rule=rule, **known))
        kept, known["lacking"] = np.flatnonzero(counts <= limit * reader.shape[0]), counts
    else:
        kept = columns_with_values(GapReader(inner=reader, rule=rule, marks=marks))
    if not len(kept):
        why = "a value in the first row" if limit is None else f"as many values as missing_limit = {limit:g} asks for"
        raise BadInputError(f"no column of {reader.where} has {why}: there are no data to analyse")
    source = replace(source, reader=GapReader(inner=reader, rule=rule, kept=kept, **known))
    if len(kept) == reader.shape[1]:
        return source
    names = axes[0].values if len(axes) == 1 else None
    called = Axis(axes[0].name, len(kept), names[kept]) if names is not None else axis_of("column", kept)
    grid = axes if len(axes) > 1 else ()
    known_labels = source.labels or Labels()
    points = tuple(axis_of(axis.name, axis.places[kept]) for axis in known_labels.points)
    return replace(source, labels=Labels(known_labels.rows, (called,), grid, points))


_COUNTED: dict[Any, np.ndarray] = {}  # of the sources looked at last: a run is planned before it is begun


def _lacking(source: Source, reader: GapReader) -> np.ndarray:
    """How many values each column lacks (d)."""
    key = (source.fingerprint, reader.shape, reader.marks)
    if key not in _COUNTED:
        while len(_COUNTED) >= 8:
            _COUNTED.pop(next(iter(_COUNTED)))
        _COUNTED[key] = lacking_values(reader)
    return _COUNTED[key]


def _filling(fill: float | np.ndarray, reader: DenseReader) -> np.ndarray:
    """What gaps are read as (d), in the dtype of the data. Raises BadInputError where it does not fit."""
    columns, dtype = reader.shape[1], reader.dtype
    values = np.asarray(fill, np.float64)
    if values.ndim and values.shape != (columns,):
        raise BadInputError(
            f"missing_fill has shape {values.shape}, but {reader.where} has {columns} columns: give one number, or "
            "one for each column"
        )
    with np.errstate(over="ignore"):
        held = np.broadcast_to(values, (columns,)).astype(dtype)
    if not np.isfinite(held).all():
        raise BadInputError(
            f"missing_fill holds {values.flat[int(np.argmax(np.abs(values)))]:g}, which {dtype} does not have: give "
            "numbers of the size of the data"
        )
    return held


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
    or what :func:`~npmdask.storage.containers.values_of` finds one of these in, or rows that are computed or read when
    they are asked for: a table, a labelled array (its rows along ``dim``), AnnData, a Dask array, a dataset of HDF5.

    ``kind`` (samples, symmetric, matrix, sparse, matrices, tensor) overrides what the store says of itself;
    without either a plain 2-D array is a matrix. ``spill``: a folder for rows that are computed, so that they are
    computed once. ``gaps``: missing values of tables, masked arrays and files become NaN, for :func:`with_missing`.
    ``of_complex``: the caller can take complex numbers, which are refused otherwise. ``columns``: of a table, as of
    :func:`npmdask.storage.ingest.ingest`; an address chooses them, too (:mod:`npmdask.storage.columns`). ``exact``:
    False where nothing is made of the data, or only what their privacy budget pays for.

    What their user has to know (``notes``), that they have such a budget first of all, is warned of here.

    Raises
    ------
    BadInputError
        Nothing there, not a Zarr store, wrong dimensions or dtype, or a kind that the data cannot have.
    """
    if kind is not None and kind not in KINDS:
        raise BadInputError(f"unknown kind {kind!r}: {closest(kind, list(KINDS))}")
    path = isinstance(source, str | Path)
    source, choice = (at(source, columns), None) if path else (source, choice_of(columns))
    source, labels, notes = table_of(source, choice)
    gridded = dim is not None and isinstance(source, str | Path) and not is_remote(source)
    if gridded:
        from npmdask.storage.wholeness import open_grid  # which a plain matrix does not need

        given, cells, place = open_grid(Path(source), str(dim), gaps=gaps)
        assert cells is not None
        labels, opened = labels_of(given, dim), _computed(cells, kind, spill)
        opened = replace(opened, path=place, dim=str(dim))
    else:
        labels = labels or labels_of(source, dim)
        opened = _opened(source, kind, dim, spill, gaps=gaps)
    if choice is not None:
        opened = replace(opened, path=choice.at(opened.path))
    if opened.parts == 2:
        _require_complex(opened, taken=of_complex)
    labels, notes = labels or opened.labels, (*opened.notes, *notes)
    if exact and opened.budget is not None:
        notes = (of_budget(opened.budget), *notes)
    warn(*notes)
    labels = None if labels is None else labels.fitting(opened.shape)
    return replace(opened, labels=labels, notes=notes if exact else ())


def _require_complex(opened: Source, *, taken: bool) -> None:
    """Raise BadInputError of complex numbers for a caller, or a kind of data, that knows real ones only."""
    if not taken:
        raise BadInputError(
            f"{opened.path} holds {opened.dtype}, but real numbers are needed here: only npmdask.top_k and `npmdask "
            "run` on dense rows accept complex numbers. Give real and imaginary parts as separate columns"
        )
    if opened.kind not in OF_COMPLEX:
        raise BadInputError(
            f"{opened.path} holds {opened.dtype}, which kind = {opened.kind!r} does not allow: use kind = 'samples', "
            "'matrix' or 'symmetric' (Hermitian)"
        )


def _opened(
    source: Any, kind: str | None, dim: str | int | None, spill: str | Path | None, *, gaps: bool = False
) -> Source:
    if (opener := _opener_of(source)) is not None:
        return _given(source, opener, kind)
    if hasattr(type(source), "as_source"):  # it knows better what it is
        return cast(Source, source.as_source(kind))
    if isinstance(source, str | os.PathLike) and (found := _of_folder(str(source), kind)) is not None:
        return found
    if is_linear_operator(source):
        return _matrix_free(source, kind, rows=dim is not None or spill is not None)
    if not isinstance(source, str | os.PathLike | zarr.Array | zarr.Group):
        source = values_of(source, dim, gaps=gaps)
        if isinstance(source, BlockRows):
            return _computed(source, kind, spill)
        held = is_sparse(source) or isinstance(source, zarr.Array | zarr.Group)
        source = source if held else _array_of(source, gaps=gaps, numbers=_numbers_of(kind))
    elif dim is not None:
        raise BadInputError(
            f"dim = {dim!r} applies only to arrays in memory or opened lazily: open {source} with xarray, as "
            "xarray.open_zarr(path, chunks={})['name'], and give that"
        )
    elif isinstance(source, str | Path) and (file := _file_of(source)) is not None:
        return _copied(source, *file, kind, gaps=gaps)
    require(spill is None, "spill applies only to rows that are computed (Dask, xarray): leave it out for stored data")
    if kind == "tensor" and isinstance(source, np.ndarray):
        return _tensor_in_memory(source)
    side = None
    if kind == "matrices" and isinstance(source, np.ndarray):
        n, side = require_square_matrices(source.shape, "the array")
        source = source.reshape(n, -1)
    node, path = _open_node(source)
    try:
        opened = _open_any(node, path, kind)
        opened = replace(opened, side=opened.side if side is None else side, mark=mark_of(node))
    except (KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        if isinstance(error, BadInputError):
            raise
        said = f"{type(error).__name__}: {error}"
        raise BadInputError(f"the record of {path} is damaged ({said}); ingest the source again") from error
    return _consistent(opened)


def _file_of(source: str | Path) -> tuple[Path, str | None] | None:
    """The file that a path leads to, and the array in it; None of everything else."""
    if is_remote(source) or str(source).startswith(IN_MEMORY):
        return None
    path = local_path(source, "an array that is opened", SCHEMES)
    return None if in_repository(path) else file_of(path)


def row_names(source: str | Path) -> Axis | None:
    """What the rows of a table in a file are called, where a column says it, which is read; None of anything else."""
    from npmdask.storage.formats import TABLES, open_file, tell_format

    file = None if is_url(source) else _file_of(source)
    if file is None or tell_format(file[0]) not in TABLES:
        return None
    return open_file(file[0], None, "nan", None, file[0]).row_names()  # nothing is written to a folder


def _copied(source: str | Path, file: Path, array: str | None, kind: str | None, *, gaps: bool) -> Source:
    """What a file of another format holds, from the store that it is read into; with ``gaps`` missing values are NaN.

    It has no SHA-256 of its own: private runs ask for a store that was ingested.
    """
    if array is None and file.suffix.lower() == ".npy" and kind in (None, *OF_COMPLEX) and _is_complex(file):
        return replace(_mapped(file, kind or "samples"), path=str(source))
    own = kind if kind in ("symmetric", "matrices", "tensor") else None  # which are not stored as a table is
    with copy_of(file, array, own, gaps=gaps and own is None) as store:
        opened = _held(store, None if own is None else kind)
        fits = own is not None or kind is None or (opened.kind == "sparse") == (kind == "sparse")
        opened = _held(store, kind) if fits else opened
    if not fits:
        with copy_of(file, array, kind, gaps=gaps and kind != "sparse") as store:
            opened = _held(store, kind)
    return replace(opened, path=str(source), digests=None)


def _held(copy: Path, kind: str | None) -> Source:
    """A copy, opened, that is in use for as long as something reads it."""
    opened = _opened(copy, kind, None, None)
    node: Any = opened.reader.group if isinstance(opened.reader, CsrReader) else opened.reader.array
    hold(copy, node.store_path.store)
    return opened


def _is_complex(file: Path) -> bool:
    """Whether an .npy file holds complex numbers; what else is wrong with it is found where it is read."""
    try:
        with open(file, "rb") as opened:
            return raw_header(opened)[2].kind == "c"
    except (OSError, ValueError, NpmdaskError):
        return False


def _mapped(file: Path, kind: str) -> Source:
    """The complex rows of an .npy file, which are read where they lie: stores hold real numbers."""
    rows = mapped_rows(np.load(file.absolute(), mmap_mode="r", allow_pickle=False))
    if not isinstance(rows, BlockRows):
        raise BadInputError(f"{file} has shape {rows.shape}: rows and columns are needed, at least one of each")
    return _computed(rows, kind, None)


def _given(url: str, opener: Opener, kind: str | None) -> Source:
    """What a registered opener makes of a URL."""
    require_no_credentials(url)
    try:
        rows = opener(url)
    except NpmdaskError:
        raise
    except Exception as error:  # whatever a program raises
        raise BadInputError(
            f"{url} cannot be opened by its registered source ({type(error).__name__}: {error})"
        ) from error
    reader, printed = open_rows(rows, url)
    return _consistent(Source(path=url, kind=kind or "matrix", reader=reader, fingerprint=printed, registered=False))


def _computed(rows: BlockRows, kind: str | None, spill: str | Path | None) -> Source:
    """Rows of a graph, or of an array that is sliced; they are gone with this program, as data in memory are."""
    if kind in ("matrices", "tensor") or (kind == "sparse" and not rows.sparse):
        raise BadInputError(
            f"kind = {kind!r} does not fit {rows.name}, whose rows are dense: use kind = 'samples', 'matrix' or "
            "'symmetric'"
        )
    rows = rows if rows.sparse and kind in (None, "sparse") else rows.as_dense()
    given = rows if spill is None else spilled(rows, str(local_path(spill, "a folder for computed rows")))
    reader, printed = open_block_rows(given)
    kind, where = kind or ("sparse" if rows.sparse else "matrix"), f"{IN_MEMORY}{rows.name}"
    held = in_parts(reader) if isinstance(reader, DenseReader) else reader
    opened = Source(path=where, kind=kind, reader=held, fingerprint=printed, registered=False, mark=rows.mark)
    return _consistent(opened)


def _matrix_free(operator: Any, kind: str | None, *, rows: bool) -> Source:
    """A linear operator; ``rows``: something was said of rows that it has not."""
    if rows or kind not in (None, "matrix", "symmetric"):
        asked = "dim and spill are" if rows else f"kind = {kind!r} is"
        raise BadInputError(
            f"{asked} for data with rows, and the {type(operator).__name__} has products only: leave it out (singular "
            "triplets), or say kind = 'symmetric' (eigenpairs of a self-adjoint one)"
        )
    reader: Any
    reader, printed = open_linear_operator(operator, self_adjoint=kind == "symmetric")
    path = f"{IN_MEMORY}{reader.where}, products {printed[:8]}"
    return Source(path=path, kind=kind or "matrix", reader=reader, fingerprint=printed, registered=False)


def _numbers_of(kind: str | None) -> Callable[[Any, str], np.ndarray]:
    """What makes an array of what lies in memory, of a kind that may be complex and of others."""
    return number_array if kind is None or kind in OF_COMPLEX else real_array


def _array_of(given: Any, *, gaps: bool, numbers: Callable[[Any, str], np.ndarray]) -> np.ndarray:
    """What lies in memory, as an array of ``numbers``; with ``gaps`` masked ones are NaN."""
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


def _open_any(node: Any, path: str, kind: str | None) -> Source:
    if isinstance(node, zarr.Array):
        return _plain(node, path, kind)
    record = dict(node.attrs).get("npmdask")
    if record is None:
        return _group(node, path, kind)
    return _registered(node, path, kind or record["kind"], record)


def _open_node(source: Any) -> tuple[Any, str]:
    if isinstance(source, np.ndarray):
        if source.ndim != 2:
            more = "; or pass kind='tensor' (d x d x d) or kind='matrices' (n x d x d)" if source.ndim == 3 else ""
            raise BadInputError(f"the array has {source.ndim} dimensions; 2 are needed (rows x columns){more}")
        return _in_memory(source), _content(source)
    if is_sparse(source):
        return sparse_in_memory(source)
    if isinstance(source, zarr.Array | zarr.Group):
        require_no_pickle(source)
        opened_by_a_program = is_of_icechunk(source.store_path.store)
        return source, (IN_MEMORY if opened_by_a_program else "") + location(source)
    if is_remote(source):
        return open_remote(source), source
    if str(source).startswith(IN_MEMORY):
        raise BadInputError(
            f"the data were in the memory of a program ({source}): to resume, that program must call the same "
            "function again, with the same data and store"
        )
    path = local_path(source, "an array that is opened", SCHEMES)
    if (inside := in_repository(path)) is not None:
        return open_repository(*inside)
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
    if (path / "run.json").exists() and not (path / "zarr.json").exists():
        raise BadInputError(
            f"{path} is the store of a run or a Gram, but rows are needed here: give the data that it was made from"
        )
    try:
        return open_node(path), str(path)
    except BadInputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInputError(f"{path} is not a Zarr store, or its zarr.json is damaged; {make}") from error


def _in_memory(array: np.ndarray) -> Any:
    chunks = (max(1, min(1024, array.shape[0])), max(1, array.shape[1]))
    held = zarr.create_array({}, shape=array.shape, dtype=array.dtype, chunks=chunks, **PLAIN)
    held[...] = array
    return held


def _content(array: np.ndarray) -> str:
    return f"memory, content {crc32c(np.ascontiguousarray(array)):08x}"


def _tensor_in_memory(array: np.ndarray) -> Source:
    reader, squared = packed_in_memory(array)
    path = _content(array)
    print_ = fingerprint({"shape": reader.shape, "dtype": reader.dtype.str, "where": path}, [])
    held = {"kind": "tensor", "reader": reader, "squared_frobenius": squared, "mirrored": True}
    return Source(path=path, fingerprint=print_, registered=False, **held)  # type: ignore[arg-type]


def _plain(array: Any, path: str, kind: str | None) -> Source:
    if kind == "tensor":
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


def _never_packed(array: Any, path: str) -> BadInputError:
    """What to say of a plain array that is to be a tensor."""
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
        if record["kind"] == "tensor":
            reader = open_packed_tensor(group["data"], shape[0], beside["checksums"])
        elif record.get("layout") == "packed":
            reader = open_packed(group["data"], shape[0], beside["checksums"])
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
        mirrored=record["kind"] in ("symmetric", "tensor"),
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
    """What a store says that its columns are called; of documents the words."""
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
    dimensions, said = (3, "three") if kind == "tensor" else (2, "two")
    nodes = dict(group.arrays())
    only, arrays = the_only({name: array.shape for name, array in nodes.items()}, dimensions, nodes)
    if only is not None:
        return _plain(member(group, only), f"{path}/{only}", kind)
    names, name = ", ".join(sorted(arrays)) or "none", f"{path}/NAME"
    if is_of_icechunk(group.store_path.store):
        names = names if arrays else f"none; further down {arrays_in(group)}"
        session = "zarr.open_array(session.store, path='NAME', mode='r')"
        name = session if path.startswith(IN_MEMORY) else name
    larger = " or larger ones" if any(nodes[one].ndim > dimensions for one in arrays) else ""
    raise BadInputError(
        f"{path} is a group with {len(arrays)} {said}-dimensional arrays{larger} ({names}): name one, as {name}"
        + (f"; {ALONG}" if larger else "")
    )


def _consistent(source: Source) -> Source:
    layout = source.reader.layout
    if layout == "tensor" and source.kind != "tensor":
        raise BadInputError(
            f"{source.path} holds a symmetric tensor of order three ({source.dimension} x {source.dimension} x "
            f"{source.dimension}), which kind = {source.kind!r} does not fit; use kind = 'tensor'"
        )
    if source.kind == "tensor" and layout != "tensor":
        raise BadInputError(f"{source.path} has shape {source.shape}: {TENSOR}; leave kind out for what is stored here")
    if source.side is not None and (source.kind != "matrices" or source.side**2 != source.shape[1]):
        raise BadInputError(
            f"{source.path} holds {source.side} x {source.side} matrices as rows of {source.shape[1]} numbers, which "
            f"kind = {source.kind!r} does not fit; use kind = 'matrices'"
        )
    if source.kind == "matrices" and source.side is None:
        raise BadInputError(
            f"{source.path} has shape {source.shape}: {MATRICES}; make a store with "
            "`npmdask ingest SRC DEST --kind matrices`"
        )
    if layout == "triangle" and source.kind != "symmetric":
        raise BadInputError(
            f"{source.path} holds the upper triangle of a symmetric matrix only, which kind = {source.kind!r} does not "
            "fit; use kind = 'symmetric', or store all of it with `npmdask ingest --kind symmetric --layout full`"
        )
    if (layout == "csr") != (source.kind == "sparse"):
        stored = "sparse (CSR)" if layout == "csr" else "dense"
        raise BadInputError(f"{source.path} is stored {stored}, which kind = {source.kind!r} does not fit")
    if source.kind == "symmetric" and source.shape[0] != source.shape[1]:
        raise BadInputError(
            f"{source.path} has shape {source.shape}: a symmetric matrix is square; use kind = 'matrix' or 'samples'"
        )
    return source
