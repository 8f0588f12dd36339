"""What the last bits depend on besides the parameters: recorded, compared, and said when it changed."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np


def environment() -> dict[str, str]:
    """What the last bits depend on besides the parameters: recorded, compared, and said when it changed."""
    from threadpoolctl import threadpool_info

    found = [i for i in threadpool_info() if i.get("user_api") == "blas"]  # NumPy's, and SciPy's if it is loaded too
    blas: dict[str, Any] = min(found, key=lambda i: ("numpy" not in i["filepath"], i["filepath"]), default={})
    kind = f"{blas.get('internal_api', '?')} {blas.get('version', '?')} {blas.get('architecture', '')}".strip()
    return {"numpy": np.__version__, "blas": kind, "machine": platform.machine()}
