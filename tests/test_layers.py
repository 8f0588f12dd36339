"""The house stands: imports go down, one room knows Dask, two loops over steps, no pickle.

Which room may import which is in pyproject.toml ([tool.importlinter]); what it excepts there may only become less.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from npmdask.core import features

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "npmdask"
FACES = {"__main__", "anndata", "api", "cli", "config", "resuming", "xarray"}
OLD_PATHS = {"algorithms", "runs", "storage"}  # public names where they were before files moved
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


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
    return [p for p in PACKAGE.rglob("*.py") if module_name(p)]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Lint the imports of the package in a folder, against the contracts of this project."""
    command = [Path(sys.executable).with_name("lint-imports"), "--config", ROOT / "pyproject.toml", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)


@pytest.mark.slow
def test_imports_go_down() -> None:
    done = lint(ROOT)
    assert not done.returncode, done.stdout
    assert not any(contract.get("ignore_imports") for contract in LINTER["contracts"])


def test_the_core_is_kept_from_every_folder_and_every_face() -> None:
    forbidden, rooms, faces = LINTER["contracts"]
    assert forbidden["source_modules"] == ["npmdask.core", "npmdask.errors"]
    beside = {module_name(path).split(".")[0] for path in sources()} - {"core", "errors"}
    assert {f"npmdask.{name}" for name in beside - OLD_PATHS} == {*forbidden["forbidden_modules"]}
    listed = [name.strip() for layer in rooms["layers"] for name in layer.split("|")]
    assert sorted(listed) == sorted({room(path) for path in sources() if room(path)} | {"npmdask.errors"})
    assert not {name for layer in faces["layers"] for name in layer.split(" | ")} - {*forbidden["forbidden_modules"]}


def room(path: Path) -> str:
    """Return the room of the core that a module lies in, or ""."""
    parts = module_name(path).split(".")
    return f"npmdask.core.{parts[1]}" if parts[0] == "core" and len(parts) > 1 else ""


# What a feature may import of other features. Less is better: to delete one of these is to delete the first.
PAIRS = {
    "audit": "accounting dp_pca missing privacy symmetric tensors",
    "cluster": "gpu",
    "complex": "symmetric",
    "containers": "formats",
    "dp_pca": "accounting privacy theory",
    "estimators": "complex containers missing rotations streaming weights",
    "experiments": "accounting dp_pca privacy report theory",
    "federated": "accounting privacy theory",
    "formats": "missing symmetric writers",
    "latent": "estimators manage report symmetric tensors topics",
    "ledger": "accounting audit privacy",
    "manage": "ledger report",
    "planning": "complex gpu symmetric tensors theory writers",
    "prefect": "latent manage planning privacy report rotations streaming synthetic theory topics two_fields",
    "privacy": "accounting ledger symmetric tensors theory",
    "private_pca": "containers estimators missing privacy weights",
    "private_reports": "manage privacy report theory",
    "rotations": "stored_gram",
    "share": "missing",
    "stored_gram": "advice formats manage report",
    "streaming": "containers estimators formats manage missing report symmetric tensors theory weights writers",
    "symmetric": "writers",
    "synthetic": "symmetric writers",
    "tensors": "symmetric",
    "theory": "accounting tensors",
    "topics": "containers estimators formats manage report streaming symmetric tensors writers",
    "two_fields": "containers dilation estimators formats manage missing report rotations weights",
    "weights": "containers",
}


def test_features_import_only_what_is_named_here() -> None:
    """In functions too; an addition is a decision, written here."""
    features = {module_name(path).split(".")[0] for path in sources()} - {"core", "errors", *OLD_PATHS, *FACES}
    found: dict[str, set[str]] = {}
    for path in sources():
        if (own := module_name(path).split(".")[0]) in features:
            rooms = {name.split(".")[1] for name in imports(path) if name.startswith("npmdask.")}
            if others := (rooms & features) - {own}:
                found[own] = found.get(own, set()) | others
    assert found == {name: {*others.split()} for name, others in PAIRS.items()}


def test_any_module_can_be_imported_first() -> None:
    """A worker process begins with whichever module it is sent: none may need itself half imported.

    Mutant: names of ``npmdask/symmetric/writer.py`` imported in ``npmdask/symmetric/__init__.py``.
    """
    modules = {f"npmdask.{module_name(path)}": path for path in sources()}
    needs = {name: {*at_once(path, modules)} - {name} for name, path in modules.items()}
    for name, others in needs.items():  # packages of a module are imported before it, unless one is at it already
        others |= {above for other in others for above in packages(other) & modules.keys() - {name, *packages(name)}}
    ready = set[str]()
    while new := {name for name in modules.keys() - ready if needs[name] <= ready}:
        ready |= new
    assert not sorted(modules.keys() - ready), "each of these waits for another of them"


def packages(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(2, len(parts))}


