"""One validated model of a run: TOML file -> objects -> TOML file. The CLI and the Prefect flows share it."""

from __future__ import annotations

import copy
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator

from npmdask.core import features
from npmdask.core.algorithms import REGISTRY as ALGORITHMS
from npmdask.core.aspects import Aspect, asked
from npmdask.core.checkpoint.store import PRIVATE
from npmdask.core.execution.executor import scheduler_of
from npmdask.core.execution.memory import tree_rss
from npmdask.core.numerics.spectra import asked_spectrum
from npmdask.core.numerics.units import attributes, parse_memory
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.driver import solve
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Presentation, Problem, Request, Start, checked_rank
from npmdask.core.runs.resources import Resources, memory_for, needs_of
from npmdask.core.runs.restore import find_start
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.columns import at
from npmdask.core.storage.paths import is_url, local_path, place_of_store
from npmdask.core.storage.source import Source, is_registered, is_remote, open_source, schemes
from npmdask.errors import (
    LONGEST_VALUE,
    BadInputError,
    MemoryRefusedError,
    RefusedError,
    closest,
    require,
    shown_value,
    wrong_value,
)

if TYPE_CHECKING:
    from npmdask.federated.node import Node
    from npmdask.planning.plan import Plan, TensorPlan
    from npmdask.privacy.plan import PrivatePlan
    from npmdask.streaming import StreamSolution
    from npmdask.streaming.problem import StreamProblem


# The tables of a configuration file: every key with its type, default and one line of what it means.


