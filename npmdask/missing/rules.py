"""Missing values of a run: what was done with them, how many there were, and what that does to the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse

from npmdask.core.aspects import Reading
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import attributes
from npmdask.core.storage.kinds import real_array
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.safe_open import numbers_in
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError
from npmdask.missing.factor_model import FactorModel, FittedScores, least_squares_scores
from npmdask.missing.gaps import (
    DROP,
    EM,
    FILL,
    MEAN,
    PAIRWISE,
    REFUSE,
    RULES,
    GapReader,
    Marks,
    as_nan,
    checked_marks,
    held_fill,
    nothing_there,
    percent,
    with_missing,
)

LARGE = 0.05  # of the entries, or of what a column should have, is missing: then the mean changes what is found
NAMED = 5  # columns that a warning names
CLIPPED = 1e-3  # of the variance: by more it is worth a word that eigenvalues were set to 0
UNCERTAIN = 10  # times as uncertain as those of complete rows: scores that are warned of
FEW_PAIRS = 30  # rows that have both columns, below which a covariance is mostly chance
AS_RUN = "as-run"  # what gaps of rows that are scored count as
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
    def lacking(self) -> bool:
        """Say whether values are missing in columns that are used."""
        return self.rule != DROP and self.entries > 0

    @property
    def facts(self) -> dict[str, Any]:
        """Return the same as plain numbers, for JSON."""
        columns = {
            "columns_with_gaps": int((self.counts > 0).sum()),
            "columns_left_out": len(self.counts) - len(self.kept),
        }
        return attributes(self, "rule", "entries", "share", "sentence") | columns | attributes(self, "rows_with_gaps")

    @property
    def sentence(self) -> str:
        """Say in a sentence what was missing, and how it was treated."""
        gappy, d = int((self.counts > 0).sum()), len(self.counts)
        if self.rule == DROP:
            return f"{gappy} of {d} columns have no value and are left out."
        if self.limit is not None:
            own, kept = self.counts[self.kept], len(self.kept)
            return (
                f"{d - kept} of {d} columns lack more than {percent(self.limit)} of their values and are left out. Of "
                f"the others {int(own.sum())} of {self.rows * kept} values are missing "
                f"({percent(own.sum() / (self.rows * kept))}), in {self.rows_with_gaps} of {self.rows} rows and "
                f"{int((own > 0).sum())} of {kept} columns; each counts as the mean of its column."
            )
        return (
            f"{self.entries} of {self.rows * d} values are missing ({percent(self.share)}), in {self.rows_with_gaps} "
            f"of {self.rows} rows and {gappy} of {d} columns; {TREATED[self.rule]}."
        )


@dataclass
class Fits:
    """Scores by least squares over what is observed, along ``components``; and what is to be said of them: rows (the
    first by number) that have none, or uncertain ones.
    """

    components: Any  # npmdask.core.runs.components.StoredComponents
    rows: int = 0
    undetermined: int = 0
    uncertain: int = 0
    worst: float = 1.0
    first: int = -1

    def __call__(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return scores of the next rows, in their order, gaps being NaN; and which are determined."""
        scores, amplified = self.fitted(rows)
        self.add(amplified)
        return scores, np.isfinite(amplified)

    def fitted(self, rows: Any) -> FittedScores:
        """Return scores of rows, and how uncertain they are."""
        if issparse(rows):
            return FittedScores(self.components.scores(rows), np.ones(rows.shape[0]))
        return least_squares_scores(self.components.seen(rows), self.components.basis)

    def add(self, amplified: np.ndarray) -> None:
        """Take in the next rows, in their order."""
        unknown = np.flatnonzero(np.isinf(amplified))
        if len(unknown) and not self.undetermined:
            self.first = self.rows + int(unknown[0])
        known = amplified[np.isfinite(amplified)]
        self.undetermined += len(unknown)
        self.uncertain += int((known > UNCERTAIN).sum())
        self.worst = max(self.worst, float(known.max(initial=1.0)))
        self.rows += len(amplified)

    @property
    def warnings(self) -> tuple[str, ...]:
        """List warnings for readers of the scores."""
        said = []
        if self.undetermined:
            said.append(
                f"{self.undetermined} of {self.rows} rows (the first is row {self.first}, from 0) lack too many values "
                "to determine their scores, which are NaN"
            )
        if self.uncertain:
            said.append(
                f"{self.uncertain} of {self.rows} rows have so few values that their scores are more than {UNCERTAIN} "
                f"times (up to {self.worst:.3g} times) as uncertain as those of complete rows"
            )
        return tuple(said)


# Public numbers that gaps count as, of missing = "fill".


