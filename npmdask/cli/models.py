"""The commands that find latent variables, and what two fields have in common."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from npmdask.cli.parser import add_columns, add_header, columns_of
from npmdask.core.numerics.units import attributes
from npmdask.errors import warn

COUNTED = ("skipped", "rows_with_gaps", "wordless", "open", "unknown_words")  # of scores, where there are any
NOT_CONVERGED = 4  # exit code of what came to its end without an answer


def add_topics(commands: Any) -> None:
    p = commands.add_parser("topics", help="fit topics to documents: words, weights, coherence, perplexity, a report")
    p.add_argument("documents", help="word counts: a UCI bag of words, .mtx or sparse .npz, or a store of kind sparse")
    p.add_argument("vocabulary", nargs="?", help="a file with one word a line, the word of column 1 first")
    p.add_argument("--topics", type=int, required=True, metavar="K", help="number of topics")
    p.add_argument("--store", help="folder to keep the run in (default: runs/topics-NAME)")
    p.add_argument(
        "--alpha0",
        type=float,
        default=1.0,
        help="sum of the Dirichlet parameters (default: 1); 0: one topic per document",
    )
    p.add_argument(
        "--half-length", type=float, default=100.0, help="weight a document of N words by N / (N + this) (default: 100)"
    )
    p.add_argument("--min-df", type=int, default=1, help="leave out words in fewer documents than this")
    p.add_argument("--max-df", type=float, default=1.0, help="leave out words in a larger fraction of documents")
    p.add_argument(
        "--held-out",
        type=float,
        default=0.1,
        help="fraction of documents held out for the perplexity (default: 0.1; 0: none)",
    )
    p.add_argument(
        "--moments",
        choices=["held", "implicit"],
        default="held",
        help="hold the moments in memory (default), or implicit: one pass for each product",
    )
    p.add_argument("--words", type=int, default=10, help="number of top words to print (default: 10)")
    _add_decomposition(p)
    p.set_defaults(command=_topics)


def _add_decomposition(p: Any) -> None:
    p.add_argument("--restarts", type=int, help="random starts of the tensor power method (default: by the rank)")
    _add_common(p, "seed of all random numbers (default: 0)")


def _add_common(p: Any, seed: str) -> None:
    p.add_argument("--seed", type=int, default=0, help=seed)
    p.add_argument("--memory", help="memory limit for all processes together, e.g. 1GiB")
    p.add_argument("--threads", type=int, help="threads of each process (default: all cores)")
    p.add_argument("--workers", type=int, default=0, help="number of processes (default 0: threads of this one)")
    add_output(p)


def add_output(p: Any) -> None:
    """Add the options that say what a computation prints, and where."""
    p.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    add_progress(p)


def add_progress(p: Any) -> None:
    """Add the options of progress and logging to a command that has no JSON of its own."""
    add_shown(p)
    p.add_argument(
        "--log", metavar="FILE|-", help="append a log in lines of JSON; -: to stderr (default: $NPMDASK_LOG)"
    )


def add_shown(p: Any) -> None:
    """Add the options of how much is shown while the command runs."""
    how = p.add_mutually_exclusive_group()
    how.add_argument("-v", "--verbose", action="store_true", help="show each step, too, and the whole answer")
    how.add_argument("--quiet", action="store_true", help="show no progress")


def progress_of(a: argparse.Namespace) -> Any:
    """The observer that shows how far the command is, as much as its options ask for."""
    from npmdask.core.runs.progress import ProgressBar

    a.bar = ProgressBar(quiet=a.quiet, verbose=a.verbose, headline=getattr(a, "headline", ""))
    return a.bar


def add_set(p: Any) -> None:
    """Add the option that changes keys of a configuration."""
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="set a key of the configuration, e.g. run.memory=2GiB; repeatable",
    )


def _job(a: argparse.Namespace, kind: str, source: str) -> dict[str, Any]:
    """Return where a job on ``source`` is kept, what it may use and who sees it, as every kind of job takes it."""
    from pathlib import Path

    name = Path(source).name.split(".")[0] or "data"
    a.held_store = str(a.store or Path("runs") / f"{kind}-{name}")
    return {"store": a.held_store, "resources": _resources(a), "observer": progress_of(a)}


def _resources(a: argparse.Namespace) -> Any:
    from npmdask.core.runs.resources import asked_resources

    return asked_resources(a.memory, a.threads, a.workers)


def _topics(a: argparse.Namespace) -> int:
    from npmdask.topics.run import CorpusFilter, run_topics

    answer = run_topics(
        a.documents,
        a.topics,
        a.vocabulary,
        cut=CorpusFilter(held_out=a.held_out, min_df=a.min_df, max_df=a.max_df),
        **_job(a, "topics", a.documents),
        **attributes(a, "alpha0", "half_length", "moments", "restarts", "seed"),
    )
    return print_answer(answer, a, a.words)


def print_answer(answer: Any, a: argparse.Namespace, words: int = 10) -> int:
    """Print the answer of a run, for people or for scripts; 0, or the exit code of what did not converge."""
    from npmdask.core.runs.progress import stop_bars
    from npmdask.manage import kind_of_answer

    stop_bars()
    kind = kind_of_answer(answer)
    warn(*answer.warnings)
    if a.json:  # else both are among the lines below
        print(f"npmdask: {kind.ending(answer)}", file=sys.stderr)
        if answer.assurance:
            print(f"npmdask: {answer.assurance}", file=sys.stderr)
        print(json.dumps(kind.summary(answer)))
        return 0 if answer.answered else NOT_CONVERGED
    if a.verbose:
        print(kind.lines(answer, words), end="\n\n")
    print("\n".join(f"{name:10} {said}" for name, said in kind.overview(answer, _cost(a))))
    return 0 if answer.answered else NOT_CONVERGED


def _cost(a: argparse.Namespace) -> dict[str, str]:
    """Return what the command took, for jobs whose answers do not say it: as far as this process saw."""
    from npmdask.core.execution.memory import high_water
    from npmdask.core.numerics.units import bytes_text

    bar = getattr(a, "bar", None)
    time = {} if bar is None else {"time": bar.work.cost()}
    return time | {"memory": f"peak {bytes_text(high_water())} of this process"}


PASSES_OF = {"mixture": "passes of EM", "ica": "passes of FastICA"}


def add_mixture(commands: Any) -> None:
    p = commands.add_parser("mixture", help="fit a mixture of spherical Gaussians by the method of moments")
    _add_samples(p, "mixture")


def add_ica(commands: Any) -> None:
    p = commands.add_parser("ica", help="compute independent components (ICA) by the fourth-order tensor power method")
    _add_samples(p, "ica")


def _add_samples(p: Any, kind: str) -> None:
    p.add_argument("samples", help="a Zarr store of rows of numbers")
    add_columns(p)
    p.add_argument("--components", type=int, required=True, metavar="K", help="number of components")
    p.add_argument("--store", help=f"folder to keep the run in (default: runs/{kind}-NAME)")
    p.add_argument(
        "--refine", type=int, metavar="N", help=f"most {PASSES_OF[kind]} after the moments (default: 3; 0: none)"
    )
    _add_decomposition(p)
    p.set_defaults(command=_samples, kind=kind)


def _samples(a: argparse.Namespace) -> int:
    from npmdask.core.storage.columns import at
    from npmdask.latent.answers import fit_latent

    answer = fit_latent(
        a.kind,
        at(a.samples, columns_of(a)),
        a.components,
        **_job(a, a.kind, a.samples),
        **attributes(a, "restarts", "seed", "refine"),
    )
    return print_answer(answer, a)


def add_mca(commands: Any) -> None:
    p = commands.add_parser(
        "mca",
        help="compute pairs of patterns of two fields with largest covariance (maximum covariance analysis, PLS-SVD)",
    )
    _add_coupled(p, "mca")
    p.set_defaults(pcs=None, ridge=0.0)


def add_cca(commands: Any) -> None:
    p = commands.add_parser(
        "cca", help="compute pairs of patterns of two fields with largest correlation (canonical correlation analysis)"
    )
    _add_coupled(p, "cca")
    p.add_argument(
        "--pcs",
        type=int,
        nargs="+",
        metavar="N",
        help="principal components to keep of each field: one number, or one for each",
    )
    p.add_argument(
        "--ridge",
        type=float,
        default=0.0,
        help="ridge to add, as a multiple of the mean variance of a column (default: 0)",
    )


def _add_coupled(p: Any, kind: str) -> None:
    p.add_argument("left", help="first field, dense rows: a Zarr store, a URL or a file")
    p.add_argument("right", help="second field, with the same rows")
    p.add_argument("-k", type=int, required=True, metavar="K", help="number of modes")
    p.add_argument("--store", help=f"folder to keep the run in (default: runs/{kind}-LEFT)")
    p.add_argument(
        "--dim",
        nargs="+",
        metavar="NAME",
        help="dimension that holds the rows, e.g. time: one name, or one for each field",
    )
    p.add_argument(
        "--center", action=argparse.BooleanOptionalAction, default=True, help="subtract the column means (default)"
    )
    p.add_argument("--scale", action="store_true", help="divide columns by their standard deviations")
    p.add_argument(
        "--missing",
        choices=["refuse", "drop-columns", "mean"],
        default="refuse",
        help="treatment of missing values (default: refuse)",
    )
    p.add_argument("--row-weights", help="weight of each row: a file (.npy, Zarr), or a coordinate of the first field")
    p.add_argument("--left-weights", help="weight of each column of the first field: a file, a coordinate, or coslat")
    p.add_argument("--right-weights", help="weight of each column of the second field, given likewise")
    p.add_argument("--tol", type=float, help="stop at this relative residual")
    p.add_argument("--max-steps", type=int, default=200, help="limit on the number of passes (default: 200)")
    _add_common(p, "seed of the random start (default: 0)")
    p.set_defaults(command=_coupled, kind=kind)


def _coupled(a: argparse.Namespace) -> int:
    from npmdask.two_fields.answers import fit_coupled

    answer = fit_coupled(
        a.kind,
        a.left,
        a.right,
        a.k,
        **_job(a, a.kind, a.left),
        dim=_one_or_both(a.dim),
        **attributes(a, "row_weights", "left_weights", "right_weights", "center", "scale", "missing"),
        pcs=_one_or_both(a.pcs),
        **attributes(a, "ridge", "tol", "max_steps", "seed"),
    )
    return print_answer(answer, a)


def _one_or_both(given: Any) -> Any:
    """One for both fields, or one for each."""
    return None if given is None else (given[0], given[0]) if len(given) == 1 else tuple(given)


def add_moments(commands: Any) -> None:
    p = commands.add_parser("moments", help="write the third moment of documents or samples as a packed tensor")
    p.add_argument("source", help="a store of kind sparse (counts of words), or of samples")
    p.add_argument("dest", help="store to create; `npmdask run` decomposes it")
    p.add_argument(
        "--alpha0",
        type=float,
        default=0.0,
        help="for documents: sum of the Dirichlet parameters of LDA; 0 (default): one topic per document",
    )
    p.add_argument(
        "--half-length", type=float, default=100.0, help="weight a document of N words by N / (N + this) (default: 100)"
    )
    p.add_argument("--center", action="store_true", help="for samples: compute the central moment")
    p.add_argument("--block", type=int, help="side of a stored block (default: chosen by size)")
    p.add_argument(
        "--memory", help="memory limit for all processes together, e.g. 1GiB; determines the number of passes"
    )
    p.add_argument("--threads", type=int, help="number of threads (default: all cores)")
    add_progress(p)
    p.set_defaults(command=_moments, workers=0)


def _moments(a: argparse.Namespace) -> int:
    from npmdask.latent.third_moment import build_moments

    built = build_moments(
        a.source,
        a.dest,
        **attributes(a, "alpha0", "half_length", "center", "block"),
        resources=_resources(a),
        observer=progress_of(a),
    )
    print(f"{built.dest}: {built.side} x {built.side} x {built.side}, blocks of {built.block}, {built.passes} passes")
    return 0


# The command that projects rows onto what was found.


def add_transform(commands: Any) -> None:
    p = commands.add_parser(
        "transform",
        help="write the scores of rows along the components of a run, or the topic proportions of documents, out of "
        "core (not private, even if the run was)",
    )
    p.add_argument("store", help="folder of a finished run, of a stream (at any time), or of topics")
    p.add_argument("source", help="rows: a Zarr store, a file, a directory of files, or - (standard input)")
    p.add_argument("dest", help="scores (rows x k) to create: a file .npy, .csv or .parquet, or a Zarr store")
    p.add_argument(
        "--dim",
        help="dimension that holds the rows, e.g. time (NetCDF or a group of Zarr; default: that of the run)",
    )
    add_columns(p)
    p.add_argument("--batch-rows", type=int, help="rows read at once (default: 16 MiB of them)")
    p.add_argument(
        "--non-finite",
        choices=["refuse", "skip"],
        default="refuse",
        help="rows with NaN or infinity: refuse (default) or skip them",
    )
    p.add_argument(
        "--missing",
        choices=["as-run", "least-squares"],
        default="as-run",
        help="rows with missing values: treat them as the run did (default), or fit scores to the observed values",
    )
    p.add_argument("--pattern", default="*", help="for a directory: pattern of the names of its files (default: *)")
    p.add_argument("--format", choices=["csv", "npy", "float32"], help="format of standard input")
    add_header(p)
    p.add_argument("--overwrite", action="store_true", help="replace DEST (of partitions: those that have new rows)")
    p.add_argument(
        "--keep", type=lambda names: names.split(","), default=[], metavar="NAME,...", help="columns to keep: id,date"
    )
    p.add_argument(
        "--partition",
        metavar="KEY[=VALUE]",
        help="write a folder of Parquet files, one for each value of a kept column",
    )
    p.add_argument("--append", action="store_true", help="add the rows to Parquet files that are there")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    add_shown(p)
    p.set_defaults(command=_transform)


def _transform(a: argparse.Namespace) -> int:
    from npmdask.core.storage.columns import at
    from npmdask.streaming.transform import transform
    from npmdask.topics.model import holds_topics

    if holds_topics(a.store):
        return _transform_documents(a)
    scored = transform(
        a.store,
        at(a.source, columns_of(a)),
        a.dest,
        **attributes(a, "dim", "batch_rows", "non_finite", "missing", "pattern", "format", "header", "overwrite"),
        **attributes(a, "keep", "partition", "append"),
        observer=progress_of(a),
    )
    _say(scored, a)
    return 0


def _transform_documents(a: argparse.Namespace) -> int:
    from npmdask.errors import BadInputError
    from npmdask.topics.transform import transform_documents

    given: dict[str, Any] = {
        "dim": None,
        "batch_rows": None,
        "non_finite": "refuse",
        "pattern": "*",
        "format": None,
        "header": None,
    }
    given |= {"missing": "as-run", "only": None, "leave_out": None, "keep": [], "partition": None, "append": False}
    of_rows = [f"--{name.replace('_', '-')}" for name, default in given.items() if getattr(a, name) != default]
    if of_rows:
        raise BadInputError(
            f"{a.store} holds topics; {', '.join(of_rows)} applies only to rows of numbers: leave it out"
        )
    observer = progress_of(a)
    _say(transform_documents(a.store, a.source, a.dest, overwrite=a.overwrite, observer=observer), a)
    return 0


def _reading_hint(dest: str) -> str:
    from pathlib import Path

    match Path(dest).suffix.lower():
        case ".npy":
            return f"in Python numpy.load({dest!r})"
        case ".csv" | ".parquet" as suffix:
            return f"in Python pandas.read_{suffix[1:]}({dest!r})"
        case _ if not (Path(dest) / "zarr.json").exists():
            return f"in Python pandas.read_parquet({dest!r})"
        case _:
            return f'in Python zarr.open_group({dest!r})["data"][:]'


def _say(scored: Any, a: argparse.Namespace) -> None:
    from npmdask.core.runs.progress import duration, stop_bars

    stop_bars()
    facts = asdict(scored)
    warn(*facts.get("warnings", ()))
    if a.json:
        print(json.dumps(facts))
        return
    if a.verbose:
        print("\n".join(f"{name:20} {value}" for name, value in facts.items() if name != "warnings"), end="\n\n")
    short = {
        "found": f"{scored.rows:,} rows of {scored.columns} scores",
        **{name.replace("_", " "): f"{facts[name]:,g}" for name in COUNTED if facts.get(name)},
        "time": f"{duration(scored.seconds)}: {scored.rows_per_second:,.0f} rows a second",
        "result": scored.dest,
        "next": _reading_hint(scored.dest),
    }
    print("\n".join(f"{name:14} {said}" for name, said in short.items()))
