"""Sections of a report on the data: explained variance, loadings, components as images and maps, scores of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import ceil, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.core.checkpoint.schema import is_of_rows, is_public
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.domains import require_independent
from npmdask.core.runs.components import labels_of_run
from npmdask.core.runs.kinds import PRESENTED
from npmdask.core.runs.restore import solution_of
from npmdask.core.storage.kinds import traits_of
from npmdask.core.storage.labels import Axis, Labels
from npmdask.core.storage.paths import data_name
from npmdask.core.storage.source import IN_MEMORY, open_source
from npmdask.errors import BadInputError, NpmdaskError
from npmdask.manage.kinds import PageOptions, Spec
from npmdask.manage.row_scores import SAMPLED, RowScores, row_scores
from npmdask.report import Bars, Map, Plot, Report, Rule, Section, Series
from npmdask.report.blocks import Text, section, series, spectrum_plot, table, warnings
from npmdask.report.plots import COLOURS

SHOWN = 10  # loadings of a component
CARDS, IMAGES, MAPS, TIMES = 6, 12, 6, 4  # components that are shown so
CELLS = 120_000  # of all maps of a page together: it stays below 1 MB
CLASSES = len(COLOURS)  # colours of rows
FINE = CELLS // (2 * MAPS)  # cells of a map of points
NEAR = 0.02  # of the diagonal of a map: a point is drawn no larger


PRIVATE = {"symmetric": "eigenvectors", "tensor": "decomposition", "matrix": "SVD", "sparse": "SVD"}  # else PCA
JOBS = {  # of several stages: what they find, what they find it in, and what they find k of
    "topics": ("{k} of {name}", "topic"),
    "mixture": ("Gaussian mixture of {name}: {k}", "component"),
    "ica": ("Independent components (ICA) of {name}: {k}", "component"),
    "mca": ("Maximum covariance (MCA) of {name}: {k}", "mode"),
    "cca": ("Canonical correlations (CCA) of {name}: {k}", "mode"),
    "stream": ("Streaming PCA of {name}: {k}", "component"),
}


def headline(run: RunStore, spec: Mapping[str, Any], k: int, source: str | None = None) -> str:
    """Say what was asked of which data: the title of a page. Data in memory are called like their run.

    ``k``: how many were found; ``source``: where the data are, if the parameters do not say.
    """
    data, name = spec["data"], _name_of_data(run, spec, source)
    if data["kind"] in JOBS:
        said, noun = JOBS[data["kind"]]
        return said.format(name=name, k=f"{k} {noun}{'s'[: k != 1]}")
    many = f"{k} component{'s'[: k != 1]}"
    if "privacy" in spec:
        return f"Private {PRIVATE.get(data['kind'], 'PCA')} of {name}: {many}"
    if "operator" in spec:
        return f"{many} of {name}"
    if (traits := traits_of(data["kind"])).without_rows or traits.square:
        return f"{'Eigenvectors' if traits.square else 'Decomposition'} of {name}: {many}"
    if data["center"]:
        return f"PCA of {name}: {many}" + (", columns standardized" if data["scale"] else "")
    return f"SVD of {name}: {many}"


def _name_of_data(run: RunStore, spec: Mapping[str, Any], source: str | None) -> str:
    if nodes := spec.get("nodes"):
        return f"the data of {len(nodes)} node{'s'[: len(nodes) != 1]}"
    places = [str(spec.get("source", "")) if source is None else source]
    places += [str(spec["other_source"])] if "other_source" in spec else []
    names = [data_name(place) for place in places if place and not place.startswith(IN_MEMORY)]
    if len(names) == len(places):
        return " and ".join(names)
    return run.path.name if len(places) == 1 else f"two fields, {run.path.name}"


def over_data(
    made: Report, run: RunStore, spec: Spec, k: int, *more: Section, after: int = 1, source: str | None = None
) -> Report:
    """Put a title on a report that says what was found in which data, and ``more`` behind its first sections."""
    sections = (*made.sections[:after], *more, *made.sections[after:])
    return replace(made, title=headline(run, spec, k, source), about=about(run, spec), sections=sections)


def about(run: RunStore, spec: Mapping[str, Any]) -> str:
    """Say how large the data are, what was done to them first, and what was asked for."""
    data, algorithm, said = spec["data"], spec["algorithm"], []
    # how many rows there are may be private; those of nodes are not known
    shape, kind = data.get("shape") if is_public(spec) else None, data["kind"]
    if kind == "topics" and shape:
        said.append(f"{shape[0]:,} documents, {shape[1]:,} different words")
    elif "columns" in data and shape:
        said.append(
            f"{shape[0]:,} rows; {data['columns'][0]:,} columns in the left field, {data['columns'][1]:,} in the right"
        )
    elif shape and len(shape) == 2:
        said.append(f"{shape[0]:,} rows × {shape[1]:,} columns")
    elif shape:
        said.append(" × ".join(f"{size:,}" for size in shape))
    if kind in ("samples", "matrix", "sparse", "mca", "cca") and "privacy" not in spec:
        done = [word for word, asked in (("centred", data["center"]), ("scaled to variance 1", data["scale"])) if asked]
        said.append("columns " + " and ".join(done) if done else "columns as they are, not centred")
    share, noun = asked_share(spec), JOBS.get(kind, ("", "component"))[1]
    count = next((algorithm[name] for name in ("target_rank", "topics", "components") if name in algorithm), None)
    wanted = f"{share:.3g} of the variance" if share else f"{count} {noun}{'s'[: count != 1]}"
    if algorithm.get("share") == "auto":
        wanted = "as many components as predict entries held out"
    said.append(f"asked for: {wanted}")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}. Run {name_of(run.path)}."


def name_of(store: Path) -> str:
    """Return the name of a run: its folder, with the one above it where that numbers its releases."""
    return f"{store.parent.name}, release {int(store.name)}" if store.name.isdigit() else store.name


def asked_share(spec: Mapping[str, Any]) -> float | None:
    """Give the share of the variance that was asked for; None where a number of components was, or "auto"."""
    share = spec["algorithm"].get("share")
    return None if share is None or share == "auto" else float(share)


def names_in_source(spec: Mapping[str, Any], fingerprint: Callable[[str], str]) -> Labels:
    """Look up what columns are called, where the data came from a store that is still there, unchanged, and says so.

    ``fingerprint`` computes that of the data at a path, as the run keeps it.
    """
    place = str(spec.get("source", ""))
    if not Path(place, "zarr.json").is_file():
        return Labels()
    try:
        labels, same = open_source(place, exact=False).labels, fingerprint(place) == spec["data"]["fingerprint"]
    except NpmdaskError:
        return Labels()
    return replace(labels, rows=()) if same and labels is not None else Labels()


def data_sections(run: RunStore, spec: dict[str, Any], result: Any, page: PageOptions) -> list[Section]:
    """Show what a finished run found in its data.

    Raises
    ------
    BadInputError
        A grid or a colour was asked for that does not fit.
    """
    labels, missing = labels_of_run(run) or Labels(), run.read_part("missing")
    kept = None if missing is None else missing[0]["kept"]
    arrays, meta = result
    found = [explained(spec, arrays["values"], meta.get("explained_share"))]
    if spec["data"]["kind"] not in ("tensor", "matrices") and arrays["basis"].dtype.kind != "c":
        found.append(components(arrays["basis"], labels, kept, page.grid))
        scores = row_scores(run, spec, page)
        if isinstance(scores, str):
            found.append(section("Scores of rows", Text(text=scores[0].upper() + scores[1:])) if scores else None)
        else:
            found += [scores_section(scores, labels, page), times_section(scores, labels)]
    return [one for one in found if one is not None and one.blocks]


def explained(spec: dict[str, Any], values: np.ndarray, share: float | None) -> Section | None:
    """Show what each component explains and what they explain together, beside what was asked for."""
    data = spec["data"]
    squares = np.maximum(values, 0.0) if data["kind"] == "samples" else np.asarray(values, float) ** 2
    if share is None or not squares.sum() > 0 or "operator" in spec or data["kind"] in ("tensor", "matrices"):
        return None
    shares = squares / squares.sum() * share
    what = "variance" if data["center"] else "sum of squares"
    k, asked = len(values), asked_share(spec)
    rule = (Rule(y=100 * asked, name=f"asked for: {100 * asked:.3g} %"),) if asked else ()
    said = f"The {k} components explain {share:.1%} of the {what} of all columns; the first {shares[0]:.1%}."
    numbers = range(1, k + 1)
    each = Plot(
        title=f"Share of the {what}, each component",
        x="component",
        y=f"% of the {what}",
        series=(series(numbers, 100 * shares, style="bars"),),
        bottom=0.0,
        about=said,
    )
    total = Plot(
        title="All components up to this one",
        x="component",
        y=f"% of the {what}",
        series=(series(numbers, 100 * np.cumsum(shares)),),
        rules=rule,
        bottom=0.0,
        top=105.0 if max(share, asked or 0) > 0.6 else None,
        about=said,
    )
    return section("Explained variance" if data["center"] else "Explained sum of squares", Text(text=said), each, total)


def components(basis: np.ndarray, labels: Labels, kept: np.ndarray | None, grid: tuple[int, int] | None) -> Section:
    """Show components as maps or images where columns form a grid, and else by their largest entries."""
    drawing = Drawing.of(labels, len(basis), kept, grid)
    most = {"cards": CARDS, "images": IMAGES, "maps": MAPS}[drawing.form]
    shown = min(most, basis.shape[1])
    blocks = [drawing.block(basis[:, i], f"Component {i + 1}", shown, unit=True) for i in range(shown)]
    if drawing.form == "cards":
        said = f"The {min(SHOWN, len(basis))} largest entries of each component, which has length 1. {_sign(blocks)}"
        return section("Strongest loadings", Text(text=said.strip()), *blocks)
    said = f"Entries of each component: red above 0, blue below. {drawing.left_out}"
    return section(f"Components as {drawing.form}", Text(text=said.strip()), *blocks)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Drawing of one number for each column: on the ``cells`` of a grid of two ``axes``, or by their ``names``.

    ``cells``: the number of the column of each, from 0; -1 where there is none. ``points``: so many columns are places
    in any order, and a cell shows the nearest.
    """

    axes: tuple[Axis, Axis] | None
    cells: np.ndarray
    names: list[str]
    points: int = 0

    @classmethod
    def of(cls, labels: Labels, d: int, kept: np.ndarray | None, grid: tuple[int, int] | None = None) -> Drawing:
        """Look up how ``d`` columns are drawn. ``kept``: which of all columns these are; ``grid``: was asked for.

        Raises
        ------
        BadInputError
            The grid that was asked for has not as many cells.
        """
        axes = _grid(labels, grid, d, kept)
        if axes is not None:
            cells = np.full(axes[0].size * axes[1].size, -1)
            cells[np.arange(len(cells)) if kept is None or len(kept) != d else kept] = np.arange(d)
            return cls(axes=axes, cells=cells, names=[])
        among = kept if kept is not None and len(kept) == d else np.arange(d)
        if labels.points:
            lat, lon = (axis.places[among] if axis.size > d else axis.places for axis in labels.points)
            if len(lat) == d and min(np.ptp(lat), np.ptp(lon)) > 0:
                lines, cells, points = _cells_of(lat, lon)
                named = zip(labels.points, lines, strict=True)
                axes = tuple(Axis(axis.name, len(line), line) for axis, line in named)  # type: ignore[assignment]
                return cls(axes=axes, cells=cells, names=[], points=points)
        count = prod(axis.size for axis in labels.columns) if labels.columns else d
        names = _names_of_columns(labels, count)
        if len(among) < count:
            names = [names[j] for j in among]
        return cls(axes=None, cells=np.arange(d), names=names if len(names) == d else _names_of_columns(None, d))

    @property
    def form(self) -> str:
        """Return the form in which they are shown: "maps", "images" or "cards"."""
        if self.axes is None:
            return "cards"
        rows = self.axes[0]
        return "images" if rows.values is None or rows.values.dtype.kind not in "iuf" else "maps"

    @property
    def left_out(self) -> str:
        """A sentence about cells of the grid without a column."""
        if self.axes is None:
            return ""
        if self.points:
            return f"Each cell shows the nearest of {self.points:,} points; grey: none is near."
        return "Grey: left out, no values." if (self.cells < 0).any() else ""

    def block(self, entries: np.ndarray, title: str, shown: int, *, unit: bool = False) -> Bars | Map:
        """Show ``entries`` (d). ``shown``: so many such blocks are on the page; ``unit``: entries have length 1."""
        if self.axes is None:
            return _card(entries, title, self.names, unit=unit)
        rows, columns = self.axes
        field = np.where(self.cells < 0, np.nan, entries[self.cells])
        return _map(field.reshape(rows.size, columns.size), rows, columns, title, self.form == "images", shown)


