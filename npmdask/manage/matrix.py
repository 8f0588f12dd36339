"""Runs of the loop over stored data: components of a matrix or a tensor, a search for a share of the variance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.core.algorithms.stopping import Outcome, default_tol
from npmdask.core.aspects import Reading, kept_aspects, reading_of
from npmdask.core.checkpoint.schema import is_of_rows, is_protected, is_public
from npmdask.core.checkpoint.store import RunStore, not_finished
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.kinds import PRESENTED, StoredRun
from npmdask.core.runs.left_vectors import left_blocks, left_height
from npmdask.core.runs.progress import duration, passes_text
from npmdask.core.runs.restore import solution_of
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.bundle import read_bundle
from npmdask.core.storage.labels import Labels
from npmdask.manage.kinds import (
    Keeps,
    PageOptions,
    RunKind,
    Sink,
    Spec,
    device_text,
    memory_text,
    named,
    network_text,
    shares_text,
    short_store_path,
    tables_of_aspects,
    values_text,
)
from npmdask.manage.status import progress
from npmdask.report import Report

RELEASED = ("value_stddevs", "factor_left", "factor_right", "left_basis", "covariance")
ROWS = ("samples", "matrix", "sparse")  # kinds whose data have rows that are not columns
NOUNS = {"symmetric": "eigenpair", "matrix": "singular triplet", "sparse": "singular pair"}
STATES = {True: "finished", False: "unfinished"}


class MatrixKind(StoredRun, RunKind):
    """A run over a stored matrix or tensor; also a private or a federated one."""

    folders = ("search",)

    def gave(self, answer: Any) -> bool:
        return isinstance(answer, Solution)

    def answer(self, store: Path) -> dict[str, np.ndarray]:
        """Read the answer; of a private run all that was released. Left vectors are too large to be among it."""
        arrays = _result(store)
        return {
            name: arrays[name]
            for name in ("basis", "values", "residual_norms", *(name for name in RELEASED if name in arrays))
        }

    def export(self, store: Path, sink: Sink) -> None:
        """Write the answer, what rows and columns are called and weigh, and the left vectors (m x k) from disk, every
        chunk held to its checksum.
        """
        super().export(store, sink)
        for name, array in _explained_arrays(RunStore(store)).items():
            sink.array(name, array)
        self._name(store, sink)
        arrays = _result(store)
        if "left_rotation" in arrays:
            shape = left_height(store, arrays)[0], arrays["left_rotation"].shape[1]
            sink.rows("left_basis", shape, left_blocks(store))

    def export_turned(self, store: Path, sink: Sink, rotate: str | None, align_to: str | None) -> bool:
        """Write components that are turned: as the run was reported, where nothing else is asked for."""
        run = RunStore(store)
        if rotate is None and align_to is None:
            kept = run.read_part(PRESENTED)
            arrays = {} if kept is None else kept[0]
        else:
            arrays = features.required("presenters", "an export that is rotated or aligned")(run, rotate, align_to)
        for name, array in _name_variances(run, arrays).items():
            sink.array(name, array)
        if arrays:
            self._name(store, sink)
        return bool(arrays)

    def _name(self, store: Path, sink: Sink) -> None:
        """Write what rows and columns are called and weigh, and what was done to them."""
        run = RunStore(store)
        spec = run.read_spec() or {}
        if is_of_rows(spec) and is_public(spec) and "operator" not in spec:
            sink.about(solution_of(run, scores=False).attributes(scaled=spec["data"]["scale"]))
        part = read_bundle(store / "labels") if (store / "labels").is_dir() else None
        for name, values in {} if part is None else Labels.of_bundle(*part).named().items():
            sink.array(name, values)
        kept = read_bundle(store / "missing")[0]["kept"] if (store / "missing").is_dir() else None
        for aspect in kept_aspects(run, spec):
            for name, values in aspect.exported(kept).items():
                sink.array(name, values)

    def summary(self, answer: Solution) -> dict[str, Any]:
        """List the facts of a solution; of a private one nothing of size, time or memory."""
        return _summary(answer) if answer.statement is None or "nodes" in answer.statement else _release_facts(answer)

    def found(self, answer: Solution) -> str:
        """Say how many components of what, and the largest values."""
        k, kind = len(answer.values), answer.analysed.kind
        noun = NOUNS.get(kind, "component")
        rows = f" and {answer.analysed.rows:,} rows" if answer.analysed.rows is not None and kind in ROWS else ""
        values = values_text(answer.values)
        return f"{k} {noun}{'s'[: k != 1]} of {answer.basis.shape[0]:,} columns{rows}; {answer.values_are} {values}"

    def outcome(self, answer: Solution) -> str:
        """Say how it ended, and where ``tol`` was chosen by the type of the data."""
        said = super().outcome(answer)
        spec = (RunStore(answer.store).read_spec() or {}) if Path(answer.store).is_dir() else {}
        dtype, tol = spec.get("data", {}).get("dtype", "f8"), spec.get("stop", {}).get("tol")
        if np.dtype(dtype) == np.float32 and tol == default_tol(np.dtype(np.float32)):
            return re.sub(r"\((tol [^()]*)\)", r"(\1, the default for float32)", said, count=1)
        return said

    def explained(self, answer: Solution) -> list[tuple[str, str]]:
        """Say what share of the variance the components explain, together and one by one."""
        share = answer.explained_share
        if share is None or not answer.answered:
            return []
        each = f": {shares_text(answer.explained_variance_ratio)}" if answer.analysed.centred else ""
        of = "the variance" if answer.analysed.centred else "the sum of squares"
        return [("explained", f"{100 * share:.3g} % of {of}{each if len(answer.values) > 1 else ''}")]

    def overview(self, answer: Solution, cost: Mapping[str, str]) -> list[tuple[str, str]]:
        """Say it in eight lines; what did not converge is gone on with."""
        lines = super().overview(answer, cost)
        if answer.answered:
            return lines
        more = f"npmdask resume {quote(short_store_path(answer))} --max-steps N"
        return [(name, more if name == "next" else said) for name, said in lines]

    def cost(self, answer: Solution, cost: Mapping[str, str]) -> Mapping[str, str]:
        """Say what the run took; of a private one what it spent, and neither time nor memory."""
        if answer.seconds is None:
            return {} if answer.statement is None else {"privacy": privacy_text(answer.statement)}
        passes = f": {passes_text(answer.data_passes, answer.bytes_read or 0)}" if answer.data_passes else ""
        memory = memory_text(answer.peak_rss_bytes, answer.memory_limit_bytes)
        there = "" if answer.device is None else f"; {device_text(answer.device)}"
        fetched = {} if answer.network is None else {"network": network_text(answer.network)}
        return {"time": f"{duration(answer.seconds)}{passes}", "memory": f"{memory}{there}", **fetched}

    def inspect(self, run: RunStore, spec: Spec) -> dict[str, Any]:
        """Say what is committed; of a private run only public parameters, neither shape nor fingerprint."""
        result, history = run.part_meta("result"), run.history()
        facts = {
            "state": STATES[bool(result)],
            "outcome": result["outcome"]["sentence"] if result else "go on with `npmdask resume`",
        }
        facts |= {"answered": Outcome(**result["outcome"]).answered} if result else {}
        facts |= {"assurance": result["assurance"]} if result and result.get("assurance") else {}
        source = {"source": spec.get("source")}
        if "privacy" in spec:
            released = {"released": f"{len(history)} of {spec['stop']['max_steps']}"}
            return facts | released | source | named(spec, ("privacy", "algorithm", "version"))
        steps = {
            "steps": len(history),
            "worst_residual": history[-1]["worst_residual"] if history else None,
        }
        device = spec.get("environment", {}).get("device")
        reading = reading_of(kept_aspects(run, dict(spec), Reading))
        presented = run.part_meta(PRESENTED) or {"asked": {}, "facts": {}}
        return (
            facts
            | steps
            | ({"device": device} if device else {})
            | source
            | _missing_facts(None if reading is None else reading.noted(run))
            | named({PRESENTED: presented["asked"] | presented["facts"]}, (PRESENTED,))
            | named(spec, ("data", *tables_of_aspects(spec), "operator", "algorithm", "stop", "run", "version"))
        )

    def status(self, run: RunStore, spec: Spec, state: str) -> dict[str, Any]:
        """Say how far it came; of a private run how many releases are made. Nodes' times follow rows, too."""
        found = super().status(run, spec, state) | {"what": str(spec["algorithm"]["name"])}
        if "privacy" in spec:
            steps = len(run.history()) or len(list((run.path / "releases").glob("[0-9]*")))
            return found | {"step": steps, "max_steps": spec["stop"].get("max_steps"), "timeless": True, "error": ""}
        return found | progress(run, spec, found["state"], self.folders) | {"timeless": is_protected(spec)}

    def report(self, run: RunStore, spec: Spec) -> Report:
        return self.report_with(run, spec, PageOptions())

    def report_with(self, run: RunStore, spec: Spec, page: PageOptions) -> Report:
        """Report the run, its data first."""
        from npmdask.manage.run_report import run_report

        return run_report(run, dict(spec), page.or_as_run(spec.get("report", {})))

    def keeps(self, run: RunStore, spec: Spec) -> Keeps:
        """Keep everything of a node, whose coordinator may ask again."""
        return "everything" if (run.path / "releases").is_dir() else super().keeps(run, spec)


