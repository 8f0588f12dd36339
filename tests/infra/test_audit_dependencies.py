"""What is installed is what the lock says; and a lock that says too little is found out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from infra.audit_dependencies import LOCK, LOCKS, audit, differences, installed, known_to_be_bad, main, pinned

HASH = "--hash=sha256:" + "0" * 64
GOOD = f"# made\nFirst.Package==1.0 \\\n    {HASH} \\\n    {HASH}\nsecond[extra]==2.1.post1 {HASH}\n"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_line_of_every_lock_has_a_version_and_hashes(lock: Path) -> None:
    versions, wrong = pinned(lock.read_text(), lock.name)
    assert len(versions) > 1 or lock.name == "object-store.lock"
    assert not wrong


@pytest.mark.slow
def test_what_is_installed_is_exactly_the_lock() -> None:
    """In the environment that `make env` makes, which this is to run in."""
    wanted, _ = pinned(LOCK.read_text(), LOCK.name)
    assert not differences(wanted, installed())


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("third==1.0", "third has no hashes"),
        ("third==1.0 --hash=sha256:12", "third has no hashes"),
        ("third==1.0 --hash=md5:" + "0" * 32, "third has no hashes"),
        (f"third>=1.0 {HASH}", "third has no exact version"),
        (f"third==1.* {HASH}", "third has no exact version"),
        (f"third {HASH}", "third has no exact version"),
        (f"third @ https://example.org/third.whl {HASH}", "third has no exact version"),
        ("--index-url elsewhere", "'--index-url' is no package"),
        ("--extra-index-url=https://example.org", "is no package with a version"),
        ("-e ./third", "'-e' is no package"),
        ("./third.whl", "is no package"),
        ("git+https://example.org/third", "is no package"),
    ],
)
def test_a_lock_that_lets_something_else_in(line: str, sentence: str) -> None:
    assert pinned(GOOD, "a.lock") == ({"first-package": "1.0", "second": "2.1.post1"}, [])
    for text in (GOOD + line + "\n", line + "\n" + GOOD):
        versions, wrong = pinned(text, "a.lock")
        assert len(wrong) == 1 and wrong[0].startswith("a.lock: ") and sentence in wrong[0]
        assert {"first-package", "second"} <= versions.keys()


def test_what_is_for_another_python_is_not_missed() -> None:
    text = GOOD + f'third==1.0 ; python_version < "3" {HASH}\nfourth==1.0 ; python_version > "3" {HASH}\n'
    assert pinned(text, "a.lock") == ({"first-package": "1.0", "second": "2.1.post1", "fourth": "1.0"}, [])


def test_what_differs_is_said() -> None:
    wanted, brought = (
        {"a-b": "1.0", "c": "2.0", "d": "3.0"},
        [("pip", "23"), ("setuptools", "65"), ("npmdask", "0.1.0")],
    )
    assert not differences(wanted, [("A_b", "1.0"), ("c", "2.0"), ("D", "3.0"), *brought])
    assert differences(wanted, [("A.B", "1.1"), ("c", "2.0"), ("c", "2.1"), ("evil", "0.1"), *brought]) == [
        "a-b is installed as 1.1, the lock says 1.0; `make env`",
        "c is installed as 2.0 and 2.1, the lock says 2.0; `make env`",
        "d 3.0 of the lock is not installed; `make env`",
        "evil 0.1 is installed and not in the lock; `make env`",
    ]


def program(folder: Path, out: str, err: str = "", code: int = 0) -> str:
    """Something in the place of pip-audit, which talks to a service outside."""
    file = folder / "pip-audit"
    file.write_text(
        f"#!{sys.executable}\nimport sys\nprint({out!r}); print({err!r}, file=sys.stderr); sys.exit({code})\n"
    )
    file.chmod(0o755)
    return str(file)


def test_what_pip_audit_says_is_said_and_that_it_says_nothing_is_no_failure(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text(GOOD)
    found = [("first-package", "1.0"), ("second", "2.1.post1")]
    told = [{"name": name, "version": version, "vulns": []} for name, version in found]
    told[0]["vulns"] = [{"id": "PYSEC-1", "fix_versions": ["1.1"]}, {"id": "PYSEC-2", "fix_versions": []}]  # type: ignore[assignment]
    knows = program(tmp_path, json.dumps({"dependencies": told, "fixes": []}), code=1)
    assert audit([lock], found, knows, offline=False) == [
        "first-package 1.0 is vulnerable (PYSEC-1), mended in 1.1; `make lock`",
        "first-package 1.0 is vulnerable (PYSEC-2), mended in no version yet; `make lock`",
    ]
    assert audit([lock], found, knows, offline=True) == []
    assert known_to_be_bad(lock, knows)[1] == "pip-audit knows of 2 vulnerabilities in the 2 packages of a.lock"
    told[1] = {"name": "second", "skip_reason": "not found"}
    partly = program(tmp_path, json.dumps({"dependencies": told}), code=1)
    assert known_to_be_bad(lock, partly)[1].endswith("of a.lock; of 1 it knows nothing (not found, ...)")
    unreached = program(tmp_path, json.dumps({"dependencies": [told[1]] * 2}))  # seen without a service
    assert known_to_be_bad(lock, unreached)[1].startswith("pip-audit gave no answer (not found)")
    silent = program(tmp_path, "", "ConnectionError: no route", code=1)
    assert known_to_be_bad(lock, silent) == (
        [],
        "pip-audit gave no answer (ConnectionError: no route): nothing is known of vulnerabilities",
    )
    assert "is not installed" in known_to_be_bad(lock, None)[1]
    assert "gave no answer" in known_to_be_bad(lock, str(tmp_path / "gone"))[1]


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text("".join(f"{name}=={version} {HASH}\n" for name, version in installed() if name != "numpy"))
    assert main(["--offline", str(lock)]) == 1
    said = capsys.readouterr()
    assert "numpy" in said.err and "is installed and not in the lock" in said.err and len(said.err.splitlines()) == 1
    numpy = next(version for name, version in installed() if name == "numpy")
    lock.write_text(lock.read_text() + f"numpy=={numpy} {HASH}\n")
    assert main(["--offline", str(lock)]) == 0 and not capsys.readouterr().err
