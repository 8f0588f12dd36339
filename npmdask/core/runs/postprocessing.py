"""Questions to a finished answer beside itself: features answer them, each method by the table of its name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from npmdask.core.features import required
from npmdask.core.runs.components import TurnedComponents


@dataclass(frozen=True, kw_only=True)
class CountAdvice:
    """
    Hold what one criterion says of the number of components.

    Attributes
    ----------
    criterion : str
        Its name.
    components : int or None
        How many it advises; None where it cannot be told.
    at_least : bool
        All values that are known pass: there may be more.
    threshold : float or None
        The variance that the next component fails to exceed, where the criterion has one.
    reason : str
        What it asks and assumes, or what is missing and how to get it.
    """

    criterion: str
    components: int | None
    at_least: bool = False
    threshold: float | None = None
    reason: str

    def facts(self) -> dict[str, Any]:
        """Return the same as a dictionary, for JSON."""
        return asdict(self)


class Postprocessing:
    """Methods of a :class:`npmdask.Solution` that other rooms answer."""

    def component_counts(self, *, share: float = 0.9, noise: float | None = None) -> tuple[CountAdvice, ...]:
        """
        Ask the criteria how many components mean something, as far as k values tell it.

        Of weighted rows the share of the variance and the broken stick answer; the others need the number of rows.

        Parameters
        ----------
        share : float, default 0.9
            Of the variance, strictly between 0 and 1.
        noise : float, optional
            Variance of the noise of one entry; without it those that need it cannot be told from k values.

        Returns
        -------
        tuple of CountAdvice
            What each advises, at which threshold, and what it assumes or lacks.

        Raises
        ------
        BadInputError
            A run that is not of rows, or whose number of rows is not released.

        Notes
        -----
        Marchenko-Pastur with the margin of Johnstone (2001), Gavish and Donoho (2014), Horn (1965), Frontier (1976):
        docs/howto/components.md says where each holds.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> solution = npmdask.top_k(rows, 2, kind="samples", center=True)
        >>> [(one.criterion, one.components) for one in solution.component_counts(noise=1.0)][2]
        ('Marchenko-Pastur edge', 2)
        """
        return required("methods", "Solution.component_counts")(self, share, noise)

    def north_errors(self, *, independent_rows: int | None = None) -> tuple[np.ndarray, tuple[tuple[int, ...], ...]]:
        """
        Compute standard errors of the variances by North's rule of thumb, and which components they mix.

        Parameters
        ----------
        independent_rows : int, optional
            By default all rows; fewer, where rows depend on their neighbours, or lack values.

        Returns
        -------
        errors : numpy.ndarray, shape (k,)
            Of ``explained_variance``; of a run that was not centred of the mean squares.
        mixed : tuple of tuple of int
            Components, from 0, whose variances are within 3.5 errors: nothing is to be said of one alone. 1 of 20 equal
            pairs is farther apart. Of the last one and those that were not asked for: :meth:`mixes_with_next`.

        Raises
        ------
        BadInputError
            A run that is not of rows, or whose number of rows is not released.

        Notes
        -----
        North, Bell, Cahalan and Moeng, Monthly Weather Review 110 (1982) 699: ``value sqrt(2 / rows)``, of normal rows.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> solution = npmdask.top_k(rows, 2, kind="samples", center=True)
        >>> errors, mixed = solution.north_errors()
        >>> bool(np.allclose(errors, solution.explained_variance * np.sqrt(2 / 100))), mixed
        (True, ())
        """
        return required("methods", "Solution.north_errors")(self, independent_rows)

    def mixes_with_next(self, *, independent_rows: int | None = None) -> bool | None:
        """
        Ask whether the last component overlaps with the next one, which was not asked for.

        Of the next value the certificate has an upper bound, and the variance that is left has a mean, which is a lower
        one: where both are on one side of what North's rule needs, the answer is known.

        Parameters
        ----------
        independent_rows : int, optional
            As of :meth:`north_errors`.

        Returns
        -------
        bool or None
            Whether the two are mixed; None: not known. False, too, where there is no next one.

        Raises
        ------
        BadInputError
            A run that is not of rows, or whose number of rows is not released.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> [npmdask.top_k(rows, k, kind="samples", center=True).mixes_with_next() for k in (2, 3)]
        [False, True]
        """
        return required("methods", "Solution.mixes_with_next")(self, independent_rows)

    def rotated(
        self, method: str = "varimax", *, k: int | None = None, power: float = 4.0, normalize: bool = False
    ) -> TurnedComponents:
        """
        Rotate the components to simple structure: few large entries in each. No pass over the data.

        Rotated are the loadings, eigenvectors times the roots of their variances, so that the scores stay uncorrelated
        (varimax). A rotation mixes all k components: other k, other patterns.

        Parameters
        ----------
        method : {"varimax", "promax"}, default "varimax"
            Orthogonal, or oblique: scores may be correlated.
        k : int, optional
            How many of the leading components; all by default.
        power : float, default 4.0
            Of promax.
        normalize : bool, default False
            Kaiser's normalisation: columns that the components explain little of count as much as others.

        Returns
        -------
        TurnedComponents
            Patterns, the variance of each, the largest first, and scores.

        Raises
        ------
        BadInputError
            A method that is not known, components without variance, or a run that is not of rows.

        Notes
        -----
        Kaiser, Psychometrika 23 (1958) 187; Hendrickson and White, Brit. J. Statist. Psych. 17 (1964) 65.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> solution = npmdask.top_k(rows, 2, kind="samples", center=True)
        >>> turned = solution.rotated("varimax")
        >>> bool(np.isclose(turned.variances.sum(), solution.explained_variance.sum()))
        True
        """
        return required("methods", "Solution.rotated")(self, method, k, power, normalize)

    def aligned(self, to: Any, *, rotate: bool = False) -> TurnedComponents:
        """
        Bring the components into the order and to the signs of an earlier run of the same columns.

        Signs are arbitrary, and components of nearly equal variance change places or mix from one run to the next.

        Parameters
        ----------
        to : Solution or array_like, shape (d, j)
            The earlier answer, or its basis.
        rotate : bool, default False
            Turn the components onto the earlier ones as well (Procrustes): they span the same space and are no longer
            principal components.

        Returns
        -------
        TurnedComponents
            With ``similarity``, the cosines with the earlier components: a small one says that it is another component.

        Raises
        ------
        BadInputError
            Other columns, or with ``rotate`` another number of components.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> solution = npmdask.top_k(rows, 2, kind="samples", center=True)
        >>> earlier = -solution.basis[:, ::-1]
        >>> bool(np.allclose(solution.aligned(earlier).basis, earlier))
        True
        """
        return required("methods", "Solution.aligned")(self, to, rotate)

    def to_anndata(self, adata: Any, *, key: str = "pca") -> Any:
        """
        Write the components and the scores of all cells into an AnnData, where scanpy writes and looks for them.

        Parameters
        ----------
        adata : anndata.AnnData
            Whose X was analysed, or others of the same genes.
        key : str, default "pca"
            ``obsm["X_pca"]``, ``varm["PCs"]`` and ``uns["pca"]``; under another key as scanpy's ``key_added``: all
            three have it as their name.

        Returns
        -------
        anndata.AnnData
            The same object.

        Raises
        ------
        BadInputError
            Other genes than those of the run.
        """
        return required("methods", "Solution.to_anndata")(self, adata, key)
