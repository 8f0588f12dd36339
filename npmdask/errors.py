"""What can go wrong, as sentences with a remedy. Each class carries the exit code of the command line."""

from __future__ import annotations


class NpmdaskError(Exception):
    """Base of every error that a user can act on; ``exit_code`` is what ``npmdask`` exits with."""

    exit_code = 1


class BadInputError(NpmdaskError, ValueError):
    """The data or the configuration is wrong; nothing was changed."""

    exit_code = 2


class TooFewRowsError(BadInputError):
    """A stream has not given enough rows for an answer yet; those that it gave are kept."""


class RefusedError(NpmdaskError):
    """The request is well formed but may not be carried out (memory, fingerprint, lock)."""

    exit_code = 3


class LostError(NpmdaskError):
    """Something that the run needs went away (a cluster, an object store); it goes on from its last commit."""

    exit_code = 130


class MemoryRefusedError(RefusedError):
    """The memory that is allowed does not suffice for what is asked."""


class BudgetError(RefusedError):
    """The privacy budget of a data set does not suffice, or may not be spent in this way."""


class HeldError(RefusedError):
    """Another process has this run: ``pid`` (0: not known), started for ``owner`` (NPMDASK_OWNER; "": nobody said).

    ``stuck``: it is of this machine and hangs in the middle of a commit, so that nobody can take the run over before
    it is ended.
    """

    def __init__(self, sentence: str, owner: str = "", pid: int = 0, *, stuck: bool = False) -> None:
        super().__init__(sentence)
        self.owner, self.pid, self.stuck = owner, pid, stuck


class FencedOutError(RefusedError):
    """Another process took this run over; nothing was written by this one since."""


class CommitError(NpmdaskError):
    """A checkpoint could not be written; the previous one is intact and resumes."""

    exit_code = 130


def closest(word: str, known: list[str]) -> str:
    """A ready ``did you mean`` tail for an unknown ``word``, or the list of what is known."""
    from difflib import get_close_matches

    match = get_close_matches(word, known, n=1, cutoff=0.5)
    if match:
        return f"did you mean {match[0]!r}?"
    return "known: " + ", ".join(sorted({*known}))
