"""What the flows share: steps as tasks, errors as sentences, the state that a run ends in."""

import signal
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

from httpx import HTTPError
from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed, State

from npmdask.checkpoint.logging import tell
from npmdask.cli.main import INTERRUPTED, end_when_asked
from npmdask.cli.models import NOT_CONVERGED
from npmdask.errors import NpmdaskError
from npmdask.manage.report import write_report
from npmdask.prefect.publish import artifact_key, try_to
from npmdask.prefect.reports import link_to
from npmdask.report import Report, Text, as_markdown
from npmdask.report.blocks import section, table
from npmdask.runs.observers import stop_bars

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
    """The state that a flow run ends in: red if it did not converge, so that it is not taken for an answer."""
    if facts["answered"]:
        return Completed(message=facts["sentence"], data=facts)
    return Failed(message=facts["sentence"], data=NotConvergedError(facts))


def publish_report(run_id: str, facts: dict[str, Any]) -> str:
    """Write the page of the run beside its checkpoints; an artifact links it (or says where), with the figures."""
    page = str(write_report(facts["store"]))
    link = link_to(page)
    where = section("Report", Text(text=link, address=link) if link else None, Text(text=page, style="code"))
    rows = ((name, value) for name, value in facts.items() if not isinstance(value, list))
    shown = Report(
        title=run_id,
        outcome=facts["sentence"],
        good=bool(facts["answered"]),
        error_statement=facts.get("assurance", ""),
        sections=(where, section("Facts", table(rows, ("fact", "value")))),
    )
    text = as_markdown(shown)
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
