"""One validated model of a run: TOML file -> objects -> TOML file. The CLI and the Prefect flows share it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from npmdask.api import solve
from npmdask.checkpoint.remote.mirror import place_of_store
from npmdask.checkpoint.store import PRIVATE
from npmdask.config_tables import (
    AlgorithmTable,
    MechanismTable,
    PrivacyTable,
    RunTable,
    SourceTable,
    StopTable,
    StreamTable,
    Table,
    table_of,
)
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.numerics.spectra import asked_spectrum
from npmdask.planning.plan import Plan, plan_run, resolve_rank
from npmdask.planning.tensor import TensorPlan, plan_tensor
from npmdask.privacy.dp_pca.registry import NAMES as RECORD_ORACLES
from npmdask.privacy.request import Privacy
from npmdask.runs.build import make_problem
from npmdask.runs.loop import Resources, Solution
from npmdask.runs.observers import Observer
from npmdask.runs.problem import Problem, Request, Start
from npmdask.runs.warm_start import find_start
from npmdask.sizes import parse_memory
from npmdask.storage.paths import is_url, local_path

if TYPE_CHECKING:
    from npmdask.planning.private import PrivatePlan
    from npmdask.streaming import StreamSolution
    from npmdask.streaming.problem import StreamProblem

STANDARD_INPUT = "-"
# algorithms that pass over stored data, again and again
STORED = ("auto", "power", "krylov", "tensor-power", *RECORD_ORACLES)


class RunConfig(Table):
    """A run, whole."""

    source: SourceTable = Field(description="what is analysed")
    algorithm: AlgorithmTable = Field(description="how")
    stream: StreamTable | None = Field(
        None,
        description='a stream: the rows of source.path (a store, a file, a directory that grows, or "-") are learnt '
        "from once; the table makes the run one",
    )
    stop: StopTable = Field(StopTable(), description="when to stop")
    mechanism: MechanismTable = Field(MechanismTable(), description="what is added to every product")
    privacy: PrivacyTable | None = Field(
        None, description="a promise: differential privacy; the table makes the run private"
    )
    run: RunTable = Field(RunTable(), description="with what, and where")

    def request(self) -> Request:
        """The public parameters."""
        return Request(
            target_rank=self.algorithm.target_rank,
            iteration_rank=self.algorithm.iteration_rank,
            algorithm=self.algorithm.name,
            options=self.algorithm.options,
            max_steps=self.algorithm.max_steps,
            tol=self.stop.tol,
            low_rank_tol=self.stop.low_rank_tol,
            center=self.source.center,
            scale=self.source.scale,
            seed=self.run.seed,
            mechanism=self.mechanism.name,
            stddev=self.mechanism.stddev,
            privacy=None if self.privacy is None else Privacy(**self.privacy.model_dump()),
        )

    @property
    def streams(self) -> bool:
        """Whether rows are learnt from once, as they come: a streaming algorithm, or a [stream] table."""
        return self.stream is not None or self.algorithm.name not in STORED

    def stream_problem(self) -> StreamProblem:
        """The stream opened and everything checked; nothing is read but held-out rows and the width of files."""
        from npmdask.streaming.problem import make_stream_problem
        from npmdask.streaming.request import StreamRequest
        from npmdask.streaming.source import Reading  # readers of every format: a tenth of a second

        self._require_stream()
        asked, how = self.algorithm, self.stream or StreamTable()
        options = dict(asked.options or {})
        if asked.iteration_rank is not None:
            options["iteration_rank"] = asked.iteration_rank
        request = StreamRequest(
            target_rank=asked.target_rank,  # type: ignore[arg-type]
            algorithm="spm" if asked.name == "auto" else asked.name,
            options=options,
            batch_rows=how.batch_rows,
            half_life=how.half_life,
            center=self.source.center,
            unit=how.unit,
            seed=self.run.seed,
            measure_rows=how.measure_rows,
        )
        reading = Reading(**how.model_dump(include=set(Reading.__dataclass_fields__)))
        return make_stream_problem(self.source.path, request, reading, how.held_out)

    def _require_stream(self) -> None:
        """Refuse what means nothing where rows are used once."""
        if self.algorithm.name in STORED[1:]:
            raise BadInputError(
                f"{self.algorithm.name} passes over stored data again and again: leave the [stream] table out, or "
                "choose a streaming algorithm like spm"
            )
        said = {
            "source.nodes": self.source.nodes,
            "source.kind": self.source.kind not in (None, "samples"),
            "source.scale": self.source.scale,
            "algorithm.max_steps": self.algorithm.max_steps,
            "stop.tol": self.stop.tol,
            "stop.low_rank_tol": self.stop.low_rank_tol,
            "privacy": self.privacy,
            "run.start": self.run.start,
            "run.threads": self.run.threads,
        }
        wrong = [name for name, value in said.items() if value]
        if self.mechanism.name != "none":
            wrong.append("mechanism.name")
        if wrong:
            raise BadInputError(
                f"{', '.join(wrong)} cannot be said of a stream, whose rows are used once: leave it out"
            )

    def check(self) -> Problem:
        """The source opened and everything checked, nothing read: iteration_rank = "auto" stands for the default."""
        self._require_stored()
        request = self.request()
        if request.iteration_rank == "auto" and request.privacy is None:
            request = replace(request, iteration_rank=None)
        return make_problem(self.source.open(), request)

    def problem(self) -> Problem:
        """The source opened and everything checked; nothing read yet, unless iteration_rank = "auto" is new."""
        self._require_stored()
        source = self.source.open()
        if self.source.nodes is not None:
            self._require_threads()
            return make_problem(source, self.request(), start=self._begun())
        request = resolve_rank(self.request(), source, self.resources(), self.run.store)
        return make_problem(source, request, start=self._begun())

    def _require_stored(self) -> None:
        """Refuse what only a stream knows, and what no private run may be."""
        if self.privacy is not None and is_url(self.run.store):
            raise RefusedError(PRIVATE.format(self.run.store))
        if self.streams:
            raise BadInputError(
                "the configuration is of a stream, which cannot be done here: use `npmdask run`, or `python -m "
                "flows.streaming_update`"
            )

    def _require_threads(self) -> None:
        if self.run.workers or self.run.cluster is not None:
            raise BadInputError("a centre has no data to pass over: leave run.workers and run.cluster out")

    def _begun(self) -> Start | None:
        return None if self.run.start is None else find_start(self.run.start, self.run.store)

    def stream_plan(self) -> dict[str, Any]:
        """What is known of a stream before its first row: the model that it would make, and its memory."""
        from npmdask.streaming.plan import stream_facts

        return stream_facts(self.stream_problem(), self.resources())

    def plan(self, spectrum: str | None = None) -> Plan | TensorPlan:
        """What running it would do and need. ``spectrum``: a file or a guess, instead of a sample of the data."""
        if self.source.nodes is not None:
            raise BadInputError("a plan measures the data, which lie with the nodes: make it there, for one node")
        problem = self.problem()
        if problem.kind == "tensor":
            if spectrum is not None:
                raise BadInputError(f"{self.source.path} is a tensor, which has no spectrum: leave --spectrum out")
            return plan_tensor(problem, self.resources())
        return plan_run(problem, self.resources(), asked_spectrum(spectrum, problem.most_values, kind=problem.kind))

    def private_plan(self, spectrum: str | None = None) -> PrivatePlan:
        """The same of a private run, from public numbers: the data are not looked at."""
        from npmdask.planning.private import plan_private  # the ledger's SQLAlchemy: a tenth of a second

        problem = self.problem()
        asked = asked_spectrum(spectrum, problem.most_values, kind=problem.kind, private=True)
        return plan_private(problem, self.resources(), self.run.store, asked)

    def warnings(self) -> list[str]:
        """What has to be known of a private run before it starts: public (private_outlook.concerns)."""
        if self.privacy is None:
            return []
        from npmdask.planning.private_forecast import concerns

        return list(concerns(self.check()))

    def resources(self) -> Resources:
        """What the run may use."""
        return Resources(
            memory=parse_memory(self.run.memory),
            threads=self.run.threads or (None if self.source.nodes is None else len(self.source.nodes)),  # all at once
            workers=self.run.workers,
            cluster=self.run.cluster,
            certificates=self.run.certificates,
            commit_seconds=self.run.commit_seconds,
        )

    def solve(self, observer: Observer | None = None) -> Solution | StreamSolution:
        """Run it, or go on with it, or return its answer if it is finished."""
        if self.streams:
            from npmdask.streaming import run_stream

            return run_stream(self.stream_problem(), self.run.store, self.resources(), observer)
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
    file = local_path(path, "a configuration") if is_url(path) else Path(path)
    try:
        content = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise BadInputError(f"there is no configuration {file}; write one with `npmdask init {file.stem}`") from None
    except IsADirectoryError:
        raise BadInputError(f"{file} is a folder; a configuration is a file, which `npmdask init` writes") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInputError(f"{file} is not a TOML file: {error}") from error
    config = validate_config(content, str(file))
    folder = file.absolute().parent
    where = place_of_store(store) if store else place_of_store(config.run.store or f"runs/{file.stem}", folder)
    begin = place_of_store(config.run.start, folder) if config.run.start else None
    begin = place_of_store(start) if start else begin
    shown = str(folder / config.run.certificates) if config.run.certificates else None
    return config.model_copy(
        update={
            "source": config.source.model_copy(update={"path": _beside(folder, config.source.path)}),
            "stream": _held_out_beside(folder, config.stream),
            "privacy": _ledger_beside(folder, config.privacy),
            "run": config.run.model_copy(update={"store": where, "start": begin, "certificates": shown}),
        }
    )


def _beside(folder: Path, path: str) -> str:
    return path if is_url(path) or path in ("", STANDARD_INPUT) else str(folder / path)


def _held_out_beside(folder: Path, stream: StreamTable | None) -> StreamTable | None:
    if stream is None or stream.held_out is None:
        return stream
    return stream.model_copy(update={"held_out": _beside(folder, stream.held_out)})


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
        model = table_of(model.model_fields[part].annotation)
    return model


def _description(location: tuple[Any, ...]) -> str | None:
    field = _model_at(location[:-1]).model_fields.get(str(location[-1]))
    return field.description if field else None
