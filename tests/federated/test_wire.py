"""What a node and a centre say to each other, without either: blocks, announcements, addresses, the token."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.accounting import Budget
from npmdask.core.numerics.random import Rounding
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError
from npmdask.federated.client import NodeConnections, require_address
from npmdask.federated.coordinator import Group, NodesRecipe, _kind_of, make_recipe
from npmdask.federated.protocol import (
    TOKEN,
    TOKENS,
    Announcement,
    Signed,
    UnansweredError,
    decode,
    encode,
    encoded_size,
    node_token,
    tokens_for,
)
from npmdask.privacy.mechanisms import PrivateGaussian
from npmdask.privacy.neighbors import make_relation
from tests.federated.conftest import write_tokens

D, P, L = 12, 3, 5


def private_event(epsilon: float = 1.0, releases: int = L) -> dict[str, Any]:
    mechanism = PrivateGaussian(
        relation=make_relation("record_replace", clip_norm=1.0),
        budget=Budget(epsilon, 1e-6),
        releases=releases,
        rounding=Rounding(grid=2.0**-29, l2=1e-6, l1=1e-5),
    )
    return json.loads(json.dumps(mechanism.event()))


def announcement(name: str = "a", **change: Any) -> Announcement:
    fields: dict[str, Any] = {"kind": "samples", "columns": D, "iteration_rank": P, "max_steps": L, "rows": 10}
    return Announcement(node=name * 32, **(fields | {"mechanism": private_event()} | change))


def parts(*announced: Announcement, k: int = 2, p: int | None = None, max_steps: int | None = None) -> NodesRecipe:
    link = NodeConnections(urls=tuple(f"http://127.0.0.1:{9000 + i}" for i in range(len(announced))), tokens=())
    reader: Any = Group(link=link, announced=announced)
    source = Source(path="", kind=_kind_of(announced), reader=reader, fingerprint="", registered=True)
    return make_recipe(source, k, p, max_steps)


def test_a_block_is_a_npy_file_that_others_read() -> None:
    """Mutant: a header with another order or length."""
    block = np.asfortranarray(np.random.default_rng(0).standard_normal((D, P)))
    body = encode(block)
    assert len(body) == encoded_size((D, P)) == 128 + 8 * D * P
    np.testing.assert_array_equal(np.load(io.BytesIO(body), allow_pickle=False), block)
    np.testing.assert_array_equal(decode(body, (D, P)), block)


def saved(array: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode(np.zeros((D, P)))[:-1],
        encode(np.zeros((D, P))) + b"\0",
        encode(np.zeros((P, D))),
        saved(np.zeros((D, P), np.float32)),
        saved(np.zeros((D, P)).astype(">f8")),
        saved(np.asfortranarray(np.zeros((D, P)))),
        saved(np.array([[{}] * P] * D, object), allow_pickle=True),
        encode(np.full((D, P), np.nan)),
        encode(np.full((D, P), -np.inf)),
        encode(np.zeros((D, P))).replace(b"(12, 3)", b"(99, 9)"),
    ],
)
def test_no_other_body_is_read(body: bytes) -> None:
    """Mutants: the length, the header or finiteness not looked at."""
    with pytest.raises(UnansweredError):
        decode(body, (D, P))


@pytest.mark.parametrize("token", ["", "short", "with spaces in its middle", "x" * 15, "é" * 20])
def test_a_token_that_can_be_guessed_is_refused(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, token)
    with pytest.raises(BadInputError, match="openssl rand"):
        node_token()
    monkeypatch.setenv(TOKEN, "x" * 16)
    assert node_token() == "x" * 16
    assert "x" * 16 not in repr(NodeConnections(urls=("http://a:1",), tokens=(node_token(),)))


A, B = "http://a:1", "https://b:2"


def test_the_coordinator_reads_a_token_for_every_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    monkeypatch.delenv(TOKENS, raising=False)
    with pytest.raises(BadInputError, match=r"NPMDASK_NODE_TOKENS must name a file \(mode 0600\)"):
        tokens_for([A])
    monkeypatch.setenv(TOKENS, str(path))
    with pytest.raises(BadInputError, match="cannot be read"):
        tokens_for([A])
    write_tokens(path, {A: "x" * 16, B + "/": "y" * 16})
    assert tokens_for([B, A]) == ("y" * 16, "x" * 16), "in the order of the nodes"
    with pytest.raises(BadInputError, match="no token for http://c:3"):
        tokens_for([A, "http://c:3"])
    path.chmod(0o640)
    with pytest.raises(RefusedError, match="can be read by other users"):
        tokens_for([A])


@pytest.mark.parametrize(
    ("lines", "error", "said"),
    [
        (f"{A} {'x' * 16}\n{B} {'x' * 16}\n", RefusedError, "same token"),
        (f"{A} {'x' * 15}\n{B} {'y' * 16}\n", BadInputError, "at least 16 printable characters"),
        (f"{A} {'x' * 16} {B}\n", BadInputError, "every line must be"),
        (f"{A}\n", BadInputError, "every line must be"),
        (f"{A} {'é' * 20}\n", BadInputError, "cannot be read"),
    ],
)
def test_a_file_of_tokens_is_refused(
    lines: str, error: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tokens(tmp_path / "tokens", {})
    path.write_text(lines, "utf-8")
    monkeypatch.setenv(TOKENS, str(path))
    with pytest.raises(error, match=said):
        tokens_for([A, B])


def test_a_signature_is_of_everything_in_its_place() -> None:
    """Mutants: parts joined without their lengths; an answer that could pass for a request."""
    asked = Signed("POST", "/jobs/a", "b", "c")
    made = {asked.request("t" * 16), asked.answer("t" * 16, 200, b""), asked.answer("t" * 16, 409, b"")}
    made |= {asked.answer("t" * 16, 200, b"x"), asked.request("u" * 16)}
    for other in (
        Signed("POST", "/jobs/ab", "", "c"),
        Signed("POST", "/jobs/", "ab", "c"),
        Signed("GET", "/jobs/a", "b", "c"),
        Signed("POST", "/jobs/a", "b", "d"),
    ):
        made |= {other.request("t" * 16), other.answer("t" * 16, 200, b"")}
    assert len(made) == 13


@pytest.mark.parametrize("url", ["127.0.0.1:9001", "http://a", "ftp://a:1", "http://me:pw@a:1", "http://a:1/x", "", 7])
def test_an_address_is_host_and_port(url: Any) -> None:
    with pytest.raises(BadInputError, match="HOST:PORT") as refused:
        require_address(url)
    assert "me:pw" not in str(refused.value)


def test_an_address_counts_once() -> None:
    with pytest.raises(BadInputError, match="different addresses"):
        NodeConnections(urls=("http://a:1", "http://a:1"), tokens=())


def test_an_announcement_is_what_was_sent_or_nothing() -> None:
    """Mutants: unknown keys, other formats or wrong types let through."""
    whole = announcement().as_dict()
    assert Announcement.from_dict(json.loads(json.dumps(whole))) == announcement()
    for change in ({"format": 2}, {"more": 1}, {"columns": "3"}, {"rows": 0}, {"kind": "x"}, {"max_steps": True}):
        with pytest.raises(BadInputError):
            Announcement.from_dict(whole | change)
    with pytest.raises(BadInputError):
        Announcement.from_dict([whole])


def test_the_noise_of_a_sum_is_that_of_every_node_together() -> None:
    """s equal nodes: sqrt(s) times the noise of one, over all rows. Mutants: 1, s, or 1 / sqrt(s) times."""
    block = np.linalg.qr(np.random.default_rng(1).standard_normal((D, P)))[0]
    alone = parts(announcement(rows=20))
    four = parts(*(announcement(name, rows=5) for name in "abcd"))
    assert four.scale == alone.scale == 1 / 20
    assert four.noise_stddev(block) == pytest.approx(2 * alone.noise_stddev(block), rel=1e-12)
    louder = parts(announcement("a"), announcement("b", mechanism=private_event(0.1)))
    quiet = announcement("b", mechanism={"mechanism": "none", "private": False})
    assert louder.noise_stddev(block) > 5 * parts(announcement("a"), announcement("c")).noise_stddev(block)
    assert parts(announcement("a"), quiet).noise_stddev(block) == pytest.approx(
        parts(announcement("a")).noise_stddev(block) / 2, rel=1e-12
    )


def test_rows_that_are_not_public_are_not_divided_by() -> None:
    mixed = parts(announcement("a", rows=10), announcement("b", rows=None))
    assert mixed.scale == 1.0
    assert "sums over the nodes" in mixed.statement(1)["values_are"]


@pytest.mark.parametrize(
    ("others", "asked", "said"),
    [
        ({"columns": D + 1}, {}, "differ in columns"),
        ({"iteration_rank": 2}, {}, "differ in iteration_rank"),
        ({"kind": "symmetric"}, {}, "cannot be summed"),
        ({"node": "a" * 32}, {}, "count twice"),
        ({"max_steps": 4, "mechanism": private_event(releases=4)}, {}, "4 and 5 releases"),
        ({}, {"max_steps": 4}, "asks for max_steps = 4"),
        ({}, {"p": 2}, "blocks of 3 columns"),
        ({}, {"k": 4}, "target_rank = 4"),
        ({"mechanism": {"private": True, "mechanism": "private-gaussian"}}, {}, "cannot use"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(others: dict[str, Any], asked: dict[str, Any], said: str) -> None:
    second = replace(announcement("b"), **others)
    with pytest.raises(BadInputError, match=said):
        parts(announcement("a"), second, **asked)


def test_noise_that_does_not_follow_from_the_promise_is_refused() -> None:
    """A node that announces less noise than its budget needs. Mutant: the announced multiplier is believed."""
    less = private_event() | {"multiplier": private_event()["multiplier"] / 2}
    with pytest.raises(RefusedError, match="noise that differs"):
        parts(announcement("a", mechanism=less))


def test_steps_of_nodes_without_noise_are_a_limit() -> None:
    plain = announcement(mechanism={"mechanism": "none", "private": False}, max_steps=30)
    assert parts(plain, max_steps=20).releases is None
    with pytest.raises(BadInputError, match="at most 30"):
        parts(plain, max_steps=31)
