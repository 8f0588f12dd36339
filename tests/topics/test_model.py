"""A topic model: what it refuses to be, its words, and its folder on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npmdask.core.checkpoint.store import SPEC_TABLES, RunStore
from npmdask.errors import BadInputError
from npmdask.topics.model import PART, TopicModel, holds_topics
from tests.topics.made import a_model, words

SMALL = TopicModel(
    topics=np.array([[0.5, 0.0], [0.3, 0.2], [0.2, 0.2], [0.0, 0.6]]),
    alpha=np.array([0.5, 1.5]),
    vocabulary=("naïve", "bayes", "graph", "edge"),
    facts={"documents": 12},
)


def test_words_weights_and_diversity() -> None:
    assert SMALL.top_words(3) == [
        [("naïve", 0.5), ("bayes", 0.3), ("graph", 0.2)],
        [("edge", 0.6), ("bayes", 0.2), ("graph", 0.2)],
    ]
    assert len(SMALL.top_words(4)[0]) == 3, "a word of probability 0 is no word of the topic"
    assert SMALL.top_indices(2).tolist() == [[0, 1], [3, 1]]
    assert SMALL.weights.tolist() == [0.25, 0.75] and SMALL.alpha0 == 2 and SMALL.by_weight.tolist() == [1, 0]
    assert (SMALL.diversity(2), SMALL.diversity(1)) == (0.75, 1.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topics": SMALL.topics * 2}, "must be a distribution over the words"),
        ({"topics": SMALL.topics - np.array([[0.6, 0], [-0.6, 0], [0, 0], [0, 0]])}, "must be a distribution"),
        ({"alpha": np.array([0.5, 0.0])}, "must be positive"),
        ({"alpha": np.ones(3)}, "an alpha for each topic"),
        ({"vocabulary": words(3)}, "has 3 words and the documents have 4 columns"),
        ({"kept": np.arange(4)}, "source_columns"),
    ],
)
def test_what_is_no_model(change: dict[str, object], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        replace(SMALL, **change)


@pytest.mark.parametrize("kept", [None, np.array([0, 2, 3, 9])])
def test_on_disk(kept: np.ndarray | None, tmp_path: Path) -> None:
    model = replace(SMALL, kept=kept, source_columns=None if kept is None else 10)
    model.save(tmp_path / "model")
    with RunStore(tmp_path / "run") as run:
        run.write_spec({table: {} for table in SPEC_TABLES})
        assert not holds_topics(tmp_path / "run")
        with pytest.raises(BadInputError, match="holds no topics yet; `npmdask resume"):
            TopicModel.load(tmp_path / "run")
        run.write_part(PART, *model.saved())
    for folder in ("model", "run"):
        found = TopicModel.load(tmp_path / folder)
        assert holds_topics(tmp_path / folder)
        np.testing.assert_array_equal(found.topics, model.topics)
        np.testing.assert_array_equal(found.alpha, model.alpha)
        assert (found.vocabulary, found.facts) == (model.vocabulary, model.facts)
        assert (found.kept is None) == (kept is None) and found.source_columns == model.source_columns
    with pytest.raises(BadInputError, match="exists already"):
        model.save(tmp_path / "model")


def test_a_damaged_model_is_not_read(tmp_path: Path) -> None:
    a_model().save(tmp_path / "model")
    file = tmp_path / "model" / "topics.npy"
    data = bytearray(file.read_bytes())
    data[200] ^= 1
    file.write_bytes(data)
    with pytest.raises(BadInputError, match=r"topics\.npy is corrupt"):
        TopicModel.load(tmp_path / "model")
