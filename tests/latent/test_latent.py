"""Mixtures and independent components through their doors: what was planted is found, with any number of threads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.latent.answers import _means, latent_report
from npmdask.latent.fit import ANSWER, fit_independent_components, fit_mixture
from tests.conftest import same_bytes, write_zarr

D, K, N = 8, 3, 20_000
STDDEV = 0.5
SHARES = np.array([0.5, 0.3, 0.2])


def mixture(seed: int = 0, k: int = K) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n x d) of a mixture, and its means (d x k)."""
    rng = np.random.default_rng(seed)
    means = 3 * np.linalg.qr(rng.standard_normal((D, k)))[0] + 0.3
    which = rng.choice(k, N, p=SHARES[:k] / SHARES[:k].sum())
    return means[:, which].T + STDDEV * rng.standard_normal((N, D)), means


def mixed(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, the mixing matrix (d x k), and kurtoses: exponential, uniform (negative), Laplace."""
    rng = np.random.default_rng(seed)
    sources = np.stack([rng.exponential(size=N) - 1, rng.uniform(-(3**0.5), 3**0.5, N), rng.laplace(size=N) / 2**0.5])
    mixing = rng.standard_normal((D, K))
    return sources.T @ mixing.T + 5, mixing, np.array([6.0, -1.2, 3.0])


def closest(found: np.ndarray, true: np.ndarray, *, signs: bool = False) -> np.ndarray:
    """Which true column (d x k) each found one is, by cosine."""
    cosines = found.T @ true / np.outer(np.linalg.norm(found, axis=0), np.linalg.norm(true, axis=0))
    return np.argmax(abs(cosines) if signs else cosines, axis=1)


@pytest.mark.slow
def test_means_and_weights_of_a_mixture(tmp_path: Path) -> None:
    rows, means = mixture()
    found = fit_mixture(write_zarr(tmp_path / "x.zarr", rows, (3000, D)), K, store=tmp_path / "run")
    order = closest(found.means, means)
    assert sorted(order) == [0, 1, 2] and (np.diff(found.weights) <= 0).all()
    np.testing.assert_allclose(found.means, means[:, order], atol=0.12)
    np.testing.assert_allclose(found.weights, SHARES[order], atol=0.02)
    assert found.variance == pytest.approx(STDDEV**2, rel=0.03)
    assert found.facts["weights_sum"] == pytest.approx(1, abs=0.02)
    told = found.responsibilities(means.T)
    assert (told.argmax(axis=1)[order] == range(K)).all() and told.sum(axis=1) == pytest.approx(np.ones(K))


class Watch(Observer):
    """Which passes there were; gives up at a stage."""

    def __init__(self, stop: str = "") -> None:
        self.passes: list[str] = []
        self.stop = stop

    def on_stage(self, label: str) -> None:
        if self.stop and label.startswith(self.stop):
            raise KeyboardInterrupt

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self.passes += [label] * (total_bytes == N * D * 8)


@pytest.mark.slow
def test_a_plain_array_is_surveyed_with_the_means_and_held_to_what_they_saw(tmp_path: Path) -> None:
    """Bytes changed under equal times are seen by the checksums of the first pass, also in a later process."""
    source, watch = write_zarr(tmp_path / "x.zarr", mixture()[0], (3000, D)), Watch()
    fit_mixture(source, K, store=tmp_path / "run", observer=watch)
    assert watch.passes == ["means", "step 1", "spread", "step 1", "triples", "refinement-1", "refinement-2"]
    with pytest.raises(KeyboardInterrupt):
        fit_mixture(source, K, store=tmp_path / "again", observer=Watch(stop="whitening"))
    chunk = next(path for path in source.rglob("c/1/0"))
    times = chunk.stat()
    zarr.open_array(source)[4000, 3] = 17.0
    os.utime(chunk, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(BadInputError, match="is not that of its first reading"):
        fit_mixture(source, K, store=tmp_path / "again")


@pytest.mark.slow
def test_independent_components_of_both_signs(tmp_path: Path) -> None:
    rows, mixing, kurtoses = mixed()
    found = fit_independent_components(write_zarr(tmp_path / "x.zarr", rows, (3000, D)), K, store=tmp_path / "run")
    order = closest(found.mixing, mixing, signs=True)
    assert sorted(order) == [0, 1, 2]
    turned = found.mixing * np.sign(np.einsum("dk,dk->k", found.mixing, mixing[:, order]))
    np.testing.assert_allclose(turned, mixing[:, order], atol=0.12)
    np.testing.assert_allclose(found.kurtoses, kurtoses[order], rtol=0.25)
    np.testing.assert_allclose(np.cov(found.sources(rows).T), np.eye(K), atol=0.06)
    np.testing.assert_allclose(found.mean, rows.mean(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("fit", [fit_mixture, fit_independent_components])
def test_an_array_in_memory_a_second_call_and_threads(tmp_path: Path, fit: Any) -> None:
    rows = (mixture() if fit is fit_mixture else mixed())[0]
    first = fit(rows, K, store=tmp_path / "one", resources=Resources(threads=1))
    fit(rows, K, store=tmp_path / "two", resources=Resources(threads=2))
    for stage in (tmp_path / "one").glob("**/result"):
        same_bytes(stage.parent, tmp_path / "two" / stage.parent.relative_to(tmp_path / "one"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("telemetry.jsonl")}
    again = fit(rows, K, store=tmp_path / "one")
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("telemetry.jsonl")}
    assert first.facts == again.facts
    with pytest.raises(RefusedError, match=r"algorithm.components \(3 in the checkpoint, 2 now\)"):
        fit(rows, 2, store=tmp_path / "one")
    with pytest.raises(RefusedError, match=r"data.fingerprint"):
        fit(rows + 1, K, store=tmp_path / "one")


@pytest.mark.heavy
def test_a_worker_process_changes_no_bit(tmp_path: Path) -> None:
    source = write_zarr(tmp_path / "x.zarr", mixed()[0], (5000, D))
    fit_independent_components(source, K, store=tmp_path / "threads")
    fit_independent_components(source, K, store=tmp_path / "worker", resources=Resources(workers=1, threads=1))
    same_bytes(tmp_path / "threads", tmp_path / "worker")


@pytest.mark.slow
def test_gaussian_noise_is_said_to_be_none(tmp_path: Path) -> None:
    found = fit_independent_components(np.random.default_rng(0).standard_normal((N, D)), 2, store=tmp_path / "run")
    assert "2 of 2 components have a kurtosis below" in found.facts["warnings"][-1]
    rows, _, _ = mixed()
    assert not fit_independent_components(rows, K, store=tmp_path / "sources").facts["warnings"]


@pytest.mark.slow
def test_one_component(tmp_path: Path) -> None:
    rows, means = mixture(k=1)
    found = fit_mixture(rows, 1, store=tmp_path / "run")
    np.testing.assert_allclose(found.means, means, atol=0.05)
    assert found.weights[0] == pytest.approx(1, abs=0.02)
    rng = np.random.default_rng(0)
    one = fit_independent_components(np.outer(rng.exponential(size=5000), np.arange(1, 5)), 1, store=tmp_path / "ica")
    assert one.kurtoses[0] == pytest.approx(6, rel=0.4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fit", "k", "source", "error", "said"),
    [
        (fit_mixture, 8, "rows", BadInputError, "fewer components than columns"),
        (fit_mixture, 9, "rows", BadInputError, "at most 8"),
        (fit_mixture, 0, "rows", BadInputError, "components = 0"),
        (fit_independent_components, 9, "rows", BadInputError, "at most 8"),
        (fit_independent_components, 3, "flat", BadInputError, "M2 supports only 1 of 3"),
        (fit_mixture, 2, np.zeros((50, 4)), BadInputError, "M2 has no positive"),
        (fit_mixture, 2, "nothing.zarr", BadInputError, "nothing"),
    ],
)
def test_sentences(tmp_path: Path, fit: Any, k: int, source: Any, error: type[NpmdaskError], said: str) -> None:
    rng = np.random.default_rng(0)
    made = {
        "rows": mixture()[0],
        "flat": np.outer(rng.exponential(size=500), np.ones(D)),
    }
    with pytest.raises(error, match=said):
        fit(made.get(source, source) if isinstance(source, str) else source, k, store=tmp_path / "run")
    with pytest.raises(BadInputError, match="threads"):
        fit(made["rows"], 2, store=tmp_path / "bad", resources=Resources(threads=0))
    with pytest.raises(RefusedError, match="is too small"):
        fit(made["rows"], 2, store=tmp_path / "little", resources=Resources(memory=2**20))


def test_a_page_shows_the_columns_in_which_the_means_of_a_mixture_differ_most(tmp_path: Path) -> None:
    """Of 30 columns those at the end, whose common level is no difference; of 12 components the first ten."""
    means = np.full((30, 12), 5000.0)
    means[10:] = 1000.0 + np.arange(1, 13)
    with RunStore(tmp_path / "run") as held:
        held.write_part(ANSWER, {"means": means, "weights": np.full(12, 1 / 12)}, {})
    (shown,) = _means(RunStore(tmp_path / "run"))
    said, (head, rows) = shown.blocks[0].text, (shown.blocks[1].head, shown.blocks[1].rows)
    assert "the 20 of 30 columns in which they differ most and the 10 of 12 components" in said
    assert [row[0] for row in rows] == list(range(10, 30)) and head[-1] == "component 10"
    assert rows[0][1:] == tuple(f"{1000 + i}" for i in range(1, 11))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixture", "ica"])
def test_the_commands(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (mixture() if kind == "mixture" else mixed())[0]
    np.save("x.npy", rows)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    run("ingest", "x.npy", "x.zarr", "--quiet")
    code, out, err = run(kind, "x.zarr", "--components", "3", "--quiet")
    assert code == 0 and len(out.splitlines()) <= 8 and f"npmdask report runs/{kind}-x" in out
    code, out, _ = run(kind, "x.zarr", "--components", "3", "--json", "--quiet")
    facts = json.loads(out)
    assert facts["outcome"] == "converged" and len(facts["weights"]) == 3 and facts["kind"] == kind
    store = f"runs/{kind}-x"
    code, out, _ = run("inspect", store, "--json")
    assert json.loads(out)["state"] == "finished" and json.loads(out)["weights"] == facts["weights"]
    assert run("report", store)[0] == 0
    page = Path(store, "report.html").read_text()
    assert page.count("<svg") == 2 and ("weight" if kind == "mixture" else "excess kurtosis") in page
    shown = latent_report(RunStore(store), RunStore(store).read_spec() or {})
    means = [one.blocks[0].rows for one in shown.sections if one.title == "Means"]
    code, out, _ = run("resume", store, "--json", "--quiet")
    assert json.loads(out) == facts
    assert run("export", store, "o.npz")[0] == 0
    with np.load("o.npz") as answer:
        assert set(answer) == (
            {"means", "weights", "variances"} if kind == "mixture" else {"mixing", "unmixing", "mean", "kurtoses"}
        )
        expected = (
            [[(j, *(f"{v:.6g}" for v in row)) for j, row in enumerate(answer["means"])]] if "means" in answer else []
        )
    assert [list(rows) for rows in means] == expected, "on the page of a mixture, in the order of its weights"
    for arguments, said in (
        (["deflate", store, "1", "--store", "more"], "a job of several stages"),
        (["transform", store, "x.zarr", "y.zarr"], "no components of rows"),
        (["resume", store, "--max-steps", "9"], "only memory, workers and threads"),
        (["resume", f"{store}/whitening"], "is a stage of a longer job; go on with"),
        (["resume", f"{store}/decomposition", "--tol", "0.1"], "is a stage of a longer job; go on with"),
    ):
        code, _, err = run(*arguments)
        assert code in (2, 3) and said in err, err


@pytest.mark.slow
def test_what_did_not_converge_is_said_and_has_its_exit_code(tmp_path: Path, capsys: Any) -> None:
    source = write_zarr(tmp_path / "x.zarr", mixture()[0], (3000, D))
    found = fit_mixture(source, K, store=tmp_path / "run", iterations=1, restarts=1)
    assert found.facts["outcome"]["sentence"].startswith("not converged")
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 4
    assert "not converged" in capsys.readouterr().out
