"""A node against a centre that is not honest: nothing is released, begun or charged for what it asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.cli.main import main
from npmdask.config import load_config, validate_config
from npmdask.core.storage.bundle import read_bundle
from npmdask.errors import BadInputError, DataWarning, NpmdaskError, RefusedError
from npmdask.federated.node import Node
from npmdask.federated.protocol import UnansweredError, decode, encode
from npmdask.ledger import open_ledger
from tests.federated.conftest import grant, private_tables, records, write_site

D, P, L = 12, 3, 2
JOB = "ab" * 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_site(tmp_path / "node", records(90, D), private_tables(2.0), p=P, steps=L)
    grant(tmp_path / "node", 2.0)
    return tmp_path / "node"


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    with load_config(folder / "node.toml").node() as opened:
        yield opened


def orthonormal(seed: int = 0, p: int = P) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((D, p)))[0]


def huge_row() -> np.ndarray:
    block = orthonormal()
    block[0] *= 1e6
    return block


BAD_BLOCKS = {
    "a huge row": (huge_row(), "not orthonormal"),
    "the same column thrice": (np.repeat(orthonormal()[:, :1], P, axis=1), "not orthonormal"),
    "zeros": (np.zeros((D, P)), "not orthonormal"),
    "a little longer": (orthonormal() * (1 + 1e-7), "not orthonormal"),
    "overflow": (np.full((D, P), 1e300), "not orthonormal"),
    "another shape": (orthonormal(p=P - 1), "not a .npy file"),
    "not finite": (np.full((D, P), np.nan), "not finite"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD_BLOCKS)
def test_a_block_that_is_not_orthonormal_is_not_multiplied(name: str, node: Node, folder: Path) -> None:
    """Mutants: the check left out, or a NaN that passes it."""
    block, said = BAD_BLOCKS[name]
    with pytest.raises(UnansweredError, match=said):
        node.answer(JOB, 1, encode(block))
    assert not open_ledger(folder / "ledger.sqlite").status("here").runs


@pytest.mark.slow
@pytest.mark.parametrize("step", [-1, 0, L + 1, 10**9])
def test_no_step_beyond_those_that_the_owner_allows(step: int, node: Node, folder: Path) -> None:
    with pytest.raises(UnansweredError, match="allows steps 1 to 2"):
        node.answer(JOB, step, encode(orthonormal()))
    assert not (folder / "runs" / "node" / "jobs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("job", ["", "../../outside", "AB" * 16, JOB + "0", JOB[:-1] + "/"])
def test_a_job_is_no_path(job: str, node: Node) -> None:
    with pytest.raises(UnansweredError, match="32 hexadecimal"):
        node.answer(job, 1, encode(orthonormal()))


@pytest.mark.slow
def test_a_step_is_released_once_in_its_turn_and_for_one_block(node: Node, folder: Path) -> None:
    """Mutants: fresh noise for a repeated request; another block for a released step; steps left out."""
    with pytest.raises(UnansweredError, match="not the next one: 0"):
        node.answer(JOB, 2, encode(orthonormal()))
    first = node.answer(JOB, 1, encode(orthonormal(1)))
    assert node.answer(JOB, 1, encode(orthonormal(1))) == first
    with pytest.raises(UnansweredError, match="for another block"):
        node.answer(JOB, 1, encode(orthonormal(2)))
    second = node.answer(JOB, 2, encode(orthonormal(2)))
    assert second != first
    store = folder / "runs" / "node" / "jobs" / JOB
    assert not (store / "entropy").exists(), "all is released: the key is destroyed"
    assert store.stat().st_mode & 0o077 == 0
    assert node.answer(JOB, 1, encode(orthonormal(1))) == first
    assert node.answer(JOB, 2, encode(orthonormal(2))) == second
    with pytest.raises(UnansweredError, match="for another block"):
        node.answer(JOB, 2, encode(orthonormal(3)))
    status = open_ledger(folder / "ledger.sqlite").status("here")
    assert len(status.runs) == 1 and status.left_epsilon < 1e-3


@pytest.mark.slow
def test_a_node_that_was_started_again_gives_the_same_bytes(folder: Path) -> None:
    """Mutant: releases in memory only, so that a restart makes them anew or refuses."""
    config = load_config(folder / "node.toml")
    with config.node() as node:
        first = node.answer(JOB, 1, encode(orthonormal(1)))
        name = node.announcement.node
    with config.node() as node:
        assert node.announcement.node == name
        assert node.answer(JOB, 1, encode(orthonormal(1))) == first
        second = node.answer(JOB, 2, encode(orthonormal(2)))
    with config.node() as node:
        assert node.answer(JOB, 2, encode(orthonormal(2))) == second


@pytest.mark.slow
def test_what_was_begun_is_done_again_bit_for_bit_and_for_no_other_block(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the digest and the store. Mutant: noise that is drawn anew would be a second release."""
    import npmdask.federated.node as module

    config, kept = load_config(folder / "node.toml"), []

    def dies(self: Any, name: str, arrays: Any, meta: Any) -> None:
        kept.append(arrays["released"])
        raise KeyboardInterrupt

    with config.node() as node, monkeypatch.context() as patch:
        patch.setattr(module.RunStore, "write_part", dies)
        with pytest.raises(KeyboardInterrupt):
            node.answer(JOB, 1, encode(orthonormal(1)))
    with config.node() as node, pytest.raises(RefusedError):
        node.answer(JOB, 1, encode(orthonormal(2)))
    with config.node() as node:
        again = node.answer(JOB, 1, encode(orthonormal(1)))
    np.testing.assert_array_equal(decode(again, (D, P)), kept[0])


