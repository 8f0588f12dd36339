"""What the last bits depend on besides the parameters: recorded, compared, and said when it changed."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np


def environment() -> dict[str, str]:
    """What the last bits depend on besides the parameters: recorded, compared, and said when it changed."""
    from threadpoolctl import threadpool_info

    blas: dict[str, Any] = next((i for i in threadpool_info() if i.get("user_api") == "blas"), {})
    kind = f"{blas.get('internal_api', '?')} {blas.get('version', '?')} {blas.get('architecture', '')}".strip()
    return {"numpy": np.__version__, "blas": kind, "machine": platform.machine()}
