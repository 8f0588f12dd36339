"""Data thirty times the memory that a run may use: the peak of all its processes over that limit."""

from __future__ import annotations

from benchmarks.children import last_json, solve_command
from benchmarks.registry import Context, Measured, Row

TIMES = 30
LEAST = 220 * 2**20  # bytes: what the interpreter and its libraries need; only met by the small scale
K = 10
WORST_ANGLE = 1e-3


def measure(context: Context) -> Measured:
    """One run to its end in a process of its own."""
    store = context.data["samples"]
    size = sum(f.stat().st_size for f in (store / "data").rglob("*") if f.is_file())
    budget = max(LEAST, size // TIMES)
    # Not "memory" alone: the driver's own meter samples the tree and takes the kernel's mark of its own process.
    facts = last_json(solve_command(source=str(store), k=K, memory=budget, tol=1e-5), folder=context.folder)
    peak = facts["peak_rss_bytes"]
    details = {"budget_bytes": budget, "data_bytes": size, "times": round(size / budget, 1), "npmdask": facts}
    wrong = facts["max_sin_theta"] > WORST_ANGLE or not facts["converged"]
    failures = (f"wrong: sin(theta) {facts['max_sin_theta']:.1e}",) if wrong else ()
    return Measured(peak / budget, details, f"{(peak - budget) / 2**20:.0f} MiB above the limit", failures)


ROWS = (
    Row(
        name="peak-memory",
        what="peak memory of all processes / limit, 1/30 of 8 GiB, k = 10",
        target=1.0,
        better="lower",
        run=measure,
        data=("samples",),
    ),
)
