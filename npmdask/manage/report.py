"""What a run did, for people and for scripts: a table of facts, and one self-contained HTML page."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.algorithms.stopping import Outcome
from npmdask.checkpoint.store import RunStore, not_finished
from npmdask.errors import BadInputError
from npmdask.manage.private_report import name_of, nodes_section, private_page
from npmdask.models.kinds import job_page, kind_of
from npmdask.privacy.account import budget_left
from npmdask.privacy.request import unprotected
from npmdask.report.html import bytes_text, heading, linked, page, parameters, spectrum_svg, table, tiles
from npmdask.report.plots import BLUE, GREY, ORANGE, axes, svg
from npmdask.runs.predictions import comparison, prediction_facts
from npmdask.runs.solution import Solution
from npmdask.storage.bundle import write_file_atomically
from npmdask.storage.paths import local_path
from npmdask.streaming.report import stream_page
from npmdask.streaming.status import is_stream
from npmdask.theory.certificates.statements import assurance_of

# The section of a run's page that says how wrong its answer can be: one line of numbers for each ground.

GROUNDS = {
    "always": "in any case: a theorem",
    "random start": "the random start was not blind ({:g} %)",
    "none missed": "no larger value was missed",
}
HEAD = ("if", "value off by", "components tilted by", "one component by", "left out, at most", "captures of the best")
LOW_RANK = {"symmetric": "||A − V Vᵀ A||", "samples": "variance left in any direction"}


def certificate_section(certificate: dict[str, Any] | None, kind: str, angle: float | None) -> list[str]:
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
    state = certificate["health"]
    return [
        "<h2>Bounds</h2>",
        f"<p>{html.escape(said)}</p>",
        table(rows, HEAD),
        f"<p>State of the iteration: <b>{html.escape(state['word'])}</b>: {html.escape(state['sentence'])}.</p>",
        *_recursion(certificate.get("recursion")),
    ]


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


def _recursion(recursion: dict[str, Any] | None) -> list[str]:
    if recursion is None:
        return []
    sine = recursion["sine"]
    promised = (
        "promises nothing: the noise is too large for it" if sine is None else f"promises a tilt below {_degrees(sine)}"
    )
    return [f"<p>The recursion of the noisy power method, with the noise of this run, {html.escape(promised)}.</p>"]


VALUES = {"matrix": "singular value", "sparse": "singular value", "tensor": "weight"}
TABLES = ("data", "algorithm", "mechanism", "stop", "run", "version", "environment")

if TYPE_CHECKING:
    from npmdask.streaming import StreamSolution


def summary(solution: Solution | StreamSolution) -> dict[str, Any]:
    """The facts of a solution as plain numbers and strings: the JSON that other people's scripts rely on."""
    if not isinstance(solution, Solution):
        from npmdask.streaming import stream_summary  # which was loaded for the run

        return stream_summary(solution)
    statement, spread = solution.statement, solution.value_stddevs
    if statement is not None and "nodes" not in statement:
        return _private_summary(solution, statement)
    more: dict[str, Any] = {"statement": statement} if statement is not None else {}
    more |= {"value_stddevs": spread.tolist()} if spread is not None else {}
    more |= {"facts": solution.facts} if solution.facts else {}
    more |= {"certificate": solution.certificate} if solution.certificate else {}
    return {
        "outcome": solution.outcome.name,
        "converged": solution.converged,
        "steps": solution.steps,
        "data_passes": solution.data_passes,
        "bytes_read": solution.bytes_read,
        "dataset_bytes": solution.dataset_bytes,
        "seconds": None if solution.seconds is None else round(solution.seconds, 3),
        "peak_rss_bytes": solution.peak_rss_bytes,
        "memory_limit_bytes": solution.memory_limit_bytes,
        "peak_rss_by_process": [asdict(process) for process in solution.peak_rss_by_process],
        "values": solution.values.tolist(),
        "residual_norms": solution.residual_norms.tolist(),
        "max_sin_theta": solution.max_sin_theta,
        "store": solution.store,
        "fingerprint": solution.fingerprint,
        "total_data_passes": solution.total_data_passes,
        "sentence": solution.outcome.sentence,
        "assurance": solution.assurance,
        "warnings": list(solution.warnings),
        "target_rank": solution.target_rank,
        "explained_share": solution.explained_share,
        "answered": solution.answered,
        **solution.prediction,
        **more,
    }


def _private_summary(solution: Solution, statement: dict[str, Any]) -> dict[str, Any]:
    """What a private run released, and the statement that goes with it; nothing of size, time or memory."""
    spread = solution.value_stddevs
    return {
        "outcome": solution.outcome.name,
        "answered": solution.answered,
        "sentence": solution.outcome.sentence,
        "assurance": solution.assurance,
        "values": solution.values.tolist(),
        "value_stddevs": None if spread is None else spread.tolist(),
        "target_rank": solution.target_rank,
        "steps": solution.steps,
        "statement": statement,
        "warnings": list(solution.warnings),
        "store": solution.store,
    }


def write_report(
    store: str | Path, output: str | Path | None = None, links: Mapping[str, str | Path] | None = None
) -> Path:
    """Write the page of a run (finished or not) and return its path. ``links``: other pages to name there, by title.

    Raises
    ------
    BadInputError
        There is no run, or nothing was committed yet.
    """
    given = None if output is None else local_path(output, "the report")
    run = RunStore(store)
    target = given or run.path.absolute() / "report.html"
    text = linked(_text(run, run.read_spec()), links or {}, target.parent)
    write_file_atomically(target, text.encode())
    return target


