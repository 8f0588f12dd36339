"""Forming a stored Gram: one pass over the rows that it does not have yet, and which these are.

The rows of chunks that it has are known by their checksums: an ingested store records them; of files size and time say
that they are as they were, as a resume knows them; all others are read again and compared. The last row of
chunks, where it is not full, is a part of its own: when rows are appended to it, it is read again, and nothing is ever
subtracted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError, RefusedError
from npmdask.numerics.gram_sums import GramSums, probes_of
from npmdask.operators import GramOfSlabs, GramReader, View
from npmdask.runs.build import ELSEWHERE
from npmdask.runs.gram_parts import (
    KIND,
    PREFIX,
    GramPart,
    Origin,
    found_part,
    list_parts,
    listed_parts,
    made_part,
    read_sums,
    write_sums,
)
from npmdask.runs.gram_store import GramStore, gram_spec
from npmdask.runs.observers import Observer
from npmdask.runs.restore import bind_spec
from npmdask.runs.session import GATHERED, Need, Session
from npmdask.runs.solution import Resources
from npmdask.storage.checksum import crc32c, crc32c_bytes
from npmdask.storage.labels import Labels
from npmdask.storage.object_url import is_remote
from npmdask.storage.readers.dense import ReadStats, checksums_of
from npmdask.storage.readers.matrix_free import MatrixFreeReader
from npmdask.storage.source import IN_MEMORY, Source

PRECISIONS = ("float64", "float32")


@dataclass(frozen=True, kw_only=True)
class GramRequest:
    """What is asked for: public parameters, part of the identity of a store.

    ``by_chunks``: a Gram for each so many rows of chunks; None: one for all. ``precision``: of the products of tiles.
    ``seed``: of the probes.
    """

    by_chunks: int | None = None
    precision: str = "float64"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.by_chunks is not None and self.by_chunks < 1:
            raise BadInputError(f"by_chunks = {self.by_chunks} must be a number of rows of chunks, 1 or more")
        if self.precision not in PRECISIONS:
            raise BadInputError(f"precision = {self.precision!r} must be one of {', '.join(PRECISIONS)}")
        if self.seed < 0:
            raise BadInputError(f"seed = {self.seed} must not be negative")


def form_gram(
    source: Source, store: str | Path, request: GramRequest, resources: Resources, observer: Observer | None = None
) -> GramStore:
    """Form the Gram of ``source`` in ``store``, go on with it, or add the rows that were appended since.

    Raises
    ------
    BadInputError
        Data that have no such Gram, or values that are not finite or too large.
    RefusedError
        The store belongs to other data or parameters, rows have changed, or memory does not suffice.
    """
    _require_rows(source)
    resources.require_possible()
    columns, reader = source.shape[1], source.reader
    labels = None if source.labels is None or not source.labels.columns else Labels(columns=source.labels.columns)
    data = {
        "of": source.kind,
        "columns": columns,
        "dtype": reader.dtype.str,
        "layout": reader.layout,
        "names": None if labels is None else f"{crc32c(labels.array()):08x}",
    }
    asked = {"made": "formed", "by_chunks": request.by_chunks, "precision": request.precision}
    with RunStore(store) as held:
        _require_own(held)
        once = {"source": source.path} | ({} if source.dim is None else {"dim": source.dim})
        bind_spec(gram_spec(data, asked, request.seed), held, {"resources": asdict(resources)}, once=once)
        if labels is not None and held.part_meta("labels") is None:
            held.write_part("labels", *labels.bundle())
        with Session(held, resources, observer or Observer()) as session:
            former = _Former(source, request, session)
            former.form()
            session.log("end", outcome="formed", seconds=session.seconds, peak_rss=session.peak, processes=[])
    formed = GramStore(store)
    formed.rows_read, formed.bytes_read = former.rows_read, session.bytes_read + former.bytes_compared
    return formed


def _require_rows(source: Source) -> None:
    if isinstance(source.reader, GramReader):
        raise BadInputError(
            f"{source.path} is a stored Gram already: run it, or merge it with others (`npmdask gram --merge A B G`)"
        )
    if isinstance(source.reader, MatrixFreeReader):
        raise RefusedError(
            f"{source.path} has products only, and a Gram is formed of rows: give the matrix itself, or decompose the "
            "operator with `npmdask.top_k`"
        )
    if type(source.reader) in ELSEWHERE:
        raise BadInputError(f"{source.path} has no rows here to form a Gram of")
    if source.kind not in ("samples", "matrix", "sparse"):
        raise BadInputError(
            f"{source.path} is of kind {source.kind}: a Gram is formed of rows, of kind samples, matrix or sparse"
        )
    if source.budget is not None:
        raise RefusedError(
            f"the data of {source.path} have a privacy budget ({source.budget!r}): their Gram would tell of every row, "
            "and nothing would be charged for it. Release components instead, with a [privacy] table"
        )


def _require_own(held: RunStore) -> None:
    """Raise RefusedError for a Gram that was made of others."""
    spec = held.read_spec() or {}
    made = spec.get("algorithm", {}).get("made", "formed")
    if spec and (spec["data"].get("kind") != KIND or made != "formed"):
        what = f"a Gram that was {made} from others" if spec["data"].get("kind") == KIND else "a run"
        raise RefusedError(
            f"{held.place} is {what}: form the Gram of these rows in a store of its own (and merge the two, if wanted)"
        )


@dataclass
class _Former:
    """Brings the parts of a store to what its source is now."""

    source: Source
    request: GramRequest
    session: Session
    rows_read: int = 0
    bytes_compared: int = 0

    @property
    def _reader(self) -> Any:
        return self.source.reader

    @property
    def _sparse(self) -> bool:
        return bool(self._reader.layout == "csr")

    def form(self) -> None:
        """Read what is new, and list what counts."""
        held = self.session.store
        listed, _ = listed_parts(held)
        whole, wanted = {part.origins[0].units for part in listed if self._stays(part)}, list(self._wanted())
        kept = {part.origins[0].units: part for part in listed if part.origins[0].units in whole}
        parts = [kept[units] if units in kept else self._made(units, kept) for units in wanted]
        if [part.name for part in parts] != [part.name for part in listed]:
            list_parts(held, parts, {"rows": self.rows_read, "bytes": self.session.bytes_read + self.bytes_compared})

    def _wanted(self) -> Iterator[range]:
        """The rows of chunks of each part."""
        count = int(self._reader.grid[0])
        if self._sparse:
            yield range(count)
            return
        if self.request.by_chunks is not None:
            for start in range(0, count, self.request.by_chunks):
                yield range(start, min(start + self.request.by_chunks, count))
            return
        full = int(self._reader.shape[0]) // int(self._reader.whole[0])
        yield from (units for units in (range(full), range(full, count)) if units)

    def _stays(self, part: GramPart) -> bool:
        """Whether the rows of a part are what they were; False where there may be more of them now.

        Raises
        ------
        RefusedError
            They have changed, or are gone.
        """
        (origin,) = part.origins
        if origin.fingerprint == self.source.fingerprint and self._tells:
            return True
        if self._sparse:
            return False  # rows lie across chunks: they are read again
        height, same = int(self._reader.whole[0]), self._same(origin)
        open_end = bool(same.size) and int(origin.heights[-1]) < height
        changed = np.flatnonzero(~same[:-1] if open_end else ~same)
        if len(changed) or len(same) < len(origin.units):
            at = int(changed[0]) if len(changed) else len(same)
            first = origin.first_row + int(origin.heights[:at].sum())
            raise RefusedError(
                f"rows {first} to {first + int(origin.heights[at]) - 1} of {self.source.path} are not those that "
                f"{self.session.store.place} was formed of: only appended rows are added to a Gram. Put them back, or "
                "form the Gram in a new store"
            )
        return bool(same.all())

    def _same(self, origin: Origin) -> np.ndarray:
        """Of each row of chunks that there still is: whether it is what it was."""
        here = range(origin.units.start, min(origin.units.stop, int(self._reader.grid[0])))
        same = np.array([height == origin.heights[i] for i, height in enumerate(self._heights(here))], bool)
        recorded = self._reader.checksums
        if recorded is not None:
            return same & (np.asarray(recorded)[here.start : here.stop] == origin.chunks[: len(here)]).all(axis=1)
        looks = self._looks(here)
        for i in np.flatnonzero(same & ((looks == 0) | (looks != origin.looks[: len(here)]))):
            record, slab = ReadStats(), here[i]
            for _ in self._reader.tiles(slab, record):
                pass
            self.bytes_compared += record.bytes_read
            found = [record.checksums[slab, column] for column in range(self._reader.grid[1])]
            same[i] = bool((np.array(found) == origin.chunks[i]).all())
        return same

    @property
    def _tells(self) -> bool:
        """Whether the fingerprint of the source changes with its content: by digests, or by times of files or objects.

        What a program computes, or holds in a Zarr store of its own, may change without a sign.
        """
        path, access = self.source.path, getattr(self._reader, "access", None)
        access = access["data"] if isinstance(access, dict) else access
        files = access is not None and access.folder is not None
        return self.source.registered or files or is_remote(path) or path.startswith(f"{IN_MEMORY}content")

    def _heights(self, units: range) -> list[int]:
        rows = (self._reader.slab_rows(slab) for slab in units)
        return [int(part.stop - part.start) for part in rows]

    def _looks(self, units: range) -> np.ndarray:
        """A checksum of sizes and times of the files of each row of chunks; 0 where there are none to see."""
        access, found = getattr(self._reader, "access", None), np.zeros(len(units), np.int64)
        if self._sparse or access is None or access.folder is None:
            return found
        for i, slab in enumerate(units):
            files = (access.folder / self._reader.chunk_name(slab, c) for c in range(self._reader.grid[1]))
            try:
                stats = [(stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in (file.stat() for file in files)]
            except OSError:
                continue
            found[i] = 2**32 + crc32c_bytes(repr(stats).encode())
        return found

    def _made(self, units: range, kept: dict[range, GramPart]) -> GramPart:
        """The part of these rows of chunks: those that a kept part has, and the others read."""
        begun = next((part for part in kept if part.start == units.start and part.stop < units.stop), None)
        if begun is None or self.request.by_chunks is not None:
            return self._read(units)
        new = self._read(range(begun.stop, units.stop))
        return self._extended(kept[begun], new)

    def _extended(self, before: GramPart, after: GramPart) -> GramPart:
        held = self.session.store
        name = f"{PREFIX}{hashlib.sha256(f'{before.name} {after.name}'.encode()).hexdigest()[:16]}"
        found = found_part(held, name)
        if found is None:
            both = (read_sums(held.path, part) for part in (before, after))
            sums = next(both).joined(next(both), self._probes)
            origins = [before.origins[0].followed_by(after.origins[0])]
            found = made_part(sums, origins, name=name, group=before.group, formed=before.formed)
            write_sums(held, found, sums)
        return found

    def _read(self, units: range) -> GramPart:
        """The part of these rows of chunks, read in one pass that goes on where it was killed."""
        held, reader = self.session.store, self._reader
        label = f"rows of chunks {units.start} to {units.stop - 1} of {self.source.fingerprint}"
        name = f"{PREFIX}{hashlib.sha256(label.encode()).hexdigest()[:16]}"
        first = 0 if self._sparse else int(reader.slab_rows(units.start).start)
        single = self.request.precision == "float32"
        operator = GramOfSlabs(reader=reader, view=View(to_centre=True), single=single, slabs=units)
        self.rows_read += operator.rows
        found = found_part(held, name)
        if found is not None:
            return found
        looks, d = self._looks(units), int(reader.shape[1])
        self.session.plan([Need(operator, self._probes.shape[1], GATHERED)])
        self.session.start(self.source.path)
        product, record, _ = self.session.one_pass(label, operator, self._probes)
        self.session.stop()
        sums = GramSums(count=operator.rows, mean=product[:, -2], matrix=product[:, :d], image=product[:, d:-2])
        origin = Origin(
            source=self.source.path,
            fingerprint=self.source.fingerprint,
            units=units,
            first_row=first,
            heights=np.array([] if self._sparse else self._heights(units), np.int64),
            chunks=_table(record, units),
            looks=looks,
        )
        group = f"rows {first} to {first + operator.rows - 1}" if self.request.by_chunks else "all rows"
        part = made_part(sums, [origin], name=name, group=group, formed=self.request.precision)
        write_sums(held, part, sums)
        return part

    @property
    def _probes(self) -> np.ndarray:
        return probes_of(int(self._reader.shape[1]), self.request.seed)


def _table(record: ReadStats, units: range) -> np.ndarray:
    """The checksums of some rows of chunks."""
    return next(iter(checksums_of(record, sparse=False).values()))[units.start : units.stop]
