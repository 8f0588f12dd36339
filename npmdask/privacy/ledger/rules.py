"""What a grant covers: pure functions of what was granted, what was spent and what is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from npmdask.accounting.budget import Budget, Charge
from npmdask.errors import BadInputError
from npmdask.privacy.ledger.journal import canonical

BISECTIONS = 60
ROUNDING = 1e-9  # epsilon_at rounds up by less
NAME_LENGTH = 200


def unit(relation: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a relation that says who is a neighbour of whom; budgets add up only where it is equal.

    Its name, and for the matrix relations by how much the neighbours differ (``change``). ``clip_norm`` scales the
    sensitivity, not the relation: two data sets differ in one record whatever the records are clipped to, so every
    run may choose its own. Except for the spectral norm, where nothing is clipped: there it is a promise about the
    data, which the data owner makes, and not the run. ``coherence`` is a public cap of the run.
    """
    name = str(relation["name"])
    parts: dict[str, Any] = {"name": name}
    if not name.startswith("record_"):
        parts["change"] = float(relation.get("change", 1.0))
    if name == "spectral_norm":
        parts["clip_norm"] = float(relation["clip_norm"])
    return parts


def remaining_epsilon(spent: Charge, budget: Budget) -> float:
    """The largest epsilon, at the grant's delta, of one more run that still fits; rounded down.

    For a grant with delta > 0 of a run of Gaussian releases, otherwise of a run of pure epsilon.
    """

    def fits(more: Charge) -> bool:
        return (spent + more).delta_at(budget.epsilon) <= budget.delta  # implies ``within``, and is quicker

    if budget.delta == 0:
        return _largest(lambda epsilon: fits(Charge(epsilon=epsilon)), budget.epsilon) * (1 - ROUNDING)
    square = _largest(lambda mu2: fits(Charge(mu_squared=mu2)), _enough(budget))
    return Charge(mu_squared=square).epsilon_at(budget.delta) * (1 - ROUNDING) if square > 0 else 0.0


def _enough(budget: Budget) -> float:
    """A mu^2 that is more than ``budget`` allows."""
    square = 1.0
    while Charge(mu_squared=square).within(budget):
        square *= 4
    return square


def _largest(fits: Callable[[float], bool], top: float) -> float:
    low, high = 0.0, top
    if fits(high):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def require_name(what: str, name: str) -> None:
    """Names are typed and read by people."""
    if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable():
        raise BadInputError(f"{what} {name!r} is not a name: use printable characters, without spaces at the ends")
    if len(name) > NAME_LENGTH:
        raise BadInputError(f"{what} {name[:20]!r}... is longer than {NAME_LENGTH} characters; choose a shorter one")


def require_plain(**parts: dict[str, Any]) -> None:
    """What is written down must read back as it was: plain JSON, every float finite."""
    for what, value in parts.items():
        try:
            canonical(value)
        except (TypeError, ValueError) as error:
            raise BadInputError(
                f"{what} is not plain JSON ({error}); give numbers as int or float, all finite"
            ) from None


def require_charge(charge: Charge, releases: int) -> None:
    """A charge below zero would be a refund, and one of nothing means that the noise was never calibrated."""
    parts = [float(value) for value in charge.as_dict().values()]
    if not all(math.isfinite(part) and part >= 0 for part in parts) or not any(parts):
        raise BadInputError(f"a private run cannot cost {charge}; calibrate its noise with npmdask.accounting first")
    if isinstance(releases, bool) or not isinstance(releases, int) or releases < 1:
        raise BadInputError(f"releases = {releases!r}: a private run makes at least one")
