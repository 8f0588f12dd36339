"""A topic model: what words each topic is made of, and how much of it documents have on average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore, folder_of
from npmdask.core.numerics.subspaces import Block
from npmdask.core.storage.bundle import Arrays, read_bundle, write_bundle
from npmdask.errors import BadInputError, require
from npmdask.topics.documents import require_words, words_of_array, words_to_array

PART = "topics"  # of a run store: where the model of a finished run lies
SUM_ERROR = 1e-6  # of the column of a topic, or of the weights that a store of float32 gave


@dataclass(frozen=True, kw_only=True)
class TopicModel:
    """Latent Dirichlet allocation, as its parameters are after the data (Blei, Ng and Jordan 2003).

    Parameters
    ----------
    topics : V x k, probabilities of the words in each topic: no negative entry, each column sums to 1.
    alpha : (k) of the Dirichlet distribution of a document's shares; its sum is alpha0.
    vocabulary : V words.
    kept : (V) rising: the columns of the documents that the words are, where some were left out; else None.
    source_columns : how many columns the documents have (V where ``kept`` is None).
    facts : what else is known of how the model was found, as plain numbers, strings and lists.

    Raises
    ------
    BadInputError
        Shapes that do not fit, topics that are no probabilities, or an alpha that is not positive.
    """

    topics: Block
    alpha: np.ndarray
    vocabulary: tuple[str, ...]
    kept: np.ndarray | None = None
    source_columns: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        topics, alpha = np.asarray(self.topics), np.asarray(self.alpha)
        if topics.ndim != 2 or 0 in topics.shape or alpha.shape != topics.shape[1:]:
            raise BadInputError(
                f"topics of shape {topics.shape} and alpha of shape {alpha.shape}: give words x topics, and an alpha "
                "for each topic"
            )
        require_words(self.vocabulary, len(topics), "the vocabulary of the model")
        if not (np.isfinite(topics).all() and topics.min() >= 0 and abs(topics.sum(axis=0) - 1).max() <= SUM_ERROR):
            raise BadInputError(
                "a topic must be a distribution over the words: give columns without negative entries that sum to 1 "
                "(project them on the simplex first)"
            )
        if not (np.isfinite(alpha).all() and alpha.min() > 0):
            raise BadInputError(f"alpha = {alpha.tolist()} of the topics: every one must be positive and finite")
        if self.kept is not None and (self.source_columns is None or len(self.kept) != len(topics)):
            raise BadInputError("kept words: give a column for each of them, and source_columns")

    @property
    def k(self) -> int:
        """Topics."""
        return int(self.topics.shape[1])

    @property
    def words(self) -> int:
        """Words (V)."""
        return len(self.topics)

    @property
    def alpha0(self) -> float:
        """The sum of alpha: near 0 a document has one topic, large it has a little of each."""
        return float(self.alpha.sum())

    @property
    def weights(self) -> np.ndarray:
        """(k) Share of the words of all documents that each topic is expected to have: alpha / alpha0."""
        return np.asarray(self.alpha / self.alpha.sum())

    @property
    def by_weight(self) -> np.ndarray:
        """(k) The topics, heaviest first."""
        return np.argsort(-self.alpha, kind="stable")

    def top_indices(self, n: int) -> np.ndarray:
        """k x n: the most probable words of each topic, the first in the vocabulary where two are equal."""
        require(1 <= n <= self.words, f"n = {n} top words of {self.words}: ask for 1 to {self.words}")
        return np.ascontiguousarray(np.argsort(-self.topics, axis=0, kind="stable")[:n].T)

    def top_words(self, n: int = 10) -> list[list[tuple[str, float]]]:
        """List for each topic the ``n`` most probable words with their probabilities, fewer where it has fewer."""
        found = zip(self.top_indices(min(n, self.words)), self.topics.T, strict=True)
        return [[(self.vocabulary[w], float(topic[w])) for w in top if topic[w] > 0] for top, topic in found]

    def diversity(self, n: int = 25) -> float:
        """Share of different words among the ``n`` top words of all topics: 1 where no two topics share one
        (Dieng, Ruiz and Blei 2020, "Topic modeling in embedding spaces", section 6)."""
        top = self.top_indices(min(n, self.words))
        return len(np.unique(top)) / top.size

    # On disk

    def saved(self) -> tuple[Arrays, dict[str, Any]]:
        """Arrays and facts, for a bundle: ``RunStore.write_part(PART, *model.saved())``."""
        arrays = {"topics": self.topics, "alpha": self.alpha, "words": words_to_array(self.vocabulary)}
        if self.kept is not None:
            arrays["kept"] = self.kept
        return arrays, {"topic_model": 1, "source_columns": self.source_columns, "facts": dict(self.facts)}

    @classmethod
    def of(cls, arrays: Arrays, meta: Mapping[str, Any]) -> TopicModel:
        """The inverse of :meth:`saved`."""
        require(meta.get("topic_model") == 1, "this is not a topic model, or was written by a later version of npmdask")
        return cls(
            topics=arrays["topics"],
            alpha=arrays["alpha"],
            vocabulary=words_of_array(arrays["words"]),
            kept=arrays.get("kept"),
            source_columns=meta["source_columns"],
            facts=meta["facts"],
        )

    def save(self, path: str | Path) -> None:
        """Write the model as a folder of arrays and JSON (no pickle), whole or not at all.

        Raises
        ------
        BadInputError
            ``path`` exists already.
        CommitError
            It cannot be written.
        """
        require(not Path(path).exists(), f"{path} exists already: choose another name, or remove it first")
        write_bundle(Path(path), *self.saved())

    @classmethod
    def load(cls, path: str | Path) -> TopicModel:
        """The model that ``save`` wrote, or that of a finished run of ``npmdask topics``.

        Raises
        ------
        BadInputError
            There is none, or it is damaged.
        """
        path = folder_of(path)
        store = RunStore(path)
        found = store.read_part(PART) or (None if store.read_spec() else read_bundle(Path(path)))
        if found is None:
            raise BadInputError(f"{path} holds no topics yet; `npmdask resume {path}` finishes the run")
        return cls.of(*found)


def holds_topics(path: str | Path) -> bool:
    """Say whether this folder is one that :meth:`TopicModel.load` reads."""
    folder = folder_of(path)
    if (folder / PART).is_dir():
        return True
    if (folder / "run.json").exists() or (folder / "steps").exists() or not (folder / "manifest.json").exists():
        return False
    return "topic_model" in read_bundle(folder)[1]
