"""The command line: argument parsing only.

Exit codes: 0 done, 2 bad input, 3 refused, 4 not converged, 5 rejected by an audit, 130 interrupted (and resumable).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from npmdask.cli.data import add_components, add_generate, add_gram, add_ingest
from npmdask.cli.models import (
    add_cca,
    add_ica,
    add_mca,
    add_mixture,
    add_moments,
    add_output,
    add_set,
    add_topics,
    add_transform,
    print_answer,
    progress_of,
)
from npmdask.cli.parser import Parser, add_columns, add_completion, add_device, add_schema, columns_of, complete, port
from npmdask.core import features
from npmdask.core.checkpoint.logging import open_log
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.progress import stop_bars
from npmdask.core.storage.paths import is_url, local_path, require_no_password
from npmdask.errors import BadInputError, BudgetError, NpmdaskError, require, warn, warnings_to

# What is run: a configuration, or a source with options.

RANK = "algorithm.target_rank"
SHORT = {  # options in the words of ``top_k``, and what each is in a configuration
    "k": RANK,
    "kind": "source.kind",
    "dim": "source.dim",
    "only": "source.only",
    "leave_out": "source.leave_out",
    "center": "source.center",
    "scale": "source.scale",
    "missing": "source.missing",
    "missing_fill": "source.missing_fill",
    "missing_values": "source.missing_values",
    "missing_limit": "source.missing_limit",
    "algorithm": "algorithm.name",
    "operator": "source.operator",
    "row_weights": "source.row_weights",
    "column_weights": "source.column_weights",
    "tol": "stop.tol",
    "memory": "run.memory",
    "device": "run.device",
    "device_memory": "run.device_memory",
    "seed": "run.seed",
    "rotate": "report.rotate",
    "align_to": "report.align_to",
    "colour": "report.colour",
    "grid": "report.grid",
}


def _add_question(p: Any) -> None:
    p.add_argument(
        "config",
        metavar="CONFIG.toml|SOURCE",
        help="a TOML configuration; or, with -k, the data: a Zarr store, a file, a URL, or - for standard input",
    )
    p.add_argument(
        "-k",
        metavar="K",
        help="number of components, or fraction of the variance to explain (e.g. 0.95); with --missing em also auto",
    )
    p.add_argument(
        "--kind", help="kind of data: samples, matrix, symmetric, sparse (default: as recorded in the store)"
    )
    p.add_argument("--dim", help="dimension that holds the rows, e.g. time (NetCDF or Zarr with more than two)")
    add_columns(p)
    p.add_argument("--center", action=argparse.BooleanOptionalAction, help="subtract the column means")
    p.add_argument("--scale", action=argparse.BooleanOptionalAction, help="divide by the column standard deviations")
    p.add_argument(
        "--missing",
        help="treatment of missing values: refuse (default), mean (of the column), drop-columns (columns without any "
        "value), em (fit a model to the observed values), pairwise (covariances over rows that have both columns); "
        "private runs: fill; streams: impute",
    )
    p.add_argument(
        "--missing-fill",
        metavar="NUMBER|FILE",
        help="with --missing fill: public value to fill in, one number or a file with one for each column",
    )
    p.add_argument(
        "--missing-values", type=float, nargs="+", metavar="NUMBER", help="numbers that mark missing values, e.g. -9999"
    )
    p.add_argument(
        "--missing-limit",
        type=float,
        metavar="FRACTION",
        help="with --missing mean: leave out columns with a larger fraction missing",
    )
    p.add_argument("--algorithm", help="gram, row-gram, krylov, power; for streams spm, oja, ... (default: auto)")
    p.add_argument("--operator", help="name under which you registered an operator")
    p.add_argument(
        "--row-weights",
        metavar="FILE|NAME",
        help="weight of each row: a .npy file, a Zarr array, or the name of a coordinate of labelled data",
    )
    p.add_argument(
        "--column-weights",
        metavar="FILE|NAME|coslat",
        help="weight of each column, given likewise; or coslat: cosine of the latitude",
    )
    p.add_argument("--tol", type=float, help="stop at this relative residual")
    p.add_argument("--memory", help="memory limit for all processes together, e.g. 1GiB")
    add_device(p, " (default cpu)")
    p.add_argument("--seed", type=int, help="seed of the random start")
    _add_rotation(p)
    _add_page(p)
    p.add_argument("--store", help="folder or URL to keep the run in (default: as configured, or runs/NAME)")
    add_set(p)


def _add_rotation(p: Any, more: str = "") -> None:
    p.add_argument(
        "--rotate",
        metavar="METHOD",
        help="varimax or promax: rotate to few large entries; procrustes: rotate onto the components of --align-to"
        + more,
    )
    p.add_argument(
        "--align-to",
        metavar="EARLIER",
        help="store of an earlier run whose order and signs of components to follow",
    )


def _add_page(p: Any) -> None:
    p.add_argument(
        "--colour",
        metavar="COLUMN|FILE",
        help="in the report, colour rows by a column (its name, or its number from 0), or by a file with a value for "
        "each row",
    )
    p.add_argument(
        "--grid", metavar="RxC", help="in the report, show components as images of R rows and C columns, like 28x28"
    )


def is_source(given: str, changes: Mapping[str, Any]) -> bool:
    """Say whether ``given`` is data, and not a configuration.

    The name says it: a file is a configuration if it ends in .toml. One of another name is, too, where no number of
    components is given, which data need.
    """
    if is_url(given) and not given.startswith("file:"):
        return True
    return given == "-" or (not given.endswith(".toml") and RANK in changes)


def _config_of(a: argparse.Namespace, start: str | None = None) -> Any:
    """The configuration that is asked for, by a file or by a source, with what the options change."""
    from npmdask.config import config_of_source, load_config, parse_changes

    changes = parse_changes(a.set)
    a.only, given = (columns_of(a) or {}).get("only"), {}
    for option, key in SHORT.items():
        value, flag = getattr(a, option), "-k" if option == "k" else f"--{option.replace('_', '-')}"
        if value is not None and key in changes:
            raise BadInputError(f"{key} is given twice, by {flag} and by --set: leave one out")
        if value is not None:
            changes |= parse_changes([f"{key}={value}"]) if option in ("k", "missing_fill") else {key: value}
            given[key] = flag
    load = config_of_source if is_source(a.config, changes) else load_config
    try:
        config = load(a.config, store=a.store, start=start, changes=changes)
    except BadInputError as error:
        said = str(error)
        for key, flag in given.items():
            said = said.replace(f"{key} = ", f"{flag} ")  # as it was typed
        if said == str(error):
            raise
        raise BadInputError(said) from None
    if load is config_of_source and a.store is None:
        a.headline = f"npmdask: the run's store is {config.run.store}"  # which was not chosen
    return config


# The command that says what a run would do. Argument parsing only.


def add_plan(commands: Any) -> None:
    """``npmdask plan``."""
    p = commands.add_parser("plan", help="show the passes, time and memory that a run would need, without starting it")
    _add_question(p)
    p.add_argument(
        "--spectrum",
        metavar="FILE|GUESS",
        help="assumed singular values or eigenvalues: a file (.npy, text), or power:1.5, exponential:0.9, "
        "spiked:K,GAP, flat (default: estimated from a sample of the data; private runs cannot sample)",
    )
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.elsewhere = {"--cluster-of": "clusters are no longer simulated; leave it out and plan a part of the data"}
    p.set_defaults(command=_plan)


def _plan(a: argparse.Namespace) -> int:
    from npmdask.planning.plan import plan_lines

    config = _config_of(a)
    if config.streams:
        require(a.spectrum is None, "the plan of a stream needs no spectrum: leave --spectrum out")
        facts = config.stream_plan()
        print(json.dumps(facts) if a.json else "\n".join(f"{name:26} {value}" for name, value in facts.items()))
        return 0
    if config.privacy is not None:
        import npmdask.privacy.plan as private

        promised = config.private_plan(a.spectrum)
        print(json.dumps(promised.facts()) if a.json else "\n".join(private.private_lines(promised)))
        if promised.expense.covered:
            return 0
        print(f"npmdask: this run would be refused: see {'expense' if a.json else 'budget'} above", file=sys.stderr)
        return BudgetError.exit_code  # as `npmdask run`
    plan = config.plan(a.spectrum)
    print(json.dumps(plan.facts()) if a.json else "\n".join(plan_lines(plan)))
    return 0


INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    end_when_asked()
    try:
        parser = _parser(given)
        complete(parser, SHORT)
        arguments = parser.parse_args(given)
        arguments.given = given
        open_log(getattr(arguments, "log", None))
        with _showing_notices(quiet=getattr(arguments, "quiet", False)):
            try:
                require_no_password(getattr(arguments, "ledger", None))
                return int(arguments.command(arguments))
            finally:
                stop_bars()  # so that the sentence of an error is the last line
    except NpmdaskError as error:
        print(f"npmdask: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:  # of a feature that was deleted
        if not isinstance(gone := features.of_gone(error), NpmdaskError):
            raise
        print(f"npmdask: {gone}", file=sys.stderr)
        return gone.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(
            f"npmdask: {error.filename or 'the system'}: {error.strerror or error}; once that is fixed, run the same "
            "command again: everything committed is intact",
            file=sys.stderr,
        )
        return BadInputError.exit_code
    except KeyboardInterrupt:
        store = getattr(arguments, "held_store", None)
        remedy = f"; go on with `npmdask resume {store}`" if store else "; run the same command again"
        print(f"npmdask: interrupted, everything committed is kept{remedy}", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def _showing_notices(*, quiet: bool) -> Iterator[None]:
    """Show on stderr that a file is copied before it is analysed, which may take long, that a store is bound again, and
    warnings about data.

    Only the first is left out with --quiet: what the store was begun with is gone, and what is told may not be.
    """
    logs = [logging.getLogger(name) for name in (("npmdask.stores",) if quiet else ("npmdask.files", "npmdask.stores"))]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("npmdask: %(message)s"))
    for log in logs:
        log.addHandler(handler)
    try:
        with warnings_to(lambda said: print(f"npmdask: warning: {said}", file=sys.stderr)):
            yield
    finally:
        for log in logs:
            log.removeHandler(handler)


def end_when_asked() -> None:
    """Make SIGINT and SIGTERM an interrupt, which ends in order; the second one ends this process at once.

    What is committed is kept either way. A SIGINT that a shell's ``&`` has us ignore stays ignored.
    """
    asked: list[int] = []

    def interrupt(signum: int, frame: Any) -> None:
        if asked:
            for child in psutil.Process().children(recursive=True):  # before they miss us, and say so
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            os.write(2, b"\nnpmdask: ended at once; everything committed is kept; run the same command again\n")
            os._exit(INTERRUPTED)
        asked.append(signum)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


class Version(argparse.Action):
    """Look the version up only when it is asked for: the metadata of packages take their time."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import npmdask

        print(f"npmdask {npmdask.__version__}")
        parser.exit()


