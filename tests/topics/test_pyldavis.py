"""Topics as pyLDAvis reads them: what it checks, what the documents say, and nothing half written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
import npmdask.topics.documents as documents_module
from npmdask.cli.main import main
from npmdask.errors import BadInputError
from npmdask.manage.report import export
from npmdask.topics.documents import documents_of
from npmdask.topics.model import TopicModel
from npmdask.topics.run import run_topics
from npmdask.topics.transform import DocumentShares, shares_of
from tests.topics.made import a_model, documents_from

MODEL = a_model(v=30, k=3, seed=2)
WORDS = tuple(f'w"{i}é' for i in range(30))  # what JSON has to escape
COUNTS = documents_from(MODEL, 2000, 40)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pyldavis") / "run"
    run_topics(COUNTS, 3, WORDS, store=folder)
    return folder


@pytest.mark.slow
def test_what_pyldavis_checks_and_what_the_documents_say(store: Path, tmp_path: Path) -> None:
    """The conditions are those of ``_input_check`` of pyLDAvis 3.4.1. Mutants: topics in their own order beside shares
    of the heaviest first; the documents that were held out among the others; lengths of documents without repeats."""
    target = tmp_path / "topics.json"
    names = ["topic_term_dists", "doc_topic_dists", "doc_lengths", "vocab", "term_frequency"]
    assert export(store, target) == names
    found: dict[str, Any] = json.loads(target.read_text())
    model, kept = TopicModel.load(store), COUNTS[[i for i in range(2000) if i % 10 != 9]]
    assert list(found) == names and found["vocab"] == list(WORDS)
    np.testing.assert_array_equal(found["topic_term_dists"], model.topics.T[model.by_weight])
    np.testing.assert_array_equal(found["doc_lengths"], np.asarray(kept.sum(axis=1)).ravel())
    np.testing.assert_array_equal(found["term_frequency"], np.asarray(kept.sum(axis=0)).ravel())
    shares = np.array(found["doc_topic_dists"])
    np.testing.assert_array_equal(
        shares, shares_of(kept.astype(float), model.topics, model.alpha).shares[:, model.by_weight]
    )
    assert np.allclose(np.sum(found["topic_term_dists"], axis=1), 1) and np.allclose(shares.sum(axis=1), 1)
    assert not list(tmp_path.glob(".writing*"))


def test_shares_do_not_depend_on_how_documents_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: lengths of the last batch alone."""
    whole, parts = DocumentShares(documents_of(COUNTS[:50]), MODEL), DocumentShares(documents_of(COUNTS[:50]), MODEL)
    at_once = np.concatenate(list(whole.shares()))
    monkeypatch.setattr(documents_module, "ROWS", 7)
    batches = list(parts.shares())
    assert len(batches) == 8
    np.testing.assert_allclose(np.concatenate(batches), at_once, rtol=1e-12)
    np.testing.assert_array_equal(parts.lengths, whole.lengths)
    np.testing.assert_array_equal(parts.word_counts, whole.word_counts)


@pytest.mark.slow
def test_what_is_no_topics_is_refused_and_nothing_is_left(store: Path, tmp_path: Path, capsys: Any) -> None:
    npmdask.top_k(np.random.default_rng(0).standard_normal((50, 4)), 2, store=tmp_path / "matrix")
    assert main(["export", str(tmp_path / "matrix"), str(tmp_path / "x.json")]) == BadInputError.exit_code
    assert "a .json file is what pyLDAvis reads of topics" in capsys.readouterr().err
    with pytest.raises(BadInputError, match="topics are not rotated or aligned"):
        export(store, tmp_path / "x.json", rotate="varimax")
    (tmp_path / "x.json").write_text("before")
    held = store / "documents.zarr"
    held.rename(store / "elsewhere.zarr")
    try:
        with pytest.raises(BadInputError, match=r"documents\.zarr"):
            export(store, tmp_path / "x.json")
    finally:
        (store / "elsewhere.zarr").rename(held)
    assert (tmp_path / "x.json").read_text() == "before" and not list(tmp_path.glob(".writing*"))
