"""Parameters of flows: what the forms in the Prefect UI say of them, what they may be, where the store of a run is."""

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from prefect.exceptions import ParameterTypeError
from prefect.runtime import flow_run
from prefect.utilities.callables import get_call_parameters
from pydantic import Field, ValidationError, WrapValidator
from pydantic.json_schema import SkipJsonSchema

from npmdask.cli.main import SHORT, is_source
from npmdask.config import RunConfig, config_of_source, config_of_tables, load_config, validate_config
from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.checkpoint.reader import KEY
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.restore import require_same_run
from npmdask.core.storage.paths import NAME, is_url, place_of_store, require_name, require_no_link, require_no_password
from npmdask.errors import BadInputError, RefusedError, closest, require, shown_value, wrong_value
from npmdask.rotations.presentation import PART


def said(description: str, *, pattern: str | None = None, **limits: Any) -> Any:
    """For ``Annotated``: a description and limits of a parameter. ``pattern`` is for the form alone.

    Prefect (3.8.8) writes what the docstring says of a parameter, or nothing, over the description of a field. What the
    schema has besides stays.
    """
    extra = {"description": description} | ({} if pattern is None else {"pattern": pattern})
    return Field(json_schema_extra=extra, **limits)  # type: ignore[arg-type]


Config = Annotated[
    RunConfig, said("configuration, as in a file for `npmdask run`; relative paths start at the run's working folder")
]


