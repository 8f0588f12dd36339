"""The report of a run over stored data: what it found, how wrong that can be, how it converged, and what it cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.aspects import kept_aspects, reading_of
from npmdask.core.certificates.statements import assurance_of
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import bytes_text
from npmdask.core.runs.resources import DeviceUse
from npmdask.core.runs.results import comparison, prediction_facts
from npmdask.core.storage.source import notes_in
from npmdask.errors import BadInputError, require
from npmdask.manage.data_report import Sampling, about, data_sections, headline, presentation_sections, sampling_of
from npmdask.manage.kinds import PageOptions, device_text, tables_of_aspects
from npmdask.report import Plot, Report, Rule, Section, Series, Table
from npmdask.report.blocks import Text, parameters, section, series, spectrum_plot, table, tiles, warnings


def nodes_sections(statement: dict[str, Any]) -> list[Section]:
    """Say of a distributed run what each node promises, and what crossed between the coordinator and its nodes."""
    names = ("url", "rows", "protects", "epsilon", "delta", "mu", "releases")
    rows = ([_value_text(node.get(name)) for name in names] for node in statement["nodes"])
    about = Text(
        text=f"Values are {statement['values_are']}. What each node adds to a product is its own, and everything that "
        "was sent is public."
    )
    head = ("node", "rows", "protected", "epsilon", "delta", "mu", "releases")
    return [
        section("Nodes", *warnings(statement.get("warnings", [])), about, table(rows, head)),
        section("What crossed between the coordinator and its nodes", table(statement["communication"].items())),
    ]


def _value_text(value: Any) -> str:
    if value is None:
        return "not said"
    return f"{value:g}" if isinstance(value, float) else str(value)


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
        report = features.required("managed", "the report of a private run")
        return report(run.path, spec, history, result, page)
    require(page.columns is None, f"{run.place} is no private run, and has the names of its data: leave --columns out")
    telemetry, aspects = run.telemetry(), kept_aspects(run, spec)
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
        *(section(said[0], Text(text=said[1])) for each in aspects if (said := each.said())),
        *_missing(run, reading_of(aspects), result),
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
    """Explain complex components; None where the data are real."""
    if np.dtype(spec["data"].get("dtype", "f8")).kind != "c":
        return None
    return Text(
        text="The data are complex, and so are the components: each is determined up to a phase, which makes its "
        "largest entry real and positive. Modulus and phase of every entry: numpy.abs(basis) and numpy.angle(basis)."
    )


def _missing(run: RunStore, reading: Any, result: tuple[dict[str, np.ndarray], dict[str, Any]] | None) -> list[Section]:
    """Report how many values were missing, and what that does to the answer."""
    found = None if reading is None else reading.noted(run)
    if found is None:
        return []
    facts = {} if result is None else result[1].get("facts", {})
    return [section("Missing values", *warnings(reading.warnings(run, facts)), Text(text=found.sentence))]


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
        _largest_bound_text(level["value_errors"], "{:.1e}".format),
        _degrees(level["sine"]),
        _largest_bound_text(level["component_sines"], _degrees),
        "—" if level["low_rank_error"] is None else f"{level['low_rank_error']:.4g}",
        "—" if share is None else f"{100 * share:.6g} %",
    )


def _largest_bound_text(bounds: list[float | None], say: Any) -> str:
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
        *([whole] if (whole := _tensor_rest(result)) else []),
        *([("max sin θ to the truth", f"{angle:.1e}")] if angle is not None and not whole else []),
    ]
    return tiles(facts)


def _without_a_pass(history: list[dict[str, Any]], result: Any) -> bool:
    """Say whether the answer came from a stored Gram: nothing was read, and the page has no part on reading."""
    return bool(result) and not result[1]["total_data_passes"] and not any(h["bytes_read"] for h in history)


def _tensor_rest(result: Any) -> tuple[str, str] | None:
    """Return the share of a tensor's norm that its components leave, named; None where it is not known."""
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
