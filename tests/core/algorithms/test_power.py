"""The noisy power method against its oracles and its theorem."""

from __future__ import annotations

import numpy as np
import pytest

import npmdask
from npmdask.core.algorithms import PowerMethod
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import max_sin_theta, principal_angle_sines, random_orthonormal
from npmdask.core.runs import checks
from npmdask.core.runs.mechanisms import NoNoise, SimulatedGaussian
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.solution import Step
from npmdask.errors import BadInputError
from tests.conftest import needs, planted

LOGSPACE = np.logspace(0, -6, 60)
HARMONIC = 1 / np.sqrt(np.arange(1, 401))
MAX_VALUE_ERROR = {"f8": 1e-10, "f4": 1e-5}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("kind", ["matrix", "samples"])
@pytest.mark.parametrize(("spectrum", "k"), [(LOGSPACE, 20), (HARMONIC, 10), (HARMONIC, 20)])
def test_right_where_dask_dask_ml_and_xeofs_are_wrong(spectrum: np.ndarray, k: int, kind: str, dtype: str) -> None:
    a = planted(2000, 400, spectrum)[0].astype(dtype)
    _, sigma, vt = np.linalg.svd(a.astype("f8"), full_matrices=False)
    solution = npmdask.top_k(a, k, kind=kind)
    assert solution.converged
    values = solution.values if kind == "matrix" else np.sqrt(solution.values * len(a))
    assert np.abs(values / sigma[:k] - 1).max() < MAX_VALUE_ERROR[dtype]
    assert max_sin_theta(solution.basis, vt[:k].T) < {"f8": 1e-8, "f4": 1e-5}[dtype]
    np.testing.assert_allclose(solution.basis.T @ solution.basis, np.eye(k), atol=1e-12)


@pytest.mark.slow
def test_what_float64_cannot_resolve_is_not_called_converged() -> None:
    a = planted(2000, 400, LOGSPACE)[0]
    solution = npmdask.top_k(a, 55, kind="matrix")
    assert not solution.converged
    assert solution.outcome.name == "stagnated"
    assert "floor set by rounding" in solution.outcome.sentence


