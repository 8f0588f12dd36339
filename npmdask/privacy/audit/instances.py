"""Neighbouring data sets that are as far apart as the relation allows, in every step of a run.

An audit on arbitrary neighbours sees little: with a random pair a missing sqrt(2) stays inside the interval for mu.
With d = p every orthonormal X is square, all its rows have norm 1 and E X has the Frobenius norm of E whatever X is:
one fixed pair attains the sensitivity in all steps, although X is not known in advance:

    entry, frobenius    E = c e_1 e_1^T            ||E X||_F = c
    symmetric pair      E = c (e_1 e_2^T + e_2 e_1^T)   sqrt(2) c
    spectral            E = c I                    sqrt(p) c
    add, remove, zero   E = a a^T, a = b e_1       b^2
    replace             E = a a^T - a' a'^T, a = b e_1, a' = b e_2    sqrt(2) b^2

    a tensor    E = 6 c (or c), d = 1            6 c (or c), see npmdask.privacy.audit.release_path

For pure epsilon the 1-norm counts. With d = p = 1 it equals the others; where two rows must change (a pair, a
replacement) d = p = 2 and the data are so large against the noise that X stays near the start (1 1; 1 -1) / sqrt(2),
at which E X has the largest 1-norm. How much of the sensitivity a pair attains is measured and reported, not assumed.

Where images of records are clipped, the pair of docs/decisions/0023 attains the sensitivity: of one record with d = p =
1; a record a = c (s u + t w) that is replaced by a' = c (t w - s u), whose image is the opposite one, needs d > p, and
data that hold X = u in place. With u and w along (1, -1) and (1, 1) the 1-norm is attained, too.

Two more pairs of records are seen through a public rule (:mod:`npmdask.privacy.public_rule`), and attain the
sensitivity of the clipped records too: of a record with a gap, beside others whose gaps a statistic of the data would
move; and of one whose weights make it longer than it is stored.

Another pair has d > p: a trace of X^T A X that leaks cannot be seen with d = p, where it does not depend on X and is
the same for both neighbours (derivation: tr X^T E X = tr E = 0 for a pair and a replacement).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from npmdask.numerics.subspaces import Block, random_orthonormal
from npmdask.operators.exact_sums import RECORD_GRID, grid_unit, round_to
from npmdask.operators.view import View
from npmdask.privacy.dp_pca.base import BatchQuery
from npmdask.privacy.dp_pca.private_mean import ClippedMean, DistanceRange, PlainMean
from npmdask.privacy.public_rule import BY_PLACE, PublicRule

Norm = Literal["l2", "l1"]
HADAMARD = np.array([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
OUTLIER = 3.0  # the record that changes is longer than the clipping norm by this much: clipping has to work
TWO_ROWS = ("symmetric_entry", "record_replace")
IMAGE = 0.5  # of clip_norm: what images are clipped to
MARGIN = 0.005  # that an image is too long by: X may turn a little
STEADY = 2**9  # copies of each base record that hold X in place against the noise
GAPS = 4  # base records with a gap
WEIGHT = 4.0  # of the record that changes, and of the first column; its root is exact


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A pair of neighbours under ``relation``: the data as they would be stored, before any clipping.

    Parameters
    ----------
    name : what the pair is for.
    kind : of the store: "samples" (rows are records), "symmetric", "matrix" or "tensor".
    here, there : the data of the world A and of its neighbour A'.
    p : columns of the block. start : the public X_0 (d x p), or None for a random one in every run.
    image_norm : what the images of records are clipped to, in every step, or None where they are not.
    public_rule : what is done to records before they are clipped.
    """

    name: str
    relation: Any
    kind: str
    here: NDArray[np.float64]
    there: NDArray[np.float64]
    p: int
    start: Block | None = None
    image_norm: float | None = None
    public_rule: PublicRule = field(default_factory=PublicRule)

    @property
    def d(self) -> int:
        """Rows of the block."""
        return int(self.here.shape[1])


def instances(relation: Any, norm: Norm) -> tuple[Instance, ...]:
    """The pair that attains the sensitivity in ``norm`` and the one with d > p; of records one with clipped images, one
    with gaps and one with weights, too.
    """
    if relation.kinds == ("tensor",):
        return (_tensor(relation),)
    if norm == "l2":
        attaining = _pair(relation, "attains", d=2, p=2)
    elif relation.name in TWO_ROWS:
        attaining = _pair(relation, "attains", d=2, p=2, start=HADAMARD)
    else:
        attaining = _pair(relation, "attains", d=1, p=1)
    wide = _pair(relation, "wide", d=6, p=2)
    if not relation.name.startswith("record"):
        return (attaining, wide)
    return (attaining, wide, _images(relation), _with_gaps(relation), _weighted(relation))