@dataclass(frozen=True, kw_only=True, eq=False)
class Fill:
    """The numbers that replace missing values: one, or one for each column (d)."""

    values: float | np.ndarray

    @property
    def spec(self) -> float | str:
        """Return the value that a run is bound to: the number, or the SHA-256 of the array."""
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


def filled(source: Source, survey: Mapping[str, np.ndarray]) -> Source:
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


def missing_warnings(store: RunStore, facts: Mapping[str, Any]) -> list[str]:
    """List warnings about an answer of data with gaps: which values are wrong, and why; ``facts``: of the answer."""
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
            f"{percent(share)} of the values are missing ({percent(shares[worst])} of column {found.kept[worst]}) "
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
            f"{percent(found.share)} of the values are missing. Where that is because of what they are, the answer "
            "follows the pattern of the gaps, and nothing in the data shows it"
        )
    if facts.get("went_back"):
        said.append("more steps would have predicted the held-out entries less well: fewer components may be enough")
    clipped = facts.get("clipped", 0.0) / max(facts.get("trace", 0.0), np.finfo(float).tiny)
    if clipped > CLIPPED:
        said.append(
            f"the covariances of pairs of columns had negative eigenvalues, which no covariance of rows has: they were "
            f"set to 0, which is {percent(clipped)} of the variance. Shares of the variance are too small by about as "
            "much, and directions of small variance mean nothing"
        )
    if found.rule == PAIRWISE and facts.get("least_pairs", FEW_PAIRS) < FEW_PAIRS:
        said.append(f"a covariance is of {facts['least_pairs']:.0f} rows only that have both columns: it is unreliable")
    return said


# What a question does with missing values.


