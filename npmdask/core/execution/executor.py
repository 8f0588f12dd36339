"""Make what computes passes: threads of this process, or what a feature has for workers elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from npmdask.core import features
from npmdask.core.execution.memory import MemoryPlan, ProcessPeak
from npmdask.core.execution.reduction import PassCheckpoint
from npmdask.core.execution.threads import OnTask, Threads, single_threaded_blas
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Operator
from npmdask.core.storage.readers.dense import ReadStats


class Executor(Protocol):
    """Maker of passes over the data; ``threads``: of each process, ``elsewhere``: on other machines."""

    elsewhere: bool

    @property
    def threads(self) -> int: ...

    def run_pass(
        self, operator: Operator, block: Block, on_task: OnTask, keeper: PassCheckpoint | None = None
    ) -> tuple[Block, ReadStats]:
        """``A @ block`` in one pass, and what the reading cost."""

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``function`` in each process that computes, and return the results. Its errors are raised here."""

    def anywhere(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function`` in one process that computes, and return the result. Its errors are raised here."""

    def peaks(self) -> list[ProcessPeak]:
        """Peak memory of processes that are not below this one."""

    def close(self) -> None:
        """Let go of what computes."""


def scheduler_of(given: Any) -> str | None:
    """Return the address of what the user calls the cluster; "" and None, which mean none, stay what they are.

    Raises
    ------
    BadInputError
        It is none, or cannot be used from here.
    """
    if given is None or (isinstance(given, str) and given == ""):
        return given
    return features.required("executors", "address")(given)


def make_executor(plan: MemoryPlan, source: str, cluster: str | None, certificates: str | None = None) -> Executor:
    """Make the executor of a plan; close it after use. ``source``: path or URL of the data, which workers must see.

    ``certificates``: what the scheduler at ``cluster`` is shown.

    Raises
    ------
    RefusedError
        Workers are asked for, and the feature for them is gone.
    """
    if cluster is None and not plan.workers:
        return Threads(plan.threads, plan.in_flight)
    return features.required("executors", "cluster")(plan, source, cluster, certificates)


__all__ = ["Executor", "Threads", "make_executor", "single_threaded_blas"]
