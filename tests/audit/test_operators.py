"""The other private operators, cut into chunks, under the same audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npmdask.accounting.budget import Budget
from npmdask.accounting.gdp import mu_for
from npmdask.audit import Instance, ReleasePath, examine, instances
from npmdask.audit.attacks import path_loss
from npmdask.privacy.mechanisms.gaussian_laplace import PrivateGaussian
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.neighbors import make_relation
from tests.privacy.test_clipped_entries import operator_of as bounded
from tests.privacy.test_clipped_rows import dense, sparse

BUDGET = Budget(8.0, 1e-6)
KINDS = ["product", "transposed", "symmetric", "triangle", "dense", "sparse"]
RELATION = {"product": "entry", "transposed": "entry", "symmetric": "symmetric_entry", "triangle": "symmetric_entry"}


def operator_of(kind: str, folder: Path) -> Callable[[Instance, Any], Any]:
    """Chunks of few rows and one column (a sparse one: of five entries, where images are clipped of 199)."""

    def make(instance: Instance, data: Any) -> Any:
        clip_norm, rows = instance.relation.clip_norm, 3 if instance.image_norm is None else 100
        if kind == "dense":
            return replace(dense(data, clip_norm, chunks=(rows, 1)), image_norm=instance.image_norm)
        if kind == "sparse":
            operator = sparse(folder / f"{abs(hash(data.tobytes()))}", data, clip_norm, chunk=2 * rows - 1)
            return replace(operator, image_norm=instance.image_norm)
        return bounded(data, kind, clip_norm, (1, 1))

    return make


def path_of(kind: str, number: int, folder: Path) -> ReleasePath:
    name = RELATION.get(kind, "record_replace")
    instance = instances(make_relation(name, clip_norm=1.0 if "record" in name else 64.0), "l2")[number]
    make = operator_of(kind, folder)
    rounding = make(instance, instance.here).rounding(instance.p)
    mechanism = PrivateGaussian(
        relation=instance.relation, budget=BUDGET, releases=2, rounding=rounding, image_norm=instance.image_norm
    )
    return ReleasePath(instance, mechanism, steps=2, operator_of=make)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_private_operator_passes_on_data_cut_into_chunks(kind: str, tmp_path: Path) -> None:
    """Fails for a join that loses a chunk of one world, a clipping by chunk, a mirrored entry that is forgotten."""
    found = examine(path_of(kind, 0, tmp_path), BUDGET, runs=400)
    assert found.passed and found.attained == pytest.approx(1, abs=1e-5), found.verdict
    entropy = [Entropy.create(tmp_path / "k" / "key")]
    wide = path_loss(path_of(kind, 1, tmp_path).run("here", entropy, 400), "l2")
    assert 0 < wide.max() <= found.claimed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_clipped_images_pass_on_data_cut_into_chunks(kind: str, tmp_path: Path) -> None:
    """Few runs: each has passes of its own. Fails for a join that loses a chunk, an image clipped in pieces."""
    entropy = [Entropy.create(tmp_path / "k" / "key")]
    path = path_of(kind, 2, tmp_path)
    spent = path_loss(path.run("here", entropy, 20), "l2")
    assert path.instance.name == "images" and 0.995 < spent.max() / mu_for(8.0, 1e-6) <= 1 + 1e-9
