"""Kind matrices: n square matrices in, rows of d^2 numbers stored, and a sentence for everything else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npmdask
from npmdask.cli import main
from npmdask.core.execution.executor import Threads
from npmdask.core.storage.source import open_source
from npmdask.dp_pca.private_mean import PlainMean
from npmdask.dp_pca.record_images import RecordImages, images_of_matrices, pack_query
from npmdask.errors import BadInputError
from npmdask.formats import common
from npmdask.formats.ingest import ingest
from npmdask.manage.status import inspect
from npmdask.planning.chunk_advice import advise_chunks
from npmdask.writers.dense import choose_chunks
from tests.conftest import write_zarr
from tests.formats.test_ingest import assert_clean, cubes, read, refused, tree

OPTIONS: Any = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def check(tmp_path: Path, source: Path, expected: np.ndarray, **options: Any) -> Any:
    summary = ingest(source, tmp_path / "out.zarr", kind="matrices", overwrite=True, **options)
    n, d, _ = expected.shape
    np.testing.assert_array_equal(read(summary.dest).reshape(n, d, d), expected)
    assert (summary.kind, summary.shape, summary.side) == ("matrices", (n, d * d), d)
    assert_clean(tmp_path)
    opened = open_source(summary.dest)
    assert (opened.kind, opened.side, opened.dimension, opened.shape) == ("matrices", d, d, (n, d * d))
    np.testing.assert_allclose(opened.column_mean.reshape(d, d), expected.mean(0, dtype=float), atol=1e-12)  # type: ignore[union-attr]
    return summary


@pytest.mark.slow
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["f8", "f4", ">f8", "u1", "i2"])
def test_npy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any, dtype: str) -> None:
    """Not symmetric ones: fails where a file in Fortran order comes out transposed."""
    monkeypatch.setattr(common, "BATCH_BYTES", 2000)
    monkeypatch.setattr(common, "COLUMN_BATCH_BYTES", 4000)
    matrices = (cubes() * 9 + 50).astype(dtype)
    np.save(tmp_path / "a.npy", np.asarray(matrices, order=order))
    check(tmp_path, tmp_path / "a.npy", matrices)
    check(tmp_path, tmp_path / "a.npy", matrices, chunks=(7, 11))


@pytest.mark.slow
@settings(**OPTIONS, max_examples=25)
@given(
    n=st.integers(1, 20),
    d=st.integers(1, 7),
    chunks=st.tuples(*[st.integers(1, 9)] * 3),
    layout=st.sampled_from(["2", "3", "3 sharded"]),
    slab_bytes=st.sampled_from([1, 200, 900, 2**28]),
    batch_bytes=st.sampled_from([100, 2**23]),
    missing=st.sampled_from(["error", "fill"]),
)
def test_zarr_in_chunks_of_any_shape(
    tmp_path_factory: Any,
    n: int,
    d: int,
    chunks: tuple[int, int, int],
    layout: str,
    slab_bytes: int,
    batch_bytes: int,
    missing: str,
) -> None:
    folder, matrices = tmp_path_factory.mktemp("matrices"), cubes(n, d)
    chunks = (min(chunks[0], n), min(chunks[1], d), min(chunks[2], d))
    options: dict[str, Any] = {"shards": tuple(2 * c for c in chunks)} if "sharded" in layout else {}
    path = write_zarr(folder / "x.zarr", matrices, chunks, zarr_format=int(layout[0]), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "SLAB_BYTES", slab_bytes)
        patch.setattr(common, "BATCH_BYTES", batch_bytes)
        check(folder, path, matrices, missing=missing)


@pytest.mark.slow
def test_zarr_is_read_in_pieces_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zarr(tmp_path / "x.zarr", cubes(40, 6), (8, 4, 5))
    seen: list[Any] = []
    real = zarr.Array.__getitem__

    def watched(array: zarr.Array, at: Any) -> Any:
        if not array.path:  # the source; the arrays of the store that is written lie in a group
            seen.append(at)
        return real(array, at)

    monkeypatch.setattr(zarr.Array, "__getitem__", watched)
    check(tmp_path, path, cubes(40, 6))
    assert len([at for at in seen if isinstance(at, tuple) and len(at) == 3]) == 1
    seen.clear()
    monkeypatch.setattr(common, "SLAB_BYTES", 8 * 4 * 6 * 8)  # a piece: 8 matrices, 4 of their rows
    check(tmp_path, path, cubes(40, 6))
    assert len([at for at in seen if isinstance(at, tuple) and len(at) == 3]) == 5 * 2
    seen.clear()
    monkeypatch.setattr(common, "SLAB_BYTES", 8 * 6 * 8)  # a piece: one row of each, however many the chunks have
    check(tmp_path, path, cubes(40, 6))
    assert len([at for at in seen if isinstance(at, tuple) and len(at) == 3]) == 5 * 6


@pytest.mark.slow
def test_a_missing_chunk_is_named_or_filled(tmp_path: Path) -> None:
    matrices = cubes(20, 6)
    path = write_zarr(tmp_path / "x.zarr", matrices, (5, 4, 2))
    (path / "c" / "2" / "1" / "0").unlink()
    refused(tmp_path, path, "c/2/1/0", "missing='fill'", kind="matrices")
    matrices[10:15, 4:, :2] = 0
    check(tmp_path, path, matrices, missing="fill")


@pytest.mark.slow
def test_groups_and_stores(tmp_path: Path) -> None:
    """The only 3-D array of a group, one by name; a store is cut anew, its checksums compared."""
    matrices = cubes(20, 6)
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group["deep/a"], group["rows"] = matrices, matrices[0]
    check(tmp_path, tmp_path / "g.zarr", matrices)
    group["b"] = matrices[:9]
    refused(tmp_path, tmp_path / "g.zarr", "several 3-D arrays", "b (9, 6, 6)", kind="matrices")
    check(tmp_path, tmp_path / "g.zarr", matrices[:9], dataset="b")
    np.save(tmp_path / "a.npy", matrices)
    first = ingest(tmp_path / "a.npy", tmp_path / "a.zarr", kind="matrices", chunks=(4, 36))
    check(tmp_path, tmp_path / "a.zarr", matrices, chunks=(7, 10))
    ingest(tmp_path / "a.zarr", tmp_path / "again.zarr", kind="matrices", chunks=(4, 36))
    assert open_source(tmp_path / "again.zarr").fingerprint == first.fingerprint
    assert tree(tmp_path / "a.zarr" / "data") == tree(tmp_path / "again.zarr" / "data")
    refused(tmp_path, tmp_path / "a.zarr", "--kind matrices")
    chunk = tmp_path / "a.zarr" / "data" / "c" / "2" / "0"
    chunk.write_bytes(chunk.read_bytes()[::-1])
    refused(tmp_path, tmp_path / "a.zarr", "c/2/0", "corrupt", kind="matrices")


def test_what_is_no_stack_of_square_matrices_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((4, 9)))
    np.save(tmp_path / "oblong.npy", np.ones((4, 3, 5)))
    np.save(tmp_path / "four.npy", np.ones((4, 3, 3, 3)))
    np.save(tmp_path / "none.npy", np.ones((0, 3, 3)))
    np.savetxt(tmp_path / "a.csv", np.ones((4, 9)), delimiter=",")
    np.savez(tmp_path / "a.npz", x=np.ones((4, 3, 3)))
    write_zarr(tmp_path / "rows.zarr", np.ones((4, 9)))
    ingest(tmp_path / "rows.npy", tmp_path / "stored.zarr")
    for name, words in {
        "rows.npy": "(4, 9): kind = 'matrices' is for n square matrices",
        "rows.zarr": "(4, 9): kind = 'matrices' is for n square matrices",
        "stored.zarr": "kind = 'matrices' is for n square matrices",
        "oblong.npy": "3 x 5 is not square",
        "four.npy": "(4, 3, 3, 3)",
        "none.npy": "no data to analyse",
        "a.csv": "in a .npy file (without dataset) or in Zarr",
        "a.npz": "in a .npy file (without dataset) or in Zarr",
    }.items():
        refused(tmp_path, tmp_path / name, words, kind="matrices")
    np.save(tmp_path / "a.npy", cubes())
    refused(tmp_path, tmp_path / "a.npy", "kind='symmetric'", kind="matrices", layout="packed")
    refused(tmp_path, tmp_path / "a.npy", "kind='matrices'", kind="samples")
    refused(tmp_path, tmp_path / "a.npy", "kind='matrices'")


def test_values_that_are_not_finite_are_named_or_the_matrix_becomes_zeros(tmp_path: Path) -> None:
    matrices = cubes(20, 4)
    matrices[7, 2, 1] = np.nan
    np.save(tmp_path / "a.npy", matrices)
    refused(tmp_path, tmp_path / "a.npy", "nan at row 7, column 9", kind="matrices")
    matrices[7] = 0.0
    check(tmp_path, tmp_path / "a.npy", matrices, non_finite="zero")


@pytest.mark.slow
def test_opening(tmp_path: Path) -> None:
    """By what the store says; an array in memory; and no other kind in between."""
    np.save(tmp_path / "a.npy", cubes(20, 6))
    path = ingest(tmp_path / "a.npy", tmp_path / "a.zarr", kind="matrices").dest
    assert open_source(path, "matrices").side == 6
    for kind in ("samples", "symmetric", "matrix", "sparse"):
        with pytest.raises(BadInputError, match="6 x 6 matrices as rows of 36 numbers"):
            open_source(path, kind)
    held = open_source(cubes(20, 6).astype("f4"), "matrices")
    assert (held.side, held.shape, held.dimension) == (6, (20, 36), 6)
    assert held.fingerprint == open_source(cubes(20, 6).astype("f4"), "matrices").fingerprint
    assert open_source(cubes(6, 6)[0]).dimension == 6
    with pytest.raises(BadInputError, match="not square"):
        open_source(np.ones((3, 4, 5)), "matrices")
    with pytest.raises(BadInputError, match=r"--kind matrices"):
        open_source(write_zarr(tmp_path / "flat.zarr", np.ones((4, 9))), "matrices")
    with pytest.raises(BadInputError, match=r"n x d x d.*--kind matrices"):
        open_source(write_zarr(tmp_path / "plain.zarr", cubes()))


def test_a_damaged_record_is_found(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", cubes(20, 6))
    path = ingest(tmp_path / "a.npy", tmp_path / "a.zarr", kind="matrices").dest
    record = json.loads((path / "zarr.json").read_text())
    record["attributes"]["npmdask"]["side"] = 5
    (path / "zarr.json").write_text(json.dumps(record))
    with pytest.raises(BadInputError, match="5 x 5"):
        open_source(path)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [None, (8, 36), (5, 7)])
def test_images_are_those_of_the_file(tmp_path: Path, chunks: Any) -> None:
    matrices, rng = cubes(40, 6), np.random.default_rng(1)
    np.save(tmp_path / "a.npy", matrices)
    source = open_source(ingest(tmp_path / "a.npy", tmp_path / "a.zarr", kind="matrices", chunks=chunks).dest)
    w, u = rng.standard_normal(6), np.linalg.qr(rng.standard_normal((6, 2)))[0]
    operator = RecordImages(reader=source.reader, side=source.side, rows=range(3, 31), mechanism=PlainMean(count=28))  # type: ignore[arg-type]
    found, _ = Threads(2).run_pass(operator, pack_query(w, np.zeros(6), u), lambda record: None)
    np.testing.assert_allclose(found, images_of_matrices(matrices[3:31], w, u).sum(0), atol=1e-12)


@pytest.mark.slow
def test_every_other_command_says_what_the_kind_is_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", cubes(30, 6))
    path = ingest(tmp_path / "a.npy", tmp_path / "a.zarr", kind="matrices").dest
    for asked in ({}, {"iteration_rank": "auto"}, {"algorithm": "power"}, {"center": True}):
        with pytest.raises(BadInputError, match="private stochastic algorithms"):
            npmdask.top_k(path, 2, **asked)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="private stochastic algorithms"):
        npmdask.top_k(path, 0.9)
    with pytest.raises(BadInputError, match="private stochastic algorithms"):
        npmdask.stream_pca(path, 2)
    with pytest.raises(BadInputError, match="private stochastic algorithms"):
        npmdask.stream_pca(np.ones((50, 6)), 2, held_out=path)
    (tmp_path / "c.toml").write_text(f'[source]\npath = "{path}"\nkind = "matrices"\n[algorithm]\ntarget_rank = 2\n')
    for command in ("run", "plan"):
        assert main.main([command, str(tmp_path / "c.toml")]) != 0
        assert "private stochastic algorithms" in capsys.readouterr().err


def test_the_command_and_inspect_say_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", cubes(30, 6))
    assert (
        main.main(["ingest", str(tmp_path / "a.npy"), str(tmp_path / "a.zarr"), "--kind", "matrices", "--quiet"]) == 0
    )
    assert "30 matrices 6 x 6 float64, kind matrices" in capsys.readouterr().out
    facts = inspect(tmp_path / "a.zarr")
    assert (facts["kind"], facts["matrices"], facts["side"], facts["dtype"]) == ("matrices", 30, 6, "float64")
    assert "columns" not in facts


def test_a_matrix_is_not_cut() -> None:
    """Whole matrices in about 16 MiB, one in a chunk of its own where it is larger; and no advice against that."""
    assert choose_chunks(10**6, 8, "matrices") == (2, 10**6)
    assert choose_chunks(10**8, 8, "matrices") == (1, 10**8)
    large: Any = zarr.create_array({}, shape=(4, 3000 * 3000), dtype="f8", chunks=(1, 3000 * 3000), compressors=None)
    source = replace(open_source(large), kind="matrices", side=3000)
    assert advise_chunks(source).reasons == ()
