"""The HTTP surface: routes, bodies, server-sent events, and one error envelope for everything that goes wrong."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from serve_app.asgi import headers_of, read_body, respond, send_error
from serve_app.core import rules, tenants
from serve_app.core.heads import REQUEST_ID_SAID, is_request_id
from serve_app.core.router_view import is_drained
from serve_app.core.snapshots import Snapshot
from serve_app.core.table import Tenant
from serve_app.openai_request import bad
from serve_app.openapi import document
from serve_app.outcomes import GrixError, Reason
from serve_app.ports import Kind
from serve_app.request_path import RequestPath
from serve_app.task_api import TaskApi
from serve_app.task_desk import Tasks
from serve_app.task_forward import TaskPeers

log = logging.getLogger("ray.serve")

_DOCUMENT: Final = document()


@dataclass(slots=True)
class Surface:
    """What the HTTP surface stands on: the path, and three reads that are not requests to an agent."""

    path: RequestPath
    deep_health: Callable[[], Awaitable[dict[str, Any]]]
    metrics: Callable[[], Awaitable[bytes]]
    find_record: Callable[[str], Awaitable[dict[str, Any] | None]]
    tasks: Tasks
    peers: TaskPeers
    created_unix_s: int
    health_key: str | None = None
    #: A caller's address is its own; behind HAProxy every caller's is loopback.
    sees_callers: bool = True
    #: How long ago the coordinator's plan was confirmed.
    plan_age_s: Callable[[], float | None] = lambda: None


def error_response(error: GrixError) -> Response:
    """The one error envelope."""
    return JSONResponse(error.envelope(), error.status.http, error.headers())


def request_id_of(headers: Mapping[str, str]) -> str:
    """The request's id: Serve's proxy takes the caller's ``x-request-id`` or makes one, and puts it into the answer.

    Raises:
        GrixError: ``bad_request`` for an id that could not stand in a log or a path.
    """
    given = headers.get("x-request-id") or uuid.uuid4().hex
    if not is_request_id(given):
        raise bad("x-request-id", REQUEST_ID_SAID)
    return given


def caller_of(path: RequestPath, authorization: str | None) -> tenants.Caller | GrixError:
    """Who calls, or why nobody may with this key."""
    try:
        return tenants.identify(path.world().table, path.keys(), authorization, path.clock.today())
    except GrixError as error:
        return error


#: Paths of calls to agents: served without layers between the server and the request path.
CALLS: Final[dict[str, Kind]] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}


class Api:
    """The ASGI application of a Router: calls to agents straight to the path, everything else by Starlette."""

    def __init__(self, surface: Surface) -> None:
        self._path = surface.path
        self._rest = _rest(surface)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = CALLS.get(scope["path"]) if scope["type"] == "http" else None
        if kind is None or scope["method"] != "POST":
            await self._rest(scope, receive, send)
            return
        try:
            headers = headers_of(scope)
            request_id = request_id_of(headers)
            caller = caller_of(self._path, headers.get("authorization"))
            # A stranger's body is not even read.
            raw = await read_body(receive) if isinstance(caller, tenants.Caller) else b""
        except GrixError as error:
            await send_error(send, error)
            return
        except ClientDisconnect:
            return
        try:
            await respond(self._path.run(kind, caller, raw, headers, request_id), receive, send)
        except OSError:  # the socket broke while it was written to: the client has left
            return
        except Exception:
            # The client gets none of the trace; what was already under way is cut by the server.
            log.exception("bug in request %s", request_id)
            with contextlib.suppress(Exception):
                await send_error(send, GrixError("internal", "Something went wrong here."))


def _is_loopback(surface: Surface, request: Request) -> bool:
    if not surface.sees_callers:
        return False
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _tenant(surface: Surface, request: Request) -> Tenant:
    caller = caller_of(surface.path, request.headers.get("authorization"))
    if isinstance(caller, GrixError):
        raise caller
    return caller.tenant


def _operator(surface: Surface, request: Request) -> None:
    """Operators only; a stranger's key error comes first."""
    tenant = _tenant(surface, request)
    if not tenant.operator and not surface.path.world().table.open_access:
        raise GrixError("not_allowed", "Only operators may ask this.")


