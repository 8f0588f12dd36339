"""Budgets, charges, calibration and the papers' formulas."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from npmdask.accounting import (
    Budget,
    Charge,
    delta_for,
    epsilon_for,
    gaussian_charge,
    gaussian_multiplier,
    laplace_charge,
    laplace_multiplier,
    mu_for,
    paper_charge,
    paper_stddev,
    pure_as_gaussian,
    release_charge,
    require_sound,
)
from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.errors import BadInputError, RefusedError
from npmdask.privacy.neighbors import make_relation

ONE = Budget(1.0, 1e-6)


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan, "1", True, None])
def test_budgets_that_promise_nothing(epsilon: object) -> None:
    with pytest.raises(BadInputError, match="epsilon"):
        Budget(epsilon, 1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [-1e-9, 1, math.nan, "0"])
def test_deltas_that_promise_nothing(delta: object) -> None:
    with pytest.raises(BadInputError, match="delta"):
        Budget(1.0, delta)  # type: ignore[arg-type]


def test_a_large_delta_is_warned_of() -> None:
    assert "publishing one record" in ONE.warning(10**6)
    assert ONE.warning(10**5) == ""


def test_charges_add_up_and_come_back() -> None:
    a, b = Charge(mu_squared=0.1, epsilon=0.2, delta=1e-9), Charge(mu_squared=0.2, epsilon=0.1)
    total = a + b
    assert (total.mu_squared, total.epsilon) >= (0.1 + 0.2, 0.2 + 0.1)  # rounded up, never down
    assert total.epsilon == pytest.approx(0.3, rel=1e-15) and total.delta == 1e-9
    assert a.times(3).mu_squared == pytest.approx(0.3) and a.times(0) == Charge()
    assert a + Charge() == a
    assert Charge.from_dict(total.as_dict()) == total
    assert Budget.from_dict(ONE.as_dict()) == ONE
    for broken in (lambda: Charge(mu_squared=-1.0), lambda: Charge.from_dict({"sigma": 1.0}), lambda: a.times(-1)):
        with pytest.raises(BadInputError):
            broken()


def test_a_sum_of_many_is_never_below_the_exact_sum() -> None:
    """Mutant: plain float addition, which loses a small charge beside a large one."""
    total = Charge(mu_squared=1.0)
    for _ in range(1000):
        total = total + Charge(mu_squared=1e-17)
    assert total.mu_squared >= 1 + 1e-14


def test_where_slack_is_the_limit_the_calibration_and_the_ledger_agree() -> None:
    """The best epsilon is far below the budget's and nearly a double root. Mutant: the iteration from below alone."""
    budget, slack = Budget(100.0, 1e-4), Charge(epsilon=0.1, delta=1e-14)
    cost = gaussian_charge(gaussian_multiplier(budget, 1, slack), 1) + slack
    assert cost.within(budget)
    assert not (cost + Charge(mu_squared=0.01)).within(budget)


def test_an_exact_sum_is_not_rounded() -> None:
    """Four runs of 0.25 fit a grant of 1. Mutant: the next float in any case."""
    quarter = Charge(epsilon=0.25)
    total = quarter + quarter + quarter + quarter
    assert total == quarter.times(4) == Charge(epsilon=1.0) and total.within(Budget(1.0))
    assert not (total + Charge(epsilon=5e-324)).within(Budget(1.0))


@pytest.mark.slow
@given(st.floats(0, 1e308), st.floats(0, 1e308), st.integers(0, 10**6))
def test_sums_and_products_are_the_next_floats_above_the_exact_ones(a: float, b: float, count: int) -> None:
    """In fractions: no float below would do, the one that is given does. Mutants: plain addition; always one more."""
    both, many = Charge(epsilon=a) + Charge(epsilon=b), Charge(epsilon=a).times(count)
    for found, exact in ((both.epsilon, Fraction(a) + Fraction(b)), (many.epsilon, Fraction(a) * count)):
        assert found == math.inf or Fraction(found) >= exact
        assert found == 0 or Fraction(math.nextafter(found, 0.0)) < exact


