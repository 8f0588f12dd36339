"""The page of a topic model, and its table: every word escaped, every number where it belongs, doubts said."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon, pdist, squareform

from npmdask.core.numerics.random import generator
from npmdask.report import Report, TopicMap, as_html, as_json, as_markdown
from npmdask.report.plots import HEIGHT, WIDTH, draw_topics
from npmdask.report.render import topic_numbers
from npmdask.topics import report
from npmdask.topics.model import TopicModel
from npmdask.topics.quality import Coherence, Perplexity
from npmdask.topics.report import (
    TopicFacts,
    classical_scaling,
    condition,
    jensen_shannon,
    relevant_words,
    text_of,
    topic_map,
    topic_sections,
)
from tests.topics.made import a_model, words


@pytest.mark.parametrize("strip", [report.STRIP_BYTES, 8 * 4 * 7])
def test_distances_are_those_of_scipy(monkeypatch: pytest.MonkeyPatch, strip: int) -> None:
    """Of topics with words of probability 0, whatever is worked on at once. Mutants: the divergence, not its root; the
    last strip left out."""
    monkeypatch.setattr(report, "STRIP_BYTES", strip)
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


EVIL = '<script>alert("1")</script>&'
MODEL = TopicModel(
    topics=np.array([[0.5, 0.0], [0.3, 0.2], [0.2, 0.2], [0.0, 0.6]]),
    alpha=np.array([0.5, 1.5]),
    vocabulary=(EVIL, "bayes", "graph", "edge"),
)
COHERENCE = Coherence(u_mass=np.array([-1.25, -2.5]), c_npmi=np.array([0.111, 0.222]), top=3, documents=9)
FULL = TopicFacts(
    model=MODEL,
    store="runs/my topics; rm -rf",
    coherence=COHERENCE,
    perplexity=Perplexity(model=1410, unigram=2184, words=99, documents=9, background_share=0.01),
    negative_mass=np.array([0.011, 0.044]),
    spectrum=np.array([8.0, 4.0, 0.5]),
    convergence=[1.0, 0.1, 1e-9],
    found=[0, 1, 2],
    tol=1e-8,
    alpha0_given=2.0,
    documents=1500,
    skipped={"shorter than three words " + EVIL: 1234},
    numbers=[("data passes " + EVIL, EVIL)],
    warnings=[EVIL],
    parameters={EVIL: EVIL},
)


def report_of(facts: TopicFacts) -> Report:
    sections = tuple(topic_sections(facts))
    return Report(title=EVIL, outcome="2 topics found " + EVIL, good=True, sections=sections)


def page_of(facts: TopicFacts) -> str:
    return as_html(report_of(facts))


@lru_cache
def full_page() -> str:
    return page_of(FULL)


class Reader(HTMLParser):
    """Tags that are open, all tags, and the text of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data + "\n"


@pytest.mark.slow
def test_every_word_is_escaped_and_every_tag_closed() -> None:
    """Fails when a word of the vocabulary, or anything else that is given, gets into the page as HTML."""
    read = Reader(page := full_page())
    assert not read.open and EVIL not in page and page.count("<script") == page.count("<figure") + 1
    assert read.text.count(EVIL) >= 8


@pytest.mark.slow
def test_what_the_page_says() -> None:
    text = Reader(full_page()).text
    for said in ("1,410", "2,184", "1,234", "1,500", "c_npmi 0.111", "u_mass -2.50", "negative 4.4%", "weight 75.0%"):
        assert said in text, said
    assert "npmdask transform 'runs/my topics; rm -rf' DOCUMENTS shares.zarr" in text
    cards = text[text.rindex("\nTopics\n") :]
    assert cards.index("edge") < cards.index(EVIL), "the heaviest topic first"
    assert "0.6000" in cards and "0.0000" not in cards, "no word of probability 0"


def test_the_bars_are_to_one_scale() -> None:
    widths = [part.split("%")[0] for part in full_page().split('<i style="width:')[1:]]
    assert widths == ["100.0", "33.3", "33.3", "83.3", "50.0", "33.3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"spectrum": np.array([8.0, 0.5])}, "badly conditioned: its first eigenvalue is 16 times that of number 2"),
        ({"alpha0_given": 1.0}, "sum to 2 and should to 1"),
        ({"alpha0_given": 0.0}, "sum to 2 and should to 1"),
        ({"perplexity": Perplexity(model=9, unigram=8, words=1, documents=1, background_share=0)}, "no better than"),
    ],
)
def test_doubts_are_said(change: dict[str, Any], said: str | None) -> None:
    page = page_of(replace(FULL, **{"warnings": (), "spectrum": np.array([8.0, 4.0]), **change}))
    assert page.count('class="outcome bad"') == (said is not None)
    assert said is None or said in page


