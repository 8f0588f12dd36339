"""Neighbouring relations: what one person, or one entry, may change; the first thing to say about a private release.

A relation fixes how far apart the products A X of two neighbouring data sets can be (its sensitivity), for the public
block X of that very step. All formulas are attained: no smaller number is valid for all data.

==================  ====================================================  ==========================================
relation            neighbours                                            2-norm sensitivity of A X
==================  ====================================================  ==========================================
entry               one entry of A differs by c                           c max_j r_j
symmetric_entry     A_ij and A_ji (or A_ii) of a symmetric A differ       c sqrt(sum of the two largest r_j^2)
spectral_norm       the spectral norm of the difference is at most c      c ||X||_F
frobenius_norm      the Frobenius norm of the difference is at most c     c ||X||_2
record_add_remove   a record is there or not; A = sum of a a^T, |a| <= C  C^2 ||X||_2
record_zero_out     a record is replaced by zeros; n is public            C^2 ||X||_2
record_replace      a record is replaced by another; n is public          C^2 sqrt(s_1(X)^2 + s_2(X)^2)
with ``image_norm`` B < C s_1(X), where s_1(X) = 1:
record_add_remove   as above; images X^T a are clipped to norm B          C B
record_zero_out     the same                                              C B
record_replace      the same                                              2 B sqrt(C^2 - B^2) up to B = C / sqrt(3),
                                                                          then (C^2 + B^2) / sqrt(2)
of T(I, u, u), T of order 3 (relations/tensor.py; t: T_ijk and its permutations)
tensor_entry        t differs by c (i = j: by 2 c; i = j = k: by 6 c)     6 c max u_i^2
tensor_orbit        every position of t differs by at most c              at most 2 sqrt(3) c max u_i^2
==================  ====================================================  ==========================================

r_j is the 2-norm of row j of X, s_i a singular value. X need not be orthonormal: its real norms are used, rounded up.
Derivations: (C X)_i = c X_j for one entry; tr(C^2 X X^T) <= sum of |eigenvalues of C|^2 s_i(X)^2 (von Neumann) for the
others, where the eigenvalues of a a^T - b b^T are two, of opposite sign, at most C^2; clipped images:
docs/decisions/0023. The papers use
sqrt(p) max |X_ij| for one entry, and the same for a symmetric pair, which is sqrt(2) too small in the worst case.
"""

from __future__ import annotations

from npmdask.errors import BadInputError, closest
from npmdask.privacy.neighbors.base import Norm, Relation
from npmdask.privacy.neighbors.matrix import Entry, FrobeniusNorm, MatrixRelation, SpectralNorm, SymmetricEntry
from npmdask.privacy.neighbors.records import RecordAddRemove, RecordReplace, RecordZeroOut
from npmdask.privacy.neighbors.tensor import TensorEntry, TensorOrbit, TensorRelation

__all__ = [
    "REGISTRY",
    "TENSORS",
    "Entry",
    "FrobeniusNorm",
    "Norm",
    "RecordAddRemove",
    "RecordReplace",
    "RecordZeroOut",
    "Relation",
    "SpectralNorm",
    "SymmetricEntry",
    "TensorEntry",
    "TensorOrbit",
    "TensorRelation",
    "make_relation",
    "protected",
]

REGISTRY: dict[str, type[Relation]] = {
    relation.name: relation
    for relation in (Entry, SymmetricEntry, SpectralNorm, FrobeniusNorm, RecordAddRemove, RecordReplace, RecordZeroOut)
}
TENSORS: dict[str, type[TensorRelation]] = {relation.name: relation for relation in (TensorEntry, TensorOrbit)}


def make_relation(
    name: str | None, *, clip_norm: float | None = None, change: float = 1.0, coherence: float | None = None
) -> Relation:
    """The relation ``name``; nothing about privacy has a default that could be wrong.

    Raises
    ------
    BadInputError
        No relation, an unknown one, no ``clip_norm``, numbers that are not positive, or parameters of others.
    """
    known = {**REGISTRY, **TENSORS}
    if name is None:
        raise BadInputError(
            f"say what is protected: neighboring_relation is one of {', '.join(known)}; it has no default, because "
            "the noise depends on it"
        )
    if name not in known:
        raise BadInputError(f"unknown neighboring_relation {name!r}: {closest(str(name), list(known))}")
    if clip_norm is None:
        raise BadInputError(
            f"{name} needs a clip_norm: a public bound (of the norm of a record, or of every entry) that "
            "is chosen without looking at the data"
        )
    kind, parameters = known[name], {"clip_norm": clip_norm}
    if issubclass(kind, MatrixRelation | TensorRelation):
        parameters["change"] = change
    elif change != 1.0:
        raise BadInputError(
            f"change = {change} is for matrices and tensors: a record of {name} changes as far as clip_norm allows"
        )
    if coherence is not None:
        if not issubclass(kind, Entry):
            raise BadInputError(f"coherence is for entry and symmetric_entry, not for {name}: leave it out")
        parameters["coherence"] = coherence
    return kind(**parameters)


def protected(relation: str, shape: tuple[int, ...]) -> int | None:
    """How many things a relation protects one of, in data of this ``shape``: records, or entries of a matrix or tensor;
    None of a norm, which counts nothing."""
    rows, columns = shape[:2]
    pairs = rows * (rows + 1) // 2
    orbits = dict.fromkeys(TENSORS, pairs * (rows + 2) // 3)
    if relation.endswith("_norm"):
        return None
    return {"entry": rows * columns, "symmetric_entry": pairs, **orbits}.get(relation, rows)
