"""Tasks over HTTP: ``POST /v1/tasks``, and a task's state, its events as they come, and its end.

A task is one chat request that nobody waits for. It is named ``TENANT/TASK_ID`` inside, so that no tenant can reach
another one's.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from serve_app.asgi import headers_of, read_body
from serve_app.core import tenants
from serve_app.core.table import Tenant
from serve_app.core.tasks import (
    ENDED,
    ClassStats,
    DeadPage,
    Event,
    NewParts,
    NewTask,
    State,
    Submitted,
    Task,
    TaskClass,
)
from serve_app.openai_request import bad
from serve_app.openai_rules import shown
from serve_app.outcomes import GrixError
from serve_app.request_path import RequestPath
from serve_app.task_request import MOST_DEAD, TASK_ID, AskedTask, class_of, parse_batch, parse_task

#: Who watches a task is told so soon after something happened, and that he is still connected so often.
LOOK_S: Final = 0.25
#: While nothing happens he is told ever later: each look asks Redis twice.
MOST_LOOK_S: Final = 2.0
STILL_HERE_S: Final = 15.0

#: Results with more characters are made ready in a thread, so that streams of others go on meanwhile.
LARGE_CHARS: Final = 256 * 1024
#: A task whose parts have more is told without their results.
MOST_SHOWN_CHARS: Final = 1 << 20

#: A submission in OpenAI's Batch format, a request a line.
JSON_LINES: Final = ("application/jsonl", "application/x-ndjson")

_EVENT_ID: Final = re.compile(r"0|\d{1,15}-\d{1,15}", re.ASCII)


class Tasks(Protocol):
    """The region's tasks. Each call raises GrixError ``tasks_away`` while their store does not answer."""

    async def submit(self, task: NewTask) -> Submitted: ...

    async def fan_out(self, task: NewParts) -> Submitted: ...

    async def get(self, task_id: str) -> Task | None: ...

    async def parts(self, task_id: str) -> list[Task]:
        """The parts of a task in their order, without those that are forgotten."""
        ...

    async def events(self, task_id: str, after: str) -> list[Event]:
        """What has happened to a task after an event of it; ``0`` is before the first."""
        ...

    async def cancel(self, task_id: str) -> State | None:
        """The state that it has then; ``None``: there is no such task."""
        ...

    async def stats(self) -> Mapping[TaskClass, ClassStats]:
        """Each class now, or a moment ago."""
        ...

    async def dead(self, offset: int, limit: int) -> DeadPage:
        """Dead letters, the newest first; about a megabyte of them at most."""
        ...

    async def replay(self, task_id: str) -> bool:
        """Makes a dead letter a task again; ``False``: there is none, or it never was one."""
        ...

    async def drop(self, task_id: str) -> bool: ...


def shown_task(task: Task, parts: Sequence[Task] | None = None) -> dict[str, Any]:
    """A task as its tenant sees it, with its parts where it has some. Times are whole seconds since 1970."""
    told = {
        "id": task.id.partition("/")[2],
        "object": "task",
        "state": task.state,
        "class": task.task_class,
        "priority": task.priority,
        "attempts": task.attempts,
        "created_at": int(task.submitted_unix_s),
        "started_at": _whole(task.started_unix_s),
        "ended_at": _whole(task.ended_unix_s),
    }
    if parts is not None:
        if result_chars(parts) > MOST_SHOWN_CHARS:
            elsewhere = f"/v1/tasks/{told['id']}/output"
            parts = [replace(part, result=None, uri=elsewhere) if part.result else part for part in parts]
        rows = [{"sub_task_id": _part_name(part), "state": part.state, **_outcome(part)} for part in parts]
        return {**told, "left": task.left, "sub_tasks": rows}
    return {**told, **_outcome(task)}


def result_chars(tasks: Sequence[Task]) -> int:
    return sum(len(task.result or "") for task in tasks)


def _shown_json(task: Task, parts: Sequence[Task] | None) -> bytes:
    return json.dumps(shown_task(task, parts), ensure_ascii=False, separators=(",", ":")).encode()


def _output(parts: Sequence[Task]) -> bytes:
    return b"".join(batch_line(part) for part in parts)


def _dead_json(page: DeadPage) -> bytes:
    rows = [{**shown_task(one), "tenant": one.tenant, "key": one.id, "input": one.input} for one in page.letters]
    return json.dumps({"object": "list", "data": rows, "next_offset": page.next_offset}, ensure_ascii=False).encode()


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and least <= int(text) <= most):
        raise bad(name, f"is {shown(text)}; allowed: {least} to {most}.")
    return int(text)


def _part_name(part: Task) -> str:
    return part.id.partition(":")[2]


def _outcome(task: Task) -> dict[str, Any]:
    return {
        "result": None if not task.result else json.loads(task.result),
        "result_uri": task.uri,
        "error": {"reason": task.reason, "message": task.message} if task.reason else None,
    }


def batch_line(part: Task) -> bytes:
    """A part as a line of OpenAI's Batch output; one that has not ended, or whose result lies elsewhere, says so."""
    told = _outcome(part)
    answer = {"status_code": 200, "request_id": part.id, "body": told["result"]}
    error = {"code": part.reason or part.state, "message": part.message or part.uri or f"the part is {part.state}"}
    done = part.state == "done" and told["result"] is not None
    line = {
        "id": part.id.partition("/")[2],
        "custom_id": _part_name(part),
        "response": answer if done else None,
        "error": None if done else error,
    }
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


