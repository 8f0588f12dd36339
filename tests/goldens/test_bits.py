"""Weights, gaps, complex and whole numbers, Grams, lazy rows: answers and refusals have their bits and words.

What the cases are, and how they are made: ``bits.py``; when they may be made again: README.md in this folder.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from tests.goldens.bits import BITS, CASES, answer, flat, kept
from tests.goldens.worlds import simd

WHOLE = json.loads(BITS.read_text())
KEPT = kept(WHOLE)
# What is computed with powers, logarithms or angles: angles of rotations, chances of a certificate, and what holds it.
OF_SIMD = re.compile(r"" if WHOLE["simd"] == simd() else r".*\b(rotated|certificate|parts\.result)")
NUMBER = re.compile(r"\b[0-9a-f]{8,}\b|[-+]?\d[\d.]*(e[-+]?\d+)?")  # or a digest
ELSEWHERE = ("numbers", "refusal", "refused", "spec")  # what is compared on other arithmetic


def changes(wanted: dict[str, Any], found: dict[str, Any], tolerance: float) -> list[str]:
    """What is not as it was. ``tolerance``: of numbers on other arithmetic, where digests say nothing."""
    if tolerance:
        wanted, found = ({name: one[name] for name in ELSEWHERE if name in one} for one in (wanted, found))
        numbers, here = wanted.pop("numbers", []), found.pop("numbers", [])
        far = [abs(w - f) > tolerance * max(1.0, abs(w)) for w, f in zip(numbers, here, strict=True)]
        assert not any(far), (numbers, here)
        wanted, found = (
            {name: NUMBER.sub("#", str(value)) for name, value in flat(one).items() if "fingerprint" not in name}
            for one in (wanted, found)
        )
    else:
        wanted, found = ({n: v for n, v in flat(one).items() if not OF_SIMD.fullmatch(n)} for one in (wanted, found))
    return [
        f"{name}: {found.get(name, 'missing')!r} in the place of {wanted.get(name, 'nothing')!r}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name, "nothing") != found.get(name, "missing")
    ]


def test_every_case_is_kept() -> None:
    assert list(KEPT) == list(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_is_as_it_was(name: str, tolerance: float) -> None:
    assert changes(KEPT[name], json.loads(json.dumps(answer(name))), tolerance) == []


def test_what_was_corrected_was_nearly_right() -> None:
    """Cases whose answers were wrong in their last digits, as they were before: gaps of float32 rows were filled with
    means as float32 holds them, and ``row-gram`` took the singular values of W for those of A.
    """
    for name, before in WHOLE["corrected"].items():
        np.testing.assert_allclose(KEPT[name]["numbers"], before["numbers"], rtol=1e-7)
        assert KEPT[name]["answers"]["values"] != before["answers"]["values"]


@pytest.mark.parametrize("tolerance", [0.0, 1e-6])
def test_a_changed_name_number_and_sentence_are_seen(tolerance: float) -> None:
    """And a changed bit, on the same arithmetic."""
    wanted, said = KEPT["samples-krylov-both"], KEPT["refused-pairwise-with-row-weights"]
    assert changes(wanted, wanted, tolerance) == [] == changes(said, said, tolerance)
    spec = dict(wanted["spec"])
    spec["weights.row"] = spec.pop("weights.rows")
    assert len(changes(wanted, wanted | {"spec": spec}, tolerance)) == 2
    assert len(changes(said, {"refusal": said["refusal"].replace("rows", "lines")}, tolerance)) == 1
    numbers = [number * (1 + 1e-5) for number in wanted["numbers"]]
    other_bits = wanted["answers"] | {"basis": "0123456789"}
    if tolerance:
        with pytest.raises(AssertionError):
            changes(wanted, wanted | {"numbers": numbers}, tolerance)
    else:
        assert len(changes(wanted, wanted | {"answers": other_bits}, tolerance)) == 1
