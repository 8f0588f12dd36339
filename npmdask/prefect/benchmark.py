"""Rows of ``python -m benchmarks`` as a flow: each in a process of its own, its line kept in the folder of the run.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import get_run_logger

from npmdask.core.storage.bundle import write_file_atomically
from npmdask.core.storage.paths import require_no_link
from npmdask.errors import RefusedError, require, require_known
from npmdask.prefect.parameters import Folder, RunId, run_folder, said
from npmdask.prefect.processes import end_with_parent
from npmdask.prefect.programs import counted
from npmdask.prefect.publish import progress_text, show, try_to
from npmdask.prefect.server import ROOT, python_path
from npmdask.prefect.tasks import end_state, step, tended_flow
from npmdask.report.blocks import table
from npmdask.report.render import markdown


@tended_flow()
def benchmark(
    rows: Annotated[
        list[str] | None, said("names of benchmarks, as `python -m benchmarks --list` prints them; all if left out")
    ] = None,
    scale: Annotated[
        Literal["small", "medium", "full"], said("size of the data; only figures at full are meaningful")
    ] = "small",
    run_id: RunId = "benchmark",
    folder: Folder = "runs",
) -> Any:
    """Figures beside their targets, row by row. The same run id again measures what it has not yet."""
    store = run_folder(folder, run_id)
    names = choose(rows, scale, store)
    lines = []
    for name in names:
        lines.append(measure(name, scale, store))
        show_figures(run_id, lines, len(names))
    return end_state(row_facts(lines, store))


SCALE = "scale"  # file in the folder of the run


@step
def choose(rows: list[str] | None, scale: str, store: str) -> list[str]:
    """The rows to measure, all of them if none is named.

    Raises
    ------
    RefusedError
        The benchmarks are not here, or the folder is of another scale.
    BadInputError
        There is no such row.
    """
    known = _known_rows()
    for name in rows or []:
        require_known(name, known, "there is no row")
    _require_scale(Path(store), scale)
    names = list(dict.fromkeys(rows or known))
    get_run_logger().info("to measure at scale %s: %s", scale, ", ".join(names))
    return names


@step
def measure(name: str, scale: str, store: str) -> dict[str, Any]:
    """The line of a row: that of the folder, if it was measured already and nothing was broken."""
    kept = Path(store) / f"{name}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    line = _line_of(name, scale)
    if not line["failures"] and line["figure"] is not None:
        write_file_atomically(kept, json.dumps(line).encode() + b"\n")
    get_run_logger().info("%s: %s (target %s)", name, line["figure"], line["target"])
    return line


def show_figures(run_id: str, lines: list[dict[str, Any]], count: int) -> None:
    """A table of what is measured so far, and how far that is."""
    head = ("row", "figure", "target", "holds", "seconds", "why not")
    rows = (
        (
            line["row"],
            str(line["figure"]),
            f"{'>=' if line['better'] == 'higher' else '<='} {line['target']}",
            "yes" if line["holds"] else "no",
            str(line["seconds"]),
            line["why"],
        )
        for line in lines
    )
    said = f"{len(lines)} of {count} rows, the last one {lines[-1]['row']}"
    text = f"{progress_text(said, 100 * len(lines) / count)}\n\n{markdown(table(rows, head))}"
    try_to(partial(show, run_id, "progress", text, said))


def row_facts(lines: list[dict[str, Any]], store: str) -> dict[str, Any]:
    """Return how it went: answered unless a row is broken, or misses its target at full scale."""
    broken = [line["row"] for line in lines if line["failures"] or line["figure"] is None]
    missed = [line["row"] for line in lines if not line["holds"] and line["row"] not in broken]
    said = [counted(len(lines), "row")]
    said += [f"broken: {', '.join(broken)}"] if broken else []
    said += [f"short of their targets: {', '.join(missed)}"] if missed else []
    good = not broken and not (missed and lines[0]["scale"] == "full")
    figures = {line["row"]: line["figure"] for line in lines}
    return {"answered": good, "sentence": "; ".join(said), "figures": figures, "store": store}


def _known_rows() -> list[str]:
    if find_spec("benchmarks") is None:
        raise RefusedError(
            "the benchmarks are not part of the installed package: run this flow in a checkout of "
            "the project, after `make peers`"
        )
    from benchmarks.registry import all_rows

    return [row.name for row in all_rows()]


def _require_scale(store: Path, scale: str) -> None:
    require_no_link(store)
    store.mkdir(parents=True, exist_ok=True)
    file = store / SCALE
    if not file.exists():
        require(not any(store.iterdir()), f"{store} is a folder with other files in it; choose another run_id")
        write_file_atomically(file, scale.encode())
    elif (held := file.read_text()) != scale:
        raise RefusedError(f"{store} holds figures of scale {held}, not {scale}; choose another run_id")


def _line_of(name: str, scale: str) -> dict[str, Any]:
    command, there = [sys.executable, "-m", "benchmarks", name, "--scale", scale], {"PYTHONPATH": python_path()}
    ends = partial(end_with_parent, signal.SIGTERM)
    child = subprocess.Popen(command, cwd=ROOT, env=os.environ | there, stdout=subprocess.PIPE, preexec_fn=ends)
    try:
        said = child.communicate()[0].decode(errors="replace").strip().splitlines()
    finally:
        child.terminate()  # so that it deletes its data, where this flow is being stopped
        child.wait()
    try:
        return dict(json.loads(said[-1]))
    except (IndexError, ValueError):
        raise RefusedError(f"row {name} ended with status {child.returncode} and without a result") from None
