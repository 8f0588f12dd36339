"""State how wrong the components of a tensor can be, from what they leave of it.

T = sum_i w_i v_i^p + E with orthonormal v_i: a fixed point of the power method on T is, to first order in E, off by
``|E(I, v, ..., v)| / w <= ||E|| / w`` and its weight by ``|E(v, ..., v)| <= ||E||`` (the errors of Theorem 2.1 of
Wang and Anandkumar 2016, without its constants). ||E|| is not known, but the Frobenius norm of what is left is: if
it is like noise, ||E|| is its largest score (algorithms._tensor_fit.noise_score). What the iterations leave, the
residual of each component, is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npmdask.core.certificates.wording import LOST, Assurance, degrees, percent, spread

EXACT = 1e-9  # of the tensor's norm: what is left is rounding, and so is the error
RESIDUAL = 2.0  # times residual / weight: a component that is off by e has a residual of about w e
BELOW = 1e-9  # no angle and no relative error of a weight is stated below this


def of_tensor(values: Sequence[float], residual_norms: Sequence[float], facts: Mapping[str, Any]) -> Assurance:
    """State how wrong components can be, without noise of our own.

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
        clause = "does not stand out or has not settled" if len(status) == 1 else "stands out and has settled"
        rest = f"{percent(left)} of the tensor's size is left unexplained"
        return Assurance(
            f"The result is not reliable: {which} asked for {clause}, and "
            f"{rest if left > 0 else 'the tensor holds nothing but zeros or rounding'}.",
            {"left": left, "found": 0},
        )
    offs = [noise + RESIDUAL * float(residual_norms[i]) for i in found]
    sines = [min(max(off / abs(float(values[i])), BELOW), 1.0) for i, off in zip(found, offs, strict=True)]
    numbers = {"left": left, "found": len(found), "sines": sines, "weights": offs}
    return Assurance(_tensor_sentence(left, sines, offs, len(status)) + _others_text(status, left, noise), numbers)


def _tensor_sentence(left: float, sines: Sequence[float], offs: Sequence[float], asked: int) -> str:
    count, worst = len(sines), max(sines)
    which = f"all {count} components" if count == asked > 1 else f"the {count} found" if asked > 1 else "the component"
    verb = "is" if asked == 1 else "are"
    if left < EXACT:
        return (
            f"The components explain the tensor up to rounding: {which} {verb} accurate to less than "
            f"{degrees(worst)}, and {'its weight' if asked == 1 else 'their weights'} to +-{spread(max(offs))}."
        )
    rest = f"The components leave {percent(left)} of the tensor's size unexplained"
    if worst >= LOST:
        return (
            f"{rest}; if that is noise, it is as strong as the weakest of them, whose direction may be anything: ask "
            "for fewer components, or use a tensor from more data."
        )
    return (
        f"{rest}; assuming that is noise, {which} {verb} likely less than {degrees(worst)} off, and "
        f"{'its weight' if asked == 1 else 'their weights'} accurate to +-{spread(max(offs))} (an estimate, not a "
        "bound). If the tensor has more components, or some far from orthogonal, errors can be larger: ask for more."
    )


def _others_text(status: Sequence[str], left: float, noise: float) -> str:
    """A surplus is one beside noise as large as what is left: where much is left, it is not taken for nothing."""
    said, level = [], "rounding" if left < EXACT else f"noise as large as what is left would show (up to {noise:.2g})"
    if "open" in status:
        said.append(f"{status.count('open')} open (not converged): still moving, error unknown")
    if "surplus" in status:
        so = "ignore it" if left < EXACT else "ignore it if what is left is noise, which it need not be"
        said.append(f"{status.count('surplus')} surplus (spurious): no larger than {level}; {so}")
    return f" The others: {'; '.join(said)}." if said else ""


def of_tensor_run(kind: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Assurance:
    """The same, of the result of a run."""
    return of_tensor(arrays["values"].tolist(), arrays["residual_norms"].tolist(), meta.get("facts", {}))
