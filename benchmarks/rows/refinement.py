"""Mixtures and independent components: the moments, the passes after them, and the likelihood's own answer.

The likelihood's answer is what no method can have in practice: its maximum next to the truth, found from the truth.
All are run on the same data, several data sets of each family, in turns.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment, minimize

from benchmarks.registry import Context, Measured, Row
from npmdask.latent.fit import fit_independent_components, fit_mixture

SEEDS = 10
WAYS = ("moments", "refined", "likelihood", "scikit-learn")
CLOUDS: dict[str, dict[str, Any]] = {  # of which any two are as far apart as "apart" says, in deviations
    "separation 2": {"apart": 2.0},
    "separation 2, 2,000 rows": {"apart": 2.0, "n": 2000},
    "separation 4": {"apart": 4.0},
    "separation 3, deviations 0.6, 1, 1.4": {"apart": 3.0, "deviations": (0.6, 1.0, 1.4)},
    "separation 2, deviations 0.5, 1, 1.5": {"apart": 2.0, "deviations": (0.5, 1.0, 1.5)},
    "separation 6, weights 0.49, 0.5, 0.01": {"apart": 6.0, "weights": (0.49, 0.5, 0.01)},
    "separation 4, weights 0.49, 0.5, 0.01": {"apart": 4.0, "weights": (0.49, 0.5, 0.01)},
}


def clouds(
    seed: int,
    apart: float,
    n: int = 20_000,
    d: int = 10,
    weights: Any = (1 / 3, 1 / 3, 1 / 3),
    deviations: Any = (1, 1, 1),
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of round clouds, and their means (k x d)."""
    rng = np.random.default_rng(seed)
    k, spread = len(weights), np.array(deviations, float)
    means = apart / np.sqrt(2) * np.linalg.qr(rng.standard_normal((d, k)))[0].T
    which = rng.choice(k, n, p=weights)
    return means[which] + spread[which, None] * rng.standard_normal((n, d)), means


def off(found: np.ndarray, means: np.ndarray) -> float:
    """Root mean square distance of the means (k x d), each true one to its match."""
    apart = np.linalg.norm(means[:, None] - found[None], axis=2)
    return float(np.sqrt((apart[linear_sum_assignment(apart)] ** 2).mean()))


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    found = work()
    return found, time.perf_counter() - start


def _compared(
    context: Context, families: dict[str, Any], one: Callable[[Context, Any, int], dict[str, tuple[float, float, int]]]
) -> dict[str, Any]:
    """Of each family the root mean square errors, the median seconds and passes after the moments, of every way."""
    details: dict[str, Any] = {}
    for name, asked in families.items():
        found = [one(context, asked, seed) for seed in range(context.sized(3, SEEDS))]
        errors = {way: float(np.sqrt(np.mean([run[way][0] ** 2 for run in found]))) for way in WAYS}
        details[name] = {
            "errors": {way: round(error, 4) for way, error in errors.items()},
            "over_likelihood": {
                way: round(errors[way] / errors["likelihood"], 3) for way in WAYS if way != "likelihood"
            },
            "seconds": {way: round(float(np.median([run[way][1] for run in found])), 2) for way in WAYS},
            "passes": [run["refined"][2] for run in found],
        }
    return details


def _ours(
    context: Context, fit: Callable[..., Any], rows: np.ndarray, k: int, error: Callable[[Any], float]
) -> dict[str, tuple[float, float, int]]:
    """Error, seconds and passes after the moments, of the moments alone and with the passes that follow them."""
    found, store = {}, context.folder / "run"
    for way, refine in (("moments", 0), ("refined", None)):
        shutil.rmtree(store, ignore_errors=True)
        model, seconds = _timed(partial(fit, rows, k, store=store, refine=refine))
        found[way] = error(model), seconds, model.facts.get("refinement", {}).get("passes", 0)
    return found


def _mixture(context: Context, asked: dict[str, Any], seed: int) -> dict[str, tuple[float, float, int]]:
    from sklearn.mixture import GaussianMixture

    rows, means = clouds(seed, **asked)
    k = len(means)
    start = {
        "weights_init": np.array(asked.get("weights", (1 / 3, 1 / 3, 1 / 3))),
        "means_init": means,
        "precisions_init": np.array(asked.get("deviations", (1.0, 1.0, 1.0))) ** -2.0,
    }
    found = _ours(context, fit_mixture, rows, k, lambda model: off(model.means.T, means))
    for way, more in (
        ("likelihood", start | {"tol": 1e-9, "max_iter": 2000}),
        ("scikit-learn", {"random_state": seed}),
    ):
        theirs = GaussianMixture(k, covariance_type="spherical", **more)
        _, seconds = _timed(partial(theirs.fit, rows))
        found[way] = off(theirs.means_, means), seconds, theirs.n_iter_
    return found


