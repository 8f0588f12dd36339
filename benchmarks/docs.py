"""The kept results, and docs/papers/benchmarks.md made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.registry import Row

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "bench.json"
PAGE = ROOT / "docs" / "papers" / "benchmarks.md"
MEMORY = ("peak MiB", "of it not reclaimable", "within budget")
HEAD = """# Benchmarks

Written by `make bench`; change `benchmarks/`, not this page. Every number to reach is a row, measured beside what it
is compared with in the same minutes (interleaved rounds, medians): quote ratios, not seconds.

* `make bench ONLY=NAME` measures one row and prints one JSON line; `SCALE=small` runs the same code on tiny data.
* Equal accuracy is part of every comparison. A contestant that misses the demanded accuracy is listed as wrong with its
  error, and its time is no time to beat.
* `make bench` fails (1) when a row cannot be measured, an answer of ours is wrong, or a peer crashes or is wrong where
  it is not known to be (`KNOWN_WRONG` in the row's module, with the reason); it ends with 3 when all is right and a
  target is missed.
"""


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
    results = _asked(rows, results)
    parts = [*_table(rows, results), *_contestants(rows, results), *_accuracies(results), *_machine(results)]
    PAGE.write_text("\n".join([HEAD, *parts]) + "\n")


def _table(rows: list[Row], results: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| row | what | figure | target | holds | command | why it falls short |", "|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row.name):
        found = results.get(row.name, {})
        figure = found.get("figure")
        verdict = "yes" if found.get("holds") else "**no**" if found else "not measured yet"
        sign = "≥" if row.better == "higher" else "≤"
        cells = [
            f"`{row.name}`", row.what, "" if figure is None else f"{figure:.3g}", f"{sign} {row.target:g}", verdict,
            f"`make bench ONLY={row.name}`", found.get("why", ""),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    return lines


def _contestants(rows: list[Row], results: dict[str, dict[str, Any]]) -> list[str]:
    """For every row whose details hold contestants (they have a verdict): what each did."""
    lines: list[str] = []
    for row in sorted(rows, key=lambda row: row.name):
        details = results.get(row.name, {}).get("details", {})
        judged = {name: facts for name, facts in details.items() if isinstance(facts, dict) and "verdict" in facts}
        if judged:
            titles = ["contestant", "verdict", "setting", "seconds", "max sin(theta)", *MEMORY]
            lines += ["", f"## {row.name}", "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
            lines += [_contestant(name, facts) for name, facts in judged.items()]
        if "largest_relative_error" in details:
            lines += ["", f"## {row.name}: largest relative error of the singular values, defaults", ""]
            lines += _errors(details["largest_relative_error"])
    return lines


def _contestant(name: str, facts: dict[str, Any]) -> str:
    ran = facts["verdict"] == "right"  # the seconds of anybody else are not a time to beat, and not shown as one
    mib = [f"{facts[k] / 2**20:.0f}" if k in facts else "" for k in ("peak_rss_bytes", "peak_anonymous_bytes")]
    angle = f"{facts['max_sin_theta']:.1e}" if "max_sin_theta" in facts else ""
    budget = {True: "yes", False: "no"}.get(facts.get("within_budget"), "")  # type: ignore[arg-type]
    seconds = f"{facts['seconds']:.1f}" if ran else ""
    return f"| {' | '.join([name, facts['verdict'], str(facts.get('setting', '')), seconds, angle, *mib, budget])} |"


def _errors(errors: dict[str, dict[str, Any]]) -> list[str]:
    matrices = list(next(iter(errors.values())))
    lines = [f"| package | {' | '.join(matrices)} |", "|---" * (len(matrices) + 1) + "|"]
    for name, found in errors.items():
        cells = [f"{v:.1e}" if isinstance(v, float) else str(v) for v in (found.get(m, "") for m in matrices)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _accuracies(results: dict[str, dict[str, Any]]) -> list[str]:
    """How right every contestant of every row was: no ratio is worth anything without it."""
    lines = ["", "## Accuracy of every contestant", "", "| row | contestant | measure | value |", "|---|---|---|---|"]
    for row, line in sorted(results.items()):
        for name, measure, value in accuracies(row, line["details"]):
            lines.append(f"| {row} | {name} | {measure.replace('_', ' ')} | {value:.1e} |")
    return lines


def accuracies(name: str, details: dict[str, Any]) -> list[tuple[str, str, float]]:
    """(contestant, measure, value) wherever the details hold one, however deep."""
    found: list[tuple[str, str, float]] = []
    for key, value in details.items():
        if key in ("relative_error", "max_sin_theta"):
            held = value if isinstance(value, dict) else {name: value}
            found += [(contestant, key, error) for contestant, error in held.items() if error is not None]
        elif isinstance(value, dict):
            found += accuracies(key, value)
    return found


def _machine(results: dict[str, dict[str, Any]]) -> list[str]:
    machines = {json.dumps(line["machine"]) for line in results.values()}
    said = [", ".join(f"{name} {value}" for name, value in json.loads(m).items()) for m in sorted(machines)]
    total = sum(line["seconds"] for line in results.values())
    return ["", "## Machine", "", *(f"* {line}" for line in said), "", f"All rows together: {total / 60:.0f} minutes."]
