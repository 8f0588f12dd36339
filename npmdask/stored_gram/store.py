"""The Gram of all columns as a stored artifact: what every spectral question about them needs, and no row.

It answers for any number of components, centred or not, scaled or not, and for some of the columns; Grams of other
rows are merged with it, and taken off again. It is a source like any other: ``top_k(store, k)``.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import numpy as np

from npmdask.advice.component_counts import CountAdvice, KnownSpectrum, advise
from npmdask.advice.dimensions import held_out_likelihoods
from npmdask.core.algorithms import StoredGramPairs
from npmdask.core.algorithms.stopping import ResidualRule, StepView, default_tol
from npmdask.core.checkpoint.store import RunStore, folder_of
from npmdask.core.execution.reduction import COMMIT_SECONDS
from npmdask.core.numerics.subspaces import single_threaded_blas
from npmdask.core.numerics.units import attributes
from npmdask.core.operators import View
from npmdask.core.runs.components import labels_of_run
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.runs.problem import STORED_GRAM, Earlier, Problem, Request, Route, ranks_of
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import Resources, asked_resources
from npmdask.core.runs.restore import bind_spec
from npmdask.core.runs.results import in_units
from npmdask.core.runs.session import Session
from npmdask.core.runs.stopping_rules import smallest_rank, trace_of
from npmdask.core.storage.labels import Axis, Labels
from npmdask.core.storage.paths import is_url
from npmdask.core.storage.source import IN_MEMORY, Asked, Source, open_source
from npmdask.errors import BadInputError, RefusedError, first_of, require
from npmdask.stored_gram.operator import GramReader, GramSums, StoredGram, probes_of
from npmdask.stored_gram.parts import (
    PREFIX,
    Begun,
    GramPart,
    GramRequest,
    RowGroups,
    form_parts,
    gram_spec,
    labels_called,
    list_parts,
    listed_parts,
    made_part,
    read_sums,
    write_sums,
)
from npmdask.stored_gram.resampling import Bootstrap, Grouped, Jackknife, bootstrapped, require_confidence

FOLDS = 10  # into which groups of rows are joined to be left out in turn
SHOWN = 3  # names or numbers that a sentence shows


class GramStore:
    """
    Open a stored Gram: for each part of the rows their number, the mean, the Gram about it, and its error bound.

    It is a source: ``npmdask.top_k(store, k)`` answers from it without reading a row.

    Parameters
    ----------
    store : str or Path
        Folder or URL that :func:`npmdask.gram`, :meth:`merge` or :meth:`remove` has made.

    Raises
    ------
    BadInputError
        There is no Gram, or it is not finished.

    See Also
    --------
    npmdask.gram : Form one.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     npmdask.gram(rows, folder + "/G", kind="samples")
    ...     solution = npmdask.top_k(folder + "/G", 3, center=True)
    <GramStore: 500 rows of 20 columns, kind samples, 1 group; ...>
    >>> solution.converged, solution.data_passes
    (True, 0)
    >>> np.allclose(solution.values, np.linalg.eigvalsh(np.cov(rows.T, bias=True))[:-4:-1])
    True
    """

    assurance = ""  # a run states how wrong its answer can be; here each question does
    warnings: tuple[str, ...] = ()
    answered = True

    def __init__(self, store: str | Path) -> None:
        run = RunStore(store)
        spec = run.read_spec()
        if spec is None or spec["data"].get("kind") != STORED_GRAM:
            raise BadInputError(_no_gram_text(store, spec))
        self.store = run.place
        self.parts, self._history = listed_parts(run)
        if not self.parts:
            raise BadInputError(f"the Gram in {store} is not finished: go on with `npmdask resume {quote(str(store))}`")
        self.rows_read = self.bytes_read = 0
        self._spec, self._folder = spec, run.path
        self._labels = labels_of_run(run)
        self._chosen: np.ndarray | None = None
        self._order: np.ndarray | None = None  # of the columns of another Gram among those that are stored
        self._whole = True

    def __repr__(self) -> str:
        groups = len(self.groups)
        return (
            f"<GramStore: {self.rows:,} rows of {self.columns:,} columns, kind {self.kind}, {groups} "
            f"group{'s'[: groups != 1]}; store {self.store}>"
        )

    @property
    def made(self) -> str:
        """Return how it was made: ``"formed"`` from rows, ``"merged"`` or ``"reduced"``."""
        return str(self._spec["algorithm"]["made"])

    @property
    def rows(self) -> int:
        """Return the number of rows that are summed."""
        return sum(part.rows for part in self.parts)

    @property
    def columns(self) -> int:
        """Return the number of columns, d."""
        return int(self._spec["data"]["columns"]) if self._chosen is None else len(self._chosen)

    @property
    def kind(self) -> str:
        """Return the kind of the rows: "samples", "matrix" or "sparse"."""
        return str(self._spec["data"]["of"])

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of rows that have Grams of their own, in the order in which they came."""
        return tuple(dict.fromkeys(part.group for part in self.parts))

    @property
    def labels(self) -> Labels:
        """Return the names of the columns, as far as the data have them."""
        if self._labels is None or self._chosen is None:
            return self._labels or Labels()
        axis = self._labels.columns[0]
        if len(self._labels.columns) > 1 or axis.values is None:
            return Labels(columns=(Axis("column", len(self._chosen), self._chosen),))
        return Labels(columns=(Axis(axis.name, len(self._chosen), axis.values[self._chosen]),))

    @property
    def mean(self) -> np.ndarray:
        """Means of the columns (d)."""
        return self._reader.sums.mean

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviations of the columns (d), of the population."""
        return self._reader.sums.columns(of_csr=self._reader.of_csr).std

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the sums of all parts, and of the choice of columns."""
        digest = hashlib.sha256(" ".join(sorted(part.identity for part in self.parts)).encode())
        if self._chosen is not None:
            digest.update(self._chosen.astype("<i8").tobytes())
        return digest.hexdigest()

    def matrix(self, *, center: bool = True, scale: bool = False) -> np.ndarray:
        """
        Compute the Gram: the sum of x x^T over all rows.

        Parameters
        ----------
        center : bool, default True
            Of rows less their mean: n - 1 times the covariance.
        scale : bool, default False
            Of columns divided by their standard deviations; centred n times the correlation matrix.

        Returns
        -------
        numpy.ndarray, shape (d, d)
            Symmetric.
        """
        return self._operator(center=center, scale=scale, weight=1.0).matrix()

    def spectrum(self, *, center: bool = False, scale: bool = False) -> np.ndarray:
        """
        Compute all values, the largest first.

        Parameters
        ----------
        center, scale : bool, default False
            As for :func:`npmdask.top_k`.

        Returns
        -------
        numpy.ndarray, shape (d,)
            Of samples eigenvalues of the mean of x x^T, of a matrix its singular values (beyond the rank rounding).
        """
        return in_units(self.kind, self._eigenvalues(center=center, scale=scale))

    def components_for(self, share: float, *, center: bool = True, scale: bool = False) -> int:
        """
        Count the components that explain a share of the variance.

        Parameters
        ----------
        share : float
            Strictly between 0 and 1.
        center, scale : bool
            As for :func:`npmdask.top_k`.

        Returns
        -------
        int
            The smallest number.

        Raises
        ------
        BadInputError
            No share.
        """
        require(0 < share < 1, f"share = {share} must lie strictly between 0 and 1, like 0.95")
        values = self._eigenvalues(center=center, scale=scale)
        return smallest_rank(values, share * float(np.maximum(values, 0.0).sum())) or len(values)

    def component_counts(
        self, *, share: float = 0.9, noise: float | None = None, center: bool = True, scale: bool = False, seed: int = 0
    ) -> tuple[CountAdvice, ...]:
        """
        Ask six criteria how many components mean something.

        Parameters
        ----------
        share : float, default 0.9
            Of the variance, strictly between 0 and 1.
        noise : float, optional
            Variance of the noise of one entry; by default it is estimated from the median of the spectrum.
        center, scale : bool
            As for :func:`npmdask.top_k`.
        seed : int, default 0
            Of the simulations of parallel analysis.

        Returns
        -------
        tuple of CountAdvice
            What each advises, at which threshold, and what it assumes or lacks.

        Raises
        ------
        BadInputError
            Nothing varies, or there are fewer than three rows.

        Notes
        -----
        Marchenko-Pastur with the margin of Johnstone (2001), Gavish and Donoho (2014), Horn (1965), Frontier (1976):
        docs/howto/components.md says where each holds.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((400, 20)) * np.r_[5, 3, np.ones(18)]
        >>> store = npmdask.gram(rows, tempfile.mkdtemp() + "/G", kind="samples")
        >>> [(one.criterion, one.components) for one in store.component_counts()][2]
        ('Marchenko-Pastur edge', 2)
        """
        free = max(self.rows - center, 1)
        matrix = self._operator(center=center, scale=scale, weight=1.0 / free).matrix()
        variances = np.diagonal(matrix)
        varying = np.flatnonzero(variances > 0)  # a constant column is no direction of noise
        require(len(varying) > 0, f"no column of {self.store} has any variance: there are no components to count")
        known = KnownSpectrum(
            values=np.linalg.eigvalsh(matrix[np.ix_(varying, varying)])[::-1],
            d=len(varying),
            rows=self.rows,
            centred=center,
            total=float(variances.sum()),
            variances=variances[varying],
            left_out=self._held_out_likelihoods(varying, center=center, scale=scale) if len(self.groups) > 1 else None,
        )
        return advise(known, share=share, noise=noise, seed=seed)

    def select(self, columns: Sequence[int | str]) -> GramStore:
        """
        Choose some columns, by name or by number, in the order given.

        Parameters
        ----------
        columns : sequence of int or str
            Numbers from 0, or names.

        Returns
        -------
        GramStore
            In memory: a source of :func:`npmdask.top_k` like the whole.

        Raises
        ------
        BadInputError
            A column that is not there, or twice.
        """
        axes = self.labels.columns
        named = axes[0].values if len(axes) == 1 else None
        places = {} if named is None else {str(name): i for i, name in enumerate(named)}
        chosen = []
        for column in columns:
            place = places.get(column) if isinstance(column, str) else int(column)
            if place is None or not 0 <= place < self.columns:
                known = f"names like {', '.join(list(places)[:SHOWN])}" if places else "no names"
                raise BadInputError(
                    f"there is no column {column!r} in {self.store}, which has {self.columns} columns and {known}"
                )
            chosen.append(place)
        if not chosen or len(set(chosen)) < len(chosen):
            raise BadInputError(f"choose columns of {self.store} once each, and one at least")
        before = np.arange(self.columns) if self._chosen is None else self._chosen
        return self._copy_with(chosen=before[chosen])

    def group(self, *names: str) -> GramStore:
        """
        Choose the rows of some groups.

        Parameters
        ----------
        *names : str
            As in ``groups``.

        Returns
        -------
        GramStore
            In memory, a source of :func:`npmdask.top_k`.

        Raises
        ------
        BadInputError
            There is no such group.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import npmdask
        >>> rows, arms = np.random.default_rng(0).standard_normal((60, 4)), np.repeat(["control", "treated"], [20, 40])
        >>> store = npmdask.gram(rows, tempfile.mkdtemp() + "/G", kind="samples", groups=arms)
        >>> treated = store.group("treated")
        >>> treated.rows, bool(np.allclose(treated.mean, rows[20:].mean(axis=0)))
        (40, True)
        """
        for name in names:
            require(name in self.groups, f"there is no group {name!r} in {self.store}; it has {_listing(self.groups)}")
        require(len(names) > 0, f"name a group of {self.store} at least; it has {_listing(self.groups)}")
        return self._copy_with(parts=tuple(part for part in self.parts if part.group in names))

    def jackknife(self, k: int, *, confidence: float = 0.95, center: bool = True, scale: bool = False) -> Jackknife:
        """
        Estimate how far leading values depend on the groups of rows, from their Grams alone.

        Parameters
        ----------
        k : int
            How many values.
        confidence : float, default 0.95
            Nominal coverage of the intervals.
        center, scale : bool
            As for :func:`npmdask.top_k`; scaled by the deviations of the rows that are left.

        Returns
        -------
        Jackknife
            Values, standard errors, bias, intervals, and the values without each group.

        Raises
        ------
        BadInputError
            Fewer than two groups: form the Gram with ``by_chunks``, or merge several.

        Notes
        -----
        The delete-m_j jackknife of Busing, Meijer and van der Leeden, Statistics and Computing 9 (1999) 3, eq. 4, for
        groups of any sizes; of equal ones it is the delete-a-group jackknife. Rows of one group may depend on each
        other, rows of different groups may not. Nothing is subtracted: the Grams of the others are joined. Intervals
        are Student's with g - 1 degrees of freedom, of logarithms of the values less their bias.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((400, 5)) * [5, 3, 1, 1, 1]
        >>> store = npmdask.gram(rows, tempfile.mkdtemp() + "/G", kind="samples", groups=np.arange(400) // 20)
        >>> found = store.jackknife(2)
        >>> found.left_out.shape, bool((found.standard_errors < 0.2 * found.values).all())
        ((20, 2), True)
        """
        groups = self.groups
        if len(groups) < 2:
            raise BadInputError(
                f"{self.store} has one group of rows, and a jackknife leaves out one of several: form the Gram with "
                "by_chunks or groups, or merge those of several days"
            )
        require(1 <= k <= self.columns, f"k = {k} is not possible: there are {self.columns} columns")
        require_confidence(confidence)
        more = min(k + 1, self.columns)
        sizes = np.array([sum(part.rows for part in self.parts if part.group == name) for name in groups])
        with single_threaded_blas():  # the same bits on any number of cores; on busy ones threads wait for each other
            whole = self._leading(self._sums, more, center=center, scale=scale)
            each = self._without_each(list(range(len(groups))), None)
            left_out = np.stack([self._leading(sums, more, center=center, scale=scale) for _, sums in each])
        return Jackknife.of(whole, left_out, sizes, groups, k, confidence)

    def bootstrap(
        self,
        k: int,
        *,
        replicates: int = 200,
        confidence: float = 0.95,
        center: bool = True,
        scale: bool = False,
        seed: int = 0,
        exact: bool = False,
    ) -> Bootstrap:
        """
        Find confidence intervals of leading components by drawing groups of rows again, from their Grams alone.

        Rows of one group may depend on each other, rows of different groups may not: of a time series, groups are
        consecutive rows, longer than what they remember.

        Parameters
        ----------
        k : int
            How many components.
        replicates : int, default 200
            How often groups are drawn, 50 at least.
        confidence : float, default 0.95
            Nominal coverage.
        center, scale : bool
            As for :func:`npmdask.top_k`; scaled by the deviations of the rows that are drawn, which takes full
            decompositions.
        seed : int, default 0
            Of the draws.
        exact : bool, default False
            Decompose every replicate in full, instead of some as a check.

        Returns
        -------
        Bootstrap
            Values, shares, components, and their intervals.

        Raises
        ------
        BadInputError
            Fewer than 8 groups, or fewer than k directions with any variance.

        Notes
        -----
        Student's intervals with g - 1 degrees of freedom, of logarithms of values, of log-odds of shares, and of
        entries, less the bias that the replicates show. Signs are those of the answer of all rows.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((400, 20)) * np.r_[5, 3, np.ones(18)]
        >>> weeks = np.arange(400) // 20
        >>> store = npmdask.gram(rows, tempfile.mkdtemp() + "/G", kind="samples", groups=weeks)
        >>> found = store.bootstrap(2)
        >>> found.groups, found.value_intervals.shape, found.vector_intervals.shape
        (20, (2, 2), (2, 20, 2))
        """
        reader, groups = self._reader, self.groups
        origin = reader.sums.mean if center else np.zeros(self.columns)

        def each() -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
            for name in groups:
                sums = self._reader_of(self._joined_sums([part for part in self.parts if part.group == name])).sums
                yield float(sums.count), sums.mean - origin, sums.matrix

        def covariance(rows: float, mean: np.ndarray, gram: np.ndarray) -> np.ndarray:
            matrix = gram - np.outer(rows * mean, mean)
            count = round(rows)
            sums = GramSums(count=count, mean=mean + origin, matrix=matrix, image=np.zeros((self.columns, 0)))
            drawn = replace(reader, sums=sums)
            return self._operator(center=center, scale=scale, weight=1.0 / count, reader=drawn).matrix()

        grouped = Grouped(
            names=groups,
            whole=self._operator(center=center, scale=scale, weight=1.0 / self.rows).matrix(),
            each=each,
            covariance=covariance,
            moves=center,
            short=not scale,
        )
        with single_threaded_blas():  # thousands of small problems, and the same bits on any number of cores
            return bootstrapped(grouped, k, replicates=replicates, confidence=confidence, seed=seed, exact=exact)

    def as_source(self, kind: str | None = None) -> Source:
        """
        Make a source of it, as :func:`npmdask.top_k` takes it.

        Parameters
        ----------
        kind : str, optional
            "samples" or "matrix" of dense rows; by default what the Gram was formed as.

        Returns
        -------
        Source
            Whose passes read no row.

        Raises
        ------
        BadInputError
            A kind that such rows cannot have.
        """
        known = ("sparse",) if self._spec["data"]["layout"] == "csr" else ("samples", "matrix")
        if kind is not None and kind not in known:
            raise BadInputError(f"{self.store} is the Gram of rows of kind {' or '.join(known)}, not of kind {kind}")
        reader, labels = self._reader, self.labels
        return Source(
            path=self.store if self._whole else f"{IN_MEMORY}a choice of {self.store}",
            kind=kind or self.kind,
            reader=reader,
            fingerprint=self.fingerprint,
            registered=True,
            statistics=reader.sums.columns(of_csr=reader.of_csr),
            labels=labels if labels.columns else None,
        )

    @staticmethod
    def merge(stores: Sequence[str | Path | GramStore], dest: str | Path, *, distinct: bool = False) -> GramStore:
        """
        Merge Grams of other rows of the same columns: of other machines, or other days.

        The order of ``stores`` changes no bit of the sums. Each keeps its own Gram as a group, so that it can be
        removed exactly, and left out by a jackknife.

        Parameters
        ----------
        stores : sequence of str, Path or GramStore
            Two or more.
        dest : str or Path
            Store to create.
        distinct : bool, default False
            Rows of equal chunks in two of them are different rows: count both.

        Returns
        -------
        GramStore
            Of all rows.

        Raises
        ------
        RefusedError
            Other columns, kinds or probes; or rows that two of them have.
        """
        if isinstance(stores, str | Path | GramStore) or len(stores) < 2:
            raise BadInputError("a merge takes two Grams or more: give a list of their stores")
        opened = [store if isinstance(store, GramStore) else GramStore(store) for store in stores]
        opened[1:] = [opened[0]._aligned_with(other) for other in opened[1:]]
        if not distinct:
            _require_no_overlap(opened)
        taken: set[str] = set()
        parts: list[tuple[GramStore, GramPart]] = []
        for one in sorted(opened, key=lambda store: store.fingerprint):
            names = {name: _unused_name(one._group_name(name), taken) for name in one.groups}
            parts += [(one, replace(part, group=names[part.group])) for part in one.parts]
        made = _write_store(dest, opened[0], "merged", [(part, partial(one._sums_of, part)) for one, part in parts])
        made.warnings = tuple(dict.fromkeys(said for other in opened[1:] for said in other.warnings))
        return made

    def remove(self, other: str | Path | GramStore, dest: str | Path) -> GramStore:
        """
        Remove the rows of another Gram, all of whose chunks are in this one.

        Groups that were merged go as they came, exactly. Rows that are part of a group are subtracted, and the digits
        that this costs are counted in every bound.

        Parameters
        ----------
        other : str, Path or GramStore
            Of the rows to remove.
        dest : str or Path
            Store to create.

        Returns
        -------
        GramStore
            Of the rows that are left.

        Raises
        ------
        RefusedError
            Rows that are not in here; or no row or no digit would be left.
        """
        less = other if isinstance(other, GramStore) else GramStore(other)
        less = self._aligned_with(less)
        left = list(self.parts)
        # groups may be equal to the bit: one of them is taken, the one of that name if there is
        for gone in less.parts:
            same = [part for part in left if part.identity == gone.identity]
            if not same:
                break
            left.remove(next((part for part in same if part.group == gone.group), same[0]))
        else:
            if not left:
                raise RefusedError(f"{less.store} has all rows of {self.store}: none would be left")
            return _write_store(dest, self, "reduced", [(part, partial(self._sums_of, part)) for part in left])
        keys = set().union(*(part.keys for part in less.parts))
        touched = [part for part in self.parts if part.keys & keys]
        missing = keys - set().union(*(part.keys for part in touched))
        if missing or not touched:
            raise RefusedError(
                f"{len(missing)} of {len(keys)} rows of chunks of {less.store} are not in {self.store}: only rows that "
                "were added can be removed"
            )
        if any(part.labelled for part in (*touched, *less.parts)):
            raise RefusedError(
                f"{self.store} or {less.store} has Grams of rows by their labels, which are no whole chunks: remove a "
                "group of the same store, as store.remove(store.group(NAME), DEST)"
            )
        if len({part.group for part in touched}) > 1:
            raise RefusedError(f"the rows of {less.store} lie in several groups of {self.store}: remove group by group")
        joined = self._joined_sums(touched)
        sums = joined.without(less._sums, self._probes)
        part = made_part(
            sums,
            [origin for one in touched for origin in _remaining_origins(one, keys)],
            name=f"{PREFIX}left",
            group=touched[0].group,
            formed=touched[0].formed,
        )
        rest = [(one, partial(self._sums_of, one)) for one in self.parts if one not in touched]
        return _write_store(dest, self, "reduced", [*rest, (part, lambda: sums)])

    # What the methods above are made of.

    @cached_property
    def _probes(self) -> np.ndarray:
        return probes_of(int(self._spec["data"]["columns"]), int(self._spec["run"]["seed"]))

    @cached_property
    def _sums(self) -> GramSums:
        """Return the sums over all columns and parts."""
        return self._joined_sums(self.parts)

    def _joined_sums(self, parts: Sequence[GramPart]) -> GramSums:
        """The sums of some parts, joined in an order that does not depend on theirs."""
        ordered = sorted(parts, key=lambda part: part.identity)
        total = self._sums_of(ordered[0])
        for part in ordered[1:]:
            total = total.joined(self._sums_of(part), self._probes)
        return total

    def _sums_of(self, part: GramPart) -> GramSums:
        sums, at = read_sums(folder_of(self.store) if is_url(self.store) else self._folder, part), self._order
        if at is None:
            return sums
        # Errors of the stored matrix are seen by other probes then, and probes are alike.
        matrix, residual = sums.matrix[np.ix_(at, at)], (sums.image - sums.matrix @ self._probes)[at]
        return replace(sums, mean=sums.mean[at], matrix=matrix, image=matrix @ self._probes + residual)

    @cached_property
    def _reader(self) -> GramReader:
        return self._reader_of(self._sums)

    def _reader_of(self, sums: GramSums) -> GramReader:
        """Make the reader that replaces the rows with these sums, for the chosen columns."""
        residual, probed = sums.image - sums.matrix @ self._probes, len(sums.mean)
        if self._chosen is not None:
            rows, grid = self._chosen, np.ix_(self._chosen, self._chosen)
            sums = replace(sums, mean=sums.mean[rows], matrix=sums.matrix[grid], image=sums.image[rows])
            residual = residual[rows]
        data = self._spec["data"]
        return GramReader(
            sums=sums,
            residual=residual,
            probed=probed,
            dtype=np.dtype(data["dtype"]),
            of_csr=data["layout"] == "csr",
        )

    def _operator(
        self, *, center: bool, scale: bool, weight: float | None = None, reader: GramReader | None = None
    ) -> StoredGram:
        reader = reader or self._reader
        sums = reader.sums
        view = View.of_columns(sums.columns(of_csr=reader.of_csr), center=center, scale=scale)
        own = 1.0 / sums.count if self.kind == "samples" else 1.0
        return StoredGram(reader=reader, view=view, weight=own if weight is None else weight)

    def _eigenvalues(self, *, center: bool, scale: bool) -> np.ndarray:
        return np.linalg.eigvalsh(self._operator(center=center, scale=scale).matrix())[::-1]

    def _leading(self, sums: GramSums, k: int, *, center: bool, scale: bool) -> np.ndarray:
        """The k leading values, in the units of the kind."""
        operator = self._operator(center=center, scale=scale, reader=self._reader_of(sums))
        return in_units(self.kind, np.linalg.eigvalsh(operator.matrix())[: -k - 1 : -1])

    def _without_each(self, places: list[int], rest: GramSums | None) -> Iterator[tuple[int, GramSums]]:
        """For each of some groups the sums of all others; ``rest``: of those that are not among them.

        By halves, so that n groups take n log n joins, and log n Grams of memory.
        """
        if len(places) == 1:
            assert rest is not None
            yield places[0], rest
            return
        half = len(places) // 2
        for inside, outside in ((places[:half], places[half:]), (places[half:], places[:half])):
            names = {self.groups[place] for place in outside}
            more = self._joined_sums([part for part in self.parts if part.group in names])
            yield from self._without_each(inside, more if rest is None else rest.joined(more, self._probes))

    def _held_out_likelihoods(self, varying: np.ndarray, *, center: bool, scale: bool) -> np.ndarray:
        """The log-likelihood of a row of each fold of groups, with 0, 1, ... components of all others."""
        folds = np.array_split(np.array(self.groups), min(FOLDS, len(self.groups)))
        fold_of = {str(name): str(place) for place, names in enumerate(folds) for name in names}
        folded = self._copy_with(parts=tuple(replace(part, group=fold_of[part.group]) for part in self.parts))
        found, grid = {}, np.ix_(varying, varying)
        for place, others in folded._without_each(list(range(len(folds))), None):
            name = folded.groups[place]
            reader = self._reader_of(others)
            rest = self._operator(center=center, scale=scale, weight=1.0 / others.count, reader=reader)
            own = self._reader_of(self._joined_sums([part for part in folded.parts if part.group == name])).sums
            away = own.mean - reader.sums.mean if center else own.mean
            about = own.matrix / own.count + np.outer(away, away)
            about = rest.view.on_columns(rest.view.on_columns(about).T)[grid]
            values, vectors = (array[..., ::-1] for array in np.linalg.eigh(rest.matrix()[grid]))
            moments = np.einsum("ij,ij->j", vectors, about @ vectors)
            most = min(len(varying), max(others.count - center, 1)) - 1
            found[place] = held_out_likelihoods(values, moments, float(np.trace(about)), most)
        shortest = min(map(len, found.values()))
        return np.array([found[place][:shortest] for place in sorted(found)])

    def _copy_with(self, *, chosen: np.ndarray | None = None, parts: tuple[GramPart, ...] | None = None) -> GramStore:
        other = copy.copy(self)
        for name in ("_sums", "_reader"):
            other.__dict__.pop(name, None)
        other._whole = False
        if chosen is not None:
            other._chosen = chosen
        if parts is not None:
            other.parts = parts
        return other

    def _group_name(self, name: str) -> str:
        """Name a group so that it differs from those of other Grams."""
        own = Path(self.store).name
        return own if len(self.groups) == 1 else f"{own}: {name}"

    def _aligned_with(self, other: GramStore) -> GramStore:
        """The other one, its columns in the order of these. Raises RefusedError where the sums cannot be added."""
        where = f"{self.store} and {other.store}"
        for one in (self, other):
            if one._chosen is not None:
                raise RefusedError(f"a choice of columns of {one.store} is not merged: merge first, and choose then")
        if self.columns != other.columns:
            raise RefusedError(
                f"{where} have {self.columns} and {other.columns} columns: only Grams of the same columns can be "
                "merged or removed"
            )
        for field, what in (("of", "kind"), ("layout", "layout")):
            mine, theirs = self._spec["data"][field], other._spec["data"][field]
            if mine != theirs:
                raise RefusedError(
                    f"{where} are of {what} {mine!r} and {theirs!r}: only Grams of one {what} can be merged or removed"
                )
        seeds = [int(one._spec["run"]["seed"]) for one in (self, other)]
        if seeds[0] != seeds[1]:
            raise RefusedError(
                f"{where} have probes of seeds {seeds[0]} and {seeds[1]}, whose products do not add up: form one of "
                "them again with the seed of the other"
            )
        from npmdask.core.storage.names import matched

        known, given = self.labels.columns, other.labels.columns
        remedy = "only Grams of the same columns can be merged or removed"
        places, said = matched(known, given, other.store, self.store, error=RefusedError, remedy=remedy)
        other = other._copy_with(parts=other.parts)
        other._order, other.warnings = places, said
        return other


