"""Jobs on tensors and moments that the kill tests kill. Run again in the same folder, each goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

import npmdask
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.formats.ingest import ingest
from npmdask.latent import third_moment
from npmdask.latent.answers import fit_latent
from npmdask.topics.documents import documents_of, write_documents
from npmdask.topics.run import run_topics
from npmdask.writers import journal
from tests.topics.made import a_model, documents_from, words

KINDS = ("harvest", "rounds", "topics-held", "topics-implicit", "mixture", "ica", "building")
WORDS, TOPICS, SIDE = 60, 4, 8


def planted_tensor(d: int, weights: np.ndarray, noise: float = 0.0) -> np.ndarray:
    """A symmetric d x d x d tensor with orthonormal components, and Gaussian noise of its entries."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((d, len(weights))))[0]
    added = rng.standard_normal((d, d, d)) * noise
    orders = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    mean = sum(added.transpose(order) for order in orders) / 6
    found: np.ndarray = np.einsum("ir,jr,kr,r->ijk", basis, basis, basis, weights) + mean
    i, j, k = np.sort(np.indices((d, d, d)).reshape(3, -1), axis=0)  # equal in all orders to the last bit
    return found[i, j, k].reshape(d, d, d)


def make(kind: str, folder: Path) -> None:
    """The data of a job: what nobody kills."""
    rng = np.random.default_rng(1)
    if kind in ("harvest", "rounds"):
        np.save(folder / "t.npy", planted_tensor(40, np.array([3.0, 2.0]), 1e-3))
    elif kind.startswith("topics"):
        (folder / "vocab.txt").write_text("\n".join(words(WORDS)))
        _write_docword(folder / "docword.txt")
    elif kind == "building":
        counts = documents_from(a_model(WORDS, TOPICS), 2000, 8)
        write_documents(documents_of(counts), folder / "documents.zarr", words(WORDS))
    else:
        sources = rng.exponential(size=(6000, 4)) - 1
        centres = 4 * np.linalg.qr(rng.standard_normal((SIDE, 4)))[0]
        rows = centres[:, rng.integers(0, 4, 6000)].T if kind == "mixture" else sources @ centres.T
        rows = rows + 0.3 * rng.standard_normal((6000, SIDE))
        zarr.create_array(folder / "x.zarr", data=rows, chunks=(1000, SIDE))  # plain: without recorded means


def _write_docword(path: Path) -> None:
    counts = documents_from(a_model(WORDS, TOPICS), 2000, 8).tocoo()
    entries = zip(counts.row + 1, counts.col + 1, counts.data, strict=True)
    lines = [*map(str, (*counts.shape, counts.nnz)), *(" ".join(map(str, entry)) for entry in entries)]
    path.write_text("\n".join(lines) + "\n")


def work(kind: str, folder: Path, threads: int) -> None:
    """Do the job, or go on with it."""
    journal.JOURNAL_BYTES = 2**15  # so that small stores have places to go on from
    run, resources = folder / "run", Resources(threads=threads, commit_seconds=0.0)
    if kind in ("harvest", "rounds"):
        if not (folder / "t.zarr").exists():
            ingest(folder / "t.npy", folder / "t.zarr", kind="tensor", chunks=(10, 10, 10))
        options: dict[str, Any] = {"restarts": 6} | ({"iterations": 5} if kind == "rounds" else {})
        npmdask.top_k(folder / "t.zarr", 3, options=options, store=run, threads=threads, commit_seconds=0.0)
    elif kind.startswith("topics"):
        moments: Any = kind.removeprefix("topics-")
        source = folder / "docword.txt"
        run_topics(source, TOPICS, folder / "vocab.txt", store=run, resources=resources, moments=moments)
    elif kind == "building":
        third_moment.SUMS_BYTES = 2**21  # several passes
        if not (folder / "run").exists():
            third_moment.build_moments(folder / "documents.zarr", run, alpha0=1.0, block=10, resources=resources)
    else:
        fit_latent(kind, folder / "x.zarr", 4, store=run, resources=resources, observer=Observer())
