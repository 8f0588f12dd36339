"""The commands that make data: ingest, generate and gram; and what a Gram says of the number of components."""

from __future__ import annotations

import argparse
import json
from typing import Any

from npmdask.cli.models import add_output, print_answer, progress_of
from npmdask.cli.parser import add_columns, add_header, columns_of
from npmdask.core.numerics.units import attributes
from npmdask.errors import BadInputError, require


def add_ingest(commands: Any) -> None:
    p = commands.add_parser("ingest", help="convert files into a checked Zarr store, without loading them into memory")
    p.add_argument(
        "src", help="file to convert: .npy .npz .csv .tsv .parquet .h5 .h5ad .nc .mtx, IDX, UCI bag of words, Zarr"
    )
    p.add_argument("dest", help="store to create")
    kinds = ["samples", "symmetric", "matrix", "sparse", "matrices", "tensor"]
    p.add_argument(
        "--kind", choices=kinds, help="kind of data (default: samples, or sparse); matrices and tensor need a 3-D array"
    )
    _add_layout(p)
    p.add_argument("--dataset", help="name of the array, where the source holds several")
    add_columns(p)
    p.add_argument("--dtype", help="store as float32 or float64 (default: the type of the source)")
    p.add_argument(
        "--rounding",
        choices=["error", "nearest"],
        default="error",
        help="round values that DTYPE cannot hold, or refuse them (default)",
    )
    _add_chunks(p)
    p.add_argument(
        "--shards", metavar="SIZE", help="write chunks together in files of SIZE, e.g. 128MiB (default: a file each)"
    )
    p.add_argument("--symmetrise", action="store_true", help="average a tensor over all orders of its indices")
    add_header(p)
    p.add_argument(
        "--non-finite",
        choices=["error", "zero", "missing"],
        default="error",
        help="rows with NaN or infinity: refuse them (default), store zeros, or store NaN as missing values",
    )
    p.add_argument(
        "--missing",
        choices=["error", "fill"],
        default="error",
        help="chunks absent from Zarr or HDF5: refuse them (default) or use the fill value",
    )
    p.add_argument("--overwrite", action="store_true", help="replace DEST once the new store is complete")
    p.add_argument(
        "--gram", metavar="G", help="also form the Gram matrix of the rows while they are written, in the store G"
    )
    p.add_argument("--quiet", action="store_true", help="show no progress")
    p.set_defaults(command=_ingest)


def _add_chunks(p: Any) -> None:
    p.add_argument(
        "--chunks", type=int, nargs="+", metavar="SIZE", help="chunk size: rows and columns, or b b b for a tensor"
    )


def _add_layout(p: Any) -> None:
    p.add_argument(
        "--layout",
        choices=["packed", "full"],
        help="for a symmetric matrix: upper triangle only (default), or all of it",
    )


def _ingest(a: argparse.Namespace) -> int:
    from npmdask.core.runs.progress import IngestBar
    from npmdask.formats.ingest import ingest

    options: dict[str, Any] = {
        **attributes(a, "kind", "layout", "dataset", "dtype", "shards", "missing", "non_finite"),
        **attributes(a, "rounding", "symmetrise", "header", "overwrite"),
        "chunks": tuple(a.chunks) if a.chunks else None,
        "columns": columns_of(a),
        "progress": IngestBar("ingest", quiet=a.quiet, each="block" if a.kind == "tensor" else "row"),
    }
    if a.gram is None:
        summary, store = ingest(a.src, a.dest, **options), None
    else:
        from npmdask.stored_gram.ingest import ingest_with_gram

        summary, store = ingest_with_gram(a.src, a.dest, a.gram, **options)
    _print_store(summary, summary.side)
    if summary.header is not None:
        from npmdask.formats.tables import taken_for_names

        print(taken_for_names(summary.header))
    for note in summary.notes:
        print(note)
    if store is not None:
        print(store)
    return 0


def _print_store(summary: Any, side: int | None = None) -> None:
    from npmdask.core.numerics.units import bytes_text

    shape = " x ".join(map(str, summary.shape)) if side is None else f"{summary.shape[0]} matrices {side} x {side}"
    print(
        f"{summary.dest}: {shape} {summary.dtype}, kind {summary.kind}, "
        f"{bytes_text(summary.bytes)} in {summary.seconds:.1f} s"
    )


def add_generate(commands: Any) -> None:
    p = commands.add_parser(
        "generate", help="generate synthetic data of any size, with the exact answer stored beside it"
    )
    p.add_argument("problem", help="model: spiked, spectrum, symmetric, rank_deficient, sparse, tensor")
    p.add_argument("dest", help="store to create")
    p.add_argument("--rows", type=int, help="number of rows")
    p.add_argument("--columns", type=int, required=True, help="number of columns; side d of a d x d x d tensor")
    p.add_argument("--rank", type=int, default=10, help="number of ground-truth components to store (default: 10)")
    p.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="default: float32")
    p.add_argument("--seed", type=int, default=0, help="seed of the random numbers (default: 0)")
    _add_layout(p)
    _add_chunks(p)
    p.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the model, e.g. spectrum=power; repeatable",
    )
    p.add_argument("--overwrite", action="store_true", help="replace DEST if it exists")
    p.add_argument("--quiet", action="store_true", help="show no progress")
    p.set_defaults(command=_generate)