def _sign(cards: Sequence[Bars | Map]) -> str:
    signed = any(isinstance(card, Bars) and card.signed for card in cards)
    return "The sign of a component as a whole means nothing." if signed else ""


def _card(entries: np.ndarray, title: str, names: list[str], *, unit: bool) -> Bars:
    """The largest entries, by size."""
    sizes = np.nan_to_num(np.abs(entries))
    order = [j for j in np.argsort(-sizes, kind="stable")[:SHOWN] if sizes[j] > 0]
    part = float((entries[order] ** 2).sum())
    return Bars(
        title=title,
        notes=(f"{part:.0%} of its squared length",) if unit else (),
        bars=tuple((names[j] if not names[j].isdigit() else f"column {names[j]}", float(entries[j])) for j in order),
        most=float(sizes.max()) or 1.0,
    )


def _grid(labels: Labels, asked: tuple[int, int] | None, d: int, kept: np.ndarray | None) -> tuple[Axis, Axis] | None:
    """The two axes that columns lie along, if they do."""
    if asked is not None:
        all_columns = d if kept is None or not len(kept) else max(d, int(kept[-1]) + 1)
        if prod(asked) < all_columns or (prod(asked) != d and all_columns == d):
            raise BadInputError(
                f"grid {asked[0]}x{asked[1]} has {prod(asked)} cells and the data have {all_columns} columns: give "
                "rows x columns of the images"
            )
        return Axis("row", asked[0]), Axis("column", asked[1])
    axes = labels.grid or labels.columns
    if len(axes) != 2 or min(axis.size for axis in axes) < 2:
        return None
    return axes[0], axes[1]


