"""``python -m benchmarks [ONLY ...] [--list] [--scale small|medium|full] [--table]``: one JSON line for every row.

All rows run one after the other in one process tree. Only a full run of all rows writes files. Exit status: 0
every target holds; 1 something is broken (a row that cannot be measured, an answer of ours that is wrong, a
peer that crashes or is wrong where it is not known to be); 3 all is right and a target is missed (full scale).
Rows that need a GPU are skipped where there is none. Rows that are named run also where others lack their packages.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask

from benchmarks.data import DataSets
from benchmarks.docs import read_results, write_results, write_table
from benchmarks.machine import describe
from benchmarks.registry import Context, Measured, NoCardError, Row, all_rows

BROKEN, MISSED = 1, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for; the exit status says how it went."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ONLY", help="rows to run, all if none")
    parser.add_argument("--only", action="append", default=[], help="the same")
    parser.add_argument("--list", action="store_true", help="names and targets")
    parser.add_argument("--table", action="store_true", help="write docs/papers/benchmarks.md from the kept results")
    parser.add_argument("--keep", action="store_true", help="with names: put these rows into the kept results")
    parser.add_argument("--scale", choices=("small", "medium", "full"), default="full")
    a = parser.parse_args(argv)
    dask.config.set({"logging.distributed": "error"})  # read when distributed is imported, by the rows
    wanted = {name for text in [*a.names, *a.only] for name in text.split(",") if name}
    lacking: dict[str, str] = {}
    rows = all_rows(lacking if wanted else None)
    if unknown := wanted - {row.name for row in rows}:
        others = "".join(f"; rows of {module} cannot run: {why}" for module, why in lacking.items())
        parser.error(f"no such row: {', '.join(sorted(unknown))}; --list shows them{others}")
    if a.list:
        print("\n".join(f"{row.name:20} {'>=' if row.better == 'higher' else '<='} {row.target}" for row in rows))
        return 0
    if a.table:
        write_table(rows, read_results())
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the data are deleted
    lines = []
    for line in run([row for row in rows if not wanted or row.name in wanted], a.scale):
        print(json.dumps(line), flush=True)
        lines.append(line)
    if a.scale == "full" and (not wanted or a.keep):
        write_results(lines, rows, replace_all=not wanted)
        write_table(rows, read_results())
    return status(lines, a.scale)


def run(rows: list[Row], scale: str) -> Iterator[dict[str, Any]]:
    """The line of every row; data sets go when no later row needs them."""
    machine = describe()
    with tempfile.TemporaryDirectory(prefix="npmdask-bench-", ignore_cleanup_errors=True) as folder:
        data = DataSets(Path(folder), scale)
        for number, row in enumerate(rows):
            print(f"{row.name} ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
                yield measure(row, Context(scale=scale, folder=Path(own), data=data), machine)
            for name in set(row.data) - {name for later in rows[number + 1 :] for name in later.data}:
                data.drop(name)


def measure(row: Row, context: Context, machine: dict[str, Any]) -> dict[str, Any]:
    """Run one row; whatever goes wrong in it is part of its line, and the other rows still run."""
    start, skipped = time.perf_counter(), ""
    try:
        found = row.run(context)
    except NoCardError as error:
        found, skipped = Measured(None, {}, str(error)), str(error)
        print(f"{row.name} skipped: {error}", file=sys.stderr, flush=True)
    except Exception as error:
        traceback.print_exc()
        found = Measured(None, {}, failures=(f"{type(error).__name__}: {error}",))
    holds = row.holds(found.figure) and not found.failures
    return {
        "row": row.name,
        "figure": None if found.figure is None else float(f"{found.figure:.4g}"),
        "target": row.target,
        "better": row.better,
        "holds": holds,
        "command": f"make bench ONLY={row.name}" + ("" if context.scale == "full" else f" SCALE={context.scale}"),
        "machine": machine,
        "details": found.details,
        "why": "" if holds else "; ".join([*found.failures, *filter(None, [found.why])]),
        "failures": list(found.failures),
        **({"skipped": skipped} if skipped else {}),
        "scale": context.scale,
        "seconds": round(time.perf_counter() - start, 1),
    }


def status(lines: list[dict[str, Any]], scale: str) -> int:
    """The exit status of a run; rows that were skipped have no say in it."""
    lines = [line for line in lines if not line.get("skipped")]
    if any(line["failures"] or line["figure"] is None for line in lines):
        return BROKEN
    return MISSED if scale == "full" and not all(line["holds"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
