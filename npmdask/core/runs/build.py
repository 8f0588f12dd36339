"""From what a person asks for to the pieces that the driver runs: one place, for Python, command line and flows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.core.algorithms import REGISTRY as ALGORITHMS
from npmdask.core.algorithms import Algorithm, GramKrylov, PowerOnDisk, Question, is_ours
from npmdask.core.algorithms.stopping import ResidualRule, default_tol
from npmdask.core.numerics.domains import less_one
from npmdask.core.runs.mechanisms import REGISTRY as MECHANISMS
from npmdask.core.runs.problem import (
    AUTO,
    DEFAULT_STEPS,
    FIRST_STAGE,
    OPERATORS,
    Locked,
    Method,
    Problem,
    Request,
    Start,
)
from npmdask.core.runs.stopping_rules import low_rank_rule, refuse_low_rank
from npmdask.core.storage.kinds import for_matrices_only
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError, closest, require

JOBS = ("topics", "mixture", "ica")  # kinds of longer jobs, whose stages are runs in folders below theirs


PLAIN_KINDS = ("samples", "matrix", "sparse", "symmetric")


def lies_elsewhere(source: Source) -> bool:
    """Say whether no rows of a source are read here: they lie with nodes, or are summed in a stored Gram."""
    return bool(getattr(source.reader, "elsewhere", False))


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
        A start that does not fit the data, or that noise forbids.
    """
    request = replace(request, target_rank=checked_rank(request.target_rank))
    source = prepared(source, request)
    _require_options(source, request)
    _require_blocks(request, source, locked is not None or start is not None or share is not None)
    if source.parts == 2:
        _require_real_only(source, request)
    if getattr(source.reader, "layout", "") == "matrix-free":  # data that lie with nodes have none
        _require_products_only(source, request)
    for aspect in request.aspects:
        source = aspect.source(source, request)
    if request.seen(source).row_weight is not None:  # moments that were recorded are those of equal rows
        source = replace(source, statistics=None)
    if request.operator is not None:
        return _derived_problem(source, request, locked or start)
    if route := _route_of(source, request):
        problem: Problem = features.required("routes", route)(source, request, locked or start)
        return problem if share is None else replace(problem, share=share)
    own = request.route
    return (plain_problem if own is None else own.problem)(source, request, locked, start, share)


