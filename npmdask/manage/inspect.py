"""What a folder holds, said without reading the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npmdask.checkpoint.remote.fetch import holds_run
from npmdask.checkpoint.store import RunStore, folder_of
from npmdask.errors import BadInputError
from npmdask.models.kinds import job_summary, kind_of, read_job
from npmdask.runs.restore import require_run
from npmdask.storage.object_url import is_remote
from npmdask.storage.source import Source, is_registered, open_source
from npmdask.streaming.status import is_stream, standing

MEASURED = {
    2: ("rank", "mean_batch_rows", "explained", "suboptimality", "max_sin_theta", "change"),
    3: ("rank", "mean_batch_rows", "change"),
}


def inspect(path: str | Path) -> dict[str, Any]:
    """Facts of a data store or of a run store (held by somebody or not).

    Raises
    ------
    BadInputError
        Neither of them.
    """
    if is_registered(path) or (is_remote(path) and not holds_run(str(path))):
        return _inspect_data(path)
    folder = folder_of(path)
    if (folder / "run.json").exists():
        return _inspect_run(folder)
    if (folder / "steps").is_dir():
        raise BadInputError(f"{folder} is a run that was killed before its first step; run the same command again")
    return _inspect_data(folder)


def _inspect_data(path: str | Path) -> dict[str, Any]:
    source = open_source(path)
    reader: Any = source.reader
    return {
        "kind": source.kind,
        **_extent(source),
        "dtype": str(reader.dtype),
        "bytes": reader.nbytes,
        "chunk_grid": [reader.grid] * 3 if reader.layout == "tensor" else list(reader.grid),
        "stored": _stored(reader),
        "fingerprint": source.fingerprint,
        "checksums": "recorded" if source.registered else "none (a plain store: taken in the first pass of a run)",
        "truth_rank": source.truth.basis.shape[1] if source.truth else None,
    }


def _extent(source: Source) -> dict[str, Any]:
    """How large the data are, in the words of their kind."""
    n, d = source.shape[0], source.dimension
    if source.reader.layout == "tensor":
        tensor: Any = source.reader
        return {"order": len(source.shape), "dimension": d, "block": tensor.side}
    return {"rows": n, "columns": d} if source.side is None else {"matrices": n, "side": d}


def _stored(reader: Any) -> str:
    if reader.layout == "tensor":
        return f"the {reader.units} unique blocks of {reader.grid**3}"
    return "the upper triangle" if reader.layout == "triangle" else "whole"


def _inspect_run(folder: Path) -> dict[str, Any]:
    store = RunStore(folder)
    spec = store.read_spec() or {}
    if is_stream(spec):
        return _inspect_stream(store, spec)
    if kind_of(spec):
        return _inspect_job(store, spec)
    if spec:
        require_run(folder, spec)
    result, history = store.part_meta("result"), store.history()
    if "privacy" in spec:
        return _inspect_private(spec, result, len(history))
    return {
        "state": "finished" if result else "unfinished",
        "outcome": result["outcome"]["sentence"] if result else "go on with `npmdask resume`",
        **_assured(result),
        "steps": len(history),
        "worst_residual": history[-1]["worst_residual"] if history else None,
        "source": spec.get("source"),
        **{
            f"{table}.{name}": v
            for table in ("data", "algorithm", "stop", "run", "version")
            for name, v in spec[table].items()
        },
    }


def _assured(result: Any) -> dict[str, str]:
    """How wrong the answer can be, where that was written with it."""
    return {"assurance": result["assurance"]} if result and result.get("assurance") else {}


def _inspect_job(store: RunStore, spec: dict[str, Any]) -> dict[str, Any]:
    """Of a job of several stages, finished or not."""
    named = {
        f"{name}.{key}": value for name in ("data", "algorithm", "run", "version") for key, value in spec[name].items()
    }
    try:
        facts: dict[str, Any] = {"state": "finished"} | job_summary(read_job(store.path))
    except BadInputError:
        facts = {"state": "unfinished", "outcome": "go on with `npmdask resume`"}
    return facts | {"source": spec.get("source"), **named}


def _inspect_private(spec: dict[str, Any], result: Any, released: int) -> dict[str, Any]:
    """Of a private run: public parameters and how many releases were made; neither shape nor fingerprint."""
    return {
        "state": "finished" if result else "unfinished",
        "outcome": result["outcome"]["sentence"] if result else "go on with `npmdask resume`",
        **_assured(result),
        "released": f"{released} of {spec['stop']['max_steps']}",
        "source": spec.get("source"),
        **{f"{table}.{name}": v for table in ("privacy", "algorithm", "version") for name, v in spec[table].items()},
    }


def _inspect_stream(store: RunStore, spec: dict[str, Any]) -> dict[str, Any]:
    """Of a stream, running or not: what its last commit holds, and the last measurement before that."""
    found = standing(store)
    if found is None:
        facts: dict[str, Any] = {"state": "unfinished", "outcome": "nothing is committed yet: run it again", "rows": 0}
    else:
        last, files = found.history[-1:], found.files
        facts = {
            "state": found.state,
            "outcome": found.sentence,
            **({"assurance": found.assurance} if found.assurance else {}),
            "rows": found.rows,
            "rows_waiting": found.rows_waiting,
            "skipped": found.skipped,
            "steps": found.steps,
            **({} if files is None else {"files_done": files[0], "file_begun": files[1]}),
            "measured_after": last[0].rows if last else None,
            **{name: getattr(last[0], name) if last else None for name in MEASURED[found.moment]},
        }
    tables = ("data", "algorithm", "run", "version")
    named = {f"{table}.{name}": value for table in tables for name, value in spec[table].items()}
    return facts | {"source": spec.get("source"), **named}
