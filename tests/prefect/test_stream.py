"""A model that follows a stream: once, by a schedule, with rows that cannot be used, killed, stopped."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.cli.main import main as npmdask
from npmdask.config import RunConfig, load_config
from npmdask.core.checkpoint.store import RunStore
from npmdask.errors import BadInputError
from tests.conftest import same_bytes, write_zarr
from tests.prefect.conftest import Shop

D, BLOCK = 6, 10
STORED = '[source]\npath = "a.zarr"\n[algorithm]\nname = "spm"\ntarget_rank = 5\n'
# p = d and nothing forgotten: the model is the exact sum of z z^T, in which a row that is lost or taken twice shows.
FILES = f"""
[source]
path = "days"
[algorithm]
name = "spm"
target_rank = 2
iteration_rank = {D}
options = {{ block_rows = {BLOCK}, memory = 1.0 }}
[stream]
columns = {D}
batch_rows = 50
[run]
commit_seconds = 0.0
"""


class Days:
    """A folder into which files come."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, np.zeros((0, D))
        (folder / "days").mkdir()
        (folder / "days.toml").write_text(FILES)

    def put(self, name: str, n: int, bad: int | None = None) -> None:
        """A file of n rows, written under a hidden name; ``bad``: one that is not finite."""
        rows = np.random.default_rng(list(name.encode())).standard_normal((n, D))
        shown = rows.copy()
        if bad is None:
            self.rows = np.concatenate([self.rows, rows])
        else:
            shown[bad] = np.nan
        hidden = self.folder / "days" / f".{name}"
        np.save(hidden.with_suffix(".npy"), shown)
        os.replace(hidden.with_suffix(".npy"), self.folder / "days" / f"{name}.npy")

    def require_every_row_once(self, store: Path) -> None:
        last = RunStore(store).last_step()
        assert last is not None
        arrays, meta = last
        assert meta["state"]["rows"] == len(self.rows) and len(self.rows) % BLOCK == 0
        sums = arrays["inner_basis"] @ arrays["inner_core"] @ arrays["inner_basis"].T
        np.testing.assert_allclose(sums, self.rows.T @ self.rows, rtol=0, atol=1e-11 * len(self.rows))


@pytest.fixture
def handlers() -> Iterator[None]:
    """The signal handlers as they were: a door sets its own."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.filterwarnings("default")  # of Prefect's own
def test_every_door_refuses_what_is_another_s(tmp_path: Path, handlers: None, capsys: Any) -> None:
    """Fails when a configuration is only refused inside a run, or with a sentence that names no door."""
    from npmdask.prefect import cli, parameters, power_method, streaming_update

    write_zarr(tmp_path / "a.zarr", np.ones((20, 10)))
    files = {
        "stream": STORED,
        "stored": STORED.replace("spm", "auto"),
        "pipe": STORED.replace("a.zarr", "-") + '[stream]\ncolumns = 10\nformat = "csv"\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def refused(door: Any, name: str) -> str:
        assert door([str(tmp_path / name)]) == 2
        said: str = capsys.readouterr().err
        assert said.count("\n") == 1, "one sentence, before a server is started"
        return said

    stream = partial(cli.main, streaming_update.streaming_update, check=streaming_update.open_problem)
    plain = partial(cli.main, power_method.npm, check=parameters.check_plain)
    assert "`python -m flows.streaming_update`" in refused(plain, "stream")
    assert "`python -m flows.npm`" in refused(stream, "stored")
    with pytest.raises(BadInputError, match="a schedule cannot read standard input"):
        streaming_update.for_ticks(load_config(tmp_path / "pipe"))


@pytest.mark.filterwarnings("default")  # of Prefect's own
def test_a_schedule_needs_no_file_to_know_the_width(tmp_path: Path) -> None:
    """Fails when a tick is red because every file was taken away after it had been used."""
    from npmdask.prefect.streaming_update import for_ticks, open_problem

    (tmp_path / "days").mkdir()
    np.save(tmp_path / "days" / "a.npy", np.ones((20, 6)))
    (tmp_path / "c.toml").write_text(STORED.replace("a.zarr", "days").replace("= 5", "= 2"))
    config = load_config(tmp_path / "c.toml")
    served = for_ticks(config)
    (tmp_path / "days" / "a.npy").unlink()
    problem = open_problem(RunConfig.model_validate(served.model_dump(mode="json")))
    assert problem.model.d == 6
    with pytest.raises(BadInputError, match="columns="):
        open_problem(config)


@pytest.mark.slow
def test_once_leaves_the_bytes_of_the_command_line(client: Shop) -> None:
    """Fails when the flow makes another model, shows nothing of it, or takes rows again."""
    config = client.folder / "once.toml"
    config.write_text(STORED)
    assert client.run("-m", "flows.streaming_update", config, "--json") == 0, client.err
    facts = json.loads(client.out.splitlines()[-1])
    assert (facts["rows"], facts["new_rows"]) == (4000, 4000)
    assert npmdask(["run", str(config), "--store", str(client.folder / "by-cli"), "--quiet"]) == 0
    same_bytes(client.folder / "runs" / "once", client.folder / "by-cli")

    assert client.run("-m", "flows.streaming_update", config, "--json") == 0, client.err
    again = json.loads(client.out.splitlines()[-1])
    assert (again["rows"], again["new_rows"], again["values"]) == (4000, 0, facts["values"])
    artifacts = client.ask("select key, length(data) from artifact where {since}")
    assert Counter(key for key, _ in artifacts) == {"once": 2}, "one artifact of each flow run"
    assert max(length for _, length in artifacts) < 120_000
    assert (client.folder / "runs" / "once" / "report.html").exists()


@pytest.mark.slow
def test_ticks_take_every_row_once(client: Shop) -> None:
    """Fails when a tick is red for nothing or green for bad rows, or when a row is lost or taken twice: by a bad row
    behind a commit, by a file that comes late, or by ticks that have nothing to do. Killed ticks: infra/soak.py."""
    days = Days(client.folder)
    tick = ("-m", "flows.streaming_update", "days.toml")
    assert client.run(*tick) == 4 and "holds no rows yet" in client.out
    for name in "abcd":
        days.put(name, 2_500)
    assert client.run(*tick) == 0 and "10000 rows were taken" in client.out, client.err
    assert client.run(*tick) == 0 and "10000 rows were taken, 0 of them now" in client.out, client.err
    days.put("f", 160, bad=157)
    assert client.run(*tick) == 2 and "row 157 of" in client.err
    days.put("e", 70)  # comes before f, which is begun
    days.put("f", 160)
    assert client.run(*tick) == 0 and "10230 rows were taken, 80 of them now" in client.out, client.err
    assert not client.tracebacks, client.err
    assert client.states() == {"COMPLETED": 4, "FAILED": 1}
    days.require_every_row_once(client.folder / "runs" / "days")
