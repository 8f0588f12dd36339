"""What benchmarks/paper_tensor.py measures: curves, each a question asked at several x."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.tensor_noise import power_trial, whitening_trial
from benchmarks.tensor_online import distinct_found, error_value, samples_trial, streamed
from benchmarks.tensor_online import largest_error as error_of
from benchmarks.tensor_private import input_trial, private_trial

DIMENSIONS = (32, 128, 512, 2048, 8192)
OVER_K, OVER_N, ROWS_OVER_D = 512, 64, 32768  # d of the curve over k, d of that over n, n of that over d
FOUND = 0.45  # an error that says which component it is: cosine 0.9


@dataclass(frozen=True)
class Series:
    """A curve over ``x``.

    ``run(x, level, seed)`` is a trial: whether it succeeds at ``level``, or, where there is no ``guess``, a number.
    ``guess(x)``: a level to begin with. ``harder``: 1 where a higher level is harder, -1 where a lower one is.
    ``claimed``: the power of x in the paper.
    ``fit``: x from which on a power law is fitted; before it something else decides.
    """

    figure: str
    label: str
    vary: str
    x: tuple[int, ...]
    run: Callable[[int, float, int], float]
    guess: Callable[[int], float] | None = None
    harder: int = 1
    claimed: float | None = None
    fit: int = 0


def _power(model: str, d: int, level: float, seed: int, k: int = 1) -> bool:
    return power_trial(model, d, k, level, seed)


def _over_k(k: int, level: float, seed: int) -> bool:
    return power_trial("weak", OVER_K, k, level, seed)


def _whitening(model: str, d: int, level: float, seed: int) -> bool:
    return whitening_trial(model, d, 4, level, seed)


def _error_over_n(n: int, level: float, seed: int) -> float:
    return error_value(OVER_N, n, seed)


def _error_over_d(d: int, level: float, seed: int) -> float:
    return error_value(d, ROWS_OVER_D, seed)


def _found(d: int, level: float, seed: int) -> bool:
    return error_of(streamed(d, max(2, round(level)), seed).vectors, 2) <= FOUND


def _deflation(printed: bool, n: int, level: float, seed: int) -> float:
    return float(distinct_found(n, seed, printed=printed))


def _root(factor: float) -> Callable[[int], float]:
    return lambda d: factor / np.sqrt(d)


SERIES = {
    "adversarial": Series(
        "noise", "adversarial, k = 1 (the hardest found)", "d", DIMENSIONS, partial(_power, "adversarial"),
        _root(1.2), claimed=-1.0,
    ),
    "round": Series(
        "noise", "Gaussian, k = 1", "d", (32, 64, 128, 256, 512, 1024, 2048), partial(_power, "round"),
        _root(6.4), claimed=-0.5, fit=256,
    ),
    "weak": Series(
        "noise", "weakly correlated, k = 1", "d", DIMENSIONS, partial(_power, "weak"), _root(2.8), claimed=0.0,
    ),
    "weak over k": Series(
        "noise", f"weakly correlated, d = {OVER_K}", "k", (1, 2, 4, 8, 16), _over_k, lambda k: 3.2 / OVER_K**0.5,
        claimed=-0.5,
    ),
    "power, round": Series(
        "noise", "tensor power method, Gaussian, k = 4", "d", (32, 64, 128), partial(_power, "round", k=4), _root(6.0)
    ),
    "whitening, round": Series(
        "noise", "whitening, Gaussian, k = 4", "d", (32, 64, 128), partial(_whitening, "round"), _root(2.0)
    ),
    "power, weak": Series(
        "noise", "tensor power method, weakly correlated, k = 4", "d", (32, 64, 128), partial(_power, "weak", k=4),
        _root(3.0),
    ),
    "whitening, weak": Series(
        "noise", "whitening, weakly correlated, k = 4", "d", (32, 64, 128), partial(_whitening, "weak"), _root(2.0)
    ),
    "error over n": Series(
        "online", f"error, d = {OVER_N}", "n", (4096, 8192, 16384, 32768, 65536), _error_over_n, claimed=-0.5,
    ),
    "error over d": Series(
        "online", f"error, n = {ROWS_OVER_D:,}", "d", (16, 32, 64, 128), _error_over_d, claimed=0.5,
    ),
    "samples": Series(
        "online", "rows n for an error of 2 / sqrt(d)", "d", (16, 32, 64, 128, 256), samples_trial,
        lambda d: 0.6 * d * d, harder=-1, claimed=2.0,
    ),
    "found": Series(
        "online", "rows n to find all components", "d", (16, 32, 64, 128, 256, 512, 1024), _found,
        lambda d: max(12 * d, 0.06 * d * d), harder=-1, claimed=2.0, fit=256,
    ),
    "printed line": Series("online", "deflation as printed", "n", (50_000,), partial(_deflation, True)),
    "corrected line": Series("online", "deflation corrected", "n", (50_000,), partial(_deflation, False)),
    "private": Series(
        "private", "private tensor power method", "d", (64, 256, 1024, 4096, 16384), private_trial, lambda d: 0.05
    ),
    "input": Series(
        "private", "input perturbation", "d", (32, 64, 128, 256, 512, 1024, 2048), input_trial, lambda d: 1.0 / d,
    ),
}  # fmt: skip
