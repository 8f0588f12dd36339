"""The five methods of Arora and Marinov 2019 in the settings of the authors' programs, and what is seen of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil, sqrt
from time import process_time
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  an algorithm imports it when it first needs it: that is no time of the first run

from benchmarks.paper_data import Split, deviations
from npmdask.streaming.algorithms.low_rank_update import updated_eigen
from npmdask.streaming.algorithms.msg import (
    MSG,
    RMSG,
    BatchState,
    MiniBatchMSG,
    MiniBatchRMSG,
    RankTest,
    project_spectrum,
)
from npmdask.streaming.algorithms.oja import Oja

METHODS = ("msg", "rmsg", "mb-msg", "mb-rmsg", "oja")
ETA0 = 0.5
POINTS = 40


def theirs(name: str, k: int, *, gap: float = 0.9, share: float = 1.0, test: str = "lemma") -> Any:
    """An algorithm as in the programs: no factor 1 - ridge eta and the test of MB-MSG in both mini-batched forms.

    ``share``: of the largest mini-batch and warm start that they take for the theory's.
    """
    if name == "oja":
        return Oja(target_rank=k, eta0=ETA0)
    if name == "msg":
        return MSG(target_rank=k, eta0=ETA0)
    if name == "rmsg":
        return RMSG(target_rank=k, eta0=ETA0, ridge=gap / 2)
    batch = ceil(share * 10 * (k + 1) / gap**2)
    common: dict[str, Any] = {"target_rank": k, "gap": gap, "eta0": ETA0, "batch_rows": batch, "test": test}
    if name == "mb-msg":
        return MiniBatchMSG(shift=k**6 / gap**2, warm_rows=ceil(share * 10 * k**2 / gap**3), **common)
    return MiniBatchRMSG(shift=1 / gap**3, warm_rows=ceil(share * 10 * sqrt(k) / gap**5), shrinks=False, **common)


def warmed(algorithm: MiniBatchMSG, d: int, draw: Callable[[int], np.ndarray]) -> BatchState:
    """The warm start of the authors: the top k of k, 2k, 4k, ... rows, tested on a sample of full size of its own.

    Full size: ``largest_start``. The first try is a random basis. The rows that are tried are the first of one more
    sample, so that each try adds to those before it.
    """
    k, rng = algorithm.target_rank, np.random.default_rng(0)
    pool, test = draw(algorithm.largest_start(d)), draw(algorithm.largest_start(d))
    values, rows = np.linalg.eigvalsh(test @ test.T / len(test))[::-1], k
    vectors = np.linalg.qr(rng.standard_normal((d, k)))[0]
    while rows < len(pool) and not RankTest(test @ vectors, values, np.zeros(0), k, 0.0).holds("lemma"):
        rows = min(2 * rows, len(pool))
        vectors = np.linalg.svd(pool[:rows], full_matrices=False)[2][:k].T
    state, images = algorithm.init(d, rng=rng), pool[:rows] @ vectors
    return replace(state, step=1, rows=rows, wanted=k + 1, vectors=vectors, moment=images.T @ images / rows)


def average_batch(
    algorithm: MiniBatchMSG, *, steps: int, d: int = 1000, seed: int = 0, own: bool = False
) -> tuple[float, float]:
    """The mean rows of a step on fresh rows, over all steps, and over 40 steps evenly spaced by their logarithm.

    ``own``: after our warm start, which tests on its later half; else after the authors' (:func:`warmed`).
    """
    rng = np.random.default_rng(seed)
    scale = deviations(algorithm.target_rank, d)
    state = algorithm.init(d, rng=rng) if own else warmed(algorithm, d, lambda n: rng.standard_normal((n, d)) * scale)
    sizes: list[int] = []
    while len(sizes) < steps:
        warm = not state.step
        state, info = algorithm.update(state, rng.standard_normal((algorithm.query(state).rows, d)) * scale)
        if info.steps and not warm:
            sizes.append(info.batch_rows)
    return float(np.mean(sizes)), float(np.mean(np.array(sizes)[logged(steps) - 1]))


def logged(steps: int) -> np.ndarray:
    """Steps at which a run is looked at: the first, the last, evenly spaced by their logarithm."""
    return np.unique(np.geomspace(1, steps, POINTS).astype(int))


def follow(algorithm: Any, data: Split, *, steps: int, seed: int) -> dict[str, Any]:
    """One run of ``steps`` steps, looked at along ``logged``.

    ``seconds`` are processor seconds of the updates alone, all of them (one thread of BLAS): of the tests that end a
    mini-batch and of the warm start too, but not of drawing rows or of looking. Methods that take one row a step see
    each row once, the others draw with replacement.
    """
    judge = Judge(data, algorithm.target_rank)
    seen: list[dict[str, Any]] = []
    totals = {"seconds": 0.0, "ranks": 0, "sizes": 0, "held": 0}
    at = set(logged(steps).tolist())
    rng = np.random.default_rng(seed)
    state, done = algorithm.init(data.train.shape[1], rng=rng), 0
    draws = _draws(algorithm, data, rng)
    while done < steps:
        before, rows = state, draws(state)
        started = process_time()
        state, info = algorithm.update(before, rows)
        totals["seconds"] += process_time() - started
        if not info.steps or (isinstance(before, BatchState) and not before.step):
            continue
        done += 1
        totals["ranks"] += info.rank
        totals["sizes"] += info.batch_rows
        totals["held"] += bool(info.condition)
        if done in at:
            point = {"step": done, "rows": state.rows, "seconds": totals["seconds"], "rank": info.rank}
            seen.append(point | judge.look(algorithm, before, rows, state))
    means = {"rank": totals["ranks"] / steps, "batch": totals["sizes"] / steps, "held": totals["held"] / steps}
    return {"means": means, "points": {name: [point[name] for point in seen] for name in seen[0]}}


def exact_pca(data: Split, k: int) -> float:
    """The suboptimality of exact PCA of all training rows: where P*, from so few rows, puts the end of every curve."""
    vectors = np.linalg.eigh(data.train.T @ data.train)[1][:, -k:]
    return Judge(data, k).suboptimality(vectors)


def _draws(algorithm: Any, data: Split, rng: np.random.Generator) -> Any:
    """The rows of the next update, by the state."""
    once: Iterator[int] = iter(rng.permutation(len(data.train)))

    def draw(state: Any) -> np.ndarray:
        wanted = algorithm.query(state).rows
        return data.train[[next(once)] if wanted is None else rng.integers(0, len(data.train), wanted)]

    return draw


class Judge:
    """What is measured of an iterate, on rows that were not learned from."""

    def __init__(self, data: Split, k: int) -> None:
        self._test = data.test
        moment = self._test.T @ self._test / len(self._test)
        self._best = float(np.linalg.eigvalsh(moment)[::-1][:k].sum())

    def suboptimality(self, vectors: np.ndarray) -> float:
        """<P* - U U^T, C>, never negative: P* is the best there is for these very rows."""
        return self._best - float(((self._test @ vectors) ** 2).sum()) / len(self._test)

    def look(self, algorithm: Any, before: Any, rows: np.ndarray, after: Any) -> dict[str, Any]:
        """The suboptimality of the top k of the iterate; and the rank of the projected step, not truncated."""
        found: dict[str, Any] = {"suboptimality": self.suboptimality(algorithm.finalize(after).vectors)}
        if isinstance(before, BatchState):
            found["projected_rank"] = projected_rank(algorithm, before, np.concatenate([before.pending, rows]))
        return found


def projected_rank(algorithm: MiniBatchMSG, before: BatchState, rows: np.ndarray) -> int:
    """rank Pi(P + eta C): what the step would have without the truncation to the k leading directions."""
    eta = algorithm.step_size(before.step)
    kept = np.full(before.vectors.shape[1], 1 - algorithm.shrinkage * eta)
    mixed = updated_eigen(before.vectors, kept, rows, eta / len(rows), rows @ before.vectors)
    return int((project_spectrum(mixed.values, algorithm.target_rank).values > 0).sum())
