"""Private noise: what may be published of a product A X; of a symmetric matrix and of a tensor further down.

    Y_l = A X_{l-1} + G_l,   scale_l = multiplier * sensitivity(X_{l-1})

The product arrives as integers on a public grid; the noise is the nearest integers to exact Gaussian or Laplace
deviates (:mod:`npmdask.privacy.mechanisms.sampler`), so what is released is a point of the grid whatever the data are:
no low bits tell one data set from another. Every float that decides how much noise is drawn is rounded up. The noise is
a pseudo-random function of the secret key and of everything public about the release: the same release again is the
same bits; another X, step, scale or configuration gets unrelated noise.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from npmdask.accounting import (
    Budget,
    Charge,
    gaussian_charge,
    gaussian_multiplier,
    laplace_charge,
    laplace_multiplier,
    paper_laplace_scale,
    paper_stddev,
    paper_tensor_stddev,
    require_sound,
)
from npmdask.core.numerics.random import Rounding
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.privacy.mechanisms.noise_key import Entropy, Keystream
from npmdask.privacy.mechanisms.sampler import LARGEST_SCALE, rounded_gaussian, rounded_laplace, sampler_slack
from npmdask.privacy.neighbors import Relation, TensorRelation, up

SMALLEST_SCALE = 1 << 10  # in units of the grid: rounding up to an integer then costs less than 0.1 % of noise
LEADING_BITS = 20  # of a scale: at most 2e-6 more noise
FARTHEST = 64  # scales; noise beyond (1e-27 per entry) would wrap around, which is still private
SAFELY = 1 + 1e-12  # more than what the rounding of a charge computed from a multiplier can lose
CALIBRATIONS = ("exact", "paper")


@dataclass(frozen=True, kw_only=True)
class PrivateMechanism(ABC):
    """Base of the Gaussian and the Laplace mechanism.

    Parameters
    ----------
    relation : which data sets must be indistinguishable, and how far A X moves between two of them.
    budget : the promise for all releases together.
    releases : how many there are; a public number, fixed in advance.
    rounding : what an integer of the product is worth, and what finite arithmetic adds to the sensitivity.
    calibration : "exact" accounting, or the formula of the "paper" (refused where exact accounting finds it unsound).
    image_norm : what the images X^T a of records are clipped to in this release, if they are: it lowers the noise.
    public_rule : what is done to records before they are clipped (:meth:`npmdask.privacy.public_rule.PublicRule.spec`).
        It changes no number here, but other records get unrelated noise.

    Attributes
    ----------
    multiplier : every release has at least this scale (stddev of Gaussian noise) per unit of sensitivity.

    Raises
    ------
    BadInputError
        Numbers that make no sense, delta = 0 for Gaussian noise, a grid that is not a power of two.
    RefusedError
        The formula of the paper does not keep the budget.
    """

    relation: Relation
    budget: Budget
    releases: int
    rounding: Rounding
    calibration: str = "exact"
    image_norm: float | None = None
    public_rule: dict[str, Any] = field(default_factory=dict, hash=False)
    multiplier: float = field(init=False)

    name: ClassVar[str]
    norm: ClassVar[Literal["l2", "l1"]]

    def __post_init__(self) -> None:
        _require_rounding(self.rounding)
        if self.calibration not in CALIBRATIONS:
            known = closest(str(self.calibration), list(CALIBRATIONS))
            raise BadInputError(f"unknown calibration {self.calibration!r}: {known}")
        exact = self.calibration == "exact"
        object.__setattr__(self, "multiplier", self._exact_multiplier() if exact else self._paper_multiplier())

    def release(self, product: np.ndarray, *, block: Block, entropy: Entropy, step: int) -> Block:
        """``(product + noise) * grid``: float64, of the shape of ``product``.

        Parameters
        ----------
        product : int64, two-dimensional: A X in units of the grid. All other arguments but the key are public.
        block : X, d x p: exactly what was multiplied, and what the sensitivity is taken from.
        entropy : the secret key of the run.
        step : which release this is, 1..releases.

        Raises
        ------
        BadInputError
            A product that is not int64, a block that is not finite, a seed instead of a key.
        RefusedError
            A step that is not paid for, a scale that the grid cannot carry, a sum that could leave 64 bits: all of them
            before any noise is drawn.
        """
        if not isinstance(entropy, Entropy):
            raise BadInputError(f"private noise is drawn from an Entropy (a secret key), not from {type(entropy)}")
        if isinstance(step, bool) or step not in range(1, self.releases + 1):
            raise RefusedError(f"step {step} is not one of the {self.releases} releases that were charged")
        require_integers(product)
        scale = self._grid_scale(block, len(product))
        _require_64_bits(product, scale)
        noise = self._draw(scale, product.shape, entropy.keystream(*self._purpose(product.shape, block, step, scale)))
        return (product + noise) * float(self.rounding.grid)

    @property
    def release_kind(self) -> str:
        return "product"

    def event(self) -> dict[str, Any]:
        """Return the entry for a ledger: public, and all that the noise depends on besides X, the step and the key."""
        return {
            "mechanism": self.name,
            "private": True,
            "relation": self.relation.spec(),
            "budget": self.budget.as_dict(),
            "releases": int(self.releases),
            "rounding": {name: float(value) for name, value in asdict(self.rounding).items()},
            "calibration": self.calibration,
            "multiplier": self.multiplier,
            **({} if self.image_norm is None else {"image_norm": float(self.image_norm)}),
            **({"public_rule": self.public_rule} if self.public_rule else {}),
        }

    def charge(self) -> Charge:
        """Return the cost of all releases together, whatever the blocks will be: within the budget."""
        return self._charge() + sampler_slack()

    def sensitivity(self, block: Block, *, rows: int | None = None) -> float:
        """Bound how far a release can move at this X, arithmetic included, rounded up; in units of the product.

        ``rows``: of the product, where they are not those of the block (a rectangular A).
        """
        exact = self.relation.sensitivity(block, self.norm, rows=rows, image_norm=self.image_norm)
        added = self.rounding.l2 if self.norm == "l2" else self.rounding.l1
        return _next_up(_next_up(exact * _next_up(1.0 + self.rounding.relative)) + added)

    def noise_stddev(self, block: Block, *, rows: int | None = None) -> float:
        """Standard deviation of the noise on every entry of the product with ``block``: public."""
        return self.stddev_per_scale * self._grid_scale(block, rows) * float(self.rounding.grid)

    @property
    def stddev(self) -> float:
        """Standard deviation for a sensitivity of 1. What a release gets depends on X: :meth:`noise_stddev`."""
        return self.stddev_per_scale * self.multiplier

    @property
    @abstractmethod
    def stddev_per_scale(self) -> float:
        """Standard deviation of noise of scale 1."""

    def _grid_scale(self, block: Block, rows: int | None) -> int:
        """Scale of the noise in units of the grid, rounded up: at least multiplier * sensitivity."""
        scale = _next_up(self.multiplier * self.sensitivity(block, rows=rows))
        if self.calibration == "paper":
            scale = max(scale, _next_up(self._paper_scale(block, rows or len(block))))
        units = scale / self.rounding.grid  # exact: a power of two
        if not SMALLEST_SCALE <= units <= LARGEST_SCALE:
            raise RefusedError(
                f"noise of scale {scale:.3g} is {units:.3g} times the grid ({self.rounding.grid:.3g}) of the product; "
                "it must be 2^10 to 2^48 times: use a "
                + (
                    "smaller epsilon, or a finer grid"
                    if units < SMALLEST_SCALE
                    else "larger epsilon, or a coarser grid"
                )
            )
        return _leading_bits(math.ceil(units))

    def _purpose(self, shape: tuple[int, ...], block: Block, step: int, scale: int) -> tuple[str | int | bytes, ...]:
        public = np.ascontiguousarray(block, dtype="<f8")
        digest = hashlib.sha256(json.dumps([shape, public.shape]).encode() + b"\0" + public.tobytes()).digest()
        return "noise", json.dumps(self.event(), sort_keys=True), int(step), digest, scale

    @abstractmethod
    def _exact_multiplier(self) -> float: ...
    @abstractmethod
    def _paper_multiplier(self) -> float: ...
    @abstractmethod
    def _paper_scale(self, block: Block, rows: int) -> float: ...
    @abstractmethod
    def _charge(self) -> Charge: ...
    @abstractmethod
    def _draw(self, scale: int, shape: tuple[int, ...], stream: Keystream) -> np.ndarray: ...


@dataclass(frozen=True, kw_only=True)
class PrivateGaussian(PrivateMechanism):
    """Gaussian noise: exact Gaussian differential privacy over all releases. Parameters: :class:`PrivateMechanism`.

    ``calibration = "paper"``: at least the stddev of Hardt and Price, and at least what the charge (the worst case of
    their formula over all X and p) needs at this X.
    """

    name: ClassVar[str] = "private-gaussian"
    norm: ClassVar[Literal["l2", "l1"]] = "l2"
    stddev_per_scale: ClassVar[float] = 1.0

    def _exact_multiplier(self) -> float:
        return gaussian_multiplier(self.budget, self.releases, sampler_slack())

    def _paper_multiplier(self) -> float:
        worst = require_sound(self.relation.name, 1, self.releases, self.budget, "gaussian", sampler_slack())
        return math.sqrt(self.releases / worst.mu_squared) * SAFELY

    def _paper_scale(self, block: Block, rows: int) -> float:
        if isinstance(self.relation, TensorRelation):
            scores, unit = self.relation.scores, self.relation.unit
            return paper_tensor_stddev(block, self.releases, self.budget, scores=scores, unit=unit)
        return paper_stddev(
            self.relation.name, block, block.shape[1], self.releases, self.budget, unit=self.relation.unit
        )

    def _charge(self) -> Charge:
        return gaussian_charge(self.multiplier, self.releases)

    def _draw(self, scale: int, shape: tuple[int, ...], stream: Keystream) -> np.ndarray:
        return rounded_gaussian(scale, shape, stream)


@dataclass(frozen=True, kw_only=True)
class PrivateLaplace(PrivateMechanism):
    """Laplace noise: pure epsilon, delta = 0. Parameters: :class:`PrivateMechanism`; its scale is a Laplace scale."""

    name: ClassVar[str] = "private-laplace"
    norm: ClassVar[Literal["l2", "l1"]] = "l1"
    stddev_per_scale: ClassVar[float] = math.sqrt(2)

    def _exact_multiplier(self) -> float:
        return laplace_multiplier(self.budget, self.releases, sampler_slack())

    def _paper_multiplier(self) -> float:
        worst = require_sound(self.relation.name, 1, self.releases, self.budget, "laplace", sampler_slack())
        return self.releases / worst.epsilon * SAFELY

    def _paper_scale(self, block: Block, rows: int) -> float:
        return paper_laplace_scale(rows, block.shape[1], self.releases, self.budget, unit=self.relation.unit)

    def _charge(self) -> Charge:
        return laplace_charge(self.multiplier, self.releases)

    def _draw(self, scale: int, shape: tuple[int, ...], stream: Keystream) -> np.ndarray:
        return rounded_laplace(scale, shape, stream)


def _require_rounding(rounding: Rounding) -> None:
    if not 0 < rounding.grid < math.inf or math.frexp(rounding.grid)[0] != 0.5:
        raise BadInputError(f"the grid of a product must be a power of two, not {rounding.grid!r}")
    for name in ("relative", "l2", "l1"):
        if not 0 <= getattr(rounding, name) < math.inf:
            raise BadInputError(f"rounding.{name} = {getattr(rounding, name)!r} must be a number >= 0")


def require_integers(product: np.ndarray) -> None:
    if not isinstance(product, np.ndarray) or product.dtype != np.int64 or product.ndim != 2 or not product.size:
        found = f"{product.dtype} {product.shape}" if isinstance(product, np.ndarray) else type(product).__name__
        raise BadInputError(f"private noise is added to a block of int64 (units of a grid), not to {found}")


def _require_64_bits(product: np.ndarray, scale: int) -> None:
    """The message must not say how large the product is: that is not public."""
    if max(int(product.max()), -int(product.min())) + FARTHEST * scale >= 1 << 63:
        raise RefusedError("product and noise together could leave 64 bits: use a coarser grid or a smaller clip_norm")


def _leading_bits(units: int) -> int:
    """Rounded up to 20 leading bits. A norm that another processor rounds otherwise must not change a scale: a release
    that is done again there would get other noise."""
    shift = max(units.bit_length() - LEADING_BITS, 0)
    return -(-units >> shift) << shift


def _next_up(value: float) -> float:
    """Above what was rounded to ``value``."""
    return math.nextafter(value, math.inf)


# Private noise on a whole symmetric matrix, once: what is released is A + Z (Analyze Gauss).
#
#     Z_ii ~ N(0, s^2),    Z_ij = Z_ji ~ N(0, s^2 / 2),    s = multiplier * max ||A - A'||_F
#
# Dwork, Talwar, Thakurta and Zhang, Analyze Gauss: optimal bounds for privacy-preserving principal component analysis,
# STOC 2014, Algorithm 1, which gives all entries on and above the diagonal the same noise. Here an entry off the
# diagonal has 1 / sqrt(2) of it, which is enough: the vector
#
#     svec(A) = (A_11, ..., A_dd, sqrt(2) A_12, sqrt(2) A_13, ...),    ||svec(A)||_2 = ||A||_F,
#
# holds all that is released, d (d + 1) / 2 numbers, and svec(Z) has the same independent noise of stddev s everywhere.
# So the release is the Gaussian mechanism on svec(A), whose sensitivity is the Frobenius norm of a change: for records
# of norm at most C it is C^2 where one is added, removed or zeroed, and where a is replaced by b
#
#     ||a a^T - b b^T||_F^2 = |a|^4 + |b|^4 - 2 (a.b)^2 <= 2 C^4,
#
# attained by a and b at a right angle, and C^4 where d = 1 leaves none. mu is that of one release, exactly (decision
# 18). Z is the Gaussian orthogonal ensemble: its law is that of Q Z Q^T for every orthogonal Q, v^T Z v has stddev s
# for every unit v, and its norm is hardly ever above 2 (s / sqrt(2)) sqrt(d).
#
# The numbers are integers on the grid of the sum, rounded deviates of the same sampler from the same secret key, as in
# every release; only one of A_ij and A_ji is drawn.


RELEASE_KIND = "symmetric matrix"  # as the history of a run has it


@dataclass(frozen=True, kw_only=True)
class SymmetricGaussian(PrivateGaussian):
    """Gaussian noise on a symmetric matrix, half of its entries drawn. Parameters: as of :class:`PrivateGaussian`.

    Raises
    ------
    BadInputError
        A budget with delta = 0.
    RefusedError
        More than one release, or the paper's calibration, which is of products.
    """

    name: ClassVar[str] = "symmetric-gaussian"

    def __post_init__(self) -> None:
        require_gaussian(self.budget, self.calibration)
        if self.releases != 1:
            raise RefusedError(f"the covariance is released once, not {self.releases} times: leave max_steps out")
        super().__post_init__()

    @property
    def release_kind(self) -> str:
        return RELEASE_KIND

    def sensitivity(self, block: Block, *, rows: int | None = None) -> float:
        """Bound how far the matrix can move in Frobenius norm, arithmetic included; ``block``: the identity."""
        exact = self.relation.of_matrix(len(block))
        return up(up(exact * up(1.0 + self.rounding.relative)) + self.rounding.l2)

    def off_diagonal_stddev(self, block: Block) -> float:
        """Standard deviation of the noise on every entry off the diagonal: public."""
        return self._off_diagonal(self._grid_scale(block, None)) * float(self.rounding.grid)

    def _off_diagonal(self, scale: int) -> int:
        """The least scale, of 20 leading bits, whose square is at least half of that of ``scale``."""
        least = math.isqrt((scale * scale + 1) // 2)
        return _leading_bits(least if 2 * least * least >= scale * scale else least + 1)

    def release(self, product: np.ndarray, *, block: Block, entropy: Entropy, step: int) -> Block:
        """``(product + noise) * grid``, exactly symmetric, of the upper triangle of ``product``.

        Parameters
        ----------
        product : int64, d x d: A in units of the grid. All other arguments but the key are public.
        block : the identity, d x d, as it was multiplied.
        entropy : the secret key of the run.
        step : 1.

        Raises
        ------
        BadInputError
            A product that is not int64 or not square, a seed instead of a key.
        RefusedError
            A step that is not paid for, a scale that the grid cannot carry, a sum that could leave 64 bits.
        """
        if not isinstance(entropy, Entropy):
            raise BadInputError(f"private noise is drawn from an Entropy (a secret key), not from {type(entropy)}")
        if isinstance(step, bool) or step != 1:
            raise RefusedError(f"step {step} is not the one release that was charged")
        require_integers(product)
        d, scale = len(product), self._grid_scale(block, None)
        if product.shape != (d, d) or block.shape != (d, d):
            raise BadInputError(
                f"a symmetric matrix is released whole: {product.shape} and {block.shape} are not d x d"
            )
        _require_64_bits(product, scale)
        released = np.zeros((d, d), np.int64)
        for scale_here, here in ((scale, np.diag_indices(d)), (self._off_diagonal(scale), np.triu_indices(d, 1))):
            count = len(here[0])
            if count:
                stream = entropy.keystream(*self._purpose((count, 1), block, step, scale_here))
                released[here] = product[here] + self._draw(scale_here, (count,), stream)
        noisy = released * float(self.rounding.grid)
        return np.asarray(noisy + np.triu(noisy, 1).T)


def require_gaussian(budget: Budget, calibration: str) -> None:
    """Refuse what a noisy symmetric matrix is not offered for: pure epsilon, and the formula of the power method."""
    if budget.delta == 0:
        raise BadInputError(
            'algorithm = "covariance" has Gaussian noise, and delta = 0 asks for pure epsilon: give a delta, or leave '
            "algorithm out, for the private power method with Laplace noise"
        )
    if calibration != "exact":
        raise RefusedError(
            'calibration = "paper" applies only to the private power method: leave it out for the covariance'
        )


# Private noise on contractions of a tensor: every column u of a block has noise of its own size.
#
#     Y_l = T(I, u_l, u_l) + G_l    or    y_l = T(u_l, u_l, u_l) + g_l,    scale_l = multiplier * sensitivity(u_l)
#
# The sensitivity follows max |u_i|, which differs from column to column by factors: noise of one size for all would be
# that of the spikiest. Each column is a release of its own, of the K = k L (R + 1) of a run (Wang and Anandkumar 2016,
# Algorithm 3), and all of them share the budget: the multiplier is sqrt(K) / mu, exactly.
#
# The L columns of a block are asked at once, and no neighbour moves all of them as far as it may move each: the sum of
# the squares (moved_l / sensitivity_l)^2 is at most W = relation.together(block) <= L, a function of the public block.
# As L / multiplier^2 is charged for it, the noise of every column may be less by sqrt(W / L), the *share* (not with
# calibration = "paper"). What arithmetic adds, r to each column, is then counted max s_l / min s_l times: with x_l =
# share s_l and r' = r max x / min x the norm of (moved_l + r) / (x_l + r') is at most sqrt(L) times max x / (max x +
# r') + r / (min x + r') <= 1 (Minkowski).


@dataclass(frozen=True, kw_only=True)
class TensorGaussian:
    """Gaussian noise on every column of a block, each by :class:`PrivateGaussian`.

    Parameters
    ----------
    relation, budget, calibration : as of :class:`PrivateGaussian`.
    columns : L, of every block. steps : blocks that a run releases, k (R + 1). Both public and fixed in advance.
    rounding : what an integer of a single column is worth, and what finite arithmetic adds to its sensitivity.
    scores : whether the block holds ``T(u, u, u)`` (1 x L) and not ``T(I, u, u)`` (d x L).

    Attributes
    ----------
    single : what one column is released by; its ``releases`` are all K = ``steps`` * ``columns`` of them.

    Raises
    ------
    BadInputError, RefusedError
        As of :class:`PrivateGaussian`.
    """

    relation: TensorRelation
    budget: Budget
    columns: int
    steps: int
    rounding: Rounding
    calibration: str = "exact"
    scores: bool = False
    single: PrivateGaussian = field(init=False)

    name: ClassVar[str] = PrivateGaussian.name
    norm: ClassVar[str] = PrivateGaussian.norm
    image_norm: ClassVar[None] = None  # which is of records

    def __post_init__(self) -> None:
        single = PrivateGaussian(
            relation=replace(self.relation, scores=self.scores),
            releases=self.steps * self.columns,
            **attributes(self, "budget", "rounding", "calibration"),
        )
        object.__setattr__(self, "single", single)

    @property
    def releases(self) -> int:
        """Blocks that are committed to the ledger; :meth:`charge` is that of all their columns."""
        return self.steps

    @property
    def multiplier(self) -> float:
        """Scale of the noise of a column for a sensitivity of 1."""
        return self.single.multiplier

    @property
    def stddev(self) -> float:
        return self.single.stddev

    @property
    def release_kind(self) -> str:
        return "scores" if self.scores else "contraction"

    def release(self, product: np.ndarray, *, block: Block, entropy: Entropy, step: int) -> Block:
        """``product`` with noise, as float64 (of the same shape); see ``PrivateGaussian.release``.

        ``product``: int64, d x L or, of scores, 1 x L. ``step``: which block this is, 1..steps.
        """
        first, each = (step - 1) * self.columns + 1, self.each(block)
        released = [
            each.release(product[:, l : l + 1], block=block[:, l : l + 1], entropy=entropy, step=first + l)
            for l in range(self.columns)  # noqa: E741 (the letter of the paper)
        ]
        return np.concatenate(released, axis=1)

    def each(self, block: Block) -> PrivateGaussian:
        """Return the mechanism that releases every single column of this public block."""
        if self.calibration == "paper" or self.columns == 1:
            return self.single
        relation = self.single.relation
        assert isinstance(relation, TensorRelation)
        moved = [relation.sensitivity(column[:, None]) for column in block.T]
        if not all(moved):
            return self.single
        share = up(up(math.sqrt(relation.together(block) / self.columns)))
        # the next power of two: last bits of a norm must not change the purpose that noise is drawn for
        spread = math.ldexp(1.0, math.frexp(max(moved) / min(moved))[1])
        rounding = replace(self.rounding, l2=self.rounding.l2 * spread)
        return replace(self.single, relation=replace(relation, share=min(share, 1.0)), rounding=rounding)

    def event(self) -> dict[str, Any]:
        """Return the entry for a ledger; ``releases`` are the K that are charged."""
        return {**self.single.event(), "columns": int(self.columns), "steps": int(self.steps)}

    def charge(self) -> Charge:
        """Return the cost of all K releases together, whatever the blocks will be: within the budget."""
        return self.single.charge()

    def noise_stddevs(self, block: Block) -> np.ndarray:
        """Standard deviation of the noise on every entry of each column (L): public."""
        rows, each = 1 if self.scores else len(block), self.each(block)
        return np.array([each.noise_stddev(column[:, None], rows=rows) for column in block.T])

    def stddevs(self, block: Block, *, scores: bool) -> np.ndarray:
        """The same of contractions, or of the scores of the columns (L), whichever this one is for."""
        return replace(self, scores=scores).noise_stddevs(block)

    def to_paper(self, block: Block, *, scores: bool) -> float:
        """The largest noise of a column over that of the paper's formula for all K releases."""
        unit, total = self.relation.unit, self.single.releases
        ours = self.stddevs(block, scores=scores)
        columns = (column[:, None] for column in block.T)
        paper = [paper_tensor_stddev(column, total, self.budget, scores=scores, unit=unit) for column in columns]
        return float(max(ours / np.array(paper)))

    def noise_stddev(self, block: Block, *, rows: int | None = None) -> float:
        """The largest of them."""
        return float(self.noise_stddevs(block).max())


