"""The house stands: imports go down, one room knows Dask, one loop over steps, no pickle."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "npmdask"

# From the ground floor up. A module imports only from earlier lines.
FLOORS = [
    ["charts", "environment", "errors", "nodes", "randomness", "rounding"],
    ["spectra", "linalg", "accounting.gdp", "convergence", "durations", "log_lines", "options"],
    [
        "moments.blocks",
        "moments.dense",
        "moments.dirichlet",
        "moments.recovery",
        "moments.simplex",
        "moments.whitening",
    ],
    ["moments.models"],
    ["moments"],
    ["stochastic.images"],
    ["nodes.wire"],
    ["nodes.link"],
    ["accounting.budget", "relations._protocol"],
    ["accounting.calibration", "accounting.paper", "relations.matrix", "relations.records", "relations.tensor"],
    ["accounting.allocation", "accounting.shuffling"],
    ["accounting.batching"],
    ["accounting", "relations", "theory.prediction", "theory.ranges"],
    ["theory.measures", "theory.norms", "theory.start"],
    ["theory.likely", "theory.private", "theory.rates"],
    ["theory.power", "theory.stochastic", "theory.tensor"],
    ["theory.composition", "theory.convex", "theory.intermediate", "theory.samples"],
    ["theory.subroutines"],
    ["theory", "assurance.words", "spread"],
    ["certificates.residuals", "certificates.start"],
    ["certificates.levels"],
    ["certificates.recursion", "certificates.words"],
    ["certificates"],
    [
        "assurance.latent",
        "assurance.private",
        "assurance.streams",
        "assurance.tensors",
        "assurance.topics",
    ],
    ["assurance.nodes"],
    ["assurance.kept"],
    ["assurance"],
    ["diagnostics", "memory", "sizes", "storage.checksum", "storage.places", "storage.zarr_door"],
    ["storage.moments", "storage.kinds", "storage.lock", "storage.access"],
    ["storage.bundle", "storage.conventions", "storage.pointer", "storage.remote"],
    ["storage.copies", "storage.objects"],
    ["storage.transfer"],
    ["bringing"],
    ["carrier"],
    ["storage.dense", "storage.symmetry"],
    ["storage.sparse", "storage.triangle"],
    ["storage.tensor", "storage.journal"],
    ["storage.tensor_symmetry", "storage.tensor_writer"],
    ["storage.tensor_memory"],
    ["storage.dense_writer", "storage.sparse_writer"],
    ["storage.packed_writer"],
    ["storage.planted"],
    ["storage.planted_tensor"],
    ["storage.layout", "storage.generate"],
    ["storage.advice"],
    ["storage.formats.common"],
    ["storage.formats.raw", "storage.formats.text", "storage.formats.anndata"],
    ["storage.formats.sorting", "storage.formats.grids"],
    ["storage.formats.compressed"],
    ["storage.formats.numpy_files", "storage.formats.tables", "storage.formats.idx"],
    ["storage.formats.hdf5", "storage.formats.zarr_stores"],
    ["storage.formats.matrix_market", "storage.formats.bag_of_words", "storage.formats.matrices"],
    ["storage.formats.boxes"],
    ["storage.formats.tensors"],
    ["storage.formats"],
    ["storage.ingest_frame"],
    ["storage.tensor_ingest"],
    ["storage.ingest"],
    ["streams._protocol", "streams.chunks", "streams.folder"],
    ["streams.batches"],
    ["streams.directory", "streams.rows", "streams.stored"],
    ["streams.piped"],
    ["streams"],
    ["operators._protocol", "operators.block_strips"],
    ["operators.contraction"],
    ["operators.tensor"],
    ["operators.multilinear"],
    ["operators.gram", "operators.moments", "operators.sparse", "operators.symmetric", "operators.triangle"],
    ["operators.batch", "operators.dilation", "operators.exact", "operators.words"],
    ["operators.sample_blocks", "operators.samples", "operators.triple_blocks", "operators.word_cubes"],
    ["operators.clipping", "operators.bounded"],
    ["operators.clipped"],
    ["operators.clipped_sparse", "operators.record_images", "operators.bounded_tensor"],
    ["nodes.total", "operators"],
    ["passes"],
    ["memory_plan"],
    ["chunked.threads", "chunked.tls"],
    ["chunked.workers"],
    ["chunked"],
    [
        "algorithms._chain",
        "algorithms._protocol",
        "algorithms._stream_protocol",
        "algorithms._factors",
        "algorithms._release_fit",
        "algorithms._tensor_fit",
        "algorithms._tensors",
        "algorithms.capped_simplex",
    ],
    ["algorithms._tensor_search"],
    ["algorithms._tensor_report"],
    ["algorithms._tensor_joint"],
    ["algorithms._tensor_harvest", "algorithms._tensor_rounds"],
    ["algorithms.tensor_power"],
    ["algorithms.power", "algorithms.krylov", "algorithms.private_power", "algorithms.private_alternating"],
    ["algorithms.private_tensor_power"],
    ["algorithms.stream_power", "algorithms.oja", "algorithms.convex", "algorithms.convex_batch"],
    ["algorithms.online_tensor"],
    ["algorithms.frequent_directions"],
    ["algorithms"],
    ["ownership", "starts", "stores"],
    ["store_reader"],
    ["store_turn"],
    [
        "mechanisms._protocol",
        "mechanisms.oracle",
        "mechanisms.simulated",
        "stopping",
        "checkpoint",
        "prediction",
        "mechanisms.entropy",
    ],
    ["low_rank"],
    ["rehearsal", "mechanisms.sampler"],
    ["mechanisms.private"],
    ["mechanisms.private_entries", "mechanisms.private_tensor"],
    ["mechanisms"],
    ["stochastic.neighbours", "stochastic.noise"],
    ["stochastic.histogram", "stochastic.predictions"],
    ["stochastic.private_mean", "stochastic.private_range", "stochastic._protocol"],
    ["stochastic.oja"],
    ["stochastic.deflation", "stochastic.oracles", "stochastic.power", "stochastic.tight"],
    ["stochastic.choosing", "stochastic.rounds"],
    ["stochastic.releases"],
    ["stochastic"],
    [
        "audit.publication",
        "audit.instances",
        "audit.statistics",
        "audit.keys",
        "audit.oracle_pairs",
        "audit.placement",
    ],
    ["audit.attacks", "audit.finding", "audit.heaviest", "audit.release_path"],
    ["audit.evidence"],
    ["audit.oracle_path", "audit.tensor_path"],
    ["audit.oracle_examination", "audit.oracle_paths"],
    ["audit.examination"],
    ["audit"],
    ["ledger.schema", "ledger.chain", "ledger.text", "ledger.sketch"],
    ["ledger.book"],
    ["ledger.database", "ledger.rules"],
    ["ledger.status"],
    ["ledger.ledger"],
    ["ledger.export", "ledger.show", "ledger.granting"],
    ["ledger"],
    ["left", "survey", "privacy"],
    ["answer", "kept_pass", "private_parts", "solution"],
    ["record_parts", "tensor_parts"],
    ["nodes.parts"],
    ["problem"],
    ["tensors.posing"],
    ["posing"],
    ["binding", "checks", "custody", "page"],
    ["certificate_page", "private_report"],
    ["sampling", "outlook", "private_outlook"],
    ["measurement", "foresight", "perturbation"],
    ["planning"],
    ["tensors.plan"],
    ["certifying", "plan_text", "private_plan", "progress", "share", "warm_start"],
    ["discretion", "passing", "search_foresight"],
    ["log_observer"],
    ["driver"],
    ["gathering", "rank_search", "stored_problem", "tensors.lenses", "tensors.polarised"],
    ["estimator", "tensors.stages"],
    ["latent.jobs"],
    ["latent.independent", "latent.mixtures"],
    ["latent", "latent.answers", "latent.estimators", "tensors", "tensors.building"],
    ["streaming.centring", "streaming.opening"],
    ["streaming.model"],
    ["streaming.request", "streaming.measures", "streaming.memory"],
    ["streaming.problem", "streaming.solution", "streaming.online"],
    ["streaming.driver", "streaming.plan", "streaming.standing"],
    ["streaming.doors", "streaming.components", "streaming.report"],
    ["streaming.scores"],
    ["streaming"],
    ["topics", "topics.vocabulary"],
    ["topics.documents", "topics.inference", "topics.model"],
    ["topics.corpus", "topics.fitting", "topics.quality", "topics.scores"],
    ["topics.page", "topics.preparing", "topics.text"],
    ["topics.job"],
    ["jobs", "topics.estimator"],
    ["api"],
    ["dilation"],
    ["config_tables", "export", "inspection", "report"],
    ["config"],
    ["config_text"],
    ["nodes.node"],
    ["nodes.server"],
    ["standing"],
    ["metrics", "retention"],
    ["cli_data", "cli_jobs", "cli_operate", "cli_plan", "cli_privacy", "cli_serve", "cli_stream"],
    ["cli"],
]
FLOOR_OF = {name: level for level, names in enumerate(FLOORS) for name in names}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Every module imported, at any depth, except for type checking only."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def sources() -> list[Path]:
    return [p for p in PACKAGE.rglob("*.py") if module_name(p) not in ("", "storage")]


def test_every_module_has_a_floor() -> None:
    assert {module_name(p) for p in sources()} == set(FLOOR_OF)


def test_imports_go_down() -> None:
    for path in sources():
        name = module_name(path)
        for imported in imports(path):
            if imported.startswith("npmdask."):
                below = imported.removeprefix("npmdask.")
                assert FLOOR_OF[below] < FLOOR_OF[name], f"{name} imports {below}"


def test_rooms_keep_their_secrets() -> None:
    for path in sources():
        roots = {name.split(".")[0] for name in imports(path)}
        name = module_name(path)
        assert not roots & {"prefect"}, f"{name}: only flows/ knows prefect"
        if not name.startswith("chunked"):
            assert not roots & {"dask", "distributed"}, f"{name}: only chunked knows dask"
        if name.startswith("algorithms"):
            assert not roots & {"zarr", "logging", "time", "os", "pathlib"}, f"{name}: algorithms are pure"


def test_algorithms_never_import_each_other() -> None:
    shared = {f"npmdask.{name}" for name in FLOORS[FLOOR_OF["algorithms._protocol"]]}
    shared |= {f"npmdask.{name}" for name in FLOOR_OF if name.startswith("algorithms._")}
    for path in (PACKAGE / "algorithms").glob("[a-z]*.py"):
        others = {i for i in imports(path) if i.startswith("npmdask.algorithms.")} - shared
        assert not others, f"{path.name} imports {others}"


def test_two_loops_over_steps() -> None:
    """One over passes and one over batches of a stream: a third that begins an algorithm's step fails here.

    The rehearsal of a run has no data and no mechanism: the steps that it takes are of nothing but a diagonal matrix.
    """

    def those_with(*words: str) -> list[str]:
        return sorted(module_name(p) for p in sources() if any(word in p.read_text() for word in words))

    assert those_with("while outcome is None", ".query(state)") == ["driver", "rehearsal"]
    assert not imports(PACKAGE / "rehearsal.py") & {
        "npmdask.operators",
        "npmdask.execution.executor",
        "npmdask.privacy.mechanisms",
    }
    loops = [
        module_name(path)
        for path in sources()
        for loop in ast.walk(ast.parse(path.read_text()))
        if isinstance(loop, ast.For | ast.While | ast.comprehension) and ".absorb(" in ast.unparse(loop)
    ]
    assert loops == ["streaming.driver"]
    assert those_with(".absorb(") == ["streaming.driver", "streaming.online"]  # partial_fit: the caller has the loop
    assert those_with(".query(inner)") == ["streaming.model"]  # a batch, cut as its algorithm asks


def test_nothing_is_ever_pickled() -> None:
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "flows").rglob("*.py")]:
        assert not imports(path) & {"pickle", "cloudpickle", "shelve", "marshal", "joblib"}, path
        assert "allow_pickle=True" not in path.read_text(), path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "np.load":
                assert any(k.arg == "allow_pickle" for k in node.keywords), f"{path}: say allow_pickle=False"
