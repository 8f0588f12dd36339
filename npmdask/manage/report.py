"""Summarise a run for people and scripts: facts, a report as HTML, Markdown or JSON, and files for other tools."""

from __future__ import annotations

import csv
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from npmdask.core.checkpoint.store import RunStore, folder_of, not_finished
from npmdask.core.storage.bundle import write_file_atomically
from npmdask.core.storage.labels import Axis, Labels, as_dataset, require_names
from npmdask.core.storage.paths import local_path
from npmdask.core.storage.source import notes_in
from npmdask.errors import BadInputError, CommitError, extra, require, warn
from npmdask.manage.kinds import PageOptions, kind_of, kind_of_answer
from npmdask.report import Report, as_html, as_json, as_markdown

# The components of a run in files for other tools, with the names of columns: CSV, Parquet, NetCDF, h5ad.


RESIDUALS = "residual_norms"
OF_SCANPY = {"explained_variance": "variance", "explained_variance_ratio": "variance_ratio"}  # in uns["pca"]
BESIDE = ("values", RESIDUALS, *OF_SCANPY, "mean_squares", "similarity", "inside", "earlier")  # numbers of components
SIDE = "columns."  # how the names of arrays begin that say what columns of the data are called
GRID = "grid."  # and those of the whole grid, where some of its columns were left out


class _WholeFile:
    """The file at ``target``, which appears whole (:meth:`publish`) or not at all; ``names``: what is in it."""

    _file: Any = None  # while it is written

    def __init__(self, target: Path) -> None:
        self.names: list[str] = []
        self._target, self._aside = target, target.with_name(f".writing-{os.getpid()}-{target.name}")

    def about(self, facts: Mapping[str, Any]) -> None:
        """Leave it out: there is no place for it."""

    def publish(self) -> None:
        """Put the file in its place."""
        self._close()
        os.replace(self._aside, self._target)

    def drop(self) -> None:
        """Remove what was not published; after that nothing."""
        with suppress(OSError):  # a disk that is full refuses the end of it, too
            self._close()
        self._aside.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


class LabelledFile(_WholeFile):
    """A sink that collects the arrays of an answer and finally writes some of them, with ``write``.

    ``complex_too``: it has a place for complex components.
    """

    complex_too: ClassVar[bool] = False

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self._arrays, self._facts = dict[str, np.ndarray](), dict[str, Any]()

    def array(self, name: str, array: np.ndarray) -> None:
        """Keep an array."""
        self._arrays[name] = array

    def rows(self, name: str, shape: tuple[int, int], blocks: Iterable[np.ndarray]) -> None:
        """Leave it out: it may be larger than memory."""

    def about(self, facts: Mapping[str, Any]) -> None:
        """Keep what is to be known of all of it."""
        self._facts |= facts

    def publish(self) -> None:
        """Write the file, and move it to its place.

        Raises
        ------
        BadInputError
            The answer has no components of columns, as that of topics or of a tensor.
        """
        if "basis" not in self._arrays:
            raise BadInputError(
                f"{self._target}: this answer ({', '.join(self._arrays)}) has no components: export it as .npz"
            )
        if not self.complex_too and self._arrays["basis"].dtype.kind == "c":
            raise BadInputError(
                f"{self._target}: the components are complex, and {self._target.suffix} files hold real numbers only: "
                "export them as .npz, or as .csv or .parquet (columns of real and imaginary parts)"
            )
        self.names = self.write(self._aside)
        super().publish()

    @property
    def axes(self) -> list[Axis]:
        """Return the axes that a row of the data consists of."""
        return self.named(SIDE) or [Axis("column", len(self._arrays["basis"]), np.arange(len(self._arrays["basis"])))]

    def named(self, side: str) -> list[Axis]:
        """The axes whose arrays have names that begin so."""
        held = {name.removeprefix(side): array for name, array in self._arrays.items() if name.startswith(side)}
        return [Axis(name, len(array), array) for name, array in held.items()]

    def table(self) -> dict[str, np.ndarray]:
        """Columns of a table with a line for each column of the data: its names, and its part in each component."""
        basis, axes = self._arrays["basis"], self.axes
        places = np.unravel_index(np.arange(len(basis)), [axis.size for axis in axes])
        parts = {f"component{i + 1}": basis[:, i] for i in range(basis.shape[1])}
        if basis.dtype.kind == "c":
            sides = (("real", np.real), ("imag", np.imag))
            parts = {f"{name}_{side}": of(column) for name, column in parts.items() for side, of in sides}
        names = [f"{axis.name}_" if axis.name in parts else axis.name for axis in axes]
        return {name: axis.places[at] for name, axis, at in zip(names, axes, places, strict=True)} | parts

    def write(self, place: Path) -> list[str]:
        """Write the file at ``place``; returns the names in it."""
        raise NotImplementedError


