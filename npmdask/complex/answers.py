"""From 2 k real pairs of a run on complex data to the k complex ones: vectors, residuals, certificate, units.

The algorithms work with real vectors of twice as many entries (:mod:`npmdask.complex.operator`), of which
complex conjugates are eigenvectors of ``A^H A``. What a certificate says of eigenvalues, each of which comes twice, is
true of them whatever the vectors are; what it says of vectors is made again from the residuals of those returned.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from npmdask.complex.parts import as_complex, complex_pairs, fix_phases, folded, interleaved, moduli
from npmdask.core.algorithms import Result
from npmdask.core.algorithms.stopping import StepView
from npmdask.core.certificates.bounds import Certificate, Evidence, Level, carried_over
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.errors import first_of

WHOLE = 0.7  # sine, below which a space that is made closed under J is tilted no more than before (complex_pairs)


def closed(result: Result) -> Result:
    """The 2 k pairs w_1, i w_1, w_2, i w_2, ... of a space that is closed under multiplication by i.

    Their residuals are those of the vectors that are returned, and of a matrix that was formed its distance is added.
    """
    pairs = complex_pairs(result.vectors, result.products)
    away = 0.0 if result.seen is None else result.seen.away
    return replace(
        result,
        values=np.repeat(pairs.values, 2),
        vectors=interleaved(pairs.vectors),
        products=interleaved(pairs.products),
        residual_norms=np.repeat(pairs.residual_norms + away, 2),
    )


def of_pairs(view: StepView, result: Result) -> StepView:
    """A step as the k complex pairs of it are."""
    found = closed(result)
    return replace(view, ritz_values=found.values[::2], residual_norms=found.residual_norms[::2])


def _complex_certificate(evidence: Evidence, certificate: Certificate, found: Result) -> Certificate:
    """The certificate of k complex pairs, where ``found`` are they (:func:`closed`).

    ``evidence`` and ``certificate`` are of the 2 k real pairs that they were made of.
    """
    residuals = found.products - found.vectors * found.values
    again = carried_over(certificate, replace(evidence, values=found.values, gram=residuals.T @ residuals))
    values, nearest = np.abs(found.values[::2]), np.linalg.norm(residuals[:, ::2], axis=0) + certificate.perturbation
    return replace(
        certificate,
        values=found.values[::2],
        nearest=nearest,
        levels=tuple(_halved(*both, values, nearest) for both in zip(again, certificate.levels, strict=True)),
    )


def _halved(level: Level, before: Level, values: np.ndarray, nearest: np.ndarray) -> Level:
    """A level of 2 k pairs as one of k; ``before``: of those that were found, whose space may be bounded better.

    Each vector is tilted against the eigenvectors of its own value by its residual over the gap to all others (Davis
    and Kahan). Values are sizes: one of the other sign is further away.
    """
    lower, upper = level.lower[0::2], level.upper[1::2]
    above = np.append(np.inf, lower[:-1]) - values
    below = values - np.append(upper[1:], level.following)
    gaps = np.minimum(above, below)
    sines = np.divide(nearest, gaps, out=np.full(len(gaps), np.inf), where=gaps > nearest)
    return replace(
        level,
        lower=lower,
        upper=upper,
        sine=min(level.sine, before.sine if before.sine < WHOLE else math.inf),
        component_sines=sines,
        lost=level.lost / 2,
    )


def in_complex(values: np.ndarray, vectors: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, ...]:
    """Values, vectors and residual norms of closed pairs as those of k complex ones of ``A^H A``."""
    return values[::2], np.conj(as_complex(vectors[:, ::2])), norms[::2]


def _of_complex(back: Block, gram: Block, vectors: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``A^H Z``, ``Z^H Z`` and V, complex, of vectors w_1, i w_1, w_2, ...: Z = A conj(w) has parts R w and R i w."""
    even, odd = slice(0, None, 2), slice(1, None, 2)
    products = folded(np.concatenate([back[:, even], back[:, odd]], axis=1))
    square = gram[even, even] + gram[odd, odd] + 1j * (gram[even, odd] - gram[odd, even])
    return np.conj(as_complex(products)), square, np.conj(as_complex(vectors[:, even]))


def _rotation(rotation: np.ndarray) -> np.ndarray:
    """Return the rotation of Z, a row of which has real and imaginary parts beside each other."""
    return np.stack([rotation, 1j * rotation], axis=1).reshape(2 * len(rotation), -1)


class Representation:
    """The representation of complex entries as pairs of real ones, as the core asks for it."""

    closed, of_pairs, certificate = staticmethod(closed), staticmethod(of_pairs), staticmethod(_complex_certificate)
    answer, left, rotation = staticmethod(in_complex), staticmethod(_of_complex), staticmethod(_rotation)
    phases, moduli, entries = staticmethod(fix_phases), staticmethod(moduli), staticmethod(as_complex)

    @staticmethod
    def takes(request: Any, source: Any) -> str:
        """Return why a question is of real numbers, where it would be answered for the real parts alone; or ""."""
        asked = {
            **attributes(request, "privacy", "operator", "low_rank_tol"),
            f"mechanism = {request.mechanism!r}": request.mechanism != "none",
            "a share of the variance": isinstance(request.target_rank, float),
            'algorithm = "row-gram"': request.algorithm == "row-gram",
            "the [report] table": request.presentation,
        }
        name = first_of(asked)
        why = (
            f"{name} is for real numbers, and {source.path} holds {source.dtype}: leave it out (a share: give a whole "
            "number of components, and see explained_share), or give real and imaginary parts as columns"
        )
        return why if name else ""
