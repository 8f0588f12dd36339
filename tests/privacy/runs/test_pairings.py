"""Which neighbouring relation fits which kind of data: every pair, and that every relation of the papers has a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, BudgetError, NpmdaskError
from npmdask.formats.ingest import ingest
from npmdask.privacy.neighbors import REGISTRY, TENSORS, make_relation
from npmdask.privacy.request import Privacy

FITS = {
    "samples": {"record_add_remove", "record_replace", "record_zero_out"},
    "sparse": {"record_add_remove", "record_replace", "record_zero_out"},
    "matrices": {"record_add_remove", "record_replace", "record_zero_out"},
    "symmetric": {"symmetric_entry", "spectral_norm", "frobenius_norm"},
    "matrix": {"entry", "spectral_norm", "frobenius_norm"},
    "tensor": {"tensor_entry", "tensor_orbit"},
}
PAPERS = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "private-guarantee.md"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small ingested data set of every kind."""
    folder, rng, made = tmp_path_factory.mktemp("kinds"), np.random.default_rng(0), {}
    rows = rng.standard_normal((20, 8))
    data: dict[str, Any] = {
        "samples": rows,
        "matrix": rows,
        "symmetric": rows.T @ rows,
        "matrices": np.array([np.outer(row, row) for row in rows]),
        "tensor": sum(np.einsum("i,j,k->ijk", row, row, row) for row in rows[:3]),
    }
    for kind, array in data.items():
        np.save(folder / f"{kind}.npy", array)
        ingest(folder / f"{kind}.npy", folder / f"{kind}.zarr", kind=kind)
        made[kind] = folder / f"{kind}.zarr"
    lines = [f"{i + 1} {j + 1} {rows[i, j]}" for i in range(20) for j in range(0, 8, 3)]
    (folder / "s.mtx").write_text(
        "\n".join(["%%MatrixMarket matrix coordinate real general", "20 8 60", *lines]) + "\n"
    )
    ingest(folder / "s.mtx", folder / "sparse.zarr", kind="sparse")
    return made | {"sparse": folder / "sparse.zarr"}


def asked(kind: str, relation: str, folder: Path) -> None:
    """Pose a private run; the ledger is there and empty, and posing never asks it."""
    privacy = Privacy(
        epsilon=1.0,
        delta=1e-6,
        neighboring_relation=relation,
        clip_norm=5.0,
        ledger=str(folder / "ledger.sqlite"),
        dataset="x",
    )
    request = Request(target_rank=1, iteration_rank=2, max_steps=4, privacy=privacy)
    if kind == "tensor":
        options = {"restarts": 2, "iterations": 2}
        request = Request(target_rank=1, algorithm="tensor-power", options=options, privacy=privacy)
    if kind == "matrices":
        guess = {"records": 20} if relation == "record_add_remove" else {}
        options = {"steps": 2, **guess}
        request = replace(request, algorithm="k-dp-pca", iteration_rank=None, max_steps=None, options=options)
    make_problem(open_source(folder / f"{kind}.zarr", exact=False), request)


@pytest.mark.slow
@pytest.mark.parametrize("relation", [*REGISTRY, *TENSORS])
@pytest.mark.parametrize("kind", FITS)
def test_only_what_fits_is_accepted(kind: str, relation: str, stores: dict[str, Path]) -> None:
    """All 54 pairs. Mutants: a relation with one kind more or less; a kind that is not compared."""
    folder = stores[kind].parent
    if relation in FITS[kind]:
        asked(kind, relation, folder)
        return
    with pytest.raises(NpmdaskError) as refused:
        asked(kind, relation, folder)
    assert not isinstance(refused.value, BudgetError) and relation in str(refused.value), "named, before any ledger"


def test_every_neighbour_relation_of_the_papers_is_on_the_page() -> None:
    """N1 to N8 of the five papers, each with what it is called here, or why it is not here; names are real ones."""
    page = PAPERS.read_text()
    lines = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| N")}
    assert set(lines) == {"N1", "N2", "N3", "N3r", "N4", "N5", "N6", "N7", "N7u", "N8"}
    named = {name for line in lines.values() for name in [*REGISTRY, *TENSORS] if f"`{name}`" in line}
    assert named == {*REGISTRY, *TENSORS} - {"frobenius_norm"}, "that one is of no paper"


def test_a_record_of_norm_one_moves_no_product_by_sqrt_p() -> None:
    """N3r against N3: ||x x^T X||_F = |x| |X^T x| <= 1, where any change of spectral norm 1 may move it by sqrt(p).
    N8 (rows whose 1-norms have a root of the sum of squares of at most 1) never by more than the longest row of X."""
    rng = np.random.default_rng(0)
    block = np.linalg.qr(rng.standard_normal((30, 4)))[0]
    record = make_relation("record_add_remove", clip_norm=1.0).sensitivity(block)
    spectral = make_relation("spectral_norm", clip_norm=1.0).sensitivity(block)
    row = make_relation("entry", clip_norm=1.0).sensitivity(block)
    assert record == pytest.approx(1, rel=1e-9) and spectral == pytest.approx(2, rel=1e-9)
    longest = int(np.argmax(np.linalg.norm(block, axis=1)))
    for change in [*rng.standard_normal((200, 30, 30)), np.outer(np.eye(30)[3], np.eye(30)[longest])]:
        change = change / np.sqrt((np.abs(change).sum(axis=1) ** 2).sum())
        assert np.linalg.norm(change @ block) <= row * (1 + 1e-12)
    assert np.linalg.norm(change @ block) == pytest.approx(row, rel=1e-12), "attained by one entry"
    with pytest.raises(BadInputError, match="did you mean"):
        make_relation("record_replaced", clip_norm=1.0)