def form_gram(
    source: Source,
    store: str | Path,
    request: GramRequest,
    resources: Resources,
    observer: Observer | None = None,
    begun: Begun | None = None,
) -> GramStore:
    """Form the Gram of ``source`` in ``store``, go on with it, or add the rows that were appended since.

    ``begun``: what is known of a pass before it is made.
    """
    read = form_parts(source, store, request, resources, observer, begun)
    formed = GramStore(store)
    formed.rows_read, formed.bytes_read = read
    formed.warnings = source.unchecked
    if request.by_chunks is not None and len(formed.groups) == 1:
        count = len(formed.parts[0].origins[0].units)
        formed.warnings += (
            f"by_chunks = {request.by_chunks} makes one group of all rows, which lie in {count} row{'s'[: count != 1]} "
            "of chunks, and standard errors take several: give a label for each row (groups), or store smaller chunks",
        )
    return formed


def _no_gram_text(store: str | Path, spec: dict[str, Any] | None) -> str:
    place = quote(str(store))
    if spec is not None:
        return f"{store} is the store of a run, not of a Gram: form a Gram of its data with `npmdask gram SOURCE G`"
    if Path(store).is_file():
        return f"{store} is a file, not a stored Gram: form one with `npmdask gram {place} G`, and name G here"
    if (Path(store) / "zarr.json").exists():
        return f"{store} holds data and no Gram: form one with `npmdask gram {place} G`, and name G here"
    return f"there is no Gram in {store}: form one with `npmdask gram SOURCE {place}`"


