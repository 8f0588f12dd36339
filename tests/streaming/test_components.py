"""Components of the third moment through every door of a stream: the same bits, the right words, nothing of PCA."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.errors import BadInputError, MemoryRefusedError, NpmdaskError
from npmdask.streaming import StreamingPCA, StreamSolution, stream_components, stream_pca
from npmdask.streaming.memory import plan_stream
from npmdask.streaming.metrics import angle
from npmdask.streaming.problem import StreamRequest, make_model
from npmdask.synthetic import generate
from tests.conftest import write_zarr
from tests.streaming.common import fed, same_end
from tests.streaming.test_exactly_once import Killer, killed

NAME, D, K = "online-tensor-power", 8, 2
OPTIONS: dict[str, Any] = {"block_rows": 200, "restarts": 6, "iterations": 3}
V = np.linalg.qr(np.random.default_rng(0).standard_normal((D, K)))[0]


def rows_of(n: int, seed: int = 0) -> np.ndarray:
    """A component of V, of weights 2 and 1, and Gaussian noise."""
    rng = np.random.default_rng(seed)
    which = rng.choice(K, size=n, p=[2 / 3, 1 / 3])
    return np.asarray(np.cbrt(3.0) * V[:, which].T + 0.1 * rng.standard_normal((n, D)))


ROWS = rows_of(3300)  # two searches of 800 rows, eight blocks that refine, and 100 rows that wait


def components(source: Any, store: Path | None = None, **more: Any) -> StreamSolution:
    return stream_components(source, K, store=store, **{**OPTIONS, **more})


def text(rows: np.ndarray) -> bytes:
    return "".join(",".join(map(repr, row.tolist())) + "\n" for row in rows).encode()


def by_pipe(rows: np.ndarray, store: Path, monkeypatch: pytest.MonkeyPatch) -> StreamSolution:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text(rows))))
    return components("-", store, format="csv", columns=D, batch_rows=37)


@pytest.mark.slow
def test_every_source_and_every_door_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are of other sizes everywhere. Fails when one of them reaches a sum, or a row is left out."""
    whole = components(ROWS)
    folder = tmp_path / "files"
    folder.mkdir()
    np.save(folder / "a.npy", ROWS[:1234])
    (folder / "b.csv").write_bytes(text(ROWS[1234:]))
    hand = StreamingPCA(K, NAME, options=OPTIONS)
    for start in range(0, len(ROWS), 101):
        hand.partial_fit(ROWS[start : start + 101])
    hand.save(tmp_path / "model")
    found = [
        components(write_zarr(tmp_path / "x.zarr", ROWS, (500, D)), batch_rows=100),
        components(folder, tmp_path / "s"),
        components(iter([ROWS[:7], ROWS[7:]])),
        by_pipe(ROWS, tmp_path / "piped", monkeypatch),
        hand,
        StreamingPCA.load(tmp_path / "model"),
        StreamingPCA.load(tmp_path / "s"),
    ]
    for other in found:
        np.testing.assert_array_equal(other.basis, whole.basis)
        np.testing.assert_array_equal(other.values, whole.values)
        assert (other.rows, other.rows_waiting) == (3300, 100)
    assert whole.moment == 3 and whole.mean is None and whole.steps == 16
    assert angle(whole.basis, V, 3) < 0.1
    assert whole.outcome.sentence == (
        "the stream has ended: 3300 rows were taken, 3300 of them now; 2 of 2 components are found; the last 100 wait "
        "for their step"
    )


@pytest.mark.slow
def test_a_directory_that_grows(tmp_path: Path) -> None:
    """Too few rows for one component, then for both, then more than enough: every file counts once."""
    folder, store = tmp_path / "in", tmp_path / "s"
    folder.mkdir()
    np.save(folder / "a.npy", ROWS[:500])
    with pytest.raises(NpmdaskError, match=r"500 rows find no component, the first takes 800: .*are kept in"):
        components(folder, store)
    np.save(folder / "b.npy", ROWS[500:1000])
    first = components(folder, store)
    assert first.basis.shape == (D, 1) and first.facts["status"] == ["found", "open"]
    assert "1000 rows were taken, 500 of them now; 1 of 2 components are found, 1 still open: each takes 800 rows" in (
        first.outcome.sentence
    )
    assert first.last.max_sin_theta is None and first.last.explained is None
    np.save(folder / "c.npy", ROWS[1000:])
    last = components(folder, store)
    np.testing.assert_array_equal(last.basis, components(ROWS).basis)
    assert last.new_rows == 2300 and last.facts["status"] == ["found", "found"]


