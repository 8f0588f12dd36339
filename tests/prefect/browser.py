"""A headless Chromium, driven by the WebDriver protocol: Debian's packages chromium and chromium-driver."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from npmdask.prefect.server import free_port

QUIET = (
    "--headless",
    "--no-sandbox",  # root, as in CI, cannot have one
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # key of an element, by the standard


def missing() -> list[str]:
    """Programs that the tests need and this machine lacks."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


class Browser:
    """One window."""

    def __init__(self, driver: str, profile: Path, resolver: str) -> None:
        arguments = [*QUIET, f"--user-data-dir={profile}", f"--host-resolver-rules={resolver}"]
        options = {"goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")}}
        self._url = driver
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self._url = f"{driver}/session/{made['sessionId']}"
        self._ask("POST", "/timeouts", {"script": 240000, "pageLoad": 240000})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        with build_opener(ProxyHandler({})).open(request, timeout=300) as answer:
            return json.loads(answer.read())["value"]

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What the body of an async function returns; ``arguments`` are its ``args``."""
        code = (
            "const done = arguments[arguments.length - 1], args = [...arguments];"
            f"(async () => {{ {script} }})().then(done, error => done('' + error));"
        )
        return self._ask("POST", "/execute/async", {"script": code, "args": list(arguments)})

    def type(self, selector: str, text: str) -> None:
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]
        self._ask("POST", f"/element/{found}/value", {"text": text})

    def command(self, name: str, **parameters: Any) -> Any:
        """Answer a command of Chromium's own protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    @property
    def text(self) -> str:
        """What the page shows."""
        return str(self.run("return document.body.innerText"))

    def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def close(self) -> None:
        self._ask("DELETE", "")


@contextmanager
def browser(folder: Path, resolver: str = "") -> Iterator[Browser]:
    """A browser with a profile of its own in ``folder``. ``resolver``: its rules for names, in Chromium's words."""
    port = free_port()
    profile = folder / "profile"
    profile.mkdir()
    with open(folder / "driver.log", "wb") as log:
        driver = subprocess.Popen(
            ["chromedriver", f"--port={port}", "--allowed-ips=127.0.0.1"],
            stdout=log,
            stderr=log,
            env=os.environ | {"HOME": str(folder)},
        )
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 180
        while True:
            try:
                with build_opener(ProxyHandler({})).open(f"{url}/status", timeout=60):
                    break
            except (URLError, OSError):
                assert driver.poll() is None and time.monotonic() < deadline, (folder / "driver.log").read_text()
                time.sleep(0.1)
        made = Browser(url, profile, resolver)
        try:
            yield made
        finally:
            made.close()
    finally:
        driver.terminate()
        driver.wait(120)
