"""What the centre of a distributed run makes of what its nodes announce and release: all of it is public.

Nodes whose noise is calibrated announce the event of their mechanism. The centre makes the same mechanism of it and
so knows, without asking, how much noise each release carries: independent in every node, so the variances add up.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from npmdask.accounting import Budget
from npmdask.algorithms import Result
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.federated.client import PATIENCE, Link, require_address
from npmdask.federated.operator import Group, NodeSum
from npmdask.federated.protocol import Announcement, tokens_for
from npmdask.numerics.random import Rounding
from npmdask.numerics.subspaces import Block
from npmdask.privacy.neighbors.registry import make_relation
from npmdask.privacy.power_release import MECHANISMS, likely_sine, released_arrays
from npmdask.storage.source import Source
from npmdask.theory.private import dist_comm


@dataclass(frozen=True, kw_only=True)
class NodesParts:
    """The pieces of a distributed run that the rest of the problem does not have.

    ``mechanisms``: of each node, None of one without noise.
    """

    group: Group
    mechanisms: tuple[Any, ...]
    scale: float
    target_rank: int
    releases: int | None

    @property
    def private(self) -> bool:
        """Whether any of the nodes adds noise."""
        return any(mechanism is not None for mechanism in self.mechanisms)

    @property
    def most_steps(self) -> int:
        """The most products that every node makes for one job."""
        return min(announced.max_steps for announced in self.group.announced)

    def operator(self) -> NodeSum:
        """The sum of the nodes."""
        return NodeSum(reader=self.group, scale=self.scale)

    def noise_stddev(self, block: Block) -> float:
        """Of an entry of the sum: each node adds its own noise, so s of them add sqrt(s) times as much as one."""
        levels = [mechanism.noise_stddev(block) for mechanism in self.mechanisms if mechanism is not None]
        return self.scale * math.sqrt(sum(level**2 for level in levels))

    # As a mechanism: the noise is in what the nodes answer.

    @property
    def stddev(self) -> float:
        """0 if no node adds noise; otherwise that for a sensitivity of 1. What a release has: ``noise_stddev``."""
        return self.scale * math.sqrt(sum(m.stddev**2 for m in self.mechanisms if m is not None))

    def release(self, product: Block, *, block: Block, entropy: Any, step: int) -> Block:
        """The sum as it is: the nodes have released it."""
        return product

    def event(self) -> dict[str, Any]:
        """What a ledger would write down: nothing is added here."""
        return {"mechanism": "of the nodes", "private": self.private, "nodes": len(self.mechanisms)}

    # The answer

    def answer(
        self, source: Source, state: Any, result: Result, history: list[dict[str, Any]], p: int
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of a run whose nodes are private, and the statement that goes with them."""
        arrays = released_arrays(state, result, p, scale=1.0, root=source.kind == "sparse")
        sine = likely_sine(state, p, self.target_rank)
        levels = {"noise_stddev": [float(s) for s in state.stddevs[: state.step]], "predicted_error": sine}
        return arrays, self.statement(state.step) | levels

    def statement(self, steps: int) -> dict[str, Any]:
        """Who promises what, and what crossed between centre and nodes in ``steps`` steps."""
        d, p = self.group.block_shape
        count, traffic = len(self.mechanisms), asdict(self.group.link.traffic)
        return {
            "nodes": [
                _promise_of(url, announced, mechanism)
                for url, announced, mechanism in zip(
                    self.group.link.urls, self.group.announced, self.mechanisms, strict=True
                )
            ],
            "communication": traffic
            | {
                "numbers_by_theory": int(dist_comm(count, p, d, steps, "point_to_point").value),
                "numbers_with_broadcast": int(dist_comm(count, p, d, steps).value),
            },
            "values_are": "sums over the nodes" if self.scale == 1.0 else "divided by the number of rows of all nodes",
        }

    @property
    def promise(self) -> str:
        """What is promised, in a sentence."""
        said = []
        for announced, mechanism in zip(self.group.announced, self.mechanisms, strict=True):
            fact = _promise_of("", announced, mechanism)
            unit = (
                f"epsilon = {fact['epsilon']:g}, delta = {fact['delta']:g}, for {fact['protects']}" if mechanism else ""
            )
            said.append(unit or "nothing (no noise)")
        if len(set(said)) == 1:
            return f"each of {len(said)} nodes promises {said[0]}"
        return "; ".join(f"node {number} promises {what}" for number, what in enumerate(said, 1))


def _promise_of(url: str, announced: Announcement, mechanism: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"node": announced.node, "url": url, "rows": announced.rows, "private": announced.private}
    if mechanism is None:
        return facts | {"protects": "nothing: this node adds no noise"}
    charge, budget = mechanism.charge(), mechanism.budget
    return facts | {
        "relation": mechanism.relation.spec(),
        "protects": f"{mechanism.relation.describe()}, in the data of this node",
        "mechanism": announced.mechanism,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "mu": math.sqrt(charge.mu_squared),
        "charge": charge.as_dict(),
        "epsilon_spent": charge.epsilon_at(budget.delta),
        "releases": mechanism.releases,
    }