def _text(run: RunStore, spec: dict[str, Any] | None) -> str:
    if spec is not None and kind_of(spec):
        return job_page(run, spec)
    if spec is not None and is_stream(spec) and run.last_meta():
        return stream_page(run)
    history = run.history()
    if spec is None:
        raise not_finished(run.path)
    if not history:
        raise BadInputError(f"there is no run with a committed step in {run.place}")
    return _page(run, spec, history, run.read_part("result"))


def _page(run: RunStore, spec: dict[str, Any], history: list[dict[str, Any]], result: Any) -> str:
    if "privacy" in spec:
        name, left = name_of(run.path), budget_left(spec["privacy"], spec["source"])
        return page(name, private_page(name, spec, history, result, left, assurance_of(spec, result)))
    telemetry = run.telemetry()
    outcome = result[1]["outcome"] if result else {"name": "unfinished", "sentence": "not finished: go on with resume"}
    good = Outcome(**outcome).answered
    values = result[0]["values"] if result else np.array(history[-1]["ritz_values"])
    sections = [
        *heading(run.path.name, outcome["sentence"], good=good, assurance=assurance_of(spec, result)),
        *(f'<p class="outcome bad">{escape(text)}</p>' for text in unprotected(spec.get("budget"))),
        _tiles(history, telemetry, result),
        '<div class="plots">',
        figure_svg(history, spec["stop"]["tol"]),
        spectrum_svg(np.asarray(values), VALUES.get(spec["data"]["kind"], "|eigenvalue|")),
        *([_cost_svg(telemetry)] if telemetry else []),
        "</div>",
        "<h2>Components</h2>",
        _components(values, result),
        *_how_wrong(spec, history, result),
        *(nodes_section(result[1]["statement"]) if result and "statement" in result[1] else []),
        *_prediction_section(telemetry, history),
        *_memory_section(telemetry),
        "<h2>Parameters</h2>",
        parameters(spec, TABLES),
    ]
    return page(run.path.name, sections)


def _how_wrong(spec: dict[str, Any], history: list[dict[str, Any]], result: Any) -> list[str]:
    kind = str(spec["data"]["kind"])
    return certificate_section(result[1].get("certificate"), kind, history[-1]["max_sin_theta"]) if result else []


def _tiles(history: list[dict[str, Any]], telemetry: list[dict[str, Any]], result: Any) -> str:
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


def figure_svg(history: list[dict[str, Any]], tol: float) -> str:
    """Convergence: relative residual, and the angle to the truth where it is known, against the step."""
    figure, axis = axes("Convergence", "step (one pass over the data each)", "")
    steps = [h["step"] for h in history]
    axis.semilogy(
        steps,
        [max(h["worst_residual"], 1e-17) for h in history],
        "o-",
        color=BLUE,
        label="worst relative residual",
    )
    angles = [(h["step"], max(h["max_sin_theta"], 1e-17)) for h in history if h["max_sin_theta"] is not None]
    if angles:
        axis.semilogy(*zip(*angles, strict=True), "s-", color=ORANGE, label="max sin θ to the planted truth")
    if tol:
        axis.axhline(tol, color=GREY, linestyle="--", linewidth=1, label=f"tol {tol:.0e}")
    axis.legend(frameon=False, fontsize=8)
    axis.xaxis.get_major_locator().set_params(integer=True)
    return svg(figure)


def _cost_svg(telemetry: list[dict[str, Any]]) -> str:
    passed = [t for t in telemetry if t["event"] == "passed"]
    figure, axis = axes("Cost of each pass", "pass", "GB/s")
    rates = [t["bytes"] / max(t["seconds"], 1e-9) / 1e9 for t in passed]
    axis.bar(np.arange(1, len(rates) + 1), rates, color=BLUE)
    memory = axis.twinx()
    memory.plot(np.arange(1, len(rates) + 1), [t["rss"] / 2**20 for t in passed], color=ORANGE, marker=".")
    memory.set_ylabel("memory, MiB", color=ORANGE)
    memory.set_ylim(bottom=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
    return svg(figure)


def _components(values: np.ndarray, result: Any) -> str:
    residuals = result[0]["residual_norms"] if result else np.full(len(values), np.nan)
    status = result[1].get("facts", {}).get("status") if result else None
    rows = [(i, f"{v:.10g}", f"{r:.1e}") for i, (v, r) in enumerate(zip(values, residuals, strict=False), 1)]
    if status is None:
        return table(rows, ("component", "value", "residual norm"))
    told = ((*row, word) for row, word in zip(rows, status, strict=True))
    return table(told, ("component", "weight", "residual norm", "status"))


def _prediction_section(telemetry: list[dict[str, Any]], history: list[dict[str, Any]]) -> list[str]:
    """Predicted against measured, or why nothing was predicted; of a run of which nothing is logged, nothing."""
    if not telemetry:
        return []
    rows = comparison(telemetry, history)
    head = ("", "predicted before the first pass", "with the values that were found", "measured")
    said = escape(prediction_facts(telemetry, len(history))["prediction"])
    return ["<h2>Predicted and measured</h2>", table(rows, head) if rows else f"<p>{said}</p>"]


def _memory_section(telemetry: list[dict[str, Any]]) -> list[str]:
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
    return ["<h2>Memory</h2>", table(facts, ("process", "peak resident memory"))]