def _listing(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:SHOWN])) + (", ..." if len(names) > SHOWN else "")


def _unused_name(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name} ({number})"
    taken.add(found)
    return found


def _require_no_overlap(stores: Sequence[GramStore]) -> None:
    """Raise RefusedError where two of them have the same rows."""
    seen: dict[tuple[int, ...], str] = {}
    for store in stores:
        keys = set().union(*(part.keys for part in store.parts))
        both = [key for key in keys if key in seen]
        if both:
            raise RefusedError(
                f"{len(both)} of {len(keys)} rows of chunks of {store.store} are in {seen[both[0]]} too (the same "
                "checksums): their rows would count twice. Leave one of them out; or, if they are other rows that "
                "happen to be equal, say so (distinct=True, --distinct)"
            )
        seen |= dict.fromkeys(keys, store.store)


def _remaining_origins(part: GramPart, keys: set[tuple[int, ...]]) -> Iterator[Any]:
    """The origins of a part without some rows of chunks, each row of chunks that is left on its own."""
    for origin in part.origins:
        heights = origin.heights if len(origin.heights) else np.zeros(len(origin.chunks), np.int64)
        left = [i for i in range(len(origin.chunks)) if (int(heights[i]), *map(int, origin.chunks[i])) not in keys]
        if left:
            yield replace(
                origin,
                **{name: getattr(origin, name)[left] for name in ("chunks", "looks")},
                heights=origin.heights[left] if len(origin.heights) else origin.heights,
            )


