"""docs/project/checklist.md against the program: sixty points, names that can be imported, tests that exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from npmdask import theory
from npmdask.theory import AssumptionA, intermediate

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "project" / "checklist.md"
POINTS = 60


class Point(NamedTuple):
    number: str
    asked: str
    where: list[str]
    shown: list[str]
    remark: str


def points(page: str) -> list[Point]:
    """The rows of the only table."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    found = []
    for number, asked, where, shown, remark in rows:
        names = [re.findall(r"`([^`]+)`", cell) for cell in (where, shown)]
        found.append(Point(number.strip(), asked.strip(), *names, remark.strip()))
    return found


@cache
def names_in(path: str) -> frozenset[str]:
    """``function`` and ``Class::function`` of a test file, as pytest would collect them."""
    file = ROOT / path
    if not file.exists() or not file.name.startswith("test_"):
        return frozenset()
    tree, found = ast.parse(file.read_text()), set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(node.name)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            inner = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= {f"{node.name}::{each.name}" for each in inner if each.name.startswith("test_")}
    return frozenset(found)


def missing_tests(page: str) -> list[str]:
    """Test ids of the page that no file has."""
    ids = [name for point in points(page) for name in point.shown]
    return [name for name in ids if name.partition("::")[2] not in names_in(name.partition("::")[0])]


