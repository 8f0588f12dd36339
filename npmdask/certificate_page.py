"""The section of a run's page that says how wrong its answer can be: one line of numbers for each ground."""

from __future__ import annotations

import html
import math
from typing import Any

from npmdask.report.html import table

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
