"""Documents that are drawn from latent Dirichlet allocation, and how far found topics are from the true ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix, save_npz

from npmdask.core.numerics.random import generator

ALPHA = np.array([0.4, 0.3, 0.2, 0.2, 0.1])  # unequal: topics that are rare are hard
WORDS, LENGTH = 200, 8
CONCENTRATION = 0.1  # of the words of a topic


def corpus(documents: int, seed: int) -> tuple[np.ndarray, csr_matrix]:
    """Topics (words x k), and counts of documents of LENGTH words each."""
    rng = generator(seed, "benchmarks", "topics")
    topics = rng.dirichlet(np.full(WORDS, CONCENTRATION), len(ALPHA)).T
    shares = rng.dirichlet(ALPHA, documents) @ topics.T
    return topics, csr_matrix(rng.multinomial(LENGTH, shares / shares.sum(axis=1, keepdims=True)).astype(np.int32))


def saved(counts: csr_matrix, path: Path) -> str:
    """The counts as a file that everybody reads."""
    save_npz(path, counts)
    return str(path)


def topic_errors(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """For each true topic (columns, sums 1) the L1 distance, 0 to 2, to the found one it is matched with (Hungarian);
    2 where there is none."""
    distances = np.abs(found[:, :, None] - truth[:, None, :]).sum(axis=0)
    here, there = linear_sum_assignment(distances)
    errors = np.full(truth.shape[1], 2.0)
    errors[there] = distances[here, there]
    return errors
