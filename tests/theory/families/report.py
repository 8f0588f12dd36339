"""What many problems showed: a table of the families, statements that hold with a probability, and what is wrong."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from scipy.stats import binom

from tests.theory.families.catalogue import Case
from tests.theory.families.judging import EPS

BECAME = ("right", "refused", "unasked", "crashed", "wrong")
ROUNDING = 1e-13  # of the largest value: a smaller error is that of the oracle as well
OFTEN = 0.99  # of what holds more often, the problems are named where it does not
BY_CHANCE = 1e-6  # how likely a statement that holds as often as it says may be found to fail


def report(cases: list[Case], seed: int) -> tuple[str, bool]:
    """The table, the statements and the calls that show the smallest faults; and whether there is none."""
    families = defaultdict[str, list[Case]](list)
    for case in sorted(cases, key=lambda case: case.number):
        families[case.family].append(case)
    lines = [
        f"| family | tried | {' | '.join(BECAME)} | answers | with a bound | bound / error | above rounding |",
        "|---" * (len(BECAME) + 6) + "|",
        *(row(name, of_family) for name, of_family in sorted(families.items())),
    ]
    said, held = statements(cases)
    calls = [
        f"SEED={seed} python -m tests.theory.families {case.family} --case {case.number}"
        f"  # {case.became}: {case.said[:200]}"
        for _, of_family in sorted(families.items())
        if (case := smallest(of_family)) is not None
    ]
    return "\n".join(["", *lines, "", *said, *calls]), held and not calls


def row(name: str, cases: list[Case]) -> str:
    """Medians: of all answers with a bound, an error below eps counted as eps; and of errors above rounding."""
    counts = [sum(case.became == became for case in cases) for became in BECAME]
    pairs = np.array([pair for case in cases for pair in case.findings.bounds]).reshape(-1, 2)
    bounded = pairs[~np.isnan(pairs[:, 0])]
    ratios = bounded[:, 0] / np.maximum(bounded[:, 1], EPS)
    larger = bounded[:, 1] > ROUNDING
    cells = [len(cases), *counts, len(pairs), f"{len(bounded) / len(pairs):.1%}" if len(pairs) else ""]
    cells += [median(ratios), f"{median(ratios[larger])} ({larger.sum()})" if larger.any() else ""]
    return f"| {name} | {' | '.join(str(cell) for cell in cells)} |"


def median(ratios: np.ndarray) -> str:
    return f"{np.median(ratios):.3g}" if len(ratios) else ""


def statements(cases: list[Case]) -> tuple[list[str], bool]:
    """How often what is likely was so, beside how often it must be."""
    found = defaultdict[tuple[str, float], list[bool]](list)
    rare = defaultdict[tuple[str, float], list[str]](list)
    for case in cases:
        for name, share, held in case.findings.claims:
            found[name, share].append(bool(held))
            if share > OFTEN and not held:
                rare[name, share].append(f"{case.family} {case.number}")
    lines, every = [], True
    for (name, share), held in sorted(found.items()):
        often_enough = binom.cdf(sum(held), len(held), share) > BY_CHANCE
        every &= bool(often_enough)
        lines.append(
            f"{'held' if often_enough else 'FAILED'}: {name}, {sum(held)} of {len(held)}, at least {share:.4g}"
            + "".join(f"; not {which}" for which in rare[name, share])
        )
    return lines, every


def smallest(cases: list[Case]) -> Case | None:
    """The problem of fewest entries whose answer is wrong, or that crashes."""
    faults = [case for case in cases if case.became in ("wrong", "crashed")]
    return min(faults, key=lambda case: (case.entries, case.number), default=None)
