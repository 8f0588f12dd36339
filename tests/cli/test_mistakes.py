"""What a person mistypes: one sentence with the closest name, in no library's words; colours; schema; completion."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from npmdask.cli.main import main
from npmdask.cli.parser import MESSAGES, SHELLS, choices_of
from npmdask.config import SCHEMA, known_keys, load_config, schema_text, validate_config
from npmdask.errors import WRONG, BadInputError, closest, wrong_value
from tests.conftest import needs

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = (
    "Input should", "validation error", "invalid choice", "unrecognized", "invalid int", "required:", "Extra inputs",
    "pydantic", "argparse", "usage:", "choose from", "Traceback",
)  # fmt: skip


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("rnu a.toml", "there is no command rnu: did you mean 'run'?"),
        ("run", "run: CONFIG.toml|SOURCE is missing ("),
        pytest.param("gc", "gc: one of --older-than, --cache is needed", marks=needs("manage")),
        ("run a.toml b.toml", "run: 'b.toml' is one argument too many: only CONFIG.toml|SOURCE is expected"),
        ("run a.toml --memroy 1GiB", "run: there is no option --memroy: did you mean '--memory'?"),
        ("plan a.zarr --cluster-of 9", "plan: there is no option --cluster-of: clusters are no longer simulated"),
        ("run a.zarr -k 3 --seed x", "run: --seed x: a whole number is needed"),
        ("run a.zarr -k 3 --tol x", "run: --tol x: a number is needed"),
        ("run a.zarr -k 3 --memory", "run: --memory needs a value"),
        ("run a.zarr -k 3 --missing-values", "run: --missing-values needs a value"),
        ("run a.zarr --json=yes", "run: --json takes no value: leave =yes out"),
        ("run a.zarr --mi mean", "run: --mi may mean --missing, --missing-fill"),
        pytest.param(
            "metrics --port 1 --textfile a", "metrics: --textfile and --port exclude each other", marks=needs("manage")
        ),
        pytest.param(
            "metrics --port 99999", "metrics: --port 99999: a number from 0 to 65535 is needed", marks=needs("manage")
        ),
        ("completion bsh", "completion: SHELL bsh: did you mean 'bash'?"),
        pytest.param(
            "serve --chek", "serve: there is no option --chek: did you mean '--check'?", marks=needs("prefect")
        ),
        ("run a.zarr -k 3 --kind smaples", "--kind 'smaples': did you mean 'samples'?"),
        ("run a.zarr -k 3 --algorithm kylov", "did you mean 'krylov'?"),
        ("run a.zarr -k 3 --rotate varimx", "--rotate 'varimx': did you mean 'varimax'?"),
        ("run a.zarr -k 3 --tol 5", "--tol 5.0: a number below 1 is needed"),
        ("run a.zarr -k 3 --set tol=1e-3", "unknown key 'tol': did you mean 'stop.tol'?"),
        ("run a.zarr -k 3 --set run.memroy=1", "unknown key 'run.memroy': did you mean 'run.memory'?"),
        ("run a.zarr -k 3 --set target_rnk=1", "did you mean 'algorithm.target_rank'?"),
        ("run a.zarr -k 3 --set run.workers=[1", "run.workers = [1: it is not TOML: close what is opened"),
    ],
)
def test_mistakes_of_a_command_line(
    line: str, sentence: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    told = capsys.readouterr().err
    assert code == 2
    assert sentence in told
    assert told.startswith("npmdask: ") and told.count("\n") == 1
    assert not [foreign for foreign in FOREIGN if foreign in told]


GOOD = '[source]\npath = "a.zarr"\n[algorithm]\ntarget_rank = 3\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD + "[run]\ntol = 1\n", "unknown key 'run.tol': did you mean 'stop.tol'?"),
        (GOOD + "[rum]\n", "unknown key 'rum': did you mean 'run'?"),
        (GOOD + "[run]\nworkers = 1.5\n", "run.workers = 1.5: a whole number is needed"),
        (GOOD + "[run]\nmemory = 12\n", "run.memory = 12: text in quotation marks is needed"),
        (GOOD + "[run]\nseed = -1\n", "run.seed = -1: at least 0 is needed"),
        (GOOD + "[run]\nseed = true\n", "run.seed = true: a whole number is needed"),
        (GOOD + "[stop]\nlow_rank_tol = inf\n", "stop.low_rank_tol = inf: a finite number is needed"),
        ('source = "a.zarr"\n', "source = 'a.zarr': a table is needed, with keys of its own"),
        (GOOD.replace("path =", "center = 1\npath ="), "source.center = 1: write true or false"),
        (GOOD.replace('"a.zarr"', "2020-01-01"), "source.path = 2020-01-01: text in quotation marks is needed"),
        (GOOD.replace('path = "a.zarr"', "nodes = [1]"), "source.nodes.1 = 1: text in quotation marks is needed"),
        (
            GOOD.replace("path =", "missing_fill = true\npath ="),
            "source.missing_fill = true: a number is needed or text in quotation marks is needed",
        ),
        (GOOD + "options = 3\n", "algorithm.options = 3: a table is needed, like { gap = 0.1 }"),
        ("[source\npath = 1\n", "is not a TOML file: line 1 ([source) is neither [TABLE] nor KEY = VALUE"),
        (GOOD + "target_rank = 4\n", "is not a TOML file: line 5 (target_rank = 4) says again what was said"),
        (GOOD + "[run]\nmemory = 1GiB\n", "line 6 (memory = 1GiB) is neither"),
    ],
)
def test_mistakes_in_a_file(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(BadInputError) as caught:
        load_config(tmp_path / "a.toml")
    assert sentence in str(caught.value)
    assert not [foreign for foreign in FOREIGN if foreign in str(caught.value)]


def test_every_mistake_that_the_model_can_find_has_words_of_ours() -> None:
    """All kinds of mistakes that values of each type make, on every key."""
    wrong: list[Any] = ["x", -1, 2, 0, 1.5, -1.5, 1e9, True, [], ["x"], [[]], {}, {"a": 1}, float("nan"), float("inf")]
    for key in known_keys():
        for value in wrong:
            content: dict[str, Any] = tomllib.loads(GOOD)
            table, _, name = key.partition(".")
            content.setdefault(table, {})[name] = value
            try:
                validate_config(content)
            except BadInputError as error:
                assert not [foreign for foreign in (*FOREIGN, "does not fit") if foreign in str(error)], (key, value)
    with pytest.raises(KeyError):
        wrong_value({})
    assert wrong_value({"type": "of a later pydantic"}) == "the value does not fit"
    assert all("Input" not in said for said in WRONG.values())


def test_closest() -> None:
    assert closest("tol", ["stop.tol", "run.memory"]) == "did you mean 'stop.tol'?"
    assert closest("zzz", ["stop.tol", "run.memory"]) == "known: run.memory, stop.tol"
    assert closest("zzz", [f"name{n}" for n in range(30)]).endswith("(10 more)")


def test_messages_of_argparse_that_are_not_known_stay() -> None:
    """The table is of patterns that end where argparse's sentences do: none matches everything."""
    assert not [pattern for pattern, _ in MESSAGES if re.fullmatch(pattern, "something new")]


