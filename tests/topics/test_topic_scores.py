"""`npmdask transform` of a topic model: shares of all documents, out of core, whole or not at all."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix, vstack

from npmdask.cli.main import main
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.manage.status import inspect
from npmdask.topics.documents import documents_of, write_documents
from npmdask.topics.transform import shares_of, transform_documents
from tests.topics.made import a_model, documents_from
from tests.topics.test_documents import docword

MODEL = a_model()
COUNTS = vstack([csr_matrix((2, 60), dtype=np.int32), documents_from(MODEL, 130, 9)], "csr")
WANTED = shares_of(COUNTS, MODEL.topics, MODEL.alpha).shares


def written(dest: Path) -> np.ndarray:
    return np.asarray(zarr.open_group(dest, mode="r")["data"][...])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    MODEL.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
def test_the_command(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a store and of a file. Fails when documents without words are left out, or not counted."""
    file, dest = docword(tmp_path / "docword.txt.gz", COUNTS), tmp_path / "shares"
    for source in (ingest(file, tmp_path / "d.zarr").dest, file):
        assert main(["transform", str(store), str(source), str(dest), "--overwrite", "--json", "--quiet"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["rows"], said["columns"], said["wordless"], said["open"]) == (132, 4, 2, 0)
        assert said["source"] == str(source) and said["store"] == str(store)
        np.testing.assert_array_equal(written(dest), WANTED)
    assert inspect(dest)["kind"] == "samples" and inspect(dest)["fingerprint"] == said["fingerprint"]


def test_options_of_rows_are_refused(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transform", str(store), "x", str(tmp_path / "y"), "--batch-rows", "5", "--header"]) == 2
    assert "--batch-rows, --header applies only to rows of numbers" in capsys.readouterr().err


@pytest.mark.slow
def test_words_that_were_left_out_are_left_out_again(tmp_path: Path) -> None:
    """Documents of all words, and of the kept ones, get the same shares."""
    kept = np.arange(0, 60, 2)
    topics = MODEL.topics[kept] / MODEL.topics[kept].sum(axis=0)
    model = replace(MODEL, topics=topics, vocabulary=MODEL.vocabulary[::2], kept=kept, source_columns=60)
    model.save(tmp_path / "model")
    for number, counts in enumerate((COUNTS, COUNTS[:, kept])):
        transform_documents(tmp_path / "model", counts, tmp_path / str(number))
        np.testing.assert_array_equal(
            written(tmp_path / str(number)), shares_of(COUNTS[:, kept], topics, MODEL.alpha)[0]
        )
    with pytest.raises(BadInputError, match="has 59 columns and the topics were found in 60"):
        transform_documents(tmp_path / "model", COUNTS[:, :59], tmp_path / "2")


@pytest.mark.slow
def test_what_is_refused_leaves_nothing(store: Path, tmp_path: Path) -> None:
    bad = COUNTS.astype(float).tolil()
    bad[100, 3] = -2
    with pytest.raises(BadInputError, match="document 101 has -2 as the count"):
        transform_documents(store, bad.tocsr(), tmp_path / "out")
    write_documents(documents_of(COUNTS), tmp_path / "other", [f"other{i}" for i in range(60)])
    with pytest.raises(BadInputError, match="no column 'w0', which the vocabulary of the topics has"):
        transform_documents(store, tmp_path / "other", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} <= {"model", "other", "out.lock", ".out.lock"}
    transform_documents(store, COUNTS, tmp_path / "out")
    write_documents(documents_of(COUNTS[:, ::-1].tocsr()), tmp_path / "turned", MODEL.vocabulary[::-1])
    transform_documents(store, tmp_path / "turned", tmp_path / "again.npy")
    shares = zarr.open_group(tmp_path / "out", mode="r")["data"][:]  # type: ignore[index]
    np.testing.assert_allclose(np.load(tmp_path / "again.npy"), shares, atol=1e-9)
    with pytest.raises(RefusedError, match="exists already"):
        transform_documents(store, COUNTS, tmp_path / "out")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_documents(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the documents in a store, of many chunks: fails when all are read, or all shares kept."""
    monkeypatch.setattr("npmdask.writers.sparse.SparseWriter.CHUNK", 2**12)
    monkeypatch.setattr("npmdask.core.storage.readers.whole_rows.RUN_BYTES", 2**15)
    monkeypatch.setattr("npmdask.writers.dense.CHUNK_BYTES", 2**14)
    monkeypatch.setattr("npmdask.topics.documents.ROWS", 200)
    peaks = []
    for times in (1, 10):
        source = tmp_path / f"{times}.zarr"
        write_documents(documents_of(vstack([documents_from(MODEL, 1000, 9)] * times, "csr")), source, MODEL.vocabulary)
        tracemalloc.start()
        transform_documents(store, source, tmp_path / f"shares{times}", tol=1e-2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], peaks
