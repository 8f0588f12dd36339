"""The report of a topic model: its words, how good they are, what they were found from, and how they are used."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import xlogy

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.manage.staged_job import TABLES, decomposition_history, job_report
from npmdask.report import Bars, Plot, Report, Rule, Section, Table, Text, TopicMap
from npmdask.report.blocks import section, series, spans_a_decade, table, tiles, warnings
from npmdask.topics.model import TopicModel
from npmdask.topics.quality import Coherence, Perplexity
from npmdask.topics.run import NAMES, corpus_rows, document_names, read_topics
from npmdask.topics.transform import StrongestDocuments

# How far topics are apart, and which words tell one from the others.

STRIP_BYTES = 8 * 2**20  # of the words that all topics are compared in at once
LAMBDAS = np.linspace(0, 1, 21)  # at which words are ranked: a slider in steps of 0.05


class Plane(NamedTuple):
    """Topics as points of a plane: ``places`` (k x 2), and the share (0 to 1) of their squared distances that is seen
    in it."""

    places: Block
    seen: float


def jensen_shannon(topics: Block) -> Block:
    """Jensen-Shannon distances of the columns (distributions over V words), k x k, in nats^(1/2).

    The square root of ``H((p + q) / 2) - (H(p) + H(q)) / 2``: 0 where two are the same, sqrt(log 2) where they share no
    word. Unlike its square, which pyLDAvis takes, it is a distance, and points of a Euclidean space have it (Endres
    and Schindelin 2003; Fuglede and Topsøe 2004).
    """
    v, k = topics.shape
    squares = np.zeros((k, k))
    step = max(1, STRIP_BYTES // (8 * k))
    for first in range(0, v, step):
        strip = topics[first : first + step]
        alone = xlogy(strip, strip).sum(axis=0)
        for i in range(k):
            middle = (strip[:, i : i + 1] + strip[:, i:]) / 2
            squares[i, i:] += (alone[i] + alone[i:]) / 2 - xlogy(middle, middle).sum(axis=0)
    squares = np.triu(squares, 1)
    return np.asarray(np.sqrt(np.maximum(squares + squares.T, 0.0)))  # less than 0 by rounding only


def classical_scaling(distances: Block) -> Plane:
    """Points of a plane whose distances are as near to those given (k x k) as one projection makes them.

    The two leading eigenvectors of the centred matrix of ``-distances^2 / 2`` (Torgerson 1952). Of each axis the point
    that is farthest from the middle has a positive coordinate.
    """
    k = len(distances)
    squares = distances**2
    middle = squares.mean(axis=0)
    values, vectors = np.linalg.eigh(-(squares - middle - middle[:, None] + middle.mean()) / 2)
    largest = [i for i in range(k - 1, max(k - 3, -1), -1) if values[i] > 1e-12 * max(values[-1], 0.0)]
    places = np.zeros((k, 2))
    for axis, i in enumerate(largest):
        column = vectors[:, i] * np.sqrt(values[i])
        places[:, axis] = column * (1 if column[np.argmax(np.abs(column).round(12))] > 0 else -1)
    total = float(values[values > 0].sum())
    return Plane(places, float(values[largest].sum()) / total if total else 1.0)


def topic_map(topics: Block) -> Plane:
    """Place topics (V x k) on a page."""
    return classical_scaling(jensen_shannon(topics))


def relevant_words(model: TopicModel, topic: int, count: int) -> np.ndarray:
    """Words (as places in the vocabulary, rising) that are among the ``count`` most relevant ones of a topic for some
    lambda.

    Relevance is ``lambda log p(w | topic) + (1 - lambda) log(p(w | topic) / p(w))`` (Sievert and Shirley 2014,
    equation 1), p(w) that of the model: all topics by their weights. 1 ranks by probability, 0 by how much a word is
    this topic's own. Words that the topic has not are left out.
    """
    of_topic = model.topics[:, topic]
    there = np.flatnonzero(of_topic)
    likely = np.log(of_topic[there])
    lift = likely - np.log(model.topics[there] @ model.weights)
    # Words that no other topic has are equally its own, but for rounding: then the likelier one is first.
    ranked = [np.lexsort((-likely, -(at * likely + (1 - at) * lift).round(9))) for at in LAMBDAS]
    found = [order[:count] for order in ranked]
    return np.asarray(there[np.unique(np.concatenate(found))])


# The report.

HIGH_CONDITION = 10.0  # above: the warning of SpectralLDA-Spark, the implementation that users know
SHOWN = 10
STRONGEST = "Strongest documents"  # the title of a section
DOCUMENTS, IN_TITLE = 5, 4  # documents of a topic, and words that it is named by beside them
# topics on the map, heaviest first, and words of each for every lambda: a page stays below 1 MB
ON_MAP, RANKED = 100, 30
SEEN_IN = 0.005  # share of a word's occurrences from which on the map shows that a topic has it, too
ALPHA0_TOLERANCE = 0.1


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """Facts for the report; the perplexity is None where no document was held out.

    ``spectrum``: eigenvalues of M2, largest first, of more than k where they are known; ``negative_mass`` (k): what the
    estimate of each topic had below 0 before it was projected on the simplex, as a share of its mass; ``convergence``:
    the worst relative residual after each pass of the tensor power method; ``found``: components found by then;
    ``tol``: asked for; ``alpha0_given``: 0 of single topics, whose weights sum to 1; ``documents``: rows of the corpus;
    ``skipped``: documents that were left out, by reason; ``numbers``: more tiles (name, value); ``parameters``: of the
    run, by name; ``store``: folder of the run.
    """

    model: TopicModel
    store: str
    coherence: Coherence
    perplexity: Perplexity | None
    negative_mass: np.ndarray
    spectrum: np.ndarray
    convergence: Sequence[float]
    found: Sequence[int]
    tol: float
    alpha0_given: float | None
    documents: int
    skipped: Mapping[str, int]
    numbers: Sequence[tuple[str, str]]
    warnings: Sequence[str]
    parameters: Mapping[str, Any]


def topics_report(run: RunStore, spec: dict[str, Any]) -> Report:
    """Report a finished job.

    Raises
    ------
    BadInputError
        It is not finished.
    """
    answer = read_topics(run.path)
    facts, history = answer.model.facts, decomposition_history(run)
    sections = topic_sections(
        TopicFacts(
            store=run.place,
            **attributes(answer, "model", "coherence", "perplexity"),
            negative_mass=np.array(facts["negative_mass"]),
            spectrum=np.array(facts["spectrum"]),
            convergence=[step["worst_residual"] for step in history],
            found=[sum(value != 0 for value in step["ritz_values"]) for step in history],
            tol=spec["stop"]["tensor_tol"],
            alpha0_given=spec["algorithm"]["alpha0"] or None,
            documents=facts["documents"],
            skipped={"fewer than three words": facts["skipped"]},
            numbers=[
                ("passes over the documents", str(facts["passes"])),
                ("words in them", f"{facts['word_count']:,}"),
            ],
            warnings=[text for text in answer.warnings if not text.startswith("the condition number")],
            parameters={f"{name}.{key}": value for name in TABLES for key, value in spec.get(name, {}).items()},
        )
    )
    return job_report(run, answer, *sections)


def topic_sections(facts: TopicFacts) -> list[Section]:
    """Show what is known."""
    plots = _weights(facts), _spectrum(facts.model.k, facts.spectrum), _convergence(facts)
    return [
        section("", *warnings([*facts.warnings, *_doubts(facts)]), tiles(_tiles(facts))),
        section("Topics", _map(facts.model), *_cards(facts), *plots),
        section("Numbers", _numbers(facts)),
        section("Documents left out", table(facts.skipped.items(), ("why", "documents"))),
        _usage(facts),
        section("Parameters", table(facts.parameters.items())),
    ]


def condition(facts: TopicFacts) -> float | None:
    """Largest eigenvalue of M2 over the k-th."""
    if len(facts.spectrum) < facts.model.k:
        return None
    last = float(facts.spectrum[facts.model.k - 1])
    return float(facts.spectrum[0]) / last if last > 0 else float("inf")


def _doubts(facts: TopicFacts) -> list[str]:
    """List what makes these topics less certain, each with a remedy."""
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
    found = [
        ("topics", str(model.k)),
        ("different words", f"{model.words:,}"),
        ("documents", f"{facts.documents:,}"),
        ("documents left out", f"{sum(facts.skipped.values()):,}"),
        ("coherence c_npmi", f"{known.means[1]:.3f}"),
        ("coherence u_mass", f"{known.means[0]:.2f}"),
    ]
    if facts.perplexity is not None:
        found += [("held-out perplexity", f"{facts.perplexity.model:,.0f}")]
        found += [("perplexity by word frequencies alone", f"{facts.perplexity.unigram:,.0f}")]
    found += [("topic diversity, 25 words", f"{model.diversity():.0%}")]
    found += [] if worst is None else [("condition of M2", f"{worst:.1f}")]
    return [*found, ("negative mass, mean", f"{facts.negative_mass.mean():.1%}"), *facts.numbers]


def _map(model: TopicModel) -> TopicMap:
    """Topics on a map, heaviest first, and the words that are relevant for one of them."""
    shown = model.by_weight[:ON_MAP]
    found = topic_map(model.topics[:, shown])
    relevant = [relevant_words(model, int(topic), RANKED) for topic in shown]
    listed = np.zeros((model.words, len(shown)), bool)
    for number, words in enumerate(relevant):
        listed[words, number] = True
    overall = model.topics @ model.weights
    chosen = np.flatnonzero(listed.any(axis=1))
    share = model.topics[np.ix_(chosen, shown)] * model.weights[shown] / overall[chosen, None]
    listed[chosen] |= share >= SEEN_IN
    left_out = f" Shown are the {len(shown)} heaviest of {model.k} topics." if len(shown) < model.k else ""
    return TopicMap(
        title="Map of the topics",
        topics=tuple(
            (str(number), float(x), float(y), float(model.weights[topic]))
            for number, (topic, (x, y)) in enumerate(zip(shown, found.places, strict=True), 1)
        ),
        words=tuple(
            (
                model.vocabulary[word],
                float(overall[word]),
                tuple((int(n), float(model.topics[word, shown[n]])) for n in np.flatnonzero(listed[word])),
            )
            for word in chosen
        ),
        about="The area of a circle is the topic's share of all words. Topics with similar words lie close together: "
        f"the map shows {found.seen:.0%} of their squared Jensen-Shannon distances.{left_out}",
    )


def _cards(facts: TopicFacts) -> list[Bars]:
    """A card for each topic, heaviest first; bars of the words of all cards are to one scale."""
    tops = facts.model.top_words(SHOWN)
    most = max(p for top in tops for _, p in top)
    return [
        Bars(
            title=str(number),
            notes=_notes(facts, int(topic)),
            bars=tuple((word, float(p)) for word, p in tops[topic]),
            most=most,
        )
        for number, topic in enumerate(facts.model.by_weight, 1)
    ]


def _notes(facts: TopicFacts, topic: int) -> tuple[str, ...]:
    """Weight and negative mass of a topic on one line, its coherence on the next."""
    return (
        f"weight {facts.model.weights[topic]:.1%} · negative {facts.negative_mass[topic]:.1%}",
        f"c_npmi {facts.coherence.c_npmi[topic]:.3f} · u_mass {facts.coherence.u_mass[topic]:.2f}",
    )


def documents_section(run: RunStore, model: TopicModel, found: StrongestDocuments) -> Section:
    """Show the documents in which each topic is strongest, heaviest topic first."""
    said = "Documents in which each topic has the largest share, of those that the topics were found of."
    if run.part_meta(NAMES) is None:
        said += " Documents are counted from 1, in the order of the corpus."
    tops, cards = model.top_words(IN_TITLE), []
    for number, topic in enumerate(model.by_weight[: len(found.rows)], 1):
        there = found.rows[number - 1] >= 0
        names = document_names(run, corpus_rows(run, found.rows[number - 1][there]))
        lengths = found.lengths[number - 1][there]
        cards.append(
            Bars(
                title=str(number),
                notes=(
                    " ".join(word for word, _ in tops[topic]),
                    f"lengths: {', '.join(f'{n:,}' for n in lengths)}",
                ),
                bars=tuple(zip(names, map(float, found.shares[number - 1][there]), strict=True)),
                most=1.0,
            )
        )
    return section(STRONGEST, Text(text=said), *cards)


# Plots


def _weights(facts: TopicFacts) -> Plot:
    weights = facts.model.weights[facts.model.by_weight]
    drawn = series(range(1, facts.model.k + 1), weights, style="bars")
    return Plot(title="Weights of the topics", x="topic", y="share of all words", series=(drawn,))


def _spectrum(k: int, spectrum: np.ndarray) -> Plot:
    """Eigenvalues of M2: a gap behind the k-th says that there are k topics, a slope that there is no such number."""
    sizes = np.asarray(spectrum)
    drawn = [series(range(1, min(k, len(sizes)) + 1), sizes[:k], f"kept (k = {k})", style="points")]
    if len(sizes) > k:
        drawn.append(series(range(k + 1, len(sizes) + 1), sizes[k:], "not kept", style="points"))
    return Plot(
        title="Spectrum of M2 (pairs of words)",
        x="eigenvalue",
        series=tuple(drawn),
        log=spans_a_decade(sizes.tolist()),
        rules=(Rule(x=k + 0.5),),
    )


def _convergence(facts: TopicFacts) -> Plot:
    residuals = np.maximum(facts.convergence, 1e-17)
    passes = range(1, len(residuals) + 1)
    return Plot(
        title="Tensor power method",
        x="pass",
        y="worst relative residual",
        right="components found",
        right_top=facts.model.k + 0.5,
        series=(
            series(passes, residuals, "worst relative residual", style="thin"),
            series(passes, facts.found, "components found", style="steps", right=True),
        ),
        log=True,
        rules=(Rule(y=facts.tol, name=f"tol {facts.tol:.0e}"),),
    )


# Tables


def _numbers(facts: TopicFacts) -> Table:
    model = facts.model
    columns: dict[str, Any] = {
        "weight": [f"{w:.4f}" for w in model.weights],
        "alpha": [f"{a:.4g}" for a in model.alpha],
        "c_npmi": [f"{value:.3f}" for value in facts.coherence.c_npmi],
        "u_mass": [f"{value:.3f}" for value in facts.coherence.u_mass],
        "negative mass": [f"{value:.2%}" for value in facts.negative_mass],
        "first words": [", ".join(word for word, _ in top) for top in model.top_words(5)],
    }
    rows = ((number, *(column[t] for column in columns.values())) for number, t in enumerate(model.by_weight, 1))
    return table(rows, ("topic", *columns))


def _usage(facts: TopicFacts) -> Section:
    said = (
        f"The shares of these topics in other documents, counted with the same {facts.model.words:,} words"
        f"{_source_columns_text(facts.model)}: out of core, a row for each document, rows sum to 1."
    )
    command = f"npmdask transform {shlex.quote(facts.store)} DOCUMENTS shares.zarr"
    return section("Topics of new documents", Text(text=said), Text(text=command, style="code"))


def _source_columns_text(model: TopicModel) -> str:
    return "" if model.kept is None else f" (or all {model.source_columns:,} that these were chosen from)"


# Topics as text for a terminal: a line for each.


def text_of(model: TopicModel, n: int = 10, *, coherence: Coherence | None = None) -> str:
    """A table of the topics, heaviest first: weight, coherence where it is known, top words."""
    columns: dict[str, list[str]] = {"topic": [str(number) for number in range(1, model.k + 1)]}
    columns["weight"] = [f"{model.weights[t]:.3f}" for t in model.by_weight]
    if coherence is not None:
        columns["c_npmi"] = [f"{coherence.c_npmi[t]:.3f}" for t in model.by_weight]
        columns["u_mass"] = [f"{coherence.u_mass[t]:.2f}" for t in model.by_weight]
    tops = model.top_words(n)
    rows = zip(*columns.values(), (" ".join(word for word, _ in tops[t]) for t in model.by_weight), strict=True)
    widths = [max(len(name), *map(len, column)) for name, column in columns.items()]
    lines = ((*columns, "words"), *rows)
    return "\n".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]) for line in lines
    )
