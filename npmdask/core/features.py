"""The tables: what a feature adds to npmdask, by name. The one place where a module is named by a string.

The core asks a table by a key that a person or a store gave, and gets what the feature has under it. So nothing of a
feature is imported before it is asked for, and to delete a feature is to delete its folder. Features of other packages
come by the entry point group ``npmdask.features``: each entry names a :class:`Feature`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from npmdask.errors import BadInputError, RefusedError

GROUP = "npmdask.features"
PACKAGE = Path(__file__).parents[1]
Table = Mapping[str, str]  # from a key to "module:name"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """Tables that a feature adds, each from a key to ``"module:name"``.

    Parameters
    ----------
    name : what it is called where it is missing.
    aspects : how a question sees the data, by its place in run.json: an :class:`npmdask.core.aspects.Aspect`.
    keywords : what makes an aspect of keywords of a public call, by their names, "name=default" where it is not None;
        of ours, whose calls have these keywords.
    routes : how a question is answered, by the layout of its data, or what else tells that it is no plain one:
        :class:`npmdask.core.runs.problem.Route`. A table of run.json with such a key becomes a question again by it.
    algorithms : words of ``algorithm``: :class:`npmdask.core.runs.problem.Method`.
    options : of the power method, that an algorithm of the feature has.
    tables : schemas of tables of run.json.
    withheld : tables of run.json of runs that tell nothing of their data but what they release.
    settings : tables of a configuration that make an aspect, by their name: a :class:`npmdask.config.AspectTable`.
    stream_algorithms : of streams, by name.
    operators : how data act on a block, by their layout.
    kinds : run kinds, by the kind of data in run.json, or the name of its algorithm.
    searches : how many components there are, by how they were asked for.
    presenters : who presents an answer, by the table of the configuration that asks for it, or the export.
    observers : who watches a run, by what is special about it.
    choices : who chooses what a question leaves open, by what that is or by the layout of the data.
    fetchers : what reads arrays of a store that is no folder, by the module of its type, or of its errors; "network".
    sources : who opens data, by ``scheme://`` of a URL, the module of a type, or what lies at a path.
    representations : how entries are told that are no real numbers: "complex".
    readers : what reads entries that are no rows of real numbers, by their layout in a store; "complex".
    executors : what makes passes or sums elsewhere: "cluster", "device".
    stores : what carries the store of a run whose place is a URL, by its scheme.
    methods : what a finished answer can be asked, by the class and the name of its method.
    notes : who notes what is odd about an answer, by whose answer it is.
    statements : how wrong an answer can be, by the kind of its data, or whose it is.
    commands : of the command line: what adds their arguments, by their word.
    managed : what commands that manage runs ask of a feature, by what it is.
    caches : what lets ``npmdask gc --cache`` take copies that no process uses, by their folder.
    needs : features without which it cannot be.
    """

    name: str
    aspects: Table = field(default_factory=dict)
    keywords: Table = field(default_factory=dict)
    routes: Table = field(default_factory=dict)
    algorithms: Table = field(default_factory=dict)
    options: Table = field(default_factory=dict)
    tables: Table = field(default_factory=dict)
    withheld: tuple[str, ...] = ()
    settings: Table = field(default_factory=dict)
    stream_algorithms: Table = field(default_factory=dict)
    operators: Table = field(default_factory=dict)
    kinds: Table = field(default_factory=dict)
    searches: Table = field(default_factory=dict)
    presenters: Table = field(default_factory=dict)
    observers: Table = field(default_factory=dict)
    choices: Table = field(default_factory=dict)
    fetchers: Table = field(default_factory=dict)
    sources: Table = field(default_factory=dict)
    representations: Table = field(default_factory=dict)
    readers: Table = field(default_factory=dict)
    executors: Table = field(default_factory=dict)
    stores: Table = field(default_factory=dict)
    methods: Table = field(default_factory=dict)
    notes: Table = field(default_factory=dict)
    statements: Table = field(default_factory=dict)
    commands: Table = field(default_factory=dict)
    managed: Table = field(default_factory=dict)
    caches: Table = field(default_factory=dict)
    needs: tuple[str, ...] = ()


FEATURES: tuple[Feature, ...] = (
    Feature(name="accounting"),
    Feature(
        name="advice",
        methods={
            "Solution.component_counts": "npmdask.advice.finished:component_counts",
            "Solution.north_errors": "npmdask.advice.finished:north_errors",
            "Solution.mixes_with_next": "npmdask.advice.finished:mixes_with_next",
        },
        notes={"a plain answer": "npmdask.advice.notes:notes_of"},
    ),
    Feature(name="audit", needs=("dp_pca", "missing")),
    Feature(
        name="cluster",
        executors={
            "cluster": "npmdask.cluster.workers:executor_of",
            "address": "npmdask.cluster.clusters:scheduler_of",
            "a scheduler file": "npmdask.cluster.clusters:is_scheduler_file",
        },
        needs=("gpu",),
    ),
    Feature(
        name="complex",
        operators={"complex": "npmdask.complex.operator:of_complex"},
        representations={"complex": "npmdask.complex.answers:Representation"},
        readers={"complex": "npmdask.complex.reader:in_parts"},
        needs=("symmetric",),
    ),
    Feature(
        name="containers",
        operators={"matrix-free": "npmdask.containers.matrix_free_operator:MatrixFree"},
        sources={
            "object": "npmdask.containers.containers:HELD",
            "grid": "npmdask.containers.containers:open_along",
            "rows": "npmdask.containers.computed:open_given",
        },
        needs=("formats",),
    ),
    Feature(name="dilation"),
    Feature(
        name="dp_pca",
        algorithms=dict.fromkeys(("k-dp-pca", "k-dp-ojas", "k-dp-power"), "npmdask.dp_pca.release:METHOD"),
        needs=("privacy",),
    ),
    Feature(
        name="estimators",
        methods={"Solution.to_anndata": "npmdask.estimators.annotated:write_components"},
        needs=("complex", "containers", "missing", "rotations", "streaming", "weights"),
    ),
    Feature(name="experiments", needs=("dp_pca", "report")),
    Feature(
        name="federated",
        routes={"nodes": "npmdask.federated.coordinator:NODES"},
        tables={"nodes": "npmdask.federated.coordinator:TABLE"},
        withheld=("nodes",),
        statements={"nodes": "npmdask.federated.statements:of_run_of_nodes"},
        choices={"nodes": "npmdask.privacy.plan:as_begun"},
        needs=("privacy",),
    ),
    Feature(
        name="formats",
        sources={
            "file": "npmdask.formats.ingest:open_source_at",
            "a path into a file": "npmdask.formats.ingest:file_of",
        },
        caches={"files": "npmdask.formats.ingest:sweep_copies"},
        needs=("symmetric", "writers"),
    ),
    Feature(
        name="gpu",
        executors={"device": "npmdask.gpu.on_device:device_for", "operator": "npmdask.gpu.on_device:on_device"},
        choices={'device = "auto"': "npmdask.gpu.device_choice:settle_device"},
    ),
    Feature(
        name="latent",
        kinds={"mixture": "npmdask.latent.kind:MIXTURE", "ica": "npmdask.latent.kind:ICA"},
        needs=("topics",),
    ),
    Feature(
        name="ledger",
        commands={
            "ledger": "npmdask.ledger.commands:add_ledger",
            "perturb": "npmdask.ledger.commands:add_perturb",
            "audit": "npmdask.ledger.commands:add_audit",
        },
        needs=("accounting", "privacy"),
    ),
    Feature(
        name="manage",
        commands={
            "status": "npmdask.manage.commands:add_status",
            "metrics": "npmdask.manage.commands:add_metrics",
            "gc": "npmdask.manage.commands:add_gc",
            "serve": "npmdask.manage.commands:add_serve",
        },
        needs=("report",),
    ),
    Feature(
        name="missing",
        aspects={"data.missing": "npmdask.missing.rules:Gaps"},
        keywords={"missing=refuse missing_fill missing_values missing_limit": "npmdask.missing.rules:find_gaps"},
        routes={"em": "npmdask.missing.unfilled:BY_MODEL", "pairwise": "npmdask.missing.unfilled:BY_PAIRS"},
    ),
    Feature(
        name="planning",
        observers={"a followed run": "npmdask.planning.predicted_steps:Predictor"},
        choices={
            "forming": "npmdask.planning.plan:forms_sooner",
            'iteration_rank = "auto"': "npmdask.planning.plan:free_columns",
        },
        managed={"time left": "npmdask.planning.forecast:seconds_left"},
        needs=("complex", "gpu", "symmetric", "tensors", "theory", "writers"),
    ),
    Feature(name="prefect", needs=("latent", "planning", "privacy", "rotations", "synthetic", "two_fields")),
    Feature(
        name="privacy",
        routes={"privacy": "npmdask.privacy.route:PRIVATE"},
        algorithms={"covariance": "npmdask.privacy.route:METHOD"},
        options={"momentum": "npmdask.privacy.momentum:MomentumPower"},
        tables={"privacy": "npmdask.privacy.request:Privacy"},
        withheld=("privacy",),
        statements={"private": "npmdask.privacy.statements:of_private_run"},
        choices={"privacy": "npmdask.privacy.plan:choose"},
        needs=("accounting", "symmetric", "tensors", "theory"),
    ),
    Feature(name="private_pca", needs=("estimators", "privacy")),
    Feature(
        name="private_reports",
        kinds={"algorithm input-perturbation": "npmdask.private_reports.noisy_copy:COPY"},
        managed={"the report of a private run": "npmdask.private_reports.page:private_report"},
        needs=("manage", "privacy"),
    ),
    Feature(
        name="remote",
        fetchers={
            **dict.fromkeys(("zarr", "obstore", "npmdask.remote.prefetch"), "npmdask.remote.fetching:STORE"),
            "icechunk": "npmdask.remote.fetching:SNAPSHOT",
            "network": "npmdask.remote.prefetch:grant",
        },
        sources={
            **dict.fromkeys(("s3://", "gs://", "az://", "abfs://", "https://"), "npmdask.remote.fetching:open_url"),
            "repository": "npmdask.remote.fetching:open_in_repository",
        },
        stores=dict.fromkeys(("s3", "gs", "az", "abfs"), "npmdask.remote.run_store:CommitPublisher"),
        caches={"runs": "npmdask.remote.run_store:sweep_copies"},
    ),
    Feature(name="report"),
    Feature(
        name="rotations",
        methods={
            "Solution.rotated": "npmdask.rotations.turned:rotated",
            "Solution.aligned": "npmdask.rotations.turned:aligned",
            "TurnedComponents.aligned": "npmdask.rotations.turned:aligned_again",
        },
        presenters={
            "the [report] table": "npmdask.rotations.presentation:presenter_of",
            "an export that is rotated or aligned": "npmdask.rotations.presentation:turned_arrays",
        },
        needs=("stored_gram",),
    ),
    Feature(
        name="share",
        searches={
            "a share of the variance": "npmdask.share.rank_search:solve_share",
            'target_rank = "auto"': "npmdask.share.rank_search:solve_auto",
        },
        needs=("missing",),
    ),
    Feature(name="sparse_rows", operators={"few sparse rows": "npmdask.sparse_rows.row_gram:BOTH"}),
    Feature(
        name="stored_gram",
        routes={"gram": "npmdask.stored_gram.store:OF_GRAM"},
        operators={"gram": "npmdask.stored_gram.operator:StoredGram"},
        kinds={"gram": "npmdask.stored_gram.kind:GRAM"},
        sources={"run.json": "npmdask.stored_gram.store:open_stored_gram"},
        needs=("advice", "formats", "manage"),
    ),
    Feature(
        name="streaming",
        stream_algorithms={
            "spm": "npmdask.streaming.algorithms.power:StreamPower",
            "oja": "npmdask.streaming.algorithms.oja:Oja",
            "msg": "npmdask.streaming.algorithms.msg:MSG",
            "rmsg": "npmdask.streaming.algorithms.msg:RMSG",
            "mb-msg": "npmdask.streaming.algorithms.msg:MiniBatchMSG",
            "mb-rmsg": "npmdask.streaming.algorithms.msg:MiniBatchRMSG",
            "frequent-directions": "npmdask.streaming.algorithms.frequent_directions:FrequentDirections",
            "online-tensor-power": "npmdask.streaming.algorithms.tensor_power:OnlineTensorPower",
        },
        kinds={"stream": "npmdask.streaming.kind:STREAM"},
        needs=("estimators", "formats", "manage", "theory"),
    ),
    Feature(
        name="symmetric",
        operators={
            "symmetric": "npmdask.symmetric.operator:of_symmetric",
            "triangle": "npmdask.symmetric.operator:Triangle",
            "tensor": "npmdask.symmetric.operator:PackedTensor",
        },
        sources={"tensor": "npmdask.symmetric.writer:open_cube"},
        readers={
            "packed": "npmdask.symmetric.reader:open_packed",
            "tensor": "npmdask.symmetric.reader:open_packed_tensor",
        },
        needs=("writers",),
    ),
    Feature(name="synthetic", needs=("symmetric",)),
    Feature(
        name="tensors",
        routes={"tensor": "npmdask.tensors.route:OF_TENSOR"},
        algorithms={"tensor-power": "npmdask.tensors.route:METHOD"},
        statements={"tensor": "npmdask.tensors.statements:of_tensor_run"},
        needs=("symmetric",),
    ),
    Feature(name="theory", needs=("accounting", "tensors")),
    Feature(name="topics", kinds={"topics": "npmdask.topics.kind:TOPICS"}, needs=("streaming",)),
    Feature(
        name="two_fields",
        kinds={"mca": "npmdask.two_fields.kind:MCA", "cca": "npmdask.two_fields.kind:CCA"},
        needs=("dilation", "estimators", "formats", "manage"),
    ),
    Feature(
        name="weights",
        aspects={"weights": "npmdask.weights.aspect:Weights"},
        keywords={"row_weights column_weights": "npmdask.weights.aspect:find_weights"},
    ),
    Feature(name="writers"),
)


def load(target: str) -> Any:
    """Import what ``"module:name"`` names. Raises RefusedError where it needs a feature that was deleted."""
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise of_gone(error) from error


def of_gone(error: ModuleNotFoundError) -> Exception:
    """Return what to say of a module of a feature that was deleted; the error as it is of any other."""
    package, _, module = (error.name or "").partition(".")
    folder = module.partition(".")[0]
    return missing("this", folder) if package == PACKAGE.name and not (PACKAGE / folder).is_dir() else error


def missing(what: str, owner: str) -> RefusedError:
    """Return what to say where a feature is needed that was deleted."""
    return RefusedError(f"{what} needs the feature {owner!r}, which this npmdask does not have: install it")


def is_there(target: str) -> bool:
    """Say whether a module of npmdask was not deleted; those of others say so themselves when they are imported."""
    package, *parts = target.partition(":")[0].split(".")
    path = PACKAGE.joinpath(*parts)
    return package != PACKAGE.name or path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@cache
def from_outside() -> tuple[Feature, ...]:
    """Features of other packages; looking for them takes longer than a small run, so that it is done once, if ever."""
    return tuple(loaded(GROUP, Feature))


def loaded(group: str, kind: type = object, **which: Any) -> Iterator[Any]:
    """Import what entry points of other packages name: those of a ``group``, or the ones of them with this ``name``.

    Raises
    ------
    BadInputError
        One cannot be imported, or is of another ``kind``.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=group, **which):
        try:
            found = entry.load()
            if not isinstance(found, kind):
                raise TypeError(f"{type(found).__name__} is no {kind.__module__}.{kind.__name__}")
        except Exception as error:  # importing a foreign module may raise anything
            raise BadInputError(f"{entry.value!r}, of a package, cannot be imported ({error!r}): repair it") from error
        yield found


