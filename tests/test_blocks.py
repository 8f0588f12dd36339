"""Every fenced block of a page: the test that runs it, or the reason why none can; what else blocks can be asked."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import npmdask
from npmdask.cli.main import _parser
from npmdask.config import load_config
from tests.test_checklist import names_in
from tests.test_documented import PREPARED, of_shell, that_run

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```([^`\n]*)\n(.*?)^\1```", re.S | re.M)


class Part(NamedTuple):
    """What is run by itself: a command, or a whole block of another language, which its first line names."""

    page: str
    language: str
    begin: str
    text: str


def parts(page: Path) -> Iterator[Part]:
    name = str(page.relative_to(ROOT))
    for _, language, text in BLOCK.findall(page.read_text()):
        lines = [line for line in of_shell(language, text) if line.strip() and not line.startswith("#")]
        if re.search(r"^ *>>> ", text, re.M):
            yield Part(name, "doctest", text.split("\n")[0], text)
        elif language == "sh" or any(re.match(COMMAND, line) for line in lines):
            commands = [" ".join(one.split()) for line in lines for one in re.split(r";|\||&&", line) if one.strip()]
            yield from (Part(name, "command", one, one) for one in commands)
        else:
            yield Part(name, language.split("}")[0].strip("{"), text.strip().split("\n")[0], text)


COMMAND = r"(npmdask|make|pip|python|prefect|dask|export) "
ALL = [part for page in PAGES for part in parts(page)]
RUN = {command for page in PREPARED for command in that_run(page)}
BUILT = {"toctree", "image", "eval-rst"}  # by tests/test_site.py; pytest runs `>>>` itself: docs/conftest.py
START = ("pip install", "npmdask", "import npmdask")
GPU = "an NVIDIA GPU: tests/gpu has the same call"

# By page and the beginning of a part: the test that runs it, or why none can.
ELSEWHERE = {
    "docs/architecture.md": {
        "FACES": "tests/test_project_files.py::test_the_architecture_shows_every_file_in_900_words"
    },
    "docs/start.md": {begin: "tests/test_readme.py::test_the_first_blocks_run_as_they_are_printed" for begin in START},
    "docs/install.md": {
        "python3 -m venv": "downloads packages; from the checkout alone: tests/test_readme.py installs so",
        ". npmdask-env": "the same environment",
        "pip install": "tests/test_project_files.py::test_the_core_alone_answers_and_names_the_extra_that_is_missing",
    },
    "docs/explanation/security.md": {
        "export PREFECT_API_URL": "tests/prefect/test_guard.py::test_the_login_goes_to_this_machine_only",
        "prefect flow-run ls": "a command of Prefect, with that login",
        "openssl": "tests/security/test_tls.py::test_the_page_makes_certificates_and_a_cluster",
        "chmod 600": "tests/security/test_tls.py::test_the_page_makes_certificates_and_a_cluster",
        "dask": "tests/security/test_tls.py::test_the_page_makes_certificates_and_a_cluster",
    },
    "docs/howto/audit.md": {"npmdask audit": "tests/audit/test_audit.py::test_the_command_line"},
    "docs/howto/cells.md": {
        "import anndata, matplotlib": "tests/real/test_three_users.py::test_a_file_of_cells_to_the_places_of_scanpy",
        "import anndata, h5py": "tests/real/test_three_users.py::test_raw_counts_on_disk_to_neighbours",
    },
    "docs/howto/climate.md": {
        "import xarray": "tests/real/test_three_users.py::test_sea_surface_temperatures_to_a_map"
    },
    "docs/howto/clusters.md": {
        "from dask_jobqueue": "tests/cluster/test_slurm.py::"
        "test_jobs_give_the_same_bits_and_one_that_ends_in_the_middle_costs_its_tasks",
        "npmdask run /shared": "tests/cluster/test_given.py::"
        "test_a_scheduler_file_is_read_from_python_configurations_and_options",
        "from dask_kubernetes": "a Kubernetes cluster with Dask's operator, and a bucket",
        "from dask_gateway": "a gateway, and a bucket",
    },
    "docs/howto/deployment.md": {
        "sbatch": "tests/infra/test_slurm_job.py::"
        "test_a_job_whose_time_is_over_is_queued_again_and_one_that_is_cancelled_is_not"
    },
    "docs/howto/distributed.md": {
        "coordinator": "a picture",
        "npmdask ledger grant": "tests/federated/test_distributed.py::test_the_page_is_a_program",
        "npmdask node": "tests/federated/test_distributed.py::test_the_page_is_a_program",
        "export NPMDASK_NODE_TOKEN": "tests/federated/test_distributed.py::test_the_page_is_a_program",
        "http://127.0.0.1:9001": "tests/federated/test_distributed.py::test_the_page_is_a_program",
    },
    "docs/howto/flows.md": {
        "# nightly.py": "tests/prefect/test_subflow.py::"
        "test_a_sub_flow_that_is_killed_goes_on_and_steps_run_one_by_one",
        "prefect": "tests/prefect/test_subflow.py::test_a_sub_flow_that_is_killed_goes_on_and_steps_run_one_by_one",
        "python nightly.py": "tests/prefect/test_subflow.py::"
        "test_a_sub_flow_that_is_killed_goes_on_and_steps_run_one_by_one",
        "# steps.py": "tests/prefect/test_subflow.py::test_a_sub_flow_that_is_killed_goes_on_and_steps_run_one_by_one",
        "# stages.py": "tests/prefect/test_subflow.py::test_the_stages_of_topics_and_mixtures_are_tasks_of_any_flow",
    },
    "docs/howto/gpu.md": {
        "pip install": GPU,
        "npmdask run": GPU,
        "import npmdask": GPU,
        "dask": GPU,
    },
    "docs/howto/missing.md": {"t =": "a formula"},
    "docs/howto/nightly-schedule.md": {
        "npmdask backfill": "tests/prefect/test_faulty_nights.py::test_a_few_nights_with_a_fault_each",
        "npmdask serve --example": "tests/prefect/test_example.py::test_it_runs_and_everything_is_in_its_folder",
        "npmdask serve schedules": "tests/prefect/test_serve.py::"
        "test_what_dies_comes_back_and_the_run_ends_in_the_same_bits",
    },
    "docs/howto/object-store.md": {"export AWS": "the keys of a bucket; the lines below it run in a folder"},
    "docs/howto/observing.md": {
        "pip install": "tests/manage/test_prometheus.py::test_without_the_package_a_sentence",
        "npmdask metrics": "tests/manage/test_prometheus.py::test_a_run_that_runs_hangs_is_killed_and_crashes",
        "npmdask serve": "tests/prefect/test_serve.py::test_what_dies_comes_back_and_the_run_ends_in_the_same_bits",
        "groups:": "tests/test_blocks.py::test_alarms_name_metrics_that_are_exported",
    },
    "docs/howto/operations.md": {
        "npmdask serve schedules": "tests/prefect/test_serve.py::"
        "test_what_dies_comes_back_and_the_run_ends_in_the_same_bits",
    },
    "docs/howto/progress.md": {
        "pass 3 of": "tests/core/runs/test_progress.py::"
        "test_a_pass_of_its_own_after_a_stage_is_not_taken_for_a_step_of_it"
    },
    "docs/howto/text.md": {"import npmdask": "tests/real/test_three_users.py::test_raw_strings_to_topics"},
    "docs/howto/weights.md": {"A = diag": "a formula"},
    "docs/tutorials/tour.md": {
        "pca =": "tests/test_documented.py::test_python_of_the_tour_runs",
        "model =": "tests/test_documented.py::test_python_of_the_tour_runs",
        "found =": "tests/test_documented.py::test_python_of_the_tour_runs",
        "npmdask metrics": "tests/manage/test_prometheus.py::test_a_run_that_runs_hangs_is_killed_and_crashes",
        "npmdask serve": "tests/prefect/test_example.py::test_it_runs_and_everything_is_in_its_folder",
        "npmdask perturb": "tests/goldens/test_goldens.py::test_a_finished_run_says_what_it_said",
        "npmdask audit": "tests/audit/test_audit.py::test_the_command_line",
        "npmdask run": "tests/streaming/test_components.py::test_from_a_configuration_to_a_page",
        "sensors": "a program of the reader",
    },
}


def run_by(part: Part) -> str:
    """Who runs a part; "" where nothing does."""
    if part.language == "doctest":
        return "pytest"
    if part.language in BUILT:
        return "tests/test_site.py"
    if part.language == "toml":
        return "tests/test_blocks.py::test_configurations_are_valid"
    if part.text in RUN:
        return "tests/test_documented.py::test_the_blocks_of_a_page_run"
    if part.text.startswith("make "):
        return "tests/test_blocks.py::test_targets_of_make_exist"
    if re.match(r"(\w+=\w+ )?python -m flows\.", part.text):
        return "tests/test_blocks.py::test_flows_take_their_parameters"
    return next((one for begin, one in ELSEWHERE.get(part.page, {}).items() if part.begin.startswith(begin)), "")


def test_every_block_of_a_page_is_run_or_says_why_not() -> None:
    assert len(ALL) > 300 and {part.language for part in ALL} > {"doctest", "command", "toml", "toctree"}
    unrun = [f"{part.page}: {part.begin}" for part in ALL if not run_by(part)]
    assert not unrun, "let a test run it, as `>>>` or by tests/test_documented.py, or write into ELSEWHERE why none can"


def test_a_block_that_nothing_runs_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself, of each kind; what is run and what is built are not reported."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "new.md"
    for text in ("npmdask run x.zarr -k 3", "git push", "a = 1", "rules: []", "x = y^T z"):
        for language in ("sh", "text", "", "python", "yaml"):
            page.write_text(f"# New\n\n```{language}\n{text}\n```\n")
            assert [run_by(part) for part in parts(page)] == [""], (language, text)
    page.write_text("```sh\nmake test; npmdask gram rows.zarr G | less\n```\n```python\n>>> 1\n1\n\n```\n")
    assert [bool(run_by(part)) for part in parts(page)] == [True, True, False, True]


def test_the_table_names_tests_that_exist_and_blocks_that_need_it() -> None:
    """Mutants: a test renamed, a block that was deleted or that a test runs by now, and the line left in the table."""
    used = {
        (part.page, begin)
        for part in ALL
        for begin, one in ELSEWHERE.get(part.page, {}).items()
        if part.begin.startswith(begin) and run_by(part) == one
    }
    assert used == {(page, begin) for page, table in ELSEWHERE.items() for begin in table}
    tests = {one for table in ELSEWHERE.values() for one in table.values() if one.startswith("tests/")}
    assert not [one for one in tests if one.partition("::")[2] not in names_in(one.partition("::")[0])]


def test_targets_of_make_exist() -> None:
    """Those in sentences, too; and the rows of benchmarks that they name."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    table = (ROOT / "docs/papers/benchmarks.md").read_text()  # has every row: tests/test_benchmarks.py
    rows = re.findall(r"^`([\w-]+)` \|", table, re.M)
    texts = {page: page.read_text() for page in PAGES}
    asked = [(str(page), one) for page, text in texts.items() for one in re.findall(r"`make ([a-z-]+)", text)]
    asked += [(part.page, part.text.split()[1]) for part in ALL if part.text.startswith("make ")]
    assert len(asked) > 60
    assert not [(page, target) for page, target in asked if target not in targets]
    wanted = [(page, one) for page, text in texts.items() for one in re.findall(r"make bench ONLY=([a-z][\w-]*)", text)]
    assert len(wanted) > 10
    assert not [(page, row) for page, row in wanted if not any(name.startswith(row) for name in rows)]
    modules = [
        (page, one)
        for page, text in texts.items()
        for one in re.findall(r"python -m ((?:benchmarks|infra|tests)[\w.]*)", text)
    ]
    assert len(modules) > 10
    assert not [(page, one) for page, one in modules if not exists(one)]


