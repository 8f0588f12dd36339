"""Topics of counts by npmdask in a process of its own: ``python -m benchmarks.topics_solve JOB``, one JSON line.

A small part of the documents is fitted first; then the time (CPU seconds of the process, user and system) of two
things: everything, from a matrix in memory to topics and their coherence (a store is written and read), and the fit of
the store alone. With ``file`` (a UCI bag of words) and ``vocabulary`` also the whole job as `npmdask topics` does it:
text, a tenth of the documents held out, coherence and perplexity.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, load_npz
from threadpoolctl import threadpool_limits

from benchmarks.children import as_child
from benchmarks.timing import clocked
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.topics.documents import documents_of, write_documents
from npmdask.topics.model import TopicModel
from npmdask.topics.run import CorpusFilter, fit_topics, run_topics

ONE = Resources(threads=1)
KEPT = ("documents", "skipped", "condition", "passes", "tensor_outcome", "warnings")  # of what is known of a model


class Stages(Observer):
    """CPU seconds from the beginning of each stage to that of the next."""

    def __init__(self) -> None:
        self._marks = [("totals", time.process_time())]

    def on_stage(self, name: str) -> None:
        self._marks.append((name.partition(":")[0], time.process_time()))

    def cpu_seconds(self) -> dict[str, float]:
        """Up to now; moments are formed within the stage before the decomposition."""
        ends = [began for _, began in self._marks[1:]] + [time.process_time()]
        return {name: round(end - began, 3) for (name, began), end in zip(self._marks, ends, strict=True)}


def main(job: dict[str, Any]) -> dict[str, Any]:
    """``counts``: a .npz of documents x words; ``topics``: k; ``asked``: further fields of the request."""
    counts, folder = load_npz(job["counts"]).tocsr(), Path(job["folder"])
    folder.mkdir(parents=True)
    _whole(counts[: max(100, counts.shape[0] // 10)], folder / "first", job)
    model, whole = clocked(lambda: _whole(counts, folder / "whole", job))
    store = folder / "documents.zarr"
    documents = documents_of(counts)
    _, writing = clocked(lambda: write_documents(documents, store, [f"w{i}" for i in range(counts.shape[1])]))
    stages = Stages()
    again, fitting = clocked(
        lambda: fit_topics(store, job["topics"], store=folder / "fit", resources=ONE, observer=stages, **job["asked"])
    )
    by_stage = stages.cpu_seconds()
    facts = {"from memory": whole, "writing the store": writing, "from the store": fitting}
    if "file" in job:
        _, facts["from the text"] = clocked(
            lambda: run_topics(
                job["file"], job["topics"], job["vocabulary"], store=folder / "text", resources=ONE, **job["asked"]
            )
        )
    np.save(folder / "topics.npy", model.topics)
    same = float(np.abs(model.topics - again.topics).max())
    kept = {name: model.facts[name] for name in KEPT}
    return {
        **facts,
        "cpu_seconds_by_stage": by_stage,
        "answer": str(folder / "topics.npy"),
        "facts": kept,
        "same": same,
    }


def _whole(counts: csr_matrix, store: Path, job: dict[str, Any]) -> TopicModel:
    cut = CorpusFilter(held_out=0.0)
    return run_topics(counts, job["topics"], store=store, cut=cut, resources=ONE, **job["asked"]).model


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        as_child(main)