def _cells_of(lat: np.ndarray, lon: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, int]:
    """A grid for points: its latitudes and longitudes, the number of the point of each cell (-1: none), and how many
    points cells are the nearest of (0: every point has a cell of its own).

    Points that fill a good part of the grid of their own coordinates are that grid, of which some cells were left out.
    """
    lines = np.unique(lat), np.unique(lon)
    cells = len(lines[0]) * len(lines[1])
    own = np.searchsorted(lines[0], lat) * len(lines[1]) + np.searchsorted(lines[1], lon)
    if cells <= 4 * len(lat) and len(np.unique(own)) == len(lat):
        found = np.full(cells, -1)
        found[own] = np.arange(len(lat))
        return lines, found, 0
    from scipy.spatial import cKDTree  # a tenth of a second that other pages need not

    spans = np.array([np.ptp(lat), np.ptp(lon)])
    tall, wide = (
        max(8, round(float(side))) for side in np.sqrt(FINE * np.array([spans[0] / spans[1], spans[1] / spans[0]]))
    )
    lines = np.linspace(lat.min(), lat.max(), tall), np.linspace(lon.min(), lon.max(), wide)
    tree = cKDTree(np.column_stack([lat, lon]))
    apart = np.quantile(tree.query(tree.data, k=2)[0][:, 1], 0.95)
    step = float(np.hypot(*(spans / (tall - 1, wide - 1))))
    near = max(min(0.75 * apart, NEAR * float(np.hypot(*spans))), 0.51 * step)
    middles = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, 2)
    nearest = tree.query(middles, distance_upper_bound=near)[1]
    return lines, np.where(nearest == len(lat), -1, nearest), len(lat)


