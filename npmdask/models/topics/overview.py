"""What a page shows of topics beside their words: how far they are apart, and which words tell one from the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import xlogy

from npmdask.models.topics.model import TopicModel
from npmdask.numerics.subspaces import Block

STRIP_BYTES = 8 * 2**20  # of the words that all topics are compared in at once
LAMBDAS = np.linspace(0, 1, 21)  # at which words are ranked: a slider in steps of 0.05


class Plane(NamedTuple):
    """Topics as points of a plane: ``places`` (k x 2), and the share (0 to 1) of their squared distances that is seen
    in it."""

    places: Block
    seen: float


def jensen_shannon(topics: Block) -> Block:
    """Jensen-Shannon distances of the columns (distributions over V words), k x k, in nats^(1/2).

    The square root of ``H((p + q) / 2) - (H(p) + H(q)) / 2``: 0 where two are the same, sqrt(log 2) where they share no
    word. Unlike its square, which pyLDAvis takes, it is a distance, and points of a Euclidean space have it (Endres
    and Schindelin 2003; Fuglede and Topsøe 2004).
    """
    v, k = topics.shape
    squares = np.zeros((k, k))
    step = max(1, STRIP_BYTES // (8 * k))
    for first in range(0, v, step):
        strip = topics[first : first + step]
        alone = xlogy(strip, strip).sum(axis=0)
        for i in range(k):
            middle = (strip[:, i : i + 1] + strip[:, i:]) / 2
            squares[i, i:] += (alone[i] + alone[i:]) / 2 - xlogy(middle, middle).sum(axis=0)
    squares = np.triu(squares, 1)
    return np.asarray(np.sqrt(np.maximum(squares + squares.T, 0.0)))  # less than 0 by rounding only


def classical_scaling(distances: Block) -> Plane:
    """Points of a plane whose distances are as near to those given (k x k) as one projection makes them.

    The two leading eigenvectors of the centred matrix of ``-distances^2 / 2`` (Torgerson 1952). Of each axis the point
    that is farthest from the middle has a positive coordinate.
    """
    k = len(distances)
    squares = distances**2
    middle = squares.mean(axis=0)
    values, vectors = np.linalg.eigh(-(squares - middle - middle[:, None] + middle.mean()) / 2)
    largest = [i for i in range(k - 1, max(k - 3, -1), -1) if values[i] > 1e-12 * max(values[-1], 0.0)]
    places = np.zeros((k, 2))
    for axis, i in enumerate(largest):
        column = vectors[:, i] * np.sqrt(values[i])
        places[:, axis] = column * (1 if column[np.argmax(np.abs(column).round(12))] > 0 else -1)
    total = float(values[values > 0].sum())
    return Plane(places, float(values[largest].sum()) / total if total else 1.0)


def topic_map(topics: Block) -> Plane:
    """Where topics (V x k) are put on a page."""
    return classical_scaling(jensen_shannon(topics))


def relevant_words(model: TopicModel, topic: int, count: int) -> np.ndarray:
    """Words (as places in the vocabulary, rising) that are among the ``count`` most relevant ones of a topic for some
    lambda.

    Relevance is ``lambda log p(w | topic) + (1 - lambda) log(p(w | topic) / p(w))`` (Sievert and Shirley 2014,
    equation 1), p(w) that of the model: all topics by their weights. 1 ranks by probability, 0 by how much a word is
    this topic's own. Words that the topic has not are left out.
    """
    of_topic = model.topics[:, topic]
    there = np.flatnonzero(of_topic)
    likely = np.log(of_topic[there])
    lift = likely - np.log(model.topics[there] @ model.weights)
    # Words that no other topic has are equally its own, but for rounding: then the likelier one is first.
    ranked = [np.lexsort((-likely, -(at * likely + (1 - at) * lift).round(9))) for at in LAMBDAS]
    found = [order[:count] for order in ranked]
    return np.asarray(there[np.unique(np.concatenate(found))])
