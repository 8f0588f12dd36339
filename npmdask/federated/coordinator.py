"""Coordinate a distributed run: its nodes as one operator and one source, and the problem that is made of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from npmdask.accounting import Budget
from npmdask.core.algorithms import Algorithm, PowerMethod, Query, Result
from npmdask.core.algorithms.stopping import FixedSteps, Outcome, ResidualRule, StepView, StoppingRule, default_tol
from npmdask.core.certificates.recursions import gaussian_norm
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.random import Rounding
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import options_from
from npmdask.core.operators._protocol import OnePass, Partial, pending_sums
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.runs.problem import DEFAULT_STEPS, Earlier, Problem, Request, Route, ranks_of
from npmdask.core.runs.release import Answer, Disclosure, Released
from npmdask.core.runs.session import Session
from npmdask.core.runs.stopping_rules import low_rank_rule, without_low_rank
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, NpmdaskError, RefusedError, first_of
from npmdask.federated.client import PATIENCE, NodeConnections, Traffic, require_address
from npmdask.federated.protocol import Announcement, encoded_size, tokens_for
from npmdask.privacy.account import release_id_of
from npmdask.privacy.concerns import Asked, ReleaseNoise, concerns, first_query, largest_of, weak_promise
from npmdask.privacy.matrix_release import MECHANISMS, likely_sine_of_release, released_arrays
from npmdask.privacy.neighbors import make_relation
from npmdask.privacy.private_power import PrivatePower, begun_options, with_options
from npmdask.privacy.release import released_answer, stated, warn_before_charge
from npmdask.theory.private import dist_comm

TABLE = dict[str, dict[str, Any]]  # "nodes" of run.json: what each announced

# Combine what the nodes of a distributed run announce and release: all of it is public.
#
# Nodes whose noise is calibrated announce the event of their mechanism. The coordinator makes the same mechanism of it
# and so knows, without asking, how much noise each release carries: independent in every node, so the variances add up.


# The nodes as one operator: ``sum of (A_i X + G_i)``, each asked at the same time, summed in a fixed order.
#
# A pass over the nodes is a pass like any other: a node is a unit, asking it a task, and the tree in which the answers
# are summed is that of :mod:`npmdask.core.execution.reduction`. It does not matter who answers first.


@dataclass(frozen=True, kw_only=True)
class Group:
    """The nodes in the place of a reader: what of a data set can be asked without reading it."""

    link: NodeConnections
    announced: tuple[Announcement, ...]
    orders: tuple[np.ndarray | None, ...] = ()  # where the columns of the first node lie among those of each
    checksums: dict[str, Any] = field(default_factory=dict)  # each node holds its own data to its own

    dtype: ClassVar[np.dtype] = np.dtype(np.float64)
    layout: ClassVar[str] = "nodes"
    elsewhere: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the sum, d x d."""
        return self.announced[0].columns, self.announced[0].columns

    @property
    def block_shape(self) -> tuple[int, int]:
        """d x p of what goes to and fro."""
        return self.announced[0].columns, self.announced[0].iteration_rank

    @property
    def nbytes(self) -> int:
        """Bytes that the nodes answer with in one pass."""
        return len(self.announced) * encoded_size(self.block_shape)


