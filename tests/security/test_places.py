"""One way to name places: every command and function takes a path, a URL that it knows, or refuses it in a sentence."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.storage.paths import local_path
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.latent.third_moment import build_moments
from npmdask.ledger import open_ledger
from npmdask.manage.gc import Retention, sweep
from npmdask.manage.report import export, write_report
from npmdask.manage.status import inspect, status_below
from npmdask.streaming import StreamingPCA, run_stream  # noqa: F401
from npmdask.streaming.transform import transform
from npmdask.synthetic import generate

ROWS = np.random.default_rng(0).standard_normal((40, 6))
# PLACE is what is given; everything else is there and good.
COMMANDS = [
    "ingest PLACE o.zarr",
    "ingest a.npy PLACE",
    "ingest a.npy PLACE --kind symmetric --overwrite",
    "ingest t.npy PLACE --kind tensor",
    "generate spectrum PLACE --columns 6 --rows 20 --rank 2",
    "generate tensor PLACE --columns 6 --rank 2",
    "init PLACE",
    "plan PLACE",
    "plan a.toml --store PLACE",
    "run PLACE",
    "run a.toml --store PLACE",
    "run a.toml --start PLACE",
    "run of-PLACE.toml",
    "run stream-of-PLACE.toml",
    "resume PLACE",
    "deflate PLACE 1 --store more",
    "deflate run 1 --store PLACE",
    "inspect PLACE",
    "status PLACE",
    "metrics PLACE",
    "metrics . --textfile PLACE",
    "gc PLACE --older-than 1d",
    "report PLACE",
    "report run -o PLACE",
    "export PLACE a.npz",
    "export run PLACE",
    "transform PLACE a.zarr scores.zarr",
    "transform run PLACE scores.zarr",
    "transform run a.zarr PLACE",
    "topics PLACE --topics 2",
    "topics counts.zarr PLACE --topics 2",
    "topics counts.zarr --topics 2 --store PLACE",
    "mixture PLACE --components 2",
    "mixture a.zarr --components 2 --store PLACE",
    "ica PLACE --components 2",
    "ica a.zarr --components 2 --store PLACE",
    "mca PLACE a.zarr -k 2",
    "mca a.zarr PLACE -k 2",
    "cca a.zarr a.zarr -k 2 --store PLACE",
    "moments PLACE m.zarr",
    "moments a.zarr PLACE",
    "ledger show --ledger PLACE",
    "ledger grant people PLACE --relation entry --clip-norm 1 --epsilon 1 --delta 1e-9",
    "perturb PLACE noisy.zarr --relation tensor_orbit --clip-norm 1 --epsilon 1 --delta 1e-9",
    "perturb t.zarr PLACE --relation tensor_orbit --clip-norm 1 --epsilon 1 --delta 1e-9",
    "node PLACE",
]
UNKNOWN = ["hdfs://cluster/a", "ftp://host/a.npy", "s3:/bucket/a", "memory://a", "file://host/a"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("places")
    np.save(folder / "a.npy", ROWS)
    np.save(folder / "t.npy", np.ones((4, 4, 4)))
    ingest(folder / "a.npy", folder / "a.zarr")
    ingest(folder / "t.npy", folder / "t.zarr", kind="tensor")
    np.save(folder / "counts.npy", np.arange(120).reshape(20, 6))
    ingest(folder / "counts.npy", folder / "counts.zarr", kind="sparse")
    npmdask.top_k(folder / "a.zarr", 2, store=folder / "run")
    (folder / "a.toml").write_text('[source]\npath = "a.zarr"\n[algorithm]\ntarget_rank = 2\n')
    return folder


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("place", UNKNOWN)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_place_that_it_does_not_know(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, place: str
) -> None:
    monkeypatch.chdir(prepared)
    monkeypatch.setenv("NPMDASK_LEDGER", str(prepared / "ledger.sqlite"))
    monkeypatch.setenv("NPMDASK_NODE_TOKEN", "x" * 64)
    for name, table in (("of", ""), ("stream-of", "[stream]\n")):
        config = f'[source]\npath = "{place}"\n[algorithm]\ntarget_rank = 2\n{table}'
        (prepared / f"{name}-PLACE.toml").write_text(config)
    before = names(prepared)
    words = [word if "-PLACE." in word else word.replace("PLACE", place) for word in shlex.split(command)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("npmdask: ") and said.count("\n") == 1, said
    assert place in said or "--ledger" in command, said  # the address of a ledger may hold a password
    told = ("is a URL, and", "lost a slash", "names nothing on this machine", "ledger")
    assert any(words in said for words in told), said
    assert names(prepared) == before


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "top_k": lambda place: npmdask.top_k(place, 2),
    "top_k store": lambda place: npmdask.top_k(ROWS, 2, store=place),
    "top_k start": lambda place: npmdask.top_k(ROWS, 2, start=place),
    "resume": npmdask.resume,
    "deflate": lambda place: npmdask.deflate(place, 1, store="more"),
    "ingest": lambda place: ingest(place, "o.zarr"),
    "ingest to": lambda place: ingest("a.npy", place),
    "generate": lambda place: generate(place, problem="spectrum", rows=20, columns=6, rank=2),
    "open_source": open_source,
    "inspect": inspect,
    "status_below": status_below,
    "sweep": lambda place: sweep(place, Retention(seconds=1)),
    "report": write_report,
    "report to": lambda place: write_report("run", place),
    "export": lambda place: export(place, "a.npz"),
    "export to": lambda place: export("run", place),
    "transform": lambda place: transform("run", place, "scores.zarr"),
    "transform to": lambda place: transform("run", "a.zarr", place),
    "stream_pca": lambda place: npmdask.stream_pca(place, 2),
    "stream_pca store": lambda place: npmdask.stream_pca("a.zarr", 2, store=place),
    "stream_pca held out": lambda place: npmdask.stream_pca("a.zarr", 2, held_out=place),
    "StreamingPCA.load": StreamingPCA.load,
    "StreamingPCA.save": lambda place: StreamingPCA(2).partial_fit(ROWS).save(place),
    "build_moments": lambda place: build_moments("a.zarr", place),
    "Topics": lambda place: npmdask.Topics(2).fit(place),
    "Mixture": lambda place: npmdask.Mixture(2).fit(place),
    "open_ledger": open_ledger,
}


@pytest.mark.slow
@pytest.mark.parametrize("place", [*UNKNOWN, Path("s3://bucket/a"), Path("gs://bucket/a")], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_refuses_a_place_that_it_does_not_know(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str | Path
) -> None:
    monkeypatch.chdir(prepared)
    before = names(prepared)
    with pytest.raises(BadInputError):
        FUNCTIONS[name](place)
    assert names(prepared) == before


@pytest.mark.parametrize("bucket", ["s3://bucket/a", "gs://bucket/a", "az://bucket/a"])
@pytest.mark.parametrize(
    "name", ["ingest", "ingest to", "generate", "transform to", "report to", "export to", "build_moments", "sweep"]
)
def test_what_stays_on_this_machine_is_not_written_to_a_bucket(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, name: str, bucket: str
) -> None:
    """A folder called `s3:` was what `npmdask ingest x.npy s3://...` made."""
    monkeypatch.chdir(prepared)
    with pytest.raises(BadInputError, match=f"^{bucket} is a URL, and .* must be on this machine: give a path"):
        FUNCTIONS[name](bucket)
    assert not list(prepared.glob("*:"))


@pytest.mark.slow
def test_a_file_url_is_its_path(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = prepared.as_uri()
    ingest(f"{here}/a.npy", (tmp_path / "with space.zarr").as_uri())
    assert (tmp_path / "with space.zarr").is_dir()
    assert main(["inspect", f"{here}/a.zarr"]) == 0
    values = npmdask.top_k((tmp_path / "with space.zarr").as_uri(), 2, store=(tmp_path / "run").as_uri()).values
    np.testing.assert_array_equal(values, npmdask.top_k(prepared / "a.zarr", 2).values)
    assert transform((tmp_path / "run").as_uri(), f"{here}/a.zarr", (tmp_path / "s.zarr").as_uri()).rows == 40
    export((tmp_path / "run").as_uri(), (tmp_path / "a.npz").as_uri())
    assert (tmp_path / "a.npz").is_file() and not list(tmp_path.glob("file:*"))
    assert status_below(tmp_path.as_uri())[0].path == str(tmp_path / "run")


def test_names_with_a_colon_are_paths() -> None:
    assert local_path("a:b", "it") == Path("a:b").absolute()
    assert local_path("./s3:/a", "it") == Path("./s3:/a").absolute()
    assert local_path("c:/a", "it") == Path("c:/a").absolute()


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_not_the_working_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``npmdask ingest x.npy "$UNSET" --overwrite`` would have replaced it."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.eye(3))
    assert main(["ingest", "x.npy", name, "--overwrite"]) == BadInputError.exit_code
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy"}
