"""Sections of a report on two fields: patterns of both, their correlations with the data, and scores of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.components import labels_of_run
from npmdask.core.storage.labels import Labels, colour_of
from npmdask.errors import BadInputError
from npmdask.manage.data_report import (
    CARDS,
    MAPS,
    TIMES,
    Drawing,
    coloured,
    row_names,
    sampled_times,
    times_in_order,
    times_of,
)
from npmdask.manage.kinds import PageOptions
from npmdask.manage.row_scores import (
    SCORED,
    RowScores,
    bytes_of_rows,
    kept_or_found,
    require_same_data,
    sampled_rows,
    scores_at,
)
from npmdask.report import Bars, Map, Plot, Section
from npmdask.report.blocks import Text, section, series
from npmdask.two_fields.answers import CoupledModes, FieldModes
from npmdask.two_fields.fit import LABELS, MCA, joined_fingerprint

SIDES = ("left", "right")
MAPS_EACH, CARDS_EACH = MAPS // 2, CARDS // 2  # modes whose patterns are shown, of either field


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two fields: ``deviations`` of its columns as they were seen, where they are known."""

    name: str
    modes: FieldModes
    labels: Labels
    drawing: Drawing
    deviations: np.ndarray | None


def two_field_sections(run: RunStore, spec: dict[str, Any], answer: CoupledModes, page: PageOptions) -> list[Section]:
    """Show what a finished job found in both fields.

    Raises
    ------
    BadInputError
        A grid, scores or a colour were asked for that do not fit.
    """
    sides = _sides(run, answer, page)
    found = [*_patterns(sides), *_correlations(sides, answer, centred=bool(spec["data"]["center"]))]
    find = lambda: _scores(spec, sides, page)  # noqa: E731
    scores = kept_or_found(run, page, "", find, of=RowScores, work=bytes_of_rows(spec))
    if isinstance(scores, str):
        return [*found, section("Scores of both fields", Text(text=scores))]
    return [*found, _scores_section(scores, sides, answer, page)]


def _sides(run: RunStore, answer: CoupledModes, page: PageOptions) -> tuple[Side, Side]:
    part = run.read_part("result")
    assert part is not None
    std, split = part[0].get("column_std"), len(answer.left.basis)
    parts = (None, None) if std is None else (std[:split], std[split:])
    made, refused = [], []
    for name, kept_as, modes, of_columns in zip(SIDES, LABELS, (answer.left, answer.right), parts, strict=True):
        labels = labels_of_run(run, kept_as) or Labels()
        kept = None if modes.missing is None else modes.missing.kept
        d = len(modes.basis)
        try:
            drawing = Drawing.of(labels, d, kept, page.grid)
        except BadInputError as error:  # the grid is that of the other field
            refused.append(error)
            drawing = Drawing.of(labels, d, kept)
        deviations = None if of_columns is None else _viewed_deviations(of_columns, modes)
        made.append(Side(name=name, modes=modes, labels=labels, drawing=drawing, deviations=deviations))
    if len(refused) == len(made):
        raise refused[0]
    return made[0], made[1]


def _viewed_deviations(deviations: np.ndarray, modes: FieldModes) -> np.ndarray:
    """The standard deviations of columns that were scaled and weighted."""
    scale, weight = modes.components.scale, modes.components.column_weight
    deviations = deviations if scale is None else deviations / scale
    return deviations if weight is None else deviations * np.sqrt(weight)


# Patterns


def _patterns(sides: tuple[Side, Side]) -> list[Section]:
    said = "What each column gains, in its own units, where a score grows by 1."
    return _paired(sides, "Patterns", said, lambda side: np.asarray(side.modes.patterns))


def _correlations(sides: tuple[Side, Side], answer: CoupledModes, *, centred: bool) -> list[Section]:
    """Correlations that take no pass over the data.

    Of maximum covariance C v = s u: s u are the covariances of the left columns with the right scores. Of canonical
    correlations the loadings are the covariances of the columns of a field with its own scores.
    """
    if not centred or any(side.deviations is None for side in sides):
        return []
    other = {side.name: beside for side, beside in zip(sides, reversed(sides), strict=True)}

    def of_columns(side: Side) -> np.ndarray:
        crossed = answer.kind == MCA
        covariances = side.modes.basis * answer.values if crossed else side.modes.loadings
        variance = (other[side.name] if crossed else side).modes.variance
        assert side.deviations is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            found = covariances / (side.deviations[:, None] * np.sqrt(variance))
        return np.where(np.isfinite(found), np.clip(found, -1.0, 1.0), np.nan)

    whose = "the scores of the other field" if answer.kind == MCA else "the scores of its own field"
    name = "heterogeneous" if answer.kind == MCA else "homogeneous"
    said = f"The correlation of each column with {whose} ({name} patterns)."
    return _paired(sides, "Correlations of columns", said, of_columns)