@dataclass(frozen=True, kw_only=True)
class NodeSum(OnePass):
    """``scale`` times the sum of what the nodes release."""

    reader: Group
    scale: float

    run_bytes: ClassVar[int] = 1  # every node is asked by a task of its own

    @property
    def block_rows(self) -> int:
        return self.reader.shape[0]

    @property
    def units(self) -> int:
        return len(self.reader.announced)

    @property
    def pass_bytes(self) -> int:
        return self.reader.nbytes

    @property
    def pass_chunks(self) -> int:
        return self.units

    def read_ahead(self, units: range) -> None:
        """Nothing: all are asked at once."""

    def partial(self, slabs: range, block: Block) -> Partial:
        answers = [self._ask_node(node, block) for node in slabs]
        record = ReadStats(bytes_read=sum(size for _, size in answers), chunks=len(answers))
        return Partial({"product": sum((product for product, _ in answers), np.zeros(block.shape))}, record)

    def _ask_node(self, node: int, block: Block) -> tuple[Block, int]:
        places = self.reader.orders[node] if self.reader.orders else None
        if places is None:
            return self.reader.link.ask(node, block)
        product, size = self.reader.link.ask(node, block[np.argsort(places)])
        return product[places], size

    def finish(self, total: Partial, block: Block) -> Block:
        return np.asarray(total.sums["product"] * self.scale)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of asking one node: the request, the answer, and the block that it holds, twice."""
        return 4 * encoded_size((self.block_rows, p))

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the sums that wait to be joined."""
        return pending_sums(self.block_rows, p, runs)


