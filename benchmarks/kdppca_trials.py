"""Trials of the figures: one line of a file for each, added as they are made, so that a run goes on where it was.

A trial is a function of its setting, its method, what is protected and its seed; figures share what they have in
common (2c is 1a with two methods more), and ``--quick`` is a part of the whole. Where the code of a method has changed,
the file has to go.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple, dataclass, fields
from functools import lru_cache
from pathlib import Path

from npmdask.core.numerics.subspaces import Block
from npmdask.experiments.figures import DELTA, EPSILON, Method, Setting, methods

FIRST_SEED = 7_000_000  # of the trials; nothing was chosen on these: that was done on small ones
HEAD = ("relation", *(field.name for field in fields(Setting)), "method", "seed", "zeta")
NUMBERS = {"int": int, "float": float, "str": str}


@dataclass(frozen=True)
class Work:
    """Trials of some methods on the same matrices."""

    relation: str
    setting: Setting
    seed: int
    names: tuple[str, ...]

    def run(self) -> dict[str, float]:
        """zeta by method."""
        return errors(self.setting, {name: _methods(self.relation)[name] for name in self.names}, self.seed)


class Trials:
    """What was measured, by (relation, setting, method) and seed; with a file, also what was measured before."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.zetas: dict[tuple[str, Setting, str], dict[int, float]] = {}
        if path is None:
            return
        _begin(path)
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                self._remember(*_read(line))

    def add(self, work: Work, found: Mapping[str, float]) -> None:
        """Remember, and write: all lines at once, so that other runs may write into the same file."""
        public = f"{work.relation},{','.join(str(value) for value in astuple(work.setting))}"
        lines = [f"{public},{name},{work.seed},{zeta!r}\n" for name, zeta in found.items()]
        if self.path is not None:
            with self.path.open("ab", buffering=0) as file:
                file.write("".join(lines).encode())
        for name, zeta in found.items():
            self._remember((work.relation, work.setting, name), work.seed, zeta)

    def missing(self, relation: str, setting: Setting, names: Iterable[str], count: int) -> Iterator[Work]:
        """What has to be done for ``count`` trials of every method."""
        for seed in range(FIRST_SEED, FIRST_SEED + count):
            lacking = tuple(name for name in names if seed not in self.zetas.get((relation, setting, name), {}))
            if lacking:
                yield Work(relation, setting, seed, lacking)

    def of(self, relation: str, setting: Setting, names: Sequence[str]) -> dict[str, list[float]]:
        """zeta by method over the seeds that every method of ``names`` has; empty where there is none."""
        own = {name: self.zetas.get((relation, setting, name), {}) for name in names}
        seeds = sorted(set.intersection(*(set(found) for found in own.values())))
        return {name: [found[seed] for seed in seeds] for name, found in own.items()} if seeds else {}

    def _remember(self, key: tuple[str, Setting, str], seed: int, zeta: float) -> None:
        self.zetas.setdefault(key, {})[seed] = zeta


def errors(setting: Setting, wanted: Mapping[str, Method], seed: int) -> dict[str, float]:
    """zeta of one trial, by method: all get the same matrices."""
    stream = setting.stream(seed)
    found: dict[str, float] = {}
    for name, method in wanted.items():
        basis: Block = method.run(stream, setting.k, EPSILON, DELTA, seed)
        found[name] = stream.zeta(basis)
    return found


def done(work: Sequence[Work], jobs: int) -> Iterator[tuple[Work, dict[str, float]]]:
    """Every piece of ``work`` with its errors, as they come; in ``jobs`` processes if that is more than one."""
    if jobs == 1:
        yield from ((piece, piece.run()) for piece in work)
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting = {pool.submit(piece.run): piece for piece in work}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


@lru_cache(maxsize=2)
def _methods(relation: str) -> dict[str, Method]:
    return methods(relation)


def _read(line: Mapping[str, str]) -> tuple[tuple[str, Setting, str], int, float]:
    kinds = {field.name: NUMBERS[str(field.type)] for field in fields(Setting)}
    setting = Setting(**{name: kind(line[name]) for name, kind in kinds.items()})
    return (line["relation"], setting, line["method"]), int(line["seed"]), float(line["zeta"])


def _begin(path: Path) -> None:
    """A file with its head, and without what a kill leaves: a line that lacks its end, and maybe digits."""
    text = path.read_bytes() if path.exists() else b""
    whole = text[: text.rfind(b"\n") + 1]
    if not whole:
        path.write_text(",".join(HEAD) + "\n")
    elif whole != text:
        os.truncate(path, len(whole))