def _with_gaps(relation: Any) -> Instance:
    """Records with gaps that count as a number far beyond the clipping norm, the one that changes among them.

    The second column of that record is long in one world only, where others have gaps: what is filled with a mean
    moves all of them.
    """
    fill = OUTLIER * relation.clip_norm
    base = relation.clip_norm * np.concatenate([np.eye(2), np.eye(2) / 2])
    base = np.concatenate([base, np.tile([0.0, np.nan], (GAPS, 1))])
    if relation.name == "record_replace":
        here, there = np.array([[0.0, fill]]), np.array([[np.nan, 0.0]])
    else:
        here, there = np.zeros((0 if relation.name == "record_add_remove" else 1, 2)), np.array([[np.nan, fill]])
    here, there = (np.concatenate([base, record]) for record in (here, there))
    rule = PublicRule(fill=fill, filled=fill)
    return Instance(name="gaps", relation=relation, kind="samples", here=here, there=there, p=2, public_rule=rule)


def _weighted(relation: Any) -> Instance:
    """The pair that attains the sensitivity over the roots of weights, of columns and of rows that keep their place."""
    pair = _pair(relation, "weighted", d=2, p=2)
    columns = np.array([WEIGHT, 1.0])
    rows = np.append(np.ones(len(pair.here) - 1), WEIGHT) if relation.name in BY_PLACE else None
    roots = np.sqrt(columns) * (1.0 if rows is None else np.sqrt(rows)[:, None])
    rule = PublicRule(view=View(column_weight=columns, row_weight=rows), weights={"columns": "", "rows": ""})
    return replace(pair, here=pair.here / roots, there=pair.there / roots, public_rule=rule)


def _tensor(relation: Any) -> Instance:
    """The only entry of a 1 x 1 x 1 tensor, at either end of what may change, in two columns that ask the same."""
    half = np.full((1, 1, 1), min(relation.changes[2] / 2, relation.clip_norm))
    start = np.ones((1, 2))
    return Instance(name="attains", relation=relation, kind="tensor", here=-half, there=half, p=2, start=start)


def _images(relation: Any) -> Instance:
    """The pair that attains the sensitivity with clipped images."""
    longest = IMAGE * relation.clip_norm
    if relation.name != "record_replace":
        return replace(_pair(relation, "images", d=1, p=1), image_norm=longest)
    away, along = HADAMARD
    short = IMAGE * (1 + MARGIN)
    one, other = ((1 - short**2) ** 0.5 * away + side * short * along for side in (1, -1))
    steady = np.repeat(relation.clip_norm * along[None, :], STEADY, axis=0)
    here, there = (np.concatenate([steady, OUTLIER * relation.clip_norm * a[None, :]]) for a in (one, other))
    start = along[:, None]
    return Instance(
        name="images", relation=relation, kind="samples", here=here, there=there, p=1, start=start, image_norm=longest
    )


def _pair(relation: Any, name: str, *, d: int, p: int, start: Block | None = None) -> Instance:
    records = relation.name.startswith("record")
    make = _records if records else _matrices
    here, there = make(relation, d, steady=start is not None)
    kind = "samples" if records else "matrix" if relation.name == "entry" else "symmetric"
    return Instance(name=name, relation=relation, kind=kind, here=here, there=there, p=p, start=start)


