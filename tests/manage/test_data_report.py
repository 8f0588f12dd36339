"""What a report says of the data: its own numbers, no scores of private rows, a page for everybody."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.storage.labels import Labels, axis_of
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.manage.data_report import components, grouped
from npmdask.manage.kinds import PageOptions
from npmdask.manage.report import report_of, write_report
from npmdask.manage.row_scores import PART, Density, row_scores
from npmdask.report import Map, Plot, Report, Series, as_html, as_json, as_markdown
from npmdask.report.blocks import section
from npmdask.report.plots import COLOURS, draw
from npmdask.report.render import behind
from tests.conftest import write_zarr
from tests.prefect.browser import browser, missing

ROWS, GRID = 3000, (3, 4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run over rows whose columns are images of 3 x 4."""
    folder = tmp_path_factory.mktemp("report")
    rows = np.random.default_rng(0).standard_normal((ROWS, 12)) * np.linspace(6, 1, 12)
    np.save(folder / "x.npy", rows)
    npmdask.top_k(folder / "x.npy", 4, kind="samples", center=True, store=folder / "run")
    return folder


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Path:
    """A copy of the run, whose source stays where it was."""
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path


def blocks(report: Report, title: str) -> list[Any]:
    return [block for one in report.sections if one.title == title for block in one.blocks]


@pytest.mark.slow
def test_scores_are_those_of_the_rows_and_are_found_once(made: Path, world: Path) -> None:
    """Fails when a point is another row's, when a row is counted twice, or when a second report reads the data."""
    store, rows = world / "run", np.load(made / "x.npy")
    solution = npmdask.resume(store)
    true = solution.scores(rows)
    drawn = blocks(report_of(store), "Scores of rows")
    points, density = next(b for b in drawn if isinstance(b, Plot)), next(b for b in drawn if isinstance(b, Map))
    (found,) = points.series
    named = [int(label.removeprefix("row ")) for label in found.labels]
    assert len(set(named)) == 2000 and np.allclose(np.stack([found.x, found.y], 1), true[named, :2], rtol=1e-4)
    assert sum(v or 0 for row in density.values for v in row) == ROWS
    wide = density.x[1] - density.x[0]
    edges = [np.append(np.array(at) - wide / 2, at[-1] + wide / 2) for at in (density.y, density.x)]
    counts = np.histogram2d(true[:, 1], true[:, 0], bins=edges)[0]
    assert np.abs(counts - np.array(density.values)).sum() <= 20, "edges are rounded in the page"
    shares = next(b for b in blocks(report_of(store), "Explained variance") if isinstance(b, Plot))
    assert np.allclose(shares.series[0].y, 100 * solution.explained_variance_ratio)
    (made / "x.npy").rename(made / "away.npy")
    try:
        again = blocks(report_of(store), "Scores of rows")
        assert as_json(Report(title="", outcome="", good=True, sections=(section("", *again),))) == as_json(
            Report(title="", outcome="", good=True, sections=(section("", *drawn),))
        )
        RunStore(store).path.joinpath(PART).rename(world / "gone")
        (said,) = blocks(report_of(store), "Scores of rows")
        assert said.text.startswith("Scores are not drawn")
    finally:
        (made / "away.npy").rename(made / "x.npy")


