"""Planted problems of every kind: what is said of the error, and what it is, as pairs (true, stated)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from npmdask.accounting import Budget
from npmdask.core.numerics.subspaces import max_sin_theta, orth, rayleigh_ritz
from npmdask.federated.statements import of_nodes
from npmdask.latent.fit import fit_independent_components, fit_mixture
from npmdask.latent.statements import of_independent, of_mixture
from npmdask.privacy.matrix_release import likely_sine_of_release, released_arrays
from npmdask.privacy.private_power import PrivateAlternating, PrivatePower
from npmdask.privacy.private_tensor_power import PrivateTensorPower
from npmdask.privacy.statements import of_release
from npmdask.streaming.metrics import HeldOut, Measures, measure_model
from npmdask.streaming.problem import StreamRequest, make_model
from npmdask.streaming.statements import of_directions, of_third_moment
from npmdask.tensors.power import TensorPower, restarts_for
from npmdask.tensors.statements import of_tensor
from npmdask.topics.model import TopicModel
from npmdask.topics.run import CorpusFilter, run_topics
from npmdask.topics.statements import of_topics
from tests.privacy.runs.conftest import make_world
from tests.topics.made import documents_from, words

Pairs = list[tuple[float, float]]
STREAMS: dict[str, dict[str, Any]] = {
    "spm": {},
    "oja": {},
    "rmsg": {"ridge": 0.02},
    "mb-msg": {"gap": 0.02},
    "frequent-directions": {},
}


def basis(rng: np.random.Generator, d: int, k: int) -> np.ndarray:
    """Orthonormal, at random (d x k)."""
    return np.asarray(np.linalg.qr(rng.standard_normal((d, k)))[0])


def off(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The sine of each found unit vector (d x m) to the nearest true one."""
    return np.sqrt(np.maximum(1 - np.abs(true.T @ found).max(axis=0) ** 2, 0.0))


# Streams


