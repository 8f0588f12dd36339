"""The files that contributors, package indexes and services look for say what is true of this repository."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from infra.lanes import TESTS as LANES
from infra.lanes import asked, lowest
from infra.make_locks import closure

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
WORKFLOWS: dict[str, dict[str, Any]] = {
    path.name: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.citation-file-format", "CITATION.cff"),
        *(("vendor.github-workflows", f".github/workflows/{name}") for name in WORKFLOWS),
    ],
)
def test_files_follow_their_schema(schema: str, file: str) -> None:
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(ROOT / file))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_citation_is_of_this_version_and_names_the_five_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert citation["authors"] == PROJECT["authors"]
    named = {tuple(one["family-names"] for one in paper["authors"]): paper["year"] for paper in citation["references"]}
    page = (ROOT / "docs" / "project" / "checklist.md").read_text().partition("\n\n")[2].partition("point by point")[0]
    assert len(named) == 5
    for authors, year in named.items():
        for name in authors:
            assert re.search(rf"{name.replace('ü', 'ue')}[^()]*\({year}\)", page), name


def test_contributing_begins_with_commands_that_exist() -> None:
    block = (ROOT / "CONTRIBUTING.md").read_text().split("```")[1]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()[1:]]
    assert len(commands) == 9 and {command[0] for command in commands} == {"make"}
    assert {command[1] for command in commands} <= TARGETS
    assert {"env", "check", "test"} <= {command[1] for command in commands}


def test_files_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"\b(?:npmdask|tests|docs|infra)/[\w/]+(?:\.\w+|/)", text))
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / name).exists()]


def shown_files(page: str) -> set[str]:
    """The files below npmdask/ that the picture of the architecture shows; ``sub/:`` begins a folder inside another."""
    found, folder, inner = set(), "", ""
    for line in re.sub(r"\([^)]*\)", "", page.split("```text\n")[1].split("```")[0]).splitlines():
        if line.isupper() or not line:
            continue
        if name := line[:WIDTH].strip():
            folder = inner = "" if name == "npmdask/" else name if line[0] != " " else f"core/{name}"
        for word in line[WIDTH:].split():
            if word.endswith("/:"):
                inner = folder + word.removesuffix(":")
            else:
                found.add(f"{inner}{word}.py")
    return found


WIDTH = 16  # of the column of folders


def test_the_architecture_shows_every_file_in_900_words() -> None:
    """Mutants: a file that is added, moved or deleted, and the picture left as it was."""
    page, package = (ROOT / "docs" / "architecture.md").read_text(), ROOT / "npmdask"
    shown, there = shown_files(page), {str(path.relative_to(package)) for path in package.rglob("*.py")}
    gone = [one for one in shown - there if (package / one).parent.is_dir()]  # a deleted feature has no folder
    assert not gone, "docs/architecture.md shows files that are not there"
    assert not {one for one in there - shown if not one.endswith("__init__.py")} - {"__main__.py"}, "it lacks files"
    elsewhere = re.findall(r"`([\w/]+\.py)`", page)
    assert len(elsewhere) > 20 and not [one for one in elsewhere if not any(f"/{p}".endswith(f"/{one}") for p in there)]
    assert len(page.split()) <= 900


@pytest.mark.parametrize("page", ["step", "new-aspect", "new-route", "new-source", "new-kind"])
def test_files_that_pages_on_the_code_name_exist(page: str) -> None:
    text = (ROOT / "docs" / "project" / f"{page}.md").read_text()
    named = set(re.findall(r"\b(?:npmdask|tests|core)/[\w/-]+(?:\.\w+|/)", text))
    assert len(named) > 2
    assert not [name for name in named if not any((ROOT / at / name).exists() for at in ("", "npmdask"))]
    assert len(text.split()) <= 350 or page == "step"


def test_the_table_of_heavy_suites_names_targets_and_folders_that_exist() -> None:
    """Mutants: a target renamed in the Makefile, a folder renamed in npmdask/, a cell left out."""
    rows = re.findall(
        r"^\| `make ([a-z-]+)` \|([^|]*)\|([^|]*)\|([^|]*)\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M
    )
    assert len(rows) >= 11 and {target for target, *_ in rows} <= TARGETS
    assert {"full", "kills", "hosts", "certificates", "audit"} <= {target for target, *_ in rows}
    named = {(target, name) for target, *_, folders in rows for name in re.findall("`([^`]+)`", folders)}
    assert {target for target, _ in named} == {target for target, *_ in rows}
    assert not [(t, n) for t, n in named if not (ROOT / "npmdask" / n).is_dir() and not (ROOT / n).exists()]
    assert all(time.strip() for _, _, time, _ in rows)


def test_the_workflow_runs_what_the_readme_promises_and_nothing_that_is_not_there() -> None:
    made = [target for step in STEPS for target in re.findall(r"^\s*make ([a-z-]+)", step.get("run", ""), re.M)]
    assert made == ["env", "check", "test", "env", "check"]
    tested = {WORKFLOW_PYTHON, *WORKFLOW["jobs"]["versions"]["strategy"]["matrix"]["python"]}
    assert tested == PYTHONS, "every Python that is promised"
    assert set(made) <= TARGETS
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_actions_are_pinned_by_commit() -> None:
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    used = [step["uses"] for job in jobs for step in job["steps"] if "uses" in step]
    assert len(WORKFLOWS) > 2 and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one) for one in used)
    text = "".join((ROOT / ".github" / "workflows" / name).read_text() for name in WORKFLOWS)
    assert len(re.findall(r"uses: \S+ # v\d", text)) == len(used), "which version a commit is, said beside it"


def test_a_release_is_published_without_a_password_by_the_job_that_does_nothing_else() -> None:
    """Mutants: a token of the index, an identity for the job that runs what pip installs, a Python that is left out."""
    workflow = WORKFLOWS["release.yml"]
    assert workflow["permissions"] == {"contents": "read"} and workflow[True] == {"push": {"tags": ["v*"]}}
    jobs = workflow["jobs"]
    assert {name: job.get("permissions") for name, job in jobs.items()} == {
        "build": None,
        "publish": {"id-token": "write"},
        "page": {"contents": "write"},
    }
    assert not [step for name in ("publish", "page") for step in jobs[name]["steps"] if "make" in step.get("run", "")]
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    (made,) = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    tried = set(re.findall(r"3\.\d+", made))
    assert made.startswith("make release ") and tried == {*PYTHONS, "3.14"}
    (setup,) = [
        step["with"]["python-version"].split() for step in jobs["build"]["steps"] if "setup-python" in str(step)
    ]
    assert set(setup) == tried


def test_hooks_run_the_tools_of_the_lock() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    lock = (ROOT / "infra" / "requirements.lock").read_text()
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert {repository["repo"] for repository in config["repos"]} == {
        "local"
    }  # others are downloaded, in other versions
    assert {hook["entry"].split()[0] for hook in hooks} == {".venv/bin/ruff", ".venv/bin/mypy"}
    assert all(hook["language"] == "system" for hook in hooks)
    for tool in ("ruff", "mypy"):
        assert re.search(rf"^{tool}==", lock, re.M)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built by the backend that pyproject.toml names, as pip does it without isolation."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"import {PYPROJECT['build-system']['build-backend']} as b, sys; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", build, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(folder / done.stdout.split()[-1]) as built:
        yield built


@pytest.mark.slow
def test_the_wheel_holds_its_types_and_its_licence(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    about = f"npmdask-{PROJECT['version']}.dist-info"
    packages = {name.split("/")[0] for name in names} - {about}
    assert packages == set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    there = {path for path in (ROOT / "npmdask").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {str(path.relative_to(ROOT)) for path in there} == {name for name in names if not name.startswith(about)}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert wheel.read(f"{about}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    told = message_from_bytes(wheel.read(f"{about}/METADATA"))
    assert told["License-Expression"] == "BSD-3-Clause" and told["License-File"] == "LICENSE"
    assert "Typing :: Typed" in told.get_all("Classifier", [])
    assert sorted(told.get_all("Provides-Extra")) == sorted(EXTRAS), "what developers need is no extra of users"
    assert SpecifierSet(told["Requires-Python"]).contains("3.13"), "every Python that is tested is allowed"
    assert told.get_payload().startswith("# npmdask")  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_wheel_serves_every_flow_by_itself(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Fails when a deployment names a module that only a checkout has, or the command line loads Prefect."""
    wheel.extractall(tmp_path / "installed")
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]\n"
        "import npmdask.cli.main\n"
        "assert 'prefect' not in sys.modules\n"
        "from npmdask.prefect.schedules import FLOWS\n"
        "from prefect.flows import load_flow_from_entrypoint as load\n"
        "assert [load(f'{one.fn.__module__}.{one.fn.__name__}').name for one in FLOWS.values()] == [*FLOWS]\n"
        "assert 'flows' not in sys.modules; print(npmdask.__file__)"
    )
    told = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "PREFECT_HOME": str(tmp_path / "home")}
    python = (sys.executable, "-P", "-c", code)
    done = subprocess.run(python, cwd=tmp_path, env=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "installed" / "npmdask" / "__init__.py")


