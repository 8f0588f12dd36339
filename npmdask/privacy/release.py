"""Releases of private data: charged, computed, and given away with calibrated noise only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from logging import WARNING
from typing import Any, ClassVar

import numpy as np

from npmdask.accounting import Budget
from npmdask.core.algorithms import Query
from npmdask.core.certificates.statements import with_assurance
from npmdask.core.checkpoint.logging import tell
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.release import RELEASES_ONLY, Answer, Disclosure, Passes, Released
from npmdask.core.storage.source import Source
from npmdask.privacy.account import Account
from npmdask.privacy.concerns import Asked, concerns, require_signal, weak_promise
from npmdask.privacy.request import Privacy


@dataclass(frozen=True, kw_only=True)
class PrivateRecipe:
    """Base of recipes whose data are local: what was asked for, and the mechanism that keeps it."""

    privacy: Privacy
    mechanism: Any

    private: ClassVar[bool] = True
    distributed: ClassVar[bool] = False
    disclosure: ClassVar[Disclosure] = RELEASES_ONLY

    def tables(self) -> dict[str, Any]:
        """The table of run.json that only a private run has."""
        return {"privacy": asdict(self.privacy)}

    def promise_concerns(self, source: Source) -> tuple[str, ...]:
        """Return what makes the promise weak."""
        return weak_promise(Budget(self.privacy.epsilon, self.privacy.delta), self.mechanism.relation, source.shape)

    def noise_concern(self) -> str | None:
        """None: what the noise leaves is compared with what data can have."""
        return None

    def answer_for(
        self, problem: Any, arrays: dict[str, np.ndarray], meta: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return a finished run's answer to ``problem``: what it stored, where that is all that was released."""
        return arrays, meta


class RecipeOfMechanism(PrivateRecipe):
    """A recipe whose mechanism says for which data it is, and how much it releases."""

    @property
    def relation(self) -> Any:
        """Which data the mechanism makes alike."""
        return self.mechanism.relation

    @property
    def releases(self) -> int:
        """Number of products, entries or rounds that the mechanism releases."""
        return int(self.mechanism.releases)


class PrivateRelease:
    """Products of private data: charged, computed, and given away with calibrated noise only.

    Parameters
    ----------
    problem : what is asked for; its recipe knows the operator, the mechanism and the statement.
    session : makes passes, and has the store of the run.
    """

    def __init__(self, problem: Any, session: Passes) -> None:
        self._problem, self._recipe, self._session = problem, problem.recipe, session
        self._account = Account(self._recipe.privacy, problem.source, self._recipe.mechanism, session.store)
        self._operator = self._recipe.operator(problem.source)
        self._concerns: tuple[str, ...] = ()

    def open(self, history: list[dict[str, Any]]) -> None:
        """Say what is weak, refuse what is hopeless, then charge the budget and find the key.

        Raises
        ------
        RefusedError
            The noise would bury everything; or the key of a run that has begun is gone.
        BudgetError
            The budget of the data set does not suffice, the data changed since the grant, or there is none.
        """
        self._concerns = concerns(self._problem)
        warn_before_charge(self._problem, self._concerns, self._session.store, history)
        self._account.open(history)
        self._session.start(self._problem.source.path)

    def product(self, query: Query, step: int) -> Released:
        """Charge the step, make one pass, add the noise, and write down the digest of what is released."""
        asked: Any = self._operator.asked(query)
        block = asked.prepare(query.block)  # on the grid of exact products
        self._account.begin(step)
        exact = self._session.one_pass(f"step {step}", asked, block, keep=False)[0]
        mechanism = self._recipe.mechanism_of(asked, self._problem.algorithm.iteration_rank, query)
        released = mechanism.release(exact, block=block, entropy=self._account.entropy, step=step)
        return Released(product=released, said=self._account.released(step, mechanism, block, released))

    def check(self, step: int, asymmetry: float) -> None:
        """Nothing: what a noisy product shows of the data is for the answer."""

    def judged(self, view: Any, before: list[Any], state: Any) -> Any:
        """The view as it is: the number of releases is fixed."""
        return view

    def angle(self, vectors: Block | None) -> None:
        """Show nothing: how far a release is from a known truth stays hidden."""

    def answer(self, state: Any, result: Any, view: Any, outcome: Any, history: list[dict[str, Any]]) -> Answer:
        """The answer made of releases and public numbers only, with the statement of what was promised."""
        return released_answer(self._problem, self._concerns, state, result, outcome, history)

    def settle(self) -> None:
        """Close the account and destroy the key."""
        self._account.settle()

    def shown(self, solution: Any, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> dict[str, Any]:
        """Nothing that was not released."""
        hidden = ("bytes_read", "dataset_bytes", "seconds", "peak_rss_bytes", "max_sin_theta", "fingerprint", "network")
        return dict.fromkeys(hidden) | {
            "peak_rss_by_process": (),
            "explained_share": None,
            **stated(solution, arrays, meta),
        }

    def close(self) -> None:
        """Nothing: the account is settled only after the answer is committed."""


def warn_before_charge(problem: Asked, found: tuple[str, ...], store: RunStore, history: list[dict[str, Any]]) -> None:
    """Before the first release log every concern, and refuse a run whose noise buries everything."""
    if history:
        return
    require_signal(problem)
    for concern in found:
        tell("warning", concern, run=store.path.name, level=WARNING, timeless=True)


def released_answer(
    problem: Any, found: tuple[str, ...], state: Any, result: Any, outcome: Any, history: list[dict[str, Any]]
) -> Answer:
    """The answer that a recipe makes of its releases."""
    arrays, statement = problem.recipe.answer(problem.source, state, result, history, problem.algorithm.iteration_rank)
    statement["warnings"] = [*found, *statement.get("warnings", [])]
    meta = {"outcome": asdict(outcome), "history": history, "total_data_passes": len(history)}
    meta |= {"statement": statement, "facts": result.facts}
    return Answer(arrays=arrays, meta=with_assurance(problem.kind, arrays, meta))


def stated(solution: Any, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> dict[str, Any]:
    """The statement of a release, as fields of a solution."""
    statement = meta["statement"]
    return {
        "statement": statement,
        "value_stddevs": arrays.get("value_stddevs"),
        "warnings": (*solution.warnings, *statement.get("warnings", [])),
    }
