"""Define what functions of :mod:`npmdask.theory` return: a number, its assumptions, which conditions hold."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar


class Prediction(NamedTuple):
    """
    A predicted number, with what was assumed and which conditions hold.

    Parameters
    ----------
    value : float
        The number; inf where a formula allows no finite one.
    constants : dict
        Constants that no paper gives, by name, with the values that were assumed.
    flags : dict
        Conditions of the theorem, by name: whether they hold.

    Examples
    --------
    >>> from npmdask import theory
    >>> found = theory.improved_iterations(s_k=1.0, s_q1=0.5, d=1000, acc=0.01)
    >>> found.constants, found.flags, found.valid
    ({'constant': 1.0, 'tau': 1.0}, {'gap': True, 'start_promised': False}, False)
    """

    value: float
    constants: dict[str, float]
    flags: dict[str, bool]

    @property
    def valid(self) -> bool:
        """Return whether every condition holds."""
        return all(self.flags.values())


Values = TypeVar("Values", bound=tuple[float, ...])


class Predictions(NamedTuple, Generic[Values]):
    """
    A :class:`Prediction` of several numbers.

    Parameters
    ----------
    value : NamedTuple
        The numbers, by name.
    constants : dict
        Constants that no paper gives, by name, with the values that were assumed.
    flags : dict
        Conditions of the theorem, by name: whether they hold.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.npm_max_noise(s_k=1.0, s_k1=0.5, acc=0.01, cos0=0.1).value
    NoiseBound(whole=0.001, inside=0.01)
    """

    value: Values
    constants: dict[str, float]
    flags: dict[str, bool]

    @property
    def valid(self) -> bool:
        """Return whether every condition holds."""
        return all(self.flags.values())
