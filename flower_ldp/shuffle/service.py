"""The analyzer behind HTTPS: an application for uvicorn, which answers one server alone.

=========================  ======================================
``POST /runs/RUN/keys``    a new key, signed, for a round of the run
``POST /sums``             the sums of a batch
=========================  ======================================

A request without the token is answered by 401 before anything of its body is read. A refusal is a
409 with ``code`` and ``detail``. Other errors are logged here, and answered by a constant 500.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from flower_ldp.errors import needed
from flower_ldp.shuffle.analyzer import ReportAnalyzer
from flower_ldp.shuffle.batch import MOST_BYTES, UNKNOWN_KEY, AnalyzerRefusal, Batch

with needed("the analyzer's service needs Starlette and uvicorn", "shuffle"):
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

_log = logging.getLogger("flower_ldp")
_MOST_RUN = 1 << 64
#: Seconds from one look for old keys to the next: a server that died sends no request.
_ERASE_EVERY = 600.0


def application(analyzer: ReportAnalyzer, token: str) -> Starlette:
    """Return the service of an analyzer for who has the token."""
    expected = f"Bearer {token}".encode("latin-1")

    def guarded(
        answer: Callable[[Request], Awaitable[bytes]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, expected):
                return Response("no token, or another one", 401)
            try:
                return Response(await answer(request), media_type="application/octet-stream")
            except AnalyzerRefusal as refusal:
                _log.warning("refused (%s): %s", refusal.code, refusal)
                return JSONResponse({"code": refusal.code, "detail": str(refusal)}, 409)
            except _TooLongError:
                return Response(f"a batch has at most {MOST_BYTES} bytes", 413)
            except ClientDisconnect:
                return Response("the request ended early", 400)
            except Exception:
                _log.exception("no answer")
            return Response("the analyzer cannot answer: its log says why", 500)

        return respond

    async def key(request: Request) -> bytes:
        return (await run_in_threadpool(analyzer.new_key, _run(request))).to_bytes()

    async def sums(request: Request) -> bytes:
        batch = Batch.from_bytes(await _body(request))
        found = await run_in_threadpool(analyzer.sums, batch)
        _log.info(
            "answered: %d reports, left out %s; central epsilon %.4g at delta %g if the server "
            "does not tell who is who, and %.4g at the minimum",
            found.accepted,
            dict(found.rejected),
            found.central_epsilon,
            found.delta,
            found.central_epsilon_minimum,
        )
        return found.to_bytes()

    routes: list[Any] = [
        Route("/runs/{run_id}/keys", guarded(key), methods=["POST"]),
        Route("/sums", guarded(sums), methods=["POST"]),
    ]

    async def erase() -> None:
        while True:
            await run_in_threadpool(analyzer.erase_old)
            await asyncio.sleep(_ERASE_EVERY)

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        erasing = asyncio.create_task(erase())
        yield
        erasing.cancel()

    return Starlette(routes=routes, lifespan=running)


class _TooLongError(Exception):
    """More bytes than a batch has."""


def _run(request: Request) -> int:
    text = request.path_params["run_id"]
    run_id = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else _MOST_RUN
    if run_id >= _MOST_RUN:
        raise AnalyzerRefusal(UNKNOWN_KEY, "a run is a number below 2^64")
    return run_id


async def _body(request: Request) -> bytes:
    found = bytearray()
    async for piece in request.stream():
        if len(found) + len(piece) > MOST_BYTES:
            raise _TooLongError
        found += piece
    return bytes(found)
