"""Parse the commands that manage many runs: status, metrics for Prometheus, deletion of old checkpoints."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from npmdask.errors import BadInputError

RUNS = "runs"


def add_status(commands: Any) -> None:
    """``npmdask status``."""
    p = commands.add_parser("status", help="show the status of all runs below a folder (read-only)")
    p.add_argument("folder", nargs="?", default=RUNS, help="folder of the runs (default: runs)")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(command=_status)


def _status(a: argparse.Namespace) -> int:
    from npmdask.core.storage.paths import local_path
    from npmdask.manage.status import nights_of, runs_as_lines, status_below

    found = status_below(a.folder)
    nights = nights_of(local_path(a.folder, "the folder of the runs"))
    if a.json:
        schedules = {"schedules": [asdict(night) for night in nights]} if nights else {}
        print(json.dumps({"runs": [status.facts() for status in found]} | schedules))
    else:
        print("\n".join(runs_as_lines(found)) if found else f"no runs below {a.folder}")
        for night in nights:
            print(f"schedule {night.schedule}: the last run {night.said}")
    return 0


def add_metrics(commands: Any) -> None:
    """``npmdask metrics``."""
    p = commands.add_parser(
        "metrics",
        help="print the status of all runs as Prometheus metrics, write them to a file, or serve them by HTTP",
    )
    p.add_argument("folder", nargs="?", default=RUNS, help="folder of the runs (default: runs)")
    how = p.add_mutually_exclusive_group()
    how.add_argument("--port", type="port", help="serve metrics on this port until stopped (0: any free one)")
    how.add_argument(
        "--textfile", metavar="FILE.prom", help="write metrics once, for the textfile collector of node_exporter"
    )
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    p.add_argument(
        "--ledger",
        metavar="URL|PATH",
        help="also show the privacy budgets left in this ledger (default: $NPMDASK_LEDGER)",
    )
    p.set_defaults(command=_metrics)


def _metrics(a: argparse.Namespace) -> int:
    from npmdask.ledger import open_ledger
    from npmdask.manage.prometheus import Exporter

    address = a.ledger or os.environ.get("NPMDASK_LEDGER")
    exporter = Exporter(a.folder, open_ledger(address) if address else None)
    if a.port is not None:
        server, thread = exporter.serve(a.port, a.host)
        print(f"npmdask: metrics at http://{a.host}:{server.server_port}/metrics", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            thread.join()
    elif a.textfile:
        exporter.write(a.textfile)
    else:
        print(exporter.text(), end="")
    return 0


def add_gc(commands: Any) -> None:
    """``npmdask gc``."""
    p = commands.add_parser(
        "gc", help="delete checkpoints no longer needed by finished runs; running jobs are never touched"
    )
    p.add_argument("folder", nargs="?", default=RUNS, help="folder of the runs (default: runs)")
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--older-than", metavar="TIME", help="minimum time since the last checkpoint: 30d, 12h, 2w")
    what.add_argument("--cache", action="store_true", help="instead delete the copies in the cache that are not in use")
    p.add_argument("--keep", type=int, default=0, metavar="N", help="keep the newest N finished runs of each folder")
    p.add_argument(
        "--results", action="store_true", help="also delete whole finished runs (never private runs or streams)"
    )
    p.add_argument(
        "--unfinished", action="store_true", help="also delete whole unfinished runs (never private runs or streams)"
    )
    p.add_argument("--dry-run", action="store_true", help="only show what would be deleted")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(command=_gc)


def _gc(a: argparse.Namespace) -> int:
    from npmdask.core.numerics.units import bytes_text, parse_duration
    from npmdask.manage.gc import Retention, sweep, sweep_cache

    if a.cache and (a.folder != RUNS or a.keep or a.results or a.unfinished):
        raise BadInputError("gc: --cache deletes from the cache only: leave out the folder and the options of its runs")
    seconds = parse_duration(a.older_than or "0s")
    rule = Retention(seconds=seconds, keep=a.keep, results=a.results, unfinished=a.unfinished)
    swept = sweep_cache(dry=a.dry_run) if a.cache else sweep(a.folder, rule, dry=a.dry_run)
    for sentence in swept.left:
        print(f"npmdask: kept: {sentence}", file=sys.stderr)
    if a.json:
        gone = [{"path": str(one.path), "bytes": one.bytes, "why": one.why} for one in swept.gone]
        print(json.dumps({"dry_run": a.dry_run, "bytes": swept.bytes, "gone": gone, "left": list(swept.left)}))
        return 0
    for one in swept.gone:
        print(f"{one.path}  {bytes_text(one.bytes)}  ({one.why})")
    print(f"{'would free' if a.dry_run else 'freed'} {bytes_text(swept.bytes)}")
    return 0


# The command that needs Prefect: handed on to the package of the flows, which alone knows it.


def add_serve(commands: Any) -> None:
    """``npmdask serve``."""
    p = commands.add_parser(
        "serve", help="run schedules: start a Prefect server and a worker on this machine, until stopped"
    )
    add_serve_options(p)
    p.set_defaults(command=_serve)
    p = commands.add_parser("backfill", help="run a schedule for days that are past; days that are done are skipped")
    add_backfill_options(p)
    p.set_defaults(command=_serve)


def add_backfill_options(p: Any) -> None:
    """Options of the program that runs days that are past, which is another one."""
    p.add_argument("schedule", help="name of a schedule whose data lie in a file for each day ({date} in source.path)")
    p.add_argument("--from", dest="first", type=day, required=True, metavar="DAY", help="first day")
    p.add_argument("--to", dest="last", type=day, required=True, metavar="DAY", help="last day")
    p.add_argument("--schedules", type=Path, default=Path("schedules.toml"), help="its file (schedules.toml)")


def day(text: str) -> date:
    """Return a day of ISO 8601."""
    return date.fromisoformat(text)


def add_serve_options(p: Any) -> None:
    """Options of the program that serves, which is another one."""
    p.add_argument(
        "schedules", nargs="?", type=Path, help="what runs when: a TOML file (schedules.toml in the working folder)"
    )
    p.add_argument(
        "--example",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="make small data and a schedule that runs at once, and serve them; in a temporary folder if none is named",
    )
    p.add_argument("--port", type="port", help="port of the Prefect server and its pages (4200, or a free one)")
    p.add_argument("--folder", type=Path, help="logs and process numbers (runs/.serve)")
    p.add_argument("--metrics-port", type="port", help="also answer scrapes of Prometheus at this port")
    p.add_argument("--check", action="store_true", help="read the schedules, say what is wrong, start nothing")


def _serve(a: argparse.Namespace) -> int:
    given = a.given[a.given.index(a.name) + 1 :]
    os.execv(sys.executable, [sys.executable, "-m", f"npmdask.prefect.{a.name}", *given])
