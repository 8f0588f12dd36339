"""The status of runs below a folder for Prometheus: what ``npmdask status`` says, as numbers (docs/howto/observing.md).

Nothing is counted or kept in here: every scrape reads the stores, without a lock, so that any number of exporters may
look, and one that was down has missed nothing. Of private runs there is what ``npmdask status`` tells of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npmdask.core.storage.paths import local_path
from npmdask.errors import BadInputError, NpmdaskError, RefusedError, extra
from npmdask.manage.status import Night, RunStatus, nights_of, status_below

if TYPE_CHECKING:
    from npmdask.ledger import Ledger

STATES = ("running", "hung", "crashed", "unfinished", "waiting", "finished", "damaged")
RUN = ("run", "what")
NUMBERS: dict[str, tuple[str, Callable[[RunStatus], float | None]]] = {
    "step": ("steps (of a stream: of its model) that are committed, of a job in the stage under way", lambda s: s.step),
    "max_steps": ("steps after which the run gives up, or has made all its releases", lambda s: s.max_steps),
    "residual": ("worst relative residual of the last step", lambda s: s.residual),
    "last_commit_timestamp_seconds": ("when something was last committed", lambda s: s.last_commit),
    "crashes": ("starts in a row that died without committing anything", lambda s: s.crashes),
    "disk_bytes": ("what the store of the run takes on disk", lambda s: s.bytes),
}

NIGHTS: tuple[tuple[str, str, Callable[[Night], float | None]], ...] = (
    ("failures", "runs in a row that failed, also before they had a store; 0: the last one ended well",
     lambda night: night.failures),
    ("last_end_timestamp_seconds", "when the last run ended, well or not", lambda night: night.ended),
    ("last_success_timestamp_seconds", "when a run last ended well", lambda night: night.succeeded),
)  # fmt: skip


class Exporter:
    """Reads the runs below ``folder``, and the budgets of ``ledger``, whenever it is asked.

    Raises
    ------
    RefusedError
        The extra ``metrics`` is not installed.
    """

    def __init__(self, folder: str | Path, ledger: Ledger | None = None) -> None:
        self._client = require_client()
        self._folder, self._ledger = local_path(folder, "the folder of the runs"), ledger
        self.registry = self._client.CollectorRegistry()
        self.registry.register(self)

    def text(self) -> str:
        """All metrics in the text format."""
        return str(self._client.generate_latest(self.registry).decode())

    def write(self, file: str | Path) -> None:
        """The same into a file that appears whole, for the textfile collector of node_exporter (``NAME.prom``)."""
        self._client.write_to_textfile(str(local_path(file, "the file for Prometheus")), self.registry)

    def serve(self, port: int, host: str = "127.0.0.1") -> tuple[Any, threading.Thread]:
        """Answer scrapes in a thread; returns the server, which knows its port, and the thread.

        Raises
        ------
        RefusedError
            The port is taken.
        """
        try:
            made: tuple[Any, threading.Thread] = self._client.start_http_server(port, host, self.registry)
        except OSError as error:
            raise RefusedError(f"port {port} of {host} cannot be had ({error.strerror}); choose another") from error
        return made

    def collect(self) -> Iterator[Any]:
        """Called by prometheus-client at every scrape."""
        try:
            found: Sequence[RunStatus] = status_below(self._folder)
            up = 1
        except BadInputError:
            found, up = (), 0
        yield self._gauge("npmdask_up", "whether the folder of the runs can be read", (), [((), up)])
        for name, (said, number) in NUMBERS.items():
            known = [((s.name, s.what), number(s)) for s in found]
            yield self._gauge(f"npmdask_run_{name}", said, RUN, [(of, x) for of, x in known if x is not None])
        states = [((s.name, s.what, state), float(s.state == state)) for s in found for state in STATES]
        yield self._gauge("npmdask_run_state", "1 for the state that the run is in", (*RUN, "state"), states)
        yield from self._nights()
        yield from self._budgets()

    def _nights(self) -> Iterator[Any]:
        """Yield how the last run of each schedule ended: one that fails before it begins has no store."""
        found = nights_of(self._folder)
        for name, said, number in NIGHTS:
            rows = [((night.schedule,), number(night)) for night in found]
            known = [(of, value) for of, value in rows if value is not None]
            yield self._gauge(f"npmdask_schedule_{name}", said, ("schedule",), known)

    def _budgets(self) -> Iterator[Any]:
        if self._ledger is None:
            return
        try:
            accounts, up = self._ledger.statuses(), 1
        except NpmdaskError:
            accounts, up = [], 0
        yield self._gauge("npmdask_ledger_up", "whether the ledger can be read, and is whole", (), [((), up)])
        for name, said in (("granted", "that runs may spend together"), ("left", "that one more run may ask for")):
            rows = [
                ((one.dataset,), one.grant.budget.epsilon if name == "granted" else one.left_epsilon)
                for one in accounts
            ]
            yield self._gauge(f"npmdask_ledger_epsilon_{name}", f"epsilon {said}", ("dataset",), rows)

    def _gauge(self, name: str, said: str, labels: Sequence[str], rows: Sequence[tuple[Sequence[str], Any]]) -> Any:
        family = self._client.core.GaugeMetricFamily(name, said, labels=labels)
        for of, number in rows:
            family.add_metric(of, float(number))
        return family


def require_client() -> Any:
    """The module ``prometheus_client``.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    with extra("metrics"):
        import prometheus_client
        import prometheus_client.core
    return prometheus_client