@pytest.mark.parametrize("charge", [Charge(), Charge(epsilon=0.5), Charge(mu_squared=0.05)])
def test_single_parts(charge: Charge) -> None:
    assert charge.epsilon_at(1e-6) == pytest.approx(max(charge.epsilon, epsilon_for(charge.mu, 1e-6)), rel=1e-12)
    assert (charge.epsilon_at(0) == math.inf) == (charge.mu_squared > 0)
    assert charge.within(Budget(1.0, 1e-6))
    assert not charge.within(Budget(0.4, 1e-6)) or not charge.epsilon + charge.mu_squared


@pytest.mark.slow
def test_gaussian_and_laplace_against_privacy_loss_distributions() -> None:
    """Never below Google's composition, rounded down by it; mutants: the pure part dropped, or at half its size."""
    for stddev, scale, delta in itertools.product((3.0, 8.0), (4.0, 30.0), (1e-4, 1e-7)):
        truth = losses.from_gaussian_mechanism(stddev, pessimistic_estimate=False, use_connect_dots=False).compose(
            losses.from_laplace_mechanism(scale, pessimistic_estimate=False, use_connect_dots=False)
        )
        charge = gaussian_charge(stddev, 1) + laplace_charge(scale, 1)
        exact = truth.get_epsilon_for_delta(delta)
        assert exact <= charge.epsilon_at(delta) <= exact + 2 / scale
        assert truth.get_delta_for_epsilon(1.0) <= charge.delta_at(1.0)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.floats(0.05, 3), st.floats(0, 0.05), st.floats(0, 2e-3), st.floats(0.1, 2), st.floats(0, 0.3))
def test_the_worst_sampler_keeps_what_delta_at_promises(
    mu: float, a: float, tv: float, epsilon: float, pure: float
) -> None:
    """Adversarial sampler and pure release on a finite space; mutants: tv once instead of 1 + e^epsilon times, or a."""
    edges = np.concatenate([[-np.inf], np.linspace(-6, 6, 400), [np.inf]])
    p, q = np.diff(norm.cdf(edges, loc=mu)), np.diff(norm.cdf(edges))
    likely, unlikely = math.exp(pure) / (1 + math.exp(pure)), 1 / (1 + math.exp(pure))  # randomised response
    p, q = np.concatenate([p * likely, p * unlikely]), np.concatenate([q * unlikely, q * likely])
    event = p > math.exp(epsilon - 2 * a) * q  # what the attacker bets on
    in_p, in_q = p[event].sum(), q[event].sum()
    louder = min(math.exp(a) * in_p, 1 - math.exp(-a) * (1 - in_p))  # what is left keeps its factor, too
    quieter = max(math.exp(-a) * in_q, 1 - math.exp(a) * (1 - in_q))
    reached = min(louder + tv, 1.0) - math.exp(epsilon) * max(quieter - tv, 0.0)
    assert reached <= Charge(mu_squared=mu**2, epsilon=2 * a + pure, delta=tv).delta_at(epsilon) + 1e-15


def test_slack_is_paid_for() -> None:
    charge = Charge(mu_squared=mu_for(1.0, 1e-6) ** 2, delta=1e-8)
    epsilon = charge.epsilon_at(1e-6)
    assert 1.0 < epsilon < 1.01
    assert charge.delta_at(epsilon) <= 1e-6 < charge.delta_at(epsilon * (1 - 1e-9))
    assert charge.delta_at(epsilon) == pytest.approx(
        delta_for(charge.mu, epsilon) + (1 + math.exp(epsilon)) * 1e-8, rel=1e-9
    )
    assert Charge(delta=1e-6).epsilon_at(1e-6) == math.inf
    assert Charge(mu_squared=1.0, delta=1e-12).delta_at(1000.0) == 1.0
    assert Charge(mu_squared=1.0, delta=1e-12).within(Budget(1000.0, 1e-6))  # a smaller epsilon holds as well


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.floats(-6, 2.8), st.floats(-300, -2), st.integers(1, 10**6), st.floats(-8, -3), st.floats(-20, -3))
def test_a_multiplier_costs_what_the_budget_has(
    log_epsilon: float, log_delta: float, releases: int, log_part: float, log_tv: float
) -> None:
    budget = Budget(10.0**log_epsilon, 10.0**log_delta)
    slack = Charge(epsilon=budget.epsilon * 10.0**log_part, delta=budget.delta * 10.0**log_tv)
    for extra in (Charge(), slack):
        multiplier = gaussian_multiplier(budget, releases, extra)
        cost = gaussian_charge(multiplier, releases) + extra
        assert cost.within(budget)
        tighter = gaussian_charge(multiplier * (1 - 1e-9), releases)
        assert extra != Charge() or not tighter.within(budget)