def _map(field: np.ndarray, rows: Axis, columns: Axis, title: str, pixels: bool, shown: int) -> Map:
    """A field as a map, of means of neighbouring cells where it has too many for a page."""
    step = max(1, ceil(sqrt(field.size * shown / CELLS)))
    down, across = rows.places, columns.places
    across = across if across.dtype.kind in "iuf" else np.arange(columns.size)
    about = ""
    if step > 1:
        field, down, across = _means(field, step), down[step // 2 :: step], across[step // 2 :: step]
        about = f"Drawn are means of {step} by {step} cells."
        down, across = (_padded(at, size) for at, size in zip((down, across), field.shape, strict=True))
    return Map(
        title=title,
        values=tuple(tuple(None if np.isnan(v) else float(f"{v:.4g}") for v in row) for row in field),
        x=tuple(map(float, across)),
        y=tuple(map(float, np.arange(len(down)) if pixels else down)),
        x_name="column" if pixels else columns.name,
        y_name="row" if pixels else rows.name,
        pixels=pixels,
        about=about,
    )


def _means(field: np.ndarray, step: int) -> np.ndarray:
    """Means over blocks of cells, of those that have a value."""
    tall, wide = (ceil(size / step) for size in field.shape)
    whole = np.full((tall * step, wide * step), np.nan)
    whole[: field.shape[0], : field.shape[1]] = field
    blocks = whole.reshape(tall, step, wide, step)
    known = np.isfinite(blocks).sum(axis=(1, 3))
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known > 0, np.nansum(blocks, axis=(1, 3)) / np.maximum(known, 1), np.nan))


