"""Components of a covariance that a private run released."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.checkpoint.store import folder_of, not_finished
from npmdask.core.runs.solution import WITHOUT_PASS, Solution
from npmdask.core.storage.bundle import read_bundle
from npmdask.privacy.matrix_release import components_of_covariance


def private_components(store: str | Path, k: int, *, columns: Sequence[int] | None = None) -> Solution:
    """
    Get the leading components of a covariance that a private run released: any number, of any columns.

    This is post-processing of that one release. The data, the ledger and the key of the noise are not touched, and
    nothing is charged: the run has already paid for everything that its noisy covariance reveals.

    Parameters
    ----------
    store : str or Path
        Folder of a finished private run with ``algorithm="covariance"``.
    k : int
        How many components.
    columns : sequence of int, optional
        Numbers of the columns to analyse, counted from 0; by default all.

    Returns
    -------
    Solution
        Its basis has one row for each of these columns, in their order; it also has the statement of the release.

    Raises
    ------
    BadInputError
        No finished run, one that released products instead, or columns that were not released.

    See Also
    --------
    top_k : With another k and the store of the finished run, the same for all columns.

    Notes
    -----
    Dwork, Talwar, Thakurta and Zhang, Analyze Gauss, STOC 2014, Algorithm 1.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask
    >>> from npmdask.cli.main import main
    >>> rows = np.random.default_rng(0).standard_normal((20000, 6)) * [0.5, 0.3, 0.1, 0.1, 0.1, 0.1]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     people, ledger = f"{folder}/people.zarr", f"{folder}/ledger.sqlite"
    ...     np.save(f"{folder}/people.npy", rows)
    ...     assert not main(["ingest", f"{folder}/people.npy", people, "--quiet"])
    ...     assert not main(
    ...         ["ledger", "grant", "people", people, "--relation", "record_replace", "--clip-norm", "1.5"]
    ...         + ["--epsilon", "1", "--delta", "1e-8", "--ledger", ledger]
    ...     )
    ...     promise = npmdask.Privacy(
    ...         epsilon=1,
    ...         delta=1e-8,
    ...         neighboring_relation="record_replace",
    ...         clip_norm=1.5,
    ...         ledger=ledger,
    ...         dataset="people",
    ...     )
    ...     two = npmdask.top_k(people, 2, privacy=promise, algorithm="covariance", store=f"{folder}/run")
    ...     five = npmdask.private_components(f"{folder}/run", 5)
    ...     some = npmdask.private_components(f"{folder}/run", 1, columns=[1, 2, 3])  # doctest: +ELLIPSIS
    /...
    >>> bool(np.allclose(five.basis[:, :2], two.basis)), bool(some.basis[0, 0] > 0.9)
    (True, True)
    """
    path = folder_of(store)
    if not (path / "result").is_dir():
        raise not_finished(path)
    arrays, meta = components_of_covariance(*read_bundle(path / "result"), k, columns)
    statement = meta["statement"]
    return Solution(
        basis=arrays["basis"],
        values=arrays["values"],
        residual_norms=arrays["residual_norms"],
        outcome=Outcome(**meta["outcome"]),
        steps=len(meta["history"]),
        **WITHOUT_PASS,
        total_data_passes=meta["total_data_passes"],
        store=str(path),
        fingerprint=None,
        warnings=tuple(statement["warnings"]),
        target_rank=k,
        value_stddevs=arrays["value_stddevs"],
        statement=statement,
        assurance=meta["assurance"],
    )
