"""Private components as a run releases them by itself, and by the power method, with Analyze Gauss beside them.

Analyze Gauss (Dwork, Talwar, Thakurta and Zhang 2014) adds symmetric noise to the whole covariance matrix, once, and
takes its eigenvectors; here in NumPy, on the exact matrix in memory, with floating-point noise. All get the same
records, the same relation and the same exact (Gaussian DP) accounting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npmdask.accounting import Budget, gaussian_multiplier
from npmdask.api import solve
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.source import open_source
from npmdask.experiments import symmetric_noise
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.privacy.neighbors import make_relation
from npmdask.privacy.request import Privacy
from npmdask.writers.dense import DenseWriter

K = 10
STEPS = 5
BUDGET = Budget(1.0, 1e-6)
CLIP_NORM = 1.0
SPREAD = 0.7  # of the logarithm of the lengths of heavy-tailed records
SPECTRA: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "1/i": lambda i: 1 / i,
    "i^-0.5": lambda i: i**-0.5,
    "10 spikes": lambda i: np.where(i <= 10, 1.0, 0.01),
    "0.8^i": lambda i: 0.8**i,
    "1/i, heavy tails": lambda i: 1 / i,
}


def make_records(spectrum: str, rows: int, basis: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Normal records with a covariance of that spectrum in ``basis`` (d x d), float32, scaled to length 1.

    Heavy tails: lengths are log-normal around 1, and half of the records are clipped.
    """
    variances = SPECTRA[spectrum](np.arange(1, len(basis) + 1, dtype=np.float32))
    latent = rng.standard_normal((rows, len(basis)), dtype=np.float32)
    latent *= np.sqrt(variances).astype(np.float32)
    records = latent @ basis.T.astype(np.float32)
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    if "heavy" in spectrum:
        records *= np.exp(SPREAD * rng.standard_normal((rows, 1), dtype=np.float32))
    return records


def write_records(path: Path, batches: Iterable[np.ndarray], rows: int, columns: int) -> None:
    """A store as ingest makes it, with the fingerprint that a budget is bound to."""
    identity = {"made": "benchmarks"}
    writer = DenseWriter(path, columns=columns, dtype=np.dtype("f4"), kind="samples", rows=rows, identity=identity)
    for batch in batches:
        writer.write(batch)
    writer.finish()


@dataclass(frozen=True, kw_only=True)
class Case:
    """Records on disk, and what is true of them: ``gram``, the sum of a a^T over records that are clipped to length
    ``clip_norm`` (d x d), and ``best``, what its k leading eigenvectors capture."""

    folder: Path
    seed: int
    gram: np.ndarray
    best: float
    k: int = K
    clip_norm: float = CLIP_NORM

    @property
    def store(self) -> Path:
        return self.folder / "records.zarr"

    def captured(self, basis: np.ndarray) -> float:
        """The share of what the exact components capture that an orthonormal ``basis`` (d x k) captures."""
        return float(np.trace(basis.T @ self.gram @ basis)) / self.best

    def analyze_gauss(self, relation: str, draws: int = 3) -> float:
        """Captured by Analyze Gauss, the mean of some draws of its noise."""
        rng = generator(self.seed, "benchmarks", "analyze-gauss", relation)
        found = [noisy_components(self.gram, relation, rng) for _ in range(draws)]
        return float(np.mean([self.captured(basis) for basis in found]))

    def power_method(self, relation: str, *, clip_images: bool = True, steps: int = STEPS) -> float:
        """Captured by a private run of the power method: so many releases."""
        return self.captured(self.run(relation, clip_images=clip_images, steps=steps).basis)

    def run(self, relation: str, *, clip_images: bool = True, steps: int | None = None) -> Solution:
        """A private run with a ledger of its own; its noise is that of a new secret key. It chooses its way by itself,
        unless it is to make so many ``steps`` of the power method."""
        run = self.folder / f"{relation}-{clip_images}-{steps}"
        ledger = str(run.with_suffix(".sqlite"))
        asked = {"relation": relation, "clip_norm": self.clip_norm, "change": 1.0, "budget": BUDGET}
        grant_source(open_ledger(ledger), "records", self.store, **asked)
        privacy = Privacy(
            epsilon=BUDGET.epsilon,
            delta=BUDGET.delta,
            neighboring_relation=relation,
            clip_norm=self.clip_norm,
            clip_images=clip_images,
            ledger=ledger,
            dataset="records",
        )
        request = Request(target_rank=self.k, max_steps=steps, privacy=privacy, seed=self.seed)
        return solve(posed(request, open_source(self.store, exact=False), Resources(), run), run, Resources())


def make_case(folder: Path, spectrum: str, rows: int, columns: int, seed: int) -> Case:
    """Write the records; everything about them follows from the arguments."""
    rng = generator(seed, "benchmarks", "private", spectrum, rows)
    records = make_records(spectrum, rows, random_orthonormal(columns, columns, rng), rng)
    return case_of(records, folder, seed, k=K, clip_norm=CLIP_NORM)


def case_of(records: np.ndarray, folder: Path, seed: int, *, k: int, clip_norm: float) -> Case:
    """Write these records (n x d), and work out what is true of them."""
    write_records(folder / "records.zarr", [records], *records.shape)
    clipped = records / np.maximum(1.0, np.linalg.norm(records, axis=1, keepdims=True) / clip_norm)
    gram = (clipped.T @ clipped).astype(np.float64)
    best = float(np.linalg.eigvalsh(gram)[-k:].sum())
    return Case(folder=folder, seed=seed, gram=gram, best=best, k=k, clip_norm=clip_norm)


def noisy_components(gram: np.ndarray, relation: str, rng: np.random.Generator) -> np.ndarray:
    """Analyze Gauss: the k leading eigenvectors of A plus symmetric noise.

    The noise is exact for one release: the sensitivity of A in Frobenius norm (that of A X with X the identity)
    times the multiplier of the budget.
    """
    d = len(gram)
    distance = make_relation(relation, clip_norm=CLIP_NORM).sensitivity(np.eye(d))
    noise = distance * gaussian_multiplier(BUDGET, 1) * symmetric_noise(d, rng)
    return np.asarray(np.linalg.eigh(gram + noise)[1][:, -K:])
