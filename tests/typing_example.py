"""A program as users write it, checked by ``mypy --strict`` in ``tests/test_project_files.py`` and never run.

``assert_type`` fails where a public name is untyped, or where its type has become ``Any``.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import npmdask
from npmdask import BadInputError, NpmdaskError, Privacy, Solution, StreamingPCA, StreamSolution, top_k


def components(rows: NDArray[np.float64], folder: Path) -> Solution:
    solution = top_k(rows, 10, center=True, memory="1GiB", store=folder / "run")
    assert_type(solution, Solution)
    assert_type(solution.converged, bool)
    assert_type(solution.residual_norms, NDArray[Any])
    assert_type(solution.outcome.sentence, str)
    return npmdask.deflate(folder / "run", 5, store=folder / "more")


def share_of_variance(path: str) -> float | None:
    try:
        return top_k(path, 0.95, kind="samples", iteration_rank="auto").explained_share
    except BadInputError as error:
        assert isinstance(error, NpmdaskError | ValueError)
        raise


def private(path: str, folder: Path) -> dict[str, Any] | None:
    promise = Privacy(epsilon=1.0, delta=1e-9, neighboring_relation="record_replace", clip_norm=1.0)
    assert_type(promise.epsilon, float)
    return top_k(path, 4, privacy=promise, max_steps=8, store=folder).statement


def stream(path: str, batches: list[NDArray[np.float64]]) -> tuple[int, NDArray[np.floating[Any]]]:
    found = npmdask.stream_pca(path, 10, center=True, half_life=100_000)
    assert_type(found, StreamSolution)
    assert_type(found.rows_per_second, float | None)
    model = StreamingPCA(10, center=True)
    for batch in batches:
        assert_type(model.partial_fit(batch), StreamingPCA)
    assert_type(model.mean, NDArray[Any] | None)
    return model.rows, model.transform(batches[0])


def models(counts: NDArray[np.int64], rows: NDArray[np.float64], words: list[str]) -> None:
    topics = npmdask.Topics(20, alpha0=0.5).fit(counts, vocabulary=words)
    assert_type(topics, npmdask.Topics)
    assert_type(topics.top_words(), list[list[tuple[str, float]]])
    assert_type(npmdask.Mixture(5).fit(rows), npmdask.Mixture)
    assert_type(npmdask.MCA(5).fit(rows, counts), npmdask.MCA)
    assert_type(npmdask.CCA(5, pcs=20).fit(rows, counts).correlations_, NDArray[Any])
    assert_type(npmdask.ICA(5).fit(rows).set_params(n_components=4), npmdask.ICA)
