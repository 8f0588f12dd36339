"""Answer by products of the data's own matrix, or of an operator from outside, which was registered by its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.core.algorithms import REGISTRY as ALGORITHMS
from npmdask.core.algorithms import Algorithm, GramKrylov, PowerOnDisk, Question, RowGramKrylov, is_ours
from npmdask.core.algorithms.stopping import ResidualRule, default_tol
from npmdask.core.runs.mechanisms import REGISTRY as MECHANISMS
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.runs.problem import (
    DEFAULT_STEPS,
    OPERATORS,
    Earlier,
    Problem,
    Request,
    Route,
    Start,
    default_rank,
    lies_elsewhere,
    ranks_of,
)
from npmdask.core.runs.session import Session
from npmdask.core.runs.stopping_rules import low_rank_rule, without_low_rank
from npmdask.core.storage.chunk_access import is_computed
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, closest, first_of, require

ON_DISK = {"blocks": "disk"}  # options of "power"


class PlainRoute(Route):
    """Products of the data's own matrix."""

    def takes(self, request: Request, source: Source, earlier: Earlier) -> str:
        """Return why a question needs something else; "" where it does not."""
        start, noisy, named = earlier.start, request.mechanism != "none", request.algorithm in ALGORITHMS
        kind = ALGORITHMS.get(request.algorithm, object)
        forms, theirs = issubclass(kind, GramKrylov) and source.traits.of_rows, named and not is_ours(kind)
        own, share = option_of_feature(request), isinstance(request.target_rank, float)
        asked, foreign = f"target_rank = {request.target_rank}", f"{request.algorithm} is not an algorithm of npmdask"
        searched = f"{asked} is a share, and the stages of its search have their own rule"
        width = source.reader.shape[1] if start is None else start.basis.shape[0]
        columns = f"{source.shape[1]}{' complex ones' if source.parts == 2 else ''}"
        whole = {"a share of the variance": share or earlier.share, "deflation": earlier.locked, "a start": start}
        refused = {
            f"{own} needs a random start and a number of components: leave it out here": (
                own and (any(earlier) or not isinstance(request.target_rank, int))
            ),
            why_not_on_disk(request, source, any(earlier)): asks_for_disk(request),
            f"{asked} is a share, which cannot be measured under noise; give a whole number": share and noisy,
            without_low_rank(request.low_rank_tol, searched): share,
            f"{asked} is a share, whose search starts by itself; leave `start` out": share and start,
            f"the run to start from has {width} columns and {source.path} has {columns}: a warm start needs the same "
            "columns (more rows are fine); leave `start` out": width != source.reader.shape[1],
            f"start cannot be combined with mechanism = {request.mechanism!r}: the start of a run with noise would "
            "have to be a release itself; leave `start` out": start and noisy,
            f"algorithm = {request.algorithm!r} reuses its products, and their noise too: use 'power' with a noise "
            "mechanism": noisy and not getattr(kind, "takes_noise", not named),
            f'{first_of(whole)} needs an algorithm that multiplies blocks: leave algorithm = "{request.algorithm}" '
            "out": forms and first_of(whole),
            f"{foreign}, and {source.path} holds {source.dtype}, for which each eigenvalue comes twice: use "
            '"krylov", "power" or "gram"': theirs and source.parts == 2,
            without_low_rank(request.low_rank_tol, f"{foreign}, and nothing is known of its steps"): theirs,
        }
        return first_of(refused)

    def problem(self, request: Request, source: Source, earlier: Earlier) -> Problem:
        """Return the problem, with everything chosen that follows from shape and dtype."""
        locked, start, share = earlier.locked, earlier.start, earlier.share
        assert not isinstance(share, str)  # "auto" is of no such run
        if isinstance(request.target_rank, float):
            share = request.target_rank
            if request.iteration_rank is not None:
                raise BadInputError(
                    f"target_rank = {share} is a share, for which the search chooses iteration_rank; leave it out"
                )
        kind = ALGORITHMS.get(request.algorithm, object)
        if issubclass(kind, GramKrylov) and not source.traits.of_rows:
            formed = "A A^T" if issubclass(kind, RowGramKrylov) else "A^T A"
            raise BadInputError(
                f'algorithm = "{request.algorithm}" forms {formed}, and {source.path} is of kind {source.kind}: leave '
                "algorithm out"
            )
        if start is not None:
            from npmdask.core.runs.columns import fitting_start

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
            single=single and not is_computed(source.reader),  # a pass that mends it would compute rows again
            rounded=single and alone and source.traits.of_rows and source.reader.layout == "dense",
            noise=request.mechanism != "none",
            random_columns=random,
            seed=request.seed,
            rows=int(source.shape[0]),
        )
        algorithm = algorithm_for(request, question)
        rule = ResidualRule(
            tol=tol,
            max_steps=DEFAULT_STEPS if request.max_steps is None else request.max_steps,
            d=source.reader.shape[1],
            noise_stddev=mechanism.stddev,
            squared=source.traits.singular,
            least_steps=getattr(algorithm, "pairs_of_formed", 1),
        )
        return Problem(
            source=source,
            request=request,
            algorithm=algorithm,
            mechanism=mechanism,
            rule=low_rank_rule(rule, request.low_rank_tol, source.kind, k, p),
            locked=locked,
            start=start,
            share=share,
        )

    def release(self, problem: Problem, session: Session) -> Any:
        """Return products as they are, from memory or from disk."""
        if not isinstance(problem.algorithm, PowerOnDisk):
            return PlainRelease(problem, session)
        from npmdask.core.runs.disk_release import DiskRelease  # which most runs do not need

        return DiskRelease(problem, session)