@dataclass(frozen=True, kw_only=True, eq=False)
class Gaps(Reading):
    """Treatment of missing values: a ``rule``, and the ``values`` that mark them beside NaN.

    ``fill``: of "fill", public numbers. ``limit``: of "mean", columns that lack a larger share are left out.
    """

    place: ClassVar[str] = "data.missing"
    part: ClassVar[str] = FILLED
    noun: ClassVar[str] = "a rule for missing values"
    gone: ClassVar[str] = (
        "the numbers that replace missing values are gone from {place}, or are not those that the run began with"
    )
    opens: ClassVar[dict[str, Any]] = {"gaps": True}

    rule: str
    fill: Fill | None = None
    values: Marks = ()
    limit: float | None = None

    @property
    def route(self) -> str:
        """Return the rule where it is "em" or "pairwise", whose operators see gaps themselves; else ""."""
        return self.rule if self.rule in (EM, PAIRWISE) else ""

    @property
    def as_recorded(self) -> bool:
        """Say whether the statistics of ingest hold: it left out NaN, but took marked values for numbers."""
        return not self.values

    def source(self, source: Source, request: Any) -> Source:
        """Return the source with its gaps read by the rule.

        Raises
        ------
        BadInputError, RefusedError
            No such rule, or a run that has none.
        """
        rule, limit, private = self.rule, self.limit, request.privacy is not None
        if private and limit is not None:
            raise RefusedError("missing_limit depends on the data, which a private run may not reveal: leave it out")
        if self.values and rule == REFUSE:
            remedy = f"{FILL!r} with a public missing_fill" if private else f"{MEAN!r} or {DROP!r}"
            raise BadInputError(
                f"missing_values = {list(self.values)} says which numbers are missing, but not how to treat them: also "
                f"set missing = {remedy}"
            )
        if private:
            return self._privately_filled(source)
        if rule == FILL:
            raise RefusedError(
                f"missing = {FILL!r} is for private runs, which fill gaps with public numbers: set missing = {MEAN!r} "
                "here, or fill in missing values beforehand"
            )
        if rule != REFUSE and (request.operator is not None or request.mechanism != "none"):
            raise RefusedError(
                f"missing = {rule!r} is for plain runs of samples and dense matrices, not for other operators or "
                "simulated noise: leave it out, and fill in missing values beforehand"
            )
        if limit is not None and (rule != MEAN or isinstance(limit, bool) or not 0 <= limit < 1):
            raise BadInputError(
                f"missing_limit = {limit!r} with missing = {rule!r}: it goes with missing = {MEAN!r} and is a "
                "fraction, at least 0 and less than 1. Columns with a larger fraction missing are left out; gaps in "
                "the others are filled"
            )
        source = with_missing(source, rule, marks=self.values, limit=limit)
        if rule in (EM, PAIRWISE) and source.kind != "samples":
            raise BadInputError(
                f"missing = {rule!r} is for samples, whose rows have a covariance, and {source.path} is of kind "
                f'{source.kind}: set kind = "samples" (for a matrix, missing = "mean" fills gaps)'
            )
        if rule not in (REFUSE, DROP) and not request.center:
            raise BadInputError(
                f"missing = {rule!r} needs centring, because a gap then counts as 0. Centre the columns "
                "(center = True, --center), or fill in missing values beforehand"
            )
        return source

    def _privately_filled(self, source: Source) -> Source:
        """Return the source of a private run, its gaps read as public numbers. Nothing is looked at."""
        if self.rule in set(RULES) - {REFUSE, FILL}:
            raise RefusedError(
                f"missing = {self.rule!r} depends on the data, which a private run may not reveal: set missing "
                f"= {FILL!r} with a public missing_fill, which replaces gaps before records are clipped"
            )
        return with_missing(source, self.rule, None if self.fill is None else self.fill.values, self.values)

    @staticmethod
    def scored(opened: Source, found: Any, how: str) -> Source:
        """Return rows of the columns that were kept. Their gaps are NaN, or as the run read those of its own."""
        known, reader = found.missing, opened.reader
        if found.fill is not None and how == AS_RUN and isinstance(reader, DenseReader):
            return with_missing(opened, FILL, found.fill.values, found.marks)
        if not isinstance(reader, DenseReader) or (how == AS_RUN and known is None and not found.marks):
            return opened
        if known is None:
            inner = GapReader(inner=as_nan(reader), rule=MEAN, checksums=reader.checksums, marks=found.marks)
            return replace(opened, reader=inner)
        kept = known.kept if opened.shape[1] == len(known.counts) > len(known.kept) else None
        if opened.shape[1] not in (len(known.counts), len(known.kept)):
            return opened
        same: dict[str, Any] = {"rule": known.rule, "marks": known.values, "checksums": reader.checksums}
        inner = GapReader(inner=as_nan(reader), kept=kept, held=False, **same)
        if known.rule in (DROP, EM) or how != AS_RUN or inner.dtype.kind != "f":
            return replace(opened, reader=inner)
        assert known.fill is not None
        return replace(opened, reader=replace(inner, fill=held_fill(known.fill, inner)))

    fit = Fits
    read = staticmethod(with_missing)
    surveyed = staticmethod(filled)
    noted = staticmethod(missing_of)
    warnings = staticmethod(missing_warnings)

    def note(self, store: RunStore, source: Source, survey: Any) -> None:
        """Keep how much is missing."""
        keep_missing(store, source, survey, self.limit)

    def scoring(self, store: RunStore, basis: np.ndarray) -> dict[str, Any]:
        """Return what gaps of rows to be scored are filled with, or expected to be by the model of the run."""
        if self.rule != EM:
            return {"fill": self.fill, "marks": () if missing_of(store) is not None else self.values}
        part = store.read_part("result")
        assert part is not None
        noise = float(part[1]["facts"]["noise"])
        lengths = np.sqrt(np.maximum(part[0]["values"] - noise, 0.0))
        model = FactorModel(axes=basis, lengths=lengths, mean=np.zeros(len(basis)), noise=noise)  # about the mean
        return {"mean": part[0]["model_mean"], "model": model}

    def spec(self) -> dict[str, dict[str, Any]]:
        """Return what it asks for."""
        found: dict[str, Any] = {"missing": self.rule}
        found |= {} if self.fill is None else {"missing_fill": self.fill.spec}
        found |= {} if self.limit is None else {"missing_limit": self.limit}
        return {"data": found | ({"missing_values": list(self.values)} if self.values else {})}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the numbers that gaps are filled with, if there is one for each column."""
        return {} if self.fill is None or isinstance(self.fill.values, float) else {"fill": self.fill.values}

    @classmethod
    def restored(cls, spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self | None:
        """Return the rule of a run."""
        data = spec["data"]
        fill, values, limit = data.get("missing_fill"), data.get("missing_values", ()), data.get("missing_limit")
        if isinstance(fill, str):
            fill = arrays.get("fill")
            if fill is None:
                return None
        known = None if fill is None else Fill(values=fill)
        return cls(rule=data["missing"], fill=known, values=tuple(values), limit=limit)

    def public(self, rule: Any) -> Any:
        """Return the rule with public numbers and marks."""
        known: dict[str, Any] = {} if self.fill is None else {"fill": self.fill.values, "filled": self.fill.spec}
        return replace(rule, marks=self.values, **known)


def find_gaps(
    *data: Any, missing: str, missing_fill: Any = None, missing_values: Any = None, missing_limit: Any = None
) -> Gaps | None:
    """Return what keywords of a public call ask for; None where gaps are refused."""
    fill, values = find_fill(missing, missing_fill), checked_marks(missing_values)
    if missing == REFUSE and not values and missing_limit is None:
        return None
    return Gaps(rule=missing, fill=fill, values=values, limit=missing_limit)


def gaps_of(estimator: Any) -> Gaps | None:
    """Return what an estimator asks for."""
    return find_gaps(**attributes(estimator, "missing", "missing_values", "missing_limit"))
