"""The documents in which each topic is strongest: which they are, what they are called, and that they are read once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import npmdask.topics.documents as documents_module
from npmdask.cli.main import main
from npmdask.core.storage.safe_open import mark_data
from npmdask.errors import BadInputError, DataWarning
from npmdask.manage import row_scores
from npmdask.manage.kinds import PageOptions
from npmdask.manage.report import report_of
from npmdask.report import Bars, Report, Text
from npmdask.topics.documents import documents_of
from npmdask.topics.model import TopicModel
from npmdask.topics.run import run_topics
from npmdask.topics.transform import DocumentShares, shares_of, strongest_documents
from tests.topics.made import a_model, documents_from

MODEL = a_model(v=30, k=3, seed=2)
COUNTS = documents_from(MODEL, 600, 40)
TITLE = "Strongest documents"


def cards(report: Report) -> list[Bars]:
    return [block for one in report.sections if one.title == TITLE for block in one.blocks if isinstance(block, Bars)]


def said(report: Report) -> str:
    return " ".join(b.text for one in report.sections if one.title == TITLE for b in one.blocks if isinstance(b, Text))


def test_they_are_those_with_the_largest_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: of the last batch only; numbers within a batch; topics in their own order; the smallest shares."""
    counts = COUNTS[:50]
    shares = shares_of(counts.astype(float), MODEL.topics, MODEL.alpha).shares[:, MODEL.by_weight]
    monkeypatch.setattr(documents_module, "ROWS", 7)
    found = strongest_documents(DocumentShares(documents_of(counts), MODEL), 4)
    np.testing.assert_array_equal(found.rows, np.argsort(-shares, axis=0, kind="stable")[:4].T)
    np.testing.assert_allclose(found.shares, -np.sort(-shares, axis=0)[:4].T)
    np.testing.assert_array_equal(found.lengths, np.asarray(counts.sum(axis=1)).ravel()[found.rows])
    few = strongest_documents(DocumentShares(documents_of(counts[:2]), MODEL), 4)
    assert (few.rows[:, :2] >= 0).all() and (few.rows[:, 2:] == -1).all()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topics of a table whose rows have names; every tenth is held out."""
    folder = tmp_path_factory.mktemp("strongest") / "run"
    table = pd.DataFrame(COUNTS.toarray(), index=[f"paper {i}" for i in range(600)])
    run_topics(table, 3, tuple(f"w{i}" for i in range(30)), store=folder)
    return folder


@pytest.mark.slow
def test_documents_have_their_names_and_are_read_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: numbers among the documents that were not held out; a second reading."""
    model, report = TopicModel.load(store), report_of(store)
    shares = shares_of(COUNTS.astype(float), model.topics, model.alpha).shares
    kept = [i for i in range(600) if i % 10 != 9]
    for card, topic in zip(cards(report), model.by_weight, strict=True):
        best = sorted(kept, key=lambda i: -shares[i, topic])[:5]
        assert [name for name, _ in card.bars] == [f"paper {i}" for i in best]
        np.testing.assert_allclose([share for _, share in card.bars], shares[best, topic])
    monkeypatch.setattr(DocumentShares, "shares", lambda _: 1 / 0)
    assert cards(report_of(store)) == cards(report)


@pytest.mark.slow
def test_much_is_read_when_asked_for_and_what_has_a_budget_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutants: no limit; an option that changes nothing; documents of people."""
    run_topics(COUNTS, 3, store=tmp_path / "run")
    monkeypatch.setattr(row_scores, "UNASKED", 100)
    assert "--scores` does" in said(report_of(tmp_path / "run"))
    assert main(["report", str(tmp_path / "run"), "--scores", "-o", str(tmp_path / "r.json")]) == 0
    (found,) = (s for s in json.loads((tmp_path / "r.json").read_text())["sections"] if s["title"] == TITLE)
    assert "counted from 1" in found["blocks"][0]["text"] and found["blocks"][1]["bars"][0][0].startswith("document ")
    with pytest.raises(BadInputError, match="no grid and no colour"):
        report_of(tmp_path / "run", PageOptions(colour="0"))
    mark_data(tmp_path / "run" / "documents.zarr", "people")
    with pytest.warns(DataWarning, match="privacy budget"):
        assert "privacy budget" in said(report_of(tmp_path / "run")) and not cards(report_of(tmp_path / "run"))
    with pytest.raises(BadInputError, match="privacy budget"), pytest.warns(DataWarning, match="privacy budget"):
        report_of(tmp_path / "run", PageOptions(scores=True))
    capsys.readouterr()
