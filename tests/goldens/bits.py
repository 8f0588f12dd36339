"""Questions whose answers are known to the byte: ``python -m tests.goldens.bits`` makes ``bits.json`` of this checkout.

Each is asked in this process through ``npmdask`` as a program asks it, and nothing else of the package is imported. An
answer is kept as digests: of every array that its store holds and that the solution gives, of the JSON beside them, and
of every sentence. ``numbers`` are kept beside them, for machines that compute other bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import zarr

import npmdask
from tests.goldens import sources
from tests.goldens.worlds import PASSING, _unsealed, simd

BITS = Path(__file__).parent / "bits.json"
MADE = 1_700_000_000  # time of change of files: plain Zarr stores are known by it
# Of the moment, or of the machine.
VOLATILE = re.compile(r".*seconds.*|time|started|pid|peak_rss.*|.*_per_second|environment")
SHA = re.compile(r"[0-9a-f]{64}")
Asked = Callable[[], dict[str, Any]]  # in a working folder of its own
CASES: dict[str, Asked] = {}

X, G, D, HOLLOW, Z = (
    make() for make in (sources.measured, sources.gappy, sources.marked, sources.hollow, sources.waves)
)
U, V = sources.row_weights(), sources.column_weights()
OTHERS = sources.measured(9, seed=10)  # rows that no run has seen
WIDE = np.ascontiguousarray(X[:40].T)
WEIGHTS: dict[str, dict[str, Any]] = {
    "": {},
    "-rows": {"row_weights": U},
    "-columns": {"column_weights": V},
    "-both": {"row_weights": U, "column_weights": V},
}
VIEWS: dict[str, dict[str, Any]] = {
    "": {},
    "-centred": {"center": True},
    "-scaled": {"scale": True},
    "-both-views": {"center": True, "scale": True},
}
BOTH, CENTRED, SCALED = WEIGHTS["-both"], VIEWS["-centred"], VIEWS["-both-views"]
SAMPLES = {"kind": "samples"} | CENTRED


# ---------------------------------------------------------------------------------------------- what is kept of answers


def digest(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:10]


def bits(value: Any) -> str:
    """A digest of an array with its type and shape, or of what JSON or a sequence of answers says."""
    if isinstance(value, np.ndarray):
        held = np.ascontiguousarray(value)
        return digest(f"{held.dtype.str} {held.shape} ".encode() + held.tobytes())
    return digest(json.dumps(plain(value), sort_keys=True))


def plain(value: Any) -> Any:
    """What JSON holds, without what is of the moment."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items() if not VOLATILE.fullmatch(str(name))}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return bits(value)
    if isinstance(value, np.generic):
        return value.item()
    return nameless(value) if isinstance(value, str) else value


def nameless(text: str) -> str:
    return text.replace(str(Path.cwd()), "@here@")


def refusal(error: Exception) -> str:
    """Class and sentence; what differs between two questions is named there in no order."""
    before, differ, after = nameless(str(error)).partition("these differ: ")
    return f"{type(error).__name__}: {before}{differ}{'; '.join(sorted(after.split('; ')))}"


