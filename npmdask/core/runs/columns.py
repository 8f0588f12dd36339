"""Find the columns of components among those of rows, of an earlier run or of a start, by what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from npmdask.core.runs.components import StoredComponents
from npmdask.core.runs.problem import Start
from npmdask.core.storage.labels import Axis
from npmdask.core.storage.names import Order, columns_of, matched
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError


def places_in(found: StoredComponents, axes: Sequence[Axis], where: str, wide: int) -> Order:
    """Find where the columns that a run read lie among ``wide`` ones with these names, and what to say of it.

    Columns that it left out are wherever there is room, as nothing is asked of them.
    """
    kept = None if found.missing is None else found.missing.kept
    known = columns_of(found.labels, kept, whole=wide > found.d)
    known = known if prod(axis.size for axis in known) in (found.d, wide) else ()
    places, said = matched(known, axes, where)
    if places is not None and kept is not None and len(places) < wide:
        whole, some = np.empty(wide, np.int64), places
        others = np.setdiff1d(np.arange(wide), kept)
        whole[kept], whole[others] = some, np.setdiff1d(np.arange(wide), some)
        places = whole
    return Order(places, said)


def in_order(found: StoredComponents, opened: Source, missing: str) -> Source:
    """Rows of the columns that were kept, their gaps read as the run read its own, and how to put them in order."""
    gaps, fill, wide = found.missing, found.fill, opened.shape[-1]
    if wide not in (found.d, found.d if gaps is None else len(gaps.counts)):
        return opened
    places, said = places_in(found, () if opened.labels is None else opened.labels.columns, opened.path, wide)
    opened = replace(opened, notes=(*opened.notes, *said))
    if places is None:
        return found.read_as_run(opened, missing)
    if gaps is not None and wide > found.d:
        places = places[gaps.kept]
    order = np.argsort(places)
    if gaps is not None:
        gaps = replace(gaps, kept=places[order], fill=None if gaps.fill is None else gaps.fill[order])
    if fill is not None and not isinstance(fill.values, float):
        fill = replace(fill, values=fill.values[order])
    opened = replace(found, missing=gaps, fill=fill).read_as_run(opened, missing)
    return replace(opened, order=np.argsort(order))


def places_among(mine: StoredComponents, theirs: StoredComponents) -> np.ndarray:
    """Find where the columns of components lie among those of an earlier run.

    Raises
    ------
    BadInputError
        It has other columns, or left out other ones.
    """
    kept = [None if one.missing is None else one.missing.kept for one in (mine, theirs)]
    axes = columns_of(theirs.labels, kept[1], whole=True)
    wide = theirs.d
    if axes:
        wide = prod(axis.size for axis in axes)
    elif mine.missing is not None and theirs.missing is not None:
        wide = len(theirs.missing.counts)
    found = places_in(mine, axes, "the earlier run", wide).places
    places = np.arange(wide) if found is None else found
    places = places if kept[0] is None or wide == mine.d else places[kept[0]]
    among = np.arange(wide) if kept[1] is None or wide == theirs.d else kept[1]
    at = np.searchsorted(among, places).clip(max=len(among) - 1)
    if (among[at] != places).any():
        raise BadInputError(
            "the two runs left out different columns, because different ones had no values: their components have "
            "different columns. Leave the same columns out of both data sets"
        )
    return at


def fitting_start(source: Source, start: Start) -> Start:
    """The start of a run, its rows in the order of the columns of the data."""
    axes = columns_of(source.labels, getattr(source.reader, "kept", None))
    remedy = "a warm start needs the same columns (more rows are fine); leave `start` out"
    earlier = "the run to start from"
    places = matched(axes, start.axes, earlier, source.path, error=RefusedError, remedy=remedy).places
    if places is None or len(places) != len(start.basis):
        return start
    return replace(start, basis=np.ascontiguousarray(start.basis[places]), axes=())
