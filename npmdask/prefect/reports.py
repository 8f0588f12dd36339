"""The pages of runs by HTTP on this machine, so that a link on a page of Prefect opens them.

Browsers follow no ``file://`` link from an ``http://`` page, and Prefect strips a page that is put into an artifact.
So ``npmdask serve`` has this beside it: ``python -m npmdask.prefect.reports FOLDER PORT`` answers GET for ``*.html``
files of runs below FOLDER (``runs``) and, at /, for a page of all runs and schedules; for nothing else: no link is
followed, and it has no other name than 127.0.0.1. It asks for the same login as Prefect's pages: 127.0.0.1 is also
where other users of the machine are.
"""

import argparse
import base64
import hashlib
import hmac
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil, inf
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from npmdask.core.checkpoint.reader import stores_below
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import time_text
from npmdask.core.storage.paths import data_name
from npmdask.errors import RefusedError
from npmdask.manage.status import RunStatus, ended_text, nights_of, status_below, status_of
from npmdask.prefect.programs import BELOW, auth_string, counted
from npmdask.prefect.server import ask
from npmdask.report import Report, Section, Text, as_html
from npmdask.report.blocks import Cell, Marks, section, table
from npmdask.report.render import script_policy

# The first page is a table of all schedules and one of the runs below ``runs``, with links to their pages;
# ``/?schedule=nightly`` is the page of one schedule, with its last nights. They are reports as any other
# (:mod:`npmdask.report`), made when they are asked for: of runs from what ``npmdask status`` reads, of schedules from
# Prefect's API. There are ON_PAGE runs on a page, the newest first; ``/?page=2`` is the next page, and ``/?q=night`` of
# runs whose names hold that word. Of a private run they show the state, the releases that are announced, and what the
# statement says; no error, whose sentence may quote the data, and no time but that of its tick.

ON_PAGE = 100  # runs
NAMED = 5  # runs that need a look: so many are named on top, wherever they are listed
NIGHTS = 30  # of a schedule that are shown
LONGEST_WORD = 200  # characters of what is searched for
LONGEST_REASON = 600  # characters: Prefect keeps whatever a program says
EVERY = 15  # seconds between two looks of an open page
# The part that changes is put in place of the old one; where the reader is, and what has the focus, stay.
SCRIPT = f"""setInterval(async () => {{
  if (document.hidden) return;
  const here = location.origin + location.pathname + location.search;
  const answer = await fetch(here, {{cache: "no-store"}}).catch(() => null);
  if (!answer || !answer.ok) return;
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
  const now = document.querySelector("main"), next = found.querySelector("main");
  if (!next || next.innerHTML === now.innerHTML) return;
  const at = document.activeElement && document.activeElement.getAttribute("href"), top = scrollY;
  now.replaceChildren(...next.childNodes);
  const again = at && [...document.querySelectorAll("a")].find(a => a.getAttribute("href") === at);
  if (again) again.focus({{preventScroll: true}});
  scrollTo(0, top);
}}, {1000 * EVERY});"""
SCRIPT_DIGEST = f"'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
WITHOUT_SCRIPT = f'<noscript><meta http-equiv="refresh" content="{EVERY}"></noscript>'
SEARCH = (
    '<form role="search" action="/"><label>Runs by name <input type="search" name="q" value="{}"></label> '
    "<button>Search</button></form>"
)
BUSY, LOST = ("running",), ("crashed", "hung", "damaged")
FAILED = ("FAILED", "CRASHED")  # states of Prefect


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """A run of a schedule as Prefect knows it: ``state`` is the name of its state, ``kind`` the type of that.

    ``began``, ``ended``, ``seconds`` and ``said``, the message of its state, are not told of a private one.
    """

    due: datetime
    state: str
    kind: str
    address: str
    said: str = ""
    began: datetime | None = None
    ended: datetime | None = None
    seconds: float | None = None

    @property
    def good(self) -> bool | None:
        """Say whether it made an answer; None where it is under way, or ended well for another reason."""
        return False if self.kind in FAILED else True if (self.kind, self.state) == ("COMPLETED", "Completed") else None


