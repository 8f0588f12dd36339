"""The sentence of a run from its store: as it was written with the answer, or made of that, in older stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npmdask.theory.certificates.statements.models import of_result
from npmdask.theory.certificates.statements.private import of_nodes, of_release
from npmdask.theory.certificates.wording import Assurance

NOTHING = Assurance("", {})


def statement_of(kind: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Assurance:
    """Of the result of a run of the driver: private or of nodes (its ``statement`` says so), or of a tensor.

    ``kind``: of the data. Matrices without privacy are not treated here: their certificates are made elsewhere.
    """
    statement = meta.get("statement")
    if statement is not None and "nodes" in statement:
        last = meta["history"][-1]["ritz_values"] if meta["history"] else []
        return of_nodes(arrays, statement, last, singular=kind == "sparse")
    if statement is not None:
        return of_release(arrays, statement)
    return of_result(arrays, meta) if kind == "tensor" else NOTHING


def with_assurance(kind: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> dict[str, Any]:
    """``meta`` of a result with its ``assurance``: the sentence that it has, or else that of :func:`statement_of`."""
    return {**meta, "assurance": meta.get("assurance") or statement_of(kind, arrays, meta).sentence}


def assurance_of(spec: Mapping[str, Any], result: tuple[Mapping[str, np.ndarray], Mapping[str, Any]] | None) -> str:
    """The sentence of the finished run with these parameters; "" where there is no answer yet, or none was made."""
    if result is None:
        return ""
    return str(with_assurance(spec["data"]["kind"], *result)["assurance"])