WORKFLOW_PYTHON = "3.11"  # of Debian 12
PYTHONS = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
EXTRAS = set(PROJECT["optional-dependencies"])

# What a person does with the core alone, and with what only an extra installs.
CORE = """
import sys
import numpy as np
import npmdask
x = np.random.default_rng(0).standard_normal((300, 8)) * np.arange(1, 9)
truth = np.linalg.svd(x, compute_uv=False)[:2]
import zarr, dask.array as da
zarr.save_array("x.zarr", x)
for source in (x, "x.zarr", da.from_array(x, chunks=(100, 8))):
    assert np.allclose(npmdask.top_k(source, 2, memory="1GiB").values, truth)
assert npmdask.stream_pca(x, 2).basis.shape == (8, 2) and npmdask.StreamingPCA(2).partial_fit(x)
from npmdask.cli.main import main
assert main(["run", "x.zarr", "-k", "2", "--set", "run.threads=1"]) == 0
assert main(["report", "runs/x"]) == 2
"""
MISSING = {
    "flows": "import npmdask.prefect",
    "ingest": "from npmdask.formats.ingest import ingest; ingest('t.csv', 't.zarr')",
    "private": "from npmdask.ledger import open_ledger",
    "report": "import npmdask.report.plots as p; p.axes('', '', '')",
    "objects": "npmdask.top_k('s3://there/x.zarr', 2)",
    "nodes": "import npmdask.federated.server",
    "gpu": "from npmdask.gpu.devices import Device; Device('numpy').backend",
    "metrics": "from npmdask.manage.prometheus import require_client; require_client()",
}


