"""Commands of Compose, Kubernetes, systemd and SLURM exist, and take every option that they are given."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra import pods
from infra.make_secrets import SECRETS
from infra.topology import CONTAINERS, ORDER, POSTGRES, SERVER, commands

BIN = Path(sys.executable).parent
SERVED = Path(__file__).resolve().parents[2] / "infra" / "npmdask.service"
SECRET = {name: f"secret-{name}" for name in SECRETS}


def subcommand(command: list[str]) -> list[str]:
    """The words before the first option or argument: ``dask worker``, ``python -m prefect worker start``."""
    if command[:2] == ["python", "-m"]:
        rest = ["worker", "start"] if command[2] == "prefect" else []
        return [sys.executable, *command[1:3], *rest]
    count = {"dask": 2, "rclone": 3}[command[0]]
    return [str(BIN / command[0]), *command[1:count]]


def unknown_options(command: list[str]) -> list[str]:
    """The options that the help of a command does not know. Dask's own would pass on what it does not know."""
    words = subcommand(command)
    if words[1:2] == ["-m"]:
        assert importlib.util.find_spec(words[2]), words
    done = subprocess.run([*words, "--help"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (words, done.stderr[-500:])
    text = done.stdout
    if command[0] == "rclone":  # its options for all commands are on a page of their own
        text += subprocess.run([BIN / "rclone", "help", "flags"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[\w-]+", text))
    return [word for word in command if word.startswith("--") and word not in known]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ORDER if name not in (POSTGRES, SERVER)])  # which take no options
def test_every_command_takes_its_options(name: str) -> None:
    """Mutant: ``--memory-limits`` of a worker, which Dask takes without a word."""
    command = list(commands(CONTAINERS)[name])
    assert unknown_options(command) == []
    assert unknown_options([*command, "--memory-limits"]) == ["--memory-limits"]


@pytest.mark.slow
def test_the_command_of_systemd_takes_its_options() -> None:
    (line,) = [one for one in SERVED.read_text().splitlines() if one.startswith("ExecStart=")]
    assert unknown_options(["python", *line.split()[1:]]) == []


@pytest.mark.parametrize("name", ORDER)
def test_a_pod_as_a_container_has_what_the_manifest_says(name: str) -> None:
    """What `make deployments` starts where there is no Kubernetes. Mutants: a secret or a mount that is left out."""
    spec = pods.workloads()[name]
    (container,) = spec["template"]["spec"]["containers"]
    words = pods.run_command(name, 0, spec, SECRET)
    first, *rest = container["command"]
    assert words[-len(rest) - 2 :] == [f"--entrypoint={first}", container["image"], *rest]
    assert {"--read-only", "--cap-drop=ALL"} <= set(words)
    assert f"--user={spec['template']['spec']['securityContext']['runAsUser']}" in "".join(words)
    assert not any("$(" in word for word in words), "every reference to a secret is filled in"
    told = [words[i + 1] for i, word in enumerate(words) if word == "--env"]
    assert [one.partition("=")[0] for one in told] == [one["name"] for one in container.get("env", [])]
    for mount in container["volumeMounts"]:
        assert any(f"{mount['mountPath']}:" in f"{word}:" or f":{mount['mountPath']}/" in word for word in words)