def at_once(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Go through the modules that are imported when a module is: not in functions, not for type checking."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
            yield from full or {node.module} & modules.keys()
        elif isinstance(node, ast.Import):
            yield from ({alias.name for alias in node.names} & modules.keys())
        waiting += ast.iter_child_nodes(node)


def test_a_feature_needs_what_its_modules_import() -> None:
    """So that every module that is left can be imported, whichever folder was deleted with all that need it.

    Mutant: ``import npmdask.weights.aspect`` in npmdask/manage/matrix.py.
    """
    modules = {f"npmdask.{module_name(path)}": path for path in sources()}
    needs = {one.name: {*one.needs} for one in features.FEATURES}
    missing = []
    for name, path in modules.items():
        own = name.split(".")[1]
        known, waiting = {own, "core", "errors", *FACES}, [own]
        while waiting:
            new = needs.get(waiting.pop(), set()) - known
            known, waiting = known | new, [*waiting, *new]
        if own in needs:
            missing += [
                f"{name} imports {other}" for other in at_once(path, modules) if other.split(".")[1] not in known
            ]
    assert not missing


PUBLIC = """
npmdask.algorithms.PowerMethod npmdask.algorithms.register_algorithm npmdask.manage.register_kind
npmdask.runs.observers.Observer npmdask.runs.problem.register_operator npmdask.storage.ingest.ingest
npmdask.storage.source.register_source npmdask.accounting.paper_stddev npmdask.anndata.pca npmdask.errors.BadInputError
npmdask.experiments.FIGURES npmdask.prefect.npm npmdask.streaming.StreamingPCA npmdask.synthetic.generate
npmdask.theory.Prediction npmdask.xarray.EOF
"""


@pytest.mark.parametrize("name", PUBLIC.split())
def test_public_names_are_where_they_were(name: str) -> None:
    """Before files moved into a core and features; names of ``npmdask`` itself are in its ``__all__``."""
    module, _, attribute = name.rpartition(".")
    found = getattr(import_module(module), attribute)
    assert getattr(found, "__module__", "npmdask").startswith("npmdask")


@pytest.mark.slow
def test_an_import_that_goes_up_is_found(tmp_path: Path) -> None:
    for path in PACKAGE.rglob("*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    low = tmp_path / "npmdask" / "core" / "numerics" / "subspaces.py"
    low.write_text(low.read_text() + "\n\ndef up() -> None:\n    import npmdask.core.runs.loop  # noqa: F401\n")
    done = lint(tmp_path)
    assert done.returncode and "npmdask.core.numerics.subspaces -> npmdask.core.runs.loop" in done.stdout


@pytest.mark.slow
def test_rooms_keep_their_secrets() -> None:
    for path in sources():
        roots = {name.split(".")[0] for name in imports(path)}
        name = module_name(path)
        if not name.startswith("prefect"):
            assert not roots & {"prefect", "flows"}, f"{name}: only npmdask/prefect knows prefect"
        if not name.startswith(("core.execution", "cluster")):
            graphs = name in ("containers.lazy", "containers.blockwise")  # as data: they run no pass
            known = {"dask"} if graphs else set()
            assert not roots & {"dask", "distributed"} - known, f"{name}: only execution knows dask"
        if name.startswith(("core.algorithms", "streaming.algorithms")):
            assert not roots & {"zarr", "logging", "time", "os", "pathlib"}, f"{name}: algorithms are pure"


def test_algorithms_never_import_each_other() -> None:
    """What they share has a name of its own below; the tables of all of them are in the packages' ``__init__``."""
    shared = {"base", "stopping", "low_rank_update"}
    known = {("core.algorithms.gram", "core.algorithms.krylov")}  # a formed matrix goes on as blocks do
    for path in [
        *(PACKAGE / "core/algorithms").glob("[a-z]*.py"),
        *(PACKAGE / "streaming/algorithms").glob("[a-z]*.py"),
    ]:
        name = module_name(path)
        for imported in imports(path):
            other = imported.removeprefix("npmdask.")
            if ".algorithms." not in other or {name.rpartition(".")[2], other.rpartition(".")[2]} & shared:
                continue
            assert (name, other) in known or name == "streaming.algorithms.model", f"{name} imports {other}"


@pytest.mark.slow
def test_two_loops_over_steps() -> None:
    """One over passes and one over batches of a stream: a third that begins an algorithm's step fails here.

    The simulated convergence has no data and no mechanism: its steps are of nothing but a diagonal matrix. Experiments
    are no runs: they have no store, and make their data themselves.
    """

    def those_with(*words: str) -> list[str]:
        return sorted(module_name(p) for p in sources() if any(word in p.read_text() for word in words))

    simulated = ["planning.forecast", "privacy.plan"]
    experiments = ["experiments.baselines", "experiments.oracles"]
    known = ["core.algorithms.power", "core.runs.loop", *experiments, *simulated]  # the first asks for its own block
    assert those_with("while outcome is None", ".query(state)") == known
    assert not imports(PACKAGE / "planning" / "forecast.py") & {
        "npmdask.core.operators",
        "npmdask.core.execution.executor",
        "npmdask.privacy.mechanisms",
    }
    loops = [
        module_name(path)
        for path in sources()
        for loop in ast.walk(ast.parse(path.read_text()))
        if isinstance(loop, ast.For | ast.While | ast.comprehension) and ".absorb(" in ast.unparse(loop)
    ]
    assert loops == ["streaming.loop"]
    assert those_with(".absorb(") == ["streaming.loop", "streaming.streaming_pca"]  # partial_fit: the caller loops
    assert those_with(".query(inner)") == ["streaming.algorithms.model"]  # a batch, cut as its algorithm asks


@pytest.mark.slow
def test_nothing_is_ever_pickled() -> None:
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "flows").rglob("*.py")]:
        assert not imports(path) & {"pickle", "cloudpickle", "shelve", "marshal", "joblib"}, path
        assert "allow_pickle=True" not in path.read_text(), path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "np.load":
                assert any(k.arg == "allow_pickle" for k in node.keywords), f"{path}: say allow_pickle=False"


@pytest.mark.slow
def test_the_command_line_answers_before_anything_heavy_is_imported() -> None:
    """`npmdask --help` and `import npmdask` need none of the libraries that take most of a second."""
    code = (
        "import sys, npmdask, npmdask.cli.main; "
        "print(sorted({'zarr', 'dask', 'distributed', 'scipy', 'numpy', 'prefect', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
