"""Real nodes and a centre: what crosses, what comes out, and how much noise is in it."""

from __future__ import annotations

import json
import math
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from benchmarks.wiretap import Exchange, tapped
from npmdask.cli.main import main
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.core.storage.bundle import read_bundle
from npmdask.errors import BadInputError, RefusedError
from npmdask.federated import coordinator
from npmdask.federated.coordinator import open_nodes
from npmdask.federated.protocol import DIGEST, NONCE, SIGNATURE, TOKENS, decode, encode
from npmdask.ledger import open_ledger
from npmdask.manage.report import summary, write_report
from npmdask.privacy.exact_sums import on_grid
from npmdask.privacy.matrix_release import likely_sine_of_release
from npmdask.theory.private import dist_comm
from tests.conftest import often, write_zarr
from tests.federated.conftest import (
    ROOT,
    Site,
    Sites,
    centre_file,
    records,
    run_centre,
    signed_headers,
    write_tokens,
)
from tests.remote.certificates import Authority

D, P, L, S = 40, 4, 3, 3
SIGNED = {name.lower() for name in (NONCE, DIGEST, SIGNATURE)}


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
        write_tokens(tmp_path / "tokens", {tap.url: site.token for tap, site in zip(taps, made, strict=True)})
        solution = run_centre(tmp_path / "centre", [tap.url for tap in taps])
    levels, blocks = [], []
    for site, part, tap in zip(made, rows, taps, strict=True):
        asked = [_block(e) for e in tap.exchanges if e.asked.startswith(b"POST")]
        about = [e for e in tap.exchanges if not e.asked.startswith(b"POST")]
        assert len(asked) == L and len(about) == 2
        _require_public(about[0])
        assert parsed(about[1].answered)[2] == b'{"names": [], "sorted": []}', "columns have no names here"
        noise = [answer - part.T @ (part @ on_grid(x)) for x, answer in asked]
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
    assert set(headers) == {"host", "accept-encoding", "content-length", *SIGNED}
    status, said, answer = parsed(exchange.answered)
    assert status == "HTTP/1.1 200 OK" and set(said) == {"content-length", "content-type", SIGNATURE.lower()}
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
def test_columns_of_nodes_are_compared_by_name(sites: Sites, tmp_path: Path) -> None:
    """In another order they are put in order, of private nodes too; no name crosses. Mutants: columns by position; an
    order that is not undone in the answer; names in the place of their digest.
    """
    x = records(400, 4)
    names = ["height,weight,age,income", "age,income,height,weight", "height,mass,age,income", ""]
    parts = [x[:200], x[200:][:, [2, 3, 0, 1]], x[200:], x[200:]]
    made = sites(parts, epsilon=None, p=4, steps=100, names=names)
    with ExitStack() as stack:
        taps = [stack.enter_context(tapped(site.port)) for site in made]
        write_tokens(tmp_path / "tokens", {tap.url: site.token for tap, site in zip(taps, made, strict=True)})
        urls = [tap.url for tap in taps]
        solution = run_centre(tmp_path / "centre", urls[:2])
        with pytest.raises(BadInputError, match=f"{urls[2]} and {urls[0]} have columns of other names"):
            run_centre(tmp_path / "other", [urls[0], urls[2]])
        said = open_nodes([urls[0], urls[3]]).notes
        crossed = [bytes(e.answered) + bytes(e.asked) for tap in taps for e in tap.exchanges]
    wanted, vectors = np.linalg.eigh(x.T @ x / 400)
    np.testing.assert_allclose(solution.values, wanted[:-3:-1], rtol=1e-9)
    assert max_sin_theta(solution.basis, vectors[:, :-3:-1]) < 1e-6
    assert said == (f"the columns of {urls[3]} were taken by position, because they have no names there",)
    assert not any(name.encode() in each for each in crossed for name in ("height", "weight", "mass", "income"))


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
def test_what_is_said_of_momentum_counts_what_it_damps(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of data that lie here. Mutant: the answer of a coordinator takes a run with momentum for one without."""
    made = sites(np.array_split(records(500, 20), 2), epsilon=2.0, steps=3)
    seen = list[Any]()

    def watched(state: Any, p: int, k: int, momentum: Any) -> float:
        seen.append(momentum)
        return likely_sine_of_release(state, p, k, momentum)

    monkeypatch.setattr(coordinator, "likely_sine_of_release", watched)
    found = run_centre(
        tmp_path / "centre", [site.url for site in made], 'name = "power"\noptions = { momentum = "auto" }\n'
    )
    assert found.statement is not None and 0 < found.statement["predicted_error"] <= 1 and seen == ["auto"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", often(["samples", "matrix", "symmetric"], 0))
def test_without_noise_it_is_the_run_on_all_data_together(
    kind: str, sites: Sites, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutants: a mean of means instead of the mean of all rows; the answer of one node; a node left out."""
    rows = records(700, D, 5)
    parts = [rows[:100], rows[100:350], rows[350:]]
    if kind == "symmetric":
        parts = [part.T @ part for part in parts]
    whole = sum(parts) if kind == "symmetric" else rows
    made = sites(parts, epsilon=None, p=6, steps=150, kind=kind)
    urls = [site.url for site in made]
    found = run_centre(tmp_path / "centre", urls)
    assert main(["run", str(centre_file(tmp_path / "command", urls)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["values"] == found.values.tolist()
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
def test_a_stranger_gets_no_answer(sites: Sites, tmp_path: Path) -> None:
    """Mutants: no signature asked for; method, path, body or nonce not signed; checked after the body was read."""
    site, other = sites([records(80, 12), records(80, 12, 1)], epsilon=2.0, p=3, steps=1)
    body, job = encode(np.eye(12, 3)), f"/jobs/{'ab' * 16}/steps/1"
    for method, path in (("GET", "/about"), ("GET", "/names"), ("GET", "/names/order"), ("POST", job)):
        right = signed_headers(site.token, method, path, body)
        elsewhere = "GET" if method == "POST" else "POST"
        for headers in (
            {},
            {"Authorization": f"Bearer {site.token}"},
            signed_headers(other.token, method, path, body),
            signed_headers(site.token, elsewhere, path, body),
            signed_headers(site.token, method, path + "0", body),
            right | {NONCE: "1" * 32},
            right | {DIGEST: "0" * 64},
            right | {SIGNATURE: right[SIGNATURE][:-1]},
            {name: value for name, value in right.items() if name != SIGNATURE},
        ):
            status, said = http(site, method, path, body, headers)
            assert status == 401 and set(json.loads(said)) == {"sentence"} and b"NPMDASK_NODE_TOKEN" in said
    status, said = http(site, "POST", job, encode(np.eye(12, 3)[::-1]), signed_headers(site.token, "POST", job, body))
    assert status == 409 and b"not the one that was signed" in said
    for path in ("/docs", "/openapi.json", "/", "/jobs/x"):
        assert http(site, "GET", path, b"", signed_headers(site.token, "GET", path, b""))[0] in (404, 405)
    longer, odd = body + b"x" * 10, job[:-1] + "one"
    assert http(site, "POST", job, longer, signed_headers(site.token, "POST", job, longer))[0] == 413
    assert http(site, "POST", odd, body, signed_headers(site.token, "POST", odd, body))[0] == 409
    assert not open_ledger(site.folder / "ledger.sqlite").status("here").runs
    assert not (site.folder / "runs" / "node" / "jobs").exists()


@pytest.mark.slow
def test_every_node_has_its_own_token(sites: Sites, tmp_path: Path) -> None:
    """Mutant: one token that opens all nodes."""
    site, other = sites([records(80, 12), records(80, 12, 1)], epsilon=2.0, p=3, steps=1)
    write_tokens(tmp_path / "tokens", {site.url: other.token, other.url: site.token})
    with pytest.raises(RefusedError, match="not signed with the token of this node"):
        run_centre(tmp_path / "centre", [site.url, other.url])
    write_tokens(tmp_path / "tokens", {site.url: site.token})
    with pytest.raises(
        BadInputError, match="calibrated their noise for 1 releases, and the coordinator asks for max_steps = 2"
    ):
        run_centre(tmp_path / "centre", [site.url], "max_steps = 2\n")
    assert run_centre(tmp_path / "centre", [site.url]).outcome.name == "released"
    with pytest.raises(RefusedError, match="does not allow another job"):
        run_centre(tmp_path / "second", [site.url])


@pytest.mark.slow
@pytest.mark.parametrize("how", often(["numbers", "status", "another answer", "no signature"], 0, 2))
def test_an_answer_that_was_changed_on_the_way_is_refused(how: str, sites: Sites, tmp_path: Path) -> None:
    """Mutants: the answer not signed, or signed without its status, its body or the request that it belongs to."""
    (site,) = sites([records(80, 12)], epsilon=3.0, p=3, steps=3)
    first: list[bytes] = []

    def meddle(asked: bytes, answer: bytes) -> bytes:
        if not asked.startswith(b"POST"):
            return answer
        first.append(answer)
        return {
            "numbers": answer[:-1] + bytes([answer[-1] ^ 1]),
            "status": answer.replace(b"200 OK", b"409 Conflict", 1),
            "another answer": first[0],  # a right one, of the step before
            "no signature": re.sub(rb"(?i)x-npmdask-signature: \w+\r\n", b"", answer),
        }[how]

    with between(site.port, meddle) as url:
        write_tokens(tmp_path / "tokens", {url: site.token})
        with pytest.raises(RefusedError, match="is not signed for this request"):
            run_centre(tmp_path / "centre", [url])
    assert len(first) == (2 if how == "another answer" else 1)
    write_tokens(tmp_path / "tokens", {site.url: site.token})
    assert run_centre(tmp_path / "centre", [site.url]).outcome.name == "released", "and it goes on, charged once"
    assert len(open_ledger(site.folder / "ledger.sqlite").status("here").runs) == 1


@contextmanager
def between(port: int, meddle: Callable[[bytes, bytes], bytes]) -> Iterator[str]:
    """The address of a proxy that hands on what ``meddle(request, answer)`` makes of every answer."""

    def serve(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                with near, socket.create_connection(("127.0.0.1", port)) as far:
                    asked = message(near)
                    far.sendall(asked)
                    near.sendall(meddle(asked, message(far)))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def message(source: socket.socket) -> bytes:
    """One message of HTTP: its head, and as much as it says that follows."""
    held = b""
    while b"\r\n\r\n" not in held:
        held += source.recv(1 << 16)
    head, _, body = held.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    while length and len(body) < int(length[1]):
        body += source.recv(1 << 16)
    return head + b"\r\n\r\n" + body


@pytest.mark.slow
def test_a_node_with_a_certificate(sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: the certificate not looked at; a name that is not compared; an hour of patience with a wrong one."""
    ours = Authority("ours").write(tmp_path / "ours", address="127.0.0.1")
    another = Authority("another").write(tmp_path / "another", address="127.0.0.1")
    options = ("--tls-cert", str(ours / "cert.pem"), "--tls-key", str(ours / "key.pem"))
    (site,) = sites([records(80, 12)], epsilon=2.0, p=3, steps=1, options=options)
    assert site.url.startswith("https://")
    monkeypatch.setenv("SSL_CERT_FILE", str(another / "ca.pem"))
    with pytest.raises(
        RefusedError, match=r"no trusted TLS connection .*SSL_CERT_FILE; if the node has none, start it with --tls-cert"
    ):
        run_centre(tmp_path / "centre", [site.url], patience=3600)
    monkeypatch.setenv("SSL_CERT_FILE", str(ours / "ca.pem"))
    other_name = site.url.replace("127.0.0.1", "localhost")
    write_tokens(tmp_path / "tokens", {site.url: site.token, other_name: site.token})
    with pytest.raises(RefusedError, match="no trusted TLS connection"):
        run_centre(tmp_path / "centre", [other_name], patience=3600)
    with tapped(site.port) as tap:  # sees nothing but noise
        write_tokens(tmp_path / "tokens", {tap.url.replace("http", "https"): site.token})
        found = run_centre(tmp_path / "centre", [tap.url.replace("http", "https")])
    assert found.outcome.name == "released"
    crossed = b"".join(exchange.asked + exchange.answered for exchange in tap.exchanges)
    assert len(crossed) > 1000 and not any(word in crossed for word in (b"NUMPY", b"HTTP/1.1", b"Npmdask"))


def http(site: Site, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", site.port, timeout=120)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.slow
def test_the_page_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two files and its three commands as printed, but for the port, the token and the number of nodes."""
    text = (ROOT / "docs" / "howto" / "distributed.md").read_text()
    node, coordinator = re.findall(r"^```toml\n(.*?)^```", text, re.S | re.M)
    grant, serve = re.findall(r"^npmdask (ledger grant .*|node .*?) *(?:#.*)?$", text, re.M)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPMDASK_LEDGER", str(tmp_path / "ledger.sqlite"))
    np.save("patients.npy", records(20000, 20))
    assert main(["ingest", "patients.npy", "patients.zarr", "--quiet"]) == 0
    assert main(shlex.split(grant)) == 0
    Path("node.toml").write_text(node)
    assert serve == "node node.toml --port 9001", "what a site starts"
    site = Site(tmp_path)
    try:
        site.start()
        urls, one = re.findall(r"nodes = (\[.*\])", coordinator)[0], f'["{site.url}"]'
        Path("coordinator.toml").write_text(coordinator.replace(urls, one))
        monkeypatch.setenv(TOKENS, str(write_tokens(tmp_path / "tokens", {site.url: site.token})))
        assert "`npmdask run coordinator.toml`" in text
        assert main(["run", "coordinator.toml", "--quiet"]) == 0
    finally:
        site.kill()
