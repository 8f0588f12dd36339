"""``npmdask perturb``: a noisy copy of a tensor, private by itself; the baseline for private runs on tensors.

Charged, drawn and kept account of as a private run of one release (npmdask/privacy/release.py): charge -> key -> blocks
with noise, written to ``DEST.partial`` -> digest in the ledger -> ``DEST`` appears -> the key is destroyed. Noise is a
function of the key and of the place of a block, so that a copy that was killed goes on, bit for bit. What is then done
with the copy is free, and any algorithm may: also one that looks where it should stop.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.accounting import Budget, mu_for
from npmdask.core.checkpoint.logging import tell
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.restore import bind_spec
from npmdask.core.storage.paths import NEW_STORE, local_path, locked, read_facts
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, BudgetError, RefusedError, package_version
from npmdask.privacy.account import Account, release_id_of
from npmdask.privacy.concerns import weak_promise
from npmdask.privacy.matrix_release import require_registered, require_store
from npmdask.privacy.mechanisms import EntriesGaussian
from npmdask.privacy.request import Privacy
from npmdask.privacy.statements import of_copy
from npmdask.privacy.tensor_release import tensor_relation
from npmdask.symmetric.reader import TensorReader
from npmdask.symmetric.writer import TensorWriter

FOLDER = ".perturbing"  # beside DEST, until it is there: the parameters and the key
# A component of a symmetric tensor can be seen in noise with entries of stddev s / sqrt(6) if it is above this times
# s sqrt(d), in the limit of large d: the root of min (-log(1 - t) - t) / t^3 (Jagannath, Lopatto and Miolane 2020).
VISIBLE = 1.207
Progress = Callable[[int, int | None, int], None]


@dataclass(frozen=True, kw_only=True)
class Perturbed:
    """Noisy copy. ``statement``: what is promised and what it cost, in public numbers; in the record of DEST too."""

    dest: Path
    fingerprint: str
    seconds: float
    statement: dict[str, Any]


def perturb(source: Any, dest: str | Path, privacy: Privacy, progress: Progress | None = None) -> Perturbed:
    """Write the tensor at ``source`` to ``dest`` with noise on every unique entry. Call it again after a kill.

    Raises
    ------
    BadInputError
        No ingested tensor, or a parameter that is missing or makes no sense.
    RefusedError
        ``dest`` is there already, or a copy to it was begun with other parameters, or its key is gone; or the noise
        would bury everything.
    BudgetError
        The budget of the data set does not suffice, the data changed since the grant, or there is none.
    """
    began, target = time.perf_counter(), local_path(dest, NEW_STORE)
    opened, mechanism = _checked(source, privacy)
    folder = target.with_name(target.name + FOLDER)
    _require_own(target, folder)
    if not folder.exists():  # what has begun is charged, and goes on
        _require_signal(mechanism, opened.dimension)
        for concern in _concerns(opened, mechanism):
            tell("warning", concern, run=target.name, level=WARNING, timeless=True)
    try:
        with locked(target), RunStore(folder, private=True) as store:
            bind_spec(_spec(opened, privacy, mechanism), store, {}, once={"source": opened.path})
            _copy(opened, target, mechanism, privacy, store, progress)
    except BudgetError:
        if not (folder / "run.json").exists():  # refused before it began, and nothing in it is needed again
            shutil.rmtree(folder, ignore_errors=True)
        raise
    statement, printed = _record(target)["perturbed"], open_source(target).fingerprint
    shutil.rmtree(folder)
    return Perturbed(dest=target, fingerprint=printed, seconds=time.perf_counter() - began, statement=statement)


def concerns_of_copy(source: Any, privacy: Privacy) -> tuple[str, ...]:
    """List, before anything is charged, why the guarantee of a copy is weak or the copy mostly noise.

    Only public numbers are used.

    Raises
    ------
    BadInputError
        As of :func:`perturb`.
    """
    return _concerns(*_checked(source, privacy))


def _concerns(source: Source, mechanism: EntriesGaussian) -> tuple[str, ...]:
    d, clip = source.dimension, mechanism.relation.clip_norm
    hidden, most = VISIBLE * math.sqrt(6 * d) * mechanism.stddevs[0], clip * d**1.5
    lost = (
        f"the noise hides every component: in the copy, components below about {hidden:.3g} cannot be distinguished "
        f"from noise, and data within the public bounds have none above {most:.3g}; use a larger epsilon"
    )
    weak = weak_promise(mechanism.budget, mechanism.relation, source.shape)
    return (*weak, lost) if hidden > most else weak


def _require_signal(mechanism: EntriesGaussian, d: int) -> None:
    """Refuse where not even a tensor that is known in advance could be told from zeros.

    That asks for less than a component in an unknown direction does: what is done with a copy is free.
    """
    counts = (math.comb(d, 3), d * (d - 1), d)
    powers = (n * (mechanism.relation.clip_norm / s) ** 2 for n, s in zip(counts, mechanism.stddevs, strict=True))
    distance = math.sqrt(sum(powers))
    if distance < 1:
        raise RefusedError(
            f"the noise would bury all data: within the public bounds no tensor is more than {distance:.2g} standard "
            "deviations from zero, all entries together. Nothing was charged; use a larger epsilon"
        )


def _copy(
    source: Source,
    target: Path,
    mechanism: EntriesGaussian,
    privacy: Privacy,
    store: RunStore,
    progress: Progress | None,
) -> None:
    """Charge, write what is not written yet, and close the account."""
    account = Account(privacy, source, mechanism, store)
    if not target.exists():
        account.open([])
        account.begin(1)
        _write(
            source, target, mechanism, account, _statement(source, mechanism, privacy, release_id_of(store)), progress
        )
    account.settle()


def _require_own(target: Path, folder: Path) -> None:
    """Raise where DEST exists, unless it is the one that this copy made before it was killed."""
    if not target.exists():
        return
    spec = folder / "run.json"
    made = read_facts(spec).get("release_id") if spec.exists() else None
    if made is None or _record(target).get("perturbed", {}).get("release_id") != made:
        raise RefusedError(f"{target} exists already; choose another name, or remove it first")


def _record(target: Path) -> dict[str, Any]:
    record: Any = zarr.open_group(target, mode="r").attrs["npmdask"]
    return dict(record)


def _checked(given: Any, privacy: Privacy) -> tuple[Source, EntriesGaussian]:
    require_store(given)
    source = open_source(given, exact=False).held_to_digests()
    if source.kind != "tensor":
        raise BadInputError(f"{source.path} is of kind {source.kind}: perturb is for tensors (kind = 'tensor')")
    require_registered(source)
    if privacy.calibration != "exact":
        raise BadInputError(
            "calibration = 'paper' applies only to private runs: the noise of a copy is calibrated exactly"
        )
    budget = Budget(privacy.epsilon, privacy.delta)
    return source, EntriesGaussian(relation=tensor_relation(source, privacy), budget=budget)


def _spec(source: Source, privacy: Privacy, mechanism: EntriesGaussian) -> dict[str, Any]:
    return {
        "privacy": asdict(privacy),
        "data": {"fingerprint": source.fingerprint, "kind": source.kind},
        "algorithm": {"name": mechanism.name},
        "mechanism": mechanism.event(),
        "stop": {},
        "run": {},
        "version": {"npmdask": package_version()},
    }


def _statement(source: Source, mechanism: EntriesGaussian, privacy: Privacy, release_id: str) -> dict[str, Any]:
    charge = mechanism.charge()
    return {
        "release_id": release_id,
        "relation": mechanism.relation.spec(),
        "protects": mechanism.relation.describe(),
        "mechanism": mechanism.event(),
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "mu": mu_for(privacy.epsilon, privacy.delta),
        "charge": charge.as_dict(),
        "noise_stddevs": list(mechanism.stddevs),
        "assurance": of_copy(mechanism.stddevs).sentence,
        "warnings": list(_concerns(source, mechanism)),
    }


def _write(
    source: Source,
    target: Path,
    mechanism: EntriesGaussian,
    account: Account,
    statement: dict[str, Any],
    progress: Progress | None,
) -> None:
    """Every block that is not written yet; DEST appears when the ledger knows what is in it."""
    reader = source.reader
    assert isinstance(reader, TensorReader)
    kept = reader.dtype if reader.dtype.kind == "f" else np.dtype(np.float64)
    identity = {"perturbed": statement["release_id"]}
    writer = TensorWriter(target, size=reader.size, dtype=kept, side=reader.side, identity=identity)
    each = reader.side**3 * kept.itemsize
    for place, values in reader.blocks(range(writer.next_unit, writer.units), ReadStats()):
        noisy = mechanism.release(values, place=place, entropy=account.entropy)
        writer.write(noisy.astype(kept, copy=False))
        if progress:
            progress(writer.next_unit, writer.units, writer.next_unit * each)
    account.written(1, hashlib.sha256(writer.checksums.tobytes()).hexdigest())
    writer.finish({"perturbed": statement})
