"""Grounds of a certificate, what noise and rounding add, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from npmdask.core.certificates.bounds import ALWAYS, SEEN, START, Certificate, Evidence, Level, certify
from npmdask.core.certificates.wording import health, sentence

EXACT = Evidence(values=np.array([4.0, 2.0, 1.0]), gram=np.zeros((3, 3)), k=2, d=5, nonnegative=True, trace=7.5)


def level(certificate: Certificate, ground: str) -> Level:
    return next(level for level in certificate.levels if level.ground == ground)


def test_the_trace_says_what_is_left() -> None:
    """7.5 - (4 + 2 + 1) = 0.5 is left for two more eigenvalues; with no residual 1 is the third, both vectors exact."""
    always = level(certify(EXACT), ALWAYS)
    assert always.following == always.left == pytest.approx(1.0)
    hidden = certify(replace(EXACT, values=EXACT.values[:2], gram=np.zeros((2, 2)))).levels[0]
    assert hidden.following == pytest.approx(1.5)  # seen only two: the 1.5 that are left could be one value
    assert always.sine == 0.0 and always.lost == 0.0
    np.testing.assert_allclose(always.upper, [4.0, 2.0])


def test_without_a_trace_nothing_is_known_for_certain() -> None:
    for evidence in (replace(EXACT, trace=None), replace(EXACT, nonnegative=False)):
        always = level(certify(evidence), ALWAYS)
        assert always.following == math.inf and always.sine == math.inf
        np.testing.assert_array_equal(always.upper, [math.inf, math.inf])


def test_a_trace_that_leaves_room_for_a_larger_value() -> None:
    """5 are left: a third value of 4 + 5 could be the first, so that nothing is claimed of the vectors."""
    always = level(certify(replace(EXACT, trace=12.0)), ALWAYS)
    assert always.sine == math.inf and always.upper[0] >= 4 + 5


def test_all_of_a_small_space_is_known() -> None:
    whole = Evidence(values=np.array([4.0, -2.0, 1.0]), gram=np.zeros((3, 3)), k=1, d=3, nonnegative=False)
    assert certify(whole).best.ground == ALWAYS and level(certify(whole), ALWAYS).sine == 0.0


def test_a_space_that_was_never_multiplied_claims_nothing_from_its_residuals() -> None:
    assert [level.ground for level in certify(replace(EXACT, multiplied=0)).levels] == [ALWAYS]


def test_no_start_no_ground_of_its_own() -> None:
    assert START not in [level.ground for level in certify(EXACT).levels]
    assert START in [level.ground for level in certify(replace(EXACT, columns=3, degree=9, powers=True)).levels]


def test_weaker_grounds_are_never_wider() -> None:
    evidence = replace(EXACT, gram=1e-4 * np.eye(3), trace=9.0, columns=3, degree=9, powers=True)
    levels = certify(evidence).levels
    assert [level.ground for level in levels] == [ALWAYS, START, SEEN]
    for wide, narrow in pairwise(levels):
        assert narrow.sine <= wide.sine and (narrow.upper <= wide.upper).all() and narrow.left <= wide.left


def test_noise_and_rounding_widen_everything() -> None:
    """e = 0.01 turns vectors by e / gap, moves values by e; the noise by at most that with probability 0.99."""
    moved = certify(replace(EXACT, rounding=0.01)).levels[-1]
    assert moved.upper[0] == pytest.approx(4.01) and moved.lower[1] == pytest.approx(1.99)
    assert moved.sine == pytest.approx(0.01 / (2 - 1 - 0.01), rel=1e-6)
    noisy = certify(replace(EXACT, stddev=1e-3, iterated=3))
    block = 1e-3 * (math.sqrt(5) + math.sqrt(3) + math.sqrt(2 * math.log(1 / 0.005)))
    assert noisy.perturbation > block and noisy.noisy


@pytest.mark.slow
def test_noise_is_as_large_as_is_said() -> None:
    """2,000 symmetric E that make noisy pairs exact: their norm is above the bound at most 1 % of the times."""
    d, p, rng = 20, 4, np.random.default_rng(0)
    bound = certify(replace(EXACT, d=d, stddev=1.0, iterated=p)).perturbation
    worst = 0
    for _ in range(2000):
        g = rng.standard_normal((d, p))  # in the basis [X, rest]
        top = (g[:p] + g[:p].T) / 2
        e = np.block([[top, g[p:].T], [g[p:], np.zeros((d - p, d - p))]])
        worst += np.linalg.norm(e, 2) > bound
    assert worst <= 20


def test_ties_are_not_told_apart_but_what_they_capture_is() -> None:
    tied = replace(EXACT, values=np.array([4.0, 2.0, 2.0]), gram=1e-12 * np.eye(3), trace=8.0 + 1e-9)
    best = certify(tied).best
    assert best.sine == math.inf and math.isfinite(best.component_sines[0]) and best.component_sines[1] == math.inf
    said = sentence(certify(tied))
    assert (
        "the components themselves cannot be distinguished from equally good ones, because the 3rd value may be" in said
    )
    assert "99.99" in said and "accurate to" in said


def test_sentences() -> None:
    always = sentence(certify(replace(EXACT, rounding=1e-12)))
    tilt = "the subspace of the 2 components is off by at most 5.8e-11 degrees"
    assert always == f"For these data the 2 values are accurate to 12 digits, and {tilt}."
    seen = sentence(certify(replace(EXACT, trace=None, gram=1e-8 * np.eye(3), rounding=1e-15)))
    assert seen.endswith(", assuming no larger value was missed (none was detected, but this run cannot rule it out).")
    start = replace(EXACT, trace=None, gram=1e-8 * np.eye(3), columns=3, degree=60, powers=True, rounding=1e-15)
    assert sentence(certify(start)).endswith(
        ", assuming the random start missed no direction (probability of a miss below 1 %)."
    )
    assert "the value is" in sentence(certify(replace(EXACT, k=1))) and "the component is off by" in sentence(
        certify(replace(EXACT, k=1))
    )
    little = sentence(certify(replace(EXACT, trace=None, multiplied=0, gram=np.eye(3))))
    assert little.startswith("The error of the answer cannot be bounded") and "within 50 % of a true one" in little


def test_roots_have_half_the_relative_error() -> None:
    evidence = replace(EXACT, rounding=0.04 * 4.0)
    assert "at most 8 % off" in sentence(certify(replace(evidence, k=2)))
    assert "accurate to 1 digit" in sentence(certify(replace(evidence, k=2)), singular=True)


def test_health() -> None:
    good = certify(EXACT)
    assert health(good, [1e-3, 1e-9], 1e-8, rate=None).word == "good"
    assert health(good, [1e-3, 1e-4], 1e-8, rate=None).word == "short"
    stuck = health(good, [1e-3, *[1e-4] * 6], 1e-8, rate=0.5)
    assert stuck.word == "stagnating" and "a factor of 0.5 a step" in stuck.sentence
    lost = certify(replace(EXACT, values=np.array([4.0, 1e-17, 0.0]), rounding=1e-15))
    assert health(lost, [1e-9], 1e-8, rate=None).word == "collapsed"


def test_an_eigenvalue_that_may_be_the_next_one_up_has_no_component() -> None:
    """0.999 with a residual of 0.05 may stand for 1.0018, above the first: neither is told from the other."""
    close = Evidence(
        values=np.array([1.0, 0.999, 0.1]), gram=np.diag([0, 0.05**2, 0]), k=2, d=50, nonnegative=True, trace=2.1
    )
    always = level(certify(close), ALWAYS)
    assert always.component_sines[1] == math.inf and always.sine < 0.06


def test_a_pair_of_both_signs_keeps_its_bounds_apart() -> None:
    """3 and -2.9999 with residuals in one direction: as if both were positive the bound of the second is too low."""
    r = 0.05
    exact = np.linalg.eigvalsh([[3.0, 0, 0, r], [0, -2.9999, 0, r], [0, 0, 0.1, 0], [r, r, 0, 0.05]])
    gram = r**2 * np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 0]])
    pair = Evidence(values=np.array([3.0, -2.9999, 0.1]), gram=gram, k=2, d=4, nonnegative=False, iterated=3)
    sizes = np.sort(np.abs(exact))[::-1]
    assert (certify(pair).levels[-1].upper >= sizes[:2]).all() and certify(pair).levels[-1].upper[1] < 3.1


def seen(values: list[float], residual: float = 0.0, **other: object) -> Level:
    """None missed: of these pairs of a Krylov space of 2 columns in 50 dimensions, k = 1 unless said otherwise."""
    known = {"k": 1, "d": 50, "nonnegative": True, "iterated": 2, "multiplied": 4} | other
    evidence = Evidence(values=np.array(values), gram=residual**2 * np.eye(len(values)), **known)  # type: ignore[arg-type]
    return certify(evidence).levels[-1]


def test_as_many_pairs_in_a_row_as_columns_may_be_more() -> None:
    """Of an eigenvalue that comes more often p columns see p, and go on to the next below it as if that were all."""
    tied = seen([1.0, 1.0, 1.0, 1.0, 0.3, 0.1, 0.0], k=4, iterated=5)  # four of five: the fifth is held badly
    assert tied.following == 1.0 and tied.sine == math.inf
    assert seen([1.0, 1.0, 1.0, 0.3, 0.2, 0.1, 0.0], k=3, iterated=5).following < 0.31
    near = [1.0, 1 - 1e-7, 1 - 2e-7, 1 - 3e-7, 0.3, 0.1, 0.0]
    assert seen(near, residual=1e-7, k=3, iterated=4).upper[0] > 1 + 1e-7  # apart by no more than the last may hide
    assert seen(near, residual=1e-9, k=3, iterated=4).upper[0] < 1 + 1e-14  # and by more
    assert seen([*near[:3], 0.5, *near[4:]], residual=1e-7, k=3, iterated=4).upper[0] < 1 + 1e-12
    rounded = [1.0, 1.0 - 1e-13, 1.0 - 2e-13, 1.0 - 3e-13, 0.3, 0.1, 0.0]
    assert seen(rounded, k=4, iterated=5).following < 0.31
    assert seen(rounded, k=4, iterated=5, rounding=2e-13).following > 0.99


def test_no_angle_without_a_column_more_than_components() -> None:
    """p = k: what a Krylov space has besides is there, and is not asked."""
    apart = [1.0, 0.5, 0.3, 0.1, 0.0]
    assert seen(apart, k=2).sine == math.inf
    assert seen(apart, k=2, iterated=3).sine < 1e-9
    assert seen(apart, k=2, iterated=2, locked=1).sine < 1e-9  # after deflation: 2 columns for one component


def test_pairs_of_an_older_checkpoint_are_fewer_than_columns() -> None:
    assert seen([1.0, 0.5], k=2, iterated=3).following >= 0.5


def test_a_gap_is_counted_from_the_smallest_pair_above_it() -> None:
    """Eigenvalues of 0 are rounded to either side of it: the last had a gap to tau, and one before it had none."""
    values = np.array([4.0, 0.0, -5e-17])
    whole = Evidence(values=values, gram=1e-34 * np.eye(3), k=2, d=3, nonnegative=True, trace=4.0, rounding=1e-15)
    for evidence in (whole, replace(whole, nonnegative=False)):
        assert certify(evidence).best.upper[1] < 1e-14


def test_pairs_of_one_sign_say_nothing_of_the_other() -> None:
    """Converged negative values were taken for proof that no positive one, seen with a residual of 1e-5, is larger."""
    values, norms = np.array([-1.0, -1 + 2e-7, 1 - 3e-7, 0.5]), np.array([1e-15, 1e-15, 1e-5, 1e-15])
    evidence = Evidence(values=values, gram=np.diag(norms**2), k=2, d=40, nonnegative=False, iterated=8, multiplied=4)
    found = level(certify(evidence), SEEN)
    assert found.upper[0] > 1 + 1e-6 and found.upper[1] >= 1
    alike = level(certify(replace(evidence, values=np.abs(values))), SEEN)
    np.testing.assert_allclose(alike.upper, abs(values[:2]), rtol=1e-12)
