"""The kinds of runs that goldens are made of, by their commands: every path in them lies below the working folder."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

RESUME = ("resume", "run", "--json", "--quiet")
LEDGER = "ledger.sqlite"
SOURCES = "sources"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of run.

    ``command`` makes it; ``before``: what it begins from, also commands; ``file``: the configuration in ``run.toml``.
    ``killed``: a process is killed as it is about to rename something to this. ``again`` goes on with it then.
    ``store``: what it leaves. ``private``: a ledger of budgets lies beside it. ``doors``: commands that know the store.
    ``ends_as``: the kind of which this is another interruption, so that both end in the same files.
    ``nodes``: those that it asks, by name, each with its configuration. ``placed``: its data are known by where they
    lie, as files that xarray opens: unpacked elsewhere they are others.
    """

    command: tuple[str, ...] = ("run", "run.toml", "--json", "--quiet")
    before: tuple[tuple[str, ...], ...] = ()
    file: dict[str, Any] = field(default_factory=dict)
    killed: str
    again: tuple[str, ...] = RESUME
    store: str = "run"
    private: bool = False
    doors: tuple[str, ...] = ("inspect", "status", "report", "export")
    ends_as: str = ""
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    placed: bool = False

    @property
    def stores(self) -> tuple[str, ...]:
        """Folders whose files are compared; a node keeps what it released."""
        return (self.store, *(f"runs/{name}" for name in self.nodes))


def text_of(file: dict[str, Any]) -> str:
    """A configuration as TOML."""
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in table.items())
        for name, table in file.items()
    )


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


def stored(source: str, rank: float, /, *, step: int | str = 2, **more: Any) -> Kind:
    """A run on ``sources/SOURCE.zarr``, killed before it commits ``step``. ``more``: keys of [algorithm], or tables."""
    tables = {name: table for name, table in more.items() if isinstance(table, dict) and name != "options"}
    asked = {name: value for name, value in more.items() if name not in tables}
    opened = {"path": f"{SOURCES}/{source}.zarr"} | tables.pop("source", {})
    place = f"run/steps/{step:06d}" if isinstance(step, int) else f"run/{step}"
    tables["run"] = {"store": "run"} | tables.get("run", {})
    return Kind(file={"source": opened, "algorithm": {"target_rank": rank} | asked, **tables}, killed=place)


def promise_of(source: str) -> dict[str, Any]:
    """The table [privacy] of data that have a budget."""
    relation, clip_norm, _ = GRANTED[source]
    promise = {"epsilon": 4.0, "delta": 1e-6, "neighboring_relation": relation, "clip_norm": float(clip_norm)}
    return promise | {"ledger": LEDGER, "dataset": source}


def private(source: str, /, *, rank: int = 2, privacy: dict[str, Any] | None = None, **more: Any) -> Kind:
    """A private one; the data set is called as its source."""
    promise = {name: value for name, value in (promise_of(source) | (privacy or {})).items() if value is not None}
    return replace(stored(source, rank, privacy=promise, **more), private=True)


def stream(algorithm: str, *, source: str = "samples.zarr", **more: Any) -> Kind:
    """A stream in batches of 20 rows, each of which is committed. ``more``: keys of [stream], and ``options``."""
    asked = {"target_rank": 2, "name": algorithm} | ({"options": more.pop("options")} if "options" in more else {})
    opened = {"path": f"{SOURCES}/{source}"} | more.pop("opened", {})
    tables = {"stream": {"batch_rows": 20} | more, "run": {"store": "run", "commit_seconds": 0.0}}
    return Kind(file={"source": opened, "algorithm": asked, **tables}, killed="run/steps/000003")


def job(*command: str, killed: str) -> Kind:
    """A job of several stages."""
    return Kind(command=(*command, "--store", "run", "--json", "--quiet"), killed=killed)


def also(ends_as: str, kind: Kind, killed: str) -> Kind:
    """Another interruption of ``kind``, which is called ``ends_as``."""
    return replace(kind, ends_as=ends_as, killed=killed)


def node(source: str, *, rank: int, steps: int) -> dict[str, Any]:
    """The configuration of a node; private, where its data have a budget."""
    asked = {"target_rank": 2, "iteration_rank": rank, "max_steps": steps}
    promise = {"privacy": promise_of(source)} if source in GRANTED else {"mechanism": {"name": "none"}}
    return {"source": {"path": f"{SOURCES}/{source}.zarr"}, "algorithm": asked, **promise}