def streamed(seed: int, half_life: float | None = None) -> tuple[Any, dict[str, float]]:
    """The history of a model of Gaussian or heavier rows, measured on held-out rows; the true share and sine."""
    rng = np.random.default_rng(seed)
    d, k, n = int(rng.choice([10, 30, 60])), int(rng.choice([1, 2, 4])), int(rng.choice([1000, 4000]))
    held, heavy = int(rng.choice([50, 200, 1000])), int(rng.choice([0, 8]))
    values, axes = np.r_[rng.uniform(2, 6, k), np.linspace(1, 0.1, d - k)], basis(rng, d, d)

    def rows(m: int) -> np.ndarray:
        drawn = rng.standard_normal((m, d)) if not heavy else rng.standard_t(heavy, (m, d)) * 0.75**0.5
        return np.asarray(drawn * np.sqrt(values) @ axes.T)

    name = str(rng.choice(list(STREAMS)))
    asked = StreamRequest(target_rank=k, algorithm=name, options=STREAMS[name], seed=seed)
    model, measures, before = make_model(asked, d, rows=n), Measures.begin(n // 2), None
    state, held_out = model.init(), HeldOut(rows(held), k, d, center=False)
    while state.rows < n:
        state, info = model.absorb(state, rows(min(model.wanted(state, 256), n - state.rows)))
        if state.rows >= measures.due or state.rows == n:
            found, before = measure_model(model, state, info, before=measures.basis, truth=None, held_out=held_out)
            measures = measures.add(found, before)
    vectors = model.answer(state).vectors
    share = float(np.einsum("dk,d,dk->", axes.T @ vectors, values, axes.T @ vectors) / values.sum())
    return measures.history, {"share": share, "sine": max_sin_theta(vectors, axes[:, :k])}


def held_out(seeds: Iterable[int]) -> tuple[Pairs, Pairs]:
    """How far the share is from the middle of what is stated for other rows, and half of the width of that; the sine to
    the true directions, and the limit that is stated."""
    shares, angles = [], []
    for seed in seeds:
        history, true = streamed(seed)
        said = of_directions(history).numbers
        middle = (said["low"] + said["high"]) / 2
        shares.append((abs(true["share"] - middle), said["high"] - middle))
        angles.append((true["sine"], said["sine_limit"]))
    return shares, angles


def third_moments(seeds: Iterable[int]) -> tuple[Pairs, Pairs]:
    """Directions and relative weights of rows that are sums of skewed sources along orthonormal directions."""
    angles, weights = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        d, k, n = int(rng.choice([6, 12, 20])), int(rng.choice([1, 2])), int(rng.choice([6000, 12000]))
        true, sizes = basis(rng, d, k), rng.uniform(0.8, 1.3, k)
        rows = ((rng.exponential(size=(n, k)) - 1) * sizes) @ true.T
        rows += float(rng.choice([0.1, 0.3, 0.6])) * rng.standard_normal((n, d))
        options = {"block_rows": n // (14 * k), "restarts": 8, "iterations": 6}
        asked = StreamRequest(target_rank=k, algorithm="online-tensor-power", options=options, seed=seed)
        model = make_model(asked, d, rows=n)
        answer = model.answer(model.absorb(model.init(), rows)[0])
        said = of_third_moment(answer.values.tolist(), answer.facts, d).numbers
        which = [i for i, word in enumerate(answer.facts["status"]) if word == "found"]
        if which:
            nearest = np.abs(true.T @ answer.vectors[:, which]).argmax(axis=0)
            angles.append((float(off(answer.vectors[:, which], true).max()), said["sine"]))
            wrong = np.abs(answer.values[which] - 2 * sizes[nearest] ** 3) / answer.values[which]
            weights.append((float(wrong.max()), said["weight"]))
    return angles, weights


# Private runs: the noise of an entry is given, and nothing else of a promise matters here


@dataclass(frozen=True)
class NoiseLevel:
    """Noise of one size on every entry, as a mechanism tells the algorithms of it."""

    stddev: float

    def noise_stddev(self, block: np.ndarray) -> float:
        return self.stddev

    def stddevs(self, block: np.ndarray, *, scores: bool) -> np.ndarray:
        return np.full(block.shape[1], self.stddev)

    def to_paper(self, block: np.ndarray, *, scores: bool) -> float:
        return 1.0


def private_planes(seeds: Iterable[int]) -> tuple[Pairs, Pairs]:
    """Sines of planes of the private power method, and values, at noise from little to more than the signal."""
    planes, values = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        d, k = int(rng.choice([12, 30, 80])), int(rng.choice([1, 2, 3]))
        p, steps = k + int(rng.choice([1, 3, 5])), int(rng.choice([2, 4, 6]))
        true = np.r_[np.linspace(1, 0.7, k), float(rng.choice([0.1, 0.5])) * rng.uniform(0.2, 1, d - k)]
        axes, loud = basis(rng, d, d), float(rng.choice([0.003, 0.01, 0.03, 0.1]) / math.sqrt(d))
        method = PrivatePower(target_rank=k, iteration_rank=p, releases=steps, noise=NoiseLevel(loud))
        state = method.init(d, rng=rng)
        for _ in range(steps):
            product = (axes * true) @ (axes.T @ method.query(state).block)
            state, _ = method.update(state, product + loud * rng.standard_normal((d, p)))
        arrays = released_arrays(state, method.finalize(state), p, scale=1.0, root=False)
        said = of_release(
            arrays, {"predicted_error": likely_sine_of_release(state, p, k, None), "iteration_rank": p}
        ).numbers
        planes.append((max_sin_theta(arrays["basis"], axes[:, :k]), said["sine"]))
        values += [(float(np.abs(arrays["values"] - true[:k]).max()), said["value_spread"])] * (
            said["value_spread"] is not None
        )
    return planes, values


def private_ties(seeds: Iterable[int]) -> Pairs:
    """Planes whose next value is a tenth smaller, or two hundredths: noise turns vectors among those iterated."""
    pairs = []
    for seed in seeds:
        rng, (third, loud) = np.random.default_rng(seed), ((0.81, 0.018), (0.88, 0.003))[seed % 2]
        true = np.r_[1.0, 0.9, third, np.full(17, 0.06)]
        method = PrivatePower(target_rank=2, iteration_rank=8, releases=4, noise=NoiseLevel(loud))
        state = method.init(20, rng=rng)
        for _ in range(4):
            product = true[:, None] * method.query(state).block
            state, _ = method.update(state, product + loud * rng.standard_normal((20, 8)))
        pairs.append(
            (
                max_sin_theta(method.finalize(state).vectors, np.eye(20)[:, :2]),
                likely_sine_of_release(state, 8, 2, None),
            )
        )
    return pairs


def private_alternating(seeds: Iterable[int]) -> Pairs:
    """The same of products with a matrix and its transpose in turn."""
    pairs = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        m, d, k = int(rng.choice([60, 200])), int(rng.choice([20, 60])), int(rng.choice([1, 2]))
        p, steps, loud = k + int(rng.choice([2, 4])), int(rng.choice([4, 8])), float(rng.choice([0.001, 0.005, 0.02]))
        left, right = basis(rng, m, 10), basis(rng, d, 10)
        a = (left * np.r_[1, 0.8, rng.uniform(0.05, 0.4, 8)]) @ right.T
        method = PrivateAlternating(target_rank=k, iteration_rank=p, releases=steps, rows=m)
        state = method.init(d, rng=rng)
        for step in range(steps):
            asked = method.query(state).block
            product = a.T @ asked if step % 2 else a @ asked
            state, _ = method.update(state, product + loud * rng.standard_normal(product.shape))
        result = method.finalize(state)
        arrays = {"values": result.values, "factor_left": state.left, "factor_right": state.product}
        statement = {"predicted_error": None, "noise_stddev": [loud] * steps, "iteration_rank": p}
        pairs.append((max_sin_theta(result.vectors, right[:, :k]), of_release(arrays, statement).numbers["sine"]))
    return pairs


ORACLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("k-dp-pca", {"steps": 3}),
    ("k-dp-pca", {"steps": 6}),
    ("k-dp-pca", {"steps": 2, "reuse": False}),
    ("k-dp-power", {"steps": 4}),
    ("k-dp-ojas", {"batch": 500, "rates": [0.2, 0.2]}),
)


def private_records(seeds: Iterable[int], folder: Path) -> Pairs:
    """Planes of private oracles of records, through all of a run; the next direction has less than half the value."""
    pairs = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        n, k = int(rng.choice([2000, 6000])), int(rng.choice([1, 2]))
        rows = rng.standard_normal((n, 12)) * np.r_[[3.0, 2.4][:k], rng.uniform(0.1, 1.2, 12 - k)]
        rows /= np.linalg.norm(rows, axis=1).mean()
        clipped = rows * np.minimum(1, 1.5 / np.linalg.norm(rows, axis=1))[:, None]
        name, options = ORACLES[int(rng.integers(len(ORACLES)))]
        world = make_world(
            folder / f"{seed}", rows, budget=Budget(50.0, 1e-6), epsilon=float(rng.choice([1.0, 3.0, 10.0]))
        )
        asked = {"target_rank": k, "algorithm": name, "options": options}
        solution = replace(world, asked=asked).solve("run")
        arrays = {"values": solution.values, "residual_norms": solution.residual_norms}
        assert solution.statement is not None
        true = np.linalg.eigh(clipped.T @ clipped)[1][:, ::-1][:, :k]
        pairs.append((max_sin_theta(solution.basis, true), of_release(arrays, solution.statement).numbers["sine"]))
    return pairs


def private_tensors(seeds: Iterable[int]) -> tuple[Pairs, Pairs]:
    """Components that are "found", and their weights."""
    angles, weights = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        d, k, loud = int(rng.choice([12, 25])), int(rng.choice([1, 2, 3])), float(rng.choice([0.001, 0.01, 0.03]))
        true, sizes = basis(rng, d, k), np.linspace(1, 0.6, k)
        iterations = int(rng.choice([3, 6]))
        method = PrivateTensorPower(
            target_rank=k, restarts=4, iterations=iterations, noise=NoiseLevel(loud), seed=int(rng.integers(2**31))
        )
        state = method.init(d, rng=rng)
        for _ in range(method.releases):
            asked = method.query(state)
            along = true.T @ asked.block
            made = sizes @ along**3 if asked.scores else true @ (sizes[:, None] * along**2)
            released = np.atleast_2d(made) + loud * rng.standard_normal(np.atleast_2d(made).shape)
            state, _ = method.update(state, released)
        result = method.finalize(state)
        statement = {"status": result.facts["status"], "errors": result.facts["errors"]}
        arrays = {"values": result.values, "value_stddevs": np.array(result.facts["value_stddevs"])}
        said, nearest = of_release(arrays, statement).numbers, np.abs(true.T @ result.vectors).argmax(axis=0)
        for i in (i for i, word in enumerate(statement["status"]) if word == "found"):
            angles.append((float(off(result.vectors[:, [i]], true)[0]), said["sines"][i]))
            weights.append((abs(float(result.values[i]) - sizes[nearest[i]]), said["value_spreads"][i]))
    return angles, weights


# Tensors


def tensors(seeds: Iterable[int]) -> tuple[Pairs, Pairs]:
    """Components "found" in a tensor of orthonormal (or nearly so) components and Gaussian noise, and their weights."""
    angles, weights = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        d, k, loud = int(rng.choice([6, 12, 20])), int(rng.choice([1, 2, 4])), float(rng.choice([1e-3, 0.02, 0.1, 0.3]))
        true = basis(rng, d, k) + float(rng.choice([0, 0, 0.1])) * rng.standard_normal((d, k)) / math.sqrt(d)
        true /= np.linalg.norm(true, axis=0)
        sizes, noise = rng.uniform(0.5, 1.5, k), rng.standard_normal((d, d, d))
        noise = np.asarray(sum(noise.transpose(order) for order in itertools.permutations(range(3))) / 6)
        noise *= loud * float(sizes.min()) / (1.6573 * math.sqrt(6 / (d + 1) / (d + 2)) * np.linalg.norm(noise))
        tensor = np.einsum("r,ir,jr,kr->ijk", sizes, true, true, true) + noise
        square = float(np.linalg.norm(tensor)) ** 2
        method = TensorPower(
            target_rank=k, restarts=restarts_for(k, harvest=True), seed=seed, harvest=True, squared_norm=square
        )
        result = _decomposed(method, tensor)
        said = of_tensor(result.values.tolist(), result.residual_norms.tolist(), result.facts).numbers
        found = [i for i, word in enumerate(result.facts["status"]) if word == "found"]
        nearest = np.abs(true.T @ result.vectors).argmax(axis=0)
        for place, i in enumerate(found):
            angles.append((float(off(result.vectors[:, [i]], true)[0]), said["sines"][place]))
            weights.append((abs(abs(float(result.values[i])) - sizes[nearest[i]]), said["weights"][place]))
    return angles, weights


def _decomposed(method: TensorPower, tensor: np.ndarray) -> Any:
    state, finished = method.init(len(tensor), rng=np.random.default_rng(0)), False
    while not finished:
        block = method.query(state).block
        state, info = method.update(state, np.einsum("ijk,jl,kl->il", tensor, block, block))
        finished = info.finished
    return method.finalize(state)


# Latent variables


def topics(seeds: Iterable[int], folder: Path) -> Pairs:
    """Sums of absolute differences of topics in documents that are drawn from the model."""
    pairs = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        v, k, n, length = (int(rng.choice(some)) for some in ([60, 200, 600], [3, 4, 6], [500, 1500], [15, 40, 100]))
        alpha0 = float(rng.choice([0.3, 1.0]))
        true = rng.dirichlet(np.full(v, float(rng.choice([0.03, 0.1, 0.4]))), k).T
        true = np.where(true < 1e-6, 0.0, true)
        true /= true.sum(axis=0)
        alpha = rng.uniform(0.5, 1.5, k)
        planted = TopicModel(topics=true, alpha=alpha * alpha0 / alpha.sum(), vocabulary=words(v))
        docs = documents_from(planted, n, length, seed)
        model = run_topics(docs, k, store=folder / f"{seed}", cut=CorpusFilter(held_out=0.0), alpha0=alpha0).model
        whole = np.zeros((v, model.k))
        whole[np.arange(v) if model.kept is None else model.kept] = model.topics
        apart = np.abs(whole[:, :, None] - true[:, None, :]).sum(axis=0)
        stated = of_topics(model.topics, model.weights, model.facts).numbers["l1"]
        pairs += [(float(apart[i, j]), stated[i]) for i, j in zip(*linear_sum_assignment(apart), strict=True)]
    return pairs


def mixtures(seeds: Iterable[int], folder: Path) -> tuple[Pairs, Pairs]:
    """Distances of means, and errors of weights."""
    means, shares = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        d, k, n = int(rng.choice([6, 12, 25])), int(rng.choice([2, 3, 4])), int(rng.choice([2000, 8000]))
        skew = np.eye(k) + float(rng.choice([0, 0.7])) / k
        true = float(rng.choice([1.5, 3, 6])) * basis(rng, d, k) @ skew * rng.uniform(0.8, 1.25, k) + 0.3
        weights = rng.dirichlet(np.full(k, 6.0))
        rows = true[:, rng.choice(k, n, p=weights)].T + 0.7 * rng.standard_normal((n, d))
        found = fit_mixture(rows, k, store=folder / f"{seed}")
        said = of_mixture(found.weights, found.variance, (n, d), asked=k).numbers
        apart = np.linalg.norm(found.means[:, :, None] - true[:, None, :], axis=0)
        for i, j in zip(*linear_sum_assignment(apart), strict=True):
            means.append((float(apart[i, j]), said["lengths"][i]))
            shares.append((abs(float(found.weights[i] - weights[j])), said["weights"][i]))
    return means, shares


def sources(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """k of mean 0 and variance 1 (n x k): exponential, uniform, Laplace, two-valued, Gamma."""
    kinds: tuple[Callable[[], np.ndarray], ...] = (
        lambda: rng.exponential(size=n) - 1,
        lambda: rng.uniform(-(3**0.5), 3**0.5, n),
        lambda: rng.laplace(size=n) / 2**0.5,
        lambda: rng.choice([-1.0, 1.0], n),
        lambda: (rng.gamma(4, size=n) - 4) / 2,
    )
    return np.stack([kinds[i]() for i in rng.choice(len(kinds), k)], axis=1)


def independent(seeds: Iterable[int], folder: Path) -> Pairs:
    """Sines of columns of the mixing matrix, of components of which something is told."""
    pairs = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        d, k, n = int(rng.choice([6, 12, 25])), int(rng.choice([2, 3, 4])), int(rng.choice([4000, 20_000]))
        true = rng.standard_normal((d, k)) * rng.choice([1, 1, 3.0], k)
        found = fit_independent_components(sources(rng, n, k) @ true.T + 5, k, store=folder / f"{seed}")
        said = of_independent(found.kurtoses, found.mixing, n, asked=k).numbers
        sines = off(found.mixing / np.linalg.norm(found.mixing, axis=0), true / np.linalg.norm(true, axis=0))
        pairs += [
            (float(sine), stated) for sine, stated, told in zip(sines, said["sines"], said["told"], strict=True) if told
        ]
    return pairs


# Nodes without noise


def nodes(seeds: Iterable[int]) -> tuple[Pairs, Pairs]:
    """Planes and values of a power method that was stopped anywhere."""
    planes, values = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        d, k = int(rng.choice([20, 60])), int(rng.choice([1, 2, 3]))
        true, axes = np.sort(rng.uniform(0, 1, d))[::-1], basis(rng, d, d)
        true[:k] += float(rng.choice([0.05, 0.3]))
        block = basis(rng, d, k + int(rng.choice([1, 4])))
        for _ in range(int(rng.integers(2, 40))):
            block = orth((axes * true) @ (axes.T @ block), rng)
        product = (axes * true) @ (axes.T @ block)
        pairs = rayleigh_ritz(block, product, k)
        ritz = np.linalg.eigvalsh(block.T @ product)
        arrays = {"values": pairs.values[:k], "residual_norms": pairs.residual_norms[:k]}
        said = of_nodes(arrays, {"nodes": []}, ritz.tolist()).numbers
        planes.append((max_sin_theta(pairs.vectors[:, :k], axes[:, :k]), said["sine"]))
        nearest = np.abs(arrays["values"][:, None] - true[None, :]).min(axis=1)
        values.append((float(nearest.max()), said["value"]))
    return planes, values
