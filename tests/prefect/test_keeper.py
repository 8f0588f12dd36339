"""The keeper beside a real Prefect server: schedules follow the file, silent runs are dead, dead ones start again."""

import json

import pytest

from tests.prefect.conftest import ROOT, Shop

pytestmark = pytest.mark.slow


def test_schedules_follow_the_file_and_runs_that_died_start_again(shop: Shop) -> None:
    shop.environment["PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS"] = "5"
    shop.environment["PYTHONPATH"] = str(ROOT)
    assert shop.run("-m", "tests.prefect.keeping", shop.folder) == 0, shop.err
    found = json.loads(shop.out.splitlines()[-1])

    before, after = found["moved"]["before"], found["moved"]["after"]
    assert before[0] == "flows.topics.topics" and after[0] == "npmdask.prefect.staged_runs.topics"
    assert (before[1], after[1]) == ({}, {"env": {"NPMDASK_FOLDER": str(shop.folder), "NPMDASK_TIMEZONE": "UTC"}})
    assert before[2:] == after[2:], "nothing else of it is touched: its schedule goes on"

    seen = found["schedules"]
    assert {name: facts[2] for name, facts in seen["new"].items()} == {"a": "0 2 * * *", "b": "0 3 * * *"}
    assert seen["same"] == seen["new"], "what has not changed is not touched: an interval would begin anew"
    assert {name: [facts[0], facts[2]] for name, facts in seen["lost"].items()} == {
        name: [facts[0], facts[2]] for name, facts in seen["new"].items()
    }, "what the server has lost comes back, though the file is as it was"
    assert seen["changed"]["a"] == seen["lost"]["a"] and seen["changed"]["b"][2] == "0 4 * * *"
    assert seen["wrong"] == seen["changed"] and "schedule b: cron = " in shop.err
    assert "schedules.toml cannot be read: No such file or directory. Name a file of schedules" in shop.err
    assert "to start from; the schedules that were good stay" in shop.err
    assert seen["gone"] == {"a": seen["lost"]["a"]}

    lives = found["lives"]
    assert lives["early"] == "Running: " and lives["after a loss of the server"] == "Running: "
    assert lives["silent"].startswith("Crashed: no sign of life for ")
    assert lives["taken by a worker that died"].startswith("Crashed: no sign of life for ")
    assert lives["speaks"] == "Running: "
    assert lives["over"].startswith("Completed") and lives["over, called crashed"] == lives["over"]
    assert lives["silent, later"].startswith("AwaitingRetry: goes on from its last commit (no sign of life")
    assert lives["seen before another keeper was first"] == "True", "it is not scheduled again"
    assert lives["silent, in the end"].startswith("Failed: crashed 3 times without lasting 60 s; the last time: again")

    heard = sorted(json.loads(line)["text"].partition(": ")[2] for line in found["told"]["heard"])
    assert heard == ["Crashed: gone", 'Failed: it said "no"', "Skipped: the same data"], "and nothing else"
    first, same, changed, none = found["told"]["known"]
    assert len(first) == len(changed) == 1 and none == []
    assert same == first != changed, "one automation, kept while the table is as it was"
    hook, *others, gone = found["told"]["hooks"]
    assert [name for name, _ in hook] == ["npmdask-notify"] and others == [hook] * 2, "other automations may have it"
    assert gone == [], "with the table the URL of the webhook goes"

    assert len(found["ticks"]) >= 3 and set(found["ticks"]) == {"Cancelled"}