def test_options_that_sentences_name_exist() -> None:
    """Of npmdask and of the programs of benchmarks and infra; those of other programs are listed."""
    commands = next(action.choices for action in _parser()._actions if action.dest == "name")
    known = {option for one in commands.values() for action in one._actions for option in action.option_strings}
    programs = "".join(
        path.read_text() for folder in ("npmdask", "benchmarks", "infra") for path in (ROOT / folder).rglob("*.py")
    )
    codes = [(page, code) for page in PAGES for code in re.findall(r"`([^`]+)`", BLOCK.sub("", page.read_text()))]
    named = {(page, one) for page, code in codes for one in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)}
    assert len(named) > 100
    of_others = {(page, one) for page, one in named if one not in known and f'"{one}"' not in programs}
    assert {one for _, one in of_others} == OTHERS, of_others


OTHERS = {  # Docker Compose, SLURM, Dask, Prefect's image
    *("--build", "--env-file", "--mem", "--signal", "--scheduler-file", "--with-healthcheck")
}


def test_paths_that_pytest_is_given_and_extras_exist() -> None:
    texts = "".join(page.read_text() for page in PAGES)
    paths = set(re.findall(r"pytest ((?:tests|docs)/[\w./-]+)", texts))
    assert len(paths) > 2 and not [path for path in paths if not (ROOT / path).exists()]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {one for found in re.findall(r"npmdask\[([\w,]+)\]", texts) for one in found.split(",")}
    assert len(named) > 5 and named <= set(extras)