def privacy_text(statement: Mapping[str, Any]) -> str:
    """Write what a private run promises, and what of that it spent; "" of nodes, whose statements are their own."""
    if "epsilon_spent" not in statement:
        return ""
    promise = f"epsilon = {statement['epsilon']:g}, delta = {statement['delta']:g}"
    return f"{promise}, of which {statement['epsilon_spent']:.6g} is spent; {statement['protects']}"


VARIANCE, SHARE, MEAN_SQUARE = "explained_variance", "explained_variance_ratio", "mean_squares"  # as exports have them


def _explained_arrays(run: RunStore) -> dict[str, np.ndarray]:
    """Variances of the scores of a centred run (n - 1 in the denominator) and their shares; of other runs nothing."""
    spec = run.read_spec() or {}
    data = spec.get("data", {})
    if not data.get("center") or not is_of_rows(spec) or not is_public(spec):
        return {}
    solution = solution_of(run, scores=False)
    found = {VARIANCE: solution.explained_variance} if solution._rows > 1 else {}
    return found if solution.explained_share is None else found | {SHARE: solution.explained_variance_ratio}


def _name_variances(run: RunStore, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Name the variances of turned components as those of all others are."""
    found = dict(arrays)
    variances = found.pop("variances", None)
    if variances is None:
        return found
    if not ((run.read_spec() or {}).get("data", {})).get("center"):
        return found | {MEAN_SQUARE: variances}
    share = (run.part_meta("result") or {}).get("explained_share")
    shares = {} if share is None else {SHARE: variances / variances.sum() * share}
    return found | {VARIANCE: variances} | shares


def _result(store: Path) -> dict[str, np.ndarray]:
    result = store / "result"
    if not result.is_dir():
        raise not_finished(store)
    return read_bundle(result)[0]


def _summary(solution: Solution) -> dict[str, Any]:
    statement, spread = solution.statement, solution.value_stddevs
    more: dict[str, Any] = {"statement": statement} if statement is not None else {}
    more |= {"value_stddevs": spread.tolist()} if spread is not None else {}
    more |= {"device": asdict(solution.device)} if solution.device else {}
    more |= {"network": asdict(solution.network)} if solution.network else {}
    more |= {"facts": solution.facts} if solution.facts else {}
    more |= {"certificate": solution.certificate} if solution.certificate else {}
    return {
        "outcome": solution.outcome.name,
        **attributes(solution, "converged", "steps", "data_passes", "bytes_read", "dataset_bytes"),
        "seconds": None if solution.seconds is None else round(solution.seconds, 3),
        **attributes(solution, "peak_rss_bytes", "memory_limit_bytes"),
        "peak_rss_by_process": [asdict(process) for process in solution.peak_rss_by_process],
        "values": solution.values.tolist(),
        "residual_norms": solution.residual_norms.tolist(),
        **attributes(solution, "max_sin_theta", "store", "fingerprint", "total_data_passes"),
        "sentence": solution.outcome.sentence,
        "assurance": solution.assurance,
        "warnings": list(solution.warnings),
        **attributes(solution, "target_rank", "explained_share", "answered"),
        **_missing_facts(solution.missing),
        **solution.prediction,
        **more,
    }


def _missing_facts(found: Any) -> dict[str, Any]:
    return {} if found is None else {"missing": found.facts}


def _release_facts(solution: Solution) -> dict[str, Any]:
    """Return the release of a private run, and the statement that goes with it."""
    spread = solution.value_stddevs
    return {
        "outcome": solution.outcome.name,
        "answered": solution.answered,
        "sentence": solution.outcome.sentence,
        "assurance": solution.assurance,
        "values": solution.values.tolist(),
        "value_stddevs": None if spread is None else spread.tolist(),
        **attributes(solution, "target_rank", "steps", "statement"),
        "warnings": list(solution.warnings),
        "store": solution.store,
    }
