"""What is promised of every operator: operators of features go on from known parts of a pass, with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from npmdask.core.execution.executor import Threads
from npmdask.core.operators import Operator, View
from npmdask.core.storage.source import open_source
from npmdask.dilation.operator import Dilation, SparseDilation
from npmdask.latent.likelihood_sums import MixtureExpectations, SourceContrasts
from npmdask.latent.sample_moments import MixtureSpread, SampleFourth
from npmdask.symmetric.operator import Symmetric, Triangle
from npmdask.symmetric.reader import TriangleReader
from npmdask.topics.word_moments import TripleBlocks, WhitenedTriples, WordTotals, WordTriples
from tests.conftest import write_zarr
from tests.core.execution.test_reduction import goes_on_from_known_parts, many_runs, needs_no_graph
from tests.core.operators.test_operators import ignore, write_csr

NAMES = ["spread", "fourth", "dilation", "sparse dilation", "words"]
NAMES += ["expectations", "contrasts", "triples", "white", "blocks", "symmetric", "triangle"]


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Operator]:
    folder = tmp_path_factory.mktemp("operators")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((700, 30))
    a = rng.standard_normal((90, 90))
    matrix = sp.random(900, 40, density=0.3, format="csr", rng=rng)
    dense: Any = open_source(write_zarr(folder / "x", x, (11, 30))).reader
    csr: Any = open_source(write_csr(folder / "s", matrix, 101)).reader
    documents = sp.csr_matrix(rng.poisson(0.3, (900, 40)).astype(float))
    counts: Any = open_source(write_csr(folder / "w", documents, 97)).reader
    totals = WordTotals(reader=counts)
    words = totals.sums_of(Threads(1).run_pass(totals, np.zeros((40, 1)), ignore)[0])
    return {
        "spread": MixtureSpread(reader=dense, view=View(shift=x.mean(0))),
        "fourth": SampleFourth(reader=dense, view=View(shift=x.mean(0))),
        "expectations": MixtureExpectations(
            reader=dense, view=View(shift=x.mean(0)), weights=np.full((1, 3), 1 / 3), variances=np.ones((1, 3))
        ),
        "contrasts": SourceContrasts(
            reader=dense, view=View(shift=x.mean(0)), whitening=rng.standard_normal((30, 5)) / 5
        ),
        "dilation": Dilation(reader=dense),
        "sparse dilation": SparseDilation(reader=csr),
        "words": totals,
        "triples": WordTriples(reader=counts, sums=words, alpha0=0.7),
        "white": WhitenedTriples(reader=counts, sums=words, whitening=rng.standard_normal((40, 4))),
        "blocks": TripleBlocks(reader=counts, sums=words, side=7, wanted=range(2, 9), alpha0=0.7),
        "symmetric": Symmetric(reader=open_source(write_zarr(folder / "a", a + a.T, (7, 90))).reader),
        "triangle": Triangle(
            reader=TriangleReader(array=zarr.open(write_zarr(folder / "t", a + a.T, (7, 7)), mode="r"))
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_from_any_known_parts_the_same_bits(operators: dict[str, Operator], monkeypatch: Any, name: str) -> None:
    many_runs(monkeypatch)
    goes_on_from_known_parts(operators[name])


@pytest.mark.slow
def test_a_pass_of_one_run_is_the_same_with_and_without_a_graph(operators: dict[str, Operator]) -> None:
    for operator in operators.values():
        needs_no_graph(operator)