class ConfigTable(BaseModel):
    """No unknown key, nothing that is only nearly of the right type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class AspectTable(ConfigTable):
    """A table of a configuration that another package adds: how the question sees its data. Paths stay as given."""

    def aspect(self, source: Source) -> Aspect | None:
        """Make the aspect that the keys ask for of a ``source`` that is opened; None: they ask for none."""
        raise NotImplementedError


class SourceTable(ConfigTable):
    """Input data."""

    path: str = Field(
        "",
        description="a Zarr store or a file, relative to this file, or s3://bucket/key; streams: see [stream]",
    )
    nodes: list[str] | None = Field(
        None,
        description="instead of path: addresses of `npmdask node` processes that hold the data, e.g. http://host:9001",
    )
    patience: float = Field(
        60.0, ge=0, description="seconds to wait for a node before the run ends (it can be resumed)"
    )
    kind: Literal["samples", "symmetric", "matrix", "sparse", "matrices", "tensor"] | None = Field(
        None, description="kind of data; as recorded in the store if left out"
    )
    dim: str | None = Field(
        None, description="dimension that holds the rows, e.g. time (NetCDF or Zarr with more than two; needs xarray)"
    )
    only: list[str] | Literal["numeric"] | None = Field(
        None, description='columns of a table to analyse, by name; or "numeric": integers and floats only'
    )
    leave_out: list[str] | None = Field(None, description="columns of a table to leave out, by name")
    center: bool = Field(False, description="subtract the column means, on the fly")
    scale: bool = Field(False, description="divide by the column standard deviations, on the fly")
    missing: Literal["refuse", "drop-columns", "mean", "em", "pairwise", "fill", "impute"] = Field(
        "refuse",
        description="treatment of missing values: refuse; mean (of the column); drop-columns (columns without any "
        "value); em (fit a model to the observed values); pairwise (covariances over rows that have both columns); "
        "private runs: fill; streams: impute (what the model so far expects)",
    )
    missing_fill: float | str | None = Field(
        None,
        description='with missing = "fill": public value to fill in, one number, or an array on disk (.npy or Zarr) '
        "with one for each column",
    )
    missing_values: list[float] | None = Field(
        None, description="numbers that mark missing values, besides NaN, e.g. [-9999]"
    )
    missing_limit: float | None = Field(
        None,
        ge=0,
        lt=1,
        description='with missing = "mean": leave out columns with a larger fraction missing; takes one pass',
    )
    operator: str | None = Field(None, description="name under which you registered an operator")
    row_weights: str | None = Field(
        None,
        description="weight of each row: an array on disk (.npy or Zarr), relative to this file, or the name of a "
        "coordinate of labelled data",
    )
    column_weights: str | None = Field(
        None,
        description="weight of the square of each column, given likewise; or "
        '"coslat", the cosine of the latitude of labelled data',
    )

    @model_validator(mode="after")
    def _require_one_source(self) -> SourceTable:
        if bool(self.path) == (self.nodes is not None):
            raise ValueError("give either path (a store) or nodes (addresses), and not both")
        return self

    @property
    def place(self) -> str:
        """The path, with the columns that are chosen."""
        return str(at(self.path, {"only": self.only, "leave_out": self.leave_out}))

    def open(self, **how: Any) -> Source:
        """The data, as :func:`open_source` opens them, or the nodes that hold them; nothing is read."""
        if self.nodes is None:
            return open_source(self.place, self.kind, self.dim, gaps=self.missing != "refuse", **how)
        require(self.kind is None, "the nodes determine source.kind: leave it out of the coordinator's configuration")
        from npmdask.federated.coordinator import open_nodes

        return open_nodes(self.nodes, self.patience)


def algorithm_names() -> list[str]:
    """Names that ``algorithm.name`` may have: all that are registered, of features that were deleted too."""
    known = (*features.FEATURES, *features.from_outside())
    stored, streams = ([*chain(*(getattr(one, f"{of}algorithms") for one in known))] for of in ("", "stream_"))
    return ["auto", *ALGORITHMS, *sorted(stored, key=lambda name: "-" in name), *streams]  # in the schema's order


class AlgorithmTable(ConfigTable):
    """Algorithm."""

    name: str = Field(
        "auto",
        description="gram (one pass), krylov, power (auto with noise); private runs: covariance, power (auto: the "
        "better by public numbers), for records k-dp-pca, k-dp-ojas, k-dp-power; tensors: tensor-power (auto); "
        "streams: spm (auto), oja, msg, rmsg, mb-msg, ..., for their third moment online-tensor-power",
        json_schema_extra=lambda schema: schema.update({"enum": [*algorithm_names()]}),
    )
    target_rank: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] = Field(
        description="number of components k, or fraction of the variance to explain (e.g. 0.95); with source.missing "
        '= "em" also "auto": chosen by held-out entries'
    )
    iteration_rank: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        None,
        description="block size p >= k (k plus oversampling); max(k + 10, min(2 k, 64)) if left out, spm: 2 k; "
        '"auto": the largest that takes no extra time',
    )
    max_steps: int | None = Field(
        None,
        ge=1,
        description="limit on the number of passes (200 if left out); private runs: releases of the power method",
    )
    options: dict[str, Any] | None = Field(
        None,
        description="further parameters of the algorithm: streams, e.g. { gap = 0.1 }; k-dp-pca, e.g. "
        '{ variant = "tight" }; tensor-power, e.g. { restarts = 40 }; krylov, e.g. { precision = "float64" }; '
        'power of sparse data, { blocks = "disk" }; private power, { answer = "last" }; power, { momentum = "auto" }',
    )

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        if name not in algorithm_names():
            raise ValueError(f"{name!r} is not an algorithm: {closest(name, algorithm_names())}")
        return name

    @field_validator("target_rank", mode="before")
    @classmethod
    def _rank_or_share(cls, rank: Any) -> int | float | str:
        checked = checked_rank(rank)
        if not isinstance(checked, str) and checked <= 0:
            raise ValueError("at least 1 component is needed, or a share strictly between 0 and 1")
        return checked

    @field_validator("iteration_rank", mode="before")
    @classmethod
    def _require_rank(cls, value: Any) -> Any:
        """One sentence instead of one for every type that it might have been."""
        if value is None or value == "auto" or (type(value) is int and value >= 1):
            return value
        raise ValueError('must be a whole number from 1 on, or "auto"')


class StopTable(ConfigTable):
    """Stopping criteria."""

    tol: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="stop at this relative residual ||A v - theta v|| / |theta|; default 1e-9, float32 data: 1e-6",
    )
    low_rank_tol: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="also stop once the rank-k residual is certified within 1 + low_rank_tol times the least, e.g. 0.1",
    )


class MechanismTable(ConfigTable):
    """Simulated noise on every product."""

    name: Literal["none", "gaussian"] = Field("none", description="gaussian: add simulated noise; not private")
    stddev: float = Field(0.0, ge=0, description="standard deviation of the simulated noise")


class StreamTable(ConfigTable):
    """Streaming PCA: rows that are used once, as they arrive."""

    batch_rows: int = Field(256, ge=1, description="rows read at once, unless the algorithm sets it")
    half_life: float | None = Field(
        None, gt=0, description="rows after which the weight of a row halves, for data that drift"
    )
    unit: float | None = Field(None, gt=0, description="typical norm of a row; measured on the first batch if left out")
    order: Literal["sequential", "shuffled"] = Field(
        "sequential", description="order of the rows of a store; shuffled: by chunk and within chunks"
    )
    epochs: int = Field(1, ge=1, description="passes over the rows of a store")
    pattern: str = Field("*", description="pattern of the names of files in a directory")
    full_batches: bool = Field(False, description="leave the last, incomplete batch of a directory for the next update")
    format: Literal["csv", "npy", "float32"] | None = Field(None, description='format of standard input (path = "-")')
    columns: int | None = Field(
        None, ge=1, description="number of columns of standard input, or of a directory that is still empty"
    )
    header: bool | None = Field(None, description="whether the first line of CSV holds names; detected if left out")
    non_finite: Literal["refuse", "skip"] = Field(
        "refuse", description="rows with NaN or infinity: refuse them, or skip and count them"
    )
    held_out: str | None = Field(
        None, description="store of held-out rows to measure the explained variance on; never learnt from"
    )
    measure_rows: int | None = Field(
        None, ge=1, description="rows between the first measurements; 16 batches if left out"
    )


class PrivacyTable(ConfigTable):
    """Differential privacy."""

    epsilon: float = Field(description="epsilon that the whole run spends", gt=0)
    delta: float = Field(description="delta that the whole run spends; far below 1 / (number of records)", ge=0, lt=1)
    neighboring_relation: str | None = Field(
        None,
        description="neighbouring relation: record_replace, record_add_remove, record_zero_out, symmetric_entry, ...",
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        description="public bound on the norm of a record, or on an entry; choose it without looking at the data",
    )
    change: float = Field(1.0, gt=0, description="largest difference of an entry, or of the norm (matrix relations)")
    coherence: float | None = Field(
        None, gt=0, description="public estimate of the coherence, for noise that does not depend on the iterate X"
    )
    mechanism: Literal["gaussian", "laplace"] = Field("gaussian", description="noise; laplace: pure epsilon, delta = 0")
    calibration: Literal["exact", "paper"] = Field(
        "exact", description="calibration of the noise; paper: formula of Hardt and Price, for comparison"
    )
    clip_images: bool = Field(
        True, description="for records: also clip their images in each block, which needs less noise"
    )
    ledger: str | None = Field(None, description="file or URL of the ledger of budgets; $NPMDASK_LEDGER if left out")
    dataset: str | None = Field(None, description="name of the data set in the ledger; the source's path if left out")


class RunTable(ConfigTable):
    """Resources and output."""

    memory: str | None = Field(None, description="memory limit for all processes together, e.g. 1GiB")
    workers: int = Field(0, ge=0, description="number of processes; 0: threads of one process")
    threads: int | None = Field(None, ge=1, description="threads of each process; all cores if left out")
    store: str | None = Field(None, description="folder to keep the run in, relative to this file; or s3://bucket/name")
    cluster: str | None = Field(
        None,
        description="address of a Dask scheduler to use instead, e.g. tcp://host:8786, or its scheduler file (JSON)",
    )
    certificates: str | None = Field(
        None, description="folder with ca.pem, cert.pem, key.pem for a cluster at tls://, relative to this file"
    )
    device: Literal["cpu", "auto", "cuda"] = Field(
        "cpu", description="what forms the sums over the rows; cuda: an NVIDIA GPU; auto: a GPU where there is one"
    )
    device_memory: str | None = Field(
        None,
        description="limit for the memory of the GPU, for each process, e.g. 20GiB; most of it if left out",
    )
    request_price: float | None = Field(
        None, ge=0, description="price of 1000 requests to the object store of the data: the cost of a run is reported"
    )
    commit_seconds: float = Field(
        30.0, ge=0, description="seconds between checkpoints inside a pass: the most work that a kill can lose"
    )
    seed: int = Field(0, ge=0, description="seed of the random start block")
    start: str | None = Field(None, description="folder of an earlier run to start from, relative to this file")


class ReportTable(ConfigTable):
    """Reported and exported form of the results."""

    rotate: Literal["varimax", "promax", "procrustes"] | None = Field(
        None, description="varimax, promax: rotate to few large entries; procrustes: rotate onto components of align_to"
    )
    align_to: str | None = Field(
        None,
        description="folder of an earlier run whose order and signs of components to follow, relative to this file",
    )
    independent_rows: int | None = Field(
        None, ge=1, description="effective number of independent rows, for standard errors; all rows if left out"
    )
    bootstrap: int | None = Field(
        None,
        ge=50,
        description="bootstrap replicates for confidence intervals, of a stored Gram matrix with groups of rows",
    )
    colour: str | None = Field(
        None,
        description="colour of the rows in score plots: name or number (from 0) of a column, or a file with a value "
        "for each row (text, one a line, or .npy), relative to this file",
    )
    grid: str | None = Field(
        None, description="rows x columns of the images that the columns are, e.g. 28x28; components are drawn so"
    )

    @field_validator("grid")
    @classmethod
    def _rows_by_columns(cls, grid: str | None) -> str | None:
        from npmdask.core.numerics.units import grid_of

        try:
            return grid if grid is None else "{}x{}".format(*grid_of(grid))
        except BadInputError:
            raise ValueError("give rows x columns, like 28x28") from None


Fraction = Annotated[float, Field(ge=0, le=1)]


class ExpectTable(ConfigTable):
    """Expectations on the data: a run that they do not hold for fails before its first pass."""

    rows: int | None = Field(None, ge=1, description="least number of rows")
    columns: list[str] | None = Field(None, description="names of columns that must be there; others may be, too")
    types: dict[str, Literal["number", "integer", "text", "date", "boolean"]] | None = Field(
        None, description='types of columns: number, integer, text, date, boolean, e.g. { id = "text" }'
    )
    missing: Fraction | dict[str, Fraction] | None = Field(
        None,
        description="largest fraction missing, of each column that is analysed, or by name, e.g. { price = 0.05 }; "
        "takes one read of the data",
    )


def table_of(annotation: Any) -> type[BaseModel]:
    """The model of a table, which may be left out (``Model | None``)."""
    return next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)


STANDARD_INPUT = "-"
LARGEST = 2**20  # bytes of a configuration: a larger file is data, given by mistake
LONGEST_NAME = 100  # of a run that is named after its source


class RunConfig(ConfigTable):
    """The configuration of a run."""

    source: SourceTable = Field(description="the input data, a table [source] with path")
    algorithm: AlgorithmTable = Field(description="what is computed, a table [algorithm] with target_rank")
    stream: StreamTable | None = Field(
        None,
        description="streaming PCA (only with this table): use each row of source.path once; a store, a file, a "
        'directory that grows, or "-"',
    )
    stop: StopTable = Field(StopTable(), description="stopping criteria")
    mechanism: MechanismTable = Field(MechanismTable(), description="simulated noise on every product")
    privacy: PrivacyTable | None = Field(None, description="differential privacy (only with this table)")
    expect: ExpectTable | None = Field(None, description="expectations on the data, checked before the first pass")
    run: RunTable = Field(RunTable(), description="resources and output")
    report: ReportTable = Field(
        ReportTable(), description="reported and exported form of the results; does not affect the computation"
    )

    @model_validator(mode="wrap")
    @classmethod
    def _with_tables_of_others(cls, content: Any, handler: Any) -> RunConfig:
        model = model_of(content) if isinstance(content, dict) else cls
        return handler(content) if issubclass(cls, model) else model.model_validate(content)

    @property
    def of_others(self) -> dict[str, AspectTable]:
        """Tables of other packages, by name."""
        found = {name: getattr(self, name) for name in type(self).model_fields if name not in RunConfig.model_fields}
        return {name: table for name, table in found.items() if table is not None}

    def request(self) -> Request:
        """The public parameters."""
        return Request(
            **attributes(self.algorithm, "target_rank", "iteration_rank", "options", "max_steps"),
            **attributes(self.stop, "tol", "low_rank_tol"),
            **attributes(self.source, "center", "scale", "operator"),
            algorithm=self.algorithm.name,
            seed=self.run.seed,
            mechanism=self.mechanism.name,
            stddev=self.mechanism.stddev,
            privacy=self.privacy and features.required("tables", "privacy")(**self.privacy.model_dump()),
            presentation=Presentation(**shown) if (shown := self.report.model_dump(exclude_none=True)) else None,
        )

    @property
    def streams(self) -> bool:
        """Say whether rows are learnt from once, as they come: a streaming algorithm, or a [stream] table."""
        name = self.algorithm.name  # a plain one is known without looking for packages
        other = name not in ("auto", *ALGORITHMS) and features.knows("stream_algorithms", name)
        return self.stream is not None or other

    def stream_problem(self) -> StreamProblem:
        """The stream opened and everything checked; nothing is read but held-out rows and the width of files."""
        from npmdask.streaming.problem import StreamRequest, make_stream_problem
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
            **attributes(how, "batch_rows", "half_life", "unit", "measure_rows"),
            **attributes(self.source, "center", "missing", "missing_values"),
            seed=self.run.seed,
        )
        reading = Reading(**how.model_dump(include=set(Reading.__dataclass_fields__)))
        return make_stream_problem(
            self.source.place, request, reading, how.held_out, row_weights=self.source.row_weights
        )

    def _require_stream(self) -> None:
        """Refuse what means nothing where rows are used once."""
        if self.algorithm.name != "auto" and not features.knows("stream_algorithms", self.algorithm.name):
            raise BadInputError(
                f"{self.algorithm.name} passes over stored data again and again: leave the [stream] table out, or "
                "choose a streaming algorithm like spm"
            )
        said = {
            "source.nodes": self.source.nodes,
            "source.kind": self.source.kind not in (None, "samples"),
            "source.scale": self.source.scale,
            "source.missing": self.source.missing not in ("refuse", "impute"),
            "source.missing_fill": self.source.missing_fill is not None,
            "source.missing_limit": self.source.missing_limit is not None,
            "source.operator": self.source.operator,
            "source.column_weights": self.source.column_weights,
            "algorithm.max_steps": self.algorithm.max_steps,
            "stop.tol": self.stop.tol,
            "stop.low_rank_tol": self.stop.low_rank_tol,
            "privacy": self.privacy,
            "run.start": self.run.start,
            "run.threads": self.run.threads,
            "run.device": self.run.device != "cpu",
            "report": self.report.model_dump(exclude_none=True),
            "expect": self.expect,
            "mechanism.name": self.mechanism.name != "none",
            **self.of_others,
        }
        wrong = [name for name, value in said.items() if value]
        require(not wrong, f"a stream, whose rows are used once, takes no {', '.join(wrong)}: leave it out")

    def check(self) -> Problem:
        """The source opened and everything checked, nothing read: iteration_rank = "auto" means the default."""
        self._require_stored()
        source = self.open_data(of_complex=True)
        request = self._request_of(source)
        if request.privacy is not None and self.source.nodes is None:
            return posed(request, source, self.resources(), self.run.store)  # what it chooses is public
        if request.iteration_rank == "auto":
            request = replace(request, iteration_rank=None)
        return make_problem(source, request)

    def problem(self) -> Problem:
        """The source opened and everything checked; nothing read yet, unless iteration_rank = "auto" is new."""
        self._require_stored()
        source = self.open_data(of_complex=True)
        if self.source.nodes is not None:
            self._require_threads()
            return make_problem(source, self._request_of(source), start=self._find_start())
        return posed(self._request_of(source), source, self.resources(), self.run.store, self._find_start())

    def _request_of(self, source: Source) -> Request:
        """The public parameters, with the weights of ``source``, and what its gaps count as, which are read."""
        keywords = ("row_weights", "column_weights", "missing", "missing_fill", "missing_values", "missing_limit")
        others = (table.aspect(source) for table in self.of_others.values())
        return replace(self.request(), aspects=(*asked(source, None, attributes(self.source, *keywords)), *others))

    def open_data(self, *, of_complex: bool = False) -> Source:
        """The data, if they are as expected, or the nodes that hold them; of a private run an ingested store."""
        if self.privacy is not None and self.source.nodes is None:
            from npmdask.privacy.matrix_release import require_store

            require_store(self.source.place)
        if self.expect is not None:
            unseen = self.privacy is not None or self.source.nodes is not None
            require(not unseen, "[expect] would tell what private data, or data of nodes, hold: leave it out")
            from npmdask.formats.expectations import require_expected

            require_expected(self.source, self.expect)
        return self.source.open(of_complex=of_complex, exact=self.privacy is None)

    def _require_stored(self) -> None:
        """Refuse what only a stream knows, and what no private run may be."""
        if self.privacy is not None and is_url(self.run.store):
            raise RefusedError(PRIVATE.format(self.run.store))
        if self.streams:
            raise BadInputError(
                "the configuration describes a stream, which this command cannot run: use `npmdask run`, or `python -m "
                "flows.streaming_update`"
            )

    def _require_threads(self) -> None:
        if self.run.workers or self.run.cluster is not None:
            raise BadInputError("a coordinator reads no data: leave run.workers and run.cluster out")

    def _find_start(self) -> Start | None:
        return None if self.run.start is None else find_start(self.run.start, self.run.store)

    def stream_plan(self) -> dict[str, Any]:
        """Return what is known of a stream before its first row: the model that it would make, and its memory."""
        from npmdask.streaming.memory import stream_facts

        return stream_facts(self.stream_problem(), self.resources())

    def plan(self, spectrum: str | None = None) -> Plan | TensorPlan:
        """Plan what running it would do and need.

        ``spectrum``: a file or a guess, instead of a sample of the data.
        """
        from npmdask.planning.plan import plan_run, plan_tensor

        if self.source.nodes is not None:
            raise BadInputError(
                "a plan needs a sample of the data, which only the nodes have: run `npmdask plan` on a node instead"
            )
        problem = self.problem()
        if problem.traits.cube:
            require(spectrum is None, f"{self.source.path} is a tensor, which has no spectrum: leave --spectrum out")
            return plan_tensor(problem, self.resources())
        asked = asked_spectrum(spectrum, problem.most_values, signed=problem.traits.square)
        return plan_run(problem, self.resources(), asked)

    def private_plan(self, spectrum: str | None = None) -> PrivatePlan:
        """The same of a private run, from public numbers: the data are not looked at."""
        from npmdask.privacy.plan import plan_private

        problem = self.problem()
        asked = asked_spectrum(spectrum, problem.most_values, signed=problem.traits.square, private=True)
        return plan_private(problem, self.resources(), self.run.store, asked)

    def warnings(self) -> list[str]:
        """Return what has to be known of a private run before it starts: public (npmdask.privacy.concerns)."""
        if self.privacy is None:
            return []
        from npmdask.privacy.concerns import concerns

        return list(concerns(self.check()))

    def node(self) -> Node:
        """The node that it describes: data, promise and limits of its owner.

        ``max_steps`` and ``iteration_rank`` (or what follows from ``target_rank``) are what a coordinator may ask for.

        Raises
        ------
        BadInputError, RefusedError
            What is missing, or does not go together.
        """
        from npmdask.federated.node import make_node

        self._require_node()
        return make_node(self.open_data(), self.request(), Path(str(self.run.store)), self.resources())

    def _require_node(self) -> None:
        if self.source.nodes is not None:
            raise BadInputError(
                "a node has data of its own: give source.path; source.nodes belongs in the coordinator's "
                "configuration only"
            )
        if is_url(self.run.store):
            raise RefusedError(PRIVATE.format(self.run.store))
        said = "mechanism" in self.model_fields_set and "name" in self.mechanism.model_fields_set
        if self.privacy is None and not (said and self.mechanism.name == "none"):
            raise RefusedError(
                'a node without a [privacy] table must say so: `[mechanism]` with `name = "none"` answers with exact '
                "products, from which its data can be computed"
            )
        if self.source.center or self.source.scale:
            raise RefusedError(
                "a node does not center or scale, because it does not know the means of all data: leave center and "
                "scale out"
            )
        if self.source.missing != "refuse":
            raise RefusedError("a node refuses missing values: leave source.missing out, and fill them in before")
        for name in ("missing_values", "missing_limit", "operator", "row_weights", "column_weights"):
            if getattr(self.source, name) is not None:
                raise RefusedError(f"a node answers with products of its rows as they are: leave source.{name} out")
        for name in self.of_others:
            raise RefusedError(f"a node answers with products of its rows as they are: leave the table [{name}] out")
        if self.run.device != "cpu":
            raise RefusedError("a node forms its products on the processor: leave run.device out")
        rank = self.algorithm.target_rank
        if self.algorithm.max_steps is None or not isinstance(rank, int) or self.algorithm.iteration_rank == "auto":
            raise BadInputError(
                "a node must limit what it answers: give max_steps, and whole numbers for target_rank and "
                "iteration_rank"
            )

    def resources(self) -> Resources:
        """Return what the run may use."""
        return Resources(
            memory=parse_memory(self.run.memory),
            threads=self.run.threads or (None if self.source.nodes is None else len(self.source.nodes)),  # all at once
            cluster=scheduler_of(self.run.cluster) or None,
            device_memory=parse_memory(self.run.device_memory, "device_memory"),
            **attributes(self.run, "workers", "certificates", "commit_seconds", "device", "request_price"),
        )

    def solve(self, observer: Observer | None = None) -> Solution | StreamSolution:
        """Run it, or go on with it, or return its answer if it is finished."""
        if self.streams:
            from npmdask.streaming import run_stream

            return run_stream(self.stream_problem(), self.run.store, self.resources(), observer)
        return solve(self.problem(), self.run.store, self.resources(), observer)


def model_of(tables: Iterable[str]) -> type[RunConfig]:
    """The model of a configuration that has these tables; those that no package knows are left out."""
    others = [name for name in tables if name not in RunConfig.model_fields]
    return _model_of(tuple((name, table) for name in others if (table := features.found("settings", name)) is not None))


@cache
def _model_of(others: tuple[tuple[str, type[AspectTable]], ...]) -> type[RunConfig]:
    fields: dict[str, Any] = {
        name: (table | None, Field(None, description=(table.__doc__ or name).partition("\n")[0]))
        for name, table in others
    }
    return create_model("RunConfig", __base__=RunConfig, __doc__=RunConfig.__doc__, **fields) if fields else RunConfig


def load_config(
    path: str | Path, *, store: str | None = None, start: str | None = None, changes: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read a configuration file; its relative paths are taken relative to the file.

    ``store``, ``start`` and ``changes`` (by dotted key, of :func:`parse_changes`), whose paths are relative to the
    working directory, replace what is in the file; without a store it is ``runs/NAME`` beside the file.

    Raises
    ------
    BadInputError
        No such file, not TOML, an unknown key (the right one is suggested) or a value out of range.
    """
    file = local_path(path, "a configuration") if is_url(path) else Path(path)
    data = "" if file.suffix == ".toml" else f"; to run data, give the number of components: `npmdask run {file} -k 10`"
    try:
        require(file.stat().st_size <= LARGEST, f"{file} is too large for a configuration{data}")
        content = parse_toml(file.read_text(), f"{file}", data)
    except FileNotFoundError:
        raise BadInputError(
            f"there is no configuration {file}; write one with `npmdask init {file.stem}`{data}"
        ) from None
    except IsADirectoryError:
        raise BadInputError(
            f"{file} is a folder; a configuration is a file, which `npmdask init` writes{data}"
        ) from None
    except UnicodeDecodeError:
        raise BadInputError(f"{file} is not a TOML file: it is no text in UTF-8{data}") from None
    except OSError as error:
        raise BadInputError(f"{file} cannot be read: {error.strerror}{data}") from error
    return _to_model(content, str(file), file.absolute().parent, file.stem, store, start, changes or {})


