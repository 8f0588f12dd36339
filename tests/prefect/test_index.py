"""The page of all runs and schedules: what it says, what it must not, and that it renews itself in a real browser."""

import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core.storage.bundle import read_bundle, write_bundle
from npmdask.manage.report import write_report
from npmdask.manage.status import RunStatus, status_below
from npmdask.prefect import reports
from npmdask.prefect.programs import AUTH as AUTH_FILE
from npmdask.prefect.programs import read_auth_string
from npmdask.prefect.server import ask
from npmdask.report import Report, Table, Text, as_markdown
from tests.prefect.browser import browser, missing
from tests.prefect.conftest import Running
from tests.prefect.test_reports import AUTH, asked

NIGHT = reports.ScheduledRun(due=datetime(2026, 11, 25, 1, tzinfo=UTC), state="Completed", kind="COMPLETED", address="")
SCHEDULE = reports.ScheduleStatus(
    name="nightly", flow="npm of a.npy", store=None, paused=False, due=datetime(2099, 11, 26, 1, tzinfo=UTC),
    nights=(NIGHT,), address="http://127.0.0.1:4200/deployments/deployment/x",
)  # fmt: skip
FAILED = replace(NIGHT, state="Failed", kind="FAILED", said="there is nothing at <b>gone.zarr")
PREFECT = "http://127.0.0.1:4200"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index").resolve()
    np.save(folder / "a.npy", np.random.default_rng(0).standard_normal((200, 8)))
    npmdask.top_k(folder / "a.npy", 2, center=True, store=folder / "runs" / "one & <two>")
    write_report(folder / "runs" / "one & <two>")
    return folder / "runs"


@pytest.fixture
def port(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with reports.server_of(root, 0, AUTH) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_the_page_links_the_report_of_a_run_which_is_served(root: Path, port: int) -> None:
    status, text, headers = asked(port, "/")
    assert status == 200
    assert "1 run, 0 running" in text and ">one &amp; &lt;two&gt;<" in text and "<two>" not in text
    assert "Explains" in text and "% of the variance." in text and "at most" in text, "answer, and its error"
    assert "Prefect does not answer" in text
    (link,) = re.findall(r'href="(/[^"]+report\.html)"', text)
    assert asked(port, link)[0] == 200
    assert asked(port, "/", auth=None)[0] == asked(port, "/", auth="npmdask:wrong")[0] == 401
    assert asked(port, "/", host="elsewhere:80")[0] == 403
    policy = headers["Content-Security-Policy"]
    assert reports.SCRIPT_DIGEST in policy and "unsafe-inline'; script" not in policy and "connect-src 'self'" in policy
    of_report = asked(port, link)[2]["Content-Security-Policy"]
    assert reports.SCRIPT_DIGEST not in of_report
    for form, one in (("self", policy), ("none", of_report)):  # a report may be of a store of other people
        assert f"form-action '{form}'" in one and one.count("form-action") == 1 and "base-uri 'none'" in one
    assert reports.SCRIPT in text and '<meta http-equiv="refresh"' in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "key", "value"),
    [("result", "explained_share", "<script>"), ("result", "assurance", [1]), ("steps/000001", "history", "<script>")],
)
def test_a_store_that_holds_anything_hides_no_other_run(root: Path, part: str, key: str, value: Any) -> None:
    """Its whole twin is shown beside it, with its answer."""
    shutil.copytree(root / "one & <two>", root / "odd")
    try:
        arrays, meta = read_bundle(root / "odd" / part)
        meta[key] = [step | {"worst_residual": value} for step in meta[key]] if key == "history" else value
        shutil.rmtree(root / "odd" / part)
        write_bundle(root / "odd" / part, arrays, meta)
        text = reports._index_page(root, AUTH).decode()
    finally:
        shutil.rmtree(root / "odd")
    assert ">odd<" in text and "damaged" in text and ">one &amp; &lt;two&gt;<" in text and "Explains" in text
    assert "<script>" not in text.replace(reports.SCRIPT, "").partition("<main")[2].partition("</main>")[0]