@pytest.mark.slow
def test_a_second_job_is_not_in_the_budget(node: Node, folder: Path) -> None:
    """Its sentence tells nothing of the ledger. Mutant: the budget asked for at the end."""
    node.answer(JOB, 1, encode(orthonormal()))
    for _ in range(2):
        with pytest.raises(UnansweredError) as caught:
            node.answer("cd" * 16, 1, encode(orthonormal()))
        assert str(caught.value) == "the privacy budget of this node does not allow another job; its owner can see why"
    assert len(open_ledger(folder / "ledger.sqlite").status("here").runs) == 1


@pytest.mark.slow
def test_jobs_that_are_refused_leave_nothing_behind(node: Node, folder: Path) -> None:
    """However many are asked for. Mutants: the store made before the budget is looked at, or before the turn is."""
    node.answer(JOB, 1, encode(orthonormal()))
    for number in range(20):
        for step, said in ((1, "budget"), (2, "not the next one")):
            with pytest.raises(UnansweredError, match=said):
                node.answer(f"{number:032x}", step, encode(orthonormal()))
    assert [path.name for path in (folder / "runs" / "node" / "jobs").iterdir()] == [JOB]
    assert node.answer(JOB, 1, encode(orthonormal())), "and the job that is paid for goes on"


@pytest.mark.slow
def test_a_limit_that_was_changed_in_the_middle_of_a_job_is_refused(folder: Path) -> None:
    """Mutant: a job that goes on with other noise than it was charged for."""
    with load_config(folder / "node.toml").node() as node:
        node.answer(JOB, 1, encode(orthonormal(1)))
    file = folder / "node.toml"
    file.write_text(file.read_text().replace("max_steps = 2", "max_steps = 3"))
    with load_config(file).node() as node, pytest.raises(RefusedError, match="differ"):
        node.answer(JOB, 2, encode(orthonormal(2)))


@pytest.mark.slow
def test_what_is_kept_is_what_was_answered(node: Node, folder: Path) -> None:
    block = orthonormal(4)
    answer = node.answer(JOB, 1, encode(block))
    arrays, _ = read_bundle(folder / "runs" / "node" / "jobs" / JOB / "releases" / "000001")
    np.testing.assert_array_equal(arrays["block"], block)
    np.testing.assert_array_equal(arrays["released"], decode(answer, (D, P)))


