"""Iterators and standard input: any batches in, any batches out, forwards only, nothing lost in silence."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.errors import BadInputError, RefusedError
from npmdask.streaming.sources import iterator
from npmdask.streaming.sources.iterator import IteratorRows, standard_input

ROWS = np.random.default_rng(0).standard_normal((200, 3))


def pieces(sizes: list[int], rows: np.ndarray = ROWS) -> Iterator[np.ndarray]:
    """``rows`` in pieces of the given sizes, in memory that the next one overwrites, as a careless reader does."""
    memory, first = np.empty((max(sizes), rows.shape[1])), 0
    while first < len(rows):
        for size in sizes:
            part = rows[first : first + size]
            if len(part):
                memory[: len(part)] = part
                yield memory[: len(part)]
                memory[:] = -7.0
            first += size


def everything(stream: Any, sizes: list[int]) -> np.ndarray:
    batches = [np.empty((0, 3))]
    while (batch := stream.read(sizes[stream.rows_read % len(sizes)])) is not None:
        batches.append(batch)
    return np.concatenate(batches)


some_sizes = st.lists(st.integers(1, 90), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(given_in=some_sizes, read_in=some_sizes, kill=st.integers(0, 12), fresh=st.booleans())
def test_every_row_once_from_any_batches_also_after_a_kill(
    given_in: list[int], read_in: list[int], kill: int, fresh: bool
) -> None:
    """Fails if memory of the iterator is kept across a draw, or if passing over rows is off by one."""
    stream = IteratorRows(pieces(given_in))
    before = [b for _ in range(kill) if (b := stream.read(read_in[stream.rows_read % len(read_in)])) is not None]
    later = IteratorRows(lambda: pieces(given_in[::-1])) if fresh else IteratorRows(pieces(given_in[::-1]), columns=3)
    if fresh:
        later.read(17)
    later.seek(json.loads(json.dumps(stream.position)))
    np.testing.assert_array_equal(np.concatenate([*before, everything(later, read_in)]), ROWS)
    assert later.rows_read == 200


def test_a_batch_is_contiguous_float64_from_any_kind_of_array() -> None:
    given_in = [ROWS[:5].astype(np.float32), np.asfortranarray(ROWS[5:9]), sp.csr_matrix(ROWS[9:12]), [[1, 2, 3]]]
    batch = IteratorRows([*given_in, np.array([[True, False, True]])]).read(100)
    assert batch is not None and batch.dtype == np.float64 and batch.flags.c_contiguous and batch.shape == (14, 3)
    np.testing.assert_array_equal(batch[5:12], ROWS[5:12])
    np.testing.assert_array_equal(batch[12:], [[1, 2, 3], [1, 0, 1]])


def test_only_a_fresh_iterator_goes_forward() -> None:
    """Fails if a stream that was read from passes over rows and calls that seeking."""
    stream = IteratorRows(pieces([10]))
    stream.read(15)
    held = stream.position
    stream.seek(held)  # where it is
    for target in (0, 10, 20):
        with pytest.raises(RefusedError, match=r"is at row 15 and cannot go to row .*pass a new one.*callable"):
            stream.seek({"rows_read": target, "skipped": 0, "columns": 3})
    assert stream.position == held
    np.testing.assert_array_equal(stream.read(20), ROWS[15:35])


@pytest.mark.parametrize("again", [False, True])
def test_an_iterator_that_shrank_is_refused(again: bool) -> None:
    position = {"rows_read": 150, "skipped": 0, "columns": 3}
    stream = IteratorRows(lambda: pieces([9], ROWS[:100])) if again else IteratorRows(pieces([9], ROWS[:100]))
    if again:
        stream.read(4)
    before = stream.position
    with pytest.raises(RefusedError, match=r"has shrunk: it ends after 100 rows, but the position is after 150; give"):
        stream.seek(position)
    assert stream.position == before
    if again:
        np.testing.assert_array_equal(stream.read(96), ROWS[4:100])


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (np.ones((2, 4)), "rows of 4 numbers and 3 are expected"),
        (np.ones((0, 3)), "an empty batch of shape"),
        (np.ones(3), "reshape"),
        (np.ones((2, 3), complex), "real numbers"),
        (np.array([["a", "b", "c"]]), "real numbers"),
        ("text", "rows x columns"),
    ],
)
def test_a_bad_batch_is_refused_and_costs_no_row(bad: Any, word: str) -> None:
    """Fails if the rows before a bad batch are lost with it, or if it is passed over the second time."""
    stream = IteratorRows([ROWS[:4], ROWS[4:7], bad, ROWS[7:]])
    stream.read(2)
    before = stream.position
    for _ in range(2):
        with pytest.raises(BadInputError, match=f"the iterator, after row 7,.*{word}"):
            stream.read(6)
        assert stream.position == before
    np.testing.assert_array_equal(stream.read(5), ROWS[2:7])
    with pytest.raises(BadInputError, match=word):
        stream.read(1)


def test_rows_before_a_bad_batch_outlive_the_memory_they_came_in() -> None:
    """Fails if a refused read keeps views of memory that the iterator has used again."""
    stream = IteratorRows(batch if len(batch) == 9 else np.ones((1, 4)) for batch in pieces([9]))
    stream.read(4)
    with pytest.raises(BadInputError, match="after row 198, gave rows of 4"):
        stream.read(196)
    np.testing.assert_array_equal(stream.read(194), ROWS[4:198])


def failing(error: BaseException) -> Iterator[np.ndarray]:
    yield ROWS[:5]
    raise error


@pytest.mark.parametrize("error", [ValueError("no more coffee"), KeyboardInterrupt()])
def test_a_generator_that_failed_has_not_ended(error: BaseException) -> None:
    """Fails if the second read takes a generator that raised for one that is used up."""
    stream = IteratorRows(failing(error), columns=3)
    with pytest.raises((BadInputError, KeyboardInterrupt)):
        stream.read(9)
    with pytest.raises(BadInputError, match=r"after row 5,.*(no more coffee|interrupted).*seek to the last position"):
        stream.read(9)
    assert len(stream.read(5)) == 5 and stream.rows_read == 5


def test_rows_that_are_not_finite() -> None:
    """Fails if skipped rows are not part of the position: passing over them would be short."""
    rows = ROWS.copy()
    rows[[2, 50, 51, 199], 1] = np.nan
    stream = IteratorRows(pieces([7], rows))
    with pytest.raises(BadInputError, match="row 2 of the iterator holds NaN"):
        stream.read(5)
    np.testing.assert_array_equal(stream.read(2), rows[:2])
    stream = IteratorRows(pieces([7], rows), non_finite="skip")
    first = stream.read(60)
    assert len(first) == 60 and stream.position == {"rows_read": 60, "skipped": 3, "columns": 3}
    later = IteratorRows(pieces([9], rows), non_finite="skip")
    later.seek(stream.position)
    both = np.concatenate([first, everything(later, [50])])
    np.testing.assert_array_equal(both, rows[np.isfinite(rows).all(axis=1)])
    assert (later.rows_read, later.skipped) == (196, 4)


def test_what_cannot_be_a_stream() -> None:
    with pytest.raises(BadInputError, match="holds no rows"):
        IteratorRows([])
    with pytest.raises(BadInputError, match="pass an iterable of arrays"):
        IteratorRows(7)  # type: ignore[arg-type]
    assert IteratorRows([], columns=3).read(1) is None
    with pytest.raises(RefusedError, match="columns = 4"):
        IteratorRows([ROWS]).seek({"rows_read": 0, "skipped": 0, "columns": 4})


# Standard input


def as_csv(rows: np.ndarray, header: str = "") -> bytes:
    return (header + "".join(",".join(map(repr, map(float, row))) + "\n" for row in rows)).encode()


def as_npy(sizes: list[int]) -> bytes:
    out = io.BytesIO()
    for size, first in zip(sizes, np.cumsum([0, *sizes[:-1]]), strict=True):
        np.save(out, ROWS[first : first + size])
    return out.getvalue()


@pytest.mark.parametrize("sizes", [[1], [7, 64], [200]])
def test_formats_give_the_rows_that_were_sent(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a row that two blocks share is lost, or if a header is taken for data."""
    monkeypatch.setattr(iterator, "BLOCK_BYTES", 1000)
    single = ROWS.astype("<f4")
    sent = {"csv": as_csv(ROWS), "npy": as_npy([150, 1, 49]), "float32": single.tobytes()}
    for format, data in sent.items():
        expected = single if format == "float32" else ROWS
        got = everything(standard_input(format, columns=3, file=io.BytesIO(data)), sizes)
        np.testing.assert_array_equal(got, expected.astype(np.float64), err_msg=format)
    for header, said in (("a,b,c\n", None), ("0,1,2\n", True), ("", False)):
        stream = standard_input("csv", columns=3, file=io.BytesIO(as_csv(ROWS, header)[:-1]), header=said)
        np.testing.assert_array_equal(everything(stream, sizes), ROWS)


