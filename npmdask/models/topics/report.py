"""The page of a topic model: its words, how good they are, what they were found from, and how they are used."""

from __future__ import annotations

import html
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npmdask.models.topics.model import TopicModel
from npmdask.models.topics.quality import Coherence, Perplexity
from npmdask.report.html import heading, page, table, tiles
from npmdask.report.plots import BLUE, GREY, ORANGE, axes, svg

HIGH_CONDITION = 10.0  # above: the warning of SpectralLDA-Spark, the implementation that users know
SHOWN = 10
ALPHA0_TOLERANCE = 0.1


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """What the page says; everything but the model may be missing, and is then left out.

    ``spectrum``: eigenvalues of M2, largest first, of more than k where they are known; ``negative_mass`` (k): what the
    estimate of each topic had below 0 before it was projected on the simplex, as a share of its mass; ``convergence``:
    the worst relative residual after each pass of the tensor power method; ``found``: components found by then;
    ``tol``: asked for; ``alpha0_given``: 0 of single topics, whose weights sum to 1; ``documents``: rows of the corpus;
    ``skipped``: documents that were left out, by reason; ``numbers``: more tiles (name, value); ``parameters``: of the
    run, by name; ``store``: folder of the run.
    """

    name: str
    sentence: str
    model: TopicModel
    assurance: str = ""
    good: bool = True
    store: str = "RUN"
    coherence: Coherence | None = None
    perplexity: Perplexity | None = None
    negative_mass: np.ndarray | None = None
    spectrum: np.ndarray | None = None
    convergence: Sequence[float] = ()
    found: Sequence[int] = ()
    tol: float | None = None
    alpha0_given: float | None = None
    documents: int | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    numbers: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)


def page_of(facts: TopicFacts) -> str:
    """One self-contained HTML page."""
    sections = [
        _STYLE,
        *heading(facts.name, facts.sentence, good=facts.good, assurance=facts.assurance),
        *(f'<p class="outcome bad">{html.escape(text)}</p>' for text in [*facts.warnings, *_doubts(facts)]),
        tiles(_tiles(facts)),
        "<h2>Topics</h2>",
        _topics(facts),
        '<div class="plots">',
        *_plots(facts),
        "</div>",
        "<h2>Numbers</h2>",
        _numbers(facts),
        *_skipped(facts),
        *_usage(facts),
        *(["<h2>Parameters</h2>", table(facts.parameters.items())] if facts.parameters else []),
    ]
    return page(facts.name, sections)


def condition(facts: TopicFacts) -> float | None:
    """Largest eigenvalue of M2 over the k-th."""
    if facts.spectrum is None or len(facts.spectrum) < facts.model.k:
        return None
    last = float(facts.spectrum[facts.model.k - 1])
    return float(facts.spectrum[0]) / last if last > 0 else float("inf")


def _doubts(facts: TopicFacts) -> list[str]:
    """What makes these topics less certain, each with a remedy."""
    said, worst, given = [], condition(facts), 1.0 if facts.alpha0_given == 0 else facts.alpha0_given
    if worst is not None and worst > HIGH_CONDITION:
        said.append(
            f"M2 is badly conditioned: its first eigenvalue is {worst:.0f} times that of number {facts.model.k}, and "
            "noise in the last directions is enlarged as much. Ask for fewer topics, leave out the most frequent words "
            "(max_df), or give more documents."
        )
    if given is not None and abs(facts.model.alpha0 - given) > ALPHA0_TOLERANCE * given:
        said.append(
            f"The alphas that were found sum to {facts.model.alpha0:.3g} and should to {given:.3g}: the documents are "
            "no mixtures of so many topics. Take the alphas as proportions, or leave out frequent words (max_df)."
        )
    if facts.perplexity is not None and facts.perplexity.model >= facts.perplexity.unigram:
        said.append(
            "Held-out words are predicted no better than by their frequencies: ask for fewer topics, or give more "
            "documents."
        )
    return said