def test_the_schema_that_is_committed_is_that_of_the_model() -> None:
    assert SCHEMA.read_text() == schema_text(), "npmdask schema > npmdask/config.schema.json"


def test_the_schema_takes_what_the_model_takes(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    held = jsonschema.Draft202012Validator(schema)
    examples = [path for path in (ROOT / "data").glob("*.toml") if "schedules" not in path.name]
    assert len(examples) >= 2
    assert main(["init", str(tmp_path / "whole")]) == 0
    whole = tmp_path / "whole.toml"
    assert whole.read_text().startswith(f"#:schema {SCHEMA.as_uri()}\n")
    for example in (*examples, whole):
        content = tomllib.loads(example.read_text())
        validate_config(content)
        assert [error.message for error in held.iter_errors(content)] == [], example
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    blocks = [block for page in pages for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.S)]
    configurations = [found for block in blocks if "algorithm" in (found := tomllib.loads(block)) and "source" in found]
    assert len(configurations) >= 3
    for content in configurations:
        assert [error.message for error in held.iter_errors(content)] == []
    for wrong in (GOOD + "[run]\ntol = 1\n", GOOD.replace("3", '"3"'), GOOD + 'name = "kylov"\n', "[algorithm]\n"):
        assert not held.is_valid(tomllib.loads(wrong)), wrong


