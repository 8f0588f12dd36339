"""A feature is deleted in a copy, with all that needs it, its tests, flows and pages: what is left passes its checks.

For each feature these are the fast tests of the core and the command line; for one that is asked for by its name, `make
delete FEATURE=topics`, they are those of `make check`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from infra.house_gates import Checkout
from infra.rest import Rest, rest_of

ROOT = Path(__file__).resolve().parents[1]
CHECKOUT = Checkout(root=ROOT)
OWN = ("tests/core", "tests/cli")
WHOLE = os.environ.get("FEATURE", "")

WRITING = {"formats", "symmetric", "writers"}  # without these nothing writes the files of some tests of the core


@pytest.fixture(scope="module")
def rests() -> dict[str, Rest]:
    return {feature: rest_of(CHECKOUT, feature) for feature in CHECKOUT.parts()}


@pytest.mark.slow
def test_no_module_of_the_rest_imports_what_is_gone(rests: dict[str, Rest]) -> None:
    """Mutant: ``import npmdask.topics`` in npmdask/manage/gc.py."""
    assert {feature for feature, rest in rests.items() if rest.faults} == set()


@pytest.mark.slow
def test_tests_of_the_core_and_the_command_line_need_no_feature(rests: dict[str, Rest]) -> None:
    """Mutant: ``import npmdask.latent`` in a function of tests/core."""
    assert {feature for feature, rest in rests.items() if rest.went(*OWN)} <= WRITING


@pytest.mark.slow
def test_tests_that_go_with_a_feature_name_one() -> None:
    """Mutant: ``needs("container")`` in tests/core."""
    asked = {
        name
        for own in OWN
        for path in (ROOT / own).rglob("test_*.py")
        for name in asked_in(ast.parse(path.read_text()))
    }
    assert asked and asked <= CHECKOUT.parts().keys()


def asked_in(tree: ast.AST) -> Iterator[str]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "needs":
            yield from (ast.literal_eval(name) for name in call.args)


FEATURES = sorted(CHECKOUT.parts())


@pytest.mark.heavy
@pytest.mark.parametrize("features", [*((feature,) for feature in FEATURES), FEATURES], ids=[*FEATURES, "all of them"])
def test_the_rest_is_checked(features: Sequence[str], tmp_path: Path) -> None:
    """Mutant: a test of the core that asks for a share of the variance."""
    rest_of(CHECKOUT, *features).copy(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    fast = ["pytest", "-p", "no:cacheprovider", "-m", "not slow and not heavy", "-n", "2"]
    commands = [["mypy"], [*fast, "tests"]] if WHOLE else [[*fast, *OWN]]
    for command in (["ruff", "check", "."], *commands):
        words = [sys.executable, "-m", *command]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-8000:]}"
