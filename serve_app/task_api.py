"""Tasks over HTTP: ``POST /v1/tasks``, and a task's state, its events as they come, and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from serve_app.asgi import headers_of, read_body
from serve_app.core import tenants
from serve_app.core.table import Tenant
from serve_app.core.tasks import DeadPage
from serve_app.openai_request import bad
from serve_app.openai_rules import shown
from serve_app.outcomes import GrixError
from serve_app.request_path import RequestPath
from serve_app.task_desk import Answer, TaskDesk, Tasks, Verb, parsed, shown_task
from serve_app.task_forward import FORWARDED_HEADERS, Forwards, TaskCall, TaskPeers
from serve_app.task_request import MOST_DEAD

_VERBS: Final[dict[str, Verb]] = {"GET": "get", "DELETE": "cancel"}


def _dead_json(page: DeadPage, region: str) -> bytes:
    rows = [
        {**shown_task(one, region), "tenant": one.tenant, "key": one.id, "input": one.input} for one in page.letters
    ]
    return json.dumps({"object": "list", "data": rows, "next_offset": page.next_offset}, ensure_ascii=False).encode()


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and least <= int(text) <= most):
        raise bad(name, f"is {shown(text)}; allowed: {least} to {most}.")
    return int(text)


def _response(answer: Answer) -> Response:
    if isinstance(answer.body, bytes):
        return Response(answer.body, answer.status, answer.headers)
    return StreamingResponse(answer.body, answer.status, answer.headers)


@dataclass(frozen=True, slots=True)
class TaskApi:
    """The routes. ``peers`` asks other regions; ``new_id`` names a task that its caller has not named."""

    path: RequestPath
    tasks: Tasks
    peers: TaskPeers
    new_id: Callable[[], str]

    def routes(self) -> list[Route]:
        return [
            Route("/v1/tasks", self.submit, methods=["POST"]),
            Route("/v1/tasks/{task_id}", self.one, methods=["GET", "DELETE"]),
            Route("/v1/tasks/{task_id}/events", self.events, methods=["GET"]),
            Route("/v1/tasks/{task_id}/output", self.output, methods=["GET"]),
            Route("/grix/tasks", self.stats, methods=["GET"]),
            Route("/grix/tasks/dead", self.dead, methods=["GET"]),
            Route("/grix/tasks/dead/{tenant}/{task_id}", self.one_dead, methods=["POST", "DELETE"]),
        ]

    @property
    def _desk(self) -> TaskDesk:
        return TaskDesk(lambda: self.path.world().table, self.tasks)

    @property
    def _forwards(self) -> Forwards:
        return Forwards(self.path.world, self.tasks, self.peers)

    async def submit(self, request: Request) -> Response:
        tenant = self._tenant(request)
        headers, query = headers_of(request.scope), dict(request.query_params)
        raw = await read_body(request.receive)
        asked = await parsed(raw, query, headers)
        task_id = asked.task_id or self.new_id()
        region = self._forwards.region_of(tenant, asked)
        answer = region if region is not None else await self._desk.submit(tenant, task_id, asked)
        if isinstance(answer, str):
            kept = {name: headers[name] for name in FORWARDED_HEADERS if name in headers}
            call = TaskCall("submit", tenant.name, tenant.residency, task_id, raw, kept, query)
            sent = await self._forwards.submit(answer, call, tenant, asked)
            answer = sent if sent is not None else await self._desk.submit(tenant, task_id, asked)
            assert isinstance(answer, Answer)
        return _response(answer)

    async def one(self, request: Request) -> Response:
        """Tells of a task, or cancels it; one that has ended stays as it is."""
        return await self._asked(request, _VERBS.get(request.method, "get"))

    async def output(self, request: Request) -> Response:
        """The results of a task in parts as OpenAI's Batch files have them, a line each, in order."""
        return await self._asked(request, "output")

    async def events(self, request: Request) -> Response:
        return await self._asked(request, "events")

    async def _asked(self, request: Request, verb: Verb) -> Response:
        """An answer of this region, or of the one that the task was sent to."""
        tenant, task_id = self._tenant(request), request.path_params["task_id"]
        after = request.headers.get("last-event-id", "0")
        try:
            return _response(await self._desk.ask(tenant, task_id, verb, after))
        except GrixError as error:
            if error.reason != "not_found":
                raise
            headers = {"last-event-id": after} if verb == "events" else {}
            call = TaskCall(verb, tenant.name, tenant.residency, task_id, headers=headers)
            elsewhere = await self._forwards.ask(call)
            if elsewhere is None:
                raise
            return _response(elsewhere)

    async def stats(self, request: Request) -> Response:
        self._operator(request)
        return JSONResponse({name: asdict(one) for name, one in (await self.tasks.stats()).items()})

    async def dead(self, request: Request) -> Response:
        self._operator(request)
        offset = _number(request, "offset", 0, 0, 1_000_000)
        limit = _number(request, "limit", MOST_DEAD, 1, MOST_DEAD)
        page = await self.tasks.dead(offset, limit)
        made = await asyncio.to_thread(_dead_json, page, self.path.world().table.region.name)
        return Response(made, media_type="application/json")

    async def one_dead(self, request: Request) -> Response:
        """Replays a dead letter, or drops it."""
        self._operator(request)
        do, done = (self.tasks.drop, "dropped") if request.method == "DELETE" else (self.tasks.replay, "replayed")
        key = f"{request.path_params['tenant']}/{request.path_params['task_id']}"
        if not await do(key):
            raise GrixError("not_found", f"There is no dead letter {key[:110]} that can be {done}.")
        return JSONResponse({"key": key, "state": done})

    def _operator(self, request: Request) -> None:
        if not self._tenant(request).operator and not self.path.world().table.open_access:
            raise GrixError("not_allowed", "Only operators may ask this.")

    def _tenant(self, request: Request) -> Tenant:
        path = self.path
        table, authorization = path.world().table, request.headers.get("authorization")
        tenant = tenants.identify(table, path.keys(), authorization, path.clock.today()).tenant
        if not table.task_agents:
            raise GrixError("not_found", "This region takes no tasks.")
        return tenant
