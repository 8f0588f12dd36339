"""Numbers for general readers: degrees, shares, and how many of twenty."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

LOST = 0.8  # the sine of 53 degrees: a direction that far off says as little of the true one as many others would


class Assurance(NamedTuple):
    """How wrong an answer can be: a sentence for everybody, and the numbers that it is made of.

    ``numbers`` are fractions (shares, sines, relative errors) or in the units of the answer, as their names say.
    """

    sentence: str
    numbers: dict[str, Any]


def degrees(sine: float) -> str:
    """The angle with this ``sine`` (0 to 1), rounded up so that nothing is promised that was not found."""
    angle = math.degrees(math.asin(min(max(sine, 0.0), 1.0)))
    return f"{max(_up(angle), 0.01):g} degrees"


def percent(share: float) -> str:
    """A share (0.123) as a percentage of three digits: 12.3 %."""
    return f"{100 * share:.3g} %"


def at_most_percent(share: float) -> str:
    """The same, rounded up to two digits."""
    return f"{_up(100 * share):g} %"


def number(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}"


def spread(value: float) -> str:
    """What is added to or taken from a number: two digits, rounded up."""
    return f"{_up(value):g}"


def components(count: int) -> str:
    """So many of them, with their article."""
    return "the component" if count == 1 else f"the {count} components"


def _up(value: float) -> float:
    """``value`` of two significant digits, never less than it is."""
    if not value or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.2g}")
