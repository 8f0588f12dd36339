"""Present results: rotated, aligned with an earlier run, with their sampling errors. No pass over the data.

It changes no bit of the answer. What is asked for is in run.json (``report``), so that a resumed run does it, too; what
comes of it is the part ``presentation`` of the store::

    STORE/presentation      basis, weights (for scores), variances, ... of the turned components; facts and warnings
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from npmdask.core.aspects import named
from npmdask.core.checkpoint.store import RunStore, folder_of
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.numerics.domains import require_independent
from npmdask.core.numerics.units import grid_of
from npmdask.core.runs.components import StoredComponents, TurnedComponents
from npmdask.core.runs.problem import STORED_GRAM, Presentation, Problem
from npmdask.core.runs.restore import TELLS, solution_of
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.labels import Labels, colour_of
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.rotations.turned import SIMPLE_STRUCTURE, aligned
from npmdask.stored_gram.resampling import LEAST_GROUPS, LEAST_REPLICATES
from npmdask.stored_gram.store import GramStore

PART = "presentation"
PROCRUSTES = "procrustes"
ROTATIONS = (*SIMPLE_STRUCTURE, PROCRUSTES)
AS_FOUND = "none"  # of an export: no rotation, whatever the run was reported with
STAYED = 0.9  # of the square of a component inside of the earlier space, and its cosine with the earlier one
ARRAYS = ("basis", "variances", "rotation", "correlations", "similarity", "earlier", "inside", "order")


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The ``basis`` of an earlier run as it was presented. ``place``: its store; ``components``: what it is of."""

    place: str
    basis: np.ndarray
    components: StoredComponents | None


def earlier_of(store: str, rotate: str | None) -> Earlier:
    """The components in ``store``: those that it was reported with, where they are turned in the same way.

    A run that was aligned itself is followed as it was shown: else the components of a third night could flip back.

    Raises
    ------
    BadInputError
        There is no finished run of rows.
    """
    run = RunStore(store)
    solution = solution_of(run, scores=False)
    kept, method = run.read_part(PART), rotate if rotate in SIMPLE_STRUCTURE else None
    if kept is not None and "basis" in kept[0]:
        before = kept[1]["asked"].get("rotate")
        if (before if before in SIMPLE_STRUCTURE else None) == method:
            return Earlier(place=run.place, basis=kept[0]["basis"], components=solution.analysed.components)
    basis = solution.basis if method is None else solution.rotated(method).basis
    return Earlier(place=run.place, basis=basis, components=solution.analysed.components)


def turn(solution: Solution, rotate: str | None, earlier: Earlier | None) -> TurnedComponents | None:
    """The components of a run, turned as asked; None: they stay as they are.

    Raises
    ------
    BadInputError
        There is no such rotation, nothing to rotate onto, or the earlier components are of other columns.
    """
    require_rotation(rotate, onto=earlier is not None)
    with single_threaded_blas():
        if rotate in SIMPLE_STRUCTURE:
            turned = solution.rotated(str(rotate))
            return turned if earlier is None else turned.aligned(earlier)
        return None if earlier is None else aligned(solution, earlier, rotate == PROCRUSTES)


def require_rotation(rotate: str | None, *, onto: bool) -> None:
    """Raise BadInputError for a rotation that there is not, or that has nothing to rotate onto."""
    if rotate is not None and rotate not in ROTATIONS:
        raise BadInputError(f"there is no rotation {rotate!r}: {closest(rotate, [*ROTATIONS])}")
    if rotate == PROCRUSTES and not onto:
        raise BadInputError("procrustes rotates onto the components of an earlier run: name that run with align_to")


def arrays_of(turned: TurnedComponents) -> dict[str, np.ndarray]:
    """All of it by name; ``score_weights`` (d x k) is what rows less their mean are multiplied by."""
    found = {name: getattr(turned, name) for name in ARRAYS if getattr(turned, name) is not None}
    mean = turned.components.mean
    return found | {"score_weights": turned.components.weights} | ({} if mean is None else {"mean": mean})


OF_SCORES = ("score_weights", "mean")  # of turned components: what rows are scored by


def turned_arrays(run: RunStore, rotate: str | None, align_to: str | None) -> dict[str, np.ndarray]:
    """Components turned as asked; without what scores need where that lay with data that are gone."""
    method = None if rotate == AS_FOUND else rotate
    earlier = None if align_to is None else earlier_of(align_to, method)
    try:
        turned = turn(solution_of(run), method, earlier)
        return {} if turned is None else arrays_of(turned)
    except BadInputError as error:
        if run.part_meta("columns") is not None:
            raise
        turned = turn(solution_of(run, scores=False), method, earlier)  # raises again what is not about the data
        if turned is None:
            return {}
        logging.getLogger(TELLS).warning("exported without %s: %s", " and ".join(OF_SCORES), error)
        return {name: array for name, array in arrays_of(turned).items() if name not in OF_SCORES}


