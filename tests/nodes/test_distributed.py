"""Real nodes and a centre: what crosses, what comes out, and how much noise is in it."""

from __future__ import annotations

import json
import math
import re
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from benchmarks.wiretap import Exchange, tapped
from npmdask.cli import main
from npmdask.diagnostics import max_sin_theta
from npmdask.errors import BadInputError, RefusedError
from npmdask.ledger import open_ledger
from npmdask.nodes.wire import TOKEN, decode, encode
from npmdask.operators.exact import prepare
from npmdask.report import summary, write_report
from npmdask.storage.bundle import read_bundle
from npmdask.theory.private import dist_comm
from tests.conftest import write_zarr
from tests.nodes.conftest import SECRET, Site, Sites, centre_file, records, run_centre

D, P, L, S = 40, 4, 3, 3


def parsed(message: bytearray) -> tuple[str, dict[str, str], bytes]:
    head, _, body = bytes(message).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    return first, {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}, body


def releases_of(site: Site) -> list[dict[str, np.ndarray]]:
    (job,) = (site.folder / "runs" / "node" / "jobs").iterdir()
    return [read_bundle(path)[0] for path in sorted((job / "releases").iterdir())]


@pytest.mark.slow
def test_nothing_but_blocks_and_noisy_products_crosses(sites: Sites, tmp_path: Path) -> None:
    """Every byte is accounted for, numbers are exactly 2 L s p d, and each node's own noise is in its answers.

    Mutants: exact products sent; noise of variance / s in each node; a further field or header in a message.
    """
    rows = np.array_split(records(600, D), S)
    made = sites(rows, epsilon=3.0, p=P, steps=L)
    with ExitStack() as stack:
        taps = [stack.enter_context(tapped(site.port)) for site in made]
        solution = run_centre(tmp_path / "centre", [tap.url for tap in taps])
    levels, blocks = [], []
    for site, part, tap in zip(made, rows, taps, strict=True):
        asked = [_block(e) for e in tap.exchanges if e.asked.startswith(b"POST")]
        about = [e for e in tap.exchanges if not e.asked.startswith(b"POST")]
        assert len(asked) == L and len(about) == 1
        _require_public(about[0])
        noise = [answer - part.T @ (part @ prepare(x)) for x, answer in asked]
        levels.append(float(np.std(noise)))
        blocks.append([x for x, _ in asked])
        for (x, answer), kept in zip(asked, releases_of(site), strict=True):
            np.testing.assert_array_equal(x, kept["block"])
            np.testing.assert_array_equal(answer, kept["released"])
    np.testing.assert_array_equal(blocks[0], blocks[1])
    np.testing.assert_array_equal(blocks[0], blocks[2])
    _require_noise(solution, levels, 600)
    _require_counts(solution, taps)


def _block(exchange: Exchange) -> tuple[np.ndarray, np.ndarray]:
    """X and the product; and nothing else in the two messages."""
    first, headers, body = parsed(exchange.asked)
    assert re.fullmatch(r"POST /jobs/[0-9a-f]{32}/steps/[1-3] HTTP/1.1", first)
    assert set(headers) == {"host", "accept-encoding", "content-length", "authorization"}
    status, said, answer = parsed(exchange.answered)
    assert status == "HTTP/1.1 200 OK" and set(said) == {"content-length", "content-type"}
    return decode(body, (D, P)), decode(answer, (D, P))


def _require_public(exchange: Exchange) -> None:
    _, _, body = parsed(exchange.answered)
    names = {"format", "node", "kind", "columns", "iteration_rank", "max_steps", "rows", "mechanism"}
    assert set(json.loads(body)) == names


def _require_noise(solution: npmdask.Solution, levels: list[float], n: int) -> None:
    """600 entries of noise a node: their deviation is known to 3 %, and 1 / sqrt(3) of it is 14 sigma away."""
    assert solution.statement is not None
    node = solution.statement["nodes"][0]
    one = node["mechanism"]["multiplier"] * math.sqrt(2)  # sensitivity of record_replace, clip_norm 1
    for level in levels:
        assert abs(level / one - 1) < 0.2
    assert solution.statement["noise_stddev"] == pytest.approx([math.sqrt(S) * one / n] * L, rel=1e-3)


def _require_counts(solution: npmdask.Solution, taps: list[Any]) -> None:
    assert solution.statement is not None
    said = solution.statement["communication"]
    point, broadcast = (dist_comm(S, P, D, L, model).value for model in ("point_to_point", "broadcast"))
    assert said["numbers"] == said["numbers_by_theory"] == point == 2 * L * S * P * D
    assert said["numbers_with_broadcast"] == broadcast == L * (S + 1) * P * D
    posts = [e for tap in taps for e in tap.exchanges if e.asked.startswith(b"POST")]
    assert said["bytes_sent"] == sum(len(parsed(e.asked)[2]) for e in posts) == L * S * (128 + 8 * D * P)
    assert said["bytes_received"] == sum(len(parsed(e.answered)[2]) for e in posts)