async def _apart(tasks: Sequence[Task], make: Callable[..., bytes], *args: Any) -> bytes:
    """What ``make`` gives, in a thread where ``tasks`` have large results."""
    return await asyncio.to_thread(make, *args) if result_chars(tasks) > LARGE_CHARS else make(*args)


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)


@dataclass(frozen=True, slots=True)
class TaskApi:
    """The routes. ``new_id`` names a task that its caller has not named."""

    path: RequestPath
    tasks: Tasks
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

    async def submit(self, request: Request) -> Response:
        tenant = self._tenant(request)
        headers = headers_of(request.scope)
        raw = await read_body(request.receive)
        if request.headers.get("content-type", "").partition(";")[0].strip() in JSON_LINES:
            asked = await asyncio.to_thread(parse_batch, raw, dict(request.query_params), headers)
        else:
            asked = await asyncio.to_thread(parse_task, raw, headers)
        task_id = asked.task_id or self.new_id()
        told = await self._submit(f"{tenant.name}/{task_id}", asked, tenant)
        if told.how == "conflict":
            raise GrixError("task_conflict", f"There is a task {task_id} with another request.", param="task_id")
        if told.how in ("full", "tenant_full"):
            whose = "of this tenant" if told.how == "tenant_full" else "in this region"
            raise GrixError("tasks_full", f"As many tasks, or bytes of them, {whose} wait as may.", retry_after_s=10.0)
        found = await self.tasks.get(f"{tenant.name}/{task_id}")
        status, where = 202 if told.how == "new" else 200, {"location": f"/v1/tasks/{task_id}"}
        if found is None:
            return JSONResponse({"id": task_id, "object": "task", "state": told.state}, status, where)
        return Response(await self._shown(found), status, where, "application/json")

    async def _submit(self, key: str, asked: AskedTask, tenant: Tenant) -> Submitted:
        table = self.path.world().table
        alive = {name: one.workers for name, one in (await self.tasks.stats()).items()}
        made = []
        for part in asked.parts:
            if not tenants.check_residency(tenant, table.region.residency, part.parsed.data_class):
                raise GrixError("residency", f"This tenant's data may not be kept in region {table.region.name}.")
            task_class = class_of(part, asked, table, tenant, alive)
            part_key = f"{key}:{part.name}" if asked.in_parts else key
            made.append(NewTask(part_key, tenant.name, task_class, asked.priority, part.text))
        if asked.in_parts:
            return await self.tasks.fan_out(NewParts(key, tenant.name, asked.priority, tuple(made)))
        return await self.tasks.submit(made[0])

    async def one(self, request: Request) -> Response:
        """Tells of a task, or cancels it; one that has ended stays as it is."""
        task = await self._found(request)
        if request.method == "DELETE":
            await self.tasks.cancel(task.id)
            task = await self._found(request)
        return Response(await self._shown(task), media_type="application/json")

    async def _shown(self, task: Task) -> bytes:
        parts = None if task.left is None else await self.tasks.parts(task.id)
        return await _apart(parts or [task], _shown_json, task, parts)

    async def output(self, request: Request) -> Response:
        """The results of a task in parts as OpenAI's Batch files have them, a line each, in order."""
        task = await self._found(request)
        if task.left is None:
            raise GrixError("not_found", "This task has no parts; its result is in the task itself.")
        parts = await self.tasks.parts(task.id)
        return Response(await _apart(parts, _output, parts), media_type=JSON_LINES[0])

    async def events(self, request: Request) -> Response:
        after = request.headers.get("last-event-id", "0")
        if not _EVENT_ID.fullmatch(after):
            raise bad("last-event-id", "is no id of an event of a task.")
        task = await self._found(request)
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(self._told(task.id, after), headers=headers, media_type="text/event-stream")

    async def _told(self, task_id: str, after: str) -> AsyncGenerator[bytes, None]:
        """Events until the task has ended. A store that is away meanwhile only makes a pause."""
        silent_s, look_s = 0.0, LOOK_S
        while True:
            try:
                found = await self.tasks.events(task_id, after)
                task = None if found else await self.tasks.get(task_id)
                ended = not found and (task is None or task.state in ENDED)
            except GrixError:
                found, ended = [], False
            for event in found:
                after, silent_s, look_s = event.id, 0.0, LOOK_S
                data = json.dumps({"state": event.state, "data": event.data or None}, ensure_ascii=False)
                yield f"id: {event.id}\nevent: {event.state}\ndata: {data}\n\n".encode()
            if ended or (found and found[-1].state in ENDED):
                return
            await asyncio.sleep(look_s)
            silent_s += look_s
            look_s = min(MOST_LOOK_S, 2 * look_s)
            if silent_s >= STILL_HERE_S:
                silent_s = 0.0
                yield b": still here\n\n"

    async def stats(self, request: Request) -> Response:
        self._operator(request)
        return JSONResponse({name: asdict(one) for name, one in (await self.tasks.stats()).items()})

    async def dead(self, request: Request) -> Response:
        self._operator(request)
        offset = _number(request, "offset", 0, 0, 1_000_000)
        limit = _number(request, "limit", MOST_DEAD, 1, MOST_DEAD)
        page = await self.tasks.dead(offset, limit)
        made = await asyncio.to_thread(_dead_json, page)
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

    async def _found(self, request: Request) -> Task:
        tenant, task_id = self._tenant(request), request.path_params["task_id"]
        found = await self.tasks.get(f"{tenant.name}/{task_id}") if TASK_ID.fullmatch(task_id) else None
        if found is None:
            raise GrixError("not_found", "There is no such task; one that ended is forgotten after a day.")
        return found
