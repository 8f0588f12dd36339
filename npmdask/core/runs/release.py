"""The border of a run: all that a loop holds of the data is a :class:`Release`, whose products anybody may see.

A loop asks for products and gets sums that are public: those of data that need no protection as they are
(:mod:`npmdask.core.runs.plain_release`), those of private data with their noise (:mod:`npmdask.privacy.release`), those
of distant nodes as the nodes released them (:mod:`npmdask.federated.coordinator`). It never gets a source, an operator
or an executor, so that what is not released cannot be reached from it, by mistake or otherwise.

What a private run shows while it goes, and in its solution, follows from its :class:`Disclosure`. Bytes, chunks, rates,
sizes of tasks and the memory plan follow the number of rows, which may be what is protected. Times do too: when a line
was written, or how long a pass took, cannot be hidden from an observer of the machine
(docs/explanation/private-guarantee.md, what is not promised), but no time is written into what is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from npmdask.core.algorithms import Query
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.subspaces import Block
from npmdask.core.storage.source import Source


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """Parts of a run that may be seen beside its answer.

    Parameters
    ----------
    partial_sums : finished parts of a pass may be kept on disk: they have no noise yet.
    times : how long steps and the run took, and the lines of telemetry: they follow the rows.
    """

    partial_sums: bool
    times: bool


EVERYTHING = Disclosure(partial_sums=True, times=True)
RELEASES_ONLY = Disclosure(partial_sums=False, times=False)


@dataclass(frozen=True, kw_only=True)
class Released:
    """A product that anybody may see.

    ``said``: what the history of the run keeps of it; ``bytes_read``, ``chunks`` and ``seconds`` are 0 where they would
    tell of the data.
    """

    product: Block
    said: Mapping[str, Any] = field(default_factory=dict)
    bytes_read: int = 0
    chunks: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Content that is committed at the end: arrays by name, and everything else as JSON."""

    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


class Release(Protocol):
    """All that a loop holds of the data, in the order in which it is used."""

    def open(self, history: list[dict[str, Any]]) -> None:
        """Before the first step of this call: survey the columns, or charge the budget and find the key.

        ``history``: of the run so far; the loop goes on to write it.
        """

    def product(self, query: Query, step: int) -> Released:
        """The answer to ``query``, which may be the one of an undone step again: then with the same bits."""

    def check(self, step: int, asymmetry: float) -> None:
        """After the update: whether the matrix is symmetric is only known then."""

    def judged(self, view: Any, before: list[Any], state: Any) -> Any:
        """The view of a step, with what a certificate says of it where the stopping rule asks for that."""

    def angle(self, vectors: Block | None) -> float | None:
        """The sine of the largest angle to a truth that is known; None where none is, or may be told."""

    def answer(self, state: Any, result: Any, view: Any, outcome: Any, history: list[dict[str, Any]]) -> Answer:
        """The answer in the units of the question; may make one more pass."""

    def settle(self) -> None:
        """After the commit of the answer, also where that was in an earlier call."""

    def shown(self, solution: Any, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> dict[str, Any]:
        """Return what this release says differently of a solution than a plain run does, by field."""

    def close(self) -> None:
        """At the end of this call, whatever ended it."""


class Passes(Protocol):
    """Part of a session that a release needs: one pass over the data, and where to write."""

    @property
    def store(self) -> RunStore: ...

    def start(self, source: str) -> None: ...

    def one_pass(self, label: str, operator: Any, block: Block, *, keep: bool = True) -> Any: ...


class Recipe(Protocol):
    """Public configuration that is particular to one kind of release, made before the data are opened.

    :class:`npmdask.privacy.matrix_release.PowerRecipe`, :class:`npmdask.dp_pca.release.RecordsRecipe` and
    :class:`npmdask.privacy.tensor_release.TensorRecipe` are of data that lie here,
    :class:`npmdask.federated.coordinator.NodesRecipe` of nodes.
    """

    @property
    def disclosure(self) -> Disclosure:
        """Parts of the run that may be seen beside its answer."""

    @property
    def private(self) -> bool:
        """Say whether noise protects the people in the data."""

    @property
    def distributed(self) -> bool:
        """Say whether the data lie with nodes."""

    @property
    def releases(self) -> int | None:
        """Number of products that are released, where that is fixed."""

    def tables(self) -> dict[str, Any]:
        """The tables of run.json that runs of this kind have and others have not."""

    def operator(self, source: Source) -> Any:
        """The operator whose products are released."""
