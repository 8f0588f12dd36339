"""What a ledger promises, on either database."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from npmdask.accounting import Budget, Charge, epsilon_for, mu_for
from npmdask.core.numerics.random import Rounding
from npmdask.errors import BadInputError, BudgetError, RefusedError
from npmdask.ledger import Ledger, open_ledger
from npmdask.ledger.format import status_lines
from npmdask.privacy.mechanisms import PrivateGaussian, PrivateLaplace
from npmdask.privacy.neighbors import make_relation
from tests.ledger.conftest import BUDGET, EVENT, FINGERPRINT, RELATION, reserve, share

# Budgets


def test_runs_together_never_exceed_the_grant(ledger: Ledger) -> None:
    """Three times a third of mu squared, and not a fourth: epsilons would add up to less than two runs."""
    for number in range(3):
        reserve(ledger, f"day {number}", share(0.3333))
    with pytest.raises(BudgetError) as refused:
        reserve(ledger, "day 3", share(0.3333))
    status = ledger.status("visits")
    assert [run.run_id for run in status.runs] == ["day 0", "day 1", "day 2"]
    assert status.spent_epsilon == pytest.approx(epsilon_for(share(0.9999).mu, BUDGET.delta), rel=1e-9)
    asked, left = epsilon_for(share(0.3333).mu, BUDGET.delta), epsilon_for(share(0.0001).mu, BUDGET.delta)
    assert status.left_epsilon == pytest.approx(left, rel=1e-6)
    sentence = str(refused.value)
    assert (
        f"granted is epsilon = 3 at delta = 1e-08, earlier runs spent epsilon = {status.spent_epsilon:.1g}" in sentence
    )
    assert f"this one asks for epsilon = {asked:.3g}"[:-1] in sentence
    assert "Ask for a smaller epsilon" in sentence
    assert "--raise" in sentence


def test_all_that_is_left_may_be_asked_for(ledger: Ledger) -> None:
    reserve(ledger, "first", share(0.4))
    left = ledger.status("visits").left_epsilon
    too_much = Charge(mu_squared=1.0001 * share(0.6).mu_squared)
    with pytest.raises(BudgetError):
        reserve(ledger, "second", too_much)
    reserve(ledger, "second", Charge(mu_squared=mu_for(left, BUDGET.delta) ** 2))
    assert ledger.status("visits").left_epsilon < 0.01
    assert BUDGET.epsilon * (1 - 1e-6) < ledger.status("visits").spent_epsilon <= BUDGET.epsilon


def test_pure_epsilon_adds_up(address: str) -> None:
    ledger = open_ledger(address)
    ledger.grant("visits", fingerprint=FINGERPRINT, relation=RELATION, budget=Budget(1.0, 0.0))
    reserve(ledger, "first", Charge(epsilon=0.75))
    assert ledger.status("visits").left_epsilon == pytest.approx(0.25)
    with pytest.raises(BudgetError, match=r"a run may have epsilon = 0\.2\d+ and this one asks for epsilon = 0\.26"):
        reserve(ledger, "second", Charge(epsilon=0.26))
    with pytest.raises(BudgetError, match="more than any epsilon at this delta"):
        reserve(ledger, "gaussian", Charge(mu_squared=1e-6))
    reserve(ledger, "second", Charge(epsilon=0.2499))
    assert ledger.status("visits").spent_epsilon == pytest.approx(0.9999)


@pytest.mark.parametrize(
    ("budget", "spent", "shown"),
    [
        (Budget(2.0, 1e-6), Charge(), "epsilon = 2"),
        (Budget(0.3, 1e-9), Charge(), "epsilon = 0.3"),
        (Budget(1.23456, 1e-6), Charge(), "epsilon = 1.23456"),
        (Budget(1.23456789, 1e-6), Charge(), "epsilon = 1.234"),  # rounded, and down: 1.235 would be refused
        (Budget(1.0, 0.0), Charge(epsilon=0.7), "epsilon = 0.3"),
        (Budget(1.0, 0.0), Charge(epsilon=1 / 3), "epsilon = 0.6666"),
        (Budget(2.0, 1e-6), Charge(mu_squared=0.03), None),
        (Budget(2.0, 1e-6), Charge(epsilon=0.5), None),
        (Budget(0.7, 1e-7), Charge(mu_squared=0.001, epsilon=0.1), None),
    ],
)
def test_the_figure_that_is_shown_as_left_is_accepted_as_typed_and_hardly_more_is(
    budget: Budget, spent: Charge, shown: str | None, tmp_path: Path
) -> None:
    ledger = open_ledger(tmp_path / "l.sqlite")
    ledger.grant("visits", fingerprint=FINGERPRINT, relation=RELATION, budget=budget)
    if spent != Charge():
        reserve(ledger, "first", spent)
    (line,) = [said for said in status_lines(ledger.status("visits")) if said.startswith("  left")]
    figure = line.removeprefix("  left     ").removesuffix(" for one more run")
    assert shown is None or figure == shown
    epsilon = float(figure.removeprefix("epsilon = "))
    with pytest.raises(BudgetError):
        reserve(ledger, "too much", _charge_of(epsilon * 1.002, budget.delta))
    reserve(ledger, "as typed", _charge_of(epsilon, budget.delta))


def _charge_of(epsilon: float, delta: float) -> Charge:
    """What a private run reserves for a promise."""
    made = make_relation("record_replace", clip_norm=1.0)
    mechanism = PrivateGaussian if delta else PrivateLaplace
    return mechanism(
        budget=Budget(epsilon, delta), relation=made, releases=3, rounding=Rounding(grid=2.0**-20)
    ).charge()


def test_nothing_is_given_back(ledger: Ledger) -> None:
    """Neither by a run that ends early nor by one that released nothing."""
    reserve(ledger, "short", share(0.6))
    ledger.begin("short", 1)
    ledger.commit("short", 1, "d1")
    ledger.finish("short")
    reserve(ledger, "idle", share(0.3))
    ledger.finish("idle")
    with pytest.raises(BudgetError):
        reserve(ledger, "next", share(0.11))
    spent = ledger.status("visits").spent.mu_squared
    assert spent == pytest.approx(share(0.9).mu_squared, rel=1e-12)


@pytest.mark.parametrize("charge", [Charge(), Charge(mu_squared=float("inf"))])
def test_a_run_that_costs_nothing_is_refused(ledger: Ledger, charge: Charge) -> None:
    with pytest.raises(BadInputError, match="calibrate its noise"):
        reserve(ledger, "free", charge)


def test_without_a_grant_nothing_runs(ledger: Ledger) -> None:
    with pytest.raises(BudgetError, match="nothing is granted for the data set 'other'"):
        ledger.reserve("other", run_id="r", fingerprint="b", relation=RELATION, charge=share(0.1), releases=1, event={})
    with pytest.raises(BudgetError, match="nothing is granted"):
        ledger.status("other")


def test_without_a_ledger_nothing_runs(address: str) -> None:
    """And asking does not make one: an empty ledger by mistake would be found out late."""
    ledger = open_ledger(address)
    for ask in (lambda: reserve(ledger, "r", share(0.1)), lambda: ledger.begin("r", 1), ledger.entries):
        with pytest.raises(RefusedError, match=r"there is no ledger at .*npmdask ledger grant"):
            ask()


# The same run again, and another one under its name


def test_reserving_again_changes_nothing(ledger: Ledger) -> None:
    first = reserve(ledger, "run", share(0.7))
    assert reserve(ledger, "run", share(0.7)) == first
    assert len(ledger.entries()) == 2
    ledger.begin("run", 1)
    again = reserve(ledger, "run", share(0.7), event=dict(reversed(EVENT.items())))
    assert again == replace(first, begun=(1,))
    assert ledger.status("visits").spent == share(0.7)


def test_a_reservation_survives_what_comes_after_it(ledger: Ledger) -> None:
    """A run that is resumed after the budget was spent or the data changed goes on with what it reserved."""
    reserve(ledger, "run", share(0.7))
    reserve(ledger, "rest", share(0.3))
    ledger.grant("visits", fingerprint="b2" * 32, relation=RELATION, budget=BUDGET, data_changed=True)
    assert reserve(ledger, "run", share(0.7)).charge == share(0.7)


@pytest.mark.parametrize(
    "other",
    [
        {"charge": share(0.2)},
        {"releases": 4},
        {"event": {**EVENT, "stddev": 1.0}},
        {"relation": {**RELATION, "clip_norm": 2.0}},
        {"fingerprint": "b2" * 32},
    ],
)
def test_a_run_cannot_become_another(ledger: Ledger, other: dict[str, object]) -> None:
    asked = {"charge": share(0.1)}
    reserve(ledger, "run", **asked)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="run 'run' has reserved its budget for something else"):
        reserve(ledger, "run", **{**asked, **other})  # type: ignore[arg-type]
    assert ledger.status("visits").spent == share(0.1)


# Steps


def test_the_steps_of_a_run(ledger: Ledger) -> None:
    reserve(ledger, "run", share(0.5))
    for _ in range(2):  # each call twice: a process that died does not know whether it was heard
        ledger.begin("run", 1)
    for _ in range(2):
        ledger.commit("run", 1, "d1")
    ledger.begin("run", 2)
    run = ledger.run("run")
    assert (run.begun, run.committed, run.finished) == ((1, 2), {1: "d1"}, False)
    assert (run.charge, run.releases, run.event, run.dataset) == (share(0.5), 3, EVENT, "visits")
    for _ in range(2):
        ledger.finish("run")
    assert ledger.run("run").finished
    ledger.commit("run", 1, "d1")
    assert [entry.kind for entry in ledger.entries()] == [
        "grant", "reserve", "begin", "commit", "begin", "finish",
    ]  # fmt: skip


def test_a_step_has_one_release(ledger: Ledger) -> None:
    reserve(ledger, "run", share(0.5))
    ledger.begin("run", 1)
    ledger.commit("run", 1, "d1")
    with pytest.raises(RefusedError, match="release 1 of run 'run' was committed with other bytes before: released tw"):
        ledger.commit("run", 1, "d2")
    assert ledger.run("run").committed == {1: "d1"}


def test_a_step_is_announced_first_and_was_reserved(ledger: Ledger) -> None:
    reserve(ledger, "run", share(0.5))
    with pytest.raises(RefusedError, match="was not announced"):
        ledger.commit("run", 1, "d1")
    for step in (0, 4, -1):
        with pytest.raises(RefusedError, match="reserved 3 releases"):
            ledger.begin("run", step)
        with pytest.raises(RefusedError, match="reserved 3 releases"):
            ledger.commit("run", step, "d")
    for call in (lambda: ledger.begin("ghost", 1), lambda: ledger.commit("ghost", 1, "d"), lambda: ledger.run("ghost")):
        with pytest.raises(RefusedError, match="run 'ghost' has reserved nothing"):
            call()
    ledger.finish("run")
    with pytest.raises(RefusedError, match="is finished"):
        ledger.begin("run", 2)


# Grants


def test_granting_again(ledger: Ledger) -> None:
    asked = {"fingerprint": FINGERPRINT, "relation": RELATION}
    ledger.grant("visits", **asked, budget=BUDGET)  # type: ignore[arg-type]
    assert len(ledger.entries()) == 1
    for more in (Budget(4.0, 1e-8), Budget(3.0, 1e-7), Budget(1.0, 1e-7)):
        with pytest.raises(BudgetError, match="say so with --raise"):
            ledger.grant("visits", **asked, budget=more)  # type: ignore[arg-type]
    reserve(ledger, "run", share(0.9))
    for less in (Budget(2.0, 1e-8), Budget(3.0, 1e-12)):
        with pytest.raises(BudgetError, match="is less than what was spent"):
            ledger.grant("visits", **asked, budget=less, larger=True)  # type: ignore[arg-type]
    ledger.grant("visits", **asked, budget=Budget(2.999, 1e-8))  # type: ignore[arg-type]
    ledger.grant("visits", **asked, budget=Budget(6.0, 1e-8), larger=True)  # type: ignore[arg-type]
    assert ledger.status("visits").spent == share(0.9)
    reserve(ledger, "more", share(0.9))


def test_data_that_changed(ledger: Ledger) -> None:
    reserve(ledger, "run", share(0.6))
    with pytest.raises(BudgetError, match=r"fingerprint differs.*--data-changed"):
        reserve(ledger, "next", share(0.1), fingerprint="b2" * 32)
    with pytest.raises(BudgetError, match="fingerprint differs"):
        ledger.grant("visits", fingerprint="b2" * 32, relation=RELATION, budget=BUDGET)
    ledger.grant("visits", fingerprint="b2" * 32, relation=RELATION, budget=BUDGET, data_changed=True)
    with pytest.raises(BudgetError, match="fingerprint differs"):
        reserve(ledger, "next", share(0.1))  # of the old data
    with pytest.raises(BudgetError, match="does not suffice"):
        reserve(ledger, "next", share(0.5), fingerprint="b2" * 32)
    reserve(ledger, "next", share(0.4), fingerprint="b2" * 32)


def test_one_name_for_the_same_data(ledger: Ledger) -> None:
    ledger.grant("visits", fingerprint="b2" * 32, relation=RELATION, budget=BUDGET, data_changed=True)
    for fingerprint in (FINGERPRINT, "b2" * 32):  # what they were once, too
        with pytest.raises(BudgetError, match=r"have a budget already, as 'visits'.*paid for twice"):
            ledger.grant("again", fingerprint=fingerprint, relation=RELATION, budget=BUDGET)
    ledger.grant("others", fingerprint="c3" * 32, relation=RELATION, budget=BUDGET)
    with pytest.raises(BudgetError, match="as 'others'"):
        ledger.grant("visits", fingerprint="c3" * 32, relation=RELATION, budget=BUDGET, data_changed=True)


def test_data_sets_have_accounts_of_their_own(ledger: Ledger) -> None:
    ledger.grant("others", fingerprint="c3" * 32, relation=RELATION, budget=BUDGET)
    reserve(ledger, "run", share(0.9))
    ledger.reserve(
        "others", run_id="o", fingerprint="c3" * 32, relation=RELATION, charge=share(0.9), releases=1, event={}
    )
    assert [(s.dataset, s.spent) for s in ledger.statuses()] == [("visits", share(0.9)), ("others", share(0.9))]


ENTRY = {"name": "entry", "clip_norm": 5.0, "change": 1.0}
SPECTRAL = {"name": "spectral_norm", "clip_norm": 5.0, "change": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("granted", "asked", "fits"),
    [
        (RELATION, {**RELATION, "clip_norm": 2.0}, True),
        (RELATION, {"name": "record_zero_out", "clip_norm": 1.0}, False),
        (RELATION, {"name": "record_add_remove", "clip_norm": 1.0}, False),
        (ENTRY, {**ENTRY, "clip_norm": 1.0, "coherence": 3.0}, True),
        (ENTRY, {**ENTRY, "change": 0.5}, False),
        (ENTRY, {**ENTRY, "name": "symmetric_entry"}, False),
        (SPECTRAL, SPECTRAL, True),
        (SPECTRAL, {**SPECTRAL, "clip_norm": 4.0}, False),  # the promise is the data owner's
    ],
)
def test_losses_add_up_under_one_relation_only(
    address: str, granted: dict[str, object], asked: dict[str, object], fits: bool
) -> None:
    ledger = open_ledger(address)
    ledger.grant("visits", fingerprint=FINGERPRINT, relation=granted, budget=BUDGET)
    if fits:
        reserve(ledger, "run", share(0.1), relation=asked)
        return
    with pytest.raises(BudgetError, match=r"is under .*, the request under .* cannot be added up"):
        reserve(ledger, "run", share(0.1), relation=asked)
    ledger.grant("visits", fingerprint=FINGERPRINT, relation=asked, budget=BUDGET)  # nothing spent: put right
    reserve(ledger, "run", share(0.1), relation=asked)
    with pytest.raises(BudgetError, match="cannot be added up"):
        ledger.grant("visits", fingerprint=FINGERPRINT, relation=granted, budget=BUDGET)


@pytest.mark.parametrize("name", ["", " visits", "a\nb", "x" * 201])
def test_names_can_be_read(ledger: Ledger, name: str) -> None:
    with pytest.raises(BadInputError, match=r"is not a name|longer than"):
        ledger.grant(name, fingerprint="d", relation=RELATION, budget=BUDGET)
    with pytest.raises(BadInputError, match=r"is not a name|longer than"):
        reserve(ledger, name, share(0.1))


@pytest.mark.parametrize("event", [{"stddev": float("nan")}, {"stddev": float("inf")}, {"block": b"x"}])
def test_what_is_written_down_can_be_read_back(ledger: Ledger, event: dict[str, object]) -> None:
    with pytest.raises(BadInputError, match="event is not plain JSON"):
        reserve(ledger, "run", share(0.1), event=event)
