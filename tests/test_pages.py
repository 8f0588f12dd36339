"""What pages say of other pages, and runs of what was planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npmdask.api import top_k
from npmdask.core.algorithms import Result
from npmdask.core.storage.source import Truth
from npmdask.manage.report import write_report
from npmdask.report import Report, Section, Text, as_html, as_markdown
from npmdask.tensors.recovery import recovery_of


def test_a_page_names_others_by_ways_that_survive_a_move(tmp_path: Path) -> None:
    report = Report(title="run", outcome="done", good=True, sections=())
    assert "See also" not in as_html(report, {}, tmp_path)
    found = as_html(report, {"A & B": tmp_path / "other run" / "report.html"}, tmp_path / "run")
    assert '<li><a href="../other%20run/report.html">A &amp; B</a></li>' in found
    assert found.index("<h2>See also</h2>") > found.index("done")


def test_a_paragraph_leads_to_an_address_in_every_form() -> None:
    """Fails when an address ends a tag or a link before its own end."""
    address = 'http://127.0.0.1:4201/a%20b/(x) ">.html'
    way = Section(title="Way", blocks=(Text(text="here", address=address),))
    report = Report(title="run", outcome="done", good=True, sections=(way,))
    assert '<a href="http://127.0.0.1:4201/a%20b/(x) &#34;&gt;.html">here</a>' in as_html(report)
    assert "[here](<http://127.0.0.1:4201/a%20b/%28x%29%20%22%3E.html>)" in as_markdown(report)


@pytest.mark.slow
def test_the_report_of_a_run_is_linked(tmp_path: Path) -> None:
    top_k(np.diag([3.0, 2.0, 1.0]), 1, store=tmp_path / "run")
    page = write_report(tmp_path / "run", links={"more": tmp_path / "more.html"})
    assert '<a href="../more.html">more</a>' in page.read_text()
    assert "See also" not in write_report(tmp_path / "run").read_text()


def test_recovery_counts_what_is_near_and_keeps_the_worst() -> None:
    truth = Truth(basis=np.eye(4)[:, :3], values=np.array([4.0, 2.0, 1.0]))
    near = np.array([0.06, 0.998198])  # at 0.06 of the first two axes
    vectors = np.stack([np.r_[near[::-1], 0, 0], np.eye(4)[:, 1]], axis=1)
    found = Result(values=np.array([4.4, 2.0]), vectors=vectors, products=vectors, residual_norms=np.zeros(2), facts={})
    (said,) = recovery_of(truth, found).values()
    assert (said["planted"], said["recovered"]) == (3, 2)
    assert np.isclose(said["worst_vector_error"], 0.06, rtol=0.01) and np.isclose(said["worst_weight_error"], 0.1)
    assert recovery_of(None, found) == {}
    assert recovery_of(Truth(basis=np.eye(3), values=np.ones(3)), found) == {}, "planted in other coordinates"
