"""The HTTP door of a node: one page of public facts, one address that is asked for products. Nothing else is said.

A caller without the token gets no answer but that. Refusals of a request are public sentences; of everything else that
goes wrong the caller learns only that it did: what a file, a ledger or a value is called stays here.
"""

from __future__ import annotations

import hmac
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from npmdask.errors import NpmdaskError
from npmdask.nodes.node import Node
from npmdask.nodes.wire import UnansweredError

REFUSED, UNKNOWN, WRONG_LENGTH, HERE = 409, 401, 413, 500


def make_app(node: Node, token: str) -> FastAPI:
    """The application that answers for ``node``, to whoever knows ``token``."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    wanted = f"Bearer {token}".encode()

    def knows(request: Request) -> bool:
        return hmac.compare_digest(request.headers.get("authorization", "").encode("latin-1", "replace"), wanted)

    @app.get("/about")
    def about(request: Request) -> Response:
        return JSONResponse(node.announcement.as_dict()) if knows(request) else _stranger()

    @app.post("/jobs/{job}/steps/{step}")
    async def release(request: Request, job: str, step: str) -> Response:
        if not knows(request):
            return _stranger()
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > node.most_bytes:
            return _sentence(WRONG_LENGTH, f"the body must be a block of at most {node.most_bytes} bytes")
        body = await request.body()
        number = int(step) if step.isdecimal() and len(step) < 10 else 0
        return await run_in_threadpool(_answer, node, job, number, body)

    return app


def _answer(node: Node, job: str, step: int, body: bytes) -> Response:
    try:
        return Response(node.answer(job, step, body), media_type="application/octet-stream")
    except UnansweredError as error:
        _log(f"not answered: {error}{f' ({error.__cause__})' if error.__cause__ else ''}")
        return _sentence(REFUSED, str(error))
    except NpmdaskError as error:
        _log(str(error))
        return _sentence(HERE, "something is wrong at this node; what, is in its own log, for its owner")


def _stranger() -> Response:
    return _sentence(UNKNOWN, "the token is not that of this node's centre (NPMDASK_NODE_TOKEN)")


def _sentence(status: int, sentence: str) -> Response:
    return JSONResponse({"sentence": sentence}, status)


def _log(sentence: str) -> None:
    print(f"npmdask: {sentence}", file=sys.stderr, flush=True)


def serve(node: Node, token: str, host: str, port: int) -> None:
    """Answer until a signal comes; a request that is being answered is answered first."""
    with socket.create_server((host, port)) as listening:
        where = "http://{}:{}".format(*listening.getsockname()[:2])
        _log(f"node {node.announcement.node} listens at {where}")
        try:
            _server(make_app(node, token)).run(sockets=[listening])
        except KeyboardInterrupt:
            _log("stopped; everything that was released is kept")


def _server(app: Any) -> uvicorn.Server:
    """No line of access log (times and sizes of requests), no name or time in the answers."""
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
        )
    )
