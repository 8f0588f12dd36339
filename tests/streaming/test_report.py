"""The page of a stream: finished, cut short, with and without anything to compare with."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from npmdask.core.checkpoint.store import RunStore
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.manage.report import report_of, write_report
from npmdask.report import Bars
from npmdask.streaming import stream_pca
from npmdask.streaming.metrics import Measurement
from npmdask.streaming.report import drift_plot
from npmdask.synthetic import generate

D, K = 12, 2


def rows_of(n: int, seed: int = 0) -> np.ndarray:
    """Rows whose first two columns are the strong ones."""
    return np.random.default_rng(seed).standard_normal((n, D)) * np.array([5.0, 3.0, *[0.5] * (D - 2)])


def cut_short(n: int) -> Iterator[np.ndarray]:
    """Rows, and then a source that fails."""
    yield rows_of(n)
    raise OSError("the line is dead")


def page_of(store: Path) -> str:
    return write_report(store).read_text()


def tile(page: str, name: str) -> str:
    found = re.search(f"<b>([^<]*)</b> <span>{re.escape(name)}</span>", page)
    assert found, name
    return found[1]


def plots(page: str) -> set[str]:
    """Titles of the plots."""
    return set(re.findall("<figcaption>([^<]*)</figcaption>", page))


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    generate(tmp_path / "x.zarr", problem="spiked", rows=3000, columns=D, rank=K)
    return tmp_path / "x.zarr"


@pytest.mark.slow
def test_all_that_is_known_is_on_the_page(planted: Path, tmp_path: Path) -> None:
    """Fails when a measure is left out, when a number is another's, or when the page needs another file."""
    found = stream_pca(planted, K, batch_rows=50, held_out=rows_of(40), store=tmp_path / "s", memory=2**32)
    page = page_of(tmp_path / "s")
    last = found.last
    assert last.explained is not None and last.max_sin_theta is not None and last.change is not None
    assert '<p class="outcome good">the stream has ended: 3000 rows were taken' in page
    assert tile(page, "rows taken") == "3,000" and tile(page, "rows left out (not finite)") == "0"
    assert tile(page, "rows that wait for their step") == f"{found.rows_waiting}"
    assert tile(page, "steps") == f"{found.steps}" and tile(page, "rank of the iterate") == f"{last.rank}"
    assert tile(page, "explained, held-out rows") == f"{last.explained:.2%}"
    assert tile(page, "suboptimality, held-out rows") == f"{last.suboptimality:.2e}"
    assert tile(page, "max sin θ to the truth") == f"{last.max_sin_theta:.1e}"
    assert tile(page, "change, max sin θ") == f"{last.change:.1e}"
    assert tile(page, "memory limit") == "4 GiB" and tile(page, "peak memory").endswith("iB")
    assert plots(page) == {
        "Explained variance of the held-out rows",
        "Mean square along each component",
        "Objective gap on the held-out rows",
        "Largest principal angle",
        "Spectrum",
    }
    assert all(f"<td>{value:.10g}</td>" in page for value in found.values)
    assert "mean square along it" in page and "<td>run.batch_rows</td><td>50</td>" in page
    assert not re.findall(r"(?:src|href)=\"(?!#)([^\"]+)\"", page)


@pytest.mark.slow
def test_steps_are_drawn_where_they_change(tmp_path: Path) -> None:
    """Fails when batch sizes or ranks are never drawn, or drawn where the tiles say it all."""
    for name, algorithm in (("changes", "msg"), ("stays", "spm")):
        stream_pca(lambda: [rows_of(2000)], K, algorithm=algorithm, batch_rows=25, store=tmp_path / name, center=True)
    assert "Steps" in plots(page_of(tmp_path / "changes")) and "Steps" not in plots(page_of(tmp_path / "stays"))
    assert "variance along it" in page_of(tmp_path / "stays")


