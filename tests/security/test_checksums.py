"""What is said of damage does not tell neighbouring data apart: no checksum, and no size of what was packed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from npmdask.cli.main import main
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.symmetric.reader import TensorReader
from npmdask.symmetric.writer import TensorWriter
from tests.conftest import write_zarr
from tests.core.operators.test_operators import write_csr
from tests.symmetric.test_packed_symmetric import pack

ROWS, COLUMNS = 60, 12


def data(last: Any) -> np.ndarray:
    x = np.random.default_rng(0).integers(-9, 9, (ROWS, COLUMNS)).astype(float)
    x[-1] = last
    return x


NEIGHBOURS = (data(1.25), data(np.sqrt(1 + np.arange(COLUMNS))))  # which another number of bytes holds when packed


def coded(*compressors: Any, **options: Any) -> Callable[[Path, np.ndarray], Path]:
    return lambda place, x: write_zarr(place, x, (30, COLUMNS), compressors=list(compressors), **options)


def ingested(place: Path, x: np.ndarray) -> Path:
    np.save(place.with_suffix(".npy"), x)
    assert main(["ingest", str(place.with_suffix(".npy")), str(place), "--quiet"]) == 0
    return place


def csr(place: Path, x: np.ndarray) -> Path:
    return write_csr(place, sp.csr_matrix(np.where(abs(x) > 1, x, 0)), 100)


def cube(place: Path, x: np.ndarray) -> Path:
    writer = TensorWriter(place, size=8, side=8, dtype=x.dtype, identity={})
    writer.write(np.resize(x[::-1], (8, 8, 8)))
    writer.finish()
    return place


STORES: dict[str, Callable[[Path, np.ndarray], Path]] = {
    "ingested": ingested,
    "csr": csr,
    "packed": lambda place, x: pack(place, x.T @ x, COLUMNS),
    "cube": cube,
    "blosc": coded(BloscCodec()),
    "shard": coded(ZstdCodec(), shards=(ROWS, COLUMNS)),
    "gzip": coded(GzipCodec()),
    "crc32c": coded(Crc32cCodec()),
    "gzip and crc32c": coded(GzipCodec(), Crc32cCodec()),
}


def read(place: Path) -> None:
    """All of it, as a pass would."""
    reader: Any = open_source(place).reader
    units = range(reader.units)
    if isinstance(reader, CsrReader | TensorReader):
        parts: Any = reader.blocks(units, ReadStats())
    else:
        parts = (tile for unit in units for tile in reader.tiles(unit, ReadStats()))
    assert sum(1 for _ in parts)


def damage(place: Path, layout: str) -> None:
    """The last chunk of numbers: one of its bits, or where such a one means something else, many of its bytes."""
    chunks = [*place.glob("c/**/*"), *place.glob("data/c*/**/*"), *place.glob("data/c.*"), *place.glob("X/data/c/*")]
    file = max(chunk for chunk in chunks if chunk.is_file())
    held = bytearray(file.read_bytes())
    held[-5 if "gzip" in layout else 9] ^= 1  # of gzip in its checksum
    if layout == "csr":
        held[:] = file.with_name("0").read_bytes()
    file.write_bytes({"blosc": held[:200], "shard": held[100:]}.get(layout, held))


@pytest.mark.parametrize("layout", STORES)
def test_neighbouring_data_have_the_same_sentence(tmp_path: Path, layout: str) -> None:
    said = []
    for number, x in enumerate(NEIGHBOURS):
        place = STORES[layout](tmp_path / f"{number}.zarr", x)
        read(place)  # whole, it is answered
        damage(place, layout)
        with pytest.raises(BadInputError, match=r"^chunk .* (is corrupt|cannot be decoded|is truncated)") as caught:
            read(place)
        said.append(str(caught.value).replace(str(place), "x.zarr"))
    assert said[0] == said[1]
