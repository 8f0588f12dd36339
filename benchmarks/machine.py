"""What the figures were measured on: without it they mean nothing."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_info

from npmdask.execution.memory import usable_cores

PACKAGES = ("npmdask", "dask", "distributed", "zarr", "scipy", "prefect")


def describe() -> dict[str, Any]:
    """Cores, processor, memory, and the versions that matter."""
    return {
        "cores": usable_cores(),
        "cpu": _cpu_model(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": _blas(),
        **{name: version(name) for name in PACKAGES},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return " ".join(line.split(":", 1)[1].split())
    return platform.processor() or "unknown"


def _blas() -> str:
    found: dict[str, Any] = next((info for info in threadpool_info() if info.get("user_api") == "blas"), {})
    return " ".join(str(found.get(key, "?")) for key in ("internal_api", "version", "architecture"))
