"""The stages of a longer job: each a run in a folder of its own below the job's, resumed and finished like any other.

::

    STORE                     the job: its parameters, what single passes gathered, its answer
    STORE/whitening           leading pairs of a second moment, by block Krylov on its operator
    STORE/moments.zarr        the tensor in white coordinates, where it is held
    STORE/decomposition       its components, by the tensor power method
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.algorithms import BlockKrylov
from npmdask.core.algorithms.stopping import ResidualRule
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Operator
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import DEFAULT_STEPS, DerivedOperator, Problem, Request, default_rank
from npmdask.core.runs.session import Session
from npmdask.core.runs.solution import Solution
from npmdask.core.runs.stages import run_stage
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import require
from npmdask.symmetric.reader import place_of
from npmdask.symmetric.writer import TensorWriter
from npmdask.tensors.route import TENSOR, TensorQuestion, pose_tensor

SAME = 0.99  # cosine of two directions that are one component found twice
WHITE = {"margin": 0.0}  # in white coordinates the second moment has said how many components there are


@dataclass(frozen=True, kw_only=True)
class Decomposed:
    """The components of a job's tensor, surplus ones among them."""

    solution: Solution
    where: str

    @property
    def kept(self) -> list[int]:
        """Places of the components that exceed the noise; of those that are no fixed points, no copies of others.

        Raises
        ------
        BadInputError
            No component exceeds the noise.
        """
        status, weights, vectors = self.solution.facts["status"], self.solution.values, self.solution.basis
        kept: list[int] = []
        for i, word in enumerate(status):
            twice = kept and float(np.abs(vectors[:, kept].T @ vectors[:, i]).max()) > SAME
            if word != "surplus" and weights[i] != 0 and not (word == "open" and twice):
                kept.append(i)
        require(
            bool(kept),
            f"the moments of {self.where} show no component at all: use more data, or ask for fewer components",
        )
        return kept

    def warnings(self, what: str) -> list[str]:
        """That fewer were found than asked for, or not to the tolerance, in sentences."""
        asked, kept, outcome = len(self.solution.values), len(self.kept), self.solution.outcome
        said = [] if outcome.converged else [outcome.sentence]
        if kept < asked:
            said.append(f"{asked - kept} of {asked} {what} are surplus: indistinguishable from noise")
        return said


@dataclass
class Stages:
    """The stages of a job on ``source``, below the store of its ``session``; ``seed`` of all starts."""

    session: Session
    source: Source
    seed: int

    @property
    def reader(self) -> Any:
        return self.source.reader

    def gather(
        self, name: str, operator: Operator, block: Block, place: tuple[int, int | None] = (1, None)
    ) -> np.ndarray:
        """The product of one pass, kept in the store of the job; ``place``: see :meth:`Session.gather`."""
        return self.session.gather(name, self.source, operator, block, place=place)

    def leading_pairs(self, derived: DerivedOperator, k: int, tol: float) -> Solution:
        """The k leading eigenpairs, by size, of a second moment: the stage "whitening"."""
        d = derived.dimension(self.source)
        rank = min(k, d)
        algorithm = BlockKrylov(target_rank=rank, iteration_rank=default_rank(rank, d), tol=tol)
        problem = Problem(
            source=self.source,
            request=Request(target_rank=rank, tol=tol, seed=self.seed),
            algorithm=algorithm,
            rule=ResidualRule(tol=tol, max_steps=DEFAULT_STEPS, d=d),
            derived=derived,
            chosen=None,
        )
        return run_stage(self.session, "whitening", "whitening: leading pairs of the second moment", problem)

    def leading_rows(self, name: str, k: int, tol: float, *, center: bool) -> Solution:
        """The k leading eigenpairs of ``E[x x^T]`` of samples, or of their covariance: the stage ``name``."""
        request = Request(target_rank=k, tol=tol, seed=self.seed, center=center)
        said = f"{name}: leading pairs of the second moment"
        return run_stage(self.session, name, said, make_problem(self.source, request))

    def components_of_held(self, tensor: np.ndarray, k: int, tol: float, options: Mapping[str, Any]) -> Decomposed:
        """The components of a tensor in memory (m x m x m), stored beside the job: the stage "decomposition"."""
        path = self.session.store.path / "moments.zarr"
        if not path.exists():
            write_cube(path, tensor)
        request = Request(target_rank=k, algorithm=TENSOR, options={**options, **WHITE}, tol=tol, seed=self.seed)
        return self._decomposed(make_problem(open_source(path), request))

    def components_of(
        self, derived: DerivedOperator, k: int, tol: float, options: Mapping[str, Any], order: int = 3
    ) -> Decomposed:
        """The components of a moment that is never formed: every product is a pass over the data."""
        question = TensorQuestion(
            target_rank=k, side=derived.dimension(self.source), tol=tol, seed=self.seed, order=order
        )
        options = {**options, **WHITE}
        algorithm, rule = pose_tensor(question, options, f"the moment of {self.source.path}")
        request = Request(target_rank=k, algorithm=TENSOR, options=options, tol=tol, seed=self.seed)
        problem = Problem(
            source=self.source,
            request=request,
            algorithm=algorithm,
            rule=rule,
            derived=derived,
        )
        return self._decomposed(problem)

    def _decomposed(self, problem: Problem) -> Decomposed:
        said = "decomposition: components of the tensor of moments"
        solution = run_stage(self.session, "decomposition", said, problem)
        return Decomposed(solution=solution, where=self.source.path)


def write_cube(dest: Path, cube: np.ndarray) -> None:
    """Store a symmetric m x m x m array as a packed tensor; what was begun of another one is begun again."""
    identity = {"cube": crc32c(np.ascontiguousarray(cube))}
    writer = TensorWriter(dest, size=len(cube), dtype=cube.dtype, identity=identity)
    while writer.next_unit < writer.units:
        i, j, k = (slice(at * writer.side, (at + 1) * writer.side) for at in place_of(writer.next_unit, writer.grid))
        writer.write(cube[i, j, k])
    writer.finish()