@pytest.mark.slow
def test_singular_triplets_of_a_matrix(tmp_path: object) -> None:
    a, u, _ = planted(700, 90, np.linspace(5, 1, 40))
    solution = npmdask.top_k(a, 6, kind="matrix", store=f"{tmp_path}/run", tol=1e-10)
    left = solution.left_basis()
    np.testing.assert_allclose(left.T @ left, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(a @ solution.basis, left * solution.values, atol=1e-12)
    residual = np.linalg.norm(a.T @ left - solution.basis * solution.values, axis=0)
    np.testing.assert_allclose(solution.residual_norms, residual, atol=1e-13)
    assert max_sin_theta(left, u[:, :6]) < 1e-8


@pytest.mark.slow
def test_indefinite_symmetric_by_magnitude_with_signs() -> None:
    rng = np.random.default_rng(0)
    v = np.linalg.qr(rng.standard_normal((300, 300)))[0]
    values = np.concatenate([[-10, 9, -8, 7, 6], rng.uniform(-3, 3, 295)])
    solution = npmdask.top_k((v * values) @ v.T, 5, kind="symmetric")
    np.testing.assert_allclose(solution.values, [-10, 9, -8, 7, 6], atol=1e-10)
    assert solution.data_passes == solution.steps


@pytest.mark.parametrize("kind", ["samples", "matrix"])
def test_fewer_components_than_asked_for_are_said_so(kind: str) -> None:
    a = planted(500, 60, np.array([4.0, 3.0, 2.0]))[0]
    solution = npmdask.top_k(a, 5, kind=kind)
    assert solution.converged
    assert "numerical rank 3" in solution.outcome.sentence
    np.testing.assert_allclose(solution.basis.T @ solution.basis, np.eye(5), atol=1e-12)
    expected = np.array([4, 3, 2, 0, 0]) if kind == "matrix" else np.array([16, 9, 4, 0, 0]) / 500
    np.testing.assert_allclose(solution.values, expected, atol=1e-12)


def test_small_values_are_not_called_zero() -> None:
    """Below 1e-7 of the largest, A^T A cannot tell a value from zero; the pass with A itself can."""
    a = planted(2000, 400, np.array([1, 0.5, 0.25, 1e-7, 5e-8]))[0]
    solution = npmdask.top_k(a, 5, kind="matrix")
    assert not solution.converged
    assert "2 of 5 singular values are not zero" in solution.outcome.sentence


@pytest.mark.parametrize("center", [True, False])
def test_constant_columns_are_not_scaled_up_to_noise(center: bool) -> None:
    x = np.random.default_rng(0).standard_normal((1037, 6))
    x[:, 2], x[:, 4] = 0.1, 1e6 / 3
    solution = npmdask.top_k(x, 4, kind="samples", center=center, scale=True)
    std = x.std(0)
    std[[2, 4]] = 1
    a = (x - x.mean(0) * center) / std
    if center:
        a[:, [2, 4]] = 0
    true = np.linalg.eigvalsh(a.T @ a / 1037)[::-1][:4]
    np.testing.assert_allclose(solution.values, true, rtol=1e-9, atol=1e-12 * true[0])


@pytest.mark.slow
def test_columns_that_count_as_constant_but_vary_are_named() -> None:
    x = np.random.default_rng(0).standard_normal((200, 6))
    x[:, 2] = 1e12 + 1e-3 * x[:, 2]
    told = npmdask.top_k(x, 2, kind="samples", center=True, scale=True)
    assert "1 column counts as constant" in told.warnings[0] and "(number 2, from 0)" in told.warnings[0]
    assert "One column that counts as constant was left out" in told.assurance
    x[:, 2] = 7.0
    assert not npmdask.top_k(x, 2, kind="samples", center=True, scale=True).warnings, "which is constant"
    x[:, 2:4] = 1e-200 * x[:, 4:]
    assert "columns count" in npmdask.top_k(x, 2, kind="samples", scale=True).warnings[0]


def test_a_matrix_of_zeros_has_rank_zero() -> None:
    solution = npmdask.top_k(np.zeros((20, 10)), 2)
    assert solution.converged
    assert "numerical rank 0" in solution.outcome.sentence
    assert (solution.values == 0).all()


@pytest.mark.parametrize(
    ("kind", "scale"),
    [("matrix", 1e-300), ("matrix", 5e-324), pytest.param("symmetric", 5e-324, marks=needs("symmetric"))],
)
def test_data_whose_products_vanish_are_not_taken_for_zeros(kind: str, scale: float) -> None:
    """Mutant: a product that is exactly zero counts as that of zeros."""
    x = np.eye(400) if kind == "symmetric" else np.random.default_rng(0).standard_normal((50, 20))
    with pytest.raises(BadInputError, match="multiply the data by a constant"):
        npmdask.top_k(scale * x, 2, kind=kind)


@pytest.mark.slow
def test_only_where_a_first_product_is_zero_are_the_data_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((30, 10))
    monkeypatch.setattr(checks, "_largest_entry", lambda reader: pytest.fail("a second look"))
    npmdask.top_k(x, 2)
    npmdask.top_k(np.diag([1.0, 0, 0, 0, 0]), 3)
    monkeypatch.undo()
    assert "rank 0" in npmdask.top_k(np.full((30, 10), 7.0), 2, center=True).outcome.sentence


def test_all_columns_iterated_is_exact_in_one_step() -> None:
    a = np.random.default_rng(0).standard_normal((200, 30))
    solution = npmdask.top_k(a, 30, kind="samples", iteration_rank=30)
    assert solution.steps == 1
    np.testing.assert_allclose(solution.values, np.linalg.eigvalsh(a.T @ a / 200)[::-1], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("center", "scale"), [(True, False), (True, True), (False, True)])
def test_centring_and_scaling_on_the_fly(center: bool, scale: bool) -> None:
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    x = load_digits().data
    solution = npmdask.top_k(x, 8, kind="samples", center=center, scale=scale)
    std = x.std(0)
    a = (x - x.mean(0) * center) / (np.where(std > 0, std, 1) if scale else 1)
    values, vectors = np.linalg.eigh(a.T @ a / len(a))
    np.testing.assert_allclose(solution.values, values[::-1][:8], rtol=1e-10)
    assert max_sin_theta(solution.basis, vectors[:, ::-1][:, :8]) < 1e-8
    if center:
        pca = PCA(8, svd_solver="full").fit(a)
        np.testing.assert_allclose(solution.values, pca.explained_variance_ * (1 - 1 / len(a)), rtol=1e-10)
    # A plain array has no recorded statistics: one survey pass, counted.
    assert solution.data_passes == solution.steps + 1


@pytest.mark.slow
def test_deflation_continues_where_a_run_ended(tmp_path: object) -> None:
    a = planted(1000, 120, 1 / np.sqrt(np.arange(1, 121)))[0]
    npmdask.top_k(a, 5, kind="samples", store=f"{tmp_path}/first")  # kept in memory: only for its answer
    import zarr

    z = zarr.create_array(f"{tmp_path}/a.zarr", shape=a.shape, dtype=a.dtype, chunks=(100, 120))
    z[...] = a
    npmdask.top_k(f"{tmp_path}/a.zarr", 5, kind="samples", store=f"{tmp_path}/base")
    more = npmdask.deflate(f"{tmp_path}/base", 4, store=f"{tmp_path}/more")
    whole = npmdask.top_k(f"{tmp_path}/a.zarr", 9, kind="samples")
    assert more.converged
    np.testing.assert_allclose(more.values, whole.values, rtol=1e-12)
    assert max_sin_theta(more.basis, whole.basis) < 1e-7
    np.testing.assert_allclose(more.basis.T @ more.basis, np.eye(9), atol=1e-12)
    again = npmdask.resume(f"{tmp_path}/more")
    assert again.data_passes == 0
    assert (again.basis == more.basis).all()


def reference_power_method(a: np.ndarray, x: np.ndarray, noise: list[np.ndarray]) -> np.ndarray:
    """Figure 1 of Hardt and Price, written as plainly as possible."""
    for g in noise:
        y = a @ x + g
        q, r = np.linalg.qr(y)
        x = q * np.sign(np.diagonal(r))
    return x


def test_the_iterates_are_those_of_figure_1() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((40, 40))
    a = a + a.T
    algorithm, mechanism = PowerMethod(target_rank=3, iteration_rank=6), SimulatedGaussian(stddev=0.1)
    state = algorithm.init(40, rng=generator(5, "start"))
    start, noise = state.basis, []
    for step in range(1, 6):
        product = a @ algorithm.query(state).block
        released = mechanism.release(product, block=product, entropy=5, step=step)
        noise.append(released - product)
        state, _ = algorithm.update(state, released)
    np.testing.assert_allclose(state.basis, reference_power_method(a, start, noise), atol=1e-12)


def test_theorem_2_4_bounds_the_error_under_noise() -> None:
    """If 5 ||G|| <= eps gap and 5 ||U^T G|| <= gap cos theta_0, then tan theta <= eps after L steps, and stays."""
    rng = np.random.default_rng(1)
    d, k, eps = 60, 3, 0.1
    v = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = np.concatenate([[3.0, 2.8, 2.5], np.linspace(1.0, 0.1, d - k)])
    a, u, gap = (v * values) @ v.T, v[:, :k], 1.5
    algorithm = PowerMethod(target_rank=k, iteration_rank=2 * k)
    state = algorithm.init(d, rng=rng)
    cosine = np.sqrt(1 - principal_angle_sines(state.basis, u)[0] ** 2)
    tangent = np.sqrt(1 / cosine**2 - 1)
    rate = max(eps, (values[k] / values[k - 1]) ** 0.25)
    steps = int(np.ceil(np.log(tangent / eps) / np.log(1 / rate)))
    for step in range(steps + 10):
        g = rng.standard_normal((d, 2 * k))
        g *= 0.999 * min(eps * gap / 5 / np.linalg.norm(g, 2), gap * cosine / 5 / np.linalg.norm(u.T @ g, 2))
        state, _ = algorithm.update(state, a @ algorithm.query(state).block + g)
        if step + 1 >= steps:
            sine = max_sin_theta(state.basis, u)
            assert sine / np.sqrt(1 - sine**2) <= eps


def test_simulated_noise_has_its_size_and_is_the_same_again() -> None:
    product = np.zeros((2000, 50))
    mechanism = SimulatedGaussian(stddev=0.3)
    noise = mechanism.release(product, block=product, entropy=1, step=4)
    assert (noise == mechanism.release(product, block=product, entropy=1, step=4)).all()
    assert (noise != mechanism.release(product, block=product, entropy=1, step=5)).all()
    # 1e5 samples: the deviation is known to 0.2 %. The same test must reject noise that is 1.05 times as large.
    assert abs(noise.std() / 0.3 - 1) < 0.015
    assert abs(1.05 * noise.std() / 0.3 - 1) > 0.015
    assert (NoNoise().release(product, block=product, entropy=1, step=1) == product).all()


@pytest.mark.slow
def test_with_noise_the_run_stops_at_the_floor_and_says_so() -> None:
    a = planted(400, 50, np.linspace(10, 1, 50))[0]
    solution = npmdask.top_k(a, 3, kind="samples", mechanism="gaussian", stddev=1e-6, max_steps=150)
    assert not solution.converged
    assert "floor set by the noise" in solution.outcome.sentence
    assert solution.steps < 150


def test_start_is_random_and_seeded() -> None:
    one = random_orthonormal(30, 4, generator(1, "start"))
    assert (one == random_orthonormal(30, 4, generator(1, "start"))).all()
    assert np.abs(one - random_orthonormal(30, 4, generator(2, "start"))).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", [HARMONIC, np.linspace(2, 1, 60), LOGSPACE, np.ones(30)])
def test_mixed_precision_costs_no_steps_and_always_ends_in_float64(spectrum: np.ndarray) -> None:
    class Seen(Observer):
        precision: tuple[str, ...] = ()

        def on_step(self, step: Step) -> None:
            self.precision = (*self.precision, step.precision)

    a = planted(2000, 400, spectrum)[0]
    seen = Seen()
    single = npmdask.top_k(a.astype("f4"), 8, kind="samples", algorithm="power", observer=seen, tol=1e-7, max_steps=500)
    double = npmdask.top_k(a, 8, kind="samples", algorithm="power", tol=1e-7, max_steps=500)
    assert single.converged
    assert double.converged
    assert single.steps <= double.steps + 2
    assert seen.precision[0] == seen.precision[-1] == "float64"
    assert seen.precision[1] == "float32"
    assert list(seen.precision[1:]) == sorted(seen.precision[1:]), "it changes once, for good"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["matrix", "samples"])