@dataclass(frozen=True, kw_only=True)
class ScheduleStatus:
    """Status of a schedule in Prefect: ``due`` is its next tick, ``nights`` are its last runs, the newest first."""

    name: str
    flow: str
    store: Path | None
    paused: bool
    due: datetime | None
    nights: tuple[ScheduledRun, ...] = ()
    address: str

    @property
    def failed(self) -> bool:
        """Say whether its last run failed."""
        return bool(self.nights) and self.nights[0].kind in FAILED


def _index_page(root: Path, auth: str, query: str = "") -> bytes:
    """Return the page of all that is below ``root`` and of the schedules of the server that PREFECT_API_URL names.

    ``query`` : of the address: ``page``, from 1, and ``q``, a part of the names of runs; or ``schedule``, a name.
    """
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    schedules, prefect = _schedules(auth)
    if "schedule" in asked:
        one = next((one for one in schedules if one.name == asked["schedule"]), None)
        return page_of(no_schedule(prefect) if one is None else schedule_report(root, one))
    page, word = asked.get("page", ""), asked.get("q", "").strip()[:LONGEST_WORD]
    number = int(page) if page.isdecimal() and len(page) < 9 else 1
    found = status_below(root) if root.is_dir() else []
    return page_of(runs_report(root, found, schedules, prefect, page=number, word=word), word)


def page_of(report: Report, word: str = "") -> bytes:
    """The report with a field to search runs by name, and with what renews it."""
    whole = as_html(report).replace("</head>", f"{WITHOUT_SCRIPT}</head>", 1)
    whole = whole.replace("</header>", f"{SEARCH.format(escape(word))}</header>", 1)
    return whole.replace("</body>", f"<script>{SCRIPT}</script></body>", 1).encode()


def runs_report(
    root: Path,
    found: list[RunStatus],
    schedules: list[ScheduleStatus],
    prefect: str,
    *,
    page: int = 1,
    word: str = "",
) -> Report:
    """Make the report of one ``page`` of the runs whose names hold ``word``, in small letters or capitals.

    ``prefect`` : the address of its pages; "" where it does not answer.
    """
    busy, lost = sum(one.state in BUSY for one in found), [one.name for one in found if one.state in LOST]
    named = f"{', '.join(lost[:NAMED])}{', ...' if lost[NAMED:] else ''}"
    look = f", {len(lost)} of them need a look ({named})" if lost else ""
    said = f"{counted(len(found), 'run')}, {busy} running{look}"
    failed = [one.name for one in schedules if one.failed]
    failures = f"; the last run failed of: {', '.join(failed)}" if failed else ""
    newest = sorted(found, key=lambda one: (one.last_commit or 0.0, one.name), reverse=True)
    listed = [one for one in newest if word.casefold() in one.name.casefold()]
    page = max(1, min(page, ceil(len(listed) / ON_PAGE)))
    shown = listed[ON_PAGE * (page - 1) : ON_PAGE * page]
    pages = tuple(_pages(page, len(listed), word))
    return Report(
        title="Runs and schedules",
        outcome=f"{said}; {counted(len(schedules), 'schedule')}{failures}",
        good=not lost and not failed and bool(prefect),
        sections=(
            section("", Text(text="Prefect: flow runs, logs and artifacts", address=prefect) if prefect else None),
            *([] if prefect else [_without_prefect(root)]),
            *(
                [section("Schedules", table((_of_schedule(one, newest) for one in schedules), OF_SCHEDULES, "list"))]
                if schedules
                else []
            ),
            section(
                "Runs",
                _matches(len(listed), word) if word else None,
                Text(text="All runs", address="/") if word else None,
                table((_of_run(root, one, prefect) for one in shown), OF_RUNS, "list") if shown else None,
                *pages,
            ),
        ),
    )


