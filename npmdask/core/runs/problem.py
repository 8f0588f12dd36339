"""Define the problem, with everything that determines the result, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from npmdask.core import features
from npmdask.core.algorithms import Algorithm, GramKrylov, PowerOnDisk, Query, Result, RowGramKrylov, is_ours
from npmdask.core.algorithms.stopping import StoppingRule
from npmdask.core.aspects import Extent, ordered, reading_of, seen, spec_of
from npmdask.core.checkpoint.schema import table
from npmdask.core.checkpoint.store import CHECKPOINT_FORMAT, RunStore
from npmdask.core.execution.memory import ITERATION_RANK, Chosen
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.core.operators import Operator, View, of_layout
from npmdask.core.operators.view import AS_STORED
from npmdask.core.runs.mechanisms import Mechanism, NoNoise
from npmdask.core.runs.release import EVERYTHING, Disclosure, Recipe
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.kinds import Traits, traits_of
from npmdask.core.storage.labels import Axis
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, package_version, require

STORED_GRAM = "gram"  # the kind of data in the parameters of a store that holds a Gram, and no run
DEFAULT_STEPS = 200
AUTO = "auto"  # in place of a number of components
CHOSEN = "chosen"  # part of a store that says how that was found
FIRST_STAGE = 16  # columns of the first stage of a search for the rank


@table("report")
@dataclass(frozen=True, kw_only=True)
class Presentation:
    """Presentation of the answer of a run, in reports and exports: see npmdask.rotations.presentation."""

    rotate: str | None = None
    align_to: str | None = None
    independent_rows: int | None = None
    bootstrap: int | None = None
    colour: str | None = None
    grid: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return the request by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request: public, printable, with the names of the configuration file."""

    target_rank: int | float | str  # k; a share of the variance that k is to explain, in (0, 1); or "auto", of "em"
    iteration_rank: int | Literal["auto"] | None = None  # auto: as many as cost no time
    algorithm: str = "auto"  # auto: see automatic.py; or an oracle of records
    options: dict[str, Any] | None = None  # of the algorithm
    max_steps: int | None = None  # 200; of a private power method chosen by its plan
    tol: float | None = None
    low_rank_tol: float | None = None  # see stopping_rules.py
    center: bool = False
    scale: bool = False
    seed: int = 0
    mechanism: str = "none"
    stddev: float = 0.0
    privacy: Any = None  # npmdask.Privacy
    operator: str | None = None  # a name that ``register_operator`` made known; None: the data's own
    aspects: tuple[Any, ...] = ()  # how the data are seen: npmdask.core.aspects; None among them are left out
    presentation: Presentation | None = None  # changes no bit of the answer: no parameter that a store is bound to

    def __post_init__(self) -> None:
        object.__setattr__(self, "aspects", ordered(self.aspects))

    @property
    def reading(self) -> Any:
        """The aspect that changes entries; None: they are read as they are stored."""
        return reading_of(self.aspects)

    @property
    def route_key(self) -> str:
        """The key of the route that a part of the request asks for, in the table of routes; "" if none does."""
        return next((str(each.route) for each in (self.privacy, self.reading) if each is not None), "")

    def seen(self, source: Source, view: View = AS_STORED) -> View:
        """Return how the question sees what is read of a source, of how it would without its aspects."""
        return seen(self.aspects, Extent.of(source), view)


@dataclass(frozen=True, kw_only=True)
class Method:
    """Description of an algorithm of a feature, as far as the core must know it, by its word.

    Parameters
    ----------
    private : it needs a budget.
    takes_options : it has ``algorithm.options``.
    counts_steps : the number of releases follows from these, and not from ``max_steps``.
    of_matrices : its records may be matrices.
    of_any_rank : what is computed does not depend on the number of components.
    refusal : why it does not take a source, or None.
    make : from source, request and public rule to the recipe of a private one.
    """

    private: bool = False
    takes_options: bool = True
    counts_steps: bool = False
    of_matrices: bool = False
    of_any_rank: bool = False
    refusal: Callable[[Source], BadInputError | None] | None = None
    make: Callable[[Source, Request, Any], Recipe] | None = None


OF_OPERATOR = ("values", "vectors", "products", "residual_norms")  # of a result: kept as operator_values, ...