def test_three_runs_of_a_third_fit_and_a_fourth_does_not() -> None:
    one = gaussian_charge(gaussian_multiplier(ONE, 3 * 7), 7)
    assert (one + one + one).within(ONE)
    assert not (one + one + one + one).within(ONE)


def test_laplace_spends_epsilon_and_nothing_else() -> None:
    multiplier = laplace_multiplier(Budget(2.0), 7)
    assert multiplier == pytest.approx(3.5, rel=1e-11)
    assert laplace_charge(multiplier, 7).within(Budget(2.0))
    assert not laplace_charge(multiplier * (1 - 1e-9), 7).within(Budget(2.0))
    slack = Charge(epsilon=0.5, delta=1e-9)
    assert laplace_multiplier(Budget(2.0, 1e-6), 6, slack) == pytest.approx(4.0, rel=1e-11)
    for budget in (Budget(2.0), Budget(0.5, 1e-6)):  # no delta for the slack; no epsilon besides it
        with pytest.raises(RefusedError, match="uses the budget up"):
            laplace_multiplier(budget, 6, slack)


def test_calibrations_that_cannot_be() -> None:
    with pytest.raises(BadInputError, match="cannot give delta = 0"):
        gaussian_multiplier(Budget(1.0), 5)
    for releases in (0, -1, 2.5, True):
        with pytest.raises(BadInputError, match="max_steps"):
            gaussian_multiplier(ONE, releases)  # type: ignore[arg-type]
    for slack in (Charge(epsilon=1.5), Charge(delta=1e-6), Charge(mu_squared=1.0)):
        with pytest.raises(RefusedError, match="uses the budget up"):
            gaussian_multiplier(ONE, 5, slack)
    with pytest.raises(BadInputError, match="Gaussian releases separately"):
        laplace_multiplier(ONE, 5, Charge(mu_squared=1e-9))


@pytest.mark.parametrize("releases", [1, 10, 100, 2000])
def test_hardt_and_price_over_noise_by_seventy_six_percent(releases: int) -> None:
    for p in (1, 5):
        paper = paper_stddev("spectral_norm", np.eye(9, p), p, releases, ONE)
        exact = gaussian_multiplier(ONE, releases) * math.sqrt(p)
        assert paper / exact == pytest.approx(1.7596, abs=1e-4)


@pytest.mark.parametrize(
    ("delta", "epsilon", "single", "pair"),
    [
        (1e-6, 0.1, 0.0463, 0.0673),
        (1e-6, 1, 0.545, 0.790),
        (1e-6, 4, 2.444, 3.590),
        (1e-6, 10, 6.873, 10.354),
        (1e-5, 10, 6.903, 10.518),
        (1e-3, 10, 7.100, 11.272),
        (1e-9, 10, 6.850, 10.114),
    ],
)
def test_what_the_papers_formula_costs(delta: float, epsilon: float, single: float, pair: float) -> None:
    for name, cost in (("entry", single), ("symmetric_entry", pair)):
        found = paper_charge(name, 6, 11, Budget(epsilon, delta)).epsilon_at(delta)
        assert found == pytest.approx(cost, abs=6e-4)
        if cost <= epsilon:
            assert require_sound(name, 6, 11, Budget(epsilon, delta)).within(Budget(epsilon, delta))
        else:
            with pytest.raises(RefusedError, match=f"gives epsilon = {found:.6g} in the worst case"):
                require_sound(name, 6, 11, Budget(epsilon, delta))


