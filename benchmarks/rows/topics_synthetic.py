"""Topics of short documents that are drawn from the model: errors, and CPU time beside scikit-learn's batch LDA."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from benchmarks.children import in_child, last_json, peer_command
from benchmarks.registry import Context, Measured, Row
from benchmarks.topic_cases import ALPHA, LENGTH, WORDS, corpus, saved, topic_errors

DOCUMENTS, K = 20_000, len(ALPHA)
ITERATIONS = 30  # of scikit-learn's batch method
SEEDS = 5
A0 = float(ALPHA.sum())


def accuracy(context: Context) -> Measured:
    """Several corpora; the figure is the mean, the worst is beside it."""
    seeds = range(context.sized(2, SEEDS))
    errors = {f"seed {seed}": _ours(context, seed)[0] for seed in seeds}
    means = [float(np.mean(found)) for found in errors.values()]
    details = {
        **_shape(context),
        "worst_corpus": max(means),
        "worst_topic": max(float(np.max(found)) for found in errors.values()),
        "by_topic": {name: [round(float(error), 4) for error in found] for name, found in errors.items()},
        "alpha": ALPHA.tolist(),
    }
    return Measured(statistics.mean(means), details, "sampling errors of the rare topics")


def speed(context: Context) -> Measured:
    """Theirs over ours, one after the other on the same corpora."""
    runs: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {"npmdask": [], "scikit-learn": []}
    for seed in range(context.sized(1, 3)):
        found, facts, topics = _ours(context, seed)
        job = {"counts": str(context.folder / f"counts-{seed}.npz"), "topics": K, "passes": ITERATIONS, "seed": seed}
        theirs = last_json(peer_command("topics", job | {"peer": "sklearn", "prior": A0 / K}), folder=context.folder)
        for name in ("from memory", "writing the store", "from the store"):
            runs.setdefault(name, []).append(facts[name]["cpu_seconds"])
        runs.setdefault("scikit-learn", []).append(theirs["cpu_seconds"])
        errors["npmdask"].append(float(np.mean(found)))
        errors["scikit-learn"].append(float(np.mean(topic_errors(np.load(theirs["answer"]), topics))))
    middle = {name: statistics.median(values) for name, values in runs.items()}
    peer = middle.pop("scikit-learn")
    details = {
        **_shape(context),
        "iterations": ITERATIONS,
        "times_faster": {name: round(peer / value, 1) for name, value in middle.items()},
        "cpu_seconds": {name: [round(value, 3) for value in values] for name, values in runs.items()},
        "l1_error": errors,
    }
    why = f"of {middle['from memory']:.2f} CPU s {middle['from the store']:.2f} are the fit, the rest writes a store"
    return Measured(peer / middle["from memory"], details, why)


def _ours(context: Context, seed: int) -> tuple[np.ndarray, dict[str, Any], np.ndarray]:
    """Errors by topic, what it cost, and the true topics."""
    topics, counts = corpus(context.sized(3000, DOCUMENTS), seed)
    path = saved(counts, context.folder / f"counts-{seed}.npz")
    job = {"counts": path, "folder": str(context.folder / f"ours-{seed}"), "topics": K, "asked": {"alpha0": A0}}
    facts = in_child("benchmarks.topics_solve", job, folder=context.folder)
    return topic_errors(np.load(facts["answer"]), topics), facts, topics


def _shape(context: Context) -> dict[str, Any]:
    documents = context.sized(3000, DOCUMENTS)
    return {"documents": documents, "words_in_each": LENGTH, "vocabulary": WORDS, "topics": K}


ROWS = (
    Row(
        name="topics-synthetic",
        what="mean L1 error (0 to 2) of a topic, 20,000 LDA documents of 8 words, V = 200, k = 5",
        target=0.08,
        better="lower",
        run=accuracy,
    ),
    Row(
        name="topics-time",
        what="CPU time of scikit-learn's batch LDA (30 iterations) / ours, same counts",
        target=50.0,
        run=speed,
    ),
)
