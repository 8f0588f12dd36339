"""Real nodes: processes of their own, each with its own data, ledger and key, ended by pid."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.accounting import Budget
from npmdask.config import load_config
from npmdask.core.runs.solution import Solution
from npmdask.federated.protocol import DIGEST, NONCE, SIGNATURE, TOKEN, TOKENS, Signed
from npmdask.formats.ingest import ingest
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source

ROOT = Path(__file__).resolve().parents[2]
RELATION, CLIP = "record_replace", 1.0


def environment(**more: str) -> dict[str, str]:
    """Of the processes of nodes and centres: these sources, warnings as errors."""
    return os.environ | {"PYTHONWARNINGS": "error", "PYTHONPATH": str(ROOT)} | more


def signed_headers(token: str, method: str, path: str, body: bytes, nonce: str = "0" * 32) -> dict[str, str]:
    """What a centre sends with a request."""
    signed = Signed(method, path, nonce, hashlib.sha256(body).hexdigest())
    return {NONCE: nonce, DIGEST: signed.digest, SIGNATURE: signed.request(token)}


def write_tokens(path: Path, tokens: dict[str, str]) -> Path:
    """The file of a centre: the token of every address."""
    path.touch(mode=0o600)
    path.write_text("# tokens of the nodes\n\n" + "".join(f"{url} {token}\n" for url, token in tokens.items()))
    return path


class Site:
    """The folder of one node, and its process."""

    def __init__(self, folder: Path, port: int = 0, options: Sequence[str] = ()) -> None:
        self.folder, self.port, self.options = folder, port, tuple(options)
        self.token = secrets.token_hex(16)
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.options else 'http'}://127.0.0.1:{self.port}"

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    def start(self) -> None:
        """Start it, at the same port as before if it had one, and wait until it listens."""
        command = [
            sys.executable,
            "-m",
            "npmdask.cli.main",
            "node",
            "node.toml",
            "--port",
            str(self.port),
            *self.options,
        ]
        with open(self.folder / "err", "w") as err:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment(**{TOKEN: self.token}), stdout=err, stderr=err, text=True
            )
        end = time.monotonic() + 240
        while (found := re.search(r"listens at https?://127.0.0.1:(\d+)", self.err)) is None:
            assert self.process.poll() is None and time.monotonic() < end, self.err
            time.sleep(0.02)
        self.port = int(found[1])

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
        if self.process is not None:
            self.process.wait(240)


def write_site(
    folder: Path, rows: np.ndarray, tables: str, *, p: int, steps: int, kind: str = "samples", names: str = ""
) -> None:
    """Data, configuration and, of a private node, ledger of a node. ``names``: of the columns, with commas."""
    folder.mkdir(parents=True)
    np.save(folder / "a.npy", rows)
    np.savetxt(folder / "a.csv", rows, fmt="%.17g", delimiter=",", header=names, comments="")
    ingest(
        folder / ("a.csv" if names else "a.npy"),
        folder / "a.zarr",
        kind=kind,
        chunks=None if kind == "symmetric" else (64, rows.shape[1]),
    )
    (folder / "node.toml").write_text(
        f'[source]\npath = "a.zarr"\n[algorithm]\ntarget_rank = 2\niteration_rank = {p}\nmax_steps = {steps}\n{tables}'
        "[run]\nthreads = 1\n"
    )


def private_tables(epsilon: float, relation: str = RELATION) -> str:
    return (
        f'[privacy]\nepsilon = {epsilon}\ndelta = 1e-6\nneighboring_relation = "{relation}"\nclip_norm = {CLIP}\n'
        'ledger = "ledger.sqlite"\ndataset = "here"\n'
    )


def grant(folder: Path, epsilon: float, relation: str = RELATION) -> None:
    grant_source(
        open_ledger(folder / "ledger.sqlite"),
        "here",
        folder / "a.zarr",
        relation=relation,
        clip_norm=CLIP,
        change=1.0,
        budget=Budget(epsilon, 1e-6),
    )


def records(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Rows of norm below 1, with two strong directions."""
    rng = np.random.default_rng(seed)
    scale = np.r_[6.0, 4.0, np.full(d - 2, 0.5)]
    rows = rng.standard_normal((n, d)) * scale / 20
    return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None]


Sites = Callable[..., list[Site]]


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    """Makes and starts nodes; whatever happens, none of them is left."""
    monkeypatch.setenv(TOKENS, str(tmp_path / "tokens"))
    made: list[Site] = []

    def make(parts: list[np.ndarray], *, epsilon: float | None, p: int = 4, steps: int = 3, **more: Any) -> list[Site]:
        for rows in parts:
            site = Site(tmp_path / f"node{len(made)}", options=more.get("options", ()))
            made.append(site)
            relation = more.get("relation", RELATION)
            tables = '[mechanism]\nname = "none"\n' if epsilon is None else private_tables(epsilon, relation)
            names = more["names"][len(made) - 1] if "names" in more else ""
            write_site(site.folder, rows, tables, p=p, steps=steps, kind=more.get("kind", "samples"), names=names)
            if epsilon is not None:
                grant(site.folder, more.get("granted", epsilon), relation)
            site.start()
        write_tokens(tmp_path / "tokens", {site.url: site.token for site in made})
        return made[-len(parts) :]

    yield make
    for site in made:
        site.kill()


def centre_file(folder: Path, urls: list[str], more: str = "", *, k: int = 2, patience: float = 60) -> Path:
    """The configuration of a centre."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "centre.toml"
    path.write_text(f"[source]\nnodes = {urls}\npatience = {patience}\n[algorithm]\ntarget_rank = {k}\n{more}")
    return path


def run_centre(folder: Path, urls: list[str], more: str = "", **options: Any) -> Solution:
    return load_config(centre_file(folder, urls, more, **options)).solve()
