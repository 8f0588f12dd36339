"""What the rows about single passes share: the operator of a store, a block, a pass without an observer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.execution.executor import Executor
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.storage.source import open_source


def operator_of(store: Path, kind: str | None = None) -> Any:
    """The operator that a run on ``store`` would apply, whatever the layout of the store."""
    return make_problem(open_source(store, kind), Request(target_rank=10)).operator()


def start_block(rows: int, p: int, dtype: str = "f4") -> np.ndarray:
    """An orthonormal block, rows x p."""
    return np.linalg.qr(np.random.default_rng(1).standard_normal((rows, p)))[0].astype(dtype)


def one_pass(executor: Executor, operator: Any, block: np.ndarray) -> tuple[np.ndarray, Any]:
    """The product, and the record of what was read."""
    return executor.run_pass(operator, block, lambda record: None)


def relative_error(product: np.ndarray, reference: np.ndarray) -> float:
    """Frobenius norm of the difference over that of the reference: equal accuracy is part of a comparison."""
    return float(np.linalg.norm(product - reference) / np.linalg.norm(reference))