def _tiles(facts: TopicFacts) -> list[tuple[str, str]]:
    model, known, worst = facts.model, facts.coherence, condition(facts)
    skipped = sum(facts.skipped.values())
    found = [("topics", str(model.k)), ("words", f"{model.words:,}")]
    found += [] if facts.documents is None else [("documents", f"{facts.documents:,}")]
    found += [("documents left out", f"{skipped:,}")] if facts.skipped else []
    if known is not None:
        found += [("coherence c_npmi", f"{known.means[1]:.3f}"), ("coherence u_mass", f"{known.means[0]:.2f}")]
    if facts.perplexity is not None:
        found += [("held-out perplexity", f"{facts.perplexity.model:,.0f}")]
        found += [("of the unigram model", f"{facts.perplexity.unigram:,.0f}")]
    found += [("topic diversity, 25 words", f"{model.diversity():.0%}")]
    found += [] if worst is None else [("condition of M2", f"{worst:.1f}")]
    found += [] if facts.negative_mass is None else [("negative mass, mean", f"{facts.negative_mass.mean():.1%}")]
    return [*found, *facts.numbers]


def _topics(facts: TopicFacts) -> str:
    """A card for each topic, heaviest first; bars of the words of all cards are to one scale."""
    tops = facts.model.top_words(SHOWN)
    most = max(p for top in tops for _, p in top)
    cards = (
        _card(facts, int(topic), number, tops[topic], most) for number, topic in enumerate(facts.model.by_weight, 1)
    )
    return f'<div class="topics">{"".join(cards)}</div>'


def _card(facts: TopicFacts, topic: int, number: int, top: list[tuple[str, float]], most: float) -> str:
    said = [f"weight {facts.model.weights[topic]:.1%}"]
    if facts.negative_mass is not None:
        said[0] += f" · negative {facts.negative_mass[topic]:.1%}"
    if facts.coherence is not None:
        said += [f"c_npmi {facts.coherence.c_npmi[topic]:.3f} · u_mass {facts.coherence.u_mass[topic]:.2f}"]
    lines = "".join(
        f'<li><i style="width:{100 * p / most:.1f}%"></i><b>{html.escape(word)}</b><span>{p:.4f}</span></li>'
        for word, p in top
    )
    return f"<section><h3>{number}</h3><p>{'<br>'.join(said)}</p><ol>{lines}</ol></section>"


# Plots


def _plots(facts: TopicFacts) -> list[str]:
    drawn = [_weights_svg(facts)]
    drawn += [] if facts.spectrum is None else [_spectrum_svg(facts, facts.spectrum)]
    return drawn + ([_convergence_svg(facts)] if len(facts.convergence) else [])


def _weights_svg(facts: TopicFacts) -> str:
    figure, axis = axes("Weights of the topics", "topic", "share of all words")
    axis.bar(np.arange(1, facts.model.k + 1), facts.model.weights[facts.model.by_weight], color=BLUE)
    axis.xaxis.get_major_locator().set_params(integer=True)
    return svg(figure)


def _spectrum_svg(facts: TopicFacts, spectrum: np.ndarray) -> str:
    """Eigenvalues of M2: a gap behind the k-th says that there are k topics, a slope that there is no such number."""
    figure, axis = axes("Spectrum of M2 (pairs of words)", "eigenvalue", "")
    number, size = np.arange(1, len(spectrum) + 1), np.asarray(spectrum)
    inside = number <= facts.model.k
    axis.plot(number[inside], size[inside], "o", color=BLUE, label=f"kept (k = {facts.model.k})")
    if not inside.all():
        axis.plot(number[~inside], size[~inside], "o", color=ORANGE, label="not kept")
    if size.min() > 0 and size.max() >= 10 * size.min():
        axis.set_yscale("log")
    axis.axvline(facts.model.k + 0.5, color=GREY, linestyle="--", linewidth=1)
    axis.legend(frameon=False, fontsize=8)
    axis.xaxis.get_major_locator().set_params(integer=True)
    return svg(figure)


