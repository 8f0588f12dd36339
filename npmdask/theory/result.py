"""What every function of :mod:`npmdask.theory` returns: a number, what was assumed, which conditions hold."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar


class Prediction(NamedTuple):
    """A predicted ``value``, the ``constants`` that no paper gives and were assumed, whether its conditions hold."""

    value: float
    constants: dict[str, float]
    flags: dict[str, bool]

    @property
    def valid(self) -> bool:
        return all(self.flags.values())


Values = TypeVar("Values", bound=tuple[float, ...])


class Predictions(NamedTuple, Generic[Values]):
    """A :class:`Prediction` of several numbers: ``value`` is a named tuple."""

    value: Values
    constants: dict[str, float]
    flags: dict[str, bool]

    @property
    def valid(self) -> bool:
        return all(self.flags.values())
