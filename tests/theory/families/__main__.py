"""Run the families: ``SEED=20261128 python -m tests.theory.families [FAMILY ...] [--case N] [--share 0.1]``.

The seed is that of the day where the environment has none. Ends with an error where an answer is wrong or a call
crashes, and with the call that shows the smallest such problem of each family.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from tests.theory.families.catalogue import NIGHTLY, Case, run, run_some, seed_of_today
from tests.theory.families.report import report

TOGETHER = 10  # problems that a process takes at once


def parts(families: list[str], share: float) -> list[tuple[str, range]]:
    """The problems of all families, a few together."""
    return [
        (family, range(start, min(start + TOGETHER, count)))
        for family in families
        for count in [max(1, round(NIGHTLY[family] * share))]
        for start in range(0, count, TOGETHER)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.theory.families", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"any of {', '.join(NIGHTLY)}; all by default")
    parser.add_argument("--case", type=int, help="only this problem of one family, with all that was found")
    parser.add_argument("--share", type=float, default=1.0, help="of the problems of a night")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    families = asked.families or list(NIGHTLY)
    if unknown := set(families) - set(NIGHTLY):
        parser.error(f"no family is called {', '.join(sorted(unknown))}")
    seed = seed_of_today()
    if asked.case is not None:
        case = run(families[0], seed, asked.case)
        print(f"{case.problem}\n{case.became}", *case.said.split("; "), sep="\n  ")
        return int(case.became in ("wrong", "crashed"))
    print(f"SEED={seed}", flush=True)
    start, cases = time.monotonic(), list[Case]()
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(run_some, name, seed, numbers) for name, numbers in parts(families, asked.share)]
        for done in as_completed(running):
            cases += done.result()
            for case in done.result():
                if case.became in ("wrong", "crashed"):
                    print(f"{case.became}: {case.family} {case.number}: {case.said[:300]}", flush=True)
    text, faultless = report(cases, seed)
    print(f"{text}\n{len(cases)} problems in {time.monotonic() - start:.0f} s")
    return int(not faultless)


if __name__ == "__main__":
    sys.exit(main())
