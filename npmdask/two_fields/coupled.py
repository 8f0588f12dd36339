"""Coupled patterns of two gridded fields, that stay on their grids (npmdask.xarray)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from npmdask.core.numerics.domains import less_one, one_of
from npmdask.core.numerics.subspaces import fix_signs
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.components import REMEDY, StoredComponents
from npmdask.errors import BadInputError, require
from npmdask.estimators.fields import FieldModel, Fields, Results, Saved, Words, found_of, picked, rotation_answers
from npmdask.missing.gaps import DROP, MEAN, REFUSE
from npmdask.rotations.turned import simple_structure
from npmdask.two_fields.answers import CoupledModes, cca, mca


class _Pairs(Saved):
    """Answers of a model of two fields: ``_models`` of each; numbers of both are those of the first."""

    _models: tuple[FieldModel, FieldModel]
    _total: float | None = None
    _weights: Any = None

    def components(self, normalized: bool = True) -> tuple[Any, ...]:
        """
        Get what the (weighted) fields are multiplied by, as maps.

        Parameters
        ----------
        normalized : bool, default True
            As they are; else times the lengths of the scores.

        Returns
        -------
        tuple of xarray.DataArray, shapes (n_modes, ...)
            Of X and of Y, on their grids; NaN where there are no data.
        """
        return tuple(side.components(normalized) for side in self._sides)

    def patterns(self) -> tuple[Any, ...]:
        """
        Get what the fields gain, in the units of their data, where a score grows by 1.

        Returns
        -------
        tuple of xarray.DataArray, shapes (n_modes, ...)
            Of X and of Y, on their grids; NaN where there are no data, or where the weight is 0.
        """
        return tuple(side.patterns() for side in self._sides)

    def scores(self, normalized: bool = False) -> tuple[Any, ...]:
        """
        Get the scores of the fields that the modes were found of; they are read once more.

        Parameters
        ----------
        normalized : bool, default False
            Of unit length.

        Returns
        -------
        tuple of xarray.DataArray, shapes (n, n_modes)
            Of X and of Y, along the dimension of samples.
        """
        return tuple(side.scores(normalized) for side in self._sides)

    def transform(self, X: Any = None, Y: Any = None, normalized: bool = False) -> Any:
        """
        Get the scores of other fields on the same grids.

        Parameters
        ----------
        X, Y : xarray.DataArray, optional
            One of them or both, with the dimensions and grids of what the modes were found of.
        normalized : bool, default False
            Divided by the lengths of the scores that the modes were found of.

        Returns
        -------
        DataArray or list of DataArray
            Scores of what was given.

        Raises
        ------
        BadInputError
            Nothing was given, or another grid.
        """
        try:
            return self._of_given("transform needs fields", FieldModel.transform, X, Y, normalized)
        except BadInputError as error:  # there are no least squares along vectors that may not be orthogonal
            said = "; a model fitted with missing='mean' counts them as means"
            raise BadInputError(str(error).replace(REMEDY, said)) from error

    def inverse_transform(self, X: Any = None, Y: Any = None) -> Any:
        """
        Get the fields that scores stand for: their means, and the sums of scores times patterns.

        Parameters
        ----------
        X, Y : xarray.DataArray, optional
            Scores of one field or of both, of some modes or all.

        Returns
        -------
        DataArray, Dataset or list of DataArray; a list of two for both
            As what was fitted, with its dimensions in their order, its name, attributes and type of numbers.

        Raises
        ------
        BadInputError
            Nothing was given, or modes that there are not.
        """
        return self._of_given("inverse_transform needs scores", FieldModel.inverse_transform, X, Y)

    def predict(self, X: Any) -> Any:
        """
        Predict the scores of Y of samples of X, by how both scores go together in the fields that were fitted.

        Parameters
        ----------
        X : xarray.DataArray
            With the dimensions and grid of the first field.

        Returns
        -------
        xarray.DataArray, shape (n, n_modes)
            For ``inverse_transform(Y=...)``.
        """
        scores = self.transform(X=X)
        weights, _, (first, second) = self._common_scores()
        link = (first.T * weights) @ second / (weights @ first**2)
        return scores.copy(data=scores.values @ link).rename("pseudo_scores_Y")

    def homogeneous_patterns(self, correction: str | None = None, alpha: float = 0.05) -> tuple[Any, Any]:
        """
        Get the correlations of each field with its own scores; both are read twice more.

        Parameters
        ----------
        correction : {None, "bonferroni", "fdr_bh", "fdr_by"}, default None
            What p-values are corrected by, over the grid points of each mode.
        alpha : float, default 0.05
            Without effect.

        Returns
        -------
        tuple of tuple of xarray.DataArray, shapes (n_modes, ...)
            The correlations with X and Y, and their two-sided p-values, of independent normal samples.
        """
        return self._correlated((0, 1), correction)

    def heterogeneous_patterns(self, correction: str | None = None, alpha: float = 0.05) -> tuple[Any, Any]:
        """
        Get the correlations of each field with the scores of the other one; both are read twice more.

        Parameters
        ----------
        correction, alpha : object
            As of :meth:`homogeneous_patterns`.

        Returns
        -------
        tuple of tuple of xarray.DataArray, shapes (n_modes, ...)
            The correlations with X and Y, and their two-sided p-values, of independent normal samples.
        """
        return self._correlated((1, 0), correction)

    def cross_correlation_coefficients(self) -> Any:
        """
        Get the correlation of the two scores of each mode.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            From -1 to 1.
        """
        return self._sides[0]._of_modes("cross_correlation_coefficients")

    def fraction_variance_X_explained_by_X(self) -> Any:
        """
        Get the share of the (weighted) variance of X that each of its scores represents.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            From 0 to 1.
        """
        return self._sides[0].explained_variance_ratio().rename("fraction_variance_X_explained_by_X")

    def fraction_variance_Y_explained_by_Y(self) -> Any:
        """
        Get the share of the (weighted) variance of Y that each of its scores represents.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            From 0 to 1.
        """
        return self._sides[1].explained_variance_ratio().rename("fraction_variance_Y_explained_by_Y")

    def squared_covariance_fraction(self) -> Any:
        """
        Get the share of each mode in the sum of all squared covariances of two grid points, which MCA estimates.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            Of MCA ``modes_.squared_covariance_error`` is the standard error of that sum.
        """
        return self._sides[0]._of_modes("squared_covariance_fraction")

    @property
    def data(self) -> Results:
        """Return the answers by the names of xeofs, each made when it is asked for."""
        made: dict[str, Any] = {}
        for i, side in enumerate(self._sides):
            made |= {f"components{i + 1}": side.components, f"scores{i + 1}": side.scores}
            made |= {f"norm{i + 1}": side.singular_values}
        find = partial(self._sides[0]._of_modes, "values")
        made |= {"singular_values": lambda: find().rename("singular_values"), "squared_covariance": lambda: find() ** 2}
        return Results({**made, "total_squared_covariance": lambda: type(find())(self._total)})

    def _require_fit(self) -> None:
        require(hasattr(self, "_models"), f"{type(self).__name__} is not fitted yet: call fit first")

    @property
    def _sides(self) -> tuple[FieldModel, FieldModel]:
        self._require_fit()
        return self._models

    @property
    def preprocessor1(self) -> Fields:
        """Return how rows of X are made."""
        return self._sides[0].preprocessor

    @property
    def preprocessor2(self) -> Fields:
        """Return how rows of Y are made."""
        return self._sides[1].preprocessor

    def _of_given(self, said: str, find: Any, X: Any, Y: Any, *how: Any) -> Any:
        """Find something of X, of Y, or a list of both."""
        found = [find(side, given, *how) for side, given in zip(self._sides, (X, Y), strict=True) if given is not None]
        require(bool(found), f"{said}: give X, Y or both")
        return found[0] if len(found) == 1 else found

    def _common_scores(self, found: tuple[Any, ...] = ()) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Weights of the samples that both fields have, which these are, and their scores (n x k)."""
        flat = [one.values.reshape(-1, one.sizes["mode"]) for one in found or self.scores()]
        there = np.isfinite(flat[0]).all(axis=1) & np.isfinite(flat[1]).all(axis=1)
        weights = np.ones(int(there.sum())) if self._weights is None else np.asarray(self._weights)
        return weights, there, [one[there] for one in flat]

    def _correlated(self, order: tuple[int, int], correction: str | None) -> tuple[Any, Any]:
        """Correlations of both fields with the scores of these, and p-values, as maps."""
        one_of(("bonferroni", "fdr_bh", "fdr_by", "None"), correction=str(correction))
        given = self._sides[0]._given is not None
        require(given, "a model that was loaded has no fields to correlate: fit it again")
        weights, there, scores = self._common_scores()
        maps, chances = [], []
        for side, number in zip(self._sides, order, strict=True):
            rows = picked(side.preprocessor.rows(side._given), there)
            found = correlations_of(side._modes.scored, rows, scores[number], weights)
            chance = chances_of(found, len(weights), correction)
            maps.append(side._maps(found, "correlations"))
            chances.append(side._maps(chance, "pvalues"))
        return tuple(maps), tuple(chances)

    def _content(self) -> tuple[dict[str, Any], Any]:
        from xarray import Dataset

        about: dict[str, Any] = {"sides": [], "total": self._total, "weights": self._weights}
        whole = Dataset()
        for prefix, side in zip(("X_", "Y_"), self._sides, strict=True):
            said, held = side._content()
            about["sides"].append(said)
            whole = whole.merge(held.rename({name: f"{prefix}{name}" for name in (*held.dims, *held.variables)}))
        return about, whole

    def _take(self, about: dict[str, Any], whole: Any) -> None:
        self._total, self._weights, self._models = about["total"], about["weights"], (FieldModel(), FieldModel())
        for prefix, side, said in zip(("X_", "Y_"), self._models, about["sides"], strict=True):
            own = [name for name in whole.variables if name.startswith(prefix)]
            held = whole.reset_coords()[own]
            side._take(said, held.rename({name: name.removeprefix(prefix) for name in (*held.dims, *own)}))