def plain_problem(
    source: Source, request: Request, locked: Locked | None, start: Start | None, share: float | str | None
) -> Problem:
    """Return the problem of products of the data's own matrix."""
    assert not isinstance(share, str)  # "auto" is of no such run
    if isinstance(request.target_rank, float):
        share = request.target_rank
        _require_search(request, start)
    if start is not None:
        from npmdask.core.runs.columns import fitting_start

        _require_start(source, request, start)
        start = fitting_start(source, start)
    k, p = ranks_of(source, request, locked.result.vectors.shape[1] // source.parts if locked else 0)
    k, p = k * source.parts, p * source.parts
    random = 0
    if start is not None:
        start, p = _with_random_columns(start, k, p, source.dimension, asked=request.iteration_rank is not None)
        random = p - start.basis.shape[1] if start.random_columns else 0
    tol = default_tol(source.reader.dtype) if request.tol is None else request.tol
    single = source.reader.dtype == np.float32 and request.seen(source).fits_single(int(source.shape[0]))
    alone = share is None and locked is None and start is None and request.mechanism == "none"
    alone = alone and request.seen(source).allow_rounding
    mechanism = MECHANISMS[request.mechanism](**({"stddev": request.stddev} if request.mechanism != "none" else {}))
    question = Question(
        d=source.dimension,
        target_rank=k,
        iteration_rank=p,
        tol=tol,
        single=single,
        rounded=single and alone and source.kind in ("samples", "matrix") and source.reader.layout == "dense",
        noise=request.mechanism != "none",
        random_columns=random,
        seed=request.seed,
        rows=int(source.shape[0]),
    )
    algorithm = _algorithm(request, question)
    if isinstance(algorithm, GramKrylov):
        _require_gram(algorithm.name, source, share, locked, start)
    if not is_ours(algorithm) and source.parts == 2:
        raise RefusedError(
            f"{algorithm.name} is not an algorithm of npmdask, and {source.path} holds {source.dtype}, for which each "
            'eigenvalue comes twice: use "krylov", "power" or "gram"'
        )
    if not is_ours(algorithm):
        refuse_low_rank(
            request.low_rank_tol, f"{algorithm.name} is not an algorithm of npmdask, and nothing is known of its steps"
        )
    rule = ResidualRule(
        tol=tol,
        max_steps=DEFAULT_STEPS if request.max_steps is None else request.max_steps,
        d=source.reader.shape[1],
        noise_stddev=mechanism.stddev,
        squared=source.kind in ("matrix", "sparse"),
        least_steps=getattr(algorithm, "pairs_of_formed", 1),
    )
    rule = low_rank_rule(rule, request.low_rank_tol, source.kind, k, p)
    return Problem(
        source=source,
        request=request,
        algorithm=algorithm,
        mechanism=mechanism,
        rule=rule,
        locked=locked,
        start=start,
        share=share,
    )


def _route_of(source: Source, request: Request) -> str:
    """Name the route by which a question is answered; "" for that of all plain ones."""
    if lies_elsewhere(source):
        return str(source.reader.layout)
    if request.privacy is not None:
        return "privacy"
    return "" if source.kind in PLAIN_KINDS else source.kind


def prepared(source: Source, request: Request) -> Source:
    """The source as a run of ``request`` reads its entries.

    Raises
    ------
    BadInputError, RefusedError
        It cannot read them so.
    """
    reading, route = request.reading, request.route
    if request.target_rank == AUTO and (route is None or not route.chooses):
        raise BadInputError(
            f"target_rank = {AUTO!r} works with missing = 'em' only, where held-out entries choose it: give a "
            "number, or a share of the variance like 0.95 (`npmdask components STORE` shows what criteria advise)"
        )
    if request.privacy is not None and source.gaps and reading is None:
        raise RefusedError(
            f"{source.path} was ingested so that it may hold missing values (whether it does was not checked): set "
            "missing = 'fill' with a public missing_fill to replace them"
        )
    return source if reading is None else reading.source(source, request)


def _with_random_columns(start: Start, k: int, p: int, most: int, *, asked: bool) -> tuple[Start, int]:
    """The columns of ``start`` that are used (what is left stays in memory as long as the problem), and p.

    Random columns come on top of the p that is chosen here; a p that was ``asked`` for holds them, if it can.
    """
    random = start.random_columns
    p = min(max(p, k + random) if asked else p + random, most)
    return replace(start, basis=np.ascontiguousarray(start.basis[:, : max(p - random, 0)])), p


def _derived_problem(source: Source, request: Request, earlier: object) -> Problem:
    """The problem of an operator from outside (:func:`npmdask.register_operator`)."""
    name = request.operator
    if name not in OPERATORS:
        raise BadInputError(
            f"unknown operator {name!r}: {closest(str(name), list(OPERATORS)) if OPERATORS else 'none is registered'}; "
            "call npmdask.runs.problem.register_operator in this process first"
        )
    others = (request.privacy, earlier, request.low_rank_tol, request.center or None, request.scale or None)
    if (
        any(one is not None for one in others)
        or not isinstance(request.target_rank, int)
        or request.mechanism != "none"
    ):
        raise RefusedError(
            f"the operator {name!r} is a registered one: privacy, noise, center, scale, a share of the variance, "
            "low_rank_tol, warm starts and deflation work with npmdask's own operators only; leave them out"
        )
    if lies_elsewhere(source) or source.kind in ("tensor", "matrices"):
        raise RefusedError(f"{source.path} is of kind {source.kind}, which does not work with the operator {name!r}")
    derived = OPERATORS[name](source)
    if derived.kind != "symmetric":
        raise BadInputError(f"the operator {name!r} is of kind {derived.kind!r}: only symmetric ones can be registered")
    d, k = derived.dimension(source), request.target_rank
    p = default_rank(k, d) if request.iteration_rank is None else request.iteration_rank
    if isinstance(p, str) or not 1 <= k <= p <= d:
        raise BadInputError(
            f"target_rank = {k} and iteration_rank = {p} do not fit the operator {name!r}, which is {d} x {d}"
        )
    tol = default_tol(source.reader.dtype) if request.tol is None else request.tol
    question = Question(d=d, target_rank=k, iteration_rank=p, tol=tol, single=False, noise=False, seed=request.seed)
    steps = DEFAULT_STEPS if request.max_steps is None else request.max_steps
    return Problem(
        source=source,
        request=request,
        algorithm=_algorithm(request, question),
        rule=ResidualRule(tol=tol, max_steps=steps, d=d),
        derived=derived,
    )


def _algorithm(request: Request, question: Question) -> Algorithm[Any]:
    """The algorithm that is asked for; of "auto" block Krylov, which keeps its products, unless they have noise."""
    name = ("power" if question.noise else "krylov") if request.algorithm == "auto" else request.algorithm
    kind, options = ALGORITHMS[name], request.options or {}
    if name == "power" and on_disk(request):
        kind, options = PowerOnDisk, {}
    elif name == "power" and options:
        kind = features.required("options", "momentum")
    if question.noise and not getattr(kind, "takes_noise", False):
        raise RefusedError(
            f"algorithm = {name!r} reuses its products, and their noise too: use 'power' with a noise mechanism"
        )
    return kind.make(question, options)


ON_DISK = {"blocks": "disk"}  # options of "power"


def on_disk(request: Request) -> bool:
    """Whether blocks of columns are to lie on disk, where memory does not suffice for them."""
    return request.algorithm == "power" and request.options == ON_DISK


def why_not_on_disk(request: Request, source: Source, others: bool) -> str:
    """Why the blocks of a run have to be in memory, or nothing; ``others``: it starts from another run."""
    if source.kind != "sparse" or lies_elsewhere(source):
        return f"{source.path} is not a sparse matrix (kind = {source.kind!r})"
    if request.privacy is not None or request.operator is not None or request.mechanism != "none":
        return "private runs, noise and other operators have their blocks in memory"
    if not isinstance(request.target_rank, int):
        return f"target_rank = {request.target_rank} is searched for by runs that start from each other"
    return "warm starts and deflation take blocks of an earlier run into memory" if others else ""


def _require_blocks(request: Request, source: Source, others: bool) -> None:
    """What the option ``blocks`` of the power method may say, and of which data."""
    if request.algorithm != "power" or request.options is None:
        return
    if request.privacy is not None or getattr(source.reader, "layout", "") == "nodes":  # which have others
        return
    if "momentum" in request.options:  # MomentumPower says what may be wrong with it
        if others or not isinstance(request.target_rank, int):
            raise RefusedError("momentum needs a random start and a number of components: leave it out here")
        return
    if request.options != ON_DISK:
        raise BadInputError(
            f'algorithm.options = {dict(request.options)} of "power": there are blocks = "disk", which keeps '
            'blocks in files of the run, and momentum = "auto"; leave both out for the plain power method in memory'
        )
    if why := why_not_on_disk(request, source, others):
        raise RefusedError(f'blocks = "disk": {why}; leave the option out')


def checked_rank(rank: Any) -> int | float | str:
    """A number of components (int), a share of the variance (float strictly between 0 and 1), or "auto".

    Raises
    ------
    BadInputError
        None of these.
    """
    if isinstance(rank, str) and rank == AUTO:
        return AUTO
    if isinstance(rank, int | np.integer) and not isinstance(rank, bool):
        return int(rank)
    if isinstance(rank, float | np.floating) and 0 < rank < 1:
        return float(rank)
    raise BadInputError(
        f"target_rank = {rank!r} is neither a whole number of components (write 1, not 1.0) nor a share of the "
        "variance strictly between 0 and 1, like 0.95"
    )


def _require_search(request: Request, start: Start | None) -> None:
    asked = f"target_rank = {request.target_rank}"
    if request.iteration_rank is not None:
        raise BadInputError(f"{asked} is a share, for which the search chooses iteration_rank; leave it out")
    if request.mechanism != "none":
        raise RefusedError(f"{asked} is a share, which cannot be measured under noise; give a whole number")
    refuse_low_rank(request.low_rank_tol, f"{asked} is a share, and the stages of its search have their own rule")
    if start is not None:
        raise RefusedError(f"{asked} is a share, whose search starts by itself; leave `start` out")


def _require_start(source: Source, request: Request, start: Start) -> None:
    if start.basis.shape[0] != source.reader.shape[1]:
        columns = f"{source.shape[1]}{' complex ones' if source.parts == 2 else ''}"
        raise RefusedError(
            f"the run to start from has {start.basis.shape[0]} columns and {source.path} has {columns}: a warm "
            "start needs the same columns (more rows are fine); leave `start` out"
        )
    if request.mechanism != "none":
        raise RefusedError(
            f"start cannot be combined with mechanism = {request.mechanism!r}: the start of a run with noise would "
            "have to be a release itself; leave `start` out"
        )


def _require_gram(name: str, source: Source, share: float | None, locked: Locked | None, start: Start | None) -> None:
    """Refuse data of which no matrix can be formed, and options that do not work with one."""
    if source.kind not in ("samples", "matrix", "sparse"):
        formed = "A A^T" if name == "row-gram" else "A^T A"
        raise BadInputError(
            f'algorithm = "{name}" forms {formed}, and {source.path} is of kind {source.kind}: leave algorithm out'
        )
    if name == "row-gram" and not isinstance(source.reader, DenseReader):
        what = "sparse" if source.of_csr else "has missing values"
        raise RefusedError(
            f'algorithm = "row-gram" needs dense columns without missing values, and {source.path} '
            f"{'is ' * source.of_csr}{what}: leave algorithm out"
        )
    if share is not None or locked is not None or start is not None:
        asked = "a share of the variance" if share is not None else "deflation" if locked is not None else "a start"
        raise RefusedError(f'{asked} needs an algorithm that multiplies blocks: leave algorithm = "{name}" out')


def _refuse(asked: dict[str, bool], why: str) -> None:
    """Raise RefusedError for the first option that is asked for."""
    for name in filter(asked.get, asked):
        raise RefusedError(f"{name} {why}")


def _require_products_only(source: Source, request: Request) -> None:
    """Refuse options that need rows or entries, which a linear operator does not have."""
    asked = {
        "center": request.center,
        "scale": request.scale,
        "a share of the variance": isinstance(request.target_rank, float),
        f'algorithm = "{request.algorithm}"': request.algorithm in ("gram", "row-gram"),
        "privacy": request.privacy is not None,
        "operator": request.operator is not None,
        **{aspect.noun: True for aspect in request.aspects},
    }
    _refuse(
        asked,
        f"needs rows or entries, and {source.path.removeprefix('memory, ')} gives products only: leave it out, or give "
        "the matrix itself",
    )


def _require_real_only(source: Source, request: Request) -> None:
    """Refuse options that do not support complex data, instead of using the real part alone."""
    asked = {
        "privacy": request.privacy is not None,
        "operator": request.operator is not None,
        f"mechanism = {request.mechanism!r}": request.mechanism != "none",
        "low_rank_tol": bool(request.low_rank_tol),
        "a share of the variance": isinstance(request.target_rank, float),
        'algorithm = "row-gram"': request.algorithm == "row-gram",
        "the [report] table": request.presentation is not None,
    }
    _refuse(
        asked,
        f"is for real numbers, and {source.path} holds {source.dtype}: leave it out (a share: give a whole number of "
        "components, and see explained_share), or give real and imaginary parts as columns",
    )


def _require_options(source: Source, request: Request) -> None:
    method: Method | None = None
    if request.algorithm not in ("auto", *ALGORITHMS):
        method = features.found("algorithms", request.algorithm)
    if source.kind == "matrices" and (method is None or not method.of_matrices):
        raise for_matrices_only(source.path)
    if source.kind in ("symmetric", "tensor") and (request.center or request.scale):
        raise BadInputError(
            f"center and scale are for data with rows and columns; kind = {source.kind!r} takes neither"
        )
    if source.kind == "sparse" and request.center and request.privacy is None:
        less_one(source.shape[0], weighted=False)  # of entries less a mean, rounding errors would be left
    if method is not None and (refusal := method.refusal(source)) is not None:
        raise refusal
    own = () if request.route is None else request.route.algorithms
    if method is None and request.algorithm not in ("auto", *ALGORITHMS, *own):
        known = closest(request.algorithm, ["auto", *ALGORITHMS, *features.keys("algorithms")])
        raise BadInputError(f"unknown algorithm {request.algorithm!r}: {known}")
    if method is not None and method.private and request.privacy is None:
        raise BadInputError(
            f"{request.algorithm} is a private method: it needs a [privacy] table (privacy=Privacy(...)); without one "
            "choose another algorithm, or leave it out"
        )
    # others say themselves which options they have
    without = request.algorithm in ("auto", "gram", "row-gram") or (method is not None and not method.takes_options)
    with_own = source.kind == "tensor" or bool(own)
    if request.options is not None and without and not with_own:
        others = [name for name in features.keys("algorithms") if features.found("algorithms", name).takes_options]
        raise BadInputError(
            f"algorithm.options are for streaming algorithms and for {', '.join(('krylov', *others))}: leave them out"
        )
    if request.mechanism not in MECHANISMS:
        raise BadInputError(f"unknown mechanism {request.mechanism!r}: {closest(request.mechanism, list(MECHANISMS))}")
    if request.tol is not None and not 0 < request.tol < 1:
        raise BadInputError(f"tol = {request.tol} must be between 0 and 1 (it is relative to each value)")
    require(request.max_steps is None or request.max_steps >= 1, f"max_steps = {request.max_steps} must be at least 1")
    require(0 <= request.stddev < np.inf, f"stddev = {request.stddev} must be a finite number that is not negative")
    if not isinstance(request.seed, int | np.integer) or request.seed < 0:
        raise BadInputError(f"seed = {request.seed!r} must be a whole number that is not negative")


def ranks_of(source: Source, request: Request, locked: int) -> tuple[int, int]:
    """k and p, in columns of the data; ``locked``: how many components are found already."""
    width = source.dimension // source.parts
    smallest = min(source.shape[0], width)
    if not isinstance(request.target_rank, int):
        return min(FIRST_STAGE, smallest), min(FIRST_STAGE, smallest)
    k = request.target_rank
    if k < 1 or k + locked > smallest:
        more = f" (and {locked} are found already)" if locked else ""
        raise BadInputError(
            f"target_rank = {k} is not possible: the data are {source.shape[0]} x {source.shape[1]}, so at most "
            f"{smallest} components exist{more}"
        )
    room = width - locked
    if request.iteration_rank == "auto":
        raise BadInputError('iteration_rank = "auto" is chosen by top_k and `npmdask run`; give a number here')
    p = default_rank(k, room) if request.iteration_rank is None else request.iteration_rank
    require(p >= k, f"iteration_rank = {p} is smaller than target_rank = {k}; leave it out or use {2 * k}")
    require(p <= room, f"iteration_rank = {p} is larger than the {room} columns there are; leave it out")
    return k, p


def default_rank(k: int, room: int) -> int:
    """p for k wanted vectors by default, with ``room`` columns to choose from.

    Twice as many, up to 64: beyond that columns cost more than the passes that they save (decision 11).
    """
    return min(max(k + 10, min(2 * k, 64)), room)
