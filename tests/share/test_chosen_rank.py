"""k = "auto" of EM: entries that are held out choose how many components.

Mutants that these tests kill: the first number that is no better ends the search at 1; the best number in place of the
fewest within 1 % of it; noise that has components; a search that begins again after a stop; few entries that choose.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.config import validate_config
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.subspaces import orth
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Request
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.missing.rules import find_gaps
from npmdask.share import rank_search
from tests.conftest import same_bytes, write_zarr

HOW: dict[str, Any] = {"kind": "samples", "center": True, "threads": 1, "missing": "em"}


def planted(sizes: list[float], rows: int = 400, columns: int = 12, share: float = 0.15, seed: int = 0) -> np.ndarray:
    """Rows with as many components as ``sizes``, noise of deviation 1, and gaps at random."""
    rng = np.random.default_rng(seed)
    basis = orth(rng.standard_normal((columns, len(sizes))), rng)
    drawn = rng.standard_normal((rows, len(sizes))) * sizes @ basis.T + rng.standard_normal((rows, columns)) + 5
    drawn[rng.random(drawn.shape) < share] = np.nan
    return drawn


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[6.0], [5.0] * 3, [8, 7, 6, 5, 4]])
def test_as_many_as_were_planted(sizes: list[float]) -> None:
    """Of equal size, too, and numbers that are no power of 2."""
    found = npmdask.top_k(planted(sizes), "auto", **HOW)
    assert found.basis.shape[1] == len(sizes) and found.converged
    assert (
        f"{len(sizes)} component" in found.outcome.sentence and "chosen by entries held out" in found.outcome.sentence
    )
    shares = {int(k): share for k, share in found.facts["held_out_shares"].items()}
    least = min(shares.values())
    assert shares[len(sizes)] <= 1.01 * least
    assert all(share > 1.01 * least for k, share in shares.items() if k < len(sizes))


@pytest.mark.slow
def test_it_is_the_run_with_that_number() -> None:
    rows = planted([6, 4])
    found = npmdask.top_k(rows, "auto", **HOW)
    same = npmdask.top_k(rows, 2, options={"held_out": 0.1}, **HOW)
    np.testing.assert_array_equal(found.basis, same.basis)
    assert found.data_passes > same.data_passes


SEARCHES: list[tuple[dict[int, float], float, int, int]] = [
    ({1: 0.9, 2: 0.905, 4: 0.4, 8: 0.4, 3: 0.41}, 1e6, 4, 5),  # 2 is no better than 1, and 4 is
    ({1: 0.5, 2: 0.3, 4: 0.2, 8: 0.1, 16: 0.0995, 6: 0.09, 5: 0.0905}, 1e6, 5, 7),  # best between two that were tried
    ({1: 0.5, 2: 0.499, 4: 0.4985}, 1e6, 1, 3),
    ({1: 0.5, 2: 0.49, 4: 0.485}, 200, 1, 3),  # which chance can do with 200 entries, and not with more
    ({1: 0.5, 2: 0.49, 4: 0.485, 8: 0.485, 3: 0.487}, 1e6, 3, 5),
    ({k: 1 / k for k in range(1, 31)}, 1e6, 30, 10),  # never enough: all that there are
]


@pytest.mark.parametrize(("shares", "held", "chosen", "tried"), SEARCHES)
def test_the_search(
    shares: dict[int, float], held: float, chosen: int, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doubled for as long as it helps, and the fewest within 1 % of the best, or within what chance can do."""
    asked: list[int] = []

    def left_over(search: Any, k: int) -> tuple[float, float]:
        asked.append(k)
        return shares[k], held

    monkeypatch.setattr(rank_search, "_held_out_share", left_over)
    source = open_source(np.zeros((40, 31)), "samples")
    request = Request(target_rank="auto", center=True, aspects=(find_gaps(missing="em"),))
    search = rank_search._Search(rank_search.make_problem(source, request), None)  # type: ignore[arg-type]
    found, known = rank_search._best_rank(search)
    assert found == chosen and len(asked) == len(set(asked)) == tried and set(known) == set(asked)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_noise_has_no_components(seed: int) -> None:
    with pytest.raises(BadInputError, match="these data show none"):
        npmdask.top_k(planted([], seed=seed), "auto", **HOW)


@pytest.mark.slow
def test_a_search_that_is_cut_goes_on(tmp_path: Path) -> None:
    """In a stage, between stages, and in the run that answers; no finished stage is made again."""
    source = str(write_zarr(tmp_path / "x", planted([6, 4, 3]), (64, 4)))
    whole = npmdask.top_k(source, "auto", store=tmp_path / "whole", **HOW)
    for at in (3, whole.data_passes // 2, whole.data_passes - 8):
        store = tmp_path / f"cut-{at}"
        with pytest.raises(InterruptedError):
            npmdask.top_k(source, "auto", store=store, observer=Stop(at), **HOW)
        again = npmdask.resume(store)
        same_bytes(tmp_path / "whole", store, ("result", "survey", "chosen"))
        assert again.facts == whole.facts and again.data_passes < whole.data_passes
    assert npmdask.top_k(source, "auto", store=tmp_path / "whole", **HOW).data_passes == 0


class Stop(Observer):
    def __init__(self, steps: int) -> None:
        self._left = steps

    def on_step(self, step: Any) -> None:
        self._left -= 1
        if not self._left:
            raise InterruptedError


@pytest.mark.parametrize(
    ("rows", "how", "said"),
    [
        (planted([6]), {"missing": "mean"}, "missing = 'em'"),
        (planted([6]), {"missing": "refuse"}, "npmdask components"),
        (planted([6]), {"options": {"held_out": 0.0}}, "leave held_out = 0 out"),
        (planted([6], rows=40), {}, "too few to choose by"),
        (planted([6]), {"algorithm": "krylov"}, "an algorithm of its own"),
    ],
)
def test_what_is_refused(rows: np.ndarray, how: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        npmdask.top_k(rows, "auto", **{**HOW, **how})


@pytest.mark.slow
def test_from_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Command line with a plan, inspection and a report; configuration; PCA."""
    rows = planted([6, 4])
    path, store = str(write_zarr(tmp_path / "x", rows, (64, 4))), tmp_path / "run"
    how = ["-k", "auto", "--kind", "samples", "--center", "--missing", "em"]
    assert main(["plan", path, *how]) == 0
    assert "1, 2, 4, ... components are tried" in capsys.readouterr().out
    assert main(["run", path, *how, "--store", str(store), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["values"]) == 2
    assert main(["inspect", str(store)]) == 0
    assert "2 components chosen by entries held out" in capsys.readouterr().out
    assert main(["report", str(store)]) == 0
    assert RunStore(store).read_spec()["algorithm"]["target_rank"] == 2  # type: ignore[index]
    table = {"source": {"path": path, "missing": "em"}, "algorithm": {"target_rank": "auto"}}
    assert validate_config(table).request().target_rank == "auto"
    pca = npmdask.PCA("auto", missing="em").fit(rows)
    assert pca.n_components_ == 2 and pca.components_.shape == (2, 12)
