"""An algorithm from outside: registered, and run through every door without touching a file of npmdask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.algorithms import REGISTRY, Info, PowerMethod, Query, Question, Result, Seen, register_algorithm
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.subspaces import Block, rayleigh_ritz
from npmdask.core.runs.observers import Observer
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import planted, write_zarr

SPECTRUM = 0.7 ** np.arange(30) * 10


@dataclass(frozen=True, kw_only=True)
class HeavyBallState:
    """Two blocks in a row, and the pairs of the last one."""

    step: int
    basis: Block
    before: Block
    ritz_values: np.ndarray
    ritz_vectors: Block
    ritz_products: Block
    residual_norms: np.ndarray


@dataclass(frozen=True, kw_only=True)
class HeavyBall:
    """The power method with momentum (Xu et al. 2018): Y = A X - beta X_before."""

    name = "heavy-ball"
    residuals_decrease = True

    target_rank: int
    iteration_rank: int
    tol: float
    beta: float = 0.0
    mixed_precision: bool = False
    state_blocks: int = 10

    @classmethod
    def make(cls, question: Question, options: Mapping[str, Any]) -> HeavyBall:
        if set(options) - {"beta"}:
            raise BadInputError(f"heavy-ball has one option, beta; {sorted(options)} were given")
        return cls(
            target_rank=question.target_rank, iteration_rank=question.iteration_rank, tol=question.tol, **options
        )

    def init(self, d: int, *, rng: np.random.Generator, locked: Any = None, start: Any = None) -> HeavyBallState:
        k, p = self.target_rank, self.iteration_rank
        basis = np.linalg.qr(rng.standard_normal((d, p)))[0]
        return HeavyBallState(
            step=0,
            basis=basis,
            before=np.zeros((d, p)),
            ritz_values=np.zeros(k),
            ritz_vectors=np.zeros((d, k)),
            ritz_products=np.zeros((d, k)),
            residual_norms=np.full(k, np.inf),
        )

    def query(self, state: HeavyBallState) -> Query:
        return Query(state.basis)

    def update(self, state: HeavyBallState, released: Block) -> tuple[HeavyBallState, Info]:
        pairs = rayleigh_ritz(state.basis, released, self.target_rank)
        basis, upper = np.linalg.qr(released - self.beta * state.before)
        after = HeavyBallState(
            step=state.step + 1,
            basis=basis,
            before=np.linalg.solve(upper.T, state.basis.T).T,
            ritz_values=pairs.values,
            ritz_vectors=pairs.vectors,
            ritz_products=pairs.products,
            residual_norms=pairs.residual_norms,
        )
        info = Info(ritz_values=pairs.values, residual_norms=pairs.residual_norms, asymmetry=0.0, precision="float64")
        return after, info

    def finalize(self, state: HeavyBallState) -> Result:
        return Result(
            values=state.ritz_values,
            vectors=state.ritz_vectors,
            products=state.ritz_products,
            residual_norms=state.residual_norms,
        )

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> HeavyBallState:
        return HeavyBallState(**arrays, **scalars)


@pytest.fixture
def known() -> Iterator[None]:
    register_algorithm(HeavyBall)
    yield
    del REGISTRY[HeavyBall.name]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_zarr(tmp_path / "x.zarr", planted(400, 30, SPECTRUM)[0] * 20, (100, 30))


class Stop(BaseException):
    pass


class AfterTwo(Observer):
    def on_step(self, step: Any) -> None:
        if step.number == 2:
            raise Stop


@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_through_the_command_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'[source]\npath = "{data}"\n[algorithm]\nname = "heavy-ball"\ntarget_rank = 3\niteration_rank = 8\n'
        f'options = {{ beta = 0.1 }}\n[run]\nstore = "{tmp_path / "store"}"\n'
    )
    assert main(["plan", str(config)]) == 0
    assert main(["run", str(config)]) == 0
    assert main(["status", str(tmp_path / "store")]) == 0
    assert "converged" in capsys.readouterr().out
    assert (RunStore(tmp_path / "store").read_spec() or {})["algorithm"]["name"] == "heavy-ball"


@pytest.mark.usefixtures("known")
def test_what_it_does_not_offer_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="use 'power' with a noise mechanism"):
        npmdask.top_k(data, 3, algorithm="heavy-ball", mechanism="gaussian", stddev=0.1)
    with pytest.raises(BadInputError, match="heavy-ball has one option, beta"):
        npmdask.top_k(data, 3, algorithm="heavy-ball", options={"gamma": 1})
    npmdask.top_k(data, 3, algorithm="heavy-ball", iteration_rank=8, store=tmp_path / "run")
    with pytest.raises(RefusedError, match="is of heavy-ball: a run can begin with the vectors of power or krylov"):
        npmdask.top_k(data, 3, start=tmp_path / "run")


class Liar(PowerMethod):
    """Says after its first step that everything is found; ``lie`` makes the answer."""

    name = "liar"
    lie: Any = None

    def update(self, state: Any, released: Block) -> tuple[Any, Info]:
        after, info = super().update(state, released)
        return after, replace(info, residual_norms=0 * info.residual_norms)

    def finalize(self, state: Any) -> Result:
        return type(self).lie(super().finalize(state))


def no_residual(r: Result) -> Result:
    return replace(r, products=r.vectors * r.values, residual_norms=0 * r.values)


def not_unit(r: Result) -> Result:
    return replace(no_residual(r), vectors=3 * r.vectors, values=9 * r.values)


def one_twice(r: Result) -> Result:
    return replace(no_residual(r), vectors=r.vectors[:, [0] * len(r.values)])


def all_seen(r: Result) -> Result:
    """As if a random start had been multiplied a hundred times, and nothing were left over."""
    p = 20
    seen = Seen(values=np.r_[r.values, np.zeros(p - len(r.values))], gram=np.zeros((p, p)), degree=100, powers=True)
    return replace(no_residual(r), seen=seen)


def larger(r: Result) -> Result:
    return replace(no_residual(r), values=2 * r.values)


def any_vectors(r: Result) -> Result:
    return replace(no_residual(r), vectors=np.eye(*r.vectors.shape))


LIES = (no_residual, not_unit, one_twice, all_seen, larger, any_vectors)


@pytest.fixture
def liar() -> Iterator[type[Liar]]:
    register_algorithm(Liar)
    yield Liar
    del REGISTRY[Liar.name]


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("kind", ["samples", "matrix", "symmetric"])
def test_what_an_algorithm_says_of_its_answer_is_no_evidence(
    liar: type[Liar], monkeypatch: pytest.MonkeyPatch, lie: Any, kind: Any
) -> None:
    """Random problems with hardly a gap: one step finds nothing. Never "converged", and every bound holds.

    Without the pass of npmdask all of them are certified to 1e-12, and wrong.
    """
    monkeypatch.setattr(liar, "lie", staticmethod(lie))
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((200, 40)) * np.linspace(2, 1, 40)
        data = x.T @ x if kind == "symmetric" else x
        true = {
            "samples": np.linalg.svd(x, compute_uv=False) ** 2 / 200,
            "matrix": np.linalg.svd(x, compute_uv=False),
            "symmetric": np.linalg.eigvalsh(x.T @ x),
        }[kind]
        found = npmdask.top_k(data, 3, kind=kind, algorithm="liar", iteration_rank=6)
        assert not found.converged and "liar ended, and a pass with its vectors shows" in found.outcome.sentence
        np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(3), atol=1e-12)
        assert found.certificate is not None
        for value, nearest in zip(found.values, found.certificate["nearest"], strict=True):
            assert nearest is None or np.abs(true - value).min() <= nearest * (1 + 1e-9)
        for level in found.certificate["levels"]:
            for value, error, truth in zip(found.values, level["value_errors"], np.sort(true)[::-1], strict=False):
                assert error is None or abs(value - truth) <= error * (1 + 1e-9)
            assert level["sine"] is None or level["sine"] > 0.1, "one step does not find the space"


@pytest.mark.parametrize(
    "lie", [lambda r: replace(r, vectors=r.vectors[:-1]), lambda r: replace(r, vectors=r.vectors * np.nan)]
)
def test_vectors_that_are_none_are_refused(
    liar: type[Liar], monkeypatch: pytest.MonkeyPatch, data: Path, lie: Any
) -> None:
    monkeypatch.setattr(liar, "lie", staticmethod(lie))
    with pytest.raises(BadInputError, match="liar answers with vectors of shape"):
        npmdask.top_k(data, 3, algorithm="liar")


def test_the_end_that_rests_on_a_certificate_is_not_for_it(liar: type[Liar], data: Path) -> None:
    with pytest.raises(RefusedError, match="liar is not an algorithm of npmdask"):
        npmdask.top_k(data, 3, algorithm="liar", low_rank_tol=0.1)


def test_a_name_is_given_once_and_a_class_is_whole() -> None:
    with pytest.raises(BadInputError, match="there is already an algorithm 'power'"):
        register_algorithm(type("Other", (PowerMethod,), {}))
    with pytest.raises(BadInputError, match="is not an algorithm: it has no make, init"):
        register_algorithm(type("Nothing", (), {"name": "nothing"}))


def test_an_algorithm_that_nobody_registered_is_refused(data: Path) -> None:
    with pytest.raises(BadInputError, match="unknown algorithm 'heavy-ball'"):
        npmdask.top_k(data, 3, algorithm="heavy-ball")


@pytest.mark.parametrize("given", [3, None, ("power",)])
def test_what_is_no_word_is_no_algorithm(given: Any) -> None:
    """Mutant: what was given is searched for as a word."""
    with pytest.raises(BadInputError, match="unknown algorithm "):
        npmdask.top_k(np.eye(4), 1, algorithm=given)
