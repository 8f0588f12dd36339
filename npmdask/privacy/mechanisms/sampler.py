"""Gaussian and Laplace noise on the integers, without error: nearest integers to exact real deviates.

What is drawn is ``round(Z)`` for a Z that has the continuous distribution exactly. An integer query q plus ``round(Z)``
is ``round(q + Z)``: post-processing of the continuous mechanism, so its exact accounting (Gaussian DP; pure epsilon)
holds without a correction, for every scale and any number of samples. (The discrete Gaussian of Canonne, Kamath and
Steinke 2020 has the same cost; against Gaussian DP it needs a total variation of sqrt(count) / (24 stddev^2).)

The method is Karney's (2016, algorithm N), vectorised. With Z = +-scale (k + u), k = 0, 1, ..., 0 <= u < 1:

    k with probability proportional to exp(-k^2/2)     accept u with probability exp(-u (2k + u)/2)     Gaussian
    k with probability proportional to exp(-k)         accept u with probability exp(-u)                Laplace

Three 64-bit words per proposal: sign and k, u, and the uniform number that is compared with the probability.

Error budget (each word is the beginning of an infinite binary expansion; docs/decisions/0019-noise-on-a-grid.md)
  table of k       exact: a word equal to one of the 63-bit thresholds is decided with more bits, as is the end
  acceptance       exact: float64 gives exp(-x) with a relative error <= 2^-45 (u: 2^-53 + 2^-64; x: 2^-46 absolute for
                   k <= 10; exp: 2^-48, sixteen times what NumPy states); closer than 2^-40 is decided with more bits
  rounding         exact: 128-bit product; what the 64 bits of u leave open (stddev 2^-64) is decided with more bits
  more bits        a stream aside, named by the proposal: 128, 256, ... bits with Python's decimal, until it is decided
  total            total variation 0, epsilon 0. What remains is the assumption that ChaCha20 and HMAC-SHA-256 are
                   pseudo-random.

A sample is therefore a mathematical function of the keystream: no version of NumPy, exp or processor changes a bit.
Time is not constant (rejections, rare long decisions): it tells something of the noise to who can measure nanoseconds,
nothing of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from itertools import accumulate
from math import prod

import numpy as np

from npmdask.accounting import Charge
from npmdask.errors import BadInputError
from npmdask.privacy.mechanisms.noise_key import Keystream

CHUNK = 1 << 15  # proposals at a time: what they need stays in a core's cache
LARGEST_SCALE = 1 << 48  # beyond, too many roundings would need more than 64 bits of u
MARGIN, LEAST = 2.0**-40, 2.0**-60  # float64 decides what is farther away, relative to a probability and absolutely
_HALF = np.uint64(1 << 63)
_LOW, _SHIFT = np.uint64((1 << 32) - 1), np.uint64(32)


@dataclass(frozen=True)
class _Law:
    """``weight(k)`` and ``exponent(k, u)``: minus the logarithms of the two probabilities, for float64 and decimal."""

    name: str
    weight: Callable[[int], Decimal]
    exponent: Callable


_GAUSSIAN = _Law("gaussian", lambda k: Decimal(k * k) / 2, lambda k, u: u * (k + u / 2))
_LAPLACE = _Law("laplace", Decimal, lambda k, u: u)


def rounded_gaussian(stddev: int, shape: tuple[int, ...], stream: Keystream) -> np.ndarray:
    """int64[shape]: independent nearest integers to N(0, stddev^2), exactly; ``stddev`` an integer in 1..2^48.

    Source: Karney, Sampling exactly from the normal distribution, ACM TOMS 42 (2016); see the module for what differs.
    """
    return _sample(_GAUSSIAN, _checked(stddev), shape, stream)


def rounded_laplace(scale: int, shape: tuple[int, ...], stream: Keystream) -> np.ndarray:
    """int64[shape]: independent nearest integers to Laplace(scale) (density exp(-|z|/scale)/(2 scale)), exactly."""
    return _sample(_LAPLACE, _checked(scale), shape, stream)


def sampler_slack() -> Charge:
    """Return the cost of any number of samples beyond the continuous mechanism: nothing (error budget above)."""
    return Charge()


def _checked(scale: int) -> int:
    if not isinstance(scale, (int, np.integer)) or isinstance(scale, bool) or not 1 <= scale <= LARGEST_SCALE:
        raise BadInputError(f"the scale of noise on the integers must be an integer in 1..2^48, not {scale!r}")
    return int(scale)


def _sample(law: _Law, scale: int, shape: tuple[int, ...], stream: Keystream) -> np.ndarray:
    noise = np.empty(prod(shape), dtype=np.int64)
    filled = offset = 0
    while filled < noise.size:
        missing = noise.size - filled
        proposals = min(CHUNK, missing + missing // 2 + 32)
        found = _Proposals(law, stream, offset, proposals).accepted(scale)[:missing]
        noise[filled : filled + found.size] = found
        filled, offset = filled + found.size, offset + proposals
    return noise.reshape(shape)


class _Proposals:
    """A chunk of proposals: float64 and 64 bits where they suffice, exact decisions where they do not."""

    def __init__(self, law: _Law, stream: Keystream, offset: int, count: int):
        self.law, self.stream, self.offset = law, stream, offset
        self.choice, self.u, self.v = stream.words(3 * count).reshape(3, count)

    def accepted(self, scale: int) -> np.ndarray:
        """int64: the accepted proposals, in order, times ``scale`` and rounded."""
        k = self._steps()
        kept = np.flatnonzero(self._accepts(k))
        size = k[kept] * scale + self._rounded(scale, kept)
        return np.where(self.choice[kept] & np.uint64(1), -size, size)

    def _steps(self) -> np.ndarray:
        word, thresholds = self.choice >> np.uint64(1), _thresholds(self.law)
        k = np.searchsorted(thresholds, word, side="left")
        tied = thresholds[k] == word  # the last one is the largest word there is
        for i in np.flatnonzero(tied):
            k[i] = _exact_step(self.law, self._bits(i, "choice", int(word[i]), 63))
        return k

    def _accepts(self, k: np.ndarray) -> np.ndarray:
        u, v = self.u * 2.0**-64, self.v * 2.0**-64
        probability = np.exp(-self.law.exponent(k, u))
        accepts = v < probability
        for i in np.flatnonzero(np.abs(v - probability) <= MARGIN * probability + LEAST):
            accepts[i] = _exact_accept(self.law, int(k[i]), self._u(i), self._bits(i, "v", int(self.v[i]), 64))
        return accepts

    def _rounded(self, scale: int, kept: np.ndarray) -> np.ndarray:
        high, low = _product(scale, self.u[kept])
        size = (high + (low >= _HALF)).astype(np.int64)
        for i in np.flatnonzero((low < _HALF) & (low > _HALF - np.uint64(scale))):
            size[i] = _exact_round(scale, self._u(kept[i]))
        return size

    def _u(self, i: int | np.integer) -> _Bits:
        return self._bits(i, "u", int(self.u[i]), 64)

    def _bits(self, i: int | np.integer, name: str, word: int, length: int) -> _Bits:
        return _Bits(self.stream, self.offset + int(i), name, word, length)


@dataclass(frozen=True)
class _Bits:
    """An infinite binary expansion in [0, 1): a word of the stream, then a stream aside."""

    stream: Keystream
    proposal: int
    name: str
    word: int
    length: int

    def first(self, bits: int) -> int:
        """Its first ``length + bits`` bits, as an integer (``bits`` a multiple of 8)."""
        more = self.stream.aside("more bits", self.name, self.proposal).read(bits // 8)
        return self.word << bits | int.from_bytes(more, "big")


def _product(scale: int, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The upper and lower 64 bits of ``scale * u`` (uint64)."""
    scale_high, scale_low = np.uint64(scale >> 32), np.uint64(scale & 0xFFFFFFFF)
    u_high, u_low = u >> _SHIFT, u & _LOW
    lowest = scale_low * u_low
    middle = scale_low * u_high + (lowest >> _SHIFT)
    other = scale_high * u_low + (middle & _LOW)
    return scale_high * u_high + (middle >> _SHIFT) + (other >> _SHIFT), (other << _SHIFT) | (lowest & _LOW)


