"""Kinds of runs: everything that commands need to know of a kind, in one place, and the table of kinds.

A kind is a subclass of :class:`RunKind`, found by the table ``kinds`` of features; a plug-in may register its own.
Commands ask the kind of a store (:func:`kind_of`, by its run.json) or of an answer (:func:`kind_of_answer`); no other
module asks what sort of run something is. Private and federated runs are no kinds: they are ordinary runs whose
products are released otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from npmdask.core import features
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import bytes_text, grid_of
from npmdask.core.runs.kinds import KINDS, Resumable, Spec, StoredRun
from npmdask.core.runs.kinds import kind_of as resumed_kind_of
from npmdask.core.runs.resources import DeviceUse, NetworkUse
from npmdask.errors import BadInputError

if TYPE_CHECKING:
    from npmdask.report import Report

Keeps = Literal["answer", "run", "everything"]

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
    """Options of a report beyond its defaults.

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


class RunKind(Resumable):
    """A kind of run. What a subclass leaves out is that of a run without stages, whose store has no timing to hide.

    ``name``: in the column "what" of ``npmdask status``. ``folders``: names in its store that hold runs of stages,
    beside those that lie in the store itself. All else: see :class:`npmdask.core.runs.kinds.Resumable`.

    Examples
    --------
    >>> from npmdask.manage import kind_of
    >>> kind_of({"data": {"kind": "stream"}}).name, kind_of({"data": {"kind": "samples"}}).name
    ('stream', 'matrix')
    """

    folders: tuple[str, ...] = ()

    def gave(self, answer: Any) -> bool:
        """Say whether ``answer`` is what a run of this kind returns."""
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


def kind_of(spec: Spec | None) -> RunKind:
    """Look up the kind of the store with these parameters.

    Raises
    ------
    BadInputError
        No kind knows them: the package that wrote the store is not loaded, or a feature is not installed.
    """
    return _of_commands(resumed_kind_of(spec))


def _of_commands(kind: Resumable) -> RunKind:
    from npmdask.manage.matrix import MatrixKind

    found = MatrixKind(kind.name) if type(kind) is StoredRun else kind
    assert isinstance(found, RunKind)
    return found


def all_kinds() -> list[RunKind]:
    """List all kinds: that of the core first, registered ones last."""
    found = [features.found("kinds", key) for key in features.keys("kinds")]
    return [_of_commands(kind) for kind in (StoredRun(), *found, *KINDS)]


def kind_of_answer(answer: Any) -> RunKind:
    """Look up the kind of run that gave ``answer``."""
    plain = _of_commands(StoredRun())  # the commonest
    for kind in [plain] if plain.gave(answer) else all_kinds():
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


def tables_of_aspects(spec: Spec) -> list[str]:
    """List tables of run.json that aspects may have beside those of every run."""
    places = (*features.keys("aspects", ours=True), *spec.get("version", {}).get("aspects", ()))
    return [name for name in dict.fromkeys(place.partition(".")[0] for place in places) if name != "data"]


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
