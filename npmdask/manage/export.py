"""The answer as one ``.npz``: ``basis``, ``values`` and, for a matrix, ``left_basis``, written out of core.

Of a private run all that was released: the spread of the values, and the low-rank factors ``A ~ left @ right.T``.
Of a stream ``basis``, ``values`` and ``mean`` (if it is centred) as of its last commit: it has an answer while it runs,
and when it was killed, too.
Of a job its arrays under their names: ``topics``, ``alpha`` and ``vocabulary``, or those of a mixture or of independent
components.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from npmdask.checkpoint.store import RunStore, folder_of, not_finished
from npmdask.errors import BadInputError, CommitError, NpmdaskError
from npmdask.models.topics.model import PART as TOPICS
from npmdask.models.topics.vocabulary import words_of_array
from npmdask.runs.left_vectors import left_blocks, left_height
from npmdask.runs.tensor_problem import JOBS
from npmdask.storage.bundle import Arrays, read_bundle
from npmdask.storage.paths import local_path
from npmdask.streaming.status import answer_of, is_stream

RELEASED = ("value_stddevs", "factor_left", "factor_right", "left_basis")


def export(store: str | Path, target: str | Path) -> list[str]:
    """Write the result of a finished run, or what a stream has learnt so far; returns the names in the file.

    ``left_basis`` (m x k) may be larger than memory: it is streamed, a row of chunks at a time.

    Raises
    ------
    BadInputError
        The run is not finished; the stream has not committed rows enough for an answer; or a chunk of the left
        vectors is missing or damaged (resuming the run makes it again).
    """
    target = local_path(target, "the file that is exported")
    store = folder_of(store)
    spec = RunStore(store).read_spec()
    of = _of_stream if is_stream(spec) else _of_job if (spec or {}).get("data", {}).get("kind") in JOBS else _of_run
    arrays, names = of(store)
    aside = target.with_name(f".writing-{target.name}-{os.getpid()}")
    try:
        with zipfile.ZipFile(aside, "w", allowZip64=True) as archive:
            for name in names:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, arrays[name], allow_pickle=False)
            if "left_rotation" in arrays:
                _write_left(archive, store, arrays)
                names.append("left_basis")
        os.replace(aside, target)
    except NpmdaskError:
        aside.unlink(missing_ok=True)
        raise
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise CommitError(f"cannot write {target}: {error.strerror or error}; the run itself is intact") from error
    return names


def _of_run(store: str | Path) -> tuple[Arrays, list[str]]:
    """The arrays of a finished run, and the names of those that go into the file."""
    result = Path(store) / "result"
    if not result.is_dir():
        raise not_finished(store)
    arrays, _ = read_bundle(result)
    return arrays, ["basis", "values", "residual_norms", *(name for name in RELEASED if name in arrays)]


def _of_job(store: str | Path) -> tuple[Arrays, list[str]]:
    """Of topics their words too; of samples all that was found."""
    held = RunStore(store)
    found = held.read_part(TOPICS) or held.read_part("result")
    if found is None:
        raise BadInputError(f"{store} holds no answer yet; `npmdask resume {store}` finishes the job")
    arrays = dict(found[0])
    if "words" in arrays:
        arrays["vocabulary"] = np.array(words_of_array(arrays.pop("words")))
    return arrays, list(arrays)


def _of_stream(store: str | Path) -> tuple[Arrays, list[str]]:
    arrays = answer_of(store)
    return arrays, list(arrays)


def _write_left(archive: zipfile.ZipFile, store: Path, arrays: Arrays) -> None:
    """Stream the left vectors, every chunk held to its checksum."""
    rows, k = left_height(store, arrays)[0], arrays["left_rotation"].shape[1]
    header = {"descr": "<f8", "fortran_order": False, "shape": (rows, k)}
    with archive.open("left_basis.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_2_0(file, header)
        for block in left_blocks(store):
            file.write(np.ascontiguousarray(block, "<f8").tobytes())
