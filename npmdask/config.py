"""One validated model of a run: TOML file -> objects -> TOML file. The CLI and the Prefect flows share it."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from npmdask.accounting import Budget
from npmdask.api import parse_memory, solve
from npmdask.driver import Resources, Solution
from npmdask.errors import BadInputError, closest
from npmdask.nodes.parts import open_nodes
from npmdask.planning import Plan, plan_run, resolve_rank
from npmdask.posing import checked_rank, make_problem
from npmdask.privacy import Privacy
from npmdask.problem import Problem, Request, Start
from npmdask.progress import Observer
from npmdask.storage.layout import Source, open_source
from npmdask.storage.remote import is_remote
from npmdask.warm_start import find_start

if TYPE_CHECKING:
    from npmdask.private_plan import PrivatePlan


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SourceTable(_Table):
    """What is analysed."""

    path: str = Field("", description="a Zarr store: a folder relative to this file, or s3://bucket/key")
    nodes: list[str] | None = Field(
        None, description="instead: addresses of `npmdask node` processes that hold the data, like http://host:9001"
    )
    patience: float = Field(60.0, ge=0, description="seconds that a node may be away before the run ends, resumable")
    kind: Literal["samples", "symmetric", "matrix", "sparse"] | None = Field(
        None, description="how to read it; what the store says of itself if left out"
    )
    center: bool = Field(False, description="subtract the column means, on the fly")
    scale: bool = Field(False, description="divide by the column standard deviations, on the fly")

    @model_validator(mode="after")
    def _one_of_them(self) -> SourceTable:
        if bool(self.path) == (self.nodes is not None):
            raise ValueError("give either path (a store) or nodes (addresses), and not both")
        return self

    def open(self) -> Source:
        """The data, or the nodes that hold them; nothing is read."""
        if self.nodes is None:
            return open_source(self.path, self.kind)
        if self.kind is not None:
            raise BadInputError("source.kind is said by the nodes: leave it out at the centre")
        return open_nodes(self.nodes, self.patience)


class AlgorithmTable(_Table):
    """How."""

    name: Literal["auto", "power", "krylov"] = Field(
        "auto", description="krylov: restarted block Krylov; power: the noisy power method; auto: krylov without noise"
    )
    target_rank: int | float = Field(description="k: how many components; or, like 0.95, a share of the variance")
    iteration_rank: int | Literal["auto"] | None = Field(
        None, description='p >= k: columns iterated; max(k + 10, min(2 k, 64)); "auto": all that cost no time'
    )
    max_steps: int | None = Field(
        None, ge=1, description="give up (not converged) after so many passes: 200; private: how many are released"
    )

    @field_validator("target_rank", mode="before")
    @classmethod
    def _rank_or_share(cls, rank: Any) -> int | float:
        if checked_rank(rank) < 0.0 or rank == 0:
            raise ValueError("at least 1 component is needed, or a share strictly between 0 and 1")
        return checked_rank(rank)

    @field_validator("iteration_rank", mode="before")
    @classmethod
    def _require_rank(cls, value: Any) -> Any:
        """One sentence instead of one for every type that it might have been."""
        if value is None or value == "auto" or (type(value) is int and value >= 1):
            return value
        raise ValueError('must be a whole number from 1 on, or "auto"')


class StopTable(_Table):
    """When to stop."""

    tol: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="relative residual ||A v - theta v|| / |theta|; 1e-9, float32 data: 1e-6",
    )


class MechanismTable(_Table):
    """What is added to every product."""

    name: Literal["none", "gaussian"] = Field("none", description="gaussian: simulated noise, not private")
    stddev: float = Field(0.0, ge=0, description="of the simulated noise")


class PrivacyTable(_Table):
    """A promise: differential privacy. The table makes the run private."""

    epsilon: float = Field(description="spent by the whole run", gt=0)
    delta: float = Field(description="spent by the whole run; far below 1 / (number of records)", ge=0, lt=1)
    neighboring_relation: str | None = Field(
        None, description="who is protected: record_replace, record_add_remove, record_zero_out, symmetric_entry, ..."
    )
    clip_norm: float | None = Field(
        None, description="public bound: the norm of a record, or the size of an entry; chosen without looking"
    )
    change: float = Field(1.0, gt=0, description="by how much an entry, or the norm, may differ (matrix relations)")
    coherence: float | None = Field(None, gt=0, description="public estimate, for noise that does not follow X")
    mechanism: Literal["gaussian", "laplace"] = Field("gaussian", description="laplace: pure epsilon, delta = 0")
    calibration: Literal["exact", "paper"] = Field("exact", description="paper: Hardt and Price's formula, to compare")
    clip_images: bool = Field(True, description="of records: clip their images in each block too, for less noise")
    ledger: str | None = Field(None, description="file or URL of the budgets; NPMDASK_LEDGER if left out")
    dataset: str | None = Field(None, description="name of the data set in the ledger; the source's path if left out")


class RunTable(_Table):
    """With what, and where."""

    memory: str | None = Field(None, description="limit for all processes together, like 1GiB")
    workers: int = Field(0, ge=0, description="processes; 0: threads of one process")
    threads: int | None = Field(None, ge=1, description="a process; all cores if left out")
    store: str | None = Field(None, description="folder of the run; relative to this file")
    cluster: str | None = Field(None, description="address of a Dask scheduler, like tcp://host:8786, to use instead")
    commit_seconds: float = Field(30.0, ge=0, description="between commits inside a pass: lost at most by a kill")
    seed: int = Field(0, ge=0, description="of the random start block")
    start: str | None = Field(None, description="folder of an earlier run to begin from; relative to this file")


class RunConfig(_Table):
    """A run, whole."""

    source: SourceTable
    algorithm: AlgorithmTable
    stop: StopTable = StopTable()
    mechanism: MechanismTable = MechanismTable()
    privacy: PrivacyTable | None = None
    run: RunTable = RunTable()

    def request(self) -> Request:
        """The public parameters."""
        return Request(
            target_rank=self.algorithm.target_rank,
            iteration_rank=self.algorithm.iteration_rank,
            algorithm=self.algorithm.name,
            max_steps=self.algorithm.max_steps,
            tol=self.stop.tol,
            center=self.source.center,
            scale=self.source.scale,
            seed=self.run.seed,
            mechanism=self.mechanism.name,
            stddev=self.mechanism.stddev,
            privacy=None if self.privacy is None else Privacy(**self.privacy.model_dump()),
        )

    def check(self) -> Problem:
        """The source opened and everything checked, nothing read: iteration_rank = "auto" stands for the default."""
        request = self.request()
        if request.iteration_rank == "auto" and request.privacy is None:
            request = replace(request, iteration_rank=None)
        return make_problem(self.source.open(), request)

    def problem(self) -> Problem:
        """The source opened and everything checked; nothing read yet, unless iteration_rank = "auto" is new."""
        source = self.source.open()
        if self.source.nodes is not None:
            self._require_threads()
            return make_problem(source, self.request(), start=self._begun())
        request = resolve_rank(self.request(), source, self.resources(), self.run.store)
        return make_problem(source, request, start=self._begun())

    def _require_threads(self) -> None:
        if self.run.workers or self.run.cluster is not None:
            raise BadInputError("a centre has no data to pass over: leave run.workers and run.cluster out")

    def _begun(self) -> Start | None:
        return None if self.run.start is None else find_start(self.run.start, self.run.store)

    def plan(self) -> Plan:
        """What running it would do and need."""
        if self.source.nodes is not None:
            raise BadInputError("a plan measures the data, which lie with the nodes: make it there, for one node")
        return plan_run(self.problem(), self.resources())

    def private_plan(self) -> PrivatePlan:
        """The same of a private run, from public numbers: the data are not looked at."""
        from npmdask.private_plan import plan_private  # the ledger's SQLAlchemy: a tenth of a second

        return plan_private(self.problem(), self.resources(), self.run.store)

    def warnings(self) -> list[str]:
        """What whoever runs it should know before it starts; may hold the number of rows: not to be published."""
        if self.privacy is None:
            return []
        problem, budget = self.check(), Budget(self.privacy.epsilon, self.privacy.delta)
        assert problem.private is not None
        relation = problem.private.relation
        from npmdask.ledger.granting import delta_warnings

        return delta_warnings(problem.source, relation.name, budget) if relation.public_rows else []

    def resources(self) -> Resources:
        """What the run may use."""
        return Resources(
            memory=parse_memory(self.run.memory),
            threads=self.run.threads or (None if self.source.nodes is None else len(self.source.nodes)),  # all at once
            workers=self.run.workers,
            cluster=self.run.cluster,
            commit_seconds=self.run.commit_seconds,
        )

    def solve(self, observer: Observer | None = None) -> Solution:
        """Run it, or go on with it, or return its answer if it is finished."""
        return solve(self.problem(), self.run.store, self.resources(), observer)


def load_config(path: str | Path, *, store: str | None = None, start: str | None = None) -> RunConfig:
    """Read a configuration file; its relative paths are taken relative to the file.

    ``store`` and ``start`` (relative to the working directory) replace those in the file; without either the store
    is ``runs/NAME`` beside the file.

    Raises
    ------
    BadInputError
        No such file, not TOML, an unknown key (the right one is suggested) or a value out of range.
    """
    file = Path(path)
    try:
        content = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise BadInputError(f"there is no configuration {file}; write one with `npmdask init {file.stem}`") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInputError(f"{file} is not a TOML file: {error}") from error
    config = validate_config(content, str(file))
    folder = file.absolute().parent
    where = Path(store).absolute() if store else folder / (config.run.store or f"runs/{file.stem}")
    begin = folder / config.run.start if config.run.start else None
    begin = Path(start).absolute() if start else begin
    return config.model_copy(
        update={
            "source": config.source.model_copy(update={"path": _beside(folder, config.source.path)}),
            "privacy": _ledger_beside(folder, config.privacy),
            "run": config.run.model_copy(update={"store": str(where), "start": str(begin) if begin else None}),
        }
    )


def _beside(folder: Path, path: str) -> str:
    return path if is_remote(path) or not path else str(folder / path)


def _ledger_beside(folder: Path, privacy: PrivacyTable | None) -> PrivacyTable | None:
    if privacy is None or privacy.ledger is None or "://" in privacy.ledger:
        return privacy
    return privacy.model_copy(update={"ledger": str(folder / privacy.ledger)})


def validate_config(content: dict[str, Any], name: str = "the configuration") -> RunConfig:
    """The model of a parsed configuration; every error is a sentence."""
    try:
        config = RunConfig.model_validate(content)
    except ValidationError as error:
        raise BadInputError(f"{name}: " + "; ".join(_sentence(e) for e in error.errors())) from None
    parse_memory(config.run.memory)
    return config


def _sentence(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = list(_model_at(error["loc"][:-1]).model_fields)
        return f"unknown key {where!r}: {closest(str(error['loc'][-1]), known)}"
    if error["type"] == "missing":
        return f"{where} is missing: {_description(error['loc']) or 'see `npmdask init`'}"
    return f"{where} = {error.get('input')!r}: {error['msg'].removeprefix('Value error, ')}"


def _model_at(location: tuple[Any, ...]) -> type[BaseModel]:
    model: type[BaseModel] = RunConfig
    for part in location:
        model = _table(model.model_fields[part].annotation)
    return model


def _table(annotation: Any) -> type[BaseModel]:
    """The model of a table, which may be left out (``Model | None``)."""
    return next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)


def _description(location: tuple[Any, ...]) -> str | None:
    field = _model_at(location[:-1]).model_fields.get(str(location[-1]))
    return field.description if field else None


def render_config(config: RunConfig) -> str:
    """A configuration as commented TOML; options left open are there as comments."""
    lines = []
    for table, field in RunConfig.model_fields.items():
        model, values = _table(field.annotation), getattr(config, table)
        off = "# " if values is None else ""
        lines += [f"# {(model.__doc__ or '').splitlines()[0]}", f"{off}[{table}]"]
        for name, option in model.model_fields.items():
            value = option.get_default() if values is None else getattr(values, name)
            known = (value is not None and not option.is_required()) or (values is not None and value is not None)
            text = f"{off}{name} = {_toml(value)}" if known else f"# {name} ="
            lines.append(f"{text:<34}# {option.description}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """Strings, booleans and numbers are written the same in TOML as in JSON."""
    return repr(value) if isinstance(value, float) else json.dumps(value)


def starter(name: str) -> str:
    """The file that ``npmdask init NAME`` writes."""
    config = RunConfig(
        source=SourceTable(path=f"{name}.zarr"),
        algorithm=AlgorithmTable(target_rank=10),
        run=RunTable(memory="1GiB", store=f"runs/{name}"),
    )
    return f"# npmdask run {name}.toml\n\n" + render_config(config)
