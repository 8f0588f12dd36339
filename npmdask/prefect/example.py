"""Write the example of ``npmdask serve --example``: small data, a configuration and a schedule, in their own folder."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from npmdask.cli.parser import SCHEDULES_SCHEMA, SCHEMA
from npmdask.errors import BadInputError
from npmdask.prefect.programs import say
from npmdask.storage.synthetic import generate

ROWS, COLUMNS = 65536, 256  # 64 MiB: made in a second, and a first run of seconds
DATA, CONFIG, SCHEDULES = "example.zarr", "example.toml", "schedules.toml"
OF_ANOTHER_DATABASE = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL")
FILES = {
    CONFIG: """# The run of the example; every key and what it means: `npmdask init NAME`.
[source]
path = "example.zarr"
center = true

[algorithm]
target_rank = 10

[run]
memory = "1GiB"
""",
    SCHEDULES: """# What `npmdask serve` runs, and when. A change counts within seconds, while it serves.
# `npmdask serve schedules.toml --check` says what is wrong with it.

[[schedule]]
name = "example"
flow = "npm"
config = "example.toml"         # relative to this file
every = 60                      # seconds; a finished run answers at once, so a tick costs nothing until the data change

# [[schedule]]
# name = "nightly-topics"
# flow = "topics"
# cron = "0 2 * * *"
# timezone = "Europe/Berlin"
# [schedule.parameters]
# documents = "docword.txt.gz"
# count = 20
""",
}


@contextmanager
def example(wanted: str) -> Iterator[Path]:
    """Make the example and work in its folder: ``wanted``, or a temporary one that is deleted at the end.

    Prefect's files are there, too: the server has none of the schedules of another database, and leaves it alone. What
    is in the folder already stays, so that the example can be changed and served again.

    Raises
    ------
    BadInputError
        The folder cannot be made.
    """
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="npmdask-example-", ignore_cleanup_errors=True) as temporary:
        folder = Path(wanted or temporary).absolute()
        make_example(folder)
        say(f"the example is in {folder}{'' if wanted else ', and is deleted at the end'}: {SCHEDULES} says what runs")
        os.environ["PREFECT_HOME"] = str(folder / "runs" / ".prefect")
        (folder / "runs" / ".prefect").mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in OF_ANOTHER_DATABASE:
            os.environ.pop(name, None)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def make_example(folder: Path) -> None:
    """Write data, configuration and schedule, those that are not there.

    Raises
    ------
    BadInputError
        The folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / DATA).exists():
            generate(folder / DATA, problem="spectrum", spectrum="harmonic", kind="samples", rows=ROWS, columns=COLUMNS)
        for name, text in FILES.items():
            if not (folder / name).exists():
                (folder / name).write_text(
                    f"#:schema {(SCHEDULES_SCHEMA if name == SCHEDULES else SCHEMA).as_uri()}\n{text}"
                )
    except OSError as error:
        raise BadInputError(
            f"the example cannot be made in {folder} ({error.strerror}): name another folder, or none"
        ) from None