OF_RUNS = (
    "run",
    "state",
    "last commit",
    "took",
    ANSWER := "error bound, or why there is none",
    "report",
)
OF_SCHEDULES = ("schedule", f"last {NIGHTS}", "last run", "was due", "next tick", ANSWER)
OF_NIGHTS = ("due", "state", "took", ANSWER, "report")


def _without_prefect(root: Path) -> Section:
    """Say what runs have noted of schedules while Prefect does not answer."""
    notes = (Text(text=f"{night.schedule}: {night.said}", style="item") for night in nights_of(root))
    return section("", Text(text="Prefect does not answer: no schedule is known", style="warning"), *notes)


def _matches(count: int, word: str) -> Text:
    verb = "has" if count < 2 else "have"
    return Text(text=f"{counted(count, 'run') if count else 'No run'} {verb} “{word}” in the name")


def _pages(page: int, count: int, word: str) -> Iterator[Text]:
    """Yield the page's place in the list, and links to the pages beside it; nothing where there is one page."""
    if count <= ON_PAGE:
        return
    first, last = ON_PAGE * (page - 1) + 1, min(ON_PAGE * page, count)
    yield Text(text=f"Runs {first:,} to {last:,} of {count:,}, the newest first")
    for name, other in (("Newer runs", page - 1), ("Older runs", page + 1)):
        if 1 <= other <= ceil(count / ON_PAGE):
            asked = {"page": other} | ({"q": word} if word else {})
            yield Text(text=name, address=f"/?{urlencode(asked)}")


def _of_schedule(one: ScheduleStatus, found: list[RunStatus]) -> tuple[Cell, ...]:
    last = one.nights[0] if one.nights else None
    below = [run for run in found if one.store is not None and Path(run.path).is_relative_to(one.store)]
    answered = None if one.failed else next((run for run in below if run.state == "finished"), None)
    return (
        Text(text=one.name, address=f"/?{urlencode({'schedule': one.name})}"),
        _marks(one),
        "none yet" if last is None else _state_of_night(last),
        "" if last is None else _when(last.due),
        _next_tick(one),
        _state_and_answer(answered)[1] if answered else last.said if last else "",
    )


def _next_tick(one: ScheduleStatus) -> str:
    if one.paused or one.due is None:
        return "paused" if one.paused else "none"
    return (
        f"{_when(one.due)}{', late: no worker took it' if (datetime.now(UTC) - one.due).total_seconds() > 60 else ''}"
    )


def _marks(one: ScheduleStatus) -> Marks:
    """Mark each night, the oldest first."""
    return Marks(marks=tuple((night.good, f"{_when(night.due)}: {night.state}") for night in reversed(one.nights)))


def _state_of_night(one: ScheduledRun) -> Text:
    return Text(text=one.state.lower(), style="warning" if one.kind in FAILED else "plain", address=one.address)


def _when(then: datetime) -> str:
    """A time in the time zone of this machine."""
    return f"{then.astimezone():%Y-%m-%d %H:%M}"


def no_schedule(prefect: str) -> Report:
    """Make the page for a name that no schedule has."""
    why = "no schedule has this name" if prefect else "Prefect does not answer: no schedule is known"
    return Report(title="Schedule", outcome=why, good=False, sections=(section("", BACK),))


BACK = Text(text="All runs and schedules", address="/")