def _parser(given: Sequence[str] = ()) -> Parser:
    parser = Parser(
        prog="npmdask",
        description="Compute PCA, SVD, tensor decompositions and topics of data larger than memory; also under "
        "differential privacy.",
    )
    parser.add_argument("--version", action=Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    for each in COMMANDS:
        if (add := features.found("commands", each) if isinstance(each, str) else each) is not None:
            add(commands)
    if next((word for word in given if not word.startswith("-")), "") not in commands.choices:
        # Those of other packages, for a word that is none of ours, and for the help: 20 ms more than 100.
        for each in (word for word in features.keys("commands") if word not in commands.choices):
            features.found("commands", each)(commands)
    return parser


def _add_init(commands: Any) -> None:
    p = commands.add_parser("init", help="write a commented configuration file")
    p.add_argument("file", metavar="NAME", help="name of the file to write, NAME.toml")
    p.add_argument(
        "--source", help="data to analyse: write a short file that runs as it is (default: a file with every key)"
    )
    p.set_defaults(command=_init)


def _init(a: argparse.Namespace) -> int:
    from npmdask.config import starter

    local_path(a.file, "a configuration")
    path = Path(a.file if a.file.endswith(".toml") else a.file + ".toml")
    require(not path.exists(), f"{path} exists already; choose another name")
    require(path.absolute().parent.is_dir(), f"there is no folder {path.parent}; make it first")
    text = starter(path, a.source)
    path.write_text(text)
    print(f"{path}: {'' if a.source else 'set source.path and target_rank, then '}`npmdask run {path}`")
    return 0


def _add_run(commands: Any) -> None:
    p = commands.add_parser(
        "run", help="compute the components of data or of a configuration; run again to resume or to print the answer"
    )
    _add_question(p)
    p.add_argument("--start", metavar="STORE", help="start from the vectors of this earlier run, to save passes")
    add_output(p)
    p.set_defaults(command=_run)


def _run(a: argparse.Namespace) -> int:
    config = _config_of(a, start=a.start)
    a.held_store = config.run.store
    warn(*config.warnings())
    return print_answer(config.solve(progress_of(a)), a)


ANOTHER_RUN = "a run keeps what it computes. Ask `npmdask run SOURCE` for something else, with another --store"


def _add_resume(commands: Any) -> None:
    p = commands.add_parser("resume", help="resume a run from its last checkpoint")
    p.add_argument("store", help="folder or URL of the run")
    p.add_argument("--memory", help="memory limit for all processes together, e.g. 1GiB")
    p.add_argument("--workers", type=int, help="number of processes; 0: threads of one process")
    p.add_argument("--threads", type=int, help="threads of each process (default: all cores)")
    p.add_argument("--cluster", help="address or scheduler file of a Dask scheduler; '' for none")
    p.add_argument("--certificates", help="folder with ca.pem, cert.pem and key.pem for a cluster at tls://")
    add_device(p)
    p.add_argument("--max-steps", type=int, help="new limit on the number of passes")
    p.add_argument("--tol", type=float, help="new relative residual to stop at")
    p.add_argument("--low-rank-tol", type=float, help="new low_rank_tol; 0: stop only by the residuals")
    p.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="URL",
        help="let a run that came from elsewhere open this URL, which it names",
    )
    add_output(p)
    p.elsewhere = {
        **{f"--{name.replace('_', '-')}": ANOTHER_RUN for name in SHORT},
        **dict.fromkeys(("--rotate", "--align-to"), "`npmdask export STORE OUT` has it, and needs no data"),
        **dict.fromkeys(("--colour", "--grid"), "`npmdask report STORE` has it"),
        "-k": "a run keeps its number of components. `npmdask deflate STORE MORE --store NEW` computes MORE of them, "
        "from those that it found; another number from the start is another run: `npmdask run SOURCE -k K --store NEW`",
    }
    p.set_defaults(command=_resume)


