"""A run that says on its standard output what happens: ``python -m tests.hosts.client STORE DATA [SCHEDULER]``.

A store that is there goes on. The rounding of a result depends on how the data are cut: in small pieces here, so that
a pass over few data has many tasks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import npmdask
import npmdask.core.operators._protocol as protocol
from npmdask.core.runs.observers import Observer


class Saying(Observer):
    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        print("pass", flush=True)

    def on_task(self, record: Any) -> None:
        print("task", flush=True)

    def on_step(self, step: Any) -> None:
        print("step", flush=True)


def main(store: str, data: str, cluster: str = "") -> int:
    protocol.RUN_BYTES = 2**17
    try:
        if (Path(store) / "run.json").exists():
            found = npmdask.resume(store, cluster=cluster, observer=Saying())
        else:
            found = npmdask.top_k(
                data, 4, kind="samples", algorithm="krylov", iteration_rank=6, tol=1e-6, store=store,
                cluster=cluster or None, observer=Saying(),
            )  # fmt: skip
    except npmdask.NpmdaskError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return error.exit_code
    print("workers", len([one for one in found.peak_rss_by_process if one.name.startswith("worker ")]))
    print("converged" if found.converged else "not converged", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
