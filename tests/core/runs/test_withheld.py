"""A store with a table that withholds its data is treated alike at each door of the core, whose feature ever it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core import features
from npmdask.core.checkpoint.schema import is_protected, is_public
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.features import FEATURES, Feature
from npmdask.core.runs.kinds import _stored_answer
from npmdask.core.runs.restore import find_start, require_same_run, solution_of, tables_of
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import needs

ROWS = np.random.default_rng(0).standard_normal((60, 5))
PRIVACY = {"epsilon": 1.0, "delta": 1e-6, "neighboring_relation": "record_replace", "clip_norm": 1.0}
WITHHELD = {"privacy": PRIVACY, "nodes": {"a": {"rows": 60}}, "vault": {"keys": 2}}
SAID = "row 17 holds 0.125"

Stored = Callable[..., Path]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """Make the store of a finished run whose run.json has another table, too; "vault" is of a package."""
    monkeypatch.setattr(features, "from_outside", lambda: (Feature(name="vault", withheld=("vault",)),))
    npmdask.top_k(ROWS, 2, kind="samples", store=tmp_path / "run")

    def with_table(*names: str, private: bool = False) -> Path:
        with RunStore(tmp_path / "run") as held:
            spec = held.read_spec() or {}
            spec["mechanism"]["private"] = private
            held.write_spec(spec | {name: WITHHELD.get(name, {}) for name in names})
        return tmp_path / "run"

    return with_table


def events(store: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (store / "telemetry.jsonl").read_text().splitlines()]


def error_in(store: Path) -> None:
    """Fail in a store that is held; not as a refusal, after which a finished run is put back as it was."""
    with pytest.raises(ValueError, match="17"), RunStore(store):
        raise ValueError(SAID)


def remedy(store: Path) -> str:
    """Return what is said where a run differs from that of the store by its tolerance."""
    spec = RunStore(store).read_spec() or {}
    wanted = {name: spec[name] for name in tables_of(spec)} | {"stop": spec["stop"] | {"tol": 0.5}}
    with pytest.raises(RefusedError) as refused:
        require_same_run(wanted, spec, str(store), spec["source"])
    return str(refused.value)


@pytest.mark.parametrize("table", WITHHELD)
def test_every_door_withholds(table: str, stored: Stored) -> None:
    """Mutants: a door without is_public; is_public of tables of our features only, or of other packages' only."""
    run = RunStore(stored(table))
    assert not is_public(run.read_spec() or {})
    assert solution_of(run, scores=False).analysed.rows is None
    assert _stored_answer(run, "gone") is None
    assert "--tol" not in remedy(run.path)
    error_in(run.path)
    assert "error" not in [line["event"] for line in events(run.path)] and SAID not in str(events(run.path))


@pytest.mark.parametrize("table", ["", "report", "other"])
def test_every_door_of_a_public_store_tells(table: str, stored: Stored) -> None:
    """Mutants: is_public that is always False; a table that no feature knows withholds."""
    run = RunStore(stored(*filter(None, [table])))
    assert is_public(run.read_spec() or {}) and solution_of(run, scores=False).analysed.rows == 60
    assert _stored_answer(run, "gone") is not None
    assert "--tol 0.5" in remedy(run.path)
    error_in(run.path)
    assert SAID in events(run.path)[-1]["sentence"]


@pytest.mark.parametrize("table", WITHHELD)
def test_a_store_that_withholds_is_never_unbegun(table: str, stored: Stored, tmp_path: Path) -> None:
    spec = RunStore(stored()).read_spec() or {}
    with RunStore(tmp_path / "begun") as held:
        held.write_spec(spec)
        assert held.unbegun
        held.write_spec(spec | {table: WITHHELD[table]})
        assert not held.unbegun


@pytest.mark.parametrize("name", ["privacy", "federated"])
def test_a_table_withholds_where_its_feature_is_gone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "is_there", lambda target: False)
    (feature,) = (one for one in FEATURES if one.name == name)
    assert all(not is_public({table: {}}) for table in feature.withheld) and feature.withheld


@pytest.mark.parametrize("tables", [(), ("nodes",), ("vault",)])
def test_no_more_components_of_a_protected_run(tables: tuple[str, ...], stored: Stored, tmp_path: Path) -> None:
    """Noise is added by a private run, its nodes, or a package. Mutant: deflation that asks for a table."""
    store = stored(*tables, private=True)
    spec = RunStore(store).read_spec() or {}
    assert is_protected(spec) and not is_public(spec)
    with pytest.raises(RefusedError, match="no one has paid for"):
        npmdask.deflate(store, 1, store=tmp_path / "more")
    with pytest.raises(RefusedError, match="is a private release"):
        find_start(store, None)


@pytest.mark.slow
@needs("formats")
def test_an_unprotected_run_is_deflated_and_begun_with(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    npmdask.top_k(tmp_path / "rows.npy", 2, kind="samples", algorithm="krylov", store=tmp_path / "run")
    assert npmdask.deflate(tmp_path / "run", 1, store=tmp_path / "more").basis.shape == (5, 3)
    assert len(find_start(tmp_path / "run", None).basis) == 5
    with pytest.raises(BadInputError, match="no run to start from"):
        find_start(tmp_path / "nothing", None)