def parse_toml(text: str, name: str, more: str = "") -> dict[str, Any]:
    """The tables of a text. Raises BadInputError, which says where it is not TOML; ``more``: the end of that sentence.

    Examples
    --------
    >>> parse_toml("[run]\\nmemory = 1GiB", "nightly.toml")
    Traceback (most recent call last):
    npmdask.errors.BadInputError: nightly.toml is not a TOML file: line 2 (memory = 1GiB) is neither [TABLE] nor KEY =
    VALUE, with quotation marks around text
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line (\d+)", str(error))
        lines = text.splitlines()
        number = min(int(place[1]), len(lines)) if place else len(lines)
        line = lines[number - 1].strip()[:LONGEST_VALUE] if lines else ""
        twice = "overwrite" in str(error) or "twice" in str(error)
        wrong = "is neither [TABLE] nor KEY = VALUE, with quotation marks around text"
        wrong = "says again what was said" if twice else wrong
        raise BadInputError(f"{name} is not a TOML file: line {number} ({line}) {wrong}{more}") from None


def config_of_source(
    source: str, *, store: str | None = None, start: str | None = None, changes: Mapping[str, Any]
) -> RunConfig:
    """The configuration of a run of ``source`` (a path, a URL or "-") without a file: what is not changed is default.

    Without ``store`` it is ``runs/NAME`` in the working directory.

    Raises
    ------
    BadInputError
        No target_rank, a value out of range, or a source that names nothing.
    """
    require(bool(source), "the source is empty: give a path or a URL of data (an unset variable of the shell?)")
    if "algorithm.target_rank" not in changes:
        if source != "-" and not (is_remote(source) or is_registered(source)):
            local_path(source, "an array that is analysed", schemes())  # refuses a place that nothing can be at
        raise BadInputError(
            f"{source} is a source of data: give the number of components, as in `npmdask run {source} -k 10` (a "
            "configuration is a file whose name ends in .toml)"
        )
    require("source.path" not in changes, f"source.path is given twice, as {source} and by --set: leave one out")
    whole = source.rstrip("/") if source == STANDARD_INPUT or is_url(source) else os.path.abspath(source)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(whole).stem).strip("-.")[:LONGEST_NAME]
    name = name or ("standard-input" if source == STANDARD_INPUT else "data")
    return _to_model({"source": {"path": source}}, "the options", Path.cwd(), name, store, start, changes)


def config_of_tables(config: RunConfig, *, store: str | None = None, changes: Mapping[str, Any]) -> RunConfig:
    """A configuration with another ``store``, and with ``changes`` (by dotted key); relative paths are made absolute.

    Raises
    ------
    BadInputError
        An unknown key, or a value out of range.
    """
    for key in changes:
        _field_of(key)
    return _to_model(config.model_dump(exclude_none=True), "the configuration", Path.cwd(), "npm", store, None, changes)


def _to_model(
    content: dict[str, Any],
    name: str,
    folder: Path,
    run: str,
    store: str | None,
    start: str | None,
    changes: Mapping[str, Any],
) -> RunConfig:
    """The model of ``content`` with ``changes``, its paths absolute: those of the content relative to ``folder``."""
    for key, said in (("run.store", store), ("run.start", start)):
        if said is not None and key in changes:
            raise BadInputError(f"{key} is given twice, by --{key.partition('.')[2]} and by --set: leave one out")
    given = {key: place for key, place in (("run.store", store), ("run.start", start)) if place}
    config = validate_config(_with_changes(content, {**changes, **given}), name)
    named = dict.fromkeys(("algorithms", "stream_algorithms"), config.algorithm.name)
    tabled = {"kinds": config.stream and "stream", "routes": config.privacy and "privacy"}
    for kind, word in (named | tabled).items():
        features.require(kind, word)
    placed: dict[str, dict[str, Any]] = {"run": {}}
    for key, beside in BESIDE.items():
        table, field = key.split(".")
        if isinstance(value := getattr(getattr(config, table), field, None), str):
            placed.setdefault(table, {})[field] = beside(folder, value)
    placed["run"]["store"] = placed["run"].get("store") or place_of_store(f"runs/{run}", folder)
    tables = {table: getattr(config, table).model_copy(update=paths) for table, paths in placed.items()}
    return config.model_copy(update=tables)


# Keys on a command line: --set run.memory=2GiB.


def parse_changes(pairs: Iterable[str]) -> dict[str, Any]:
    """Values by dotted key, of texts like ``run.memory=2GiB``: TOML, or a word without quotation marks.

    Raises
    ------
    BadInputError
        No ``=``, an unknown key (the closest is suggested), no value or one that is not TOML, a key given twice.
    """
    changes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        require(bool(equals), f"--set {pair!r}: write TABLE.KEY=VALUE, like run.memory=2GiB")
        require(bool(text), f"--set {pair!r} has no value; write one, or leave it out to keep what the file says")
        if key in changes:
            raise BadInputError(f"{key} is given twice, as {changes[key]!r} and as {text!r}: leave one out")
        changes[key] = _value_of(key, text)
    return changes


def _value_of(key: str, text: str) -> Any:
    annotation = _field_of(key)
    try:
        parsed = tomllib.loads(f"value = {text}")
        # a line break or a comment would end the value early, and the rest be lost without a word
        whole = list(parsed) == ["value"] and (isinstance(parsed["value"], str | list | dict) or "#" not in text)
    except tomllib.TOMLDecodeError:
        if text[0] in "[{\"'":
            raise BadInputError(
                f"{key} = {text}: it is not TOML: close what is opened, and put quotation marks around text in it"
            ) from None
        whole = False
    only_text = str in (annotation, *get_args(annotation)) and not {int, float} & {*get_args(annotation)}
    if not whole or (only_text and not isinstance(parsed["value"], str | list | dict)):
        return text  # a word, or of what can only be text (a size, a name) something that looks like a number
    return parsed["value"]


def known_keys(model: type[RunConfig] | None = None) -> dict[str, Any]:
    """The type of every key, by its dotted name."""
    return {
        f"{table}.{name}": option.annotation
        for table, field in (model or RunConfig).model_fields.items()
        for name, option in table_of(field.annotation).model_fields.items()
    }


def _field_of(key: str) -> Any:
    """The type of a dotted key; None below a table of free keys.

    Raises
    ------
    BadInputError
        There is no such key.
    """
    model = model_of([key.partition(".")[0]])
    known = known_keys(model)
    if key in known:
        return known[key]
    parent = key.rpartition(".")[0]
    if parent in known and any(get_origin(kind) is dict for kind in get_args(known[parent])):
        return None
    require(key not in model.model_fields, f"{key} is a table: write {key}.KEY=VALUE, one --set for each key")
    raise BadInputError(f"unknown key {key!r}: {closest(key, list(known))}")


def _with_changes(content: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file, with values by dotted key in place of its own."""
    changed = copy.deepcopy(content)
    for key, value in changes.items():
        *tables, name = key.split(".")
        table = changed
        for part in tables:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise BadInputError(
                    f"{part} is {table!r} in the configuration, where {key} needs a table: correct the file"
                )
        table[name] = BESIDE[key](Path.cwd(), value) if isinstance(value, str) and key in BESIDE else value
    return changed