@pytest.mark.slow
def test_data_that_changed_since_are_not_scored(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((50, 6))
    np.save(tmp_path / "x.npy", rows)
    npmdask.top_k(tmp_path / "x.npy", 2, kind="samples", store=tmp_path / "run")
    np.save(tmp_path / "x.npy", rows + 1)
    (said,) = blocks(report_of(tmp_path / "run"), "Scores of rows")
    assert "has changed since" in said.text
    with pytest.raises(BadInputError, match="has changed since"):
        report_of(tmp_path / "run", PageOptions(scores=True))


def test_no_score_of_rows_that_are_private(tmp_path: Path) -> None:
    """Fails when a guard is left out: of private runs, of nodes, and of data with a budget."""
    plain: dict[str, Any] = {"data": {"kind": "samples", "dtype": "<f8", "shape": [9, 3]}, "source": "x"}
    for more in ({"privacy": {}}, {"nodes": []}, {"budget": "people"}):
        said = row_scores(RunStore(tmp_path), plain | more, PageOptions())
        assert isinstance(said, str) and "scores are data of single rows" in said
        with pytest.raises(BadInputError, match="scores are data of single rows"):
            row_scores(RunStore(tmp_path), plain | more, PageOptions(scores=True))


@pytest.mark.slow
def test_the_command_names_colours_and_a_grid(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, labels = str(world / "run"), world / "labels.txt"
    labels.write_text("\n".join("even" if i % 2 == 0 else "odd" for i in range(ROWS)))
    assert main(["report", store, "--colour", str(labels), "--grid", "3x4", "-o", str(world / "r.json")]) == 0
    facts = {one["title"]: one["blocks"] for one in json.loads((world / "r.json").read_text())["sections"]}
    names = {series["name"]: series["labels"] for series in facts["Scores of rows"][1]["series"]}
    assert set(names) == {"even", "odd"} and all(int(label[4:]) % 2 for label in names["odd"])
    image = facts["Components as images"][1]
    basis = npmdask.resume(store).basis[:, 0]
    assert np.allclose(np.array(image["values"]).ravel(), basis, atol=1e-3)
    for wrong, said in (
        (["--grid", "3x5"], "has 15 cells"),
        (["--grid", "no"], "like 28x28"),
        (["--colour", "nothing"], "no column of that name"),
    ):
        assert main(["report", store, *wrong]) == 2 and said in capsys.readouterr().err
    labels.write_text("too\nfew")
    assert main(["report", store, "--colour", str(labels)]) == 2 and "has 2 values" in capsys.readouterr().err
    assert main(["report", store, "--colour", "0", "-o", str(world / "r.json")]) == 0


def test_land_stays_empty_on_a_map() -> None:
    """Fails when a component is drawn on the cells that were kept as if they were the first ones."""
    kept, basis = np.array([0, 2, 5]), np.array([[0.5], [-0.5], [0.7]])
    grid = (axis_of("lat", np.array([10.0, 20.0])), axis_of("lon", np.array([0.0, 5.0, 9.0])))
    labels = Labels(columns=(axis_of("column", kept),), grid=grid)
    assert Labels.of_bundle(*labels.bundle()).grid[1].values.tolist() == [0.0, 5.0, 9.0]  # type: ignore[union-attr]
    shown = components(basis, labels, kept, None)
    (field,) = [block for block in shown.blocks if isinstance(block, Map)]
    assert field.values == ((0.5, None, -0.5), (None, None, 0.7)) and field.x == (0.0, 5.0, 9.0)
    assert shown.title == "Components as maps" and "Grey" in shown.blocks[0].text  # type: ignore[union-attr]


def land(columns: int = 4, **more: Any) -> Map:
    """A map of two rows, with no values in the left half of the second."""
    empty = tuple(None if i < columns // 2 else 0.5 for i in range(columns))
    return Map(title="t", values=((-1.0,) * columns, empty), x=tuple(map(float, range(columns))), y=(0.0, 1.0), **more)


def test_land_has_a_coast() -> None:
    """Mutants: no line; one where all is sea, or around what is no land: cells of a density without a row."""
    drawn, dense, whole = land(), land(colours="amount"), replace(land(), values=((-1.0,) * 4,) * 2)
    assert [draw(one).count("QuadContourSet") for one in (drawn, dense, whole)] == [1, 0, 0]


def test_a_density_grows_and_loses_no_row() -> None:
    """Fails when cells that are joined move, or when a far row is thrown away."""
    rng, density = np.random.default_rng(1), Density(width=0.01)
    parts = [rng.standard_normal((500, 2)) * size for size in (0.1, 5, 40)]
    for part in parts:
        density.add(part[:, 0], part[:, 1])
    half = len(density.counts) // 2
    edges = (np.arange(2 * half + 1) - half) * density.width
    x, y = np.concatenate(parts).T
    assert np.array_equal(density.counts, np.histogram2d(y, x, bins=[edges, edges])[0]) and density.counts.sum() == 1500


def test_rows_are_divided_into_few_classes() -> None:
    assert [name for name, _ in grouped(np.array(["b", "a", "b"]))] == ["a", "b"]
    numbers = np.append(np.arange(100.0), np.nan)
    classes = grouped(numbers)
    assert len(classes) == 6 and sorted(np.concatenate([which for _, which in classes])) == list(range(101))
    assert [len(which) for _, which in classes] == [20, 20, 20, 20, 20, 1] and classes[-1][0] == "no value"
    texts = np.array([f"t{i % 30}" for i in range(300)] + ["often"] * 9)
    assert len(grouped(texts)) == len(COLOURS) and grouped(texts)[-1][0] == "others"


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_are_seen_on_both_pages() -> None:
    """Fails for a series that fades on white or on the dark sheet, and for text below 4.5."""
    style = (Path(npmdask.__file__).parent / "report" / "page.css").read_text()
    pairs = dict(re.findall(r"--(\w+): light-dark\(([^)]*)\)", style))
    named = {
        name: [re.sub("^#(.)(.)(.)$", r"#\1\1\2\2\3\3", c.strip()) for c in two.split(",")]
        for name, two in pairs.items()
    }
    for side in (0, 1):
        sheets = [named[name][side] for name in ("sheet", "paper")]
        assert all(contrast(colour, sheets[0]) >= 3 for colour in COLOURS)
        texts = [named[name][side] for name in ("ink", "faint", "link", "good", "bad")]
        assert all(contrast(text, sheet) >= 4.5 for text in texts for sheet in sheets)
        assert all(contrast(named["ink"][side], named[bar][side]) >= 4.5 for bar in ("bar", "less"))
    script = (Path(npmdask.__file__).parent / "report" / "page.js").read_text()
    assert json.loads(re.search(r"COLOURS = (\[.*?\])", script)[1]) == list(COLOURS)  # type: ignore[index]


class Page(HTMLParser):
    """What a reader without eyes, on a phone or without a network depends on."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, *names: str) -> list[dict[str, str | None]]:
        return [facts for tag, facts in self.tags if tag in names]


@pytest.mark.slow
def test_the_page_is_for_everybody(world: Path) -> None:
    """Language, title, landmarks, order of headings, names of pictures, scrolling tables, no network, at most 1 MB."""
    page = write_report(world / "run", page=PageOptions(grid=GRID)).read_text()
    found = Page(page)
    assert len(page.encode()) <= 2**20 and found.all("html")[0]["lang"] == "en" and "<title>PCA of x.npy" in page
    assert all(len(found.all(tag)) == 1 for tag in ("h1", "main", "header", "footer", "nav"))
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
    pictures = [facts for facts in found.all("svg") if facts.get("role") == "img"]
    assert len(pictures) == len(found.all("figure")) == len(found.all("svg")) >= 8
    assert all(facts.get("aria-label") for facts in pictures)
    boxes = [facts for facts in found.all("div") if facts.get("class") == "table"]
    assert len(boxes) == len(found.all("table")) and all(
        box.get("tabindex") == "0" and box.get("aria-label") for box in boxes
    )
    assert len({box["aria-label"] for box in boxes}) == len(boxes), "landmarks have names of their own"
    for _, facts in found.tags:
        for name in ("src", "href", "xlink:href"):
            assert (facts.get(name) or "#").startswith(("#", "data:"))
    assert "@import" not in page and not re.findall(r"url\((?!#)", page.split("</style>")[0])
    styles = re.sub(r"@media[^{]*", "", page.split("</style>")[0])
    assert all(int(w) <= 390 for w in re.findall(r"(?<![-\w])(?:min-)?width: ?(\d+)px", styles))
    ids = [facts["id"] for _, facts in found.tags if facts.get("id") and str(facts["id"]).startswith("part-")]
    assert {f"#{one}" for one in ids} >= {facts["href"] for facts in found.all("a")}


@pytest.mark.slow
def test_one_description_gives_all_forms() -> None:
    """Fails when a form draws other numbers, or names a picture by nothing."""
    plot = Plot(
        title="P", x="n", y="v", series=(Series(x=(1, 2), y=(3.0, float("nan")), name="a</script>b"),), about="Falls."
    )
    image = Map(title="I", values=((1.0, None), (-1.0, 0.0)), x=(0.0, 1.0), y=(0.0, 1.0), pixels=True)
    report = Report(title="t", outcome="o", good=True, sections=(section("S", plot, image),))
    table = behind(plot)
    assert table is not None and table.head == ("n", "a</script>b") and table.rows == (("1", "3"), ("2", ""))
    page, text = as_html(report), as_markdown(report)
    assert (
        'aria-label="P, plot of v by n: a&lt;/script&gt;b. Falls."' in page
        and "![P, plot of v by n: a&lt;/script>b. Falls.]" in text
    )
    held = [json.loads(one) for one in re.findall('<script type="application/json">(.*?)</script>', page)]
    assert held[0]["series"][0]["y"] == [3.0, None] and held[1]["most"] == 1.0
    assert text.count("data:image/svg+xml;base64,") == 2


def _memory_of(store: Path, page: Path) -> list[Any]:
    """What the report says of memory that was used: the rows of its tables that have a peak, and of each process."""
    found = json.loads(write_report(store, page).read_text())
    rows = [row for section in found["sections"] for block in section["blocks"] for row in block.get("rows", ())]
    return [row for row in rows if str(row[0]) == "peak memory" or re.search("process|all together", str(row[0]))]


@pytest.mark.slow
def test_a_process_that_only_reads_the_answer_leaves_the_memory_of_its_run_alone(tmp_path: Path) -> None:
    """It may take more than the run did, as here, and is another process."""
    rows = np.random.default_rng(0).standard_normal((500, 8)) * np.geomspace(5, 1, 8)
    write_zarr(tmp_path / "x.zarr", rows, (100, 8))
    program = (
        "import sys, numpy as np, npmdask\nheld = np.ones(int(sys.argv[1]) * 2**17)\n"
        f"npmdask.top_k({str(tmp_path / 'x.zarr')!r}, 2, kind='samples', store={str(tmp_path / 'run')!r})\n"
        f"npmdask.stream_pca({str(tmp_path / 'x.zarr')!r}, 2, store={str(tmp_path / 'stream')!r})\n"
    )
    said = []
    for mebibytes in ("1", "400"):
        subprocess.run([sys.executable, "-c", program, mebibytes], check=True)
        said.append([_memory_of(tmp_path / name, tmp_path / f"{name}.json") for name in ("run", "stream")])
    assert said[0] == said[1] and all(said[0])
    assert [line["event"] for line in RunStore(tmp_path / "run").telemetry()][-2:] == ["end", "answered"]


@pytest.mark.slow
def test_a_configuration_says_colour_and_grid(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutants: paths of the working directory; options of the command that are overruled; a page lost with its data."""
    (tmp_path / "labels.txt").write_text("\n".join(str(i % 3) for i in range(ROWS)))
    shutil.copy(made / "x.npy", tmp_path / "x.npy")
    file = tmp_path / "run.toml"
    file.write_text(
        '[source]\npath = "x.npy"\nkind = "samples"\n[algorithm]\ntarget_rank = 2\n[report]\ncolour = "labels.txt"\n'
        'grid = "3X4"\n[run]\nstore = "run"\n'
    )
    assert main(["run", str(file), "--quiet"]) == 0
    report = report_of(tmp_path / "run")
    assert [s.name for s in blocks(report, "Scores of rows")[1].series] == ["0", "1", "2"]
    assert isinstance(blocks(report, "Components as images")[1], Map)
    (tmp_path / "x.npy").rename(tmp_path / "gone.npy")
    assert blocks(report_of(tmp_path / "run"), "Scores of rows") == blocks(report, "Scores of rows")
    (tmp_path / "gone.npy").rename(tmp_path / "x.npy")
    other = report_of(tmp_path / "run", PageOptions(colour="5", grid=(4, 3)))
    assert len(blocks(other, "Scores of rows")[1].series) == 5 and len(blocks(other, "Components as images")[1].y) == 4
    for wrong, said in (
        ("report.grid=28", "report.grid = '28': give rows x columns, like 28x28"),
        ("report.grid=2x2", "fewer cells than the data have columns (12)"),
        ("report.colour=nothing", "no column of that name"),
    ):
        assert main(["run", str(file), "--quiet", "--store", str(tmp_path / "new"), "--set", wrong]) == 2
        assert said in capsys.readouterr().err
    assert not list((tmp_path / "new" / "steps").glob("*")), "refused before a pass"
    options = ["--colour", str(tmp_path / "labels.txt"), "--grid", "3x4", "--store", str(tmp_path / "by-options")]
    assert main(["run", str(tmp_path / "x.npy"), "-k", "2", "--kind", "samples", "--quiet", *options]) == 0
    assert blocks(report_of(tmp_path / "by-options"), "Scores of rows") == blocks(report, "Scores of rows")


@pytest.mark.slow
def test_images_of_an_idx_file_need_no_grid(tmp_path: Path) -> None:
    """Mutants: height and width exchanged; the shape lost where the file is ingested first, or not."""
    images = np.random.default_rng(0).integers(0, 255, (60, 3, 5), np.uint8)
    header = np.array([0x0803, *images.shape], ">u4").tobytes()
    (tmp_path / "t-images-idx3-ubyte").write_bytes(header + images.tobytes())
    ingest(tmp_path / "t-images-idx3-ubyte", tmp_path / "x.zarr")
    for source in ("t-images-idx3-ubyte", "x.zarr"):
        solution = npmdask.top_k(tmp_path / source, 2, kind="samples", center=True, store=tmp_path / f"of-{source}")
        first = blocks(report_of(tmp_path / f"of-{source}"), "Components as images")[1]
        assert first.pixels and (len(first.y), len(first.x)) == (3, 5)
        np.testing.assert_allclose(np.ravel(first.values), solution.basis[:, 0], atol=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason="there is no chromium and chromium-driver here")
def test_a_logarithmic_axis_has_its_numbers_in_a_browser(tmp_path: Path) -> None:
    """Fails when the script begins to count at the end of the axis, from which it meets no power of ten."""
    drawn = Series(x=(1, 2), y=(9972.0, 102.6))
    tall = Series(x=(1, 2), y=(1e-9, 40.0))
    long = "the eigenvalue of the second moment of all rows"
    plots = [Plot(title=t, x="n", y=long, log=True, series=(one,)) for t, one in (("A", drawn), ("B", tall))]
    page = tmp_path / "page.html"
    page.write_text(as_html(Report(title="t", outcome="o", good=True, sections=(section("S", *plots),))))
    with browser(tmp_path) as window:
        spy = (
            "window.drawn = []; const write = CanvasRenderingContext2D.prototype.fillText;"
            "CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {"
            "window.drawn.push([text, this.font]); return write.call(this, text, ...at); };"
        )
        window.command("Page.addScriptToEvaluateOnNewDocument", source=spy)
        window.command("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        window.open(page.as_uri())
        found = window.run("return window.drawn")
    texts = [text for text, _ in found]
    assert {"100", "1,000", "10,000", "1", "1e-8"} <= set(texts), texts
    (size, *_) = {re.findall(r"([\d.]+)px", font)[0] for text, font in found if text == long}
    assert float(size) < 12, "a name that is longer than its axis is written smaller"


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason="there is no chromium and chromium-driver here")
def test_land_has_a_coast_in_a_browser(tmp_path: Path) -> None:
    """In the colour of the text, light and dark: between land and sea, and nowhere else.

    Mutants: no line between neighbours in a row, or in a column; one between any two cells; one on a density.
    """
    maps = [land(), land(colours="amount"), replace(land(), values=((-1.0,) * 4,) * 2)]
    page = tmp_path / "page.html"
    page.write_text(as_html(Report(title="t", outcome="o", good=True, sections=(section("S", *maps),))))
    spy = (
        "window.drawn = []; let parts = 0; const of = CanvasRenderingContext2D.prototype;"
        "const {beginPath, lineTo, stroke} = of;"
        "of.beginPath = function () { parts = 0; return beginPath.call(this); };"
        "of.lineTo = function (...to) { parts += 1; return lineTo.call(this, ...to); };"
        "of.stroke = function (...what) { drawn.push([this.canvas, this.strokeStyle, parts]);"
        "return stroke.call(this, ...what); };"
    )
    with browser(tmp_path) as window:
        window.command("Page.addScriptToEvaluateOnNewDocument", source=spy)
        for theme in ("light", "dark"):
            window.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            window.open(page.as_uri())
            found = window.run(
                "const all = [...document.querySelectorAll('canvas')], known = document.createElement('canvas')"
                ".getContext('2d'); known.strokeStyle = getComputedStyle(document.body).color;"
                "return drawn.filter((one) => one[1] === known.strokeStyle).map((one) => [all.indexOf(one[0]), one[2]])"
            )
            assert {(canvas, parts) for canvas, parts in found} == {(0, 3), (2, 0)}, theme
