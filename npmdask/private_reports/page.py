"""The report of a private run: what was released, what is promised, what it cost, and what is not promised.

Made of the release bundle alone (result, or the history of the steps so far): everything on it is post-processing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npmdask.core.certificates.recursions import gaussian_norm
from npmdask.core.certificates.statements import assurance_of
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.storage.labels import Labels, require_names
from npmdask.manage.data_report import about, components, headline
from npmdask.manage.kinds import PageOptions, flat
from npmdask.privacy.account import budget_left
from npmdask.privacy.mechanisms.gaussian_laplace import RELEASE_KIND
from npmdask.report import Plot, Report, Rule, Section, Table
from npmdask.report.blocks import Text, section, series, spans_a_decade, table, tiles, warnings
from npmdask.theory.noisy_symmetric import CLEAR, noise_norm

# What a private page says to those who read it: what rises above the noise, and what the promise means.


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


def _is_histogram(released: dict[str, Any]) -> bool:
    """Say whether a release is of a histogram: its noise is on counts."""
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


def _norm_of_noise(released: dict[str, Any], d: int, p: int) -> float:
    """Compute the norm of the noise: of a matrix, or of one column or score of a tensor, each of which is by itself."""
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
    noisy = [one for one in history if not _is_histogram(one) and one["release"] != "scores"]
    if not noisy:
        return None
    # Of products from both sides in turn the longer side counts: what is called clear of the noise is so on both.
    rows = max(d, len(arrays.get("left_basis", ())))
    norms = [_norm_of_noise(one, rows, int(statement["iteration_rank"])) for one in noisy]
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
        about=_above_noise_text(found),
    )
    lost = [str(i + 1) for i in range(found.k) if not components_[i] > found.floor]
    which = f" Lost in the noise: component{'s'[: len(lost) != 1]} {', '.join(lost)}." if lost else ""
    meaning = (
        "The direction of a component below the line follows the noise and says nothing about the data. One above it "
        "may still be turned towards its neighbours: how far, the statement at the top of the page estimates."
    )
    style: Any = "warning" if lost else "plain"
    return section(
        "What rises above the noise", Text(text=_above_noise_text(found) + which, style=style), Text(text=meaning), plot
    )


def _above_noise_text(found: Heights) -> str:
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


LIMITS = (
    "Promised is what an observer of everything that was released can learn about one neighbouring change of the "
    "data. Several records of one person count one by one: for j of them epsilon grows j-fold.",
    "Not protected: that the run took place, when, and how long it took; the columns of the data; what is true of "
    "everybody and not only of one person.",
    "The bound holds for the noise as drawn (rounded to a grid; the error budget of the sampler is part of epsilon and "
    "delta), as long as the key of the noise is secret until it is destroyed at the end of the run, and the data "
    "themselves are read by no one else.",
    "Clipping, the number of releases and all other parameters are taken as public. If they were chosen by looking at "
    "the data, that look is not accounted for.",
)


def private_report(
    store: Path, spec: dict[str, Any], history: list[dict[str, Any]], result: Any, page: PageOptions
) -> Report:
    """Report the private run in ``store`` from its releases so far, and from its ``result`` where it has one.

    ``page``: names of columns, if they are public, as the run keeps none; and a grid of images.
    """
    run = RunStore(store)
    named = {"title": headline(run, spec, spec["algorithm"]["target_rank"]), "about": about(run, spec)}
    if result is None:
        done = f"{len(history)} of {spec['stop']['max_steps']} releases are made; go on with `npmdask resume`"
        made = section("Releases", _releases(history))
        return Report(**named, outcome=done, good=False, sections=(made, _limits()))
    arrays, meta = result
    statement = meta["statement"]
    labels = Labels() if page.columns is None else require_names(page.columns, len(arrays["basis"]), None)
    head = section(
        "",
        *warnings(statement["warnings"]),
        _release_tiles(statement, history),
        _values(arrays),
        _noise_plot(history, statement),
    )
    left, found = budget_left(spec["privacy"], spec["source"]), heights(arrays, statement, history)
    return Report(
        **named,
        outcome=meta["outcome"]["sentence"],
        good=True,
        error_statement=assurance_of(spec, result),
        sections=(
            head,
            *([] if found is None else [above_noise(found)]),
            in_plain_words(statement, left),
            *released_loadings(arrays["basis"], found, labels, page.grid),
            section("Components", _about_values(arrays, statement), _released_components(arrays)),
            section("Releases", _releases(history)),
            section("What was promised", _facts(statement, left)),
            _limits(),
        ),
    )


def _about_values(arrays: dict[str, np.ndarray], statement: dict[str, Any]) -> Text:
    said = f"Values are {statement['values_are']}"
    if "value_stddevs" not in arrays:
        return Text(text=f"{said}.")
    if "covariance" in statement:
        return Text(
            text=f"{said}; what the noise adds to eigenvalues is taken off. ± is one standard deviation of the noise, "
            "the vectors held fixed. Where it is not small, vectors follow the noise."
        )
    return Text(
        text=f"{said}; ± is what the noise of the last release does (one standard deviation, the vectors held fixed). "
        "Where it is not small, vectors follow the noise, and values lie too high."
    )


def _limits() -> Section:
    return section("Scope and limits", *(Text(text=line, style="item") for line in LIMITS))


def _release_tiles(statement: dict[str, Any], history: list[dict[str, Any]]) -> Table:
    noisy = [h for h in history if not _is_histogram(h)]
    loudest = max(noisy, key=lambda h: float(h["noise_stddev"]), default=None)
    facts = [
        ("epsilon", f"{statement['epsilon']:g}"),
        ("delta", f"{statement['delta']:g}"),
        ("mu (Gaussian DP)", f"{statement['mu']:.5g}" if statement["mu"] else "none: pure epsilon"),
        ("releases", str(statement["releases"])),
        ("noise (standard deviation)", "see below" if loudest is None else _noise(loudest)),
    ]
    ratio = statement["noise_to_paper"]
    return tiles(facts if ratio is None else [*facts, ("noise against the paper's formula", f"{ratio:.2f} of it")])


def _error(sine: float | None) -> str:
    if sine is None:
        return "no formula of theory; the error statement is above"
    return f"sin(angle) to the true components about {sine:.2g} (an estimate from what was released, not a bound)"


def _norms(statement: dict[str, Any]) -> str:
    return ", ".join(_clipped(norm) for norm in statement["image_norms"])


def _values(arrays: dict[str, np.ndarray]) -> Plot:
    values = arrays["values"]
    drawn = series(range(1, len(values) + 1), values, style="points", spread=arrays.get("value_stddevs"))
    bottom = min(0.0, float(np.min(values)))
    return Plot(title="Released values", x="component", y="value", series=(drawn,), bottom=bottom)


def _noise_plot(history: list[dict[str, Any]], statement: dict[str, Any]) -> Plot:
    history = [h for h in history if not _is_histogram(h)]
    steps = [h["step"] for h in history]
    drawn = [series(steps, [max(abs(h["ritz_values"][0]), 1e-300) for h in history], "largest value")]
    if statement["noise_stddev"]:
        norms = [_norm_of_noise(h, statement["columns"], statement["iteration_rank"]) for h in history]
        drawn.append(series(steps, norms, "norm of the noise, predicted", style="dashed"))
    return Plot(
        title="What was released, step by step",
        x="release",
        y="largest value, noise of a block",
        series=tuple(drawn),
        log=True,
    )


def _released_components(arrays: dict[str, np.ndarray]) -> Table:
    values, spread = arrays["values"], arrays.get("value_stddevs", np.full(len(arrays["values"]), np.nan))
    pairs = enumerate(zip(values, spread, strict=True), 1)
    rows = ((i, f"{v:.6g}", "" if np.isnan(s) else f"± {s:.2g}") for i, (v, s) in pairs)
    return table(rows, ("component", "value", "noise"))


def _releases(history: list[dict[str, Any]]) -> Table:
    """A line for each product that was released; the digest is the one that the ledger holds the run to."""
    head = (
        "release",
        "of a",
        "noise (standard deviation)",
        "images clipped to",
        "largest value",
        "SHA-256 in the ledger",
    )
    rows = (
        (
            h["step"],
            h["release"],
            _noise(h),
            _clipped(h.get("image_norm")),
            f"{h['ritz_values'][0]:.6g}",
            h["digest"][:16],
        )
        for h in history
    )
    return table(rows, head)


def _noise(released: dict[str, Any]) -> str:
    return noise_of_entries(str(released["release"]), float(released["noise_stddev"]))


def _clipped(image_norm: float | None) -> str:
    return "not clipped" if image_norm is None else f"{image_norm:.4g}"


def _facts(statement: dict[str, Any], left: str) -> Table:
    charge, event = statement["charge"], statement["mechanism"]
    facts = [
        ("protected (unit)", statement["protects"]),
        ("promise", f"epsilon = {statement['epsilon']:g}, delta = {statement['delta']:g}"),
        ("spent, exactly", f"epsilon = {statement['epsilon_spent']:.6g} at that delta"),
        ("of which: Gaussian", f"mu = {statement['mu']:.6g}"),
        ("of which: pure, and the sampler's error", f"epsilon {charge['epsilon']:.3g}, delta {charge['delta']:.3g}"),
        *([("rests on", statement["rests_on"])] if statement.get("rests_on") else []),
        ("predicted (from released values)", _error(statement["predicted_error"])),
        *([] if "covariance" in statement else [("images clipped to, step by step", _norms(statement))]),
        ("left in the ledger", left),
        *((f"mechanism.{name}", value) for name, value in flat(event)),
    ]
    return table(facts)
