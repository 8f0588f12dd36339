"""The page of a topic model, and its table: every word escaped, every number where it belongs, doubts said."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from npmdask.models.topics.model import TopicModel
from npmdask.models.topics.quality import Coherence, Perplexity
from npmdask.models.topics.report import TopicFacts, condition, report_from_facts, text_of
from npmdask.report import as_html
from tests.models.topics.made import a_model

EVIL = '<script>alert("1")</script>&'
MODEL = TopicModel(
    topics=np.array([[0.5, 0.0], [0.3, 0.2], [0.2, 0.2], [0.0, 0.6]]),
    alpha=np.array([0.5, 1.5]),
    vocabulary=(EVIL, "bayes", "graph", "edge"),
)
COHERENCE = Coherence(u_mass=np.array([-1.25, -2.5]), c_npmi=np.array([0.111, 0.222]), top=3, documents=9)
FULL = TopicFacts(
    name=EVIL,
    sentence="2 topics found " + EVIL,
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


def page_of(facts: TopicFacts) -> str:
    return as_html(report_from_facts(facts))


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
    page = page_of(TopicFacts(name="name", sentence="done", model=MODEL, **{"alpha0_given": 2.0, **change}))
    assert page.count('class="outcome bad"') == (said is not None)
    assert said is None or said in page


@pytest.mark.slow
def test_a_page_of_a_model_alone() -> None:
    """Fails where something that is not known is needed after all."""
    page = page_of(TopicFacts(name="few", sentence="done", model=a_model()))
    assert not Reader(page).open and "c_npmi" not in page and page.count("<svg") == 1
    assert full_page().count("<svg") == 3
    assert condition(TopicFacts(name="few", sentence="done", model=a_model(), spectrum=np.ones(2))) is None


def test_the_table_for_a_terminal() -> None:
    lines = text_of(replace(MODEL, vocabulary=("a", "b", "c", "d")), 2, coherence=COHERENCE).split("\n")
    assert lines == [
        "topic  weight  c_npmi  u_mass  words",
        "    1   0.750   0.222   -2.50  d b",
        "    2   0.250   0.111   -1.25  a b",
    ]
    assert "negative" in text_of(MODEL, negative_mass=np.zeros(2))
