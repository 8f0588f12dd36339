"""Average optimistic mini-batches on the synthetic of Arora and Marinov 2019, Table 1, in their programs' settings.

Gaussian rows, variances 1 (i <= k) and gap 2^(-0.1 (i - k - 1)) beyond, divided so that lambda_k = 1; then the gap is
estimated (about 0.9 for the printed 0.1), eta0 = 0.5, batches of at most 10 (k + 1) / gap^2.

    python -m benchmarks.mini_batches [steps]
"""

from __future__ import annotations

import sys

import numpy as np

from npmdask.algorithms import MiniBatchMSG, MiniBatchRMSG

PRINTED = {"mb-msg": {1: 7.62, 3: 26.72, 7: 81.91}, "mb-rmsg": {1: 6.69, 3: 25.30, 7: 62.66}}


def deviations(k: int, d: int = 1000, gap: float = 0.1) -> np.ndarray:
    """Standard deviations of the coordinates (d)."""
    tail = gap * 2 ** (-0.1 * np.arange(d - k))
    return np.sqrt(np.concatenate([np.ones(k), tail]))


def theirs(name: str, k: int, test: str = "lemma") -> MiniBatchMSG:
    """An algorithm in the settings of the authors' programs: no factor 1 - ridge eta, the test of MB-MSG for both."""
    gap = 0.9
    batch = int(np.ceil(10 * (k + 1) / gap**2))
    if name == "mb-msg":
        warm = int(np.ceil(10 * k**2 / gap**3))
        return MiniBatchMSG(
            target_rank=k, gap=gap, eta0=0.5, shift=k**6 / gap**2, batch_rows=batch, warm_rows=warm, test=test
        )
    warm = int(np.ceil(10 * np.sqrt(k) / gap**5))
    return MiniBatchRMSG(
        target_rank=k,
        gap=gap,
        eta0=0.5,
        shift=1 / gap**3,
        batch_rows=batch,
        warm_rows=warm,
        shrinks=False,
        test=test,
    )


def average_batch(algorithm: MiniBatchMSG, *, steps: int, d: int = 1000, seed: int = 0) -> tuple[float, float]:
    """The mean rows of a step over all steps, and over steps 1, 2, 4, ... as they were logged for the table."""
    rng = np.random.default_rng(seed)
    scale = deviations(algorithm.target_rank, d)
    state = algorithm.init(d, rng=rng)
    sizes: list[int] = []
    while len(sizes) < steps:
        warm = not state.step
        state, info = algorithm.update(state, rng.standard_normal((algorithm.query(state).rows, d)) * scale)
        if info.steps and not warm:
            sizes.append(info.batch_rows)
    logged = np.unique(np.geomspace(1, steps, 40).astype(int)) - 1
    return float(np.mean(sizes)), float(np.mean(np.array(sizes)[logged]))


def main() -> None:
    """Print the table beside the printed one."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print("algorithm  k  printed   all steps  logged steps   (exact test: all steps)")
    for name, table in PRINTED.items():
        for k, printed in table.items():
            mean, logged = average_batch(theirs(name, k), steps=steps)
            exact, _ = average_batch(theirs(name, k, "exact"), steps=steps)
            print(f"{name:8}  {k:2}  {printed:7.2f}   {mean:9.2f}  {logged:12.2f}   {exact:9.2f}")


if __name__ == "__main__":
    main()
