"""Kinds of runs: everything that commands need to know of a kind, in one place, and the table of kinds.

A kind is a subclass of :class:`RunKind`; :func:`register_kind` adds it, from a plug-in too. Commands ask the kind of a
store (:func:`kind_of`, by its run.json) or of an answer (:func:`kind_of_answer`); no other module asks what sort of run
something is. Private and federated runs are no kinds: they are ordinary runs whose products are released otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any, Literal, Protocol

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError
from npmdask.report import Report
from npmdask.report.blocks import bytes_text
from npmdask.runs.observers import Observer
from npmdask.runs.presentation import grid_of
from npmdask.runs.resources import DeviceUse, NetworkUse

Keeps = Literal["answer", "run", "everything"]
Spec = Mapping[str, Any]

LONG = ("certificate.levels", "certificate.nearest")  # a table in the report, whole in --json


class Sink(Protocol):
    """Destination of an export; arrays larger than memory come in blocks of rows."""

    def array(self, name: str, array: np.ndarray) -> None:
        """Write an array that is in memory."""

    def rows(self, name: str, shape: tuple[int, int], blocks: Iterable[np.ndarray]) -> None:
        """Write a matrix of float64 from its rows, block by block."""

    def about(self, facts: Mapping[str, Any]) -> None:
        """Take what is to be known of all of it, where the format has a place for that."""


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """What a report shows beyond its defaults.

    Parameters
    ----------
    colour : a value for each row, by which score plots are coloured: a file (text, one a line, or .npy) or the name or
        number (from 0) of a column.
    grid : rows and columns of the images that the columns of the data are.
    scores : find scores, and the strongest documents of topics, also where that reads more than 1 GiB.
    columns : what columns are called, of a private run, which keeps no names: those that are public.
    data : the data of the run, where they were given in memory, so that they can be scored.
    as_run : the colour is what the run was asked to be reported with: no data are read for it that would not be read
        anyway, and it fails no report.
    """

    colour: str | Path | None = None
    grid: tuple[int, int] | None = None
    scores: bool = False
    columns: tuple[str, ...] | None = None
    data: Any = field(default=None, compare=False)
    as_run: bool = False

    def or_as_run(self, asked: Mapping[str, Any]) -> PageOptions:
        """Fill in what is not given here from what the run was ``asked`` for, in its configuration for example."""
        grid = grid_of(asked["grid"]) if self.grid is None and "grid" in asked else self.grid
        if self.colour is not None or "colour" not in asked:
            return replace(self, grid=grid)
        return replace(self, grid=grid, colour=asked["colour"], as_run=True)


class RunKind:
    """A kind of run. What a subclass leaves out is that of a run without stages, whose store has no timing to hide.

    ``name``: in the column "what" of ``npmdask status``. ``may_change``: arguments of ``npmdask.resume`` that it takes.
    ``staged``: its answer comes from runs in folders below its own, so that it is not deflated. ``folders``: names in
    its store that hold such runs, beside those that lie in the store itself.

    Examples
    --------
    >>> from npmdask.manage import kind_of
    >>> kind_of({"data": {"kind": "stream"}}).name, kind_of({"data": {"kind": "samples"}}).name
    ('stream', 'matrix')
    """

    name = ""
    may_change: frozenset[str] = frozenset()
    staged = False
    folders: tuple[str, ...] = ()

    def matches(self, spec: Spec) -> bool:
        """Say whether a store whose run.json holds ``spec`` is of this kind: its data are."""
        return bool(spec.get("data", {}).get("kind") == self.name)

    def gave(self, answer: Any) -> bool:
        """Say whether ``answer`` is what a run of this kind returns."""
        raise NotImplementedError

    def refusal(self, store: Path) -> str:
        """Say why ``npmdask.resume`` takes only ``may_change``."""
        return f"{store} is a run of kind {self.name}: only {', '.join(sorted(self.may_change))} may be given"

    def resume(self, store: Path, changes: Mapping[str, Any], observer: Observer | None) -> Any:
        """Go on with the run in ``store`` from its last commit. ``changes``: what was given, of ``may_change``."""
        raise NotImplementedError

    def answer(self, store: Path) -> dict[str, np.ndarray]:
        """Read the arrays of the answer, by name.

        Raises
        ------
        BadInputError
            There is none yet.
        """
        raise NotImplementedError

    def summary(self, answer: Any) -> dict[str, Any]:
        """List the facts of an answer as plain numbers and strings: the JSON that scripts rely on."""
        raise NotImplementedError

    def ending(self, answer: Any) -> str:
        """Say how the run ended, for a terminal."""
        return str(answer.outcome.sentence)

    def lines(self, answer: Any, words: int = 10) -> str:
        """Show an answer on a terminal; ``words``: of a topic."""
        return in_lines(self.summary(answer))

    def overview(self, answer: Any, cost: Mapping[str, str]) -> list[tuple[str, str]]:
        """Say what was found in at most eight lines, each with its name, for the end of a command.

        ``cost``: time and memory as the command saw them, where the answer does not say more.
        """
        where = short_store_path(answer)
        rows = [
            ("found", self.found(answer)),
            ("outcome", self.outcome(answer)),
            *self.explained(answer),
            ("error", answer.assurance),
            *self.cost(answer, cost).items(),
            ("result", where),
            ("next", self.next_commands(quote(where)) if where else ""),
        ]
        return [(name, said) for name, said in rows if said]

    def outcome(self, answer: Any) -> str:
        """Say how the run ended, and plainly where it has an answer that did not converge."""
        said = str(answer.outcome.sentence) if hasattr(answer, "outcome") else ""
        if answer.answered:
            return said
        return f"finished, {said}" if said.startswith("not converged") else f"finished, not converged: {said}"

    def found(self, answer: Any) -> str:
        """Say what was found; "" where the outcome says it."""
        return ""

    def explained(self, answer: Any) -> list[tuple[str, str]]:
        """Say how much of the data the answer explains: one line or none."""
        return []

    def cost(self, answer: Any, cost: Mapping[str, str]) -> Mapping[str, str]:
        """Say what the run took: ``time`` and ``memory``."""
        return cost

    def next_commands(self, store: str) -> str:
        """Say what can be done with the answer in ``store``, which is quoted for a shell."""
        return f"npmdask report {store}; npmdask export {store} answer.npz"

    def inspect(self, run: RunStore, spec: Spec) -> dict[str, Any]:
        """List the facts of a store: ``state``, "finished" or "unfinished", and of an answer whether it is ``answered``
        (it did converge), among them.
        """
        raise NotImplementedError

    def status(self, run: RunStore, spec: Spec, state: str) -> dict[str, Any]:
        """List the fields of a :class:`npmdask.manage.status.RunStatus`; ``state``: as far as its process tells.

        "timeless" among them: true of a run whose times must not be told.
        """
        facts = self.inspect(run, spec)
        done = facts["state"] == "finished"
        found = {"what": self.name, "state": "finished" if done else state, "assurance": facts.get("assurance", "")}
        if done:
            found["converged"] = bool(facts.get("answered", True))
        if done and not found["converged"]:
            found |= {"outcome": facts.get("sentence", facts["outcome"])}
        return found

    def report(self, run: RunStore, spec: Spec) -> Report:
        """Report the run, finished or not.

        Raises
        ------
        BadInputError
            Nothing was committed yet.
        """
        raise NotImplementedError

    def report_with(self, run: RunStore, spec: Spec, page: PageOptions) -> Report:
        """Report the run so; ``page`` is what was asked for beyond the report.

        Raises
        ------
        BadInputError
            Runs of this kind have no scores.
        """
        if page == PageOptions() and page.data is None:
            return self.report(run, spec)
        raise BadInputError(
            f"{run.place} is a run of kind {self.name}: only runs over samples or a matrix have a page with scores, a "
            "grid and colours"
        )

    def export(self, store: Path, sink: Sink) -> None:
        """Write the answer into ``sink``."""
        for name, array in self.answer(store).items():
            sink.array(name, array)

    def export_pyldavis(self, store: Path, sink: Sink) -> None:
        """Write what ``pyLDAvis.prepare`` takes, under the names of its arguments.

        Raises
        ------
        BadInputError
            Runs of this kind have no topics.
        """
        raise BadInputError(
            f"{store} is a run of kind {self.name}: a .json file is what pyLDAvis reads of topics. Export all arrays "
            "as .npz, or components with their names as .csv or .parquet"
        )

    def export_turned(self, store: Path, sink: Sink, rotate: str | None, align_to: str | None) -> bool:
        """Write components that are rotated or aligned into ``sink``; False: none are asked for.

        Raises
        ------
        BadInputError
            Runs of this kind have none.
        """
        if rotate is None and align_to is None:
            return False
        raise BadInputError(
            f"{store} is a run of kind {self.name}: only components of rows are rotated or aligned, those of a run "
            "over samples or a matrix"
        )

    def keeps(self, run: RunStore, spec: Spec) -> Keeps:
        """Say what ``npmdask gc`` must leave of it: the answer alone, all that goes on with the run, or everything."""
        return "answer" if self.inspect(run, spec)["state"] == "finished" else "run"


KINDS: list[RunKind] = []


def register_kind(kind: RunKind) -> None:
    """Add a kind. It takes precedence over earlier ones, and replaces one of the same name."""
    forget_kind(kind.name)
    KINDS.insert(0, kind)


def forget_kind(name: str) -> None:
    """Remove a kind from the table."""
    KINDS[:] = [known for known in KINDS if known.name != name]


def kind_of(spec: Spec | None) -> RunKind:
    """Look up the kind of the store with these parameters.

    Raises
    ------
    BadInputError
        No kind knows them: the package that wrote the store is not loaded.
    """
    for kind in KINDS:
        if kind.matches(spec or {}):
            return kind
    raise BadInputError(
        f"these parameters belong to no known kind of run: {sorted(spec or {})}; load the package that wrote them"
    )


def kind_of_answer(answer: Any) -> RunKind:
    """Look up the kind of run that gave ``answer``."""
    for kind in reversed(KINDS):  # the oldest is the commonest, and costs no import
        if kind.gave(answer):
            return kind
    raise BadInputError(f"{type(answer).__name__} is not the result of a run")


def short_store_path(answer: Any) -> str:
    """The store of an answer, below the folder of this process by its shorter name."""
    place = str(answer.store)
    try:
        return str(Path(place).relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or a URL
        return place


def shares_text(shares: Iterable[float], most: int = 5) -> str:
    """Format decreasing shares as one text: ``22.1, 10.4, 8 % and 7 more``."""
    return values_text([100 * float(share) for share in shares], most, ".3g", " %")


def values_text(values: Sequence[float] | np.ndarray, most: int = 5, form: str = ".4g", unit: str = "") -> str:
    """Format values as one text: ``22.1, 10.4, 8 and 7 more``."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return f"{', '.join(format(value, form) for value in values[:most])}{unit}{more}"


