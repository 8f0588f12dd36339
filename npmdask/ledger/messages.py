"""Word the messages of the ledger: why it refuses, and what to do."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context
from math import inf
from pathlib import Path
from typing import Any

from npmdask.accounting.budget import Budget, Charge

BAD_ADDRESS = (
    "the address of the ledger is not understood; use a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE "
    "(in memory there is no ledger: it has to outlive every run)"
)
NOTHING = "without the ledger nothing private is computed or released"


def no_ledger(where: str) -> str:
    return f"there is no ledger at {where}; the owner of the data makes it with `npmdask ledger grant`"


def unusable(where: str, error: BaseException) -> str:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    remedy = "fix that and run the same command again"
    if "locked" in said or "lock timeout" in said or "busy" in said:
        remedy = "another process holds it; look for one that hangs, then run the same command again"
    elif "malformed" in said or "not a database" in said:
        remedy = "put back a copy that is whole; what was reserved since that copy counts as spent all the same"
    return f"the ledger {where} cannot be used ({said}); {NOTHING}; {remedy}"


def damaged(where: str, what: str) -> str:
    return (
        f"the ledger {where} was changed by another program than npmdask: {what}; {NOTHING}. Put back a copy that is "
        "whole (compare it with the last `npmdask ledger export` that was kept elsewhere)"
    )


def older_than_run(where: str, seen: int, found: int) -> str:
    return (
        f"the ledger {where} is not the one that this run has written to, or an older copy of it was put back: the run "
        f"has seen {seen} entries, and there are {found} or others. What was spent since that copy is not in it; "
        f"{NOTHING}. Put back the newest copy, or use the ledger that the run began with"
    )


def other_ledger(mark: dict[str, Any], where: str) -> str:
    return (
        f"these data have a budget already, as {str(mark.get('dataset'))!r} in the ledger whose first entry is "
        f"{str(mark.get('ledger'))[:12]}; {where} is another one, or an older copy of it, and the same people would be "
        f"paid for twice: {NOTHING}. Use the newest copy of that ledger (--ledger); if it is lost for good, ingest the "
        "data again from what they were made of, and grant no more than was left"
    )


def other_version(where: str, found: int, known: int) -> str:
    return f"the ledger {where} has schema version {found}, this npmdask knows {known}; update npmdask"


def not_durable(where: str) -> str:
    return (
        f"the server of the ledger {where} runs with fsync or full_page_writes off: a power cut would undo what was "
        f"reserved; {NOTHING}. Set both to on"
    )


def readable_by_others(path: Path) -> str:
    return f"the ledger {path} can be read by others, and it is as secret as the data; run `chmod 600 {path}`"


def no_grant(dataset: str) -> str:
    return (
        f"nothing is granted for the data set {dataset!r}: its owner runs `npmdask ledger grant`; if it is granted "
        "under another name, give that name (dataset, --dataset)"
    )


def data_changed(dataset: str) -> str:
    return (
        f"the data are not those that the budget of {dataset!r} was granted for (their fingerprint differs); use the "
        "data that were, or let their owner grant it again with --data-changed, which keeps what is spent"
    )


def other_relation(dataset: str, granted: dict[str, Any], asked: dict[str, Any]) -> str:
    return (
        f"the budget of {dataset!r} is under {relation_words(granted)}, the request under {relation_words(asked)}; "
        "losses under different relations cannot be added up: ask under the relation of the grant"
    )


def relation_words(unit: dict[str, Any]) -> str:
    """The unit of a relation, with its parameters."""
    details = ", ".join(f"{name} = {value:g}" for name, value in unit.items() if name != "name")
    return f"{unit['name']} ({details})" if details else str(unit["name"])


def known_as(name: str, wanted: str) -> str:
    return (
        f"these data have a budget already, as {name!r}; under a second name ({wanted!r}) they would be paid for "
        f"twice. Use {name!r}"
    )


def same_people(name: str, wanted: str, share: float, few: int | None) -> str:
    return (
        f"these data and {name!r}, which has a budget, have about {100 * share:.0f} % of their records in common (of "
        f"the different records of the smaller one): under a second name ({wanted!r}) the same people would be paid "
        f"for twice. Grant it as {name!r} with --data-changed, which keeps what is spent; or, if these are other "
        f"people all the same, say why with --other-people REASON, which the ledger keeps.{_chance_text(few)}"
    )


def some_people(name: str, wanted: str, share: float, resolution: float, few: int | None) -> str:
    seen = f"; less than about {_percent(resolution)} would often not be seen" if resolution else ""
    return (
        f"these data and {name!r}, which has a budget, have about {_percent(share)} of their records in common (of the "
        f"different records of the smaller one{seen}). It is granted, but for the people in both, what is released "
        f"under {name!r} and under {wanted!r} adds up: leave them out of one of the two, or count on it."
        f"{_chance_text(few)}"
    )


def hardly_compared(name: str, wanted: str, compared: int, resolution: float) -> str:
    return (
        f"it is hardly known whether the people of {name!r} and {wanted!r} are the same: one of the two is so much "
        f"larger that only {compared} records of the smaller one could be looked for in it, and less than about "
        f"{_percent(resolution)} in common would often not be seen; if you know that one is a part of the other, grant "
        "both under one name"
    )


def _chance_text(few: int | None) -> str:
    return f" There are only {few} different records here, which other people may well share by chance." if few else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def no_sketch(names: list[str]) -> str:
    said = ", ".join(map(repr, names))
    return (
        f"{said}: granted by an earlier version, which kept no sketch of the records, so that it is not known whether "
        "the same people are in these data; run `npmdask ledger grant` for it again, as it was, to take one"
    )


def not_marked(source: str, error: BaseException) -> str:
    return (
        f"{source} cannot be written ({error}), so that exact runs on it will not warn that these data have a privacy "
        "budget"
    )


def larger(dataset: str, old: Budget, new: Budget) -> str:
    return (
        f"{dataset!r} has {amount(old)}; {amount(new)} is more, which lowers the protection of everybody in the data: "
        "say so with --raise"
    )


def below_spent(dataset: str, budget: Budget, spent: Charge) -> str:
    return f"{amount(budget)} is less than what was spent of {dataset!r} already ({cost(spent, budget)}); grant more"


def exceeded(dataset: str, budget: Budget, spent: Charge, asked: Charge, remaining: float) -> str:
    squares = " (losses add as squares, not as epsilons)" if budget.delta else ""
    began = f"the budget of {dataset!r} does not suffice: granted is {amount(budget)}, earlier runs spent "
    if asked.delta:  # what remains is stated for a run of Gaussian releases, which this is not
        return (
            f"{began}{cost(spent, budget)}, and this run has a delta of its own, which counts e^epsilon times beside "
            "what others spend: ask for a smaller delta (a hundredth, say) in [privacy], or choose a method whose "
            "releases are Gaussian (k-dp-pca with variant = 'tight')"
        )
    return (
        f"{began}{cost(spent, budget)}, so a run may have {left(remaining)} and this one asks for "
        f"{cost(asked, budget)}{squares}. Ask for a smaller epsilon (fewer steps alone do not help: the whole run "
        "spends what it asks for), or let the owner of the data grant more with --raise"
    )


def amount(budget: Budget) -> str:
    return f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g}"


def cost(charge: Charge, budget: Budget) -> str:
    """A charge as the epsilon that it is at the grant's delta, rounded up."""
    if not any(charge.as_dict().values()):
        return "nothing"
    epsilon = charge.epsilon_at(budget.delta)
    if epsilon == inf:
        return "more than any epsilon at this delta"
    return f"epsilon = {float(Context(prec=4, rounding=ROUND_CEILING).create_decimal_from_float(epsilon)):.4g}"


def left(epsilon: float) -> str:
    """Format the epsilon that may be asked for, a figure of ``status.askable_epsilon``: people copy it."""
    return f"epsilon = {epsilon:.6g}" if epsilon > 0 else "nothing"


def other_content(run_id: str) -> str:
    return (
        f"run {run_id!r} has reserved its budget for something else (other data, relation, noise or number of "
        "releases); start it under a new name, in a new store"
    )


def nothing_reserved(run_id: str) -> str:
    return f"run {run_id!r} has reserved nothing; {NOTHING}"


def not_reserved(run_id: str, step: int, releases: int) -> str:
    return f"run {run_id!r} reserved {releases} releases, numbered from 1, and asks for number {step}; it gets no more"


def run_over(run_id: str) -> str:
    return f"run {run_id!r} is finished: it releases nothing more; what it did not use stays spent"


def not_begun(run_id: str, step: int) -> str:
    return f"release {step} of run {run_id!r} was not announced before it was computed; it must not be published"


def released_twice(run_id: str, step: int) -> str:
    return (
        f"release {step} of run {run_id!r} was committed with other bytes before: released twice, it would cost more "
        "than was reserved. Delete the new one, and use the committed one"
    )
