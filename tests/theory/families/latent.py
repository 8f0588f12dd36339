"""Mixtures, independent components and topics, planted ones and data that do not fit: by formulas and SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp

import npmdask
from tests.theory.families.drawing import Rng, one_of, orthonormal, power_of_ten, whole
from tests.theory.families.judging import Findings, Problem

KINDS = ("mixture", "mixture that does not fit", "ICA", "ICA of normal sources", "topics")
WORDS = 5  # of a topic, for its coherence


@dataclass(frozen=True)
class Latent(Problem):
    x: np.ndarray
    kind: str
    k: int
    means: np.ndarray  # planted means, mixing or topics; empty where the model does not fit
    shares: np.ndarray  # of the clouds; sources; or of topics in each document
    separation: float = 0.0


def problem(rng: Rng) -> Latent:
    kind = one_of(rng, KINDS)
    n, d, k = one_of(rng, (500, 2000, 5000)), whole(rng, 4, 11), whole(rng, 2, 3)
    none = np.zeros(0)
    if kind == "topics":
        topics = rng.dirichlet(np.full(whole(rng, 12, 39), 0.1), k)
        shares, lengths = rng.dirichlet(np.full(k, 0.3), n), rng.poisson(40, n) + 1
        counts = np.stack([rng.multinomial(m, p) for m, p in zip(lengths, shares @ topics, strict=True)])
        return Latent(counts, kind, k, topics, shares)
    if kind.startswith("ICA"):
        shape = (n, k)
        sources = one_of(rng, (rng.laplace(size=shape), rng.uniform(-1, 1, shape), rng.exponential(size=shape)))
        if kind != "ICA":
            sources = rng.standard_normal(shape)
        mixing = rng.standard_normal((k, d))
        return Latent(sources @ mixing + power_of_ten(rng, -1, 4) * rng.standard_normal(d), kind, k, mixing, sources)
    offset = power_of_ten(rng, -2, 5) * rng.standard_normal(d)
    if kind != "mixture":
        z = one_of(
            rng,
            (
                rng.standard_normal((n, d)) * np.geomspace(5, 0.2, d),
                rng.standard_t(2.5, (n, d)),
                np.exp(rng.standard_normal((n, d))),
            ),
        )
        return Latent(offset + z, kind, k, none, none)
    separation = one_of(rng, (1.0, 3.0, 8.0))
    means, shares = orthonormal(rng, d, k).T * separation + offset, rng.dirichlet(np.full(k, 3.0))
    return Latent(
        means[rng.choice(k, size=n, p=shares)] + rng.standard_normal((n, d)), kind, k, means, shares, separation
    )


def check(problem: Latent, folder: Path) -> Findings:
    found = Findings()
    if problem.kind == "topics":
        topics(found, problem)
    elif problem.kind.startswith("ICA"):
        independent(found, problem, folder)
    else:
        mixture(found, problem, folder)
    return found


def mixture(found: Findings, problem: Latent, folder: Path) -> None:
    """Densities and responsibilities are those of the model; clouds far apart are found."""
    x, (n, d) = problem.x, problem.x.shape
    model = npmdask.Mixture(problem.k, store=folder / "run").fit(x)
    means, shares = model.means_, model.weights_
    variances = np.broadcast_to(model.variances_, shares.shape)
    distances = ((x[:, None] - means[None]) ** 2).sum(axis=-1)
    joint = np.log(shares) - d / 2 * np.log(2 * np.pi * variances) - distances / (2 * variances)
    density = logsumexp(joint, axis=1)
    rounding = 1e-13 * np.abs(x).max() ** 2 / variances.min()  # of a square about a mean, over the variance
    found.close("score", model.score(x), density.mean(), 1e-9 + rounding, 1 + abs(float(density.mean())))
    found.close("responsibilities", model.predict_proba(x), np.exp(joint - density[:, None]), 1e-9 + rounding, 1.0)
    if problem.separation == 8 and len(shares) == problem.k:
        for planted, share in zip(problem.means, problem.shares, strict=True):
            off, error = np.linalg.norm(means - planted, axis=1).min(), np.sqrt(d / (n * share))
            found.expect(off <= 8 * error, "a mean far from the planted one by", off, "standard error", error)


def independent(found: Findings, problem: Latent, folder: Path) -> None:
    """Sources are what the components make of rows, and rows what the mixing makes of sources."""
    x, k = problem.x, problem.k
    model = npmdask.ICA(k, store=folder / "run").fit(x)
    sources = model.transform(x)
    unmixed = x @ model.components_.T
    unmixed = unmixed - unmixed.mean(axis=0)
    rounding = 1e-12 * float(np.abs(x).max()) * float(np.abs(model.components_).max()) * x.shape[1]
    found.close("components_", sources - sources.mean(axis=0), unmixed, 1e-9 + rounding, float(np.abs(unmixed).max()))
    if problem.kind != "ICA" or sources.shape[1] != k:
        return
    found.close("variances of sources", sources.var(axis=0), np.ones(k), 0.02, 1.0)
    away = x - x.mean(axis=0)
    rebuilt = (sources - sources.mean(axis=0)) @ model.mixing_.T
    found.close("rebuilt rows", rebuilt, away, 0.15)
    if len(x) == 5000:
        likeness = np.abs(np.corrcoef(sources.T, problem.shares.T)[:k, k:]).max(axis=1)
        found.expect(likeness.min() >= 0.9, "the sources are not found:", likeness)


def topics(found: Findings, problem: Latent) -> None:
    """Shares and topics are distributions; coherence and perplexity by an own count."""
    counts, k = problem.x, problem.k
    documents = sp.csr_matrix(counts)
    model = npmdask.Topics(k, alpha0=0.3 * k).fit(documents)
    shares = np.asarray(model.transform(documents))
    found.close("sums of shares", shares.sum(axis=1), np.ones(len(counts)), 1e-9)
    found.expect((shares >= -1e-12).all(), "a negative share")
    found.close("sums of topics", model.components_.sum(axis=1), np.ones(len(model.components_)), 1e-9)
    found.expect((model.components_ >= 0).all(), "a negative probability")
    columns = [int(word.split()[-1]) - 1 for word in model.vocabulary_]
    stated = model.coherence(documents, n=WORDS)
    for i, topic in enumerate(model.components_):
        best = [columns[j] for j in np.argsort(-topic, kind="stable")[:WORDS]]
        u_mass, npmi = coherence(counts > 0, best)
        found.close("coherence (UMass)", stated.u_mass[i], u_mass, 1e-6, 1.0)
        found.close("coherence (NPMI)", stated.c_npmi[i], npmi, 1e-6, 1.0)
    perplexity: Any = model.perplexity(documents, documents)
    frequency = (counts.sum(axis=0) + 1) / (counts.sum() + counts.shape[1])
    unigram = np.exp(-(counts.sum(axis=0) @ np.log(frequency)) / counts.sum())
    found.close("perplexity of word frequencies", perplexity.unigram, unigram, 0.02)
    planted = 0.99 * problem.shares @ problem.means + 0.01 * frequency
    best_possible = np.exp(-(counts * np.log(planted)).sum() / counts.sum())
    found.expect(perplexity.model >= 0.97 * best_possible, "perplexity below that of the truth", perplexity.model)


def coherence(present: np.ndarray, best: list[int]) -> tuple[float, float]:
    """Means over pairs of words of log P(a, b) / P(b), and of the normalised pointwise mutual information."""
    documents = present.any(axis=1).sum()
    share = np.maximum(present.sum(axis=0), 1) / documents
    u_mass, npmi = [], []
    for i, a in enumerate(best):
        for b in best[:i]:
            both = (present[:, a] & present[:, b]).sum() / documents + 1e-12
            u_mass.append(np.log(both / share[b]))
            npmi.append(0 if both > 1 else np.log(both / (share[a] * share[b])) / -np.log(both))
    return float(np.mean(u_mass)), float(np.mean(npmi))
