"""The privacy ledger under processes that reserve at the same time and die."""

from __future__ import annotations

from benchmarks.ledger_crowd import Crowd
from benchmarks.postgres import postgres_server
from benchmarks.registry import Context, Measured, Row

PROCESSES, RESERVATIONS, KILLS = 8, 200, 32


def measure(context: Context) -> Measured:
    """Both databases, one after the other; the figure is what went wrong in both together."""
    processes, count = context.sized(2, PROCESSES), context.sized(20, RESERVATIONS)
    kills = context.sized(2, KILLS)
    details = {}
    with postgres_server() as server:
        for name, address in (("sqlite", str(context.folder / "ledger.sqlite")), ("postgres", server.new_database())):
            folder = context.folder / name
            folder.mkdir()
            details[name] = Crowd(address, folder, processes, count, kills).run()
    wrong = [f"{name}: {sentence}" for name, found in details.items() for sentence in found["violations"]]
    return Measured(len(wrong), {"processes": processes, "each": count, **details}, "; ".join(wrong[:5]))


ROWS = (
    Row(
        name="ledger-concurrent",
        what="8 processes x 200 reservations, killed at random, SQLite and PostgreSQL: budgets exceeded, "
        "reservations wrong",
        target=0,
        better="lower",
        run=measure,
    ),
)