def correlations_of(stored: StoredComponents, rows: Any, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Correlations (d x k) of the columns of weighted rows with scores (n x k), in one pass."""
    mean = np.zeros(stored.d) if stored.mean is None else stored.mean
    products, squares = np.zeros((stored.d, scores.shape[1])), np.zeros(stored.d)
    for first, part in stored.rows_of(stored.opened(rows, rows.dims[0])):
        seen, which = np.asarray(part, np.float64) - mean, slice(first, first + len(part))
        products += seen.T @ (scores[which] * weights[which, None])
        squares += weights[which] @ seen**2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(products / np.sqrt(squares)[:, None] / np.sqrt(weights @ scores**2))


def chances_of(found: np.ndarray, n: int, correction: str | None) -> np.ndarray:
    """Return two-sided p-values of correlations (d x k) of n independent normal samples, corrected by column."""
    from scipy.special import betainc
    from scipy.stats import false_discovery_control

    chance = 2 * betainc(n / 2 - 1, n / 2 - 1, (1 - np.minimum(np.abs(found), 1.0)) / 2)
    there = np.isfinite(chance).any(axis=1)
    if correction == "bonferroni":
        return np.minimum(chance * there.sum(), 1.0)
    if correction is not None:
        whole = np.nan_to_num(chance[there], nan=1.0)
        chance[there] = np.where(np.isnan(found[there]), np.nan, false_discovery_control(whole, method=correction[4:]))
    return chance


@dataclass(eq=False, repr=False)
class _Coupled(_Pairs, Words):
    """Base of both estimators: two DataArrays in, maps and series of both out. ``modes_``: the answer."""

    n_modes: int = 2
    _: KW_ONLY
    standardize: bool = False
    use_coslat: bool = False
    missing: str = DROP
    memory: str | int | None = None
    store: str | Path | None = None
    tol: float | None = None
    random_state: int | None = 0
    progress: bool = False
    use_pca: bool = True
    n_pca_modes: Any = None

    def fit(
        self,
        X: Any,
        Y: Any,
        dim: Any = "time",
        weights_X: Any = None,
        weights_Y: Any = None,
        sample_weights: Any = None,
    ) -> Self:
        """
        Find the modes.

        Parameters
        ----------
        X, Y : DataArray, Dataset or list of DataArray
            In memory, lazy, or of a file that was opened and not read. Their means along ``dim`` are taken off.
        dim : str or tuple of str, default "time"
            The dimension of samples, or several, with the same coordinates in both; all others make up the grids.
        weights_X, weights_Y : xarray.DataArray, optional
            What the values of grid points are multiplied by, along some of their dimensions. Not negative.
        sample_weights : array_like, shape (n,), optional
            How much each sample counts, not negative.

        Returns
        -------
        object
            This object.

        Raises
        ------
        BadInputError
            No DataArray, no such dimension, other samples in one than in the other, no latitude, weights that are
            none, or values that are missing at some times only.
        """
        one_of((DROP, MEAN, REFUSE), missing=self.missing)
        rule = self._missing_rule(self.missing)
        fields, given = (Fields.of(X, dim), Fields.of(Y, dim)), (X, Y)
        found = [field.present(one) if rule == DROP else None for field, one in zip(fields, given, strict=True)]
        masks = [one for one in found if one is not None]
        rows = [field.rows(one) for field, one in zip(fields, given, strict=True)]
        if masks or any(one.dims[0] != dim for one in rows):  # else they are compared where they are read
            fields[0].require_samples(fields[1].axes, "Y")
        present = np.logical_and.reduce(masks) if masks else None
        rows = [picked(one, present) for one in rows]
        require(len(rows[0]) > 0, "no sample has a value in both fields: there are no data")
        require(
            not masks or sample_weights is None,
            "samples without any value have weights: leave both out (X.dropna(dim, how='all'))",
        )
        weights = [
            field.column_weights(given, use_coslat=self.use_coslat, missing=rule, rows=one)
            for field, given, one in zip(fields, (weights_X, weights_Y), rows, strict=True)
        ]
        modes = self.modes_ = self._solve_modes(
            rows,
            fields,
            dim=tuple(one.dims[0] for one in rows),
            missing=rule,
            scale=self.standardize,
            row_weights=fields[0].sample_weights(sample_weights),
            left_weights=weights[0],
            right_weights=weights[1],
            seed=self.random_state or 0,
            **attributes(self, "tol", "store", "memory", "progress"),
        )
        self._weights, self._models = modes.row_weights, (FieldModel(), FieldModel())
        samples = float(len(rows[0]) if self._weights is None else self._weights.sum())
        share = samples / less_one(samples, weighted=self._weights is not None)
        self._total = None if modes.total_squared_covariance is None else modes.total_squared_covariance * share**2
        for model, field, one, side in zip(self._models, fields, given, (modes.left, modes.right), strict=True):
            numbers = {"singular_values": np.sqrt(side.variance * samples), "explained_variance": side.variance * share}
            numbers["explained_variance_ratio"] = side.explained_variance_ratio
            model.preprocessor, model._given = field, one
            model._found = replace(found_of(side.components, side.basis, numbers, side.missing), patterns=side.patterns)
        numbers = self._models[0]._found.numbers
        numbers |= {"values": modes.values * (share if modes.kind == "mca" else 1.0)}
        numbers |= {"cross_correlation_coefficients": modes.correlations}
        if modes.squared_covariance_fraction is not None:
            numbers["squared_covariance_fraction"] = modes.squared_covariance_fraction
        return self

    def _solve_modes(self, rows: Any, fields: Any, **asked: Any) -> CoupledModes:
        raise NotImplementedError


class MCA(_Coupled):
    """
    Find pairs of patterns of two DataArrays whose scores have the largest covariance; neither need fit in memory.

    The words are those of xeofs. Nothing is reduced to leading components before (its ``use_pca=False``).

    Parameters
    ----------
    n_modes : int, default 2
        How many modes.
    check_nans : bool, default True
        With False gaps are not looked for, not even land: what is missing is refused when it is met.
    sample_name, feature_name, compute, solver, solver_kwargs : object
        Words of xeofs without effect; a solver that there is not is refused.
    standardize : bool, default False
        Divide every grid point of both fields by its standard deviation, and only then weight it.
    use_coslat : bool, default False
        Weight every grid point of both fields by the square root of the cosine of its latitude.
    missing : {"drop-columns", "mean"}, default "drop-columns"
        What is done with a grid point that has data at some times only: refused, or its gaps count as its mean.
    memory : str or int, optional
        Limit for the fit, like "2GiB".
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    tol : float, optional
        Relative residual to reach; 1e-9, or 1e-6 for float32 data, by default.
    random_state : int, default 0
        Seed of the start.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.
    use_pca, n_pca_modes : object
        Without effect: nothing is reduced to leading components before.

    Attributes
    ----------
    modes_ : CoupledModes
        The answer, with its certificate.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from npmdask.xarray import MCA
    >>> rng = np.random.default_rng(0)
    >>> X = xr.DataArray(rng.standard_normal((60, 4, 5)), dims=("time", "lat", "lon"))
    >>> Y = xr.DataArray(rng.standard_normal((60, 7)), dims=("time", "station"))
    >>> maps, stations = MCA(n_modes=2).fit(X, Y, dim="time").components()
    >>> maps.dims, stations.dims
    (('mode', 'lat', 'lon'), ('mode', 'station'))
    """

    def _solve_modes(self, rows: Any, fields: Any, **asked: Any) -> CoupledModes:
        return mca(rows[0], rows[1], self.n_modes, **asked)

    def singular_values(self) -> Any:
        """
        Get the covariances of the two scores of each mode, n - 1 in the denominator.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        return self._sides[0]._of_modes("values").rename("singular_values")

    def covariance_fraction_CD95(self) -> Any:
        """
        Get the share of each mode in the sum of the covariances of the modes that were found, not of all.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            Cheng and Dunkerton, J. Climate 8 (1995) 2631.
        """
        values = self._sides[0]._of_modes("values")
        return (values / values.sum()).rename("covariance_fraction")


@dataclass(eq=False, repr=False)
class MCARotator(_Pairs, Words):
    """
    Rotate the leading modes of an MCA to simple structure: few large grid points of both fields in each.

    Both patterns of a mode, times the root of its covariance, are rotated together, all grid points counting alike.

    Parameters
    ----------
    n_modes : int, default 10
        How many leading modes are rotated, at most all.
    power : float, default 1
        1 is varimax, more is promax.
    check_nans, sample_name, feature_name, compute, solver, solver_kwargs, max_iter, rtol : object
        Without effect.

    Notes
    -----
    Cheng and Dunkerton, J. Climate 8 (1995) 2631.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from npmdask.xarray import MCA, MCARotator
    >>> rng = np.random.default_rng(0)
    >>> X = xr.DataArray(rng.standard_normal((60, 4, 5)), dims=("time", "lat", "lon"))
    >>> Y = xr.DataArray(rng.standard_normal((60, 7)), dims=("time", "station"))
    >>> rotated = MCARotator(n_modes=3).fit(MCA(n_modes=5).fit(X, Y, dim="time"))
    >>> [one.shape for one in rotated.scores()]
    [(60, 3), (60, 3)]
    """

    n_modes: int = 10
    power: float = 1
    _: KW_ONLY
    max_iter: int | None = None
    rtol: float = 1e-8

    def fit(self, model: MCA) -> Self:
        """
        Rotate the modes of a model.

        Parameters
        ----------
        model : MCA
            One that was fitted, or loaded; its fields are read once more.

        Returns
        -------
        MCARotator
            This object.

        Raises
        ------
        BadInputError
            It is no MCA, or is not fitted.
        """
        require(isinstance(model, MCA), f"a {type(model).__name__} is not rotated: give a fitted MCA")
        before = [side._modes for side in model._sides]
        values = before[0].numbers["values"]
        k = min(self.n_modes, len(values))
        rotation = simple_structure(np.concatenate([one.vectors for one in before]), values, k, float(self.power), True)
        roots = np.sqrt(values[:k])
        loadings = [(one.vectors[:, :k] * roots) @ rotation for one in before]
        order = np.argsort(-np.prod([np.linalg.norm(one, axis=0) for one in loadings], axis=0), kind="stable")
        signs = fix_signs(np.concatenate(loadings))[order]
        rotation, loadings = rotation[:, order] * signs, [one[:, order] * signs for one in loadings]
        norms = [np.linalg.norm(one, axis=0) for one in loadings]
        held = model.scores()
        weights, _, scores = model._common_scores(held)
        back = [np.linalg.inv(rotation).T / roots[:, None] * norm for norm in norms]  # of scores
        across = [roots[:, None] * rotation / norm for norm in norms]  # vectors in those of before
        turned = [one[:, :k] @ turn for one, turn in zip(scores, back, strict=True)]
        self._models, self._total, self._weights = (FieldModel(), FieldModel()), model._total, model._weights
        self.model_data = model.data
        for i, (side, old) in enumerate(zip(self._models, model._sides, strict=True)):
            squares, whole = weights @ turned[i] ** 2, before[i].numbers
            share = whole["explained_variance_ratio"][0] / whole["singular_values"][0] ** 2
            numbers = {"singular_values": np.sqrt(squares)}
            numbers["explained_variance"] = squares * whole["explained_variance"][0] / whole["singular_values"][0] ** 2
            reached = 2 * (weights @ (turned[i] * (scores[i][:, :k] @ across[i]))) - squares
            numbers["explained_variance_ratio"] = share * reached
            turn = np.zeros((before[i].scored.k, k))
            turn[:k], vectors = back[i], loadings[i] / norms[i]
            patterns = replace(before[i].scored, basis=vectors).patterns
            found = {"vectors": vectors, "patterns": patterns, "numbers": numbers, "turn": turn, "rotation": rotation}
            side.preprocessor, side._given, side._found = old.preprocessor, old._given, replace(before[i], **found)
            side._held = held[i].isel(mode=slice(k)).copy(data=held[i].values @ turn)
        both, numbers = np.diag(values[:k]), self._models[0]._found.numbers
        lengths = numbers["singular_values"] * self._models[1]._found.numbers["singular_values"]
        numbers |= {
            "values": norms[0] * norms[1],
            "cross_correlation_coefficients": weights @ np.prod(turned, 0) / lengths,
        }
        fractions = []
        for q, r, a, b in zip(across[0].T, across[1].T, back[0].T, back[1].T, strict=True):
            left = both - np.outer(q, a @ both) - np.outer(both @ b, r) + (a @ both @ b) * np.outer(q, r)
            fractions.append(max(0.0, float((both**2).sum() - (left**2).sum()) / (self._total or 1.0)))
        numbers["squared_covariance_fraction"] = np.array(fractions)
        return self

    covariance_fraction_CD95 = MCA.covariance_fraction_CD95

    @property
    def data(self) -> Results:
        """Return the answers by the names of xeofs, and what the loadings were multiplied by."""
        return Results({**super().data._made, **rotation_answers(self._sides[0]._modes.rotation)})


@dataclass(eq=False, repr=False)
class CCA(_Coupled):
    """
    Find pairs of patterns of two DataArrays whose scores are most correlated; neither need fit in memory.

    Of the leading components of both fields, as is usual for grids of more points than there are samples.

    Parameters
    ----------
    n_modes : int, default 2
        How many modes.
    check_nans : bool, default True
        With False gaps are not looked for, not even land: what is missing is refused when it is met.
    sample_name, feature_name, compute, solver, solver_kwargs : object
        Words of xeofs without effect; a solver that there is not is refused.
    standardize : bool, default False
        Divide every grid point of both fields by its standard deviation, and only then weight it.
    use_coslat : bool, default False
        Weight every grid point of both fields by the square root of the cosine of its latitude.
    missing : {"drop-columns", "mean"}, default "drop-columns"
        What is done with a grid point that has data at some times only: refused, or its gaps count as its mean.
    memory : str or int, optional
        Limit for the fit, like "2GiB".
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    tol : float, optional
        Relative residual of the components to reach; 1e-9, or 1e-6 for float32 data, by default.
    random_state : int, default 0
        Seed of the start.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.
    use_pca : bool, default True
        With False all grid points are taken.
    n_pca_modes : int, pair of int or "all", default 10
        How many leading components represent X and Y, at most as many as there are grid points; "all" grid points
        themselves need more samples than there are of both.

    Attributes
    ----------
    modes_ : CoupledModes
        The answer, with what should be known of it.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from npmdask.xarray import CCA
    >>> rng = np.random.default_rng(0)
    >>> X = xr.DataArray(rng.standard_normal((60, 4, 5)), dims=("time", "lat", "lon"))
    >>> Y = xr.DataArray(rng.standard_normal((60, 7)), dims=("time", "station"))
    >>> model = CCA(n_modes=2, n_pca_modes=5).fit(X, Y, dim="time")
    >>> model.canonical_correlations().shape
    (2,)
    """

    _: KW_ONLY
    n_pca_modes: int | tuple[int, int] | str = 10

    def _solve_modes(self, rows: Any, fields: Any, **asked: Any) -> CoupledModes:
        pcs: Any = None
        if self.use_pca and self.n_pca_modes != "all":
            both = self.n_pca_modes if isinstance(self.n_pca_modes, tuple | list) else (self.n_pca_modes,) * 2
            pcs = tuple(min(n, sum(field.sizes)) for n, field in zip(both, fields, strict=True))
        return cca(rows[0], rows[1], self.n_modes, pcs=pcs, **asked)

    def canonical_correlations(self) -> Any:
        """
        Get the correlations of the two scores of each mode.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        return self._sides[0]._of_modes("values").rename("canonical_correlations")