def _resume(a: argparse.Namespace) -> int:
    from npmdask.resuming import resume

    a.held_store = a.store
    solution = resume(
        a.store,
        **attributes(a, "memory", "workers", "threads", "cluster", "certificates", "device", "device_memory"),
        **attributes(a, "max_steps", "tol", "low_rank_tol", "allow"),
        observer=progress_of(a),
    )
    return print_answer(solution, a)


def _add_deflate(commands: Any) -> None:
    p = commands.add_parser("deflate", help="compute more components of a finished run, without starting over")
    p.add_argument("finished", help="folder of a finished run")
    p.add_argument("more", type=int, help="number of further components")
    p.add_argument("--store", required=True, help="folder of the new run")
    p.add_argument("--memory", help="memory limit for all processes together, e.g. 1GiB")
    p.add_argument("--workers", type=int, default=0, help="number of processes (default 0: threads of one process)")
    p.add_argument("--threads", type=int, help="threads of each process (default: all cores)")
    add_device(p, " (default cpu)", default="cpu")
    add_output(p)
    p.set_defaults(command=_deflate)


def _deflate(a: argparse.Namespace) -> int:
    from npmdask.core.runs.deflation import deflate

    a.held_store = a.store
    solution = deflate(
        a.finished,
        a.more,
        **attributes(a, "store", "memory", "workers", "threads", "device", "device_memory"),
        observer=progress_of(a),
    )
    return print_answer(solution, a)