def _padded(at: np.ndarray, size: int) -> np.ndarray:
    """Coordinates of so many blocks: the last block may be narrower, and have no middle."""
    if len(at) == size:
        return at
    return np.append(at, at[-1] + (at[-1] - at[-2] if len(at) > 1 else 1))


# Scores


def scores_section(found: RowScores, labels: Labels, page: PageOptions) -> Section:
    """Draw rows by their scores along components 1 and 2, and 3 and 4: a sample of them, and the density of all."""
    names = row_names(found, labels)
    many = found.count > len(found.rows) + found.skipped
    blocks: list[Any] = []
    for i, j in found.densities:
        blocks.append(
            Plot(
                title=f"Components {i + 1} and {j + 1}",
                x=f"score on component {i + 1}",
                y=f"score on component {j + 1}",
                x_is="value",
                series=coloured(found, i, j, names),
                about="A point for each row" + (f" of a sample of {len(found.rows):,}." if many else "."),
            )
        )
        blocks += [_density(found, i, j)] if many else []
    if not blocks:
        blocks.append(_histogram(found))
    said = f"{found.count:,} rows"
    said += f"; points are {len(found.rows):,} of them at random, the density is of all." if many else ", all drawn."
    said += f" {found.skipped:,} rows without a finite score are left out." if found.skipped else ""
    said += f" Colours: {page.colour}." if page.colour is not None and found.colour is not None else ""
    return section("Scores of rows", Text(text=said), *blocks)


def row_names(found: RowScores, labels: Labels) -> tuple[str, ...]:
    axes = labels.rows
    if len(axes) == 1 and axes[0].values is not None and axes[0].size == found.count:
        values = axes[0].values[found.rows]
        return tuple(str(v).removesuffix("T00:00:00.000000000") for v in values)
    return tuple(f"row {row}" for row in found.rows)


def coloured(found: RowScores, i: int, j: int, names: tuple[str, ...]) -> tuple[Series, ...]:
    """The points as a series for each class of their colour."""
    classes = [("", np.arange(len(found.rows)))] if found.colour is None else grouped(found.colour)
    return tuple(
        Series(
            x=tuple(float(f"{v:.5g}") for v in found.scores[which, i]),
            y=tuple(float(f"{v:.5g}") for v in found.scores[which, j]),
            name=name,
            style="points",
            labels=tuple(names[at] for at in which),
        )
        for name, which in classes
    )


