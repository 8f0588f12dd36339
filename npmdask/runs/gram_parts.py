"""The parts of a stored Gram: what each sums, which chunks of which source it was formed of, and where it lies.

::

    STORE/run.json          the question: columns, kind, probes
    STORE/labels            names of the columns, where they have any
    STORE/part-...          a bundle for each part: its sums, and what they were formed of
    STORE/steps/NNNNNN      which parts count, and what is to be known of them without reading their sums

A part is written first and listed then, in one rename: a kill leaves the old list or the new one. What no list names
any more is removed after that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError, RefusedError
from npmdask.numerics.gram_sums import GramSums, packed, unpacked
from npmdask.storage.bundle import Arrays, read_bundle

KIND = "gram"  # in the parameters of a store
FORMAT = 1
PREFIX = "part-"


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
    """What is known of a part without its sums. ``identity``: SHA-256 of these; ``formed``: in which arithmetic."""

    name: str
    group: str
    rows: int
    formed: str
    identity: str
    origins: tuple[Origin, ...]

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
        return arrays, facts | {"origins": origins}

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
        return cls(origins=origins, **plain)


def made_part(sums: GramSums, origins: Sequence[Origin], *, name: str, group: str, formed: str) -> GramPart:
    """The part that keeps ``sums``."""
    digest = hashlib.sha256(f"{sums.count} {sums.slack!r}".encode())
    for array in (sums.mean, packed(sums.matrix), sums.image):
        digest.update(np.ascontiguousarray(array).data)
    return GramPart(
        name=name, group=group, rows=sums.count, formed=formed, identity=digest.hexdigest(), origins=tuple(origins)
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
        raise BadInputError(f"{folder / part.name} is another part than the list of {folder} names: form it again")
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