def federated(nodes: dict[str, dict[str, Any]], *, private: bool) -> Kind:
    """A run of a centre, which has no data."""
    addresses = [f"http://127.0.0.1:{port}" for port, _ in enumerate(nodes, 1)]  # until they listen
    file = {"source": {"nodes": addresses}, "algorithm": {"target_rank": 2}, "run": {"store": "run"}}
    return Kind(file=file, nodes=nodes, private=private, killed="run/steps/000003")


POWER = {"name": "power", "iteration_rank": 6}
RELEASES = {"iteration_rank": 4, "max_steps": 4}
TOPICS = ("topics", f"{SOURCES}/words.zarr", "--topics", "3")
MIXTURE = ("mixture", f"{SOURCES}/clusters.zarr", "--components", "2")
ICA = ("ica", f"{SOURCES}/sounds.zarr", "--components", "2")
PERTURB = (
    *("perturb", f"{SOURCES}/private_tensor.zarr", "noisy.zarr", "--epsilon", "2", "--delta", "1e-6"),
    *("--relation", "tensor_entry", "--clip-norm", "40", "--ledger", LEDGER, "--dataset", "private_tensor"),
    *("--json", "--quiet"),
)
MOMENTS = ("moments", f"{SOURCES}/sounds.zarr", "moments.zarr", "--block", "2", "--center", "--quiet")
BASE = (("run", "base.toml", "--store", "base", "--quiet"),)
BASE_FILE: dict[str, Any] = {"source": {"path": f"{SOURCES}/samples.zarr"}, "algorithm": {"target_rank": 2}}
OJAS: dict[str, Any] = {"batch": 300, "rates": [1.0, 1.0]}
PAPER = {"epsilon": 50.0, "clip_norm": None}
GRANTED = {  # data set: relation, bound, and the budget, which is for several runs
    "records": ("record_replace", "1.5", "100"),
    "more_records": ("record_replace", "1.5", "20"),
    "entries": ("entry", "3", "20"),
    "pairs": ("symmetric_entry", "8", "20"),
    "records_of_images": ("record_replace", "1.5", "20"),
    "private_tensor": ("tensor_entry", "40", "20"),
    "gappy_records": ("record_replace", "1.5", "20"),
}
ROW_WEIGHTS = {"row_weights": f"{SOURCES}/row_weights.zarr"}
COLUMN_WEIGHTS = {"column_weights": f"{SOURCES}/column_weights.zarr"}
WEIGHTS = ROW_WEIGHTS | COLUMN_WEIGHTS
CENTRED = {"center": True}
SCALED = {"center": True, "scale": True}

