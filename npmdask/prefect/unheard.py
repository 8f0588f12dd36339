"""Printing where nobody listens any more: the process of a flow prints into pipes of its worker, and outlives it.

A run must not fail because of what it says to nobody; what counts is in its store and told to the server.
"""

import sys
from contextlib import suppress
from typing import Any


class Unheard:
    """A text stream that goes on when the pipe below it is broken."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(BrokenPipeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_to_whoever_listens() -> None:
    """From now on stdout and stderr of this process are of that kind."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Unheard):
            setattr(sys, name, Unheard(stream))
