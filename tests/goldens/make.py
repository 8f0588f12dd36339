"""Make the goldens with the code of this checkout: ``python -m tests.goldens.make FOLDER [KIND...]``.

Only commands, and two Python doors, are used (``doors``): the script works in a checkout of any commit that has them.
Each is called in a process of its own, forked from this one. The interruption is a SIGKILL as a process is about to
rename something, told by an audit hook of Python: no patch of our code, whatever its modules are called.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, save_npz
from scipy.sparse import random as random_sparse

from npmdask import ICA, StreamingPCA, Topics, top_k
from tests.goldens import sources
from tests.goldens.kinds import BASE_FILE, GRANTED, KINDS, LEDGER, SOURCES, Kind, sources_of, text_of
from tests.goldens.nodes import TOKENS, asked, token_of
from tests.goldens.worlds import (
    arithmetic,
    changed_files,
    fingerprint_of,
    packed,
    renamed,
    resumed,
    said,
    simd,
    together,
    told,
    unpacked,
)

LOADED = (ICA, StreamingPCA, Topics, top_k)  # before the forks: what they import lazily costs each of them a second
ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
MADE = 1_700_000_000  # time of change of every file: a directory of files is known by theirs


def forked(folder: Path, work: Callable[[], Any], killed_at: str = "") -> Any:
    """What ``work`` returns in a process of its own, in ``folder``; None if it was killed, as it was to be.

    Random bytes of the system are those of a seed there: the keys of a private run that is killed and of one that is
    not are the same, so that the two can be compared.
    """
    ours, theirs = os.pipe()
    if pid := os.fork():
        os.close(theirs)
        with open(ours) as pipe:
            text = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != (-signal.SIGKILL if killed_at else 0):
            raise SystemExit(f"{folder.name}: exit status {code}, killed_at = {killed_at!r}")
        return None if killed_at else json.loads(text)
    try:
        os.chdir(folder)
        os.environ["NPMDASK_NODE_TOKENS"] = str(folder / TOKENS)
        os.urandom = random.Random(0).randbytes
        if killed_at:
            sys.addaudithook(lambda event, args: _die(event, args, str(folder / killed_at)))
        with open(theirs, "w") as pipe:
            json.dump(work(), pipe)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _die(event: str, args: tuple[Any, ...], place: str) -> None:
    if event == "os.rename" and os.path.abspath(os.fsdecode(args[1])) == place:
        os.kill(os.getpid(), signal.SIGKILL)


def arrays() -> dict[str, tuple[np.ndarray, list[str]]]:
    """The data of each source, and how it is ingested."""
    rng = np.random.default_rng(0)
    falling = 1.5 ** -np.arange(24)
    basis = np.linalg.qr(rng.standard_normal((24, 24)))[0]
    samples = rng.standard_normal((120, 24)) * falling @ basis.T + rng.standard_normal(24) / 4
    flat = rng.standard_normal((60, 20)) @ np.diag(1 / np.sqrt(1 + np.arange(20)))
    symmetric = (basis * (falling * (-1.0) ** np.arange(24))) @ basis.T
    symmetric = np.triu(symmetric) + np.triu(symmetric, 1).T
    records = rng.standard_normal((1500, 8)) * np.r_[3.0, 2.0, np.full(6, 0.3)]
    records /= np.linalg.norm(records, axis=1).mean()
    images = np.einsum("ni,nj->nij", records[:600, :6], records[:600, :6])
    parts = np.linalg.qr(rng.standard_normal((10, 2)))[0]
    tensor = np.einsum("ir,jr,kr,r->ijk", parts, parts, parts, [3.0, 2.0])
    i, j, k = np.sort(np.indices(tensor.shape).reshape(3, -1), axis=0)
    tensor = tensor[i, j, k].reshape(tensor.shape)
    long = np.zeros((4_400_000, 16), np.int8)
    long[::44_000] = rng.integers(-100, 100, (100, 16)) * (16 - np.arange(16)) // 16
    heads = rng.integers(0, 2, (240, 1))
    clusters = 4 * np.where(heads, basis[0, :5] * 3, basis[1, :5] * 3) + rng.standard_normal((240, 5)) / 4
    sounds = (rng.exponential(size=(240, 2)) - 1) @ rng.standard_normal((2, 4)) + rng.standard_normal((240, 4)) / 20
    small = ["--chunks", "40", "24"]
    return {
        "matrix": (samples * 7, ["--kind", "matrix", *small]),
        "single": (samples.astype(np.float32), ["--kind", "matrix", *small]),
        "samples": (samples, ["--kind", "samples", *small]),
        "rows": (samples[::-3].copy(), ["--kind", "samples", *small]),
        "flat": (flat, ["--kind", "samples", "--chunks", "30", "20"]),
        "symmetric": (symmetric, ["--kind", "symmetric", "--chunks", "8", "8"]),
        "symmetric_full": (symmetric, ["--kind", "symmetric", "--layout", "full", "--chunks", "12", "12"]),
        "tensor": (tensor, ["--kind", "tensor", "--chunks", "5", "5", "5"]),
        "long": (long, ["--kind", "samples", "--chunks", "100000", "16"]),
        "clusters": (clusters, ["--kind", "samples"]),
        "sounds": (sounds, ["--kind", "samples"]),
        "records": (records.astype(np.float32), ["--kind", "samples", "--chunks", "500", "8"]),
        "more_records": (records[:400, ::-1].astype(np.float32) / 2, ["--kind", "samples", "--chunks", "500", "8"]),
        "entries": (samples[:60, :12].copy(), ["--kind", "matrix", "--chunks", "20", "12"]),
        "pairs": (8 * symmetric, ["--kind", "symmetric", "--chunks", "12", "12"]),
        "records_of_images": (images.astype(np.float32), ["--kind", "matrices"]),
        "private_tensor": (1000 * tensor, ["--kind", "tensor", "--chunks", "5", "5", "5"]),
    }


def make_sources(root: Path) -> None:
    """All sources, and a ledger in which those of private runs have budgets.

    Those that are among the fixtures are unpacked, so that kinds that are new begin from the same files; but private
    ones, whose budgets are granted in the new ledger.
    """
    folder = root / SOURCES
    folder.mkdir(parents=True)
    for kept in FIXTURES.glob("source-*.tar.gz"):
        name = kept.name.removeprefix("source-").removesuffix(".tar.gz")
        if name.removesuffix(".zarr") not in GRANTED:
            unpacked(kept.read_bytes(), folder / name)
    new = {name: made for name, made in (arrays() | sources.arrays()).items() if not (folder / f"{name}.zarr").exists()}
    for name, (array, how) in new.items():
        np.save(root / f"{name}.npy", array)
        forked(
            root, lambda name=name, how=how: said(["ingest", f"{name}.npy", f"{SOURCES}/{name}.zarr", *how, "--quiet"])
        )
    if not (folder / "sparse.zarr").exists():
        make_counts(root)
    if not (folder / "fill.zarr").exists():
        sources.write_plain(folder)
    for name, (relation, bound, epsilon) in GRANTED.items():
        promise = ["--relation", relation, "--clip-norm", bound, "--epsilon", epsilon, "--delta", "1e-4"]
        forked(
            root,
            lambda name=name, promise=promise: said(
                ["ledger", "grant", name, f"{SOURCES}/{name}.zarr", *promise, "--ledger", LEDGER]
            ),
        )
    for path in folder.rglob("*"):
        os.utime(path, (MADE, MADE))


def make_counts(root: Path) -> None:
    """Sources that are sparse, and a directory of files."""
    folder, rng = root / SOURCES, np.random.default_rng(1)
    save_npz(root / "sparse.npz", random_sparse(120, 30, 0.2, "csr", random_state=rng))
    topics = rng.dirichlet(np.full(30, 0.1), 3)
    mixed = rng.dirichlet(np.full(3, 0.3), 160) @ topics
    save_npz(root / "words.npz", csr_matrix(rng.multinomial(30, mixed / mixed.sum(axis=1, keepdims=True))))
    for name in ("sparse", "words"):
        forked(root, lambda name=name: said(["ingest", f"{name}.npz", f"{SOURCES}/{name}.zarr", "--quiet"]))
    (folder / "files").mkdir()
    for number, rows in enumerate(np.split(arrays()["samples"][0], 3)):
        np.save(folder / "files" / f"{number}.npy", rows)


def begin(root: Path, folder: Path, kind: Kind) -> None:
    """The sources that a kind needs and what it begins from."""
    for name in sources_of(kind):
        shutil.copytree(root / SOURCES / name, folder / SOURCES / name)
    if kind.private:
        shutil.copy2(root / LEDGER, folder / LEDGER)
    if kind.file:
        (folder / "run.toml").write_text(text_of(kind.file))
    if kind.before:
        (folder / "base.toml").write_text(text_of(BASE_FILE))
    for node, file in kind.nodes.items():
        (folder / f"{node}.toml").write_text(text_of(file))
    if kind.nodes:
        urls = kind.file["source"]["nodes"]
        tokens = "".join(f"{url} {token_of(node)}\n" for url, node in zip(urls, kind.nodes, strict=True))
        (folder / TOKENS).touch(mode=0o600)
        (folder / TOKENS).write_text(tokens)
    for command in kind.before:
        forked(folder, lambda command=command: said(command))


def make_kind(root: Path, name: str, kind: Kind, fixtures: Path) -> None:
    """Two runs, one of them killed and resumed, which must end in the same; and what commands say of it."""
    folder, other = root / name, root / "undisturbed" / name
    begin(root, folder, kind)
    with asked(folder, kind):
        forked(folder, lambda: said(kind.command), kind.killed)
    states = {"interrupted": packed(folder, leave=[SOURCES])}
    expected = {"interrupted": forked(folder, lambda: told(kind, finished=False))}
    with asked(folder, kind):
        expected["resumed"] = forked(folder, lambda: resumed(kind))
    if not kind.ends_as:
        states["finished"] = packed(folder, leave=[SOURCES])
        begin(root, other, kind)
        with asked(other, kind):
            forked(other, lambda: said(kind.command))
    if kind.placed:
        here, there = (place / kind.store for place in (folder, other))
        renamed(there, {fingerprint_of(there).encode(): fingerprint_of(here).encode()})
    if found := changed_files(root / "undisturbed" / (kind.ends_as or name), folder, kind.stores):
        raise SystemExit(f"{name}: resumed, it is another one: {found}")
    if not kind.ends_as:  # its page may add files to the store
        expected["finished"] = forked(folder, lambda: told(kind, finished=True))
    (fixtures / f"{name}.tar.xz").write_bytes(together(states))
    (fixtures / f"{name}.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


def manifest(root: Path, names: list[str]) -> dict[str, Any]:
    """What made them: commit, version, and what the last bits depend on; of kinds that came later their commit.

    Raises
    ------
    SystemExit
        They were made by another version, or on other arithmetic, than those that they lie beside.
    """
    asked = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    here = {"npmdask": version("npmdask"), "environment": forked(root, lambda: arithmetic(root / "environment"))}
    if not (FIXTURES / "manifest.json").exists():
        return {"commit": commit, **here, "simd": simd()}
    before = json.loads((FIXTURES / "manifest.json").read_text())
    if here != {name: before[name] for name in here}:
        raise SystemExit(f"the goldens here were made by {before}, and this is {here}")
    return before | {"later": before.get("later", {}) | dict.fromkeys(names, commit)}


def main(root: Path, names: list[str]) -> None:
    fixtures = root / "fixtures"
    fixtures.mkdir(parents=True, exist_ok=True)
    made = manifest(root, names or list(KINDS))
    if not (root / SOURCES).exists():
        make_sources(root)
    for path in sorted((root / SOURCES).iterdir()):
        if not (FIXTURES / f"source-{path.name}.tar.gz").exists():
            (fixtures / f"source-{path.name}.tar.gz").write_bytes(gzip.compress(packed(path), mtime=0))
    for name in names or KINDS:
        print(name, flush=True)
        make_kind(root, name, KINDS[name], fixtures)
    (fixtures / "manifest.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
