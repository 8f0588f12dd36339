"""compose.yaml, kubernetes/ and the local cluster say the same: commands, ports, environment, who needs whom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.make_secrets import SECRETS
from infra.topology import (
    CONTAINERS,
    CRUNCHER,
    FIRST_START,
    HEALTH,
    KEEPER,
    LINKS,
    NEEDS,
    OBJECTS,
    ORDER,
    PORTS,
    POSTGRES,
    SCHEDULER,
    SERVER,
    WORKER,
    commands,
    environments,
    probes,
)

INFRA = Path(__file__).resolve().parents[2] / "infra"
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]
MANIFESTS = [
    one for file in sorted((INFRA / "kubernetes").glob("*.yaml")) for one in yaml.safe_load_all(file.read_text())
]
WORKLOADS = {one["metadata"]["name"]: one for one in MANIFESTS if one["kind"] in ("Deployment", "StatefulSet")}
PODS = {name: one["spec"]["template"]["spec"] for name, one in WORKLOADS.items()}


def container(name: str) -> dict[str, Any]:
    (only,) = PODS[name]["containers"]
    return dict(only)


def expected(name: str) -> dict[str, str]:
    """What a service is told, with <NAME> for secrets."""
    return environments(CONTAINERS)[name] | (FIRST_START if name == POSTGRES else {})


def told_by_compose(name: str) -> dict[str, str]:
    found = COMPOSE[name]["environment"]
    return {key: re.sub(r"\$\{(\w+):\?\}", r"<\1>", value) for key, value in found.items()}


def told_by_kubernetes(name: str) -> dict[str, str]:
    """As it is; a secret that is there for the sake of another value, $(NAME), is left out."""
    found = {}
    for one in container(name).get("env", []):
        secret = one.get("valueFrom", {}).get("secretKeyRef", {})
        assert secret.get("name", "npmdask-secrets") == "npmdask-secrets"
        found[one["name"]] = f"<{secret['key']}>" if secret else re.sub(r"\$\((\w+)\)", r"<\1>", one["value"])
    helpers = {key for key in SECRETS if key in found and key not in expected(name)}
    assert all(any(f"<{key}>" in value for other, value in found.items() if other != key) for key in helpers)
    return {key: value for key, value in found.items() if key not in helpers}


def test_the_same_services() -> None:
    assert set(COMPOSE) == set(WORKLOADS) == set(ORDER) == set(commands(CONTAINERS))


@pytest.mark.parametrize("name", ORDER)
def test_the_same_commands(name: str) -> None:
    command = list(commands(CONTAINERS)[name])
    assert COMPOSE[name]["command"] == command
    entrypoint = ["docker-entrypoint.sh"] if name == POSTGRES else []  # a command of Kubernetes is the entrypoint, too
    assert container(name)["command"] == entrypoint + command


@pytest.mark.parametrize("name", ORDER)
def test_the_same_environment(name: str) -> None:
    assert told_by_compose(name) == expected(name)
    assert told_by_kubernetes(name) == expected(name)


@pytest.mark.parametrize("name", ORDER)
def test_the_same_images_and_ports(name: str) -> None:
    assert COMPOSE[name]["image"] == container(name)["image"]
    ports = {one["name"]: one["containerPort"] for one in container(name).get("ports", [])}
    assert set(ports.values()) == {where[name] for where in (PORTS, HEALTH) if name in where}
    for published in COMPOSE[name].get("ports", []):
        assert published == f"127.0.0.1:{PORTS[name]}:{PORTS[name]}"


def test_services_of_kubernetes_have_the_names_that_the_others_use() -> None:
    found = {one["metadata"]["name"]: one["spec"] for one in MANIFESTS if one["kind"] == "Service"}
    asked_for = {called for some in LINKS.values() for called in some} - {CRUNCHER}  # workers say who they are
    assert set(found) == asked_for
    for name, spec in found.items():
        assert spec["selector"] == WORKLOADS[name]["spec"]["selector"]["matchLabels"]
        (port,) = spec["ports"]
        names = {one["name"]: one["containerPort"] for one in container(name)["ports"]}
        assert port["port"] == names[port["targetPort"]] == PORTS[name]


def test_each_starts_after_what_it_needs() -> None:
    for name in ORDER:
        after = {key: one["condition"] for key, one in COMPOSE[name].get("depends_on", {}).items()}
        assert after == dict.fromkeys(NEEDS.get(name, ()), "service_healthy")
        assert all(ORDER.index(other) < ORDER.index(name) for other in after)


@pytest.mark.parametrize("name", ORDER)
def test_health_is_asked_in_the_same_way(name: str) -> None:
    healthy, asked = COMPOSE[name]["healthcheck"], container(name).get("readinessProbe")
    if name == WORKER:
        assert healthy == {"disable": True} and asked is None
        return
    host = {"name": "Host", "value": f"127.0.0.1:{PORTS[SERVER]}"}  # the server refuses names that are not its own
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container(name)[probe].get("httpGet") == asked.get("httpGet")
    assert {key: asked[key] for key in asked if key in ("exec", "httpGet", "tcpSocket")} == {
        POSTGRES: {"exec": {"command": healthy["test"][1:]}},
        OBJECTS: {"tcpSocket": {"port": "s3"}},
        SCHEDULER: {"httpGet": {"path": "/health", "port": "health"}},
        SERVER: {"httpGet": {"path": "/api/health", "port": "api", "httpHeaders": [host]}},
        KEEPER: {"exec": {"command": healthy["test"][1:]}},
        CRUNCHER: {"httpGet": {"path": "/health", "port": "health"}},
    }[name]
    if name == POSTGRES:
        assert healthy["test"] == ["CMD", "pg_isready", "--quiet", "--host=127.0.0.1", f"--port={PORTS[POSTGRES]}"]
    else:
        assert healthy["test"] == ["CMD", "python", "/srv/probe.py", probes(CONTAINERS)[name]]


def test_network_policies_let_through_what_is_needed_and_nothing_else() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in MANIFESTS if one["kind"] == "NetworkPolicy"}
    assert policies.pop("default-deny") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    names = policies.pop("names")
    assert names["podSelector"] == {} and {port["port"] for port in names["egress"][0]["ports"]} == {53}
    goes_in, goes_out = set(), set()
    for name, spec in policies.items():
        assert spec["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": name}}
        assert spec["policyTypes"] == [kind for kind in ("Ingress", "Egress") if kind.lower() in spec]
        goes_in |= {(who, name, port) for one in spec.get("ingress", []) for who, port in ends(one, "from")}
        goes_out |= {(name, to, port) for one in spec.get("egress", []) for to, port in ends(one, "to")}
    assert goes_in == goes_out == {(a, b, PORTS[b]) for a, some in LINKS.items() for b in some}


def ends(rule: dict[str, Any], side: str) -> list[tuple[str, int]]:
    """Who is at the other end of a rule, on which port."""
    assert all(list(one) == ["podSelector"] for one in rule[side])
    who = [one["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for one in rule[side]]
    return [(name, port["port"]) for name in who for port in rule["ports"] if port["protocol"] == "TCP"]


def test_what_is_kept_has_a_volume() -> None:
    runs = "/srv/npmdask/runs"
    places = {POSTGRES: "/var/lib/postgresql", OBJECTS: f"{CONTAINERS.objects}/npmdask", WORKER: runs, CRUNCHER: runs}
    for name, where in places.items():
        mounts = [one for one in COMPOSE[name]["volumes"] if one.partition(":")[2] == where]
        assert len(mounts) == 1 and not mounts[0].startswith((".", "/", "$")), f"a named volume at {where}"
        (mount,) = [one for one in container(name)["volumeMounts"] if one["mountPath"] == where]
        claims = [one["metadata"]["name"] for one in WORKLOADS[name]["spec"].get("volumeClaimTemplates", [])]
        claims += [one["name"] for one in PODS[name]["volumes"] if "persistentVolumeClaim" in one]
        assert mount["name"] in claims
    assert CONTAINERS.pgdata.startswith("/var/lib/postgresql/")
    claims = {one["metadata"]["name"]: one["spec"] for one in MANIFESTS if one["kind"] == "PersistentVolumeClaim"}
    assert claims["runs"]["accessModes"] == ["ReadWriteMany"], "several pods write there"


def test_every_path_that_is_written_is_writable() -> None:
    """The root of every container is read-only: what a service writes lies on a mount."""
    written = {name: ["/tmp"] for name in ORDER}
    written[POSTGRES] += [CONTAINERS.pgdata, CONTAINERS.sockets]
    written[OBJECTS] += [CONTAINERS.objects + "/npmdask"]
    written[CRUNCHER] += [CONTAINERS.scratch, "/srv/npmdask/runs"]
    written[WORKER] += ["/srv/npmdask/runs"]
    written[KEEPER] += [CONTAINERS.alive]
    for name in (SERVER, KEEPER, WORKER):
        written[name] += [CONTAINERS.home]
    for name, paths in written.items():
        assert COMPOSE[name]["read_only"] is True
        volumes = [one.split(":") for one in COMPOSE[name].get("volumes", [])]
        mounts = [one[1] if len(one) > 1 else one[0] for one in volumes if one[-1] != "ro"]
        mounts += [one.partition(":")[0] for one in COMPOSE[name]["tmpfs"]]
        in_pod = [one["mountPath"] for one in container(name)["volumeMounts"] if not one.get("readOnly")]
        for path in paths:
            for places in (mounts, in_pod):
                assert any(path == place or path.startswith(place + "/") for place in places), (name, path)


def test_a_tmpfs_belongs_to_the_user_of_the_container() -> None:
    """Docker makes it root's, with the mode of the folder in the image: /tmp and PostgreSQL's are open to all."""
    for name in ORDER:
        for one in COMPOSE[name]["tmpfs"]:
            path, _, options = one.partition(":")
            assert path in ("/tmp", CONTAINERS.sockets) or "uid=10001,gid=10001" in options, (name, one)
