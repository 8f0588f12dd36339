"""Draw a sample of the rows of a store: the spectrum of the whole that it suggests, and whether it is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_matrix, issparse, vstack

from npmdask.complex.parts import as_complex, moduli
from npmdask.core.certificates.wording import at_most_percent, degrees, percent, the_components
from npmdask.core.execution.memory import MemoryPlan
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.spectra import evenly
from npmdask.core.runs.problem import Problem, Request
from npmdask.core.storage.column_statistics import ColumnStatistics, ColumnSums, EntrySums, of_moments
from npmdask.core.storage.readers.around import AroundDense
from npmdask.core.storage.readers.dense import DenseReader, ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, whole_rows
from npmdask.core.storage.source import Source
from npmdask.symmetric.reader import TensorReader, TriangleReader

AWRY = 7919  # a prime: from other rows of every chunk
ALIKE = 0.5
JITTER = 1e-15  # of the largest row, for each row: products of rows are positive definite but for rounding
UNLIKELY = 4.0  # standard errors by which a sample hardly has too little variance
RELEVANT = 0.1  # of the k-th value: less variance than that is not missed


@dataclass(frozen=True, kw_only=True)
class SampleBudget:
    """Limits on the cost of a sample: for a plan as much as a person waits for; for a run, next to nothing."""

    side: int = 1200  # of the eigenproblem: a tenth of a second
    places: int = 32  # rows of chunks that rows are taken from, where chunks cannot be read in part
    nbytes: int = 128 * 2**20  # of the sample in memory
    flops: float = 2e10  # of the product of the sample with itself: half a second of one slow core
    judged: int = 0  # components for which it is asked whether a share of the rows would do


@dataclass(frozen=True, kw_only=True)
class Sample:
    """``rows`` rows of the data from ``places`` rows of chunks, and eigenvalues of ``A^T A / rows``, falling.

    For a symmetric matrix ``spectrum`` holds the square roots: the sizes of its own eigenvalues, up to a factor; and
    ``positive`` is the share of them (of their sum) that belongs to positive eigenvalues. ``whole``: the sample is all
    there is. ``errors``: of runs on a share of the rows, where the budget asks for them.
    """

    rows: int
    places: int
    whole: bool
    spectrum: np.ndarray
    positive: float = 1.0
    # how much rows of one place have in common: 0 nothing, 1 they are the same (time series, classes)
    alike: float = 0.0
    unseen: int = 0  # eigenvalues that the operator has and the sample, with fewer rows than columns, has not
    unit: float = 1.0  # what makes eigenvalues of the operator of the spectrum
    errors: tuple[ShareError, ...] = ()

    @property
    def eigenvalues(self) -> np.ndarray:
        """Return the eigenvalues of the operator by falling size; those beyond the sample fall evenly from its last.

        Negative ones are spread over the spectrum in proportion: which they are, no sample of rows says. A share of
        them below 0.01 is the error of the sample.
        """
        share = 1.0 if self.positive > 0.99 else self.positive
        sizes = np.concatenate([self.spectrum, self.spectrum[-1] * evenly(self.unseen)])
        passed = np.floor(share * np.arange(len(sizes) + 1) + 0.5)
        return np.where(np.diff(passed) > 0, sizes, -sizes) * self.unit


def why_too_small(sample: Sample, rows: int, what: str) -> str:
    """Why a sample of so many rows, or from so few places where neighbours are alike, says nothing; or nothing."""
    if sample.whole:
        return ""
    if sample.rows < rows:
        return f"{sample.rows} rows are a small sample for {what}"
    if sample.alike > ALIKE and sample.places < rows:
        return f"neighbouring rows are alike, and a sample from {_places_text(sample.places)} is small for {what}"
    return ""


def sample_said(sample: Sample) -> str:
    """Say for a person where a number comes from."""
    alike = ", where neighbouring rows are alike: it may take more" if sample.alike > ALIKE and not sample.whole else ""
    return f"estimated from a sample of {sample.rows} rows from {_places_text(sample.places)}{alike}"


def _places_text(count: int) -> str:
    return "1 place" if count == 1 else f"{count} places"


def draw_sample(
    problem: Problem, plan: MemoryPlan, late: Callable[[], bool], allowance: SampleBudget | None = None
) -> Sample | None:
    """As :func:`sample_of`, from no more memory than a quarter of what ``plan`` leaves free under its limit."""
    allowed = allowance or SampleBudget()
    if plan.limit is not None:
        allowed = replace(allowed, nbytes=min(allowed.nbytes, (plan.limit - plan.base) // 4))
    return sample_of(problem.source, problem.request, late, allowed)


def sample_of(source: Source, request: Request, late: Callable[[], bool], allowed: SampleBudget) -> Sample | None:
    """Rows spread over the store, as many as are affordable, until ``late`` says so; None if fewer than 2 came."""
    reader, (m, d) = source.reader, source.shape
    assert not isinstance(reader, TensorReader)  # refused before
    wanted = _affordable_rows(reader, m, d * source.parts, allowed)
    places = min(wanted if in_part(reader) else allowed.places, places_of(reader))
    slabs = np.unique(np.linspace(0, places_of(reader) - 1, places).astype(int))
    slabs = np.random.default_rng(0).permutation(slabs)  # if it becomes late, the first are from everywhere
    traces, numbers = list[float](), list[np.ndarray]()
    if isinstance(reader, CsrReader):
        parts = _sparse_rows(reader, wanted, slabs, late, numbers)
    else:
        symmetric = source.kind == "symmetric"
        parts = _dense_rows(reader, wanted, slabs, late, traces if symmetric else None, numbers)
    count = sum(part.shape[0] for part in parts)
    if count < 2:
        return None
    rows: Any = vstack(parts, format="csr") if isinstance(reader, CsrReader) else np.concatenate(parts)
    if getattr(reader, "counts_gaps", None) is not None:
        parts = _fill_gaps(parts, rows, request.seen(source).row_weight, numbers)
        rows = np.concatenate(parts)
    seen = _viewed_rows(source, request, rows, numbers)
    if source.parts == 2:
        seen = (as_complex(seen[0].T).T, *seen[1:])
    spectrum, errors = spectrum_of(*seen, of_rows=m), tuple[ShareError, ...]()
    if allowed.judged and source.kind != "symmetric" and source.parts == 1:
        missed = _missed_rows_text(source, request, rows, spectrum, allowed.judged)
        some = [part.shape[0] for part in parts] if len(parts) < min(places_of(reader), count) else []
        errors = _errors(*seen, of_rows=m, rank=allowed.judged, places=some, missed=missed)
    positive, unit = 1.0, 1.0 if source.kind == "samples" else float(m)
    if source.kind == "symmetric":
        spectrum, unit = np.sqrt(spectrum), d**0.5
        positive = _positive_share(sum(traces) / count, spectrum, d)
    unseen = 0 if count == m else min(m, d) - len(spectrum)
    spectrum, unseen = np.repeat(spectrum, source.parts), unseen * source.parts  # of complex data each comes twice
    return Sample(
        rows=count,
        places=len(parts),
        whole=count == m,
        spectrum=spectrum,
        positive=positive,
        alike=_intraclass_correlation(parts),
        unseen=unseen,
        unit=unit,
        errors=errors,
    )


def _errors(
    rows: Any, mean: np.ndarray | None, times: np.ndarray | None, *, places: list[int], **asked: Any
) -> tuple[ShareError, ...]:
    """Estimate errors of runs on a share of the rows, from as much of the sample as takes a second.

    Returns nothing where squares overflow.
    """
    count, d = rows.shape
    chosen = np.unique(np.linspace(0, count - 1, min(count, max(LEAST, int(FLOPS / d**2)))).astype(int))
    if places:
        held = np.bincount(np.repeat(np.arange(len(places)), places)[chosen], minlength=len(places))
        places = [int(number) for number in held if number]
    rows, times = rows[chosen], np.ones(len(chosen)) if times is None else times[chosen]
    if len(chosen) < d:  # rows of a triangle have the same products with each other, and fewer columns
        gram = _row_products(rows, mean, times)
        largest = float(np.diagonal(gram).max())
        if not 0 < largest < np.inf or not np.isfinite(gram).all():
            return ()
        rows = np.linalg.cholesky(gram / largest + JITTER * len(gram) * np.eye(len(gram)))
    elif issparse(rows):
        rows = rows.toarray() if mean is None else rows.toarray() - np.outer(times, mean)
    return share_errors(rows, places=places, **asked)


def _missed_rows_text(source: Source, request: Request, rows: Any, spectrum: np.ndarray, rank: int) -> str:
    """That the sample misses rows that matter, where the variances of all rows, known from ingest, show it."""
    if source.statistics is None or request.seen(source).weighs or np.isnan(rows.sum()):
        return ""
    mean, std, sparse = source.statistics.mean, source.statistics.std, issparse(rows)
    unit = source.statistics.scale if request.scale else np.ones(len(std))
    away = sparse or not request.center
    expected = (std**2 + mean**2 if away else std**2) / unit**2
    squares = rows.multiply(1 / unit).power(2).tocsr() if sparse else np.square((rows if away else rows - mean) / unit)
    count, lengths = rows.shape[0], np.asarray(squares.sum(axis=1)).ravel()
    found = np.asarray(squares.sum(axis=0)).ravel() / count
    spread = np.asarray(squares.power(2).sum(axis=0)).ravel() if sparse else np.square(squares).sum(axis=0)
    errors = np.sqrt(np.maximum(spread / count - found**2, 0.0) / count)
    more = max(
        float((expected - found - UNLIKELY * errors).max()),
        float(expected.sum() - lengths.mean() - UNLIKELY * lengths.std() / np.sqrt(count)),
    )
    if rank > len(spectrum) or not more > RELEVANT * float(spectrum[rank - 1]):
        return ""
    return "the columns of all rows have more variance than those of the sample: it misses rows that matter"


def _fill_gaps(
    parts: list[np.ndarray], rows: np.ndarray, row_weight: np.ndarray | None, numbers: list[np.ndarray]
) -> list[np.ndarray]:
    """Sampled rows, gaps as the (weighted) means of the columns of the sample."""
    gaps = np.isnan(rows)
    times = (~gaps).astype(np.float64)
    if row_weight is not None:
        times *= row_weight[np.concatenate(numbers), None]
    total = times.sum(axis=0)
    means = (times * np.where(gaps, 0.0, rows)).sum(axis=0) / np.where(total > 0, total, 1.0)
    return [np.where(np.isnan(part), means, part) for part in parts]


def _positive_share(entry: float, spectrum: np.ndarray, d: int) -> float:
    """Estimate the share of the sum of sizes that belongs to positive eigenvalues, from the mean diagonal ``entry``.

    The mean entry is the sum of all eigenvalues over d; the sampled sizes are theirs over sqrt(d).
    """
    total = float(spectrum.sum()) / d**0.5
    return 1.0 if total == 0 else float(np.clip((1 + entry / total) / 2, 0.0, 1.0))


def _affordable_rows(reader: Any, m: int, d: int, allowed: SampleBudget) -> int:
    """As many as memory and arithmetic allow."""
    room = allowed.nbytes
    width = 32 * max(1, reader.entries // m) if isinstance(reader, CsrReader) else 16 * d  # two copies, float64
    side = min(allowed.side, int((max(room, 0) / 32) ** 0.5))  # four matrices of the eigenproblem
    by_flops = max(side, int(allowed.flops / (2 * d * d))) if d <= side else side
    return int(max(2, min(m, room // width, by_flops)))


def _dense_rows(
    reader: DenseReader | AroundDense | TriangleReader,
    wanted: int,
    slabs: np.ndarray,
    late: Callable[[], bool],
    traces: list[float] | None,
    numbers: list[np.ndarray],
) -> list[np.ndarray]:
    """Every n-th row of some rows of chunks, in shards of inner chunks, and no other is read where that can be.

    ``traces`` takes the sums of their entries on the diagonal, ``numbers`` those of the rows.
    """
    each, parts = -(-wanted // len(slabs)), list[np.ndarray]()
    for slab in slabs:
        if parts and late():
            break
        start, high = int(slab) * _place_rows(reader), _place_rows(reader)
        height = min(high, reader.shape[0] - start)
        stride = max(1, height // each)
        first = int(slab) * AWRY % stride if in_part(reader) else 0
        if isinstance(reader, TriangleReader):
            parts.append(reader.some_rows(int(slab), slice(None, None, stride))[:each].astype(np.float64))
        elif isinstance(reader, DenseReader) and reader.access.by_rows:
            stored, top = divmod(start, reader.chunks[0])
            parts.append(reader.some_rows(stored, range(top + first, top + height, stride)[:each]).astype(np.float64))
        else:
            parts.append(_rows_of_slab(reader, int(slab), stride, late)[:each])
        rows = np.arange(len(parts[-1]))
        numbers.append(start + first + stride * rows)
        if traces is not None:  # of a Hermitian matrix both parts of a column are there
            traces.append(float(parts[-1][rows, reader.shape[1] // reader.shape[0] * numbers[-1]].sum()))
    return parts


def in_part(reader: Any) -> bool:
    """Say whether single rows can be read: rows are then taken from as many places as there are rows in the sample."""
    return isinstance(reader, DenseReader) and reader.together == 1


def _place_rows(reader: Any) -> int:
    """Rows of a place, from which a sample takes some: a row of chunks, or of inner chunks that are read alone."""
    together = reader.together if isinstance(reader, DenseReader) else 1
    return int(reader.chunks[0]) if together == 1 else int(together)


def places_of(reader: Any) -> int:
    """Count the places of rows to sample from."""
    if isinstance(reader, CsrReader):
        return reader.grid[0]
    return -(-int(reader.shape[0]) // _place_rows(reader))


def _intraclass_correlation(parts: list[Any]) -> float:
    """The intraclass correlation of rows, a place being a class: between places over all, less what chance makes."""
    count, places = sum(part.shape[0] for part in parts), len(parts)
    if not 1 < places < count:
        return 0.0
    sums = [np.asarray(part.sum(axis=0)).ravel() for part in parts]
    squares = sum(float(part.multiply(part).sum() if issparse(part) else (part**2).sum()) for part in parts)
    mean = float((np.sum(sums, axis=0) ** 2).sum()) / count
    between = sum(float((s**2).sum()) / part.shape[0] for s, part in zip(sums, parts, strict=True)) - mean
    chance = (places - 1) / (count - 1)
    share = between / (squares - mean) if squares > mean else 0.0
    return max(0.0, (share - chance) / (1 - chance))


def _rows_of_slab(reader: DenseReader | AroundDense, slab: int, stride: int, late: Callable[[], bool]) -> np.ndarray:
    taken, first = [], 0
    for rows, tile in reader.tiles(slab, ReadStats()):
        values = [part[first::stride].astype(np.float64) for _, part in tile]
        taken.append(np.concatenate(values, axis=1))
        first = (first - (rows.stop - rows.start)) % stride
        if late():
            break
    return np.concatenate(taken)


def _sparse_rows(
    reader: CsrReader, wanted: int, slabs: np.ndarray, late: Callable[[], bool], numbers: list[np.ndarray]
) -> list[csr_matrix]:
    """Whole rows of some chunks of entries, and their ``numbers``; rows that the border of a chunk cuts are not."""
    each, parts = -(-wanted // len(slabs)), list[csr_matrix]()
    for slab in slabs:
        if parts and late():
            break
        for at, piece in whole_rows(reader, range(slab, slab + 1), ReadStats(), []):
            stride = max(1, piece.shape[0] // each)
            parts.append(piece.astype(np.float64)[::stride][:each])
            numbers.append(at + stride * np.arange(parts[-1].shape[0]))
    return parts


def _statistics(rows: Any, times: np.ndarray | None) -> ColumnStatistics:
    """Compute statistics of the columns of the sample alone, whose rows count so many ``times``."""
    count, weight = rows.shape[0], float(rows.shape[0] if times is None else times.sum())
    if isinstance(rows, csr_matrix):
        entries = EntrySums(rows.shape[1])
        entries.add(rows.indices, rows.data, None if times is None else np.repeat(times, np.diff(rows.indptr)))
        return entries.statistics(count, weight)
    sums = ColumnSums(rows.shape[1])
    sums.add(rows, times)
    return of_moments(vars(sums), count, weight)


def _viewed_rows(
    source: Source, request: Request, rows: Any, numbers: list[np.ndarray]
) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
    """Rows as the question sees them, the column means still to subtract, and how many times from each of them.

    Means are left of sparse rows, which are not filled in. Dense ones are centred here, as in the run: of means far
    above the deviations no digits are left where they are taken off products.
    """
    sparse, view = isinstance(rows, csr_matrix), request.seen(source)
    times = None if view.row_weight is None else view.row_weight[np.concatenate(numbers)]
    if times is not None and not times.any():  # of these rows the question sees none
        times = None
    columns, mean = np.ones(rows.shape[1]), None
    if request.center or request.scale:
        known = source.statistics or _statistics(rows, times)
        mean = known.mean
        if request.center and not sparse:
            rows = rows - mean
        if request.scale:
            columns = columns / (known.of_moduli(moduli) if source.parts == 2 else known).scale
    if view.column_weight is not None:
        columns = columns * np.sqrt(view.column_weight)
    if (columns != 1).any():
        rows = rows.multiply(columns).tocsr() if sparse else rows * columns
    mean = mean * columns if mean is not None and request.center and sparse else None
    if times is None:
        return rows, mean, None
    assert view.row_weight is not None
    # Of samples the operator is over the weight of all rows, and eigenvalues of a sample over the number of its rows.
    roots = np.sqrt(times / view.row_weight.mean() if source.kind == "samples" else times)
    return rows.multiply(roots[:, None]).tocsr() if sparse else rows * roots[:, None], mean, roots


def spectrum_of(rows: Any, mean: np.ndarray | None, times: np.ndarray | None = None, *, of_rows: int) -> np.ndarray:
    """Eigenvalues of ``(S - t mean^T)^T (S - t mean^T) / R`` from R sampled rows S, as those of all ``of_rows`` rows.

    t: ``times``, 1 if left out.

    A sample exaggerates leading eigenvalues, to first order in proportion to 1/R - 1/m. The same from both
    halves of the sample shows by how much, and that is taken off (the jackknife of Quenouille, 1949).
    """
    times = np.ones(rows.shape[0]) if times is None else times
    whole = _eigenvalues(rows, mean, times)
    if rows.shape[0] >= of_rows or rows.shape[0] < 8:
        return whole
    halves = [_eigenvalues(rows[i::2], mean, times[i::2]) for i in (0, 1)]
    length = min(len(whole), *(len(half) for half in halves))
    half = sum(h[:length] for h in halves) / 2
    corrected = whole.copy()
    corrected[:length] -= np.maximum(half - whole[:length], 0.0) * (1 - rows.shape[0] / of_rows)
    return np.asarray(np.minimum.accumulate(np.clip(corrected, 0.1 * whole, whole)))


def _eigenvalues(rows: Any, mean: np.ndarray | None, times: np.ndarray) -> np.ndarray:
    """From the smaller of the two products of the sample with itself; centred by algebra, never filled in."""
    count, d = rows.shape
    if d <= count:
        gram = _dense(_adjoint(rows) @ rows)
        if mean is not None:
            total = np.asarray(rows.T @ times).ravel()
            gram = gram - np.outer(total, mean) - np.outer(mean, total) + times @ times * np.outer(mean, mean)
    else:
        gram = _row_products(rows, mean, times)
    return np.asarray(np.maximum(np.linalg.eigvalsh((gram + _adjoint(gram)) / 2)[::-1], 0.0) / count)


def _adjoint(rows: Any) -> Any:
    return rows.conj().T if rows.dtype.kind == "c" else rows.T


def _row_products(rows: Any, mean: np.ndarray | None, times: np.ndarray) -> np.ndarray:
    gram = _dense(rows @ _adjoint(rows))
    if mean is None:
        return gram
    along = np.asarray(rows @ mean).ravel()
    return np.asarray(gram - np.outer(along, times) - np.outer(times, along) + mean @ mean * np.outer(times, times))


def _dense(product: Any) -> np.ndarray:
    return product.toarray() if issparse(product) else np.asarray(product)


# Bound the error of a run on a fraction of the rows, from a sample of them: is a sample enough?
#
# Two halves of a sample know nothing of each other, and each is as far from all rows as the other. So half of what
# their answers differ by is the error of one of them. To more rows it is carried on by the laws of sampling: squared
# tangents fall like 1 / n, where the gap behind the components is known not to be zero; the variance that is lost falls
# at least like 1 / sqrt(n), whatever the gap is. Calibrated on families of problems (benchmarks/sample_cases.py), of
# which the bounds hold in nine of ten; docs/explanation/planning.md says in which not.


SHARES = (0.01, 0.1)
SPLITS = 8  # pairs of disjoint parts of the sample, for each size
HIGH = 0.9  # quantile over them
SAFETY = 1.3  # of tangents: calibrated
GAP_ERRORS = 3.0  # standard errors that the gap behind the components is taken to be smaller by
LATER = 0.1  # by which the exponent of the loss is taken to be smaller than from a quarter to a half of the sample
NOTHING = 0.9  # a sine above says as little as none
UNSEEN = 2.3  # of a sample of s rows: of so many in s no row is drawn with a probability of 10 %
FLOPS = 4e8  # of products of narrow rows, over d^2: rows that are used beyond the least
LEAST = 1200  # rows that are used of any sample
PLACES = 8  # that rows come from; fewer support no statement
TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class ShareError:
    """Errors of a run on ``rows`` random rows, a ``share`` of all: bounds of which nine of ten hold.

    ``sine``: of the largest angle between its k components and those of all rows. ``lost``: of the variance that those
    of all rows explain, what the others do not. None: nothing is promised, and ``why``. ``rarer``: rows of a kind that
    is fewer than one in so many are not accounted for, as the sample may have none.
    """

    share: float
    rows: int
    sine: float | None
    lost: float | None
    rarer: int
    why: str = ""


def share_errors(
    rows: np.ndarray,
    *,
    of_rows: int,
    rank: int,
    places: Sequence[int] = (),
    missed: str = "",
    shares: Sequence[float] = SHARES,
) -> tuple[ShareError, ...]:
    """Bounds for each of ``shares``, from a sample (s x d) of ``of_rows`` rows, as the question sees them.

    ``places``: how many rows came from each place, where places were drawn rather than rows. Parts of the sample are
    then made of whole places, so that rows which have much in common do not count as many. ``missed``: why the sample
    is known to be too small, if it is.
    """
    s, rarer = len(rows), max(1, int((len(places) or len(rows)) / UNSEEN))
    largest = float(np.abs(rows).max(initial=0.0))
    why = missed or _small_sample_text(s, len(places), rank) if np.isfinite(largest) else "some entries are not finite"
    if why:
        asked = [(share, max(1, round(share * of_rows))) for share in shares]
        return tuple(ShareError(share=share, rows=n, sine=None, lost=None, rarer=rarer, why=why) for share, n in asked)
    sample = _RowSample(rows / (largest or 1.0), places, rank)
    half, quarter = sample.compared(s // 2), sample.compared(s // 4)
    found = []
    for share in shares:
        n = max(1, round(share * of_rows))
        near = sample.compared(n) if rank < n < half.rows and not places else half
        sine, why = _sine_bound(sample, half, near, n, of_rows)
        lost: float | None = _loss_bound(half, quarter, near, n, of_rows)
        if n <= rank:
            sine, lost, why = None, None, f"{n} rows have no more than {n} components"
        found.append(ShareError(share=share, rows=n, sine=sine, lost=lost, rarer=rarer, why=why))
    return tuple(found)


def _small_sample_text(rows: int, places: int, rank: int) -> str:
    if 0 < places < PLACES:
        return f"the sample is from {places} place{'s'[: places != 1]} of the data alone"
    if rows // 4 <= rank:
        return f"{rows} rows are a small sample for {rank} component{'s'[: rank != 1]}"
    return ""


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Comparison of pairs of disjoint parts of ``rows`` rows each, with an entry for each pair.

    ``sines``: squared, of one part against all rows. ``losses``: what it explains too much of itself and too little of
    all rows, over what it explains. ``gaps``: behind the components, of each part.
    """

    rows: float
    sines: np.ndarray
    losses: np.ndarray
    gaps: np.ndarray


