"""The convergence of a run under way as a small SVG, written by hand.

Matplotlib would be loaded for it beside every run, two seconds and 60 MB; the report, made after the run, has its own.
"""

import math
from collections.abc import Sequence
from typing import Any

from npmdask.report.plots import BLUE, GREY, ORANGE

WIDTH, HEIGHT = 520, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 34, 42  # margins
LEAST = 1e-17  # what is smaller is drawn here
LABELS = 8  # along an axis, at most
TEXT = 'font-family="sans-serif" font-size="11" fill="#333"'

Points = Sequence[tuple[int, float]]


def convergence_svg(history: list[dict[str, Any]], tol: float) -> str:
    """Relative residual, and the angle to the truth where it is known, against the step; logarithmic."""
    residuals = [(h["step"], max(h["worst_residual"], LEAST)) for h in history]
    angles = [(h["step"], max(h["max_sin_theta"], LEAST)) for h in history if h["max_sin_theta"] is not None]
    heights = [y for _, y in (*residuals, *angles) if math.isfinite(y)] + ([tol] if tol > 0 else [])
    low, high = math.floor(math.log10(min(heights, default=1.0))), math.ceil(math.log10(max(heights, default=1.0)))
    first, last = history[0]["step"], history[-1]["step"]

    def at(step: float, y: float) -> tuple[float, float]:
        across = (step - first) / max(last - first, 1)
        up = (math.log10(y) - low) / max(high - low, 1)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', _text(WIDTH / 2, 16, "Convergence", "middle")]
    for decade in range(low, high + 1, _every(high - low)):
        x, y = at(first, 10.0**decade)
        parts += [_line(x, y, WIDTH - RIGHT, y, "#ddd"), _text(x - 6, y + 4, f"1e{decade}", "end")]
    for step in range(first, last + 1, _every(last - first)):
        x, y = at(step, 10.0**low)
        parts.append(_text(x, y + 16, str(step), "middle"))
    parts.append(_text(WIDTH / 2, HEIGHT - 8, "step (one pass over the data each)", "middle"))
    if tol > 0:
        x, y = at(first, tol)
        parts += [
            _line(x, y, WIDTH - RIGHT, y, GREY, dashed=True),
            _text(x + 6, y - 4, f"tol {tol:.0e}", "start", GREY),
        ]
    series = [(residuals, BLUE, "worst relative residual"), (angles, ORANGE, "max sin θ to the planted truth")]
    for place, (points, colour, said) in enumerate(one for one in series if one[0]):
        parts += [_curve([at(*p) for p in points if math.isfinite(p[1])], colour)]
        parts += [_text(WIDTH - RIGHT, TOP + 12 + 14 * place, said, "end", colour)]
    body = "".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">{body}</svg>'


def _every(span: int) -> int:
    """Between two labels."""
    return max(1, math.ceil(span / LABELS))


def _text(x: float, y: float, said: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {TEXT.replace("#333", colour)}>{said}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}"{dashes}/>'


def _curve(points: Sequence[tuple[float, float]], colour: str) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>{dots}'
