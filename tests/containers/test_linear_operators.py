"""LinearOperators of SciPy as sources: the answer of their matrix, and none of a matrix that they are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import npmdask
from npmdask.containers.matrix_free import open_linear_operator
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, MemoryRefusedError, NpmdaskError, RefusedError
from npmdask.privacy.request import Privacy
from tests.conftest import same_bytes
from tests.core.runs.test_loop import Stop, StopAfter

ROOT = Path(__file__).resolve().parents[2]
M, N = 240, 40
U, _, VT = np.linalg.svd(np.random.default_rng(5).standard_normal((M, N)), full_matrices=False)
SIGMA = 9 * 0.8 ** np.arange(N)
A = (U * SIGMA) @ VT
S = (VT.T * SIGMA * (-1.0) ** np.arange(N)) @ VT  # of both signs
MEAN = A.mean(axis=0)
ASKED: dict[str, Any] = {"algorithm": "power", "iteration_rank": 6, "max_steps": 6}


def operator(forth: Callable[[Any], Any], back: Callable[[Any], Any] | None = None, shape: Any = A.shape) -> Any:
    """By functions of blocks; both take single vectors, too."""
    return LinearOperator(shape, matvec=forth, rmatvec=back, matmat=forth, rmatmat=back, dtype=float)


class Convolution(LinearOperator):
    """Circular, by Fourier transforms, whose sums round in another order than those of a matrix."""

    def __init__(self, kernel: np.ndarray) -> None:
        super().__init__(np.dtype(float), (len(kernel), len(kernel)))
        self.transform = np.fft.fft(kernel)[:, None]

    def _matmat(self, block: Any) -> Any:
        return np.fft.ifft(self.transform * np.fft.fft(block, axis=0), axis=0).real

    def _rmatmat(self, block: Any) -> Any:
        return np.fft.ifft(self.transform.conj() * np.fft.fft(block, axis=0), axis=0).real


def single_vectors() -> Any:
    """Only what SciPy asks for at least."""
    return LinearOperator(A.shape, matvec=lambda x: A @ x, rmatvec=lambda y: A.T @ y)


def in_place() -> Any:
    """Writes into what it is given, and gives the same memory every time."""
    held = np.empty(100 * M)

    def product(matrix: np.ndarray) -> Callable[[Any], Any]:
        def applied(block: Any) -> Any:
            shape = (len(matrix), *block.shape[1:])
            out = held[: int(np.prod(shape))].reshape(shape)
            np.matmul(matrix, block, out=out)
            block[...] = 7.0
            return out

        return applied

    return operator(product(A), product(A.T))


KERNEL = np.random.default_rng(6).standard_normal(60) * 0.9 ** np.arange(60)
GOOD: dict[str, tuple[Callable[[], Any], np.ndarray]] = {
    "a matrix": (lambda: aslinearoperator(A), A),
    "wide": (lambda: aslinearoperator(A.T), A.T),
    "transposed": (lambda: aslinearoperator(A).T, A.T),
    "sparse": (
        lambda: aslinearoperator(sp.csr_array(np.where(np.abs(A) > 0.5, A, 0))),
        np.where(np.abs(A) > 0.5, A, 0),
    ),
    "centred": (
        lambda: aslinearoperator(A) - aslinearoperator(np.ones((M, 1))) @ aslinearoperator(MEAN[None]),
        A - MEAN,
    ),
    "by transforms": (lambda: Convolution(KERNEL), np.stack([np.roll(KERNEL, i) for i in range(60)], axis=1)),
    "single vectors": (single_vectors, A),
    "writes into its input": (in_place, A),
    "float32": (lambda: aslinearoperator(A.astype("f4")), A.astype("f4").astype("f8")),
    "integers": (lambda: aslinearoperator(np.rint(A).astype(int)), np.rint(A)),
    "small": (lambda: aslinearoperator(A * 1e-60), A * 1e-60),
    "large": (lambda: aslinearoperator(A * 1e60), A * 1e60),
    "one column": (lambda: aslinearoperator(A[:, :1]), A[:, :1]),
    "one row": (lambda: aslinearoperator(A[:1]), A[:1]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_triplets_are_those_of_the_matrix(name: str) -> None:
    made, matrix = GOOD[name]
    k = min(3, *matrix.shape)
    found = npmdask.top_k(made(), k, tol=1e-8)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    np.testing.assert_allclose(found.values, values[:k], rtol=1e-9)
    assert found.converged and found.certificate is not None
    basis, left_basis = found.basis, found.left_basis()
    np.testing.assert_allclose(matrix @ basis, left_basis * found.values, atol=1e-8 * values[0])
    np.testing.assert_allclose(matrix.T @ left_basis, basis * found.values, atol=1e-7 * values[0])
    if name != "by transforms":  # whose values come in pairs
        np.testing.assert_allclose(np.abs(right[:k] @ basis), np.eye(k), atol=1e-6)
        np.testing.assert_allclose(np.abs(left.T[:k] @ left_basis), np.eye(k), atol=1e-6)


@pytest.mark.parametrize("adjoint", [True, False])
def test_a_self_adjoint_one_has_eigenvalues_of_both_signs(adjoint: bool) -> None:
    given = aslinearoperator(S) if adjoint else operator(lambda x: S @ x, None, S.shape)
    found = npmdask.top_k(given, 4, kind="symmetric")
    np.testing.assert_allclose(found.values, SIGMA[:4] * [1, -1, 1, -1], rtol=1e-10)
    np.testing.assert_allclose(S @ found.basis, found.basis * found.values, atol=1e-7)


def test_one_that_is_zero() -> None:
    nothing = np.zeros((30, 8))
    found, truth = npmdask.top_k(aslinearoperator(nothing), 2), npmdask.top_k(nothing, 2)
    np.testing.assert_array_equal(found.values, truth.values)


def wrong_after(calls: int) -> Any:
    """Right while it is looked at, wrong later."""
    made = [0]

    def back(block: Any) -> Any:
        made[0] += 1
        return A.T @ block * (1 + 1e-9 * (made[0] > calls))

    return operator(lambda x: A @ x, back)


def forth_drifts() -> Any:
    made = [0]

    def forth(block: Any) -> Any:
        made[0] += 1
        return A @ block * (1 + 1e-13 * (made[0] > 6))

    return operator(forth, lambda y: A.T @ y)


def noisy() -> Any:
    rng = np.random.default_rng()
    return operator(lambda x: A @ x + 1e-15 * rng.standard_normal((M, *x.shape[1:])), lambda y: A.T @ y)


def other_for_other_widths() -> Any:
    """Right for as many vectors as are drawn for the comparison, and for single ones."""
    return operator(lambda x: (A if x.shape[1:] in ((), (1,), (4,)) else 1.001 * A) @ x, lambda y: A.T @ y)


def rank_one(size: float, row: np.ndarray, column: np.ndarray) -> Any:
    """The adjoint is off by a matrix of one direction only."""
    off = size * SIGMA[0] * np.outer(row, column)
    return operator(lambda x: A @ x, lambda y: A.T @ y + off @ y)


def off_to_the_side() -> Any:
    """After it was opened: orthogonal to what it was given first, so that only other vectors show it."""
    given: list[Any] = []

    def forth(block: Any) -> Any:
        given.append(block)
        return A @ block

    def back(block: Any) -> Any:
        right, x = A.T @ block, given[-1]
        if len(given) < 6:
            return right
        aside = np.ones(N) - x @ np.linalg.lstsq(x, np.ones(N))[0]
        return right + 1e-3 * np.outer(aside, np.ones(block.shape[1]))

    return operator(forth, back)


def permuted() -> Any:
    return operator(lambda x: A @ x, lambda y: (A.T @ y)[::-1])


WRONG: dict[str, Callable[[], Any]] = {
    "scaled by 1 + 1e-11": lambda: operator(lambda x: A @ x, lambda y: A.T @ y * (1 + 1e-11)),
    "off where the vectors in hand do not see it": off_to_the_side,
    "zero": lambda: operator(lambda x: A @ x, lambda y: np.zeros((N, *y.shape[1:]))),
    "of another matrix": lambda: operator(lambda x: A @ x, lambda y: np.roll(A, 1, axis=0).T @ y),
    "permuted": permuted,
    "off where the first vector lies": lambda: rank_one(1e-8, VT[0], U[:, 0]),
    "off behind the vectors that are wanted": lambda: rank_one(1e-6, VT[-1], U[:, 0]),
    "off where nothing is": lambda: rank_one(1e-5, VT[-1], U[:, -1]),
    "in single precision": lambda: operator(lambda x: A @ x, lambda y: A.T.astype("f4") @ y.astype("f4")),
    "wrong later": lambda: wrong_after(3),
    "another matrix for other widths": other_for_other_widths,
}


@pytest.mark.parametrize("name", WRONG)
def test_an_adjoint_that_is_none_is_found_out(name: str) -> None:
    """In the eigenvectors of such a product nothing is right, and its residuals would fall as those of any other."""
    with pytest.raises(BadInputError, match=r"rmatvec of the _CustomLinearOperator \(240 x 40\) is not the transpose"):
        npmdask.top_k(WRONG[name](), 3)


@pytest.mark.parametrize("made", [noisy, forth_drifts])
def test_products_that_are_others_the_second_time_are_found_out(made: Callable[[], Any]) -> None:
    with pytest.raises(BadInputError, match="returns other products than before for the same vectors: it was changed"):
        npmdask.top_k(made(), 3)
    if made is noisy:  # at once, and not by the checksums of a later pass, of which there may be none
        with pytest.raises(
            BadInputError, match="returns other products than before for the same vectors: it was changed"
        ):
            open_source(made())


@pytest.mark.parametrize("size", [1.0, 1e-9])
def test_one_that_is_called_symmetric_and_is_not(size: float) -> None:
    skew = S + size * np.triu(S, 1)
    with pytest.raises(BadInputError, match=r"is declared symmetric but is not: .* differ by"):
        npmdask.top_k(aslinearoperator(skew), 2, kind="symmetric")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_right_ones_are_never_refused(seed: int) -> None:
    """Of any shape, spectrum and size, by several ways to sum: what rounding does is no fault of theirs."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        m, n = (int(x) for x in np.exp(rng.uniform(0, 6, 2)).astype(int) + 1)
        matrix = rng.standard_normal((m, n)) * 10.0 ** rng.uniform(-60, 60)
        matrix = matrix * 10.0 ** -rng.uniform(0, 12, n) * (rng.random(n) < 0.9)
        if rng.random() < 0.3:
            matrix = np.outer(matrix[:, 0], matrix[0] / (np.abs(matrix[0]).max() or 1.0))
        square = n if rng.random() < 0.3 else 0
        matrix = matrix.T @ matrix / (np.abs(matrix).max() or 1.0) if square else matrix
        matrix = (matrix + matrix.T) / 2 if square else matrix
        ways: list[Any] = [
            aslinearoperator(matrix),
            aslinearoperator(sp.csr_array(matrix)),
            aslinearoperator(matrix.T).T,
        ]
        for way in ways:
            open_linear_operator(way, self_adjoint=bool(square))


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_operator_only(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        npmdask.top_k(aslinearoperator(A), 2, **ASKED, store=tmp_path / "run", observer=StopAfter(2))
    changed = A.copy()
    changed[7, 3] += 1e-12
    for other in (changed, A[:, ::-1], A[:-1], A * 1.5):
        with pytest.raises(RefusedError, match=r"belongs to another run.*products \w{8}, and are memory, the Matrix"):
            npmdask.top_k(aslinearoperator(other), 2, **ASKED, store=tmp_path / "run")
    with pytest.raises(BadInputError, match=r"in the memory of a program \(memory, the MatrixLinearOperator"):
        npmdask.resume(tmp_path / "run")
    npmdask.top_k(aslinearoperator(A), 2, **ASKED, store=tmp_path / "run")
    npmdask.top_k(aslinearoperator(A), 2, **ASKED, store=tmp_path / "whole")
    same_bytes(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_a_program_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", A)
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys\n"
        "import numpy as np, npmdask\n"
        "from scipy.sparse.linalg import aslinearoperator\n"
        "from npmdask.core.runs.observers import Observer\n"
        "class Killed(Observer):\n"
        "    def on_step(self, step):\n"
        "        if step.number == int(sys.argv[2]):\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        f"given = aslinearoperator(np.load({str(tmp_path / 'a.npy')!r}))\n"
        f"npmdask.top_k(given, 2, store=sys.argv[1], observer=Killed(), **{ASKED!r})\n"
    )

    def run(store: str, step: int) -> int:
        command = (sys.executable, str(program), str(tmp_path / store), str(step))
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode

    assert run("killed", 3) == -signal.SIGKILL and not (tmp_path / "killed" / "result").exists()
    assert run("killed", 0) == run("whole", 0) == 0
    same_bytes(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow
def test_worker_processes_have_the_same_bits(tmp_path: Path) -> None:
    for workers in (0, 2):
        npmdask.top_k(aslinearoperator(A), 2, **ASKED, workers=workers, store=tmp_path / str(workers))
    same_bytes(tmp_path / "0", tmp_path / "2")


@pytest.mark.slow
def test_left_vectors_that_are_lost_are_made_again(tmp_path: Path) -> None:
    first = npmdask.top_k(aslinearoperator(A), 2, store=tmp_path / "run").left_basis()
    file = tmp_path / "run" / "left.zarr" / "c" / "0" / "0"
    file.write_bytes(file.read_bytes()[:-8])
    again = npmdask.top_k(aslinearoperator(A), 2, store=tmp_path / "run")
    np.testing.assert_array_equal(again.left_basis(), first)


def test_what_a_product_takes_is_planned_for() -> None:
    """Half a MiB for each vector."""

    def hungry(matrix: np.ndarray) -> Callable[[Any], Any]:
        def applied(block: Any) -> Any:
            columns = block.reshape(len(block), -1).shape[1]
            wide = np.zeros((columns, 2**16))
            return matrix @ block + wide[:, :1].sum()

        return applied

    reader = open_source(operator(hungry(A), hungry(A.T))).reader
    assert 2**19 < reader.needs < 2**20
    with pytest.raises(MemoryRefusedError, match="for a task"):
        npmdask.top_k(operator(hungry(A), hungry(A.T)), 2, memory="1MiB")


def failing(block: Any) -> Any:
    raise ZeroDivisionError("no luck")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: aslinearoperator(A + 1j), "of dtype complex128; real numbers are needed"),
        (lambda: operator(lambda x: A @ x), "has no rmatvec, but the adjoint is needed: define it, or use kind = 'sym"),
        (lambda: LinearOperator(A.shape, matvec=lambda x: A @ x), "has no rmatvec"),
        (lambda: operator(failing, failing), r"fails in matmat \(ZeroDivisionError: no luck\)"),
        (lambda: operator(lambda x: A @ x, failing), r"fails in rmatmat \(ZeroDivisionError: no luck\)"),
        (lambda: operator(lambda x: (A @ x)[1:], lambda y: A.T @ y), r"matmat gives float64 of shape \(239, 4\)"),
        (lambda: operator(lambda x: A @ x + 0j, lambda y: A.T @ y), "matmat gives complex128"),
        (lambda: aslinearoperator(np.where(A == A[3, 3], np.nan, A)), "returns products that are not finite"),
        (lambda: aslinearoperator(np.zeros((0, 3))), r"has shape \(0, 3\)"),
    ],
)
def test_operators_that_cannot_be_used(made: Any, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        npmdask.top_k(made(), 2)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"center": True}, "center needs rows or entries"),
        ({"scale": True}, "scale needs rows or entries"),
        ({"algorithm": "gram"}, 'algorithm = "gram" needs rows'),
        ({"iteration_rank": "auto"}, "has no rows, but rows are needed here"),
        ({"kind": "samples"}, "kind = 'samples' is for data with rows"),
        ({"kind": "sparse"}, "kind = 'sparse' is for data with rows"),
        ({"kind": "tensor"}, "kind = 'tensor' is for data with rows"),
        ({"dim": 0}, "dim and spill are for data with rows"),
        ({"spill": "there"}, "dim and spill are for data with rows"),
        ({"kind": "symmetric"}, "a symmetric operator must be square"),
        ({"k": 0.9}, "a share of the variance needs rows"),
        ({"operator": "any"}, "operator needs rows"),
    ],
)
def test_what_needs_rows_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(NpmdaskError, match=said):
        npmdask.top_k(aslinearoperator(A), **{"k": 2, **asked})


@pytest.mark.slow
def test_everything_else_that_needs_rows_says_so(tmp_path: Path) -> None:
    given = aslinearoperator(A)
    privacy = Privacy(
        epsilon=1.0, delta=1e-6, neighboring_relation="record_replace", clip_norm=1.0,
        ledger=str(tmp_path / "ledger.sqlite"), dataset="a",
    )  # fmt: skip
    found = npmdask.top_k(given, 2)
    for ask in (
        lambda: found.scores(given),
        lambda: npmdask.stream_pca(given, 2),
        lambda: npmdask.PCA(2).fit(given),
        lambda: npmdask.TruncatedSVD(2).fit(given),
        lambda: npmdask.singular_triplets(given, 2),
        lambda: npmdask.top_k(given, 2, max_steps=2, privacy=privacy, store=tmp_path / "run"),
        lambda: npmdask.Topics(2).fit(given, vocabulary=[str(i) for i in range(N)]),
        lambda: npmdask.ICA(2).fit(given),
    ):
        with pytest.raises(NpmdaskError, match=r"rows"):
            ask()
    assert not (tmp_path / "ledger.sqlite").exists()