class _RowSample:
    """A sample of rows: the gap behind its leading components, and how far that may be off."""

    def __init__(self, rows: np.ndarray, places: Sequence[int], rank: int) -> None:
        self.rows, self.rank = rows, rank
        count = len(places) or len(rows)
        self._of = np.repeat(np.arange(count), places) if places else np.arange(count)
        self._count = count
        values, basis = _leading(rows, rank + 1)
        self.gap = float(values[rank - 1] - values[rank])
        along = np.square(rows @ basis[:, rank - 1 :]) @ np.array([1.0, -1.0])[: basis.shape[1] - rank + 1]
        sums = np.bincount(self._of, weights=along)
        self.gap_error = float(np.sqrt(count) * sums.std() / len(rows))

    def compared(self, size: int) -> _Pairs:
        """Parts of ``size`` rows each, or of as many places as hold so many."""
        each = max(1, size * self._count // len(self.rows))
        rng = generator(0, "parts of a sample", size)
        sizes, sines, losses, gaps = (list[float]() for _ in range(4))
        for _ in range(SPLITS):
            order = rng.permutation(self._count)
            pair = [self.rows[np.isin(self._of, some)] for some in (order[:each], order[each : 2 * each])]
            found = [_leading(part, self.rank) for part in pair]
            (first, left), (second, right) = found
            # Errors of both are independent: what they have in common is the product of the cosines to all rows.
            whole = min(left.shape[1], right.shape[1]) == self.rank  # parts of small places may have fewer rows
            sines.append(1 - float(min(np.linalg.svd(left.T @ right, compute_uv=False)[-1], 1.0)) * whole)
            own = first[: self.rank].sum() + second[: self.rank].sum()
            crossed = _mean_explained(pair[1], left) + _mean_explained(pair[0], right)
            losses.append(max(0.0, float(own) - crossed) / max(float(own), TINY))
            sizes += [len(part) for part in pair]
            gaps += [float(values[self.rank - 1] - values[self.rank]) for values in (first, second)]
        return _Pairs(rows=float(np.mean(sizes)), sines=np.array(sines), losses=np.array(losses), gaps=np.array(gaps))


def _sine_bound(sample: _RowSample, half: _Pairs, near: _Pairs, n: int, of_rows: int) -> tuple[float | None, str]:
    """Bound the sine for n rows, from parts of ``near`` as many; None where the gap may be zero, and why."""
    # Small samples drive values apart, to first order by as much again from all of the sample to a half of it.
    gap = sample.gap - max(0.0, float(half.gaps.mean()) - sample.gap)
    sure = gap - GAP_ERRORS * sample.gap_error
    if sure <= 0:
        k = sample.rank
        return None, f"a sample of {len(sample.rows)} rows does not tell values {k} and {k + 1} apart"
    squared = float(np.quantile(near.sines, HIGH))
    tangent = SAFETY**2 * squared / max(1 - squared, TINY) * (1 / n - 1 / of_rows) * near.rows
    if n > near.rows:
        tangent *= (sample.gap / sure) ** 2
    sine = float(np.sqrt(tangent / (1 + tangent)))
    return (sine, "") if sine <= NOTHING else (None, f"a sample of {len(sample.rows)} rows is too small to bound it")


def _loss_bound(half: _Pairs, quarter: _Pairs, near: _Pairs, n: int, of_rows: int) -> float:
    """Bound the loss for n rows, as a share of what the components of all rows explain."""
    if n > near.rows:
        fall = np.log(max(quarter.losses.mean(), TINY) / max(half.losses.mean(), TINY))
        times = max(half.rows / quarter.rows, 1.5)  # 2, but for places of unlike sizes
        exponent = float(np.clip(fall / np.log(times) - LATER, 0.5, 1.0))
    else:
        exponent = 1.0
    return min(1.0, float(np.quantile(near.losses, HIGH)) * (near.rows / n) ** exponent * (1 - n / of_rows))


def _mean_explained(rows: np.ndarray, basis: np.ndarray) -> float:
    return float(np.square(rows @ basis).sum() / len(rows))


def _leading(rows: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """k + 1 values of the mean of x x^T, the last 0 where there is none, and k vectors (0 for values that are)."""
    count, d = rows.shape
    wide = count < d
    gram = rows @ rows.T if wide else rows.T @ rows
    side = len(gram)
    found, vectors = eigh(gram, subset_by_index=[max(0, side - rank - 1), side - 1])
    values = np.zeros(rank + 1)
    values[: len(found)] = np.maximum(found[::-1], 0.0)
    basis = vectors[:, ::-1][:, :rank]
    if wide:
        roots = np.sqrt(values[:rank])
        basis = rows.T @ (basis / np.where(roots > 1e-8 * roots[0], roots, np.inf))
    return values / count, basis


def shares_said(errors: Sequence[ShareError], rank: int) -> str:
    """The same in a sentence."""
    said = "; ".join(_share_error_text(one, rank) for one in errors)
    if all(one.lost is None for one in errors):
        return said
    return (
        f"{said} (in 9 of 10 problems; for rows drawn at random, where no kind of row matters that is rarer than 1 in "
        f"{errors[0].rarer:,})"
    )


def _share_error_text(one: ShareError, rank: int) -> str:
    run = f"a run on {percent(one.share)} of the rows ({one.rows:,})"
    if one.lost is None:
        return f"{run}: unknown, {one.why}"
    angle = f"by any angle ({one.why})" if one.sine is None else f"by at most {degrees(one.sine, least=0)}"
    lost = at_most_percent(one.lost)
    return f"{run} changes {the_components(rank)} {angle} and loses at most {lost} of what they explain"
