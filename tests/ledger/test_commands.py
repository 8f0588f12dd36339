"""``npmdask ledger grant | show | export``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.accounting import Charge
from npmdask.cli.main import _parser, main
from npmdask.core.storage.source import open_source
from npmdask.errors import LostError
from npmdask.formats.ingest import ingest
from npmdask.ledger import open_ledger
from npmdask.ledger.format import require_whole_export
from tests.conftest import write_zarr

GRANT = ["grant", "visits", "x.zarr", "--relation", "record_replace", "--clip-norm", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPMDASK_LEDGER", str(tmp_path / "kept" / "ledger.sqlite"))
    np.save("x.npy", np.random.default_rng(0).standard_normal((200, 8)))
    ingest("x.npy", "x.zarr", kind="samples")
    return tmp_path


@pytest.fixture
def ledger(folder: Path, capsys: Any) -> Any:
    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(["ledger", *arguments])
        return (code, *capsys.readouterr())

    return command


@pytest.mark.slow
def test_grant_show_export(ledger: Any, folder: Path) -> None:
    code, out, err = ledger(*GRANT, "--epsilon", "3", "--delta", "1e-8")
    assert (code, err) == (0, "")
    assert "granted  epsilon = 3 at delta = 1e-08" in out
    assert "spent    nothing, by 0 runs" in out
    source = open_source("x.zarr", exact=False)
    open_ledger(folder / "kept" / "ledger.sqlite").reserve(
        "visits",
        run_id="monday",
        fingerprint=source.fingerprint,
        relation={"name": "record_replace", "clip_norm": 0.5},
        charge=Charge(mu_squared=0.01),
        releases=5,
        event={},
    )
    code, out, _ = ledger("show")
    assert code == 0
    assert re.search(r"run monday: epsilon = 0\.4\d+, 0 of 5 releases committed", out)
    code, out, _ = ledger("show", "visits", "--json")
    assert json.loads(out)["datasets"][0]["runs"][0]["run_id"] == "monday"
    code, out, _ = ledger("export")
    assert require_whole_export(out.splitlines()) == 2
    assert source.fingerprint not in out


@pytest.mark.slow
def test_the_default_ledger_or_another(ledger: Any, folder: Path) -> None:
    ledger(*GRANT, "--epsilon", "3", "--delta", "1e-8", "--ledger", "other.sqlite")
    assert not (folder / "kept").exists()
    code, _, err = ledger("show")
    assert (code, "there is no ledger" in err) == (3, True)
    assert ledger("show", "--ledger", "other.sqlite")[0] == 0


@pytest.mark.slow
def test_more_of_it_and_other_data_are_meant(ledger: Any) -> None:
    ledger(*GRANT, "--epsilon", "3", "--delta", "1e-8")
    more = [*GRANT, "--epsilon", "4", "--delta", "1e-8"]
    code, _, err = ledger(*more)
    assert (code, "say so with --raise" in err) == (3, True)
    assert ledger(*more, "--raise")[0] == 0
    np.save("x.npy", np.random.default_rng(1).standard_normal((200, 8)))
    ingest("x.npy", "x.zarr", kind="samples", overwrite=True)
    code, _, err = ledger(*more)
    assert (code, "--data-changed" in err) == (3, True)
    assert ledger(*more, "--data-changed")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("delta", "warned"), [("0.005", True), ("0.0049", False), ("0", False)])
def test_a_delta_that_permits_to_publish_a_record(ledger: Any, delta: str, warned: bool) -> None:
    """n = 200 is said to whoever grants, and nowhere else."""
    code, out, err = ledger(*GRANT, "--epsilon", "3", "--delta", delta)
    assert code == 0
    assert ("publishing one record" in err) == warned
    assert "publishing" not in out + ledger("show")[1] + ledger("export")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--epsilon", "0", "--delta", "1e-8"], "epsilon = 0.0 must be a positive number"),
        (["--epsilon", "-1", "--delta", "1e-8"], "must be a positive number"),
        (["--epsilon", "1", "--delta", "1"], "delta = 1.0"),
        (["--epsilon", "1", "--delta", "1e-8", "--relation", "record_replaced"], "did you mean 'record_replace'"),
        (["--epsilon", "1", "--delta", "1e-8", "--relation", "entry"], "entry does not fit"),
        (["--epsilon", "1", "--delta", "1e-8", "--clip-norm", "0"], "clip_norm"),
    ],
)
def test_bad_grants(ledger: Any, folder: Path, arguments: list[str], sentence: str) -> None:
    code, _, err = ledger(*GRANT, *arguments)
    assert (code, sentence in err) == (2, True), err
    assert not (folder / "kept").exists(), "nothing was made"


def test_data_without_checksums_get_no_budget(ledger: Any, folder: Path) -> None:
    write_zarr(folder / "plain.zarr", np.ones((20, 3)))
    code, _, err = ledger(*[word.replace("x.zarr", "plain.zarr") for word in GRANT], "--epsilon", "1", "--delta", "0")
    assert (code, "was never ingested" in err) == (2, True)


# The rest of each command that takes --ledger
COMMANDS = {
    "ledger show": [],
    "ledger export": [],
    "ledger grant": [*GRANT[1:], "--epsilon", "3", "--delta", "1e-8"],
    "perturb": ["x.zarr", "y.zarr", "--relation", "tensor_entry", *GRANT[5:], "--epsilon", "3", "--delta", "1e-8"],
    "metrics": ["--textfile", "m.prom"],
}
SECRETS = [
    "postgresql://me:hidden@127.0.0.1:1/d", "postgresql+psycopg://:hid/den@127.0.0.1:1", "postgresql://me@h/d?a=b&password=hidden",
    "postgresql://h/d?sslpassword=hidden",
]  # fmt: skip
OPEN = ["postgresql://127.0.0.1:1/d", "postgresql://me@127.0.0.1:1/d?application_name=x"]


def test_every_command_that_takes_a_ledger_is_known() -> None:
    def taking(parser: Any) -> Iterator[str]:
        for action in parser._actions:
            if "--ledger" in action.option_strings:
                yield parser.prog.removeprefix("npmdask ")
            for one in (action.choices or {}).values() if isinstance(action.choices, dict) else ():
                yield from taking(one)

    assert sorted(taking(_parser())) == sorted(COMMANDS)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_password_has_no_place_on_a_command_line(folder: Path, capsys: Any, command: str, secret: str) -> None:
    assert main([*command.split(), *COMMANDS[command], "--ledger", secret]) == 2
    out, err = capsys.readouterr()
    assert re.fullmatch("npmdask: the URL of the ledger contains a password, .* NPMDASK_LEDGER, or .*pgpass\n", err)
    assert not out and "hid" not in err and sorted(path.name for path in folder.iterdir()) == ["x.npy", "x.zarr"]


@pytest.mark.slow
@pytest.mark.parametrize("url", OPEN)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_address_without_a_password_is_taken(folder: Path, capsys: Any, command: str, url: str) -> None:
    """As far as a server that is not there."""
    code = main([*command.split(), *COMMANDS[command], "--ledger", url])
    if command == "metrics":
        assert code == 0 and "npmdask_ledger_up 0" in (folder / "m.prom").read_text()
    elif command == "perturb":  # of a tensor only
        assert code == 2 and "password" not in capsys.readouterr().err
    else:
        assert (code, "Connection refused" in capsys.readouterr().err) == (LostError.exit_code, True)


def test_an_action_that_is_none_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["ledger", "shwo"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("npmdask: ledger: ACTION shwo: did you mean 'show'?")
