"""Sketch the records of a data set, to find the same people under another name.

A record is known by the direction of its image: seven weighted sums of its entries, rounded to 2^-12 of their length.
The order of records, chunks, dtype and a common factor leave it as it is; the last digits of the entries hardly ever
change it (docs/decisions/0040). Weights and hashes follow from a key of the ledger. Of the hashes of all different
records the smallest are kept: the same records leave the same hashes wherever they are, and what two data sets have in
common below the smaller of their limits is a sample of what they have in common.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from npmdask.errors import BadInputError
from npmdask.privacy.mechanisms.noise_key import Keystream

MOST = 4096  # hashes that are kept: 32 KiB
SUMS = 7  # of a record
FINENESS = 2**12  # of a direction: three to four digits
NARROW = 3  # records of fewer entries have hardly any direction: their length counts, too
LENGTHS = 2**20  # steps of that length each time it doubles
SHARE = 0.05  # of the different records of the smaller data set: more is refused, less is reported
FEW = 100  # different records are so few that other people may have the same ones
REPEATED = 0.9  # where fewer of the records are different, they repeat each other, and may repeat those of others
MISSED = 0.01  # of overlaps as large as the resolution
_ALL = 2**64


@dataclass(frozen=True)
class Overlap:
    """Records that two data sets have in common, as their sketches show it.

    ``compared``: different records of the smaller one that both sketches would hold; ``common``: those that both do;
    ``whole``: they are all that there are, so that no common record is missed.
    """

    common: int
    compared: int
    whole: bool

    @property
    def share(self) -> float:
        """The part of the different records of the smaller data set that the other one has, too; estimated."""
        return self.common / self.compared if self.compared else 0.0

    @property
    def resolution(self) -> float:
        """The share of which something is seen in 99 of 100 pairs of data sets; smaller ones are often missed."""
        if self.whole:
            return 0.0
        return 1 - MISSED ** (1 / self.compared) if self.compared else 1.0


@dataclass(frozen=True)
class Sketch:
    """The smallest hashes of the different records of a data set (uint64, rising), and of how many records.

    Records of zeros (or without finite sums) are left out: they belong to no person.
    """

    hashes: np.ndarray
    records: int

    @property
    def limit(self) -> int:
        """All hashes below it are there."""
        return _ALL if len(self.hashes) < MOST else int(self.hashes[-1]) + 1

    @property
    def different(self) -> int:
        """Number of different records: counted, or estimated from how dense the smallest hashes lie."""
        return len(self.hashes) if self.limit == _ALL else round((MOST - 1) * _ALL / self.limit)

    @property
    def repeats(self) -> bool:
        """True if there are so few different records that other people may well have the same ones."""
        return self.different < FEW or self.different < REPEATED * self.records

    def overlap_with(self, other: Sketch) -> Overlap:
        """Estimate how many of the different records of the smaller data set the other one has, too."""
        limit = min(self.limit, other.limit)
        mine, theirs = (
            held.hashes if limit == _ALL else held.hashes[held.hashes < np.uint64(limit)] for held in (self, other)
        )
        return Overlap(len(np.intersect1d(mine, theirs)), min(len(mine), len(theirs)), whole=limit == _ALL)

    def pack(self) -> bytes:
        """As it is stored."""
        return np.concatenate([np.array([self.records], "<u8"), self.hashes.astype("<u8")]).tobytes()

    @classmethod
    def unpack(cls, stored: bytes) -> Sketch:
        """The inverse; BadInputError if it is none."""
        if len(stored) < 8 or len(stored) % 8:
            raise BadInputError("a sketch consists of whole numbers of 8 bytes")
        records, *hashes = np.frombuffer(stored, "<u8").astype(np.uint64)
        return cls(np.array(hashes, np.uint64), int(records))


def weights(key: bytes, columns: int) -> np.ndarray:
    """The weights of the sums (columns x SUMS), uniform in (-1, 1): of this key and number of columns only."""
    stream = Keystream(hmac.digest(key, b"weights %d" % columns, hashlib.sha256))
    words = stream.words(columns * SUMS)
    return ((words >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1).reshape(columns, SUMS)


def sketch(images: Iterable[np.ndarray], key: bytes, columns: int) -> Sketch:
    """The sketch of records whose images (b x SUMS, float64) come in any order; they have ``columns`` entries."""
    held, records, limit = np.empty(0, np.uint64), 0, _ALL
    for some in images:
        hashes = _hashes(some, key, columns)
        records += len(hashes)
        fresh = hashes if limit == _ALL else hashes[hashes < np.uint64(limit)]
        held = np.unique(np.concatenate([held, fresh]))[:MOST]
        limit = _ALL if len(held) < MOST else int(held[-1])
    return Sketch(held, records)


def _hashes(images: np.ndarray, key: bytes, columns: int) -> np.ndarray:
    largest = np.abs(images).max(axis=1)
    there = np.isfinite(largest) & (largest > 0)
    images, largest = images[there], largest[there]
    scaled = images / largest[:, None]  # no square overflows
    scaled *= scaled[np.arange(len(scaled)), np.abs(scaled).argmax(axis=1), None]  # +-1: a record is its negative, too
    lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    places = np.zeros((len(images), SUMS + 1), "<i8")
    places[:, :SUMS] = np.rint(scaled / lengths[:, None] * FINENESS + _offsets(key))
    if columns < NARROW:
        places[:, SUMS] = np.rint((np.log2(largest) + np.log2(lengths)) * LENGTHS)
    raw, width = places.tobytes(), places.itemsize * (SUMS + 1)
    found = (hashlib.blake2b(raw[at : at + width], key=key, digest_size=8).digest() for at in range(0, len(raw), width))
    return np.frombuffer(b"".join(found), "<u8").astype(np.uint64)


def _offsets(key: bytes) -> np.ndarray:
    """Compute where the grid lies: directions that are common (half a turn, say) are then on none of its borders."""
    words = Keystream(hmac.digest(key, b"offsets", hashlib.sha256)).words(SUMS)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
