"""Aspects: how a question sees the data. A run asks each one that was given, and knows none of them by name.

The mathematics is that of one formula, :class:`npmdask.core.operators.View`. Aspects multiply its weights of rows and
of columns, so that their order does not count; a store keeps each of them, under its ``place`` in run.json.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from npmdask.core.features import FEATURES, found, load, owner_of, required
from npmdask.errors import BadInputError, RefusedError

if TYPE_CHECKING:
    from npmdask.core.checkpoint.store import RunStore
    from npmdask.core.operators.view import View


@dataclass(frozen=True)
class Extent:
    """Part of the data that is read: how many ``rows``, and which ``columns``.

    ``columns`` maps numbers of all stored columns to theirs.
    """

    rows: int
    columns: Callable[[np.ndarray], np.ndarray] = lambda values: values

    @classmethod
    def of(cls, source: Any) -> Self:
        """Return that of a source, some of whose columns may be left out, and whose complex ones have two parts."""
        kept, parts = getattr(source.reader, "kept", None), source.parts
        return cls(source.shape[0], lambda values: np.repeat(values, parts) if kept is None else values[kept])


class Aspect:
    """Describe how a question sees the data, by public parameters. What is not defined changes nothing.

    Attributes
    ----------
    place : str
        Where run.json has it: a table, or "table.key".
    noun : str
        What it is called in sentences of others.
    part : str
        The part of a store with its arrays; left out, as ``place``.
    gone : str
        What a person reads where these arrays are gone, or are others.
    """

    place: ClassVar[str]
    noun: ClassVar[str]
    part: ClassVar[str] = ""
    gone: ClassVar[str] = "{noun} in {place} is gone, or is not the one that the run began with"

    def source(self, source: Any, request: Any) -> Any:
        """Return the source as this question reads it, or refuse it; it is asked again of what it returned."""
        return source

    def view(self, view: View, extent: Extent) -> View:
        """Return how the question sees what is read."""
        return view

    def spec(self) -> dict[str, dict[str, Any]]:
        """Return its keys in run.json by table, which a run is bound to."""
        raise NotImplementedError

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a run keeps of it beside them."""
        return {}

    @classmethod
    def restored(cls, spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self | None:
        """Return the one of a run, by its run.json and what was kept; None where that is not enough."""
        raise NotImplementedError

    def options(self, side: str = "") -> list[str]:
        """Return the names of what asked for it; of "rows" or "columns" those that make some count unlike others."""
        return [] if side else [self.place]

    def said(self) -> tuple[str, str] | None:
        """Return title and text of its section of a report; None: it has none."""
        return None

    def exported(self, kept: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return what an export has of it by name; ``kept``: numbers of the columns that were analysed, if not all."""
        return {}

    def public(self, rule: Any) -> Any:
        """Return the public rule of a private run with its part, or refuse it."""
        raise RefusedError(f"{self.noun} is not for private runs: leave {' and '.join(self.options())} out")


class Reading(Aspect, ABC):
    """Change entries of the data. It is asked before all others, and a question has at most one.

    Attributes
    ----------
    opens : dict
        How data are opened for it.
    """

    opens: ClassVar[dict[str, Any]] = {}

    @property
    def route(self) -> str:
        """The key of how the answer is found, in the table of routes, where it is not by products of the data."""
        return ""

    @property
    def as_recorded(self) -> bool:
        """Say whether what ingest recorded of columns, their means among it, is of entries as it reads them."""
        return False

    @staticmethod
    @abstractmethod
    def scored(opened: Any, found: Any, how: str) -> Any:
        """Return other rows as the run read its own, to be scored along the components ``found``.

        Without it scores would be of other data, and nothing would show it.
        """

    @staticmethod
    def surveyed(source: Any, survey: Mapping[str, np.ndarray]) -> Any:
        """Return the source with what a pass over its columns has found."""
        return source

    def note(self, store: RunStore, source: Any, survey: Any) -> None:
        """Keep what such a pass has shown of the data."""

    @staticmethod
    def noted(store: RunStore) -> Any:
        """Return what was kept of it; None if nothing was."""
        return None

    def scoring(self, store: RunStore, basis: np.ndarray) -> dict[str, Any]:
        """Return what components of a run know beside that, by the names of their fields."""
        return {}

    @staticmethod
    def warnings(store: RunStore, facts: Mapping[str, Any]) -> list[str]:
        """Return what is to be known of an answer with these facts."""
        return []


def reading_of(aspects: Iterable[Aspect]) -> Any:
    """Return the one that changes entries; None if there is none."""
    return next((each for each in aspects if isinstance(each, Reading)), None)


def ordered(aspects: Iterable[Aspect | None]) -> tuple[Aspect, ...]:
    """Return those that were given, in an order that does not depend on how they were.

    Raises
    ------
    BadInputError
        Two of a kind, two that change entries, or one that is in no table: its run could not be resumed.
    """
    given = [each for each in aspects if each is not None]
    for each in given:
        if not isinstance(each, Aspect):
            raise BadInputError(f"aspects = [{each!r}]: give objects of subclasses of npmdask.core.aspects.Aspect")
    given.sort(key=lambda each: (not isinstance(each, Reading), each.place))
    for each in given:
        if found("aspects", each.place) is not type(each):
            raise BadInputError(
                f"{type(each).__name__} is no aspect that npmdask knows as {each.place!r}: its package names it in "
                'the entry point group "npmdask.features"'
            )
    places, readings = [each.place for each in given], sum(isinstance(each, Reading) for each in given)
    if len({*places}) < len(places) or readings > 1:
        raise BadInputError(f"{' and '.join(places)}: give one of each, and one that changes entries at most")
    return tuple(given)


def asked(source: Any, given: Any, keywords: Mapping[str, Any]) -> tuple[Aspect, ...]:
    """Make the aspects that keywords of a public call ask for; ``source`` was opened from what was ``given``.

    What is not asked for is not imported.
    """
    made = []
    for names, maker in ((names, maker) for feature in FEATURES for names, maker in feature.keywords.items()):
        usual = {name: default or None for name, _, default in (each.partition("=") for each in names.split())}
        own = {name: keywords.get(name, default) for name, default in usual.items()}
        if any(v is not usual[name] and not (isinstance(v, str) and v == usual[name]) for name, v in own.items()):
            made.append(load(maker)(source, given, **own))
    return tuple(made)


def seen(aspects: Iterable[Aspect], extent: Extent, view: View) -> View:
    """Return how a question sees what is read, of how it would without these aspects."""
    return reduce(lambda view, each: each.view(view, extent), aspects, view)


def named(aspects: Iterable[Aspect], side: str = "") -> str:
    """Return the options that ask for these, joined by "and"; "" where none does."""
    return " and ".join(name for each in aspects for name in each.options(side))


# What a run keeps of its aspects: resumed, it needs no file and no coordinate again.


def spec_of(aspects: Iterable[Aspect]) -> dict[str, dict[str, Any]]:
    """Return their keys in run.json by table; those of other packages are named beside the version."""
    tables: dict[str, dict[str, Any]] = {}
    for each in aspects:
        for table, keys in each.spec().items():
            tables[table] = tables.get(table, {}) | keys
        if not owner_of("aspects", each.place):
            others = tables.get("version", {}).get("aspects", ())
            tables["version"] = {"aspects": [*others, each.place]}
    return tables


def keep_aspects(store: RunStore, aspects: Iterable[Aspect | None]) -> None:
    """Write their arrays to a store that is not bound to a run yet, in place of what a kill has left of others."""
    for each in aspects:
        if each is not None and (arrays := each.arrays()):
            part = each.part or each.place
            store.drop_part(part)
            store.write_part(part, arrays, {})


def kept_aspects(store: RunStore, spec: dict[str, Any], kind: type[Aspect] = Aspect) -> tuple[Any, ...]:
    """Return the aspects of a run that are of a ``kind``, held to what its ``spec`` says of them.

    Raises
    ------
    RefusedError
        What was kept of one is gone, or is not what the run began with; or its feature is not there.
    """
    places = [place for feature in FEATURES for place in feature.aspects if _is_in_spec(spec, place)]
    places += spec.get("version", {}).get("aspects", ())
    return tuple(_restored(store, spec, place) for place in places if issubclass(required("aspects", place), kind))


def _is_in_spec(spec: dict[str, Any], place: str) -> bool:
    table, _, key = place.partition(".")
    return table in spec and (not key or key in spec[table])


def _restored(store: RunStore, spec: dict[str, Any], place: str) -> Aspect:
    kind: type[Aspect] = found("aspects", place)
    part = store.read_part(kind.part or place)
    aspect = kind.restored(spec, {} if part is None else part[0])
    said = {} if aspect is None else aspect.spec()
    same = (spec.get(name) == (keys if name == place else spec.get(name, {}) | keys) for name, keys in said.items())
    if aspect is None or not all(same):
        raise RefusedError(f"{kind.gone.format(noun=kind.noun, place=store.place)}: start it again, in another store")
    return aspect