def imported(name: str) -> Any:
    """The module, or what a module holds, under a dotted name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_every_point_is_there_once_with_code_and_tests() -> None:
    found = points(PAGE.read_text())
    assert [point.number for point in found] == [str(n) for n in range(1, POINTS + 1)]
    for point in found:
        assert point.asked and point.where and point.shown, f"point {point.number} is empty"
        assert not re.search(r"not yet|TODO|@", " ".join([point.asked, point.remark]), re.IGNORECASE), point


def test_all_code_that_is_named_can_be_imported() -> None:
    for point in points(PAGE.read_text()):
        for name in point.where:
            assert imported(name) is not None, f"point {point.number}"


@pytest.mark.slow
def test_all_tests_that_are_named_exist() -> None:
    assert not missing_tests(PAGE.read_text())


def test_a_test_that_was_renamed_or_removed_is_missed() -> None:
    """The check itself: a name, a file, a class and a helper that are none; and an empty row. Fails if it is blind."""
    line = "| 1 | asked | `npmdask.core.numerics.subspaces.orth` | `tests/test_checklist.py::{}` | |"
    assert missing_tests(line.format("test_all_tests_that_are_named_exist")) == []
    for wrong in ("test_all_tests_that_were_named_exist", "missing_tests", "TestNone::test_all", ""):
        assert missing_tests(line.format(wrong)) == [f"tests/test_checklist.py::{wrong}"]
    assert missing_tests("| 1 | a | `b` | `tests/test_gone.py::test_a` | |") == ["tests/test_gone.py::test_a"]
    assert points("| 7 | a | | | |") == [Point("7", "a", [], [], "")]
    for name in ("npmdask.core.numerics.subspaces.ortho", "npmdask.algebra.orth"):
        with pytest.raises((AttributeError, ModuleNotFoundError)):
            imported(name)


def test_links_of_the_page_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), target


def test_restored_formulas_say_how_sure_they_are() -> None:
    """Point 24: whatever speaks of a theorem of Balcan et al. says its confidence; the module says why. Fails for a new
    function without it."""
    assert "restored" in (intermediate.__doc__ or "")
    functions = [
        f for _, f in inspect.getmembers(intermediate, inspect.isfunction) if f.__module__ == intermediate.__name__
    ]
    of_theorems = [f for f in functions if "Theorem 2." in (f.__doc__ or "") and not f.__name__.startswith("_")]
    assert len(of_theorems) >= 5
    for function in of_theorems:
        said = re.search(r"[Cc]onfidence(?: of its restored form)?: (cert|high|med|low)", function.__doc__ or "")
        derived = function.__name__ in {"compare_forms", "best_q"}
        assert said or derived, function.__name__


MODEL = AssumptionA(kappa=2.0, V=0.5, gamma=0.1, M=3.0)
AT: dict[str, Any] = {"n": 10**6, "d": 20, "k": 2, "epsilon": 0.5, "delta": 1e-7}
SPECTRAL: dict[str, Any] = {"top": 1.0, "second": 0.5, "deviation": 2.0, "variance": 2.0, "alpha": 2.0}
STEPS: dict[str, Any] = {"d": 100, "k": 3, "p": 6, "releases": 10}
OPEN: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "improved_iterations": ((4, 1, 100, 0.1), {}),
    "improved_max_noise": ((4, 1, 0.1, 100, 9, 5), {}),
    "improved_eps_range": ((8, 4, 1, 1000), {}),
    "gapfree_iterations": ((0.1, 100), {}),
    "gapfree_noise": ((0.1, 2, 100, 5, 9), {}),
    "spm_samples": ((0.5, 0.3, 0.1), {"d": 100, "k": 5, "p": 9, "B": 2.0}),
    "spm_samples_improved": ((0.5, 0.3, 0.1), {"d": 100, "q": 5, "p": 9, "B": 2.0}),
    "spm_samples_general": ((0.5, 0.3, 0.1), {"d": 100, "k": 5}),
    "spm_samples_powerlaw": ((1.5, 0.1), {"d": 100, "k": 2}),
    "spm_samples_spiked": (([1.0, 2.0], 0.5, 0.1), {"d": 20}),
    "spm_block_noise": ((1000, 100, 4, 2.0), {}),
    "dppca_zeta": ((MODEL,), AT),
    "dpojas_zeta": ((MODEL,), AT),
    "dppca_min_n": ((MODEL,), {name: AT[name] for name in ("d", "k", "epsilon", "delta")}),
    "spiked_lower_bound": ((np.array([10.0, 8.0]), 0.1), {"n": 10**6, "d": 20, "epsilon": 0.5, "delta": 1e-7}),
    "top_lower_bound": ((4.0, 1.0), {"n": 10**6, "d": 100, "epsilon": 0.5}),
    "mbmsg_bound": ((7, 0.2, 3, 100, 0.1), {}),
    "mbrmsg_expected": ((10, 0.2, 3, 50), {}),
    "total_cost": (("oja",), {"d": 5, "k": 2, "acc": 0.1, "gap": 0.1}),
    "oja_rate": ((10**8, 10), SPECTRAL),
    "ppm_rate": ((4.0, 1.0, 0.1, 0.5), STEPS),
    "ppm_rate_coherent": ((4.0, 1.0, 0.1, 2.0), STEPS),
    "dist_rate": ((4.0, 1.0, 0.1, 2.0, 3), {"d": 100, "q": 3, "p": 6, "releases": 10}),
    "lowrank_rate": ((4.0, 2.0, 1.0), {"d": 100, "k": 3, "epsilon": 1.0, "delta": 1e-6}),
    "input_perturbation_min_eps": ((2.0, 100, 1e-6), {}),
    "privrange_groups": ((0.5, 0.005, 0.01), {}),
}
PLAIN = {"dp_tpm_min_eps", "tpm_iterations", "tpm_restarts"}  # give a number; their constant is an argument too


def test_the_list_of_open_constants_is_complete() -> None:
    """Point 60. Fails where a function with an open constant is new here."""
    functions = {name: getattr(theory, name) for name in theory.__all__}
    with_constant = {
        n for n, f in functions.items() if inspect.isfunction(f) and "constant" in inspect.signature(f).parameters
    }
    assert with_constant == set(OPEN) | PLAIN


@pytest.mark.parametrize("name", OPEN)
def test_predictions_name_the_constants_that_they_assumed(name: str) -> None:
    """Twice the constant is another value, and the result says which was assumed. Fails for one that is built in."""
    arguments, named = OPEN[name]
    function = getattr(theory, name)
    usual = inspect.signature(function).parameters["constant"].default
    once, twice = (function(*arguments, **named, constant=c) for c in (usual, 2 * usual))
    assert twice.constants["constant"] == 2 * usual and once.constants["constant"] == usual
    assert once.value != twice.value
