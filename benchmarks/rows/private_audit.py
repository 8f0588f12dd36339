"""The audit of the private release: everything that is correct passes, everything that is broken is rejected."""

from __future__ import annotations

from benchmarks.mutants import MUTANTS
from benchmarks.registry import Context, Measured, Row
from npmdask.audit import Finding, audit

RUNS = {"small": 500, "medium": 5000, "full": 10_000}


def measure(context: Context) -> Measured:
    """Share of right verdicts. A wrong one fails the run of the benchmarks, whichever way it is wrong."""
    runs = RUNS[context.scale]
    details: dict[str, str] = {}
    failures = []
    for budget in ({"epsilon": 8.0, "steps": 2}, {"epsilon": 1.0, "steps": 5}):
        for finding in audit(runs=runs, **budget):  # type: ignore[arg-type]
            name = f"{finding.relation}, {finding.mechanism}, {finding.instance}, epsilon {finding.budget.epsilon:g}"
            details[name] = _line(finding)
            missed = finding.mu is not None and finding.instance != "wide" and finding.claimed not in finding.mu
            if missed or not finding.passed:
                failures.append(f"{name}: {finding.verdict}")
    for mutant in MUTANTS:
        finding = mutant.audited(runs=max(mutant.runs, runs))
        details[mutant.name] = _line(finding)
        if {problem.split(":")[0] for problem in finding.problems} != mutant.caught_by:
            failures.append(f"{mutant.name}: {finding.verdict}")
    return Measured(1 - len(failures) / len(details), details, failures=tuple(failures))


def _line(finding: Finding) -> str:
    shown = f"mu in {finding.mu}" if finding.mu is not None else f"epsilon >= {finding.epsilon_at_least:.3f}"
    return f"claimed {finding.claimed:.4f}, {shown}, {finding.runs} runs: {finding.verdict}"


ROWS = (
    Row(
        name="audit",
        what="share of right verdicts: every mechanism passes, every mutant is rejected at 1e-6",
        target=1.0,
        run=measure,
    ),
)
