"""Limit what Prefect learns of a private run to public numbers and releases. No path of a key, no bytes, no rows.

Of an error only its kind is shown, unless it is the sentence of a budget.
"""

import traceback
from functools import partial, wraps
from typing import Any

from prefect import get_run_logger
from prefect.states import Failed

from npmdask.errors import BudgetError, CommitError, FencedOutError, HeldError, LostError, NpmdaskError
from npmdask.prefect.programs import say
from npmdask.prefect.publish import progress_text, show, try_to
from npmdask.prefect.tasks import Made, step
from npmdask.runs.observers import Observer
from npmdask.runs.solution import Step

KINDS = (
    LostError,
    CommitError,
    FencedOutError,
    HeldError,
)  # which decide how a flow run ends


def said_discreetly(function: Made) -> Made:
    """Prefect gets the sentence of a budget. Other errors may quote the data (a shape, a chunk, a path of the key):
    the user of this process reads them on stderr, and Prefect learns their kind."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (BudgetError, WithheldError) as error:
            return Failed(message=str(error), data=error)
        except NpmdaskError as error:
            say(str(error))
            held_back = withheld(error)
        except Exception as error:
            traceback.print_exc()
            held_back = withheld(error)
        return Failed(message=str(held_back), data=held_back)  # Prefect logs the data of a failed task too

    return call  # type: ignore[return-value]


discreet_step = partial(step, said=said_discreetly)


class WithheldError(NpmdaskError):
    """What Prefect sees of an error whose sentence is not for it; with the exit code of that error."""

    def __init__(self, error: Exception) -> None:
        kind = type(error).__name__
        super().__init__(f"{kind}: what it says may tell of the data; it is on stderr of the process of this run")
        self.exit_code = getattr(error, "exit_code", NpmdaskError.exit_code)
        self.owner = getattr(error, "owner", "")  # of a HeldError: public


def withheld(error: Exception) -> WithheldError:
    """``error`` without its sentence, of the same kind still where that decides how the flow run ends."""
    kind = next((kind for kind in KINDS if isinstance(error, kind)), None)
    made: type[WithheldError] = WithheldError if kind is None else type(kind.__name__, (WithheldError, kind), {})
    return made(error)


class Announcer(Observer):
    """Says which release was made, and nothing else."""

    def __init__(self, name: str, releases: int) -> None:
        self._name, self._releases, self._log = name, releases, get_run_logger()

    def on_step(self, step: Step) -> None:
        said = f"release {step.number} of {self._releases} is made"
        self._log.info(said)
        percent = 100 * step.number / self._releases
        try_to(partial(show, self._name, "progress", progress_text(said, percent), said))
