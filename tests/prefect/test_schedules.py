"""The file of what runs when: read, checked, and made known to a server as it is, and as it changes."""

import json
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prefect.server.utilities.user_templates import render_user_template_sync

from npmdask.cli.main import main
from npmdask.cli.parser import SCHEDULES_SCHEMA
from npmdask.errors import BadInputError
from npmdask.prefect import serve
from npmdask.prefect.keeper import PAYLOAD
from npmdask.prefect.schedules import FLOWS, ScheduleEntry, read_notify, read_schedules, schedules_schema_text
from npmdask.prefect.serve import DATA, FILES, SCHEDULES

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
[[schedule]]
name = "nightly"
flow = "npm"
config = "sub/a.toml"
cron = "0 2 * * *"
timezone = "Europe/Berlin"
at_once = 2

[[schedule]]
name = "papers"
flow = "topics"
every = 600
parameters = { documents = "docword.txt", count = 5 }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.toml").write_text('[source]\npath = "../a.zarr"\n[algorithm]\ntarget_rank = 5\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_one_source_is_one_queue_however_it_is_written(folder: Path) -> None:
    """Else two runs of the same data are at work at once, which the queue is there to prevent."""
    spellings = [
        "../a.zarr",
        str(folder / "a.zarr"),
        f"{folder}/a.zarr/",
        f"file://{folder}/a.zarr",
        "../sub/../a.zarr",
    ]
    text = ""
    spellings += ["../b.zarr"]  # and changes name the same
    for number, path in enumerate(spellings):
        (folder / "sub" / f"{number}.toml").write_text(f'[source]\npath = "{path}"\n[algorithm]\ntarget_rank = 5\n')
        text += f'[[schedule]]\nname = "n{number}"\nflow = "npm"\nconfig = "sub/{number}.toml"\nevery = 60\n'
    text += 'parameters = { changes = { "source.path" = "a.zarr" } }\n'
    (folder / "s.toml").write_text(text)
    planned = read_schedules(folder / "s.toml")
    assert {one.data for one in planned} == {str((folder / "a.zarr").resolve())}
    assert len({one.queue for one in planned}) == 1


def test_paths_are_those_of_the_file_and_runs_are_in_the_working_folder(folder: Path) -> None:
    (folder / "s.toml").write_text(GOOD)
    npm, topics = read_schedules(folder / "s.toml")
    assert npm.data == f"{folder}/a.zarr" or npm.data == f"{folder}/sub/../a.zarr"
    assert npm.parameters["config"]["run"]["store"] == str(folder / "elsewhere" / "runs" / "nightly")
    assert npm.parameters["run_id"] == "nightly" and npm.at_once == 2 and not npm.begins
    assert topics.parameters["documents"] == str(folder / "docword.txt") and topics.begins
    assert topics.parameters["folder"] == str(folder / "elsewhere" / "runs")
    assert npm.folder == topics.folder == folder, "relative paths of parameters are those of the file, too"
    assert npm.queue != topics.queue, "a limit is of one data set"
    again, changed = read_schedules(folder / "s.toml")[0], GOOD.replace("0 2", "0 3")
    (folder / "s.toml").write_text(changed)
    assert again.version == npm.version != read_schedules(folder / "s.toml")[0].version


@pytest.mark.slow
def test_each_schedule_says_when_it_runs_next_in_its_own_time_zone(folder: Path) -> None:
    (folder / "s.toml").write_text(GOOD)
    npm, topics = read_schedules(folder / "s.toml")
    before, after = datetime(2026, 3, 27, 23, 30, tzinfo=UTC), datetime(2026, 3, 29, 12, 0, tzinfo=UTC)
    assert npm.timing(before).startswith("cron 0 2 * * * (Europe/Berlin), next tick Sat 2026-03-28 02:00 CET; ")
    assert npm.timing(after).startswith("cron 0 2 * * * (Europe/Berlin), next tick Mon 2026-03-30 02:00 CEST; ")
    every = "every 10 minutes, first tick when it is served for the first time, then 10 minutes after each"
    assert topics.timing(before) == every
    (folder / "s.toml").write_text(GOOD.replace("at_once = 2", "paused = true"))
    assert read_schedules(folder / "s.toml")[0].timing(before) == "cron 0 2 * * * (Europe/Berlin), paused: no tick"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cron", "zone", "said"),
    [
        (
            "30 2 * * *",
            "Europe/Berlin",
            [
                "Sun 2026-10-25 has 02:30 twice, and Prefect ticks at Sun 02:30 CEST",
                "Sun 2027-03-28 has no 02:30, and Prefect ticks at Sun 01:30 CET",
            ],
        ),
        (
            "0 * * * *",
            "Europe/Berlin",
            [
                "Sun 2026-10-25 has 02:00 twice, and Prefect ticks at Sun 02:00 CEST",
                "Sun 2027-03-28 has no 02:00, and Prefect ticks at Sun 01:00 CET, Sun 03:00 CEST",
            ],
        ),
        (
            "* * * * *",
            "America/New_York",
            [
                "Sun 2026-11-01 has 01:00 to 01:59 twice, and Prefect ticks at Sun 01:00 EDT to Sun 01:59 EDT",
                "Sun 2027-03-14 has no 02:00 to 02:59, and Prefect ticks at Sun 01:00 EST to Sun 03:59 EDT",
            ],
        ),
        ("0 4 * * *", "Europe/Berlin", []),
        ("30 2 * * *", "Asia/Tokyo", []),
    ],
)
def test_hours_that_a_clock_skips_or_doubles_are_said(folder: Path, cron: str, zone: str, said: list[str]) -> None:
    """As the installed Prefect does it: fails where it would do otherwise, too."""
    (folder / "s.toml").write_text(GOOD.replace("0 2 * * *", cron).replace("Europe/Berlin", zone))
    told = read_schedules(folder / "s.toml")[0].timing(datetime(2026, 4, 1, 12, 0, tzinfo=UTC))
    assert re.sub(r".*, next tick [^;]*(; )?", "", told) == "; ".join(said)


