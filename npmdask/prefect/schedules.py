"""Read and check ``schedules.toml``, and register its schedules with the Prefect server.

The keys of an entry are the fields of :class:`ScheduleEntry`. Their JSON schema, by which editors complete the file, is
beside the package's own: ``schedules.schema.json``.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from os.path import expandvars, normpath
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from prefect import Flow
from prefect.schedules import Cron, Interval, Schedule
from prefect.server.schemas.schedules import CronSchedule
from prefect.utilities.asyncutils import run_coro_as_sync
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from npmdask.config import RunConfig, load_config, parse_toml, sentences
from npmdask.core.numerics.units import attributes, time_text
from npmdask.core.storage.paths import local_path
from npmdask.errors import BadInputError, closest, require
from npmdask.prefect.benchmark import benchmark
from npmdask.prefect.parameters import at_store, checked, run_folder
from npmdask.prefect.power_method import distributed_private_pca, npm, npm_deflation
from npmdask.prefect.private_release import private_release
from npmdask.prefect.staged_runs import latent, topics, two_fields
from npmdask.prefect.streaming_update import for_ticks, streaming_update

CONFIGURED = (npm, npm_deflation, streaming_update, private_release, distributed_private_pca)
FLOWS: dict[str, Flow[..., Any]] = {made.name: made for made in (*CONFIGURED, topics, latent, two_fields, benchmark)}
OF_A_CONFIGURATION = tuple(made.name for made in CONFIGURED)
DATA = ("documents", "samples", "left", "right")  # parameters that name data, of the other flows


class ScheduleEntry(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="name of the schedule, and of its run unless parameters.run_id is given")
    flow: Literal[tuple(FLOWS)] = Field(  # type: ignore[valid-type]
        description="the flow that each tick runs"
    )
    config: str | None = Field(None, description="configuration file of the run, relative to this file")
    store: str | None = Field(
        None, description="folder of such a run, relative to this file (default: runs/NAME in the working folder)"
    )
    every: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="seconds from one tick to the next; the first tick is at once"
    )
    cron: str | None = Field(None, description="times of ticks: minute, hour, day, month, day of the week")
    timezone: str = Field("UTC", description="time zone of cron, such as Europe/Berlin")
    paused: bool = Field(False, description="keep the schedule, but do not run it")
    at_once: Annotated[int, Field(ge=1)] = Field(1, description="how many runs may use the same data at the same time")
    parameters: dict[str, Any] = Field(default_factory=dict, description="further parameters of the flow")

    @model_validator(mode="after")
    def _require_one_timing(self) -> "ScheduleEntry":
        if (self.every is None) == (self.cron is None):
            raise ValueError(f"{self.name}: say when it runs, with either `every` or `cron`")
        if self.timezone not in available_timezones():
            raise ValueError(f"{self.name}: there is no timezone {self.timezone!r}: {_timezone_hint(self.timezone)}")
        if (self.config is not None) != (self.flow in OF_A_CONFIGURATION):
            takes = "needs a configuration: add" if self.config is None else "takes no configuration: leave out"
            raise ValueError(f"{self.name}: the flow {self.flow} {takes} `config`")
        return self


def _timezone_hint(timezone: str) -> str:
    return closest(timezone, [name for name in available_timezones() if "/" in name] + ["UTC"])[:100]


class NotifyTable(BaseModel):
    """The table of notifications."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(description="webhook to which a line of JSON is posted; $NAME is taken from the environment")
    on: list[Literal["failed", "crashed", "late", "completed", "skipped"]] = Field(
        ["failed", "crashed"], description="states of runs that are told"
    )


