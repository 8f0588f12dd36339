"""Missing values of a run: what was done with them, how many there were, and what that does to the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError, RefusedError
from npmdask.storage.kinds import real_array
from npmdask.storage.readers.gaps import DROP, EM, FILL, MEAN, PAIRWISE, GapReader, held_fill, nothing_there
from npmdask.storage.safe_open import numbers_in
from npmdask.storage.source import Source

LARGE = 0.05  # of the entries, or of what a column should have, is missing: then the mean changes what is found
ROUNDING = 1e-13  # of a share of weights
NAMED = 5  # columns that a warning names
CLIPPED = 1e-3  # of the variance: by more it is worth a word that eigenvalues were set to 0
FEW_PAIRS = 30  # rows that have both columns, below which a covariance is mostly chance
PART = "missing"  # of the store
FILLED = "fill"  # the same
TREATED = {
    MEAN: "each counts as the mean of its column",
    EM: "a factor model is fitted to the others",
    PAIRWISE: "covariances are of the rows that have both columns",
}


@dataclass(frozen=True, kw_only=True)
class Missing:
    """
    Hold which values of the data of a run were missing, and what was done with them.

    Attributes
    ----------
    rule : str
        "mean": every gap counts as its column's mean. "drop-columns": columns without any value are left out. "em": a
        factor model is fitted to what is there. "pairwise": a covariance is of the rows that have both columns.
    counts : numpy.ndarray, shape (d,)
        Missing values in each column of the data, as they are stored.
    rows : int
        How many rows the data have.
    rows_with_gaps : int
        How many of them have a missing value.
    kept : numpy.ndarray
        Numbers of the columns that the components are of; all but those that were dropped.
    fill : numpy.ndarray or None, shape (d,)
        What gaps of the columns that were kept were filled with, of "mean"; of "pairwise" what those of rows to be
        scored are.
    observed : numpy.ndarray or None, shape (d,)
        The share of the rows (of their weight, where they have weights) that have a value in each column; None of
        "drop-columns".
    values : tuple of float
        What marks missing values in the data, beside NaN.
    limit : float or None
        The share of its values that a column may lack, where others are left out.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((50, 4))
    >>> rows[:2, 3] = np.nan
    >>> found = npmdask.top_k(rows, 2, kind="samples", center=True, missing="mean").missing
    >>> found.entries, found.counts.tolist(), found.rows_with_gaps
    (2, [0, 0, 0, 2], 2)
    """

    rule: str
    counts: np.ndarray
    rows: int
    rows_with_gaps: int
    kept: np.ndarray
    fill: np.ndarray | None = None
    observed: np.ndarray | None = None
    values: tuple[float, ...] = ()
    limit: float | None = None

    @property
    def entries(self) -> int:
        """Count the missing values."""
        return int(self.counts.sum())

    @property
    def share(self) -> float:
        """Return them as a fraction of all values."""
        return self.entries / (self.rows * len(self.counts))

    @property
    def sentence(self) -> str:
        """Say in a sentence what was missing, and how it was treated."""
        gappy, d = int((self.counts > 0).sum()), len(self.counts)
        if self.rule == DROP:
            return f"{gappy} of {d} columns have no value and are left out."
        if self.limit is not None:
            own, kept = self.counts[self.kept], len(self.kept)
            return (
                f"{d - kept} of {d} columns lack more than {_percent(self.limit)} of their values and are left out. Of "
                f"the others {int(own.sum())} of {self.rows * kept} values are missing "
                f"({_percent(own.sum() / (self.rows * kept))}), in {self.rows_with_gaps} of {self.rows} rows and "
                f"{int((own > 0).sum())} of {kept} columns; each counts as the mean of its column."
            )
        return (
            f"{self.entries} of {self.rows * d} values are missing ({_percent(self.share)}), in {self.rows_with_gaps} "
            f"of {self.rows} rows and {gappy} of {d} columns; {TREATED[self.rule]}."
        )


# Public numbers that gaps count as, of missing = "fill".


@dataclass(frozen=True, kw_only=True, eq=False)
class Fill:
    """The numbers that replace missing values: one, or one for each column (d)."""

    values: float | np.ndarray

    @property
    def spec(self) -> float | str:
        """What a run is bound to: the number, or the SHA-256 of the array."""
        if isinstance(self.values, float):
            return self.values
        return hashlib.sha256(self.values.astype("<f8").tobytes()).hexdigest()


def find_fill(missing: str, asked: Any) -> Fill | None:
    """Check the numbers that replace gaps; None if no rule needs them.

    Parameters
    ----------
    asked : a number, an array (d), or the path of one (.npy, or a Zarr array).

    Raises
    ------
    BadInputError
        The rule is "fill" and nothing is given, or another and something is; numbers that are not finite; no such file.
    """
    if missing != FILL:
        if asked is not None:
            raise BadInputError(
                f"missing_fill replaces gaps with missing = {FILL!r}, but missing = {missing!r} here: change that, or "
                "leave missing_fill out"
            )
        return None
    if asked is None:
        raise BadInputError(
            f"missing = {FILL!r} needs missing_fill, a public number to replace gaps: 0, or one for every column "
            "(from a published codebook, say), never a statistic of the data"
        )
    if isinstance(asked, str | Path):
        asked = numbers_in(Path(asked), "missing_fill")
    if isinstance(asked, Real) and not isinstance(asked, bool):
        asked = np.float64(asked)
    values = np.asarray(real_array(asked, "missing_fill"), np.float64)
    if values.ndim > 1 or not values.size or not np.isfinite(values).all():
        raise BadInputError("missing_fill must be one finite number, or one for each column, one after the other")
    return Fill(values=float(values) if values.ndim == 0 else np.ascontiguousarray(values))


def keep_fill(store: RunStore, fill: Fill | None) -> None:
    """Write an array that gaps are filled with to a store that is not bound to a run yet, in place of any other."""
    if fill is not None and not isinstance(fill.values, float):
        store.drop_part(FILLED)
        store.write_part(FILLED, {"fill": fill.values}, {})


def kept_fill(store: RunStore, data: dict[str, Any]) -> Fill | None:
    """Read the numbers that replace the gaps of a run, and compare them with its table ``data``.

    Raises
    ------
    RefusedError
        It is gone, or is not what the run was begun with.
    """
    wanted = data.get("missing_fill")
    if wanted is None or isinstance(wanted, float):
        return None if wanted is None else Fill(values=wanted)
    part = store.read_part(FILLED)
    fill = None if part is None else Fill(values=part[0]["fill"])
    if fill is None or fill.spec != wanted:
        raise RefusedError(
            f"the numbers that replace missing values are gone from {store.place}, or are not those that the run began "
            "with: start it again, in another store"
        )
    return fill


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def filled(source: Source, survey: dict[str, np.ndarray]) -> Source:
    """The source whose gaps are filled with what its survey has found, where that is how they are read."""
    if not isinstance(source.reader, GapReader) or "column_fill" not in survey:
        return source
    if not survey["column_observed"].any():
        raise nothing_there(source.path)
    reader, fill = replace(source.reader, observed=survey["column_observed"]), survey["column_fill"]
    return replace(source, reader=replace(reader, fill=held_fill(fill, reader)) if reader.rule == MEAN else reader)


def keep_missing(store: RunStore, source: Source, survey: Any, limit: float | None = None) -> None:
    """Note in the store what is missing, once a pass has seen all of the data."""
    reader = source.reader
    if not isinstance(reader, GapReader) or survey is None or store.part_meta(PART) is not None:
        return
    rows, d = reader.inner.shape
    arrays = {"kept": np.arange(d) if reader.kept is None else reader.kept}
    if reader.rule == DROP:
        counts, rows_with = np.full(d, rows, np.int64), rows
        counts[reader.kept] = 0
    else:
        counts, rows_with = survey[0]["column_missing"].astype(np.int64), int(survey[0]["rows_missing"][0])
        if reader.lacking is not None:
            assert (reader.lacking[arrays["kept"]] == counts).all()  # what was kept by is what is read
            counts = reader.lacking
        arrays["observed"] = survey[0]["column_observed"]
        arrays |= {} if reader.rule == EM else {"fill": survey[0]["column_fill"]}
    meta: dict[str, Any] = {
        "rule": reader.rule,
        "rows": rows,
        "rows_with_gaps": rows_with,
        "entries": int(counts.sum()),
    }
    meta |= {"values": list(reader.marks)} if reader.marks else {}
    meta |= {} if limit is None else {"limit": limit}
    store.write_part(PART, {**arrays, "counts": counts}, meta)


def missing_of(store: RunStore) -> Missing | None:
    """Read what a run noted about missing values; None if it treated none."""
    part = store.read_part(PART)
    if part is None:
        return None
    arrays, meta = part
    facts: dict[str, Any] = {name: meta[name] for name in ("rule", "rows", "rows_with_gaps")}
    facts |= {name: arrays.get(name) for name in ("counts", "kept", "fill", "observed")}
    facts |= {"values": tuple(meta.get("values", ())), "limit": meta.get("limit")}
    return Missing(**facts)


def missing_facts(found: Missing | None) -> dict[str, Any]:
    """Return the same as plain numbers, for JSON."""
    if found is None:
        return {}
    names = {"rule": found.rule, "entries": found.entries, "share": found.share, "sentence": found.sentence}
    columns = {
        "columns_with_gaps": int((found.counts > 0).sum()),
        "columns_left_out": len(found.counts) - len(found.kept),
    }
    return {"missing": names | columns | {"rows_with_gaps": found.rows_with_gaps}}


def missing_warnings(store: RunStore, facts: Mapping[str, Any]) -> list[str]:
    """What is to be known of an answer of data with gaps: which values are wrong, and why; ``facts``: of the answer."""
    found = missing_of(store)
    if found is None or found.observed is None:
        return []
    said = []
    if found.rule != MEAN:
        return _without_fill(found, facts)
    counts = found.counts[found.kept]
    shares = np.maximum(counts / found.rows, 1 - found.observed)
    worst, share = int(np.argmax(shares)), counts.sum() / (found.rows * len(counts))
    if share >= LARGE or shares[worst] >= LARGE:
        said.append(
            f"{_percent(share)} of the values are missing ({_percent(shares[worst])} of column {found.kept[worst]}) "
            "and count as means of columns, which is biased: variances and values come out too small, about as much as "
            "is missing, and components turn away from columns with gaps. Where values are missing because of what "
            "they are, or in blocks of rows, the answer follows the pattern of the gaps"
        )
    return said + _empty_columns(found)


def _empty_columns(found: Missing) -> list[str]:
    """Which columns say nothing."""
    assert found.observed is not None
    counts = found.counts[found.kept]
    few = found.kept[((counts >= found.rows - 1) & (found.rows > 1)) | (found.observed == 0)]
    if not len(few):
        return []
    numbers = ", ".join(str(number) for number in few[:NAMED]) + (", ..." if len(few) > NAMED else "")
    return [
        f"{len(few)} column{'s have' if len(few) > 1 else ' has'} one value or none (number {numbers}, from 0) and "
        "carry no information: such a column counts as constant"
    ]


def _without_fill(found: Missing, facts: Mapping[str, Any]) -> list[str]:
    """Return the same for runs that filled nothing."""
    said = _empty_columns(found)
    if found.share >= LARGE:
        said.append(
            f"{_percent(found.share)} of the values are missing. Where that is because of what they are, the answer "
            "follows the pattern of the gaps, and nothing in the data shows it"
        )
    if facts.get("went_back"):
        said.append("more steps would have predicted the held-out entries less well: fewer components may be enough")
    clipped = facts.get("clipped", 0.0) / max(facts.get("trace", 0.0), np.finfo(float).tiny)
    if clipped > CLIPPED:
        said.append(
            f"the covariances of pairs of columns had negative eigenvalues, which no covariance of rows has: they were "
            f"set to 0, which is {_percent(clipped)} of the variance. Shares of the variance are too small by about as "
            "much, and directions of small variance mean nothing"
        )
    if found.rule == PAIRWISE and facts.get("least_pairs", FEW_PAIRS) < FEW_PAIRS:
        said.append(f"a covariance is of {facts['least_pairs']:.0f} rows only that have both columns: it is unreliable")
    return said


def filled_entries(reader: Any) -> str:
    """The end of the error statement of an answer whose gaps were filled: what it is about."""
    if not isinstance(reader, GapReader) or reader.observed is None:
        return ""
    share = float(np.mean(1 - reader.observed))
    if share < ROUNDING:  # nothing, or in rows that weigh nothing
        return ""
    if reader.rule == PAIRWISE:
        return (
            " This is the error for the positive semidefinite matrix nearest to the covariances of pairs of columns "
            f"({_percent(share)} of the values are missing); the error against complete data is not known."
        )
    return (
        f" This is the error for data with missing values ({_percent(share)}) replaced by column means; the error "
        "against complete data is not known."
    )
