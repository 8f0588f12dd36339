"""What a private page says rose above the noise, and of the promise: against noise alone, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npmdask.core.certificates.recursions import gaussian_norm
from npmdask.core.storage.labels import Labels
from npmdask.privacy.mechanisms.gaussian_laplace import RELEASE_KIND
from npmdask.private_reports.page import above_noise, heights, in_plain_words, noise_of_entries, released_loadings
from npmdask.report import Bars, Plot, Text
from npmdask.theory.noisy_symmetric import noise_norm

D, STDDEV = 40, 0.5


def of_matrix(signal: list[float], k: int, *, definite: bool = True, seed: int = 0) -> tuple[dict[str, Any], ...]:
    """What a covariance release leaves: a matrix of these eigenvalues and symmetric noise, and its statement."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((D, D)) * STDDEV
    matrix = np.diag([*signal, *[0.0] * (D - len(signal))]) + (noise + noise.T) / 2**0.5
    m, vectors = np.linalg.eigh(matrix)
    chosen = np.argsort(-m if definite else -np.abs(m))[:k]
    arrays = {"values": m[chosen], "basis": vectors[:, chosen], "covariance": matrix}
    return arrays, {"columns": D, "iteration_rank": D, "covariance": {"stddev": STDDEV, "definite": definite}}


def said(found: Any) -> list[str]:
    return [block.text for block in above_noise(found).blocks if isinstance(block, Text)]


@pytest.mark.parametrize("seed", range(20))
def test_of_noise_alone_nothing_rises(seed: int) -> None:
    """Mutants: the norm of the noise halved; the noise of one entry as the line."""
    arrays, statement = of_matrix([], 3, seed=seed)
    found = heights(arrays, statement, [])
    assert found is not None and found.above == 0 and found.floor >= noise_norm(STDDEV, D)
    assert said(found)[0].endswith("0 of 3 components rise above the noise. Lost in the noise: components 1, 2, 3.")
    assert not released_loadings(arrays["basis"], found, Labels())


def test_what_is_strong_rises_and_the_rest_is_named() -> None:
    """Mutant: loadings of a component that drowned are shown as if they said something."""
    arrays, statement = of_matrix([40.0, 25.0], 3)
    found = heights(arrays, statement, [])
    assert found is not None and found.above == 2 and len(found.sizes) == D
    np.testing.assert_allclose(found.sizes[:3], arrays["values"])
    first = above_noise(found).blocks[0]
    assert isinstance(first, Text) and first.style == "warning"
    assert first.text == "2 of 3 components rise above the noise. Lost in the noise: component 3."
    (plot,) = (block for block in above_noise(found).blocks if isinstance(block, Plot))
    assert plot.rules[0].y == found.floor and not plot.log, "some eigenvalues are negative"
    (loadings,) = released_loadings(arrays["basis"], found, Labels())
    cards = [block for block in loadings.blocks if isinstance(block, Bars)]
    assert [card.bars[0][0] for card in cards] == ["column 0", "column 1"]


def test_negative_eigenvalues_of_a_symmetric_matrix_rise_too() -> None:
    arrays, statement = of_matrix([40.0, -30.0], 2, definite=False)
    found = heights(arrays, statement, [])
    assert found is not None and found.above == 2 and "Lost" not in said(found)[0]
    assert found.sizes[1] == pytest.approx(-arrays["values"][1])


@pytest.mark.parametrize(
    ("release", "said"),
    [
        (RELEASE_KIND, "2 on the diagonal, 1.414 off it"),
        ("product", "2 on every entry of a product"),
        ("contraction", "at most 2 on every entry of a contraction"),
        ("scores", "at most 2 on every score"),
        ("range-tight", "2 records on a count"),
        ("mean-clipped", "2 on every entry of a mean"),
    ],
)
def test_which_entries_have_the_noise(release: str, said: str) -> None:
    assert noise_of_entries(release, 2.0) == said


def product(values: list[float], stddev: float, step: int, release: str = "product") -> dict[str, Any]:
    return {"release": release, "ritz_values": values, "noise_stddev": stddev, "step": step}


def test_of_products_the_last_one_counts_and_its_longer_side() -> None:
    """The noise of a block is as large as its longer side makes it. Mutants: the first release; columns for rows."""
    statement = {"columns": 9, "iteration_rank": 2}
    history = [product([9e9, 9e9], 1e9, 1), product([700.0, 50.0], 10.0, 2)]
    arrays = {"values": np.array([7.0, 0.5])}
    found = heights(arrays, statement, history)
    assert found is not None and found.above == 1 and found.floor == gaussian_norm(10.0, 9, 2)
    tall = heights(arrays | {"left_basis": np.zeros((10_000, 2))}, statement, history)
    assert tall is not None and tall.above == 0 and tall.floor == gaussian_norm(10.0, 10_000, 2)


def test_of_records_the_largest_noise_counts_and_ranges_do_not() -> None:
    """Mutant: the noise on the counts of a histogram as that of a value."""
    history = [
        product([0.2], 140.0, 1, "range-tight"),
        product([0.2], 0.01, 2, "mean-clipped"),
        product([0.2], 0.001, 3, "mean-clipped"),
    ]
    statement, arrays = {"columns": 4, "iteration_rank": 1}, {"values": np.array([0.2])}
    found = heights(arrays, statement, history)
    assert found is not None and found.floor == gaussian_norm(0.01, 4, 1) and found.above == 1
    assert heights(arrays, statement, history[:1]) is None


@pytest.mark.parametrize(
    ("epsilon", "delta", "cases"), [(0.5, 0.0, "62.3"), (1.0, 0.0, "73.2"), (0.0, 0.1, "55"), (12.0, 0.0, "100")]
)
def test_the_promise_is_rounded_up(epsilon: float, delta: float, cases: str) -> None:
    """(e^epsilon + delta) / (e^epsilon + 1). Mutants: rounded down; delta left out."""
    statement = {"epsilon": epsilon, "delta": delta, "protects": "one record"}
    texts = [block.text for block in in_plain_words(statement, "all of it").blocks if isinstance(block, Text)]
    assert f"guess right in at most {cases} of 100 cases" in texts[1]
    assert texts[0] == "Protected is one record." and texts[2] == "Budget of these data: all of it."
