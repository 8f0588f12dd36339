"""The report of a run over stored data: how it converged, what it found, how wrong that can be, and what it cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npmdask.algorithms.stopping import Outcome
from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError
from npmdask.manage.private_report import nodes_sections, private_report
from npmdask.privacy.request import unprotected
from npmdask.report import Plot, Report, Rule, Section, Series, Table
from npmdask.report.blocks import Text, bytes_text, parameters, section, series, spectrum, table, tiles, warnings
from npmdask.runs.predictions import comparison, prediction_facts
from npmdask.theory.certificates.statements import assurance_of

VALUES = {"matrix": "singular value", "sparse": "singular value", "tensor": "weight"}
TABLES = ("data", "algorithm", "mechanism", "stop", "run", "version", "environment")
LEAST = 1e-17  # what is smaller is drawn here: zero has no place on a logarithmic axis

# How wrong an answer can be: one line of numbers for each ground.

GROUNDS = {
    "always": "in any case: a theorem",
    "random start": "the random start was not blind ({:g} %)",
    "none missed": "no larger value was missed",
}
HEAD = ("if", "value off by", "components tilted by", "one component by", "left out, at most", "captures of the best")
LOW_RANK = {"symmetric": "||A − V Vᵀ A||", "samples": "variance left in any direction"}


def run_report(run: RunStore, spec: dict[str, Any]) -> Report:
    """Report a run, private or not, finished or not.

    Raises
    ------
    BadInputError
        Nothing was committed yet.
    """
    history = run.history()
    if not history:
        raise BadInputError(f"there is no run with a committed step in {run.place}")
    result = run.read_part("result")
    if "privacy" in spec:
        return private_report(run.path, spec, history, result)
    telemetry = run.telemetry()
    outcome = result[1]["outcome"] if result else {"name": "unfinished", "sentence": "not finished: go on with resume"}
    values = result[0]["values"] if result else np.array(history[-1]["ritz_values"])
    head = section(
        "",
        *warnings(unprotected(spec.get("budget"))),
        _tiles(history, telemetry, result),
        convergence(history, spec["stop"]["tol"]),
        spectrum(np.asarray(values), VALUES.get(spec["data"]["kind"], "|eigenvalue|")),
        _cost(telemetry) if telemetry else None,
    )
    sections = [head, section("Components", _components(values, result))]
    if result:
        sections += _bounds(result[1].get("certificate"), str(spec["data"]["kind"]), history[-1]["max_sin_theta"])
        sections += nodes_sections(result[1]["statement"]) if "statement" in result[1] else []
    return Report(
        title=run.path.name,
        outcome=outcome["sentence"],
        good=Outcome(**outcome).answered,
        error_statement=assurance_of(spec, result),
        sections=(*sections, *_prediction(telemetry, history), *_memory(telemetry), parameters(spec, TABLES)),
    )


def _bounds(certificate: dict[str, Any] | None, kind: str, angle: float | None) -> list[Section]:
    """The table of a certificate; ``angle``: the actual sine to a planted truth, to stand beside its bound."""
    if not certificate:
        return []
    rows = [_row(level, certificate["confidence"]) for level in certificate["levels"]]
    if angle is not None:
        rows.append(("to the planted truth (of drawn rows that of their model)", "", _degrees(angle), "", "", ""))
    left = LOW_RANK.get(kind, "||A − A V Vᵀ||")
    said = (
        "Bounds, none of them smaller than the true error if what its line begins with holds; a dash: nothing can be "
        f"said. Errors are against the exact answer for these data. No pass was made for them. “Left out” is {left}."
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
    return f"{say(max(known))}" + (f" ({missing} not told)" if missing else "")


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
        ("a pass reads", bytes_text(history[-1]["bytes_read"])),
        ("bytes read in all", bytes_text(nbytes)),
        ("time in passes", f"{seconds:.1f} s" if passed else "not kept"),
        ("read at", f"{nbytes / max(seconds, 1e-9) / 1e9:.2f} GB/s" if passed else "not kept"),
        ("peak memory", bytes_text(max(peaks)) if peaks else "?"),
        ("memory limit", bytes_text(limit) if limit else "none"),
        ("worst relative residual", f"{history[-1]['worst_residual']:.1e}"),
        _whole(result) or ("max sin θ to the truth", "truth unknown" if angle is None else f"{angle:.1e}"),
    ]
    return tiles(facts)


def _whole(result: Any) -> tuple[str, str] | None:
    """Of a tensor: what its components leave of it."""
    left = result[1].get("facts", {}).get("relative_residual") if result else None
    return None if left is None else ("left of the tensor's norm", f"{left:.1e}")


def convergence(history: list[dict[str, Any]], tol: float) -> Plot:
    """Plot the relative residual, and the angle to the truth where it is known, against the step."""
    steps = [h["step"] for h in history]
    drawn = [series(steps, [max(h["worst_residual"], LEAST) for h in history], "worst relative residual")]
    angles = [(h["step"], max(h["max_sin_theta"], LEAST)) for h in history if h["max_sin_theta"] is not None]
    if angles:
        drawn.append(
            series([step for step, _ in angles], [sine for _, sine in angles], "max sin θ to the planted truth")
        )
    return Plot(
        title="Convergence",
        x="step (one pass over the data each)",
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


def _components(values: np.ndarray, result: Any) -> Table:
    residuals = result[0]["residual_norms"] if result else np.full(len(values), np.nan)
    status = result[1].get("facts", {}).get("status") if result else None
    rows = [(i, f"{v:.10g}", f"{r:.1e}") for i, (v, r) in enumerate(zip(values, residuals, strict=False), 1)]
    if status is None:
        return table(rows, ("component", "value", "residual norm"))
    told = ((*row, word) for row, word in zip(rows, status, strict=True))
    return table(told, ("component", "weight", "residual norm", "status"))


def _prediction(telemetry: list[dict[str, Any]], history: list[dict[str, Any]]) -> list[Section]:
    """Predicted against measured, or why nothing was predicted; of a run of which nothing is logged, nothing."""
    if not telemetry:
        return []
    rows = comparison(telemetry, history)
    head = ("", "predicted before the first pass", "with the values that were found", "measured")
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
    return [section("Memory", table(facts, ("process", "peak resident memory")))]