def _add_inspect(commands: Any) -> None:
    p = commands.add_parser("inspect", help="show what a data store or a run holds, without reading the data")
    p.add_argument("path", help="a data store, or the folder or URL of a run")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(command=_inspect)


def _inspect(a: argparse.Namespace) -> int:
    from npmdask.manage.status import inspect

    _print_facts(inspect(a.path), a.json)
    return 0


def _print_facts(facts: dict[str, Any], as_json: bool) -> None:
    known = ((name, value) for name, value in facts.items() if value is not None)
    print(json.dumps(facts) if as_json else "\n".join(f"{name:26} {value}" for name, value in known))


def _add_report(commands: Any) -> None:
    p = commands.add_parser("report", help="write a report on a run as one HTML page")
    p.add_argument("store", help="folder or URL of the run")
    p.add_argument(
        "-o",
        "--output",
        help="file to write: .html, .md or .json (default: STORE/report.html; for a URL, in its local copy)",
    )
    _add_page(p)
    p.add_argument(
        "--scores",
        action="store_true",
        help="draw scores of rows, or name the strongest documents of topics, also where that reads more than 1 GiB",
    )
    _add_columns(p)
    p.set_defaults(command=_report)


def _report(a: argparse.Namespace) -> int:
    from npmdask.core.numerics.units import grid_of
    from npmdask.manage.kinds import PageOptions
    from npmdask.manage.report import write_report

    grid = None if a.grid is None else grid_of(a.grid)
    page = PageOptions(colour=a.colour, grid=grid, scores=a.scores, columns=_columns(a.columns))
    print(write_report(a.store, a.output, page=page))
    return 0


