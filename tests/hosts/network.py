"""Many hosts without many machines: network namespaces of Linux, joined by a bridge, each with an address of its own.

Everything lives in namespaces (network, mounts, processes), whose first process reads from a pipe of ours. If
this process ends, in whatever way, the pipe closes, and the kernel ends all hosts with everything that runs there: no
name is left on the machine, and there is nothing to remove.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "10.77.0"
BOOT = """
set -e
mount --types tmpfs hosts /run
mkdir /run/netns
ip link set lo up
ip link add switch type bridge
ip link set switch up
echo ready
exec cat
"""
HOST = """
set -e
ip netns add "$0"
ip link add "v-$0" type veth peer name eth0 netns "$0"
ip link set "v-$0" master switch up
ip -n "$0" link set lo up
ip -n "$0" address add "$1/24" dev eth0
ip -n "$0" link set eth0 up
"""
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc")


def missing() -> str | None:
    """Say why there can be no hosts here; None where there can."""
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"there is no {program} here (Debian: iproute2, util-linux)"
    if os.geteuid():
        return "network namespaces need root"
    try:
        with Network() as network:
            network.add("trial")
            network.rate("trial", "100mbit")
    except subprocess.CalledProcessError as error:
        return f"this kernel makes no network namespaces: {error.stderr.strip()}"
    return None


class Network:
    """A switch with hosts, from ``with`` to its end.

    Attributes
    ----------
    addresses : of the hosts, by name.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Network:
        pipe = subprocess.PIPE
        self._first = subprocess.Popen([*NAMESPACES, "sh", "-c", BOOT], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._first.stdout is not None
        if self._first.stdout.readline() != "ready\n":
            said = self._first.communicate()[1]
            raise subprocess.CalledProcessError(self._first.returncode, "unshare", stderr=said)
        (number,) = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        self._enter = ("nsenter", f"--target={number}", "--net", "--mount", "--pid")
        return self

    def __exit__(self, *_: object) -> None:
        self._first.communicate()  # closes the pipe; returns when the kernel has ended everything
        for process in self._started:
            process.communicate()

    def _do(self, *command: str) -> None:
        subprocess.run([*self._enter, *command], check=True, capture_output=True, text=True)

    def add(self, host: str) -> str:
        """Add a host to the network; returns its address."""
        address = f"{PREFIX}.{len(self.addresses) + 1}"
        self._do("sh", "-c", HOST, host, address)
        self.addresses[host] = address
        return address

    def start(self, host: str, *command: str | Path, log: Path, **environment: str) -> subprocess.Popen[str]:
        """Start a program on a host. What is returned is what entered there: kill the program by :meth:`end`."""
        words = [*self._enter, "ip", "netns", "exec", host, *map(str, command)]
        told = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment}
        with open(log, "ab") as errors:
            process = subprocess.Popen(
                words, cwd=ROOT, env=told, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._started.append(process)
        return process

    def end(self, host: str) -> None:
        """Kill every process of a host, as a loss of power does."""
        self._do("sh", "-c", 'ip netns pids "$0" | xargs --no-run-if-empty kill -KILL', host)

    def cut(self, host: str) -> None:
        """Pull the cable of a host: packets vanish, nothing is refused."""
        self._do("ip", "link", "set", f"v-{host}", "down")

    def mend(self, host: str) -> None:
        """Put the cable back."""
        self._do("ip", "link", "set", f"v-{host}", "up")

    def isolate(self, *hosts: str) -> None:
        """Let these hosts reach all others, but not one another, as many a network for guests does."""
        for host in hosts:
            self._do("ip", "link", "set", f"v-{host}", "type", "bridge_slave", "isolated", "on")

    def rate(self, host: str, rate: str) -> None:
        """Let a host send no faster than this, like ``20mbit``."""
        self._do(*f"tc -n {host} qdisc replace dev eth0 root tbf rate {rate} burst 32kb latency 1s".split())