def presentation_facts(run: RunStore) -> dict[str, Any]:
    """Return the presentation that a run was asked for and its facts, for JSON; empty where none was asked for."""
    meta = run.part_meta(PART)
    return {} if meta is None else {PART: meta["asked"] | meta["facts"]}


@dataclass(frozen=True, kw_only=True)
class Presenter:
    """Presents the answer of a run, once there is one; ``kept``: it did already, and the earlier run is gone;
    ``gone``: what is to be said where that is gone, and nothing was kept.
    """

    asked: Presentation
    earlier: Earlier | None = None
    gram: GramStore | None = field(default=None, repr=False)
    kept: bool = False
    gone: str = ""

    def present(self, held: RunStore, solution: Solution) -> Solution:
        """Keep in the store what was asked for; returns the solution with what should be known of it."""
        if not solution.answered:
            return solution
        if not self.kept:
            turned = turn(solution, self.asked.rotate, self.earlier)
            arrays = {} if turned is None else arrays_of(turned)
            facts: dict[str, Any] = {}
            warnings: list[str] = []
            if turned is not None:
                facts, warnings = _facts(turned), _warnings(turned, self.asked, self.earlier)
            warnings += [self.gone] if self.gone else []
            if self.gram is not None:
                facts["bootstrap"] = self._bootstrap(held, len(solution.values)).facts()
            _write(held, arrays, {"asked": self.asked.facts(), "facts": facts, "warnings": warnings})
        warnings = (held.part_meta(PART) or {})["warnings"]
        return replace(
            solution,
            warnings=(*solution.warnings, *warnings),
            facts=solution.facts | presentation_facts(held),
        )

    def _bootstrap(self, held: RunStore, k: int) -> Any:
        data = (held.read_spec() or {})["data"]
        how = {"center": data["center"], "scale": data["scale"], "replicates": self.asked.bootstrap}
        return self.gram.bootstrap(k, **how)  # type: ignore[union-attr]


def presenter_of(problem: Problem, held: RunStore) -> Presenter | None:
    """Make the presenter of the answer of a problem; None: nothing is asked for.

    Refuses now, and not after the last pass, what cannot be done.

    Raises
    ------
    BadInputError, RefusedError
        The sentence says what cannot be, and what to do.
    """
    asked = problem.request.presentation
    if asked is None:
        return None
    if problem.recipe is not None:
        raise RefusedError(
            "a release is reported unchanged: leave the [report] table out, and rotate the components afterwards "
            "with `npmdask export STORE OUT --align-to EARLIER`"
        )
    if problem.kind not in ("samples", "matrix", "sparse") or problem.derived is not None:
        if problem.kind != "symmetric" or asked.facts().keys() > {"grid"}:
            raise BadInputError(f"a run of kind {problem.kind} has no components of rows: leave the [report] table out")
    _require_page(problem, asked)
    require_rotation(asked.rotate, onto=asked.align_to is not None)
    if asked.independent_rows is not None:
        require_independent(asked.independent_rows, problem.source.shape[0])
    gram = None if asked.bootstrap is None else _groups_of(problem, asked.bootstrap)
    if asked.align_to is None:
        return Presenter(asked=asked, gram=gram)
    if folder_of(asked.align_to).resolve() == held.path.resolve():
        raise RefusedError(f"{held.place} would be aligned with itself: align_to names the store of an earlier run")
    if not (folder_of(asked.align_to) / "run.json").exists():
        return _without_earlier(held, asked, gram)
    earlier = earlier_of(asked.align_to, asked.rotate)
    if len(earlier.basis) != problem.d:
        raise BadInputError(
            f"the run to align with, {earlier.place}, is of {len(earlier.basis)} columns, and the data have "
            f"{problem.d}: components are compared column by column; leave align_to out"
        )
    return Presenter(asked=asked, earlier=earlier, gram=gram)


def _require_page(problem: Problem, asked: Presentation) -> None:
    """Raise BadInputError of a colour or a grid that the page of the run could not have."""
    if asked.grid is not None and prod(grid_of(asked.grid)) < problem.d:
        raise BadInputError(f"grid {asked.grid} has fewer cells than the data have columns ({problem.d})")
    colour_of(asked.colour, problem.source.labels or Labels(), problem.source.shape)