def _write_store(
    dest: str | Path, like: GramStore, made: str, parts: Sequence[tuple[GramPart, Callable[[], GramSums]]]
) -> GramStore:
    """A store of these parts, or the rest of it where a kill left one."""
    identity = hashlib.sha256(" ".join(sorted(part.identity for part, _ in parts)).encode()).hexdigest()
    data = {name: value for name, value in like._spec["data"].items() if name != "kind"}
    spec = gram_spec(data, {"made": made, "from": identity}, int(like._spec["run"]["seed"]))
    with RunStore(dest) as held:
        bind_spec(spec, held, {}, once={"source": None})
        if like._labels is not None:
            held.write_part("labels", *like._labels.bundle())
        kept = []
        for number, (part, sums) in enumerate(parts):
            kept.append(replace(part, name=f"{PREFIX}{number:04d}-{part.identity[:12]}"))
            write_sums(held, kept[-1], sums())
        if held.last_meta() is None:
            list_parts(held, kept, {"rows": 0, "bytes": 0})
    return GramStore(dest)


# A stored Gram as a source.


@dataclass(frozen=True, kw_only=True)
class StoredGramRule(ResidualRule):
    """The residual rule of a run that has no rows: what is not certified at once is never converged."""

    def _max_steps_text(self, history: list[StepView]) -> str:
        now = history[-1]
        return (
            f"not converged: the stored Gram certifies {len(now.ritz_values) - self._open_pairs(now).size} of "
            f"{len(now.ritz_values)} pairs, the others to a relative residual of {float(self.relative(now).max()):.1e} "
            f"only (tol {self.tol:.1e}); verify them with a pass over the rows, `npmdask run SOURCE --start` with the "
            "store of this run, or use a larger tol"
        )


