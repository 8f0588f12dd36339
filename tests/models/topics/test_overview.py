"""The map of topics and the words that tell one from the others, against SciPy, geometry and a sort by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon, pdist, squareform

import npmdask.models.topics.report as overview
from npmdask.models.topics.model import TopicModel
from npmdask.models.topics.report import classical_scaling, jensen_shannon, relevant_words, topic_map
from npmdask.numerics.random import generator
from tests.models.topics.made import a_model, words


@pytest.mark.parametrize("strip", [overview.STRIP_BYTES, 8 * 4 * 7])
def test_distances_are_those_of_scipy(monkeypatch: pytest.MonkeyPatch, strip: int) -> None:
    """Of topics with words of probability 0, whatever is worked on at once. Mutants: the divergence, not its root; the
    last strip left out."""
    monkeypatch.setattr(overview, "STRIP_BYTES", strip)
    topics = a_model().topics
    assert (topics == 0).any()
    found = jensen_shannon(topics)
    expected = [[jensenshannon(topics[:, i], topics[:, j]) for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_topics_that_are_the_same_or_share_nothing() -> None:
    """Neither NaN nor a distance that rounding made."""
    same = np.tile(a_model().topics[:, :1], (1, 3))
    np.testing.assert_allclose(jensen_shannon(same), np.zeros((3, 3)), atol=1e-7)
    assert not topic_map(same).places.round(6).any()
    np.testing.assert_allclose(jensen_shannon(np.eye(3)), np.sqrt(np.log(2)) * (1 - np.eye(3)))
    assert topic_map(np.eye(3)).seen == pytest.approx(1), "three points are in a plane"
    assert topic_map(np.eye(4)).seen == pytest.approx(2 / 3), "four are not"


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_points_of_a_plane_are_found_again(k: int) -> None:
    points = generator(1, "points").standard_normal((k, 2)) * [3, 1]
    found = classical_scaling(squareform(pdist(points)) if k > 1 else np.zeros((1, 1)))
    assert found.places.shape == (k, 2) and found.seen == pytest.approx(1)
    if k > 1:
        np.testing.assert_allclose(pdist(found.places), pdist(points), atol=1e-9)
        assert np.ptp(found.places[:, 0]) >= np.ptp(found.places[:, 1]), "the longer axis first"


def test_words_are_ranked_by_relevance_for_every_lambda() -> None:
    """Mutants: the lift alone; p(w) as the mean of the topics, whatever they weigh; words that the topic has not."""
    model = TopicModel(
        topics=np.array([[0.5, 0.4], [0.3, 0.0], [0.2, 0.1], [0.0, 0.5]]),
        alpha=np.array([3.0, 1.0]),
        vocabulary=words(4),
    )
    assert relevant_words(model, 0, 4).tolist() == [0, 1, 2], "not the word that it has not"
    assert relevant_words(model, 0, 1).tolist() == [0, 1], "the likeliest one, and the one that no other has"
    many = a_model(v=400, k=5, seed=3)
    overall = many.topics @ many.weights
    for topic in range(5):
        p = many.topics[:, topic]
        with np.errstate(divide="ignore", invalid="ignore"):
            lift = np.where(p > 0, np.log(p / overall), -np.inf)
            for at in (0.05, 0.6, 1.0):
                relevance = at * np.log(p) + (1 - at) * lift
                assert set(np.argsort(-relevance)[:10]) <= set(relevant_words(many, topic, 10).tolist())


def test_among_words_that_are_equally_a_topics_own_the_likelier_one_is_first() -> None:
    """Their lift is the same but for rounding, which must not choose."""
    p = np.linspace(1, 2, 60)
    topics = np.zeros((70, 3))
    topics[:60, 0], topics[60:, 1], topics[55:, 2] = p / p.sum(), 0.1, 1 / 15
    model = TopicModel(topics=topics, alpha=np.array([0.3, 0.3, 0.7]), vocabulary=words(70))
    assert relevant_words(model, 0, 5).tolist() == [50, 51, 52, 53, 54, 55, 56, 57, 58, 59]