def _without_earlier(held: RunStore, asked: Presentation, gram: GramStore | None) -> Presenter:
    """Make the presenter of a run that was begun and whose run to align with is gone: it still gets its answer."""
    if (held.part_meta(PART) or {}).get("asked") == asked.facts():
        return Presenter(asked=asked, gram=gram, kept=True)
    gone = f"there is no run to align with in {asked.align_to}"
    if (held.read_spec() or {}).get("report") != asked.facts() or asked.rotate == PROCRUSTES:
        raise BadInputError(f"{gone}: name the store of a finished one, or leave align_to out")
    return Presenter(asked=asked, gram=gram, gone=f"{gone} any more: the components are not aligned")


def _groups_of(problem: Problem, replicates: int) -> GramStore:
    if replicates < LEAST_REPLICATES:
        raise BadInputError(
            f"bootstrap = {replicates} replicates are too few: give {LEAST_REPLICATES} or more, like 200"
        )
    spec = RunStore(problem.source.path).read_spec() if Path(problem.source.path).is_dir() else None
    if spec is None or spec["data"].get("kind") != STORED_GRAM:
        raise BadInputError(
            f"bootstrap draws groups of rows again, and {problem.source.path} keeps none: form their Grams with "
            f"`npmdask gram {quote(problem.source.path)} G --by-chunks 1`, and run G"
        )
    if options := named(problem.request.aspects):
        raise BadInputError(f"bootstrap takes the columns of a stored Gram as they are: leave {options} out")
    gram = GramStore(problem.source.path)
    groups = len(gram.groups)
    if groups < LEAST_GROUPS:
        raise BadInputError(
            f"{problem.source.path} has {groups} group{'s'[: groups != 1]} of rows, and a bootstrap needs "
            f"{LEAST_GROUPS}: form it with --by-chunks or --groups, or merge more"
        )
    return gram


def _write(held: RunStore, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    """Replace what is kept, unless it is the same."""
    before = held.read_part(PART)
    if before is not None and before[1] == meta and before[0].keys() == arrays.keys():
        if all(array.tobytes() == before[0][name].tobytes() for name, array in arrays.items()):
            return
    held.drop_part(PART)
    held.write_part(PART, arrays, meta)


def _facts(turned: TurnedComponents) -> dict[str, Any]:
    """Return how far each component turned, as plain numbers (from 0); None where an earlier one is missing."""
    facts: dict[str, Any] = {"variances": turned.variances.tolist()}
    if turned.similarity is not None and turned.earlier is not None and turned.inside is not None:
        facts |= {
            "earlier": [None if one < 0 else int(one) for one in turned.earlier],
            "degrees": [_degrees(cosine) for cosine in turned.similarity],
            "inside": turned.inside.tolist(),
        }
    if turned.order is not None:
        facts["order"] = turned.order.tolist()
    return facts


def _degrees(cosine: float) -> float | None:
    return math.degrees(math.acos(min(max(cosine, -1.0), 1.0))) if math.isfinite(cosine) else None


def _warnings(turned: TurnedComponents, asked: Presentation, earlier: Earlier | None) -> list[str]:
    """List what an alignment cannot mend: a space that moved, and components that mixed inside of it."""
    if earlier is None or turned.similarity is None or turned.inside is None:
        return []
    compared = np.isfinite(turned.similarity)
    moved = compared & (turned.inside < STAYED)
    mixed = compared & ~moved & (turned.similarity < STAYED)
    said = []
    if moved.any():
        least = float(turned.inside[moved].min())
        said.append(
            f"the space of the components moved since {asked.align_to}: component{_numbers(moved)} "
            f"{'lies' if moved.sum() == 1 else 'lie'} partly outside of the earlier one ({least:.0%} of the square "
            f"inside{'' if moved.sum() == 1 else ' at least'}). No order, sign or rotation mends that: the data "
            "changed, or a component that was beyond the last one came in"
        )
    if mixed.any():
        worst = max(_degrees(cosine) or 0.0 for cosine in turned.similarity[mixed])
        back = asked.rotate is None and earlier.basis.shape == turned.basis.shape
        remedy = '; rotate = "procrustes" turns them back' if back else ""
        said.append(
            f"component{_numbers(mixed)} turned by up to {worst:.0f} degrees since {asked.align_to}, inside of the "
            f"same space: components of nearly equal variance mix{remedy}"
        )
    return said


def _numbers(which: np.ndarray) -> str:
    numbers = [str(number + 1) for number in np.flatnonzero(which)]
    return f" {numbers[0]}" if len(numbers) == 1 else f"s {', '.join(numbers[:-1])} and {numbers[-1]}"
