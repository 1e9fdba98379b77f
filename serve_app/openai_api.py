"""The HTTP surface: routes, bodies, server-sent events, and one error envelope for everything that goes wrong."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from serve_app.core import rules, tenants
from serve_app.core.table import Tenant
from serve_app.openai_request import MAX_BODY_BYTES, bad
from serve_app.outcomes import GrixError, Reason
from serve_app.ports import Kind
from serve_app.request_path import Answer, RequestPath

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(slots=True)
class Surface:
    """What the HTTP surface stands on: the path, and three reads that are not requests to an agent."""

    path: RequestPath
    deep_health: Callable[[], Awaitable[dict[str, Any]]]
    metrics: Callable[[], Awaitable[bytes]]
    find_record: Callable[[str], Awaitable[dict[str, Any] | None]]
    created_unix_s: int
    health_key: str | None = None


def error_response(error: GrixError) -> Response:
    """The one error envelope."""
    return JSONResponse(error.envelope(), error.status.http, error.headers())


def request_id_of(request: Request) -> str:
    """The request's id: Serve's proxy takes the caller's ``x-request-id`` or makes one, and puts it into the answer.

    Raises:
        GrixError: ``bad_request`` for an id that could not stand in a log or a path.
    """
    given = request.headers.get("x-request-id") or uuid.uuid4().hex
    if not _REQUEST_ID.fullmatch(given):
        raise bad("x-request-id", "allowed are 1 to 128 letters, digits and . _ : -")
    return given


async def _body(request: Request) -> bytes:
    """The body, never more of it in memory than is allowed."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise GrixError("body_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.")
        parts.append(part)
    return b"".join(parts)


class Sending:
    """An ASGI response that cancels the work behind it as soon as the client leaves, even before a first byte."""

    def __init__(self, work: Awaitable[Answer]) -> None:
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        answer = await self._work
        raw = [(k.encode("latin-1"), v.encode("latin-1", "replace")) for k, v in answer.headers.items()]
        body = answer.body
        if isinstance(body, bytes):
            raw.append((b"content-length", str(len(body)).encode()))
            await send({"type": "http.response.start", "status": answer.status, "headers": raw})
            await send({"type": "http.response.body", "body": body})
            return
        async with aclosing(body):
            # The first bytes before the status: a generator that never started could not end its call when the
            # client leaves right here.
            first = await anext(body, b"")
            await send({"type": "http.response.start", "status": answer.status, "headers": raw})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for data in body:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _is_loopback(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _tenant(surface: Surface, request: Request) -> Tenant:
    path = surface.path
    authorization = request.headers.get("authorization")
    return tenants.authenticate(path.world().table, path.keys(), authorization, path.clock.today())


def _operator(surface: Surface, request: Request) -> None:
    """Operators only; a stranger's key error comes first."""
    tenant = _tenant(surface, request)
    if not tenant.operator and not surface.path.world().table.open_access:
        raise GrixError("not_allowed", "Only operators may ask this.")


def _may_see_health(surface: Surface, request: Request) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    if surface.health_key and hmac.compare_digest(given.encode(), surface.health_key.encode()):
        return
    if not _is_loopback(request):
        raise GrixError("not_allowed", "The deep health check needs the health key or loopback.")


def _routes(surface: Surface) -> list[Route]:
    def call(kind: Kind) -> Callable[[Request], Awaitable[Any]]:
        async def endpoint(request: Request) -> Any:
            request_id = request_id_of(request)
            headers = {k.lower(): v for k, v in request.headers.items()}
            raw = await _body(request)
            return Sending(surface.path.run(kind, raw, headers, request_id))

        return endpoint

    async def models(request: Request) -> Response:
        tenant = _tenant(surface, request)
        names = ["auto", *rules.allowed_agents(surface.path.world().table, tenant)]
        rows = [{"id": n, "object": "model", "created": surface.created_unix_s, "owned_by": "grix"} for n in names]
        wanted = request.path_params.get("model")
        if wanted is None:
            return JSONResponse({"object": "list", "data": rows})
        for row in rows:
            if row["id"] == wanted:
                return JSONResponse(row)
        raise GrixError("model_not_found", f"Known models: {', '.join(names)}.", param="model")

    async def healthz(request: Request) -> Response:
        if request.query_params.get("deep") not in ("1", "true"):
            return JSONResponse({"status": "ok"})
        _may_see_health(surface, request)
        report = await surface.deep_health()
        return JSONResponse(report, 200 if report["local"] else 503)

    async def metrics(request: Request) -> Response:
        if not _is_loopback(request):
            _operator(surface, request)
        return Response(await surface.metrics(), media_type="text/plain; version=0.0.4")

    async def explain(request: Request) -> Response:
        """Decides a chat request without running it, with every rule and candidate."""
        _operator(surface, request)
        headers = {k.lower(): v for k, v in request.headers.items()}
        raw = await _body(request)
        return JSONResponse(await surface.path.explain(raw, headers, _tenant(surface, request)))

    async def explain_past(request: Request) -> Response:
        _operator(surface, request)
        found = await surface.find_record(request.path_params["request_id"])
        if found is None:
            raise GrixError("not_found", "This request is not among the last 10000 of this region.")
        return JSONResponse(found)

    return [
        Route("/v1/chat/completions", call("chat"), methods=["POST"]),
        Route("/v1/completions", call("completion"), methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", models, methods=["GET"]),
        Route("/healthz", healthz, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/grix/explain", explain, methods=["POST"]),
        Route("/grix/requests/{request_id}", explain_past, methods=["GET"]),
    ]


def build(surface: Surface) -> Starlette:
    """The ASGI application of a Router."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, GrixError)
        return error_response(error)

    async def starlettes(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reason: Reason = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")  # type: ignore[assignment]
        message = {
            "not_found": "There is no such path. See /v1/chat/completions, /v1/completions, /v1/models.",
            "method_not_allowed": f"{request.method} is not allowed on this path.",
        }.get(reason, str(error.detail))
        return error_response(GrixError(reason, message))

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    async def ours_or_bug(request: Request, error: Exception) -> Response:
        # Starlette logs the trace after this; the client gets none of it.
        return error_response(GrixError("internal", "Something went wrong here."))

    return Starlette(
        routes=_routes(surface),
        exception_handlers={
            GrixError: ours,
            HTTPException: starlettes,
            ClientDisconnect: gone,
            Exception: ours_or_bug,
        },
    )