def only(asked: list[str], folder: Path) -> None:
    """Make links to what distributions need and nothing else, as if they alone were installed."""
    folder.mkdir()
    for name in closure(asked):
        for file in distribution(name).files or ():
            top = Path(file.parts[0])
            if top.name not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution(name).locate_file(top))))


@pytest.mark.slow
def test_the_source_distribution_is_whole_and_builds_the_same_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Installed from a source distribution, npmdask has every file that the wheel has, and nothing of this machine."""
    build = "import hatchling.build as b, sys; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"

    def built(kind: str, place: Path) -> Path:
        done = subprocess.run(
            [sys.executable, "-c", build, kind, str(tmp_path)], cwd=place, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return tmp_path / done.stdout.split()[-1]

    sdist = built("sdist", ROOT)
    assert sdist.stat().st_size < 10 * 2**20
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
        names = {name.split("/")[1] for name in packed.getnames() if "/" in name}
    assert {"README.md", "LICENSE", "pyproject.toml", "npmdask", "tests", "docs"} <= names
    assert not {".venv", ".git", "runs", ".import_linter_cache", ".mypy_cache"} & names
    with zipfile.ZipFile(built("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"))) as again:
        assert sorted(again.namelist()) == sorted(wheel.namelist())


def test_the_conda_recipe_asks_for_what_the_wheel_asks_for() -> None:
    """Names are conda-forge's: dask there brings what `dask-core` does not, and what the core needs none of."""
    recipe = yaml.safe_load((ROOT / "infra" / "conda" / "recipe.yaml").read_text())
    told = {PROJECT["name"]: recipe["context"]["name"], PROJECT["version"]: recipe["context"]["version"]}
    assert all(ours == theirs for ours, theirs in told.items())
    asked = dict(line.split(maxsplit=1) for line in recipe["requirements"]["run"])
    assert asked.pop("python") == PROJECT["requires-python"]
    asked["dask"] = asked.pop("dask-core")
    ours = [re.fullmatch(r"([\w-]+)(\S*)", text) for text in PROJECT["dependencies"]]
    assert asked == {found[1]: found[2] for found in ours if found}
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert dict([entry.split(" = ")]) == PROJECT["scripts"]
    assert (ROOT / recipe["about"]["license_file"]).is_file() and recipe["about"]["license"] == PROJECT["license"]


def test_every_requirement_has_a_lowest_version() -> None:
    """So that `make lanes` tests the oldest ones that are promised."""
    assert {lowest(text).split("==")[0].split("[")[0] for text in asked()} >= {"numpy", "zarr", "dask"}
    assert lowest("numpy>=2.2") == "numpy==2.2.*" and lowest("a[b]>=1.2.3,<2") == "a[b]==1.2.3"
    with pytest.raises(ValueError, match="has no lowest version"):
        lowest("numpy<3")
    assert all((ROOT / file).is_file() for file in LANES)


@pytest.mark.slow
def test_the_core_alone_answers_and_names_the_extra_that_is_missing(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    only(PROJECT["dependencies"], tmp_path / "installed")
    assert len(list((tmp_path / "installed").glob("*.dist-info"))) < 40, "a small core"
    wheel.extractall(tmp_path / "installed")
    (tmp_path / "t.csv").write_text("1,2\n3,4\n")

    def python(code: str) -> subprocess.CompletedProcess[str]:
        told = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
        return subprocess.run(
            (sys.executable, "-P", "-S", "-c", code), cwd=tmp_path, env=told, capture_output=True, text=True
        )

    done = python(CORE)
    assert done.returncode == 0, done.stderr
    assert "pip install 'jinja2>=3.1' 'matplotlib>=3.9'" in done.stderr  # not npmdask[report]: it is on no index
    assert set(MISSING) == EXTRAS - {"all", "postgres"}
    for name, code in MISSING.items():
        done = python(f"import npmdask\n{code}")
        last = done.stderr.strip().splitlines()[-1]
        _, _, command = last.partition(" is not installed, which this needs: pip install ")
        wanted = {Requirement(one) for one in shlex.split(command)}
        assert wanted == {Requirement(one) for one in PROJECT["optional-dependencies"][name]}, done.stderr


@pytest.mark.slow
def test_programs_of_users_are_typed(tmp_path: Path) -> None:
    """Checked from elsewhere, so that mypy finds npmdask as it is installed: without py.typed it would not look."""
    shutil.copy(ROOT / "tests" / "typing_example.py", tmp_path / "program.py")
    command = (
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(ROOT / ".mypy_cache/user"),
    )
    done = subprocess.run([*command, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
