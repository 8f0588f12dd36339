"""Streams: batches of rows from a store, a growing directory, an iterator or standard input, each row exactly once."""

from npmdask.streams._protocol import Position, Stream
from npmdask.streams.directory import Directory
from npmdask.streams.piped import standard_input
from npmdask.streams.rows import Rows
from npmdask.streams.stored import ZarrRows

__all__ = ["Directory", "Position", "Rows", "Stream", "ZarrRows", "standard_input"]