def _config_or_path(value: Any, handler: Callable[[Any], Any]) -> RunConfig | str:
    """Tables are held to the model; a path to what is there, once the run looks."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if not isinstance(value, RunConfig | Mapping):
        raise ValueError(
            f"a {type(value).__name__} is neither a configuration nor the path of data. Data in memory would have to "
            "pass through Prefect: write them to a Zarr store and give its path, or call npmdask.top_k in a task"
        )
    return RunConfig.model_validate(value)


Source = Annotated[
    RunConfig | str | SkipJsonSchema[os.PathLike[str]] | SkipJsonSchema[dict[str, Any]],
    WrapValidator(_config_or_path),
    said(
        "a configuration, the path of a configuration file (.toml), or, with k, the path or URL of data; relative "
        "paths start at the run's working folder, those in a file at its own folder"
    ),
]
Changes = Annotated[
    dict[str, Any] | None,
    said('further keys of the configuration by their dotted names, e.g. {"run.threads": 4}'),
]
RunId = Annotated[
    str,
    said("name of the run; the same name resumes it, or returns its results", pattern=f"^{NAME}$"),
]
OptionalRunId = Annotated[str | None, said("name of the run; the name of its store if left out", pattern=f"^{NAME}$")]
Folder = Annotated[str, said("folder that holds the folder of the run")]
Seed = Annotated[int, said("seed of all random numbers", ge=0)]
Restarts = Annotated[int | None, said("random starts of the tensor power method; chosen by the rank if left out", gt=0)]
Memory = Annotated[str | None, said("memory limit for all processes together, e.g. 1GiB")]
DeviceName = Annotated[
    Literal["cpu", "auto", "cuda"] | None, said("what forms the sums over the rows; cuda: an NVIDIA GPU")
]
Threads = Annotated[int | None, said("threads of each process; all cores if left out", gt=0)]
Workers = Annotated[int, said("number of processes; 0: threads of one process", ge=0)]


def checked(flow: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a flow, if it takes them.

    Raises
    ------
    BadInputError
        One is unknown, missing or out of range.
    """
    wrong = f"the parameters do not fit the flow {flow.name}"
    known = signature(flow.fn).parameters
    if (unknown := next((name for name in asked if name not in known), None)) is not None:
        raise BadInputError(f"{wrong}: it has no parameter {unknown!r}: {closest(unknown, [*known])}")
    if missing := [name for name, one in known.items() if one.default is one.empty and name not in asked]:
        raise BadInputError(f"{wrong}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    try:
        flow.validate_parameters(get_call_parameters(flow.fn, (), asked, apply_defaults=False))
    except ParameterTypeError as error:
        found = error.__context__  # what Prefect made its sentence of
        told = found.errors(include_url=False) if isinstance(found, ValidationError) else []
        said = "; ".join(
            f"{_key_at(asked, one['loc'])} = {shown_value(one.get('input'))}: {wrong_value(one)}" for one in told
        )
        raise BadInputError(f"{wrong}: {said or 'one of them is of another type'}") from None
    run_folder(asked.get("folder", "runs"), asked.get("run_id", flow.name))
    return asked


def _key_at(asked: Mapping[str, Any], location: tuple[int | str, ...]) -> str:
    """The parameter that pydantic means, with the keys of the tables in it, and without the types that it tried."""
    first, *rest = map(str, location)
    found, held = [first], asked.get(first)
    for part in rest:
        if not isinstance(held, Mapping):
            break
        found.append(part)
        held = held.get(part)
    return ".".join(found)


def run_folder(folder: str, run_id: str) -> str:
    """The folder of a run. Its name comes from outside: raises BadInputError where it is none."""
    require_name(run_id, "run_id")
    return place_of_store(f"{folder}/{run_id}" if is_url(folder) else Path(folder) / run_id)


def configuration(
    config: Any,
    k: int | float | str | None = None,
    *,
    store: str | None = None,
    changes: dict[str, Any] | None = None,
    run_id: str | None = None,
    **options: Any,
) -> RunConfig:
    """
    Return the configuration of a run, from a configuration or from data and options, with the place of its store.

    Parameters
    ----------
    config : str, PathLike, dict or RunConfig
        With ``k``, the path or URL of data. Otherwise the path of a file for ``npmdask run`` (.toml), or its tables.
    k : int or float, optional
        How many components, or, strictly between 0 and 1, the share of the variance that they are to explain.
    store : str, optional
        Folder or URL of the run. By default that of the configuration, or ``runs/NAME`` with the name of the run or of
        the data.
    changes : dict, optional
        Further keys of the configuration by their dotted names, like ``{"run.threads": 4}``.
    run_id : str, optional
        Name of the run; that of the store if left out.
    **options : Any
        ``kind``, ``center``, ``scale``, ``missing``, ``algorithm``, ``operator``, ``row_weights``, ``column_weights``,
        ``tol``, ``memory``, ``device``, ``device_memory``, ``seed``, ``rotate``, ``align_to``, ``colour``, ``grid``, as
        :func:`npm` takes them; ``missing_fill``, of private runs.

    Returns
    -------
    RunConfig
        What the tasks of :mod:`npmdask.prefect` take.

    Raises
    ------
    BadInputError
        There is no such file or key, a value is out of range, data are given without k, or a password is in the
        configuration, which Prefect keeps and shows.

    Examples
    --------
    >>> from npmdask.prefect import configuration
    >>> config = configuration("samples.zarr", 10, center=True, memory="1GiB", store="runs/first")
    >>> config.algorithm.target_rank, config.source.center, config.run.memory
    (10, True, '1GiB')
    """
    given = {option: options.pop(option, None) for option in SHORT if option != "k"}
    if options:
        raise BadInputError(f"unknown option {next(iter(options))!r}: {closest(next(iter(options)), [*given])}")
    made = _make_config(_tables(config), _changes({**given, "k": k}, changes), store, run_id)
    return at_store(made, name_of_run(made, run_id))


def _tables(config: Any) -> RunConfig | str:
    if isinstance(config, Mapping):
        return validate_config(dict(config))
    try:
        return _config_or_path(config, RunConfig.model_validate)
    except ValueError as error:
        raise BadInputError(f"config: {error}") from None


def _make_config(config: RunConfig | str, changes: dict[str, Any], store: str | None, run_id: str | None) -> RunConfig:
    if isinstance(config, RunConfig):
        return config_of_tables(config, store=store, changes=changes) if changes or store else config
    if not is_source(config, changes):
        return load_config(config, store=store, changes=changes)
    return config_of_source(config, store=store or (run_folder("runs", run_id) if run_id else None), changes=changes)


def _changes(options: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what options and dotted keys change, by dotted key."""
    found = dict(changes or {})
    for option, value in options.items():
        if value is not None and SHORT[option] in found:
            raise BadInputError(f"{SHORT[option]} is given twice, by {option} and by changes: leave one out")
        if value is not None:
            found[SHORT[option]] = value
    return found


def name_of_run(config: RunConfig, run_id: str | None = None, default: str = "npm") -> str:
    """The name of a run: the one that it was given, that of its store, or ``default``."""
    return last_part(config.run.store or "", default) if run_id is None else run_id


def last_part(store: str, default: str = "npm") -> str:
    """The last part of the place of a store, as the name of a run."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", store.rstrip("/").rpartition("/")[2]).strip("-.") or default


def at_store(config: RunConfig, run_id: str) -> RunConfig:
    """The configuration with its store: the one that it names, or ``runs/RUN_ID``.

    Raises
    ------
    BadInputError
        The name of the run cannot be that of a folder, or a password is in the configuration, which Prefect keeps and
        shows.
    """
    require_no_password(config.privacy.ledger if config.privacy else None)
    place = run_folder("runs", run_id)
    store = place_of_store(config.run.store) if config.run.store else place
    return config.model_copy(update={"run": config.run.model_copy(update={"store": store})})


DAY = re.compile(r"\d{4}-\d\d-\d\d")
DATE = "{date}"  # in source.path: the day of a partition of the data
ZONE = "NPMDASK_TIMEZONE"  # of the schedule of a run, in which its day is that of its tick
PREVIOUS = "previous"


def due(
    config: Any,
    k: Any = None,
    *,
    fresh: bool = False,
    date: str | None = None,
    align_to: str | None = None,
    run_id: str | None = None,
    **given: Any,
) -> tuple[RunConfig, bool | None]:
    """Return the configuration of the run that the parameters of the flow ``npm`` ask for, and whether it is answered;
    None: it is none of numbered runs.

    Raises
    ------
    BadInputError
        A day is given for data that are not of days, or none that there is.
    RefusedError
        The store is a URL, below which runs are not numbered.
    """
    follows = align_to == PREVIOUS
    made = configuration(config, k, run_id=run_id, align_to=None if follows else align_to, **given)
    if DATE in made.source.path:
        made, fresh = of_day(made, day_of(date)), True
    elif date is not None:
        raise BadInputError(f"date = {date!r} is for data of days: write {DATE} into source.path, where files have it")
    if not fresh:
        require(not follows, f"align_to = {PREVIOUS!r} follows the run before: ask for fresh, or name a store")
        return made, None
    same = already_answered(made, follows=follows)
    return same or numbered(made, name_of_run(made, run_id), follows=follows), same is not None


def of_day(config: RunConfig, day: str) -> RunConfig:
    """The configuration of one day of data that lie in a file or folder for each, its runs in a folder of the day."""
    source = config.source.model_copy(update={"path": config.source.path.replace(DATE, day)})
    run = config.run.model_copy(update={"store": f"{config.run.store}/{day}"})
    return config.model_copy(update={"source": source, "run": run})


def day_of(given: str | None) -> str:
    """Return the day that is given, or that of the tick, or the one before."""
    if given in (None, "today", "yesterday"):
        tick = flow_run.scheduled_start_time.astimezone(ZoneInfo(os.environ.get(ZONE, "UTC")))
        return str(tick.date() - timedelta(days=given == "yesterday"))
    try:
        return str(date.fromisoformat(str(given)))
    except ValueError:
        raise BadInputError(f"date = {given!r}: give a day, like 2026-11-27, or today or yesterday") from None


def numbered(config: RunConfig, run_id: str, *, follows: bool = False) -> RunConfig:
    """The configuration with the store of the run that is due: one below the store that it has.

    ``follows``: its components are reported in the order and with the signs of the run before, where there is one.

    Raises
    ------
    RefusedError
        The store is a URL, below which runs are not numbered.
    """
    if is_url(config.run.store):
        raise RefusedError(
            f"runs are numbered in a folder, and {config.run.store} is a URL: leave fresh out, or use a folder"
        )
    store = next_store(Path(str(config.run.store)))
    if config.privacy is None and _is_on_other_data(config, store):
        store = f"{Path(store).parent / str(int(Path(store).name) + 1).zfill(6)}"
    return at_store(_at_number(config, store, follows=follows), run_id)


def _at_number(config: RunConfig, store: str, *, follows: bool) -> RunConfig:
    changed: dict[str, Any] = {"run": config.run.model_copy(update={"store": store})}
    if follows:
        spec = RunStore(store).read_spec() if Path(store).exists() else None  # a run that was begun stays as it is
        before = _before(Path(store)) if spec is None else spec.get("report", {}).get("align_to")
        changed["report"] = config.report.model_copy(update={"align_to": before and str(before)})
    return config.model_copy(update=changed)


def _before(store: Path) -> Path | None:
    """The last run with an answer; of the first one of a day that of the day before, or else after it."""
    home = store.parent
    before = [path for path in _numbers(home) if path.name < store.name and _has_answer(path)]
    if before or not DAY.fullmatch(home.name):
        return before[-1] if before else None
    days = _answered_days(home.parent)
    earlier = [day for day in days if day.name < home.name]
    return (earlier[-1] if earlier else days[0]) / LATEST if days else None


def _answered_days(home: Path) -> list[Path]:
    return sorted(day for day in home.iterdir() if DAY.fullmatch(day.name) and (day / LATEST).exists())


def next_store(home: Path) -> str:
    """The newest numbered store, if something of its run is still to be done; else the next number."""
    require_no_link(home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)  # whatever made it
    numbers = _numbers(home)
    if numbers and not _is_done(numbers[-1]):
        return str(numbers[-1])
    return str(home / f"{int(numbers[-1].name) + 1 if numbers else 1:06d}")


def already_answered(config: RunConfig, *, follows: bool = False) -> RunConfig | None:
    """The configuration with the newest numbered store below its own, if that answers it for the data as they are.

    ``follows``: as of :func:`numbered`.
    """
    home = Path(str(config.run.store))
    numbers = [] if is_url(config.run.store) or not home.is_dir() else _numbers(home)
    if not numbers or not (_is_done(numbers[-1]) and _has_answer(numbers[-1])):
        return None
    made = _at_number(config, str(numbers[-1]), follows=follows)
    spec = RunStore(numbers[-1]).read_spec()
    if spec is None or _is_on_other_data(made, str(numbers[-1])):
        return None
    try:
        require_same_run(made.problem().spec(), spec, str(numbers[-1]), None)
    except RefusedError:
        return None  # another question: k, or a tolerance
    return made


LATEST = "latest"


def point_to(store: str | Path) -> None:
    """Let ``latest.json`` and the link ``latest`` beside a numbered store name it, each replaced as a whole.

    Readers follow either: what they open is the last run that has ended well; above folders of days, that of the last
    day, whichever was computed last.
    """
    store = Path(store)
    if not store.name.isdigit() or not _has_answer(store):
        return
    spec, (_, result) = RunStore(store).read_spec() or {}, RunStore(store).read_part("result") or ({}, {})
    said = {"store": str(store.absolute()), "run": store.name, "fingerprint": spec["data"].get("fingerprint")}
    said |= {"sentence": Outcome(**result["outcome"]).sentence}
    said |= {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    home = store.parent
    _replace_latest(home, json.dumps(said, indent=1) + "\n", store.name)
    while DAY.fullmatch(home.name):  # until no later run has come meanwhile
        newest = _answered_days(home.parent)[-1]
        said_of_it, run = (newest / f"{LATEST}.json").read_text(), (newest / LATEST).readlink()
        _replace_latest(home.parent, said_of_it, f"{newest.name}/{run}")
        if said_of_it == (_answered_days(home.parent)[-1] / f"{LATEST}.json").read_text():
            return


def _replace_latest(home: Path, said: str, target: str) -> None:
    link = home / LATEST
    if link.exists() and not link.is_symlink():
        return
    for name, make in ((f"{LATEST}.json", lambda at: at.write_text(said)), (LATEST, lambda at: at.symlink_to(target))):
        aside = home / f".{name}.{os.getpid()}"
        aside.unlink(missing_ok=True)
        make(aside)
        os.replace(aside, home / name)


def _numbers(home: Path) -> list[Path]:
    return sorted(path for path in home.iterdir() if path.name.isdigit())


def _is_done(store: Path) -> bool:
    """Say whether there is an answer, reported as it was asked for, and no key of noise."""
    if not (store / "result").exists() or (store / KEY).exists():
        return False
    asked = (store / "run.json").exists() and "report" in (RunStore(store).read_spec() or {})
    return not asked or (store / PART).exists() or not _has_answer(store)


def _is_on_other_data(config: RunConfig, store: str) -> bool:
    """Say whether a run in ``store`` was begun on data that have changed since: it can never go on."""
    spec = RunStore(store).read_spec() if Path(store).exists() else None
    return spec is not None and spec["data"].get("fingerprint") != config.open_data().fingerprint


def _has_answer(store: Path) -> bool:
    """Say whether the run in ``store`` has an answer to align with."""
    result = RunStore(store).part_meta("result")
    return result is not None and Outcome(**result["outcome"]).answered


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
            "the data of this configuration are held by nodes: run it with `python -m flows.distributed_private_pca`"
        )


def check_plain(config: RunConfig) -> None:
    """The same, and what else can be checked without reading: for programs, before a server is started."""
    require_no_other_flow(config)
    config.check()