@pytest.mark.slow
def test_a_page_without_documents_held_out() -> None:
    page = page_of(replace(FULL, perplexity=None))
    assert not Reader(page).open and "perplexity" not in page and page.count("<svg") == full_page().count("<svg") == 4
    assert condition(replace(FULL, spectrum=np.ones(1))) is None


def block_of(model: TopicModel) -> TopicMap:
    of_topics = np.zeros(model.k)
    measured = Coherence(u_mass=of_topics, c_npmi=of_topics, top=3, documents=9)
    found = topic_sections(replace(FULL, model=model, negative_mass=of_topics, coherence=measured))[1].blocks[0]
    assert isinstance(found, TopicMap)
    return found


def test_the_map_and_its_words_are_those_of_the_model() -> None:
    """Mutants: topics in the order of the model; words of one topic listed for another; p(w) without the weights."""
    block = block_of(MODEL)
    assert [(name, share) for name, _, _, share in block.topics] == [("1", 0.75), ("2", 0.25)]
    assert [x for _, x, _, _ in block.topics] == pytest.approx([-block.topics[1][1], block.topics[1][1]])
    assert block.words == (
        (EVIL, 0.125, ((1, 0.5),)),
        ("bayes", pytest.approx(0.225), ((0, 0.2), (1, 0.3))),
        ("graph", pytest.approx(0.2), ((0, 0.2), (1, 0.2))),
        ("edge", pytest.approx(0.45), ((0, 0.6),)),
    )


@pytest.mark.slow
def test_of_many_topics_and_words_the_page_stays_small() -> None:
    """120 topics of 5,000 words: the heaviest are shown, and the page says so."""
    topics = generator(0, "many").dirichlet(np.full(5_000, 0.02), 120).T
    model = TopicModel(topics=topics, alpha=np.linspace(1, 2, 120), vocabulary=words(5_000))
    block = block_of(model)
    assert len(block.topics) == 100 and "the 100 heaviest of 120 topics" in block.about
    assert len(topic_numbers(block)) < 600_000
    heaviest = block.topics[0]
    assert heaviest[0] == "1" and heaviest[3] == model.weights.max()
    for number in (0, 99):
        listed = {word for word, _, of in block.words if any(topic == number for topic, _ in of)}
        assert {word for word, _ in model.top_words(30)[model.by_weight[number]]} <= listed


@pytest.mark.parametrize("k", [1, 2, 5])
def test_every_circle_is_inside_of_the_map(k: int) -> None:
    """Also that of a single topic, and those of topics that are the same. Mutant: one scale for each axis."""
    same = np.tile(a_model(k=1).topics, (1, k))
    for topics in (a_model(k=k).topics, same, np.eye(60)[:, :k]):
        block = block_of(TopicModel(topics=topics, alpha=np.ones(k), vocabulary=words(60)))
        circles = re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)" r="([\d.]+)"', draw_topics(block))
        assert len(circles) == k
        for x, y, r in np.array(circles, dtype=float):
            assert r <= x <= WIDTH - r and r <= y <= HEIGHT - r


@pytest.mark.slow
def test_nothing_that_a_word_holds_ends_the_data_or_a_tag() -> None:
    block = block_of(MODEL)
    assert json.loads(topic_numbers(block))["words"][0][0] == EVIL and "<" not in topic_numbers(block)
    assert html.unescape(draw_topics(block)).count(EVIL) == 1 and "<script" not in draw_topics(block)
    assert as_json(report_of(FULL))["sections"][1]["blocks"][0]["block"] == "topicmap"
    page = as_markdown(report_of(FULL))
    assert "![Map of the topics](data:image/svg+xml;base64," in page and "<script" not in page


def test_the_table_for_a_terminal() -> None:
    lines = text_of(replace(MODEL, vocabulary=("a", "b", "c", "d")), 2, coherence=COHERENCE).split("\n")
    assert lines == [
        "topic  weight  c_npmi  u_mass  words",
        "    1   0.750   0.222   -2.50  d b",
        "    2   0.250   0.111   -1.25  a b",
    ]
