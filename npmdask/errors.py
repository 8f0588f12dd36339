"""What can go wrong, as sentences with a remedy. Each class carries the exit code of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class NpmdaskError(Exception):
    """
    Tell the user what is wrong and what to do about it: the base of every error of npmdask.

    ``exit_code`` is what the command ``npmdask`` exits with.

    Examples
    --------
    >>> import npmdask
    >>> try:
    ...     npmdask.top_k([[1.0, 2.0], [3.0, 4.0]], 3)
    ... except npmdask.NpmdaskError as error:
    ...     print(type(error).__name__, error.exit_code)
    BadInputError 2
    """

    exit_code = 1


class BadInputError(NpmdaskError, ValueError):
    """
    Refuse data or a configuration that are wrong; nothing was changed.

    Examples
    --------
    >>> import npmdask
    >>> try:
    ...     npmdask.top_k([[1.0, float("nan")], [3.0, 4.0]], 1)
    ... except npmdask.BadInputError as error:
    ...     print(str(error).partition(";")[0])
    the array in memory holds nan at row 0, column 1: remove or impute the non-finite values and ingest it again (1 of 4
    entries is missing, in 1 of 2 rows and 1 of 2 columns
    """

    exit_code = 2


class MissingExtraError(BadInputError, ModuleNotFoundError):
    """Something that only an extra of the package installs is not there."""


@contextmanager
def extra(name: str | None) -> Iterator[None]:
    """Around the imports of what only the extra ``name`` of the package installs; None: what its users bring along.

    Raises
    ------
    MissingExtraError
        It is not installed; the sentence says what to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if isinstance(error, MissingExtraError) or (error.name or "npmdask").startswith("npmdask"):
            raise
        raise MissingExtraError(
            f"{error.name} is not installed, which this needs: pip install "
            + (f"'npmdask[{name}]'" if name is not None else str(error.name))
        ) from error


class Later:
    """A module that only the extra ``name`` of the package installs, imported when something of it is first used.

    Parameters
    ----------
    module : with its packages, as ``import`` takes it.
    name : the extra.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._extra = module, name

    def __getattr__(self, attribute: str) -> Any:
        from importlib import import_module

        with extra(self._extra):
            found = self.__dict__[attribute] = getattr(import_module(self._module), attribute)
        return found


class TooFewRowsError(BadInputError):
    """A stream has not given enough rows for an answer yet; those that it gave are kept."""


class RefusedError(NpmdaskError):
    """
    Refuse what is well formed but may not be carried out: memory, changed data, a store that another process holds.

    Examples
    --------
    >>> import npmdask
    >>> import numpy as np
    >>> try:
    ...     npmdask.top_k(np.eye(300), 2, memory="1MiB")
    ... except npmdask.RefusedError as error:
    ...     print(error)
    memory = 1MiB is too small: one thread needs ...
    """

    exit_code = 3


class LostError(NpmdaskError):
    """Something that the run needs went away (a cluster, an object store); it goes on from its last commit."""

    exit_code = 130


class MemoryRefusedError(RefusedError):
    """The memory that is allowed does not suffice for what is asked."""


class BudgetError(RefusedError):
    """
    Refuse a private run that the privacy budget of its data set does not allow.

    Examples
    --------
    >>> import npmdask
    >>> issubclass(npmdask.BudgetError, npmdask.RefusedError)
    True
    """


class HeldError(RefusedError):
    """Another process has this run: ``pid`` (0: not known), started for ``owner`` (NPMDASK_OWNER; "": not known).

    ``stuck``: it is of this machine and hangs in the middle of a commit, and no process can take the run over before
    it is ended.
    """

    def __init__(self, sentence: str, owner: str = "", pid: int = 0, *, stuck: bool = False) -> None:
        super().__init__(sentence)
        self.owner, self.pid, self.stuck = owner, pid, stuck


class FencedOutError(RefusedError):
    """Another process took this run over; nothing was written by this one since."""


class CommitError(NpmdaskError):
    """
    Say that a checkpoint could not be written; the previous one is intact, and the run resumes from it.

    Examples
    --------
    >>> import npmdask
    >>> npmdask.CommitError.exit_code
    130
    """

    exit_code = 130


def require(holds: bool, sentence: str) -> None:
    """Refuse a configuration with one sentence. Raises BadInputError."""
    if not holds:
        raise BadInputError(sentence)


def closest(word: str, known: list[str]) -> str:
    """A ready ``did you mean`` tail for an unknown ``word``, or the list of what is known."""
    from difflib import get_close_matches

    match = get_close_matches(word, known, n=1, cutoff=0.5)
    if match:
        return f"did you mean {match[0]!r}?"
    return "known: " + ", ".join(sorted({*known}))
