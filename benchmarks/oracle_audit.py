"""The table of docs/papers/audit.md: every private path of the stochastic room, measured.

python -m benchmarks.oracle_audit            1000 runs of each world, some five minutes; writes the table
python -m benchmarks.oracle_audit 500        fewer
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from npmdask.audit import PATHS, Finding, audit
from npmdask.dp_pca.base import RELATIONS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "papers" / "audit.md"
BEGIN, END = "<!-- measured by benchmarks.oracle_audit -->", "<!-- end of what was measured -->"
HEAD = ("path | relation | claimed | spent | interval on `attains` | passed", "---|---|---|---|---|---")
BUDGET = {"epsilon": 8.0, "delta": 1e-6}
RUNS, STEPS, SHARE, PROCESSES = 1000, 2, 5, 2  # an oracle gets a fifth of the runs that an audit is asked for


def rows(findings: Iterable[Finding]) -> list[str]:
    """A row of the table for every path and relation."""
    return [_row(list(found)) for _, found in groupby(findings, key=attrgetter("mechanism", "relation"))]


def _row(pairs: list[Finding]) -> str:
    """What each pair spent; the interval is that of the first, which attains the claim."""
    first = pairs[0]
    name = "mu" if first.mu is not None else "epsilon"
    cells = (
        first.mechanism,
        first.relation,
        f"{name} {first.claimed:.4g}",
        ", ".join(f"{found.instance} {found.path_loss:.3g}" for found in pairs),
        f"{first.mu}" if first.mu is not None else f"epsilon >= {first.epsilon_at_least:.2f}",
        "; ".join(f"no, {found.instance}: {found.verdict}" for found in pairs if not found.passed) or "yes",
    )
    return " | ".join(cells)


def write(lines: list[str], runs: int) -> None:
    """The table of the page, between its two marks."""
    before, rest = PAGE.read_text().split(BEGIN)
    said = f"epsilon = {BUDGET['epsilon']:g}, delta = {BUDGET['delta']:g}, steps = {STEPS}, {runs} runs of each world:"
    PAGE.write_text("\n".join([before + BEGIN, "", said, "", *HEAD, *lines, "", END]) + rest.split(END)[1])


def measured(name: str, runs: int) -> list[str]:
    """The rows of one path."""
    asked = {"relations": RELATIONS, "mechanisms": [name], "steps": STEPS, "runs": SHARE * runs}
    return rows(audit(**asked, **BUDGET))  # type: ignore[arg-type]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with ProcessPoolExecutor(PROCESSES) as pool:
        found = pool.map(measured, PATHS, [runs] * len(PATHS))
        write([line for lines in found for line in lines], runs)


if __name__ == "__main__":
    main()
