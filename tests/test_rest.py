"""A feature is deleted in a copy, with all that needs it, its tests, flows and pages: what is left passes its checks.

For each feature these are the fast tests of the core and the command line; for one that is asked for by its name, `make
delete FEATURE=topics`, they are those of `make check`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.house_gates import Checkout
from infra.rest import Rest, rest_of

ROOT = Path(__file__).resolve().parents[1]
CHECKOUT = Checkout(root=ROOT)
OWN = ("tests/core", "tests/cli")
WHOLE = os.environ.get("FEATURE", "")

# Tests of the core and the command line ask for these: by a word, with an array in memory, or print an answer.
ASKED = {"cluster", "containers", "manage", "planning", "privacy", "remote", "stored_gram"}
WAITING = {  # with each of these goes one of them
    *("accounting", "complex", "formats", "gpu", "report", "symmetric", "tensors", "theory", "writers"),
    *("estimators", "missing", "streaming", "weights"),  # a job of tests/faults
}
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


STANDING = sorted(CHECKOUT.parts().keys() - ASKED - WAITING)


@pytest.mark.heavy
@pytest.mark.parametrize("features", [*((feature,) for feature in STANDING), STANDING], ids=[*STANDING, "all of these"])
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