def _may_see_health(surface: Surface, request: Request) -> None:
    """The health key, loopback, or an operator's key."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    if surface.health_key and hmac.compare_digest(given.encode(), surface.health_key.encode()):
        return
    if not _is_loopback(surface, request):
        _operator(surface, request)


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as JSON."""
    rows = [{"id": t.id, **asdict(t), "residency": sorted(t.residency)} for t in snapshot.targets]
    return {**asdict(snapshot), "targets": rows, "lent": sorted(snapshot.lent)}


def _routes(surface: Surface) -> list[Route]:
    async def call(request: Request) -> Response:
        raise HTTPException(404)  # POST never comes here; the route tells other methods that POST is allowed

    async def openapi(request: Request) -> Response:
        _tenant(surface, request)
        return JSONResponse(_DOCUMENT)

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
        world = surface.path.world()
        drained = is_drained(world.snapshot, world.table.region.name)
        if request.query_params.get("deep") not in ("1", "true"):
            return JSONResponse({"status": "drained" if drained else "ok"}, 503 if drained else 200)
        _may_see_health(surface, request)
        report = await surface.deep_health()
        return JSONResponse(report, 200 if report["local"] and not drained else 503)

    async def metrics(request: Request) -> Response:
        if not _is_loopback(surface, request):
            _operator(surface, request)
        return Response(await surface.metrics(), media_type="text/plain; version=0.0.4")

    async def explain(request: Request) -> Response:
        """Decides a chat request without running it, with every rule and candidate."""
        _operator(surface, request)
        headers = headers_of(request.scope)
        raw = await read_body(request.receive)
        return JSONResponse(await surface.path.explain(raw, headers, _tenant(surface, request)))

    async def fleet(request: Request) -> Response:
        """The snapshot that the next request would be decided from, and the age of the coordinator's plan in it."""
        _operator(surface, request)
        return JSONResponse({"snapshot": _plain(surface.path.world().snapshot), "plan_age_s": surface.plan_age_s()})

    async def explain_past(request: Request) -> Response:
        _operator(surface, request)
        found = await surface.find_record(request.path_params["request_id"])
        if found is None:
            raise GrixError("not_found", "This request is not among the last 10000 of this region.")
        return JSONResponse(found)

    return [
        *(Route(path, call, methods=["POST"]) for path in CALLS),
        *TaskApi(surface.path, surface.tasks, surface.peers, lambda: uuid.uuid4().hex).routes(),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", models, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
        Route("/healthz", healthz, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/grix/explain", explain, methods=["POST"]),
        Route("/grix/fleet", fleet, methods=["GET"]),
        Route("/grix/requests/{request_id}", explain_past, methods=["GET"]),
    ]


def _rest(surface: Surface) -> Starlette:
    """Everything but calls to agents."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, GrixError)
        return error_response(error)

    async def starlettes(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reason: Reason = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")  # type: ignore[assignment]
        message = {
            "not_found": "There is no such path. See /v1/chat/completions, /v1/completions, /v1/models, /v1/tasks.",
            "method_not_allowed": f"{request.method} is not allowed on this path.",
        }.get(reason, str(error.detail))
        response = error_response(GrixError(reason, message))
        response.headers.update(error.headers or {})
        return response

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    async def ours_or_bug(request: Request, error: Exception) -> Response:
        # Starlette logs the trace after this; the client gets none of it.
        return error_response(GrixError("internal", "Something went wrong here."))

    app = Starlette(
        routes=_routes(surface),
        exception_handlers={
            GrixError: ours,
            HTTPException: starlettes,
            ClientDisconnect: gone,
            Exception: ours_or_bug,
        },
    )
    # A redirect would go to whatever host the request names.
    app.router.redirect_slashes = False
    return app
