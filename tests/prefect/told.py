"""All that a Prefect server was told of a run, and what of it nobody should have been told."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from npmdask.prefect.server import ask

RUNS = ("flow_runs", "task_runs", "logs", "artifacts", "deployments", "flows", "variables", "block_documents")
PAGE = 200


def told(url: str, auth: str) -> str:
    """Everything that the API gives back: parameters, inputs, states with their results, logs, artifacts, events."""
    asked = partial(ask, url, auth=auth)
    found: dict[str, Any] = {name: _all(asked, f"/{name}/filter") for name in RUNS}
    for kind in ("flow_run", "task_run"):
        for run in found[f"{kind}s"]:
            found[f"states of {run['id']}"] = asked(f"/{kind}_states/?{kind}_id={run['id']}")
    events = asked("/events/filter", {"limit": 50})
    found["events"] = events["events"]
    while events.get("next_page"):
        events = asked(events["next_page"].removeprefix(url))
        found["events"] += events["events"]
    return json.dumps(found)


def _all(asked: Callable[..., Any], path: str) -> list[Any]:
    found: list[Any] = []
    while more := asked(path, {"limit": PAGE, "offset": len(found)}):
        found += more
    return found


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """What is not to be told: of the data, and of the run."""

    fingerprint: str
    rows: int
    row_bytes: int
    key: bytes
    exact: tuple[float, ...]  # statistics that were not released

    def found_in(self, text: str) -> list[str]:
        """Names of what ``text`` gives away."""
        numbers = re.findall(r"-?\d+\.\d+(?:e[+-]?\d+)?", text)
        close = [n for n in numbers for x in self.exact if abs(float(n) - x) <= 1e-9 * abs(x)]
        given = {
            "fingerprint": self.fingerprint[:12] in text,
            "number of rows": any(
                self._number(n) in self._numbers(text) for n in (self.rows, self.rows * self.row_bytes)
            ),
            "key": any(form in text for form in self._forms()),
            "path of the key": re.search(r"/entropy\b", text) is not None,
            "size or rate": re.search(r"\b[GM]i?B(/s)?\b|\bchunks?\b|bytes_read|\d bytes\b|peak_rss", text) is not None,
            "exact values": bool(close),
        }
        return [name for name, there in given.items() if there]

    def found_below(self, folder: Path) -> list[str]:
        """Files that hold the fingerprint or the key, in any of its forms."""
        forms = [self.key, *(form.encode() for form in self._forms()), self.fingerprint[:12].encode()]
        files = [path for path in folder.rglob("*") if path.is_file()]
        return [str(path) for path in files if any(form in path.read_bytes() for form in forms)]

    def _forms(self) -> list[str]:
        return [self.key.hex(), base64.b64encode(self.key).decode().rstrip("="), repr(self.key)[2:-1]]

    @staticmethod
    def _number(n: int) -> str:
        return str(n)

    @staticmethod
    def _numbers(text: str) -> set[str]:
        return set(re.findall(r"(?<![\w.-])\d+(?![\w.-])", text))
