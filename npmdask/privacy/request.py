"""Describe a private run: public, printable, with the names of the ``[privacy]`` table of a configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from npmdask.core.checkpoint.schema import table
from npmdask.core.storage.paths import require_no_password


@table("privacy")
@dataclass(frozen=True, kw_only=True)
class Privacy:
    """
    Ask for (epsilon, delta)-differential privacy of a run, and choose the mechanism.

    Parameters
    ----------
    epsilon : float
        The epsilon that the whole run may spend, above 0.
    delta : float
        The delta of the whole run; 0 for pure epsilon-differential privacy.
    neighboring_relation : str
        Which data sets must be indistinguishable: "record_replace", "record_zero_out" or "record_add_remove" of rows;
        "entry", "symmetric_entry", "spectral_norm" or "frobenius_norm" of a matrix; "tensor_entry" or "tensor_orbit"
        (docs/explanation/private-guarantee.md).
    clip_norm : float
        Public bound on the 2-norm of a record (row), or on the magnitude of an entry; larger ones are clipped to it.
    change : float, default 1.0
        How much an entry, or the norm, may differ between neighbours (matrix relations).
    coherence : float, optional
        Public bound on the coherence of the matrix: d times the largest squared entry of its eigenvectors, 1 to d, the
        number of columns. Noise then has a size that is fixed in advance (entry relations).
    mechanism : {"gaussian", "laplace"}, default "gaussian"
        "laplace" for pure epsilon (delta = 0).
    calibration : {"exact", "paper"}, default "exact"
        "exact" (Gaussian DP), or the formula of Hardt and Price.
    clip_images : bool, default True
        Also clip the products of records with the block of each step, for less noise (docs/decisions/0023). Not
        possible with ``calibration = "paper"``, because the paper does not.
    ledger : str, optional
        File or database URL of the budgets; by default ``NPMDASK_LEDGER`` or a file of the user.
    dataset : str, optional
        Name of the data set in the ledger; the path of the source by default.

    Raises
    ------
    BadInputError
        ``ledger`` is a URL with a password. The rest is checked before a run begins.

    Examples
    --------
    >>> import npmdask
    >>> promise = npmdask.Privacy(
    ...     epsilon=1.0, delta=1e-6, neighboring_relation="record_replace", clip_norm=1.0, dataset="patients"
    ... )
    >>> promise.name_of("patients.zarr")
    'patients'
    """

    route: ClassVar[str] = "privacy"

    epsilon: float
    delta: float
    neighboring_relation: str | None
    clip_norm: float | None
    change: float = 1.0
    coherence: float | None = None
    mechanism: Literal["gaussian", "laplace"] = "gaussian"
    calibration: Literal["exact", "paper"] = "exact"
    clip_images: bool = True
    ledger: str | None = None
    dataset: str | None = None

    def __post_init__(self) -> None:
        require_no_password(self.ledger)

    @staticmethod
    def same(name: str, one: Any, other: Any) -> bool:
        """Say whether two values of the table mean the same: a ledger may be written in many ways."""
        from npmdask.privacy.account import same_ledger

        return name == "ledger" and same_ledger(one, other)

    def name_of(self, source: str) -> str:
        """
        Name the data set in the ledger.

        Parameters
        ----------
        source : str
            Path or URL of the data.

        Returns
        -------
        str
            ``dataset``, or where the source is.
        """
        return self.dataset or (source if "://" in source else os.fspath(Path(source).absolute()))