def schedule_report(root: Path, one: ScheduleStatus) -> Report:
    """Make the page of a schedule: its last nights, with the answer of each or why there is none."""
    home = None if one.store is None else one.store.resolve()
    below = home is not None and home.is_dir() and home.is_relative_to(root)
    stores = stores_below(home)[-2 * NIGHTS :] if home and below else []
    runs = [status_of(one, one.name if one == home else str(one.relative_to(home or root))) for one in stores]
    latest = _latest(home) if home and below else ""
    pointed = Text(text=f"“latest” is run {latest}") if latest else None
    rows = [_of_night(root, night, runs, latest) for night in one.nights]
    nights = (table([(_marks(one),)]), table(rows, OF_NIGHTS, "list")) if rows else ()
    failed = sum(night.kind in FAILED for night in one.nights)
    last = f"; the last one failed: {one.nights[0].said}" if one.failed else ""
    return Report(
        title=f"Schedule {one.name}",
        about=f"{one.flow}; next tick: {_next_tick(one)}",
        outcome=f"{failed} of the last {counted(len(one.nights), 'run')} failed{last}",
        good=not one.failed,
        sections=(section("", BACK, Text(text="Its runs in Prefect", address=one.address), pointed, *nights),),
    )


def _latest(store: Path) -> str:
    """The run that readers of ``latest`` follow, with its day where it has one."""
    try:
        return os.readlink(store / "latest")[:LONGEST_WORD]
    except OSError:
        return ""


def _of_night(root: Path, night: ScheduledRun, runs: list[RunStatus], latest: str) -> tuple[Cell, ...]:
    """Describe a night; its run is the one with the last commit in that time."""
    begun, end = (then.timestamp() if then else inf for then in (night.began, night.ended))
    made = [one for one in runs if one.last_commit and begun <= one.last_commit <= end]
    name = made[-1].name if made else ""
    report = _report_of(root, made[-1], f"{name} (latest)" if name == latest else name) if made else ""
    said = _state_and_answer(made[-1])[1] if made and night.kind not in FAILED else night.said
    return _when(night.due), _state_of_night(night), _time(night.seconds), said, report


def _of_run(root: Path, one: RunStatus, prefect: str) -> tuple[Cell, ...]:
    owner = (one.holder or {}).get("owner", "")
    state, answer = _state_and_answer(one)
    there = f"{prefect}/runs/flow-run/{quote(owner)}" if prefect and owner else ""
    when = _when(datetime.fromtimestamp(one.last_commit, UTC)) if one.last_commit and _is_public(one) else ""
    took = _time(_seconds_of(one) if when else None)
    shown = Text(text=state, style="warning" if state.startswith(LOST) else "plain", address=there)
    return one.name, shown, when, took, answer, _report_of(root, one)


def _report_of(root: Path, one: RunStatus, name: str = "") -> Cell:
    page = Path(one.path) / "report.html"
    return (
        Text(text=name or "report", address=f"/{quote(page.relative_to(root).as_posix())}") if page.is_file() else name
    )


def _time(seconds: float | None) -> str:
    return "" if seconds is None else time_text(seconds)


def _seconds_of(one: RunStatus) -> float | None:
    """The time that processes worked on a run, without that between a kill and the next process."""
    told: dict[Any, list[float]] = {}
    for line in RunStore(Path(one.path)).telemetry():
        told.setdefault(str(line.get("pid")), []).extend([line["time"]] if "time" in line else [])
    return sum(max(times) - min(times) for times in told.values() if times) if told else None


def _state_and_answer(one: RunStatus) -> tuple[str, str]:
    """State and answer. Of a store that holds what npmdask does not write: a page of all runs shows the others."""
    try:
        progress = _progress(one)
        return one.shown_state, _answer(one) if one.state == "finished" else progress
    except (TypeError, ValueError):
        return "damaged", ""


def _progress(one: RunStatus) -> str:
    """Say how far a run is and why it is not finished; of a private run no error and no time."""
    parts = [one.what]
    if one.step is not None:
        parts.append(f"step {one.step}{f' of at most {one.max_steps}' if one.max_steps else ''}")
    if one.residual is not None:
        parts.append(f"residual {one.residual:.1e}")
    if one.state in BUSY and one.seconds_left is not None:
        parts.append(f"{time_text(one.seconds_left)} left")
    why = one.error or ended_text(one) if _is_public(one) and one.state not in BUSY else ""
    return f"{why} ({', '.join(parts)})" if why else ", ".join(parts)


