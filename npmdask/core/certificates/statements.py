"""State how wrong a result can be, in a sentence for non-specialists, from facts that a run has anyway.

Each kind of run has its own, of ``features.statements``: pure functions, no pass over the data, no clock, no
randomness. A sentence says how large the error is likely to be, on what that rests, and what is not covered;
what it claims in numbers is in ``numbers``, and how often that was true in simulations is in
docs/explanation/assurance.md. Certificates have theirs in :mod:`npmdask.core.certificates.wording`, beside the table of
how numbers read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npmdask.core import features


def _statement_of(kind: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> str:
    """Say how wrong the result of a run is: private or of nodes (its ``statement`` says so), or of another ``kind``.

    Matrices without privacy are not treated here: their certificates are made elsewhere.
    """
    public = meta.get("statement")
    own = features.keys("statements", ours=True)
    whose = kind if public is None else next((name for name in own if name in public), "private")
    state = features.found("statements", whose)
    return "" if state is None else str(state(kind, arrays, meta).sentence)


def with_assurance(kind: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> dict[str, Any]:
    """``meta`` of a result with its ``assurance``: the sentence that it has, or else that of :func:`_statement_of`."""
    return {**meta, "assurance": meta.get("assurance") or _statement_of(kind, arrays, meta)}


def assurance_of(spec: Mapping[str, Any], result: tuple[Mapping[str, np.ndarray], Mapping[str, Any]] | None) -> str:
    """The sentence of the finished run with these parameters; "" where there is no answer yet, or none was made."""
    if result is None:
        return ""
    return str(with_assurance(spec["data"]["kind"], *result)["assurance"])