def _generate(a: argparse.Namespace) -> int:
    from npmdask.core.runs.progress import IngestBar
    from npmdask.synthetic import generate

    summary = generate(
        a.dest,
        **attributes(a, "problem", "rows", "columns", "rank", "dtype", "seed", "layout", "overwrite"),
        chunks=tuple(a.chunks) if a.chunks else None,
        progress=IngestBar("generate", quiet=a.quiet, each="block" if a.problem == "tensor" else "row"),
        **_options(a.option),
    )
    _print_store(summary)
    return 0


def add_gram(commands: Any) -> None:
    """``npmdask gram``."""
    p = commands.add_parser(
        "gram",
        help="form the Gram matrix A^T A in one pass and store it; PCA of the columns then needs no further pass",
        usage="npmdask gram SOURCE G [options]\n       npmdask gram --merge A B ... G\n"
        "       npmdask gram --remove A G DEST",
        description="Form the Gram matrix A^T A of the rows of SOURCE in one pass and keep it in the store G. Run "
        "again, the command reads only the rows that were appended. `npmdask run G -k 10` then computes components "
        "without a pass. --merge adds Gram matrices of different rows of the same columns; --remove subtracts rows.",
    )
    p.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="SOURCE and G; with --merge: A, B, ... and G; with --remove: G and DEST",
    )
    p.add_argument(
        "--merge", action="store_true", help="add Gram matrices of different rows of the same columns into a new one"
    )
    p.add_argument(
        "--remove", metavar="A", help="subtract the rows of the Gram matrix A from G, into the new store DEST"
    )
    p.add_argument(
        "--distinct",
        action="store_true",
        help="with --merge: count identical chunks twice, because they hold different rows",
    )
    p.add_argument(
        "--kind",
        choices=["samples", "matrix", "sparse"],
        help="kind of data (default: as recorded in the store, or matrix)",
    )
    p.add_argument("--dim", help="dimension that holds the rows, e.g. time (NetCDF or Zarr with more than two)")
    add_columns(p)
    p.add_argument(
        "--by-chunks",
        type=int,
        metavar="N",
        help="keep one Gram matrix for every N rows of chunks, for jackknife standard errors",
    )
    p.add_argument(
        "--groups",
        metavar="FILE|NAME",
        help="keep one Gram matrix for each label of rows: a file of one label a line (or .npy), or a name in the data",
    )
    p.add_argument(
        "--precision",
        choices=["float64", "float32"],
        help="precision of the products that are summed (default: float64)",
    )
    p.add_argument(
        "--seed",
        type=int,
        help="seed of the random columns that check the sums; only Gram matrices of one seed can be merged",
    )
    p.add_argument("--memory", help="memory limit for all processes together, e.g. 1GiB")
    p.add_argument("--threads", type=int, help="threads of each process (default: all cores)")
    p.add_argument("--workers", type=int, help="number of processes (default: threads of this one)")
    p.add_argument("--cluster", help="address or scheduler file of a Dask scheduler")
    add_output(p)
    p.set_defaults(command=_gram)


OF_PASS = ("kind", "dim", "by_chunks", "groups", "precision", "seed", "memory", "threads", "workers", "cluster")


def _gram(a: argparse.Namespace) -> int:
    from npmdask.core.storage.labels import labels_in_file
    from npmdask.stored_gram.store import GramStore, gram

    given = {name: getattr(a, name) for name in OF_PASS if getattr(a, name) is not None}
    given |= {} if (columns := columns_of(a)) is None else {"columns": columns}
    made = a.merge or a.remove is not None
    if made and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise BadInputError(f"a merge or a removal reads no rows: leave {flags} out")
    require(not a.merge or a.remove is None, "give either --merge or --remove, not both")
    require(a.merge or not a.distinct, "--distinct is for a merge: leave it out")
    if a.merge and len(a.paths) < 3:
        raise BadInputError("write `npmdask gram --merge A B ... G`: two Grams or more, and the new store")
    if not a.merge and len(a.paths) != 2:
        wanted = "npmdask gram --remove A G DEST" if made else "npmdask gram SOURCE G"
        given_paths = "1 path is given" if len(a.paths) == 1 else f"{len(a.paths)} paths are given"
        raise BadInputError(f"{given_paths}: write `{wanted}`")
    *sources, dest = a.paths
    if a.merge:
        return print_answer(GramStore.merge(sources, dest, distinct=a.distinct), a)
    if a.remove is not None:
        return print_answer(GramStore(sources[0]).remove(a.remove, dest), a)
    a.held_store = dest
    if "groups" in given:
        given["groups"] = labels_in_file(given["groups"])
    return print_answer(gram(sources[0], dest, observer=progress_of(a), **given), a)


