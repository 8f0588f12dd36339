"""The private power method with clipped images: better where noise matters, out of the way where it does not."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.accounting import Budget
from npmdask.core.algorithms import Result, state_fields
from npmdask.core.execution.executor import Threads
from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.storage.source import open_source
from npmdask.privacy.clipped_rows import ClippedGram
from npmdask.privacy.matrix_release import PowerRecipe
from npmdask.privacy.mechanisms import Entropy, PrivateGaussian, PrivateLaplace
from npmdask.privacy.neighbors import make_relation
from npmdask.privacy.private_power import PrivatePower, PrivateState, value_stddevs
from tests.privacy.runs.conftest import STEPS, World, make_world, records
from tests.privacy.runs.test_run import granted, symmetric

BUDGET = Budget(1.0, 1e-6)


@dataclass(frozen=True)
class Lab:
    """A data set in memory, and private runs on it with the real operator and mechanism; no ledger."""

    x: np.ndarray
    key: Entropy
    relation: str = "record_replace"

    def parts(self, releases: int, p: int, clip: bool = True) -> tuple[ClippedGram, PrivateGaussian, PrivatePower]:
        reader: Any = open_source(self.x, "samples").reader
        operator, relation = ClippedGram(reader=reader, clip_norm=1.0), make_relation(self.relation, clip_norm=1.0)
        noise = PrivateGaussian(relation=relation, budget=BUDGET, releases=releases, rounding=operator.rounding(p))
        clip_norm = 1.0 if clip else None
        return (
            operator,
            noise,
            PrivatePower(target_rank=4, iteration_rank=p, releases=releases, noise=noise, clip_norm=clip_norm),
        )

    def run(self, number: int, releases: int, p: int, clip: bool = True) -> tuple[PrivateState, Result]:
        """A run of its own key; the driver's order of things."""
        operator, noise, algorithm = self.parts(releases, p, clip)
        key = Entropy.open(self.key.path, bound_to=f"run {number} {clip}")
        state = algorithm.init(self.x.shape[1], rng=np.random.default_rng(number))
        for step in range(1, releases + 1):
            query = algorithm.query(state)
            asked = replace(operator, image_norm=query.image_norm)
            block = asked.prepare(query.block)
            product, _ = Threads(1).run_pass(asked, block, lambda record: None)
            mechanism = replace(noise, rounding=asked.rounding(p), image_norm=asked.image_norm)
            state, _ = algorithm.update(state, mechanism.release(product, block=block, entropy=key, step=step))
        return state, algorithm.finalize(state)


@pytest.fixture
def key(tmp_path: Path) -> Entropy:
    return Entropy.create(tmp_path / "k" / "key")


def planted(rows: int, d: int = 100, strong: int = 4, skewed: bool = False) -> np.ndarray:
    """Records of norm at most 1 with ``strong`` directions that have half of the variance."""
    rng = np.random.default_rng(7)
    x = rng.exponential(size=(rows, d)) - 1 if skewed else rng.standard_normal((rows, d))
    x *= np.sqrt(np.where(np.arange(d) < strong, 0.5 / strong, 0.5 / (d - strong)))
    return x / np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None]


def captured(x: np.ndarray, basis: np.ndarray) -> float:
    a = x.T @ x
    return float(np.trace(basis.T @ a @ basis) / np.linalg.eigvalsh(a)[-basis.shape[1] :].sum())


@pytest.mark.slow
@pytest.mark.parametrize(("relation", "rows"), [("record_replace", 1200), ("record_zero_out", 800)])
def test_it_captures_more_where_noise_matters(relation: str, rows: int, key: Entropy) -> None:
    """Of 20 runs each: 0.65 against 0.43 and 0.71 against 0.38, standard deviation of a run 0.04 to 0.06, so that the
    means of six differ by 0.05 at 5 standard errors and more. Mutant: images clipped and the noise not lowered."""
    lab = Lab(planted(rows), key, relation)
    means = [np.mean([captured(lab.x, lab.run(i, 3, 10, clip)[1].vectors) for i in range(6)]) for clip in (True, False)]
    assert means[0] > means[1] + 0.05


@pytest.mark.slow
def test_values_are_those_of_the_data_up_to_noise(key: Entropy) -> None:
    """Not of clipped images, although the first release has them; of 40 runs mean 0.14 and standard deviation 0.95 in
    units of the noise. Mutant: the last images clipped, too, which is 40 times the noise."""
    lab = Lab(planted(20_000, skewed=True), key)
    exact = np.linalg.eigvalsh(lab.x.T @ lab.x)[-4:].sum()
    off, clipped = [], []
    for i in range(6):
        state, result = lab.run(i, 3, 10)
        spread = float(np.linalg.norm(value_stddevs(state, 10, result.vectors)))
        off.append((result.values.sum() - exact) / spread)
        operator, _, algorithm = lab.parts(3, 10)
        first = algorithm.init(100, rng=np.random.default_rng(i)).image_norm
        bent = replace(operator, image_norm=first)
        block = bent.prepare(state.blocks[:, -10:])
        product = Threads(1).run_pass(bent, block, lambda record: None)[0] * bent.rounding(10).grid
        values = np.linalg.eigvalsh(block.T @ product)[-4:]
        clipped.append((values.sum() - exact) / spread)
    assert np.abs(off).max() < 6 and np.max(clipped) < -40


