"""Jobs of several stages (topics, mixtures, independent components): going on with one, its facts, its page."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError
from npmdask.models.latent.answers import LatentAnswer, read_latent, resume_latent
from npmdask.models.topics.report import TopicFacts, page_of
from npmdask.models.topics.run import TopicAnswer, read_topics, resume_topics
from npmdask.report.html import heading, page, parameters, spectrum_svg, table, tiles
from npmdask.report.plots import BLUE, axes, svg
from npmdask.runs.observers import Observer
from npmdask.runs.solution import Resources
from npmdask.runs.tensor_problem import JOBS

TOPICS = "topics"
TABLES = ("data", "algorithm", "stop", "run", "version", "environment")

Answer = TopicAnswer | LatentAnswer


def kind_of(spec: dict[str, Any]) -> str | None:
    """The kind of a job, from the parameters of its store; None for a run of another sort."""
    kind = spec["data"].get("kind")
    return kind if kind in JOBS else None


def is_job(answer: Any) -> bool:
    """Whether this is the answer of a job."""
    return isinstance(answer, TopicAnswer | LatentAnswer)


def resume_job(store: str | Path, resources: Resources, observer: Observer | None = None) -> Answer:
    """Go on with the job in ``store`` from its last commit; a finished one answers without a pass."""
    with RunStore(store) as held:
        kind = kind_of(held.read_spec() or {})
        if kind == TOPICS:
            return resume_topics(held, resources, observer or Observer())
    return resume_latent(store, resources, observer or Observer())


def read_job(store: str | Path) -> Answer:
    """The answer of a finished job.

    Raises
    ------
    BadInputError
        There is none yet.
    """
    spec = RunStore(store).read_spec() or {}
    return read_topics(store) if kind_of(spec) == TOPICS else read_latent(store)


def job_summary(answer: Answer) -> dict[str, Any]:
    """The facts of an answer as plain numbers and strings."""
    common: dict[str, Any] = {
        "outcome": answer.outcome.name,
        "sentence": answer.outcome.sentence,
        "assurance": answer.assurance,
        "store": answer.store,
    }
    common |= {"warnings": list(answer.warnings)}
    if isinstance(answer, LatentAnswer):
        return common | {"kind": answer.kind, "weights": answer.weights.tolist(), **answer.facts}
    model, measured = answer.model, answer.coherence
    top = model.top_words(measured.top)
    topics = [
        {
            "weight": float(model.weights[t]),
            "alpha": float(model.alpha[t]),
            "u_mass": float(measured.u_mass[t]),
            "c_npmi": float(measured.c_npmi[t]),
            "words": [word for word, _ in top[t]],
        }
        for t in model.by_weight
    ]
    u_mass, c_npmi = measured.means
    more = {} if answer.perplexity is None else {"perplexity": answer.perplexity.model}
    more |= {} if answer.perplexity is None else {"unigram_perplexity": answer.perplexity.unigram}
    facts = {name: value for name, value in model.facts.items() if name != "warnings"}
    return common | {"kind": TOPICS, "c_npmi": c_npmi, "u_mass": u_mass, **more, **facts, "topics": topics}


def job_page(run: RunStore, spec: dict[str, Any]) -> str:
    """The page of a finished job.

    Raises
    ------
    BadInputError
        It is not finished.
    """
    answer = read_job(run.path)
    return _topics_page(run, spec, answer) if isinstance(answer, TopicAnswer) else _latent_page(run, spec, answer)


def _topics_page(run: RunStore, spec: dict[str, Any], answer: TopicAnswer) -> str:
    facts = answer.model.facts
    history = _history(run)
    return page_of(
        TopicFacts(
            name=run.path.name,
            sentence=answer.outcome.sentence,
            assurance=answer.assurance,
            good=answer.answered,
            model=answer.model,
            store=run.place,
            coherence=answer.coherence,
            perplexity=answer.perplexity,
            negative_mass=np.array(facts["negative_mass"]),
            spectrum=np.array(facts["spectrum"]),
            convergence=[step["worst_residual"] for step in history],
            found=[sum(value != 0 for value in step["ritz_values"]) for step in history],
            tol=spec["stop"]["tensor_tol"],
            alpha0_given=spec["algorithm"]["alpha0"] or None,
            documents=facts["documents"],
            skipped={"fewer than three words": facts["skipped"]},
            numbers=[("passes over the documents", str(facts["passes"])), ("words", str(facts["word_count"]))],
            warnings=[text for text in answer.warnings if not text.startswith("the condition number")],
            parameters={f"{name}.{key}": value for name in TABLES for key, value in spec.get(name, {}).items()},
        )
    )


def _history(run: RunStore) -> list[dict[str, Any]]:
    """The steps of the decomposition."""
    found = RunStore(run.path / "decomposition").read_part("result")
    if found is None:
        raise BadInputError(f"{run.path} holds no decomposition; `npmdask resume {run.path}` finishes the job")
    history: list[dict[str, Any]] = found[1]["history"]
    return history


def _latent_page(run: RunStore, spec: dict[str, Any], answer: LatentAnswer) -> str:
    rows = ((i, f"{weight:.6g}") for i, weight in enumerate(answer.weights, 1))
    sections = [
        *heading(run.path.name, answer.outcome.sentence, good=answer.answered, assurance=answer.assurance),
        *(f'<p class="outcome bad">{html.escape(text)}</p>' for text in answer.warnings),
        tiles([(name, f"{value:.6g}") for name, value in answer.facts.items() if isinstance(value, float | int)]),
        '<div class="plots">',
        _convergence(run),
        spectrum_svg(np.array(answer.facts["spectrum"]), "eigenvalue of the second moment"),
        "</div>",
        "<h2>Components</h2>",
        table(rows, ("component", answer.weight_name)),
        "<h2>Parameters</h2>",
        parameters(spec, TABLES),
    ]
    return page(run.path.name, sections)


def _convergence(run: RunStore) -> str:
    history = _history(run)
    figure, axis = axes("Convergence of the tensor power method", "product", "worst relative residual")
    axis.semilogy(
        [step["step"] for step in history], [max(step["worst_residual"], 1e-17) for step in history], "o-", color=BLUE
    )
    axis.xaxis.get_major_locator().set_params(integer=True)
    return svg(figure)
