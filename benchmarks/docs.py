"""The kept results, and docs/papers/benchmarks.md made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.registry import Row

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "bench.json"
PAGE = ROOT / "docs" / "papers" / "benchmarks.md"
SOFTWARE = ("python", "numpy", "scipy", "zarr", "dask", "prefect")  # of the lines of machines
HEAD = """# Benchmarks

Speed, memory and accuracy of PCA and SVD beside other programs. `make bench ONLY=NAME` repeats a row and prints one
JSON line; `SCALE=small` takes tiny data. Written by `make bench`: change `benchmarks/`, not this page.

{verdict}

Figures were measured beside what they are compared with, in interleaved rounds (medians): quote ratios, not seconds.
"A / B" is the ratio of seconds, and data are rows of float32 in the page cache, unless a row names something else
("cold": dropped from the cache before every round). Eigenvalues are 1/sqrt(i) in `gram-*`, 1/i in `gpu-*`. A contestant
that misses the demanded accuracy is wrong, and its time does not count. Accuracies:
[results](../../benchmarks/results/bench.json).

`make bench` ends with 1 if a row cannot be measured, an answer of ours is wrong, or a peer fails that is not in
`KNOWN_WRONG`; with 3 if all is right and a target is missed.
"""
# Sections of the page, and how the names of their rows begin; the last takes what no other does
AREAS: dict[str, tuple[str, ...]] = {
    "Beside other programs": (
        "cells", "counts", "era5", "lazy-", "mca-", "missing-", "naive-", "peers-", "slow-", "sparse",
    ),
    "Forming A^T A": ("bootstrap-", "gram-"),
    "Passes and storage": ("packed-", "pass-", "remote-"),
    "One GPU": ("gpu-",),
    "Privacy": ("accounting-", "audit", "distributed-", "kdppca-", "ledger-", "noise-", "private-"),
    "Streams": ("stream-",),
    "Tensors, topics, mixtures": ("ica-", "mixture-", "tensor-", "topics-"),
    "Memory, predictions, disturbed runs": ("",),
}  # fmt: skip


def read_results() -> dict[str, dict[str, Any]]:
    """Kept lines by row name; empty if there are none."""
    if not RESULTS.exists():
        return {}
    return {line["row"]: line for line in json.loads(RESULTS.read_text())}


def write_results(lines: list[dict[str, Any]], rows: list[Row], *, replace_all: bool) -> None:
    """Keep the lines; those of other rows stay, unless all are replaced or there is no such row any more.

    A row that was skipped keeps what was measured on a machine that could.
    """
    before = _asked(rows, read_results())
    skipped = {line["row"] for line in lines if line.get("skipped")}
    kept = {name: line for name, line in before.items() if not replace_all or name in skipped}
    kept |= {line["row"]: line for line in lines if line["row"] not in skipped}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(list(kept.values()), indent=1) + "\n")


def _asked(rows: list[Row], results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The results that answer what a row asks today: a figure for another target was of another question."""
    targets = {row.name: row.target for row in rows}
    return {name: line for name, line in results.items() if line.get("target") == targets.get(name, "no such row")}


def write_table(rows: list[Row], results: dict[str, dict[str, Any]]) -> None:
    """The page: a line for every row of the registry, measured or not, then what the contestants did."""
    results, rows = _asked(rows, results), sorted(rows, key=lambda row: row.name)
    head = HEAD.format(verdict=_verdict(rows, results))
    parts = [*_tables(rows, results), *_missed(rows, results), *_contestants(results)]
    PAGE.write_text("\n".join([head, *parts, *_machines(results)]) + "\n")


def _verdict(rows: list[Row], results: dict[str, dict[str, Any]]) -> str:
    held = sum(line["holds"] for line in results.values())
    missed = "" if held == len(results) else "; missed ones are bold, with [reasons](#missed-targets)"
    unmeasured = f"; {len(rows) - len(results)} not measured" if len(results) < len(rows) else ""
    return f"**{held} of {len(rows)} targets hold**{missed}{unmeasured}."


def _area(row: Row) -> str:
    return next(area for area, names in AREAS.items() if row.name.startswith(names))


