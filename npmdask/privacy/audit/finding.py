"""What an audit found, as a record, as lines of a table, and as a sentence that claims no more than was shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from npmdask.accounting.budget import Budget
from npmdask.privacy.audit.statistics import Interval

ALPHA = 1e-6  # chance that an audit of a correct mechanism rejects it
LIMITS = (
    "An audit gives lower bounds on what is lost between the neighbours that were tried, under the attacks that were "
    "tried. It can show that a mechanism is broken; it does not prove that one is private. The proof is the accounting "
    "of the exact sensitivity."
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The audit of one pair of neighbours.

    ``claimed`` : mu of Gaussian, epsilon of pure differential privacy. ``path_loss`` : the same as really spent in the
    worst run, from queries and noise scales, without sampling error. ``mu`` : interval with confidence 1 - ALPHA (None
    for pure epsilon). ``epsilon_at_least`` : lower bound at ``budget.delta`` with confidence 1 - ALPHA.
    ``p_value`` : of the hypothesis that the claim is right. ``problems`` : what was found, empty if nothing.
    """

    relation: str
    mechanism: str
    instance: str
    budget: Budget
    releases: int
    runs: int
    claimed: float
    path_loss: float
    mu: Interval | None
    epsilon_at_least: float
    p_value: float
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.problems

    @property
    def attained(self) -> float:
        """What share of the claimed loss this pair of neighbours can show at all."""
        return self.path_loss / self.claimed

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.problems:
            return f"REJECTED: {'; '.join(self.problems)}"
        return f"nothing found; this pair can show {100 * self.attained:.0f} % of what is claimed"

    def facts(self) -> dict[str, Any]:
        """For JSON: an infinity becomes null."""
        facts = asdict(self) | {"passed": self.passed, "attained": self.attained, "verdict": self.verdict}
        facts["mu"] = None if self.mu is None else [self.mu.low, self.mu.high]
        return _finite(facts)


def table(findings: Sequence[Finding]) -> list[str]:
    """Lines for people."""
    head = (
        "relation",
        "mechanism",
        "pair",
        "epsilon",
        "delta",
        "claimed",
        "spent",
        "mu interval",
        "epsilon >=",
        "runs",
    )
    rows = [head, *(_row(f) for f in findings)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    texts = [lines[0], *(f"{line}\n    {f.verdict}" for line, f in zip(lines[1:], findings, strict=True))]
    rejected = sum(not f.passed for f in findings)
    summary = f"{len(findings)} pairs, {rejected} rejected; chance to reject a correct mechanism: {ALPHA:.0e} each"
    return [*texts, "", summary, LIMITS]


def _row(f: Finding) -> tuple[str, ...]:
    name = "mu" if f.mu is not None else "eps"
    return (
        f.relation,
        f.mechanism,
        f.instance,
        f"{f.budget.epsilon:g}",
        f"{f.budget.delta:g}",
        f"{name} {f.claimed:.4f}",
        f"{f.path_loss:.4f}",
        "-" if f.mu is None else str(f.mu),
        f"{f.epsilon_at_least:.3f}",
        str(f.runs),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
