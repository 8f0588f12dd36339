"""Grant a budget (``npmdask ledger grant``) for the data in a store, known by their fingerprint and their people.

The data are read once, every chunk compared with its SHA-256, for a sketch of their records: the same people with
other bytes (another order, dtype or layout, some of them, some more) have a budget already.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

import npmdask.ledger.messages as text
from npmdask.accounting.budget import Budget
from npmdask.core import features
from npmdask.core.operators import of_layout
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, Fragment, cut_rows
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError
from npmdask.ledger.ledger import Ledger, Status
from npmdask.ledger.sketch import Sketch, sketch, weights
from npmdask.privacy.matrix_release import require_store
from npmdask.privacy.neighbors import make_relation, protected


def default_address() -> str:
    """``NPMDASK_LEDGER``, or a file of this user. Not in the folder of a run: a budget outlives every run, and who
    deletes or copies a run folder must not delete or double what was spent."""
    if named := os.environ.get("NPMDASK_LEDGER"):
        return named
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return str(Path(data) / "npmdask" / "ledger.sqlite")


def grant_source(
    ledger: Ledger,
    dataset: str,
    source: Any,
    *,
    relation: str,
    clip_norm: float,
    change: float,
    budget: Budget,
    kind: str | None = None,
    larger: bool = False,
    data_changed: bool = False,
    other_people: str | None = None,
) -> tuple[Status, list[str]]:
    """Grant ``budget`` for the data at ``source``; returns the account, and warnings for the data owner.

    Raises
    ------
    BadInputError
        The store was never ingested, or by a version that took no SHA-256 of its chunks: without it a change
        would go unnoticed.
    BudgetError
        As of ``Ledger.grant`` and ``Ledger.require_noted``; among others, the same people have a budget under another
        name, or in another ledger.
    """
    require_store(source)
    opened = open_source(source, kind, exact=False).held_to_digests()
    if opened.digests is None:
        before = (
            "was never ingested" if not opened.registered else "was ingested by an earlier version, without SHA-256"
        )
        raise BadInputError(
            f"{opened.path} {before}: a budget is bound to the content of the data, which is only recorded for an "
            "ingested store. Run `npmdask ingest` on it, and grant the budget for the new store"
        )
    made = make_relation(relation, clip_norm=clip_norm, change=change)
    if opened.kind not in made.kinds:
        raise BadInputError(
            f"{relation} does not fit {opened.path} (kind {opened.kind}); it fits: {', '.join(made.kinds)}"
        )
    ledger.require_noted(opened.mark)
    key = ledger.people_key(opened.fingerprint)
    status = ledger.grant(
        dataset,
        fingerprint=opened.fingerprint,
        relation=made.spec(),
        budget=budget,
        larger=larger,
        data_changed=data_changed,
        people=None if key is None else sketch_of(opened, key),
        other_people=other_people,
    )
    unknown = ledger.without_sketch()
    warnings = [text.no_sketch(unknown)] if unknown else []
    warnings += ledger.small_overlaps(dataset)
    return status, [*delta_warnings(opened, relation, budget), *warnings, *ledger.mark(opened, dataset)]


def sketch_of(source: Source, key: bytes) -> Sketch:
    """The sketch of the records of ``source``, in one pass: rows, their gaps as zeros; of a tensor T(i, ., .) for every
    index i.
    """
    if source.gaps:
        source = features.required("aspects", "data.missing").read(source, "fill", 0.0)
    columns = int(source.shape[-1])
    return sketch(_images(source, weights(key, columns)), key, columns)


def _images(source: Source, block: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the sums of every record with the columns of ``block``."""
    reader: Any = source.reader
    with np.errstate(over="ignore", invalid="ignore"):  # such records are left out
        if reader.layout == "csr":
            yield from _sparse_images(reader, block)
        elif reader.layout in ("triangle", "tensor"):
            operator: Any = of_layout(reader.layout)(reader=reader)
            yield operator.finish(operator.partial(range(operator.units), block), block)
        else:
            for slab in reader.ahead(range(reader.grid[0])):
                for _, tile in reader.tiles(slab, ReadStats()):
                    yield sum(values.astype(np.float64) @ block[columns] for columns, values in tile)


def _sparse_images(reader: CsrReader, block: np.ndarray) -> Iterator[np.ndarray]:
    cut: list[Fragment] = []
    for piece in reader.blocks(range(reader.grid[0]), ReadStats()):
        if isinstance(piece, Fragment):
            cut.append(piece)
        else:
            yield _rows_times(piece, block)
    yield _rows_times(cut_rows(reader, cut), block)


def _rows_times(rows: csr_matrix, block: np.ndarray) -> np.ndarray:
    return np.asarray(rows.astype(np.float64) @ block)


def delta_warnings(source: Source, relation: str, budget: Budget) -> list[str]:
    """For relations of which n is a number of things that are protected: records, or entries of a matrix or tensor.

    For the user, on a terminal: the sentence holds n, and must not go into what is released.
    """
    count = protected(relation, source.shape)
    warning = "" if count is None else budget.warning(count)
    return [warning] if warning else []