class RegisteredRoute(PlainRoute):
    """Products of an operator from outside (:func:`npmdask.register_operator`)."""

    def takes(self, request: Request, source: Source, earlier: Earlier) -> str:
        """Return why a question cannot be put to it; "" where it can."""
        name, plain = request.operator, isinstance(request.target_rank, int) and request.mechanism == "none"
        given = (request.privacy, earlier.locked or earlier.start, request.low_rank_tol)
        refused = {
            f"the operator {name!r} is a registered one: privacy, noise, center, scale, a share of the variance, "
            "low_rank_tol, warm starts and deflation work with npmdask's own operators only; leave them out": (
                not plain or any(one is not None for one in given) or request.center or request.scale
            ),
            f"{source.path} has no rows here, which the operator {name!r} could be made of: give the rows": (
                lies_elsewhere(source)
            ),
            f"{source.path} is of kind {source.kind}, which does not work with the operator {name!r}: leave one of "
            "the two out": not (source.traits.of_rows or source.traits.square),
            why_not_on_disk(request, source, others=False): asks_for_disk(request),
        }
        return first_of(refused) if name in OPERATORS else ""  # ``problem`` says which there are

    def problem(self, request: Request, source: Source, earlier: Earlier) -> Problem:
        """Return the problem of the operator. Raises BadInputError for ranks that do not fit it."""
        name = str(request.operator)
        if name not in OPERATORS:
            known = closest(name, list(OPERATORS)) if OPERATORS else "none is registered"
            raise BadInputError(
                f"unknown operator {name!r}: {known}; call npmdask.runs.problem.register_operator in this process first"
            )
        derived = OPERATORS[name](source)
        d, k = derived.dimension(source), int(request.target_rank)
        p: Any = default_rank(k, d) if request.iteration_rank is None else request.iteration_rank
        wrong = {
            f"the operator {name!r} is of kind {derived.kind!r}: only symmetric ones can be registered": (
                derived.kind != "symmetric"
            ),
            f"target_rank = {k} is not possible: the operator {name!r} is {d} x {d}, so at most {d} exist": (
                not 1 <= k <= d
            ),
            f"iteration_rank = {p} does not fit target_rank = {k} of the operator {name!r}, which is {d} x {d}: leave "
            "it out": isinstance(p, str) or not k <= p <= d,
        }
        require(not (why := first_of(wrong)), why)
        tol = default_tol(source.reader.dtype) if request.tol is None else request.tol
        question = Question(d=d, target_rank=k, iteration_rank=p, tol=tol, single=False, noise=False, seed=request.seed)
        steps = DEFAULT_STEPS if request.max_steps is None else request.max_steps
        rule = ResidualRule(tol=tol, max_steps=steps, d=d)
        return Problem(
            source=source, request=request, algorithm=algorithm_for(request, question), rule=rule, derived=derived
        )


PLAIN, REGISTERED = PlainRoute(), RegisteredRoute()


def algorithm_for(request: Request, question: Question) -> Algorithm[Any]:
    """Return the algorithm; of "auto" block Krylov, which keeps its products, unless they have noise."""
    name = ("power" if question.noise else "krylov") if request.algorithm == "auto" else request.algorithm
    kind, options = ALGORITHMS[name], request.options or {}
    if own := option_of_feature(request):
        kind = features.required("options", own)
    elif asks_for_disk(request):
        kind, options = PowerOnDisk, {}
    elif request.algorithm == "power" and request.options is not None:
        raise BadInputError(
            f'algorithm.options = {dict(options)} of "power": there are blocks = "disk", which keeps blocks in files '
            'of the run, and momentum = "auto"; leave both out for the plain power method in memory'
        )
    return kind.make(question, options)


def option_of_feature(request: Request) -> str:
    """Return the first option of the power method that an algorithm of a feature has; "" if there is none."""
    asked = request.options or {} if request.algorithm == "power" else {}
    return next((name for name in asked if features.knows("options", name)), "")


def asks_for_disk(request: Request) -> bool:
    """Say whether blocks of columns are to lie on disk, where memory does not suffice for them."""
    return request.algorithm == "power" and request.options == ON_DISK


def why_not_on_disk(request: Request, source: Source, others: bool) -> str:
    """Return why the blocks of a run have to be in memory, or ""; ``others``: it starts from another run."""
    other = request.privacy is not None or request.operator is not None or request.mechanism != "none"
    reasons = {
        f"{source.path} is not a sparse matrix (kind = {source.kind!r})": not source.traits.sparse
        or lies_elsewhere(source),
        "private runs, noise and other operators have their blocks in memory": other,
        f"target_rank = {request.target_rank} is searched for by runs that start from each other": (
            not isinstance(request.target_rank, int)
        ),
        "warm starts and deflation take blocks of an earlier run into memory": others,
    }
    why = first_of(reasons)
    return f'blocks = "disk": {why}; leave the option out' if why else ""


def _with_random_columns(start: Start, k: int, p: int, most: int, *, asked: bool) -> tuple[Start, int]:
    """Return the columns of ``start`` that are used (what is left stays in memory as long as the problem), and p.

    Random columns come on top of the p that is chosen here; a p that was ``asked`` for holds them, if it can.
    """
    random = start.random_columns
    p = min(max(p, k + random) if asked else p + random, most)
    return replace(start, basis=np.ascontiguousarray(start.basis[:, : max(p - random, 0)])), p
