"""Streams: batches of rows from a store, a growing directory, an iterator or standard input, each row exactly once."""

from npmdask.storage.streams.base import Position, Stream
from npmdask.storage.streams.directory import Directory
from npmdask.storage.streams.iterator import IteratorRows, standard_input
from npmdask.storage.streams.zarr_rows import ZarrRows

__all__ = ["Directory", "IteratorRows", "Position", "Stream", "ZarrRows", "standard_input"]