def _path_beside(folder: Path, path: str) -> str:
    return path if is_url(path) or path in ("", STANDARD_INPUT) else str(folder / path)


def _weights_beside(folder: Path, said: str) -> str:
    """A path is absolute then; what can be none is the name of a coordinate, and stays what it is."""
    named = "/" in said or said.endswith((".npy", ".zarr")) or (folder / said).exists()
    return _path_beside(folder, said) if named and said != "coslat" else said


def _store_beside(folder: Path, place: str) -> str | None:
    return place_of_store(place, folder) if place else None


def _file_beside(folder: Path, said: str) -> str:
    """The path of a file is absolute then; what is none is the name of a column, and stays what it is."""
    return str(folder / said) if (folder / said).is_file() else said


def _scheduler_beside(folder: Path, cluster: str) -> str:
    """A path, of a scheduler file, is absolute then; an address stays what it is."""
    is_file = features.required("executors", "a scheduler file")
    return str(folder / cluster) if is_file(cluster) or is_file(str(folder / cluster)) else cluster


# What a path becomes that is relative to a folder, by the key that has it.
BESIDE: dict[str, Callable[[Path, str], str | None]] = {
    **dict.fromkeys(("source.path", "source.missing_fill", "stream.held_out"), _path_beside),
    **dict.fromkeys(("source.row_weights", "source.column_weights"), _weights_beside),
    **dict.fromkeys(("run.store", "run.start", "report.align_to"), _store_beside),
    "privacy.ledger": lambda folder, place: place if "://" in place else str(folder / place),
    "run.certificates": lambda folder, path: str(folder / path) if path else None,
    "run.cluster": _scheduler_beside,
    "report.colour": _file_beside,
}


