"""What the flows share: where a run lives, steps as tasks, errors as sentences, the state that a run ends in."""

import signal
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from httpx import HTTPError
from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed, State

from flows.publish import artifact_key, said_of, try_to
from flows.reports import link_to
from npmdask.checkpoint.logging import tell
from npmdask.checkpoint.remote.mirror import place_of_store
from npmdask.cli.main import INTERRUPTED, end_when_asked
from npmdask.cli.models import NOT_CONVERGED
from npmdask.config import RunConfig
from npmdask.errors import NpmdaskError, RefusedError
from npmdask.manage.report import write_report
from npmdask.runs.observers import stop_bars
from npmdask.storage.paths import is_url, require_name

Made = TypeVar("Made", bound=Callable[..., Any])


def said_in_a_sentence(function: Made) -> Made:
    """An error that a user can act on fails the task or flow with its sentence, not with a page of traceback."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except NpmdaskError as error:
            return Failed(message=str(error), data=error)

    return call  # type: ignore[return-value]


def step(function: Made, said: Callable[[Made], Made] = said_in_a_sentence) -> Made:
    """A task of a flow run. What it takes and returns is kept nowhere, and its errors are sentences.

    Called it returns its result or raises its error; a task of Prefect would return a State in place of the error.
    """
    made: Any = task(cache_policy=NO_CACHE, persist_result=False, retries=0)(said(function))

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return made(*args, return_state=True, **kwargs).result()

    return call  # type: ignore[return-value]


class NotConvergedError(NpmdaskError):
    """The run ended without reaching its tolerance; ``facts`` says how far it came."""

    exit_code = NOT_CONVERGED

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(facts["sentence"])
        self.facts = facts


def end_state(facts: dict[str, Any]) -> State[Any]:
    """The state that a flow run ends in: red if it did not converge, so that nobody takes it for an answer."""
    if facts["answered"]:
        return Completed(message=facts["sentence"], data=facts)
    return Failed(message=facts["sentence"], data=NotConvergedError(facts))


def place_of(folder: str, run_id: str) -> str:
    """The folder of a run. Its name comes from outside: raises BadInputError where it is none."""
    require_name(run_id, "run_id")
    return place_of_store(f"{folder}/{run_id}" if is_url(folder) else Path(folder) / run_id)


def at_store(config: RunConfig, run_id: str) -> RunConfig:
    """The configuration with its store: the one that it names, or ``runs/RUN_ID``.

    Raises
    ------
    BadInputError
        The name of the run cannot be that of a folder.
    RefusedError
        A password is in the configuration, which Prefect keeps and shows.
    """
    _require_no_secret(config)
    place = place_of("runs", run_id)
    store = place_of_store(config.run.store) if config.run.store else place
    return config.model_copy(update={"run": config.run.model_copy(update={"store": store})})


def _require_no_secret(config: RunConfig) -> None:
    ledger = urlsplit((config.privacy and config.privacy.ledger) or "")
    if ledger.password or "password" in parse_qs(ledger.query):
        raise RefusedError(
            "privacy.ledger holds a password, and Prefect keeps and shows the parameters of a run: leave it out and "
            "set NPMDASK_LEDGER in the environment of the process that runs it, or put the password into its ~/.pgpass"
        )


def require_plain(config: RunConfig) -> None:
    """Refuse what has a flow of its own, whose steps are other ones: private releases, and data that lie with nodes.

    Raises
    ------
    RefusedError
        The sentence names the flow.
    """
    if config.privacy is not None:
        raise RefusedError(
            "the configuration asks for a private release: run it with `python -m flows.private_release`"
        )
    if config.source.nodes is not None:
        raise RefusedError(
            "the data of this configuration lie with nodes: run it with `python -m flows.distributed_private_pca`"
        )


def check_plain(config: RunConfig) -> None:
    """The same, and what else can be checked without reading: for doors, before a server is started."""
    require_plain(config)
    config.check()


def publish_report(run_id: str, facts: dict[str, Any]) -> str:
    """Write the page of the run beside its checkpoints; an artifact links it (or says where), with the figures."""
    page = str(write_report(facts["store"]))
    link = link_to(page)
    where = f"`{page}`" if link is None else f"[{link}]({link}) (`{page}`)"
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items() if not isinstance(value, list))
    said = said_of(facts["sentence"], facts.get("assurance", ""))
    text = f"# {run_id}\n\n{said}\n\nReport: {where}\n\n| fact | value |\n|---|---|\n{rows}\n"
    try_to(partial(create_markdown_artifact, text, key=f"{artifact_key(run_id)}-report", description=page))
    return page


def exit_code(run: Callable[[], int]) -> int:
    """What ``run`` returns, or the code of the error that it raised: the same codes as ``npmdask``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` leaves it ignored
    end_when_asked()
    try:
        return run()
    except NpmdaskError as error:
        say(str(error))
        return error.exit_code
    except HTTPError as error:
        say(f"the Prefect server is gone ({error}); everything committed is kept; run the same command again")
        return INTERRUPTED
    except KeyboardInterrupt:
        stop_bars()
        say("interrupted, everything committed is kept; run the same command again to go on")
        return INTERRUPTED


def say(sentence: str) -> None:
    """A line for the person, apart from the output."""
    print(f"npmdask: {sentence}", file=sys.stderr, flush=True)


def announce(sentence: str) -> None:
    """The same, of something that runs for long; and a line of the log."""
    say(sentence)
    tell("service", sentence)
