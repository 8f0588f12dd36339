"""The report of a run over stored data: what it found, how wrong that can be, how it converged, and what it cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.aspects import kept_aspects
from npmdask.core.certificates.recursions import gaussian_norm
from npmdask.core.certificates.statements import assurance_of
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import bytes_text
from npmdask.core.runs.resources import DeviceUse
from npmdask.core.runs.results import comparison, prediction_facts
from npmdask.core.storage.labels import Labels, require_names
from npmdask.core.storage.source import notes_in
from npmdask.errors import BadInputError, require
from npmdask.manage.data_report import (
    Sampling,
    about,
    components,
    data_sections,
    headline,
    presentation_sections,
    sampling_of,
)
from npmdask.manage.kinds import PageOptions, device_text, flat, tables_of_aspects
from npmdask.missing.rules import missing_of, missing_warnings
from npmdask.privacy.account import budget_left
from npmdask.privacy.covariance import CLEAR
from npmdask.privacy.mechanisms.gaussian_laplace import RELEASE_KIND
from npmdask.report import Plot, Report, Rule, Section, Series, Table
from npmdask.report.blocks import (
    Text,
    parameters,
    section,
    series,
    spans_a_decade,
    spectrum_plot,
    table,
    tiles,
    warnings,
)
from npmdask.theory.noisy_symmetric import noise_norm

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


def _norm_of_noise(released: dict[str, Any], d: int, p: int) -> float:
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
        about=_above(found),
    )
    lost = [str(i + 1) for i in range(found.k) if not components_[i] > found.floor]
    which = f" Lost in the noise: component{'s'[: len(lost) != 1]} {', '.join(lost)}." if lost else ""
    meaning = (
        "The direction of a component below the line follows the noise and says nothing about the data. One above it "
        "may still be turned towards its neighbours: how far, the statement at the top of the page estimates."
    )
    style: Any = "warning" if lost else "plain"
    return section(
        "What rises above the noise", Text(text=_above(found) + which, style=style), Text(text=meaning), plot
    )


def _above(found: Heights) -> str:
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


# The report of a private run: what was released, what is promised, what it cost, and what is not promised.
#
# Made of the release bundle alone (result, or the history of the steps so far): everything on it is post-processing.


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


def nodes_sections(statement: dict[str, Any]) -> list[Section]:
    """Say of a distributed run what each node promises, and what crossed between the coordinator and its nodes."""
    names = ("url", "rows", "protects", "epsilon", "delta", "mu", "releases")
    rows = ([_said(node.get(name)) for name in names] for node in statement["nodes"])
    about = Text(
        text=f"Values are {statement['values_are']}. What each node adds to a product is its own, and everything that "
        "was sent is public."
    )
    head = ("node", "rows", "protected", "epsilon", "delta", "mu", "releases")
    return [
        section("Nodes", *warnings(statement.get("warnings", [])), about, table(rows, head)),
        section("What crossed between the coordinator and its nodes", table(statement["communication"].items())),
    ]


def _said(value: Any) -> str:
    if value is None:
        return "not said"
    return f"{value:g}" if isinstance(value, float) else str(value)


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


VALUES = {"matrix": "singular value", "sparse": "singular value", "tensor": "weight"}
TABLES = ("operator", "algorithm", "mechanism", "stop", "run", "report", "version", "environment")
LEAST = 1e-17  # what is smaller is drawn here: zero has no place on a logarithmic axis

# How wrong an answer can be: one line of numbers for each ground.

GROUNDS = {
    "always": "nothing: a theorem",
    "random start": "the random start has a part along every direction (probability {:g} %)",
    "none missed": "no larger value was missed",
}
HEAD = (
    "assuming",
    "value off by",
    "components off by",
    "one component by",
    "left out, at most",
    "captures of the best",
)
LOW_RANK = {"symmetric": "||A − V Vᵀ A||", "samples": "variance left in any direction"}


def run_report(run: RunStore, spec: dict[str, Any], page: PageOptions) -> Report:
    """Report a run, private or not, finished or not: first what it found in its data, then how it went.

    Raises
    ------
    BadInputError
        Nothing was committed yet.
    """
    history = run.history()
    require(bool(history), f"there is no run with a committed step in {run.place}")
    result = run.read_part("result")
    if "privacy" in spec:
        if page.colour is not None or page.scores or page.data is not None:
            raise BadInputError(f"{run.place}: scores are data of single rows, and a private run releases none of them")
        return private_report(run.path, spec, history, result, page)
    require(page.columns is None, f"{run.place} is no private run, and has the names of its data: leave --columns out")
    telemetry = run.telemetry()
    outcome = result[1]["outcome"] if result else {"name": "unfinished", "sentence": "not finished: go on with resume"}
    values = result[0]["values"] if result else np.array(history[-1]["ritz_values"])
    sampling = sampling_of(run, spec) if result else None
    went = section(
        "How the run went",
        _tiles(history, telemetry, result),
        convergence(history, spec["stop"]["tol"], passes=not _without_a_pass(history, result))
        if len(history) > 1 or history[0]["max_sin_theta"] is not None
        else None,  # one residual is among the tiles
        _cost(telemetry) if telemetry and not _without_a_pass(history, result) else None,
    )
    spectrum = spectrum_plot(
        np.asarray(values),
        "variance (n in the denominator)"
        if spec["data"]["kind"] == "samples" and spec["data"]["center"]
        else VALUES.get("" if "operator" in spec else spec["data"]["kind"], "|eigenvalue|"),
        errors=None if sampling is None else sampling.errors,
        mixed=() if sampling is None else sampling.numbers,
    )
    sections = [
        section("", *warnings([*notes_in(spec), *(result[1].get("notes", ()) if result else ())])),
        *(data_sections(run, spec, result, page) if result else []),
        section("Values", spectrum, _components(values, result, sampling), _phases(spec)),
        *([] if sampling is None else [sampling.section()]),
        *(presentation_sections(run) if result else []),
        *(section(said[0], Text(text=said[1])) for each in kept_aspects(run, spec) if (said := each.said())),
        *_missing(run, result),
        went,
    ]
    if result:
        sections += _bounds(result[1].get("certificate"), str(spec["data"]["kind"]), history[-1]["max_sin_theta"])
        sections += nodes_sections(result[1]["statement"]) if "statement" in result[1] else []
    return Report(
        title=headline(run, spec, len(values)),
        about=about(run, spec),
        outcome=outcome["sentence"],
        good=Outcome(**outcome).answered,
        error_statement=assurance_of(spec, result),
        sections=tuple(
            one
            for one in (
                *sections,
                *_prediction(telemetry, history),
                *_memory(telemetry),
                parameters(spec, ("data", *tables_of_aspects(spec), *TABLES)),
            )
            if one.blocks
        ),
    )


def _phases(spec: dict[str, Any]) -> Text | None:
    """What is to be known of complex components."""
    if np.dtype(spec["data"].get("dtype", "f8")).kind != "c":
        return None
    return Text(
        text="The data are complex, and so are the components: each is determined up to a phase, which makes its "
        "largest entry real and positive. Modulus and phase of every entry: numpy.abs(basis) and numpy.angle(basis)."
    )


def _missing(run: RunStore, result: tuple[dict[str, np.ndarray], dict[str, Any]] | None) -> list[Section]:
    """How many values were missing, and what that does to the answer."""
    found = missing_of(run)
    if found is None:
        return []
    facts = {} if result is None else result[1].get("facts", {})
    return [section("Missing values", *warnings(missing_warnings(run, facts)), Text(text=found.sentence))]


def _bounds(certificate: dict[str, Any] | None, kind: str, angle: float | None) -> list[Section]:
    """The table of a certificate; ``angle``: the actual sine to a planted truth, to show beside its bound."""
    if not certificate:
        return []
    rows = [_row(level, certificate["confidence"]) for level in certificate["levels"]]
    if angle is not None:
        rows.append(
            ("measured against the planted truth (of drawn rows: that of their model)", "", _degrees(angle), "", "", "")
        )
    left = LOW_RANK.get(kind, "||A − A V Vᵀ||")
    said = (
        "Upper bounds on the error, each under the assumption in the first column; a dash means that no bound is "
        "available. They compare with the exact answer for these data and took no extra pass over them. “Left out” is "
        f"{left}."
    )
    health = certificate["health"]
    state = Text(text=f"State of the iteration: {health['word']}: {health['sentence']}.")
    recursion = certificate.get("recursion")
    return [section("Bounds", Text(text=said), table(rows, HEAD), state, recursion and _recursion(recursion))]


def _row(level: dict[str, Any], confidence: float) -> tuple[str, ...]:
    share = level["captured_of_best"]
    return (
        GROUNDS[level["ground"]].format(100 * confidence),
        _worst(level["value_errors"], "{:.1e}".format),
        _degrees(level["sine"]),
        _worst(level["component_sines"], _degrees),
        "—" if level["low_rank_error"] is None else f"{level['low_rank_error']:.4g}",
        "—" if share is None else f"{100 * share:.6g} %",
    )


def _worst(bounds: list[float | None], say: Any) -> str:
    """The largest bound, and of how many there is none."""
    known = [bound for bound in bounds if bound is not None]
    if not known:
        return "—"
    missing = len(bounds) - len(known)
    return f"{say(max(known))}" + (f" (no bound for {missing})" if missing else "")


def _degrees(sine: float | None) -> str:
    return "—" if sine is None else f"{math.degrees(math.asin(min(sine, 1.0))):.1e}°"


def _recursion(recursion: dict[str, Any]) -> Text:
    sine = recursion["sine"]
    promised = (
        "promises nothing: the noise is too large for it" if sine is None else f"promises a tilt below {_degrees(sine)}"
    )
    return Text(text=f"The recursion of the noisy power method, with the noise of this run, {promised}.")


def _tiles(history: list[dict[str, Any]], telemetry: list[dict[str, Any]], result: Any) -> Table:
    passed = [t for t in telemetry if t["event"] == "passed"]
    seconds = sum(t["seconds"] for t in passed)
    nbytes = sum(t["bytes"] for t in passed)
    plans = [t for t in telemetry if t["event"] == "plan"]
    peaks = [t["peak_rss"] for t in telemetry if t["event"] == "end"] + [t["rss"] for t in passed]
    limit = plans[-1]["limit"] if plans else None
    angle = history[-1]["max_sin_theta"]
    facts = [
        ("steps", str(len(history))),
        ("data passes", f"{len(passed)}" if not result else f"{result[1]['total_data_passes']}"),
    ]
    if not _without_a_pass(history, result):
        facts += [
            ("a pass reads", bytes_text(history[-1]["bytes_read"])),
            ("bytes read in all", bytes_text(nbytes)),
            ("time in passes", f"{seconds:.1f} s" if passed else "not kept"),
            ("read at", f"{nbytes / max(seconds, 1e-9) / 1e9:.2f} GB/s" if passed else "not kept"),
        ]
    if requests := sum(t.get("requests", 0) for t in passed):
        facts += [("requests", str(requests)), ("fetched", bytes_text(sum(t.get("fetched", 0) for t in passed)))]
        if cost := sum(t.get("cost", 0.0) for t in passed):
            facts.append(("cost of requests", f"{cost:.3g}"))
    facts += [
        ("peak memory", bytes_text(max(peaks)) if peaks else "?"),
        ("memory limit", bytes_text(limit) if limit else "none"),
        ("worst relative residual", f"{history[-1]['worst_residual']:.1e}"),
        *([whole] if (whole := _whole(result)) else []),
        *([("max sin θ to the truth", f"{angle:.1e}")] if angle is not None and not whole else []),
    ]
    return tiles(facts)


def _without_a_pass(history: list[dict[str, Any]], result: Any) -> bool:
    """Whether the answer came from a stored Gram: nothing was read, and the page has no part on reading."""
    return bool(result) and not result[1]["total_data_passes"] and not any(h["bytes_read"] for h in history)


def _whole(result: Any) -> tuple[str, str] | None:
    """Of a tensor: what its components leave of it."""
    left = result[1].get("facts", {}).get("relative_residual") if result else None
    return None if left is None else ("left of the tensor's norm", f"{left:.1e}")


def convergence(history: list[dict[str, Any]], tol: float, *, passes: bool = True) -> Plot:
    """Plot the relative residual, and the angle to the truth where it is known, against the step.

    ``passes``: each step reads the data.
    """
    steps = [h["step"] for h in history]
    drawn = [series(steps, [max(h["worst_residual"], LEAST) for h in history], "worst relative residual")]
    angles = [(h["step"], max(h["max_sin_theta"], LEAST)) for h in history if h["max_sin_theta"] is not None]
    if angles:
        drawn.append(
            series([step for step, _ in angles], [sine for _, sine in angles], "max sin θ to the planted truth")
        )
    return Plot(
        title="Convergence",
        x="step (one pass over the data each)" if passes else "step (without a pass)",
        series=tuple(drawn),
        log=True,
        rules=(Rule(y=tol, name=f"tol {tol:.0e}"),) if tol else (),
    )


def _cost(telemetry: list[dict[str, Any]]) -> Plot:
    passed = [t for t in telemetry if t["event"] == "passed"]
    numbers = range(1, len(passed) + 1)
    rates: Series = series(numbers, [t["bytes"] / max(t["seconds"], 1e-9) / 1e9 for t in passed], style="bars")
    memory = series(numbers, [t["rss"] / 2**20 for t in passed], right=True)
    return Plot(title="Cost of each pass", x="pass", y="GB/s", right="memory, MiB", series=(rates, memory))


def _components(values: np.ndarray, result: Any, sampling: Sampling | None) -> Table:
    residuals = result[0]["residual_norms"] if result else np.full(len(values), np.nan)
    status = result[1].get("facts", {}).get("status") if result else None
    rows = [(i, f"{v:.10g}", f"{r:.1e}") for i, (v, r) in enumerate(zip(values, residuals, strict=False), 1)]
    if sampling is not None:
        each = zip(rows, sampling.errors, sampling.partners, strict=True)
        sure = ((*row, f"{error:.2g}", others) for row, error, others in each)
        return table(sure, ("component", sampling.what, "residual norm", "standard error (sampling)", "mixed with"))
    if status is None:
        return table(rows, ("component", "value", "residual norm"))
    told = ((*row, word) for row, word in zip(rows, status, strict=True))
    return table(told, ("component", "weight", "residual norm", "status"))


def _prediction(telemetry: list[dict[str, Any]], history: list[dict[str, Any]]) -> list[Section]:
    """Predicted against measured, or why nothing was predicted; of a run of which nothing is logged, nothing."""
    if not telemetry:
        return []
    rows = comparison(telemetry, history)
    head = ("", "predicted before the first pass", "measured")
    said = Text(text=prediction_facts(telemetry, len(history))["prediction"])
    return [section("Predicted and measured", table(rows, head) if rows else said)]


def _memory(telemetry: list[dict[str, Any]]) -> list[Section]:
    """The peak of every process of the last call that came to its end, against the limit and the prediction."""
    ends = [t for t in telemetry if t["event"] == "end" and t.get("processes")]
    plans = [t for t in telemetry if t["event"] == "plan"]
    if not ends:
        return []
    facts = [(f"{p['name']} (process {p['pid']})", bytes_text(p["peak_rss_bytes"])) for p in ends[-1]["processes"]]
    facts.append(("all together, at most at any one time", bytes_text(ends[-1]["peak_rss"])))
    if plans:
        limit = plans[-1]["limit"]
        facts.append(("predicted before the first pass", bytes_text(plans[-1]["predicted_peak"])))
        facts.append(("limit", bytes_text(limit) if limit else "none"))
    device = ends[-1].get("device")
    said = Text(text=f"On {device_text(DeviceUse(**device))}.") if device else None
    return [section("Memory", table(facts, ("process", "peak resident memory")), said)]
