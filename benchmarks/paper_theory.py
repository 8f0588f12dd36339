"""Theory against simulation: what Hardt and Price 2014 and Balcan, Du, Wang and Yu 2016 prove, beside what happens.

    python -m benchmarks.paper_theory [contraction | start | streaming | private | lowrank | powerlaw | gapfree
                                       | distributed | coherence | tensor | all] [--small] [--draw]

The papers print no experiment of their own. What is measured is kept in results/paper_theory.json; plots go to
docs/papers/theory-*.svg, tables into docs/papers/theory-experiments.md. In full some minutes; ``--small`` runs the same
code on small problems within a minute and only prints. ``--draw``: from what is kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks import (
    theory_coherence,
    theory_contraction,
    theory_distributed,
    theory_gapfree,
    theory_lowrank,
    theory_powerlaw,
    theory_private,
    theory_start,
    theory_streaming,
    theory_tensor,
)
from benchmarks.docs import ROOT
from benchmarks.paper_page import keep, kept, message, save, table, write

NAME = "paper_theory"
PAGE = ROOT / "docs" / "papers" / "theory-experiments.md"
PARTS: dict[str, ModuleType] = {
    "contraction": theory_contraction,
    "start": theory_start,
    "streaming": theory_streaming,
    "private": theory_private,
    "lowrank": theory_lowrank,
    "powerlaw": theory_powerlaw,
    "gapfree": theory_gapfree,
    "distributed": theory_distributed,
    "coherence": theory_coherence,
    "tensor": theory_tensor,
}


def measure(part: str, *, small: bool) -> dict[str, Any]:
    """One part: scale, measured numbers; each module says which."""
    chosen, start = PARTS[part], perf_counter()
    found: dict[str, Any] = chosen.measure(chosen.SMALL if small else chosen.FULL)
    message(f"{part}: {perf_counter() - start:.0f} s")
    return found


def publish(parts: Sequence[str], found: dict[str, Any], page: Path = PAGE) -> None:
    """Plots beside the page, tables in it."""
    for part in parts:
        save(PARTS[part].figure(found[part]), page.parent / f"theory-{part}.svg")
        write(PARTS[part].tables(found[part]), page)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, keep, draw, and write the tables; or, small, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_theory", description=__doc__)
    parser.add_argument("part", nargs="?", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--small", action="store_true", help="small problems, a minute; prints the tables only")
    parser.add_argument("--draw", action="store_true", help="from what is kept, without measuring")
    wanted = parser.parse_args(argv)
    parts = list(PARTS) if wanted.part == "all" else [wanted.part]
    with threadpool_limits(limits=1):
        for part in parts:
            if wanted.small:
                for rows in PARTS[part].tables(measure(part, small=True)).values():
                    sys.stdout.write(table(rows) + "\n\n")
            elif not wanted.draw:
                keep(NAME, {part: measure(part, small=False)})
    if not wanted.small:
        publish(parts, kept(NAME))


if __name__ == "__main__":
    main()
