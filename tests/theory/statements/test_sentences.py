"""Single sentences: what is said where nothing can be, and that private ones follow from releases alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.core.certificates.wording import at_most_percent, degrees, spread
from npmdask.federated.statements import of_nodes
from npmdask.latent.statements import of_independent, of_mixture
from npmdask.privacy.mechanisms import PrivateGaussian
from npmdask.privacy.statements import of_release
from npmdask.streaming import stream_pca
from npmdask.streaming.statements import of_third_moment
from npmdask.tensors.statements import of_tensor
from npmdask.topics.statements import of_topics
from tests.privacy.runs.conftest import make_world, records

PLANE: dict[str, Any] = {"values": np.array([2.0, 1.0]), "value_stddevs": np.array([0.01, 0.02])}


@pytest.mark.slow
def test_the_same_releases_give_the_same_sentence_whatever_the_data_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: anything of the source in the sentence (all else that is shown: tests/privacy/runs/test_taint.py)."""

    def release(self: PrivateGaussian, product: np.ndarray, **public: Any) -> np.ndarray:
        return np.asarray(1e5 * 0.3 ** np.arange(12)[:, None] * public["block"])  # as of a matrix that is no data's

    monkeypatch.setattr(PrivateGaussian, "release", release)
    rng, said = np.random.default_rng(0), []
    for name, rows in (("one", records(1500)), ("two", 50 * rng.standard_normal((2500, 12)))):
        world = make_world(tmp_path / name, rows, neighboring_relation="record_add_remove")
        said.append(world.solve("run").assurance)
    assert said[0] == said[1] and "is likely less than" in said[0]


def test_noise_that_drowns_a_plane_is_said_to() -> None:
    drowned = of_release(PLANE, {"predicted_error": 0.95, "iteration_rank": 5})
    assert "tell nothing" in drowned.sentence and "degrees" not in drowned.sentence
    assert drowned.numbers["value_spread"] is None
    assert "11 degrees" not in drowned.sentence
    clear = of_release(PLANE, {"predicted_error": math.sin(math.radians(10)), "iteration_rank": 5})
    assert "less than 10 degrees" in clear.sentence and clear.numbers["value_spread"] == pytest.approx(0.1003, rel=1e-3)


def test_without_a_column_more_nothing_is_claimed_of_a_plane() -> None:
    said = of_release(PLANE, {"predicted_error": 0.01, "iteration_rank": 2})
    assert "cannot be estimated" in said.sentence and "iteration_rank" in said.sentence and said.numbers["sine"] is None


def test_few_means_of_records_tell_nothing_however_still_they_are() -> None:
    arrays = {"values": np.array([1.0]), "residual_norms": np.array([0.0])}
    assert "tell nothing" in of_release(arrays, {"noise_stddev": [0.1, 0.1]}).sentence
    assert "is likely less than" in of_release(arrays, {"noise_stddev": [0.1] * 3}).sentence
    lost = {"values": np.array([-1.0]), "residual_norms": np.array([0.1])}
    assert "tell nothing" in of_release(lost, {"noise_stddev": [0.1] * 3}).sentence


@pytest.mark.parametrize("status", (["open", "surplus"], ["surplus", "surplus"]))
def test_components_that_are_not_found_have_no_error(status: list[str]) -> None:
    facts = {"status": status, "relative_residual": 0.4, "noise_score": 0.1}
    assert "none of the 2" in of_tensor([1.0, 0.5], [0.1, 0.1], facts).sentence
    arrays = {"values": np.array([1.0, 0.5]), "value_stddevs": np.array([0.1, 0.1])}
    assert "tell nothing" in of_release(arrays, {"status": status, "errors": [1.0, 1.0]}).sentence
    streamed = {"status": status, "standard_errors": [1.0, 1.0]}
    assert "Nothing is known" in of_third_moment([1.0, 0.5], streamed, 5).sentence


def test_what_is_found_beside_others_is_told_apart() -> None:
    status = ["found", "open", "surplus"]
    facts = {"status": status, "relative_residual": 0.4, "noise_score": 0.1}
    said = of_tensor([1.0, 0.5, 0.1], [0.0, 0.1, 0.0], facts).sentence
    assert "the 1 found" in said and "1 open" in said and "1 surplus" in said
    assert "(up to 0.1); ignore it if what is left is noise, which it need not be" in said
    rounding = of_tensor([1.0, 0.0], [0.0, 0.0], {"status": ["found", "surplus"], "relative_residual": 0.0}).sentence
    assert rounding.endswith("1 surplus (spurious): no larger than rounding; ignore it.")
    noisy = {"values": np.array([1.0, 0.5, 0.1]), "value_stddevs": np.full(3, 0.01)}
    said = of_release(noisy, {"status": status, "errors": [0.1, 0.7, 1.0]}).sentence
    assert "1 of 3 components" in said and "8.7 degrees" in said and "1 open" in said


def test_noise_as_large_as_a_component_leaves_its_direction_open() -> None:
    facts = {"status": ["found"], "relative_residual": 0.9, "noise_score": 1.0}
    assert "may be anything" in of_tensor([1.0], [0.0], facts).sentence