def _add_columns(p: Any) -> None:
    p.add_argument(
        "--columns",
        metavar="FILE",
        help="for a private run, which keeps no names of columns: a file with a public name for each, one a line",
    )


def _columns(given: str | None) -> tuple[str, ...] | None:
    from npmdask.core.storage.labels import labels_in_file

    if given is None:
        return None
    found = labels_in_file(given)
    if isinstance(found, str):
        raise BadInputError(f"--columns {given}: there is no such file; write the names of the columns, one a line")
    return tuple(map(str, found))


def _add_export(commands: Any) -> None:
    p = commands.add_parser(
        "export",
        help="write the results to a file: all arrays (.npz), or named components (.csv, .parquet, .nc, .h5ad), or "
        "topics for pyLDAvis (.json)",
    )
    p.add_argument("store", help="folder or URL of the run")
    p.add_argument("output", metavar="OUT", help="file to write; its suffix chooses the format")
    _add_rotation(p, "; none: as computed, ignoring the rotation of the run")
    _add_columns(p)
    p.set_defaults(command=_export)


def _export(a: argparse.Namespace) -> int:
    from npmdask.manage.report import export

    names = export(a.store, a.output, rotate=a.rotate, align_to=a.align_to, columns=_columns(a.columns))
    print(f"{a.output}: {', '.join(names)}")
    return 0


def _add_node(commands: Any) -> None:
    p = commands.add_parser("node", help="serve this node's data to a coordinator (federated runs) until stopped")
    p.add_argument("config", help="a TOML file with the source, [privacy], and the most that a coordinator may ask for")
    add_set(p)
    p.add_argument("--port", type=port, default=0, help="port to listen on (default: any free one, which is printed)")
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    p.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate (PEM, with its chain)")
    p.add_argument("--tls-key", metavar="FILE", help="private key of the certificate (PEM, mode 0600)")
    p.add_argument(
        "--plain-http", action="store_true", help="accept other machines without TLS, behind a proxy that encrypts"
    )
    p.set_defaults(command=_node)


def _node(a: argparse.Namespace) -> int:
    from npmdask.config import load_config, parse_changes
    from npmdask.federated.protocol import node_token
    from npmdask.federated.server import NodeCertificate, serve

    if (a.tls_cert is None) != (a.tls_key is None):
        raise BadInputError("a certificate needs its key: give both --tls-cert and --tls-key, or neither")
    token, tls = node_token(), None if a.tls_cert is None else NodeCertificate(Path(a.tls_cert), Path(a.tls_key))
    with load_config(a.config, changes=parse_changes(a.set)).node() as node:
        serve(node, token, a.host, a.port, tls=tls, plain_http=a.plain_http)
    return 0


COMMANDS = (  # in the order of the help; of a feature, which may have been deleted, the word
    add_ingest,
    add_generate,
    add_gram,
    add_components,
    _add_init,
    add_plan,
    _add_run,
    _add_resume,
    _add_deflate,
    _add_inspect,
    "status",
    "metrics",
    "gc",
    _add_report,
    _add_export,
    add_transform,
    add_topics,
    add_mixture,
    add_ica,
    add_mca,
    add_cca,
    add_moments,
    "ledger",
    "perturb",
    "audit",
    _add_node,
    "serve",
    add_schema,
    add_completion,
)

if __name__ == "__main__":
    sys.exit(main())