def arrays_of_operator(result: Result) -> dict[str, np.ndarray]:
    """The pairs of the operator, as an answer keeps them for deflation."""
    return {f"operator_{name}": getattr(result, name) for name in OF_OPERATOR}


@dataclass(frozen=True, kw_only=True)
class Locked:
    """The answer of a finished run, whose complement is to be searched (deflation)."""

    result: Result
    identity: str  # of the run it comes from: part of the parameters of this one


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start of a run in place of a random block: the last vectors of an earlier run (warm start)."""

    basis: Block  # d x j, orthonormal, leading columns first
    identity: str  # of the basis: part of the parameters of the run
    warning: str | None = None  # what should be known of the earlier run
    passes: int = 0  # spent on the way to it, where that was part of this run (a search for the rank)
    random_columns: int = 0  # beside it at least; 0: of stages of a search, and of runs begun before there were any
    axes: tuple[Axis, ...] = ()  # what the columns of the earlier run are called


class Earlier(NamedTuple):
    """Results of other runs that a run is given.

    Parameters
    ----------
    locked, start : what they found, to be searched beside, or to begin from.
    share : what was asked for, where the number of components in the request is the one that was found for it.
    """

    locked: Locked | None = None
    start: Start | None = None
    share: float | str | None = None


class DerivedOperator(Protocol):
    """Another operator than the data's own: moments of documents or of samples, as a matrix or as a tensor.

    ``kind``: how values are read, "symmetric" (eigenvalues) or "tensor" (weights). ``spec``: its public parameters, and
    digests of its arrays. ``certified``: whether the answer is of the data as they are, so that it gets a certificate.
    """

    @property
    def kind(self) -> str: ...
    @property
    def certified(self) -> bool: ...
    def dimension(self, source: Source) -> int: ...
    def operator(self, source: Source) -> Operator: ...
    def spec(self) -> dict[str, Any]: ...


OPERATORS: dict[str, Callable[[Source], DerivedOperator]] = {}


def register_operator(name: str, make: Callable[[Source], DerivedOperator]) -> None:
    """
    Make an operator of yours known to :func:`npmdask.top_k` (``operator=name``), configurations and resume.

    Its answer gets no certificate, as npmdask knows no bound of it.

    Parameters
    ----------
    name : str
        What it is asked for by, in each process that uses it; part of a run's identity.
    make : callable
        Called with the opened source (``source.dimension`` is d, its number of columns); returns the operator on it,
        symmetric, shape (d, d), as a :class:`~npmdask.core.runs.stages.MomentOperator`.

    Raises
    ------
    BadInputError
        The name is taken, or empty.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> from npmdask.core.operators import Gram, View
    >>> from npmdask.core.runs.problem import OPERATORS
    >>> from npmdask.core.runs.stages import MomentOperator
    >>> weights = np.arange(1.0, 101.0)
    >>> def weighted(source):
    ...     def made(reader):
    ...         return Gram(reader=reader, weight=1 / weights.sum(), view=View(row_weight=weights))
    ...     side = source.dimension
    ...     return MomentOperator(kind="symmetric", name="weighted", side=side, made=made, facts={}, arrays=(weights,))
    >>> npmdask.register_operator("weighted rows", weighted)
    >>> rows = np.random.default_rng(0).standard_normal((100, 6))
    >>> found = npmdask.top_k(rows, 2, operator="weighted rows")
    >>> np.allclose(found.values, np.linalg.eigvalsh(rows.T @ np.diag(weights) @ rows / weights.sum())[:-3:-1])
    True
    >>> OPERATORS.pop("weighted rows") is weighted
    True
    """
    if not name or OPERATORS.get(name, make) is not make:
        raise BadInputError(f"there is an operator {name!r} already: give it another name")
    OPERATORS[name] = make


def lies_elsewhere(source: Source) -> bool:
    """Say whether no rows of a source are read here: they lie with nodes, or are summed in a stored Gram."""
    return bool(getattr(source.reader, "elsewhere", False))


def representation_of(reader: Any) -> Any:
    """Return how entries of a reader are told that are no real numbers; None of those that are."""
    return features.required("representations", "complex") if getattr(reader, "parts", 1) == 2 else None


class Route(Protocol):
    """Say which questions are answered in one way, and how: of a feature, by its key in the table ``routes``.

    :func:`npmdask.core.runs.build.make_problem` finds it, and asks it for whatever depends on how the answer is found.
    What a person may not ask for there is refused in one place: ``takes``.

    Attributes
    ----------
    certified : bool
        Whether a bound of the answer is proved; of other packages' routes it never is.
    chooses : bool
        Whether it finds the number of components.
    surveys : bool
        Whether means of columns are to be found before its products.
    settled : bool
        Whether a request leaves nothing open that a look at this machine would choose.
    algorithms : tuple of str
        Names of its own, with options of their own.
    """

    certified: ClassVar[bool] = True
    chooses: ClassVar[bool] = False
    surveys: ClassVar[bool] = True
    settled: ClassVar[bool] = False
    algorithms: ClassVar[tuple[str, ...]] = ()

    def takes(self, request: Request, source: Source, earlier: Earlier) -> str:
        """Return why it does not answer a question, as a person reads it; "" where it does."""

    def problem(self, request: Request, source: Source, earlier: Earlier) -> Problem:
        """Return the problem of a question that it takes. Raises BadInputError for values that are wrong."""

    def release(self, problem: Problem, session: Any) -> Any:
        """Return what the loop asks for products: a :class:`npmdask.core.runs.release.Release`."""

    def operator(self, problem: Problem, view: View) -> Operator | None:
        """Return what multiplies its blocks; None: what goes with the layout of the data."""
        return None

    def restored(self, held: RunStore, spec: dict[str, Any]) -> Problem:
        """Return the problem that a run.json describes which has a table named like the route."""
        raise AssertionError(f"no run has a table of {type(self).__name__}")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Everything that determines the result, bit for bit."""

    source: Source
    request: Request
    algorithm: Algorithm[Any]
    mechanism: Mechanism = field(default_factory=NoNoise)
    rule: StoppingRule
    locked: Locked | None = None
    start: Start | None = None
    share: float | str | None = None  # of the variance, asked for in place of a number of components; or "auto"
    recipe: Recipe | None = None  # of what is released: by a private run, or by nodes; None: products as they are
    derived: DerivedOperator | None = None  # through which the data are seen
    route: Route | None = None  # by which it was made; None: by products of a matrix
    chosen: Chosen | None = ITERATION_RANK  # what the columns of a block follow from; None: nothing that was asked for

    @property
    def private(self) -> Any:
        """The recipe of a private run on data that lie here; None of any other."""
        return None if self.recipe is None or self.recipe.distributed else self.recipe

    @property
    def nodes(self) -> Any:
        """The recipe of a centre, whose data lie with its nodes; None of any other."""
        return self.recipe if self.recipe is not None and self.recipe.distributed else None

    @property
    def protected(self) -> bool:
        """Say whether noise protects the people in the data, here or at the nodes."""
        return self.recipe is not None and self.recipe.private

    @property
    def disclosure(self) -> Disclosure:
        """Say what may be disclosed of the run besides its answer."""
        return EVERYTHING if self.recipe is None else self.recipe.disclosure

    @property
    def start_stream(self) -> tuple[str, ...]:
        """Purpose of the random stream of the first block; beside a start another one than the earlier run's."""
        if self.start is None or not self.start.random_columns:
            return ("start",)
        return ("start", self.start.identity)

    @property
    def searches(self) -> bool:
        """Say whether the number of components is still to be found, by a search."""
        return isinstance(self.request.target_rank, float)

    @property
    def chooses(self) -> bool:
        """Say whether held-out entries choose it."""
        return self.request.target_rank == AUTO

    @property
    def d(self) -> int:
        return self.source.dimension if self.derived is None else self.derived.dimension(self.source)

    @property
    def representation(self) -> Any:
        """Return how entries are told that are no real numbers; None where they are."""
        return representation_of(self.source.reader)

    @property
    def ranks(self) -> tuple[int, int]:
        """k and p as people count them: a complex vector is two real ones of the algorithm."""
        parts = self.source.parts
        return self.algorithm.target_rank // parts, self.algorithm.iteration_rank // parts

    @property
    def most_values(self) -> int:
        """Number of values of the question: as many as columns; of singular values, also at most as many as rows."""
        singular = self.traits.singular and self.private is None
        columns = self.d // self.source.parts
        return min(self.source.shape[0], columns) if singular else columns

    @property
    def kind(self) -> str:
        """Return the kind by which the values of the answer are interpreted."""
        return self.source.kind if self.derived is None else self.derived.kind

    @property
    def traits(self) -> Traits:
        """Traits of the kind of the data."""
        return traits_of(self.kind)

    @property
    def of_matrix(self) -> bool:
        """Say whether the answer is a subspace of the data's own: what a planted basis can be compared with."""
        return self.derived is None and not self.traits.cube

    @property
    def certified(self) -> bool:
        """Say whether the answer gets a certificate: of the data's own matrix, or of one made of its entries alone."""
        if self.route is not None and not (self.route.certified and is_ours(self.route)):
            return False
        return self.of_matrix or (self.derived is not None and self.derived.certified)

    def operator(self, columns: ColumnStatistics | None = None, *, first: bool = False) -> Operator:
        """The operator, with the means and deviations of columns that centring and scaling need.

        ``first``: of the first step, in which a matrix that is only said to be symmetric is read whole, so that
        X^T (A X) shows whether it is; after that, as from the start if it was stored as symmetric, by its triangle.
        """
        reader: Any = self.source.reader
        kind, traits = self.source.kind, self.source.traits
        if self.recipe is not None:
            return self.recipe.operator(self.source)
        if self.derived is not None:
            return self.derived.operator(self.source)
        own = "complex" if self.source.parts == 2 else kind if traits.square and reader.layout == "dense" else ""
        if own:
            view = None if traits.square else self.view(columns)
            return features.required("operators", own)(self.source, view, first=first)
        of = of_layout(reader.layout)
        if traits.mirrored:
            return of(reader=reader)
        view = self.view(columns)
        if self.route is not None and (operator := self.route.operator(self, view)) is not None:
            return operator
        weight = 1.0 if traits.singular else 1.0 / view.weight_of_rows(self.source.shape[0])
        return of(reader=reader, weight=weight, view=view)

    def view(self, columns: ColumnStatistics | None) -> View:
        """Return the question's view of the stored columns, of these means and deviations."""
        asked = self.request
        view = View.of_columns(columns, center=asked.center, scale=asked.scale)
        if (own := self.representation) is not None and asked.scale and columns is not None:
            scaled = View.of_columns(columns.of_moduli(own.moduli), center=False, scale=True)
            view = replace(scaled, shift=view.shift)
        return asked.seen(self.source, view)

    def sides(self) -> list[Any]:
        """Every operator that a run of this problem may ask, with made-up column statistics: enough for their sizes."""
        nothing, one = (np.broadcast_to(value, self.d) for value in (0.0, 1.0))  # of many columns two arrays count
        known = ColumnStatistics(mean=nothing, std=one, rows=self.source.shape[0])
        first, later = (self.operator(known, first=first) for first in (True, False))
        if isinstance(self.algorithm, PowerOnDisk):
            from npmdask.core.operators.tiled_gram import TiledGram  # which most runs do not need

            plain: Any = later  # SparseGram
            return [TiledGram(reader=plain.reader, weight=plain.weight, view=plain.view)]
        if isinstance(self.algorithm, RowGramKrylov):
            queries = (self.algorithm.first_query, Query(np.zeros((0, 0)), of_rows=self.algorithm.parts))
            return [*(first.asked(query) for query in queries), later]
        if isinstance(self.algorithm, GramKrylov):
            return [first.asked(self.algorithm.first_query), later]
        alternates = getattr(self.algorithm, "alternates", False)
        return [first, later.asked(Query(block=np.zeros((0, 0)), transposed=alternates))]

    @property
    def ends_formed(self) -> bool:
        """Say whether the run ends with the pairs of ``A A^T``, and never multiplies by ``A^T A``."""
        mine: Any = self.algorithm
        return isinstance(mine, RowGramKrylov) and self.rule.max_steps <= mine.pairs_of_formed

    @property
    def needs_moments(self) -> bool:
        """Say whether column means are needed and were not recorded at ingest.

        Then one more pass is made, unless one that forms the matrix finds them.
        """
        center = self.request.center and not isinstance(self.algorithm, GramKrylov)
        gaps = getattr(self.source.reader, "counts_gaps", False) and not isinstance(self.algorithm, RowGramKrylov)
        if self.route is not None and not self.route.surveys:  # its one pass finds them
            return False
        wanted = center or self.request.scale or self.share is not None or gaps
        return wanted and self.source.column_mean is None and not self.source.traits.square

    def spec(self) -> dict[str, Any]:
        """The parameters that a checkpoint is bound to, by name."""
        more: dict[str, Any] = {} if self.recipe is None else self.recipe.tables()
        options = getattr(self.algorithm, "options", self.request.options)
        if self.derived is not None:
            name, spec = self.request.operator, self.derived.spec()
            more |= {"lens": spec} if name is None else {"operator": {"registered": name, **spec}}
        aspects = spec_of(self.request.aspects)
        own: dict[str, Any] = {
            "data": {
                "fingerprint": self.source.fingerprint,
                "shape": list(self.source.shape),
                "dtype": self.source.dtype.str,
                "kind": self.source.kind,
                "center": self.request.center,
                "scale": self.request.scale,
            },
            "algorithm": {
                "name": self.algorithm.name,
                "target_rank": self.request.target_rank if self.searches or self.chooses else self.ranks[0],
                "iteration_rank": None if self.searches or self.chooses else self.ranks[1],
                "share": self.share,
                **({} if options is None else {"options": options}),
            },
            "mechanism": self.mechanism.event(),
            "stop": {
                **attributes(self.rule, "tol", "max_steps", "until_share"),
                **({"low_rank_tol": self.request.low_rank_tol} if self.request.low_rank_tol else {}),
            },
            "run": {
                "seed": self.request.seed,
                "deflates": self.locked.identity if self.locked else None,
                "starts_from": self.start.identity if self.start else None,
                **({"random_columns": self.start.random_columns} if self.start and self.start.random_columns else {}),
            },
            "version": {"npmdask": package_version(), "checkpoint_format": CHECKPOINT_FORMAT},
        }
        return more | aspects | {table: keys | aspects.get(table, {}) for table, keys in own.items()}