@pytest.mark.slow
def test_killed_at_some_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a field of the state is missing from a checkpoint, or a row is taken twice after one."""
    path = write_zarr(tmp_path / "x.zarr", ROWS[:2000], (300, D))

    def door(store: Path) -> StreamSolution:
        return components(path, store, batch_rows=150, measure_rows=400, commit_seconds=0.0)

    whole, killer = door(tmp_path / "whole"), Killer(monkeypatch)
    at = kills = 0
    while killed(door, store := tmp_path / f"k{at}", killer, at := at + 97):
        again = door(store)
        same_end(store, tmp_path / "whole")
        assert again.rows == 2000 and again.facts == whole.facts and again.history == whole.history
        kills += 1
    assert kills > 1


@pytest.mark.slow
def test_from_a_configuration_to_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The right words everywhere, and no measure of PCA. Fails where weights are called mean squares."""
    np.save(tmp_path / "rows.npy", ROWS)
    (tmp_path / "c.toml").write_text(
        f'[source]\npath = "rows.npy"\n[algorithm]\nname = "{NAME}"\ntarget_rank = 3\n'
        'options = { block_rows = 150, restarts = 6, iterations = 3 }\n[stream]\nbatch_rows = 64\n[run]\nstore = "s"\n'
    )
    assert main(["plan", str(tmp_path / "c.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm.restarts"] == 6
    assert main(["run", str(tmp_path / "c.toml"), "--json", "--quiet"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["moment"] == 3 and facts["found"] == 3 and facts["status"] == ["found", "found", "surplus"]
    assert len(facts["weights"]) == len(facts["standard_errors"]) == 3 and facts["change"] is not None
    assert not {"explained", "suboptimality", "values", "rank"} & facts.keys()
    assert "2 of 3 components are found, 1 has a weight that noise would have, too" in facts["sentence"]

    assert main(["report", str(tmp_path / "s")]) == 0
    page = next((tmp_path / "s").glob("*.html")).read_text()
    capsys.readouterr()
    assert "<b>3</b> <span>components found</span>" in page and "<td>surplus</td>" in page
    assert all(f"<td>{weight:.10g}</td>" in page for weight in facts["weights"])
    assert all(f"<td>{error:.1e}</td>" in page for error in facts["standard_errors"])
    assert not any(word in page for word in ("mean square", "held-out", "rank of the iterate", "principal"))

    assert main(["inspect", str(tmp_path / "s"), "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["state"] == "up to date" and known["algorithm.name"] == NAME and "explained" not in known

    assert main(["export", str(tmp_path / "s"), str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_array_equal(arrays["values"], facts["weights"])
        basis = arrays["basis"]
    assert main(["transform", str(tmp_path / "s"), str(tmp_path / "rows.npy"), str(tmp_path / "scores.zarr")]) == 0
    import zarr

    scores: Any = zarr.open_group(tmp_path / "scores.zarr", mode="r")["data"]
    np.testing.assert_allclose(np.asarray(scores[:]), ROWS @ basis, atol=1e-12)


@pytest.mark.slow
def test_a_page_while_components_are_open(tmp_path: Path) -> None:
    components(ROWS[:1000], tmp_path / "s")
    from npmdask.manage.report import write_report

    page = write_report(tmp_path / "s").read_text()
    assert "<td>open</td>" in page and "<b>1</b> <span>components found</span>" in page


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"center": True}, "center: the mean of a stream is estimated on the way, .* subtract a known mean beforehand"),
    (
        {"half_life": 100},
        "half_life = 100: online-tensor-power gives all rows the same weight and does not follow drift: leave it out",
    ),
    ({"options": {}}, "online-tensor-power needs the option block_rows: rows of an iteration; of N rows to come, N / "),
    ({"options": {"block_rows": 1}}, "^online-tensor-power: block_rows = 1: an iteration takes at least two rows"),
    ({"options": {"block_rows": 9, "memory": 0.5}}, "online-tensor-power has no option 'memory'"),
    ({"options": {"block_rows": 9, "restarts": 2.5}}, "online-tensor-power option restarts = 2.5"),
]


@pytest.mark.parametrize(("asked", "sentence"), WRONG, ids=[f"{i}" for i in range(len(WRONG))])
def test_what_cannot_be_is_a_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        make_model(StreamRequest(**({"target_rank": K, "algorithm": NAME, "options": OPTIONS} | asked)), D)


def test_held_out_rows_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"held_out rows measure captured variance, .*leave held_out out"):
        components(ROWS, held_out=ROWS[:10])
    model = StreamingPCA(K, NAME, options=OPTIONS).partial_fit(ROWS)
    with pytest.raises(BadInputError, match="held_out rows measure"):
        model.measure(held_out=ROWS[:10])
    assert (model.measure(truth=V).max_sin_theta or 1) < 0.1
    generate(tmp_path / "x.zarr", problem="spiked", rows=2000, columns=D, rank=K)
    assert components(tmp_path / "x.zarr").last.max_sin_theta is None, "planted directions are of the second moment"


def test_what_is_left_open_follows_from_the_rows() -> None:
    """Half of the rows of a stored array find all components; of others nobody knows how many there will be."""
    made = make_model(StreamRequest(target_rank=3, algorithm=NAME), D, rows=66_000).algorithm
    assert (made.block_rows, made.iterations, made.restarts, made.refine) == (1000, 10, 17, True)
    few = StreamRequest(target_rank=3, algorithm=NAME, options={"iterations": 4})
    assert make_model(few, D, rows=66_000).algorithm.block_rows == 2200
    assert make_model(few, D, rows=10).algorithm.block_rows == 2
    found = stream_components(ROWS, K, refine=False, iterations=4)
    assert found.steps == 3300 // 165 and found.facts["status"] == ["found", "found"]


def test_an_angle_is_of_the_component_that_is_missing() -> None:
    """Fails when a basis that holds one component twice passes for one that spans them, or signs count."""
    twice = V[:, [0, 0]]
    assert angle(twice, V, 3) == pytest.approx(1) and angle(-V[:, ::-1], V, 3) < 1e-14
    turned = V @ np.array([[1, 1], [1, -1]]) / np.sqrt(2)
    assert angle(turned, V, 2) < 1e-14 and angle(turned, V, 3) == pytest.approx(np.sqrt(0.5))


def test_saved_and_loaded_it_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    half = StreamingPCA(K, NAME, options=OPTIONS).partial_fit(ROWS[:933])
    half.save(tmp_path / "m")
    again = StreamingPCA.load(tmp_path / "m")
    assert again.measure() == half.measure()
    np.testing.assert_array_equal(again.partial_fit(ROWS[933:]).basis, components(ROWS).basis)


@pytest.mark.slow
def test_what_is_too_much_is_refused_before_the_first_row() -> None:
    model = make_model(StreamRequest(target_rank=K, algorithm=NAME, options=OPTIONS), 10**6)
    with pytest.raises(MemoryRefusedError, match=r"memory = 64MiB is too small: .*set memory to at least \d+MiB, or "):
        plan_stream(model, 64, 0, limit=2**26, base=0)


def test_a_model_of_one_batch_counts_the_steps_of_all_its_blocks() -> None:
    model = make_model(StreamRequest(target_rank=K, algorithm=NAME, options=OPTIONS), D)
    state, info = model.absorb(model.init(), ROWS)
    assert (info.steps, info.rank, info.batch_rows, state.rows_used) == (16, 2, 200, 3200)
    assert stream_pca(ROWS, K, algorithm=NAME, options=OPTIONS).steps == fed(model, ROWS, [77]).steps == 16
    assert npmdask.stream_components is stream_components
