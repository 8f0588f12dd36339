"""A kind of run from outside, through every command that knows stores: nothing of npmdask changes for it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core import features
from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.checkpoint.store import CHECKPOINT_FORMAT, RunStore, not_finished
from npmdask.core.runs import kinds
from npmdask.errors import BadInputError, RefusedError
from npmdask.manage import RunKind, forget_kind, kind_of, kind_of_answer, register_kind
from npmdask.manage.kinds import all_kinds
from npmdask.manage.report import report_of, write_report
from npmdask.privacy.mechanisms import EntriesGaussian
from npmdask.report import Bars, Image, Map, Plot, Report, Section, Series, Table, Text, TopicMap
from npmdask.report.render import _script

EVIL = "<script>alert('1')</script>[x](http://e.vil)|&"
LABELS = ("a", EVIL)


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The answer of the toy: a sum of rows."""

    total: np.ndarray
    store: str
    outcome: Outcome
    assurance: str = "Exact: whole numbers."
    warnings: tuple[str, ...] = ()
    answered: bool = True


class Sums(RunKind):
    """Adds one row a step, as many as were asked for."""

    name = "toy sums"
    may_change = frozenset({"max_steps"})

    def matches(self, spec: Mapping[str, Any]) -> bool:
        return bool(spec.get("data", {}).get("kind") == "rows to add")

    def gave(self, answer: Any) -> bool:
        return isinstance(answer, Sum)

    def resume(self, store: Path, changes: Mapping[str, Any], observer: Any) -> Sum:
        with RunStore(store) as held:
            spec = (held.read_spec() or {}) | ({"steps": changes["max_steps"]} if changes else {})
            held.write_spec(spec)
            last = held.last_step()
            total, done = (last[0]["total"], last[1]["step"]) if last else (np.zeros(2), 0)
            for step in range(done + 1, spec["steps"] + 1):
                total = total + step
                held.commit_step(step, {"total": total}, {"step": step})
            outcome = {"name": "converged", "sentence": f"{spec['steps']} rows are added"}
            held.write_part("result", {"total": total}, {"outcome": outcome})
        return Sum(total=total, store=str(store), outcome=Outcome(**outcome))

    def answer(self, store: Path) -> dict[str, np.ndarray]:
        found = RunStore(store).read_part("result")
        if found is None:
            raise not_finished(store)
        return found[0]

    def summary(self, answer: Sum) -> dict[str, Any]:
        return {"sentence": answer.outcome.sentence, "total": answer.total.tolist()}

    def inspect(self, run: RunStore, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {"state": "finished" if run.part_meta("result") else "unfinished", "steps": spec["steps"]}

    def report(self, run: RunStore, spec: Mapping[str, Any]) -> Report:
        total = self.answer(run.path)["total"].tolist()
        numbers = Section(
            title=f"Numbers {EVIL}",
            blocks=(
                Text(text=f"of {EVIL}"),
                Text(text=EVIL, style="warning"),
                Text(text=EVIL, style="item"),
                Text(text=f"rm {EVIL}", style="code"),
                Table(rows=tuple(zip(LABELS, total, strict=True)), head=("label", EVIL)),
                Table(rows=((EVIL, EVIL),), style="tiles"),
                Bars(title=EVIL, notes=(EVIL,), bars=((EVIL, 0.5),), most=0.5),
            ),
        )
        drawn = Series(x=(1, 2), y=tuple(total), name=EVIL)
        pictures = Section(
            title="Pictures",
            blocks=(
                Plot(title=EVIL, x=EVIL, y=EVIL, series=(drawn,)),
                Map(title="field", values=((1.0, None), (-1.0, 0.5)), x=(0.0, 1.0), y=(10.0, 20.0)),
                Image(content=b"<svg xmlns='http://www.w3.org/2000/svg'/>", kind="svg+xml", about=f'{EVIL}" onload="'),
                TopicMap(title=EVIL, topics=((EVIL, 0, 0, 1),), words=((EVIL, 1, ((0, 1),)),), about=f'{EVIL}" x="'),
            ),
        )
        return Report(title=EVIL, outcome=EVIL, good=True, error_statement=EVIL, sections=(numbers, pictures))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store of the toy that was begun, with three steps to make."""
    register_kind(Sums())
    folder = tmp_path / "runs" / "toy"
    version = {"npmdask": "0.1.0", "checkpoint_format": CHECKPOINT_FORMAT}
    with RunStore(folder) as held:
        tables = {name: {} for name in ("algorithm", "mechanism", "stop", "run")}
        held.write_spec({"data": {"kind": "rows to add"}, **tables, "steps": 3, "version": version})
    yield folder
    forget_kind("toy sums")


def test_it_is_gone_on_with(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when resume knows the kinds by name, or lets through what a kind does not take."""
    assert npmdask.resume(store).total.tolist() == [6.0, 6.0]
    with pytest.raises(BadInputError, match="only max_steps may be given"):
        npmdask.resume(store, memory="1GiB")
    assert main(["resume", str(store), "--max-steps", "4", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"sentence": "4 rows are added", "total": [10.0, 10.0]}
    assert "Exact: whole numbers." in said.err
    assert main(["resume", str(store)]) == 0
    assert "4 rows are added" in capsys.readouterr().out


def test_it_is_seen(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when inspect, status or metrics ask what kind of run it is, and not the kind."""
    for state in ("unfinished", "finished"):
        assert main(["inspect", str(store), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"state": state, "steps": 3}
        assert main(["status", str(store.parent), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["runs"]
        assert (found["what"], found["state"], found["error"]) == ("toy sums", state, "")
        npmdask.resume(store)
    assert main(["metrics", str(store.parent)]) == 0
    assert 'npmdask_run_state{run="toy",state="finished",what="toy sums"} 1.0' in capsys.readouterr().out


def test_it_is_exported(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.npz"
    assert main(["export", str(store), str(target)]) == BadInputError.exit_code
    assert not list(tmp_path.glob("*x.npz*")), "nothing of a file that could not be written"
    npmdask.resume(store)
    assert main(["export", str(store), str(target)]) == 0
    assert np.load(target)["total"].tolist() == [6.0, 6.0]


class Tags(HTMLParser):
    """The tags and attributes of a page, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen |= {tag, *(name for name, _ in attrs)}
        self.scripts += [""] if tag == "script" else []

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += data


@pytest.mark.slow
def test_it_is_reported_and_all_text_is_escaped(store: Path, tmp_path: Path) -> None:
    """Fails when a form writes any text as it is, in whatever block, or leaves a block out."""
    npmdask.resume(store)
    assert main(["report", str(store)]) == 0
    page = (store / "report.html").read_text()
    found = Tags(page)
    assert "onload" not in found.seen and "a" not in found.seen
    drawn, field, topics, program = found.scripts
    assert json.loads(topics)["words"] == [[EVIL, 1, [[0, 1]]]]
    assert json.loads(drawn)["series"][0]["name"] == EVIL and json.loads(field)["block"] == "map"
    assert program.strip() == _script().strip() and EVIL not in page, (
        "the data end no tag, and there is no other script"
    )
    assert page.count("&lt;script&gt;") >= 14 and page.count("<svg") == 3 and "data:image/svg+xml;base64," in page
    text = write_report(store, tmp_path / "x.md").read_text()
    outside = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("    "))
    assert "<script" not in outside and "&lt;script>" in outside and "](http" not in outside.replace("\\[x](http", "")
    assert text.count("](data:image/svg+xml;base64,") == 4 and "\n    rm <script" in text, "code is code"
    row = next(line for line in text.splitlines() if line.endswith("| 6.0 |") and "script" in line)
    assert row.count("|") == 3
    facts = json.loads(write_report(store, tmp_path / "x.json").read_text())
    assert facts["title"] == EVIL and facts["error_statement"] == EVIL
    kinds = [block["block"] for section in facts["sections"] for block in section["blocks"]]
    assert kinds == ["text"] * 4 + ["table"] * 2 + ["bars", "plot", "map", "image", "topicmap"]
    plot = facts["sections"][1]["blocks"][0]
    assert plot["series"][0]["y"] == [6.0, 6.0] and report_of(store).sections[0].blocks[0] == Text(text=f"of {EVIL}")


def test_it_is_swept(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when the steps of a run that is not finished go, or the answer of one that is."""
    old = time.time() - 3600

    def sweep(*more: str) -> list[str]:
        for path in [store, *store.rglob("*")]:
            os.utime(path, (old, old))
        assert main(["gc", str(store.parent), "--older-than", "60s", "--json", *more]) == 0
        return [Path(one["path"]).name for one in json.loads(capsys.readouterr().out)["gone"]]

    with RunStore(store) as held:
        held.commit_step(1, {"total": np.ones(2)}, {"step": 1})
    assert sweep() == []
    assert npmdask.resume(store).total.tolist() == [6.0, 6.0]
    assert sweep("--dry-run") and sweep() and not list((store / "steps").iterdir())
    assert kind_of(RunStore(store).read_spec()).answer(store)["total"].tolist() == [6.0, 6.0]
    assert sweep("--results") == ["toy"] and not store.exists()


def test_every_kind_is_looked_up_once(store: Path) -> None:
    """Fails when a store is of another kind than its data or its algorithm say."""
    specs: dict[str, dict[str, Any]] = {
        "matrix": {"data": {"kind": "samples"}, "algorithm": {"name": "power"}, "mechanism": {}},
        "matrix ": {"data": {"kind": "samples"}, "algorithm": {"name": "gram"}, "mechanism": {}},
        "search": {"data": {"kind": "samples"}, "algorithm": {"name": "krylov", "share": 0.9}, "mechanism": {}},
        "noisy copy": {"data": {"kind": "tensor"}, "algorithm": {"name": EntriesGaussian.name}, "mechanism": {}},
        "stream": {"data": {"kind": "stream"}, "stream": {}},
        "toy sums": {"data": {"kind": "rows to add"}},
        **{
            name: {"data": {"kind": name}, "mechanism": {}}
            for name in ("topics", "mixture", "ica", "mca", "cca", "gram")
        },
    }
    assert {kind.name for kind in all_kinds()} == set(specs) - {"matrix ", "search"}, (
        "which is a matrix until it is asked for"
    )
    for name, spec in specs.items():
        assert kind_of(spec).name == name.strip()
    with pytest.raises(BadInputError, match="belong to no known kind of run"):
        kind_of({"data": {"kind": "of a plug-in"}})
    with pytest.raises(BadInputError, match="is not the result of a run"):
        kind_of_answer(3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [("page.pdf", "written as .html, .md or .json"), ("gone/page.md", "is not a folder, so no report")],
)
def test_a_report_that_cannot_be_written_so_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    """Not a page of HTML under the name of a PDF, and no exit code that means an interruption."""
    npmdask.top_k(np.eye(6) * np.arange(1, 7), 2, store=tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / name)]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / name).exists()


def test_every_kind_of_a_table_is_one() -> None:
    for key in features.keys("kinds"):
        kind = features.found("kinds", key)
        assert isinstance(kind, RunKind) and kind.may_change and kind.name in (key, "noisy copy")
        assert kind.staged == (key in ("topics", "mixture", "ica", "mca", "cca"))
        assert set(kind.tables) <= {"run", "algorithm"}


@pytest.mark.parametrize("kind", ["stream", "topics", "ica", "gram"])
def test_a_store_of_a_feature_that_is_gone_says_its_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kind_of({"data": {"kind": kind}}).name == kind
    monkeypatch.setattr(features, "PACKAGE", tmp_path / "npmdask")
    owner = {"stream": "streaming", "ica": "latent", "gram": "stored_gram"}.get(kind, kind)
    with pytest.raises(RefusedError, match=f"'{kind}' needs the feature '{owner}', which this npmdask does not have"):
        kinds.kind_of({"data": {"kind": kind}})
    assert kinds.kind_of({"data": {"kind": "samples"}}).name == "matrix", "which is the core's"