def _is_public(one: RunStatus) -> bool:
    """Say whether a run is known not to be private: a store that does not say yet what it is of may become private."""
    return one.last_commit is not None and one.what != "?"


def _answer(one: RunStatus) -> str:
    """The share of the variance that a finished run explains, and how wrong it can be."""
    meta: Mapping[str, Any] = {}
    if _is_public(one):  # of a private run nothing but its statement
        meta = RunStore(Path(one.path)).part_meta("result") or {}
    share = meta.get("explained_share")
    explains = None if share is None else f"Explains {100 * share:.3g} % of the variance."
    return " ".join(filter(None, (explains, one.outcome if _is_public(one) else "", one.assurance)))


# What Prefect knows.


def _schedules(auth: str) -> tuple[list[ScheduleStatus], str]:
    """The schedules, and the address of Prefect's pages; "" where it does not answer."""
    url = os.environ.get("PREFECT_API_URL", "")
    if not url:
        return [], ""
    pages = url.removesuffix("/api")
    try:
        found = ask(url, "/deployments/filter", {"sort": "NAME_ASC"}, auth=auth)
        flows = {one["id"]: one["name"] for one in ask(url, "/flows/filter", {}, auth=auth)}
        return [_schedule_status(url, pages, auth, one, flows) for one in found if one["schedules"]], pages
    except (OSError, ValueError, KeyError):
        return [], ""


def _schedule_status(url: str, pages: str, auth: str, one: dict[str, Any], flows: Mapping[str, str]) -> ScheduleStatus:
    def runs(state: dict[str, Any], sort: str, limit: int) -> list[dict[str, Any]]:
        query = {"deployments": {"id": {"any_": [one["id"]]}}, "flow_runs": {"state": {"type": state}}}
        return list(ask(url, "/flow_runs/filter", query | {"sort": sort, "limit": limit}, auth=auth))

    flow = flows.get(one["flow_id"], "flow")
    coming = runs({"any_": ["SCHEDULED"]}, "EXPECTED_START_TIME_ASC", 1)
    return ScheduleStatus(
        name=one["name"],
        flow=" of ".join(filter(None, (flow, _data(one["parameters"])))),
        store=_store(one["parameters"]),
        paused=bool(one["paused"]),
        due=_instant(coming[0]["expected_start_time"]) if coming else None,
        nights=tuple(
            _scheduled_run(run, f"{pages}/runs/flow-run/{run['id']}", private=is_private(flow, run["parameters"]))
            for run in runs({"not_any_": ["SCHEDULED"]}, "EXPECTED_START_TIME_DESC", NIGHTS)
        ),
        address=f"{pages}/deployments/deployment/{one['id']}",
    )


def _scheduled_run(run: dict[str, Any], address: str, *, private: bool) -> ScheduledRun:
    due = datetime.fromisoformat(run["expected_start_time"])
    state, kind = str(run["state_name"]), str(run["state_type"])
    if private:
        return ScheduledRun(due=due, state=state, kind=kind, address=address)
    return ScheduledRun(
        due=due,
        state=state,
        kind=kind,
        address=address,
        said=" ".join(((run.get("state") or {}).get("message") or "").split())[:LONGEST_REASON],
        began=_instant(run["start_time"]),
        ended=_instant(run["end_time"]),
        seconds=run["total_run_time"] if run["start_time"] else None,
    )


def _instant(said: str | None) -> datetime | None:
    return None if said is None else datetime.fromisoformat(said).astimezone(UTC)


def is_private(flow: str, parameters: Mapping[str, Any]) -> bool:
    """Say whether a flow run may be of private data: nodes decide for themselves, and count as private."""
    config = parameters.get("config")
    of = config if isinstance(config, dict) else {}
    changed = any(str(key).startswith(("privacy", "source.nodes")) for key in parameters.get("changes") or {})
    return "private" in flow or changed or bool(of.get("privacy") or (of.get("source") or {}).get("nodes"))


