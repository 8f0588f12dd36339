"""A spectrum that a user gives, or guesses in words, for a plan: read from a file or made from a formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from npmdask.errors import BadInputError, RefusedError, closest, require

MEASURED = "measured"
MOST_VALUES = 10**7  # a plan is made in memory
SMALLEST, LARGEST = 1e-100, 1e100  # of the first value: squares of it, and of noise over it, stay inside float64
ROUNDING = 1e-9  # of the first value: a zero may come out negative by so much
NOTHING = 1e-30  # of the first value: further below a value is nothing to any run, and its square leaves float64

WORDS = (
    "power:A (value i is i^-A), exponential:R (R^i), spiked:K,GAP (K values of GAP over noise of at most 1) or flat "
    "(from 1 evenly to 1/2), each with ,largest=X where its scale is known"
)


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Values of the question, by falling size: singular values of a matrix, else eigenvalues (signed).

    ``scaled``: they are in the units of the data; otherwise only their ratios mean something. ``known``: how many were
    given; the rest of the d are taken to fall evenly from the last of them to 0. (Equal ones would promise too much:
    Krylov methods pay for every different eigenvalue.)
    """

    values: np.ndarray
    scaled: bool
    known: int
    said: str

    def eigenvalues(self, *, singular: bool) -> np.ndarray:
        """Return the eigenvalues of the operator of a run: squares, where the values are ``singular`` ones."""
        return self.values**2 if singular else self.values


def asked_spectrum(text: str | None, d: int, *, signed: bool = True, private: bool = False) -> Spectrum | None:
    """Read the spectrum that a plan is asked to use, see :func:`read_spectrum`.

    None: the plan uses what it measures, or for a private run nothing.

    ``signed``: values may be negative, as those of a symmetric operator.

    Raises
    ------
    RefusedError
        The spectrum of a private run is to be measured.
    BadInputError
        No such spectrum, or an impossible one.
    """
    if text == MEASURED and private:
        raise RefusedError(
            "a private run cannot be planned from a measured spectrum, because anything read from the data that "
            "affects a run must be charged as a release: guess a spectrum (--spectrum power:1), or give that of "
            "similar public data (--spectrum FILE)"
        )
    if text is None or text == MEASURED:
        return None
    found = read_spectrum(text, d)
    if not signed and found.values.min() < -ROUNDING * np.abs(found.values[0]):
        raise BadInputError(
            f"{found.said}: {found.values.min():.3g} is negative, but singular values and eigenvalues of samples "
            "cannot be; give their sizes"
        )
    return found


def read_spectrum(text: str, d: int) -> Spectrum:
    """The spectrum of an operator of dimension ``d`` that ``text`` names: a .npy or text file, or a guess in words.

    Raises
    ------
    BadInputError
        No such file and no such word; or numbers that are no spectrum.
    """
    name = text.replace(",", ":").partition(":")[0]
    if name in GUESSES:
        return _parse_guess(name, text, d)
    path = Path(text)
    if not path.is_file():
        raise BadInputError(
            f"{text!r} is neither a file of values (.npy, or text) nor a guess: {closest(name, list(GUESSES))}; "
            f"guesses are {WORDS}"
        )
    return _spectrum_of_values(_read(path), d, f"{path.name}, given")


def _read(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            return _real(np.load(path, allow_pickle=False)).ravel()
        return np.array(path.read_text().replace(",", " ").split(), np.float64)
    except (ValueError, UnicodeDecodeError, OSError) as error:
        raise BadInputError(
            f"{path} does not contain a list of numbers ({error}): write one value per line, or a .npy file"
        ) from None


def _real(values: np.ndarray) -> np.ndarray:
    if np.iscomplexobj(values):
        raise ValueError("they are complex")
    return np.asarray(values, np.float64)


def _spectrum_of_values(values: np.ndarray, d: int, said: str) -> Spectrum:
    if not 0 < len(values) <= MOST_VALUES or not np.isfinite(values).all() or not values.any():
        raise BadInputError(f"{said}: a spectrum is 1 to {MOST_VALUES} finite numbers that are not all zero")
    require(len(values) <= d, f"{said}: {len(values)} values, but the data have at most {d}; leave the others out")
    falling = _in_range(values[np.argsort(-np.abs(values), kind="stable")], said)
    rest = falling[-1] * evenly(d - len(values))
    more = f" ({len(values)} of {d} values: the others are taken to fall evenly to 0)" if len(rest) else ""
    return Spectrum(values=np.concatenate([falling, rest]), scaled=True, known=len(values), said=said + more)


def _parse_guess(name: str, text: str, d: int) -> Spectrum:
    parts = [part.strip() for part in text[len(name) + 1 :].split(",") if part.strip()]
    largest = [part.partition("=")[2] for part in parts if part.startswith("largest=")]
    plain = [part for part in parts if not part.startswith("largest=")]
    count, formula = GUESSES[name]
    try:
        numbers, scale = [float(part) for part in plain], float(largest[0]) if largest else None
    except ValueError:
        numbers, scale = [], None
    given = numbers if scale is None else [*numbers, scale]
    if len(numbers) != count or not all(0 < x < inf for x in given) or (largest and scale is None):
        raise BadInputError(f"{text!r} is not a valid guess: write {WORDS}, with positive, finite numbers")
    if name == "spiked" and (numbers[0] > d or numbers[0] != round(numbers[0])):
        raise BadInputError(f"{text!r}: K must be a whole number of values, and the data have at most {d}")
    with np.errstate(all="ignore"):  # what is too large or too small is refused below
        values = formula(np.arange(1.0, d + 1), *numbers)
        if not (np.diff(values) <= 0).all():
            raise BadInputError(f"{text!r} does not decrease: the first value must be the largest (R < 1, GAP > 1)")
        values = values * ((scale or 1.0) / values[0])
    values = _in_range(values, f"{text}, guessed")
    return Spectrum(values=values, scaled=scale is not None, known=d, said=f"{text}, guessed")


def _in_range(values: np.ndarray, said: str) -> np.ndarray:
    """Falling ``values``, those that are nothing beside the first as zeros, if float64 can square them."""
    largest = float(np.abs(values[0]))
    if not SMALLEST <= largest <= LARGEST:
        raise BadInputError(
            f"{said}: its largest value is {largest:.3g}, whose squares float64 cannot represent next to the others; "
            f"use units that bring it near 1 ({SMALLEST:.0e} to {LARGEST:.0e} can be planned with)"
        )
    return np.where(np.abs(values) < NOTHING * largest, 0.0, values)


def evenly(count: int) -> np.ndarray:
    """``count`` numbers that fall evenly from 1 towards 0, which is not reached."""
    return 1 - np.arange(count) / max(count, 1)


def _spiked(i: np.ndarray, k: float, gap: float) -> np.ndarray:
    spikes = min(round(k), len(i))
    return np.concatenate([np.full(spikes, gap), evenly(len(i) - spikes)])


GUESSES: dict[str, tuple[int, Callable[..., np.ndarray]]] = {
    "power": (1, lambda i, a: i**-a),
    "exponential": (1, lambda i, r: r**i),
    "spiked": (2, _spiked),
    "flat": (0, lambda i: np.linspace(1.0, 0.5, len(i))),
}
