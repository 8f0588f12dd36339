"""The pods of kubernetes/ as containers of Docker, by the letter: ``python -m infra.pods SECRETS.env``.

For a machine without Kubernetes. What a kubelet would take from a pod is taken: image, command, environment, user,
read-only root, capabilities, limits, mounts, probes. Names of Services are names of the network. Not taken: network
policies, claims (a named volume each), the order of pods. Ready, or failed, in the end; ``--remove`` takes all away.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

HERE = Path(__file__).resolve().parent
NETWORK = "npmdask-pods"
PATIENCE = 600  # seconds until everything is ready


def documents() -> list[dict[str, Any]]:
    """Every object of kubernetes/."""
    files = sorted((HERE / "kubernetes").glob("*.yaml"))
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def workloads() -> dict[str, dict[str, Any]]:
    """Deployments and StatefulSets by name."""
    return {one["metadata"]["name"]: one["spec"] for one in documents() if one["kind"] in ("Deployment", "StatefulSet")}


def environment(container: dict[str, Any], secrets: dict[str, str]) -> dict[str, str]:
    """The arguments of a container; $(NAME) is what was said before it."""
    told: dict[str, str] = {}
    for one in container.get("env", []):
        value = secrets[one["valueFrom"]["secretKeyRef"]["key"]] if "valueFrom" in one else str(one["value"])
        for name, before in told.items():
            value = value.replace(f"$({name})", before)
        told[one["name"]] = value
    return told


def mounts(name: str, pod: dict[str, Any], container: dict[str, Any], maps: dict[str, list[Path]]) -> Iterator[str]:
    """The options of ``docker run`` for what a pod mounts."""
    owner = pod["securityContext"]
    kinds = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        at, volume = mount["mountPath"], kinds.get(mount["name"], {})
        if "emptyDir" in volume:  # root's and open to all, as a kubelet leaves it
            yield f"--tmpfs={at}:gid={owner['fsGroup']},mode=2777,exec"
        elif "configMap" in volume:
            for file in maps[volume["configMap"]["name"]]:
                yield f"--volume={file.resolve()}:{at}/{file.name}:ro"
        else:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName", f"{mount['name']}-{name}-0")
            yield f"--volume={NETWORK}-{claim}:{at}"


def run_command(name: str, number: int, spec: dict[str, Any], secrets: dict[str, str]) -> list[str]:
    """``docker run`` for one pod of a workload."""
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    top = yaml.safe_load((HERE / "kustomization.yaml").read_text())
    maps = {one["name"]: [HERE / file for file in one["files"]] for one in top["configMapGenerator"]}
    limits, context = container["resources"]["limits"], pod["securityContext"]
    words = ["docker", "run", "--detach", "--name", f"{NETWORK}-{name}-{number}", "--network", NETWORK]
    words += ["--network-alias", name, "--restart", "on-failure", "--no-healthcheck"]
    words += [f"--user={context['runAsUser']}:{context['runAsGroup']}", "--read-only", "--cap-drop=ALL"]
    words += ["--security-opt=no-new-privileges", f"--memory={limits['memory'].replace('Gi', 'g').replace('Mi', 'm')}"]
    words += [word for one in environment(container, secrets).items() for word in ("--env", "=".join(one))]
    words += mounts(name, pod, container, maps)
    first, *rest = container["command"]
    return [*words, f"--entrypoint={first}", container["image"], *rest]


def ready(name: str, number: int, container: dict[str, Any]) -> bool:
    """What the readiness probe of a pod says; of one that has none, whether it runs."""
    one, probe = f"{NETWORK}-{name}-{number}", container.get("readinessProbe", {})
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    shown = json.loads(subprocess.run(["docker", "inspect", one], capture_output=True, check=True).stdout)[0]
    address = shown["NetworkSettings"]["Networks"][NETWORK]["IPAddress"]
    if "exec" in probe:
        asked = ["docker", "exec", one, *probe["exec"]["command"]]
    elif "httpGet" in probe:  # from the node, as a kubelet does
        get = probe["httpGet"]
        asked = ["curl", "--fail", "--silent", "--output", "/dev/null", "--max-time", str(probe["timeoutSeconds"])]
        asked += [f"http://{address}:{ports[get['port']]}{get['path']}"]
        for header in get.get("httpHeaders", []):
            asked += ["--header", f"{header['name']}: {header['value']}"]
    elif "tcpSocket" in probe:
        code = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 4)"
        asked = [sys.executable, "-c", code, address, str(ports[probe["tcpSocket"]["port"]])]
    else:
        return bool(shown["State"]["Running"])
    return subprocess.run(asked, capture_output=True, timeout=60).returncode == 0


def start(secrets: dict[str, str]) -> None:
    """Start every pod and return when all are ready."""
    subprocess.run(["docker", "network", "create", NETWORK], check=True, stdout=subprocess.DEVNULL)
    left: dict[tuple[str, int], dict[str, Any]] = {}
    for name, spec in workloads().items():
        for number in range(spec["replicas"]):
            subprocess.run(run_command(name, number, spec, secrets), check=True, stdout=subprocess.DEVNULL)
            left[name, number] = spec["template"]["spec"]["containers"][0]
    began = time.monotonic()
    while left:
        for (name, number), container in list(left.items()):
            if ready(name, number, container):
                print(f"{name}-{number} is ready after {time.monotonic() - began:.0f} s", flush=True)
                del left[name, number]
        if time.monotonic() - began > PATIENCE:
            sys.exit(f"not ready in {PATIENCE} s: {', '.join(name for name, _ in left)}; see `docker logs`")
        time.sleep(1)


def remove() -> None:
    """Take away every container, volume and network of :func:`start`."""
    for kind, erase in (("ps --all", "rm --force"), ("volume ls", "volume rm"), ("network ls", "network rm")):
        listing = ["docker", *kind.split(), "--quiet", f"--filter=name={NETWORK}"]
        found = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
        if found:
            subprocess.run(["docker", *erase.split(), *found], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("secrets", type=Path, help="file of make_secrets.py")
    parser.add_argument("--remove", action="store_true", help="take away what is there, and start nothing")
    given = parser.parse_args()
    remove()
    if not given.remove:
        start(dict(line.split("=", 1) for line in given.secrets.read_text().split()))