@pytest.mark.slow
def test_statement_report_and_ledgers_of_a_private_run(sites: Sites, tmp_path: Path, capsys: Any) -> None:
    """Each node pays once, from its own ledger; the page and the JSON say who promised what."""
    made = sites(np.array_split(records(500, 20), 2), epsilon=2.0, steps=2)
    file = centre_file(tmp_path / "centre", [site.url for site in made])
    assert main(["run", str(file), "--json", "--quiet"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["outcome"] == "released" and "each of 2 nodes promises epsilon = 2" in facts["sentence"]
    for site, node in zip(made, facts["statement"]["nodes"], strict=True):
        assert (node["url"], node["epsilon"], node["rows"]) == (site.url, 2.0, 250)
        assert 1.999 < node["epsilon_spent"] <= 2.0 and 0 < node["mu"] < 1
        status = open_ledger(site.folder / "ledger.sqlite").status("here")
        assert len(status.runs) == 1 and status.spent_epsilon <= 2.0
    page = write_report(facts["store"]).read_text()
    assert made[0].url in page and "bytes_received" in page
    assert main(["resume", facts["store"], "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["values"] == facts["values"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "matrix", "symmetric"])
def test_without_noise_it_is_the_run_on_all_data_together(kind: str, sites: Sites, tmp_path: Path) -> None:
    """Mutants: a mean of means instead of the mean of all rows; the answer of one node; a node left out."""
    rows = records(700, D, 5)
    parts = [rows[:100], rows[100:350], rows[350:]]
    if kind == "symmetric":
        parts = [part.T @ part for part in parts]
    whole = sum(parts) if kind == "symmetric" else rows
    made = sites(parts, epsilon=None, p=6, steps=150, kind=kind)
    found = run_centre(tmp_path / "centre", [site.url for site in made])
    central = npmdask.top_k(
        write_zarr(tmp_path / "whole.zarr", np.asarray(whole)), 2, kind=kind, iteration_rank=6, algorithm="power"
    )
    assert found.converged and found.steps == central.steps
    assert max_sin_theta(found.basis, central.basis) < 1e-12
    np.testing.assert_allclose(found.values, central.values, rtol=1e-12)
    np.testing.assert_allclose(found.residual_norms, central.residual_norms, atol=1e-12)
    assert summary(found)["statement"]["communication"]["numbers"] == 2 * found.steps * 3 * 6 * D


@pytest.mark.slow
def test_it_stops_by_what_is_left_over_too(sites: Sites, tmp_path: Path) -> None:
    """Without a pass more: from the products that the nodes sent. Mutant: the rule of a run with its own data only."""
    rows = np.random.default_rng(5).standard_normal((700, D)) * np.arange(1, D + 1) ** -0.25
    made = sites([rows[:300], rows[300:]], epsilon=None, p=6, steps=150)
    found = run_centre(tmp_path / "centre", [site.url for site in made], "[stop]\nlow_rank_tol = 0.2\n")
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    rest = np.eye(D) - found.basis @ found.basis.T
    assert found.outcome.name == "low_rank"
    assert np.linalg.norm(rest @ (vectors * values) @ vectors.T @ rest, 2) <= 1.2 * values[-3]


@pytest.mark.slow
def test_a_stranger_is_told_nothing(sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: the token not asked for, compared by its beginning, or asked for after the body was read."""
    (site,) = sites([records(80, 12)], epsilon=2.0, p=3, steps=1)
    body = encode(np.eye(12, 3))
    for headers in (
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {SECRET[:-1]}"},
        {"Authorization": SECRET},
    ):
        for method, path in (("GET", "/about"), ("POST", f"/jobs/{'ab' * 16}/steps/1")):
            status, said = http(site, method, path, body, headers)
            assert status == 401 and set(json.loads(said)) == {"sentence"} and b"NPMDASK_NODE_TOKEN" in said
    mine = {"Authorization": f"Bearer {SECRET}"}
    for path in ("/docs", "/openapi.json", "/", "/jobs/x"):
        assert http(site, "GET", path, b"", mine)[0] in (404, 405)
    assert http(site, "POST", f"/jobs/{'ab' * 16}/steps/1", body + b"x" * 10, mine)[0] == 413
    assert http(site, "POST", f"/jobs/{'ab' * 16}/steps/one", body, mine)[0] == 409
    assert not open_ledger(site.folder / "ledger.sqlite").status("here").runs
    monkeypatch.setenv(TOKEN, "another-token-of-some-length")
    with pytest.raises(RefusedError, match="token is not that"):
        run_centre(tmp_path / "centre", [site.url])
    monkeypatch.setenv(TOKEN, SECRET)
    with pytest.raises(BadInputError, match="max_steps = 2 is asked for"):
        run_centre(tmp_path / "centre", [site.url], "max_steps = 2\n")
    assert run_centre(tmp_path / "centre", [site.url]).outcome.name == "released"
    with pytest.raises(RefusedError, match="does not allow another job"):
        run_centre(tmp_path / "second", [site.url])


def http(site: Site, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", site.port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
