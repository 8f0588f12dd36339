"""The table of docs/papers/audit.md: every private path of the stochastic room, measured.

python -m benchmarks.oracle_audit            1000 runs of each world, some five minutes; writes the table
python -m benchmarks.oracle_audit 500        fewer
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from npmdask.audit import PATHS, Finding, audit
from npmdask.dp_pca.base import RELATIONS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "papers" / "audit.md"
BEGIN, END = "<!-- measured by benchmarks.oracle_audit -->", "<!-- end of what was measured -->"
HEAD = (
    "| relation | path | pair | releases | claimed | spent | interval | passed |",
    "|---|---|---|---|---|---|---|---|",
)
BUDGET = {"epsilon": 8.0, "delta": 1e-6}
RUNS, STEPS, SHARE, PROCESSES = 1000, 2, 5, 2  # an oracle gets a fifth of the runs that an audit is asked for


def rows(findings: Iterable[Finding]) -> list[str]:
    """A row of the table for every finding."""
    return [_row(finding) for finding in findings]


def _row(found: Finding) -> str:
    name = "mu" if found.mu is not None else "epsilon"
    interval = f"mu in {found.mu}" if found.mu is not None else f"epsilon >= {found.epsilon_at_least:.2f}"
    cells = (
        found.relation,
        found.mechanism,
        found.instance,
        str(found.releases),
        f"{name} {found.claimed:.4g}",
        f"{found.path_loss:.4g}",
        interval,
        "yes" if found.passed else f"no: {found.verdict}",
    )
    return f"| {' | '.join(cells)} |"


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
