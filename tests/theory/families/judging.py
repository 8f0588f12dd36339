"""What an answer states, held against NumPy in longdouble and LAPACK in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from npmdask.core.certificates.bounds import SEEN

EPS = float(np.finfo(float).eps)
LAPACK = 4.0  # times eps sqrt(n + d): the error of its singular values, as a share of the largest


class Unasked(Exception):
    """The draw asks nothing that has one answer: say why."""


class Problem:
    """A drawn problem, a frozen dataclass."""

    def entries(self) -> int:
        """Its size, by which the smallest problem that shows a fault is found."""
        return sum(np.size(getattr(self, one.name)) for one in fields(self))  # type: ignore[arg-type]

    def __str__(self) -> str:
        shown = ((one.name, getattr(self, one.name)) for one in fields(self))  # type: ignore[arg-type]
        return ", ".join(
            f"{name} {value.dtype} {value.shape}" if isinstance(value, np.ndarray) else f"{name}={value!r:.200}"
            for name, value in shown
        )


@dataclass
class Findings:
    """What one problem showed.

    ``faults``: what was stated and is not so. ``bounds``: of each answer its bound and its error, as shares of the
    largest value; NaN for the bound of an answer that has none. ``claims``: statements that hold with a probability,
    by name: that probability, and whether this one held.
    """

    faults: list[str] = field(default_factory=list)
    bounds: list[tuple[float, float]] = field(default_factory=list)
    claims: list[tuple[str, float, bool]] = field(default_factory=list)

    def expect(self, held: Any, what: str, *facts: Any) -> None:
        if not bool(held):
            self.faults.append(" ".join([what, *(_short(fact) for fact in facts)]))

    def close(self, what: str, found: Any, truth: Any, within: float, size: float | None = None) -> None:
        """``found`` may differ from ``truth`` by ``within`` times ``size`` (by default the largest entry of truth)."""
        found, truth = np.asarray(found), np.asarray(truth)
        if found.shape != truth.shape:
            self.faults.append(f"{what}: shape {found.shape} for {truth.shape}")
            return
        known = np.isfinite(truth)
        if (np.isfinite(found) != known).any():
            self.faults.append(f"{what}: not finite in other places than the truth")
        elif known.any():
            size = float(np.abs(truth[known]).max()) if size is None else size
            off = float(np.abs(found[known] - truth[known]).max())
            self.expect(off <= within * size, what, "off by", off, "of", size, "allowed share", within)

    def answer(self, bound: float | None, error: float, largest: float) -> None:
        """Count an answer: what it states about its values (None or infinite: nothing), and the truth."""
        share = 1 / largest if largest > 0 else 1.0
        bound = math.nan if bound is None or math.isinf(bound) else bound
        self.bounds.append((bound * share, error * share))


def _short(fact: Any) -> str:
    return f"{fact:.4g}" if isinstance(fact, float | np.floating) else str(fact)[:160]


@dataclass(frozen=True)
class Prepared:
    """``A = diag(u)^(1/2) (X - mean) diag(1 / deviation) diag(v)^(1/2)``, computed in longdouble.

    ``rows_before``: A before the weights of rows, whose product with a basis are scores. ``rounding``: the norm of a
    row's rounding in float64, entry by entry before the mean is subtracted: no program that reads float64 avoids it.
    """

    matrix: np.ndarray
    rows_before: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    weight: float
    rounding: float

    @property
    def is_noise(self) -> bool:
        """Whether nothing is left but the rounding of what was subtracted: constant data, which have no components."""
        counted = self.rows_before[(self.matrix != 0).any(axis=1)]  # rows of weight 0 do not
        return bool(np.abs(counted).max(initial=0) <= 64 * self.rounding)

    def of_scores(self, *, scaled: bool) -> float:
        """Rounding of scores. A deviation is known to that of the data about the mean, in units of the deviation."""
        about = 16 * self.rounding * (1 + np.sqrt(len(self.rows_before)) * scaled)
        return float(about + scaled * self.rounding**2 / EPS)


def prepared(
    x: np.ndarray,
    *,
    center: bool,
    scale: bool = False,
    rows: np.ndarray | None = None,
    columns: np.ndarray | None = None,
    observed: np.ndarray | None = None,
) -> Prepared:
    """What is asked of X (n x d), with weights of rows and columns.

    Where ``observed`` is False there is a gap: it is at the mean, which is over what is observed, as deviations are.
    """
    exact = np.clongdouble if np.iscomplexobj(x) else np.longdouble
    there = np.ones(x.shape, bool) if observed is None else observed
    values = np.where(there, x, 0).astype(exact)
    u = np.ones(len(x), np.longdouble) if rows is None else np.asarray(rows, np.longdouble)
    v = np.ones(x.shape[1], np.longdouble) if columns is None else np.asarray(columns, np.longdouble)
    mean, deviation = moments(values, u, there)
    divisor = np.where(deviation > 1e-14 * np.abs(mean), deviation, 1) if scale else np.ones(x.shape[1])
    values = np.where(there, values, mean)
    away = (values - mean if center else values) / divisor * np.sqrt(v)
    largest = np.maximum(np.abs(values).max(axis=0, initial=0), np.abs(mean) if center else 0)
    return Prepared(
        matrix=_float(away * np.sqrt(u)[:, None]),
        rows_before=_float(away),
        mean=_float(mean),
        deviation=_float(divisor),
        weight=float(u.sum()),
        rounding=EPS * float(np.linalg.norm((largest / divisor * np.sqrt(v)).astype(float))),
    )


def moments(values: np.ndarray, u: np.ndarray, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each column over what is ``there``, with weights u of rows; 0 where nothing is."""
    weights = u[:, None] * there
    total = weights.sum(axis=0)
    total = np.where(total > 0, total, 1)
    mean = (weights * values).sum(axis=0) / total
    return mean, np.sqrt((weights * np.abs(np.where(there, values - mean, 0)) ** 2).sum(axis=0) / total)


