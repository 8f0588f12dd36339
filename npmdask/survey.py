"""The checksums of a source that was never ingested: taken in the first pass, compared in all later ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from npmdask.storage.readers.dense import SlabRecord


def checksums_of(record: SlabRecord, *, sparse: bool) -> dict[str, np.ndarray]:
    """The checksums that a pass has taken, as the array (by row and column of chunks) that a survey keeps."""
    rows, columns = np.array(sorted(record.checksums)).max(axis=0) + 1
    table = np.zeros((rows, columns), np.uint32)
    for position, crc in record.checksums.items():
        table[position] = crc
    return {"checksums_csr" if sparse else "checksums": table}


def checksum_table(arrays: dict[str, np.ndarray]) -> Any:
    """The checksums of a survey in the form that the reader of the source takes, or None."""
    if "checksums_csr" in arrays:
        return {"indices": arrays["checksums_csr"][:, 0], "data": arrays["checksums_csr"][:, 1]}
    return arrays.get("checksums")
