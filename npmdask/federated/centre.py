"""The coordinator of a distributed run: its nodes as a source, and the problem that is made of them.

Importing this registers both with :mod:`npmdask.runs`: what makes a problem of the nodes, and what makes it again of a
store.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npmdask.accounting import Budget
from npmdask.algorithms import Algorithm, PowerMethod, PrivatePower
from npmdask.algorithms.stopping import FixedSteps, ResidualRule, StoppingRule, default_tol
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.federated.client import PATIENCE, Link, require_address
from npmdask.federated.protocol import Announcement, tokens_for
from npmdask.federated.release import Group, NodesRecipe
from npmdask.numerics.random import Rounding
from npmdask.privacy.matrix_release import MECHANISMS
from npmdask.privacy.neighbors import make_relation
from npmdask.runs import build, restore
from npmdask.runs.build import make_problem, ranks_of
from npmdask.runs.problem import DEFAULT_STEPS, Problem, Request
from npmdask.runs.stopping_rules import low_rank_rule, refuse_low_rank
from npmdask.storage.source import Source


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
    """How many releases there will be, where nodes are private; each has calibrated its noise for a number."""
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


def problem_of_nodes(source: Source, request: Request, earlier: object) -> Problem:
    """The problem of a coordinator: the noisy power method on the sum of what its nodes hold, and release."""
    _require_plain(request, earlier)
    k = int(request.target_rank)
    nodes = make_recipe(source, k, request.iteration_rank, request.max_steps)  # type: ignore[arg-type]
    k, p = ranks_of(source, replace(request, iteration_rank=nodes.group.block_shape[1]), 0)
    algorithm: Algorithm[Any]
    rule: StoppingRule
    if nodes.releases is not None:
        refuse_low_rank(request.low_rank_tol, "private nodes release a fixed number of products")
        if request.tol is not None:
            raise RefusedError(
                "private nodes release a fixed number of products: leave tol out, it would have no effect"
            )
        algorithm = PrivatePower(target_rank=k, iteration_rank=p, releases=nodes.releases, noise=nodes)
        rule = FixedSteps(max_steps=nodes.releases, promise=nodes.promise)
    else:
        tol = default_tol(np.dtype(np.float64)) if request.tol is None else request.tol
        steps = min(DEFAULT_STEPS, nodes.most_steps) if request.max_steps is None else request.max_steps
        algorithm = PowerMethod(target_rank=k, iteration_rank=p, tol=tol)
        rule = ResidualRule(tol=tol, max_steps=steps, d=source.shape[1], squared=source.kind == "sparse")
        rule = low_rank_rule(rule, request.low_rank_tol, source.kind, k, p)
    return Problem(source=source, request=request, algorithm=algorithm, mechanism=nodes, rule=rule, recipe=nodes)


def _require_plain(request: Request, earlier: object) -> None:
    """Refuse what a coordinator cannot do because it has no data."""
    if request.privacy is not None or request.mechanism != "none":
        raise RefusedError(
            "the coordinator of a distributed run has no data to protect: each node has its own [privacy] table and "
            "adds its own noise; leave [privacy] and [mechanism] out here"
        )
    if isinstance(request.target_rank, float) or request.iteration_rank == "auto":
        raise RefusedError(
            "a distributed run needs a whole number for target_rank, and takes iteration_rank from its nodes"
        )
    if request.center or request.scale:
        raise RefusedError(
            "nodes do not center or scale, because none of them knows the means of all data: leave center and scale out"
        )
    if request.algorithm not in ("auto", "power"):
        raise RefusedError(
            f"algorithm = {request.algorithm!r} is not available for distributed runs: leave algorithm out"
        )
    if earlier is not None:
        raise RefusedError(
            "a distributed run always starts from its seed: leave the earlier run (warm start, deflation) out"
        )


def problem_of_spec(spec: dict[str, Any]) -> Problem:
    """The problem that run.json of a coordinator describes, of its nodes as they are now."""
    private = any(node["mechanism"].get("private") for node in spec["nodes"].values())
    request = Request(
        target_rank=spec["algorithm"]["target_rank"],
        max_steps=spec["stop"]["max_steps"],
        tol=None if private else spec["stop"]["tol"],
        low_rank_tol=spec["stop"].get("low_rank_tol"),
        seed=spec["run"]["seed"],
    )
    return make_problem(open_nodes(spec["source"].split()), request)


build.ELSEWHERE[Group] = problem_of_nodes
restore.ELSEWHERE["nodes"] = problem_of_spec
