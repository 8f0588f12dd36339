"""A store that another person made: what it asks for is not done, and what lies in it is not followed.

Stores of every kind are those of the goldens (tests/goldens), which no user of this machine began, as if they had been
sent. Each attack has a twin: the same store as it was is read, and goes on.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.checkpoint.rights import notes_file
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.storage.source import register_source
from npmdask.errors import BadInputError
from tests.core.storage.test_registered_sources import Toy
from tests.goldens.kinds import KINDS, SOURCES
from tests.goldens.worlds import renamed, unpacked, unpacked_sources

FIXTURES = Path(__file__).parents[1] / "goldens" / "fixtures"
OF_EACH_KIND = ("samples", "stream-oja", "topics", "ica", "private-gaussian", "k-dp-pca", "share-searching", "perturb")
SHOWS = ("inspect", "status", "report", "export")
PATIENCE = 120  # seconds: a command that waits for what never comes does not end by itself

pytestmark = pytest.mark.slow


class Listener:
    """A port of this machine where nothing should ever connect; it answers nothing."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port, self.taken = self.socket.getsockname()[1], 0
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):  # the test has ended
            while True:
                self.socket.accept()[0].close()
                self.taken += 1


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.socket.close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of all goldens."""
    return unpacked_sources(FIXTURES, tmp_path_factory.mktemp("sources"))


@pytest.fixture
def sent(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that unpacks a golden, makes its folder the working one, and returns its store."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def made(name: str, state: str = "interrupted", at: str = "") -> Path:
        folder = tmp_path / f"{name}-{state}{at}"
        unpacked((FIXTURES / f"{name}.{state}.tar.gz").read_bytes(), folder)
        (folder / SOURCES).symlink_to(sources)
        monkeypatch.chdir(folder)
        return folder / KINDS[name].store

    return made


def changed(store: Path, **tables: Any) -> None:
    """Write other values into run.json; of a table only the keys that are given."""
    spec = json.loads((store / "run.json").read_text())
    for name, value in tables.items():
        spec[name] = {**spec.get(name, {}), **value} if isinstance(value, dict) else value
    (store / "run.json").write_text(json.dumps(spec))


def command(*arguments: object) -> tuple[int, str]:
    """Exit code of a command in this process, and all that it printed; TimeoutError where it hangs."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{arguments} does not end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            return main([str(argument) for argument in arguments]), out.getvalue()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def all_commands(store: Path) -> Iterator[tuple[str, int, str]]:
    for name in (*SHOWS, "resume"):
        more = ("out.npz",) if name == "export" else ()
        yield name, *command(name, store, *more)


# ------------------------------------------------------------------------------------------------------------- rights


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_store_brings_no_cluster(name: str, sent: Any, listener: Listener) -> None:
    """Of a scheduler that answers, Dask would unpickle the answer. The run ends on this machine, and says so."""
    store = sent(name)
    if not (store / "run.json").exists():
        pytest.skip("perturb keeps its parameters beside the copy, and resumes by the same command only")
    changed(store, resources={"cluster": f"tcp://127.0.0.1:{listener.port}", "certificates": "/etc", "device": "cuda"})
    said = {command: (code, text) for command, code, text in all_commands(store)}
    assert listener.taken == 0
    code, text = said["resume"]
    assert code in (0, 4), text  # 4: it did not converge, as the golden says
    assert f"asks for cluster = 'tcp://127.0.0.1:{listener.port}'" in text and "--cluster tcp://" in text
    kept = json.loads((store / "run.json").read_text())["resources"]
    assert kept["cluster"] is None and kept.get("device", "cpu") == "cpu", "nor does the next one find it there"
    assert command("resume", store)[1].count("asks for") == 0


def test_who_resumes_may_name_the_cluster(sent: Any, listener: Listener) -> None:
    """The twin: an address that a person gives is used."""
    store = sent("samples")
    code, text = command("resume", store, "--cluster", f"tcp://127.0.0.1:{listener.port}")
    assert listener.taken and code not in (0, 4), text


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_store_brings_no_url(name: str, sent: Any, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """As source, ledger, or what components are aligned to: nothing is connected to, by any command."""
    for state in ("interrupted", "finished"):
        store = sent(name, state)
        if not (store / "run.json").exists():
            continue
        changed(store, source=f"https://127.0.0.1:{listener.port}/x.zarr")
        if (spec := RunStore(store).read_spec()) and "privacy" in spec:
            changed(store, privacy={"ledger": f"postgresql://you@127.0.0.1:{listener.port}/ledger"})
        if spec and "stream" in spec:
            changed(store, stream={"held_out": f"https://127.0.0.1:{listener.port}/held.zarr"})
        said = [*all_commands(store)]
        if name == "samples":  # of the run that its components are aligned to
            keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "c", "AWS_ALLOW_HTTP": "true"}
            for key, value in (keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.port}"}).items():
                monkeypatch.setenv(key, value)
            changed(store, source=str(store.parent / "sources/samples.zarr"), report={"align_to": "s3://bucket/run"})
            said += all_commands(store)
        for command_name, code, text in said:
            assert "Traceback" not in text and code in (0, 2, 3, 4), (command_name, code, text)
        assert listener.taken == 0, state


@pytest.mark.parametrize("name", ["samples", "stream-oja", "private-gaussian"])
def test_a_store_chooses_no_file_of_this_machine(name: str, sent: Any, tmp_path: Path) -> None:
    """What lies elsewhere is not waited for, nor analysed in the place of the data that the run began with."""
    os.mkfifo(tmp_path / "fifo")
    np.save(tmp_path / "others.npy", np.random.default_rng(0).standard_normal((144, 30)))
    for source in (tmp_path / "fifo", "/dev/zero", "/", tmp_path / "others.npy"):
        store = sent(name, at=f"-{Path(source).name}")
        changed(store, source=str(source))
        code, text = command("resume", store)
        assert code in (2, 3) and "Traceback" not in text, text
    assert "these differ" in text


