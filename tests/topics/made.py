"""Documents that are drawn from a topic model, and the model."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.core.numerics.random import generator
from npmdask.topics.model import TopicModel


def words(count: int) -> tuple[str, ...]:
    return tuple(f"w{i}" for i in range(count))


def a_model(v: int = 60, k: int = 4, seed: int = 0) -> TopicModel:
    rng = generator(seed, "model")
    topics = rng.dirichlet(np.full(v, 0.1), k).T
    topics[topics < 1e-6] = 0.0  # as the projection on the simplex leaves them
    return TopicModel(topics=topics / topics.sum(axis=0), alpha=rng.uniform(0.1, 0.9, k), vocabulary=words(v))


def documents_from(model: TopicModel, n: int, length: int, seed: int = 1) -> csr_matrix:
    """``n`` documents of 1 to 2 ``length`` - 1 words."""
    rng = generator(seed, "documents")
    mixed = rng.dirichlet(model.alpha, n) @ model.topics.T
    lengths = rng.integers(1, 2 * length, n)
    return csr_matrix(rng.multinomial(lengths, mixed / mixed.sum(axis=1, keepdims=True)).astype(np.int32))
