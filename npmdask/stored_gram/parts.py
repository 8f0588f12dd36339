"""The parts of a stored Gram: what each sums, which chunks of which source it was formed of, and where it lies.

::

    STORE/run.json          the question: columns, kind, probes
    STORE/labels            names of the columns, where they have any
    STORE/groups            the group of each row, where rows were grouped by labels
    STORE/part-...          a bundle for each part: its sums, and what they were formed of
    STORE/steps/NNNNNN      which parts count, and what is to be known of them without reading their sums

A part is written first and listed then, in one rename: a kill leaves the old list or the new one. What no list names
any more is removed after that.

They are formed in one pass over the rows that the store does not have yet. Those that it has are known by checksums of
their chunks: an ingested store records them; of files size and time say that they are as they were, as a resume knows
them; all others are read again and compared. The last row of chunks, where it is not full, is a part of its own: when
rows are appended to it, it is read again, and nothing is ever subtracted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.reduction import TreeNode
from npmdask.core.operators import Partial, View
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import STORED_GRAM, lies_elsewhere
from npmdask.core.runs.resources import Need, Resources
from npmdask.core.runs.restore import bind_spec
from npmdask.core.runs.session import GATHERED, Session, keeper_of
from npmdask.core.runs.stages import job_spec
from npmdask.core.storage.bundle import Arrays, read_bundle
from npmdask.core.storage.checksum import crc32c, crc32c_bytes
from npmdask.core.storage.labels import Labels
from npmdask.core.storage.readers import ReadStats, checksums_of
from npmdask.core.storage.source import IN_MEMORY, Source, is_remote
from npmdask.errors import BadInputError, RefusedError, require
from npmdask.stored_gram.operator import GramOfGroups, GramOfSlabs, GramReader, GramSums, packed, probes_of, unpacked

FORMAT = 1
PREFIX = "part-"
PRECISIONS = ("float64", "float32")
MOST_GROUPS = 4096  # of labels: each takes a bundle on disk, and a turn in every task


@dataclass(frozen=True, kw_only=True, eq=False)
class Origin:
    """Rows of a source that a part was formed of.

    ``source``, ``fingerprint``: its path, and what it was then. ``units``: its rows of chunks. ``heights``: rows of
    each (of CSR none: rows lie across chunks). ``chunks``: CRC-32C of each chunk (units x columns of chunks).
    ``looks``: of chunks that are files what their sizes and times say, 0 where there is nothing to see.
    """

    source: str
    fingerprint: str
    units: range
    first_row: int
    heights: np.ndarray
    chunks: np.ndarray
    looks: np.ndarray

    @property
    def keys(self) -> set[tuple[int, ...]]:
        """Each row of chunks by its content."""
        heights = self.heights if len(self.heights) else np.zeros(len(self.chunks), np.int64)
        return {(int(rows), *map(int, sums)) for rows, sums in zip(heights, self.chunks, strict=True)}

    def followed_by(self, other: Origin) -> Origin:
        """Both as one; ``other`` begins where this one ends."""
        return replace(
            other,
            units=range(self.units.start, other.units.stop),
            first_row=self.first_row,
            heights=np.concatenate([self.heights, other.heights]),
            chunks=np.concatenate([self.chunks, other.chunks]),
            looks=np.concatenate([self.looks, other.looks]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class GramPart:
    """Facts about a part without its sums.

    ``identity``: SHA-256 of these; ``formed``: in which arithmetic; ``labelled``: only those rows of its chunks count
    that have a label.
    """

    name: str
    group: str
    rows: int
    formed: str
    identity: str
    origins: tuple[Origin, ...]
    labelled: bool = False

    @property
    def keys(self) -> set[tuple[int, ...]]:
        """All its rows of chunks by their content."""
        return set().union(*(origin.keys for origin in self.origins))

    def bundle(self, prefix: str = "") -> tuple[Arrays, dict[str, Any]]:
        """Arrays and facts, as a bundle keeps them."""
        arrays = {
            f"{prefix}{i}.{name}": getattr(origin, name)
            for i, origin in enumerate(self.origins)
            for name in ("heights", "chunks", "looks")
        }
        origins = [
            {
                "source": origin.source,
                "fingerprint": origin.fingerprint,
                "units": [origin.units.start, origin.units.stop],
                "first_row": origin.first_row,
            }
            for origin in self.origins
        ]
        facts = {name: getattr(self, name) for name in ("name", "group", "rows", "formed", "identity")}
        return arrays, facts | {"origins": origins} | ({"labelled": True} if self.labelled else {})

    @classmethod
    def of_bundle(cls, arrays: Arrays, facts: dict[str, Any], prefix: str = "") -> GramPart:
        """The inverse of :meth:`bundle`."""
        origins = tuple(
            Origin(
                source=fact["source"],
                fingerprint=fact["fingerprint"],
                units=range(*fact["units"]),
                first_row=fact["first_row"],
                **{name: arrays[f"{prefix}{i}.{name}"] for name in ("heights", "chunks", "looks")},
            )
            for i, fact in enumerate(facts["origins"])
        )
        plain = {name: facts[name] for name in ("name", "group", "rows", "formed", "identity")}
        return cls(origins=origins, labelled=bool(facts.get("labelled")), **plain)


def made_part(
    sums: GramSums, origins: Sequence[Origin], *, name: str, group: str, formed: str, labelled: bool = False
) -> GramPart:
    """The part that keeps ``sums``."""
    digest = hashlib.sha256(f"{sums.count} {sums.slack!r}".encode())
    for array in (sums.mean, packed(sums.matrix), sums.image):
        digest.update(np.ascontiguousarray(array).data)
    return GramPart(
        name=name,
        group=group,
        rows=sums.count,
        formed=formed,
        identity=digest.hexdigest(),
        origins=tuple(origins),
        labelled=labelled,
    )


def write_sums(held: RunStore, part: GramPart, sums: GramSums) -> None:
    """Write the bundle of a part, unless it is there."""
    arrays, facts = part.bundle()
    arrays |= {"mean": sums.mean, "gram": packed(sums.matrix), "image": sums.image}
    held.write_part(part.name, arrays, facts | {"slack": sums.slack, "format": FORMAT})


def found_part(held: RunStore, name: str) -> GramPart | None:
    """A part that was written before a kill, and not listed yet."""
    found = held.read_part(name)
    return None if found is None else GramPart.of_bundle(*found)


def read_sums(folder: Path, part: GramPart) -> GramSums:
    """The sums of a part, every byte checked."""
    arrays, facts = read_bundle(folder / part.name)
    _require_format(folder / part.name, facts)
    if facts["identity"] != part.identity:
        raise BadInputError(f"{folder / part.name} is not the part that {folder} lists: form it again")
    mean = arrays["mean"]
    return GramSums(
        count=part.rows,
        mean=mean,
        matrix=unpacked(arrays["gram"], len(mean)),
        image=arrays["image"],
        slack=facts["slack"],
    )


def list_parts(held: RunStore, parts: Iterable[GramPart], reading: dict[str, int]) -> None:
    """Make ``parts`` those that count, and remove all others. ``reading``: what it took."""
    parts, before = list(parts), held.last_meta() or {}
    arrays, facts = dict[str, np.ndarray](), []
    for i, part in enumerate(parts):
        more, fact = part.bundle(f"{i}.")
        arrays |= more
        facts.append(fact)
    history = [*before.get("history", []), reading]
    held.commit_step(len(history), arrays, {"format": FORMAT, "parts": facts, "history": history})
    names = {part.name for part in parts}
    for path in held.path.glob(f"{PREFIX}*"):
        if path.name not in names:
            held.drop_part(path.name)


def listed_parts(run: RunStore) -> tuple[tuple[GramPart, ...], list[dict[str, int]]]:
    """The parts that count, and what each reading took; none of a store in which nothing is finished."""
    found = run.last_step()
    if found is None:
        return (), []
    arrays, meta = found
    _require_format(run.path, meta)
    parts = tuple(GramPart.of_bundle(arrays, fact, f"{i}.") for i, fact in enumerate(meta["parts"]))
    return parts, list(meta["history"])


def _require_format(place: Path, facts: dict[str, Any]) -> None:
    if facts.get("format") != FORMAT:
        raise RefusedError(
            f"{place} is a stored Gram of format {facts.get('format')}; this version reads format {FORMAT}: use the "
            "npmdask that wrote it, or form it again"
        )


def gram_spec(data: dict[str, Any], algorithm: dict[str, Any], seed: int) -> dict[str, Any]:
    """The parameters of a stored Gram, by name."""
    return job_spec({"kind": STORED_GRAM, **data}, {"name": STORED_GRAM, **algorithm}, {}, seed)


# Forming them.


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGroups:
    """The group of each row: ``names`` of the groups, in sorted order, and ``codes`` (m), places among them."""

    names: tuple[str, ...]
    codes: np.ndarray

    @classmethod
    def of_labels(cls, labels: Any) -> RowGroups:
        """The groups that a label for each row makes.

        Raises
        ------
        BadInputError
            No sequence of labels, a row without one, or too many different ones.
        """
        given = labels.to_numpy() if hasattr(labels, "to_numpy") else labels  # of pandas and Polars
        given = given if isinstance(given, np.ndarray) else np.array([*given, None], object)[:-1]
        require(given.ndim == 1 and given.size > 0, f"groups have shape {given.shape}: give one label for each row")
        if given.dtype.kind in "OU":
            missing = np.array([_is_missing(label) for label in given.tolist()])
            given = np.array([str(label) for label in given.tolist()])
        else:
            missing = given != given
        if missing.any():
            raise BadInputError(
                f"row {int(np.argmax(missing))} has no label, as {int(missing.sum())} of {len(given)} rows: give them "
                "one, like 'unknown', or leave such rows out of the data"
            )
        values, codes = np.unique(given, return_inverse=True)
        names = list(map(str, values))
        if len(names) > MOST_GROUPS:
            raise BadInputError(
                f"the labels of {len(given)} rows have {len(names)} values, and each gets a Gram: at most "
                f"{MOST_GROUPS} are kept; use coarser labels"
            )
        return cls(names=tuple(names), codes=codes.astype(np.int32))

    @property
    def identity(self) -> str:
        """Return the identity of the labels of a store."""
        return hashlib.sha256(json.dumps(self.names).encode() + self.codes.astype("<i4").tobytes()).hexdigest()[:16]

    def bundle(self) -> tuple[Arrays, dict[str, Any]]:
        """Arrays and facts, as a bundle keeps them."""
        return {"codes": self.codes}, {"names": list(self.names)}


def _is_missing(label: Any) -> bool:
    """Say whether a label is missing: None, NaN, NaT, NA of pandas, or no text."""
    if label is None or type(label).__name__ == "NAType":
        return True
    if not isinstance(label, str | bytes) and hasattr(label, "__len__"):
        raise BadInputError(
            f"the label {label!r} is a {type(label).__name__}: give one label for each row, like a name"
        )
    return not str(label).strip() or bool(label != label)


def labels_called(groups: Any, given: Any, source: Source) -> Any:
    """The labels of rows: ``groups`` itself, or where that is a name, what the data call so.

    Raises
    ------
    BadInputError
        There are no such labels.
    """
    if not isinstance(groups, str):
        if isinstance(groups, bytes) or not hasattr(groups, "__iter__"):
            raise BadInputError(f"groups = {groups!r} are no labels: give one for each row, or the name of such labels")
        return groups
    known = {axis.name: axis.places for axis in source.labels.rows} if source.labels is not None else {}
    beside = getattr(given, "obs", None)  # of an AnnData
    if beside is None and hasattr(given, "coords"):  # of an array of xarray
        beside = {str(name): axis for name, axis in given.coords.items() if axis.ndim == 1 and len(axis) == len(given)}
    known = dict(beside.items() if beside is not None else ()) | known
    if groups not in known:
        named = ", ".join(map(repr, sorted(map(str, known)))) or "none"
        raise BadInputError(
            f"{source.path} has no labels of rows called {groups!r}; it has {named}: give a label for each row"
        )
    return known[groups]


def groups_of(held: RunStore) -> RowGroups | None:
    """The labels of rows that a store keeps, so that a pass that was killed goes on; None without any."""
    found = held.read_part("groups")
    return None if found is None else RowGroups(names=tuple(found[1]["names"]), codes=found[0]["codes"])


@dataclass(frozen=True, kw_only=True)
class GramRequest:
    """The request: public parameters, part of the identity of a store.

    ``by_chunks``: a Gram for each so many rows of chunks; None: one for all. ``groups``: a Gram for each label of rows.
    ``precision``: of the products of tiles. ``seed``: of the probes.
    """

    by_chunks: int | None = None
    groups: RowGroups | None = None
    precision: str = "float64"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.by_chunks is not None and self.by_chunks < 1:
            raise BadInputError(f"by_chunks = {self.by_chunks} must be a number of rows of chunks, 1 or more")
        if self.by_chunks is not None and self.groups is not None:
            raise BadInputError("groups of rows are made by labels (groups) or of chunks (by_chunks): give one of them")
        require(self.precision in PRECISIONS, f"precision = {self.precision!r} must be one of {', '.join(PRECISIONS)}")
        require(self.seed >= 0, f"seed = {self.seed} must not be negative")


Begun = Callable[[GramOfSlabs], dict[TreeNode, Partial]]


def gram_operator(reader: Any, units: range, precision: str) -> GramOfSlabs:
    """The pass over some rows of chunks that makes a part."""
    return GramOfSlabs(reader=reader, view=View(to_centre=True), single=precision == "float32", slabs=units)


def form_parts(
    source: Source,
    store: str | Path,
    request: GramRequest,
    resources: Resources,
    observer: Observer | None = None,
    begun: Begun | None = None,
) -> tuple[int, int]:
    """Form the parts of the Gram of ``source`` in ``store``, go on with them, or add the rows that were appended since.

    ``begun``: what is known of a pass before it is made. Returns how many rows and bytes were read.

    Raises
    ------
    BadInputError
        Data that have no such Gram, or values that are not finite or too large.
    RefusedError
        The store belongs to other data or parameters, rows have changed, or memory does not suffice.
    """
    from npmdask.core.storage.names import matched

    _require_rows(source)
    if request.groups is not None:
        _require_labelled(source, request.groups)
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
    if request.groups is not None:
        asked["groups"] = request.groups.identity
    with RunStore(store) as held:
        _require_own(held, request)
        if labels is not None and (known := held.read_part("labels")) is not None:
            axes = Labels.of_bundle(*known).columns
            if matched(axes, labels.columns, source.path, held.place, error=RefusedError).places is not None:
                raise RefusedError(
                    f"{source.path} has the columns of {held.place} in another order: form a Gram of it in another "
                    "store, and merge both (`npmdask gram --merge`), which puts them in order"
                )
        bind_spec(gram_spec(data, asked, request.seed), held, {"resources": asdict(resources)}, once=source.kept)
        if labels is not None and held.part_meta("labels") is None:
            held.write_part("labels", *labels.bundle())
        if request.groups is not None and held.part_meta("groups") is None:
            held.write_part("groups", *request.groups.bundle())
        with Session(held, resources, observer or Observer()) as session:
            former = _PartUpdater(source, request, session, begun)
            former.form()
            session.log("end", outcome="formed", seconds=session.seconds, peak_rss=session.peak, processes=[])
    return former.rows_read, session.bytes_read + former.bytes_compared


def _require_rows(source: Source) -> None:
    if isinstance(source.reader, GramReader):
        raise BadInputError(
            f"{source.path} is a stored Gram already: run it, or merge it with others (`npmdask gram --merge A B G`)"
        )
    if source.reader.layout == "matrix-free":
        raise RefusedError(
            f"{source.path} has products only, and a Gram is formed of rows: give the matrix itself, or decompose the "
            "operator with `npmdask.top_k`"
        )
    require(not lies_elsewhere(source), f"{source.path} has no rows here to form a Gram of")
    if source.kind not in ("samples", "matrix", "sparse"):
        raise BadInputError(
            f"{source.path} is of kind {source.kind}: a Gram is formed of rows, of kind samples, matrix or sparse"
        )
    if source.budget is not None:
        raise RefusedError(
            f"the data of {source.path} have a privacy budget ({source.budget!r}): their Gram depends on every row, "
            "and nothing would be charged for it. Release components instead, with a [privacy] table"
        )


def _require_labelled(source: Source, groups: RowGroups) -> None:
    if source.reader.layout == "csr":
        raise RefusedError(
            f"{source.path} is a CSR matrix, whose rows lie across chunks: groups by labels are formed of dense rows. "
            "Form a Gram of each group's rows (A[labels == name]) and merge them: each stays a group"
        )
    if len(groups.codes) != source.shape[0]:
        raise BadInputError(
            f"there are {len(groups.codes)} labels and {source.shape[0]} rows in {source.path}: give one label for "
            "each row. Rows that are new are formed into a Gram of their own, and merged"
        )


def _require_own(held: RunStore, request: GramRequest) -> None:
    """Raise RefusedError for a Gram that was made of others, or of rows with other labels."""
    spec = {} if held.unbegun else held.read_spec() or {}
    made = spec.get("algorithm", {}).get("made", "formed")
    if spec and (spec["data"].get("kind") != STORED_GRAM or made != "formed"):
        what = f"a Gram that was {made} from others" if spec["data"].get("kind") == STORED_GRAM else "a run"
        raise RefusedError(
            f"{held.place} is {what}: form the Gram of these rows in a store of its own (and merge the two, if wanted)"
        )
    labelled, asked = spec.get("algorithm", {}).get("groups"), request.groups and request.groups.identity
    if spec and labelled != asked:
        was = (
            "with other labels" if labelled and asked else "with a label for each row" if labelled else "without labels"
        )
        raise RefusedError(
            f"{held.place} was formed {was} (algorithm.groups): give what it was formed with, or another store"
        )


@dataclass
class _PartUpdater:
    """Brings the parts of a store to what its source is now."""

    source: Source
    request: GramRequest
    session: Session
    begun: Begun | None = None
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
        if self.request.groups is not None:
            if not listed:
                self.session.observer.on_begin(0, None, "pass")
                parts = self._read_groups(self.request.groups)
                list_parts(held, parts, {"rows": self.rows_read, "bytes": self.session.bytes_read})
            elif not self._is_unchanged(listed[0]):
                raise RefusedError(
                    f"the last rows of {self.source.path} are not those that {held.place} was formed of: form the Gram "
                    "in a new store"
                )
            return
        whole, wanted = {part.origins[0].units for part in listed if self._is_unchanged(part)}, list(self._part_units())
        kept = {part.origins[0].units: part for part in listed if part.origins[0].units in whole}
        passes = len(wanted) - len(kept) if self.request.by_chunks else None  # otherwise of very different sizes
        self.session.observer.on_begin(0, passes, "pass")
        parts = [kept[units] if units in kept else self._completed_part(units, kept) for units in wanted]
        if [part.name for part in parts] != [part.name for part in listed]:
            list_parts(held, parts, {"rows": self.rows_read, "bytes": self.session.bytes_read + self.bytes_compared})

    def _part_units(self) -> Iterator[range]:
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

    def _is_unchanged(self, part: GramPart) -> bool:
        """Say whether the rows of a part are unchanged; False if there may be more of them now.

        Raises
        ------
        RefusedError
            They have changed, or are gone.
        """
        (origin,) = part.origins
        if origin.fingerprint == self.source.fingerprint and self._fingerprint_tracks_content:
            return True
        if self._sparse:
            return False  # rows lie across chunks: they are read again
        height, same = int(self._reader.whole[0]), self._unchanged_units(origin)
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

    def _unchanged_units(self, origin: Origin) -> np.ndarray:
        """Return for each row of chunks that still exists whether it is unchanged."""
        here = range(origin.units.start, min(origin.units.stop, int(self._reader.grid[0])))
        same = np.array([height == origin.heights[i] for i, height in enumerate(self._heights(here))], bool)
        recorded = self._reader.checksums
        if recorded is not None:
            return same & (np.asarray(recorded)[here.start : here.stop] == origin.chunks[: len(here)]).all(axis=1)
        looks = self._stat_checksums(here)
        for i in np.flatnonzero(same & ((looks == 0) | (looks != origin.looks[: len(here)]))):
            record, slab = ReadStats(), here[i]
            for _ in self._reader.tiles(slab, record):
                pass
            self.bytes_compared += record.bytes_read
            found = [record.checksums[slab, column] for column in range(self._reader.grid[1])]
            same[i] = bool((np.array(found) == origin.chunks[i]).all())
        return same

    @property
    def _fingerprint_tracks_content(self) -> bool:
        """Say whether the fingerprint of the source changes with its content: by digests, or times of files or objects.

        What a program computes, or holds in a Zarr store of its own, may change without a sign.
        """
        path, access = self.source.path, getattr(self._reader, "access", None)
        access = access["data"] if isinstance(access, dict) else access
        files = access is not None and access.folder is not None
        return self.source.registered or files or is_remote(path) or path.startswith(f"{IN_MEMORY}content")

    def _heights(self, units: range) -> list[int]:
        rows = (self._reader.slab_rows(slab) for slab in units)
        return [int(part.stop - part.start) for part in rows]

    def _stat_checksums(self, units: range) -> np.ndarray:
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

    def _completed_part(self, units: range, kept: dict[range, GramPart]) -> GramPart:
        """The part of these rows of chunks: those that a kept part has, and the others read."""
        begun = next((part for part in kept if part.start == units.start and part.stop < units.stop), None)
        if begun is None or self.request.by_chunks is not None:
            return self._read(units)
        new = self._read(range(begun.stop, units.stop))
        return self._extended_part(kept[begun], new)

    def _extended_part(self, before: GramPart, after: GramPart) -> GramPart:
        held = self.session.store
        name = _part_name(f"{before.name} {after.name}")
        found = found_part(held, name)
        if found is None:
            both = (read_sums(held.path, part) for part in (before, after))
            sums = next(both).joined(next(both), self._probes)
            origins = [before.origins[0].followed_by(after.origins[0])]
            found = made_part(sums, origins, name=name, group=before.group, formed=before.formed)
            write_sums(held, found, sums)
        return found

    def _read_groups(self, groups: RowGroups) -> list[GramPart]:
        """A part for each label, all from one pass over all rows, which goes on where it was killed."""
        held, reader, units = self.session.store, self._reader, range(int(self._reader.grid[0]))
        operator = GramOfGroups(
            reader=reader,
            view=View(to_centre=True),
            single=self.request.precision == "float32",
            slabs=units,
            codes=groups.codes,
            groups=len(groups.names),
        )
        label = f"rows by labels {groups.identity} of {self.source.fingerprint}"
        names = [_part_name(f"{label} {group}") for group in range(len(groups.names))]
        self.rows_read += operator.rows
        found = [part for name in names if (part := found_part(held, name)) is not None]
        if len(found) == len(names):
            return found
        d, (product, origin) = int(reader.shape[1]), self._formed(label, operator, 0)
        parts, counts = list[GramPart](), np.bincount(groups.codes, minlength=len(names))
        for group, own in enumerate(np.split(product, len(names), axis=1)):
            sums = GramSums(count=int(counts[group]), mean=own[:, -2], matrix=own[:, :d], image=own[:, d:-2])
            parts.append(
                made_part(
                    sums,
                    [origin],
                    name=names[group],
                    group=groups.names[group],
                    formed=self.request.precision,
                    labelled=True,
                )
            )
            write_sums(held, parts[-1], sums)
        return parts

    def _read(self, units: range) -> GramPart:
        """The part of these rows of chunks, read in one pass that goes on where it was killed."""
        held, reader = self.session.store, self._reader
        label = f"rows of chunks {units.start} to {units.stop - 1} of {self.source.fingerprint}"
        name = _part_name(label)
        first = 0 if self._sparse else int(reader.slab_rows(units.start).start)
        operator = gram_operator(reader, units, self.request.precision)
        self.rows_read += operator.rows
        found = found_part(held, name)
        if found is not None:
            return found
        d, (product, origin) = int(reader.shape[1]), self._formed(label, operator, first)
        sums = GramSums(count=operator.rows, mean=product[:, -2], matrix=product[:, :d], image=product[:, d:-2])
        group = f"rows {first} to {first + operator.rows - 1}" if self.request.by_chunks else "all rows"
        part = made_part(sums, [origin], name=name, group=group, formed=self.request.precision)
        write_sums(held, part, sums)
        return part

    def _formed(self, label: str, operator: GramOfSlabs, first: int) -> tuple[np.ndarray, Origin]:
        """Form the sums over the rows of some chunks in a pass, from number ``first`` on, and note their origin."""
        units, looks = operator.slabs, self._stat_checksums(operator.slabs)
        self.session.plan([Need(operator, self._probes.shape[1], GATHERED)])
        self.session.start(self.source.path)
        known = {} if self.begun is None else self.begun(operator)
        if known:
            keeper_of(self.session.store, label, operator, self._probes, inf).commit(known)
        product, record, _ = self.session.one_pass(label, operator, self._probes)
        self.session.stop()
        return product, Origin(
            source=self.source.path,
            fingerprint=self.source.fingerprint,
            units=units,
            first_row=first,
            heights=np.array([] if self._sparse else self._heights(units), np.int64),
            chunks=_table(record, units),
            looks=looks,
        )

    @property
    def _probes(self) -> np.ndarray:
        return probes_of(int(self._reader.shape[1]), self.request.seed)


def _part_name(label: str) -> str:
    """The name of a part, of what is in it."""
    return f"{PREFIX}{hashlib.sha256(label.encode()).hexdigest()[:16]}"


def _table(record: ReadStats, units: range) -> np.ndarray:
    """The checksums of some rows of chunks."""
    return next(iter(checksums_of(record, sparse=False).values()))[units.start : units.stop]