def _data(parameters: Mapping[str, Any]) -> str:
    config = parameters.get("config") or {}
    path = config.get("source", {}).get("path") if isinstance(config, dict) else config
    path = path or next((parameters[name] for name in ("documents", "samples", "left") if name in parameters), "")
    return data_name(str(path)) if path else ""


def _store(parameters: Mapping[str, Any]) -> Path | None:
    config = parameters.get("config")
    if isinstance(config, dict):
        store = (config.get("run") or {}).get("store")
        return Path(store) if store else None
    folder, name = parameters.get("folder"), parameters.get("run_id")
    return Path(folder) / name if folder and name else None


# Answers by HTTP.

URL = "NPMDASK_REPORTS"  # where they are served
HERE = ("127.0.0.1", "localhost")
# Reports run the one script that they are written with, are shown in no page of others, and send nothing anywhere.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; base-uri 'none'; "
    f"script-src {script_policy()}"
)
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": f"form-action 'none'; {POLICY}",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # the page of a run is rewritten
}
# The page of all runs renews itself, with a script of its own.
INDEX_HEADERS = {
    "Content-Security-Policy": f"{POLICY} {SCRIPT_DIGEST}; connect-src 'self'; form-action 'self'",
    "Cache-Control": "no-store",
}


def page_url(page: str | Path) -> str | None:
    """The address at which ``page`` can be read, if the folder that it lies in is served."""
    url, below = os.environ.get(URL), os.environ.get(BELOW)
    if not url or not below:
        return None
    try:
        return f"{url}/{quote(Path(page).relative_to(below).as_posix())}"
    except ValueError:
        return None


def page_at(root: Path, path: str) -> bytes | None:
    """Return the page asked for, if it is below ``root`` (whose own links are resolved) with no link on the way."""
    named = unquote(urlsplit(path).path)
    asked = Path(os.path.normpath(root / named.lstrip("/")))
    if asked.suffix != ".html" or "\0" in named or not asked.is_relative_to(root) or not _is_in_run(root, asked.parent):
        return None
    try:
        return asked.read_bytes() if asked.resolve(strict=True) == asked and asked.is_file() else None
    except OSError:
        return None


def _is_in_run(root: Path, folder: Path) -> bool:
    """Say whether ``folder``, below ``root``, is that of a run or lies in one."""
    return any((one / "run.json").is_file() for one in (folder, *folder.parents) if one.is_relative_to(root))


class _Pages(BaseHTTPRequestHandler):
    timeout = 30.0  # seconds: of a connection that sends nothing; each has a thread
    root: Path
    login: str
    auth: str

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in {f"{name}:{self.connection.getsockname()[1]}" for name in HERE}:
            self.send_error(403, "no page of another name can read these")
            return
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.login.encode()):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="reports of npmdask", charset="UTF-8"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = urlsplit(self.path)
        found = _index_page(self.root, self.auth, asked.query) if asked.path == "/" else page_at(self.root, self.path)
        if found is None:
            self.send_error(404, "there is no such page")
            return
        self.send_response(200)
        for name, value in (HEADERS | INDEX_HEADERS if asked.path == "/" else HEADERS).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        self.wfile.write(found)

    def log_message(self, *_: object) -> None:
        """Log no request: who reads what is private."""


def server_of(folder: Path | str, port: int, auth: str) -> ThreadingHTTPServer:
    """A server that answers once ``serve_forever`` is called, to who logs in with ``auth``; port 0: any that is free.

    Raises
    ------
    RefusedError
        The port is taken.
    """
    login = base64.b64encode(auth.encode()).decode()
    handler = type("Pages", (_Pages,), {"root": Path(folder).resolve(), "login": f"Basic {login}", "auth": auth})
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise RefusedError(f"port {port} of 127.0.0.1 cannot be used ({error.strerror}); choose another") from error


def is_listening(port: int) -> bool:
    """Say whether a server listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    a = parser.parse_args(argv)
    server_of(a.folder, a.port, auth_string()).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
