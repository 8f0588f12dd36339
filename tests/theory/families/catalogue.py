"""Which families there are, and how many problems of each a night tries."""

from __future__ import annotations

import os
import tempfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.errors import NpmdaskError
from tests.theory.families.judging import Findings, Problem, Unasked

# Problems of a night, by module: fifteen minutes on two cores in all.
NIGHTLY = {
    "samples": 2400,
    "formed": 2200,
    "sources": 1300,
    "sparse": 1200,
    "complex_matrices": 1000,
    "stored_grams": 800,
    "estimators": 900,
    "ties": 500,
    "two_fields": 600,
    "held_out": 600,
    "small_values": 500,
    "streams": 400,
    "readings": 300,
    "em": 250,
    "intervals": 200,
    "masks": 200,
    "exports": 150,
    "latent": 120,
    "large": 40,
}


@dataclass(frozen=True)
class Case:
    """What became of one problem: "right", "refused", "unasked", "crashed" or "wrong"."""

    family: str
    number: int
    became: str
    problem: str = ""
    entries: int = 0
    said: str = ""
    findings: Findings = field(default_factory=Findings)


def family(name: str) -> tuple[Callable[[np.random.Generator], Problem], Callable[[Any, Path], Findings]]:
    module = import_module(f"tests.theory.families.{name}")
    return module.problem, module.check


def run(name: str, seed: int, number: int) -> Case:
    """Draw one problem, ask npmdask, and compare; seed and number decide everything."""
    problem_of, check = family(name)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="npmdask-family-") as folder:
        warnings.simplefilter("ignore")  # data at the edge of float64 overflow in what is compared; users are warned
        try:
            problem = problem_of(rng)
        except Unasked as why:
            return Case(name, number, "unasked", said=str(why))
        known = {"family": name, "number": number, "problem": str(problem), "entries": problem.entries()}
        try:
            findings = check(problem, Path(folder))
        except NpmdaskError as refusal:
            return Case(became="refused", said=str(refusal), **known)
        except Unasked as why:
            return Case(became="unasked", said=str(why), **known)
        except Exception as error:  # a person would see a traceback: the crash is what is looked for
            return Case(became="crashed", said=f"{type(error).__name__}: {error}", **known)
    became = "wrong" if findings.faults else "right"
    return Case(became=became, said="; ".join(findings.faults), findings=findings, **known)


def run_some(name: str, seed: int, numbers: range) -> list[Case]:
    return [run(name, seed, number) for number in numbers]


def seed_of_today() -> int:
    """SEED of the environment, or the date: every day other problems, and within a day the same ones."""
    return int(os.environ.get("SEED") or datetime.now(UTC).strftime("%Y%m%d"))
