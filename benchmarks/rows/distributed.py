"""Distributed private PCA: every byte that crosses between a coordinator and real nodes, over what theory counts."""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.children import ChildFailedError, started
from benchmarks.registry import Context, Measured, Row
from benchmarks.wiretap import Tap, tapped
from npmdask.accounting import Budget
from npmdask.config import load_config
from npmdask.federated.protocol import TOKEN, TOKENS
from npmdask.formats.ingest import ingest
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.theory.private import dist_comm

NODES, P, STEPS, EPSILON, DELTA = 3, 16, 5, 2.0, 1e-6


def measure(context: Context) -> Measured:
    """Three processes with a share of the rows each; a tap in front of each sees all that TCP carries."""
    d, rows = context.sized(300, 2000), context.sized(900, 9000)
    tokens = [secrets.token_hex(32) for _ in range(NODES)]
    with ExitStack() as stack:
        taps = []
        for i, token in enumerate(tokens):
            stack.enter_context(_environment(TOKEN, token))
            taps.append(stack.enter_context(_node(context.folder / f"node{i}", rows // NODES, d, i)))
        stack.enter_context(_environment(TOKENS, str(_tokens(context.folder, taps, tokens))))
        solution = load_config(_centre(context.folder, [tap.url for tap in taps])).solve()
    theory = dist_comm(NODES, P, d, STEPS, "point_to_point").value
    crossed = sum(tap.nbytes for tap in taps)
    said = (solution.statement or {})["communication"]
    details: dict[str, Any] = {
        "nodes": NODES,
        "d": d,
        "p": P,
        "steps": STEPS,
        "numbers": said["numbers"],
        "numbers_by_theory": int(theory),
        "numbers_with_broadcast": said["numbers_with_broadcast"],
        "bytes_on_the_wire": crossed,
        "bytes_of_blocks": said["bytes_sent"] + said["bytes_received"],
    }
    failures = () if said["numbers"] == theory else (f"{said['numbers']} numbers crossed instead of {theory:.0f}",)
    why = f"HTTP and the announcements take {crossed - 8 * theory:.0f} bytes beside {8 * theory:.0f} of numbers"
    return Measured(crossed / (8 * theory), details, why, failures)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable for this measurement, in the environment of this process and of those that it starts."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update({name: before} if before is not None else {})


def _tokens(folder: Path, taps: list[Tap], tokens: list[str]) -> Path:
    path = folder / "tokens"
    path.touch(mode=0o600)
    path.write_text("".join(f"{tap.url} {token}\n" for tap, token in zip(taps, tokens, strict=True)))
    return path


@contextmanager
def _node(folder: Path, rows: int, d: int, seed: int) -> Iterator[Tap]:
    """A node that runs, and the tap before it."""
    _write(folder, rows, d, seed)
    command = [sys.executable, "-m", "npmdask.cli.main", "node", "node.toml"]
    with open(folder / "said", "w+b") as said, started(command, folder=folder, said=said) as child:
        end = time.monotonic() + 120
        while (found := re.search(r"listens at http://127.0.0.1:(\d+)", (folder / "said").read_text())) is None:
            if child.poll() is not None or time.monotonic() > end:
                raise ChildFailedError((folder / "said").read_text()[-300:])
            time.sleep(0.05)
        with tapped(int(found[1])) as tap:
            yield tap


def _write(folder: Path, rows: int, d: int, seed: int) -> None:
    folder.mkdir()
    np.save(folder / "a.npy", np.random.default_rng(seed).standard_normal((rows, d)) / np.sqrt(d))
    ingest(folder / "a.npy", folder / "a.zarr", kind="samples")
    grant_source(
        open_ledger(folder / "ledger.sqlite"),
        "here",
        folder / "a.zarr",
        relation="record_replace",
        clip_norm=1.0,
        change=1.0,
        budget=Budget(EPSILON, DELTA),
    )
    (folder / "node.toml").write_text(
        f'[source]\npath = "a.zarr"\n[algorithm]\ntarget_rank = 4\niteration_rank = {P}\nmax_steps = {STEPS}\n'
        f'[privacy]\nepsilon = {EPSILON}\ndelta = {DELTA}\nneighboring_relation = "record_replace"\nclip_norm = 1.0\n'
        'ledger = "ledger.sqlite"\ndataset = "here"\n'
    )


def _centre(folder: Path, urls: list[str]) -> Path:
    path = folder / "centre.toml"
    path.write_text(f"[source]\nnodes = {urls}\n[algorithm]\ntarget_rank = 4\n")
    return path


ROWS = (
    Row(
        name="distributed-bytes",
        what="bytes between a coordinator and 3 private nodes by HTTP / 2 L s p d numbers of the theory",
        target=1.02,
        better="lower",
        run=measure,
    ),
)