def _paired(sides: tuple[Side, Side], title: str, said: str, numbers: Callable[[Side], np.ndarray]) -> list[Section]:
    """Blocks of both fields side by side; field after field where one is drawn and the other is listed."""
    listed = [side.drawing.form == "cards" for side in sides]
    alike = listed[0] == listed[1]
    blocks: dict[str, list[Bars | Map]] = {}
    for side, cards in zip(sides, listed, strict=True):
        columns = numbers(side)
        count = min(CARDS_EACH if cards else MAPS_EACH, columns.shape[1])
        on_page = 4 * count  # of patterns and correlations, of both fields
        blocks[side.name] = [
            side.drawing.block(columns[:, i], f"Mode {i + 1}, {side.name} field", on_page) for i in range(count)
        ]
    said = (
        f"{said} The signs of both fields may be changed together."
        if any(listed)
        else f"{said} Red above 0, blue below."
    )
    said = " ".join([said, *sorted({side.drawing.left_out for side in sides} - {""})])
    if not alike:
        return [section(f"{title}, {name} field", Text(text=said), *found) for name, found in blocks.items()]
    pairs = zip(*blocks.values(), strict=True)
    return [
        section(
            f"{title} of both fields" if title == "Patterns" else title,
            Text(text=said),
            *(b for pair in pairs for b in pair),
        )
    ]


# Scores


def _scores(spec: dict[str, Any], sides: tuple[Side, Side], page: PageOptions) -> RowScores:
    """Read both fields once, one after the other; scores of the left field come first.

    Raises
    ------
    BadInputError
        The data are not those of the job, have a privacy budget, or have no such column.
    """
    given = (spec["source"], spec["other_source"]) if page.data is None else page.data
    if not isinstance(given, tuple | list) or len(given) != len(sides):
        raise BadInputError("the data of two fields are a pair: data=(left, right)")
    opened = []
    for side, data, dim in zip(sides, given, (spec.get("dim"), spec.get("other_dim")), strict=True):
        axes = side.labels.rows
        dim = dim or (axes[0].name if axes and hasattr(data, "dims") else None)
        opened.append(
            side.modes.components.opened(data, dim if isinstance(data, str) or hasattr(data, "dims") else None)
        )
        if opened[-1].budget is not None:
            raise BadInputError(f"{opened[-1].path} has a privacy budget, and scores are data of single rows")
    require_same_data(joined_fingerprint(*opened), spec, f"{opened[0].path} beside {opened[1].path}")
    rows, k = sampled_rows(opened[0].shape[0]), min(SCORED, len(sides[0].modes.variance))
    column, colour = colour_of(page.colour, sides[0].labels, opened[0].shape)
    parts, taken = [], np.empty(0)
    for side, one in zip(sides, opened, strict=True):
        scores, values = scores_at(rows, side.modes.components, one, k, column if side is sides[0] else None)
        taken = values if side is sides[0] else taken
        parts.append(scores)
    both = np.concatenate(parts, axis=1)
    skipped = int((~np.isfinite(both).all(axis=1)).sum())
    colour = taken if column is not None else None if colour is None else colour[rows]
    return RowScores.of(rows, both, colour, densities={}, count=opened[0].shape[0], skipped=skipped)


def _scores_section(found: RowScores, sides: tuple[Side, Side], answer: CoupledModes, page: PageOptions) -> Section:
    """Draw scores of both fields over time, and against one another, each in its standard deviations."""
    k = found.scores.shape[1] // 2
    deviations = np.sqrt(np.concatenate([side.modes.variance[:k] for side in sides]))
    scaled = replace(found, scores=found.scores / np.where(deviations > 0, deviations, 1.0))
    labels = next((side.labels for side in sides if side.labels.rows), Labels())
    names, axis = row_names(found, labels), times_of(labels, found.count)
    over_time, across = [], []
    for i in range(min(TIMES, k)):
        r = answer.correlations[i]
        title = f"Mode {i + 1}" + ("" if np.isnan(r) else f", correlation {r:.2f}")
        if axis is not None:
            seconds, order = times_in_order(axis, found.rows)
            lines = [
                series(seconds, scaled.scores[order, i + k * at], f"{side.name} field", style="thin")
                for at, side in enumerate(sides)
            ]
            over_time.append(
                Plot(title=title, x=axis.name, y="score, standard deviations", x_is="time", series=tuple(lines))
            )
        across.append(
            Plot(
                title=f"{title}: left against right" if axis is not None else title,
                x="score of the left field",
                y="score of the right field",
                x_is="value",
                series=coloured(scaled, i, k + i, names),
                about="A point for each row, in standard deviations.",
            )
        )
    said = "Scores in standard deviations; correlations are of all rows. "
    said += sampled_times(found) if axis is not None else f"{found.count:,} rows"
    if axis is None:
        said += (
            f", of which {len(found.rows):,} at random are drawn."
            if found.count > len(found.rows) + found.skipped
            else "."
        )
    said += f" {found.skipped:,} rows without a finite score are left out." if found.skipped else ""
    said += f" Colours: {page.colour}." if page.colour is not None and found.colour is not None else ""
    return section("Scores of both fields", Text(text=said), *over_time, *across)
