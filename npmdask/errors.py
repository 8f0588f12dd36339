"""Report errors as sentences with a remedy. Each class carries the exit code of the command line."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class NpmdaskError(Exception):
    """
    Say what is wrong and what to do about it: the base of all errors of npmdask.

    ``exit_code`` is the exit code of the command ``npmdask``.

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
    Report data or a configuration that are wrong; nothing was changed.

    Examples
    --------
    >>> import npmdask
    >>> try:
    ...     npmdask.top_k([[1.0, float("nan")], [3.0, 4.0]], 1)
    ... except npmdask.BadInputError as error:
    ...     print(str(error).partition(";")[0])
    the array in memory holds nan at row 0, column 1: remove or impute the non-finite values (1 of 4 entries is missing,
    in 1 of 2 rows and 1 of 2 columns
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
        from importlib.metadata import distributions

        asked = [line for one in distributions(name="npmdask") for line in one.requires or ()]
        own = [repr(line.partition(";")[0]) for line in asked if line.replace('"', "'").endswith(f"extra == '{name}'")]
        raise MissingExtraError(
            f"{error.name} is not installed, which this needs: pip install {' '.join(own) or error.name}"
        ) from error


def package_version() -> str:
    """The version of this package, which runs remember.

    Raises
    ------
    BadInputError
        It is not installed, but runs from a checkout.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("npmdask")
    except PackageNotFoundError:
        from pathlib import Path

        checkout = Path(__file__).absolute().parent.parent
        raise BadInputError(
            f"npmdask is not installed, and runs remember its version: it was imported from {checkout}; install it "
            f"from there with `pip install -e {checkout}`"
        ) from None


class Later:
    """A module that only the extra ``name`` of the package installs, imported when something of it is first used.

    Parameters
    ----------
    module : with its packages, as ``import`` takes it.
    name : the extra; None of a module of npmdask itself that is needed by few.
    """

    def __init__(self, module: str, name: str | None = None) -> None:
        self._module, self._extra = module, name

    def __getattr__(self, attribute: str) -> Any:
        from importlib import import_module

        with extra(self._extra):
            found = self.__dict__[attribute] = getattr(import_module(self._module), attribute)
        return found


def first_of(said: Mapping[str, Any]) -> str:
    """Return the first of some sentences, or words, whose value is true; "" if none is. Those that are "" do not count.

    Examples
    --------
    >>> from npmdask.errors import first_of
    >>> first_of({"a share": False, "": True, "a start": True, "deflation": True})
    'a start'
    """
    return next((each for each, true in said.items() if each and true), "")


class TooFewRowsError(BadInputError):
    """A stream has not given enough rows for an answer yet; those that it gave are kept."""


class RefusedError(NpmdaskError):
    """
    Report a request that cannot be carried out: too little memory, changed data, a store that another process uses.

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
    """The memory that is allowed does not suffice for what is asked, which needs ``least`` bytes (0: not known)."""

    def __init__(self, sentence: str, least: int = 0) -> None:
        super().__init__(sentence)
        self.least = least


class BudgetError(RefusedError):
    """
    Report a private run that the privacy budget of its data set does not allow.

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
    Report that a checkpoint could not be written; the previous one is intact, and the run can resume from it.

    Examples
    --------
    >>> import npmdask
    >>> npmdask.CommitError.exit_code
    130
    """

    exit_code = 130


class DataWarning(UserWarning):
    """Say what holds for data, or was decided about them, that their user may not expect."""


Heard = tuple[Callable[[str], None], set[str]]  # what hears warnings in place of Python's, and what it has heard
_HEARD: ContextVar[Heard | None] = ContextVar("npmdask_heard", default=None)


def warn(*sentences: str) -> None:
    """Warn about data, at the line of the program that called npmdask."""
    level, frame = 2, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "npmdask":
        level, frame = level + 1, frame.f_back
    say, said = _HEARD.get() or (lambda shown: warnings.warn(shown, DataWarning, stacklevel=level), set())
    for sentence in sentences:  # what a store says is not trusted
        shown = "".join(letter if letter.isprintable() else "?" for letter in sentence)
        if shown not in said:
            said.add(shown)
            say(shown)


@contextmanager
def warnings_to(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, every warning about data goes to ``say``, once."""
    token = _HEARD.set((say, set()))
    try:
        yield
    finally:
        _HEARD.reset(token)


def require(holds: bool, sentence: str) -> None:
    """Refuse a configuration with one sentence. Raises BadInputError."""
    if not holds:
        raise BadInputError(sentence)


def require_known(word: Any, known: Collection[str], said: str) -> None:
    """Refuse a word that is not among those that are ``known``, in a sentence that begins with what is ``said``."""
    if word not in known:
        raise BadInputError(f"{said} {word!r}: {closest(str(word), list(known))}")


MOST_NAMES = 20  # that a sentence lists


ALSO_CALLED = {"gpu": "cuda", "nvidia": "cuda"}  # words that are spelled like another choice than they mean


def closest(given: object, known: list[str]) -> str:
    """A ready ``did you mean`` tail for what was ``given`` in place of a word, or the list of what is known.

    Of dotted names the last part alone is compared too: ``tol`` means ``stop.tol``.
    """
    from difflib import get_close_matches

    word = str(given)
    if (meant := ALSO_CALLED.get(word.lower())) in known:
        return f"did you mean {meant!r}?"
    ends = {name.rpartition(".")[2]: name for name in reversed(known) if "." in name}
    last = word.rpartition(".")[2]
    match = [ends[last]] if last in ends else get_close_matches(word, known, n=1, cutoff=0.5)
    match = match or [ends[name] for name in get_close_matches(last, [*ends], n=1, cutoff=0.6)]
    if match:
        return f"did you mean {match[0]!r}?"
    names = sorted({*known})
    more = f", ... ({len(names) - MOST_NAMES} more)" if len(names) > MOST_NAMES else ""
    return "known: " + ", ".join(names[:MOST_NAMES]) + more


LONGEST_VALUE = 100  # characters of a value in a sentence
WRONG = {  # what a value is not, by pydantic's name of the mistake
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
    "int_type": "a whole number is needed",
    "int_parsing": "a whole number is needed",
    "int_from_float": "a whole number is needed",
    "float_type": "a number is needed",
    "float_parsing": "a number is needed",
    "string_type": "text in quotation marks is needed",
    "list_type": 'a list is needed, like [1, 2] or ["a", "b"]',
    "dict_type": "a table is needed, like {{ gap = 0.1 }}",
    "model_type": "a table is needed, with keys of its own",
    "model_attributes_type": "a table is needed, with keys of its own",
    "extra_forbidden": "there is no such key",
    "finite_number": "a finite number is needed",
    "greater_than": "a number above {gt:g} is needed",
    "greater_than_equal": "at least {ge:g} is needed",
    "less_than": "a number below {lt:g} is needed",
    "less_than_equal": "at most {le:g} is possible",
    "string_pattern_mismatch": "only letters, digits, dots, dashes and underscores are possible",
}


def wrong_value(error: Mapping[str, Any]) -> str:
    """Say what is wrong with a value, in our words.

    ``error`` is one of those that a ``ValidationError`` of pydantic lists.
    """
    kind, context = error["type"], error.get("ctx", {})
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", "the value does not fit"))  # a sentence of ours
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", context["expected"])
        given = error.get("input")
        return closest(given, known) if isinstance(given, str) else f"one of {', '.join(known)} is needed"
    return WRONG.get(kind, "the value does not fit").format_map(context)


def shown_value(value: Any) -> str:
    """A value as a person wrote it, and not all of one that is long."""
    text = value.isoformat() if hasattr(value, "isoformat") else repr(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