@lru_cache
def _cumulative(law: _Law, digits: int) -> list[Decimal]:
    """Pr[step <= k] for k = 0, 1, ..., as long as it differs from 1; errors below 10^(8 - digits)."""
    with localcontext(Context(prec=digits)):
        weights = [Decimal(1)]
        while weights[-1] > Decimal(10) ** -digits:
            weights.append((-law.weight(len(weights))).exp())
        total = sum(weights)
        return [below / total for below in accumulate(weights)]


@lru_cache
def _thresholds(law: _Law) -> np.ndarray:
    """uint64: floor(2^63 Pr[step <= k]), until it is 2^63 - 1. A word below the k-th means step <= k for certain."""
    last = (1 << 63) - 1
    with localcontext(Context(prec=60)):
        floors = [int(below * (1 << 63)) for below in _cumulative(law, 60)]
    return np.array(floors[: floors.index(last) + 1], dtype=np.uint64)


def _exact_step(law: _Law, bits: _Bits) -> int:
    """The k whose interval of the cumulative distribution contains ``bits``."""
    more = 64
    while True:
        more *= 2
        low, unit = bits.first(more), Decimal(1 << (bits.length + more))
        with localcontext(Context(prec=(bits.length + more) // 2)) as context:  # more than 0.31 digits for a bit
            error = Decimal(10) ** (8 - context.prec)
            for k, below in enumerate(_cumulative(law, context.prec)):
                if Decimal(low + 1) / unit < below - error:
                    return k
                if Decimal(low) / unit <= below + error:
                    break  # between the two: not decided


def _exact_accept(law: _Law, k: int, u: _Bits, v: _Bits) -> bool:
    """Decide exactly whether ``v < exp(-exponent(k, u))``."""
    more = 64
    while True:
        more *= 2
        unit, low_u, low_v = Decimal(1 << (64 + more)), u.first(more), v.first(more)
        with localcontext(Context(prec=(64 + more) // 2)) as context:
            error = Decimal(10) ** (8 - context.prec)
            highest, lowest = ((-law.exponent(k, Decimal(low_u + end) / unit)).exp() for end in (0, 1))
            if Decimal(low_v + 1) / unit < lowest - error:
                return True
            if Decimal(low_v) / unit > highest + error:
                return False


def _exact_round(scale: int, u: _Bits) -> int:
    """The nearest integer to ``scale * u``."""
    more = 64
    while True:
        more *= 2
        bits, low = 64 + more, u.first(more)
        rounded = [(2 * scale * end + (1 << bits)) >> (bits + 1) for end in (low, low + 1)]
        if rounded[0] == rounded[1]:
            return rounded[0]