@dataclass(frozen=True, kw_only=True)
class NodesRecipe:
    """Nodes that release, each its own products: a :class:`npmdask.core.runs.release.Recipe`.

    ``mechanisms``: of each node, None of one without noise. ``momentum``: of the algorithm.
    """

    group: Group
    mechanisms: tuple[Any, ...]
    scale: float
    target_rank: int
    releases: int | None
    momentum: float | str | None = None

    distributed: ClassVar[bool] = True

    @property
    def _pairs(self) -> list[tuple[Announcement, Any]]:
        return list(zip(self.group.announced, self.mechanisms, strict=True))

    @property
    def private(self) -> bool:
        """True if any of the nodes adds noise."""
        return any(mechanism is not None for mechanism in self.mechanisms)

    @property
    def disclosure(self) -> Disclosure:
        """Partial sums are of what the nodes have released; of private nodes times follow the rows."""
        return Disclosure(partial_sums=True, times=not self.private)

    @property
    def most_steps(self) -> int:
        """The most products that every node makes for one job."""
        return min(announced.max_steps for announced in self.group.announced)

    def tables(self) -> dict[str, Any]:
        """The table of run.json that only a distributed run has."""
        return {"nodes": {a.node: a.as_dict() for a in self.group.announced}}

    def release_noise(self, problem: Asked) -> ReleaseNoise:
        """Compute the noise level of all nodes together at the public start block."""
        summed = self.noise_stddev(first_query(problem).block)
        norm = gaussian_norm(summed / self.scale, problem.d, problem.algorithm.iteration_rank)
        return ReleaseNoise(first=summed, later=summed, smallest=self._released_norm(norm, problem.source))

    def largest(self, source: Source) -> float | None:
        """The largest value that data within the bounds of all nodes can have; None where one of them has none."""
        each = [
            None if mechanism is None else largest_of(mechanism.relation, announced.shape)
            for announced, mechanism in self._pairs
        ]
        known = [value for value in each if value is not None]
        return self._released_norm(sum(known), source) if len(known) == len(each) else None

    def _released_norm(self, norm: float, source: Source) -> float:
        """A norm as a value: singular values of sparse data, of whose A^T A it is."""
        scaled = norm * self.scale
        return math.sqrt(scaled) if source.kind == "sparse" else scaled

    def promise_concerns(self, source: Source) -> list[str]:
        """Return what makes promises weak: each sentence once, with the nodes that it is about."""
        about: dict[str, list[str]] = {}
        for number, (announced, mechanism) in enumerate(self._pairs, 1):
            if mechanism is not None:
                for said in weak_promise(mechanism.budget, mechanism.relation, announced.shape):
                    about.setdefault(said, []).append(str(number))
        return [f"node {', '.join(numbers)}: {said}" for said, numbers in about.items()]

    def noise_concern(self) -> str | None:
        """None: what the noise leaves is compared with what data can have."""
        return None

    def operator(self, source: Source) -> NodeSum:
        """The sum of the nodes."""
        return NodeSum(reader=self.group, scale=self.scale)

    def noise_stddev(self, block: Block) -> float:
        """Compute the stddev of an entry of the sum: each node adds its own noise, and s nodes sqrt(s) times one's."""
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
        """Return the entry for a ledger: nothing is added here."""
        return {"mechanism": "of the nodes", "private": self.private, "nodes": len(self.mechanisms)}

    # The answer

    def answer(
        self, source: Source, state: Any, result: Result, history: list[dict[str, Any]], p: int
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of a run whose nodes are private, and the statement that goes with them."""
        arrays = released_arrays(state, result, p, scale=1.0, root=source.kind == "sparse")
        sine = likely_sine_of_release(state, p, self.target_rank, self.momentum)
        levels = {"noise_stddev": [float(s) for s in state.stddevs[: state.step]], "predicted_error": sine}
        return arrays, self.statement(state.step) | levels

    def statement(self, steps: int) -> dict[str, Any]:
        """Who promises what, and what crossed between coordinator and nodes in ``steps`` steps."""
        d, p = self.group.block_shape
        count, traffic = len(self.mechanisms), asdict(self.group.link.traffic)
        return {
            "nodes": [_promise_of(url, *pair) for url, pair in zip(self.group.link.urls, self._pairs, strict=True)],
            "communication": traffic
            | {
                "numbers_by_theory": int(dist_comm(count, p, d, steps, "point_to_point").value),
                "numbers_with_broadcast": int(dist_comm(count, p, d, steps).value),
            },
            "values_are": "sums over the nodes" if self.scale == 1.0 else "divided by the number of rows of all nodes",
        }

    @property
    def promise(self) -> str:
        """Promise of the nodes, in a sentence."""
        said = []
        for announced, mechanism in self._pairs:
            fact = _promise_of("", announced, mechanism)
            promised = "epsilon = {epsilon:g}, delta = {delta:g}, for {protects}" if mechanism else "nothing (no noise)"
            said.append(promised.format(**fact))
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


class FederatedRelease(PlainRelease):
    """Release of a coordinator of a distributed run: it has neither data nor secrets, and its nodes keep their own.

    It tells them which release is asked for, so that a release that is asked for again is the same one, and keeps
    account of what crossed.
    """

    def __init__(self, problem: Problem, session: Session) -> None:
        super().__init__(problem, session)
        self._recipe: NodesRecipe = problem.nodes
        self._link = self._recipe.group.link
        self._before = Traffic()
        self._concerns: tuple[str, ...] = ()

    def open(self, history: list[dict[str, Any]]) -> None:
        """Say what is weak before any node is asked, and tell the nodes which run this is."""
        store = self._session.store
        if self._recipe.private:
            self._concerns = concerns(self._problem)
            warn_before_charge(self._problem, self._concerns, store, history)
        self._link.job, self._link.traffic = release_id_of(store), Traffic()
        for step in history:
            self._link.traffic.add(Traffic(**step["traffic"]))
        self._before = replace(self._link.traffic)
        self._link.reopen()
        super().open(history)

    def product(self, query: Query, step: int) -> Released:
        """Return the sum of what the nodes release of this step."""
        self._link.step = step
        released = super().product(query, step)
        return replace(released, seconds=0.0) if self._recipe.private else released

    def _history_facts(self) -> dict[str, Any]:
        now, before = asdict(self._link.traffic), asdict(self._before)
        self._before = replace(self._link.traffic)
        return {"traffic": {name: now[name] - before[name] for name in now}}

    def answer(
        self, state: Any, result: Result, view: StepView, outcome: Outcome, history: list[dict[str, Any]]
    ) -> Answer:
        """Return the answer: of private nodes from their releases and public numbers; otherwise as of any sum."""
        if self._recipe.private:
            return released_answer(self._problem, self._concerns, state, result, outcome, history)
        return super().answer(state, result, view, outcome, history)

    def _answer_facts(self, view: StepView) -> dict[str, Any]:
        return {"statement": self._recipe.statement(view.step)}

    def shown(self, solution: Any, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> dict[str, Any]:
        """The statement of the nodes; of private ones no time, which would follow their rows."""
        return stated(solution, arrays, meta) | ({"seconds": None} if self._recipe.private else {})

    def close(self) -> None:
        """Hang up: a node that is in the middle of its pass goes on, and keeps its release until it is asked again."""
        self._link.close()


def open_nodes(urls: Sequence[str], patience: float = PATIENCE) -> Source:
    """The nodes at ``urls`` as a source, their public facts asked for.

    Raises
    ------
    BadInputError
        An address that is none, nodes that do not fit together, no token.
    LostError
        One of them is away.
    """
    from npmdask.federated.names import orders

    if isinstance(urls, str) or not all(isinstance(url, str) for url in urls):
        raise BadInputError('nodes must be a list of addresses, like ["http://127.0.0.1:9001"]')
    addresses = tuple(url.rstrip("/") for url in urls)
    for url in addresses:
        require_address(url)
    link = NodeConnections(urls=addresses, tokens=tokens_for(addresses), patience=patience)
    announced = link.announced()
    kind = _kind_of(announced)
    places, said = orders(link, announced[0].columns)
    reader: Any = Group(link=link, announced=announced, orders=places)
    return Source(
        path=" ".join(link.urls),
        kind=kind,
        reader=reader,
        fingerprint=hashlib.sha256(json.dumps([a.as_dict() for a in announced], sort_keys=True).encode()).hexdigest(),
        registered=True,
        notes=said,
    )


def _kind_of(announced: tuple[Announcement, ...]) -> str:
    """Return the kind of the sum: of samples, of a symmetric matrix, or singular values of all rows together."""
    for name in ("columns", "iteration_rank"):
        found = [getattr(a, name) for a in announced]
        if len(set(found)) > 1:
            raise BadInputError(
                f"the nodes differ in {name} ({', '.join(map(str, found))}): they must agree to be summed"
            )
    if len({a.node for a in announced}) < len(announced):
        raise BadInputError(
            "two of the addresses belong to the same node, whose data would count twice: list each node once"
        )
    kinds = {"sparse" if a.kind == "matrix" else a.kind for a in announced}
    if len(kinds) > 1:
        raise BadInputError(
            f"the nodes hold data of kinds {', '.join(sorted(kinds))}, which cannot be summed: use nodes of one kind"
        )
    return kinds.pop()


def make_recipe(source: Source, k: int, p: int | None, max_steps: int | None) -> NodesRecipe:
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
    return NodesRecipe(group=group, mechanisms=mechanisms, scale=scale, target_rank=k, releases=releases)


def _releases(announced: tuple[Announcement, ...], max_steps: int | None) -> int | None:
    """Return how many releases there will be, where nodes are private; each has calibrated its noise for a number."""
    fixed = sorted({a.max_steps for a in announced if a.private})
    if len(fixed) > 1 or (fixed and max_steps not in (None, fixed[0])):
        asked = "" if max_steps is None else f", and the coordinator asks for max_steps = {max_steps}"
        raise BadInputError(
            f"the nodes have calibrated their noise for {' and '.join(map(str, fixed))} releases{asked}: these numbers "
            "must agree (max_steps in the configuration of each node; the coordinator may leave it out)"
        )
    steps = fixed[0] if fixed else max_steps
    most = min(a.max_steps for a in announced)
    if steps is not None and steps > most:
        raise BadInputError(
            f"max_steps = {steps}: a node makes at most {most} products for one run; choose a smaller max_steps"
        )
    return fixed[0] if fixed else None


def _mechanism_of(announced: Announcement) -> Any:
    """The mechanism that a node announces, made from its public numbers; None without noise."""
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
        raise BadInputError(
            f"node {announced.node} announces a mechanism that this version cannot use: {error}"
        ) from None
    if json.dumps(made.event(), sort_keys=True) != json.dumps(event, sort_keys=True):
        raise RefusedError(
            f"node {announced.node} announces noise that differs from what this version computes for the same "
            "guarantee: use the same version of npmdask for the coordinator and for every node"
        )
    return made


class NodesRoute(Route):
    """The noisy power method on the sum of what nodes hold, and release."""

    def takes(self, request: Request, source: Source, earlier: Earlier) -> str:
        """Return what a coordinator cannot do because it has no data; "" where it can."""
        refused = {
            "the coordinator of a distributed run has no data to protect: each node has its own [privacy] table and "
            "adds its own noise; leave [privacy] and [mechanism] out here": (
                request.privacy is not None or request.mechanism != "none"
            ),
            "a distributed run needs a whole number for target_rank, and takes iteration_rank from its nodes": (
                not isinstance(request.target_rank, int) or request.iteration_rank == "auto"
            ),
            "nodes do not center or scale, because none of them knows the means of all data: leave center and scale "
            "out": request.center or request.scale,
            f"algorithm = {request.algorithm!r} is not available for distributed runs: leave algorithm out": (
                request.algorithm not in ("auto", "power")
            ),
            "a distributed run always starts from its seed: leave the earlier run (warm start, deflation) out": any(
                earlier
            ),
        }
        return first_of(refused)

    def problem(self, request: Request, source: Source, earlier: Earlier) -> Problem:
        """Return the problem. Raises RefusedError for what follows from what nodes announce."""
        k = request.target_rank
        nodes = make_recipe(source, k, request.iteration_rank, request.max_steps)  # type: ignore[arg-type]
        k, p = ranks_of(source, replace(request, iteration_rank=nodes.group.block_shape[1]), 0)
        algorithm: Algorithm[Any]
        rule: StoppingRule
        if nodes.releases is not None:
            fixed = "private nodes release a fixed number of products"
            why = f"{fixed}: leave tol out, it would have no effect" if request.tol is not None else ""
            if why := without_low_rank(request.low_rank_tol, fixed) or why:
                raise RefusedError(why)
            power = PrivatePower(target_rank=k, iteration_rank=p, releases=nodes.releases, noise=nodes)
            algorithm = power = with_options(power, request.options)
            nodes = replace(nodes, momentum=power.momentum)
            rule = FixedSteps(max_steps=power.releases, promise=nodes.promise)
        else:
            tol = default_tol(np.dtype(np.float64)) if request.tol is None else request.tol
            steps = min(DEFAULT_STEPS, nodes.most_steps) if request.max_steps is None else request.max_steps
            algorithm = PowerMethod(target_rank=k, iteration_rank=p, tol=tol)
            if request.options is not None:
                from npmdask.privacy.momentum import MomentumOptions, MomentumPower

                asked = options_from("power", MomentumOptions, request.options)
                algorithm = MomentumPower(target_rank=k, iteration_rank=p, tol=tol, momentum=asked.momentum)
            rule = ResidualRule(tol=tol, max_steps=steps, d=source.shape[1], squared=source.kind == "sparse")
            rule = low_rank_rule(rule, request.low_rank_tol, source.kind, k, p)
        return Problem(source=source, request=request, algorithm=algorithm, mechanism=nodes, rule=rule, recipe=nodes)

    def release(self, problem: Problem, session: Session) -> FederatedRelease:
        """Return sums of what the nodes release."""
        return FederatedRelease(problem, session)

    def restored(self, held: RunStore, spec: dict[str, Any]) -> Problem:
        """Return the problem that run.json of a coordinator describes, of its nodes as they are now."""
        private = any(node["mechanism"].get("private") for node in spec["nodes"].values())
        request = Request(
            target_rank=spec["algorithm"]["target_rank"],
            algorithm="power",
            options=begun_options(spec["algorithm"]),
            max_steps=spec["stop"]["max_steps"],
            tol=None if private else spec["stop"]["tol"],
            low_rank_tol=spec["stop"].get("low_rank_tol"),
            seed=spec["run"]["seed"],
        )
        return make_problem(open_nodes(spec["source"].split()), request)


NODES = NodesRoute()
