"""The map of topics: a still SVG of circles, and what the script of a page needs to show their words."""

from __future__ import annotations

import json
from html import escape
from math import pi, sqrt

from npmdask.report.blocks import TopicMap
from npmdask.report.plots import COLOURS

WIDTH, HEIGHT = 560, 460
COVERED = 0.14  # of the map, by all circles together
LEAST_RADIUS = 7.0  # so that a pointer finds it
NAMED = 4  # words of a topic, where the pointer rests on its circle


def drawn(block: TopicMap, colour: str = "") -> str:
    """Draw the map as an SVG element; ``colour`` of its text, by default that of the page around it."""
    described = f"{block.title}, map of {len(block.topics)} topics. {block.about}"
    words = _first_words(block)
    circles = []
    # The largest first: a small circle stays in front, and can be chosen.
    for number, (name, x, y, share) in sorted(enumerate(_placed(block)), key=lambda one: -one[1][3]):
        said = f"{name}: {100 * share:.3g} % of all words: {', '.join(words[number])}"
        circles.append(
            f'<g data-topic="{number}"><title>{escape(said)}</title><circle cx="{x:.1f}" cy="{y:.1f}" '
            f'r="{_radius(share):.1f}" fill="{COLOURS[0]}" fill-opacity="0.3" stroke="{COLOURS[0]}"/>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" fill="currentColor" font-size="13" '
            f'font-family="system-ui, sans-serif">{escape(name)}</text></g>'
        )
    inked = f' color="{colour}"' if colour else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(described)}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}"{inked}>{"".join(circles)}</svg>'
    )


def live(block: TopicMap) -> str:
    """Write the numbers for the script, as JSON that ends no tag."""
    facts = {
        "topics": [[name, _short(share)] for name, _, _, share in block.topics],
        "words": [[word, _short(share), [[t, _short(p)] for t, p in of]] for word, share, of in block.words],
    }
    return json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c")


def _short(number: float) -> float:
    return float(f"{number:.6g}")


def _radius(share: float) -> float:
    return max(LEAST_RADIUS, sqrt(share * COVERED * WIDTH * HEIGHT / pi))


def _placed(block: TopicMap) -> list[tuple[str, float, float, float]]:
    """The topics at places of the picture: one scale for both axes, every circle inside."""
    room = max((_radius(share) for *_, share in block.topics), default=0.0) + 2
    across, up = [x for _, x, _, _ in block.topics], [y for _, _, y, _ in block.topics]
    scale = min(
        (size - 2 * room) / (max(at) - min(at)) if max(at) > min(at) else float("inf")
        for size, at in ((WIDTH, across), (HEIGHT, up))
    )
    scale = scale if scale < float("inf") else 0.0  # all at one place
    middle = [(max(at) + min(at)) / 2 for at in (across, up)]
    return [
        (name, WIDTH / 2 + scale * (x - middle[0]), HEIGHT / 2 - scale * (y - middle[1]), share)
        for name, x, y, share in block.topics
    ]


def _first_words(block: TopicMap) -> list[list[str]]:
    """The likeliest words of every topic."""
    found: list[list[tuple[float, str]]] = [[] for _ in block.topics]
    for word, _, of in block.words:
        for topic, probability in of:
            found[topic].append((-probability, word))
    return [[word for _, word in sorted(words)[:NAMED]] for words in found]
