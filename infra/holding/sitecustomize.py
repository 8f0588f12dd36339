"""For the kill matrix: the process of a flow run stops at a phase until it is told to go on, or is killed there.

Python imports this module at its start where this folder is on PYTHONPATH; nothing happens but in the process of a flow
run, with NPMDASK_HOLD set. The real steps run, only later. The key of the noise is always the same one, so that the
bits of all releases can be compared.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEY = bytes(range(32))
LONGEST = 90.0  # seconds


def hold(phase: str) -> None:
    """Stop here if this is the phase, once: say who is here, and wait until the file `hold` is gone."""
    folder = Path(os.environ["NPMDASK_HOLD"])
    try:
        if (folder / "hold").read_text() != phase or (folder / "at").exists():
            return
    except FileNotFoundError:
        return
    aside = folder / f"at.{os.getpid()}"
    aside.write_text(str(os.getpid()))
    aside.rename(folder / "at")
    until = time.monotonic() + LONGEST
    while (folder / "hold").exists() and time.monotonic() < until:
        time.sleep(0.02)


def held(phase: str, real: Callable[..., Any], call: int = 1) -> Callable[..., Any]:
    """``real``, held before its ``call``-th call."""
    calls = 0

    def holding(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            hold(phase)
        return real(*args, **kwargs)

    return holding


def install() -> None:
    """Put the holds where the phases are."""
    from npmdask.config import RunConfig
    from npmdask.core.checkpoint.store import RunStore
    from npmdask.core.runs.observers import RedactingObserver
    from npmdask.prefect import tasks
    from npmdask.privacy.mechanisms.gaussian_laplace import PrivateGaussian
    from npmdask.privacy.mechanisms.noise_key import Entropy

    create = Entropy.create

    def fixed(path: Any, **more: Any) -> Any:
        create(path, **more)
        Path(path).write_bytes(KEY)
        return Entropy.open(path, **more)

    Entropy.create = fixed  # type: ignore[method-assign]
    RunConfig.check = held("validate", RunConfig.check)  # type: ignore[method-assign]
    RedactingObserver.on_task = held("mid-pass", RedactingObserver.on_task, 3)  # type: ignore[method-assign]
    PrivateGaussian.release = held("release", PrivateGaussian.release, 2)  # type: ignore[method-assign]
    RunStore.commit_step = held("commit", RunStore.commit_step, 2)  # type: ignore[method-assign]
    tasks.publish_report = held("report", tasks.publish_report)


if os.environ.get("PREFECT__FLOW_RUN_ID") and os.environ.get("NPMDASK_HOLD"):
    install()
