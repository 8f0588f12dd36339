"""What the flows share: where a run lives, errors as sentences, the report page, and the command line."""

import argparse
import json
import re
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

from httpx import HTTPError
from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed, State

from flows.publish import artifact_key, try_to
from flows.server import local_server
from npmdask.cli import INTERRUPTED, NOT_CONVERGED
from npmdask.config import RunConfig, load_config
from npmdask.errors import BadInputError, NpmdaskError
from npmdask.report import write_report
from npmdask.storage.copies import is_url, place_of_store

Made = TypeVar("Made", bound=Callable[..., Any])
Flow = Callable[..., dict[str, Any]]


def said_in_a_sentence(function: Made) -> Made:
    """An error that a user can act on fails the task or flow with its sentence, not with a page of traceback."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except NpmdaskError as error:
            return Failed(message=str(error), data=error)

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
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run_id):
        raise BadInputError(f"run_id {run_id!r}: use letters, digits, dots, dashes and underscores; it names a folder")
    return place_of_store(f"{folder}/{run_id}" if is_url(folder) else Path(folder) / run_id)


def at_store(config: RunConfig, run_id: str) -> RunConfig:
    """The configuration with its store: the one that it names, or ``runs/RUN_ID``."""
    place = place_of("runs", run_id)
    store = place_of_store(config.run.store) if config.run.store else place
    return config.model_copy(update={"run": config.run.model_copy(update={"store": store})})


def publish_report(run_id: str, facts: dict[str, Any]) -> str:
    """Write the page of the run beside its checkpoints; an artifact says where, with the figures."""
    page = str(write_report(facts["store"]))
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items() if not isinstance(value, list))
    text = f"# {run_id}\n\n{facts['sentence']}\n\nReport: `{page}`\n\n| fact | value |\n|---|---|\n{rows}\n"
    try_to(partial(create_markdown_artifact, text, key=f"{artifact_key(run_id)}-report", description=page))
    return page


@task(cache_policy=NO_CACHE, persist_result=False)
@said_in_a_sentence
def report(run_id: str, facts: dict[str, Any]) -> str:
    """Write the HTML page of the run, and show where it is."""
    return publish_report(run_id, facts)


def main(flow: Flow, argv: Sequence[str] | None = None, **more: int) -> int:
    """Run ``flow`` on a configuration file, with a Prefect server of its own unless one is set."""
    parser = argparse.ArgumentParser(description=flow.__doc__)
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the last line of stdout is one JSON object")
    for name, value in more.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args(argv)
    return exit_code(lambda: once(a, flow, *load(a), **{name: getattr(a, name) for name in more}))


def once(a: argparse.Namespace, flow: Flow, config: RunConfig, run_id: str, **more: int) -> int:
    """One run of ``flow``; prints its facts and returns the exit code."""
    with local_server(getattr(a, "port", None)) as url:
        say(f"Prefect at {url.removesuffix('/api')}")
        try:
            facts = flow(config, run_id=run_id, **more)
        except NotConvergedError as error:
            say(str(error))
            facts = error.facts
    print(json.dumps(facts) if a.json else "\n".join(f"{name:20} {value}" for name, value in facts.items()))
    return 0 if facts["answered"] else NOT_CONVERGED


def exit_code(run: Callable[[], int]) -> int:
    """What ``run`` returns, or the code of the error that it raised: the same codes as ``npmdask``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` leaves it ignored
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run()
    except NpmdaskError as error:
        say(str(error))
        return error.exit_code
    except HTTPError as error:
        say(f"the Prefect server is gone ({error}); everything committed is kept; run the same command again")
        return INTERRUPTED
    except KeyboardInterrupt:
        say("interrupted, everything committed is kept; run the same command again to go on")
        return INTERRUPTED


def say(sentence: str) -> None:
    """A line for the person, apart from the output."""
    print(f"npmdask: {sentence}", file=sys.stderr, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run, under which name."""
    parser.add_argument("config", help="a TOML file, as for `npmdask run`")
    parser.add_argument("--run-id", help="name of the run: its store is runs/ID beside the file, not the file's own")
    parser.add_argument("--store", help="folder of the run, instead of the one in the file")


def load(a: argparse.Namespace, check: Callable[[RunConfig], Any] = RunConfig.check) -> tuple[RunConfig, str]:
    """The configuration with absolute paths, found good by ``check`` (which opens its source), and the run id."""
    run_id = a.run_id or re.sub(r"[^A-Za-z0-9._-]", "-", Path(a.config).stem)
    named = Path(a.config).absolute().parent / "runs" / run_id if a.run_id else None
    config = at_store(load_config(a.config, store=a.store or (str(named) if named else None)), run_id)
    check(config)
    return config, run_id