def shown(root: Path, runs: list[RunStatus], schedules: list[reports.ScheduleStatus]) -> str:
    return as_markdown(reports.runs_report(root, runs, schedules, PREFECT))


@pytest.mark.slow
def test_schedules_name_their_next_tick_and_their_last_answer(root: Path) -> None:
    (run,) = status_below(root)
    text = shown(root, [run], [replace(SCHEDULE, store=root)])
    assert "[nightly](</?schedule=nightly>) | ✓ | completed | 2026-11-2" in text and " | 2099-11-2" in text
    assert text.count("Explains") == 2, "of the run, and of its schedule"
    assert "finished, not converged" in shown(root, [replace(run, converged=False)], []) and "not converged" not in text
    paused = shown(root, [run], [replace(SCHEDULE, paused=True, store=root / "elsewhere")])
    assert "paused" in paused and "2099" not in paused and paused.count("Explains") == 1
    failed = reports.runs_report(root, [run], [replace(SCHEDULE, store=root, nights=(FAILED, NIGHT))], "x")
    assert not failed.good and "the last run failed of: nightly" in failed.outcome
    text = as_markdown(failed)
    assert "✓✗" in text and "there is nothing at &lt;b>gone.zarr" in text and text.count("Explains") == 1
    late = replace(SCHEDULE, due=datetime(2026, 11, 26, 1, tzinfo=UTC))
    assert "late: no worker took it" in shown(root, [], [late])


@pytest.mark.slow
def test_a_night_names_the_run_that_was_committed_in_its_time(root: Path) -> None:
    """Mutants: the night before has the run; a failed night has its answer; ``latest`` of a folder elsewhere."""
    (run,) = status_below(root)
    begun = datetime.fromtimestamp(run.last_commit or 0.0, UTC) - timedelta(seconds=1)
    good = replace(NIGHT, began=begun, ended=begun + timedelta(seconds=2), seconds=61.0, said="converged")
    before = replace(NIGHT, began=begun - timedelta(1), ended=begun, said="the data have not changed", state="Skipped")
    (root / "latest").symlink_to("one & <two>")
    try:
        one = replace(SCHEDULE, store=root, nights=(replace(good, kind="FAILED", said="no memory"), good, before))
        first, second, third = as_markdown(reports.schedule_report(root, one)).splitlines()[-3:]
        assert "no memory" in first and "Explains" not in first
        assert (
            "61 s | Explains" in second
            and "[one &amp; &lt;two> (latest)](</one%20%26%20%3Ctwo%3E/report.html>)" in second
        )
        assert third.endswith("| skipped |  | the data have not changed |  |")
        assert "–✓✗" in as_markdown(reports.schedule_report(root, one))
        text = as_markdown(reports.schedule_report(root / "one & <two>", one))
        assert "latest" not in text and "Explains" not in text
    finally:
        (root / "latest").unlink()


@pytest.mark.slow
def test_latest_of_days_is_the_run_of_one_day(root: Path) -> None:
    """Fails where every day's first run is taken for the latest."""
    home, nights = root / "days", []
    try:
        for day in ("2026-11-26", "2026-11-27"):
            shutil.copytree(root / "one & <two>", home / day / "000001")
            (run,) = status_below(home / day)
            begun = datetime.fromtimestamp(run.last_commit or 0.0, UTC) - timedelta(seconds=1)
            nights.append(replace(NIGHT, began=begun, ended=begun + timedelta(seconds=2)))
        (home / "latest").symlink_to("2026-11-26/000001")
        text = as_markdown(reports.schedule_report(root, replace(SCHEDULE, store=home, nights=tuple(nights))))
        assert "is run 2026-11-26/000001" in text and "2026-11-26/000001 (latest)" not in text
        assert text.count("[2026-11-27/000001](") == len(nights), "the last one of that time"
    finally:
        shutil.rmtree(home)


