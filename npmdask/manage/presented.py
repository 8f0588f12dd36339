"""Sections of a report about sampling errors, and about components that were rotated or aligned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError
from npmdask.numerics.sampling_errors import Groups
from npmdask.report import Plot, Section
from npmdask.report.blocks import Text, section, series, spectrum_plot, table, warnings
from npmdask.runs.presentation import PART, require_independent
from npmdask.runs.restore import OF_ROWS, solution_of
from npmdask.storage.labels import Labels
from npmdask.storage.readers.gaps import DROP

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
    mixed: Groups
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
    of_rows = data["kind"] in OF_ROWS and (data["kind"] == "samples" or data["center"])
    if not of_rows or "operator" in spec or "lens" in spec:
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
    missing = solution.missing
    # Of columns that are left out nothing is used, and the others lack nothing.
    gaps = missing is not None and missing.rule != DROP and missing.entries > 0
    return Sampling(
        values=solution.values,
        errors=np.abs(solution.values) * of_value,
        mixed=mixed,
        rows=rows,
        what="variance (n in the denominator)" if data["kind"] == "samples" else "singular value",
        gaps=gaps,
        next_mixed=next_mixed,
    )


def presentation_sections(run: RunStore) -> list[Section]:
    """Show how components were rotated or aligned, how far they turned, and bootstrap intervals."""
    part = run.read_part(PART)
    if part is None:
        return []
    arrays, meta = part
    labels = run.read_part("labels")
    found = []
    if "basis" in arrays:
        names = names_of_columns(None if labels is None else Labels.of_bundle(*labels), len(arrays["basis"]))
        found.append(_turned(arrays, meta, names))
    if "bootstrap" in meta["facts"]:
        found.append(_bootstrap(meta["facts"]["bootstrap"]))
    return found


def _turned(arrays: dict[str, np.ndarray], meta: dict[str, Any], names: list[str]) -> Section:
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


def names_of_columns(labels: Labels | None, d: int) -> list[str]:
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
