"""A source: ``waves://ROWSxCOLUMNS``, random rows with falling deviations and a few outliers, made when asked for."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.containers.computed import open_given


@dataclass(frozen=True)
class Waves:
    shape: tuple[int, int]
    unit_rows: int = 50
    dtype: ClassVar[np.dtype] = np.dtype(np.float64)

    @property
    def identity(self) -> str:
        return f"waves {self.shape} version 1"

    @property
    def needs(self) -> int:
        return 2 * self.unit_rows * self.shape[1] * 8

    def tiles(self, unit: int) -> Iterator[np.ndarray]:
        rows = min(self.unit_rows, self.shape[0] - unit * self.unit_rows)
        values = np.random.default_rng([7, unit]).standard_normal((rows, self.shape[1])) * 0.8 ** np.arange(
            self.shape[1]
        )
        values[0, -1] = 100.0
        yield values


def rows_at(url: str) -> Waves:
    rows, _, columns = url.removeprefix("waves://").partition("x")
    return Waves((int(rows), int(columns)))


def open_url(url: str, asked: Any) -> Any:
    return open_given(url, rows_at, asked)
