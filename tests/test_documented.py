"""Commands that the pages print: each is one that exists, and its block runs as it is printed."""

from __future__ import annotations

import doctest
import functools
import gzip
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.sparse import csr_matrix

import npmdask
from npmdask.cli.main import _parser, main
from npmdask.formats.ingest import ingest
from tests.conftest import often, write_zarr

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "infra/README.md", ROOT / "data/README.md"]
FENCE = re.compile(r"^ *```(\w*).*?\n(.*?)^ *```", re.S | re.M)


def commands(text: str) -> Iterator[str]:
    for part in re.split(r"[;|]", text):
        if part.strip().startswith("npmdask "):
            yield " ".join(part.split())


def printed(page: Path) -> list[str]:
    """The commands of its blocks of shell or text, without what is said of them."""
    lines = [line for language, block in FENCE.findall(page.read_text()) for line in of_shell(language, block)]
    return [one for line in lines if re.match(r"(\S+ \| )?npmdask ", line) for one in commands(line)]


def of_shell(language: str, block: str) -> list[str]:
    """The lines of a block that a shell could run, without what is said of them."""
    lines = block.replace("\\\n", " ").splitlines() if language in ("", "sh", "text", "console") else []
    return [re.split(r"\s#|\s{3,}", line)[0] for line in lines]


def mentioned(page: Path) -> list[str]:
    """Those in a sentence, some of which name no more than an option."""
    codes = re.findall(r"`([^`]+)`", FENCE.sub("", page.read_text()))
    found = [one for code in codes for one in commands(code.replace("\\|", "|"))]
    return [one for one in found if "..." not in one and "COMMAND" not in one]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = _parser()
    for command in [*printed(page), *mentioned(page)]:
        try:
            parser.parse_args(shlex.split(command)[1:])
        except SystemExit as end:
            if not end.code:  # --help
                continue
            said = capsys.readouterr().err
            assert command not in printed(page), said
            assert re.search(" is missing| is needed|needs a value|--columns N: a whole number", said), said


# Blocks that run: what is made before them


def rows(n: int = 400, columns: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, columns)) * 0.8 ** np.arange(columns)


def finished(*names: str) -> None:
    for i, name in enumerate(names):
        source = write_zarr(Path(f"{i}.zarr"), rows(seed=i), (100, 16))
        npmdask.top_k(source, 3, kind="samples", center=True, store=name)


def of_gram() -> None:
    for i, day in enumerate(("monday", "tuesday")):
        npmdask.gram(rows(seed=i), f"G-{day}", kind="samples")
    write_zarr(Path("rows.zarr"), rows(seed=2), (50, 16))
    np.save("rows.npy", rows())


def of_components() -> None:
    write_zarr(Path("rows.zarr"), rows(), (20, 16))
    npmdask.gram("rows.zarr", "groups", kind="samples", by_chunks=1)
    npmdask.gram("rows.zarr", "G", kind="samples")
    finished("runs/first", "runs/mon")


def of_report() -> None:
    digits = np.abs(np.random.default_rng(0).standard_normal((60, 784)))
    npmdask.top_k(
        write_zarr(Path("digits.zarr"), digits, (20, 784)), 3, kind="samples", center=True, store="runs/digits"
    )
    Path("labels.txt").write_text("".join(f"{i % 10}\n" for i in range(60)))


def of_rows() -> None:
    write_zarr(Path("rows.zarr"), rows(), (100, 16))


def of_results() -> None:
    write_zarr(Path("rows.zarr"), rows(), (100, 16), dimension_names=("time", "site"))
    npmdask.top_k("rows.zarr", 3, kind="samples", center=True, store="runs/first")


def of_people() -> None:
    rows_of = [",".join("abcd"), *(",".join(map(str, row)) for row in rows(50, 4).round(6))]
    Path("people.csv").write_text("\n".join(rows_of) + "\n")


WORDS = [f"word{i}" for i in range(200)]


