"""What the decomposition of a stored tensor will read and need, said before it starts; nothing is measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from npmdask.algorithms import TensorPower
from npmdask.execution.memory_plan import MemoryPlan
from npmdask.execution.process_memory import tree_rss
from npmdask.execution.reduction import runs_of
from npmdask.runs.problem import Problem
from npmdask.runs.session import memory_for, needs_of
from npmdask.runs.solution import Resources

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class TensorPlan:
    """A run that has not started. ``products``: full reads of the unique blocks, where their number is fixed."""

    source: str
    side: int
    block: int
    dtype: str
    target_rank: int
    restarts: int
    harvest: bool
    products: int | None
    pass_bytes: int
    dense_bytes: int
    pass_gflop: float
    memory: MemoryPlan
    runs: int

    def facts(self) -> dict[str, Any]:
        """Everything as plain numbers and strings, for scripts."""
        return asdict(self) | {"memory": asdict(self.memory) | {"predicted_peak": self.memory.predicted_peak}}

    def lines(self) -> list[str]:
        """One line for every thing that a person decides by."""
        about = "1 to 2" if self.harvest else "5 to 30"  # measured without and with noise, d = 100
        limit = "none" if self.memory.limit is None else f"{self.memory.limit / MIB:.0f} MiB"
        table = {
            "data": f"{self.source}: {self.side} x {self.side} x {self.side} {self.dtype}, blocks of {self.block}",
            "products": f"as many as it takes: {about} a component"
            if self.products is None
            else f"{self.products}, k (R + 1) and one that measures",
            "bytes": f"{self.pass_bytes / 1e9:.3g} GB a product, {self.pass_bytes / self.dense_bytes:.2f} of the whole",
            "work": f"{self.pass_gflop:.3g} Gflop a product, {self.restarts} restarts at once",
            "memory": f"{self.memory.predicted_peak / MIB:.0f} MiB in {self.memory.threads} threads; limit {limit}",
            "runs as": f"{self.runs} task{'s' * (self.runs != 1)} a product",
        }
        return [f"{name:9} {said}" for name, said in table.items()]


def plan_tensor(problem: Problem, resources: Resources) -> TensorPlan:
    """The plan of a run of ``problem``, whose source is a tensor.

    Raises
    ------
    RefusedError
        The memory limit is too small, as for the run itself.
    """
    algorithm, operator = problem.algorithm, problem.operator(None, None)
    assert isinstance(algorithm, TensorPower)
    reader: Any = operator.reader
    k, width, d = algorithm.target_rank, algorithm.iteration_rank, problem.d
    return TensorPlan(
        source=problem.source.path,
        side=d,
        block=reader.side,
        dtype=str(reader.dtype),
        target_rank=k,
        restarts=width,
        harvest=algorithm.harvest,
        products=None if algorithm.iterations is None else k * (algorithm.iterations + 1) + 1,
        pass_bytes=operator.pass_bytes,
        dense_bytes=d**3 * reader.dtype.itemsize,
        pass_gflop=2 / 3 * d**3 * width / 1e9,
        memory=memory_for(needs_of(problem), resources, tree_rss()),
        runs=len(runs_of(operator)),
    )
