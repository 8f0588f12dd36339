"""Noise on the integers: it has the distribution it should have, every decision is exact, and the wrong is rejected."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from scipy import stats

from npmdask.accounting import delta_for
from npmdask.errors import BadInputError
from npmdask.privacy.mechanisms import sampler
from npmdask.privacy.mechanisms.noise_key import Keystream
from npmdask.privacy.mechanisms.sampler import rounded_gaussian, rounded_laplace

ALPHA = 1e-6
LAWS = {"gaussian": rounded_gaussian, "laplace": rounded_laplace}
CONTINUOUS = {"gaussian": stats.norm, "laplace": stats.laplace}


def stream(number: int = 0) -> Keystream:
    return Keystream(hashlib.sha256(f"test {number}".encode()).digest())


def rounded_pmf(law: str, scale: float, points: np.ndarray) -> np.ndarray:
    """Probability of the integers ``points`` when a continuous deviate is rounded."""
    far = np.abs(points)  # upper tails: nothing cancels
    return CONTINUOUS[law].sf((far - 0.5) / scale) - CONTINUOUS[law].sf((far + 0.5) / scale)


def discrete_pmf(law: str, scale: float, points: np.ndarray) -> np.ndarray:
    """Probability in proportion to the density at the integer: the discrete Gaussian, the discrete Laplace."""
    weights = CONTINUOUS[law].pdf(points / scale)
    return weights / weights.sum()


def chi_square(samples: np.ndarray, pmf: Callable[[np.ndarray], np.ndarray], reach: int) -> float:
    """p-value of ``samples`` against ``pmf`` on -reach..reach, what lies beyond in the outermost cells."""
    points = np.arange(-reach, reach + 1)
    counts = np.bincount(np.clip(samples, -reach, reach) + reach, minlength=points.size)
    expected = pmf(np.arange(-40 * reach, 40 * reach + 1).astype(float))
    middle = expected[39 * reach : 41 * reach + 1].copy()
    middle[[0, -1]] += [expected[: 39 * reach].sum(), expected[41 * reach + 1 :].sum()]
    assert middle.min() * samples.size > 5
    return float(stats.chisquare(counts, middle * samples.size / middle.sum()).pvalue)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [1, 3, 17])
def test_small_scales_cell_by_cell_and_what_is_wrong_is_rejected(law: str, scale: int) -> None:
    """Mutants: sign of zero counted twice, u not below 1, threshold side="right", exponent with u instead of u/2."""
    samples = LAWS[law](scale, (2000, 1000), stream(1)).ravel()
    reach = 4 * scale
    assert chi_square(samples, lambda y: rounded_pmf(law, scale, y), reach) > ALPHA
    for wrong in (1.01, 0.99):
        assert chi_square(samples, lambda y, w=wrong: rounded_pmf(law, w * scale, y), reach) < ALPHA
    if scale <= 3:  # farther out the two have the same cells, to what two million samples can see
        assert chi_square(samples, lambda y: discrete_pmf(law, scale, y), reach) < ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [1000, 1 << 31, 1 << 40, 1 << 48])
def test_large_scales_follow_the_continuous_law_down_to_the_last_bit(law: str, scale: int) -> None:
    """Mutants: a lost carry in the 128-bit product, an upper word of it left out, scale + 1."""
    samples = LAWS[law](scale, (300_000,), stream(2))
    assert stats.kstest(samples / scale, CONTINUOUS[law].cdf).pvalue > ALPHA
    assert stats.kstest(samples / (1.05 * scale), CONTINUOUS[law].cdf).pvalue < ALPHA
    low = np.bincount(samples & 255, minlength=256)
    assert stats.chisquare(low).pvalue > ALPHA
    if scale > 1 << 30:  # a float32 generator on the same grid has no low bits
        coarse = np.rint(np.random.default_rng(0).standard_normal(300_000, dtype=np.float32).astype(float) * scale)
        assert stats.chisquare(np.bincount(coarse.astype(np.int64) & 255, minlength=256)).pvalue < ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_tails_are_as_heavy_as_they_should_be(law: str) -> None:
    """Mutants: the table of k one entry short, k clipped at 4."""
    samples = np.abs(LAWS[law](1 << 31, (4_000_000,), stream(3))) / 2**31
    for tail in (1e-2, 1e-3, 1e-4, 2e-5):
        threshold = CONTINUOUS[law].isf(tail / 2)
        count = int((samples > threshold).sum())
        assert stats.binomtest(count, samples.size, tail).pvalue > ALPHA
    assert stats.binomtest(0, samples.size, 2e-5).pvalue < ALPHA  # a tail that was cut off would be seen


@pytest.mark.slow
def test_coordinates_streams_and_signs_are_independent() -> None:
    """Mutants: words reused between chunks, the sign taken from a bit of k or of u."""
    noise = [rounded_gaussian(1 << 40, (300_000,), stream(number)).astype(float) for number in range(3)]
    pairs = [
        (noise[0], noise[1]),
        (noise[1], noise[2]),
        (noise[0][1:], noise[0][:-1]),
        (noise[0][1:] ** 2, noise[0][:-1]),
    ]
    pairs += [(noise[0][sampler.CHUNK :], noise[0][: -sampler.CHUNK]), (np.sign(noise[0]), np.abs(noise[0]))]
    for one, other in pairs:
        assert stats.pearsonr(one, other).pvalue > ALPHA
    assert np.unique(np.concatenate(noise)).size > 899_900  # two equal ones among 2^42 are rare
    mixed = noise[0] + 0.02 * noise[1]
    assert stats.pearsonr(mixed, noise[1]).pvalue < ALPHA  # two per cent of another stream would be seen


def test_bits_are_a_function_of_the_keystream_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exp that is wrong in its tenth digit, and no float64 decision at all: the same samples.

    Mutants: MARGIN = 1e-12 with the bad exp; more bits taken from the stream itself instead of from a stream aside.
    """
    expected = {law: draw((1 << 40) - 3, (3000,), stream(4)) for law, draw in LAWS.items()}
    exact_exp, rng = np.exp, np.random.default_rng(0)
    with monkeypatch.context() as patch:
        patch.setattr(sampler, "MARGIN", 1e-6)
        patch.setattr(np, "exp", lambda x: exact_exp(x) * (1 + 1e-9 * rng.uniform(-1, 1, np.shape(x))))
        for law, draw in LAWS.items():
            assert np.array_equal(draw((1 << 40) - 3, (3000,), stream(4)), expected[law])
    monkeypatch.setattr(sampler, "MARGIN", np.inf)
    for law, draw in LAWS.items():  # the first 200 of 3000 would come from a longer chunk
        exact = draw((1 << 40) - 3, (200,), stream(4))
        monkeypatch.setattr(sampler, "MARGIN", 2.0**-40)
        assert np.array_equal(draw((1 << 40) - 3, (200,), stream(4)), exact), law
        monkeypatch.setattr(sampler, "MARGIN", np.inf)