def open_nodes(urls: Sequence[str], patience: float = PATIENCE) -> Source:
    """The nodes at ``urls`` as a source, their public facts asked for.

    Raises
    ------
    BadInputError
        An address that is none, nodes that do not fit together, no token.
    LostError
        One of them is away.
    """
    if isinstance(urls, str) or not all(isinstance(url, str) for url in urls):
        raise BadInputError('nodes must be a list of addresses, like ["http://127.0.0.1:9001"]')
    addresses = tuple(url.rstrip("/") for url in urls)
    for url in addresses:
        require_address(url)
    link = Link(urls=addresses, tokens=tokens_for(addresses), patience=patience)
    group = Group(link=link, announced=link.announced())
    reader: Any = group
    return Source(
        path=" ".join(link.urls),
        kind=_kind_of(group.announced),
        reader=reader,
        fingerprint=_fingerprint(group.announced),
        registered=True,
    )


def _fingerprint(announced: tuple[Announcement, ...]) -> str:
    """Of what is public: the same nodes, in the same order, with the same promises."""
    return hashlib.sha256(json.dumps([a.as_dict() for a in announced], sort_keys=True).encode()).hexdigest()


def _kind_of(announced: tuple[Announcement, ...]) -> str:
    """What the values of the sum are: of samples, of a symmetric matrix, or singular values of all rows together."""
    for name in ("columns", "iteration_rank"):
        found = [getattr(a, name) for a in announced]
        if len(set(found)) > 1:
            raise BadInputError(f"the nodes differ in {name} ({', '.join(map(str, found))}): one sum needs one shape")
    if len({a.node for a in announced}) < len(announced):
        raise BadInputError("two of the addresses are the same node: its data would count twice")
    kinds = {"sparse" if a.kind == "matrix" else a.kind for a in announced}
    if len(kinds) > 1:
        raise BadInputError(f"the nodes hold data of kinds {', '.join(sorted(kinds))}: a sum of those has no meaning")
    return kinds.pop()


def make_parts(source: Source, k: int, p: int | None, max_steps: int | None) -> NodesParts:
    """Hold what is asked to what the nodes announce.

    Raises
    ------
    BadInputError
        A rank or a number of steps that the nodes do not allow, or an announcement that cannot be understood.
    """
    group: Any = source.reader
    announced, width = group.announced, group.block_shape[1]
    if p not in (None, width) or k > width:
        asked = f"iteration_rank = {p}" if p not in (None, width) else f"target_rank = {k}"
        raise BadInputError(f"{asked}: the nodes multiply blocks of {width} columns; leave iteration_rank out")
    mechanisms = tuple(_mechanism_of(a) for a in announced)
    releases = _releases(announced, max_steps)
    rows = [a.rows for a in announced]
    mean = source.kind == "samples" and all(count is not None for count in rows)
    scale = 1.0 / sum(rows) if mean else 1.0
    return NodesParts(group=group, mechanisms=mechanisms, scale=scale, target_rank=k, releases=releases)


def _releases(announced: tuple[Announcement, ...], max_steps: int | None) -> int | None:
    """How many releases there will be, where nodes are private; each has calibrated its noise for a number."""
    fixed = sorted({a.max_steps for a in announced if a.private})
    if len(fixed) > 1 or (fixed and max_steps not in (None, fixed[0])):
        asked = "" if max_steps is None else f" and max_steps = {max_steps} is asked for"
        raise BadInputError(
            f"the nodes have calibrated their noise for {' and '.join(map(str, fixed))} releases{asked}: these numbers "
            "must be one (max_steps in every configuration; it may be left out at the centre)"
        )
    steps = fixed[0] if fixed else max_steps
    most = min(a.max_steps for a in announced)
    if steps is not None and steps > most:
        raise BadInputError(f"max_steps = {steps}: a node makes at most {most} products for one job")
    return fixed[0] if fixed else None


def _mechanism_of(announced: Announcement) -> Any:
    """The mechanism that a node announces, made anew from its public numbers; None without noise."""
    event = announced.mechanism
    if not announced.private:
        return None
    try:
        made = MECHANISMS[str(event["mechanism"]).removeprefix("private-")](
            relation=make_relation(**event["relation"]),
            budget=Budget(**event["budget"]),
            releases=event["releases"],
            rounding=Rounding(**event["rounding"]),
            calibration=event["calibration"],
        )
    except (KeyError, TypeError, ValueError, NpmdaskError) as error:
        raise BadInputError(f"node {announced.node} announces a mechanism that makes no sense here: {error}") from None
    if json.dumps(made.event(), sort_keys=True) != json.dumps(event, sort_keys=True):
        raise RefusedError(
            f"node {announced.node} announces other noise than this version computes for the same promise: use the "
            "same npmdask on the centre and on every node"
        )
    return made
