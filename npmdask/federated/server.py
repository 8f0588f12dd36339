"""The HTTP server of a node: one page of public facts, one address that is asked for products, and nothing else.

A request that is not signed with the token of this node gets no answer but that, before its body is read. What is
answered is signed for the request. Refusals of a request are public sentences; of everything else that goes wrong the
caller learns only that it did: what a file, a ledger or a value is called stays here.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npmdask.errors import BadInputError, NpmdaskError, RefusedError, extra
from npmdask.federated.names import NAMES, ORDER, told_of
from npmdask.federated.node import Node
from npmdask.federated.protocol import DIGEST, NONCE, SIGNATURE, Signed, UnansweredError

with extra("nodes"):
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import JSONResponse

REFUSED, UNKNOWN, WRONG_LENGTH, HERE = 409, 401, 413, 500


def make_app(node: Node, token: str) -> FastAPI:
    """Make the application that answers for ``node``, to callers who sign with ``token``."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def answered(signed: Signed, response: Response) -> Response:
        response.headers[SIGNATURE] = signed.answer(token, response.status_code, bytes(response.body))
        return response

    @app.get("/about")
    def about(request: Request) -> Response:
        signed = _signed(request, token)
        return _unsigned_response() if signed is None else answered(signed, JSONResponse(node.announcement.as_dict()))

    @app.get(NAMES)
    @app.get(ORDER)
    def names(request: Request) -> Response:
        signed = _signed(request, token)
        if signed is None:
            return _unsigned_response()
        said = told_of(node.problem.source.labels, signed.path)
        return answered(signed, Response(said, media_type="application/octet-stream"))

    @app.post("/jobs/{job}/steps/{step}")
    async def release(request: Request, job: str, step: str) -> Response:
        signed = _signed(request, token)
        if signed is None:
            return _unsigned_response()
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > node.most_bytes:
            wrong = f"the body must be a block of at most {node.most_bytes} bytes"
            return answered(signed, _sentence(WRONG_LENGTH, wrong))
        body = await request.body()
        if hashlib.sha256(body).hexdigest() != signed.digest:
            return answered(signed, _sentence(REFUSED, "the body is not the one that was signed"))
        number = int(step) if step.isdecimal() and len(step) < 10 else 0
        return answered(signed, await run_in_threadpool(_answer, node, job, number, body))

    return app


def _signed(request: Request, token: str) -> Signed | None:
    """Return what was asked, if the caller has signed it with ``token``."""
    nonce, digest, said = (request.headers.get(name, "") for name in (NONCE, DIGEST, SIGNATURE))
    path = request.scope.get("raw_path", b"").decode("latin-1")
    signed = Signed(request.method, path, nonce, digest)
    right = hmac.compare_digest(said.encode("latin-1", "replace"), signed.request(token).encode())
    return signed if right and nonce else None


def _answer(node: Node, job: str, step: int, body: bytes) -> Response:
    try:
        return Response(node.answer(job, step, body), media_type="application/octet-stream")
    except UnansweredError as error:
        _log(f"not answered: {error}{f' ({error.__cause__})' if error.__cause__ else ''}")
        return _sentence(REFUSED, str(error))
    except NpmdaskError as error:
        _log(str(error))
        return _sentence(HERE, "something is wrong at this node; what, is in its own log, for its owner")


def _unsigned_response() -> Response:
    return _sentence(UNKNOWN, "the request is not signed with the token of this node (its NPMDASK_NODE_TOKEN)")


def _sentence(status: int, sentence: str) -> Response:
    return JSONResponse({"sentence": sentence}, status)


def _log(sentence: str) -> None:
    print(f"npmdask: {sentence}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class NodeCertificate:
    """The TLS certificate of a node (with its chain) and its key, as PEM files."""

    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        try:
            if self.key.stat().st_mode & 0o077:
                raise RefusedError(f"the key {self.key} can be read by others: make a new one, or `chmod 600` it")
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:  # ssl.SSLError, too
            raise BadInputError(
                f"{self.certificate} and {self.key} are not a certificate and its key ({error}): give two PEM files"
            ) from error


def serve(
    node: Node, token: str, host: str, port: int, *, tls: NodeCertificate | None = None, plain_http: bool = False
) -> None:
    """Answer until a signal comes; a request that is being answered is answered first.

    Raises
    ------
    RefusedError
        Other machines could reach the node without TLS, and ``plain_http`` does not say that this is meant.
    """
    if tls is None and not plain_http and not _is_loopback(host):
        raise RefusedError(
            f"other machines can reach this node at {host}, and without TLS its traffic can be read: give --tls-cert "
            "and --tls-key, or --plain-http if a proxy or tunnel encrypts it"
        )
    for concern in node.concerns:
        _log(f"warning: {concern}")
    with socket.create_server((host, port)) as listening:
        where = "{}://{}:{}".format("https" if tls else "http", *listening.getsockname()[:2])
        _log(f"node {node.announcement.node} listens at {where}")
        try:
            _server(make_app(node, token), tls).run(sockets=[listening])
        except KeyboardInterrupt:
            _log("stopped; everything that was released is kept")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server(app: Any, tls: NodeCertificate | None) -> uvicorn.Server:
    """No line of access log (times and sizes of requests), no name or time in the answers."""
    files = {} if tls is None else {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            loop="asyncio",
            http="h11",
            ws="none",
            **files,  # type: ignore[arg-type]
        )
    )
