"""The only room that knows Dask: one data pass as a graph.

How a pass is cut and in which order its parts are summed is :mod:`npmdask.execution.reduction`' business; here the
parts become tasks of Dask's threads, of worker processes of this machine, or of a cluster given by address. BLAS is
pinned to one thread inside a task, so the product has the same bits everywhere.
"""

from __future__ import annotations

from npmdask.execution.distributed import Cluster, Processes
from npmdask.execution.memory_plan import MemoryPlan
from npmdask.execution.threads import Threads, single_threaded_blas

Executor = Threads | Processes | Cluster


def make_executor(plan: MemoryPlan, source: str, cluster: str | None, certificates: str | None = None) -> Executor:
    """The executor of a plan; close it after use. ``source``: path or URL of the data, which workers must see.

    ``certificates``: what the scheduler at ``cluster`` is shown (:mod:`npmdask.execution.tls`).
    """
    if cluster is not None:
        far = Cluster(cluster, source, certificates)
        far.require_memory(plan)
        return far
    return Processes(plan.workers, plan.threads) if plan.workers else Threads(plan.threads)


__all__ = ["Cluster", "Executor", "Processes", "Threads", "make_executor", "single_threaded_blas"]
