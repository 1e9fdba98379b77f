"""What is told of a region's tasks, and to whom: to its own tenants over HTTP, and to other regions where they asked.

A task is one chat request that nobody waits for. It is named ``TENANT/TASK_ID`` inside, so that no tenant can reach
another one's.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

from serve_app.core import tenants
from serve_app.core.table import Table, Tenant
from serve_app.core.tasks import (
    ENDED,
    ClassStats,
    DeadPage,
    Event,
    NewParts,
    NewTask,
    Sent,
    State,
    Submitted,
    Task,
    TaskClass,
)
from serve_app.openai_request import bad
from serve_app.outcomes import GrixError
from serve_app.task_request import TASK_ID, AskedTask, class_of, parse_batch, parse_task

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
JSON: Final = "application/json"

_EVENT_ID: Final = re.compile(r"0|\d{1,15}-\d{1,15}", re.ASCII)

#: What may be asked about a task that is there.
Verb = Literal["get", "cancel", "events", "output"]


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

    async def send(self, task_id: str, tenant: str, region: str) -> Sent:
        """Notes, before it goes there, that a task is in another region; where it was noted to be, if it was."""
        ...

    async def unsend(self, task_id: str, tenant: str, sent: Sent) -> None:
        """Takes a note back, unless the task was sent again meanwhile."""
        ...

    async def sent(self, task_id: str) -> str | None:
        """The region that a task was sent to."""
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


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer over HTTP: headers are lower-case, and a body that comes bit by bit is not bytes."""

    status: int
    body: bytes | AsyncGenerator[bytes, None]
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": JSON})


async def parsed(raw: bytes, query: Mapping[str, str], headers: Mapping[str, str]) -> AskedTask:
    """A submission, in a thread: it may be megabytes. ``headers`` are lower-case.

    Raises:
        GrixError: naming the field, or the line of a batch.
    """
    if headers.get("content-type", "").partition(";")[0].strip() in JSON_LINES:
        return await asyncio.to_thread(parse_batch, raw, query, headers)
    return await asyncio.to_thread(parse_task, raw, headers)


def shown_task(task: Task, region: str, parts: Sequence[Task] | None = None) -> dict[str, Any]:
    """A task of a region as its tenant sees it, with its parts where it has some. Times: whole seconds since 1970."""
    told = {
        "id": task.id.partition("/")[2],
        "object": "task",
        "region": region,
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


def _shown_json(task: Task, region: str, parts: Sequence[Task] | None) -> bytes:
    return json.dumps(shown_task(task, region, parts), ensure_ascii=False, separators=(",", ":")).encode()


def _output(parts: Sequence[Task]) -> bytes:
    return b"".join(batch_line(part) for part in parts)


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
class TaskDesk:
    """Answers about the tasks that this region has; each raises GrixError."""

    table: Callable[[], Table]
    tasks: Tasks

    async def submit(self, tenant: Tenant, task_id: str, asked: AskedTask) -> Answer | str:
        """The task, new or known; or the name of the region that it was sent to before."""
        key = f"{tenant.name}/{task_id}"
        told = await self._submit(key, asked, tenant)
        if told.region is not None:
            return told.region
        if told.how == "conflict":
            raise GrixError("task_conflict", f"There is a task {task_id} with another request.", param="task_id")
        if told.how in ("full", "tenant_full"):
            whose = "of this tenant" if told.how == "tenant_full" else "in this region"
            raise GrixError("tasks_full", f"As many tasks, or bytes of them, {whose} wait as may.", retry_after_s=10.0)
        found = await self.tasks.get(key)
        headers = {"content-type": JSON, "location": f"/v1/tasks/{task_id}"}
        if found is None:
            body = json.dumps({"id": task_id, "object": "task", "state": told.state}).encode()
        else:
            body = await self._shown(found)
        return Answer(202 if told.how == "new" else 200, body, headers)

    async def _submit(self, key: str, asked: AskedTask, tenant: Tenant) -> Submitted:
        table = self.table()
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

    async def ask(self, tenant: Tenant, task_id: str, verb: Verb, after: str) -> Answer:
        """Tells of a task that is here. ``after`` is the id of the last event that was heard."""
        if verb == "events" and not _EVENT_ID.fullmatch(after):
            raise bad("last-event-id", "is no id of an event of a task.")
        task = await self._found(tenant, task_id)
        if verb == "events":
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            return Answer(200, self.told(task.id, after), {**headers, "x-accel-buffering": "no"})
        if verb == "output":
            if task.left is None:
                raise GrixError("not_found", "This task has no parts; its result is in the task itself.")
            parts = await self.tasks.parts(task.id)
            return Answer(200, await _apart(parts, _output, parts), {"content-type": JSON_LINES[0]})
        if verb == "cancel":
            await self.tasks.cancel(task.id)
            task = await self._found(tenant, task_id)
        return Answer(200, await self._shown(task))

    async def _shown(self, task: Task) -> bytes:
        parts = None if task.left is None else await self.tasks.parts(task.id)
        return await _apart(parts or [task], _shown_json, task, self.table().region.name, parts)

    async def told(self, task_id: str, after: str) -> AsyncGenerator[bytes, None]:
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

    async def _found(self, tenant: Tenant, task_id: str) -> Task:
        found = await self.tasks.get(f"{tenant.name}/{task_id}") if TASK_ID.fullmatch(task_id) else None
        if found is None:
            raise GrixError("not_found", "There is no such task; one that ended is forgotten after a day.")
        return found