def targets(table: str, *, ours: bool = False) -> Iterator[tuple[str, str]]:
    """Go through keys and targets of a table, those of other packages last, or not at all."""
    for features in (FEATURES,) if ours else (FEATURES, None):
        for feature in from_outside() if features is None else features:
            yield from ((key, target) for key, target in getattr(feature, table).items() if is_there(target))


def found(table: str, key: str) -> Any:
    """Return what a table has under a key, or None."""
    return next((load(target) for name, target in targets(table) if name == key), None)


def required(table: str, key: str) -> Any:
    """Return what a table has under a key.

    Raises
    ------
    RefusedError
        Its feature is not installed here.
    """
    if (there := found(table, key)) is None:
        raise missing(repr(key), owner_of(table, key) or key)
    return there


def of_type(table: str, kind: type) -> Any:
    """Return what a table has under the module of a type, a package of it, or those of a type that it is made of.

    Last comes the key "object", of every type.
    """
    if (table, kind) not in _OF_TYPE:
        held = dict(reversed([*targets(table)]))
        parts = (base.__module__.split(".") for base in kind.__mro__[:-1])
        names = [".".join(each[:n]) for each in parts for n in range(len(each), 0, -1)]
        target = next((held[name] for name in (*names, "object") if name in held), None)
        _OF_TYPE[table, kind] = target and load(target)
    return _OF_TYPE[table, kind]


_OF_TYPE: dict[tuple[str, type], Any] = {}


def require(table: str, key: Any) -> None:
    """Raise RefusedError where the feature that has a key was deleted; nothing is imported."""
    for feature in FEATURES:
        if (target := getattr(feature, table).get(key)) and not is_there(target):
            raise missing(repr(key), feature.name)


def knows(table: str, key: str) -> bool:
    """Say whether a table has a key, of a feature that was deleted too."""
    return bool(owner_of(table, key)) or found(table, key) is not None


def keys(table: str, *, ours: bool = False) -> list[str]:
    """Return all keys of a table; ``ours``: without those of other packages."""
    return [key for key, _ in targets(table, ours=ours)]


def withholds(table: str) -> bool:
    """Say whether a run whose run.json has this table withholds its data; of a feature that was deleted too."""
    return bool(owner_of("withheld", table)) or any(table in feature.withheld for feature in from_outside())


def owner_of(table: str, key: str) -> str:
    """Return the name of our feature that has this key, whether it was deleted or not; "" if none has."""
    return next((feature.name for feature in FEATURES if key in getattr(feature, table)), "")
