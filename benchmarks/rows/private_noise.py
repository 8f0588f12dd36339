"""Noise of a private release: seconds for a million samples, beside a generator that is not secure and not exact."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.privacy.mechanisms.noise_key import Keystream
from npmdask.privacy.mechanisms.sampler import rounded_gaussian, rounded_laplace

SCALE = 1 << 31  # what a private run draws at: noise over grid
SHAPE = (100_000, 10)


def measure(context: Context) -> Measured:
    """One thread; the key of the stream is fixed, so every round draws the same samples."""
    shape = (context.sized(1000, SHAPE[0]), SHAPE[1])
    ways: dict[str, Any] = {
        "gaussian": partial(draw, rounded_gaussian, SCALE, shape),
        "gaussian, scale 3": partial(draw, rounded_gaussian, 3, shape),
        "gaussian, scale 2^40": partial(draw, rounded_gaussian, 1 << 40, shape),
        "laplace": partial(draw, rounded_laplace, SCALE, shape),
        "numpy, not secure": partial(np.random.default_rng(0).standard_normal, shape),
    }
    interleaved(ways, 1)  # tables and imports
    seconds = interleaved(ways, context.rounds)
    million = {name: round(value * 1e6 / (shape[0] * shape[1]), 4) for name, value in medians(seconds).items()}
    ours = [value for name, value in million.items() if not name.startswith("numpy")]
    details = {
        "seconds_per_million": million,
        "times_numpy": round(million["gaussian"] / million["numpy, not secure"], 2),
        "seconds": rounded(seconds),
    }
    noise = ways["gaussian"]() / SCALE
    failures = () if abs(noise.std() - 1) < 5 / np.sqrt(2 * noise.size) else (f"stddev {noise.std():.4f} scales",)
    return Measured(max(ours), details, "", failures)


def draw(law: Any, scale: int, shape: tuple[int, ...]) -> np.ndarray:
    return law(scale, shape, Keystream(bytes(range(32))))


ROWS = (
    Row(
        name="noise-seconds",
        what="seconds for 10^6 samples of private noise: the slowest distribution and scale",
        target=1.0,
        better="lower",
        run=measure,
    ),
)