def memory_text(peak: int | None, limit: int | None) -> str:
    """Format the peak memory of a run and its limit; "" if neither is known."""
    if peak is None:
        return ""
    return f"peak {bytes_text(peak)}{f' of {bytes_text(limit)} allowed' if limit else ''}"


def device_text(device: DeviceUse) -> str:
    """Format the device that formed the sums, with its planned and used memory."""
    peak = f", peak {bytes_text(device.peak)}" if device.peak else ""
    return f"{device.device}: memory planned {bytes_text(device.planned)}{peak} of {bytes_text(device.limit)}"


def network_text(network: NetworkUse) -> str:
    """Write what was taken of an object store, and what that cost where a price is known."""
    cost = "" if network.cost is None else f", which cost {network.cost:.3g}"
    return f"{network.requests} requests{cost}; {bytes_text(network.nbytes)} fetched"


def last_error(run: RunStore) -> str:
    """Say what ended the last process that worked on a run, if nothing is known of a later one."""
    said = run.telemetry()[-1:]
    return str(said[0].get("sentence", "")) if said and said[0]["event"] == "error" else ""


def named(spec: Spec, tables: Iterable[str]) -> dict[str, Any]:
    """List everything in these tables of ``spec``, by name."""
    return {f"{table}.{name}": value for table in tables for name, value in spec.get(table, {}).items()}


def flat(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """List facts without nesting, for people: ``statement.mechanism.budget.epsilon``."""
    rows: list[tuple[str, Any]] = []
    for name, value in facts.items():
        rows += [(f"{name}.{inner}", v) for inner, v in flat(value)] if isinstance(value, dict) else [(name, value)]
    return rows


def in_lines(facts: Mapping[str, Any]) -> str:
    """Format facts for a terminal, a line each; what is long is left to the report and to ``--json``."""
    rows = [(name, value) for name, value in flat(facts) if name not in LONG]
    width = max(20, *(len(name) for name, _ in rows))
    return "\n".join(f"{name:{width}} {value}" for name, value in rows)