def of_store(store: str | Path) -> dict[str, Any]:
    """Digests of the parts of a store, and what its run.json says of the question, key by key."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(Path(store).rglob("*")):
        name = path.relative_to(store).as_posix()
        if not path.is_file() or path.name in PASSING or path.name.startswith(".") or name == "run.json":
            continue
        data, part = path.read_bytes(), found.setdefault(name.partition("/")[0], {})
        if path.name.endswith(".json"):
            data = _unsealed(data)[0] if path.name == "manifest.json" else data
            part[name] = bits(json.loads(data))
        else:
            part[name] = digest(data)
    spec = flat(plain(json.loads((Path(store) / "run.json").read_text())))
    short = {name: value[:12] if SHA.fullmatch(str(value)) else value for name, value in spec.items()}
    return {"parts": {name: bits(part) for name, part in found.items()}, "spec": short}


def flat(table: Any, name: str = "") -> dict[str, Any]:
    if isinstance(table, dict) and table:
        return {inner: value for key, one in table.items() for inner, value in flat(one, f"{name}.{key}").items()}
    return {name.removeprefix("."): table}


def of_solution(found: Any, rows: Any, *others: Any) -> dict[str, Any]:
    """Digests of what a solution gives, each under its name; a sentence where it refuses."""
    asked: dict[str, Callable[[], Any]] = {
        name: partial(getattr, found, name)
        for name in ("basis", "values", "residual_norms", "singular_values", "mean", "missing", "certificate", "facts")
    }
    asked |= {name: partial(getattr, found, name) for name in ("explained_variance", "explained_variance_ratio")}
    calls = ("patterns", "component_counts", "north_errors", "mixes_with_next", "rotated")
    asked |= {name: getattr(found, name) for name in calls}
    asked |= {"attributes": lambda: found.attributes(scaled=True)}
    asked |= {"left_basis": found.left_basis} if found.analysed.kind == "matrix" else {}
    asked |= {f"scores-{i}": partial(found.scores, one) for i, one in enumerate((rows, *others)) if one is not None}
    if others and found.missing is not None:
        asked["scores-fitted"] = partial(found.scores, others[-1], missing="least-squares")
    answers, refused = {}, {}
    for name, ask in asked.items():
        try:
            answers[name] = bits(_rotated(ask()) if name == "rotated" else ask())
        except npmdask.NpmdaskError as error:
            refused[name] = refusal(error)
    share = found.explained_share
    return {
        "answers": answers | {"passes": [found.steps, found.data_passes, found.total_data_passes]},
        "refused": refused,
        "said": list(map(nameless, [found.outcome.sentence, found.assurance, *found.warnings])),
        "numbers": rounded([*found.values, *([] if share is None else [share]), *np.abs(found.basis).sum(axis=0)]),
    }


def rounded(numbers: Any) -> list[float]:
    """To what is compared of them on other arithmetic. Of a component it is what no sign, or phase, of it changes."""
    return [float(f"{float(number):.9g}") for number in numbers]


def _rotated(turned: Any) -> Any:
    return [turned.basis, turned.variances]


# ------------------------------------------------------------------------------------------------ questions


def ask(rows: Any, how: dict[str, Any], *others: Any, scored: bool = True) -> dict[str, Any]:
    """A run, and the same again from its store, which has to say the same."""
    k, given = how.get("k", 3), rows() if callable(rows) else rows
    asked = {name: value for name, value in how.items() if name != "k"} | {"store": "run"}
    looked_at = (given if scored else None, *others)
    first = of_solution(npmdask.top_k(given, k, **asked), *looked_at)
    again = of_solution(npmdask.top_k(given, k, **asked), *looked_at)
    changed = {
        name: again["answers"][name] for name, value in first["answers"].items() if again["answers"][name] != value
    }
    more = {"again": changed | ({} if again["refused"] == first["refused"] else again["refused"])}
    return first | more | of_store("run")


def of_mapped() -> dict[str, Any]:
    """Of a file that is mapped, which is known by where it lies."""
    np.save("rows.npy", X)
    found = ask(np.load("rows.npy", mmap_mode="r"), SAMPLES | BOTH)
    del found["answers"]["attributes"], found["spec"]["data.fingerprint"]
    return found


def on_disk(array: Any) -> str:
    """A plain Zarr store of it in the working folder, by its path."""
    if sp.issparse(array):
        group = zarr.create_group("x.zarr", attributes={"encoding-type": "csr_matrix", "shape": list(array.shape)})
        for name in ("data", "indices", "indptr"):
            part = getattr(array, name)
            group.create_array(name, shape=part.shape, dtype=part.dtype, chunks=(max(1, len(part) // 3),))[:] = part
    else:
        held = zarr.create_array("x.zarr", shape=array.shape, dtype=array.dtype, chunks=(40, array.shape[1]))
        held[...] = array
    for path in (Path("x.zarr"), *Path("x.zarr").rglob("*")):
        os.utime(path, (MADE, MADE))
    return "x.zarr"


def go_on(array: Any, how: dict[str, Any]) -> dict[str, Any]:
    """Of data on disk: a run that stops early and goes on, one that begins with its vectors, and further components."""
    path, k = on_disk(array), how.get("k", 3)
    asked = {name: value for name, value in how.items() if name != "k"}
    short = npmdask.top_k(path, k, store="short", max_steps=1, **asked)
    first = of_solution(npmdask.resume("short", max_steps=60), path)
    found = first | of_store("short") | {"cut": [bits(short.basis), short.outcome.sentence]}
    warm = npmdask.top_k(path, k + 1, store="warm", start="short", **asked)
    found["warm"] = of_solution(warm, path)["answers"] | of_store("warm")["spec"]
    deep = npmdask.deflate("short", 1, store="deep")
    found["deep"] = of_solution(deep, path)["answers"] | of_store("deep")["spec"]
    return found


def refused(call: Callable[[], Any]) -> dict[str, Any]:
    """The sentence of a refusal."""
    try:
        call()
    except npmdask.NpmdaskError as error:
        return {"refusal": refusal(error)}
    return {"refusal": "none"}


def add(name: str, rows: Any, how: dict[str, Any], *others: Any, scored: bool = True) -> None:
    assert name not in CASES, name
    CASES[name] = partial(ask, rows, how, *others, scored=scored)


ALGORITHMS: dict[str, dict[str, Any]] = {  # with so few columns that steps are needed
    "krylov": {"algorithm": "krylov", "iteration_rank": 4},
    "power": {"algorithm": "power", "iteration_rank": 6, "tol": 1e-5},
    "gram": {"algorithm": "gram"},
    "row-gram": {"algorithm": "row-gram"},
}
BLOCKS = ("krylov", "power", "gram")

# Dense rows: every algorithm, view and weight.
for algorithm, named in ALGORITHMS.items():
    for view, seen in VIEWS.items():
        for weight, weighted in WEIGHTS.items():
            if weight in ("", "-both") or view == "-both-views":
                add(f"samples-{algorithm}{view}{weight}", X, {"kind": "samples"} | named | seen | weighted, OTHERS)
    for weight in ("", "-both"):
        add(f"matrix-{algorithm}{weight}", X, named | WEIGHTS[weight], OTHERS)
        add(f"matrix-{algorithm}-both-views{weight}", X, named | SCALED | WEIGHTS[weight], OTHERS)
        add(f"single-{algorithm}{weight}", X.astype("f4"), SAMPLES | named | WEIGHTS[weight], OTHERS)
add("wide-row-gram-both", WIDE, SAMPLES | {"algorithm": "row-gram", "row_weights": U[:14], "column_weights": U[50:90]})
HOLES = np.where(np.random.default_rng(44).random(WIDE.shape) < 0.1, np.nan, WIDE)
ROWS = SAMPLES | {"algorithm": "row-gram"}
add("wide-row-gram-gaps", HOLES, ROWS | {"missing": "mean", "row_weights": U[:14], "column_weights": U[50:90]})
add("wide-row-gram-land", np.where(np.isnan(HOLES[0]), np.nan, WIDE), ROWS | {"missing": "drop-columns"})
add("wide-krylov-rows", WIDE, SAMPLES | {"algorithm": "krylov", "row_weights": U[:14]})
add("single-krylov-columns", X.astype("f4"), SAMPLES | WEIGHTS["-columns"])
add("single-krylov-float64", X.astype("f4"), SAMPLES | {"algorithm": "krylov", "options": {"precision": "float64"}})
add("single-matrix-columns", X.astype("f4"), WEIGHTS["-columns"])
add("krylov-basis-blocks", X, SAMPLES | {"algorithm": "krylov", "options": {"basis_blocks": 2}, "iteration_rank": 4})
add("seed", X, SAMPLES | {"seed": 5, "k": 1, "iteration_rank": 2, "algorithm": "power", "tol": 1e-6})
add("not-converged", X, SAMPLES | {"algorithm": "power", "iteration_rank": 4, "max_steps": 2} | BOTH)
for weight in ("", "-both"):
    add(f"low-rank{weight}", X, SAMPLES | {"algorithm": "power", "low_rank_tol": 0.2} | WEIGHTS[weight])
    add(f"low-rank-matrix{weight}", X, {"low_rank_tol": 0.2} | WEIGHTS[weight])
    add(f"share{weight}", X, SAMPLES | {"k": 0.8} | WEIGHTS[weight], OTHERS)
    add(f"share-matrix{weight}", X, {"k": 0.8} | SCALED | WEIGHTS[weight])
for kind in ("samples", "matrix"):
    noise = {"kind": kind, "mechanism": "gaussian", "stddev": 1e-3, "max_steps": 4, "iteration_rank": 5}
    add(f"noise-{kind}", X, noise)
    add(f"noise-{kind}-weighted", X, noise | CENTRED | BOTH)

# Whole numbers, sparse and complex ones.
for dtype, largest in (("i1", 100), ("u1", 100), ("i2", 30_000), ("i4", 2_000_000_000), ("f2", 100)):
    whole = np.abs(sources.counts(largest)) if dtype == "u1" else sources.counts(largest)
    for algorithm in ("krylov", "gram"):
        add(f"{dtype}-{algorithm}", whole.astype(dtype), SAMPLES | SCALED | {"algorithm": algorithm}, OTHERS)
    add(f"{dtype}-both", whole.astype(dtype), SAMPLES | BOTH)
S = sp.csr_matrix(np.where(np.random.default_rng(11).random((150, 40)) < 0.15, sources.measured(150, 40, 12), 0))
SU, SV = sources.row_weights(150), sources.column_weights(40)
SPARSE = {"": {}, "-both": {"row_weights": SU, "column_weights": SV}}
for algorithm in BLOCKS:
    for weight, weighted in SPARSE.items():
        for view in ("", "-both-views"):
            add(f"csr-{algorithm}{view}{weight}", S, {"algorithm": algorithm, "tol": 1e-3} | VIEWS[view] | weighted)
FEW = {"": {}, "-both": {"row_weights": SV, "column_weights": SU}}
for parts in (1, 3):
    for weight, weighted in FEW.items():
        how = {"algorithm": "row-gram", "tol": 1e-3, "options": {"parts": parts}} | weighted
        add(f"csr-row-gram{'-parts' * (parts > 1)}{weight}", S.T.tocsr(), VIEWS["-both-views" * (parts > 1)] | how)
add("csr-on-disk", S, {"algorithm": "power", "options": {"blocks": "disk"}, "tol": 1e-3})
add("csr-whole", sp.csr_matrix(np.rint(S.toarray()).astype("i4")), CENTRED | SPARSE["-both"])
add("csr-single-share", S.astype("f4"), {"k": 0.3} | CENTRED | SPARSE["-both"])
for algorithm in BLOCKS:
    for weight in ("", "-both"):
        add(f"complex-{algorithm}{weight}", Z, SAMPLES | ALGORITHMS[algorithm] | WEIGHTS[weight], OTHERS + 0j)
add("complex-matrix", Z, SCALED | BOTH, OTHERS + 0j)
add("complex-single", Z.astype("c8"), SAMPLES | BOTH)
add("hermitian", sources.hermitian(), {"kind": "symmetric"}, scored=False)
add("hermitian-power", sources.hermitian(), {"kind": "symmetric", "algorithm": "power"}, scored=False)
add("symmetric", sources.hermitian().real.copy(), {"kind": "symmetric"}, scored=False)
add(
    "symmetric-single", sources.hermitian().real.astype("f4"), {"kind": "symmetric", "algorithm": "power"}, scored=False
)

# Gaps by every rule.
for algorithm in BLOCKS:
    for weight in ("", "-both"):
        for view in ("-centred", "-both-views"):
            mean = {"kind": "samples", "missing": "mean"} | ALGORITHMS[algorithm] | VIEWS[view] | WEIGHTS[weight]
            add(f"mean-{algorithm}{view}{weight}", G, mean, OTHERS, G[:7])
MEAN = SAMPLES | {"missing": "mean"}
add("mean-rows", G, MEAN | WEIGHTS["-rows"], G[:7])
add("mean-columns", G, MEAN | WEIGHTS["-columns"], G[:7])
add("mean-matrix", G, SCALED | {"missing": "mean"} | BOTH, G[:7])
add("mean-single", G.astype("f4"), MEAN | SCALED | BOTH, G[:7])
add("mean-share", G, MEAN | {"k": 0.8} | BOTH)
add("mean-low-rank", G, MEAN | {"low_rank_tol": 0.2, "algorithm": "power"})
add("mean-masked", np.ma.masked_invalid(G), MEAN, G[:7])
add("mean-nothing-missing", X, MEAN | BOTH)
MARKED = {"missing_values": [sources.MARK], "missing_limit": 0.5}
add("marks", np.where(np.isnan(G), sources.MARK, G), MEAN | {"missing_values": [sources.MARK]} | BOTH, G[:7])
add("marks-whole", np.where(np.isnan(G), -99, np.rint(X)).astype("i2"), MEAN | {"missing_values": -99})
SIX = np.where((np.arange(120) < 6)[:, None] & (np.arange(14) == 2), np.nan, X)  # exactly the share that may be missing
add("limit-to-the-row", SIX, MEAN | {"missing_limit": 0.05})
for weight in ("", "-both"):
    add(f"limit{weight}", D, MEAN | MARKED | WEIGHTS[weight], OTHERS)
    add(f"limit-gram{weight}", D, MEAN | MARKED | SCALED | {"algorithm": "gram"} | WEIGHTS[weight])
    add(f"drop{weight}", HOLLOW, SAMPLES | {"missing": "drop-columns"} | WEIGHTS[weight], HOLLOW[:7])
    add(f"drop-matrix{weight}", HOLLOW, {"missing": "drop-columns"} | WEIGHTS[weight], HOLLOW[:7])
F = sources.factored()
for weight, weighted in WEIGHTS.items():
    add(f"em{weight}", F, SAMPLES | {"missing": "em", "k": 2} | weighted, F[:7])
add("em-auto", F, SAMPLES | {"missing": "em", "k": "auto"})
add("em-held-out", F, SAMPLES | {"missing": "em", "k": 2, "options": {"held_out": 0.0}, "tol": 1e-3})
for weight in ("", "-columns"):
    for view in ("-centred", "-both-views"):
        add(f"pairwise{view}{weight}", G, SAMPLES | {"missing": "pairwise"} | VIEWS[view] | WEIGHTS[weight], G[:7])


# Rows that are computed or read, and more than two dimensions.
def graph(rows: Any = X, chunk: int = 50) -> Any:
    import dask.array as da

    return da.from_array(rows, chunks=(chunk, -1), name="rows")


def grid(*, lazy: bool = False) -> Any:
    found = sources.field()
    return found.chunk({"time": 50}, token="grid") if lazy else found


CASES["mapped"] = of_mapped
for algorithm in BLOCKS:
    for weight in ("", "-both"):
        add(f"lazy-{algorithm}{weight}", graph, SAMPLES | SCALED | ALGORITHMS[algorithm] | WEIGHTS[weight], OTHERS)
add("lazy-spilled", graph, SAMPLES | {"spill": "spilled"} | BOTH)
add("lazy-gaps", partial(graph, G), MEAN | BOTH)
add("lazy-whole", partial(graph, sources.counts(100).astype("i1")), SAMPLES | SCALED)
add("lazy-complex", partial(graph, Z), SAMPLES | BOTH)
for lazy in (False, True):
    kind = "grid-lazy" if lazy else "grid"
    cells = {"dim": "time", "kind": "samples", "column_weights": "coslat"}
    add(f"{kind}-coslat", partial(grid, lazy=lazy), cells | SCALED, scored=False)
    add(f"{kind}-row-weights", partial(grid, lazy=lazy), cells | CENTRED | {"row_weights": U}, scored=False)
add(
    "array-of-three",
    lambda: sources.field().values,
    {"dim": 0, "kind": "samples"} | CENTRED | WEIGHTS["-rows"],
    scored=False,
)
add("linear-operator", lambda: sp.linalg.aslinearoperator(X), {}, scored=False)
for name, (data, more) in {
    "plain": (X, SAMPLES | {"algorithm": "power", "iteration_rank": 5}),
    "weighted": (X, SAMPLES | BOTH | {"algorithm": "power", "iteration_rank": 5}),
    "weighted-krylov": (X, SAMPLES | SCALED | BOTH | {"algorithm": "krylov", "iteration_rank": 4}),
    "gaps": (G, MEAN | BOTH | {"algorithm": "power", "iteration_rank": 5}),
    "complex": (Z, SAMPLES | BOTH | {"algorithm": "power", "iteration_rank": 5}),
    "single": (X.astype("f4"), SAMPLES | BOTH | {"algorithm": "power", "iteration_rank": 5}),
    "csr": (S, CENTRED | SPARSE["-both"] | {"algorithm": "power", "iteration_rank": 8, "tol": 1e-2}),
}.items():
    CASES[f"go-on-{name}"] = partial(go_on, data, more)


# Stored Grams, and what is asked of them.
def of_gram(rows: Any, how: dict[str, Any], *questions: dict[str, Any]) -> dict[str, Any]:
    made = npmdask.gram(rows, "G", kind=None if sp.issparse(rows) else "samples", **how)
    answers = {"mean": bits(made.mean), "matrix": bits(made.matrix(scale=True)), "spectrum": bits(made.spectrum())}
    answers |= {"counts": bits(made.component_counts()), "for": made.components_for(0.8), "groups": bits(made.groups)}
    for i, question in enumerate(questions):
        answers |= {f"{i}-{name}": one for name, one in ask("G", question, scored=False)["answers"].items()}
        for path in sorted(Path("run").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    if "groups" in how:
        answers |= {"some": bits(made.group("a", "c").matrix()), "selected": bits(made.select([0, 3, 5]).matrix())}
        answers |= {"jackknife": bits(made.jackknife(2).facts()), "bootstrap": bits(made.bootstrap(2, seed=1).facts())}
        (other := npmdask.gram(rows[:33] + 1, "H", kind="samples"))
        merged = npmdask.GramStore.merge(["G", "H"], "both")
        answers |= {"merged": bits(merged.matrix()), "reduced": bits(merged.remove(other, "less").matrix())}
    return {"answers": answers, "numbers": rounded([made.matrix().trace()])} | of_store("G")


QUESTIONS = (CENTRED, SCALED | WEIGHTS["-columns"], {"column_weights": V, "k": 0.8})
CASES["gram"] = partial(of_gram, X, {}, *QUESTIONS)
CASES["gram-groups"] = partial(of_gram, X, {"groups": sources.groups()}, *QUESTIONS)
CASES["gram-by-chunks"] = partial(of_gram, X, {"by_chunks": 1}, CENTRED)
CASES["gram-single"] = partial(of_gram, X.astype("f4"), {"precision": "float32", "seed": 3}, CENTRED)
CASES["gram-whole"] = partial(of_gram, sources.counts(100).astype("i1"), {}, CENTRED)
CASES["gram-csr"] = partial(of_gram, S, {}, CENTRED)


# Other doors.
def of_fields(kind: str, **how: Any) -> dict[str, Any]:
    found = getattr(npmdask, kind)(G, sources.counts(100).astype("i1"), 2, missing="mean", store="run", **how)
    fields = {
        f"{side}.{name}": bits(getattr(getattr(found, side), name))
        for side in ("left", "right")
        for name in ("patterns", "explained_variance_ratio")
    }
    numbers = found.values
    return {
        "answers": fields,
        "said": [found.assurance, *found.warnings],
        "numbers": rounded(numbers),
    } | of_store("run")


def of_triplets() -> dict[str, Any]:
    found = npmdask.singular_triplets(X, 2, iteration_rank=6, store="run")
    names = ("values", "left", "right", "residual_norms")
    answers = {name: bits(np.abs(getattr(found, name))) for name in names}
    return {"answers": answers, "numbers": rounded(found.values)} | of_store("run")


def of_stream(rows: Any, **how: Any) -> dict[str, Any]:
    found = npmdask.stream_pca(on_disk(rows), 2, batch_rows=20, store="run", **how)
    answers = {"basis": bits(found.basis), "values": bits(found.values)}
    return {"answers": answers, "said": [*found.warnings], "numbers": rounded(found.values)} | of_store("run")


def of_estimator(make: Callable[[], Any], rows: Any, fit: dict[str, Any]) -> dict[str, Any]:
    model = make().fit(rows, **fit)
    names = sorted(name for name in vars(model) if name.endswith("_") and not name.startswith("_"))
    held = {name: getattr(model, name) for name in names}
    answers = {name: bits(value) for name, value in held.items() if isinstance(value, np.ndarray | int | float | tuple)}
    answers |= {
        "transform": bits(model.transform(rows)),
        "back": bits(model.inverse_transform(model.transform(OTHERS))),
    }
    return {"answers": answers, "numbers": rounded(model.singular_values_)}


for kind in ("mca", "cca"):
    CASES[kind] = partial(of_fields, kind)
    CASES[f"{kind}-weighted"] = partial(of_fields, kind, row_weights=U, left_weights=V, scale=True)
CASES["triplets"] = of_triplets
CASES["stream"] = partial(of_stream, X)
CASES["stream-weighted"] = partial(of_stream, X, center=True, row_weights=U)
CASES["stream-imputed"] = partial(of_stream, G, center=True, missing="impute")
CASES["stream-half-life"] = partial(of_stream, X.astype("f4"), half_life=50.0, order="shuffled", epochs=2)
CASES["pca"] = partial(of_estimator, partial(npmdask.PCA, 3, whiten=True), X, {})
CASES["pca-weighted"] = partial(of_estimator, partial(npmdask.PCA, 3), X, {"sample_weight": U})
CASES["truncated-svd"] = partial(of_estimator, partial(npmdask.TruncatedSVD, 3), X, {})


# Refusals: the class and the sentence.
def twice(first: dict[str, Any], second: dict[str, Any], data: Any = X, again: Any = None) -> None:
    """Another question to the store of the first."""
    npmdask.top_k(data, 3, store="run", **first)
    npmdask.top_k(data if again is None else again, 3, store="run", **second)


def top(rows: Any, k: Any = 2, **how: Any) -> Callable[[], Any]:
    return lambda: npmdask.top_k(rows() if callable(rows) else rows, k, **how)


def on_gram(**how: Any) -> Callable[[], Any]:
    def asked() -> Any:
        npmdask.gram(on_disk(X), "G", kind="samples")
        return npmdask.top_k("G", 2, **how)

    return asked


def promise() -> npmdask.Privacy:
    relation: dict[str, Any] = {
        "neighboring_relation": "record_replace",
        "clip_norm": 1.0,
        "ledger": "ledger.sqlite",
        "dataset": "x",
    }
    return npmdask.Privacy(epsilon=1.0, delta=1e-6, **relation)


def of_private(**how: Any) -> Callable[[], Any]:
    return lambda: npmdask.top_k(on_disk(X), 2, privacy=promise(), store="run", **how)


def resumed_lazy() -> None:
    npmdask.top_k(graph(), 2, store="run", max_steps=1, **SAMPLES | {"algorithm": "power", "iteration_rank": 4})
    npmdask.resume("run", max_steps=60)


def deflated_short() -> None:
    npmdask.top_k(on_disk(X), 2, store="run", max_steps=1, algorithm="power", iteration_rank=4)
    npmdask.deflate("run", 1, store="deep")


POWER = {"algorithm": "power", "iteration_rank": 4}
SYMMETRIC = {"kind": "symmetric"}
REFUSALS: dict[str, Callable[[], Any]] = {
    "too-few-row-weights": top(X, row_weights=U[:-1]),
    "too-few-column-weights": top(X, column_weights=V[:-1]),
    "negative-weights": top(X, column_weights=-V),
    "no-weight": top(X, row_weights=0 * U),
    "one-weight": top(X, row_weights=2.0),
    "weights-in-a-table": top(X, row_weights=np.ones((120, 2))),
    "huge-weights": top(X, row_weights=U * 1e80),
    "weights-by-a-wrong-name": top(grid, dim="time", row_weights="tyme"),
    "coslat-of-an-array": top(X, column_weights="coslat"),
    "weights-of-a-symmetric-matrix": top(sources.hermitian().real.copy(), column_weights=V, **SYMMETRIC),
    "weights-of-products": top(lambda: sp.linalg.aslinearoperator(X), column_weights=V),
    "weights-with-an-operator": top(X, operator="mine", row_weights=U),
    "row-weights-of-a-gram": on_gram(row_weights=U),
    "other-row-weights": lambda: twice(SAMPLES | BOTH, SAMPLES | BOTH | {"row_weights": U + 1}),
    "weights-left-out": lambda: twice(SAMPLES | BOTH, SAMPLES),
    "weights-added": lambda: twice(SAMPLES, SAMPLES | BOTH),
    "errors-of-weighted-rows": lambda: npmdask.top_k(X, 2, row_weights=U, **SAMPLES).north_errors(),
    "gaps": top(G, **SAMPLES),
    "gaps-lazy": top(partial(graph, G), **SAMPLES),
    "gaps-not-centred": top(G, kind="samples", missing="mean"),
    "gaps-unknown-rule": top(G, missing="median", **SAMPLES),
    "gaps-filled-in-public": top(G, missing="fill", missing_fill=0, **SAMPLES),
    "gaps-of-csr": top(S, missing="mean", center=True),
    "gaps-of-complex-rows": top(Z, missing="mean", **SAMPLES),
    "gaps-of-a-gram": on_gram(missing="mean", center=True),
    "gaps-with-noise": top(G, missing="mean", mechanism="gaussian", stddev=1.0, **SAMPLES),
    "gaps-of-a-column-dropped": top(G, missing="drop-columns", **SAMPLES),
    "gaps-everywhere": top(np.full((9, 4), np.nan), missing="mean", **SAMPLES),
    "marks-without-a-rule": top(X, missing_values=[-9999], **SAMPLES),
    "marks-of-text": top(X, missing="mean", missing_values=["NA"], **SAMPLES),
    "limit-of-another-rule": top(HOLLOW, missing="drop-columns", missing_limit=0.5, **SAMPLES),
    "limit-too-large": top(G, missing="mean", missing_limit=1.5, **SAMPLES),
    "limit-of-all": top(G, missing="mean", missing_limit=0.0, **SAMPLES),
    "fill-of-another-rule": top(G, missing="mean", missing_fill=0.0, **SAMPLES),
    "pairwise-with-row-weights": top(G, missing="pairwise", row_weights=U, **SAMPLES),
    "pairwise-of-a-matrix": top(G, missing="pairwise", center=True),
    "pairwise-by-power": top(G, missing="pairwise", algorithm="power", **SAMPLES),
    "pairwise-low-rank": top(G, missing="pairwise", low_rank_tol=0.1, **SAMPLES),
    "em-of-a-matrix": top(G, missing="em", center=True),
    "em-by-krylov": top(G, missing="em", algorithm="krylov", **SAMPLES),
    "em-share": top(G, 0.8, missing="em", **SAMPLES),
    "em-all": top(G, 14, missing="em", **SAMPLES),
    "em-options": top(G, missing="em", options={"held_out": 0.9}, **SAMPLES),
    "auto-without-em": top(X, "auto", **SAMPLES),
    "other-rule": lambda: twice(MEAN, SAMPLES | {"missing": "em"}, G),
    "infinite": top(np.where(np.isnan(G), np.inf, G), **SAMPLES),
    "infinite-with-a-rule": top(np.where(np.isnan(G), np.inf, G), missing="mean", **SAMPLES),
    "complex-share": top(Z, 0.8, **SAMPLES),
    "complex-row-gram": top(Z, algorithm="row-gram", **SAMPLES),
    "complex-low-rank": top(Z, low_rank_tol=0.1, **SAMPLES),
    "complex-noise": top(Z, mechanism="gaussian", stddev=1.0),
    "complex-gram": lambda: npmdask.gram(Z, "G", kind="samples"),
    "complex-sparse": top(lambda: S.astype(complex)),
    "complex-triplets": lambda: npmdask.singular_triplets(Z, 2),
    "complex-stream": lambda: npmdask.stream_pca(Z, 2),
    "groups-too-few": lambda: npmdask.gram(X, "G", groups=sources.groups()[:-1]),
    "groups-missing": lambda: npmdask.gram(X, "G", groups=[None, *sources.groups()[1:]]),
    "groups-of-csr": lambda: npmdask.gram(S, "G", groups=["a"] * 150),
    "groups-and-chunks": lambda: npmdask.gram(X, "G", groups=sources.groups(), by_chunks=1),
    "groups-by-a-wrong-name": lambda: npmdask.gram(X, "G", groups="batch"),
    "gram-of-gaps": lambda: npmdask.gram(G, "G", kind="samples"),
    "gram-of-a-symmetric-matrix": lambda: npmdask.gram(sources.hermitian().real.copy(), "G", kind="symmetric"),
    "gram-precision": lambda: npmdask.gram(X, "G", precision="float16"),  # type: ignore[arg-type]
    "gram-of-a-gram": lambda: on_gram()() and npmdask.gram("G", "H"),
    "gram-with-noise": top(X, algorithm="gram", mechanism="gaussian", stddev=1.0),
    "gram-share": top(X, 0.8, algorithm="gram", **SAMPLES),
    "gram-options": top(X, algorithm="gram", options={"basis_blocks": 2}),
    "krylov-options": top(X, algorithm="krylov", options={"blocks": 2}),
    "power-options": top(X, algorithm="power", options={"blocks": "disk"}),
    "unknown-algorithm": top(X, algorithm="krilov"),
    "unknown-kind": top(X, kind="sample"),
    "unknown-mechanism": top(X, mechanism="normal"),
    "k-of-nothing": top(X, 0),
    "k-of-more": top(X, 15),
    "k-of-text": top(X, "three"),
    "k-of-one-and-a-half": top(X, 1.5),
    "share-with-a-rank": top(X, 0.8, iteration_rank=4, **SAMPLES),
    "share-low-rank": top(X, 0.8, low_rank_tol=0.1, **SAMPLES),
    "rank-too-small": top(X, 3, iteration_rank=2),
    "rank-too-large": top(X, 3, iteration_rank=15),
    "tolerance": top(X, tol=2.0),
    "low-rank-negative": top(X, low_rank_tol=-1.0),
    "steps": top(X, max_steps=0),
    "seed": top(X, seed=-1),
    "memory-of-text": top(X, memory="much"),
    "device": top(X, device="gpu"),
    "threads": top(X, threads=0),
    "centred-symmetric": top(sources.hermitian().real.copy(), center=True, **SYMMETRIC),
    "symmetric-of-rows": top(X, **SYMMETRIC),
    "scaled-products": top(lambda: sp.linalg.aslinearoperator(X), scale=True),
    "unknown-operator": top(X, operator="mine"),
    "one-dimension": top(np.arange(5.0)),
    "three-dimensions": top(np.ones((3, 2, 2))),
    "text": top(np.array([["a", "b"], ["c", "d"]])),
    "wrong-dimension": top(grid, dim="tyme"),
    "nothing-there": top("nothing.zarr"),
    "spill-of-an-array": top(X, spill="spilled"),
    "start-of-nothing": top(X, start="nothing"),
    "start-of-other-columns": lambda: (
        npmdask.top_k(X, 2, store="run") and npmdask.top_k(X[:, :9].copy(), 2, start="run", store="warm")
    ),
    "other-tolerance": lambda: twice(SAMPLES, SAMPLES | {"tol": 1e-5}),
    "other-data": lambda: twice(SAMPLES, SAMPLES, X, X + 1),
    "other-view": lambda: twice(SAMPLES, SAMPLES | SCALED),
    "other-algorithm": lambda: twice(SAMPLES | {"algorithm": "gram"}, SAMPLES | {"algorithm": "krylov"}),
    "resumed-lazy": resumed_lazy,
    "resumed-nothing": lambda: npmdask.resume("run"),
    "deflated-nothing": lambda: npmdask.deflate("run", 1, store="deep"),
    "deflated-short": deflated_short,
    "private-without-a-store": lambda: npmdask.top_k(on_disk(X), 2, privacy=promise()),
    "private-in-memory": lambda: npmdask.top_k(X, 2, privacy=promise(), store="run"),
    "private-not-ingested": of_private(),
    "private-centred": of_private(center=True),
    "private-share": lambda: npmdask.top_k(on_disk(X), 0.8, privacy=promise(), store="run"),
    "private-gaps-by-means": of_private(missing="mean"),
    "private-limit": of_private(missing="mean", missing_limit=0.5),
    "private-marks": of_private(missing_values=[-1]),
    "private-tolerance": of_private(tol=1e-3),
    "covariance-in-public": top(X, algorithm="covariance"),
    "scores-of-other-columns": lambda: npmdask.top_k(X, 2, **SAMPLES).scores(X[:, :9]),
    "scores-of-gaps": lambda: npmdask.top_k(X, 2, **SAMPLES).scores(G),
    "variance-not-centred": lambda: npmdask.top_k(X, 2).explained_variance,
    "left-vectors-of-samples": lambda: npmdask.top_k(X, 2, store="run", **SAMPLES).left_basis(),
    "mca-of-other-rows": lambda: npmdask.mca(X, X[:9], 2),
    "mca-pairwise": lambda: npmdask.mca(G, X, 2, missing="pairwise"),
    "cca-with-gaps": lambda: npmdask.cca(G, X, 2),
    "stream-unknown": lambda: npmdask.stream_pca(X, 2, algorithm="ojas"),
    "stream-gaps": lambda: npmdask.stream_pca(G, 2),
    "stream-weights": lambda: npmdask.stream_pca(X, 2, row_weights=U[:-1]),
}
CASES |= {f"refused-{name}": partial(refused, call) for name, call in REFUSALS.items()}


# ------------------------------------------------------------------------------------------------ asking them all


@contextlib.contextmanager
def folder() -> Iterator[list[warnings.WarningMessage]]:
    """A working folder of its own; what Python warns of there."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="bits-") as place, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        os.chdir(Path(place).resolve())
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                yield warned
        finally:
            os.chdir(before)


