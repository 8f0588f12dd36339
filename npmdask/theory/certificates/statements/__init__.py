"""State how wrong a result can be, in a sentence for non-specialists, from facts that a run has anyway.

A small module a kind of run; pure functions, no pass over the data, no clock, no randomness. A sentence says how large
the error is likely to be, on what that rests, and what is not covered; what it claims in numbers is in ``numbers``, and
how often that was true in simulations is in docs/assurance.md.
"""

from npmdask.theory.certificates.statements.coupled import of_coupled
from npmdask.theory.certificates.statements.models import of_independent, of_mixture, of_tensor, of_topics
from npmdask.theory.certificates.statements.private import of_copy, of_nodes, of_release
from npmdask.theory.certificates.statements.stored import assurance_of, statement_of, with_assurance
from npmdask.theory.certificates.statements.streams import of_directions, of_stream, of_third_moment
from npmdask.theory.certificates.wording import Assurance

__all__ = [
    "Assurance",
    "assurance_of",
    "of_copy",
    "of_coupled",
    "of_directions",
    "of_independent",
    "of_mixture",
    "of_nodes",
    "of_release",
    "of_stream",
    "of_tensor",
    "of_third_moment",
    "of_topics",
    "statement_of",
    "with_assurance",
]
