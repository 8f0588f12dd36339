"""What a run store says to anybody who looks, without a lock; :mod:`npmdask.checkpoint.store` says what lies where in
it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from npmdask.checkpoint.discovery import OWN
from npmdask.errors import BadInputError, RefusedError
from npmdask.storage.bundle import Arrays, read_bundle, read_meta
from npmdask.storage.paths import require_no_link

CHECKPOINT_FORMAT = 2
NO_LINKS = (*OWN, "entropy", "survey", "result", "locked", "start", "left.zarr", "releases", "search")  # of a store
REPLACED = ".replaced"  # a step of which a newer version is being written
SPEC_TABLES = ("data", "algorithm", "mechanism", "stop", "run", "version")


class StoreReader:
    """Reads the store in ``path``."""

    path: Path

    def read_spec(self) -> dict[str, Any] | None:
        """The parameters of the run, or None for a new one."""
        require_no_link(self.path, NO_LINKS)
        try:
            spec = json.loads((self.path / "run.json").read_text())
            if not isinstance(spec, dict) or not all(isinstance(spec.get(table), dict) for table in SPEC_TABLES):
                raise ValueError("tables are missing")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BadInputError(f"{self.path / 'run.json'} is damaged ({error}); start again in a new store") from error
        _require_format(self.path, spec["version"])
        return spec

    def last_step(self) -> tuple[Arrays, dict[str, Any]] | None:
        """The newest whole step, or None. One that rotted on disk is passed over for the one before it."""
        for path in reversed(self._steps()):
            try:
                return read_bundle(path)
            except BadInputError:
                continue
        return None

    def last_meta(self) -> dict[str, Any] | None:
        """What :meth:`last_step` says beside its arrays, which are not read (and not checked)."""
        for path in reversed(self._steps()):
            with suppress(BadInputError):
                return read_meta(path)
        return None

    def history(self) -> list[dict[str, Any]]:
        """The steps of a run, as its last one tells; of a finished run whose steps were cleared away, as its answer."""
        found = self.last_meta() or self.part_meta("result") or {}
        return list(found.get("history", []))

    def _steps(self) -> list[Path]:
        """Oldest first; what a step has replaced comes before it."""
        found = (self.path / "steps").glob("[0-9]*")
        return sorted(found, key=lambda path: (int(path.name.removesuffix(REPLACED)), -len(path.name)))

    def read_pass(self, key: dict[str, Any]) -> tuple[Arrays, list[dict[str, Any]]] | None:
        """What was kept of the pass that ``key`` describes, or None. Parts of another pass are of no use."""
        for path in reversed(self._kept_parts()):
            try:
                arrays, meta = read_bundle(path)
            except BadInputError:
                continue
            if meta["key"] == key:
                return arrays, meta["parts"]
        return None

    def _kept_parts(self) -> list[Path]:
        return sorted((self.path / "pass").glob("[0-9]*"))

    def read_part(self, name: str) -> tuple[Arrays, dict[str, Any]] | None:
        """The bundle ``name``, or None."""
        return read_bundle(self.path / name) if (self.path / name).exists() else None

    def part_meta(self, name: str) -> dict[str, Any] | None:
        """What the bundle ``name`` says beside its arrays, which are not read; or None."""
        return read_meta(self.path / name) if (self.path / name).exists() else None

    def telemetry(self) -> list[dict[str, Any]]:
        """All telemetry lines that are whole."""
        lines = []
        try:
            for line in (self.path / "telemetry.jsonl").read_text(errors="replace").splitlines():
                try:
                    lines.append(dict(json.loads(line)))
                except ValueError:
                    continue  # the line that a kill cut
        except FileNotFoundError:
            return []
        return lines


def _require_format(path: Path, version: dict[str, Any]) -> None:
    """Raise RefusedError for a store that another npmdask wrote in a form that this one does not know."""
    found = version.get("checkpoint_format", CHECKPOINT_FORMAT)  # a noisy copy under way names none
    if found != CHECKPOINT_FORMAT:
        which = "an older" if isinstance(found, int) and found < CHECKPOINT_FORMAT else "a newer"
        named = version.get("npmdask", "?")
        raise RefusedError(
            f"{path} was written by {which} npmdask ({named}), in checkpoint format {found}; this one reads format "
            f"{CHECKPOINT_FORMAT} only: use npmdask {named} for this store, or start again in a new one"
        )
