"""Numbers as text, blocks of lines at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from npmdask.storage.formats.common import truncated

TEXT_BYTES = 4 * 2**20  # parsed, a block of lines takes several times as much


def text_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Blocks of whole lines."""
    rest = b""
    while block := file.read(TEXT_BYTES):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield rest + block[:cut]
            rest = block[cut:]
        else:
            rest += block
    if rest.strip():
        yield rest


def parse_lines(block: bytes, types: list[Any], path: Path) -> list[np.ndarray]:
    """The columns of a block of lines; a second try allows for tabs, runs of blanks and comments."""
    try:
        return _parse(block, types)
    except pa.ArrowInvalid:
        try:
            return _parse(_tidy(block), types)
        except pa.ArrowInvalid as error:
            raise truncated(path, f"lines of {len(types)} numbers are expected ({error})") from error


def _tidy(block: bytes) -> bytes:
    block = re.sub(rb"(?m)^[ \t]*%.*\n?", b"", block.replace(b"\r", b""))
    block = re.sub(rb"(?m)^ +| +$", b"", re.sub(rb"[ \t]+", b" ", block))
    return re.sub(rb"(?m)(^| )\+", rb"\1", block)


def _parse(block: bytes, types: list[Any]) -> list[np.ndarray]:
    names = [str(i) for i in range(len(types))]
    if not block.strip():
        return [np.empty(0, kind.to_pandas_dtype()) for kind in types]
    table = pa.csv.read_csv(
        pa.BufferReader(block),
        read_options=pa.csv.ReadOptions(column_names=names),
        parse_options=pa.csv.ParseOptions(delimiter=" ", quote_char=False),
        convert_options=pa.csv.ConvertOptions(column_types=dict(zip(names, types, strict=True)), null_values=[]),
    )
    return [column.to_numpy() for column in table.columns]
