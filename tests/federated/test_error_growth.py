"""With s nodes the error grows like sqrt(s) for the same promise of each (Balcan et al. 2016, Theorem 3.1; B6, 8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from npmdask.accounting import Budget
from npmdask.api import solve
from npmdask.config import load_config
from npmdask.core.numerics.subspaces import Block, max_sin_theta
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import Source
from npmdask.federated.client import NodeConnections
from npmdask.federated.coordinator import Group, _kind_of
from npmdask.federated.node import Node
from npmdask.federated.protocol import Announcement, decode, encode, encoded_size
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from tests.federated.conftest import private_tables, write_site

D, P, K, MOST, RUNS = 24, 3, 1, 16, 8
EPSILON = 4.0


@dataclass
class Direct(NodeConnections):
    """Asks nodes of this process, without HTTP: the same bytes, the same refusals."""

    nodes: tuple[Node, ...] = ()

    def announced(self) -> tuple[Announcement, ...]:
        return tuple(node.announcement for node in self.nodes)

    def ask(self, which: int, block: Block) -> tuple[Block, int]:
        answer = self.nodes[which].answer(self.job, self.step, encode(block))
        return decode(answer, block.shape), encoded_size(block.shape)


def source_of(nodes: list[Node]) -> Source:
    link = Direct(urls=tuple(f"http://127.0.0.1:{i + 1}" for i in range(len(nodes))), tokens=(), nodes=tuple(nodes))
    announced = link.announced()
    group: object = Group(link=link, announced=announced)
    return Source(path="direct", kind=_kind_of(announced), reader=group, fingerprint="direct", registered=True)


@pytest.mark.heavy  # statistical: 16 nodes, 16 runs
def test_error_grows_like_the_root_of_the_number_of_nodes(tmp_path: Path) -> None:
    """4800 records on 1 and on 16 nodes, 8 runs each: the ratio of root mean squares is 4 (in [2.6, 6.2]).

    An error has about 23 degrees of freedom, so the root mean square of 8 is known to 5 %, a ratio to 8 %: beyond the
    limits by chance with a probability below 1e-7. Mutants: noise of variance / s in a node (1), the same noise in
    every node (16).
    """
    rng = np.random.default_rng(0)
    rows = np.zeros((4800, D))
    rows[:, 0] = rng.choice([-0.9, 0.9], len(rows))
    rows[:, 1:] = 0.02 * rng.standard_normal((len(rows), D - 1))
    truth = np.linalg.eigh(rows.T @ rows)[1][:, -1:]
    found = {s: [error(tmp_path, np.array_split(rows, s), truth, run) for run in range(RUNS)] for s in (1, MOST)}
    alone, many = (float(np.sqrt(np.mean(np.square(found[s])))) for s in (1, MOST))
    assert many < 0.3, "the angle is small: sine and noise are proportional"
    print(f"root mean squares: {alone:.4f} with one node, {many:.4f} with {MOST}")
    assert 2.6 < many / alone < 6.2


def error(folder: Path, parts: list[np.ndarray], truth: np.ndarray, run: int) -> float:
    """The sine of the angle to the truth of one private run on nodes that hold ``parts``."""
    nodes = [node_of(folder / f"{len(parts)}-{i}", part) for i, part in enumerate(parts)]
    try:
        problem = make_problem(source_of(nodes), Request(target_rank=K, seed=run))
        solution = solve(problem, folder / f"centre-{len(parts)}-{uuid4().hex}", Resources(threads=1))
    finally:
        for node in nodes:
            node.__exit__(None, None, None)
    return max_sin_theta(solution.basis, truth)


def node_of(folder: Path, rows: np.ndarray) -> Node:
    if not folder.exists():
        write_site(folder, rows, private_tables(EPSILON), p=P, steps=2)
        grant_source(
            open_ledger(folder / "ledger.sqlite"),
            "here",
            folder / "a.zarr",
            relation="record_replace",
            clip_norm=1.0,
            change=1.0,
            budget=Budget(40 * EPSILON, 1e-5),
        )
    return load_config(folder / "node.toml").node()