def _convergence_svg(facts: TopicFacts) -> str:
    figure, axis = axes("Tensor power method", "pass", "worst relative residual")
    passes = np.arange(1, len(facts.convergence) + 1)
    axis.semilogy(passes, np.maximum(facts.convergence, 1e-17), ".-", color=BLUE, label="worst relative residual")
    if facts.tol:
        axis.axhline(facts.tol, color=GREY, linestyle="--", linewidth=1, label=f"tol {facts.tol:.0e}")
    lines, labels = axis.get_legend_handles_labels()
    if len(facts.found):
        beside = axis.twinx()
        (line,) = beside.step(np.arange(1, len(facts.found) + 1), facts.found, where="post", color=ORANGE)
        beside.set_ylabel("components found", color=ORANGE)
        beside.set_ylim(0, facts.model.k + 0.5)
        beside.yaxis.get_major_locator().set_params(integer=True)
        lines, labels = [*lines, line], [*labels, "components found"]
    axis.legend(lines, labels, frameon=False, fontsize=8, loc="center left")
    axis.xaxis.get_major_locator().set_params(integer=True)
    return svg(figure)


# Tables


def _numbers(facts: TopicFacts) -> str:
    model = facts.model
    columns: dict[str, Any] = {
        "weight": [f"{w:.4f}" for w in model.weights],
        "alpha": [f"{a:.4g}" for a in model.alpha],
    }
    if facts.coherence is not None:
        columns["c_npmi"] = [f"{value:.3f}" for value in facts.coherence.c_npmi]
        columns["u_mass"] = [f"{value:.3f}" for value in facts.coherence.u_mass]
    if facts.negative_mass is not None:
        columns["negative mass"] = [f"{value:.2%}" for value in facts.negative_mass]
    columns["first words"] = [", ".join(word for word, _ in top) for top in model.top_words(5)]
    rows = ((number, *(column[t] for column in columns.values())) for number, t in enumerate(model.by_weight, 1))
    return table(rows, ("topic", *columns))


def _skipped(facts: TopicFacts) -> list[str]:
    if not facts.skipped:
        return []
    return ["<h2>Documents left out</h2>", table(facts.skipped.items(), ("why", "documents"))]


def _usage(facts: TopicFacts) -> list[str]:
    store = html.escape(shlex.quote(facts.store))
    return [
        "<h2>Topics of new documents</h2>",
        f"<p>The shares of these topics in other documents, counted with the same {facts.model.words:,} words"
        f"{_of_more(facts.model)}: out of core, a row for each document, rows sum to 1.</p>",
        f"<pre>npmdask transform {store} DOCUMENTS shares.zarr</pre>",
    ]


def _of_more(model: TopicModel) -> str:
    return "" if model.kept is None else f" (or all {model.source_columns:,} that these were chosen from)"


_STYLE = """<style>
.topics { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: 10px; margin-bottom: 10px }
.topics section { background: #fff; border-radius: 6px; padding: 10px 14px }
.topics h3 { float: left; margin: 0 10px 0 0; color: #2166ac; font-size: 19px; line-height: 1.2 }
.topics p { margin: 0 0 6px; color: #666; font-size: 12px }
.topics ol { list-style: none; margin: 0; padding: 0; clear: both }
.topics li { position: relative; display: flex; justify-content: space-between; padding: 1px 4px; font-size: 13px }
.topics i { position: absolute; left: 0; top: 2px; bottom: 2px; background: #d1e5f0; border-radius: 2px }
.topics b { position: relative; font-weight: 500; overflow-wrap: anywhere }
.topics span { position: relative; color: #666 }
pre { background: #fff; padding: 10px 14px; border-radius: 6px; overflow-x: auto }
</style>"""


# Topics as text for a terminal: a line for each.


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
