"""The jackknife over groups of rows: what is found without each of them, from their Grams, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from npmdask.numerics.sampling_errors import Groups, jackknifed, mixed_groups, student_factor
from npmdask.runs.gram_bootstrap import APART, interval_lines, plain_intervals


@dataclass(frozen=True, kw_only=True)
class Jackknife:
    """
    Hold what leaving out a group of rows does to leading values.

    Nothing is claimed of single values of a ``mixed`` group: their intervals are not numbers.

    Attributes
    ----------
    values : numpy.ndarray, shape (k,)
        Of all rows: eigenvalues of the mean of x x^T (of the covariance, where it is centred), or singular values.
    standard_errors : numpy.ndarray, shape (k,)
        Of the values, by the delete-a-group jackknife.
    bias : numpy.ndarray, shape (k,)
        Estimate of it; the values less this are corrected.
    value_intervals : numpy.ndarray, shape (2, k)
        Ends of confidence intervals.
    mixed : tuple of tuple of int
        Components, from 0, that sampling mixes; k stands for the first one that was not asked for.
    left_out : numpy.ndarray, shape (groups, k)
        Values without each group, in the order of ``groups``.
    groups : tuple of str
        Their names.
    confidence : float
        Nominal coverage.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((4096, 5)) * [5, 3, 1, 1, 1]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = npmdask.gram(rows, folder + "/G", kind="samples", by_chunks=1)
    ...     found = store.jackknife(2)
    >>> len(found.groups), found.standard_errors.shape, found.value_intervals.shape
    (4, (2,), (2, 2))
    """

    values: np.ndarray
    standard_errors: np.ndarray
    bias: np.ndarray
    value_intervals: np.ndarray
    mixed: Groups
    left_out: np.ndarray
    groups: tuple[str, ...]
    confidence: float

    @classmethod
    def of(
        cls,
        whole: np.ndarray,
        left_out: np.ndarray,
        sizes: np.ndarray,
        groups: tuple[str, ...],
        k: int,
        confidence: float,
    ) -> Self:
        """From k values or one more, of all rows and (groups x values) without each group of so many rows."""
        bias, errors = jackknifed(whole, left_out, sizes)
        found = mixed_groups(whole, APART * errors)
        mixed = tuple(tuple(i for i in group if i <= k) for group in found if group[0] < k)
        logs, left_logs = (np.log(np.maximum(values, np.finfo(float).tiny)) for values in (whole, left_out))
        off, spread = jackknifed(logs, left_logs, sizes)
        half = student_factor(confidence, len(groups)) * spread
        ends = np.exp(np.stack([logs - off - half, logs - off + half]))[:, :k]
        ends[:, np.isin(np.arange(k), [i for group in mixed for i in group])] = np.nan
        return cls(
            values=whole[:k],
            standard_errors=errors[:k],
            bias=bias[:k],
            value_intervals=ends,
            mixed=mixed,
            left_out=left_out[:, :k],
            groups=groups,
            confidence=confidence,
        )

    def facts(self) -> dict[str, Any]:
        """
        Give what is known of the values, for JSON.

        Returns
        -------
        dict
            None stands for an interval that is not claimed.
        """
        lists = {name: getattr(self, name).tolist() for name in ("values", "standard_errors", "bias")}
        plain = {"mixed": self.mixed, "groups": len(self.groups), "confidence": self.confidence}
        return {**lists, "value_intervals": plain_intervals(self.value_intervals), **plain}

    def lines(self) -> list[str]:
        """
        Say the same for people.

        Returns
        -------
        list of str
            A line for each component, and what the intervals rest on.
        """
        return [
            *interval_lines(self.values, self.value_intervals, self.mixed),
            f"{self.confidence:.0%} intervals of the jackknife, which leaves out one of {len(self.groups)} groups of "
            "rows at a time, assuming that the groups are independent and alike",
        ]