def _float(values: np.ndarray) -> np.ndarray:
    return values.astype(complex if np.iscomplexobj(values) else float)


@dataclass(frozen=True)
class Question:
    """The leading values and vectors of ``matrix``: of its covariances (samples), singular, or eigenvalues (symmetric).

    ``weight``: of all rows, by which samples are divided. ``blur``: a share of the largest value by which the truth is
    not known, or not one number, beside LAPACK's rounding: give the reason where it is not 0.
    """

    matrix: np.ndarray
    kind: str
    weight: float = 1.0
    blur: float = 0.0

    @cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Singular values or eigenvalues by falling size, of A / f; all right vectors; f, so that nothing overflows."""
        factor = float(np.abs(self.matrix).max(initial=0)) or 1.0
        a = self.matrix / factor
        if self.kind == "symmetric":
            values, vectors = np.linalg.eigh(a)
            order = np.argsort(-np.abs(values), kind="stable")
            return values[order], vectors[:, order], factor
        d = a.shape[1]
        _, values, adjoint = np.linalg.svd(a, full_matrices=a.shape[0] < d)
        return np.append(values, np.zeros(d - len(values))), adjoint.conj().T, factor

    @property
    def singular(self) -> np.ndarray:
        """By size, of A over its largest entry."""
        return np.asarray(np.abs(self._factors[0]))

    @property
    def vectors(self) -> np.ndarray:
        return self._factors[1]

    @cached_property
    def values(self) -> np.ndarray:
        """All d of them, by falling size."""
        values, _, factor = self._factors
        return np.asarray(values**2 * (factor**2 / self.weight) if self.kind == "samples" else values * factor)

    @cached_property
    def largest(self) -> float:
        return float(np.abs(self.values[0]))

    @property
    def slack(self) -> float:
        return (LAPACK * EPS * math.sqrt(sum(self.matrix.shape)) + self.blur) * self.largest

    @property
    def total(self) -> float:
        """Of all variances, or squares."""
        return float((self.values if self.kind == "samples" else np.abs(self.values) ** 2).sum())

    def left_over(self, basis: np.ndarray) -> float:
        """The largest value of what the basis does not hold."""
        factor = self._factors[2]
        a = self.matrix / factor
        rest = a - basis @ (basis.conj().T @ a) if self.kind == "symmetric" else a - (a @ basis) @ basis.conj().T
        largest = float(np.linalg.norm(rest, 2))
        return largest**2 * factor**2 / self.weight if self.kind == "samples" else largest * factor


def stated(certificate: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The level of a certificate that the sentence is made of; empty where there is none."""
    levels = (certificate or {}).get("levels", [])
    ground = (certificate or {}).get("ground")
    return next((one for one in levels if one["ground"] == ground), {})


