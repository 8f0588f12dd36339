"""The doors that goldens go through: commands, and three Python doors that have no command."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import zarr


def called(arguments: Sequence[str]) -> int:
    """The exit code of a command of ``npmdask``, or of one of the doors below, in this process."""
    if arguments[0] in PYTHON:
        PYTHON[arguments[0]](*arguments[1:])
        return 0
    from npmdask.cli.main import main

    return main(arguments)


def triplets(source: str, store: str) -> None:
    """A run on the dilation of a matrix."""
    from npmdask import singular_triplets

    singular_triplets(source, 2, iteration_rank=6, store=store)


def learn(source: str, start: str, end: str) -> None:
    """Feed an estimator, from the model in ``start`` ("": a new one) until it has 60 rows more, saved in ``end``."""
    from npmdask import StreamingPCA

    model = StreamingPCA.load(start) if start else StreamingPCA(2)
    rows = np.asarray(zarr.open_group(source, mode="r")["data"])[model.rows : model.rows + 60]
    for first in range(0, len(rows), 20):
        model.partial_fit(rows[first : first + 20])
    model.save(end)


def lazy(source: str, row_weights: str, store: str) -> None:
    """A run on a graph of Dask, which only the program that has it can go on with."""
    import dask.array as da

    from npmdask import top_k

    rows = np.asarray(zarr.open_group(source, mode="r")["data"])
    top_k(
        da.from_array(rows, chunks=(40, -1), name="measured"),
        3,
        kind="samples",
        center=True,
        scale=True,
        row_weights=row_weights,
        algorithm="power",
        iteration_rank=6,
        store=store,
    )


PYTHON = {"triplets": triplets, "learn": learn, "lazy": lazy}
