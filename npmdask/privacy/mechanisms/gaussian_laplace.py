"""Private noise: what may be published of a product A X.

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
from dataclasses import asdict, dataclass, field
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
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.numerics.random import Rounding
from npmdask.numerics.subspaces import Block
from npmdask.privacy.mechanisms.noise_key import Entropy, Keystream
from npmdask.privacy.mechanisms.sampler import LARGEST_SCALE, rounded_gaussian, rounded_laplace, sampler_slack
from npmdask.privacy.neighbors import Relation, TensorRelation

SMALLEST_SCALE = 1 << 10  # in units of the grid: rounding up to an integer then costs less than 0.1 % of noise
LEADING_BITS = 20  # of a scale: at most 2e-6 more noise
FARTHEST = 64  # scales; noise beyond (1e-27 per entry) would wrap around, which is still private
SAFELY = 1 + 1e-12  # more than what the rounding of a charge computed from a multiplier can lose
CALIBRATIONS = ("exact", "paper")


@dataclass(frozen=True, kw_only=True)
class PrivateMechanism(ABC):
    """What Gaussian and Laplace noise have in common.

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
        require_64_bits(product, scale)
        noise = self._draw(scale, product.shape, entropy.keystream(*self._purpose(product.shape, block, step, scale)))
        return (product + noise) * float(self.rounding.grid)

    @property
    def release_kind(self) -> str:
        return "product"

    def event(self) -> dict[str, Any]:
        """What a ledger writes down: public, and all that the noise depends on besides X, the step and the key."""
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
        """What all releases cost together, whatever the blocks will be: within the budget."""
        return self._charge() + sampler_slack()

    def sensitivity(self, block: Block, *, rows: int | None = None) -> float:
        """How far what is released can move at this X, arithmetic included, rounded up; in units of the product.

        ``rows``: of the product, where they are not those of the block (a rectangular A).
        """
        exact = self.relation.sensitivity(block, self.norm, rows=rows, image_norm=self.image_norm)
        added = self.rounding.l2 if self.norm == "l2" else self.rounding.l1
        return _up(_up(exact * _up(1.0 + self.rounding.relative)) + added)

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
        scale = _up(self.multiplier * self.sensitivity(block, rows=rows))
        if self.calibration == "paper":
            scale = max(scale, _up(self._paper_scale(block, rows or len(block))))
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
        return leading_bits(math.ceil(units))

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


def require_64_bits(product: np.ndarray, scale: int) -> None:
    """The message must not say how large the product is: that is not public."""
    if max(int(product.max()), -int(product.min())) + FARTHEST * scale >= 1 << 63:
        raise RefusedError("product and noise together could leave 64 bits: use a coarser grid or a smaller clip_norm")


def leading_bits(units: int) -> int:
    """Rounded up to 20 leading bits. A norm that another processor rounds otherwise must not change a scale: a release
    that is done again there would get other noise."""
    shift = max(units.bit_length() - LEADING_BITS, 0)
    return -(-units >> shift) << shift


def _up(value: float) -> float:
    """Above what was rounded to ``value``."""
    return math.nextafter(value, math.inf)