def largest_bound(certificate: Mapping[str, Any] | None) -> float | None:
    """What is stated about the error of every value, or None where that of one is not bounded."""
    bounds = stated(certificate).get("value_errors")
    return None if not bounds or any(one is None for one in bounds) else float(max(bounds))


def judge(found: Findings, solution: Any, question: Question) -> None:
    """Hold values, basis and every level of the certificate of a solution against the truth."""
    values, basis = np.asarray(solution.values, float), np.asarray(solution.basis)
    k = len(values)
    errors = np.abs(np.abs(values) - np.abs(question.values[:k]))
    found.answer(largest_bound(solution.certificate), float(errors.max(initial=0)), question.largest)
    found.expect(np.isfinite(values).all(), "values are not finite:", values)
    off = np.abs(basis.conj().T @ basis - np.eye(k)).max(initial=0)
    found.expect(off < 1e-8, "vectors are not orthonormal by", off)
    if solution.converged and solution.certificate is None:
        far = float(errors.max() / (question.largest or 1))
        found.expect(far <= 1e-6, "converged without a certificate, off by", far)
    for level in (solution.certificate or {}).get("levels", []):
        likely = level["ground"] == SEEN  # for 99 % of starts, it says; of these problems for nearly all
        shown = Findings() if likely else found
        _hold(shown, level, errors, basis, question)
        if likely:
            found.claims.append(("bounds where none was missed", 0.9999, not shown.faults))


def _hold(found: Findings, level: Mapping[str, Any], errors: np.ndarray, basis: np.ndarray, q: Question) -> None:
    ground, k, sizes = level["ground"], len(errors), np.abs(q.values)
    top = q.largest or 1.0

    def at_most(what: str, truth: float, bound: float) -> None:
        found.expect(truth <= bound + q.slack, f"{ground}: {what}", truth / top, "for a bound of", bound / top)

    for i, bound in enumerate(_each(level, "value_errors", k)):
        if bound is not None:
            at_most(f"error of value {i}", errors[i], bound)
    for i, bound in enumerate(_each(level, "upper", k)):
        if bound is not None:
            at_most(f"true value {i} above its upper bound:", sizes[i], bound)
    for i, bound in enumerate(_each(level, "lower", k)):
        if bound is not None:
            at_most(f"lower bound of value {i} above the true one:", bound, sizes[i])
    if level.get("following") is not None and k < len(sizes):
        at_most("the value after the last,", sizes[k], level["following"])
    if level.get("low_rank_error") is not None:
        at_most("error of the low rank", q.left_over(basis), level["low_rank_error"] * (1 + 1e-9))
    if level.get("sine") is not None and level["sine"] < 1 and k < len(sizes):
        truth = q.vectors[:, :k]
        sine = float(np.linalg.norm(truth - basis @ (basis.conj().T @ truth), 2))
        gap = q.singular[k - 1] - q.singular[k]
        known = math.inf if gap <= 0 else q.slack / top * q.singular[0] / gap  # LAPACK's vectors turn as well
        found.expect(sine <= level["sine"] * 1.001 + known, f"{ground}: sine", sine, "for", level["sine"])


def _each(level: Mapping[str, Any], name: str, k: int) -> Iterable[float | None]:
    return (level.get(name) or [None] * k)[:k]
