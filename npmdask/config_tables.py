"""The tables of a configuration file: every key with its type, default and one line of what it means."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from npmdask.errors import BadInputError
from npmdask.federated.release import open_nodes
from npmdask.runs.build import checked_rank
from npmdask.storage.source import Source, open_source


class Table(BaseModel):
    """No unknown key, nothing that is only nearly of the right type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SourceTable(Table):
    """What is analysed."""

    path: str = Field(
        "", description="a Zarr store: a folder relative to this file, or s3://bucket/key; a stream's: see [stream]"
    )
    nodes: list[str] | None = Field(
        None, description="instead: addresses of `npmdask node` processes that hold the data, like http://host:9001"
    )
    patience: float = Field(60.0, ge=0, description="seconds that a node may be away before the run ends, resumable")
    kind: Literal["samples", "symmetric", "matrix", "sparse", "matrices", "tensor"] | None = Field(
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


class AlgorithmTable(Table):
    """How."""

    name: Literal[
        "auto",
        "power",
        "krylov",
        "k-dp-pca",
        "k-dp-ojas",
        "k-dp-power",
        "tensor-power",
        "spm",
        "oja",
        "msg",
        "rmsg",
        "mb-msg",
        "mb-rmsg",
        "frequent-directions",
        "online-tensor-power",
    ] = Field(
        "auto",
        description="krylov (auto without noise), power; private, of records: k-dp-pca, k-dp-ojas, k-dp-power; of a "
        "tensor: tensor-power (auto); of a stream: spm (auto), oja, msg, rmsg, mb-msg, ...; of its third moment: "
        "online-tensor-power",
    )
    target_rank: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] = Field(
        description="k: how many components; or, like 0.95, a share of the variance"
    )
    iteration_rank: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        None, description='p >= k: columns iterated; max(k + 10, min(2 k, 64)), spm: 2 k; "auto": all that cost no time'
    )
    max_steps: int | None = Field(
        None, ge=1, description="give up (not converged) after so many passes: 200; private: how many are released"
    )
    options: dict[str, Any] | None = Field(
        None,
        description="further parameters of a streaming algorithm, like { gap = 0.1 }, of k-dp-pca, like "
        '{ variant = "tight" }, or of tensor-power, like { restarts = 40 }',
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


class StopTable(Table):
    """When to stop."""

    tol: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="relative residual ||A v - theta v|| / |theta|; 1e-9, float32 data: 1e-6",
    )
    low_rank_tol: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="also stop when k components leave at most 1 + so much times the least that any k leave, like 0.1",
    )


class MechanismTable(Table):
    """What is added to every product."""

    name: Literal["none", "gaussian"] = Field("none", description="gaussian: simulated noise, not private")
    stddev: float = Field(0.0, ge=0, description="of the simulated noise")


class StreamTable(Table):
    """Rows that are learnt from once, as they come."""

    batch_rows: int = Field(256, ge=1, description="rows read at once, where the algorithm does not say how many")
    half_life: float | None = Field(None, gt=0, description="rows after which a row counts half: for data that drift")
    unit: float | None = Field(None, gt=0, description="typical norm of a row; that of the first batch if left out")
    order: Literal["sequential", "shuffled"] = Field(
        "sequential", description="of a store: shuffled by chunk and within"
    )
    epochs: int = Field(1, ge=1, description="of a store: how many times every row is used")
    pattern: str = Field("*", description="of a directory: names of its files")
    full_batches: bool = Field(False, description="of a directory: leave a batch that is not full for the next time")
    format: Literal["csv", "npy", "float32"] | None = Field(None, description='of standard input (path = "-")')
    columns: int | None = Field(None, ge=1, description="of standard input, or of a directory that is still empty")
    header: bool | None = Field(None, description="of CSV: whether the first line holds names; looked at if left out")
    non_finite: Literal["refuse", "skip"] = Field("refuse", description="rows with NaN or infinity; skip: count them")
    held_out: str | None = Field(None, description="a store of rows that the objective is measured on, not learnt from")
    measure_rows: int | None = Field(None, ge=1, description="rows between the first measurements; 16 batches")


class PrivacyTable(Table):
    """What is promised to whom."""

    epsilon: float = Field(description="spent by the whole run", gt=0)
    delta: float = Field(description="spent by the whole run; far below 1 / (number of records)", ge=0, lt=1)
    neighboring_relation: str | None = Field(
        None, description="who is protected: record_replace, record_add_remove, record_zero_out, symmetric_entry, ..."
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        description="public bound: the norm of a record, or the size of an entry; chosen without looking",
    )
    change: float = Field(1.0, gt=0, description="by how much an entry, or the norm, may differ (matrix relations)")
    coherence: float | None = Field(None, gt=0, description="public estimate, for noise that does not follow X")
    mechanism: Literal["gaussian", "laplace"] = Field("gaussian", description="laplace: pure epsilon, delta = 0")
    calibration: Literal["exact", "paper"] = Field("exact", description="paper: Hardt and Price's formula, to compare")
    clip_images: bool = Field(True, description="of records: clip their images in each block too, for less noise")
    ledger: str | None = Field(None, description="file or URL of the budgets; NPMDASK_LEDGER if left out")
    dataset: str | None = Field(None, description="name of the data set in the ledger; the source's path if left out")


class RunTable(Table):
    """With what, and where."""

    memory: str | None = Field(None, description="limit for all processes together, like 1GiB")
    workers: int = Field(0, ge=0, description="processes; 0: threads of one process")
    threads: int | None = Field(None, ge=1, description="a process; all cores if left out")
    store: str | None = Field(None, description="folder of the run, relative to this file; or s3://bucket/name")
    cluster: str | None = Field(None, description="address of a Dask scheduler, like tcp://host:8786, to use instead")
    certificates: str | None = Field(
        None, description="of a cluster at tls://: folder with ca.pem, cert.pem, key.pem, relative to this file"
    )
    commit_seconds: float = Field(30.0, ge=0, description="between commits inside a pass: lost at most by a kill")
    seed: int = Field(0, ge=0, description="of the random start block")
    start: str | None = Field(None, description="folder of an earlier run to begin from; relative to this file")


def table_of(annotation: Any) -> type[BaseModel]:
    """The model of a table, which may be left out (``Model | None``)."""
    return next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)
