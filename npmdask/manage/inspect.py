"""What a folder holds, said without reading the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npmdask.checkpoint.remote.fetch import holds_run
from npmdask.checkpoint.store import RunStore, folder_of
from npmdask.errors import BadInputError
from npmdask.manage.kinds import kind_of
from npmdask.storage.object_url import is_remote
from npmdask.storage.source import Source, is_registered, open_source


def inspect(path: str | Path) -> dict[str, Any]:
    """Facts of a data store or of a run store (held by a process or not).

    Raises
    ------
    BadInputError
        Neither of them.
    """
    if is_registered(path) or (is_remote(path) and not holds_run(str(path))):
        return _inspect_data(path)
    folder = folder_of(path)
    if (folder / "run.json").exists():
        run = RunStore(folder)
        spec = run.read_spec() or {}
        return kind_of(spec).inspect(run, spec)
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
