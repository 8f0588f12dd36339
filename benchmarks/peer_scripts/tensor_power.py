"""TensorLy's symmetric power method on a tensor in memory: ``tensor_power.py '{"tensor": FILE.npy, "k": 5, ...}'``.

The answer is one JSON line: CPU seconds (user and system) and seconds of the solving call, after a small tensor has
been solved; the vectors and weights are saved beside the tensor. ``repeats`` as n_repeat; BLAS has one thread.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tensorly
from tensorly.decomposition import symmetric_parafac_power_iteration
from threadpoolctl import threadpool_limits

WARM = 20  # side of the tensor that is solved first


def main(job: dict[str, Any]) -> dict[str, Any]:
    tensor = np.load(job["tensor"])
    np.random.seed(job["seed"])  # noqa: NPY002 (the only way to seed it)
    small = np.einsum("ir,jr,kr->ijk", *[np.eye(WARM, 2)] * 3)
    symmetric_parafac_power_iteration(small, rank=2)
    wall, cpu = time.perf_counter(), time.process_time()
    weights, vectors = symmetric_parafac_power_iteration(tensor, rank=job["k"], n_repeat=job["repeats"])
    facts = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}
    answer = str(Path(job["tensor"]).with_name("tensorly.npz"))
    np.savez(answer, vectors=vectors, weights=weights)
    name = f"tensorly {version('tensorly')}"
    return {**facts, "answer": answer, "name": name, "backend": tensorly.get_backend()}


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        print(json.dumps(main(json.loads(sys.argv[1]))))