@pytest.mark.slow
def test_the_number_of_rows_is_announced_only_if_it_is_public(tmp_path: Path) -> None:
    """Mutant: rows announced for record_add_remove, whose neighbours differ in their number."""
    for relation, rows in (("record_replace", 90), ("record_add_remove", None)):
        folder = tmp_path / relation
        write_site(folder, records(90, D), private_tables(2.0, relation), p=P, steps=L)
        with load_config(folder / "node.toml").node() as node:
            said = json.dumps(node.announcement.as_dict())
            assert node.announcement.rows == rows
            assert (90 in node.announcement.as_dict().values()) == (rows is not None)
            assert node.problem.source.fingerprint not in said


@pytest.mark.slow
def test_an_exact_answer_must_be_asked_for(folder: Path) -> None:
    """Mutant: a forgotten [privacy] table gives the data away."""
    text = (folder / "node.toml").read_text()
    plain = text.replace(private_tables(2.0), "")
    for tables, error, said in (
        ("", RefusedError, "must say so"),
        ("[mechanism]\nstddev = 0.0\n", RefusedError, "must say so"),
        ('[mechanism]\nname = "gaussian"\nstddev = 1.0\n', RefusedError, "must say so"),
    ):
        (folder / "node.toml").write_text(plain + tables)
        with pytest.raises(error, match=said):
            load_config(folder / "node.toml").node()
    (folder / "node.toml").write_text(plain + '[mechanism]\nname = "none"\n')
    with pytest.warns(DataWarning, match="privacy budget"):
        exact = load_config(folder / "node.toml").node()
    with exact as node:
        block, rows = orthonormal(), records(90, D)
        product = decode(node.answer(JOB, 1, encode(block)), (D, P))
        np.testing.assert_allclose(product, rows.T @ (rows @ block), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("max_steps = 2\n", "", "max_steps"),
        ("target_rank = 2", "target_rank = 0.5", "whole numbers"),
        ('path = "a.zarr"', 'path = "a.zarr"\ncenter = true', "center or scale"),
        ('path = "a.zarr"', 'nodes = ["http://127.0.0.1:1"]', "data of its own"),
        ('path = "a.zarr"', "", "either path"),
    ],
)
def test_what_a_node_cannot_be(old: str, new: str, said: str, folder: Path) -> None:
    file = folder / "node.toml"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(NpmdaskError, match=said):
        load_config(file).node()


def test_path_and_nodes_exclude_each_other() -> None:
    both = {"path": "a", "nodes": ["http://127.0.0.1:1"]}
    with pytest.raises(BadInputError, match="not both"):
        validate_config({"source": both, "algorithm": {"target_rank": 1}})


@pytest.mark.slow
def test_a_node_may_hold_a_symmetric_matrix(tmp_path: Path) -> None:
    """Balcan et al.'s own setting: one entry of A_i (and its mirror image) is protected. Mutant: rows announced."""
    rows, folder = records(90, D), tmp_path / "node"
    matrix = rows.T @ rows / np.abs(rows.T @ rows).max()
    write_site(folder, matrix, private_tables(8.0, "symmetric_entry"), p=P, steps=1, kind="symmetric")
    grant(folder, 8.0, "symmetric_entry")
    block = orthonormal()
    with load_config(folder / "node.toml").node() as node:
        assert (node.announcement.kind, node.announcement.rows) == ("symmetric", None)
        noise = decode(node.answer(JOB, 1, encode(block)), (D, P)) - matrix @ block
        level = node.problem.mechanism.noise_stddev(block)  # type: ignore[attr-defined]
    assert 0.3 * level < noise.std() < 2 * level  # 36 samples: 6 sigma


def test_a_matrix_of_which_an_entry_is_protected_is_not_distributed(tmp_path: Path) -> None:
    write_site(tmp_path / "node", records(90, D), private_tables(2.0, "entry"), p=P, steps=2, kind="matrix")
    with pytest.raises(RefusedError, match="not supported for nodes"):
        load_config(tmp_path / "node" / "node.toml").node()


def test_a_key_that_is_none_is_answered_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPMDASK_NODE_TOKEN", "a" * 40)
    (tmp_path / "c.toml").write_text('[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 4\n[run]\nstore = "out"\n')
    assert main(["node", str(tmp_path / "c.toml"), "--set", "run.memroy=1GiB"]) == 2
    said = capsys.readouterr()
    assert "did you mean 'run.memory'" in said.err and not said.out
