"""Topics as text for a terminal: a line for each."""

from __future__ import annotations

import numpy as np

from npmdask.models.topics.model import TopicModel
from npmdask.models.topics.quality import Coherence


def text_of(
    model: TopicModel,
    n: int = 10,
    *,
    coherence: Coherence | None = None,
    negative_mass: np.ndarray | None = None,
) -> str:
    """A table of the topics, heaviest first: weight, coherence and negative mass where they are known, top words."""
    columns: dict[str, list[str]] = {"topic": [str(number) for number in range(1, model.k + 1)]}
    columns["weight"] = [f"{model.weights[t]:.3f}" for t in model.by_weight]
    if coherence is not None:
        columns["c_npmi"] = [f"{coherence.c_npmi[t]:.3f}" for t in model.by_weight]
        columns["u_mass"] = [f"{coherence.u_mass[t]:.2f}" for t in model.by_weight]
    if negative_mass is not None:
        columns["negative"] = [f"{negative_mass[t]:.1%}" for t in model.by_weight]
    tops = model.top_words(n)
    rows = zip(*columns.values(), (" ".join(word for word, _ in tops[t]) for t in model.by_weight), strict=True)
    widths = [max(len(name), *map(len, column)) for name, column in columns.items()]
    lines = ((*columns, "words"), *rows)
    return "\n".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]) for line in lines
    )