@pytest.mark.parametrize(
    ("law", "scale", "digest"),
    [
        ("gaussian", 1 << 31, "8e8d5d4d5e35c9bbbf7ce6b42719e1ab"),
        ("laplace", 1 << 31, "e339aea20cc8c9523c59519c9b74e174"),
    ],
)
def test_the_same_bits_on_every_machine_and_version(law: str, scale: int, digest: str) -> None:
    """A change here means that runs under way cannot be replayed: their noise would be drawn a second time."""
    noise = LAWS[law](scale, (100, 1000), stream(6)).astype("<i8")
    assert hashlib.sha256(noise.tobytes()).hexdigest()[:32] == digest


def proposals(law: str, count: int) -> sampler._Proposals:
    return sampler._Proposals(getattr(sampler, f"_{law.upper()}"), stream(7), 1000, count)


def endless(chunk: sampler._Proposals, i: int, name: str, word: int, length: int) -> Fraction:
    """A word and 2048 more bits."""
    more = stream(7).aside("more bits", name, 1000 + i).read(256)
    return Fraction(word << 2048 | int.from_bytes(more, "big"), 1 << (length + 2048))


@pytest.mark.parametrize("scale", [1, 3, 1000, (1 << 31) + 1, (1 << 40) - 3, 1 << 48])
def test_rounding_is_exact_where_64_bits_leave_it_open(scale: int) -> None:
    """Mutants: ``low >= _HALF`` alone (no more bits), ``_HALF - scale`` with +."""
    halves = [Fraction(2 * m + 1, 2 * scale) for m in {0, scale // 2, scale - 1, scale // 3}]
    words = [int(half * (1 << 64)) + near for half in halves for near in (-2, -1, 0, 1, 2)]
    words += [0, 1, (1 << 64) - 1]
    chunk = proposals("gaussian", len(words))
    chunk.u = np.array(words, dtype=np.uint64)
    found = chunk._rounded(scale, np.arange(len(words)))
    for i, word in enumerate(words):
        truth = scale * endless(chunk, i, "u", word, 64) + Fraction(1, 2)
        assert found[i] == truth.numerator // truth.denominator, (scale, word)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_steps_are_exact_at_the_thresholds_and_beyond_the_table(law: str) -> None:
    """Mutants: ties not decided; side="right"; a normaliser that is cut off early."""
    with localcontext(Context(prec=300)):
        weights = [(-Decimal(k * k) / 2 if law == "gaussian" else -Decimal(k)).exp() for k in range(600)]
        total = sum(weights)
        below = [part / total for part in list(accumulate(weights))[:120]]
    table = sampler._thresholds(getattr(sampler, f"_{law.upper()}"))
    assert table.tolist() == [int(b * (1 << 63)) for b in below[: table.size]] and int(table[-1]) == (1 << 63) - 1
    words = [min(max(int(t) + near, 0), (1 << 63) - 1) for t in table for near in (-1, 0, 0, 0, 1)]
    chunk = proposals(law, len(words))
    chunk.choice = np.array(words, dtype=np.uint64) << np.uint64(1)
    found = chunk._steps()
    with localcontext(Context(prec=300)):
        for i, word in enumerate(words):
            place = endless(chunk, i, "choice", word, 63)
            exact = Decimal(place.numerator) / Decimal(place.denominator)
            assert found[i] == sum(b < exact for b in below), (word, i)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_acceptance_is_exact_at_the_edge_where_float64_is_not(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: MARGIN = 0; exact decisions with v and u exchanged, or with too few bits."""
    chunk, count = proposals(law, 60), 60
    k, words = np.arange(count) % 4, []
    with localcontext(Context(prec=800)):
        edges = []
        for i in range(count):
            u = endless(chunk, i, "u", int(chunk.u[i]), 64)
            u_exact = Decimal(u.numerator) / Decimal(u.denominator)
            exponent = u_exact * (int(k[i]) + u_exact / 2) if law == "gaussian" else u_exact
            edges.append((-exponent).exp())
            words.append(int(edges[-1] * (1 << 64)) + i % 3 - 1)  # below, at, above the edge
        chunk.v = np.array(words, dtype=np.uint64)
        truth = []
        for i, edge in enumerate(edges):
            v = endless(chunk, i, "v", words[i], 64)
            truth.append(Decimal(v.numerator) / Decimal(v.denominator) < edge)
    assert chunk._accepts(k).tolist() == truth and 10 < sum(truth) < 50
    monkeypatch.setattr(sampler, "MARGIN", 0.0)
    monkeypatch.setattr(sampler, "LEAST", -1.0)
    assert chunk._accepts(k).tolist() != truth  # float64 alone is wrong here


@dataclass(frozen=True)
class Place:
    """The expansion of a number that is known, in place of one from a stream."""

    number: Fraction
    length: int

    def first(self, bits: int) -> int:
        return int(self.number * (1 << (self.length + bits)))


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("side", [-1, 1])
def test_what_200_bits_leave_open_is_decided_by_more(law: str, side: int) -> None:
    """Numbers 2^-400 from an edge. Mutants: an undecided comparison taken for decided, an error bound of 0."""
    near, spec = side * Fraction(1, 1 << 400), getattr(sampler, f"_{law.upper()}")
    with localcontext(Context(prec=300)):
        weights = [(-spec.weight(k)).exp() for k in range(600)]
        edges = [Fraction(below / sum(weights)) for below in list(accumulate(weights))[:8]]
        u = Decimal(3) / 8
        edge = Fraction((-spec.exponent(2, u)).exp())
    for k, place in enumerate(edges):
        assert sampler._exact_step(spec, Place(place + near, 63)) == (k if side < 0 else k + 1)  # type: ignore[arg-type]
    exact, moved = Place(Fraction(3, 8), 64), Place(edge + near, 64)
    assert sampler._exact_accept(spec, 2, exact, moved) == (side < 0)  # type: ignore[arg-type]
    half = Place(Fraction(7, 2 * 1000) + near, 64)
    assert sampler._exact_round(1000, half) == (3 if side < 0 else 4)  # type: ignore[arg-type]


class Noted(Keystream):
    """A keystream that notes what is drawn aside."""

    __slots__ = ("asides",)

    def aside(self, *purpose: str | int | bytes) -> Keystream:
        self.asides.append(purpose)
        return super().aside(*purpose)


def test_no_two_proposals_share_their_further_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: proposals counted from 0 in every chunk."""
    monkeypatch.setattr(sampler, "MARGIN", np.inf)
    monkeypatch.setattr(sampler, "CHUNK", 50)
    noted = Noted(bytes(32))
    noted.asides = []
    rounded_gaussian(3, (200,), noted)
    assert len(set(noted.asides)) == len(noted.asides) > 200


@pytest.mark.parametrize("shift", [1, 2, 4])
def test_rounded_noise_never_costs_more_than_the_continuous_one(shift: int) -> None:
    """The exact trade-off of round(N(0, 16)) lies within Gaussian DP; that of the discrete Gaussian does not."""
    points = np.arange(-400, 401).astype(float)
    excess = {}
    for name, pmf in (("rounded", rounded_pmf), ("discrete", discrete_pmf)):
        at, moved = pmf("gaussian", 4, points), pmf("gaussian", 4, points - shift)
        epsilons = np.linspace(0, 4 * shift / 4, 200)
        spent = np.array([np.maximum(at - np.exp(e) * moved, 0).sum() for e in epsilons])
        excess[name] = (spent - [delta_for(shift / 4, e) for e in epsilons]).max()
    assert excess["rounded"] < 1e-13 and excess["discrete"] > 1e-4


def test_the_discrete_gaussian_would_need_what_the_decision_says() -> None:
    """KL <= 1 / (320 stddev^4) between the two, so sqrt(count) / (24 stddev^2) in total variation."""
    for stddev in (3, 4, 16):
        points = np.arange(-12 * stddev, 12 * stddev + 1).astype(float)
        discrete, rounded = (pmf("gaussian", stddev, points) for pmf in (discrete_pmf, rounded_pmf))
        assert 1 / 600 < (discrete * np.log(discrete / rounded)).sum() * stddev**4 < 1 / 320


@pytest.mark.parametrize("scale", [0, -1, 3.7, (1 << 48) + 1, True, "3", float("nan")])
def test_scales_that_make_no_sense_are_refused(scale: object) -> None:
    for draw in LAWS.values():
        with pytest.raises(BadInputError, match="integer in 1"):
            draw(scale, (3,), stream())  # type: ignore[arg-type]


def test_shapes_and_types() -> None:
    for draw in LAWS.values():
        assert draw(5, (0, 3), stream()).shape == (0, 3)
        assert draw(np.int64(5), (2, 3), stream()).dtype == np.int64  # type: ignore[arg-type]
    assert sampler.sampler_slack().as_dict() == {"mu_squared": 0.0, "epsilon": 0.0, "delta": 0.0}