@pytest.mark.slow
def test_of_a_stream_that_was_cut_short(tmp_path: Path) -> None:
    """Fails when the page needs a result, or passes the measures of the last commit over."""
    with pytest.raises(BadInputError, match="the line is dead"):
        stream_pca(cut_short(700), K, batch_rows=20, store=tmp_path / "s")
    page = page_of(tmp_path / "s")
    assert not (tmp_path / "s" / "result").exists()
    assert '<p class="outcome bad">not finished: run its own program again' in page
    assert tile(page, "rows taken") == "700" and "to the truth" not in page, "real data have none"
    assert tile(page, "explained, held-out rows") == "no held-out rows"
    assert (
        plots(page) == {"Mean square along each component", "Largest principal angle", "Spectrum"}
        and ">Components</h2>" in page
    )


@pytest.mark.slow
def test_loadings_have_the_names_of_the_columns_of_the_same_data(tmp_path: Path) -> None:
    """Those of the data as they were. Mutants: names of what lies there now; no names; loadings in another order."""

    def stored(names: list[str], seed: int) -> None:
        rows = pd.DataFrame(rows_of(600, seed), columns=names)
        rows.to_parquet(tmp_path / "x.parquet")
        shutil.rmtree(tmp_path / "x.zarr", ignore_errors=True)
        ingest(tmp_path / "x.parquet", tmp_path / "x.zarr")

    def first() -> list[str]:
        loadings = next(one for one in report_of(tmp_path / "s").sections if one.title == "Strongest loadings")
        return [block.bars[0][0] for block in loadings.blocks if isinstance(block, Bars)]

    stored(["<b>wind", "rain", *(f"c{i}" for i in range(2, D))], 0)
    stream_pca(tmp_path / "x.zarr", K, batch_rows=20, half_life=200, store=tmp_path / "s")
    assert first() == ["<b>wind", "rain"] and "<b>wind" not in (page := page_of(tmp_path / "s"))
    assert tile(page, "half life, rows") == "200" and "A row counts half after 200 more rows" in page
    stored([f"other{i}" for i in range(D)], 1)
    assert first() == ["<b>wind", "rain"], "other data lie there now"
    shutil.rmtree(tmp_path / "x.zarr")
    assert first() == ["<b>wind", "rain"]


def test_values_are_drawn_from_where_there_are_some() -> None:
    """Fewer components at first, more than are drawn later on, negative weights. Mutant: a zip that cuts them short."""

    def at(rows: int, values: list[float] | None) -> Measurement:
        sizes = {"batches": 1, "steps": 1, "rows_used": rows, "rank": 1, "batch_rows": 1, "mean_batch_rows": 1.0}
        return Measurement(rows=rows, values=values, step_size=None, condition=None, **sizes)  # type: ignore[arg-type]

    assert drift_plot((at(1, None), at(2, [3.0])), "weight") is None, "one point is no line"
    found = drift_plot((at(1, None), at(2, [3.0]), at(3, [4.0, -1.0]), at(4, [float(i) for i in range(30)])), "weight")
    assert found is not None and len(found.series) == 8 and not found.log and found.bottom == -1.0
    assert found.series[0].x == (2, 3, 4) and found.series[1].y == (-1.0, 1.0) and found.series[7].x == (4,)


def test_before_the_first_measurement(tmp_path: Path) -> None:
    """Fails when an empty history is indexed or drawn."""
    with pytest.raises(BadInputError, match="the line is dead"):
        stream_pca(cut_short(60), K, batch_rows=20, store=tmp_path / "s")
    page = page_of(tmp_path / "s")
    assert tile(page, "rows taken") == "60" and tile(page, "rank of the iterate") == "not yet"
    assert "to the truth" not in page
    assert not plots(page) and "Components" not in page


def test_of_a_stream_with_too_few_rows(tmp_path: Path) -> None:
    """Fails when a stream that has ended without an answer is called good."""
    with pytest.raises(BadInputError, match="kept in"):
        stream_pca(
            iter([rows_of(5)]), K, algorithm="mb-msg", options={"gap": 0.1, "warm_rows": 64}, store=tmp_path / "s"
        )
    page = page_of(tmp_path / "s")
    assert '<p class="outcome bad">all 5 rows that there were are taken, and give no answer yet' in page
    assert not plots(page)


