"""Which columns of a table are analysed: names of rows never are, and a caller may choose.

A choice is kept with the place of the table, as ``TABLE?only=a,b&leave_out=c``: whatever takes a path takes such an
address, and a run that writes down its source has written down its choice.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import unquote

from npmdask.core.storage.paths import in_order, is_zarr
from npmdask.errors import BadInputError, require, require_known

NUMERIC = "numeric"  # instead of names: columns of integers and floats
SHOWN = 5  # names of columns that a sentence lists
ADDRESS = re.compile(r"(.*)\?((?:only|leave_out)=[^?/]*)", re.DOTALL)
ROWS = re.compile(r"__index_level_\d+__|__null_dask_index__")  # what pandas and Dask call an index without a name
TABLES = re.compile(r"\.(csv|tsv|parquet|pq)(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Choice:
    """Names of columns, or NUMERIC instead of them; without ``only``: all. Those of ``leave_out`` are none of them."""

    only: tuple[str, ...] | str | None = None
    leave_out: tuple[str, ...] = ()

    def at(self, place: Any) -> str:
        """The address of a table with this choice."""
        parts = {"only": self.only, "leave_out": self.leave_out}
        said = [f"{key}={names if isinstance(names, str) else _encode(names)}" for key, names in parts.items() if names]
        return f"{place}?{'&'.join(said)}"


def choice_of(given: Any) -> Choice | None:
    """Read a caller's choice: names, ``"numeric"``, or a mapping of ``only`` and ``leave_out`` to such; None: all.

    Raises
    ------
    BadInputError
        It is none of these.
    """
    if given is None or isinstance(given, Choice):
        return given
    said = dict(given) if isinstance(given, Mapping) else {"only": given}
    only, out = said.pop("only", None), said.pop("leave_out", None) or ()
    named = only if isinstance(only, list | tuple) else ()
    known = only in (None, NUMERIC) or named
    if said or not known or isinstance(out, str) or not all(isinstance(name, str) for name in (*named, *out)):
        raise BadInputError(
            f"columns = {given!r}: give names in a list, {NUMERIC!r}, or a mapping like "
            '{"only": "numeric", "leave_out": ["id"]}'
        )
    return Choice(tuple(named) or only, tuple(out)) if only or out else None


def _encode(names: Sequence[str]) -> str:
    """Names, and as %XX what would be read as something else."""
    marked = (name.replace("n", "%6E", 1) if name == NUMERIC else name.replace("%", "%25") for name in names)
    return ",".join(re.sub(r"[,&=/?*\[\]\x00-\x1f\x7f]", lambda at: f"%{ord(at[0]):02X}", name) for name in marked)


def addressed(source: Any, columns: Any = None) -> tuple[Any, Choice | None]:
    """The place of a source, and the columns that are chosen: by its address, or by ``columns``.

    Raises
    ------
    BadInputError
        Both, or a choice that is none.
    """
    choice = choice_of(columns)
    address = ADDRESS.fullmatch(str(source)) if isinstance(source, str | Path) and "://" not in str(source) else None
    if address is None or Path(source).exists():
        return source, choice
    require(choice is None, f"{source} chooses columns already: leave columns out")
    said = dict(part.partition("=")[::2] for part in address[2].split("&"))
    lists = {key: text if text == NUMERIC else [unquote(n) for n in text.split(",")] for key, text in said.items()}
    return type(source)(address[1]), choice_of(lists)


def at(source: Any, columns: Any) -> Any:
    """A path with a choice of columns, as an address; without a choice as it is."""
    place, choice = addressed(source, columns)
    return source if choice is None else choice.at(place)


def parts_of(path: Path) -> list[Path]:
    """The Parquet files of a folder, or the files of a pattern (``dir/*.csv``), in order; or the file itself.

    Raises
    ------
    BadInputError
        The files of a pattern have several suffixes.
    """
    place = Path(addressed(path)[0])
    if not place.is_dir() and (place.exists() or not glob.has_magic(str(place))):
        return [place]
    found = place.glob("*.parquet") if place.is_dir() else map(Path, glob.glob(str(place)))
    parts = sorted((part for part in found if not part.is_dir()), key=lambda part: in_order(str(part)))
    if len(suffixes := sorted({part.suffix for part in parts})) > 1:
        raise BadInputError(f"{path} are files with the suffixes {', '.join(suffixes)}: give files of one format")
    return parts


def choosable(source: Any) -> bool:
    """Say whether columns can be chosen of ``source`` by name, and are not yet."""
    if not isinstance(source, str | Path):
        return any(hasattr(source, name) for name in ("columns", "schema", "var_names"))
    path, choice = addressed(str(source))
    return choice is None and (bool(TABLES.search(path)) or (Path(path).is_dir() and not is_zarr(Path(path))))


def names_of_rows(names: Sequence[str], metadata: Mapping[bytes, bytes] | None = None) -> list[int]:
    """The numbers of columns that hold names of rows: an index of pandas or Dask (``metadata`` of Arrow), and columns
    without a name before others, as pandas and R write them into text.
    """
    index = json.loads((metadata or {}).get(b"pandas", b"{}")).get("index_columns", ())
    found = [i for i, name in enumerate(names) if name in index or ROWS.fullmatch(name)]
    return found or list(range(next((i for i, name in enumerate(names) if name), 0)))


def chosen(
    names: Sequence[str], numeric: Sequence[bool], rows: Sequence[int], choice: Choice | None, where: str
) -> tuple[list[int], tuple[str, ...]]:
    """The numbers of the columns to analyse, in the order of the choice, and what is to be said of the others.

    Parameters
    ----------
    numeric : whether each holds integers or floats.
    rows : the numbers of those that hold names of rows.

    Raises
    ------
    BadInputError
        There is no such column, or nothing is left.
    """
    only, out = (None, ()) if choice is None else (choice.only, choice.leave_out)
    places: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        places.setdefault(name, []).append(i)
    named = () if only is None or isinstance(only, str) else tuple(dict.fromkeys(only))
    for name in (*named, *out):
        require_known(name, places, f"{where} has no column")
    kept = [i for name in named for i in places[name]]
    if not named:
        kept = [i for i in range(len(names)) if i not in rows and (only is None or numeric[i])]
    gone = {i for name in out for i in places[name]}
    kept = [i for i in kept if i not in gone]
    require(bool(kept), f"{where} has no columns to analyse{', with those that are chosen' if choice else ''}")
    used = {*kept, *rows}
    taken = [names[i] or "the first, without a name" for i in rows if i not in kept]
    left = [name for i, name in enumerate(names) if i not in used]
    notes = [f"columns taken for the names of rows, and not analysed: {listed(taken)}"] if taken else []
    count = "1 column was" if len(left) == 1 else f"{len(left)} columns were"
    return kept, (*notes, *([f"{count} left out as chosen: {listed(left)}"] if left else []))


def without(name: str) -> str:
    """Say what can be done about a column that is not numeric."""
    quoted = quote(f'"{name}"' if "," in name or '"' in name else name)
    return (
        f"leave it out (columns={{'leave_out': [{name!r}]}}; --leave-out {quoted}), take numeric columns only "
        f"(columns={NUMERIC!r}; --only {NUMERIC}), or encode it"
    )


def listed(names: Sequence[str]) -> str:
    """Some names."""
    return f"{', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"


def genotypes(where: str) -> BadInputError:
    """Return the refusal of VCF Zarr, whose numbers of alleles are names."""
    return BadInputError(
        f"{where} holds genotypes (VCF Zarr), whose alleles are no columns: count alternate alleles, for example "
        "(ds.call_genotype > 0).sum('ploidy').transpose('samples', 'variants'), and give that"
    )
