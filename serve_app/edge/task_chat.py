"""What a worker does with a task: its chat request, on the way that every request goes, until it has an answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.core.admission import BATCH_INTENT
from serve_app.edge.store_types import StoreError
from serve_app.edge.task_jobs import Job
from serve_app.edge.task_results import TaskResults
from serve_app.edge.task_worker import NotNow, Result, TaskFailed, Work

#: Larger results go to the object store.
INLINE_BYTES: Final = 256 * 1024
#: Limits and full engines say when to come back; who says nothing is asked again after so long.
COME_BACK_S: Final = 1.0

#: Tenant, body, request id and lower-case headers, to status, lower-case headers and body.
Call = Callable[[str, bytes, str, Mapping[str, str]], Awaitable[tuple[int, Mapping[str, str], bytes]]]


@dataclass(frozen=True, slots=True)
class ChatTask:
    """Asks ``agent`` by ``call``. ``results`` is ``None`` where large results have no place; ``engine_limit_s`` is
    ``None`` where the agent's own limits are enough."""

    call: Call
    agent: str
    results: TaskResults | None
    engine_limit_s: float | None = None
    inline_bytes: int = INLINE_BYTES

    async def __call__(self, work: Work) -> Result:
        """The answer.

        Raises:
            TaskFailed: what the request came to.
            NotNow: the region is full, or the tenant at a limit: the task has not failed then.
        """
        body = json.dumps({**json.loads(work.job.input), "model": self.agent}).encode()
        # The same for each attempt but for its number, so that a tool which writes can know the task by it.
        request_id = f"task:{work.job.id.replace('/', ':')}:{work.job.attempts}"
        sent = {"x-task-type": BATCH_INTENT, "traceparent": trace_of(work.job)}
        if self.engine_limit_s is not None:
            sent["x-grix-total-timeout"] = f"{1000 * self.engine_limit_s:.0f}ms"
        await work.reached("asked")
        status, headers, answer = await self.call(work.job.tenant, body, request_id, sent)
        if status == 200:
            return await self._kept(work, answer)
        error = _error(answer)
        if status in (429, 503):
            raise NotNow(f"waits: {error['code']}", float(headers.get("retry-after", COME_BACK_S)))
        raise TaskFailed(f"{error['code']}: {error['message']}", final=status < 500)

    async def _kept(self, work: Work, answer: bytes) -> Result:
        if len(answer) <= self.inline_bytes:
            return Result(answer.decode())
        if self.results is None:
            said = f"the result has {len(answer)} bytes; over {self.inline_bytes} the region needs tasks.results"
            raise TaskFailed(said, final=True)
        await work.reached("stores")
        try:
            return Result("", await asyncio.to_thread(self.results.put, work.job, answer))
        except StoreError as error:
            raise TaskFailed(f"the result cannot be stored: {error}") from None


def trace_of(job: Job) -> str:
    """A W3C ``traceparent`` that all parts of a task share, so that together they have the slots of one root."""
    root = hashlib.sha256(job.id.partition(":")[0].encode()).hexdigest()[:32]
    return f"00-{root}-{job.claim}-01"


def _error(answer: bytes) -> Mapping[str, Any]:
    try:
        error = json.loads(answer)["error"]
        return {"code": str(error["code"]), "message": str(error["message"])}
    except (ValueError, KeyError, TypeError):
        return {"code": "unknown", "message": "an answer that is no error of ours"}