def answer(name: str) -> dict[str, Any]:
    """What is found of a case, as ``bits.json`` keeps it."""
    with folder() as warned:
        found = CASES[name]()
        found["warned"] = sorted({nameless(str(one.message)) for one in warned})
    return {part: value for part, value in found.items() if value}


LEFT_OUT = "(not there)"


def kept(whole: dict[str, Any]) -> dict[str, Any]:
    """What is known of every case. In the file is of a question what is not as in most of them, and of a sentence that
    comes often its place in ``sentences``.
    """
    for found in whole["cases"].values():
        if "spec" in found:
            spec = whole["question"] | found["spec"]
            found["spec"] = {name: value for name, value in spec.items() if value != LEFT_OUT}
        if "refused" in found:
            found["refused"] = {name: whole["sentences"][place] for name, place in found["refused"].items()}
    return dict(whole["cases"])


def main(path: Path, names: list[str]) -> None:
    cases = {name: answer(name) for name in names or CASES}
    specs = [found["spec"] for found in cases.values() if "spec" in found]
    keys = sorted({key for spec in specs for key in spec})
    most = {key: max(values, key=values.count) for key in keys for values in ([s.get(key, LEFT_OUT) for s in specs],)}
    common = {key: value for key, value in most.items() if value != LEFT_OUT}
    sentences = sorted({sentence for found in cases.values() for sentence in found.get("refused", {}).values()})
    for found in cases.values():
        if "spec" in found:
            spec = {key: found["spec"].get(key, LEFT_OUT) for key in common.keys() | found["spec"].keys()}
            found["spec"] = {key: value for key, value in sorted(spec.items()) if value != common.get(key, LEFT_OUT)}
        if "refused" in found:
            found["refused"] = {name: sentences.index(sentence) for name, sentence in found["refused"].items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found, sort_keys=True)}" for name, found in cases.items())
    above = {"simd": simd(), "question": common, "sentences": sentences}
    corrected = json.dumps(json.loads(BITS.read_text())["corrected"], sort_keys=True)
    head = ",\n".join(f"{json.dumps(name)}: {json.dumps(value, indent=0)}" for name, value in above.items())
    path.write_text(f'{{{head},\n"cases": {{\n{lines}\n}},\n"corrected": {corrected}}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else BITS, sys.argv[2:])