class GramRoute(Route):
    """A stored Gram, which is decomposed."""

    def takes(self, request: Request, source: Source, earlier: Earlier) -> str:
        """Return what needs rows; "" where nothing does."""
        asked = {
            **attributes(request, "privacy", "low_rank_tol"),
            "mechanism": request.mechanism != "none",
            "a start": earlier.start,
            "deflation": earlier.locked,
        }
        gram, name = f"{source.path} is a stored Gram", first_of(asked)
        refused = {
            f"{gram}, without rows: {name} is for rows; leave it out": name,
            f"{gram}, which is decomposed and not multiplied: leave algorithm = {request.algorithm!r} out": (
                request.algorithm not in ("auto", "gram")
            ),
            f"{gram}, without rows: algorithm.options are for rows; leave them out": request.options is not None,
        }
        return first_of(refused)

    def problem(self, request: Request, source: Source, earlier: Earlier) -> Problem:
        """Return the problem, of a share with the number of components that explain it."""
        reader: Any = source.reader
        request = replace(
            request,
            algorithm="gram",
            max_steps=1,
            iteration_rank=None if request.iteration_rank == "auto" else request.iteration_rank,
        )
        share = request.target_rank if isinstance(request.target_rank, float) else None
        if share is not None:
            request = replace(request, target_rank=_rank_of(source, request, share))
        k, p = ranks_of(source, request, 0)
        tol = default_tol(reader.dtype) if request.tol is None else request.tol
        squared = source.kind in ("matrix", "sparse")
        return Problem(
            source=source,
            request=request,
            algorithm=StoredGramPairs(target_rank=k, iteration_rank=p, tol=tol, probed=reader.probed),
            rule=StoredGramRule(tol=tol, max_steps=1, d=source.shape[1], squared=squared),
            share=share,
        )

    def release(self, problem: Problem, session: Session) -> PlainRelease:
        """Return the matrix, of which a pass reads no rows."""
        return PlainRelease(problem, session)