def counted(documents: int) -> csr_matrix:
    """Words of documents about twenty topics."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(200, 0.02), 20)
    return csr_matrix(rng.multinomial(60, rng.dirichlet(np.full(20, 0.05), documents) @ topics))


def of_topics() -> None:
    for name, counts in (("docword.txt.gz", counted(2000)), ("new.txt.gz", counted(50))):
        entries = zip(*counts.nonzero(), counts.data, strict=True)
        with gzip.open(name, "wt") as file:
            file.writelines(f"{n}\n" for n in (*counts.shape, counts.nnz))
            file.writelines(f"{row + 1} {word + 1} {count}\n" for row, word, count in entries)
    Path("vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))


def of_page(page: str) -> None:
    """Run its own lines of Python, which make the files that its commands name."""
    names: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples((ROOT / page).read_text()):
        exec(compile(example.source, page, "exec"), names)


def of_climate() -> None:
    places = {"time": np.arange(60), "lat": np.linspace(-30, 30, 4), "lon": np.arange(5)}
    field = xr.DataArray(rows(60, 20).reshape(60, 4, 5), places, tuple(places), name="sst")
    field["lat"].attrs = {"units": "degrees_north"}
    field.where((field.lat > -30) | (field.lon > 0)).to_netcdf("sst.nc")


def of_tour() -> None:
    rng = np.random.default_rng(0)
    write_zarr(Path("people.npy.zarr"), rows() / 10)
    ingest("people.npy.zarr", "people.zarr", kind="samples")
    Path("people.toml").write_text(
        '[source]\npath = "people.zarr"\n[algorithm]\ntarget_rank = 2\nname = "covariance"\n[privacy]\nepsilon = 2.0\n'
        'delta = 1e-9\nneighboring_relation = "record_replace"\nclip_norm = 1.0\ndataset = "people"\n'
    )
    finished("runs/first")
    for name in ("sst", "rain"):
        write_zarr(Path(f"{name}.zarr"), rows(seed=len(name)), (100, 16))
    np.save("tensor.npy", np.einsum("ia,ja,ka->ijk", *3 * [np.eye(6)[:, :2]]))
    write_zarr(
        Path("points.zarr"), np.repeat(6 * np.eye(8)[:5], 800, axis=0) + rng.standard_normal((4000, 8)), (1000, 8)
    )
    write_zarr(Path("samples.zarr"), rows(), (100, 16))
    Path("arriving").mkdir()
    np.save("arriving/0.npy", rows())


PREPARED: dict[str, Callable[[], None]] = {
    "docs/howto/gram.md": of_gram,
    "docs/howto/components.md": of_components,
    "docs/reference/report.md": of_report,
    "docs/reference/results.md": of_results,
    "docs/howto/climate.md": of_climate,
    "docs/howto/operations.md": lambda: finished("runs/first"),
    "docs/tutorials/tour.md": of_tour,
    "docs/howto/rotations.md": of_components,
    "docs/howto/text.md": of_topics,
    "docs/howto/private-release.md": of_people,
    "docs/howto/object-store.md": of_rows,
    "docs/howto/nightly-schedule.md": lambda: of_page("docs/howto/nightly-schedule.md"),
    "docs/howto/observing.md": lambda: finished("runs/first"),
}
# Of these pages only: tests/test_blocks.py says what runs the others, which wait for ever, or need minutes or a server
ONLY = {
    "docs/howto/operations.md": "status|gc",
    "docs/tutorials/tour.md": "status|gc|mixture|mca|ingest|ledger|(plan|run) people",
    "docs/howto/nightly-schedule.md": "serve .* --check",
    "docs/howto/observing.md": "metrics .* --textfile",
}
ANOTHER = {
    "npmdask gram --merge": ("G",),
    "npmdask ingest rows.npy": ("G", "rows.zarr"),
}  # makes what an earlier one made
NEAR = {"s3://bucket": lambda: Path.cwd().as_uri(), "/var/lib/node_exporter/": str}  # read and written here


def that_run(page: str) -> list[str]:
    """The commands of a page that its test runs, as they are printed."""
    return [one for one in printed(ROOT / page) if re.match(f"npmdask ({ONLY.get(page, '.*')})", one)]


def run(words: list[str]) -> int:
    """As the command line does; but that ``npmdask serve`` would take the place of this process."""
    from npmdask.prefect import serve  # loads Prefect

    return serve.main(words[1:]) if words[0] == "serve" else main(words)


@pytest.mark.slow
@pytest.mark.parametrize("page", often(PREPARED, *range(13)))
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPMDASK_LEDGER", str(tmp_path / "ledger.sqlite"))
    PREPARED[page]()
    assert that_run(page)
    for command in that_run(page):
        for place in next((places for start, places in ANOTHER.items() if command.startswith(start)), ()):
            shutil.rmtree(place)
        here = functools.reduce(lambda text, far: text.replace(far, NEAR[far]()), NEAR, command)
        assert run(shlex.split(here)[1:]) == 0, command


@pytest.mark.slow
def test_python_of_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of_tour()
    names: dict[str, Any] = {"npmdask": npmdask, "counts": counted(2000), "words": WORDS}
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/tutorials/tour.md").read_text(), re.S | re.M):
        exec(compile(block, "tour.md", "exec"), names)
    assert names["pca"].explained_variance_ratio_.sum() >= 0.9 and names["model"].target_rank == 10