@pytest.mark.slow
def test_a_day_of_leap_years_comes_and_one_of_no_year_does_not(folder: Path) -> None:
    for cron, due in (("0 0 29 2 *", "Tue 2028-02-29 00:00 CET"), ("@daily", "Sat 2026-11-28 00:00 CET")):
        (folder / "s.toml").write_text(GOOD.replace("0 2 * * *", cron))
        told = read_schedules(folder / "s.toml")[0].timing(datetime(2026, 11, 27, 12, tzinfo=UTC))
        assert told == f"cron {cron} (Europe/Berlin), next tick {due}"
    (folder / "s.toml").write_text(GOOD.replace("0 2 * * *", "0 0 30 2 *"))
    assert serve.main([str(folder / "s.toml"), "--check"]) == 2


def test_the_check_shows_all_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "s.toml").write_text(GOOD)
    assert serve.main([str(folder / "s.toml"), "--check"]) == 0
    nightly, papers = capsys.readouterr().out.splitlines()
    assert nightly.startswith("nightly: npm on ") and "a.zarr; cron 0 2 * * * (Europe/Berlin), next tick " in nightly
    assert papers.startswith(f"papers: topics on {folder}/docword.txt; every 10 minutes, ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "papers"', 'name = "nightly"', "two schedules are called 'nightly'"),
        ('name = "papers"', 'name = "../papers"', "use letters, digits, dots"),
        (
            'cron = "0 2 * * *"',
            'cron = "every night"',
            "schedule nightly: cron = 'every night' is not a valid time: write minute",
        ),
        (
            'cron = "0 2 * * *"',
            'cron = "0 0 2 * * *"',
            "schedule nightly: cron = '0 0 2 * * *' has 6 fields, not 5: write minute, hour",
        ),
        (
            'cron = "0 2 * * *"',
            'cron = "0 0 30 2 *"',
            "schedule nightly: cron = '0 0 30 2 *' never comes: no year has such a day",
        ),
        ('cron = "0 2 * * *"', "", "nightly: say when it runs, with either `every` or `cron`"),
        ("every = 600", 'every = 600\ncron = "0 2 * * *"', "papers: say when it runs"),
        ("every = 600", "every = 0", "schedule.2.every = 0: a number above 0 is needed"),
        ("every = 600", "every = inf", "schedule.2.every = inf: a finite number is needed"),
        ('timezone = "Europe/Berlin"', 'timezone = "Europe/Berlyn"', "did you mean 'Europe/Berlin'"),
        ('flow = "npm"', 'flow = "nmp"', "schedule.1.flow = 'nmp': did you mean 'npm'?"),
        ('config = "sub/a.toml"', "", "nightly: the flow npm needs a configuration"),
        ('config = "sub/a.toml"', 'config = "b.toml"', "there is no configuration"),
        ("every = 600", 'every = 600\nconfig = "sub/a.toml"', "the flow topics takes no configuration"),
        ("count = 5", "count = 0", "the parameters do not fit the flow topics: count = 0: "),
        (
            "count = 5",
            "counts = 5",
            "the parameters do not fit the flow topics: it has no parameter 'counts': did you mean 'count'",
        ),
        ("at_once = 2", "at_once = 2\nretries = 3", "unknown key 'schedule.1.retries': "),
        ("[[schedule]]", "[[schedules", "is not a TOML file: line "),
    ],
)
def test_what_is_wrong_is_said(folder: Path, old: str, new: str, said: str) -> None:
    (folder / "s.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(BadInputError, match=re.escape(said)):
        read_schedules(folder / "s.toml")


def test_no_file_at_all(folder: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read: No such file"):
        read_schedules(folder / "none.toml")


def test_the_example_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (only,) = read_schedules(tmp_path / SCHEDULES)
    assert (only.name, only.flow.name, only.begins) == ("example", "npm", True)
    assert only.data == str(tmp_path / DATA)
    assert only.parameters["config"]["run"]["store"] == str(tmp_path / "runs" / "example")


@pytest.fixture(scope="module")
def held() -> Any:
    """The committed schema."""
    schema = json.loads(SCHEDULES_SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_that_is_committed_is_that_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert SCHEDULES_SCHEMA.read_text() == schedules_schema_text(), "write schedules_schema_text() into it"
    assert main(["schema", "--schedules"]) == 0
    assert capsys.readouterr().out == SCHEDULES_SCHEMA.read_text()


def test_the_schema_takes_what_is_read(held: Any) -> None:
    pages = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"```toml\n(.*?)```", page, re.S)]
    blocks = [block for block in blocks if "[[schedule]]" in block]
    files = [path.read_text() for path in ROOT.glob("data/*schedules.toml")]
    assert blocks and files
    example = FILES[SCHEDULES]
    whole = re.sub(r"(?m)^# (?=[a-z\[])", "", example.partition("\n\n")[2])  # with what is there as a comment
    for text in (GOOD, example, whole, *blocks, *files):
        assert [error.message for error in held.iter_errors(tomllib.loads(text))] == [], text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('flow = "topics"', 'flow = "topcis"'),
        ("every = 600", 'every = 600\ncron = "0 2 * * *"'),
        ("every = 600\n", ""),
        ("every = 600", "every = 0"),
        ('config = "sub/a.toml"\n', ""),
        ("every = 600", 'every = 600\nconfig = "sub/a.toml"'),
        ("count = 5", "cuont = 5"),
        (", count = 5", ""),
        ("count = 5", 'count = "five"'),
        ("at_once = 2", "at_onec = 2"),
    ],
)
def test_the_schema_refuses_what_is_not_read(held: Any, folder: Path, old: str, new: str) -> None:
    wrong = GOOD.replace(old, new)
    assert wrong != GOOD and not held.is_valid(tomllib.loads(wrong))
    (folder / "s.toml").write_text(wrong)
    with pytest.raises(BadInputError):
        read_schedules(folder / "s.toml")


