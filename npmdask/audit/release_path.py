"""The release path as a run takes it, for many runs side by side: product, noise, orthonormalisation, again.

First the neighbours that it is attacked on.

What is exercised is the product's own code: the integer operators, the sensitivity of the relation, calibration, key,
keystream, sampler and the mechanism's ``release``. Only the loop is the audit's, so that N runs go together:

* a product is linear in every column, so in a pass over the data the blocks of all runs are side by side as one
  block of N p columns; not where images are clipped: there every run has its pass, runs with the same block have one;
* noise is independent for every entry; its scale depends on the public X alone, its stream on the key and on all that
  is public. So the products of runs that need the same scale are side by side too, and ``release`` is called once for
  them, with the block of the run that needs most. "The same" is up to ``SAME`` (blocks are on a grid, so that even with
  d = p sensitivities differ in the tenth digit); the path-wise check has every run's own scale.

``together=False`` calls ``release`` for every run by itself, under a key of its own, as the driver does. A test holds
both to the same distribution; nothing but the number of calls differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from npmdask.audit.attacks import Publication, Transcript, Values
from npmdask.core.numerics.subspaces import Block, random_orthonormal
from npmdask.core.operators import Partial
from npmdask.core.operators.view import View
from npmdask.dp_pca.base import BatchQuery
from npmdask.dp_pca.private_mean import ClippedMean, DistanceRange, PlainMean
from npmdask.privacy.exact_sums import RECORD_GRID, grid_unit, round_to
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.public_rule import BY_PLACE, PublicRule
from npmdask.tensors.components import unit_columns

# Neighbouring data sets that are as far apart as the relation allows, in every step of a run.
#
# An audit on arbitrary neighbours sees little: with a random pair a missing sqrt(2) stays inside the interval for mu.
# With d = p every orthonormal X is square, all its rows have norm 1 and E X has the Frobenius norm of E whatever X is:
# one fixed pair attains the sensitivity in all steps, although X is not known in advance:
#
#     entry, frobenius    E = c e_1 e_1^T            ||E X||_F = c
#     symmetric pair      E = c (e_1 e_2^T + e_2 e_1^T)   sqrt(2) c
#     spectral            E = c I                    sqrt(p) c
#     add, remove, zero   E = a a^T, a = b e_1       b^2
#     replace             E = a a^T - a' a'^T, a = b e_1, a' = b e_2    sqrt(2) b^2
#
#     a tensor    E = 6 c (or c), d = 1            6 c (or c), see TensorPath
#
# For pure epsilon the 1-norm counts. With d = p = 1 it equals the others; where two rows must change (a pair, a
# replacement) d = p = 2 and the data are so large against the noise that X stays near the start (1 1; 1 -1) / sqrt(2),
# at which E X has the largest 1-norm. How much of the sensitivity a pair attains is measured and reported, not assumed.
#
# Where images of records are clipped, the pair of docs/decisions/0023 attains the sensitivity: of one record with d = p
# = 1; a record a = c (s u + t w) that is replaced by a' = c (t w - s u), whose image is the opposite one, needs d > p,
# and data that hold X = u in place. With u and w along (1, -1) and (1, 1) the 1-norm is attained, too.
#
# Two more pairs of records are seen through a public rule (:mod:`npmdask.privacy.public_rule`), and attain the
# sensitivity of the clipped records too: of a record with a gap, beside others whose gaps a statistic of the data would
# move; and of one whose weights make it longer than it is stored.
#
# Another pair has d > p: a trace of X^T A X that leaks cannot be seen with d = p, where it does not depend on X and is
# the same for both neighbours (derivation: tr X^T E X = tr E = 0 for a pair and a replacement).


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
    """Say whether ``record``, put before ``records`` or for the first, moves exact sums by more than its term."""
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


SAME = 1e-6  # relative: moves mu by less than a hundredth of what any feasible number of runs resolves
Integers = NDArray[np.int64]
OperatorOf = Callable[[Instance, NDArray[np.float64]], Any]


class ReleasePath:
    """Private path of a release under audit. A mutant overrides one method, or is given another mechanism or operator.

    Parameters
    ----------
    instance : the neighbours.
    mechanism : what noises (npmdask.privacy.mechanisms.gaussian_laplace).
    steps : releases of a run, which need not be what the mechanism was calibrated for.
    operator_of : from (instance, data) to the operator that forms the products.
    """

    def __init__(self, instance: Instance, mechanism: Any, *, steps: int, operator_of: OperatorOf) -> None:
        self.instance = instance
        self.mechanism = mechanism
        self.steps = steps
        self.operators = {world: operator_of(instance, getattr(instance, world)) for world in ("here", "there")}
        self.operator_on = partial(operator_of, instance)
        self.grid = float(mechanism.rounding.grid)

    def run(
        self, world: str, keys: Sequence[Entropy], runs: int, *, together: bool = True, seed: int = 0
    ) -> Transcript:
        """The transcript of ``runs`` runs on the data of ``world`` ("here" or "there").

        ``keys`` : one key for all, or one a run if not ``together``. ``seed`` : of the public X_0.
        """
        transcript: Transcript = []
        blocks = self._start(runs, seed)
        for step in range(1, self.steps + 1):
            blocks = _split_runs(self.operators[world].prepare(_blocks_in_row(blocks)), runs)
            published = self.step(world, blocks, keys, step, together)
            transcript += published
            blocks = self.following(published[0].value, blocks)
        return transcript

    def following(self, released: Values, asked: Values) -> Values:
        """The blocks of the next step, from what was released in this one, when ``asked`` of the data."""
        return orth_many(released)

    def step(self, world: str, blocks: Values, keys: Sequence[Entropy], step: int, together: bool) -> Transcript:
        """Everything that one step makes public; the first is the release that the run goes on with."""
        return [self.released(world, blocks, keys, step, together)]

    def released(
        self,
        world: str,
        blocks: Values,
        keys: Sequence[Entropy],
        step: int,
        together: bool,
        *,
        label: int | None = None,
    ) -> Publication:
        """The release of ``step``; ``label`` is the number that the mechanism gets instead."""
        queries = {name: self._product(operator, blocks) for name, operator in self.operators.items()}
        noise = np.array([self.mechanism.noise_stddev(block) for block in blocks]) / self.mechanism.stddev_per_scale
        value = np.empty(queries[world].shape)
        groups = _noise_groups(noise) if together else [np.array([i]) for i in range(len(blocks))]
        for number, runs in enumerate(groups):
            value[runs] = _split_runs(
                self.mechanism.release(
                    _blocks_in_row(queries[world][runs]),
                    block=blocks[runs[np.argmax(noise[runs])]],
                    entropy=keys[0 if together else number],
                    step=step if label is None else label,
                ),
                len(runs),
            )
        here, there = (np.float64(self.grid) * queries[name] for name in ("here", "there"))
        return Publication(step=step, value=value, here=here, there=there, noise=noise, grid=self.grid)

    def _start(self, runs: int, seed: int) -> Values:
        """X_0: public, of the instance or random."""
        instance, rng = self.instance, np.random.default_rng(seed)
        if instance.start is not None:
            return np.tile(np.asarray(instance.start, dtype=np.float64), (runs, 1, 1))
        return orth_many(rng.standard_normal((runs, instance.d, instance.p)))

    def _product(self, operator: Any, blocks: Values) -> Integers:
        """A X of every run: one pass, unit by unit, for all of them; the integers of every run by themselves."""
        if getattr(operator, "image_norm", None) is not None and len(blocks) > 1:
            different, which = np.unique(blocks, axis=0, return_inverse=True)
            return np.concatenate([self._product(operator, block[None]) for block in different])[which.ravel()]
        p, wide = blocks.shape[2], _blocks_in_row(blocks)
        total = reduce(operator.join, (operator.partial(range(i, i + 1), wide) for i in range(operator.units)))
        parts = (
            Partial(
                {name: sums[:, p * i : p * (i + 1)] for name, sums in total.sums.items()}, total.record, total.fragments
            )
            for i in range(len(blocks))
        )
        return np.stack([operator.finish(part, block) for part, block in zip(parts, blocks, strict=True)])


def _blocks_in_row(blocks: NDArray[Any]) -> NDArray[Any]:
    """N blocks (N x d x p) side by side (d x N p)."""
    runs, d, p = blocks.shape
    return np.ascontiguousarray(blocks.transpose(1, 0, 2)).reshape(d, runs * p)


def _split_runs(wide: NDArray[Any], runs: int) -> NDArray[Any]:
    """The inverse of :func:`_blocks_in_row`."""
    return wide.reshape(len(wide), runs, -1).transpose(1, 0, 2)


def _noise_groups(noise: Values) -> list[NDArray[np.intp]]:
    """The runs whose noise agrees up to ``SAME``, as lists of indices in the order of the runs."""
    order = np.argsort(noise, kind="stable")
    number = np.floor(np.log(noise[order] / noise[order[0]]) / SAME)
    return [np.sort(runs) for runs in np.split(order, np.flatnonzero(np.diff(number)) + 1)]


def orth_many(blocks: Values) -> Values:
    """``linalg.orth`` of every block (N x d x p) of full rank: QR with the diagonal of R made positive."""
    scaled = blocks / np.linalg.norm(blocks, axis=1, keepdims=True)
    q, r = np.linalg.qr(scaled)
    return q * np.where(np.diagonal(r, axis1=1, axis2=2) < 0, -1.0, 1.0)[:, None, :]


# The release path of a run on a tensor: contractions, and in the last step scores, with noise column by column.
#
# The pair of :func:`instances` has d = 1: there every u is 1 or -1, a run asks the same of the tensor in all its
# columns and steps, and the diagonal entry that changes attains the sensitivity in each of them.


class TensorPath(ReleasePath):
    """As :class:`ReleasePath`; ``mechanism`` is a ``TensorGaussian`` of as many columns as the instance has."""

    def step(self, world: str, blocks: Values, keys: Sequence[Entropy], step: int, together: bool) -> Transcript:
        """The release of every column; all of them have the same noise, as d = 1."""
        scores = step == self.steps
        queries = {
            name: self._product(replace(operator, scores=scores), blocks) for name, operator in self.operators.items()
        }
        mechanism = replace(self.mechanism, scores=scores)
        if together:
            value = self._side_by_side(mechanism, queries[world], blocks[0], keys[0], step)
        else:
            value = np.stack([
                mechanism.release(query, block=block, entropy=key, step=step)
                for query, block, key in zip(queries[world], blocks, keys, strict=True)
            ])  # fmt: skip
        noise = np.array([mechanism.noise_stddev(block) for block in blocks])
        here, there = (np.float64(self.grid) * queries[name] for name in ("here", "there"))
        return [Publication(step=step, value=value, here=here, there=there, noise=noise, grid=self.grid)]

    @staticmethod
    def _side_by_side(mechanism: object, query: np.ndarray, block: np.ndarray, key: Entropy, step: int) -> Values:
        """One call of the mechanism for each column, with that column of all runs."""
        each, columns = mechanism.each(block), block.shape[1]  # type: ignore[attr-defined]
        released = [
            each.release(query[:, :, at].T, block=block[:, [at]], entropy=key, step=(step - 1) * columns + at + 1).T
            for at in range(columns)
        ]
        return np.stack(released, axis=2)

    def following(self, released: Values, asked: Values) -> Values:
        """The columns over their norms; where all of a column was rounded to zero, the one that was asked of."""
        return np.stack([unit_columns(*each) for each in zip(released, asked, strict=True)])


# The release of a whole symmetric matrix: once, so that a run has one step, and all runs ask the same.


class WholePath(ReleasePath):
    """As :class:`ReleasePath`; ``mechanism`` is a ``SymmetricGaussian``, and every run has a key of its own.

    Diagonal and upper triangle are publications of their own, as their noise has sizes of its own; so is the lower
    triangle, where it is not the same again.
    """

    def run(
        self, world: str, keys: Sequence[Entropy], runs: int, *, together: bool = True, seed: int = 0
    ) -> Transcript:
        block = np.eye(self.instance.d)
        products = {name: self._product(operator, block[None])[0] for name, operator in self.operators.items()}
        each = keys if len(keys) == runs else [Entropy.open(keys[0].path, bound_to=f"run {i}") for i in range(runs)]
        released = np.stack([
            self.mechanism.release(products[world], block=block, entropy=key, step=1) for key in each
        ])  # fmt: skip
        on, off = self.mechanism.noise_stddev(block), self.mechanism.off_diagonal_stddev(block)
        places = [(np.diag_indices(len(block)), on), (np.triu_indices(len(block), 1), off)]
        if (released != released.transpose(0, 2, 1)).any():
            places.append((np.tril_indices(len(block), -1), off))
        return [self._published(released, products, place, stddev) for place, stddev in places if len(place[0])]

    def _published(
        self, released: Values, products: dict[str, Integers], place: tuple[NDArray[Any], ...], stddev: float
    ) -> Publication:
        """Entries of the matrix at some places, in all runs."""
        here, there = (np.float64(self.grid) * products[name][place] for name in ("here", "there"))
        shape = (len(released), len(place[0]))
        return Publication(
            step=1,
            value=released[:, place[0], place[1]],
            here=np.broadcast_to(here, shape),
            there=np.broadcast_to(there, shape),
            noise=np.full(len(released), stddev),
            grid=self.grid,
        )
