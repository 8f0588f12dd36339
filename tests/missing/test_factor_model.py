"""Steps of EM for rows with gaps, beside a program that goes row by row.

Mutants that these tests kill: no noise in the second moments; the mean not refitted with the loadings; parameter
expansion without the mean of z; entries held out that are fitted; a choice of them that depends on where strips begin.
"""

from __future__ import annotations

import numpy as np
import pytest

from npmdask.missing.factor_model import (
    FactorModel,
    ModelSums,
    expectations,
    extrapolated,
    filled_by_model,
    held_out,
    next_model,
    principal_axes,
)

N, D, K = 60, 7, 2


def made(seed: int = 0, share: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((N, K)) @ rng.standard_normal((K, D)) * 2 + rng.standard_normal((N, D)) + np.arange(D)
    rows[rng.random(rows.shape) < share] = np.nan
    rows[5] = np.nan
    return rows


def model(seed: int = 1) -> FactorModel:
    rng = np.random.default_rng(seed)
    axes, lengths = principal_axes(rng.standard_normal((D, K)))
    return FactorModel(axes=axes, lengths=lengths, mean=rng.standard_normal(D), noise=0.7)


def log_likelihood(rows: np.ndarray, given: FactorModel) -> float:
    """Of what is observed, by the covariance of each row."""
    whole, total = given.loadings @ given.loadings.T + given.noise * np.eye(D), 0.0
    for row in rows:
        seen = ~np.isnan(row)
        away, covariance = row[seen] - given.mean[seen], whole[np.ix_(seen, seen)]
        size = np.linalg.slogdet(covariance)[1] + away @ np.linalg.solve(covariance, away)
        total -= (seen.sum() * np.log(2 * np.pi) + size) / 2
    return total


def table_of(rows: np.ndarray, given: FactorModel, weights: np.ndarray | None = None) -> np.ndarray:
    table = np.zeros((D + 2, ModelSums(K).width))
    there = ~np.isnan(rows)
    expectations(given, rows, there, None, weights, table, [slice(0, 3), slice(3, D)])
    return table


def slow_step(rows: np.ndarray, given: FactorModel) -> tuple[np.ndarray, np.ndarray, float]:
    """Loadings, mean and noise after a step of plain EM, row by row and column by column, without expansion."""
    zs, moments = [], []
    for row in rows:
        seen = ~np.isnan(row)
        part = given.loadings[seen]
        inverse = np.linalg.inv(part.T @ part + given.noise * np.eye(K))
        z = inverse @ part.T @ (row[seen] - given.mean[seen])
        zs.append(np.append(z, 1.0))
        moment = np.outer(zs[-1], zs[-1])
        moment[:K, :K] += given.noise * inverse
        moments.append(moment)
    loadings, mean, left, count = np.zeros((D, K)), np.zeros(D), 0.0, 0
    for j in range(D):
        having = np.flatnonzero(~np.isnan(rows[:, j]))
        left_side = sum(moments[i] for i in having)
        right_side = sum(rows[i, j] * zs[i] for i in having)
        found = np.linalg.solve(left_side, right_side)
        loadings[j], mean[j] = found[:K], found[K]
        left += sum(rows[i, j] ** 2 - 2 * rows[i, j] * found @ zs[i] + found @ moments[i] @ found for i in having)
        count += len(having)
    return loadings, mean, left / count


def test_the_likelihood_is_that_of_the_observed_entries() -> None:
    rows, given = made(), model()
    facts = ModelSums(K).facts(table_of(rows, given))
    assert facts["log_likelihood"] == pytest.approx(log_likelihood(rows, given), rel=1e-12)
    assert facts["entries"] == (~np.isnan(rows)).sum() and facts["rows"] == N - 1


def test_a_step_is_that_of_a_slow_program_and_then_expanded() -> None:
    """The covariance of the slow step, with z as it is distributed over the rows."""
    rows, given = made(), model()
    table = table_of(rows, given)
    found = next_model(given, table, 0.0)
    loadings, mean, noise = slow_step(rows, given)
    whole = ModelSums(K).full(table[-2, : ModelSums(K).triangle]) / (N - 1)
    centre = whole[:K, K]
    spread = whole[:K, :K] - np.outer(centre, centre)
    assert found.noise == pytest.approx(noise, rel=1e-10)
    np.testing.assert_allclose(found.mean, mean + loadings @ centre, rtol=1e-9)
    np.testing.assert_allclose(found.loadings @ found.loadings.T, loadings @ spread @ loadings.T, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_the_likelihood_never_falls_and_ends_where_plain_em_ends(share: float) -> None:
    rows, fast = made(2, share), model()
    slow, values = fast, [log_likelihood(rows, fast)]
    for _ in range(120):
        fast = next_model(fast, table_of(rows, fast), 0.0)
        values.append(log_likelihood(rows, fast))
    assert min(np.diff(values)) > -1e-9 * abs(values[-1])
    for _ in range(250):
        loadings, mean, noise = slow_step(rows, slow)
        axes, lengths = principal_axes(loadings)
        slow = FactorModel(axes=axes, lengths=lengths, mean=mean, noise=noise)
    assert values[-1] == pytest.approx(log_likelihood(rows, slow), rel=1e-7)
    np.testing.assert_allclose(fast.times(np.eye(D)), slow.times(np.eye(D)), rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_two_steps_point_towards_the_end() -> None:
    """Nearer to it than the steps themselves, whatever the order and the signs of the axes; and not beyond nothing."""
    rows, end = made(2, 0.6), model()
    for _ in range(400):
        end = next_model(end, table_of(rows, end), 0.0)
    first = model()
    for _ in range(12):
        first = next_model(first, table_of(rows, first), 0.0)
    second = next_model(first, table_of(rows, first), 0.0)
    third = next_model(second, table_of(rows, second), 0.0)

    def away(given: FactorModel) -> float:
        return float(np.linalg.norm(given.times(np.eye(D)) - end.times(np.eye(D))))

    mixed = FactorModel(axes=-second.axes[:, ::-1], lengths=second.lengths[::-1], mean=second.mean, noise=second.noise)
    for between in (second, mixed):
        found = extrapolated(first, between, third, 0.0, 100.0)[0]
        assert found is not None and away(found) < 0.5 * away(third)
    assert extrapolated(end, end, end, 0.0, 100.0) == (None, 0.0)
    assert extrapolated(first, second, third, 0.0, 1.5)[1] == 1.5


def test_weights_are_repeated_rows() -> None:
    rows, given = made(), model()
    times = np.arange(N) % 3
    repeated = table_of(np.repeat(rows, times, axis=0), given)
    np.testing.assert_allclose(table_of(rows, given, times.astype(float)), repeated, rtol=1e-10, atol=1e-10)


def test_what_is_held_out_is_not_fitted_and_is_predicted() -> None:
    rows, given = made(), model()
    there = ~np.isnan(rows)
    held = there & held_out(slice(0, N), D, 0.2, 3)
    table = np.zeros((D + 2, ModelSums(K).width))
    expectations(given, rows, there & ~held, held, None, table, [slice(0, D)])
    rest = np.where(held, np.nan, rows)
    np.testing.assert_allclose(table[:-1], table_of(rest, given)[:-1], rtol=1e-12)
    facts = ModelSums(K).facts(table)
    predicted = filled_by_model(rest, given)
    assert facts["held"] == held.sum()
    assert facts["held_error"] == pytest.approx(np.square(rows - predicted)[held].sum(), rel=1e-10)


def test_gaps_are_filled_with_conditional_expectations() -> None:
    rows, given = made(), model()
    filled, whole = filled_by_model(rows, given), given.times(np.eye(D))
    for row, found in zip(rows, filled, strict=True):
        gap = np.isnan(row)
        away = row[~gap] - given.mean[~gap]
        expected = given.mean[gap] + whole[np.ix_(gap, ~gap)] @ np.linalg.solve(whole[np.ix_(~gap, ~gap)], away)
        np.testing.assert_allclose(found[gap], expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(found[~gap], row[~gap])
    np.testing.assert_allclose(filled[5], given.mean)


def test_entries_to_hold_out_are_a_fair_and_fixed_choice() -> None:
    """Of shares in every row and column, of pairs of neighbours, and between seeds: as drawn at random."""
    rows, columns, share = 4000, 300, 0.05
    drawn = held_out(slice(0, rows), columns, share, 0)
    np.testing.assert_array_equal(drawn[1000:1007], held_out(slice(1000, 1007), columns, share, 0))
    deviation = np.sqrt(share * (1 - share))
    assert abs(drawn.mean() - share) < 5 * deviation / np.sqrt(drawn.size)
    assert np.abs(drawn.mean(axis=0) - share).max() < 6 * deviation / np.sqrt(rows)
    for left, right in ((drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])):
        assert (left & right).mean() == pytest.approx(share**2, rel=0.1)
    other = held_out(slice(0, rows), columns, share, 1)
    assert (drawn & other).mean() == pytest.approx(share**2, rel=0.1)
    assert not held_out(slice(0, 50), columns, 0.0, 0).any()