MATRIX = stored("matrix", 3, name="krylov", iteration_rank=5)
SHARE = stored("flat", 0.97, step="search/0016/steps/000002")
PRIVATE = private("records", **RELEASES)
WORDS = job(*TOPICS, killed="run/decomposition/steps/000002")
ALL: dict[str, Kind] = {
    "matrix-power": stored("matrix", 3, **POWER),
    "matrix-krylov": MATRIX,
    "left-vectors": also("matrix-krylov", MATRIX, "run/result"),
    "csr": stored("sparse", 3, **POWER),
    "packed-symmetric": stored("symmetric", 3, **POWER),
    "full-symmetric": stored("symmetric_full", 3, **POWER),
    "samples": stored("samples", 3, **POWER),
    "samples-scaled": stored("samples", 3, **POWER, source={"center": True, "scale": True}),
    "single-precision": stored("single", 3, **POWER),
    "simulated-noise": stored("samples", 2, **POWER, max_steps=6, mechanism={"name": "gaussian", "stddev": 1e-3}),
    "not-converged": stored("samples", 3, **POWER, max_steps=3),
    "low-rank-stop": stored("flat", 2, **POWER, stop={"low_rank_tol": 0.2}),
    "inside-a-pass": stored(
        "long", 2, step="pass/000001", **POWER, stop={"tol": 0.05}, run={"commit_seconds": 0.0, "threads": 1}
    ),
    "share-searching": SHARE,
    "share-answering": also("share-searching", SHARE, "run/result"),
    "warm-start": replace(stored("samples", 4, step=2, **POWER, run={"start": "base"}), before=BASE),
    "deflation": replace(
        stored("samples", 2),
        before=BASE,
        command=("deflate", "base", "2", "--store", "run", "--json", "--quiet"),
    ),
    "dilation": Kind(
        command=("triplets", f"{SOURCES}/rows.zarr", "run"),
        again=("triplets", f"{SOURCES}/rows.zarr", "run"),
        killed="run/steps/000002",
        doors=("inspect", "status"),  # its values come in pairs of both signs, whose order hangs on the last bits
    ),
    "tensor": stored("tensor", 2, options={"restarts": 4}),
    "tensor-rounds": stored("tensor", 2, options={"restarts": 4, "iterations": 4}),
    "private-gaussian": PRIVATE,
    "private-answering": also("private-gaussian", PRIVATE, "run/result"),
    "private-laplace": private("records", privacy={"mechanism": "laplace", "delta": 0.0}, **RELEASES),
    "private-matrix": private("entries", **RELEASES),
    "private-symmetric": private("pairs", **RELEASES),
    "private-tensor": private("private_tensor", name="tensor-power", options={"restarts": 2, "iterations": 2}),
    "k-dp-pca": private("records", name="k-dp-pca", options={"steps": 3}),
    "k-dp-pca-one-pass": private("records", name="k-dp-pca", options={"steps": 2, "reuse": False}),
    "k-dp-pca-paper": private(
        "records", rank=1, privacy=PAPER, name="k-dp-pca", options={"variant": "paper", **OJAS, "constant": 30.0}
    ),
    "k-dp-pca-matrices": private("records_of_images", name="k-dp-pca", options={"steps": 3}),
    "k-dp-ojas": private("records", name="k-dp-ojas", options=OJAS),
    "k-dp-power": private("records", name="k-dp-power", options={"steps": 3}),
    "perturb": Kind(command=PERTURB, again=PERTURB, killed="noisy.zarr", store="noisy.zarr", private=True, doors=()),
    "stream-spm": stream("spm", options={"block_rows": 10}, held_out=f"{SOURCES}/rows.zarr"),
    "stream-centred": stream("spm", opened={"center": True}, half_life=60.0),
    "stream-shuffled": stream("spm", order="shuffled", epochs=2),
    "stream-of-files": stream("spm", source="files"),
    "stream-oja": stream("oja"),
    "stream-msg": stream("msg"),
    "stream-rmsg": stream("rmsg", options={"ridge": 0.1}),
    "stream-mb-msg": stream("mb-msg", options={"gap": 0.2, "batch_rows": 20, "warm_rows": 20}),
    "stream-mb-rmsg": stream("mb-rmsg", options={"gap": 0.2, "shift": 10.0, "batch_rows": 20, "warm_rows": 20}),
    "stream-frequent-directions": stream("frequent-directions"),
    "stream-online-tensor-power": stream(
        "online-tensor-power", source="sounds.zarr", options={"block_rows": 20, "restarts": 4, "iterations": 2}
    ),
    "stream-estimator": Kind(
        before=(("learn", f"{SOURCES}/samples.zarr", "", "half"),),
        command=("learn", f"{SOURCES}/samples.zarr", "half", "run"),
        again=("learn", f"{SOURCES}/samples.zarr", "half", "run"),
        killed="run",
        doors=(),
    ),
    "topics": WORDS,
    "topics-whitening": also("topics", WORDS, "run/whitening/result"),
    "topics-answering": also("topics", WORDS, "run/quality"),
    "topics-implicit": job(
        *TOPICS, "--moments", "implicit", "--held-out", "0", killed="run/decomposition/steps/000003"
    ),
    "mixture": job(*MIXTURE, killed="run/decomposition/steps/000002"),
    "ica": job(*ICA, killed="run/decomposition/steps/000002"),
    "federated": federated(
        {"north": node("samples", rank=6, steps=60), "south": node("rows", rank=6, steps=60)}, private=False
    ),
    "federated-private": federated(
        {"east": node("records", rank=4, steps=4), "west": node("more_records", rank=4, steps=4)}, private=True
    ),
    "moments": Kind(command=MOMENTS, again=MOMENTS, killed="moments.zarr", store="moments.zarr", doors=()),
}
# What came second: weights, gaps, complex and whole numbers, Grams and groups, grids, graphs.
KRYLOV = {"name": "krylov", "iteration_rank": 5}
WEIGHTED_MATRIX = stored("measured", 3, **POWER, source={"kind": "matrix"} | SCALED | WEIGHTS)
NARROW = ("--set", "algorithm.iteration_rank=4")
WEIGHTED_BASE = ("--row-weights", WEIGHTS["row_weights"], "--column-weights", WEIGHTS["column_weights"], "--center")
WEIGHTED_BASE = ("run", f"{SOURCES}/measured.zarr", "-k", "2", *WEIGHTED_BASE, *NARROW, "--store", "base", "--quiet")
LAZY = ("lazy", f"{SOURCES}/measured.zarr", ROW_WEIGHTS["row_weights"], "run")
TO_GRAM = ("gram", f"{SOURCES}/measured.zarr", "run", "--json", "--quiet")
BY_LABEL = ("--groups", f"{SOURCES}/labels/groups.txt")
A_GRAM = ("gram", f"{SOURCES}/measured.zarr", "G", "--by-chunks", "1", "--quiet")
GROUPED = ("gram", f"{SOURCES}/measured.zarr", "G", *BY_LABEL)
OTHER_GRAM = ("gram", f"{SOURCES}/bytes.zarr", "H", "--quiet")
REDUCED = ("gram", "--remove", "H", "both", "run", "--json")
FIELDS = (f"{SOURCES}/gappy.zarr", f"{SOURCES}/bytes.zarr", "-k", "2", "--missing", "mean", "--scale")
FIELDS = (*FIELDS, "--row-weights", ROW_WEIGHTS["row_weights"], "--left-weights", COLUMN_WEIGHTS["column_weights"])
FILLED = {"missing": "fill", "missing_fill": f"{SOURCES}/fill.zarr", "row_weights": f"{SOURCES}/record_weights.zarr"}


