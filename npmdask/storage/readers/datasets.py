"""Rows of a dataset of PyArrow: Parquet and other files in one or many folders, a row group or a file at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from npmdask.errors import BadInputError
from npmdask.storage.formats.tables import dtype_of, table_rows
from npmdask.storage.labels import Labels, of_columns
from npmdask.storage.readers.lazy import BlockRows


@dataclass(frozen=True, kw_only=True)
class DatasetRows(BlockRows):
    """``fragments`` are row groups of Parquet, or files; of each the columns ``names`` are read."""

    fragments: tuple[Any, ...]
    names: tuple[str, ...]
    schema: Any
    common: np.dtype
    remedy: ClassVar[str] = "look whether the files of the dataset are there, and as they were written"

    @property
    def labels(self) -> Labels:
        """What the columns are called."""
        return of_columns(self.names)

    def block(self, number: int) -> Any:
        """The rows of a fragment."""
        fragment = self.fragments[number]
        table = fragment.to_table(schema=self.schema, columns=list(self.names))
        return table_rows(table, self.names, self.common, 0, Path(getattr(fragment, "path", self.name)))


def dataset_rows(dataset: Any, names: Sequence[str]) -> BlockRows:
    """The rows of some columns of a dataset.

    Raises
    ------
    BadInputError
        It is filtered, a column is no numbers, or there are no rows.
    """
    try:
        files = list(dataset.get_fragments())
    except ValueError as error:
        raise BadInputError(f"the dataset is filtered ({error}): give dataset.to_table(), or its files") from error
    fragments = [one for file in files for one in (getattr(file, "split_by_row_group", lambda: [])() or [file])]
    counted = [(one, one.count_rows()) for one in fragments]
    held, heights = zip(*[(one, rows) for one, rows in counted if rows] or [((), ())], strict=True)
    if not heights or not heights[0]:
        raise BadInputError("the dataset has no rows: it has no data to analyse")
    looks = [file.filesystem.get_file_info(file.path) for file in files if hasattr(file, "filesystem")]
    return DatasetRows(
        name=f"the dataset of {len(files)} files",
        stamp=str([(look.path, look.size, look.mtime_ns) for look in looks]),
        shape=(sum(heights), len(names)),
        heights=heights,
        fragments=held,
        names=tuple(names),
        schema=dataset.schema,
        common=np.result_type(*[dtype_of(dataset.schema.field(name), "the dataset") for name in names]),
    ).measured()