@pytest.mark.slow
def test_a_run_that_is_private_or_unknown_shows_no_time_and_no_error(root: Path) -> None:
    (run,) = status_below(root)
    told = "chunk 3 of 7 rows"
    private = replace(
        run, state="crashed", what="power", error=told, last_commit=None, seconds_since_commit=None, residual=None
    )
    unknown = replace(run, state="unfinished", what="?", error=told, seconds_since_commit=77.0)
    for one in (private, unknown, replace(private, state="finished", outcome=told)):
        text = shown(root, [one], [])
        assert told not in text and not re.search(r"\d-\d\d", text) and "Explains" not in text
    killed = shown(root, [replace(run, state="unfinished", killed=True)], [])
    assert "its process ended without saying so" in killed
    assert told in shown(root, [replace(run, state="crashed", error=told)], []), "of others it is said"


def test_what_prefect_keeps_of_a_schedule_says_where_its_runs_are() -> None:
    config: dict[str, Any] = {"source": {"path": "s3://k:hidden@b/x.zarr?t=hidden"}, "run": {"store": "/runs/x"}}
    assert reports._store({"config": config}) == Path("/runs/x") and reports._data({"config": config}) == "x.zarr"
    topics = {"documents": "/d/docword.txt", "folder": "/runs", "run_id": "papers"}
    assert reports._store(topics) == Path("/runs/papers") and reports._data(topics) == "docword.txt"
    assert reports._store({}) is None and reports._data({}) == ""


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason="there is no chromium and chromium-driver here")
def test_an_open_page_renews_itself_and_the_reader_keeps_the_place(root: Path, port: int, tmp_path: Path) -> None:
    for number in range(8):  # higher than the window
        shutil.copytree(root / "one & <two>", root / f"more-{number}")
    try:
        with browser(tmp_path) as page:
            page.open(f"http://{AUTH}@127.0.0.1:{port}/")
            assert "9 runs" in page.text
            at = "[scrollY, document.activeElement.getAttribute('href'), window.mark || null]"
            begun = page.run(
                "window.mark = 7; const last = [...document.querySelectorAll('main a')].at(-1);"
                f"last.focus(); scrollTo(0, 400); return {at}"
            )
            assert begun[0] == 400 and begun[2] == 7
            shutil.copytree(root / "one & <two>", root / "a-new-one")
            deadline = time.monotonic() + 240
            while "10 runs" not in page.text:
                assert time.monotonic() < deadline, page.text
                time.sleep(0.5)
            assert page.run(f"return {at}") == begun, "the same document, place and focus"
            assert "a-new-one" in page.text
            assert page.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    finally:
        for path in (*root.glob("more-*"), root / "a-new-one"):
            shutil.rmtree(path, ignore_errors=True)