@pytest.mark.parametrize("scale", [1e-160, 1e-120, 1e-60, 1e-30, 1e30, 1e60, 1e120, 1e160])
def test_data_of_any_scale_are_right_or_refused(kind: str, scale: float) -> None:
    """At 1e-120 residuals used to underflow to 0, and a first guess was called converged."""
    a = planted(300, 50, np.linspace(2, 1, 50))[0]
    try:
        solution = npmdask.top_k(a * scale, 3, kind=kind)
    except BadInputError as error:
        assert not 1e-61 < scale < 1e61
        assert "multiply the data by a constant" in str(error) or "overflows although the data are finite" in str(error)
        return
    sigma = np.linspace(2, 1, 50)[:3]
    expected = sigma if kind == "matrix" else sigma**2 / 300
    np.testing.assert_allclose(solution.values / scale ** (1 if kind == "matrix" else 2), expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-35, 1e-15, 1e15, 1e25, 1e35])
def test_float32_data_whose_squares_leave_float32(scale: float) -> None:
    a = (planted(300, 50, np.linspace(2, 1, 50))[0] * scale).astype("f4")
    solution = npmdask.top_k(a, 3)
    true = np.linalg.svd(a.astype("f8") / scale, compute_uv=False)[:3] * scale
    assert solution.converged
    np.testing.assert_allclose(solution.values, true, rtol=1e-9)
