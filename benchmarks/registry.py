"""What a row is, and where they are found: every module of ``benchmarks.rows`` holds one or more in ``ROWS``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from npmdask.core.execution.memory import usable_cores

Scale = Literal["small", "medium", "full"]
FACTORS: dict[str, int] = {"full": 1, "medium": 8}  # medium: an eighth of the full data


class CannotRunError(Exception):
    """A row cannot be measured here; a sentence says why and what to do."""


class NoCardError(CannotRunError):
    """A row needs a GPU and this machine has none: it is skipped, and what was measured elsewhere is kept."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a row is given: how large, where, and the data sets by name (made when first asked for)."""

    scale: str
    folder: Path
    data: Mapping[str, Path]
    cores: int = field(default_factory=usable_cores)

    def sized(self, small: int, full: int) -> int:
        """A number that grows with the data."""
        return small if self.scale == "small" else max(small, full // FACTORS[self.scale])

    @property
    def rounds(self) -> int:
        """Interleaved rounds of a comparison, of which the medians count."""
        return {"small": 2, "medium": 3, "full": 5}[self.scale]


@dataclass(frozen=True)
class Measured:
    """What a row found. ``why`` explains a missed target; ``failures`` are wrong or broken answers that nobody
    expected: they fail the run of the benchmarks, whatever the figure."""

    figure: float | None
    details: dict[str, Any]
    why: str = ""
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """A number to reach: ``figure`` must be at least (``better="higher"``) or at most ``target``."""

    name: str
    what: str
    target: float
    run: Callable[[Context], Measured]
    better: Literal["higher", "lower"] = "higher"
    data: tuple[str, ...] = ()  # names in benchmarks.data.RECIPES, kept until the last row that needs them

    def holds(self, figure: float | None) -> bool:
        if figure is None:
            return False
        return figure >= self.target if self.better == "higher" else figure <= self.target


def all_rows(lacking: dict[str, str] | None = None) -> list[Row]:
    """Every row, those that share data one after the other.

    ``lacking`` takes the modules whose packages are not installed, with the reason; without it they are an error.
    """
    import benchmarks.rows as package

    rows: list[Row] = []
    for found in pkgutil.iter_modules(package.__path__):
        try:
            rows += importlib.import_module(f"{package.__name__}.{found.name}").ROWS
        except ModuleNotFoundError as error:
            if lacking is None:
                raise
            lacking[found.name] = str(error)
    return sorted(rows, key=lambda row: (row.data, row.name))