def test_a_url_is_opened_once_its_user_allows_it(sent: Any, listener: Listener) -> None:
    store = sent("samples")
    url = f"https://127.0.0.1:{listener.port}/x.zarr"
    changed(store, source=url)
    code, text = command("resume", store)
    assert code == 2 and f"--allow {url}" in text and listener.taken == 0
    code, text = command("resume", store, "--allow", "https://127.0.0.1:1/x.zarr")
    assert code == 2 and "does not name the URL" in text and url in text and listener.taken == 0
    command("resume", store, "--allow", url)
    assert listener.taken


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows at strangers://rows, and a user without notes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("npmdask.core.storage.source._OPENERS", {})
    register_source("strangers", lambda url: Toy(np.random.default_rng(0).standard_normal((130, 40))))


def test_a_run_that_began_here_has_what_it_was_given(tmp_path: Path, strangers: None) -> None:
    """A source by URL is noted for this user and this place; moved away, or in another's hands, it is withheld."""
    asked: Any = {"kind": "samples", "tol": 1e-9, "algorithm": "power", "iteration_rank": 3}
    whole = npmdask.top_k("strangers://rows", 2, store=tmp_path / "whole", **asked)
    npmdask.top_k("strangers://rows", 2, store=tmp_path / "run", max_steps=2, **asked)
    assert notes_file().stat().st_mode & 0o777 == 0o600

    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(BadInputError, match="--allow strangers://rows"):
        npmdask.resume(tmp_path / "moved", max_steps=200)
    (tmp_path / "moved").rename(tmp_path / "run")
    assert npmdask.resume(tmp_path / "run", max_steps=200).basis.tobytes() == whole.basis.tobytes()

    changed(tmp_path / "run", algorithm={"iteration_rank": 4})  # another run in its place
    with pytest.raises(BadInputError, match="--allow"):
        npmdask.resume(tmp_path / "run", tol=1e-10)


def test_a_note_that_others_may_write_is_not_believed(tmp_path: Path, strangers: None) -> None:
    npmdask.top_k("strangers://rows", 2, store=tmp_path / "run", max_steps=1, tol=1e-9, iteration_rank=3)
    assert npmdask.resume(tmp_path / "run", max_steps=2).steps == 2
    notes_file().chmod(0o666)
    with pytest.raises(BadInputError, match="--allow"):
        npmdask.resume(tmp_path / "run", max_steps=3)


def test_a_folder_that_says_it_is_the_copy_of_a_url_is_none(sent: Any, listener: Listener) -> None:
    """Only what lies in the cache of this user is the copy of a run in a bucket."""
    store = sent("samples")
    note = {"url": f"s3://bucket/{store.name}", "commit": None, "token": "", "files": {}}
    (store.parent / "copy.json").write_text(json.dumps(note))
    assert RunStore(store).place == str(store)
    assert command("resume", store)[0] == 0


# -------------------------------------------------------------------------------------------------------------- files

FILES = (
    "run.json",
    "result/manifest.json",
    "result/basis.npy",
    "steps/[0-9]*/manifest.json",
    "telemetry.jsonl",
    "starts.json",
    "epoch",
)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("state", ["interrupted", "finished"])
def test_no_command_waits_for_a_fifo_or_reads_a_huge_file(state: str, file: str, sent: Any) -> None:
    for attack in ("fifo", "huge", "link"):
        store = sent("samples", state, attack)
        path = next((path for path in sorted(store.glob(file)) if path.is_file()), None)
        if path is None:  # nothing of that name in this state
            continue
        whole = path.read_bytes()
        path.unlink()
        if attack == "fifo":
            os.mkfifo(path)
        elif attack == "huge":
            path.touch()
            os.truncate(path, 2**42)  # of holes
        else:
            (store.parent / "secret").write_text("SECRET LINE\n")
            path.symlink_to(store.parent / "secret")
        for name, code, text in all_commands(store):
            assert "Traceback" not in text and "SECRET" not in text, (attack, name, text)
            assert code in (0, 2, 3, 4), (attack, name, code, text)
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(whole)
        code, text = command("resume", store)
        assert code in (0, 4), text  # as it was, it goes on


@pytest.mark.parametrize("text", ["[" * 10**6, '{"data": ' * 10**5, "1" * 10**6, "", "null", "\ufeff{}", "\x00" * 9])
def test_what_is_no_table_is_a_sentence(text: str, sent: Any) -> None:
    store = sent("samples", "finished")
    (store / "run.json").write_text(text)
    for name, code, said in all_commands(store):
        assert (code == 2 or name == "status") and "damaged" in said and "Traceback" not in said, (name, code, said)


def test_text_of_a_store_does_not_reach_the_terminal_as_it_is(sent: Any) -> None:
    """Titles of windows and cursors obey what a terminal is sent; tables and sentences show it as it is written."""
    store, evil = sent("samples", "finished"), "\x1b]0;owned\x07\x9b2J"
    renamed(store, {b'"converged after': json.dumps(f"{evil} after").encode()[:-7]})
    changed(store, source=f"/nowhere/{evil}", resources={"cluster": f"tcp://{evil}"})
    shown = "".join(text for _, _, text in all_commands(store))
    assert "\\x1b]0;owned\\x07\\x9b2J" in shown and "\x1b" not in shown and "\x9b" not in shown and "\x07" not in shown
    assert "\x1b" not in (store / "report.html").read_text()