@pytest.mark.parametrize(
    ("format", "data", "word"),
    [
        ("csv", as_csv(ROWS[:9]) + b"1,2\n", r"lines 1 to 10 do not all have 3 comma-separated numbers"),
        ("csv", as_csv(ROWS[:9], "a,b,c\n") + b"1,2,x\n", r"lines 2 to 11 .*correct the input"),
        ("npy", as_npy([5, 9])[:-1], "array 1 of standard input ends before its 9 rows"),
        ("npy", as_npy([5]) + b"rubbish", "array 1 of standard input is not in the format of numpy.save"),
        ("npy", as_npy([5])[:20], "array 0 of standard input is not in the format"),
        ("float32", ROWS.astype("<f4").tobytes()[:-5], r"ends in row 199, after 7 of its 12 bytes"),
    ],
)
def test_input_that_breaks_off_is_not_an_end(format: str, data: bytes, word: str) -> None:
    """Fails if a truncated stream looks like one that has ended."""
    with pytest.raises(BadInputError, match=word):
        everything(standard_input(format, columns=3, file=io.BytesIO(data)), [200])


def test_npy_arrays_of_another_shape_are_refused() -> None:
    for array, word in (
        (ROWS.T.copy(), "rows of 3 numbers"),
        (np.asfortranarray(ROWS), "column-major"),
        (ROWS[0], "3"),
    ):
        out = io.BytesIO()
        np.save(out, array)
        out.seek(0)
        with pytest.raises(BadInputError, match=word):
            standard_input("npy", columns=3, file=out).read(1)
    with pytest.raises(BadInputError, match="did you mean 'csv'"):
        standard_input("cvs", columns=3)
    with pytest.raises(BadInputError, match="columns"):
        standard_input("csv", columns=0)