def add_components(commands: Any) -> None:
    """``npmdask components``."""
    p = commands.add_parser(
        "components",
        help="show how many components each criterion recommends, and how certain they are, without a pass",
        description="Show how many components each criterion recommends and why they differ, without a pass over the "
        "data. A stored Gram matrix (`npmdask gram`) supports every criterion; a finished run those that its k values "
        "allow. For a run, also show the standard errors of its values and which components sampling mixes; for a Gram "
        "matrix with groups of rows, bootstrap intervals.",
    )
    p.add_argument("store", help="a stored Gram matrix, or a finished run")
    p.add_argument("--share", type=float, default=0.9, help="fraction of the variance to explain (default: 0.9)")
    p.add_argument(
        "--noise",
        type=float,
        metavar="VARIANCE",
        help="noise variance of one entry (default: estimated from the median eigenvalue of a Gram matrix)",
    )
    p.add_argument("--no-center", action="store_true", help="for a Gram matrix: do not subtract the column means")
    p.add_argument(
        "--scale", action="store_true", help="for a Gram matrix: divide columns by their standard deviations"
    )
    p.add_argument(
        "--intervals",
        type=int,
        metavar="K",
        help="for a Gram matrix with groups of rows: also show 95 %% bootstrap intervals of K components",
    )
    p.add_argument(
        "--jackknife",
        action="store_true",
        help="with --intervals: leave each group out instead of drawing groups again (for fewer than 8 groups)",
    )
    p.add_argument(
        "--independent-rows",
        type=int,
        metavar="N",
        help="for a run: effective number of independent rows, for standard errors (default: all rows)",
    )
    p.add_argument("--seed", type=int, default=0, help="seed of parallel analysis and of the bootstrap (default: 0)")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(command=_components)


def _intervals(store: Any, a: argparse.Namespace) -> Any:
    how = {"center": not a.no_center, "scale": a.scale}
    return store.jackknife(a.intervals, **how) if a.jackknife else store.bootstrap(a.intervals, seed=a.seed, **how)


def _components(a: argparse.Namespace) -> int:
    from npmdask.advice.component_counts import differences
    from npmdask.core.checkpoint.store import RunStore
    from npmdask.core.runs.solution import Solution
    from npmdask.manage.data_report import sampling_of
    from npmdask.resuming import resume
    from npmdask.stored_gram.parts import STORED_GRAM
    from npmdask.stored_gram.store import GramStore

    if a.jackknife and a.intervals is None:
        raise BadInputError("--jackknife is a way to find --intervals K: say of how many components")
    run = RunStore(a.store)
    spec, sampling = run.read_spec(), None
    if spec is None or spec["data"].get("kind") == STORED_GRAM:
        if a.independent_rows is not None:
            raise BadInputError(
                f"{a.store} is a stored Gram: ask for --intervals by its groups of rows, or run it first"
            )
        store, how = GramStore(a.store), {"center": not a.no_center, "scale": a.scale, "seed": a.seed}
        found = store.component_counts(share=a.share, noise=a.noise, **how)
        sure = None if a.intervals is None else _intervals(store, a)
    else:
        if a.no_center or a.scale:
            raise BadInputError(f"{a.store} is a run, centred and scaled as it was: leave --no-center and --scale out")
        if a.intervals is not None:
            raise BadInputError(
                f"{a.store} is a run, which keeps no groups of rows: form a Gram of them with `npmdask gram SOURCE G "
                "--by-chunks 1`, and ask it for --intervals"
            )
        if run.read_part("result") is None:
            raise BadInputError(f"the run in {a.store} is not finished: finish it with `npmdask resume` first")
        if str(spec["source"]).startswith("memory"):
            raise BadInputError(
                f"the data of the run in {a.store} lay in the memory of a program: ask there, with "
                "solution.component_counts()"
            )
        solution = resume(a.store)
        if not isinstance(solution, Solution):
            raise BadInputError(f"the run in {a.store} has no rows, so its components cannot be counted")
        found, sure = solution.component_counts(share=a.share, noise=a.noise), None
        sampling = sampling_of(run, spec, a.independent_rows)
    if a.json:
        facts: dict[str, Any] = {"advice": [one.facts() for one in found], "differences": differences(found)}
        facts |= {} if sure is None else {"intervals": sure.facts()}
        facts |= {} if sampling is None else {"sampling": sampling.facts()}
        print(json.dumps(facts))
        return 0
    for one in found:
        count = "?" if one.components is None else f"{one.components}{'+' if one.at_least else ''}"
        above = "" if one.threshold is None else f"above {one.threshold:.4g}: "
        print(f"{one.criterion:24} {count:>6}   {above}{one.reason}")
    print(differences(found))
    for said in (sure, sampling):
        for line in () if said is None else said.lines():
            print(line)
    return 0


def _options(pairs: list[str]) -> dict[str, Any]:
    options = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        require(bool(separator), f"--option {pair!r}: write NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options
