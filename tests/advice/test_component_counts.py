"""How many components: of a stored Gram, of a finished run, and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.advice.dimensions import held_out_likelihoods
from npmdask.cli.main import main
from npmdask.errors import BadInputError
from tests.conftest import write_zarr

NAMES = [
    "0.9 of the variance",
    "broken stick",
    "Marchenko-Pastur edge",
    "Gavish-Donoho threshold",
    "parallel analysis",
    "held-out likelihood",
]


def rows(n: int = 800, d: int = 30) -> np.ndarray:
    rng = np.random.default_rng(0)
    v = np.linalg.qr(rng.standard_normal((d, 3)))[0]
    return rng.standard_normal((n, d)) + (rng.standard_normal((n, 3)) * [6, 4, 2]) @ v.T + 10


def counts(advice: Any) -> list[int | None]:
    return [one.components for one in advice]


@pytest.mark.slow
def test_a_gram_answers_all_and_a_run_what_it_can(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    store, x = npmdask.gram(rows(), "G", kind="samples"), rows()
    advice = store.component_counts()
    assert [one.criterion for one in advice] == NAMES
    assert counts(advice)[2:] == [3, 3, 2, None]  # the first component hides the third from parallel analysis
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    assert advice[0].components == int((np.cumsum(values) / values.sum() < 0.9).sum()) + 1
    data = write_zarr(tmp_path / "x.zarr", x, (200, 30))
    solution = npmdask.top_k(data, 2, kind="samples", center=True, store="run")
    known = solution.component_counts(share=0.4)
    assert known[0].components == 1 and not known[0].at_least
    assert known[2].components is known[4].components is None and "npmdask gram" in known[2].reason
    known = solution.component_counts(noise=1.0)
    assert known[2].components == 2 and known[2].at_least and known[0].at_least
    assert main(("components", "G", "--json")) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (
        counts(advice) == [one["components"] for one in facts["advice"]]
        and "different questions" in facts["differences"]
    )
    assert main(("components", "run", "--noise", "1")) == 0
    assert "Marchenko-Pastur edge        2+" in capsys.readouterr().out
    assert main(("components", "run", "--scale")) == 2
    assert "leave --no-center" in capsys.readouterr().err
    npmdask.top_k(np.eye(4), 2, kind="samples", center=True, store="held")
    assert main(("components", "held")) == 2
    assert "ask there, with solution.component_counts()" in capsys.readouterr().err
    assert main(("components", "nothing")) == 2


@pytest.mark.slow
def test_constant_and_repeated_columns(tmp_path: Path) -> None:
    """Constant columns change no advice; where most repeat others there is no median of noise, and it is said."""
    x = rows()
    plain = npmdask.gram(x, tmp_path / "a", kind="samples").component_counts()
    wide = npmdask.gram(np.c_[x, np.zeros((800, 40))], tmp_path / "b", kind="samples").component_counts()
    assert counts(wide) == counts(plain)
    again = npmdask.gram(np.c_[x, x, x], tmp_path / "c", kind="samples").component_counts()
    assert counts(again)[2:4] == [None, None] and "repeat others" in again[2].reason
    assert npmdask.gram(np.c_[x, x, x], tmp_path / "c", kind="samples").component_counts(noise=3.0)[2].components == 3


@pytest.mark.slow
def test_fewer_rows_than_columns_and_nothing_at_all(tmp_path: Path) -> None:
    few = npmdask.gram(rows(40, 60), tmp_path / "few", kind="samples").component_counts()
    assert counts(few)[2] in (2, 3) and counts(few)[4] in (2, 3)
    with pytest.raises(BadInputError, match=r"no column .* any variance"):
        npmdask.gram(np.ones((9, 4)), tmp_path / "flat", kind="samples").component_counts()
    with pytest.raises(BadInputError, match="at least 3 are needed"):
        npmdask.gram(rows(2, 4), tmp_path / "two", kind="samples").component_counts()
    store = npmdask.gram(rows(), tmp_path / "G", kind="samples")
    for bad in (
        {"share": 1.0},
        {"share": "a"},
        {"noise": 0.0},
        {"noise": np.nan},
        {"noise": "a"},
        {"seed": -1},
        {"seed": "a"},
    ):
        with pytest.raises(BadInputError):
            store.component_counts(**bad)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_weighted_rows_have_shares_and_no_noise(tmp_path: Path, capsys: Any, unit: float) -> None:
    """Those that count twice are as two rows to a share and to a stick. Mutant: shares of the rows unweighted."""
    x, times = rows(), np.repeat([0.0, 1.0, 5.0], [300, 300, 200])
    x[500:] *= np.geomspace(1, 3, 30)
    how: dict[str, Any] = {"kind": "samples", "center": True, "algorithm": "gram"}
    data = write_zarr(tmp_path / "x.zarr", x, (200, 30))
    found = npmdask.top_k(data, 20, row_weights=unit * times, store=tmp_path / "run", **how)
    advice, plain = found.component_counts(share=0.8), npmdask.top_k(data, 20, **how).component_counts(share=0.8)
    again = npmdask.top_k(np.repeat(x, times.astype(int), axis=0), 20, **how).component_counts(share=0.8)
    assert counts(advice)[:2] == counts(again)[:2] != counts(plain)[:2]
    assert counts(advice)[2:] == [None] * 4 and all("run without row_weights" in one.reason for one in advice[2:5])
    assert counts(found.component_counts(noise=1.0))[2:] == [None] * 4
    assert main(("components", str(tmp_path / "run"), "--share", "0.8", "--json")) == 0
    assert counts(advice) == [one["components"] for one in json.loads(capsys.readouterr().out)["advice"]]


def likelihoods(x: np.ndarray, groups: np.ndarray, *, center: bool, scale: bool, most: int) -> np.ndarray:
    """The long way: normal densities of the rows that are left out."""
    found = []
    for group in np.unique(groups):
        rest, out = x[groups != group], x[groups == group]
        mean = rest.mean(axis=0) if center else np.zeros(x.shape[1])
        unit = rest.std(axis=0) if scale else np.ones(x.shape[1])
        rest, out = (rest - mean) / unit, (out - mean) / unit
        values, vectors = np.linalg.eigh(rest.T @ rest / len(rest))
        for q in range(most + 1):
            flat = np.r_[np.full(len(values) - q, values[: len(values) - q].mean()), values[len(values) - q :]]
            covariance = (vectors * flat) @ vectors.T
            far = np.einsum("ij,jk,ik->i", out, np.linalg.inv(covariance), out).mean()
            found.append(-(len(values) * np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1] + far) / 2)
    return np.reshape(found, (-1, most + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("center", "scale"), [(True, False), (False, False), (True, True)])
def test_likelihoods_of_grams_are_those_of_the_rows(tmp_path: Path, center: bool, scale: bool) -> None:
    """Mutants: the mean of all rows, deviations of all rows, the group's own mean, one component more in the noise."""
    x, groups = rows(300, 8) * np.geomspace(1, 2, 8), np.repeat(np.arange(5), [100, 20, 80, 40, 60])
    x[groups == 1] += 0.5
    store = npmdask.gram(x, tmp_path / "G", kind="samples", groups=groups)
    found = store._held_out_likelihoods(np.arange(8), center=center, scale=scale)
    np.testing.assert_allclose(found, likelihoods(x, groups, center=center, scale=scale, most=7), rtol=1e-9)
    best = int(found.mean(axis=0).argmax())
    assert store.component_counts(center=center, scale=scale)[5].components == best


