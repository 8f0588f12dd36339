"""From what a person asks for to the pieces that the driver runs: one place, for Python, command line and flows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npmdask.core import features
from npmdask.core.algorithms import REGISTRY as ALGORITHMS
from npmdask.core.numerics.domains import less_one
from npmdask.core.operators import of_layout
from npmdask.core.runs.mechanisms import REGISTRY as MECHANISMS
from npmdask.core.runs.plain_route import PLAIN, REGISTERED
from npmdask.core.runs.problem import (
    AUTO,
    Earlier,
    Locked,
    Method,
    Problem,
    Request,
    Route,
    Start,
    checked_rank,
    lies_elsewhere,
    representation_of,
)
from npmdask.core.storage.kinds import require_rows
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError, closest, first_of, require, require_known


def make_problem(
    source: Source,
    request: Request,
    locked: Locked | None = None,
    start: Start | None = None,
    share: float | str | None = None,
) -> Problem:
    """Check a request against its source and choose what was left open.

    ``share``: what was asked for, where the ``target_rank`` of the request is the number that was found for it.

    Raises
    ------
    BadInputError
        Ranks that do not fit the data, options that do not fit the kind, a tolerance out of range.
    RefusedError
        What was asked for does not go together: the route of the question says why.
    """
    request = replace(request, target_rank=checked_rank(request.target_rank))
    source = prepared(source, request)
    for aspect in request.aspects:
        reader, source = source.reader, aspect.source(source, request)
        if source.reader is not reader and aspect is not request.reading:
            raise BadInputError(f"{aspect.noun} changes entries: {type(aspect).__name__} must be a Reading")
    if request.seen(source).row_weight is not None:  # moments that were recorded are those of equal rows
        source = replace(source, statistics=None)
    earlier = Earlier(locked=locked, start=start, share=share)
    route = route_for(request, source, earlier)
    _require_valid(request, source, route)
    problem = route.problem(request, source, earlier)
    return replace(problem, route=route, share=problem.share if share is None else share)


def prepared(source: Source, request: Request) -> Source:
    """Return the source as a run of ``request`` reads its entries.

    Raises
    ------
    BadInputError, RefusedError
        It cannot read them so.
    """
    other = None if lies_elsewhere(source) else representation_of(source.reader) or of_layout(source.reader.layout)
    if (takes := getattr(other, "takes", None)) and (why := takes(request, source)):  # no rows of real numbers
        raise RefusedError(why)
    reading = request.reading
    read = source if reading is None else reading.source(source, request)
    return read if reading is None or reading.as_recorded else replace(read, statistics=None)


def route_for(request: Request, source: Source, earlier: Earlier) -> Route:
    """Return the route that answers a question. Raises RefusedError where it does not take it."""
    route = route_of(request, source)
    if why := route.takes(request, source, earlier):
        raise RefusedError(why)
    return route


def route_of(request: Request, source: Source) -> Route:
    """Return the route of a question, whether it takes it or not."""
    if request.operator is not None:
        return REGISTERED
    key = route_key(request, source)
    if not key:
        return PLAIN
    return features.required("routes", key)


def route_key(request: Request, source: Source) -> str:
    """Name it in the table, by the layout of data that lie elsewhere, by what is asked, or by their kind; "": plain."""
    if lies_elsewhere(source):
        return str(source.reader.layout)
    return request.route_key or (source.kind if features.owner_of("routes", source.kind) else "")


def _require_valid(request: Request, source: Source, route: Route) -> None:
    """Raise BadInputError for values that no route takes, and for an algorithm that these data do not have."""
    named = request.algorithm in ("auto", *ALGORITHMS)
    features.require("algorithms", request.algorithm)
    method: Method | None = None if named else features.found("algorithms", request.algorithm)
    if source.traits.flattened and (method is None or not method.of_matrices):
        require_rows(source.kind, source.path)
    if source.traits.sparse and request.center:
        less_one(source.shape[0], weighted=False)  # of entries less a mean, rounding errors would be left
    if method and method.refusal and (refusal := method.refusal(source)) is not None:
        raise refusal
    if method is None and not named and request.algorithm not in route.algorithms:
        known = closest(request.algorithm, ["auto", *ALGORITHMS, *features.keys("algorithms")])
        if request.algorithm in features.keys("stream_algorithms"):
            known = f"it is for rows that are read once: use npmdask.stream_pca(..., algorithm={request.algorithm!r})"
        raise BadInputError(f"unknown algorithm {request.algorithm!r}: {known}")
    without = request.algorithm in ("auto", "gram") or (method is not None and not method.takes_options)
    own = route.algorithms or features.owner_of("routes", source.kind)  # with options of its own
    if request.options is not None and without and not own:
        others = [name for name in features.keys("algorithms") if features.found("algorithms", name).takes_options]
        raise BadInputError(
            f"algorithm.options are for streaming algorithms and for {', '.join(('krylov', *others))}: leave them out"
        )
    require_known(request.mechanism, MECHANISMS, "unknown mechanism")
    seed, tol, steps = request.seed, request.tol, request.max_steps
    wrong = {
        f"target_rank = {AUTO!r} works with missing = 'em' only, where held-out entries choose it: give a number, or a "
        "share of the variance like 0.95 (`npmdask components STORE` shows what criteria advise)": (
            request.target_rank == AUTO and not route.chooses
        ),
        f"center and scale are for data with rows and columns; kind = {source.kind!r} takes neither": (
            not source.traits.of_rows and (request.center or request.scale)
        ),
        f"{request.algorithm} is a private method: it needs a [privacy] table (privacy=Privacy(...)); without one "
        "choose another algorithm, or leave it out": method is not None and method.private and request.privacy is None,
        f"tol = {tol} must be between 0 and 1 (it is relative to each value)": tol is not None and not 0 < tol < 1,
        f"max_steps = {steps} must be at least 1": steps is not None and steps < 1,
        f"stddev = {request.stddev} must be a finite number that is not negative": not 0 <= request.stddev < np.inf,
        f"seed = {seed!r} must be a whole number that is not negative": (
            not isinstance(seed, int | np.integer) or seed < 0
        ),
    }
    require(not (why := first_of(wrong)), why)
