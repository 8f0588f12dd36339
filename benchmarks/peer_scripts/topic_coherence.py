"""Gensim's coherence of the topics of a small corpus, as one JSON line: what tests/topics are held to.

Run with the Python of the peers: ``python topic_coherence.py``. A window is as long as the longest document.
"""

from __future__ import annotations

import json

import numpy as np
from gensim.corpora import Dictionary
from gensim.models import CoherenceModel


def corpus() -> tuple[np.ndarray, np.ndarray]:
    """60 documents of 12 words, and three topics of five words: the same in tests/topics/test_coherence.py."""
    rng = np.random.default_rng(7)
    rates = rng.gamma(0.4, 1.0, (60, 3)) @ rng.gamma(0.3, 1.0, (3, 12))
    counts = rng.poisson(rates)
    counts[counts.sum(axis=1) == 0, 0] = 1
    return counts, np.array([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [11, 3, 7, 1, 10]])


def main() -> None:
    counts, tops = corpus()
    texts = [[f"w{word}" for word in np.repeat(np.arange(12), row)] for row in counts]
    dictionary = Dictionary(texts)
    topics = [[f"w{word}" for word in top] for top in tops]
    common = {"topics": topics, "texts": texts, "dictionary": dictionary, "topn": 5, "processes": 1}
    longest = max(map(len, texts))
    u_mass = CoherenceModel(coherence="u_mass", **common).get_coherence_per_topic()
    c_npmi = CoherenceModel(coherence="c_npmi", window_size=longest, **common).get_coherence_per_topic()
    print(json.dumps({"u_mass": [float(x) for x in u_mass], "c_npmi": [float(x) for x in c_npmi]}))


if __name__ == "__main__":
    main()
