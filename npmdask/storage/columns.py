"""Which columns of a table are analysed: names of rows never are, and a caller may choose.

A choice is kept with the place of the table, as ``TABLE?only=a,b&leave_out=c``: every door that takes a path takes
such an address, and a run that writes down its source has written down its choice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import unquote

from npmdask.errors import BadInputError, closest

NUMERIC = "numeric"  # instead of names: columns of integers and floats
SHOWN = 5  # names of columns that a sentence lists
KEYS = ("only", "leave_out")
ADDRESS = re.compile(rf"(.*)\?((?:{'|'.join(KEYS)})=[^?/]*)", re.DOTALL)
AGAIN = "choose columns (--only a,b, --only numeric, --leave-out c; in Python columns=)"


@dataclass(frozen=True)
class Choice:
    """Names of columns, or NUMERIC instead of them; without ``only``: all. Those of ``leave_out`` are none of them."""

    only: tuple[str, ...] | str | None = None
    leave_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Any) -> Choice | None:
        """What a caller says: names, ``"numeric"``, or a mapping of ``only`` and ``leave_out`` to such; None: all.

        Raises
        ------
        BadInputError
            It is none of these.
        """
        if given is None or isinstance(given, Choice):
            return given
        said = given if isinstance(given, Mapping) else {"only": given}
        only, out = said.get("only"), said.get("leave_out") or ()
        lists = [one for one in (only, out) if one is not None and not (one is only and one == NUMERIC)]
        texts = all(not isinstance(one, str) and all(isinstance(name, str) for name in one) for one in lists)
        if not texts or set(said) - set(KEYS) or (only is not None and not len(only)):
            raise BadInputError(
                f"columns = {given!r}: give names in a list, {NUMERIC!r}, or a mapping like "
                '{"only": "numeric", "leave_out": ["id"]}'
            )
        found = cls(only if only is None or only == NUMERIC else tuple(only), tuple(out))
        return None if found == cls() else found

    def at(self, place: str) -> str:
        """The address of a table with this choice."""
        only = self.only if self.only is None or isinstance(self.only, str) else _written(self.only)
        parts = [] if only is None else [f"only={only}"]
        return f"{place}?{'&'.join([*parts, *([f'leave_out={_written(self.leave_out)}'] if self.leave_out else [])])}"

    def kept(self, names: Sequence[str], numeric: Sequence[bool], rows: Sequence[int], where: str) -> list[int]:
        """The numbers of the columns that are chosen, in the order of ``only``; ``rows`` are names of rows.

        Raises
        ------
        BadInputError
            There is no such column, or nothing is left.
        """
        named = () if self.only is None or isinstance(self.only, str) else self.only
        for name in (*named, *self.leave_out):
            if name not in names:
                raise BadInputError(f"{where} has no column {name!r}: {closest(name, list(names))}")
        found = [i for name in dict.fromkeys(named) for i, own in enumerate(names) if own == name]
        if not named:
            found = [i for i in range(len(names)) if i not in rows and (self.only is None or numeric[i])]
        found = [i for i in found if names[i] not in self.leave_out]
        if not found:
            raise BadInputError(f"{where} has no columns left to analyse: {AGAIN}")
        return found


def _written(names: Sequence[str]) -> str:
    """Names, and as %XX what would be read as something else."""
    marked = (name.replace("n", "%6E", 1) if name == NUMERIC else name.replace("%", "%25") for name in names)
    return ",".join(re.sub(r"[,&=/?*\[\]\x00-\x1f\x7f]", lambda at: f"%{ord(at[0]):02X}", name) for name in marked)


def addressed(source: Any, choice: Any = None) -> tuple[Any, Choice | None]:
    """The place of a source, and the columns that are chosen: by its address, or by ``choice``.

    Raises
    ------
    BadInputError
        Both, or a choice that is none.
    """
    found, address = Choice.of(choice), None
    if isinstance(source, str | Path) and (address := ADDRESS.fullmatch(str(source))) is not None:
        if Path(source).exists() or "://" in str(source):
            return source, found
        if found is not None:
            raise BadInputError(f"{source} chooses columns already: leave columns out")
        said = dict(part.split("=", 1) for part in address[2].split("&"))
        lists = {key: text if text == NUMERIC else [unquote(n) for n in text.split(",")] for key, text in said.items()}
        return type(source)(address[1]), Choice.of(lists)
    return source, found


def at(source: Any, choice: Any) -> Any:
    """A path with a choice of columns, as an address; without a choice as it is."""
    place, found = addressed(source, choice)
    return source if found is None else found.at(str(place))


def names_of_rows(names: Sequence[str], metadata: Mapping[bytes, bytes] | None = None) -> list[int]:
    """The numbers of columns that hold names of rows: an index of pandas or Dask (``metadata`` of Arrow), and columns
    without a name before others, as pandas and R write them into text.
    """
    said = json.loads((metadata or {}).get(b"pandas", b"{}")).get("index_columns", ())
    index = {one for one in said if isinstance(one, str)}
    found = [i for i, name in enumerate(names) if name in index or re.match(r"__index_level_\d+__|__null_dask_", name)]
    nameless = next((i for i, name in enumerate(names) if name), 0)
    return found or list(range(nameless))


def chosen(
    names: Sequence[str], numeric: Sequence[bool], rows: Sequence[int], choice: Choice | None, where: str
) -> tuple[list[int], tuple[str, ...]]:
    """The numbers of the columns to analyse, and what is to be said of the others.

    Parameters
    ----------
    numeric : whether each holds integers or floats.
    rows : the numbers of those that hold names of rows.

    Raises
    ------
    BadInputError
        There is no such column, or nothing is left.
    """
    kept = (choice or Choice()).kept(names, numeric, rows, where)
    taken = [names[i] or "the first, without a name" for i in rows if i not in kept]
    out = [name for i, name in enumerate(names) if i not in kept and i not in rows]
    notes = [f"columns taken for the names of rows, and not analysed: {listed(taken)}"] if taken else []
    return kept, (*notes, *([f"{len(out)} columns were left out as chosen: {listed(out)}"] if out else []))


def without(name: str) -> str:
    """What can be done about a column that is no numbers."""
    quoted = quote(f'"{name}"' if "," in name or '"' in name else name)
    return (
        f"leave it out (--leave-out {quoted}; in Python columns={{'leave_out': [{name!r}]}}), take numeric columns "
        f"only (--only {NUMERIC}; columns={NUMERIC!r}), or encode it"
    )


def listed(names: Sequence[str]) -> str:
    """Some names."""
    return f"{', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