def grouped(values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Divide rows into at most CLASSES classes: those of its values, fifths of numbers, or the commonest texts."""
    kinds, of_row, counts = np.unique(values, return_inverse=True, return_counts=True)
    numbers = _numbers(values)
    if len(kinds) <= CLASSES:
        written = [f"{kind:g}" if kind.dtype.kind in "fiu" else str(kind) for kind in kinds]
        return [(name, np.flatnonzero(of_row == at)) for at, name in enumerate(written)]
    if numbers is not None:
        known = np.isfinite(numbers)
        edges = np.unique(np.quantile(numbers[known], [0, 0.2, 0.4, 0.6, 0.8, 1]))
        place = np.where(known, np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2), -1)
        ranges = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
        classes = [(name, np.flatnonzero(place == at)) for at, name in enumerate(ranges)]
        return classes if known.all() else [*classes, ("no value", np.flatnonzero(~known))]
    common = np.sort(np.argsort(-counts, kind="stable")[: CLASSES - 1])
    classes = [(str(kinds[at]), np.flatnonzero(of_row == at)) for at in common]
    return [*classes, ("others", np.flatnonzero(~np.isin(of_row, common)))]


def _numbers(values: np.ndarray) -> np.ndarray | None:
    """Values as numbers, if they all are, some of them finite."""
    try:
        numbers = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        return None
    return numbers if len(np.unique(numbers[np.isfinite(numbers)])) > 1 else None


def _density(found: RowScores, i: int, j: int) -> Map:
    one = found.densities[i, j]
    filled = np.argwhere(one.counts)
    (top, left), (bottom, right) = filled.min(axis=0), filled.max(axis=0)
    counts = one.counts[top : bottom + 1, left : right + 1]
    half = len(one.counts) // 2
    return Map(
        title=f"Density of all rows, components {i + 1} and {j + 1}",
        values=tuple(tuple(float(v) for v in row) for row in counts),
        x=tuple(float(f"{(at - half + 0.5) * one.width:.5g}") for at in range(left, right + 1)),
        y=tuple(float(f"{(at - half + 0.5) * one.width:.5g}") for at in range(top, bottom + 1)),
        x_name=f"score on component {i + 1}",
        y_name=f"score on component {j + 1}",
        colours="amount",
        about=f"{int(counts.sum()):,} rows, at most {int(counts.max()):,} in a cell.",
    )


def _histogram(found: RowScores) -> Plot:
    counts, edges = np.histogram(found.scores[:, 0], bins=min(40, max(5, len(found.rows) // 20)))
    return Plot(
        title="Scores along component 1",
        x="score",
        y="rows",
        x_is="value",
        series=(series((edges[:-1] + edges[1:]) / 2, counts, style="bars"),),
        bottom=0.0,
    )


def times_section(found: RowScores, labels: Labels) -> Section | None:
    """Draw scores over time, where rows have times."""
    axis = times_of(labels, found.count)
    if axis is None:
        return None
    seconds, order = times_in_order(axis, found.rows)
    plots = [
        Plot(
            title=f"Component {i + 1} over time",
            x=axis.name,
            y="score",
            x_is="time",
            series=(series(seconds, found.scores[order, i], style="thin"),),
        )
        for i in range(min(TIMES, found.scores.shape[1]))
    ]
    return section("Scores over time", Text(text=sampled_times(found)), *plots)


def times_of(labels: Labels, count: int) -> Axis | None:
    """Return the axis of ``count`` rows, if it is of times."""
    axes = labels.rows
    timed = len(axes) == 1 and axes[0].values is not None and axes[0].values.dtype.kind == "M"
    return axes[0] if timed and axes[0].size == count else None


def times_in_order(axis: Axis, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the times of ``rows`` in seconds since 1970, in order, and what brings the rows into it."""
    assert axis.values is not None
    seconds = axis.values[rows].astype("M8[s]").astype(np.int64)
    order = np.argsort(seconds, kind="stable")
    return seconds[order], order


def sampled_times(found: RowScores) -> str:
    """Say which times have a point."""
    return f"A point for {SAMPLED:,} of the times." if found.count > SAMPLED else "A point for each time."


# Sampling errors, and components that were rotated or aligned.

FEWEST = 3  # rows: of fewer an error is as large as the value
LARGEST = 4  # entries of a component that a table names


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """``errors``: standard errors of the ``values`` (k) by North's rule for ``rows`` independent rows; ``mixed``:
    groups of components, from 0, that they mix; ``gaps``: whether values are missing; ``next_mixed``: whether the last
    component is mixed with the next, which was not asked for (None: not known); ``what`` one value is.
    """

    values: np.ndarray
    errors: np.ndarray
    mixed: tuple[tuple[int, ...], ...]
    rows: int
    what: str = "value"
    gaps: bool = False
    next_mixed: bool | None = None

    @property
    def numbers(self) -> list[int]:
        """All components that are mixed with others."""
        return sorted({*chain.from_iterable(self.mixed), *([len(self.values) - 1] if self.next_mixed else [])})

    @property
    def partners(self) -> list[str]:
        """Which others each component is mixed with, counted from 1; of the last one also what is known of the next."""
        among = {i: ", ".join(str(j + 1) for j in group if j != i) for group in self.mixed for i in group}
        said = [among.get(i, "") for i in range(len(self.values))]
        following = {True: f"{len(said) + 1} (not computed)", False: "", None: "next: not known"}[self.next_mixed]
        return [*said[:-1], ", ".join(filter(None, (said[-1], following)))]

    def facts(self) -> dict[str, Any]:
        """All of it, for JSON."""
        numbers = {"values": self.values.tolist(), "errors": self.errors.tolist()}
        numbers |= {"mixed": [list(group) for group in self.mixed], "independent_rows": self.rows}
        return numbers | {"last_mixed_with_next": self.next_mixed}

    def lines(self) -> list[str]:
        """The same, for a terminal."""
        both = enumerate(zip(self.values, self.errors, strict=True), 1)
        head = f"{'':13}  {self.what} ± its standard error by sampling"
        return [head, *(f"component {i:3}  {value:.6g} ± {error:.2g}" for i, (value, error) in both), *self.sentences]

    @property
    def sentences(self) -> tuple[str, str]:
        """Which components are not told apart, and what that rests on."""
        rule = (
            f"Standard errors by North's rule of thumb, assuming {self.rows:,} independent, normally distributed rows: "
            f"{100 * np.sqrt(2 / self.rows):.2g} % of each variance. Where rows depend on their neighbours, as in "
            "time, say how many independent ones they are worth: --independent-rows, or report.independent_rows."
        )
        if self.gaps:
            rule += (
                " Rows with missing values are worth less: errors are larger than these, and more components may mix."
            )
        k = len(self.values)
        if self.next_mixed is None:
            rule += (
                f" Whether component {k} is mixed with component {k + 1}, which was not computed, is not known: ask "
            )
            rule += "for one component more."
        elif self.next_mixed:
            rule += (
                f" Component {k} is mixed with component {k + 1}, which was not computed, by bounds of its variance."
            )
        if not self.mixed:
            if self.next_mixed:
                return f"Mixed: component {k} with component {k + 1}, which was not computed.", rule
            return "Neighbours are farther apart than the errors of sampling reach: none are mixed.", rule
        groups = "; ".join(", ".join(str(i + 1) for i in group) for group in self.mixed)
        said = (
            f"Mixed: components {groups}. Their variances are within 3.5 standard errors of each other, so that "
            "other rows would give other directions in the same space: interpret them together, not one by one."
        )
        return said, rule

    def section(self) -> Section:
        """The same on a page."""
        said, rule = self.sentences
        return section("Sampling", Text(text=said, style="warning" if self.numbers else "plain"), Text(text=rule))


def sampling_of(run: RunStore, spec: Mapping[str, Any], independent_rows: int | None = None) -> Sampling | None:
    """Compute sampling errors; None for data that are not a sample of rows, or of which too little is known.

    ``independent_rows``: as the run was asked to be reported with by default, or else all.

    A matrix that is not centred may be anything: its rows are no observations.
    """
    data, asked = spec["data"], independent_rows
    asked = spec.get("report", {}).get("independent_rows") if asked is None else asked
    about = is_of_rows(spec) and "operator" not in spec and (data["kind"] == "samples" or data["center"])
    if not about or "Solution.north_errors" not in features.keys("methods"):
        return None
    solution = solution_of(run, scores=False)
    if asked is not None:
        require_independent(asked, data["shape"][0])
    try:
        errors, mixed = solution.north_errors(independent_rows=asked)
        next_mixed = solution.mixes_with_next(independent_rows=asked)
    except BadInputError:  # of weighted rows, whose number says nothing; of rows whose number is not released
        return None
    rows = asked or data["shape"][0]
    if rows < FEWEST or not solution.answered or not np.isfinite(errors).all():
        return None
    of_value = np.sqrt(2 / rows) / (1 if data["kind"] == "samples" else 2)  # of a root half as much
    return Sampling(
        values=solution.values,
        errors=np.abs(solution.values) * of_value,
        mixed=mixed,
        rows=rows,
        what="variance (n in the denominator)" if data["kind"] == "samples" else "singular value",
        gaps=solution.missing is not None and solution.missing.lacking,
        next_mixed=next_mixed,
    )


def presentation_sections(run: RunStore) -> list[Section]:
    """Show how components were rotated or aligned, how far they turned, and bootstrap intervals."""
    part = run.read_part(PRESENTED)
    if part is None:
        return []
    arrays, meta = part
    labels = run.read_part("labels")
    found = []
    if "basis" in arrays:
        names = _names_of_columns(None if labels is None else Labels.of_bundle(*labels), len(arrays["basis"]))
        found.append(_rotation_section(arrays, meta, names))
    if "bootstrap" in meta["facts"]:
        found.append(_bootstrap(meta["facts"]["bootstrap"]))
    return found


def _rotation_section(arrays: dict[str, np.ndarray], meta: dict[str, Any], names: list[str]) -> Section:
    asked, facts = meta["asked"], meta["facts"]
    method, onto = asked.get("rotate"), asked.get("align_to")
    title = {None: "Aligned components", "procrustes": "Aligned components"}.get(method, f"Components after {method}")
    k = arrays["basis"].shape[1]
    columns: dict[str, list[Any]] = {"component": list(range(1, k + 1))}
    if "order" in facts:
        columns["in this run"] = [one + 1 for one in facts["order"]]
    if "degrees" in facts:
        columns["earlier"] = ["—" if one is None else one + 1 for one in facts["earlier"]]
        columns["turned by"] = ["—" if one is None else f"{one:.2g}°" for one in facts["degrees"]]
        columns["inside the earlier space"] = [f"{share:.1%}" for share in facts["inside"]]
    columns["variance (n - 1)"] = [f"{value:.6g}" for value in facts["variances"]]
    columns["largest entries"] = [_largest(arrays["basis"][:, i], names) for i in range(k)]
    about = (
        "Components after varimax have few large entries; their scores are uncorrelated."
        if method == "varimax"
        else "Components after promax have few large entries; their scores may be correlated."
        if method == "promax"
        else f"In the order and with the signs of the components of {onto}."
        if method is None
        else f"Rotated onto the components of {onto}: they span the same space as those of this run, and are no longer "
        "principal components."
    )
    if onto is not None and method in ("varimax", "promax"):
        about += f" In the order and with the signs of those of {onto}."
    plot: Plot | None = None
    known = [(i, angle) for i, angle in enumerate(facts.get("degrees", ()), 1) if angle is not None]
    if known:
        bars = series([i for i, _ in known], [angle for _, angle in known], style="bars")
        plot = Plot(
            title="Turned since the earlier run", x="component", y="degrees", series=(bars,), bottom=0.0, top=90.0
        )
    rows = zip(*columns.values(), strict=True)
    return section(title, *warnings(meta["warnings"]), Text(text=about), table(rows, tuple(columns)), plot)


def _names_of_columns(labels: Labels | None, d: int) -> list[str]:
    """Return the names of the columns; on a grid, their positions along all axes."""
    axes = [] if labels is None else labels.columns
    if not axes or np.prod([axis.size for axis in axes]) != d:
        return [str(i) for i in range(d)]
    places = np.unravel_index(np.arange(d), [axis.size for axis in axes])
    return [" ".join(str(axis.places[at[i]]) for axis, at in zip(axes, places, strict=True)) for i in range(d)]


def _largest(entries: np.ndarray, names: list[str]) -> str:
    order = np.argsort(-np.abs(entries), kind="stable")[:LARGEST]
    return ", ".join(f"{names[i]} {entries[i]:+.2f}" for i in order)


def _bootstrap(facts: dict[str, Any]) -> Section:
    """Values with their errors, and intervals of values and shares where something is claimed of one component."""
    values = facts["values"]
    mixed = {i: group for group in facts["mixed"] for i in group}
    plot = spectrum_plot(values, "variance", errors=facts["value_errors"], mixed=[i for i in mixed if i < len(values)])
    rows = []
    for i, value in enumerate(values):
        low, high = facts["value_intervals"][i]
        least, most = facts["share_intervals"][i]
        told = i not in mixed
        with_others = "" if told else "mixed with " + ", ".join(str(j + 1) for j in mixed[i] if j != i)
        rows.append(
            (
                i + 1,
                f"{value:.6g}",
                f"{facts['value_errors'][i]:.2g}",
                f"{low:.4g} to {high:.4g}" if told else "—",
                f"{least:.2%} to {most:.2%}" if told else "—",
                with_others,
            )
        )
    confidence = f"{facts['confidence']:.0%}"
    head = ("component", "variance", "standard error", f"{confidence} interval", "of the variance", "")
    about = (
        f"{facts['replicates']} bootstrap replicates over {facts['groups']} groups of rows, assuming that the groups "
        "are independent and alike. No interval is given for a single component of a mixed group."
    )
    drawn = replace(plot, title="Spectrum by bootstrap")
    return section("Bootstrap", drawn, Text(text=about), table(rows, head))
