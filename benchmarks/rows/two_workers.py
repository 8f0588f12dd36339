"""Two worker processes against one where the arithmetic is the limit."""

from __future__ import annotations

from benchmarks import cache
from benchmarks.products import one_pass, operator_of, relative_error, start_block
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.cluster.workers import Processes

P = 128


def measure(context: Context) -> Measured:
    """The same pass by 1 x 1 and 2 x 1 processes in turns."""
    store = context.data["main"]
    cache.warm(store)
    operator = operator_of(store)
    block = start_block(operator.block_rows, P)
    one, two = Processes(1, 1), Processes(2, 1)
    try:
        first = {name: one_pass(executor, operator, block)[0] for name, executor in (("1", one), ("2", two))}
        ways = {"1": lambda: one_pass(one, operator, block), "2": lambda: one_pass(two, operator, block)}
        seconds = interleaved(ways, min(3, context.rounds))
    finally:
        one.close()
        two.close()
    middle = medians(seconds)
    same = bool((first["1"] == first["2"]).all())
    details = {
        "bytes": operator.reader.nbytes,
        "p": P,
        "same_bits": same,
        "relative_error": {"2 against 1": relative_error(first["2"], first["1"])},
        "seconds": rounded(seconds),
    }
    why = f"{context.cores} cores, shared with the scheduler, the driver and all else that runs on the machine"
    return Measured(middle["1"] / middle["2"], details, why, () if same else ("2 workers give other bits than 1",))


ROWS = (
    Row(
        name="two-workers",
        what="pass with one worker process / two, p = 128",
        target=1.8,
        run=measure,
        data=("main",),
    ),
)