def test_one_release_of_all_columns_is_the_noisy_covariance_matrix(key: Entropy) -> None:
    """Analyze Gauss with symmetric noise: the eigenvectors of A + (G + G^T) / 2. Mutant: noise left asymmetric."""
    d = 30
    lab = Lab(planted(2500, d), key)
    state, result = lab.run(0, 1, d)
    noisy = state.products @ state.blocks.T
    exact = lab.x.T @ lab.x
    values, vectors = np.linalg.eigh((noisy + noisy.T) / 2)
    order = np.argsort(-np.abs(values))[:4]
    same = np.abs(np.einsum("ij,ij->j", vectors[:, order], result.vectors))
    np.testing.assert_allclose(same, 1, atol=1e-9)
    np.testing.assert_allclose(result.values, values[order], rtol=1e-9)
    noise = ((noisy + noisy.T) / 2 - exact) / state.stddevs[0]
    upper = noise[np.triu_indices(d, 1)]
    assert abs(np.mean(upper**2) - 0.5) < 5 * 0.5 * (2 / len(upper)) ** 0.5 + 0.01, "half the variance off the diagonal"
    left = np.linalg.svd(noisy)[0][:, :4]
    assert captured(lab.x, result.vectors) > captured(lab.x, left)


@pytest.mark.slow
def test_without_need_only_the_first_images_are_clipped(world: World) -> None:
    solution = world.solve("run", world.problem({"epsilon": 1.5, "clip_norm": 1.5}, max_steps=4))
    assert solution.statement is not None
    norms, noise = solution.statement["image_norms"], solution.statement["noise_stddev"]
    assert norms == [pytest.approx(1.25 * 1.5 * (4 / 12) ** 0.5), None, None, None]
    assert noise[0] < noise[1] == noise[2] == noise[3]


@pytest.mark.slow
def test_images_are_not_clipped_where_it_is_switched_off_or_makes_no_sense(world: World, tmp_path: Path) -> None:
    for privacy in ({"clip_images": False}, {"calibration": "paper"}):
        algorithm: Any = world.problem(privacy).algorithm
        assert algorithm.clip_norm is None and algorithm.query(start(algorithm, 12)).image_norm is None
    data, _ = symmetric(tmp_path, "packed")
    privacy = granted(tmp_path, data, "symmetric_entry", 500.0)
    matrix: Any = make_problem(
        open_source(data, exact=False), Request(target_rank=2, max_steps=3, privacy=privacy)
    ).algorithm
    assert matrix.clip_norm is None and matrix.query(start(matrix, 40)).image_norm is None
    for p, clipped in ((4, True), (8, False)):  # 1.25 sqrt(8 / 12) > 1
        algorithm = world.problem(iteration_rank=p).algorithm
        assert (algorithm.query(start(algorithm, 12)).image_norm is not None) == clipped
    one: Any = world.problem(max_steps=1).algorithm
    assert one.query(start(one, 12)).image_norm is None, "values come from the last release"


def start(algorithm: PrivatePower, d: int) -> PrivateState:
    return algorithm.init(d, rng=np.random.default_rng(0))


@pytest.mark.slow
def test_the_norm_is_a_function_of_releases_and_of_public_numbers(key: Entropy, tmp_path: Path) -> None:
    """The same releases give the same norms whatever the data are; their number enters nowhere."""
    worlds = [make_world(tmp_path / str(n), records(n), neighboring_relation="record_add_remove") for n in (300, 301)]
    one, other = (w.problem().algorithm for w in worlds)
    assert one == other and worlds[0].problem().mechanism == worlds[1].problem().mechanism
    blocks = [start(algorithm, 12).basis for algorithm in (one, other)]
    states = [
        a.update(start(a, 12), np.diag(np.arange(12.0)) @ x)[0] for a, x in zip((one, other), blocks, strict=True)
    ]
    assert states[0].image_norm == states[1].image_norm > 0


@pytest.mark.parametrize("size", [0.0, 1e-200, 1.0, 1e4, 1e12, -1e4])
def test_whatever_is_released_the_next_norm_makes_sense(size: float, key: Entropy) -> None:
    """Noise alone, nothing, or a negative trace: between that of a random block and that of a record."""
    _, _, algorithm = Lab(planted(50), key).parts(4, 10)
    state = start(algorithm, 100)
    least = (10 / 100) ** 0.5
    for step in range(4):
        state, _ = algorithm.update(state, size * np.random.default_rng(step).standard_normal((100, 10)))
        assert state.image_norm == 0 or least <= state.image_norm < 1
    assert state.image_norm == 0


