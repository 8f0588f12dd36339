"""Prefect is a guest of one room."""

import ast
import subprocess
import sys

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