# How many components, and how many columns a block has.


def checked_rank(rank: Any) -> int | float | str:
    """Return a number of components (int), a share of the variance (float strictly between 0 and 1), or "auto".

    Raises
    ------
    BadInputError
        None of these.
    """
    if isinstance(rank, str) and rank == AUTO:
        return AUTO
    if isinstance(rank, int | np.integer) and not isinstance(rank, bool):
        return int(rank)
    if isinstance(rank, float | np.floating) and 0 < rank < 1:
        return float(rank)
    raise BadInputError(
        f"target_rank = {rank!r} is neither a whole number of components (write 1, not 1.0) nor a share of the "
        "variance strictly between 0 and 1, like 0.95"
    )


def ranks_of(source: Source, request: Request, locked: int) -> tuple[int, int]:
    """Return k and p, in columns of the data; ``locked``: how many components are found already."""
    width = source.dimension // source.parts
    smallest = min(source.shape[0], width)
    if not isinstance(request.target_rank, int):
        return min(FIRST_STAGE, smallest), min(FIRST_STAGE, smallest)
    k = request.target_rank
    if k < 1 or k + locked > smallest:
        more = f" (and {locked} are found already)" if locked else ""
        raise BadInputError(
            f"target_rank = {k} is not possible: the data are {source.shape[0]} x {source.shape[1]}, so at most "
            f"{smallest} components exist{more}"
        )
    room = width - locked
    if request.iteration_rank == "auto":
        raise BadInputError('iteration_rank = "auto" is chosen by top_k and `npmdask run`; give a number here')
    p = default_rank(k, room) if request.iteration_rank is None else request.iteration_rank
    require(p >= k, f"iteration_rank = {p} is smaller than target_rank = {k}; leave it out or use {2 * k}")
    require(p <= room, f"iteration_rank = {p} is larger than the {room} columns there are; leave it out")
    return k, p


def default_rank(k: int, room: int) -> int:
    """Return p for k wanted vectors by default, with ``room`` columns to choose from.

    Twice as many, up to 64: beyond that columns cost more than the passes that they save (decision 11).
    """
    return min(max(k + 10, min(2 * k, 64)), room)