# Input perturbation: every unique entry of a symmetric tensor released once, with noise; the baseline for tensors.
#
# Neighbours differ in one orbit, so in one unique entry (i <= j <= k): by e, which is ``change`` once, twice or six
# times for :class:`TensorEntry`, by how many of its indices are equal. Noise of multiplier * e for an entry of its
# kind makes the whole a single Gaussian release with a sensitivity of 1: entries with three different indices, nearly
# all of them, need a sixth of what the diagonal needs (Wang and Anandkumar 2016, section 4, take the largest for
# all).
#
# Unlike the noise of a contraction, that of an entry does not follow u; whatever is done with the noisy tensor later is
# free. A tensor is written block by block: noise is a function of the key and of the place of the block.


GRID_BITS = 20  # of an entry, below what a neighbour changes
WORD_BITS = 60  # of the largest entry in units of the grid


@dataclass(frozen=True, kw_only=True)
class EntryGaussian(PrivateGaussian):
    """Entries that neighbours change by at most ``moved``. The public block of a release says where they are."""

    moved: float

    def sensitivity(self, block: Block, *, rows: int | None = None) -> float:
        return up(self.moved + self.rounding.l2)


@dataclass(frozen=True, kw_only=True)
class EntriesGaussian:
    """Gaussian noise on every unique entry of a symmetric tensor; all of them together are one release.

    Parameters
    ----------
    relation : of tensors. budget : the promise for the noisy tensor, whatever is done with it.

    Raises
    ------
    BadInputError, RefusedError
        As of :class:`PrivateGaussian`.
    """

    relation: TensorRelation
    budget: Budget
    kinds: tuple[EntryGaussian, EntryGaussian, EntryGaussian] = field(init=False)

    name: ClassVar[str] = "input-perturbation"
    releases: ClassVar[int] = 1

    def __post_init__(self) -> None:
        grid = math.ldexp(1.0, math.floor(math.log2(self.relation.unit)) - GRID_BITS)
        grid = max(grid, math.ldexp(1.0, math.ceil(math.log2(self.relation.clip_norm)) - WORD_BITS))
        rounding = Rounding(grid=grid, l2=grid, l1=grid)  # in both worlds to the nearest
        six, three, one = (
            EntryGaussian(relation=self.relation, budget=self.budget, releases=1, rounding=rounding, moved=moved)
            for moved in self.relation.changes
        )
        object.__setattr__(self, "kinds", (six, three, one))

    @property
    def stddevs(self) -> tuple[float, float, float]:
        """Stddevs of the noise on entries with three different indices, with two equal ones, and on the diagonal."""
        nowhere = np.zeros((1, 1))
        six, three, one = (kind.noise_stddev(nowhere) for kind in self.kinds)
        return six, three, one

    def charge(self) -> Charge:
        """Return the cost of the noisy tensor."""
        return self.kinds[0].charge()

    def event(self) -> dict[str, Any]:
        """Return the entry for a ledger."""
        return {**self.kinds[0].event(), "mechanism": self.name, "stddevs": list(self.stddevs)}

    def release(self, values: np.ndarray, *, place: tuple[int, int, int], entropy: Entropy) -> np.ndarray:
        """Block ``place`` (i <= j <= k) of the noisy tensor, float64 of the shape of ``values``, exactly symmetric.

        Parameters
        ----------
        values : the block as it is stored (b_i x b_j x b_k); of mirror images within it the first one is used.
        entropy : the secret key of the run.
        """
        grid, clip = self.kinds[0].rounding.grid, self.relation.clip_norm
        bounded = np.where(np.isfinite(values), values, 0.0).astype(np.float64, copy=False)
        units = np.rint(np.clip(bounded, -clip, clip) / grid).astype(np.int64).reshape(-1)
        first, equal = unique_entries(values.shape, place)
        noisy = np.zeros(units.size)
        for number, kind in enumerate(self.kinds):
            here = np.flatnonzero((first == np.arange(units.size)) & (equal == number))
            if not here.size:
                continue
            address = np.array([[float(at)] for at in (*place, number)])
            noisy[here] = kind.release(units[here, None], block=address, entropy=entropy, step=1)[:, 0]
        return noisy[first].reshape(values.shape)


def unique_entries(shape: tuple[int, ...], place: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Find the first mirror image of every entry of a block, and how many of its indices equal another one.

    The image is a flat place within the block; the count is 0 for none, 1 where two of the three are equal, 2 for all.

    Raises
    ------
    BadInputError
        The place is not sorted, or a shape does not fit it.
    """
    i, j, k = place
    if not i <= j <= k or (i == j and shape[0] != shape[1]) or (j == k and shape[1] != shape[2]):
        raise BadInputError(f"a block of shape {shape} cannot be the unique block {place} of a symmetric tensor")
    a, b, c = (axis.ravel() for axis in np.indices(shape, dtype=np.int32))
    if i == j:
        a, b = np.minimum(a, b), np.maximum(a, b)
    if j == k:
        b, c = np.minimum(b, c), np.maximum(b, c)
    if i == j == k:
        a, b = np.minimum(a, b), np.maximum(a, b)
    first = np.ravel_multi_index((a, b, c), shape)
    equal = ((a == b) & (i == j)).astype(np.int8) + ((b == c) & (j == k))
    return first, equal
