"""The house stands: imports go down, one room knows Dask, two loops over steps, no pickle.

Which room may import which is in pyproject.toml ([tool.importlinter]); what it excepts there may only become less.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "npmdask"
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


def test_every_room_has_a_floor() -> None:
    layers = LINTER["contracts"][0]["layers"]
    listed = [name.strip().removeprefix("npmdask.") for layer in layers for name in layer.split("|")]
    assert sorted({name.split(".")[0] for name in listed}) == sorted({module_name(p).split(".")[0] for p in sources()})


@pytest.mark.slow
def test_an_import_that_goes_up_is_found(tmp_path: Path) -> None:
    for path in PACKAGE.rglob("*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    low = tmp_path / "npmdask" / "numerics" / "subspaces.py"
    low.write_text(low.read_text() + "\n\ndef up() -> None:\n    import npmdask.runs.loop  # noqa: F401\n")
    done = lint(tmp_path)
    assert done.returncode and "npmdask.numerics.subspaces -> npmdask.runs.loop" in done.stdout


@pytest.mark.slow
def test_rooms_keep_their_secrets() -> None:
    for path in sources():
        roots = {name.split(".")[0] for name in imports(path)}
        name = module_name(path)
        if not name.startswith("prefect"):
            assert not roots & {"prefect", "flows"}, f"{name}: only npmdask/prefect knows prefect"
        if not name.startswith("execution"):
            known = {"dask"} if name == "storage.readers.lazy" else set()  # graphs as data: it runs no pass
            assert not roots & {"dask", "distributed"} - known, f"{name}: only execution knows dask"
        if name.startswith("algorithms"):
            assert not roots & {"zarr", "logging", "time", "os", "pathlib"}, f"{name}: algorithms are pure"


def test_algorithms_never_import_each_other() -> None:
    """What they share has a name of its own below; the tables of all of them are in the packages' ``__init__``."""
    shared = {"base", "stopping", "low_rank_update", "components"}  # the last: of the tensor power methods
    known = {("gram", "krylov"), ("momentum", "power")}  # a formed matrix goes on as blocks do; the same steps
    for path in (PACKAGE / "algorithms").rglob("[a-z]*.py"):
        name = module_name(path).removeprefix("algorithms.")
        for imported in imports(path):
            other = imported.removeprefix("npmdask.algorithms.")
            if imported == other or other.rpartition(".")[2] in shared or name.rpartition(".")[2] in shared:
                continue
            assert (name, other) in known or name == "streaming.model", f"{name} imports {other}"


@pytest.mark.slow
def test_two_loops_over_steps() -> None:
    """One over passes and one over batches of a stream: a third that begins an algorithm's step fails here.

    The simulated convergence has no data and no mechanism: its steps are of nothing but a diagonal matrix. Experiments
    are no runs: they have no store, and make their data themselves.
    """

    def those_with(*words: str) -> list[str]:
        return sorted(module_name(p) for p in sources() if any(word in p.read_text() for word in words))

    simulated = "planning.forecast"
    experiments = ["experiments.baselines", "experiments.oracles"]
    known = ["algorithms.power", *experiments, simulated, "runs.loop"]  # the first asks for its own block
    assert those_with("while outcome is None", ".query(state)") == known
    assert not imports(PACKAGE / "planning" / "forecast.py") & {
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
    assert loops == ["streaming.loop"]
    assert those_with(".absorb(") == ["streaming.loop", "streaming.streaming_pca"]  # partial_fit: the caller loops
    assert those_with(".query(inner)") == ["algorithms.streaming.model"]  # a batch, cut as its algorithm asks


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