def test_topics_that_predict_nothing_are_worth_nothing() -> None:
    topics, weights = np.full((10, 2), 0.1), np.array([0.6, 0.4])
    facts = {"alpha0": 1.0, "word_count": 10_000, "weights_sum": 1.0, "asked": 3}
    assert "Ignore these topics" in of_topics(topics, weights, facts, (50.0, 50.0)).sentence
    said = of_topics(topics, weights, facts, (40.0, 50.0))
    assert "known about 1 more" in said.sentence and said.numbers["misplaced"] == pytest.approx(10**0.5 / 4000**0.5)
    assert "does not quite hold" in of_topics(topics, weights, facts | {"weights_sum": 1.5}).sentence
    assert "hardly reliable" in of_topics(topics, weights, facts | {"word_count": 40}).sentence


def test_sources_like_a_bell_curve_are_not_told_apart() -> None:
    mixing = np.eye(5)[:, :2]
    assert "not reliable" in of_independent(np.array([0.01, -0.02]), mixing, 1000, asked=2).sentence
    some = of_independent(np.array([3.0, 0.01]), mixing, 10_000, asked=2)
    assert "1 of the 2 components is" in some.sentence and some.numbers["told"] == [True, False]


def test_weights_that_do_not_sum_to_one_are_told() -> None:
    assert "does not quite hold" in of_mixture(np.array([0.9, 0.4]), 1.0, (1000, 4), asked=2).sentence
    said = of_mixture(np.array([0.6, 0.4]), 1.0, (1000, 4), asked=3)
    assert "not quite" not in said.sentence and "known about 1 more" in said.sentence
    assert said.numbers["lengths"] == pytest.approx([2 * (4 / 600) ** 0.5, 2 * (4 / 400) ** 0.5])


@pytest.mark.parametrize("weights", [[0.02, 0.013], [11.06]])
def test_rows_that_are_no_mixture_are_given_no_error(weights: list[float]) -> None:
    said = of_mixture(np.array(weights), 1.0, (1000, 4), asked=len(weights)).sentence
    assert said.startswith("The result is not reliable") and "%" not in said


def test_one_component_is_not_spoken_of_as_many() -> None:
    assert "none of" not in of_independent(np.array([0.01]), np.eye(5)[:, :1], 1000, asked=1).sentence
    facts = {"status": ["surplus"], "relative_residual": 0.0}
    said = of_tensor([0.0], [0.0], facts).sentence
    assert "none of" not in said and "%" not in said and "nothing but zeros" in said


def streamed(folder: Path, rows: np.ndarray, held_out: np.ndarray | None = None) -> str:
    held = {} if held_out is None else {"held_out": held_out}
    return str(stream_pca(rows, 2, algorithm="spm", store=folder / f"{len(list(folder.iterdir()))}", **held).assurance)


def test_rows_held_out_that_tell_nothing_are_not_called_missing(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((500, 6))
    for held_out in (rows[:1], np.zeros((20, 6))):
        said = streamed(tmp_path, rows, held_out)
        assert (
            "fewer than two rows were held out, or they are all alike or zero" in said
            and "with more rows held out" in said
        )
    assert "no rows were held out" in streamed(tmp_path, rows)


def test_rows_without_variance_have_no_directions(tmp_path: Path) -> None:
    """Mutant: how well even a perfect method would know their variance."""
    assert streamed(tmp_path, np.zeros((500, 6))).startswith(
        "The result is not reliable: the 500 rows so far have no variance"
    )
    constant = streamed(tmp_path, np.full((500, 6), 3.0))
    assert "the last 1 of 2 found capture no variance" in constant


def test_nodes_whose_next_value_is_not_seen_are_not_given_an_angle() -> None:
    arrays = {"values": np.array([2.0, 1.0]), "residual_norms": np.array([1e-3, 2e-3])}
    assert of_nodes(arrays, {"nodes": []}, [2.0, 1.0]).numbers == {"value": 2e-3, "sine": None}
    seen = of_nodes(arrays, {"nodes": []}, [2.0, 1.0, 0.5])
    assert seen.numbers["sine"] == pytest.approx(1.5 * 5**0.5 * 1e-3 / 0.5)
    of_roots = of_nodes(arrays, {"nodes": []}, [4.0, 1.0, 0.25], singular=True)
    assert of_roots.numbers["sine"] == pytest.approx(1.5 * 8**0.5 * 1e-3 / 0.75)


def test_what_is_stated_is_never_less_than_what_was_found() -> None:
    """Numbers are rounded up. Mutant: to the nearest."""
    for value in np.random.default_rng(0).uniform(1e-6, 1, 200).tolist():
        assert float(spread(value)) >= value * (1 - 1e-9) and float(spread(value)) <= 1.1 * value + 1e-9
        assert float(at_most_percent(value).split()[0]) >= 100 * value * (1 - 1e-9)
        assert math.sin(math.radians(min(float(degrees(value).split()[0]), 90))) >= value * (1 - 1e-9)
    assert degrees(0.0) == "0.01 degrees" and degrees(1.0) == "90 degrees" and spread(0.0) == "0"