def exists(module: str) -> bool:
    place = ROOT / module.replace(".", "/")
    return place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, id=part.page, marks=pytest.mark.slow if "[[schedule]]" in part.text else ())
        for part in ALL
        if part.language == "toml"
    ],
)
def test_configurations_are_valid(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a source and a number of components where the block shows other tables only."""
    monkeypatch.chdir(tmp_path)
    tables = tomllib.loads(part.text)
    if "project" in tables:
        assert list(tables["project"]["entry-points"]) == ["npmdask.features"]
        return
    if tables.keys() & {"schedule", "notify"}:
        from npmdask.prefect.schedules import read_schedules

        Path("nightly.toml").write_text('[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 3\n')
        Path("schedules.toml").write_text(part.text)
        assert [one.name for one in read_schedules("schedules.toml")] == [
            one["name"] for one in tables.get("schedule", ())
        ]
        return
    lacking = {"source": 'path = "x.zarr"', "algorithm": "target_rank = 3"}
    added = "".join(f"\n[{table}]\n{keys}\n" for table, keys in lacking.items() if table not in tables)
    Path("page.toml").write_text(part.text + added)
    found = load_config("page.toml").model_dump()
    for table, keys in tables.items():
        assert found[table].keys() >= keys.keys()


@pytest.mark.slow
def test_flows_take_their_parameters() -> None:
    """The programs that pages start exist, and take the parameters that they are given there."""
    from npmdask.prefect.parameters import checked
    from npmdask.prefect.schedules import FLOWS

    lines = [part.text for part in ALL if "python -m flows." in part.text]
    assert len(lines) > 5
    for line in lines:
        name, *given = shlex.split(line.partition("flows.")[2])
        assert (ROOT / "flows" / f"{name}.py").is_file()
        if given[:1] and given[0].startswith("{"):
            assert checked(FLOWS[name.replace("_", "-")], json.loads(given[0]))


def test_alarms_name_metrics_that_are_exported() -> None:
    """And the table of the page names every one."""
    from npmdask.manage.prometheus import NIGHTS, NUMBERS

    exported = {"npmdask_up", "npmdask_run_state", "npmdask_ledger_up"}
    exported |= {f"npmdask_run_{name}" for name in NUMBERS} | {f"npmdask_schedule_{name}" for name, *_ in NIGHTS}
    exported |= {f"npmdask_ledger_epsilon_{name}" for name in ("granted", "left")}
    page = (ROOT / "docs/howto/observing.md").read_text()
    assert set(re.findall(r"`(npmdask_\w+)`", page)) == exported
    (groups,) = [yaml.safe_load(part.text)["groups"] for part in ALL if part.begin == "groups:"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == 5 and all(rule["annotations"]["summary"] for rule in rules)
    assert not [rule for rule in rules if not set(re.findall(r"npmdask_\w+", rule["expr"])) <= exported]


def test_python_that_no_doctest_runs_calls_what_exists() -> None:
    """Every ``npmdask.NAME(...)``, whose keywords are among its parameters."""
    trees = [ast.parse(part.text) for part in ALL if part.language in ("python", "py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    own = [one for one in calls if isinstance(one.func, ast.Attribute) and ast.unparse(one.func.value) == "npmdask"]
    assert len(own) > 6
    for call in own:
        names: list[Any] = [keyword.arg for keyword in call.keywords]
        known = inspect.signature(getattr(npmdask, call.func.attr)).parameters  # type: ignore[attr-defined]
        assert set(names) <= set(known), ast.unparse(call)
