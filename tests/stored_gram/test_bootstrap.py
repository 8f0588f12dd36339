"""Confidence intervals from the Grams of groups: against replicates made of rows, and against planted truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

import npmdask
from npmdask.advice.sampling_errors import APART, jackknifed, mixed_groups, north_errors, student_factor
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.random import generator
from npmdask.errors import BadInputError
from npmdask.manage.data_report import sampling_of
from npmdask.stored_gram import resampling as gram_resampling
from npmdask.stored_gram.resampling import Grouped, Jackknife, _leading_pairs, _mixed_groups, _Pairs, bootstrapped
from tests.conftest import write_zarr

SPIKES = np.array([20.0, 9.0, 4.0])


def planted(seed: int, n: int = 2000, d: int = 20, spikes: np.ndarray = SPIKES) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    v = np.linalg.qr(rng.standard_normal((d, len(spikes))))[0]
    return rng.standard_normal((n, d)) + (rng.standard_normal((n, len(spikes))) * np.sqrt(spikes)) @ v.T, v


def grouped(x: np.ndarray, groups: int | np.ndarray) -> Grouped:
    """So many groups, or those between these rows."""
    mean = x.mean(axis=0)
    sums = [
        (float(len(part)), part.mean(axis=0) - mean, (part - part.mean(axis=0)).T @ (part - part.mean(axis=0)))
        for part in np.array_split(x, groups)
    ]
    return Grouped(
        names=tuple(map(str, range(len(sums)))),
        whole=np.cov(x.T, bias=True),
        each=lambda: iter(sums),
        covariance=lambda rows, mean, gram: gram / rows - np.outer(mean, mean),
        moves=True,
        short=True,
    )


def stored(folder: Path, x: np.ndarray, name: str = "G", height: int = 100, **more: Any) -> npmdask.GramStore:
    path = write_zarr(folder / f"{name}.zarr", x, (height, x.shape[1]))
    return npmdask.gram(path, folder / name, kind="samples", by_chunks=1, **more)


@pytest.mark.slow
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_full_replicates_are_those_of_the_rows_themselves(tmp_path: Path, center: bool, scale: bool) -> None:
    """Groups of unequal sizes (the last one is short), means far from 0, repeated rows stacked and decomposed."""
    x = planted(0, 930)[0] + 3
    found = stored(tmp_path, x).bootstrap(3, center=center, scale=scale, exact=True, replicates=50, seed=4)
    parts = [x[i : i + 100] for i in range(0, 930, 100)]
    weights = generator(4, "bootstrap over groups").multinomial(10, np.full(10, 0.1), 50)
    values = []
    for weight in weights:
        rows = np.concatenate([part for part, times in zip(parts, weight, strict=True) for _ in range(times)])
        deviation = rows.std(axis=0)
        rows = (rows - rows.mean(axis=0) * center) / (deviation if scale else 1)
        values.append(np.linalg.eigvalsh(rows.T @ rows / len(rows))[:-4:-1])
    np.testing.assert_allclose(found.value_errors, np.std(values, axis=0, ddof=1) * np.sqrt(10 / 9), rtol=1e-8)
    wide = student_factor(0.95, 10, 50) * np.sqrt(10 / 9 * 51 / 50) * np.std(np.log(values), axis=0, ddof=1)
    np.testing.assert_allclose(np.diff(np.log(found.value_intervals), axis=0)[0], 2 * wide, rtol=1e-6)
    assert found.checked_error == 0


@pytest.mark.slow
@pytest.mark.parametrize("center", [True, False])
def test_the_short_way_is_within_a_tenth_of_a_standard_error(tmp_path: Path, center: bool) -> None:
    """Fails when what lies outside of the leading 3k eigenvectors is left out: intervals of entries are too short."""
    store = stored(tmp_path, planted(1, d=60)[0] + 1)
    short, full = store.bootstrap(3, center=center), store.bootstrap(3, center=center, exact=True)
    assert 0 < short.checked_error < 0.1 and full.checked_error == 0
    np.testing.assert_allclose(short.value_errors, full.value_errors, rtol=0.01)
    for name in ("value_intervals", "share_intervals", "vector_intervals"):
        a, b = getattr(short, name), getattr(full, name)
        assert np.abs(a - b).max() < 0.1 * np.diff(b, axis=0).max() / 4, name
    np.testing.assert_allclose(
        np.diff(short.vector_intervals, axis=0), np.diff(full.vector_intervals, axis=0), rtol=0.1
    )


@pytest.mark.slow
def test_where_the_short_way_is_off_all_replicates_are_decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = planted(2)[0]
    whole = bootstrapped(grouped(x, 20), 3, replicates=60, confidence=0.95, seed=0, exact=True)
    monkeypatch.setattr(gram_resampling, "ENOUGH", 1e-9)
    found = bootstrapped(grouped(x, 20), 3, replicates=60, confidence=0.95, seed=0, exact=False)
    np.testing.assert_array_equal(found.vector_intervals, whole.vector_intervals)


@pytest.mark.slow
def test_as_wide_as_the_jackknife_says(tmp_path: Path) -> None:
    store = stored(tmp_path, planted(3, 5000)[0])
    np.testing.assert_allclose(
        store.bootstrap(3).value_errors, store.jackknife(3, center=True).standard_errors, rtol=0.2
    )


# Rows of a problem: how many, of how many columns, with which variances above the noise, in groups of unlike sizes.
PROBLEMS: dict[str, tuple[int, int, list[float], bool]] = {
    "normal": (2000, 20, [20, 9, 4], False),
    "few rows": (240, 12, [20, 9, 4], False),
    "weak": (1000, 40, [5, 2.5, 1], False),
    "t with 6 degrees of freedom": (2000, 12, [20, 9, 4], False),
    "exponential": (1000, 12, [20, 9, 4], False),
    "rows that remember": (4000, 12, [20, 9, 4], False),
    "unequal groups": (2000, 12, [20, 9, 4], True),
}


def problem(family: str, seed: int, groups: int) -> tuple[Grouped, np.ndarray, np.ndarray, float]:
    """Groups of rows of this family, and what is true of all rows that there could be: values, vectors, variance."""
    n, d, spikes, unequal = PROBLEMS[family]
    rng = np.random.default_rng([list(PROBLEMS).index(family), seed])
    draw: Any = rng.standard_normal
    if family.startswith("t"):
        draw = lambda shape: rng.standard_t(6, shape) / np.sqrt(1.5)  # noqa: E731
    if family == "exponential":
        draw = lambda shape: rng.standard_exponential(shape) - 1  # noqa: E731
    series = draw((n, 3))
    if family == "rows that remember":
        series = lfilter([np.sqrt(1 - 0.49)], [1, -0.7], series, axis=0)
    v = np.linalg.qr(rng.standard_normal((d, 3)))[0]
    x = draw((n, d)) + (series * np.sqrt(spikes)) @ v.T
    shares = rng.uniform(0.5, 1.5, groups) if unequal else np.ones(groups)
    cuts = np.round(np.cumsum(shares)[:-1] / shares.sum() * n).astype(int)
    return grouped(x, cuts), 1 + np.array(spikes), v, d + sum(spikes)


def left_out(made: Grouped, k: int) -> Jackknife:
    """As :meth:`GramStore.jackknife` finds it, of values."""
    sums = list(made.each())
    sizes, means = np.array([rows for rows, _, _ in sums]), np.array([mean for _, mean, _ in sums])
    about = np.array([gram + rows * np.outer(mean, mean) for rows, mean, gram in sums])
    others = [np.delete(np.arange(len(sums)), i) for i in range(len(sums))]
    values = [
        np.linalg.eigvalsh(made.covariance(sizes[i].sum(), sizes[i] @ means[i] / sizes[i].sum(), about[i].sum(axis=0)))[
            : -k - 2 : -1
        ]
        for i in others
    ]
    whole = np.linalg.eigvalsh(made.whole)[: -k - 2 : -1]
    return Jackknife.of(whole, np.array(values), sizes, made.names, k, 0.95)


def covered(family: str, groups: int, seeds: range) -> dict[str, list[float]]:
    """Whether intervals hold the truth, of all that something is claimed of."""
    hits: dict[str, list[float]] = {"values": [], "shares": [], "entries": [], "jackknife": []}
    for seed in seeds:
        made, true, v, total = problem(family, seed, groups)
        found = bootstrapped(made, 3, replicates=200, confidence=0.95, seed=seed, exact=False)
        turned = v * np.sign((v * found.vectors).sum(axis=0))
        for name, ends, aim in (
            ("values", found.value_intervals, true),
            ("shares", found.share_intervals, true / total),
            ("entries", found.vector_intervals, turned),
            ("jackknife", left_out(made, 3).value_intervals, true),
        ):
            told = np.isfinite(ends[0])
            hits[name] += ((ends[0] <= aim) & (aim <= ends[1]))[told].tolist()
    return hits


@pytest.mark.heavy
def test_intervals_cover_planted_truth_as_often_as_they_say() -> None:
    """Of 150 data sets of each family. Too short intervals (percentiles, normal quantiles) cover 90 % or so."""
    every: dict[str, list[float]] = {}
    for family in PROBLEMS:
        for name, hits in covered(family, 20, range(150)).items():
            assert 0.90 <= np.mean(hits) <= 0.985, (family, name)
            every.setdefault(name, []).extend(hits)
    assert all(0.93 <= np.mean(hits) <= 0.97 for hits in every.values()), {n: np.mean(h) for n, h in every.items()}


@pytest.mark.slow
def test_intervals_of_few_groups_are_not_too_short() -> None:
    """Of 8, of unlike sizes. Mutants: quantiles of the normal distribution; degrees of freedom of replicates alone."""
    for name, hits in covered("unequal groups", 8, range(40)).items():
        assert np.mean(hits) >= 0.92, (name, np.mean(hits))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_claimed_of_single_components_inside_a_cluster(seed: int) -> None:
    """The second and third have the same variance; so have the last one asked for and the first one that was not."""
    x = planted(seed, spikes=np.array([30.0, 9.0, 9.0]))[0]
    found = bootstrapped(grouped(x, 20), 3, replicates=100, confidence=0.95, seed=seed, exact=False)
    assert found.mixed == ((1, 2),)
    assert np.isfinite(found.vector_intervals[:, :, 0]).all() and np.isfinite(found.value_intervals[:, 0]).all()
    for interval in (found.vector_intervals, found.value_intervals, found.share_intervals):
        assert np.isnan(interval[..., 1:]).all()
    cut = bootstrapped(grouped(x, 20), 2, replicates=100, confidence=0.95, seed=seed, exact=False)
    assert cut.mixed == ((1, 2),) and np.isnan(cut.value_intervals[:, 1]).all()


def test_components_that_change_places_are_mixed_however_far_apart_their_values_are() -> None:
    """In 6 of 60 replicates the first two are each other; the third and the fourth axis are never taken for another."""
    vectors = np.tile(np.eye(5)[:, :4], (60, 1, 1))
    vectors[:6] = vectors[:6][:, :, [1, 0, 2, 3]]
    values = np.array([100.0, 50.0, 20.0, 5.0])
    spread = values + 0.01 * np.random.default_rng(0).standard_normal((60, 4))
    assert _mixed_groups(_Pairs(values=spread, totals=np.ones(60), vectors=vectors), values) == ((0, 1),)
    vectors[2:6] = np.eye(5)[:, :4]
    assert _mixed_groups(_Pairs(values=spread, totals=np.ones(60), vectors=vectors), values) == ()


@pytest.mark.slow
def test_all_columns_constant_columns_and_fewer_rows_than_columns(tmp_path: Path) -> None:
    x = planted(6, 800, 3)[0] * [9, 4, 1]
    whole = stored(tmp_path, x, "whole").bootstrap(3)
    assert np.isfinite(whole.value_intervals).all() and whole.mixed == ()
    wide = stored(tmp_path, np.c_[x, np.full(800, 7.0)], "wide")
    np.testing.assert_allclose(wide.bootstrap(3).value_intervals, whole.value_intervals, rtol=1e-6)
    assert (wide.bootstrap(3).vector_intervals[:, 3] == 0).all() or np.allclose(
        wide.bootstrap(3).vector_intervals[:, 3], 0
    )
    with pytest.raises(BadInputError, match="only 3 directions"):
        wide.bootstrap(4)
    few = stored(tmp_path, planted(7, 40, 60, np.array([400.0, 100.0]))[0], "few", height=4)
    found = few.bootstrap(2)
    assert np.isfinite(found.value_intervals).all() or found.mixed


@pytest.mark.slow
def test_too_few_groups_and_impossible_questions(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"7 groups of rows.*by_chunks"):
        stored(tmp_path, planted(0, 700)[0], "seven").bootstrap(2)
    store = stored(tmp_path, planted(0, 800)[0])
    for k in (0, 21, 1.5):
        with pytest.raises(BadInputError, match="20 columns"):
            store.bootstrap(k)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="50 replicates or more"):
        store.bootstrap(2, replicates=49)
    for ask in (store.bootstrap, store.jackknife):
        for confidence in (0.0, 1.0, np.nan):
            with pytest.raises(BadInputError, match="must be between 0 and 1"):
                ask(2, confidence=confidence)
    with pytest.raises(BadInputError, match="seed = -1 must be a whole number, 0 or more"):
        store.bootstrap(2, seed=-1)


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path, capsys: Any) -> None:
    x = planted(1, 1000, spikes=np.array([30.0, 9.0, 9.0]))[0]
    found = stored(tmp_path, x).bootstrap(3, seed=2)
    place = str(tmp_path / "G")
    assert main(("components", place, "--intervals", "3", "--seed", "2", "--json")) == 0
    facts = json.loads(capsys.readouterr().out)["intervals"]
    np.testing.assert_array_equal(facts["value_intervals"][0], found.value_intervals[:, 0])
    assert facts["value_intervals"][1] == [None, None] and facts["mixed"] == [[1, 2]]
    assert main(("components", place, "--intervals", "3")) == 0
    assert "sampling cannot separate components 2, 3" in capsys.readouterr().out
    assert main(("components", place, "--intervals", "3", "--jackknife", "--json")) == 0
    facts, held = json.loads(capsys.readouterr().out)["intervals"], npmdask.GramStore(place).jackknife(3)
    assert facts["groups"] == 10 and facts["value_intervals"][1:] == [[None, None]] * 2 and facts["mixed"] == [[1, 2]]
    np.testing.assert_array_equal(facts["value_intervals"][0], held.value_intervals[:, 0])
    assert main(("components", place, "--intervals", "3", "--jackknife")) == 0
    said = capsys.readouterr().out
    assert "sampling cannot separate components 2, 3" in said and "leaves out one of 10 groups" in said
    assert main(("components", place, "--jackknife")) == 2
    assert "say of how many components" in capsys.readouterr().err


def test_few_groups_and_few_replicates_widen_intervals() -> None:
    """Satterthwaite: an error of 19 degrees of freedom, estimated with 199, has 17.3. Between tabled quantiles."""
    assert abs(student_factor(0.95, 10**6) - 1.95996) < 1e-4 and abs(student_factor(0.95, 10) - 2.26216) < 1e-4
    assert 2.1009 < student_factor(0.95, 20, 200) < 2.1098


def test_jackknife_of_a_mean_and_of_a_square() -> None:
    """A mean has no bias and its usual error, and the square of it a bias of that error squared."""
    x = np.random.default_rng(0).standard_normal(30) + 2
    left = np.array([np.delete(x, i).mean() for i in range(30)])[:, None]
    bias, errors = jackknifed(np.array([x.mean()]), left, np.ones(30))
    np.testing.assert_allclose(errors, x.std(ddof=1) / np.sqrt(30), rtol=1e-10)
    np.testing.assert_allclose(bias, 0, atol=1e-12)
    bias = jackknifed(np.array([x.mean() ** 2]), left**2, np.ones(30))[0]
    np.testing.assert_allclose(bias, x.var(ddof=1) / 30, rtol=1e-9)


def test_north_and_which_components_overlap() -> None:
    np.testing.assert_allclose(north_errors(np.array([4.0, 1.0]), 200), [0.4, 0.1])
    values = np.array([10.0, 5.0, 4.8, 4.7, 1.0])
    assert mixed_groups(values, 0.11 * np.ones(5)) == ((1, 2, 3),)
    assert mixed_groups(values, 0.01 * np.ones(5)) == () and mixed_groups(values[:1], np.ones(1)) == ()
    assert mixed_groups(values, 5 * np.ones(5)) == ((0, 1, 2, 3, 4),)


def test_equal_components_pass_for_two_in_one_of_twenty_samples() -> None:
    """As the rule says. Mutant: two errors, from which it is one of three."""
    rng, apart = np.random.default_rng(3), 0
    for _ in range(400):
        values = np.linalg.eigvalsh(np.cov(rng.standard_normal((500, 2)).T))[::-1]
        apart += mixed_groups(values, APART * north_errors(values, 500)) == ()
    assert 6 <= apart <= 36, apart


def test_north_of_a_run() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 4))
    x = np.linalg.qr(x - x.mean(axis=0))[0] * np.sqrt(399) * [9, 5, 4.9, 1]  # variances that are exactly these squares
    found = npmdask.top_k(x, 4, kind="samples", center=True)
    errors, mixed = found.north_errors()
    np.testing.assert_allclose(errors, found.explained_variance * np.sqrt(2 / 400))
    assert mixed == ((1, 2),) and found.north_errors(independent_rows=12)[1] == ((0, 1, 2),)
    with pytest.raises(BadInputError, match="rows = 'all' must be a whole number"):
        found.north_errors(independent_rows="all")  # type: ignore[arg-type]


def exact_rows(variances: list[float], n: int = 2000) -> np.ndarray:
    """Rows whose variances (divided by n) are exactly these."""
    rows = np.random.default_rng(3).standard_normal((n, len(variances)))
    return np.linalg.qr(rows - rows.mean(axis=0))[0] * np.sqrt(n * np.array(variances))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variances", "k", "mixed", "said"),
    [
        ([9, 4, 1, 0.2, 0.1, 0.1], 3, False, ""),  # the next one is far below
        ([9, 4, 1, 0.99, 0.98, 0.97], 3, True, "4 (not computed)"),  # even the mean of the others is not
        ([9, 4, 1, 0.99, 0.01, 0.01], 3, None, "next: not known"),  # it may be or not, by its bounds
        ([9, 4, 3.99, 1, 0.99, 0.98], 2, None, "next: not known"),
        ([9, 4, 1], 3, False, ""),  # there is no next one
    ],
)
@pytest.mark.parametrize("kind", ["samples", "matrix"])
def test_what_is_known_of_the_last_component_and_the_next(
    variances: list[float], k: int, mixed: bool | None, said: str, kind: str, tmp_path: Path
) -> None:
    """Mutants: no word where it is not known; the mean of the others taken for the next value."""
    np.save(tmp_path / "x.npy", exact_rows(variances))
    found = npmdask.top_k(tmp_path / "x.npy", k, kind=kind, center=True, store=tmp_path / "run", algorithm="krylov")
    assert found.mixes_with_next() is mixed
    if mixed is None:  # one more component answers it, as the page says
        more = npmdask.top_k(tmp_path / "x.npy", k + 1, kind=kind, center=True)
        assert any({k - 1, k} <= set(group) for group in more.north_errors()[1])
    run = RunStore(tmp_path / "run")
    sampling = sampling_of(run, run.read_spec() or {})
    assert sampling is not None and sampling.partners[-1] == said
    assert sampling.facts()["last_mixed_with_next"] is mixed
    assert ("is not known: ask for one component more" in sampling.sentences[1]) == (mixed is None)
    assert (k - 1 in sampling.numbers) == (mixed is True)


def test_values_of_a_replicate_that_nearly_tie_are_decomposed() -> None:
    """Mutant: the perturbation taken as it is (``TURNED`` infinite)."""
    rng = np.random.default_rng(0)
    inner = np.diag([5.0, 4.0, 4.0 - 1e-7, 2.0])
    outer, rest = 0.02 * rng.standard_normal((30, 4)), np.linspace(1, 0.5, 30)[:, None]
    values, vectors = _leading_pairs(inner, outer, rest, 3)
    true, basis = np.linalg.eigh(np.block([[inner, outer.T], [outer, np.diag(rest[:, 0])]]))
    np.testing.assert_allclose(values, true[::-1][:3], rtol=1e-5)
    assert (np.abs((vectors * basis[:, ::-1][:, :3]).sum(axis=0)) > 1 - 1e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_components_have_the_signs_of_the_answer(tmp_path: Path, seed: int) -> None:
    """Half of them were turned round, so that the answer lay outside of its own intervals."""
    x = (
        planted(seed)[0]
        @ np.linalg.qr(np.random.default_rng(seed).standard_normal((planted(seed)[0].shape[1],) * 2))[0]
    )
    store = stored(tmp_path, x)
    found, answer = store.bootstrap(3), npmdask.top_k(store, 3, center=True)
    np.testing.assert_allclose(found.vectors, answer.basis, atol=1e-9)
    low, high = found.vector_intervals
    assert ((answer.basis < low) | (answer.basis > high)).mean() < 0.2
