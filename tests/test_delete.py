"""A feature's files are deleted, and those of all that need it: the rest imports, runs, resumes and shows its help."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import npmdask
from infra.house_gates import Checkout, delete, entries, goes_with, needers
from tests.conftest import often
from tests.goldens.worlds import archive, unpacked, unpacked_sources

ROOT = Path(__file__).resolve().parents[1]
CHECKOUT = Checkout(root=ROOT)
RUNS = """
import sys
import numpy as np, npmdask
x = np.random.default_rng(0).standard_normal((500, 20))
npmdask.top_k(x, 3, kind="samples", center=True)
assert npmdask.resume(sys.argv[1], max_steps=100).converged
"""
TOML = """
[source]
path = "{}"
kind = "samples"
center = true
[algorithm]
target_rank = 3
"""

FIXTURES = ROOT / "tests" / "goldens" / "fixtures"
STORES = {  # goldens of each feature, and of what they are told that it is needed for
    "complex": {"complex": "complex", "hermitian": "complex"},
    "containers": {"grid-zarr": "grid"},
    "dp_pca": {"k-dp-pca": "k-dp-pca", "k-dp-ojas": "k-dp-ojas"},
    "federated": {"federated": "nodes", "federated-private": "nodes"},
    "stored_gram": {"gram": "gram", "from-gram": "run.json"},
    "latent": {"mixture": "mixture", "ica": "ica"},
    "missing": dict.fromkeys(
        ("gaps-mean-weighted", "gaps-dropped", "gaps-em", "gaps-pairwise-weighted", "private-filled"), "data.missing"
    ),
    "privacy": {"private-gaussian": "privacy", "private-tensor": "privacy", "power-momentum": "momentum"},
    "rotations": {"from-gram-intervals": "the [report] table"},
    "share": {"share-searching": "a share of the variance", "gaps-em-auto": 'target_rank = "auto"'},
    "streaming": {"stream-spm": "stream", "stream-online-tensor-power": "stream", "stream-of-files": "stream"},
    "symmetric": {"packed-symmetric": "packed"},
    "tensors": {"tensor": "tensor"},
    "topics": {"topics": "topics"},
    "two_fields": {"mca": "mca", "cca": "cca"},
    "weights": {"weighted": "weights"},
}
UNSAID = ("grid-zarr", "from-gram", "share-searching", "gaps-em-auto", "packed-symmetric")  # by run.json: by their data
ASKS = """
import contextlib, io, json, os, sys
import npmdask
from npmdask.cli.main import main
def asked(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        main(words)
    return out.getvalue()
for folder in sys.argv[2:]:
    os.chdir(folder)
    try:
        said = npmdask.resume("run") and "it was resumed"
    except npmdask.RefusedError as error:
        said = str(error)
    known = os.path.basename(folder) not in sys.argv[1].split()
    print(json.dumps([said, *(asked(word, "run") for word in ("status", "report") if known)]))
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the core that is not finished."""
    folder = tmp_path_factory.mktemp("begun")
    x = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    zarr.save(str(folder / "x.zarr"), x)
    npmdask.top_k(folder / "x.zarr", 3, kind="samples", center=True, store=folder / "run", max_steps=1)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("feature", often(sorted(CHECKOUT.parts()), 0, 3))
def test_the_rest_goes_on_without_it(feature: str, begun: Path, tmp_path: Path) -> None:
    """Mutants: an import of ``npmdask.planning`` in npmdask/api.py; of ``npmdask.weights`` in npmdask/config.py."""
    package, run = tmp_path / "npmdask", tmp_path / "run"
    shutil.copytree(ROOT / "npmdask", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(begun, run)
    gone = goes_with(feature, needers(entries(CHECKOUT), ())) & CHECKOUT.parts().keys()
    delete(tmp_path, CHECKOUT, gone)
    (tmp_path / "plain.toml").write_text(TOML.format(begun.parent / "x.zarr"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    commands = [["-c", "import npmdask"], ["-c", RUNS, str(run)], ["-m", "npmdask", "--help"]]
    if "manage" not in gone:  # it prints answers
        commands.append(["-m", "npmdask", "run", "plain.toml"])
    for command in commands:
        words = [sys.executable, "-W", "ignore", *command]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of all goldens."""
    return unpacked_sources(FIXTURES, tmp_path_factory.mktemp("sources"))


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("feature", often(sorted(STORES), 2, 6, 15))
def test_a_store_of_a_feature_that_is_gone_is_refused_by_its_name(feature: str, sources: Path, tmp_path: Path) -> None:
    """And left as it is. With the feature each goes on: tests/goldens. Mutant: ``kind_of`` that asks nothing."""
    shutil.copytree(ROOT / "npmdask", tmp_path / "npmdask", ignore=shutil.ignore_patterns("__pycache__"))
    gone = goes_with(feature, needers(entries(CHECKOUT), ())) & CHECKOUT.parts().keys()
    delete(tmp_path, CHECKOUT, gone)
    folders = [unpacked(archive(FIXTURES, name, "interrupted"), tmp_path / name) for name in STORES[feature]]
    for folder in folders:
        (folder / "sources").symlink_to(sources)
    before = [files_in(folder / "run") for folder in folders]
    words = [sys.executable, "-W", "ignore", "-c", ASKS, " ".join(UNSAID), *map(str, folders)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    for (name, what), folder, kept, line in zip(
        STORES[feature].items(), folders, before, done.stdout.splitlines(), strict=True
    ):
        said, *shown = json.loads(line)
        assert said == f"{what!r} needs the feature {feature!r}, which this npmdask does not have: install it", name
        assert all("which this npmdask does not have" in text for text in shown), (name, shown)
        assert not any("damaged" in text for text in shown), "nothing is wrong with it"
        assert name in UNSAID or files_in(folder / "run") == kept, name


@pytest.mark.slow
def test_a_command_of_a_feature_that_is_gone_says_its_name(tmp_path: Path) -> None:
    """Mutant: ``of_gone`` that returns the error as it is."""
    shutil.copytree(ROOT / "npmdask", tmp_path / "npmdask", ignore=shutil.ignore_patterns("__pycache__"))
    np.savetxt(tmp_path / "x.csv", np.eye(4), delimiter=",", header="a,b,c,d", comments="")
    command = [sys.executable, "-W", "ignore", "-m", "npmdask", "ingest", "x.csv", "x.zarr"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert not subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True).returncode
    shutil.rmtree(tmp_path / "npmdask" / "formats")
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    said = "npmdask: this needs the feature 'formats', which this npmdask does not have: install it\n"
    assert (done.returncode, done.stderr) == (npmdask.RefusedError.exit_code, said)


KEYS = {  # of a configuration, and the feature that each needs
    "source.row_weights=w.npy": "weights",
    "source.missing=mean": "missing",
    "run.cluster=tcp://127.0.0.1:9": "cluster",
    "algorithm.name=spm": "streaming",
    "stream.batch_rows=5": "streaming",
    "algorithm.name=tensor-power": "tensors",
    "privacy.epsilon=1 privacy.delta=1e-6": "privacy",
}
GIVEN = """
import sys
from npmdask.cli.main import main
for keys in sys.argv[1:]:
    main(["run", "plain.toml", *(word for key in keys.split() for word in ("--set", key))])
"""


@pytest.mark.slow
def test_a_key_of_a_feature_that_is_gone_is_refused_by_its_name(begun: Path, tmp_path: Path) -> None:
    """Mutant: ``_placed`` that asks the table ``kinds`` alone."""
    shutil.copytree(ROOT / "npmdask", tmp_path / "npmdask", ignore=shutil.ignore_patterns("__pycache__"))
    gone = {each for one in KEYS.values() for each in goes_with(one, needers(entries(CHECKOUT), ()))}
    delete(tmp_path, CHECKOUT, gone & CHECKOUT.parts().keys())
    (tmp_path / "plain.toml").write_text(TOML.format(begun.parent / "x.zarr"))
    np.save(tmp_path / "w.npy", np.ones(500))
    words = [sys.executable, "-W", "ignore", "-c", GIVEN, *KEYS]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    for (keys, feature), said in zip(KEYS.items(), done.stderr.splitlines(), strict=True):
        assert f" needs the feature {feature!r}, which this npmdask does not have: install it" in said, (keys, said)
