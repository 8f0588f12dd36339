"""A run on nodes of this process: real nodes, stores and centre, and no HTTP between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.api import solve, top_k
from npmdask.config import load_config
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.source import Source
from npmdask.federated.client import NodeConnections, Traffic
from npmdask.federated.coordinator import Group, _kind_of
from npmdask.federated.node import Node
from npmdask.federated.protocol import Announcement, decode, encode, encoded_size
from npmdask.formats.ingest import ingest


@dataclass
class Direct(NodeConnections):
    """Asks nodes of this process: the same bytes, the same checks, the same counters."""

    nodes: tuple[Node, ...] = ()

    def announced(self) -> tuple[Announcement, ...]:
        return tuple(node.announcement for node in self.nodes)

    def ask(self, which: int, block: Block) -> tuple[Block, int]:
        """The answer of one node, and its bytes."""
        answer = self.nodes[which].answer(self.job, self.step, encode(block))
        product = decode(answer, block.shape)
        self._count(Traffic(numbers=block.size + product.size, bytes_received=len(answer)))
        return product, encoded_size(block.shape)


def run_on_nodes(folder: Path, parts: Sequence[np.ndarray], *, k: int, p: int, steps: int) -> Solution:
    """The run whose rows are spread over ``parts``, a node without noise each. ``folder`` is theirs alone."""
    nodes = [_node(folder / f"node{i}", rows, k, p, steps) for i, rows in enumerate(parts)]
    try:
        problem = make_problem(_source(nodes), Request(target_rank=k, max_steps=steps, tol=1e-300))
        return solve(problem, folder / "centre", Resources(threads=1))
    finally:
        for node in nodes:
            node.__exit__(None, None, None)


def run_alone(folder: Path, rows: np.ndarray, *, k: int, p: int, steps: int) -> Solution:
    """The same run where all rows are in one place."""
    folder.mkdir()
    np.save(folder / "a.npy", rows)
    ingest(folder / "a.npy", folder / "a.zarr", kind="samples")
    options: dict[str, Any] = {"iteration_rank": p, "max_steps": steps, "tol": 1e-300, "algorithm": "power"}
    return top_k(folder / "a.zarr", k, kind="samples", threads=1, **options)


def _node(folder: Path, rows: np.ndarray, k: int, p: int, steps: int) -> Node:
    folder.mkdir(parents=True)
    np.save(folder / "a.npy", rows)
    ingest(folder / "a.npy", folder / "a.zarr", kind="samples")
    (folder / "node.toml").write_text(
        f'[source]\npath = "a.zarr"\n[algorithm]\ntarget_rank = {k}\niteration_rank = {p}\nmax_steps = {steps}\n'
        '[mechanism]\nname = "none"\n[run]\nthreads = 1\n'
    )
    return load_config(folder / "node.toml").node()


def _source(nodes: Sequence[Node]) -> Source:
    urls = tuple(f"http://127.0.0.1:{i + 1}" for i in range(len(nodes)))
    link = Direct(urls=urls, tokens=(), nodes=tuple(nodes))
    announced = link.announced()
    group: Any = Group(link=link, announced=announced)
    fingerprint, kind = "nodes of an experiment", _kind_of(announced)
    return Source(path="nodes of this process", kind=kind, reader=group, fingerprint=fingerprint, registered=True)
