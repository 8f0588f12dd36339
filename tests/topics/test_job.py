"""Topics from a file of counts to words, weights and what they are worth; and again without a pass."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix, vstack

from npmdask.accounting import Budget
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.random import generator
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, DataWarning, NpmdaskError, RefusedError
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.manage.report import write_report
from npmdask.topics.documents import documents_of, write_documents
from npmdask.topics.estimator import Topics
from npmdask.topics.model import TopicModel
from npmdask.topics.run import CorpusFilter, TopicAnswer, TopicRequest, fit_topics, read_topics, run_topics, tensor_tol
from tests.conftest import same_bytes
from tests.topics.made import words

V, K, N = 50, 3, 6000
TOPICS = generator(3, "topics").dirichlet(np.full(V, 0.1), K).T


def corpus(n: int = N, low: int = 5, high: int = 15, seed: int = 0) -> csr_matrix:
    """Documents of ``low`` to ``high`` - 1 words of the planted topics, alpha0 = 1."""
    rng = generator(seed, "documents")
    mixed = rng.dirichlet(np.full(K, 1 / K), n) @ TOPICS.T
    return csr_matrix(rng.multinomial(rng.integers(low, high, n), mixed / mixed.sum(axis=1, keepdims=True)))


COUNTS = corpus()


def l1_error(model: TopicModel, true: np.ndarray = TOPICS) -> float:
    """The mean over the topics of the sum of |differences|, in the best order."""
    found = model.topics
    return min(float(abs(found[:, order] - true).sum(axis=0).mean()) for order in permutations(range(K)))


def docword(path: Path, counts: csr_matrix = COUNTS) -> Path:
    entries = counts.tocoo()
    table = np.stack([entries.row + 1, entries.col + 1, entries.data], axis=1)
    head = "\n".join(map(str, (*counts.shape, counts.nnz)))
    path.write_text(head + "\n" + "\n".join(" ".join(map(str, line)) for line in table.tolist()) + "\n")
    return path


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> TopicAnswer:
    folder = tmp_path_factory.mktemp("topics")
    return run_topics(docword(folder / "docword.txt"), K, words(V), store=folder / "run")


@pytest.mark.slow
def test_planted_topics_are_found(answer: TopicAnswer) -> None:
    assert l1_error(answer.model) < 0.15
    np.testing.assert_allclose(answer.model.weights, np.full(K, 1 / K), atol=0.06)
    assert answer.model.facts["weights_sum"] == pytest.approx(1, abs=0.15)  # alpha0, which was given
    assert answer.model.vocabulary == words(V) and answer.model.facts["documents"] == N * 9 // 10
    assert answer.perplexity is not None and answer.perplexity.model < 0.9 * answer.perplexity.unigram
    assert answer.coherence.c_npmi.shape == (K,) and answer.model.facts["passes"] <= 10
    assert open_source(Path(answer.store) / "held-out.zarr").shape == (N // 10, V)


@pytest.mark.slow
def test_a_moment_that_is_never_formed_gives_the_same_topics(answer: TopicAnswer, tmp_path: Path) -> None:
    other = run_topics(COUNTS, K, words(V), store=tmp_path / "run", moments="implicit")
    np.testing.assert_allclose(other.model.topics, answer.model.topics, atol=2e-3)
    assert other.model.facts["passes"] > answer.model.facts["passes"]
    assert not (tmp_path / "run" / "moments.zarr").exists()


@pytest.mark.slow
def test_threads_and_where_the_counts_lie_change_no_bit(answer: TopicAnswer, tmp_path: Path) -> None:
    write_documents(documents_of(COUNTS), tmp_path / "counts.zarr", words(V))
    run_topics(tmp_path / "counts.zarr", K, store=tmp_path / "run", resources=Resources(threads=1))
    for stage in ("whitening", "decomposition"):
        same_bytes(Path(answer.store) / stage, tmp_path / "run" / stage)
    for part in ("topics", "quality", "totals", "triples"):
        mine, other = (
            (Path(store) / part / "manifest.json").read_bytes() for store in (answer.store, tmp_path / "run")
        )
        assert mine == other, part


@pytest.mark.slow
def test_a_worker_process_changes_no_bit(answer: TopicAnswer, tmp_path: Path) -> None:
    store = tmp_path / "run"
    run_topics(COUNTS, K, words(V), store=store, resources=Resources(workers=1, threads=1))
    same_bytes(Path(answer.store) / "decomposition", store / "decomposition")
    assert (store / "topics/manifest.json").read_bytes() == (Path(answer.store) / "topics/manifest.json").read_bytes()


@pytest.mark.slow
def test_a_second_call_answers_without_a_pass_and_another_request_is_refused(answer: TopicAnswer) -> None:
    store = Path(answer.store)
    source = store.parent / "docword.txt"
    logs = {path: path.stat().st_size for path in store.rglob("telemetry.jsonl")}
    again = run_topics(source, K, words(V), store=store)
    assert again.outcome == answer.outcome and np.array_equal(again.model.topics, read_topics(store).model.topics)
    assert logs == {path: path.stat().st_size for path in store.rglob("telemetry.jsonl")}
    for asked, said in (
        ({"topics": K + 1}, r"algorithm.topics \(3 in the checkpoint, 4 now\)"),
        ({"topics": K, "alpha0": 0.5}, "algorithm.alpha0"),
        ({"topics": K, "half_length": 0.0}, "algorithm.half_length"),
        ({"topics": K, "cut": CorpusFilter(min_df=2)}, r"min_df \(1 then, 2 now\)"),
        ({"topics": K, "vocabulary": words(V)[::-1]}, "vocabulary"),
        ({"topics": K, "source": COUNTS}, "source"),
    ):
        with pytest.raises(RefusedError, match=said):
            run_topics(**({"source": source, "vocabulary": words(V), "store": store} | asked))


@pytest.mark.slow
def test_a_few_tiny_documents_ruin_equal_weights_only(tmp_path: Path) -> None:
    """Breaks where weights by length are left out: a table of contents would count as much as a paper."""
    long, rng = corpus(1500, 150, 250), generator(0, "tiny")
    tiny = csr_matrix(rng.multinomial(4, np.r_[np.full(5, 0.2), np.zeros(V - 5)], 40))
    both = vstack([long, tiny]).tocsr()
    errors = [
        l1_error(run_topics(both, K, store=tmp_path / f"{half}", cut=CorpusFilter(held_out=0), half_length=half).model)
        for half in (100.0, 0.0)
    ]
    assert errors[0] < 0.1 and errors[1] > 2 * errors[0], errors


@pytest.mark.slow
def test_words_that_are_left_out_and_new_documents(tmp_path: Path) -> None:
    stuffed = COUNTS.tolil()
    stuffed[:, 7] = 1  # a word of every document
    stuffed[:, 9] = 0
    stuffed[4, 9] = 1  # and one of a single document
    answer = run_topics(stuffed.tocsr(), K, words(V), store=tmp_path / "run", cut=CorpusFilter(min_df=2, max_df=0.9))
    model = answer.model
    often = np.asarray((stuffed.tocsr() > 0).sum(axis=0))[0]
    assert (
        model.words == ((often > 1) & (often < N)).sum() < V
        and model.source_columns == V
        and {"w7", "w9"}.isdisjoint(model.vocabulary)
    )
    assert model.kept is not None and [f"w{i}" for i in model.kept] == list(model.vocabulary)
    new = corpus(200, 20, 40, seed=8)
    fitted = Topics(K, min_df=2, max_df=0.9).fit(stuffed.tocsr(), vocabulary=words(V))
    shares = fitted.transform(new)
    assert shares.shape == (200, K) and shares.sum(axis=1) == pytest.approx(np.ones(200))
    assert fitted.n_features_in_ == V and fitted.components_.shape == (K, model.words)
    pure = csr_matrix(np.round(200 * TOPICS.T).astype(int))
    assert sorted(fitted.transform(pure).argmax(axis=1)) == list(range(K))
    with pytest.raises(BadInputError, match="50"):
        fitted.transform(new[:, :-2])


@pytest.mark.slow
def test_the_estimator_is_the_job(answer: TopicAnswer, tmp_path: Path) -> None:
    write_documents(documents_of(COUNTS), tmp_path / "counts.zarr", words(V))
    fitted = Topics(K, random_state=0, store=tmp_path / "run").fit(tmp_path / "counts.zarr")
    model = run_topics(COUNTS, K, words(V), store=tmp_path / "job", cut=CorpusFilter(held_out=0)).model
    np.testing.assert_array_equal(fitted.components_, model.topics.T)
    assert fitted.vocabulary_ == words(V) and fitted.get_params()["n_components"] == K
    with pytest.raises(RefusedError, match="is too small"):
        Topics(K, memory="1MiB").fit(COUNTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"topics": V + 1}, BadInputError, "at most as many topics as words"),
        ({"topics": 0}, BadInputError, "topics = 0"),
        ({"topics": 40}, BadInputError, r"M2 supports only \d+ of 40 components"),
        ({"alpha0": -1.0}, BadInputError, "alpha0 = -1.0"),
        ({"alpha0": np.inf}, BadInputError, "alpha0 = inf"),
        ({"half_length": -1.0}, BadInputError, "half_length = -1"),
        ({"moments": "some"}, BadInputError, "moments = 'some'"),
        ({"seed": -1}, BadInputError, "seed = -1"),
        ({"restarts": 0}, BadInputError, "restarts = 0"),
        ({"iterations": 5, "harvest": True}, BadInputError, "leave one of them out"),
        ({"vocabulary": words(V - 1)}, BadInputError, "49 words and the documents have 50 columns"),
        ({"resources": Resources(memory=2**20)}, RefusedError, "is too small"),
        ({"resources": Resources(workers=-1)}, BadInputError, "workers must be at least 0"),
        ({"resources": Resources(threads=0)}, BadInputError, "threads at least 1"),
        ({"source": csr_matrix((9, 4), dtype=int)}, BadInputError, "held_out = 0.1 is one document of 10"),
        ({"source": -COUNTS}, BadInputError, "counts cannot be negative"),
        ({"source": COUNTS * 0.5}, BadInputError, "give whole numbers"),
        ({"source": "nothing.txt"}, BadInputError, "nothing"),
        ({"source": csr_matrix(np.eye(30, dtype=int))}, BadInputError, "none of the 27 documents .* has three words"),
    ],
)
def test_sentences(tmp_path: Path, asked: dict[str, Any], error: type[NpmdaskError], said: str) -> None:
    common = {"source": COUNTS[:400], "topics": K, "store": tmp_path / "run"}
    with pytest.raises(error, match=said):
        run_topics(**(common | asked))


@pytest.mark.parametrize("bounds", [{"min_df": 0}, {"max_df": 0.0}, {"max_df": 1.5}, {"held_out": 0.6}])
def test_bounds_that_cannot_be(bounds: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match=next(iter(bounds))):
        CorpusFilter(**bounds)


def test_the_tolerance_is_a_tenth_of_what_sampling_leaves() -> None:
    for documents, topics, tol in ((10_000, 4, 2e-3), (100, 4, 1e-2), (10**12, 1, 1e-6)):
        source: Any = SimpleNamespace(shape=(documents, 50))
        assert tensor_tol(source, TopicRequest(topics=topics)) == pytest.approx(tol)


@pytest.mark.slow
def test_topics_of_documents_with_a_privacy_budget_say_that_they_are_not_protected_by_it(
    tmp_path: Path, capsys: Any
) -> None:
    """The job copies what it uses, so the copies know of the budget, too. Mutants: the warning left out of the model;
    copies that know nothing; words left out, and the budget with them."""
    warning = (
        "these data have a privacy budget (as 'letters' in the ledger), and what is made of them here is not protected"
    )
    store = tmp_path / "letters.zarr"
    write_documents(documents_of(corpus(1500)), store, words(V))
    assert not fit_topics(store, K, store=tmp_path / "free").facts["warnings"]
    asked = {"relation": "record_replace", "clip_norm": 1.0, "change": 1.0, "budget": Budget(1.0, 1e-8)}
    grant_source(open_ledger(tmp_path / "ledger.sqlite"), "letters", store, **asked)
    with pytest.warns(DataWarning, match="privacy budget"):
        assert any(warning in said for said in fit_topics(store, K, store=tmp_path / "fit").facts["warnings"])
    asked_for = ["topics", str(store), "--topics", str(K), "--min-df", "2", "--quiet", "--store", str(tmp_path / "job")]
    assert main(asked_for) == 0 and capsys.readouterr().err.count(warning) == 1
    assert any(warning in said for said in read_topics(tmp_path / "job").warnings)
    with pytest.warns(DataWarning, match="privacy budget"):
        assert "have a privacy budget (as" in write_report(tmp_path / "job").read_text()


@pytest.mark.slow
def test_documents_that_are_too_short_are_counted(tmp_path: Path) -> None:
    short = csr_matrix(np.eye(V, dtype=int)[:20] * 2)
    write_documents(documents_of(vstack([COUNTS, short]).tocsr()), tmp_path / "counts.zarr", words(V))
    model = fit_topics(tmp_path / "counts.zarr", K, store=tmp_path / "run")
    assert model.facts["skipped"] == 20 and model.facts["documents"] == N
    assert l1_error(model) < 0.15


@pytest.mark.slow
def test_what_did_not_converge_is_said_and_has_its_exit_code(answer: TopicAnswer, tmp_path: Path, capsys: Any) -> None:
    assert answer.answered and answer.outcome.name == "converged"
    found = run_topics(corpus(N, 30, 60), K, store=tmp_path / "run", iterations=1, restarts=1)
    assert not found.answered and found.outcome.sentence.startswith("not converged: found 3 of 3 topics")
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 4
    assert "not converged: found" in capsys.readouterr().out
    page = write_report(tmp_path / "run").read_text()
    assert '<p class="outcome bad">not converged: found' in page


@pytest.mark.slow
def test_more_topics_than_there_are(tmp_path: Path) -> None:
    """Of long documents M2 shows that there are no more; of short ones what is not there is noise, and no NaN."""
    with pytest.raises(BadInputError, match=r"M2 supports only 3 of 4 components: .* take k = 3"):
        run_topics(corpus(N, 30, 60), K + 1, store=tmp_path / "long", cut=CorpusFilter(held_out=0))
    found = run_topics(COUNTS, K + 1, store=tmp_path / "run", cut=CorpusFilter(held_out=0))
    assert np.isfinite(found.model.topics).all()
    assert any("condition number" in text for text in found.warnings), found.warnings
    best = [float(abs(found.model.topics - topic[:, None]).sum(axis=0).min()) for topic in TOPICS.T]
    assert max(best) < 0.3


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    docword(Path("docword.small.txt"), corpus(1500))
    Path("vocab.txt").write_text("\n".join(words(V)))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    asked = ("topics", "docword.small.txt", "vocab.txt", "--topics", "3")
    code, out, err = run(*asked, "--words", "4", "-v")
    table, _, short = out.partition("\n\n")
    assert code == 0 and table.splitlines()[0].split() == ["topic", "weight", "c_npmi", "u_mass", "words"]
    assert len(table.splitlines()) == 4 and "found 3 of 3 topics" in short and "quality: " in err
    assert run(*asked, "--quiet")[1].splitlines()[1:2] == short.splitlines()[1:2]  # without the table
    code, out, _ = run(*asked, "--json")
    facts = json.loads(out)
    assert code == 0 and {"c_npmi", "u_mass", "perplexity", "spectrum", "condition", "skipped"} <= set(facts)
    assert len(facts["topics"]) == 3 and len(facts["topics"][0]["words"]) == 10
    counted = ("--half-length", "0", "--store", "equal", "--json")
    assert json.loads(run(*asked, *counted)[1])["topics"] != facts["topics"]
    spec = RunStore("equal").read_spec()
    assert spec is not None and spec["algorithm"]["half_length"] == 0
    store = "runs/topics-docword"
    assert facts["store"] == str(tmp_path / store)
    assert json.loads(run("resume", store, "--json")[1]) == facts
    assert json.loads(run("inspect", store, "--json")[1])["state"] == "finished"
    assert run("report", store)[0] == 0
    assert "held-out" in Path(store, "report.html").read_text()
    assert run("transform", store, "docword.small.txt", "shares.zarr", "--quiet")[0] == 0
    assert open_source("shares.zarr").shape == (1500, 3)
    assert run("export", store, "o.npz")[0] == 0
    with np.load("o.npz", allow_pickle=False) as arrays:
        assert arrays["topics"].shape == (V, 3) and list(arrays["vocabulary"]) == list(words(V))
    code, _, err = run("resume", f"{store}/decomposition")
    assert code == 2 and f"go on with {tmp_path / store} instead" in err


@pytest.mark.slow
def test_a_job_that_was_not_finished_says_how_to_finish_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    store, write = tmp_path / "run", RunStore.write_part

    def dies(held: RunStore, name: str, *facts: Any) -> None:
        if name == "triples":
            raise KeyboardInterrupt
        write(held, name, *facts)

    monkeypatch.setattr(RunStore, "write_part", dies)
    with pytest.raises(KeyboardInterrupt):
        run_topics(COUNTS[:1500], K, store=store)
    monkeypatch.undo()
    np.savez(tmp_path / "other.npz", a=np.eye(3))
    for arguments in (
        ["transform", str(store), str(tmp_path / "other.npz"), str(tmp_path / "y.zarr")],
        ["report", str(store)],
        ["export", str(store), str(tmp_path / "o.npz")],
    ):
        assert main(arguments) == 2
        assert f"`npmdask resume {store}` finishes" in capsys.readouterr().err
    assert main(["inspect", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "unfinished"
    assert main(["resume", str(store), "--quiet"]) == 0
    np.testing.assert_array_equal(
        read_topics(store).model.topics, run_topics(COUNTS[:1500], K, store=tmp_path / "whole").model.topics
    )
