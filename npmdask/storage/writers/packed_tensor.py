"""Writing a symmetric tensor of order three, unique block after unique block.

For the layout of the array see :mod:`npmdask.storage.readers.packed_tensor`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.errors import BadInputError
from npmdask.storage.checksum import DIGEST_BYTES, crc32c, digest_of
from npmdask.storage.kinds import storage_dtype
from npmdask.storage.readers.packed_tensor import (
    choose_side,
    exact_sum,
    place_of,
    places,
    squares_of,
    tetrahedral_number,
)
from npmdask.storage.writers.journal import JournalledWriter, reopen


class TensorWriter(JournalledWriter):
    """Writes the blocks (i <= j <= k) of a ``size`` x ``size`` x ``size`` tensor in packed layout.

    Parameters
    ----------
    dest : folder to create.
    size, dtype : of the tensor.
    identity : facts of the source that must be the same for a killed write to be continued.
    side : of a block, at most ``size``; chosen if None.
    compress : LZ4 with bitshuffle; for integers unless told.
    """

    def __init__(
        self,
        dest: Path | str,
        *,
        size: int,
        dtype: np.dtype,
        identity: dict[str, Any],
        side: int | None = None,
        compress: bool | None = None,
        overwrite: bool = False,
    ) -> None:
        self.dtype, self.size = storage_dtype(dtype), size
        self.compress = self.dtype.kind in "iu" if compress is None else compress
        self.side = min(side or choose_side(size, self.dtype.itemsize), size)
        self.grid = -(-size // self.side)
        self.units = tetrahedral_number(self.grid)
        facts = {"size": size, "dtype": self.dtype.str, "side": self.side, "compress": self.compress}
        super().__init__(dest, "tensor", {**facts, **identity}, overwrite)
        found = self._resume()
        if found is None:
            self._checksums, self._squares = np.zeros(self.units, np.uint32), np.zeros(self.units)
            self._digests = np.zeros((self.units, DIGEST_BYTES), np.uint8)
            with self._writing():
                self._array, self.next_unit = self._create(), 0
        else:
            arrays, meta = found
            self._checksums, self._squares = arrays["checksums"].copy(), arrays["squares"].copy()
            self._digests = arrays["digests"].copy()
            self._array, self.next_unit = reopen(zarr.open_array(self.partial / "data", mode="r+")), meta["units"]
        self._since_log = 0

    def _create(self) -> Any:
        cube = (self.side, self.side, self.side)
        return zarr.open_group(self.partial, mode="a").create_array(
            "data",
            shape=(self.units, *cube),
            dtype=self.dtype,
            chunks=(1, *cube),
            compressors=self._codecs(self.compress),
            chunk_key_encoding={"name": "default", "separator": "."},  # one folder, not three for each chunk
            config={"write_empty_chunks": True},  # a chunk that is not there is an error, not zeros
        )

    def write(self, values: np.ndarray) -> None:
        """Write the block of ``next_unit``, (b_i, b_j, b_k) finite numbers; a continued write goes on exactly here."""
        place, whole = place_of(self.next_unit, self.grid), np.zeros((1, self.side, self.side, self.side), self.dtype)
        b = values.shape
        whole[0, : b[0], : b[1], : b[2]] = values
        with self._writing():
            self._array[self.next_unit : self.next_unit + 1] = whole
            self._sync_chunk(self._array, (self.next_unit, 0, 0, 0))
        self._checksums[self.next_unit], self._digests[self.next_unit] = crc32c(whole), digest_of(whole)
        self._squares[self.next_unit] = squares_of(whole, place)
        self.next_unit += 1
        self._since_log += whole.nbytes
        if self._due(self._since_log):
            self._checkpoint()

    def commit(self) -> None:
        """Make what is written durable now: a write that is killed later goes on here."""
        self._checkpoint()

    @property
    def checksums(self) -> np.ndarray:
        """Of the blocks written so far (T), 0 of those that are not; equal blocks have equal ones."""
        return self._checksums.copy()

    def _tables(self) -> dict[str, np.ndarray]:
        return {"checksums": self._checksums, "digests": self._digests}

    def _checkpoint(self) -> None:
        arrays = self._tables() | {"squares": self._squares}
        self._log(self.next_unit, arrays, {"units": self.next_unit})
        self._since_log = 0

    def finish(self, extra: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None) -> str:
        """Write the record and make ``DEST`` appear. Returns the fingerprint.

        ``extra`` goes into the record (attributes), ``arrays`` (names may contain ``/``) beside the data.
        """
        if self.next_unit < self.units:
            raise BadInputError(
                f"the source of {self.dest} ended after {self.next_unit} of {self.units} blocks: it is truncated; "
                "nothing was published"
            )
        d, side = self.size, self.side
        facts = {"shape": [d, d, d], "dtype": self.dtype.str, "chunks": [side, side, side], "layout": "packed"}
        extra = {**(extra or {}), "squared_frobenius": exact_sum(self._squares)}
        beside = {**self._tables(), "blocks": places(self.grid), **(arrays or {})}
        return self._finish(facts, "packed", [self._digests], beside, extra)
