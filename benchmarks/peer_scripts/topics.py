"""Topics of counts by variational inference: ``topics.py '{"peer": "gensim", "counts": FILE.npz, "topics": 20, ...}'``.

The answer is one JSON line: CPU seconds (user and system) and seconds of the fit, once a tenth of the documents has
been fitted; the topics (words x k, columns sum to 1) are saved beside the counts. ``passes`` as gensim's, or the
iterations of scikit-learn's batch method. BLAS has one thread.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, load_npz
from threadpoolctl import threadpool_limits

Fit = Callable[[], np.ndarray]  # words x k


def by_sklearn(counts: csr_matrix, job: dict[str, Any]) -> Fit:
    """LatentDirichletAllocation, batch; ``doc_topic_prior`` is told, as a number for all topics: it takes no other."""
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(
        job["topics"],
        learning_method="batch",
        max_iter=job["passes"],
        doc_topic_prior=job.get("prior"),
        random_state=job["seed"],
    )
    return lambda: np.asarray(model.fit(counts).components_.T)


def by_gensim(counts: csr_matrix, job: dict[str, Any]) -> Fit:
    """LdaModel with its defaults, on documents that are lists in memory already: what it is fastest with."""
    from gensim.models import LdaModel

    documents = [
        list(zip(row.indices.tolist(), row.data.tolist(), strict=True))
        for row in (counts[i] for i in range(counts.shape[0]))
    ]
    words = {column: str(column) for column in range(counts.shape[1])}
    options = {"num_topics": job["topics"], "passes": job["passes"], "random_state": job["seed"]}
    return lambda: np.asarray(LdaModel(documents, id2word=words, **options).get_topics().T)


PEERS: dict[str, tuple[str, Callable[[csr_matrix, dict[str, Any]], Fit]]] = {
    "sklearn": ("scikit-learn", by_sklearn),
    "gensim": ("gensim", by_gensim),
}


def main(job: dict[str, Any]) -> dict[str, Any]:
    counts = load_npz(job["counts"])
    package, made = PEERS[job["peer"]]
    made(counts[: max(1, counts.shape[0] // 10)], job | {"passes": 1})()
    fit = made(counts, job)
    wall, cpu = time.perf_counter(), time.process_time()
    topics = fit()
    facts: dict[str, Any] = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}
    answer = str(Path(job["counts"]).with_name(f"{job['peer']}-{job['passes']}-{job['seed']}.npy"))
    np.save(answer, topics / topics.sum(axis=0))
    return {**facts, "answer": answer, "name": f"{package} {version(package)}"}


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        print(json.dumps(main(json.loads(sys.argv[1]))))