def test_every_key_and_every_parameter_is_described() -> None:
    schema = json.loads(SCHEDULES_SCHEMA.read_text())["$defs"]["ScheduleEntry"]
    assert set(schema["properties"]) == set(ScheduleEntry.model_fields)
    said = [*schema["properties"].values()]
    for part, name in zip(schema["allOf"], FLOWS, strict=True):
        assert part["if"]["properties"]["flow"]["const"] == name
        said += part["then"]["properties"]["parameters"]["properties"].values()
    assert len(said) > 50 and all(field.get("description") for field in said)


def test_the_page_names_every_key() -> None:
    text = (ROOT / "docs" / "howto" / "operations.md").read_text()
    page = text.partition("### Keys of a schedule")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == set(ScheduleEntry.model_fields)


def test_notifications_go_to_a_url_that_there_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: a name that the environment lacks is posted to, and nothing is ever told; a secret that has changed
    leaves the table as it was; the sentence quotes the secret."""
    (folder / "s.toml").write_text('[notify]\nurl = "${NIGHTS_URL}/x"\n')
    monkeypatch.delenv("NIGHTS_URL", raising=False)
    with pytest.raises(BadInputError, match="set NIGHTS_URL in the environment"):
        read_notify(folder / "s.toml")
    monkeypatch.setenv("NIGHTS_URL", "secret")
    with pytest.raises(BadInputError, match="is no URL") as refused:
        read_notify(folder / "s.toml")
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("NIGHTS_URL", "https://hooks")
    told = read_notify(folder / "s.toml")
    assert told is not None and told.url == "https://hooks/x" and read_schedules(folder / "s.toml") == []


@pytest.mark.parametrize(
    ("flow", "parameters", "said"),
    [
        ("npm", {"config": {"privacy": None}, "changes": None}, 'n: Failed: it said "no"'),
        ("private-release", {}, "n: Failed"),
        ("streaming-update", {"config": {"privacy": {"epsilon": 1}}}, "n: Failed"),
        ("npm", {"config": "a.toml", "changes": {"privacy.epsilon": 1}}, "n: Failed"),
    ],
)
def test_no_webhook_is_told_why_a_private_run_failed(flow: str, parameters: dict[str, Any], said: str) -> None:
    """Its sentence may quote the data, and leaves the machine."""
    state = {"name": "Failed", "message": 'it said "no"'}
    run = {"name": "n", "parameters": parameters, "state": state}
    line = render_user_template_sync(PAYLOAD, {"flow": {"name": flow}, "flow_run": run})
    assert json.loads(line) == {"text": said}
