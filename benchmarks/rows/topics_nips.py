"""20 topics of 1500 papers (NIPS, bag of words): coherence and CPU time beside gensim's LdaModel.

Coherence is c_npmi of the ten top words, of both by the same function, from the same documents: words occur together
when they are in one document.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack

from benchmarks.children import ROOT, in_child, last_json, peer_command
from benchmarks.registry import CannotRunError, Context, Measured, Row
from benchmarks.topic_cases import saved
from npmdask.topics.documents import documents_of
from npmdask.topics.quality import Cooccurrence, coherence_of, cooccurrence

DATA = ROOT.parent / "shared" / "data"
DOCWORD, VOCABULARY = "nips-docword.txt.gz", "nips-vocab.txt"
TOPICS, TOP = 20, 10
PASSES = (1, 10)  # gensim's default, and enough for it to settle
SMALL = 300  # documents of the small scale


def coherent(context: Context) -> Measured:
    """Gensim's better one less ours, means over seeds."""
    counts = corpus(context)
    found = {f"gensim, passes = {passes}": _theirs(context, counts, passes)[0] for passes in PASSES}
    found["npmdask"] = [_ours(context, counts, seed)[0] for seed in range(_seeds(context))]
    mean = {name: statistics.mean(run["c_npmi"] for run in runs) for name, runs in found.items()}
    best = max(value for name, value in mean.items() if name != "npmdask")
    details = {**_shape(counts), "c_npmi": {name: round(value, 4) for name, value in mean.items()}, "runs": found}
    return Measured(best - mean["npmdask"], details, f"gensim has {best:.3f}, we have {mean['npmdask']:.3f}")


def quick(context: Context) -> Measured:
    """Our fit of documents in a store over gensim's of documents in memory: the corpus as each of them likes it."""
    counts, rounds = corpus(context), _seeds(context)
    ours = [_ours(context, counts, seed)[1] for seed in range(rounds)]
    theirs = {passes: statistics.median(_theirs(context, counts, passes)[1]) for passes in PASSES}
    ways = [name for name in ours[0] if name.startswith(("from", "writing"))]
    mine = {name: statistics.median(run[name]["cpu_seconds"] for run in ours) for name in ways}
    details = {
        **_shape(counts),
        "cpu_seconds": {"npmdask": mine} | {f"gensim, passes = {passes}": value for passes, value in theirs.items()},
        "over_gensim": {
            f"{name}, passes = {passes}": round(value / theirs[passes], 4)
            for name, value in mine.items()
            for passes in PASSES
        },
        "cpu_seconds_by_stage": ours[0]["cpu_seconds_by_stage"],
        "facts": ours[0]["facts"],
    }
    said = ", ".join(f"{name} {value:.2f}" for name, value in ours[0]["cpu_seconds_by_stage"].items())
    why = (
        f"ours takes {mine['from the store']:.2f} CPU s ({said}): whitening is block Krylov's own algebra on blocks as "
        "long as the vocabulary, decomposition a checkpoint and a task graph for every product with k^3 numbers"
    )
    return Measured(mine["from the store"] / theirs[PASSES[-1]], details, why)


def corpus(context: Context) -> csr_matrix:
    """All the documents, or the first of them.

    Raises
    ------
    CannotRunError
        The corpus is not on this machine.
    """
    for name in (DOCWORD, VOCABULARY):
        if not (DATA / name).exists():
            raise CannotRunError(
                f"{name} is not in shared/data beside the repository: get docword.nips.txt.gz and "
                "vocab.nips.txt of the UCI bag of words and put them there under these names"
            )
    counts = csr_matrix(vstack(list(documents_of(DATA / DOCWORD).read())).astype(np.int32))
    return counts[:SMALL] if context.scale == "small" else counts


def _seeds(context: Context) -> int:
    return context.sized(1, 3)


def _ours(context: Context, counts: csr_matrix, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    job: dict[str, Any] = {
        "counts": _counts_file(context, counts),
        "folder": str(context.folder / f"ours-{seed}"),
        "topics": TOPICS,
        "asked": {"seed": seed},
    }
    if context.scale != "small":
        job |= {"file": str(DATA / DOCWORD), "vocabulary": str(DATA / VOCABULARY)}
    facts = in_child("benchmarks.topics_solve", job, folder=context.folder)
    return _quality(np.load(facts["answer"]), counts), facts


def _theirs(context: Context, counts: csr_matrix, passes: int) -> tuple[list[dict[str, Any]], list[float]]:
    job = {"peer": "gensim", "counts": _counts_file(context, counts), "topics": TOPICS, "passes": passes}
    runs = [
        last_json(peer_command("topics", job | {"seed": seed}), folder=context.folder)
        for seed in range(_seeds(context))
    ]
    return [_quality(np.load(run["answer"]), counts) for run in runs], [run["cpu_seconds"] for run in runs]


def _counts_file(context: Context, counts: csr_matrix) -> str:
    path = context.folder / "counts.npz"
    return str(path) if path.exists() else saved(counts, path)


def _quality(topics: np.ndarray, counts: csr_matrix) -> dict[str, Any]:
    top = np.argsort(-topics, axis=0, kind="stable")[:TOP].T
    counted: Cooccurrence = cooccurrence([counts], top)
    found = coherence_of(top, counted)
    return {
        "c_npmi": float(found.c_npmi.mean()),
        "u_mass": float(found.u_mass.mean()),
        "topics": len(top),
        "distinct_share_of_top_words": round(len(np.unique(top)) / top.size, 3),
    }


def _shape(counts: csr_matrix) -> dict[str, Any]:
    documents, words = counts.shape
    return {"documents": documents, "vocabulary": words, "entries": int(counts.nnz), "topics": TOPICS, "top": TOP}


ROWS = (
    Row(
        name="topics-nips",
        what="c_npmi of gensim's LdaModel less ours, 20 topics of the NIPS corpus (below 0: ours is better)",
        target=0.02,
        better="lower",
        run=coherent,
    ),
    Row(
        name="topics-nips-time",
        what="CPU time of that fit / LdaModel with 10 passes",
        target=0.1,
        better="lower",
        run=quick,
    ),
)