OF_GRAM = GramRoute()


def _rank_of(source: Source, request: Request, share: float) -> int:
    """Count the components that explain a share of the variance, from the whole spectrum."""
    posed = Problem(
        source=source,
        request=request,
        algorithm=StoredGramPairs(target_rank=1, iteration_rank=1, probed=1),
        rule=StoredGramRule(tol=1.0, max_steps=1, d=source.shape[1]),
    )
    operator: Any = posed.operator(source.statistics)
    trace = trace_of(source, operator, whatever_it_takes=False) or 0.0
    values = np.linalg.eigvalsh(operator.matrix())[::-1]
    return min(smallest_rank(values, share * trace) or len(values), *source.shape)


def open_stored_gram(folder: Path, asked: Asked) -> Source | None:
    """Open a folder that holds a stored Gram; None of another run."""
    spec = RunStore(folder).read_spec()
    if spec is None or spec["data"].get("kind") != STORED_GRAM:
        return None
    return GramStore(folder).as_source(asked.kind)


def gram(
    source: Any,
    store: str | Path,
    *,
    kind: str | None = None,
    dim: str | int | None = None,
    columns: Any = None,
    by_chunks: int | None = None,
    groups: Any = None,
    precision: Literal["float64", "float32"] = "float64",
    seed: int = 0,
    memory: str | int | None = None,
    workers: int = 0,
    threads: int | None = None,
    cluster: Any = None,
    certificates: str | Path | None = None,
    commit_seconds: float = COMMIT_SECONDS,
    observer: Observer | None = None,
    progress: bool = False,
) -> GramStore:
    """
    Form the Gram matrix of all columns in one pass and keep it, so that later questions about them read no rows.

    Called again after rows were appended, it reads only those. A call that was killed resumes within its pass.

    Parameters
    ----------
    source : str, Path, zarr.Array, zarr.Group, array_like, sparse matrix, Dask array or table, shape (m, d)
        As for :func:`top_k`.
    store : str or Path
        Folder or URL to keep it in; about ``4 d^2`` bytes for each Gram matrix.
    kind : {"samples", "matrix", "sparse"}, optional
        As for :func:`top_k`.
    dim : str or int, optional
        As for :func:`top_k`.
    columns : list of str, "numeric" or dict, optional
        As for :func:`top_k`.
    by_chunks : int, optional
        Number of rows of chunks for each Gram matrix: groups of rows that a jackknife can leave out. By default one for
        all rows.
    groups : sequence or str, optional
        A label for each row (m), or the name of a column of ``obs`` of an AnnData or of a coordinate of the rows. Each
        label gets its own Gram matrix, all from the same pass; any of them can be used, left out or removed. Dense
        rows only. Labels are compared as text; a row without one (None, NaN, "") is refused.
    precision : {"float64", "float32"}, default "float64"
        Precision of the products of tiles, which are added up in float64. float32 takes half the arithmetic, and
        certifies 1e-6 only in about half of all cases: its error is measured in the same pass and included in every
        bound.
    seed : int, default 0
        Seed of the probes that measure this error; Gram matrices with the same seed can be merged.
    memory : str or int, optional
        Limit for all processes together, like "1GiB"; checked before the pass. By default none.
    workers : int, default 0
        Worker processes; 0 uses only this one. Like the next two, it changes no bit of the result.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    cluster : str, Path, distributed.Client or cluster object, optional
        As for :func:`top_k`.
    certificates : str or Path, optional
        As for :func:`top_k`.
    commit_seconds : float, default 30.0
        Seconds between two commits within a pass.
    observer : Observer, optional
        Called for the plan and for every pass.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    GramStore
        The open store; ``rows_read`` and ``bytes_read`` are those of this call.

    Raises
    ------
    BadInputError
        The data have no such Gram matrix, or values that are not finite or too large.
    RefusedError
        Too little memory; a store of other data; or rows that were changed instead of appended.

    See Also
    --------
    top_k : Accepts the store as its source.
    GramStore : Spectrum, choice of columns, merge, removal, jackknife.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = npmdask.gram(rows, folder + "/G", kind="samples")
    ...     counts = [store.components_for(share) for share in (0.5, 0.9, 0.99)]
    >>> counts
    [4, 11, 18]
    """
    opened = open_source(source, kind, dim, columns=columns)
    resources = asked_resources(memory, threads, workers, cluster, certificates, commit_seconds)
    labels = None if groups is None else RowGroups.of_labels(labels_called(groups, source, opened))
    request = GramRequest(by_chunks=by_chunks, groups=labels, precision=precision, seed=seed)
    with with_progress(observer, progress) as told:
        return form_gram(opened, store, request, resources, told)
