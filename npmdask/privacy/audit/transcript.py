"""What a run leaves behind for anybody to see, with what an auditor knows of it: the material of every check."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npmdask.privacy.mechanisms.noise_key import Entropy

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One thing that became durable, in N runs side by side: a release, or whatever else was written.

    Parameters
    ----------
    step : of the run, from 1.
    value : what can be read (N x anything).
    here, there : the same without its noise, computed by the implementation under audit from the data of the world A
        and of its neighbour A', at the same public X: adaptive queries, as they were really asked.
    noise : the scale that the implementation says it used: standard deviation of a Gaussian, scale of a Laplace
        distribution, one number a run (N). 0: no noise.
    grid : what every entry of ``value`` is a multiple of, or None where none is promised.
    """

    step: int
    value: Values
    here: Values
    there: Values
    noise: Values
    grid: float | None = None

    def per_run(self, values: Any) -> Values:
        """``values`` with a row a run."""
        return np.asarray(values, dtype=np.float64).reshape(len(self.noise), -1)


Transcript = list[Publication]


def without_noise(step: int, value: Any, here: Any, there: Any) -> Publication:
    """Something that was written as it is: a log line, a metric, a trace."""
    value, here, there = (np.asarray(v, dtype=np.float64) for v in (value, here, there))
    return Publication(step=step, value=value, here=here, there=there, noise=np.zeros(len(value)))


# Secret keys for an audit: every run has noise that no other run has.


@contextmanager
def fresh_keys(count: int) -> Iterator[list[Entropy]]:
    """Fresh secret keys; bound to different names the one in the file gives unrelated streams."""
    with tempfile.TemporaryDirectory(prefix="npmdask-audit-") as folder:
        path = Path(folder) / "key"
        first = Entropy.create(path)
        keys = [Entropy.open(path, bound_to=f"run {number}") for number in range(count)]
        yield keys
        first.destroy()