def test_a_state_has_one_shape_and_comes_back_from_a_checkpoint(key: Entropy) -> None:
    lab = Lab(planted(300), key)
    _, _, algorithm = lab.parts(4, 10)
    state = start(algorithm, 100)
    shapes = {name: array.shape for name, array in state_fields(state)[0].items()}
    for step in range(4):
        arrays, scalars = state_fields(state)
        again = algorithm.load(arrays, json.loads(json.dumps(scalars)))
        assert again.image_norm == state.image_norm and {n: a.shape for n, a in arrays.items()} == shapes
        released = 100 * random_orthonormal(100, 10, np.random.default_rng(step))
        state, other = (algorithm.update(s, released)[0] for s in (state, again))
        assert all(
            (a == b).all()
            for a, b in zip(state_fields(state)[0].values(), state_fields(other)[0].values(), strict=True)
        )
        assert state_fields(state)[1] == state_fields(other)[1]


# Through the driver: the noise is that of the images that were multiplied.


def require_noise_of_what_was_multiplied(world: World, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    multiplied: list[float | None] = []
    noised: list[tuple[float | None, float]] = []
    finish, release = ClippedGram.finish, PrivateGaussian.release

    def seen(self: ClippedGram, *args: Any) -> Any:
        multiplied.append(self.image_norm)
        return finish(self, *args)

    def noise(self: PrivateGaussian, product: Any, *, block: Any, entropy: Any, step: int) -> Any:
        event = json.loads(str(self._purpose(product.shape, block, step, 1)[1]))
        noised.append((event.get("image_norm"), self.noise_stddev(block)))
        return release(self, product, block=block, entropy=entropy, step=step)

    with monkeypatch.context() as patch:
        patch.setattr(ClippedGram, "finish", seen)
        patch.setattr(PrivateGaussian, "release", noise)
        solution = world.solve(store)
    assert solution.statement is not None
    assert len(multiplied) == STEPS and multiplied[0] and multiplied[-1] is None
    assert [image for image, _ in noised] == multiplied == solution.statement["image_norms"]
    mechanism = world.problem().mechanism
    for (image, stddev), said in zip(noised, solution.statement["noise_stddev"], strict=True):
        least = mechanism.multiplier * min(2.25 * 2**0.5, image_bound(image))
        assert said == stddev and least <= stddev <= least * 1.001


def image_bound(image: float | None) -> float:
    """Replaced records of norm 1.5."""
    if image is None:
        return float("inf")
    near = image**2 <= 1.5**2 / 3
    return float(2 * image * (1.5**2 - image**2) ** 0.5 if near else (1.5**2 + image**2) / 2**0.5)


@pytest.mark.slow
def test_noise_and_data_have_the_images_of_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: the noise of the step before; the noise of the first step for all."""
    world = make_world(tmp_path / "w", records(60))
    require_noise_of_what_was_multiplied(world, "right", monkeypatch)
    norms: list[float | None] = [None]

    def late(self: PowerRecipe, operator: Any, p: int, query: Any) -> Any:
        norms.append(operator.image_norm)
        return replace(self.mechanism, rounding=operator.rounding(p), image_norm=norms[-2])

    monkeypatch.setattr(PowerRecipe, "mechanism_of", late)
    with pytest.raises(AssertionError):
        require_noise_of_what_was_multiplied(world, "wrong", monkeypatch)


def test_other_images_get_other_noise(key: Entropy) -> None:
    """At one X and one step, the keystream differs if the images do. Mutant: image_norm left out of the event."""
    operator, noise, _ = Lab(planted(50, 20), key).parts(3, 4)
    block = operator.prepare(random_orthonormal(20, 4, np.random.default_rng(0)))
    zero = np.zeros((20, 4), np.int64)
    made = []
    for image_norm in (None, 2.0, 1.5):  # longer than any image: the same scale
        mechanism = replace(noise, image_norm=image_norm)
        made.append((mechanism.noise_stddev(block), mechanism.release(zero, block=block, entropy=key, step=1)))
    assert made[0][0] == made[1][0] == made[2][0]
    assert (made[0][1] != made[1][1]).mean() > 0.99 and (made[1][1] != made[2][1]).mean() > 0.99


def test_pure_epsilon_gets_less_noise_too(key: Entropy) -> None:
    operator, _, _ = Lab(planted(50, 20), key).parts(3, 4)
    relation = make_relation("record_zero_out", clip_norm=1.0)
    plain = PrivateLaplace(relation=relation, budget=Budget(1.0), releases=3, rounding=operator.rounding(4))
    block = operator.prepare(random_orthonormal(20, 4, np.random.default_rng(0)))
    clipped = replace(plain, image_norm=0.25)
    assert clipped.noise_stddev(block) == pytest.approx(0.25 * plain.noise_stddev(block), rel=1e-4)
    assert clipped.charge() == plain.charge()