def test_values_that_a_shell_offers() -> None:
    assert choices_of("source.kind") == ["samples", "symmetric", "matrix", "sparse", "matrices", "tensor"]
    assert choices_of("source.center") == ["true", "false"]
    assert choices_of("run.memory") == choices_of("no.key") == []


TYPED = {
    "npmdask stat": "npmdask status",
    "npmdask run --mem": "npmdask run --memory",
    "npmdask run x --rotate vari": "npmdask run x --rotate varimax",
    "npmdask run x --set run.mem": "npmdask run x --set run.memory=",
    "npmdask serve --exa": "npmdask serve --example",
}
BEGIN = {
    "bash": ('eval "$(npmdask completion bash)"', ["--norc", "--noprofile", "-i"]),
    "zsh": ('autoload -U compinit; compinit -D -u; eval "$(npmdask completion zsh)"', ["-f", "-i"]),
    "fish": ("npmdask completion fish | source", ["--no-config", "-i"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    first, options = BEGIN[shell]
    if shell == "fish":  # asked as its documentation says: its line editor draws more than can be read
        asked = "; ".join(f"complete -C '{line}'" for line in TYPED)
        done = subprocess.run(
            [shell, "--no-config", "-c", f"{first}; {asked}"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == [
            line.rpartition(" ")[2] for line in TYPED.values()
        ]
        return
    with Terminal([shell, *options], environment | {"TERM": "dumb", "PS1": "$ "}) as terminal:
        terminal.type(f'{first}; echo REA""DY\n')
        terminal.wait_for("READY\r\n")
        for line, completed in TYPED.items():
            terminal.type(f"{line}\t")
            terminal.wait_for(completed)
            terminal.type("\x15")


class Terminal:
    """A program at a terminal of its own, which is typed at."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.pid, self.there = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, environment)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.there)

    def type(self, text: str) -> None:
        os.write(self.there, text.encode())

    def wait_for(self, text: str, seconds: float = 240) -> str:
        seen, end = "", time.monotonic() + seconds
        while text not in seen:
            assert time.monotonic() < end, f"{text!r} does not come: {seen!r}"
            if select.select([self.there], [], [], 0.2)[0]:
                seen += os.read(self.there, 65536).decode(errors="replace")
        return seen

    def until_the_end(self, seconds: float = 240) -> str:
        seen, end = "", time.monotonic() + seconds
        while True:
            assert time.monotonic() < end, f"it does not end: {seen!r}"
            try:
                if select.select([self.there], [], [], 0.2)[0]:
                    seen += os.read(self.there, 65536).decode(errors="replace")
            except OSError:  # of Linux, where the program is gone
                return seen


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nothing", "NO_COLOR", "--no-color", "TERM=dumb"])
def test_colors_only_where_they_are_wanted(how: str, tmp_path: Path) -> None:
    """At a terminal: what is written, and its escape sequences."""
    np = pytest.importorskip("numpy")
    np.save(tmp_path / "a.npy", np.random.default_rng(0).standard_normal((300, 10)))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm-256color"}
    environment |= {"NO_COLOR": {"NO_COLOR": "1"}, "TERM=dumb": {"TERM": "dumb"}}.get(how, {})
    flag = ["--no-color"] if how == "--no-color" else []
    command = [str(Path(sys.executable).with_name("npmdask")), "run", str(tmp_path / "a.npy"), "-k", "2", *flag]
    with Terminal([*command, "--store", str(tmp_path / "run")], environment) as terminal:
        seen = terminal.until_the_end()
    colored = re.search(r"\x1b\[[0-9;]*(3[0-7]|38;|9[0-7])[0-9;]*m", seen) is not None
    assert colored == (how == "nothing"), seen
    if how == "TERM=dumb":
        assert "\x1b[" not in seen