def _tables(rows: list[Row], results: dict[str, dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for area in AREAS:
        own = [row for row in rows if _area(row) == area]
        if own:
            lines += [f"## {area}", "", "row | what | figure | target", "---|---|---|---"]
            lines += [*(_line(row, results.get(row.name)) for row in own), ""]
    return lines


def _line(row: Row, found: dict[str, Any] | None) -> str:
    figure = "" if found is None or found["figure"] is None else f"{found['figure']:.3g}"
    figure = "not measured" if found is None else figure if found["holds"] else f"**{figure or 'no'}**"
    cells = [f"`{row.name}`", _cell(row.what), figure, _target(row)]
    return " | ".join(cells)


def _target(row: Row) -> str:
    return f"{'≥' if row.better == 'higher' else '≤'} {row.target:g}"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _missed(rows: list[Row], results: dict[str, dict[str, Any]]) -> list[str]:
    missed = [row for row in rows if row.name in results and not results[row.name]["holds"]]
    lines = [f"* `{row.name}`: {_cell(results[row.name].get('why', '')) or 'no reason is kept'}." for row in missed]
    return ["## Missed targets", "", *lines, ""] if lines else []


def _contestants(results: dict[str, dict[str, Any]]) -> list[str]:
    """What each contestant of a row did, and the errors of packages with their defaults."""
    lines = ["## Contestants", "", "Error: sin(theta), or of the values. MiB: peak memory, not reclaimable."]
    for row, line in sorted(results.items()):
        details = line["details"]
        judged = {name: facts for name, facts in details.items() if isinstance(facts, dict) and "verdict" in facts}
        if judged:
            lines += ["", f"### {row}", "", "contestant | seconds | MiB | error", "---|---|---|---"]
            lines += [_contestant(name, facts) for name, facts in judged.items()]
        if "largest_relative_error" in details:
            lines += ["", f"### {row}", "", "Largest relative error of the singular values, with defaults:", ""]
            lines += _errors(details["largest_relative_error"])
    return lines


def _contestant(name: str, facts: dict[str, Any]) -> str:
    ran = facts["verdict"] == "right"  # the seconds of anybody else are not a time to beat, and not shown as one
    mib = f"{facts['peak_anonymous_bytes'] / 2**20:.0f}" if "peak_anonymous_bytes" in facts else ""
    error = facts.get("max_sin_theta", facts.get("relative_error"))
    seconds = f"{facts['seconds']:.1f}" if ran else facts["verdict"].partition(" (" if error is None else ":")[0]
    return " | ".join([name, seconds, mib, "" if error is None else f"{error:.1e}"]).rstrip()


def _errors(errors: dict[str, dict[str, Any]]) -> list[str]:
    matrices = list(next(iter(errors.values())))
    lines = [f"package | {' | '.join(matrices)}", "|".join(["---"] * (len(matrices) + 1))]
    for name, found in errors.items():
        cells = [f"{v:.1e}" if isinstance(v, float) else str(v) for v in (found.get(m, "") for m in matrices)]
        lines.append(f"{name} | {' | '.join(cells)}")
    return lines


def _machines(results: dict[str, dict[str, Any]]) -> list[str]:
    """Machines by their hardware, with every version that was used on them; the kept lines have all of it."""
    lines: list[str] = []
    for hardware in sorted({_hardware(line["machine"]) for line in results.values()}):
        own = [line["machine"] for line in results.values() if _hardware(line["machine"]) == hardware]
        software = [f"{name} {' or '.join(_versions(own, name))}" for name in SOFTWARE if _versions(own, name)]
        lines.append(f"* {hardware}: {', '.join(software)}")
    total = sum(line["seconds"] for line in results.values())
    said = f"All rows: {total / 60:.0f} minutes."
    return ["", "## Machines", "", *lines, "", said]


def _hardware(machine: dict[str, Any]) -> str:
    named = (
        f"{machine.get('cores')} cores",
        machine.get("cpu"),
        f"{machine.get('memory_gib')} GiB",
        machine.get("gpu"),
    )
    return ", ".join(str(part) for part in named if part)


def _versions(machines: list[dict[str, Any]], name: str) -> list[str]:
    return sorted({str(machine[name]) for machine in machines if name in machine})
