"""A distributed run of one node is the private power method (Balcan, Du, Wang and Yu 2016, Corollary 3.1)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npmdask.api import solve
from npmdask.config import load_config
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.privacy.request import Privacy
from npmdask.theory import dist_error, ppm_error
from tests.federated.conftest import grant, private_tables, records, write_site
from tests.federated.test_error_growth import source_of

EPSILON, STEPS = 200.0, 3


@pytest.mark.slow
def test_one_node_promises_and_adds_what_a_run_on_its_own_does(tmp_path: Path) -> None:
    """The same charge, the same noise in every step, and at an epsilon that leaves hardly any the same answer.

    Mutants: noise of sqrt(2) or 1 / sqrt(2) in a node, a charge of L + 1 releases, a sum over nodes divided twice.
    """
    rows = records(3000, 20)
    folder = tmp_path / "node"
    write_site(folder, rows, private_tables(EPSILON), p=4, steps=STEPS)
    grant(folder, 3 * EPSILON)
    with load_config(folder / "node.toml").node() as node:
        problem = make_problem(source_of([node]), Request(target_rank=2, seed=5))
        distributed = solve(problem, tmp_path / "centre", Resources(threads=1))
    privacy = Privacy(
        epsilon=EPSILON,
        delta=1e-6,
        neighboring_relation="record_replace",
        clip_norm=1.0,
        ledger=str(folder / "ledger.sqlite"),
        dataset="here",
        clip_images=False,  # what a node never does: the images of its records are of a block from elsewhere
    )
    asked = Request(target_rank=2, iteration_rank=4, max_steps=STEPS, seed=5, privacy=privacy)
    alone = solve(
        make_problem(open_source(folder / "a.zarr", exact=False), asked), tmp_path / "alone", Resources(threads=1)
    )
    assert distributed.statement is not None and alone.statement is not None
    (one,) = distributed.statement["nodes"]
    assert one["epsilon_spent"] == pytest.approx(alone.statement["epsilon_spent"], rel=1e-9)
    assert one["mechanism"]["releases"] == STEPS
    levels = np.array(alone.statement["noise_stddev"]) / len(rows)  # of the sum there, of the mean at the centre
    np.testing.assert_allclose(distributed.statement["noise_stddev"], levels, rtol=1e-5, err_msg="rounded up to a grid")
    assert max_sin_theta(distributed.basis, alone.basis) < 0.01
    np.testing.assert_allclose(distributed.values, alone.values, rtol=0.01)


def test_the_bound_for_one_node_is_that_of_the_private_power_method() -> None:
    """And for four of them that of twice the noise. Mutant: noise / s, or s times."""
    spectrum, at = np.array([10.0, 8.0, 1.0, 0.5]), {"d": 50, "k": 2, "p": 3}
    assert dist_error(spectrum, [0.01] * 4, 1, **at) == ppm_error(spectrum, [0.01] * 4, **at)
    assert dist_error(spectrum, [0.01] * 4, 4, **at) == ppm_error(spectrum, [0.02] * 4, **at)
    assert dist_error(spectrum, [0.01] * 4, 4, **at).value > dist_error(spectrum, [0.01] * 4, 1, **at).value