# Independent components. Of each source how it is drawn, and minus its log-density and the derivative of that.

Density = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
LOUD = 1.25**0.5  # deviation of a sign plus half a normal number


def _bimodal(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = s * LOUD  # 4 = 1 / 0.5^2
    return 2 * x * x - np.logaddexp(4 * x, -4 * x), LOUD * (4 * x - 4 * np.tanh(4 * x))


SOURCES: dict[str, tuple[Callable[[np.random.Generator, int], np.ndarray], Density]] = {
    "laplace": (
        lambda rng, n: rng.laplace(size=n) / 2**0.5,
        lambda s: (2**0.5 * np.abs(s), 2**0.5 * np.sign(s)),
    ),
    "student": (
        lambda rng, n: rng.standard_t(5, n) / (5 / 3) ** 0.5,
        lambda s: (3 * np.log1p(s * s / 3), 6 * s / (3 + s * s)),
    ),
    "bimodal": (lambda rng, n: (rng.choice([-1.0, 1.0], n) + 0.5 * rng.standard_normal(n)) / LOUD, _bimodal),
    "logistic": (
        lambda rng, n: rng.logistic(size=n) * 3**0.5 / np.pi,
        lambda s: (2 * np.logaddexp(c := np.pi / 12**0.5 * s, -c), 2 * np.pi / 12**0.5 * np.tanh(np.pi / 12**0.5 * s)),
    ),
}
MIXED: dict[str, tuple[str, ...]] = {
    "four Laplace": ("laplace",) * 4,
    "Laplace, Student, two bimodal": ("laplace", "student", "bimodal", "bimodal"),
    "Laplace, logistic, Student, bimodal": ("laplace", "logistic", "student", "bimodal"),
}


def amari(product: np.ndarray) -> float:
    """Amari, Cichocki and Yang (1996) of ``unmixing mixing`` (k x k): 0 for a permutation with scales, at most 1."""
    size, k = np.abs(product), len(product)
    across = (size / size.max(axis=1, keepdims=True)).sum() + (size / size.max(axis=0)).sum()
    return float((across - 2 * k) / (2 * k * (k - 1)))


def _most_likely(drawn: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """The unmixing matrix (k x k) of the drawn sources themselves that is most likely where all densities are known."""
    k = drawn.shape[1]

    def minus(flat: np.ndarray) -> tuple[float, np.ndarray]:
        turn = flat.reshape(k, k)
        s = drawn @ turn.T
        parts = [SOURCES[name][1](s[:, j]) for j, name in enumerate(names)]
        slopes = np.stack([slope for _, slope in parts])
        value = sum(float(cost.mean()) for cost, _ in parts) - np.linalg.slogdet(turn)[1]
        return value, (slopes @ drawn / len(drawn) - np.linalg.inv(turn).T).ravel()

    found = minimize(minus, np.eye(k).ravel(), jac=True, method="BFGS", options={"gtol": 1e-6})
    return np.asarray(found.x.reshape(k, k))


def _sources(context: Context, names: tuple[str, ...], seed: int) -> dict[str, tuple[float, float, int]]:
    from sklearn.decomposition import FastICA

    rng = np.random.default_rng(seed)
    k = len(names)
    drawn = np.stack([SOURCES[name][0](rng, 20_000) for name in names], axis=1)
    mixing = rng.standard_normal((8, k))
    rows = drawn @ mixing.T + 5
    found = _ours(context, fit_independent_components, rows, k, lambda model: amari(model.unmixing.T @ mixing))
    best, seconds = _timed(partial(_most_likely, drawn, names))
    found["likelihood"] = amari(best), seconds, 0
    theirs = FastICA(k, whiten="unit-variance", random_state=seed, max_iter=1000)
    _, seconds = _timed(partial(theirs.fit, rows))
    found["scikit-learn"] = amari(theirs.components_ @ mixing), seconds, theirs.n_iter_
    return found


def _row(families: dict[str, Any], one: Callable[..., Any], why: str) -> Callable[[Context], Measured]:
    """The first family is the figure; the others are beside it."""

    def measure(context: Context) -> Measured:
        details = _compared(context, families, one)
        return Measured(details[next(iter(families))]["over_likelihood"]["refined"], details, why)

    return measure


ROWS = (
    Row(
        name="mixture-refined",
        what="error of means after three passes of EM / of the likelihood's answer: three clouds, 20,000 x 10",
        target=1.1,
        better="lower",
        run=_row(CLOUDS, _mixture, "EM goes slowly where clouds overlap"),
    ),
    Row(
        name="ica-refined",
        what="Amari error after three passes of FastICA / of maximum likelihood: four Laplace sources, 20,000 x 8",
        target=1.1,
        better="lower",
        run=_row(MIXED, _sources, "contrasts are no densities, and decorrelation costs a quarter of 1/n"),
    ),
)