def _matrices(relation: Any, d: int, *, steady: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A -+ E / 2 with A diagonal, as large as the bound on the entries allows; a steady one with equal entries."""
    change = np.zeros((d, d))
    if relation.name == "spectral_norm":
        change[:] = np.eye(d)
    elif relation.name == "symmetric_entry" and d > 1:
        change[0, 1] = change[1, 0] = 1.0
    else:
        change[0, 0] = 1.0
    room = max(relation.clip_norm - relation.change / 2, 0.0)
    base = np.diag(room * (np.ones(d) if steady else np.linspace(1.0, 0.5, d)))
    return base - relation.change / 2 * change, base + relation.change / 2 * change


def _records(relation: Any, d: int, *, steady: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Base records along the axes, and one that is added, replaced by an orthogonal one, or zeroed."""
    axes = relation.clip_norm * np.eye(d)
    base = np.repeat(axes, STEADY, axis=0) if steady else np.concatenate([axes, axes / 2])
    changed, zero = OUTLIER * axes[:1], np.zeros((1, d))
    if relation.name == "record_add_remove":
        return base, np.concatenate([base, changed])
    other = OUTLIER * axes[1:2] if relation.name == "record_replace" and d > 1 else zero
    return np.concatenate([base, other]), np.concatenate([base, changed])


# Whether a sum over records follows where they lie: one record more must move it by the term of that record alone.
#
# Sensitivities count on it. A product of BLAS has other last bits in the last rows of a strip, and a record in front
# moves all that follow to other rows. On arbitrary records nothing is seen of that: the difference is 1e-16, and sums
# are rounded. So all records here are the same one, and what is summed of it lies on an edge: of a bin of distances,
# or between two points of a grid. There every last bit counts.


COUNTS = range(29, 33)  # of records: with one more, strips end in another part of a kernel
SHAPES = ((20, 1), (37, 0))  # d of a record, and how many directions are found
Pass = Callable[[BatchQuery, np.ndarray], np.ndarray]  # what a pass over some records returns
Summing = Callable[[np.ndarray], np.ndarray]


def moves_others(sums: Summing, records: np.ndarray, record: np.ndarray, relation: str) -> bool:
    """Whether ``record`` in front of ``records``, or in place of the first, moves exact sums by more than its term."""
    if relation == "record_add_remove":
        moved, own = sums(np.concatenate([record[None], records])) - sums(records), sums(record[None])
    else:
        nothing = np.zeros_like(records[1:])  # so many that are not there
        moved = sums(np.concatenate([record[None], records[1:]])) - sums(records)
        own = sums(np.concatenate([record[None], nothing])) - sums(np.concatenate([records[:1], nothing]))
    return not np.array_equal(moved, own)


def follows_places(mechanism: Any, by_pass: Pass, relation: str) -> bool:
    """The same of the summaries of a mechanism of records, whose sums are exact integers."""
    for query, record in _on_edges(mechanism, by_pass):
        other = record if relation == "record_add_remove" else -2 * record
        for count in COUNTS:
            if moves_others(partial(by_pass, query), np.tile(record, (count, 1)), other, relation):
                return True
    return False


def _on_edges(mechanism: Any, by_pass: Pass) -> Iterator[tuple[BatchQuery, np.ndarray]]:
    """Queries with the mechanism on other public numbers, and the record whose image lies on an edge of them."""
    for d, j in SHAPES:
        rng = np.random.default_rng(d)
        record, vector = rng.standard_normal(d), random_orthonormal(d, 1, rng)[:, 0]
        found = random_orthonormal(d, j, rng) if j else np.zeros((d, 0))
        plain = BatchQuery(None, vector, found, np.zeros(d), PlainMean(count=1), 0)
        image = by_pass(plain, record[None])  # of one record: the sum is its image
        distance = float(np.linalg.norm(image))
        if isinstance(mechanism, ClippedMean):
            wide = replace(mechanism, radius=4 * distance)
            yield replace(plain, mechanism=wide, centre=image - wide.grid / 2), record
        elif isinstance(mechanism, DistanceRange):
            grid = RECORD_GRID * grid_unit(2 * distance)
            between = round_to(image.copy(), grid) + grid / 2
            even = round_to(between.copy(), grid)
            for side in (1 - 2.0**-40, 1 + 2.0**-40):
                near = replace(mechanism, largest=2 * float(np.sqrt(even @ even)) * side)
                yield replace(plain, mechanism=near, centre=image - between), record


def sums_follow_places(operator_of: Callable[[np.ndarray], Any], relation: str) -> bool:
    """The same of the two limbs of the exact sum that the private power method forms. ``operator_of``: of records."""
    d, rng = SHAPES[0][0], np.random.default_rng(0)
    records, block = rng.standard_normal((max(COUNTS), d)), random_orthonormal(d, 3, rng)

    def sums(some: np.ndarray) -> np.ndarray:
        operator = operator_of(some)
        asked = operator.prepare(np.eye(d) if operator.whole else block)
        total = reduce(operator.join, (operator.partial(range(i, i + 1), asked) for i in range(operator.units)))
        upper, lower = total.sums["upper"], total.sums["lower"]
        return np.array([Fraction(a) + Fraction(b) for a, b in zip(upper.flat, lower.flat, strict=True)])

    record = rng.standard_normal(d)
    return any(moves_others(sums, records[:count], record, relation) for count in COUNTS)
