"""Tables of a configuration: what each key is, and the aspect that it makes."""

from typing import Any

from npmdask_robust.aspects import Clip, RowLimit
from npmdask_robust.signs import Signs
from pydantic import Field, model_validator

from npmdask.config import AspectTable


class RowLimitTable(AspectTable):
    """Rows that count."""

    first: int = Field(ge=1, description="number of the first rows, of which components are computed")

    def aspect(self, source: Any) -> RowLimit:
        return RowLimit(first=self.first)


class ClipTable(AspectTable):
    """Limits of entries."""

    low: float = Field(description="what smaller entries count as")
    high: float = Field(description="what larger entries count as")

    @model_validator(mode="after")
    def _in_order(self) -> "ClipTable":
        if not self.low < self.high:
            raise ValueError(f"low = {self.low} is not below high = {self.high}")
        return self

    def aspect(self, source: Any) -> Clip:
        return Clip(low=self.low, high=self.high)


class SignsTable(AspectTable):
    """Directions of rows."""

    on: bool = Field(True, description="rows count by their direction from the mean, and not by their length")

    def aspect(self, source: Any) -> Signs | None:
        return Signs() if self.on else None