@pytest.mark.parametrize(("delta", "pair", "single"), [(1e-3, 6.98, 24.5), (1e-6, 8.34, 41.8), (1e-9, 9.20, 58.6)])
def test_where_the_papers_formula_ends(delta: float, pair: float, single: float) -> None:
    for name, critical in (("symmetric_entry", pair), ("entry", single)):
        require_sound(name, 4, 3, Budget(critical * 0.997, delta))
        with pytest.raises(RefusedError):
            require_sound(name, 4, 3, Budget(critical * 1.003, delta))


def test_the_papers_laplace_is_ten_times_too_loud() -> None:
    assert require_sound("spectral_norm", 3, 9, Budget(1.0), "laplace").epsilon == pytest.approx(0.1)
    block = random_orthonormal(50, 3, np.random.default_rng(0))
    scale = make_relation("spectral_norm", clip_norm=1.0).sensitivity(block, "l1") * laplace_multiplier(Budget(1.0), 9)
    paper = paper_stddev("spectral_norm", block, 3, 9, Budget(1.0), "laplace")
    assert paper == pytest.approx(10 * math.sqrt(2) * scale)


def test_the_worst_case_over_blocks_is_reached() -> None:
    """p = 1, d = 2, X = (1, 1) / sqrt(2): the pair that breaks the paper's formula; sup of sensitivity / stddev."""
    block, budget, releases = np.full((2, 1), math.sqrt(0.5)), Budget(10.0, 1e-6), 7
    for name in ("entry", "symmetric_entry"):
        spent = make_relation(name, clip_norm=1.0).sensitivity(block) / paper_stddev(name, block, 1, releases, budget)
        assert releases * spent**2 == pytest.approx(paper_charge(name, 1, releases, budget).mu_squared, rel=1e-8)


@pytest.mark.parametrize(("name", "target"), [("entry", 0.35), ("symmetric_entry", 0.5)])
def test_noise_against_hardt_and_price(name: str, target: float) -> None:
    """epsilon = 1, delta = 1e-6, d = 1000, p = 10; a random X. Mutant: sensitivity sqrt(p) max |X_ij|."""
    block = random_orthonormal(1000, 10, np.random.default_rng(3))
    ours = gaussian_multiplier(ONE, 20) * make_relation(name, clip_norm=1.0).sensitivity(block)
    assert 0.1 < ours / paper_stddev(name, block, 10, 20, ONE) <= target


def test_unknown_formulas() -> None:
    with pytest.raises(BadInputError, match="did you mean 'entry'"):
        paper_stddev("entri", np.eye(2), 2, 1, ONE)
    with pytest.raises(BadInputError, match="did you mean 'gaussian'"):
        paper_stddev("entry", np.eye(2), 2, 1, ONE, "gauss")
    with pytest.raises(BadInputError, match="needs delta > 0"):
        require_sound("entry", 2, 1, Budget(1.0))


@given(st.floats(0.0, 20.0), st.floats(1e-12, 0.5))
def test_any_release_is_charged_for_what_it_has(epsilon: float, delta: float) -> None:
    """The worst pair of an (epsilon, delta)-DP release is brought to a purely private one by moving what is charged.
    Fails with less (delta / (2 + e^epsilon)); more is paid for twice."""
    charge = release_charge(epsilon, delta)
    assert delta <= charge.delta_at(epsilon) <= delta * (1 + 1e-11)
    one = np.array([delta - charge.delta, charge.delta])
    assert np.all(one <= math.exp(epsilon) * one[::-1] * (1 + 1e-9))


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 3.0, 20.0])
def test_a_pure_release_is_no_easier_to_see_than_its_gaussian(epsilon: float) -> None:
    """Trade-off curves: G_mu below that of randomised response. Fails with mu = 1.2 epsilon, below sqrt(pi / 2)."""
    mu = pure_as_gaussian(epsilon).mu
    alpha = np.linspace(1e-6, 1 - 1e-6, 2001)
    gaussian = norm.cdf(norm.isf(alpha) - mu)
    pure = np.maximum.reduce([0 * alpha, 1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha)])
    assert np.all(gaussian <= pure + 1e-15)
    if epsilon < 0.2:
        middle = 1 / (1 + math.exp(epsilon))
        assert norm.cdf(norm.isf(middle) - mu) > 0.999 * middle
