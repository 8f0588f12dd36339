"""What a private page says to those who read it: what rises above the noise, and what the promise means."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from npmdask.algorithms.covariance import CLEAR
from npmdask.manage.data_report import components
from npmdask.privacy.mechanisms.gaussian_laplace import RELEASE_KIND
from npmdask.report import Plot, Rule, Section
from npmdask.report.blocks import Text, section, series, spans_a_decade
from npmdask.storage.labels import Labels
from npmdask.theory.noisy_symmetric import noise_norm
from npmdask.theory.start import gaussian_norm

DRAWN = 40  # eigenvalues of a released covariance
UNITS = "size, as it was released"


class Heights(NamedTuple):
    """Sizes of what was released, the first ``k`` of components; how large noise alone gets in the same units; how many
    of the k are larger; and what the sizes are called."""

    sizes: np.ndarray
    k: int
    floor: float
    above: int
    name: str


def counts(released: dict[str, Any]) -> bool:
    """Whether a release is of a histogram: its noise is on counts."""
    return str(released["release"]).startswith("range")


def noise_of_entries(release: str, stddev: float) -> str:
    """The standard deviation of the noise, and which entries of a ``release`` have it.

    Of a symmetric matrix an entry off the diagonal has less: it and its mirror image count twice in the norm. Of a
    tensor every column of a release has its own, and the largest is kept.
    """
    if release == RELEASE_KIND:
        return f"{stddev:.4g} on the diagonal, {stddev / 2**0.5:.4g} off it"
    if release.startswith("range"):
        return f"{stddev:.4g} records on a count"
    most = "at most " if release in ("contraction", "scores") else ""
    what = "entry of a mean" if release.startswith("mean") else ENTRIES.get(release, "entry")
    return f"{most}{stddev:.4g} on every {what}"


ENTRIES = {"product": "entry of a product", "contraction": "entry of a contraction", "scores": "score"}


def norm_of_noise(released: dict[str, Any], d: int, p: int) -> float:
    """Of the noise: as a matrix, or of a tensor, where every column is for itself, of one column or score."""
    if released["release"] == RELEASE_KIND:
        return noise_norm(released["noise_stddev"] / 2**0.5, d)
    rows, columns = {"contraction": (d, 1), "scores": (1, 1)}.get(str(released["release"]), (d, p))
    return gaussian_norm(released["noise_stddev"], rows, columns)


def heights(arrays: dict[str, np.ndarray], statement: dict[str, Any], history: list[dict[str, Any]]) -> Heights | None:
    """Compare what was released with the norm of its noise; None where no release has one.

    Of a covariance all its eigenvalues; of products those of the last one; of what takes many releases for each
    component (records, tensors) their values with the largest noise among them.
    """
    d, k = int(statement["columns"]), len(arrays["values"])
    if "covariance" in arrays:
        facts, matrix, basis = statement["covariance"], arrays["covariance"], arrays["basis"]
        m = np.linalg.eigvalsh(matrix)
        along = np.einsum("dk,dk->k", basis, matrix @ basis)  # eigenvalues too, in the order of the components
        sizes = np.concatenate([along, np.sort(m if facts["definite"] else np.abs(m))[::-1][k:DRAWN]])
        sizes = sizes if facts["definite"] else np.abs(sizes)
        floor = CLEAR * noise_norm(facts["stddev"], d)
        return Heights(sizes, k, floor, int(np.sum(sizes[:k] > floor)), "eigenvalue of the released matrix")
    noisy = [one for one in history if not counts(one) and one["release"] != "scores"]
    if not noisy:
        return None
    # Of products from both sides in turn the longer side counts: what is called clear of the noise is so on both.
    rows = max(d, len(arrays.get("left_basis", ())))
    norms = [norm_of_noise(one, rows, int(statement["iteration_rank"])) for one in noisy]
    if noisy[-1]["release"] == "product":
        sizes, floor = np.abs(np.array(noisy[-1]["ritz_values"], float)), norms[-1]
    else:
        sizes, floor = np.abs(arrays["values"]), max(norms)
    return Heights(sizes, len(sizes), floor, int(np.sum(sizes > floor)), UNITS)


def above_noise(found: Heights) -> Section:
    """Show which values rise above the noise, and which drowned in it."""
    components_ = found.sizes[: found.k]
    drawn = [series(range(1, found.k + 1), components_, "components", style="points")]
    if len(found.sizes) > found.k:
        rest = found.sizes[found.k :]
        drawn.append(series(range(found.k + 1, len(found.sizes) + 1), rest, "not asked for", style="points"))
    log = spans_a_decade([*found.sizes.tolist(), found.floor])
    plot = Plot(
        title="Values and the noise",
        x="component",
        y=found.name,
        series=tuple(drawn),
        rules=(Rule(y=found.floor, name=f"noise alone: up to {found.floor:.3g}"),),
        log=log,
        bottom=None if log else min(0.0, float(found.sizes.min())),
        about=_said(found),
    )
    lost = [str(i + 1) for i in range(found.k) if not components_[i] > found.floor]
    which = f" Lost in the noise: component{'s'[: len(lost) != 1]} {', '.join(lost)}." if lost else ""
    meaning = (
        "The direction of a component below the line follows the noise and says nothing about the data. One above it "
        "may still be turned towards its neighbours: how far, the statement at the top of the page estimates."
    )
    style: Any = "warning" if lost else "plain"
    return section("What rises above the noise", Text(text=_said(found) + which, style=style), Text(text=meaning), plot)


def _said(found: Heights) -> str:
    verb = "rises" if found.above == 1 else "rise"
    return f"{found.above} of {found.k} component{'s'[: found.k != 1]} {verb} above the noise."


def released_loadings(
    basis: np.ndarray, found: Heights | None, labels: Labels, grid: tuple[int, int] | None = None
) -> list[Section]:
    """Show the released components, as images on a ``grid`` that was asked for or by their strongest entries, up to the
    first that the noise drowned.
    """
    k = basis.shape[1]
    lost = [] if found is None else np.flatnonzero(~(found.sizes[: found.k] > found.floor)).tolist()
    kept = min([k, *lost])
    return [components(basis[:, :kept], labels, None, grid)] if kept else []


def in_plain_words(statement: dict[str, Any], left: str) -> Section:
    """Say what the promise means, whom it is about, and what is left of the budget.

    By (epsilon, delta) alone, whatever the mechanism: P(S) - Q(S) <= (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) for
    every event S, from both directions of the definition added up.
    """
    epsilon, delta = float(statement["epsilon"]), float(statement["delta"])
    right = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    return section(
        "The promise in plain words",
        Text(text=f"Protected is {statement['protects']}."),
        Text(
            text="Suppose that an attacker knows all other data, and has to guess which of two versions of what is "
            "protected this run saw, each as likely as the other. With everything that the run released they guess "
            f"right in at most {math.ceil(1000 * right) / 10:g} of 100 cases; by tossing a coin, in 50. Other runs on "
            f"the same data add to this (epsilon = {epsilon:g}, delta = {delta:g})."
        ),
        Text(text=f"Budget of these data: {left}."),
    )
