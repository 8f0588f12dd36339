"""Find how many components explain a share of the variance, or predict best: a search in stages that can be resumed.

::

    STORE/search/0016, 0032, ...    stages: 16 columns, then more, each begun where the last one came to
    STORE                           the run that answers: the number found, from the last stage, to full tolerance

A stage takes few steps: it ends as soon as the share is reached or seen to be out of reach
(``ShareRule``, npmdask.core.runs.stopping_rules). The run that answers gives the fewest of its components that reach
the share, and these are certified.

Of EM for rows with gaps stages are of 1, 2, 4, ... components, for as long as twice as many predict the entries that
are held out better by 1 %, and then between them: the fewest within 1 % of the best are the answer; of few entries
within what chance can do. Of h entries of variance 1, predictions that know nothing of them, of mean square q, leave
over 1 + q on average, with a deviation of ``2 sqrt(q / h)``: whatever q is, below ``1 - z^2 / h`` is z deviations off.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from npmdask.core.algorithms import PowerMethod
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.driver import solve_in
from npmdask.core.runs.observers import Observer, StageObserver
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.runs.problem import AUTO, CHOSEN, FIRST_STAGE, Problem, Start, default_rank
from npmdask.core.runs.resources import needs_of
from npmdask.core.runs.restore import RANDOM_COLUMNS, bind, keep_start, read_start, start_of
from npmdask.core.runs.results import SEARCHED
from npmdask.core.runs.session import Session
from npmdask.core.runs.solution import Solution
from npmdask.core.runs.stopping_rules import STAGE_STEPS, ShareRule, next_columns
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from npmdask.missing.em import LEAST_HELD

NEARLY = 0.01  # more of what is left over is worth fewer components
CHANCE = 3.0  # deviations
LOOKED_AT = 4  # components, which are tried before more are taken to be of no use
ROUGHLY = 1e-3  # of each value may be left to go in a stage: of what is held out, far less than NEARLY


@dataclass
class _Search:
    """One search under way: what it works with and what it has cost in this call."""

    problem: Problem
    session: Session
    passes: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    peak: int = 0
    reached: list[tuple[int, float]] = field(default_factory=list)  # (columns, share) of the stages so far

    def spend(self, solution: Solution) -> None:
        self.passes += solution.data_passes
        self.bytes_read += solution.bytes_read or 0
        self.seconds += solution.seconds or 0.0
        self.peak = max(self.peak, solution.peak_rss_bytes or 0)

    def ended(self, solution: Solution, told: Observer) -> Solution:
        """Return the answer with the cost of the whole search, and show it to the observer of the whole."""
        self.spend(solution)
        solution = replace(
            solution,
            data_passes=self.passes,
            bytes_read=self.bytes_read,
            seconds=self.seconds,
            peak_rss_bytes=self.peak,
        )
        told.on_end(solution)
        return solution


class _StageOfSearch(StageObserver):
    """Report the stages of a search as parts of it, so that a prediction can be of the whole search."""

    def __init__(self, search: _Search) -> None:
        super().__init__(search.session.told)
        self._search = search

    def on_ready(self, problem: Problem, session: Session) -> None:
        self._search.session.told.on_search(self._search.problem, problem, session, self._search.session.store)


def solve_share(problem: Problem, session: Session) -> Solution:
    """Find how many components reach ``problem.share``, and find them.

    Raises
    ------
    BadInputError
        There is no variance to explain, or a symmetric matrix has a negative eigenvalue.
    RefusedError
        The share needs more components than the memory allows, or than there are; the sentence says how far it came.
    """
    search = _Search(problem, Session(session.store, session.resources, StageObserver(session.told)))
    final = _chosen_problem(problem, session.store)
    if final is None:
        final = _bound(search, *_find_rank(search))
    solution = solve_in(final, search.session)
    return search.ended(solution, session.told)


def solve_auto(problem: Problem, session: Session) -> Solution:
    """Find how many components predict best what is held out of rows with gaps, and find them.

    Raises
    ------
    BadInputError
        Too few entries are held out, or no component predicts them better than means do.
    RefusedError
        The memory does not suffice.
    """
    search = _Search(problem, Session(session.store, session.resources, StageObserver(session.told)))
    final = _chosen_problem(problem, session.store)
    if final is None:
        with search.session as outer:
            bind(problem, outer.store, outer.resources)
        rank, shares = _best_rank(search)
        final = _final(problem, rank, rank + 1, None)
        store = session.store
        store.drop_part(CHOSEN)  # of an attempt that was killed
        store.write_part(CHOSEN, {}, {"shares": {str(k): share for k, share in sorted(shares.items())}})
        store.write_spec((store.read_spec() or {}) | final.spec())
    solution = solve_in(final, search.session)
    return search.ended(solution, session.told)


def _best_rank(search: _Search) -> tuple[int, dict[int, float]]:
    """The fewest components that are nearly as good as the best, and what each number that was tried leaves over."""
    k, most = 1, min(search.problem.source.shape) - 1
    first, held = _held_out_share(search, k)
    shares, nearly = {k: first}, max(NEARLY, CHANCE**2 / held)
    while k < most:
        before, k = min(shares.values()), min(2 * k, most)
        shares[k] = _held_out_share(search, k)[0]
        if k >= LOOKED_AT and shares[k] > (1 - nearly) * before:
            break
    while True:
        near = (1 + nearly) * min(shares.values())
        enough = min(k for k, share in shares.items() if share <= near)
        too_few = max((k for k in shares if k < enough), default=0)
        if enough - too_few <= 1:
            break
        middle = (enough + too_few) // 2
        shares[middle] = _held_out_share(search, middle)[0]
    if near >= 1:  # that of no component
        raise BadInputError(
            f"{search.problem.source.path}: no number of components (of {', '.join(map(str, sorted(shares)))}) "
            "predicts held-out entries clearly better than the means of their columns: these data show none. "
            "Give target_rank as a number to compute some nevertheless"
        )
    return enough, shares


def _held_out_share(search: _Search, k: int) -> tuple[float, float]:
    """The share of the variance of the entries held out that k components leave over, and how many these are."""
    request = replace(search.problem.request, target_rank=k, tol=ROUGHLY, max_steps=None)
    stage = make_problem(search.problem.source, request, share=AUTO)
    search.session.told.on_stage(f"search: how well do {k} components predict what is held out?")
    with search.session.stage(f"search/{k:04d}", _StageOfChoice(search.session.told)) as inner:
        solution = solve_in(stage, inner)
    search.spend(solution)
    held, share = solution.facts["held_out_entries"], solution.facts["held_out_share"]
    if held < LEAST_HELD or share is None:
        raise BadInputError(
            f"target_rank = {AUTO!r}: only {held:.0f} entries are held out, too few to choose by (less than "
            f"{LEAST_HELD}): give a number, or hold out more (options, held_out = 0.3)"
        )
    return float(share), float(held)


class _StageOfChoice(StageObserver):
    """Reports a stage, of which nothing is predicted."""

    def on_ready(self, problem: Problem, session: Session) -> None:
        """Not passed on: how many steps EM takes no sample tells."""


def _chosen_problem(problem: Problem, held: RunStore) -> Problem | None:
    """The run that answers, if an earlier call has come so far."""
    algorithm = (held.read_spec() or {}).get("algorithm", {})
    if not isinstance(algorithm.get("target_rank"), int) or algorithm.get("share") != problem.share:
        return None  # a new store, one still searched, or another run, which binding refuses
    return _final(problem, algorithm["target_rank"], algorithm["iteration_rank"], read_start(held))


def _final(problem: Problem, rank: int, columns: int, start: Start | None) -> Problem:
    request = replace(problem.request, target_rank=rank, iteration_rank=columns)
    return make_problem(problem.source, request, start=start, share=problem.share)


def _bound(search: _Search, rank: int, start: Start) -> Problem:
    """The run that answers; the store is bound to it, in one write, once what it starts from is safe."""
    # No fewer columns than the stage had: there was room for them, and passes cost more than columns.
    columns = max(default_rank(rank, search.problem.d), min(start.basis.shape[1], search.problem.d))
    final = _final(search.problem, rank, columns, start)
    held = search.session.store
    held.log(SEARCHED, steps=start.passes, rank=rank)
    keep_start(held, start)
    held.write_spec((held.read_spec() or {}) | final.spec())
    search.session.told.on_stage(f"search: {rank} components reach {search.problem.share:g}; now to full tolerance")
    return final


def _find_rank(search: _Search) -> tuple[int, Start]:
    """Stage after stage, until one reaches the share: how many components do, and where it came to."""
    source, trace = _survey(search)
    columns, start, passes = min(FIRST_STAGE, min(source.shape)), None, 0
    while True:
        stage = _stage(search.problem, source, columns, trace, start)
        place = f"search/{columns:04d}"
        solution, values = _run_stage(search, stage, place)
        passes += solution.total_data_passes
        # Half of a stage is random in any case.
        start = replace(start_of(search.session.store.stage(place)), warning=None, random_columns=0)
        rank = _rule(stage).rank(values)
        if rank is not None:
            return rank, replace(start, passes=passes, random_columns=RANDOM_COLUMNS)
        search.reached.append((columns, float(values.sum()) / trace))
        if columns == min(source.shape):
            raise RefusedError(f"{_unreached_text(search)}; more do not exist: ask for less")
        columns = min(next_columns(values, _rule(stage).share * trace), *source.shape)


def _survey(search: _Search) -> tuple[Source, float]:
    """The source with its moments, and the trace; of a matrix as samples, which need no left vectors."""
    problem = search.problem
    with search.session as session:
        bind(problem, session.store, session.resources)
        session.plan(needs_of(problem))
        session.start(problem.source.path, workers=False)  # processes are not worth one pass
        source, trace = PlainRelease(problem, session).survey()
        search.passes, search.bytes_read = session.passes, session.bytes_read
    assert trace is not None
    rows = problem.request.seen(source).weight_of_rows(source.shape[0])
    if source.kind == "matrix":
        source, trace = replace(source, kind="samples"), trace / rows
    if source.kind == "symmetric":
        source = replace(source, trace=trace)
    if trace <= 0:
        raise BadInputError(
            f"{source.path} has no variance to explain (its trace is {trace:g}): give target_rank as a whole number"
        )
    return source, trace


def _stage(problem: Problem, source: Source, columns: int, trace: float, start: Start | None) -> Problem:
    """A run of ``columns`` columns, all of whose Ritz values count, in float64 (they must not exceed the true ones)."""
    request = replace(
        problem.request, target_rank=columns, iteration_rank=columns, tol=None, max_steps=STAGE_STEPS, stddev=0.0
    )
    stage = make_problem(source, request, start=start)
    rule = ShareRule(
        tol=stage.rule.tol,
        max_steps=STAGE_STEPS,
        d=stage.d,
        share=float(problem.share or 0.0),
        trace=trace,
        squared=False,
    )
    # Its own source, whose moments are of weighted rows: those that are recorded with data are not, and are left out.
    return replace(stage, source=source, algorithm=PowerMethod(target_rank=columns, iteration_rank=columns), rule=rule)


def _rule(stage: Problem) -> ShareRule:
    assert isinstance(stage.rule, ShareRule)
    return stage.rule


def _run_stage(search: _Search, stage: Problem, place: str) -> tuple[Solution, np.ndarray]:
    """A stage to its end: its facts and its Ritz values, in the units of the operator."""
    search.session.told.on_stage(
        f"search: does a run of {stage.algorithm.iteration_rank} columns reach {stage.rule.until_share:g}?"
    )
    with search.session.stage(place, _StageOfSearch(search)) as inner:
        try:
            solution = solve_in(stage, inner)
        except MemoryRefusedError as error:
            if not search.reached:
                raise
            raise MemoryRefusedError(
                f"{_unreached_text(search)}; for the next {stage.algorithm.iteration_rank}: {error}"
            ) from error
        part = inner.store.read_part("result")
    assert part is not None
    search.spend(solution)
    return solution, part[0]["operator_values"]


def _unreached_text(search: _Search) -> str:
    columns, share = search.reached[-1]
    return f"{search.problem.share:g} of the variance needs more than {columns} components: {columns} reach {share:.4f}"