class CsvFile(LabelledFile):
    """A table as text, with all digits of its numbers."""

    complex_too = True

    def write(self, place: Path) -> list[str]:
        table = self.table()
        columns = (column.astype(str) if column.dtype.kind == "M" else column for column in table.values())
        with open(place, "w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(table)
            lines.writerows(zip(*(column.tolist() for column in columns), strict=True))
        return list(table)


class ParquetFile(LabelledFile):
    """The same table as Parquet."""

    complex_too = True

    def write(self, place: Path) -> list[str]:
        with extra("ingest"):
            import pyarrow as pa
            import pyarrow.parquet as pa_parquet
        table = self.table()
        pa_parquet.write_table(pa.table({name: pa.array(column) for name, column in table.items()}), place)
        return list(table)


class NetcdfFile(LabelledFile):
    """Components on their grid, NaN where columns of it were left out."""

    def write(self, place: Path) -> list[str]:
        arrays = self._arrays
        beside: dict[str, np.ndarray] = {name: arrays[name] for name in BESIDE if name in arrays}
        over = {name: arrays[name] for name in ("mean",) if name in arrays}
        labels = Labels(columns=tuple(self.axes), grid=tuple(self.named(GRID)))
        found = as_dataset(labels, arrays["basis"], beside, over, self._facts)
        found.to_netcdf(place)
        return [str(name) for name in found.variables]


class AnnDataFile(LabelledFile):
    """Components of genes: ``varm["PCs"]`` and ``uns["pca"]`` of an AnnData without cells."""

    def write(self, place: Path) -> list[str]:
        with extra(None):
            import anndata
            import pandas as pd
        require(len(self.axes) <= 1, f"{self._target}: an AnnData has names of genes, not a grid: export it as .nc")
        index = pd.Index(self.axes[0].places.astype(str).astype(object))
        found = anndata.AnnData(var=pd.DataFrame(index=index), obs=pd.DataFrame(index=pd.Index([], dtype=object)))
        found.varm["PCs"] = self._arrays["basis"]
        beside = [name for name in BESIDE if name in self._arrays and name != RESIDUALS]
        found.uns["pca"] = {OF_SCANPY.get(name, name): self._arrays[name] for name in beside}
        found.write_h5ad(place)
        return ["varm/PCs", *(f"uns/pca/{name}" for name in found.uns["pca"])]


LABELLED = {".csv": CsvFile, ".parquet": ParquetFile, ".nc": NetcdfFile, ".h5ad": AnnDataFile}


def summary(answer: Any) -> dict[str, Any]:
    """List the facts of an answer as plain numbers and strings: the JSON that other people's scripts rely on."""
    return kind_of_answer(answer).summary(answer)


def report_of(store: str | Path, page: PageOptions | None = None) -> Report:
    """Report a run, finished or not, as data; ``page``: as :func:`write_report`.

    Raises
    ------
    BadInputError
        There is no run, or nothing was committed yet.
    """
    run = RunStore(store)
    spec = _spec_of(run)
    return kind_of(spec).report_with(run, spec, page or PageOptions())


def _spec_of(run: RunStore) -> dict[str, Any]:
    """Read the request of a run, and repeat the warnings about its data, as its answer is taken elsewhere."""
    spec = run.read_spec()
    if spec is None:
        raise not_finished(run.path)
    warn(*notes_in(spec))
    return spec


PYLDAVIS = ".json"  # the ending of topics that are exported as pyLDAvis reads them
WHOLE = (".npz", "")  # endings of an answer with all its arrays
FORMS = ("", ".html", ".htm", ".md", ".json")


def write_report(
    store: str | Path,
    output: str | Path | None = None,
    links: Mapping[str, str | Path] | None = None,
    page: PageOptions | None = None,
) -> Path:
    """Write the report of a run (finished or not) and return its path.

    Parameters
    ----------
    store : folder or URL of the run.
    output : ``report.html`` in the store if None. A name that ends in ``.md`` or ``.json`` is written in that form, one
        that ends in ``.html`` or has no ending as a page.
    links : other pages to name at the end of a page, by title.
    page : what it shows beyond what it does by itself: colours of rows, a grid of columns, scores of large data.

    Raises
    ------
    BadInputError
        There is no run, nothing was committed yet, or ``output`` names no file that can be written.
    """
    given = None if output is None else local_path(output, "the report")
    target = given or RunStore(store).path.absolute() / "report.html"
    require(target.suffix in FORMS, f"{target}: a report is written as .html, .md or .json; give a name that ends so")
    found = report_of(store, page)
    if not target.parent.is_dir():
        raise BadInputError(f"{target.parent} is not a folder, so no report can be written there; create it first")
    match target.suffix:
        case ".md":
            text = as_markdown(found)
        case ".json":
            text = json.dumps(as_json(found)) + "\n"
        case _:
            text = as_html(found, links, target.parent)
    write_file_atomically(target, text.encode())
    return target


# The answer as one ``.npz``: ``basis``, ``values`` and, for a matrix, ``left_basis``, written out of core.
#
# Of a private run all that was released: the spread of the values, and the low-rank factors ``A ~ left @ right.T``.
# Of a stream ``basis``, ``values`` and ``mean`` (if it is centred) as of its last commit: it has an answer while it
# runs, and when it was killed, too. Of a job its arrays under their names: ``topics``, ``alpha`` and ``vocabulary``,
# or those of a mixture or of independent components.


def export(
    store: str | Path,
    target: str | Path,
    *,
    rotate: str | None = None,
    align_to: str | None = None,
    columns: Sequence[str] | None = None,
) -> list[str]:
    """Write the result of a finished run, or what a stream has learnt so far; returns the names in the file.

    ``target`` ends in ``.npz`` for all arrays, in ``.csv`` or ``.parquet`` for a table with a line for each column of
    the data, in ``.nc`` (NetCDF, as ``Solution.to_xarray``) or in ``.h5ad`` (AnnData, as scanpy has it) for the
    components with their names, in ``.json`` for topics as pyLDAvis reads them (one pass over the documents).
    ``left_basis`` (m x k) is in an ``.npz`` only, and may be larger than memory: it is streamed, a row of chunks at a
    time.

    ``rotate`` ("varimax", "promax", "procrustes", "none") and ``align_to`` (the store of an earlier run) turn the
    components of rows (npmdask.rotations.presentation). A run that was reported turned is exported so, unless
    ``rotate`` is "none". Written are then ``basis``, ``rotation``, ``correlations``, ``score_weights`` and, of an
    alignment, ``earlier``, ``similarity`` and ``inside``.

    ``values`` of samples have n in the denominator, as the bounds of their errors have. Of a centred run
    ``explained_variance`` (n - 1, as ``numpy.cov`` and scikit-learn have it) and ``explained_variance_ratio`` are
    written as well, whether components are turned or not; turned ones of other runs have ``mean_squares``.

    ``columns``: what columns are called, of a run that keeps no names, as a private one: those that are public.

    Raises
    ------
    BadInputError
        The run is not finished; the stream has not committed rows enough for an answer; or a chunk of the left
        vectors is missing or damaged (resuming the run makes it again). A ``.json`` file is asked of other than topics.
    CommitError
        The file cannot be written.
    """
    target = local_path(target, "the file that is exported")
    store = folder_of(store)
    spec = _spec_of(RunStore(store))
    suffix = target.suffix.lower()
    if suffix not in (*LABELLED, *WHOLE, PYLDAVIS):
        raise BadInputError(
            f"{target}: an answer is written as .npz (all arrays), {', '.join(LABELLED)} (components by name) or "
            f"{PYLDAVIS} (topics, for pyLDAvis); give a name that ends so"
        )
    if target.is_dir() or not target.parent.is_dir():
        raise BadInputError(
            f"{target} is a folder: give the name of a file"
            if target.is_dir()
            else f"{target.parent} is not a folder, so nothing can be exported to it; create it first"
        )
    archive: Any = JsonFile(target) if suffix == PYLDAVIS else LABELLED.get(suffix, Archive)(target)
    try:
        kind = kind_of(spec)
        if suffix == PYLDAVIS:
            _require_unturned(target, rotate, align_to)
            kind.export_pyldavis(store, archive)
        elif not kind.export_turned(store, archive, rotate, align_to):
            kind.export(store, archive)
        if columns is not None:
            _name_columns(store, archive, columns)
        with written(target):
            archive.publish()
    finally:
        archive.drop()
    return archive.names


def _name_columns(store: Path, archive: Any, names: Sequence[str]) -> None:
    run = RunStore(store)
    part, labels = run.read_part("result"), run.read_part("labels")
    if part is None or "basis" not in part[0]:
        raise BadInputError(f"{store} has no components of columns that could have names: leave --columns out")
    given = require_names(names, len(part[0]["basis"]), None if labels is None else Labels.of_bundle(*labels))
    for name, values in given.named().items():
        archive.array(name, values)


def _require_unturned(target: Path, rotate: str | None, align_to: str | None) -> None:
    if rotate is not None or align_to is not None:
        raise BadInputError(f"{target}: topics are not rotated or aligned; leave rotate and align_to out")


class Archive(_WholeFile):
    """The ``.npz`` at ``target``, whole (:meth:`publish`) or not at all."""

    def array(self, name: str, array: np.ndarray) -> None:
        """Write an array that is in memory."""
        with self._member(name) as file:
            np.lib.format.write_array(file, array, allow_pickle=False)

    def rows(self, name: str, shape: tuple[int, int], blocks: Iterable[np.ndarray]) -> None:
        """Write a matrix of float64 or complex128 from its rows, a block after the other."""
        parts = iter(blocks)
        first = next(parts)
        dtype = "<c16" if first.dtype.kind == "c" else "<f8"
        with self._member(name) as file:
            np.lib.format.write_array_header_2_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
            for block in chain([first], parts):
                file.write(np.ascontiguousarray(block, dtype).tobytes())

    @contextmanager
    def _member(self, name: str) -> Iterator[IO[bytes]]:
        """A file in the archive, which is begun with the first."""
        with written(self._target):
            if self._file is None:
                self._file = zipfile.ZipFile(self._aside, "w", allowZip64=True)
            with self._file.open(f"{name}.npy", "w", force_zip64=True) as file:
                yield file
        self.names.append(name)


class JsonFile(_WholeFile):
    """The JSON object at ``target``, whole (:meth:`publish`) or not at all; a matrix is a list of its rows.

    Numbers have all their digits. ``names``: what is in it.
    """

    def array(self, name: str, array: np.ndarray) -> None:
        """Write an array that is in memory."""
        self._member(name, [array])

    def rows(self, name: str, shape: tuple[int, int], blocks: Iterable[np.ndarray]) -> None:
        """Write a matrix from its rows, a block after the other."""
        self._member(name, blocks)

    def publish(self) -> None:
        """End the object, and put the file in its place."""
        if self._file is not None:
            self._file.write("}\n")
        super().publish()

    def _member(self, name: str, blocks: Iterable[np.ndarray]) -> None:
        with written(self._target):
            if self._file is None:
                self._file = open(self._aside, "w", encoding="utf-8")
            self._file.write(f"{',' if self.names else '{'}{json.dumps(name)}: [")
            for number, block in enumerate(block for block in blocks if len(block)):
                self._file.write(("," if number else "") + json.dumps(block.tolist())[1:-1])
            self._file.write("]")
        self.names.append(name)


@contextmanager
def written(target: Path) -> Iterator[None]:
    """Around writing of ``target``: turn what a file system has against it into a sentence."""
    try:
        yield
    except OSError as error:
        raise CommitError(f"cannot write {target}: {error.strerror or error}; the run itself is intact") from error
