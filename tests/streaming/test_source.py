"""Every kind of source that a user may point at, and every option that does not apply to it."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import zarr

from npmdask.cli.main import main
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.streaming import stream_pca
from npmdask.streaming.source import Reading, open_stream
from npmdask.streaming.sources.directory import Directory
from npmdask.streaming.sources.iterator import standard_input
from npmdask.streaming.sources.zarr_rows import ZarrRows
from npmdask.synthetic import generate
from tests.conftest import write_zarr
from tests.formats.test_never_silent import DATA, HALF, refused_by_ingest
from tests.streaming.common import D, rows_of

ROWS = rows_of(20)


def all_rows(source: Any, **how: Any) -> np.ndarray:
    stream = open_stream(source, Reading(**how)).stream
    batches = []
    while (batch := stream.read(7)) is not None:
        batches.append(batch)
    return np.concatenate(batches)


@pytest.mark.parametrize("suffix", ["npy", "csv", "parquet"])
def test_one_file_is_a_stream_of_its_rows(suffix: str, tmp_path: Path) -> None:
    """Fails if a neighbour with a name that looks like a pattern for it is read too, or it is said to grow."""
    path = tmp_path / f"rows[1].{suffix}"
    if suffix == "npy":
        np.save(path, ROWS)
        np.save(tmp_path / "rows1.npy", ROWS)
    elif suffix == "csv":
        np.savetxt(path, ROWS, delimiter=",", fmt="%.17g")
    else:
        pq.write_table(pa.table({f"c{i}": ROWS[:, i] for i in range(D)}), path)
    opened = open_stream(path, Reading())
    assert (opened.named, opened.grows, opened.forwards, opened.name) == (True, False, False, str(path))
    np.testing.assert_array_equal(all_rows(str(path)), ROWS)


def test_a_file_under_an_unfinished_name_is_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    (tmp_path / "rows.npy").rename(tmp_path / "rows.npy.tmp")
    with pytest.raises(BadInputError, match=r"still being written: rename it when it is complete"):
        open_stream(tmp_path / "rows.npy.tmp", Reading())


def test_a_directory_with_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"holds no complete file '.*' yet: say how wide .* with columns="):
        open_stream(tmp_path, Reading())
    opened = open_stream(tmp_path, Reading(columns=D))
    assert opened.grows and opened.stream.columns == D and opened.stream.read(3) is None
    np.save(tmp_path / "a.npy", ROWS)
    np.testing.assert_array_equal(opened.stream.read(100), ROWS)


@pytest.mark.parametrize("columns", [0, -1, "6", 2.5, True])
def test_a_width_that_is_none(tmp_path: Path, columns: Any) -> None:
    for source in (tmp_path, iter([ROWS])):
        with pytest.raises(BadInputError, match=r"columns is .*: pass a whole number of at least 1"):
            open_stream(source, Reading(columns=columns))


def test_stored_rows_under_all_their_names(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zarr", ROWS, (7, 4))
    for source in (path, str(path), zarr.open_array(path, mode="r"), ROWS):
        opened = open_stream(source, Reading(epochs=2), seed=1)
        assert opened.rows == 40 and opened.buffer_bytes > 0 and opened.truth is None
        assert opened.named == (source is not ROWS) and not opened.grows and not opened.forwards
        np.testing.assert_array_equal(all_rows(source), ROWS)
    held = zarr.create_array({}, shape=ROWS.shape, dtype=ROWS.dtype)
    held[...] = ROWS
    assert not open_stream(held, Reading()).named, "numbers in memory cannot be found again by a name"
    np.testing.assert_array_equal(np.sort(all_rows(path, order="shuffled"), axis=0), np.sort(ROWS, axis=0))


def test_planted_directions_are_known(tmp_path: Path) -> None:
    generate(tmp_path / "p.zarr", problem="spiked", rows=60, columns=8, rank=2)
    truth = open_stream(tmp_path / "p.zarr", Reading()).truth
    assert truth is not None and truth.shape == (8, 2) and truth.dtype == np.float64


def test_iterables_callables_and_open_streams(tmp_path: Path) -> None:
    parts = [ROWS[:3], sp.csr_matrix(ROWS[3:])]
    for source, forwards in ((parts, True), (iter(parts), True), (lambda: iter(parts), False)):
        opened = open_stream(source, Reading())
        assert (opened.forwards, opened.named, opened.grows) == (forwards, False, False)
        np.testing.assert_array_equal(opened.stream.read(50), ROWS)
    np.save(tmp_path / "a.npy", ROWS)
    stream = Directory(tmp_path)
    opened = open_stream(stream, Reading())
    assert opened.stream is stream and not opened.named and opened.grows and opened.name == "Directory"
    by_hand = ZarrRows(open_source(ROWS))
    assert open_stream(by_hand, Reading()).buffer_bytes == by_hand.buffer_bytes > 0


def test_a_symmetric_matrix_has_no_samples(tmp_path: Path) -> None:
    generate(tmp_path / "s.zarr", problem="symmetric", columns=8, rank=2)
    with pytest.raises(BadInputError, match=r"holds a symmetric matrix, whose rows are not samples: use the algorithm"):
        open_stream(tmp_path / "s.zarr", Reading())


def test_what_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"there is nothing at .*: name a Zarr store, a directory of files, a file"):
        open_stream(tmp_path / "nowhere", Reading())
    for source in (3, None, object()):
        with pytest.raises(BadInputError, match=r"pass an iterable of arrays"):
            open_stream(source, Reading())
    with pytest.raises(BadInputError, match=r"dimensions"):
        open_stream(np.ones(3), Reading())
    with pytest.raises(BadInputError, match=r"gave an array of shape \(6,\)"):
        open_stream(ROWS.tolist(), Reading())


def test_standard_input_must_say_what_it_holds() -> None:
    for how, missing in (({}, "columns and format"), ({"columns": 3}, "format"), ({"format": "csv"}, "columns")):
        with pytest.raises(BadInputError, match=f"set {missing}$"):
            open_stream("-", Reading(**how))
    with pytest.raises(BadInputError, match=r"unknown format 'cvs': did you mean 'csv'"):
        open_stream("-", Reading(columns=3, format="cvs"))


MEANS: dict[str, Any] = {
    "order": "shuffled", "epochs": 2, "pattern": "*.npy", "full_batches": True, "format": "npy", "columns": D,
    "header": True,
}  # fmt: skip
KNOWN = {
    "a stored array": {"order", "epochs"},
    "directory": {"pattern", "full_batches", "columns", "header"},
    "file.npy": {"columns", "header"},
    "standard input": {"format", "columns", "header"},
    "an iterator": {"columns"},
    "a stream that is open already": set(),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", KNOWN)
@pytest.mark.parametrize("option", MEANS)
def test_an_option_that_means_nothing_is_refused(source: str, option: str, tmp_path: Path) -> None:
    """Fails if an option is ignored in silence, or one that is meant is refused."""
    (tmp_path / "directory").mkdir()
    np.save(tmp_path / "directory" / "a.npy", ROWS)
    np.save(tmp_path / "file.npy", ROWS)
    givers: dict[str, Any] = {
        "a stored array": ROWS,
        "directory": tmp_path / "directory",
        "file.npy": tmp_path / "file.npy",
        "standard input": "-",
        "an iterator": iter([ROWS]),
        "a stream that is open already": Directory(tmp_path / "directory"),
    }
    need = {"format": "npy", "columns": D} if source == "standard input" else {}
    reading = Reading(**(need | {option: MEANS[option]}))
    if option in KNOWN[source]:
        open_stream(givers[source], reading)
        return
    with pytest.raises(BadInputError, match=f"{option} = .* does not apply to .*{source}: leave it out"):
        open_stream(givers[source], reading)


@pytest.mark.parametrize(("how", "sentence"), [
    ({"order": "shufled"}, "unknown order='shufled': did you mean 'shuffled'"),
    ({"epochs": 0}, "epochs is 0: pass a whole number"), ({"epochs": "2"}, "epochs is '2'"),
    ({"non_finite": "ignore"}, "unknown non_finite='ignore': "),
])  # fmt: skip
def test_a_reading_that_cannot_be(how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        open_stream(ROWS, Reading(**how))


def test_names_of_rows_on_standard_input_are_refused() -> None:
    with pytest.raises(BadInputError, match="the first column has no name, as names of rows have"):
        standard_input("csv", columns=3, file=io.BytesIO(b",a,b\n0,1,2\n")).read(9)


@pytest.mark.parametrize("line", HALF.values(), ids=HALF)
def test_a_first_line_that_is_half_numbers_is_refused(tmp_path: Path, line: str) -> None:
    words = r"its first line has \d+ numbers and \d+ other words, the first of them '.*pass header=True \(--header\)"
    refused_by_ingest(tmp_path, line + DATA, words)
    with pytest.raises(BadInputError, match=words):
        standard_input("csv", columns=3, file=io.BytesIO((line + DATA).encode())).read(9)


@pytest.mark.slow
def test_streams_and_scores_say_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file, a directory and standard input; and say nothing where no line was taken for names."""
    said = "the first line was taken for the names of the columns, not for data: a, b, c"
    (tmp_path / "named.csv").write_text("a,b,c\n" + DATA * 4)
    (tmp_path / "plain.csv").write_text(DATA * 4)
    (tmp_path / "both").mkdir()
    for name in ("named", "plain"):
        shutil.copy(tmp_path / f"{name}.csv", tmp_path / "both")
    place = f"the columns of {tmp_path / 'both' / 'plain.csv'} were taken by position, because it has no names"
    for name, wanted in (("named.csv", (said,)), ("plain.csv", ()), ("both", (said, place))):
        assert stream_pca(tmp_path / name, 1, batch_rows=4, store=tmp_path / f"{name} store").warnings == wanted
        scores = ["transform", str(tmp_path / f"{name} store"), str(tmp_path / name), str(tmp_path / f"{name}.zarr")]
        assert main([*scores, "--quiet", "--json"]) == 0
        out, err = capsys.readouterr()
        assert set(json.loads(out)["warnings"]) == set(wanted)
        assert sorted(err.splitlines()) == sorted(f"npmdask: warning: {said}" for said in wanted)
    for name, wanted in (("named", (said,)), ("plain", ())):
        data = (tmp_path / f"{name}.csv").read_bytes()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert stream_pca("-", 1, batch_rows=4, format="csv", columns=3).warnings == wanted