def test_rows_are_given_as_soon_as_they_are_there() -> None:
    """Fails if a whole block is waited for: this test would hang, so the pipe is closed after a second."""
    reading, writing = os.pipe()
    with open(reading, "rb") as file:
        stream = standard_input("csv", columns=3, file=file)
        os.write(writing, as_csv(ROWS[:5]) + b"1,2")
        np.testing.assert_array_equal(stream.read(5), ROWS[:5])
        os.write(writing, b",3\n")
        np.testing.assert_array_equal(stream.read(1), [[1, 2, 3]])
        os.close(writing)
        assert stream.read(1) is None


READER = """
import json, sys
from npmdask.streaming.sources.iterator import IteratorRows, standard_input
from npmdask.streaming.sources import iterator
stream = standard_input(sys.argv[1], columns=3)
stream.seek(json.loads(sys.argv[2]))
while (batch := stream.read(1 + stream.rows_read % 29)) is not None:
    sys.stdout.buffer.write(batch.tobytes())
print(json.dumps(stream.position), file=sys.stderr)
"""
WRITER = """
import sys
import numpy as np
rows = np.random.default_rng(0).standard_normal((200, 3))
out, format = sys.stdout.buffer, sys.argv[1]
for first in range(0, 200, 11):
    part = rows[first : first + 11]
    if format == "npy":
        np.save(out, part)
    elif format == "csv":
        np.savetxt(out, part, delimiter=",", fmt="%.17g")
    else:
        out.write(part.astype("<f4").tobytes())
    out.flush()
"""


@pytest.mark.slow
@pytest.mark.parametrize("format", ["csv", "npy", "float32"])
def test_one_process_pipes_rows_into_another(format: str) -> None:
    """Also from a position on, when the same rows are sent again."""
    expected = ROWS.astype(np.float32).astype(np.float64) if format == "float32" else ROWS
    for before in (0, 1, 77) if format == "csv" else (77,):
        position = json.dumps({"rows_read": before, "skipped": 0, "columns": 3})
        with subprocess.Popen([sys.executable, "-c", WRITER, format], stdout=subprocess.PIPE) as writer:
            reader = [sys.executable, "-c", READER, format, position]
            done = subprocess.run(reader, stdin=writer.stdout, capture_output=True, check=True, timeout=300)
        assert writer.returncode == 0
        np.testing.assert_array_equal(np.frombuffer(done.stdout).reshape(-1, 3), expected[before:])
        assert json.loads(done.stderr)["rows_read"] == 200
