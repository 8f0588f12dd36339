"""What the figures were measured on: without it they mean nothing."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_info

from npmdask.core.execution.memory import usable_cores

PACKAGES = ("npmdask", "dask", "distributed", "zarr", "scipy", "prefect")


def describe() -> dict[str, Any]:
    """Cores, processor, memory, the card if there is one, and the versions that matter."""
    return {
        "cores": usable_cores(),
        "cpu": _cpu_model(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": _blas(),
        **_versions(),
        **_card(),
    }


def _versions() -> dict[str, str]:
    """Of the packages that are installed: rows of one extra run without the others."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _card() -> dict[str, str]:
    """The GPU as its driver names it, without opening it: a context would take some of its memory."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"gpu": "; ".join(said.splitlines())} if said else {}


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return " ".join(line.split(":", 1)[1].split())
    return platform.processor() or "unknown"


def _blas() -> str:
    found: dict[str, Any] = next((info for info in threadpool_info() if info.get("user_api") == "blas"), {})
    return " ".join(str(found.get(key, "?")) for key in ("internal_api", "version", "architecture"))
