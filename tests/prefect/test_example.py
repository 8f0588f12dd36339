"""`npmdask serve --example`: a newcomer sees a run in a minute; everything is in one folder."""

import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from npmdask.prefect.programs import AUTH, read_auth_string
from npmdask.prefect.server import ask, free_port
from tests.prefect.conftest import Shop, alive, wait_until

pytestmark = pytest.mark.slow


def test_it_runs_and_everything_is_in_its_folder(shop: Shop) -> None:
    """Fails where nothing runs by itself, or the server of the example is that of other schedules."""
    folder, port = shop.folder / "example", free_port()
    shutil.copytree(shop.home, folder / "runs" / ".prefect")  # made already: that takes seconds
    before = {path.name: path.stat().st_mtime_ns for path in shop.home.iterdir()}
    process = shop.start("-m", "npmdask.cli.main", "serve", "--example", folder, "--port", str(port))
    wait_until(lambda: "Ctrl-C stops all" in shop.err or process.poll() is not None, 240, "ready", lambda: shop.err)
    assert f"the example is in {folder}: schedules.toml says what runs" in shop.err

    def completed() -> list[str]:
        found = ask(
            f"http://127.0.0.1:{port}/api",
            "/flow_runs/filter",
            {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}},
            auth=read_auth_string(folder / "runs" / ".prefect" / AUTH),
        )
        return [run["name"] for run in found]

    def any_completed() -> bool:
        with suppress(TimeoutError):  # a server that starts on a busy machine may not answer for half a minute
            return bool(completed())
        return False

    wait_until(any_completed, 240, "a run", lambda: shop.err, pause=0.5)
    assert re.fullmatch(r"PCA of example\.zarr, k = 10, 20\d\d-\d\d-\d\d \d\d:\d\d", completed()[0])
    assert (folder / "runs" / "example" / "report.html").exists()
    children = shop.below(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 0, shop.err
    wait_until(lambda: not alive(children), 120, "no process left")
    assert before == {path.name: path.stat().st_mtime_ns for path in shop.home.iterdir()}, "the home of others"
    assert not (shop.folder / "runs").exists() and not shop.tracebacks


def test_a_temporary_one_goes_and_what_is_wrong_is_said(shop: Shop, tmp_path: Path) -> None:
    shop.environment["TMPDIR"] = str(tmp_path / "here")
    (tmp_path / "here").mkdir()
    serve = ("-m", "npmdask.prefect.serve")
    assert shop.start(*serve, "--example", "--check").wait(120) == 0, shop.err
    assert shop.out.startswith("example: npm on ") and "and is deleted at the end" in shop.err
    assert not list((tmp_path / "here").glob("npmdask-example-*"))
    assert shop.start(*serve, "mine.toml", "--example").wait(120) == 2
    assert "--example brings its own schedule: leave out either mine.toml or --example" in shop.err
    assert shop.start(*serve, "--example", "out/below", "--check").wait(120) == 2
    assert "name another folder, or none" in shop.err and not shop.tracebacks
    assert shop.start(*serve).wait(120) == 2
    assert "there is no schedules.toml in" in shop.err and "`npmdask serve --example FOLDER`" in shop.err
