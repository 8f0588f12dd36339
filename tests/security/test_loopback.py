"""Every server that the project starts listens on 127.0.0.1 unless it is told otherwise: sockets of real processes.

Those of `npmdask serve` and of a flow are looked at in tests/prefect/test_serve.py, those of the local cluster in
tests/infra/test_local_cluster.py, while they are up.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from distributed import Client

from npmdask.cluster.workers import Processes
from npmdask.core.execution.threads import Threads
from npmdask.core.operators import Gram
from npmdask.core.storage.source import open_source
from npmdask.errors import RefusedError
from npmdask.federated.protocol import TOKEN
from npmdask.federated.server import serve
from npmdask.synthetic import generate
from tests.security.looking import listening

ROOT = Path(__file__).resolve().parents[2]
HERE = {"127.0.0.1"}


@pytest.mark.slow
def test_worker_processes_are_for_nobody_else(tmp_path: Path) -> None:
    """Their scheduler would run what anybody on this machine sends it: it asks for a certificate, made for this run."""
    generate(tmp_path / "x.zarr", problem="spectrum", rows=4000, columns=50, rank=3, spectrum="harmonic")
    before = listening(psutil.Process())
    executor = Processes(workers=2, threads=1)
    try:
        opened = listening(psutil.Process()) - before
        assert len(opened) >= 6 and {ip for ip, _ in opened} == HERE
        address = executor._cluster.scheduler_address
        assert address.startswith("tls://127.0.0.1:")
        for plain in (address.replace("tls", "tcp"), address):
            with pytest.raises((OSError, TypeError, ValueError)):
                Client(plain, timeout=3, set_as_default=False)
        operator = Gram(reader=open_source(tmp_path / "x.zarr", "samples").reader)
        block = np.linalg.qr(np.random.default_rng(0).standard_normal((50, 4)))[0]
        there, _ = executor.run_pass(operator, block, lambda record: None)
        np.testing.assert_array_equal(there, Threads(1).run_pass(operator, block, lambda record: None)[0])
    finally:
        executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("told", [(), ("--host", "0.0.0.0", "--plain-http")])
def test_a_node_listens_here_unless_told(told: tuple[str, ...], tmp_path: Path) -> None:
    generate(tmp_path / "x.zarr", problem="spectrum", rows=400, columns=8, rank=2, spectrum="harmonic", kind="samples")
    (tmp_path / "node.toml").write_text(
        '[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 2\niteration_rank = 4\nmax_steps = 3\n'
        '[mechanism]\nname = "none"\n[run]\nthreads = 1\n'
    )
    command = [sys.executable, "-m", "npmdask.cli.main", "node", str(tmp_path / "node.toml"), *told]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True) as node:
        try:
            assert node.stderr is not None
            said = next(line for line in node.stderr if "listens at" in line)
            found = listening(psutil.Process(node.pid))
        finally:
            node.kill()
    port = re.search(r":(\d+)$", said.strip())
    assert port and found == {("0.0.0.0" if told else "127.0.0.1", int(port[1]))}


def test_a_node_that_others_can_reach_needs_a_certificate(tmp_path: Path) -> None:
    """Or to be told that a proxy has one. Mutant: plain HTTP for the whole network, without a word."""
    for host in ("0.0.0.0", "::", "192.0.2.1", "node.example"):
        with pytest.raises(RefusedError, match="--tls-cert and --tls-key, or --plain-http"):
            serve(None, "t" * 40, host, 0)  # type: ignore[arg-type]


def environment() -> dict[str, str]:
    return {**os.environ, TOKEN: "t" * 40, "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_no_other_address_is_written_down_but_for_containers() -> None:
    """In those every service has a network of its own, and says so in one place."""
    allowed = {"infra/topology.py"}
    for path in [*(ROOT / "npmdask").rglob("*.py"), *(ROOT / "flows").rglob("*.py"), *(ROOT / "infra").rglob("*.py")]:
        strings = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        everywhere = {text for text in strings if isinstance(text, str) and ("0.0.0.0" in text or text == "::")}
        assert not everywhere or str(path.relative_to(ROOT)) in allowed, path