def validate_config(content: dict[str, Any], name: str = "the configuration") -> RunConfig:
    """The model of a parsed configuration; every error is a sentence."""
    try:
        config = RunConfig.model_validate(content)
    except ValidationError as error:
        raise BadInputError(f"{name}: {sentences(error, model_of(content))}") from None
    parse_memory(config.run.memory)
    parse_memory(config.run.device_memory, "device_memory")
    return config


def sentences(error: ValidationError, model: type[BaseModel]) -> str:
    """Say what is wrong with tables that were to be a ``model``: a clause for each key, joined by semicolons."""
    found: dict[str, list[str]] = {}
    for one in error.errors(include_url=False):
        fields = _fields_at(model, one["loc"])
        # below a key that may be of several types pydantic names each of them
        where = ".".join(str(part + 1) if isinstance(part, int) else part for part, _ in fields)
        found.setdefault(where, []).append(_clause(one, where, fields, model))
    return "; ".join(" or ".join(_without_repeats(clauses)) for clauses in found.values())


def _without_repeats(clauses: list[str]) -> list[str]:
    """Let only the first of several clauses on one value name it."""
    first, *rest = dict.fromkeys(clauses)
    return [first, *(clause.rpartition(": ")[2] for clause in rest)]


def _fields_at(model: Any, location: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """The parts of a location that are keys or places in a list, with the field of each (None: there is none)."""
    found: list[tuple[Any, Any]] = []
    for number, part in enumerate(location):
        fields = getattr(model, "model_fields", {})
        if part in fields:
            found.append((part, fields[part]))
            model = table_of(fields[part].annotation)
        elif isinstance(part, int):
            found.append((part, None))
        elif fields and number == len(location) - 1:
            found.append((part, None))  # a key that does not exist
    return found


def _clause(error: Any, where: str, fields: list[tuple[Any, Any]], model: type[BaseModel]) -> str:
    kind, value = error["type"], error.get("input")
    if not fields:
        return wrong_value(error)
    name, field = fields[-1]
    if kind == "extra_forbidden":
        return f"unknown key {where!r}: {_closest_key(model, fields)}"
    if kind == "missing":
        return f"{where} is missing: {(field.description if field else None) or 'see `npmdask init`'}"
    given = f"{where} = {shown_value(value)}"
    if kind == "value_error":  # a sentence of ours, which may name the key itself
        said = wrong_value(error)
        named = f"{name} = {value!r} "
        return f"{given} {said.removeprefix(named)}" if said.startswith(named) else f"{given}: {said}"
    return f"{given}: {wrong_value(error)}"


def _closest_key(model: type[BaseModel], fields: list[tuple[Any, Any]]) -> str:
    """The key of the same table that is nearly called so; or the same key of another table; or what there is."""
    table, name = model, str(fields[-1][0])
    for _, field in fields[:-1]:
        table = table_of(field.annotation) if field is not None else table
    here = closest(name, [*getattr(table, "model_fields", ())])
    if table is not model and issubclass(model, RunConfig):
        elsewhere = [key for key in known_keys() if key.endswith(f".{name}")]
        return f"did you mean {elsewhere[0]!r}?" if elsewhere else here
    return here


# A configuration as text: commented TOML, and the file that ``npmdask init`` writes.


def render_config(config: RunConfig, only: Collection[str] | None = None) -> str:
    """A configuration as commented TOML; options left open are there as comments. ``only``: these dotted keys."""
    lines = []
    for table, field in type(config).model_fields.items():
        model, values = table_of(field.annotation), getattr(config, table)
        wanted = [name for name in model.model_fields if only is None or f"{table}.{name}" in only]
        if not wanted:
            continue
        off = "# " if values is None else ""
        lines += [f"# {field.description}", f"{off}[{table}]"]
        for name in wanted:
            option = model.model_fields[name]
            value = option.get_default() if values is None else getattr(values, name)
            known = (value is not None and not option.is_required()) or (values is not None and value is not None)
            text = f"{off}{name} = {_toml(value)}" if known else f"# {name} ="
            lines.append(f"{text:<34}# {option.description}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """Strings, booleans and numbers are written the same in TOML as in JSON."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(held)}" for key, held in value.items()) + " }"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def schema_text() -> str:
    """The JSON schema of configurations, by which editors complete keys and values: as the file beside this module has
    it, with the tables of other packages.
    """
    made = model_of(features.keys("settings")).model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Configuration of a run of npmdask"}
    return json.dumps(head | {key: value for key, value in made.items() if key != "title"}, indent=2) + "\n"


SCHEMA = Path(__file__).with_name("config.schema.json")


# what most runs say; the rest has good defaults
FIRST_KEYS = (
    "source.path",
    "source.kind",
    "source.center",
    "source.scale",
    "algorithm.target_rank",
    "stop.tol",
    "run.memory",
    "run.store",
)


def starter(file: Path, source: str | None = None) -> str:
    """Return what ``npmdask init`` writes into ``file``: every key; or, for a ``source``, what matters, ready to run.

    Raises
    ------
    BadInputError, RefusedError
        The source cannot be opened, or no plain run of it is possible.
    """
    name, store = file.stem, f"runs/{file.stem}"
    head = f"#:schema {SCHEMA.as_uri()}\n# npmdask run {file.name}\n\n"
    if source is None:
        table = SourceTable(path=f"{name}.zarr")
        run = RunTable(memory="1GiB", store=store)
        return head + render_config(RunConfig(source=table, algorithm=AlgorithmTable(target_rank=10), run=run))
    path = _path_beside(Path.cwd(), source)
    table = SourceTable(path=path, kind=open_source(path, of_complex=True, exact=False).kind)  # type: ignore[arg-type]
    problem = RunConfig(source=table, algorithm=AlgorithmTable(target_rank=1)).check()
    algorithm = AlgorithmTable(target_rank=min(10, problem.most_values))
    whole = RunConfig(source=table, algorithm=algorithm)
    run = RunTable(memory=_memory_option(whole.check()), store=store)
    if not is_url(source) and not Path(source).is_absolute():  # as it was given, but of the file's folder
        table = table.model_copy(update={"path": os.path.relpath(path, file.absolute().parent)})
    rest = (
        "# all other keys, explained: `npmdask init NAME`; to change one for one run: `npmdask run ... --set KEY=VALUE`"
    )
    return head + render_config(whole.model_copy(update={"source": table, "run": run}), FIRST_KEYS) + f"\n{rest}\n"


def _memory_option(problem: Problem) -> str:
    """1 GiB, or as many as a run needs."""
    gib = 1
    while True:
        try:
            memory_for(needs_of(problem), Resources(memory=gib * 2**30), tree_rss())
        except MemoryRefusedError:
            gib *= 2
        else:
            return f"{gib}GiB"
