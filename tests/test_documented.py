"""Commands that the pages print: each is one that exists, and its block runs as it is printed."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

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
    found: list[str] = []
    for language, block in FENCE.findall(page.read_text()):
        if language in ("", "sh", "text", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(\S+ \| )?npmdask ", line):
                    found += commands(re.split(r"\s#|\s{3,}", line)[0])
    return found


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


def of_results() -> None:
    write_zarr(Path("rows.zarr"), rows(), (100, 16), dimension_names=("time", "site"))
    npmdask.top_k("rows.zarr", 3, kind="samples", center=True, store="runs/first")


def of_climate() -> None:
    places = {"time": np.arange(60), "lat": np.linspace(-30, 30, 4), "lon": np.arange(5)}
    field = xr.DataArray(rows(60, 20).reshape(60, 4, 5), places, tuple(places), name="sst")
    field["lat"].attrs = {"units": "degrees_north"}
    field.where((field.lat > -30) | (field.lon > 0)).to_netcdf("sst.nc")


def of_tour() -> None:
    write_zarr(Path("people.npy.zarr"), rows() / 10)
    ingest("people.npy.zarr", "people.zarr", kind="samples")
    Path("people.toml").write_text(
        '[source]\npath = "people.zarr"\n[algorithm]\ntarget_rank = 2\nname = "covariance"\n[privacy]\nepsilon = 2.0\n'
        'delta = 1e-9\nneighboring_relation = "record_replace"\nclip_norm = 1.0\ndataset = "people"\n'
    )


PREPARED: dict[str, Callable[[], None]] = {
    "docs/howto/gram.md": of_gram,
    "docs/howto/components.md": of_components,
    "docs/reference/report.md": of_report,
    "docs/reference/results.md": of_results,
    "docs/howto/climate.md": of_climate,
    "docs/howto/operations.md": lambda: finished("runs/first"),
    "docs/tutorials/tour.md": of_tour,
    "docs/howto/rotations.md": of_components,
}
# Of these pages only; the tests of their rooms run the others: for ever, for minutes, with a server, or from much data
ONLY = {"docs/howto/operations.md": "status|gc", "docs/tutorials/tour.md": "ledger|(plan|run) people"}
ANOTHER = {
    "npmdask gram --merge": ("G",),
    "npmdask ingest rows.npy": ("G", "rows.zarr"),
}  # makes what an earlier one made


@pytest.mark.slow
@pytest.mark.parametrize("page", often(PREPARED, 0, 1, 3, 5, 6))
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPMDASK_LEDGER", str(tmp_path / "ledger.sqlite"))
    PREPARED[page]()
    own = [one for one in printed(ROOT / page) if re.match(f"npmdask ({ONLY.get(page, '.*')})", one)]
    assert len(own) > 1
    for command in own:
        for place in next((places for start, places in ANOTHER.items() if command.startswith(start)), ()):
            shutil.rmtree(place)
        assert main(shlex.split(command)[1:]) == 0, command
