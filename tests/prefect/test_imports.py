"""Prefect is a guest of one room."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.prefect.conftest import ROOT


def _imports(text: str) -> set[str]:
    tree = ast.parse(text)
    plain = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    return plain | {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


@pytest.mark.slow
def test_only_one_room_imports_prefect() -> None:
    for file in (ROOT / "npmdask").rglob("*.py"):
        guests = {name for name in _imports(file.read_text()) if name.split(".")[0] in ("prefect", "flows")}
        if file.parent.name != "prefect":
            assert not guests, f"{file} imports {guests}"
        assert "flows" not in guests, f"{file}: the wheel has no flows"


def test_flow_modules_keep_their_annotations() -> None:
    """Prefect 3.8.8 cannot read the parameters of a served flow whose annotations are strings."""
    for file in (ROOT / "npmdask" / "prefect").glob("*.py"):
        assert "__future__" not in _imports(file.read_text()), file


@pytest.mark.slow
def test_the_command_line_does_not_load_prefect() -> None:
    names = "npmdask, npmdask.cli.main, npmdask.config, npmdask.manage.report"
    code = f"import {names}, sys; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.slow
def test_to_import_the_room_changes_no_setting_and_loads_no_prefect() -> None:
    """Fails where a program that imports it before prefect loses its own profile, and with it its server."""
    code = (
        "import os, sys; ours = lambda: {k: v for k, v in os.environ.items() if k.startswith(('PREFECT', 'DO_NOT'))}\n"
        "import npmdask.prefect\n"
        "assert 'prefect' not in sys.modules, 'loaded before a flow is asked for'\n"
        "from npmdask.prefect import *\n"
        "assert set(npmdask.prefect.__all__) <= set(dir())\n"
        "assert ours() == {}, ours()\n"
        "from prefect.settings import PREFECT_HOME, PREFECT_API_URL\n"
        "print(PREFECT_HOME.value(), PREFECT_API_URL.value())"
    )
    there = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DO_NOT"))}
    with TemporaryDirectory() as home:
        profile = 'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'
        Path(home, ".prefect").mkdir()
        Path(home, ".prefect", "profiles.toml").write_text(profile)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=there | {"HOME": home}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [str(Path(home, ".prefect")), "http://127.0.0.1:9/api"]