class File(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")

    notify: NotifyTable | None = Field(None, description="webhook that hears how runs end")
    schedule: list[ScheduleEntry] = Field(default_factory=list, description="one table for each schedule")


def schedules_schema_text() -> str:
    """The JSON schema of the file: keys, when each is needed, and the parameters of every flow."""
    made = _without_null(File.model_json_schema())
    entry = made["$defs"]["ScheduleEntry"]
    entry["oneOf"] = [{"required": ["cron"]}, {"required": ["every"]}]
    entry["allOf"] = [
        {"if": {"properties": {"flow": {"const": name}}}, "then": _of_flow(name, flow)} for name, flow in FLOWS.items()
    ]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Schedules of npmdask serve"}
    return json.dumps(head | {key: value for key, value in made.items() if key != "title"}, indent=2) + "\n"


def _of_flow(name: str, flow: Flow[..., Any]) -> dict[str, Any]:
    """Return the schema of an entry of this flow: what it must have, and the parameters that it may have."""
    known = _without_null(flow.parameters.model_dump())
    needed = [key for key in known.get("required", ()) if key != "config"]
    fields = {
        key: {word: value for word, value in field.items() if word not in ("title", "position")}
        for key, field in known["properties"].items()
        if key != "config"
    }
    parameters = {"properties": fields, "additionalProperties": False, "required": needed}
    configured: dict[str, Any] = (
        {"required": ["config"]} if name in OF_A_CONFIGURATION else {"not": {"required": ["config"]}}
    )
    if needed:
        configured["required"] = [*configured.get("required", ()), "parameters"]
    return {**configured, "properties": {"parameters": parameters}}


def _without_null(schema: Any) -> Any:
    """The schema of what TOML can say, which has no null: keys are left out instead."""
    if isinstance(schema, list):
        return [_without_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _without_null(value) for key, value in schema.items() if not (key == "default" and value is None)}
    choices = [part for part in kept.get("anyOf", ()) if part != {"type": "null"}]
    if len(choices) == 1:
        return {key: value for key, value in kept.items() if key != "anyOf"} | choices[0]
    return kept | ({"anyOf": choices} if choices else {})


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A schedule, checked: everything that a deployment is made of."""

    name: str
    flow: Flow[..., Any]
    when: Schedule
    paused: bool
    parameters: dict[str, Any]
    data: str  # what it reads
    at_once: int
    version: str  # of all of it
    folder: Path  # of the file: where relative paths of its runs start
    timezone: str
    begins: bool  # with a first run as soon as it is known, not only after its time

    def timing(self, now: datetime) -> str:
        """Say when it runs, in which time zone, and its next tick after ``now``: the one that Prefect would make."""
        if self.when.cron is not None:
            said = f"cron {self.when.cron} ({self.when.timezone})"
            (next_one,) = _ticks(self.when, now, count=1)
            due = "; ".join((f"next tick {next_one:%a %Y-%m-%d %H:%M %Z}", *_changed_clocks(self.when, now)))
        else:
            assert self.when.interval is not None
            often = time_text(self.when.interval.total_seconds())
            said, due = f"every {often}", f"first tick when it is served for the first time, then {often} after each"
        return f"{said}, {'paused: no tick' if self.paused else due}"

    @property
    def queue(self) -> str:
        """The work queue of all that reads the same data: its limit is how many runs of them there are at once."""
        return f"data-{sha256(self.data.encode()).hexdigest()[:12]}"


def _ticks(
    when: Schedule, start: datetime, end: datetime | None = None, *, count: int | None = None, zone: str | None = None
) -> list[datetime]:
    """Return when Prefect runs a cron: ``count`` times, or all up to ``end``. Raises ValueError where none comes."""
    cron = CronSchedule(cron=str(when.cron), timezone=zone or when.timezone)
    return list(run_coro_as_sync(cron.get_dates(count, start, end)) or ())


def _changed_clocks(when: Schedule, now: datetime) -> Iterator[str]:
    """Say on which days of the coming year the clock has times of a cron not at all or twice, and what Prefect does.

    That is asked of Prefect and not known here: it may change with its version.
    """
    zone, quarter, second = ZoneInfo(str(when.timezone)), timedelta(minutes=15), timedelta(seconds=1)
    first = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    days = pairwise((first + timedelta(days=n)).astimezone(zone) for n in range(367))
    changed = [day.astimezone(UTC) for day, after in days if day.utcoffset() != after.utcoffset()]
    for before, after in pairwise((day + n * quarter).astimezone(zone) for day in changed for n in range(97)):
        old, new = before.utcoffset() or timedelta(), after.utcoffset() or timedelta()
        if old == new:
            continue
        change, length = after.astimezone(UTC), abs(new - old)
        shown = change + min(old, new)  # by the clock; in UTC every such time comes once
        if hit := _ticks(when, shown, shown + length - second, zone="UTC"):
            ticks = _times_text(_ticks(when, change - length, change + length - second), "%a %H:%M %Z")
            how = f"{_times_text(hit, '%H:%M')} twice" if new < old else f"no {_times_text(hit, '%H:%M')}"
            yield f"{shown:%a %Y-%m-%d} has {how}, and Prefect ticks at {ticks}"


def _times_text(ticks: Sequence[datetime], form: str) -> str:
    said = [f"{one:{form}}" for one in ticks]
    return ", ".join(said) if len(said) < 4 else f"{said[0]} to {said[-1]}"


def read_schedules(path: Path | str) -> list[Planned]:
    """All schedules of a file, each found good: its configuration loads, its flow takes the parameters.

    Raises
    ------
    BadInputError
        Something is wrong; the sentence names the file and the schedule.
    """
    path = Path(path).absolute()
    file = read_file(path)
    names = [entry.name for entry in file.schedule]
    for name in names:
        require(names.count(name) <= 1, f"{path}: two schedules are called {name!r}; rename one")
    return [_plan_entry(entry, path.parent) for entry in file.schedule]


def read_file(path: Path) -> File:
    """The tables of a file. Raises BadInputError, which names it."""
    try:
        return File.model_validate(parse_toml(path.read_text(), str(path)))
    except OSError as error:
        raise BadInputError(
            f"{path} cannot be read: {error.strerror}. Name a file of schedules, or let `npmdask serve --example "
            "FOLDER` write one to start from"
        ) from error
    except UnicodeDecodeError:
        raise BadInputError(f"{path} is not a TOML file: it is not UTF-8 text") from None
    except ValidationError as error:
        raise BadInputError(f"{path}: {sentences(error, File)}") from error


def read_notify(path: Path) -> NotifyTable | None:
    """The table of notifications, its URL with what the environment says.

    Raises
    ------
    BadInputError
        The environment lacks a name, or this is no URL: nothing would ever be told. The sentence holds no secret.
    """
    told = read_file(path).notify
    if told is None:
        return None
    url = expandvars(told.url)
    unset = [name for name in re.findall(r"\$\{?(\w+)", told.url) if name not in os.environ]
    require(not unset, f"{path}: notify.url: set {', '.join(unset)} in the environment, or write the URL itself")
    require(url.startswith(("http://", "https://")), f"{path}: notify.url is no URL: it has to begin with https://")
    return told.model_copy(update={"url": url})


def _plan_entry(entry: ScheduleEntry, folder: Path) -> Planned:
    run_folder("runs", str(entry.parameters.get("run_id", entry.name)))
    when = Interval(entry.every) if entry.every else _cron(entry.name, str(entry.cron), entry.timezone)
    flow, parameters = FLOWS[entry.flow], {"run_id": entry.name, **entry.parameters}
    if entry.config is not None:
        store = folder / entry.store if entry.store else Path("runs", str(parameters["run_id"]))
        file = Path(normpath(folder / entry.config))
        config = at_store(load_config(file, store=str(store)), str(parameters["run_id"]))
        if flow is streaming_update:
            config = for_ticks(config)
        parameters, data = {**parameters, "config": config.model_dump(mode="json")}, _data_of(config)
    else:
        data = "this machine"  # of benchmarks, which disturb each other
        # of two fields the first says what it reads
        for name in (name for name in reversed(DATA) if name in parameters):
            parameters[name] = data = _absolute(str(parameters[name]), folder)
        parameters.setdefault("folder", str(Path("runs").absolute()))
    checked(flow, parameters)
    if path := (parameters.get("changes") or {}).get("source.path"):
        data = _absolute(str(path), folder)
    return Planned(
        **attributes(entry, "name", "paused", "at_once", "timezone"),
        flow=flow,
        when=when,
        parameters=parameters,
        data=_canonical_place(data),
        folder=folder,
        begins=entry.every is not None and not entry.paused,
        version=sha256(json.dumps([entry.model_dump(), parameters], sort_keys=True).encode()).hexdigest()[:12],
    )


def _cron(name: str, cron: str, timezone: str) -> Schedule:
    """A cron that comes, and is read as it is written: of six fields the last would be seconds, of seven a year."""
    five = "write minute, hour, day, month and day of the week, like '0 2 * * *'"
    wrong = f"is not a valid time: {five}"
    try:
        when = Cron(cron, timezone=timezone)
        wrong = "never comes: no year has such a day, so name one that its month has"
        _ticks(when, datetime.now(UTC), count=1)
        wrong = f"has {len(cron.split())} fields, not 5: {five}"
        if len(cron.split()) > 5:
            raise ValueError(wrong)
    except ValueError as error:
        raise BadInputError(f"schedule {name}: cron = {cron!r} {wrong}") from error
    return when


def _data_of(config: RunConfig) -> str:
    return config.source.path or " ".join(config.source.nodes or ())


def _canonical_place(data: str) -> str:
    """The same text for every way to write one place: a path, ``file://``, with a slash behind it, through a link."""
    if "://" in data and not data.startswith("file://"):
        return data.rstrip("/")
    if not data.startswith(("/", "file://")):  # nodes, or this machine
        return data
    return str(local_path(data, "the data").resolve())


def _absolute(path: str, folder: Path) -> str:
    return path if "://" in path or not path else normpath(folder / path)
