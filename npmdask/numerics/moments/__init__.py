"""Latent variable models by their moments: what a decomposed tensor says of topics, mixtures and sources.

Anandkumar, Ge, Hsu, Kakade and Telgarsky (2014), JMLR 15, 2773. Pure NumPy: the moments themselves are formed by
:mod:`npmdask.operators`, the tensor is decomposed by :mod:`npmdask.algorithms`.
"""

from npmdask.numerics.moments.blocks import embedded, largest_form, multilinear, unique_blocks, unit_groups
from npmdask.numerics.moments.matching import Match, match, on_simplex
from npmdask.numerics.moments.models import LDA, IndependentSources, Recovered, SingleTopic, SphericalMixture
from npmdask.numerics.moments.whitening import Whitening, whiten

__all__ = [
    "LDA",
    "IndependentSources",
    "Match",
    "Recovered",
    "SingleTopic",
    "SphericalMixture",
    "Whitening",
    "embedded",
    "largest_form",
    "match",
    "multilinear",
    "on_simplex",
    "unique_blocks",
    "unit_groups",
    "whiten",
]
