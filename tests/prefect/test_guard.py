"""Who may tell a Prefect server of ours what to do: who logs in, from its own pages or from none. With a real browser.

``ATTACK`` is what a page can try without knowing the login. On a server of Prefect as it is by default it makes flows
and events; on ours nothing.
"""

import base64
import http.client
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from npmdask.errors import BadInputError, RefusedError
from npmdask.prefect import programs
from npmdask.prefect.programs import AUTH, read_auth_string
from npmdask.prefect.server import answers, ask, free_port, own_addresses
from tests.prefect.browser import Browser, browser, missing
from tests.prefect.conftest import ROOT, Running, Shop, wait_until

pytestmark = pytest.mark.slow
needs_browser = pytest.mark.skipif(
    bool(missing()), reason=f"there is no {' and no '.join(missing())} here: apt-get install chromium chromium-driver"
)
NAMES = "MAP evil.example 127.0.0.1, MAP rebound.example 127.0.0.1"  # where the DNS of an attacker points
ATTACK = """
const [api, mark] = args, said = {};
const digit = () => Math.trunc(16 * Math.random()).toString(16);
const uuid = () => 'xxxxxxxx-xxxx-4xxx-8xxx-xxxxxxxxxxxx'.replace(/x/g, digit);
const body = name => JSON.stringify({name: mark + ' ' + name});
const tried = async (name, how) => {
    try { const answer = await how(); said[name] = answer === undefined ? 'sent' : answer.type + ' ' + answer.status; }
    catch (error) { said[name] = '' + error; }
};
const post = (name, more) => tried(name, () => fetch(api + '/flows/', {method: 'POST', body: body(name), ...more}));
await post('json', {headers: {'Content-Type': 'application/json'}});
await post('json without cors', {mode: 'no-cors', headers: {'Content-Type': 'application/json'}});
await post('text', {headers: {'Content-Type': 'text/plain'}});
await post('text without cors', {mode: 'no-cors'});
await post('no type', {body: new Blob([body('no type')])});
await post('no type without cors', {mode: 'no-cors', body: new Blob([body('no type without cors')])});
await post('with cookies', {credentials: 'include', body: new Blob([body('with cookies')])});
await tried('beacon', async () => { navigator.sendBeacon(api + '/flows/', new Blob([body('beacon')])); });
await tried('a look', () => fetch(api + '/admin/settings'));
await tried('a token', () => fetch(api + '/csrf-token?client=evil'));
await tried('form', () => new Promise(done => {
    const frame = document.createElement('iframe'), form = document.createElement('form');
    const field = document.createElement('input');
    frame.name = 'aside'; frame.onload = () => setTimeout(done, 500);
    form.method = 'POST'; form.enctype = 'text/plain'; form.action = api + '/flows/'; form.target = 'aside';
    field.name = '{"name": "' + mark + ' form", "labels": {"x": "'; field.value = '"}}';
    form.append(field); document.body.append(frame, form); form.submit(); setTimeout(done, 5000);
}));
for (const [name, path, protocols] of [
    ['socket in', '/events/in', ['prefect']], ['bare socket in', '/events/in', []],
    ['socket out', '/events/out', ['prefect']],
    ['socket of a worker', '/work_pools/npmdask/workers/connect', ['prefect']],
]) await tried(name, () => new Promise(done => {
    const socket = new WebSocket(api.replace('http', 'ws') + path, protocols), heard = [];
    const event = {id: uuid(), occurred: new Date().toISOString(),
                   event: mark + ' ' + name, resource: {'prefect.resource.id': 'evil.resource'}, payload: {}};
    const end = status => done({type: 'socket', status});
    socket.onopen = () => {
        if (protocols.length) socket.send(JSON.stringify({type: 'auth', token: null}));
        else { socket.send(JSON.stringify(event)); setTimeout(() => end('open'), 1000); }
    };
    socket.onmessage = message => {
        heard.push(message.data);
        if (path == '/events/in') socket.send(JSON.stringify(event));
        setTimeout(() => end(heard.join()), 1000);
    };
    socket.onclose = event => end('closed ' + event.code);
    setTimeout(() => end('silent'), 50000);
}));
return said;
"""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><body>a page of someone else")

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """The port of a server of other pages on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def attacked(window: Browser, page: str, api: str, mark: str) -> dict[str, str]:
    window.open(page)
    said = window.run(ATTACK, api, mark)
    assert isinstance(said, dict), said
    return said


def made(shop: Shop, mark: str) -> set[str]:
    """Flows and events in the database of a server that bear the mark of an attack."""
    time.sleep(2)  # events are written in the background
    rows = [*shop.ask("select name from flow"), *shop.ask("select event from events")]
    return {name.removeprefix(f"{mark} ") for (name,) in rows if name.startswith(f"{mark} ")}


@needs_browser
def test_a_page_of_someone_else_can_do_nothing(client: Shop, running: Running, elsewhere: int, tmp_path: Path) -> None:
    port = running.url.removesuffix("/api").rpartition(":")[2]
    with browser(tmp_path, NAMES) as window:
        pages = [f"http://{name}:{elsewhere}/" for name in ("127.0.0.1", "localhost", "evil.example")]
        for number, page in enumerate(pages):
            said = attacked(window, page, running.url, f"evil{number}")
            assert made(client, f"evil{number}") == set()
            sent = {"json without cors", "text without cors", "no type without cors", "beacon", "form"}  # unanswered
            assert {name for name, how in said.items() if how in ("sent", "opaque 0")} <= sent
            assert {how for name, how in said.items() if "socket" in name} == {"socket closed 1006"}, (
                "none was accepted"
            )
            rest = {name: how for name, how in said.items() if name not in sent and "socket" not in name}
            assert set(rest.values()) == {"TypeError: Failed to fetch"}
        # A name of the attacker that means this machine by now: the page and our server are of one origin.
        here = f"http://rebound.example:{port}"
        said = attacked(window, f"{here}/", f"{here}/api", "rebound")
        assert (
            window.text
            == "the Host of this request is no address of this server; PREFECT_UI_API_URL can name another one"
        )
        assert made(client, "rebound") == set() and "basic 403" in said["json"]
        assert {how for name, how in said.items() if "socket" in name} == {"socket closed 1006"}


@pytest.mark.heavy
@needs_browser
def test_the_same_page_makes_what_it_likes_at_a_server_of_prefect_as_it_comes(
    shop: Shop, elsewhere: int, tmp_path: Path
) -> None:
    """Else the test above would show nothing."""
    port = free_port()
    shop.environment = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
    factory = "prefect.server.api.server:create_app"
    shop.start("-m", "uvicorn", "--factory", factory, "--port", str(port), "--log-level", "error")
    api = f"http://127.0.0.1:{port}/api"
    wait_until(lambda: answers(api), 120, "a server", lambda: shop.err)
    with browser(tmp_path, NAMES) as window:
        attacked(window, f"http://evil.example:{elsewhere}/", api, "evil")
        expected = {"json", "no type", "no type without cors", "beacon", "socket in", "bare socket in"}
        wait_until(lambda: made(shop, "evil") >= expected, 60, "flows and events", lambda: str(made(shop, "evil")))
        assert attacked(window, f"http://rebound.example:{port}/", f"http://rebound.example:{port}/api", "rebound")
        wait_until(lambda: "json" in made(shop, "rebound"), 60, "a flow")


@needs_browser
def test_the_pages_ask_for_the_login_and_then_work(running: Running, tmp_path: Path) -> None:
    here = running.url.removesuffix("/api")
    auth = read_auth_string(running.home / AUTH)
    for name in ("127.0.0.1", "localhost"):
        place, folder = here.replace("127.0.0.1", name), tmp_path / name
        folder.mkdir()
        with browser(folder) as window:
            window.open(place)
            wait_until(lambda: "Login" in window.text, 240, "the login", lambda: window.text)
            window.type("input", "npmdask:wrong\ue007")
            wait_until(lambda: "Invalid" in window.text, 240, "it is refused", lambda: window.text)
            assert "/login" in window.run("localStorage.clear(); return location.href")
            window.open(place)
            wait_until(lambda: "Login" in window.text, 240, "the login", lambda: window.text)
            window.type("input", f"{auth}\ue007")  # and the Enter key
            wait_until(lambda: "Logout" in window.text, 240, "the dashboard", lambda: window.text)
            window.open(f"{place}/v2/variables")
            wait_until(lambda: "Add" in window.text, 240, "variables, which are asked for by POST", lambda: window.text)
            assert "error" not in window.text.lower()


def request(url: str, method: str, path: str, headers: dict[str, str], body: Any = None) -> int:
    """The status of the answer to a request whose headers are as they are said."""
    host, _, rest = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=120)
    connection.putrequest(method, f"/{rest}{path}", skip_host=True)
    data = b"" if body is None else json.dumps(body).encode()
    for name, value in {"Host": host, "Content-Length": str(len(data)), **headers}.items():
        if value:
            connection.putheader(name, value)
    connection.endheaders(data)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_each_lock_holds_alone(running: Running) -> None:
    """With everything right but one thing a request is refused."""
    url, host = running.url, running.url.removeprefix("http://").removesuffix("/api")
    auth = read_auth_string(running.home / AUTH)
    login = {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"}
    token = ask(url, "/csrf-token?client=me", auth=auth)["token"]
    good = {**login, "Content-Type": "application/json", "Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "me"}
    own = f"http://{host}"
    assert [request(url, "POST", "/flows/filter", good | {"Origin": origin}, {}) for origin in ("", own)] == [200, 200]
    assert request(url, "POST", "/flows/filter", good | {"Host": host.replace("127.0.0.1", "LocalHost")}, {}) == 200
    port = host.partition(":")[2]
    for hosted in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1:{int(port) - 1}",
        f"{host}.evil.example",
        "",
    ):
        assert request(url, "POST", "/flows/filter", good | {"Host": hosted}, {}) in (400, 403), hosted
        assert request(url, "GET", "/health", {"Host": hosted}) in (400, 403)
    for origin in (
        "http://evil.example",
        "null",
        f"https://{host}",
        f"http://127.0.0.1:{int(port) - 1}",
        f"{own}.evil.example",
    ):
        assert request(url, "POST", "/flows/filter", good | {"Origin": origin}, {}) == 403, origin
        assert request(url, "GET", "/version", login | {"Origin": origin}) == 403
        assert (
            request(url, "OPTIONS", "/flows/filter", {"Origin": origin, "Access-Control-Request-Method": "POST"}) == 403
        )
    wrong = base64.b64encode(b"npmdask:wrong").decode()
    for header in ("", f"Basic {wrong}", "Basic", "Bearer x"):
        assert request(url, "POST", "/flows/filter", good | {"Authorization": header}, {}) == 401
        assert request(url, "GET", "/admin/settings", {"Authorization": header}) == 401
    for missed in ("Prefect-Csrf-Token", "Prefect-Csrf-Client"):
        assert request(url, "POST", "/flows/filter", good | {missed: ""}, {}) == 403
        assert request(url, "DELETE", f"/flows/{uuid4()}", good | {missed: "evil"}) == 403
    assert request(url, "GET", "/health", {}) == 200, "the one thing that probes may ask"


def test_websockets_ask_for_the_login_and_take_no_foreign_page(running: Running) -> None:
    socket = running.url.replace("http", "ws")
    auth, own = read_auth_string(running.home / AUTH), running.url.removesuffix("/api")
    for path in ("/events/in", "/events/out"):
        for origin in ("http://evil.example", "null"):
            with pytest.raises(InvalidStatus, match="403"):
                connect(f"{socket}{path}", subprotocols=["prefect"], origin=origin, open_timeout=120)  # type: ignore[arg-type, list-item]
        with pytest.raises(InvalidStatus, match="403"):
            connect(f"{socket}{path}", open_timeout=120)  # without the protocol in which the login is sent
        for token in (None, "npmdask:wrong"):
            with connect(f"{socket}{path}", subprotocols=["prefect"], open_timeout=120) as there:  # type: ignore[list-item]
                there.send(json.dumps({"type": "auth", "token": token}))
                with pytest.raises(ConnectionClosed):
                    there.recv(120)
        with connect(f"{socket}{path}", subprotocols=["prefect"], origin=own, open_timeout=120) as there:  # type: ignore[arg-type, list-item]
            there.send(json.dumps({"type": "auth", "token": auth}))
            assert json.loads(there.recv(120)) == {"type": "auth_success"}


def test_the_login_is_made_once_and_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    for name in ("PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    with ThreadPoolExecutor(8) as pool:
        (found,) = set(pool.map(lambda _: programs.auth_string(), range(32)))
    file = tmp_path / "home" / AUTH
    assert len(found) >= 40 and found.startswith("npmdask:") and file.read_text().strip() == found
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir()] == [AUTH]
    for damage, said in (
        (lambda: file.chmod(0o640), "can be read by other users"),
        (lambda: file.write_text(""), "is empty"),
    ):
        damage()
        with pytest.raises(RefusedError, match=said):
            programs.auth_string()
        file.chmod(0o600)
    file.unlink()
    file.symlink_to(tmp_path / "theirs")
    (tmp_path / "theirs").write_text("npmdask:theirs")
    with pytest.raises(BadInputError, match="symbolic link"):
        programs.auth_string()
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "npmdask:mine")
    assert programs.auth_string() == "npmdask:mine"


def test_the_login_goes_to_this_machine_only(tmp_path: Path) -> None:
    """To a server elsewhere another one belongs, or a key; and what flows start gets none."""
    (tmp_path / AUTH).write_text("npmdask:here")
    (tmp_path / AUTH).chmod(0o600)
    code = "import os, flows; print(os.environ.get('PREFECT_API_AUTH_STRING'))"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    for told, expected in (
        ({"PREFECT_API_URL": "http://127.0.0.1:4200/api"}, "npmdask:here"),
        ({"PREFECT_API_URL": "http://localhost:4200/api"}, "npmdask:here"),
        ({"PREFECT_API_URL": "http://localhost:4200/api", "PREFECT_API_AUTH_STRING": "npmdask:mine"}, "npmdask:mine"),
        ({"PREFECT_API_URL": "http://localhost:4200/api", "PREFECT_API_KEY": "key"}, "None"),
        ({"PREFECT_API_URL": "https://prefect.example/api"}, "None"),
        ({}, "None"),
    ):
        env = {**clean, **told, "PREFECT_HOME": str(tmp_path)}
        out = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert out.stdout.strip() == expected, told


def test_own_addresses_are_this_machines_and_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect-server:4200/api")
    monkeypatch.setenv("PREFECT_UI_API_URL", "https://user@Prefect.example/api")
    hosts, origins = own_addresses(4200)
    assert hosts == {"127.0.0.1:4200", "localhost:4200", "prefect-server:4200", "prefect.example"}
    assert origins == {*(f"http://{host}" for host in hosts if ":" in host), "https://prefect.example"}
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setenv("PREFECT_UI_API_URL", "/api")
    assert own_addresses(4200)[0] == {"127.0.0.1:4200", "localhost:4200"}