def test_many_runs_have_pages_and_are_found_by_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: a run on two pages or on none; links that lose the word; a lost run that only its page names."""
    (run,) = status_below(root)
    runs = [replace(run, name=f"Night-{i:03}", last_commit=float(i)) for i in range(25)]
    runs += [replace(run, name="day", last_commit=0.5, state="crashed", error="")]
    monkeypatch.setattr(reports, "ON_PAGE", 10)

    def page(**asked: Any) -> Report:
        return reports.runs_report(root, runs, [SCHEDULE], PREFECT, **asked)

    def names(report: Report) -> list[str]:
        listed = [b for b in report.sections[-1].blocks if isinstance(b, Table)]
        return [str(row[0]) for block in listed for row in block.rows]

    listed = [names(page(page=number)) for number in (1, 2, 3)]
    assert [*listed[0], *listed[1], *listed[2]] == [f"Night-{i:03}" for i in range(24, 0, -1)] + ["day", "Night-000"]
    assert names(page(page=99)) == listed[2] and names(page(page=-4)) == listed[0]
    links = [
        [(b.text, b.address) for b in page(page=n).sections[-1].blocks if isinstance(b, Text)][1:] for n in (1, 2, 3)
    ]
    assert links == [
        [("Older runs", "/?page=2")],
        [("Newer runs", "/?page=1"), ("Older runs", "/?page=3")],
        [("Newer runs", "/?page=2")],
    ]
    assert all("need a look (day)" in page(page=n).outcome and "26 runs" in page(page=n).outcome for n in (1, 2))
    found = page(word="nIGHT-01")
    assert names(found) == [f"Night-{i:03}" for i in range(19, 9, -1)]
    assert "10 runs have “nIGHT-01” in the name" in as_markdown(found) and "Older runs" not in as_markdown(found)
    assert "(</?page=2&q=night>)" in as_markdown(page(word="night")), "a link keeps the word"
    assert "No run has “x” in the name" in as_markdown(page(word="x")) and not names(page(word="x"))


@pytest.mark.slow
def test_the_address_says_page_and_word(root: Path, port: int) -> None:
    """Fails when what was typed is a tag, or when an address that is none ends the server."""
    status, text, headers = asked(port, "/?q=%3Cscript%3Ealert(1)&page=x")
    assert status == 200 and "<script>alert" not in text and 'value="&lt;script&gt;alert(1)"' in text
    assert ">one &amp;" not in text and "form-action 'self'" in headers["Content-Security-Policy"]
    assert all(">one &amp;" in asked(port, f"/?q={rest}")[1] for rest in ("ONE&page=999999999999", "&page=-1"))


@pytest.mark.slow
def test_why_a_night_failed_before_it_had_a_store_stands_on_the_page(
    root: Path, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Prefect server tells it, of one that wrote a tag, and not of a private one.

    Mutants: without escaping, without the message of the state, with that of a private run.
    """
    auth = read_auth_string(running.home / AUTH_FILE)

    def made(path: str, facts: dict[str, Any]) -> str:
        return str(ask(running.url, path, facts, auth=auth)["id"])

    def failed(name: str, flow: str, parameters: dict[str, Any]) -> None:
        every = [{"schedule": {"interval": 3600}, "active": True}]
        deployment = {"name": name, "flow_id": made("/flows/", {"name": flow}), "parameters": parameters}
        one = made("/deployments/", deployment | {"schedules": every})
        deployments.append(one)
        state = {"type": "FAILED", "message": "there is nothing at <i>gone</i>.npy " + 9999 * "."}
        night = made(f"/deployments/{one}/create_flow_run", {"parameters": parameters})
        ask(running.url, f"/flow_runs/{night}/set_state", {"state": state, "force": True}, auth=auth)

    deployments: list[str] = []
    failed("gone", "npm", {"config": {"source": {"path": "gone.npy"}, "run": {"store": str(root / "gone")}}})
    failed("secret one", "npm", {"config": {"privacy": {"epsilon": 1.0}, "source": {"path": "gone.npy"}}})
    monkeypatch.setenv("PREFECT_API_URL", running.url)
    with reports.server_of(root, 0, auth) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        index, page, private, none = (
            asked(server.server_port, f"/{query}", auth=auth)
            for query in ("", "?schedule=gone", "?schedule=secret+one", "?schedule=x")
        )
        server.shutdown()
        thread.join()
    for one in deployments:  # others use this server, too
        with suppress(ValueError):  # an empty answer
            ask(running.url, f"/deployments/{one}/pause_deployment", {}, auth=auth)
    for _, text, headers in (index, page):
        assert "there is nothing at &lt;i&gt;gone&lt;/i&gt;.npy ..." in text and "<i>gone" not in text
        assert 'class="lost">failed</a>' in text and len(text) < 1e6 and 700 * "." not in text
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "1 of the last 1 run failed; the last one failed: there is nothing at" in page[1]
    assert "Schedule secret one" in private[1] and "failed" in private[1] and "nothing at" not in private[1]
    assert "no schedule has this name" in none[1]
