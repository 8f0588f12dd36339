"""Stored Grams: one pass over rows, or made of other Grams."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import attributes, bytes_text
from npmdask.core.runs.kinds import changed_resources
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import STORED_GRAM
from npmdask.core.runs.restore import resources_of
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.manage.kinds import Keeps, RunKind, Spec, named
from npmdask.stored_gram.parts import GramPart, GramRequest, groups_of, listed_parts
from npmdask.stored_gram.store import GramStore, form_gram

if TYPE_CHECKING:
    from npmdask.report import Report

DRAWN = 100  # values of a spectrum on a page
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)


class GramKind(RunKind):
    """A stored Gram."""

    name = STORED_GRAM
    may_change = frozenset({"memory", "workers", "threads", "cluster", "certificates"})

    def gave(self, answer: Any) -> bool:
        return isinstance(answer, GramStore)

    def resume(self, store: Path, changes: Mapping[str, Any], observer: Observer | None) -> GramStore:
        """Go on with the pass, or read the rows that were appended since; one that was merged is as it is."""
        run = RunStore(store)
        spec = run.read_spec() or {}
        if spec["algorithm"]["made"] != "formed":
            if not listed_parts(run)[0]:
                raise RefusedError(
                    f"{store} was to be {spec['algorithm']['made']} from other Grams and is not finished: run the same "
                    "`npmdask gram` again"
                )
            return GramStore(store)
        asked = {name: spec["algorithm"][name] for name in ("by_chunks", "precision")}
        groups = groups_of(run)
        if (groups is None) != ("groups" not in spec["algorithm"]):
            raise RefusedError(f"{store} was left before it kept the labels of rows: run the same `npmdask gram` again")
        source = open_source(spec["source"], spec["data"]["of"], spec.get("dim"))
        resources = resources_of(run, **changed_resources(changes))
        return form_gram(
            source, store, GramRequest(**asked, groups=groups, seed=spec["run"]["seed"]), resources, observer
        )

    def answer(self, store: Path) -> dict[str, np.ndarray]:
        """Compute the Gram about the mean, with the means and the number of rows."""
        found = GramStore(store)
        return {"gram": found.matrix(), "mean": found.mean, "rows": np.array(found.rows)}

    def summary(self, answer: GramStore) -> dict[str, Any]:
        return {
            **attributes(answer, "rows", "columns", "kind"),
            "groups": list(answer.groups),
            **attributes(answer, "rows_read", "bytes_read", "fingerprint", "store"),
        }

    def ending(self, answer: GramStore) -> str:
        new = ""
        if answer.made == "formed":
            read = f"{_count_text(answer.rows_read, 'row')} read" if answer.rows_read else "no new rows"
            new = f" ({read}, {bytes_text(answer.bytes_read)})"
        size = f"{_count_text(answer.rows, 'row')} and {_count_text(answer.columns, 'column')}"
        return (
            f"{answer.store} holds the Gram of {size}{new}; `npmdask run {quote(answer.store)} -k K` answers from it "
            "without a pass"
        )

    def found(self, answer: GramStore) -> str:
        return self.ending(answer)

    def next_commands(self, store: str) -> str:
        return f"npmdask run {store} -k K; npmdask components {store}; npmdask report {store}"

    def inspect(self, run: RunStore, spec: Spec) -> dict[str, Any]:
        parts, history = listed_parts(run)
        facts: dict[str, Any] = {"state": "finished" if parts else "unfinished"}
        if parts:
            facts |= {
                "rows": sum(part.rows for part in parts),
                "groups": list(dict.fromkeys(part.group for part in parts)),
                "chunks": sum(len(origin.chunks) for part in parts[:1] if part.labelled for origin in part.origins)
                or sum(len(origin.chunks) for part in parts for origin in part.origins),
                "formed": sorted({part.formed for part in parts}),
                "bytes_read": sum(reading["bytes"] for reading in history),
            }
        else:
            facts["outcome"] = "go on with `npmdask resume`"
        return facts | {"source": spec.get("source")} | named(spec, ("data", "algorithm", "run", "version"))

    def report(self, run: RunStore, spec: Spec) -> Report:
        """Report the spectrum of the covariance, shares of the variance, and what was summed."""
        from npmdask.manage.data_report import name_of
        from npmdask.report import Plot, Report
        from npmdask.report.blocks import parameters, section, series, spectrum_plot, table, tiles

        parts, _ = listed_parts(run)
        if not parts:
            raise BadInputError(
                f"there is no finished Gram in {run.place}: go on with `npmdask resume {quote(str(run.place))}`"
            )
        store = GramStore(run.path)
        values = np.linalg.eigvalsh(store.matrix())[::-1]
        variances, total = np.maximum(values, 0.0) / max(store.rows - 1, 1), float(np.maximum(values, 0.0).sum())
        shares = np.cumsum(np.maximum(values, 0.0)) / (total or 1.0)
        facts = [
            ("rows", f"{store.rows:,}"),
            ("columns", f"{store.columns:,}"),
            ("groups of rows", str(len(store.groups))),
            ("sum of the variances", f"{variances.sum():.6g}"),
        ]
        enough = [(f"{share:.0%}", int(np.searchsorted(shares, share * (1 - 1e-12))) + 1) for share in SHARES]
        drawn = range(1, min(len(values), DRAWN) + 1)
        share_plot = Plot(
            title="Share of the variance",
            x="components",
            y="share",
            series=(series(drawn, shares[:DRAWN]),),
            bottom=0.0,
            top=1.0,
        )
        return Report(
            title=f"Gram matrix {name_of(run.path)}",
            outcome=f"the Gram of {_count_text(store.rows, 'row')} and {_count_text(store.columns, 'column')}",
            good=True,
            sections=(
                section("", tiles(facts)),
                section(
                    "Spectrum of the covariance",
                    spectrum_plot(variances[:DRAWN], "variance"),
                    share_plot if total > 0 else None,
                    table(enough, ("share of the variance", "components")) if total > 0 else None,
                ),
                section("Rows", table(map(_row, parts), ("group", "rows", "source", "formed in", "fingerprint"))),
                parameters(spec, ("data", "algorithm", "run", "version")),
            ),
        )

    def keeps(self, run: RunStore, spec: Spec) -> Keeps:
        """Keep everything: it is data, of rows that may be gone."""
        return "everything"


def _count_text(number: int, what: str) -> str:
    """``1 row``, ``1,000 rows``."""
    return f"{number:,} {what}{'s'[: number != 1]}"


def _row(part: GramPart) -> tuple[Any, ...]:
    places = ", ".join(dict.fromkeys(origin.source for origin in part.origins))
    return part.group, f"{part.rows:,}", places, part.formed, part.origins[0].fingerprint[:16]


GRAM = GramKind()
