"""Parameters of flows: what the forms in the Prefect UI say of them, what they may be, where the store of a run is."""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from prefect.exceptions import ParameterBindError, ParameterTypeError
from prefect.utilities.callables import get_call_parameters
from pydantic import Field

from npmdask.checkpoint.remote.mirror import place_of_store
from npmdask.config import RunConfig
from npmdask.errors import BadInputError, RefusedError
from npmdask.storage.paths import NAME, is_url, require_name


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


def checked(flow: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a flow, if it takes them.

    Raises
    ------
    BadInputError
        One is unknown, missing or out of range.
    """
    try:
        flow.validate_parameters(get_call_parameters(flow.fn, (), asked, apply_defaults=False))
    except (ParameterBindError, ParameterTypeError) as error:
        said = str(error).partition("\nFunction")[0].replace("\n", " ")
        raise BadInputError(f"the parameters do not fit the flow {flow.name}: {said}") from None
    run_folder(asked.get("folder", "runs"), asked.get("run_id", flow.name))
    return asked


def run_folder(folder: str, run_id: str) -> str:
    """The folder of a run. Its name comes from outside: raises BadInputError where it is none."""
    require_name(run_id, "run_id")
    return place_of_store(f"{folder}/{run_id}" if is_url(folder) else Path(folder) / run_id)


def at_store(config: RunConfig, run_id: str) -> RunConfig:
    """The configuration with its store: the one that it names, or ``runs/RUN_ID``.

    Raises
    ------
    BadInputError
        The name of the run cannot be that of a folder.
    RefusedError
        A password is in the configuration, which Prefect keeps and shows.
    """
    _require_no_secret(config)
    place = run_folder("runs", run_id)
    store = place_of_store(config.run.store) if config.run.store else place
    return config.model_copy(update={"run": config.run.model_copy(update={"store": store})})


def _require_no_secret(config: RunConfig) -> None:
    ledger = urlsplit((config.privacy and config.privacy.ledger) or "")
    if ledger.password or "password" in parse_qs(ledger.query):
        raise RefusedError(
            "privacy.ledger holds a password, and Prefect keeps and shows the parameters of a run: leave it out and "
            "set NPMDASK_LEDGER in the environment of the process that runs it, or put the password into its ~/.pgpass"
        )


def require_no_other_flow(config: RunConfig) -> None:
    """Refuse what has a flow of its own, whose steps are other ones: private releases, and data that lie with nodes.

    Raises
    ------
    RefusedError
        The sentence names the flow.
    """
    if config.privacy is not None:
        raise RefusedError(
            "the configuration asks for a private release: run it with `python -m flows.private_release`"
        )
    if config.source.nodes is not None:
        raise RefusedError(
            "the data of this configuration lie with nodes: run it with `python -m flows.distributed_private_pca`"
        )


def check_plain(config: RunConfig) -> None:
    """The same, and what else can be checked without reading: for programs, before a server is started."""
    require_no_other_flow(config)
    config.check()
