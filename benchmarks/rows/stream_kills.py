"""``kill -9`` at random instants of a stream: every row used exactly once, the same bits."""

from __future__ import annotations

from benchmarks.registry import Context, Measured, Row
from benchmarks.stream_cases import CASES, KINDS
from benchmarks.stream_kills import Streams

KILLS = 30
KILLED = ("spm", "oja", "mb-rmsg")


def measure(context: Context) -> Measured:
    """Every algorithm gets its share of the kills, over a stored array, a directory and a pipe in turn."""
    details = {}
    for number, name in enumerate(KILLED):
        case = CASES[name]
        folder = context.folder / name
        folder.mkdir()
        rows = context.sized(case.rows // 4, case.rows)
        kinds = KINDS[number:] + KINDS[:number]  # few kills: every algorithm meets another kind of source
        kills = context.sized(3, KILLS) // len(KILLED)
        details[name] = Streams(case, folder, rows=rows, kills=kills, seed=number).run(kinds)
    wrong = [f"{name}: {sentence}" for name, found in details.items() for sentence in found["violations"]]
    missed = sum(found["kills"] - found["under_way"] for found in details.values())
    why = f"{'; '.join(wrong[:5])}; " if wrong else ""
    return Measured(len(wrong), details, f"{why}{missed} kills came before the first row or after the last")


ROWS = (
    Row(
        name="stream-kills",
        what="30 kills at random instants of streams: rows lost or used twice, other bits",
        target=0,
        better="lower",
        run=measure,
    ),
)
