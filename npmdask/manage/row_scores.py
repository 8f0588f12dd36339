"""Scores of the rows of a run for its report: those of a sample of rows, and how densely all rows lie.

One pass over the data finds both. They are kept in the store, so that the next report of the run reads nothing::

    STORE/row_scores      rows, scores (of the sample), colour, counts-0-1, width-0-1, ...; what was asked for
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from scipy.sparse import issparse

from npmdask.core.checkpoint.schema import is_of_rows, is_public
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.components import StoredComponents
from npmdask.core.runs.restore import solution_of
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.labels import colour_of, labels_in_file
from npmdask.core.storage.source import IN_MEMORY, Source
from npmdask.errors import BadInputError, NpmdaskError, require
from npmdask.manage.kinds import PageOptions

PART = "row_scores"
SAMPLED = 2000  # rows
SCORED = 6  # components
BINS = 192  # of a density, a side; a multiple of 4: it is halved around 0
UNASKED = 2**30  # bytes of data that a report reads once without being asked to


@dataclass
class Density:
    """Counts of rows in BINS x BINS square cells around 0, which grow as rows come that lie outside."""

    width: float
    counts: np.ndarray = field(default_factory=lambda: np.zeros((BINS, BINS), np.int64))

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Count rows by their two scores."""
        most = float(max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0)))
        while most >= self.width * BINS / 2:
            self._widen()
        places = [np.floor(one / self.width).astype(np.int64) + BINS // 2 for one in (y, x)]
        np.add.at(self.counts, tuple(places), 1)

    def _widen(self) -> None:
        """Make cells twice as wide: each takes in the counts of four."""
        inner = self.counts.reshape(BINS // 2, 2, BINS // 2, 2).sum(axis=(1, 3))
        self.counts, edge = np.zeros_like(self.counts), BINS // 4
        self.counts[edge : BINS - edge, edge : BINS - edge] = inner
        self.width *= 2


@dataclass(frozen=True, kw_only=True)
class RowScores:
    """``rows`` (s): numbers of the sampled rows, from 0; ``scores`` (s x c) along the first components; ``colour`` (s):
    what they are coloured by, if anything; ``densities``: by pairs of components, from 0; ``count``: rows in all.
    """

    rows: np.ndarray
    scores: np.ndarray
    densities: dict[tuple[int, int], Density]
    count: int
    colour: np.ndarray | None = None
    skipped: int = 0

    def bundle(self, colour: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays and facts, as a store keeps them."""
        arrays = {"rows": self.rows, "scores": self.scores}
        arrays |= {} if self.colour is None else {"colour": self.colour}
        for (i, j), one in self.densities.items():
            arrays[f"counts-{i}-{j}"] = one.counts
        widths = {f"{i}-{j}": one.width for (i, j), one in self.densities.items()}
        return arrays, {"colour": colour, "count": self.count, "skipped": self.skipped, "widths": widths}

    @classmethod
    def of(cls, rows: np.ndarray, scores: np.ndarray, colour: np.ndarray | None, **known: Any) -> RowScores:
        """The rows among these whose scores are finite; ``colour``: of all of them."""
        good = np.isfinite(scores).all(axis=1)
        return cls(rows=rows[good], scores=scores[good], colour=None if colour is None else colour[good], **known)

    @classmethod
    def of_bundle(cls, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> RowScores:
        """The inverse of :meth:`bundle`."""
        densities = {}
        for name, width in facts["widths"].items():
            i, j = map(int, name.split("-"))
            densities[i, j] = Density(width=width, counts=arrays[f"counts-{name}"])
        how = {"count": facts["count"], "skipped": facts["skipped"], "colour": arrays.get("colour")}
        return cls(rows=arrays["rows"], scores=arrays["scores"], densities=densities, **how)


def row_scores(run: RunStore, spec: dict[str, Any], page: PageOptions) -> RowScores | str:
    """Return the scores of a finished run, kept or found now, or in a sentence why there are none.

    Scores are data of rows: there are none of a private run, nor of data that have a privacy budget.

    Raises
    ------
    BadInputError
        Scores or a colour were asked for and cannot be had.
    """
    find = lambda: _read_row_scores(solution_of(run), spec, page)  # noqa: E731
    return kept_or_found(run, page, _refusal(spec), find, of=RowScores, work=bytes_of_rows(spec))


class Kept(Protocol):
    """Facts that a report has read from the rows of a run, as a store keeps them."""

    def bundle(self, colour: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays and facts; ``colour``: what rows are coloured by."""

    @classmethod
    def of_bundle(cls, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> Self:
        """The inverse of :meth:`bundle`."""


K = TypeVar("K", bound=Kept)


def kept_or_found(
    run: RunStore,
    page: PageOptions,
    refusal: str,
    find: Callable[[], K],
    *,
    of: type[K],
    work: int,
    what: str = "Scores are",
) -> K | str:
    """Return what is kept in the store, or what ``find`` reads the rows for, which is kept then.

    ``refusal``: why there is nothing to show, if so. ``work``: bytes that are read; more than UNASKED are read only if
    that was asked for. ``what``: the beginning of a sentence on it. Errors as :func:`row_scores`.
    """
    asked = page.scores or page.data is not None or (page.colour is not None and not page.as_run)
    if refusal:
        require(not asked, f"{run.place}: {refusal}")
        return refusal
    kept, colour = run.read_part(PART), "" if page.colour is None else str(page.colour)
    from_file = page.colour is not None and not isinstance(labels_in_file(page.colour), str)
    if kept is not None and (not colour or (kept[1]["colour"] == colour and (page.as_run or not from_file))):
        return of.of_bundle(*kept)
    if not asked and work > UNASKED:
        return (
            f"{what} not drawn: finding them reads the data once more. `npmdask report STORE --scores` does, and keeps "
            "them."
        )
    try:
        found = find()
    except NpmdaskError as error:
        if asked:
            raise
        return f"{what} not drawn: {error}"
    _keep(run, found, colour)
    return found


def bytes_of_rows(spec: dict[str, Any]) -> int:
    """Compute how large the rows of a run are in memory."""
    return int(np.prod(spec["data"]["shape"])) * np.dtype(spec["data"].get("dtype", "f8")).itemsize


def _refusal(spec: dict[str, Any]) -> str:
    """Why a run has no scores to show, if it has none."""
    data = spec["data"]
    if not is_public(spec):
        return "scores are data of single rows, and this run releases none of them"
    if spec.get("budget"):
        return "scores are data of single rows, and these data have a privacy budget: a report shows none"
    if not is_of_rows(spec) or "operator" in spec:
        return f"a run of kind {data['kind']} has no scores of rows"
    return "scores of complex data are not drawn" if np.dtype(data.get("dtype", "f8")).kind == "c" else ""


def _read_row_scores(solution: Solution, spec: dict[str, Any], page: PageOptions) -> RowScores:
    """Read all rows once."""
    components = solution.analysed.components
    assert components is not None
    given = spec["source"] if page.data is None else page.data
    if isinstance(given, str) and given.startswith(IN_MEMORY):
        remedy = "give them, write_report(STORE, page=PageOptions(data=X)), and those of an EOF as data=model.rows_"
        raise BadInputError(f"the data were in the memory of a program: {remedy}")
    dim = spec.get("dim") or (solution.labels.rows[0].name if page.data is not None and solution.labels.rows else None)
    opened = components.opened(given, dim if _has_named_dim(given) else None, kind=spec["data"]["kind"])
    require_same_data(opened.fingerprint, spec, opened.path)
    rows = sampled_rows(opened.shape[0])
    column, colour = colour_of(page.colour, solution.labels, opened.shape)
    k = min(SCORED, components.k)
    pairs = [(i, i + 1) for i in (0, 2) if i + 1 < k]
    skipped = 0
    spread = np.sqrt(np.maximum(np.abs(solution.singular_values[:k]) ** 2 / opened.shape[0], 0.0))
    densities = {pair: Density(width=float(spread[pair[0]]) / 14 or 1.0) for pair in pairs}

    def count(found: np.ndarray) -> None:
        nonlocal skipped
        good = np.isfinite(found).all(axis=1)
        skipped += int((~good).sum())
        for (i, j), density in densities.items():
            density.add(found[good, i], found[good, j])

    scores, taken = scores_at(rows, components, opened, k, column, count)
    colour = taken if column is not None else None if colour is None else colour[rows]
    return RowScores.of(rows, scores, colour, densities=densities, count=opened.shape[0], skipped=skipped)


def require_same_data(fingerprint: str, spec: dict[str, Any], path: str) -> None:
    """Raise BadInputError unless the data at ``path`` are those of the run."""
    if fingerprint != spec["data"]["fingerprint"]:
        raise BadInputError(
            f"{path} is not what the run was made of, or has changed since: scores are of the data of the run"
        )


def scores_at(
    rows: np.ndarray,
    components: StoredComponents,
    opened: Source,
    k: int,
    column: int | None = None,
    count: Callable[[np.ndarray], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of these ``rows`` (in order) along the first ``k`` components, and their values in a column.

    ``count`` is called with the scores of all rows, some at a time: they are read once.
    """
    scores, taken = np.full((len(rows), k), np.nan), np.empty(len(rows))
    for first, part in components.rows_of(opened):
        found = np.asarray(components.scores(part))[:, :k]
        if count is not None:
            count(found)
        low, high = np.searchsorted(rows, (first, first + len(found)))
        scores[low:high] = found[rows[low:high] - first]
        if column is not None:
            held = part[rows[low:high] - first]
            taken[low:high] = (held.toarray() if issparse(held) else np.asarray(held))[:, column]
    return scores, taken


def _has_named_dim(given: Any) -> bool:
    """Say whether data name the dimension along which their rows lie."""
    return isinstance(given, str | Path) or hasattr(given, "dims")


def sampled_rows(count: int) -> np.ndarray:
    """At most SAMPLED rows, one at random of each stretch of equal length: a period in the data is not met by them."""
    if count <= SAMPLED:
        return np.arange(count)
    edges = np.linspace(0, count, SAMPLED + 1).astype(np.int64)
    return edges[:-1] + (np.random.default_rng(0).random(SAMPLED) * np.diff(edges)).astype(np.int64)


def _keep(run: RunStore, found: Kept, colour: str) -> None:
    """Keep what was found where the store can be written; else the next report finds it again."""
    with suppress(NpmdaskError, OSError), RunStore(run.path) as held:
        held.drop_part(PART)
        held.write_part(PART, *found.bundle(colour))