@pytest.mark.slow
def test_an_answer_of_fewer_rows_is_not_passed_off_as_the_last(tmp_path: Path) -> None:
    """Fails when the page of a second call that failed shows the outcome of the first."""
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", rows_of(300))
    stream_pca(tmp_path / "in", K, batch_rows=30, store=tmp_path / "s")
    first = page_of(tmp_path / "s")
    assert '<p class="outcome good">up to date: 300 rows' in first and tile(first, "files done") == "1"
    more = rows_of(90, seed=1)
    more[70] = np.nan
    np.save(tmp_path / "in" / "b.npy", more)
    with pytest.raises(BadInputError, match="row 70"):
        stream_pca(tmp_path / "in", K, batch_rows=30, store=tmp_path / "s")
    second = page_of(tmp_path / "s")
    assert '<p class="outcome bad">not finished: go on with `npmdask resume`</p>' in second
    assert tile(second, "rows taken") == "360" and tile(second, "files done") == "1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ended": False}, "not finished: go on with `npmdask resume`"),
        ({"rows": 340}, "all 340 rows that there were are taken, and give no answer yet: run again"),
    ],
)
def test_a_kill_beside_the_answer(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Fails when a page is called good whose answer is not that of the last commit, or whose stream has not ended."""
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", rows_of(300))
    stream_pca(tmp_path / "in", K, batch_rows=30, store=tmp_path / "s")
    with RunStore(tmp_path / "s") as held:
        last = held.last_step()
        assert last is not None
        arrays, meta = last
        meta["state"]["rows"], meta["ended"] = change.get("rows", 300), change.get("ended", True)
        held.commit_step(meta["state"]["batches"], arrays, meta)
    assert f'<p class="outcome bad">{said}' in page_of(tmp_path / "s")


@pytest.mark.slow
def test_rates_are_of_the_last_call(tmp_path: Path) -> None:
    """Fails when calls are added up, or a call that took nothing counts; a call that was cut short has a rate too."""
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", rows_of(300))
    stream_pca(tmp_path / "in", K, store=tmp_path / "s")
    plan = {"event": "plan", "limit": None, "pid": 1}
    measured = {"event": "measured", "rss": 2**20, "pid": 1}
    lines: list[dict[str, Any]] = [
        plan | {"time": 0.0},
        {"event": "end", "time": 10.0, "seconds": 10.0, "new_rows": 50, "peak_rss": 3 * 2**20},
        plan | {"time": 100.0},
        measured | {"time": 102.0, "new_rows": 3000},
        measured | {"time": 104.0, "new_rows": 10000},
    ]
    log = tmp_path / "s" / "telemetry.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of(tmp_path / "s")
    assert tile(page, "rows a second, last call") == "2,500" and tile(page, "peak memory") == "3 MiB"
    nothing_new = [plan | {"time": 200.0}, {"event": "end", "time": 201.0, "seconds": 1.0, "new_rows": 0}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines + nothing_new))
    assert tile(page_of(tmp_path / "s"), "rows a second, last call") == "2,500"
    log.unlink()
    assert tile(page_of(tmp_path / "s"), "rows a second, last call") == "not kept"


@pytest.mark.slow
def test_all_text_is_escaped(tmp_path: Path) -> None:
    """Fails when the name of a store or of its source is read as HTML."""
    source = tmp_path / "<script>alert(1)&"
    source.mkdir()
    np.save(source / "a.npy", rows_of(100))
    stream_pca(source, K, batch_rows=30, store=tmp_path / "<b>&co")
    page = page_of(tmp_path / "<b>&co")
    assert "<script>alert" not in page and "<b>&co" not in page
    assert (
        "Run &lt;b&gt;&amp;co." in page
        and "<h1>Streaming PCA of &lt;script&gt;alert(1)&amp;: 2 components</h1>" in page
    )


def test_nothing_committed_is_said(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", np.full((3, D), np.nan))
    with pytest.raises(BadInputError, match="NaN"):
        stream_pca(tmp_path / "in", K, store=tmp_path / "s")
    with pytest.raises(BadInputError, match="there is no run with a committed step in"):
        write_report(tmp_path / "s")
