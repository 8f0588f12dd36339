"""Parameters that several flows have: what the forms in the Prefect UI say of them, and what they may be."""

from typing import Annotated, Any

from pydantic import Field

from npmdask.config import RunConfig
from npmdask.storage.paths import NAME


def said(description: str, *, pattern: str | None = None, **limits: Any) -> Any:
    """For ``Annotated``: a description and limits of a parameter. ``pattern`` is for the form alone.

    Prefect (3.8.8) writes what the docstring says of a parameter, or nothing, over the description of a field. What the
    schema has besides stays.
    """
    extra = {"description": description} | ({} if pattern is None else {"pattern": pattern})
    return Field(json_schema_extra=extra, **limits)  # type: ignore[arg-type]


Config = Annotated[RunConfig, said("the tables of a file for `npmdask run`; relative paths: of the worker's folder")]
RunId = Annotated[
    str,
    said("name of the run: the same again goes on, or returns the answer", pattern=f"^{NAME}$"),
]
Folder = Annotated[str, said("where the folder of the run is made")]
Seed = Annotated[int, said("of everything that is drawn", ge=0)]
Restarts = Annotated[int | None, said("random starts of the tensor power method; by the rank if left out", gt=0)]
Memory = Annotated[str | None, said("limit for all processes together, like 1GiB")]
Threads = Annotated[int | None, said("a process; all cores if left out", gt=0)]
Workers = Annotated[int, said("processes; 0: threads of one process", ge=0)]
