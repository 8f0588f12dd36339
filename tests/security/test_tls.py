"""A cluster that speaks TLS: the same bits to whoever has its certificates, a sentence to everybody else."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

import npmdask
from npmdask.cluster.clusters import security_of
from npmdask.cluster.workers import Cluster
from npmdask.config import load_config
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.resources import Resources
from npmdask.errors import BadInputError, LostError, NpmdaskError, RefusedError
from npmdask.synthetic import generate
from tests.conftest import same_bytes
from tests.machines import BIN, Machines, machines, wait_for  # noqa: F401
from tests.remote.certificates import Authority

TLS = "tls://127.0.0.1:8786"


def data(folder: Path) -> Path:
    size = {"rows": 6000, "columns": 60, "rank": 4}
    generate(folder / "x.zarr", problem="spectrum", spectrum="harmonic", kind="samples", **size)
    return folder / "x.zarr"


@pytest.mark.slow
def test_the_same_bits_with_certificates_and_a_sentence_without(
    tmp_path: Path,
    machines: Machines,  # noqa: F811
) -> None:
    path, authority, another = data(tmp_path), Authority("ours"), Authority("another")
    ours, theirs = authority.write(tmp_path / "ours"), another.write(tmp_path / "theirs")
    forged = another.write(tmp_path / "forged", trusts=authority)
    machines.secure(ours)
    machines.scheduler()
    machines.worker()
    wait_for_a_worker(machines, path, ours)
    config = tmp_path / "far.toml"
    config.write_text(
        f'[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 4\n[stop]\ntol = 1e-6\n[run]\nstore = "far"\n'
        f'cluster = "{machines.address}"\ncertificates = "ours"\n'
    )
    assert load_config(config).solve().converged  # type: ignore[union-attr]
    npmdask.top_k(path, 4, tol=1e-6, store=tmp_path / "here")
    same_bytes(tmp_path / "here", tmp_path / "far", parts=("steps", "result", "survey"))
    assert npmdask.resume(tmp_path / "far").data_passes == 0, "where they lie is remembered"
    with pytest.raises(BadInputError, match=r"uses TLS, but there are no certificates for it: set run.certificates"):
        npmdask.top_k(path, 4, cluster=machines.address)
    for folder in (theirs, forged):
        with pytest.raises(RefusedError, match=r"does not accept our certificate, or shows none .*take the ca.pem"):
            npmdask.top_k(path, 4, cluster=machines.address, certificates=folder)
    plain = machines.address.replace("tls", "tcp")
    with pytest.raises(LostError, match=r"no Dask scheduler answers at tcp://.*one that speaks TLS is at tls://"):
        npmdask.top_k(path, 4, cluster=plain)
    assert no_answer(machines.port, ours / "ca.pem")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl here: apt-get install openssl")
def test_the_page_makes_certificates_and_a_cluster(
    tmp_path: Path,
    machines: Machines,  # noqa: F811
) -> None:
    """The commands and the configuration as printed, on another port of this machine and without a dashboard."""
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "security.md").read_text()
    (commands,) = re.findall(r"^```sh\n(openssl .*?)^```", page, re.S | re.M)
    (config,) = re.findall(r"^```toml\n(.*?)^```", page, re.S | re.M)
    folder, path = tmp_path / "certificates", data(tmp_path)
    folder.mkdir()
    openssl = "\n".join(line for line in commands.splitlines() if line.startswith("openssl"))
    subprocess.run(["sh", "-ec", openssl], cwd=folder, capture_output=True, check=True)
    here = commands.replace("10.0.0.1", "127.0.0.1").replace("8786", str(machines.port))
    here = re.sub(r"\b(ca|cert|key)\.pem\b", rf"{folder}/\g<0>", here)
    started = [shlex.split(line, comments=True) for line in here.splitlines() if line.startswith("dask ")]
    assert [words[1] for words in started] == ["scheduler", "worker"]
    more = {"scheduler": ["--no-dashboard"], "worker": ["--no-dashboard", "--no-nanny", "--local-directory", tmp_path]}
    for words in started:
        process = machines.start(BIN / words[0], *words[1:], *more[words[1]])
        machines.others.append(process)
        if words[1] == "scheduler":
            wait_for(machines.port, process)
    machines.address = f"tls://127.0.0.1:{machines.port}"
    wait_for_a_worker(machines, path, folder)
    rest = config.replace("tls://10.0.0.1:8786", machines.address)
    assert rest != config
    (tmp_path / "c.toml").write_text(f'[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 4\n{rest}')
    assert load_config(tmp_path / "c.toml").solve().converged  # type: ignore[union-attr]


def wait_for_a_worker(machines: Machines, path: Path, certificates: Path) -> None:  # noqa: F811
    end = time.monotonic() + 240
    while time.monotonic() < end:
        try:
            return Cluster(machines.address, str(path), str(certificates)).close()
        except LostError:
            time.sleep(0.1)
    raise AssertionError((machines.folder / "machines.log").read_text()[-3000:])


def no_answer(port: int, authority: Path) -> bool:
    """Whether somebody who trusts the scheduler, and shows no certificate, hears nothing of it."""
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = False
    with socket.create_connection(("127.0.0.1", port), timeout=120) as plain:
        try:
            with context.wrap_socket(plain) as secure:
                return not secure.recv(1)
        except (ssl.SSLError, ConnectionResetError):
            return True


def test_certificates_are_checked_before_anything_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Authority("ours").write(tmp_path / "good")
    assert security_of(TLS, str(good)).require_encryption and security_of("tcp://127.0.0.1:1", None) is None
    with pytest.raises(BadInputError, match=r"would be used without encryption: write tls://127.0.0.1:1, or leave"):
        security_of("tcp://127.0.0.1:1", str(good))
    with pytest.raises(BadInputError, match="certificates are for a cluster at tls://"):
        Resources(certificates=str(good)).require_possible()
    (good / "key.pem").chmod(0o640)
    with pytest.raises(RefusedError, match=r"key.pem can be read by other users, .* `chmod 600` it"):
        security_of(TLS, str(good))
    (good / "key.pem").chmod(0o600)
    (good / "cert.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(BadInputError, match=r"the certificates for tls://.* cannot be used \("):
        security_of(TLS, str(good))
    (good / "ca.pem").unlink()
    (good / "cert.pem").unlink()
    with pytest.raises(BadInputError, match=r"has no ca.pem and no cert.pem; set run.certificates \(--certificates\)"):
        security_of(TLS, str(good))
    with pytest.raises(NpmdaskError, match="there are no certificates for it"):
        security_of(TLS, None)
    assert not [name for name in os.environ if name.startswith("DASK_DISTRIBUTED__COMM__TLS")]


def test_daskes_own_configuration_will_do(tmp_path: Path) -> None:
    import dask

    good = Authority("ours").write(tmp_path / "good")
    said = {"ca-file": good / "ca.pem", "client.cert": good / "cert.pem", "client.key": good / "key.pem"}
    with dask.config.set({f"distributed.comm.tls.{name}": str(file) for name, file in said.items()}):
        assert security_of(TLS, None).tls_client_cert == str(good / "cert.pem")


@pytest.mark.slow
def test_a_run_goes_on_with_other_certificates_or_without_a_cluster(tmp_path: Path) -> None:
    """What resume is given takes the place of what the run began with; certificates go with their cluster."""
    path = data(tmp_path)
    npmdask.top_k(path, 4, tol=1e-6, store=tmp_path / "run", max_steps=1)
    open_key = Authority("ours").write(tmp_path / "open")
    (open_key / "key.pem").chmod(0o644)
    for asked in ({"cluster": TLS, "certificates": open_key}, {"cluster": TLS}):  # the second time they are known
        with pytest.raises(RefusedError, match=r"open/key.pem can be read by other users"):
            npmdask.resume(tmp_path / "run", max_steps=20, **asked)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="would be used without encryption"):
        npmdask.resume(tmp_path / "run", cluster="tcp://127.0.0.1:8786", certificates=open_key)
    with pytest.raises(BadInputError, match="certificates are for a cluster"):
        npmdask.resume(tmp_path / "run", certificates=open_key, cluster="")
    assert npmdask.resume(tmp_path / "run", cluster="").converged
    assert (RunStore(tmp_path / "run").read_spec() or {})["resources"]["certificates"] is None
