"""Exact Gaussian privacy: against 60 digits, against Google's privacy loss distributions, and never too small."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import mpmath
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.accounting import delta_for, epsilon_for, log_delta, mu_for
from npmdask.errors import BadInputError

MUS = [1e-12, 1e-6, 0.01, 0.1, 0.5, 1.0, 1.01, 2.0, 5.0, 12.0, 38.0, 200.0, 1e4]
EPSILONS = [0.0, 1e-9, 1e-6, 1e-3, 0.1, 1.0, 5.0, 13.0, 60.0, 700.0, 2e4]


def exact_log_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """log of Phi(-e / mu + mu / 2) - exp(e) Phi(-e / mu - mu / 2), with as many digits as it takes."""
    with mpmath.workdps(200):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        u = e / m - m / 2
        if u > 1e4:  # ncdf of such numbers takes too many digits: the difference of Mills ratios
            return -u * u / 2 - mpmath.log(2 * mpmath.pi) / 2 + mpmath.log(_mills(u) - _mills(u + m))
        return mpmath.log(mpmath.ncdf(-u) - mpmath.exp(e) * mpmath.ncdf(-u - m))


def _mills(z: mpmath.mpf) -> mpmath.mpf:
    """Laplace's asymptotic series of (1 - Phi(z)) / phi(z) for z > 10^4: 30 terms are exact to 200 digits."""
    return sum((-1) ** n * mpmath.fac2(2 * n - 1) / z ** (2 * n + 1) for n in range(30))


@pytest.mark.slow
@pytest.mark.parametrize("mu", MUS)
def test_log_delta_is_exact_and_never_below(mu: float) -> None:
    """Mutants: no quadrature (wrong for small mu), no rounding margin (below the truth somewhere)."""
    for epsilon in EPSILONS:
        exact, ours = exact_log_delta(mu, epsilon), log_delta(mu, epsilon)
        assert mpmath.mpf(ours) >= exact, (mu, epsilon)
        near = epsilon / mu
        allowed = 2e-12 + 1e-14 * abs(near - mu / 2) * (near + mu)
        assert mpmath.mpf(ours) - exact <= allowed, (mu, epsilon, float(ours - exact))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.floats(-8, 3), st.floats(-6, 2.8))
def test_log_delta_never_below_anywhere(log_mu: float, log_epsilon: float) -> None:
    mu, epsilon = 10.0**log_mu, 10.0**log_epsilon
    assert mpmath.mpf(log_delta(mu, epsilon)) >= exact_log_delta(mu, epsilon)


def test_the_ends() -> None:
    assert log_delta(0, 1) == -math.inf
    assert delta_for(0, 0) == 0
    assert delta_for(math.inf, 3) == 1
    assert log_delta(1, math.inf) == -math.inf
    assert -math.inf < log_delta(1e-300, 1.0) < -1e300  # not zero: not zero is the truth
    assert 0 < delta_for(1.0, 39.2) < 1e-300
    assert epsilon_for(0, 1e-6) == epsilon_for(3, 1) == 0
    assert epsilon_for(1e-3, 0.01) == 0  # total variation alone is below delta
    assert epsilon_for(1, 0) == epsilon_for(1e200, 1e-6) == math.inf
    assert mu_for(1, 0) == 0
    assert delta_for(0.3, 0) == pytest.approx(math.erf(0.3 / 2 / math.sqrt(2)), rel=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 1.0, 8.0, 60.0, 700.0])
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-6, 1e-15, 1e-100, 1e-300])
def test_inverses_are_tight_and_on_the_safe_side(epsilon: float, delta: float) -> None:
    """mu certified with 200 digits; one part in 10^9 more would break the promise (the mutant: rounded up)."""
    mu = mu_for(epsilon, delta)
    target = mpmath.log(mpmath.mpf(delta))
    assert exact_log_delta(mu, epsilon) <= target < exact_log_delta(mu * (1 + 1e-9), epsilon)
    back = epsilon_for(mu, delta)
    assert back == pytest.approx(epsilon, rel=1e-9)
    assert exact_log_delta(mu, back) <= target


def test_huge_and_tiny_mu_have_their_epsilon() -> None:
    for mu in (1e-9, 1e-4, 30.0, 1e3, 1e6):
        epsilon = epsilon_for(mu, 1e-12)
        assert exact_log_delta(mu, epsilon) <= mpmath.log(mpmath.mpf(1e-12))
        assert epsilon == 0 or exact_log_delta(mu, epsilon * (1 - 1e-8)) > mpmath.log(mpmath.mpf(1e-12))


@pytest.mark.parametrize(("epsilon", "mu"), [(0.1, 0.02754), (0.5, 0.12411), (1, 0.23670), (4, 0.83786), (10, 1.84813)])
def test_known_values_at_one_in_a_million(epsilon: float, mu: float) -> None:
    assert mu_for(epsilon, 1e-6) == pytest.approx(mu, abs=6e-6)


@pytest.mark.slow
def test_against_privacy_loss_distributions() -> None:
    """Google's dp-accounting: within 1e-6 (a benchmark row has the larger grid), and not below its lower estimate."""
    for epsilon, delta, steps in itertools.product((0.3, 1.0), (1e-3, 1e-8), (1, 1000)):
        stddev = math.sqrt(steps) / mu_for(epsilon, delta)
        accountant = pld.PLDAccountant()
        one = dp_accounting.GaussianDpEvent(stddev)
        accountant.compose(dp_accounting.SelfComposedDpEvent(one, steps))
        ours = epsilon_for(math.sqrt(steps) / stddev, delta)
        assert ours == pytest.approx(accountant.get_epsilon(delta), rel=1e-6)
    for epsilon, delta in itertools.product((0.3, 1.0), (1e-3, 1e-6)):
        below = pld.privacy_loss_distribution.from_gaussian_mechanism(
            1 / mu_for(epsilon, delta), pessimistic_estimate=False, use_connect_dots=False
        )
        assert below.get_epsilon_for_delta(delta) <= epsilon_for(mu_for(epsilon, delta), delta)


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_nonsense_is_refused(wrong: float) -> None:
    for call in (lambda: log_delta(wrong, 1), lambda: log_delta(1, wrong), lambda: epsilon_for(1, wrong)):
        with pytest.raises(BadInputError):
            call()
    for epsilon, delta in ((wrong, 1e-6), (1, wrong), (math.inf, 1e-6), (1, 1.0), (1, 1.5)):
        with pytest.raises(BadInputError):
            mu_for(epsilon, delta)