def left_out(x: np.ndarray, store: Path, groups: int = 12, **how: Any) -> Any:
    store = npmdask.gram(x, store, kind="samples", groups=np.arange(len(x)) * groups // len(x))  # type: ignore[assignment]
    return store.component_counts(**how)[5].components  # type: ignore[attr-defined]


@pytest.mark.slow
def test_rows_left_out_count_planted_spikes(tmp_path: Path) -> None:
    """Where its theory holds; and where others are fooled: heavy tails, rows that remember."""
    rng, found = np.random.default_rng(0), []
    for n, d, spikes in ((2000, 60, [16, 9, 4]), (300, 60, [16, 9, 4]), (80, 120, [40, 20]), (1000, 50, [])):
        planted = np.linalg.qr(rng.standard_normal((d, 4)))[0][:, : len(spikes)]
        x = rng.standard_normal((n, d)) + (rng.standard_normal((n, len(spikes))) * np.sqrt(spikes)) @ planted.T
        found.append(left_out(x, tmp_path / f"{n}"))
    assert found == [3, 3, 2, 0]
    assert left_out(rng.standard_t(2.5, (2000, 60)), tmp_path / "tails") == 0
    walk = rng.standard_normal((2000, 60))
    for row in range(1, 2000):
        walk[row] += 0.8 * walk[row - 1]
    assert left_out(walk, tmp_path / "walk") == 0


@pytest.mark.slow
def test_where_rows_left_out_tell_nothing_of_components(tmp_path: Path) -> None:
    """Noise unlike in columns counts as components, unless they are scaled; without noise there is no likelihood."""
    rng = np.random.default_rng(0)
    unlike = rng.standard_normal((1000, 20)) * np.geomspace(1, 3, 20)
    assert left_out(unlike, tmp_path / "unlike") > 10 and left_out(unlike, tmp_path / "alike", scale=True) == 0
    flat = rng.standard_normal((500, 3)) @ rng.standard_normal((3, 9))
    assert left_out(flat, tmp_path / "flat") is None
    assert left_out(rows(), tmp_path / "two", groups=2) == 3
    gone = np.c_[rows(), np.r_[np.ones(100), np.zeros(700)]]  # varies in one group alone
    assert left_out(gone, tmp_path / "gone", groups=8) == 3
    assert np.isnan(held_out_likelihoods(np.array([2.0, 0.0]), np.ones(2), 2.0, 1)).tolist() == [False, True]