def on_grid(path: str, **more: Any) -> Kind:
    """Rows along time, of a file or group by path, their cells weighted by latitude."""
    source = {"path": f"{SOURCES}/{path}", "dim": "time", "kind": "samples", "column_weights": "coslat"} | more
    return replace(stored("", 3, **POWER, source=source), placed=True)


def on_gram(before: tuple[str, ...], *, path: str = "H", source: dict[str, Any], **more: Any) -> Kind:
    """A run on a stored Gram, which is made before."""
    return replace(stored("", 3, step=1, source={"path": path} | source, **more), before=(before,))


SECOND: dict[str, Kind] = {
    "weighted-rows": stored("measured", 3, **POWER, source=CENTRED | ROW_WEIGHTS),
    "weighted-columns": stored("measured", 3, **KRYLOV, source=SCALED | COLUMN_WEIGHTS),
    "weighted": stored("measured", 3, **KRYLOV, source=SCALED | WEIGHTS),
    "weighted-matrix": WEIGHTED_MATRIX,
    "weighted-left-vectors": also("weighted-matrix", WEIGHTED_MATRIX, "run/result"),
    "weighted-gram": stored("measured", 3, step="survey", name="gram", source=SCALED | WEIGHTS),
    "weighted-row-gram": stored(
        *("wide", 3),
        step="result",
        name="row-gram",
        iteration_rank=4,
        source=CENTRED | {"row_weights": f"{SOURCES}/wide_rows.zarr", "column_weights": f"{SOURCES}/wide_columns.zarr"},
    ),
    "weighted-csr": stored(
        *("sparse", 3),
        **KRYLOV,
        source=SCALED | ROW_WEIGHTS | {"column_weights": f"{SOURCES}/sparse_columns.zarr"},
    ),
    "weighted-single": stored("measured_single", 3, **KRYLOV, source=CENTRED | COLUMN_WEIGHTS),
    "weighted-share": stored("measured", 0.8, source=CENTRED | WEIGHTS, step="search/0014/steps/000002"),
    "weighted-deflation": replace(
        stored("measured", 2, step=1),
        file={},
        before=(WEIGHTED_BASE,),
        command=("deflate", "base", "2", "--store", "run", "--json", "--quiet"),
    ),
    "weighted-start": replace(
        stored("measured", 4, step=1, **POWER, source=CENTRED | WEIGHTS, run={"start": "base"}), before=(WEIGHTED_BASE,)
    ),
    "csr-on-disk": stored("sparse", 3, **POWER, options={"blocks": "disk"}, stop={"tol": 0.01}),
    "gaps-mean-weighted": stored("gappy", 3, **KRYLOV, source=SCALED | WEIGHTS | {"missing": "mean"}),
    "gaps-limit": stored(
        *("marked", 3),
        step="survey",
        **POWER,
        source=SCALED | ROW_WEIGHTS | {"missing": "mean", "missing_values": [-9999.0], "missing_limit": 0.5},
    ),
    "gaps-dropped": stored("hollow", 3, **POWER, source=CENTRED | COLUMN_WEIGHTS | {"missing": "drop-columns"}),
    "gaps-em": stored("factored", 2, source=CENTRED | WEIGHTS | {"missing": "em"}),
    "gaps-em-auto": stored("factored", "auto", step="search/0002/steps/000002", source=CENTRED | {"missing": "em"}),
    "gaps-pairwise-weighted": stored("gappy", 3, step=1, source=SCALED | COLUMN_WEIGHTS | {"missing": "pairwise"}),
    "private-filled": private("gappy_records", **RELEASES, source=FILLED),
    "private-all": private("records", **RELEASES),
    "power-momentum": stored("samples", 3, **POWER, options={"momentum": 0.9}),
    "private-momentum": private("records", **RELEASES, name="power", options={"momentum": "auto"}),
    "private-last": private("pairs", **RELEASES, name="power", options={"answer": "last"}),
    "federated-all": federated(
        {"east": node("records", rank=4, steps=4), "west": node("more_records", rank=4, steps=4)}, private=True
    ),
    "complex": stored("waves", 3, **POWER, source=SCALED | WEIGHTS | {"kind": "samples"}),
    "hermitian": stored("hermitian", 3, **POWER, source={"kind": "symmetric"}),
    "whole-numbers": stored("bytes", 3, **KRYLOV, source=SCALED),
    "whole-numbers-weighted": stored("shorts", 3, step=1, name="gram", source=CENTRED | WEIGHTS),
    "grid-zarr": on_grid("grid.zarr", **SCALED),
    "grid-netcdf": on_grid("gridded/field.nc", **CENTRED),
    "lazy": Kind(command=LAZY, again=LAZY, killed="run/steps/000002"),
    "gram": Kind(command=TO_GRAM, killed="run/steps/000001"),
    "gram-groups": Kind(command=(*TO_GRAM, *BY_LABEL), killed="run/steps/000001"),
    "gram-by-chunks": Kind(command=(*TO_GRAM, "--by-chunks", "1"), killed="run/steps/000001"),
    "gram-reduced": Kind(
        before=(A_GRAM, OTHER_GRAM, ("gram", "--merge", "G", "H", "both")),
        command=REDUCED,
        again=REDUCED,
        killed="run/steps/000001",
    ),
    "from-gram": on_gram(OTHER_GRAM, source=SCALED | COLUMN_WEIGHTS),
    "from-gram-intervals": on_gram((*GROUPED, "--quiet"), path="G", source=CENTRED, report={"bootstrap": 50}),
    "mca": job("mca", *FIELDS, killed="run/pairs/steps/000002"),
    "cca": job("cca", *FIELDS, killed="run/gram"),
    "stream-weighted": stream("spm", source="measured.zarr", opened=CENTRED | ROW_WEIGHTS),
    "stream-imputed": stream("spm", source="gappy.zarr", opened=CENTRED | {"missing": "impute"}),
}
ALL |= SECOND
# Pages that have a form of their own.
PAGES = ("weighted", "gaps-limit", "gaps-em", "complex", "gram-groups", "from-gram-intervals", "mca")
# Their pages have the form of another one's, and drawing it takes longer than all the rest.
SAME_PAGE = (
    *(name for name in SECOND if name not in PAGES),
    *("matrix-krylov", "full-symmetric", "samples-scaled", "single-precision", "simulated-noise", "inside-a-pass"),
    *("tensor-rounds", "private-laplace", "private-symmetric", "k-dp-pca-one-pass", "k-dp-pca-matrices"),
    *("k-dp-power", "stream-centred", "stream-shuffled", "stream-oja", "stream-rmsg", "stream-mb-msg"),
    *("stream-mb-rmsg", "topics-implicit"),
)
KINDS = {
    name: replace(kind, doors=tuple(door for door in kind.doors if door != "report")) if name in SAME_PAGE else kind
    for name, kind in ALL.items()
}


def sources_of(kind: Kind) -> list[str]:
    """The names of the sources that a kind mentions."""
    text = " ".join([*kind.command, *(word for command in kind.before for word in command), text_of(kind.file)])
    text += " ".join(map(text_of, kind.nodes.values()))
    return sorted(set(re.findall(rf"{SOURCES}/([\w.]+)", text)))
