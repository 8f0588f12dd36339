"""How wrong the components of a tensor can be, from what they leave of it.

T = sum_i w_i v_i^p + E with orthonormal v_i: a fixed point of the power method on T is, to first order in E, off by
``|E(I, v, ..., v)| / w <= ||E|| / w`` and its weight by ``|E(v, ..., v)| <= ||E||`` (the errors of Theorem 2.1 of Wang
and Anandkumar 2016, without its constants). ||E|| is not known, but the Frobenius norm of what is left is: if it is
like noise, ||E|| is its largest score (algorithms._tensor_fit.noise_score). What the iterations leave, the residual of
each component, is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npmdask.theory.certificates.statements.numbers import LOST, Assurance, degrees, percent, spread

EXACT = 1e-9  # of the tensor's norm: what is left is rounding, and so is the error
RESIDUAL = 2.0  # times residual / weight: a component that is off by e has a residual of about w e
BELOW = 1e-9  # no angle and no relative error of a weight is stated below this


def of_tensor(values: Sequence[float], residual_norms: Sequence[float], facts: Mapping[str, Any]) -> Assurance:
    """Of components without noise of our own.

    Parameters
    ----------
    values, residual_norms (k) : weights, and the residuals ``||T(I, v, ...) - ...||`` in their units.
    facts : as the method gives them: ``status`` (k), ``relative_residual``, ``noise_score``.
    """
    status, left = list(facts.get("status", ())), float(facts.get("relative_residual", 1.0))
    noise = float(facts.get("noise_score", 0.0))
    found = [i for i, word in enumerate(status) if word == "found" and values[i]]
    if not found:
        which = "the one component" if len(status) == 1 else f"none of the {len(status)} components"
        stands = "does not stand out or has not settled" if len(status) == 1 else "stands out and has settled"
        rest = f"{percent(left)} of the tensor's size is left unexplained"
        return Assurance(
            f"Nothing can be relied on: {which} asked for {stands}, and "
            f"{rest if left > 0 else 'the tensor holds nothing but zeros or rounding'}.",
            {"left": left, "found": 0},
        )
    offs = [noise + RESIDUAL * float(residual_norms[i]) for i in found]
    sines = [min(max(off / abs(float(values[i])), BELOW), 1.0) for i, off in zip(found, offs, strict=True)]
    numbers = {"left": left, "found": len(found), "sines": sines, "weights": offs}
    return Assurance(_sentence(left, sines, offs, len(status)) + _others(status, left, noise), numbers)


def _sentence(left: float, sines: Sequence[float], offs: Sequence[float], asked: int) -> str:
    count, worst = len(sines), max(sines)
    which = f"all {count} components" if count == asked > 1 else f"the {count} found" if asked > 1 else "the component"
    verb = "is" if asked == 1 else "are"
    if left < EXACT:
        return (
            f"Of the tensor nothing but rounding is left unexplained: {which} {verb} right to less than "
            f"{degrees(worst)}, and {'its weight' if asked == 1 else 'their weights'} to +-{spread(max(offs))}."
        )
    rest = f"The components leave {percent(left)} of the tensor's size unexplained"
    if worst >= LOST:
        return (
            f"{rest}; if that is like noise, it is as strong as the weakest of them, and how far its direction is off "
            "cannot be told: ask for fewer components, or for a tensor from more data."
        )
    return (
        f"{rest}; if that is like noise, {which} {verb} likely less than {degrees(worst)} off, and "
        f"{'its weight' if asked == 1 else 'their weights'} right to +-{spread(max(offs))} (an estimate, not a bound). "
        "If it holds more components, or some that are far from orthogonal, it can be more: ask for more and see."
    )


def _others(status: Sequence[str], left: float, noise: float) -> str:
    """A surplus is one beside noise as large as what is left: where much is left, it is not taken for nothing."""
    said, level = [], "rounding" if left < EXACT else f"noise as large as what is left would show (up to {noise:.2g})"
    if "open" in status:
        said.append(f"{status.count('open')} open: still moving, and of unknown error")
    if "surplus" in status:
        so = (
            "take it for nothing"
            if left < EXACT
            else "take it for nothing if what is left is noise, which it need not be"
        )
        said.append(f"{status.count('surplus')} surplus: no larger than {level}, {so}")
    return f" The others: {'; '.join(said)}." if said else ""


def of_result(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Assurance:
    """The same, of the result of a run."""
    return of_tensor(arrays["values"].tolist(), arrays["residual_norms"].tolist(), meta.get("facts", {}))
