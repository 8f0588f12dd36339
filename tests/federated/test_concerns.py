"""A weak promise is said by the node to its owner and by the centre; a sum that noise buries is refused uncharged."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.api import solve
from npmdask.config import load_config
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Problem, Request
from npmdask.core.runs.resources import Resources
from npmdask.errors import RefusedError
from npmdask.federated.node import Node
from npmdask.ledger import open_ledger
from npmdask.manage.report import write_report
from npmdask.privacy.concerns import concerns, require_signal
from tests.federated.conftest import Sites, grant, private_tables, records, write_site
from tests.federated.test_error_growth import source_of

D, STEPS = 12, 2


def opened(stack: ExitStack, folder: Path, rows: np.ndarray, epsilon: float, delta: str = "1e-6", **more: Any) -> Node:
    """A node in this process."""
    tables = private_tables(epsilon, **more).replace("delta = 1e-6", f"delta = {delta}")
    write_site(folder, rows, tables, p=3, steps=STEPS)
    grant(folder, 2 * epsilon, **more)
    return stack.enter_context(load_config(folder / "node.toml").node())


def centre(nodes: list[Node]) -> Problem:
    return make_problem(source_of(nodes), Request(target_rank=2, seed=5))


def uncharged(folder: Path) -> bool:
    return not open_ledger(folder / "ledger.sqlite").status("here").runs


@pytest.mark.slow
def test_an_ordinary_node_is_of_no_concern(tmp_path: Path) -> None:
    """The counterpart of the others: with the same records."""
    with ExitStack() as stack:
        nodes = [opened(stack, tmp_path / str(i), records(4000, D, i), 2.0) for i in range(2)]
        assert [node.concerns for node in nodes] == [(), ()] and concerns(centre(nodes)) == ()


@pytest.mark.slow
def test_a_weak_promise_of_a_node_is_said_to_its_owner_and_by_the_centre(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the node whose promise it is, by its own number of rows. Mutants: not said; by the rows of all nodes."""
    with ExitStack() as stack:
        good = opened(stack, tmp_path / "good", records(4000, D), 2.0)
        bad = opened(stack, tmp_path / "bad", records(400, D, 1), 20.0, "1e-5")
        loose = opened(stack, tmp_path / "loose", records(400, D, 2), 2.0, "0.01")
        assert good.concerns == ()
        assert len(bad.concerns) == 1 and "epsilon = 20 is a very weak guarantee" in bad.concerns[0]
        assert len(loose.concerns) == 1 and "1 / (number of records) = 2.5e-03" in loose.concerns[0]
        problem, wanted = centre([good, bad, loose]), {f"node 2: {bad.concerns[0]}", f"node 3: {loose.concerns[0]}"}
        assert set(concerns(problem)) == wanted
    with ExitStack() as stack:
        alone = opened(stack, tmp_path / "alone", records(4000, D), 20.0)
        problem = centre([alone])
        with caplog.at_level(logging.WARNING, logger="npmdask"):
            found = solve(problem, tmp_path / "centre", Resources(threads=1))
        again = solve(problem, tmp_path / "centre", Resources(threads=1))
    assert "node 1: epsilon = 20 is a very weak" in caplog.text and found.warnings == again.warnings == concerns(
        problem
    )
    assert "node 1: epsilon = 20 is a very weak guarantee" in write_report(tmp_path / "centre").read_text()


@pytest.mark.slow
def test_rows_that_are_private_are_not_counted(tmp_path: Path) -> None:
    with ExitStack() as stack:
        relation = "record_add_remove"
        few, many = (
            opened(stack, tmp_path / str(n), records(n, D), 2.0, "0.001", relation=relation) for n in (30, 3000)
        )
        assert few.concerns == many.concerns and "fewer than 1,000 records only" in few.concerns[0]
        assert all("1,000 records only" in said for said in concerns(centre([few, many])))


@pytest.mark.slow
def test_a_sum_that_noise_buries_is_refused_and_no_node_is_charged(tmp_path: Path) -> None:
    """One such node says so and is no reason to refuse: other nodes may have more. Mutants: the noise or the records
    of one node alone decide at the centre; the refusal left out."""
    with ExitStack() as stack:
        lost = [opened(stack, tmp_path / f"lost{i}", records(20, D, i), 0.05) for i in range(2)]
        rich = opened(stack, tmp_path / "rich", records(4000, D), 2.0)
        (said,) = lost[0].concerns
        assert "the noise buries the data of this node" in said
        with pytest.raises(RefusedError, match=r"bury every component.*Nothing was charged"):
            solve(centre(lost), tmp_path / "centre", Resources(threads=1))
        assert all(uncharged(tmp_path / f"lost{i}") for i in range(2))
        assert solve(centre([lost[0], rich]), tmp_path / "both", Resources(threads=1)).outcome.name == "released"


@pytest.mark.slow
def test_what_one_node_would_lose_many_may_show(tmp_path: Path) -> None:
    """Records of s nodes add up, their noise only as sqrt(s): at the same promise one is refused, and nine are not."""
    with ExitStack() as stack:
        nodes = [opened(stack, tmp_path / str(i), records(60, D, i), 0.1) for i in range(9)]
        assert nodes[0].concerns
        with pytest.raises(RefusedError, match="bury every component"):
            solve(centre(nodes[:1]), tmp_path / "one", Resources(threads=1))
        assert solve(centre(nodes), tmp_path / "nine", Resources(threads=1)).outcome.name == "released"


@pytest.mark.slow
def test_whether_a_sum_is_refused_does_not_depend_on_the_unit_of_its_values(tmp_path: Path) -> None:
    """Singular values are roots. Mutant: of roots the noise of L releases falls with sqrt(L), too."""
    found = []
    with ExitStack() as stack:
        for epsilon in (0.02, 0.05, 0.1, 0.2, 0.4, 1.0):
            problem = centre([opened(stack, tmp_path / str(epsilon), records(60, D), epsilon)])
            roots = replace(problem, source=replace(problem.source, kind="sparse"))
            found.append((refused(problem), refused(roots)))
    assert found[0] == (True, True) and found[-1] == (False, False) and all(one == two for one, two in found)


def test_symmetric_matrices_are_bounded_by_their_entries(tmp_path: Path) -> None:
    """d x d entries of at most clip_norm in each node; rows are announced of none."""
    whole = np.ones((D, D))
    with ExitStack() as stack:
        for epsilon, lost in ((0.05, True), (20.0, False)):
            folder = tmp_path / str(epsilon)
            write_site(folder, whole, private_tables(epsilon, "symmetric_entry"), p=3, steps=STEPS, kind="symmetric")
            node = stack.enter_context(load_config(folder / "node.toml").node())
            assert node.announcement.rows is None and refused(centre([node])) == lost


def refused(problem: Problem) -> bool:
    try:
        require_signal(problem)
    except RefusedError:
        return True
    return False


@pytest.mark.slow
def test_the_command_says_it_before_it_listens(sites: Sites) -> None:
    (site,) = sites([records(400, D)], epsilon=20.0, p=3, steps=1)
    said, listens = site.err.index("warning: epsilon = 20 is a very weak guarantee"), site.err.index("listens at")
    assert said < listens
