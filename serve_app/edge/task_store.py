"""A region's tasks as they stand in its Redis, for who watches them; what changes them is in
:mod:`serve_app.edge.task_bus`, where the keys are told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from serve_app.core.tasks import CLASSES, ClassStats, DeadPage, Event, Task, TaskClass
from serve_app.edge import redis_client
from serve_app.edge.task_jobs import NotRegistered
from serve_app.edge.task_rows import task_of

FAILURES: Final = (TimeoutError, RedisError, OSError)
#: A worker counts for so long after its last beat.
WORKER_COUNTS_S: Final = 30.0
#: An answer that takes longer is none.
READ_LIMIT_S: Final = 5.0
#: A worker that sleeps waits so much longer for its bell at most.
_BELL_S: Final = 2.0
CONNECTIONS: Final = 16
#: Of the inputs of one page of dead letters.
PAGE_CHARS: Final = 1 << 20


def connect(url: str, password_file: str | None, read_limit_s: float = READ_LIMIT_S) -> Redis:
    """A client whose connections may wait for a task.

    Raises:
        OSError: when the password file cannot be read.
    """
    return redis_client.connect(
        url,
        password_file,
        connections=CONNECTIONS,
        wait_limit_s=read_limit_s,
        answer_limit_s=read_limit_s + _BELL_S,
        # What somebody else put into a stream must not break those who read it.
        undecodable="replace",
    )


class TaskStore:
    """One region's tasks. Every method raises one of :data:`FAILURES` while Redis is away."""

    def __init__(self, client: Redis, region: str, scripts: Mapping[str, str], read_limit_s: float) -> None:
        self._client, self._read_limit_s = client, read_limit_s
        self._prefix = f"grix:{{{region}}}:tasks"
        self._scripts = {name: client.register_script(text) for name, text in scripts.items()}

    async def close(self) -> None:
        await self._client.aclose()

    async def _run(self, name: str, *args: str | int | float) -> Any:
        try:
            async with asyncio.timeout(self._read_limit_s):
                return await cast(Any, self._scripts[name](keys=[self._prefix], args=args))
        except ResponseError as error:
            if str(error).startswith("STRANGER"):
                raise NotRegistered("the worker is not registered with the token of this region") from None
            raise

    async def parts(self, task_id: str) -> list[Task]:
        """The parts of a task in their order, without those that are forgotten."""
        async with asyncio.timeout(self._read_limit_s):
            ids = await cast(Any, self._client.lrange(f"{self._prefix}:parts:{task_id}", 0, -1))
        found = [await self.get(one) for one in ids]
        return [task for task in found if task is not None]

    async def get(self, task_id: str) -> Task | None:
        async with asyncio.timeout(self._read_limit_s):
            row = await cast(Any, self._client.hgetall(f"{self._prefix}:t:{task_id}"))
        return task_of(row) if row else None

    async def sent(self, task_id: str) -> str | None:
        """The region that a task was sent to."""
        async with asyncio.timeout(self._read_limit_s):
            at = await cast(Any, self._client.get(f"{self._prefix}:at:{task_id}"))
        return at.partition(" ")[0] if at else None

    async def events(self, task_id: str, after: str) -> list[Event]:
        """What happened after an event; ``0`` is before the first."""
        async with asyncio.timeout(self._read_limit_s):
            rows = await cast(Any, self._client.xrange(f"{self._prefix}:e:{task_id}", f"({after}", "+"))
        return [Event(entry, fields["state"], fields["data"]) for entry, fields in rows]

    async def dead(self, offset: int = 0, limit: int = 100, most_chars: int = PAGE_CHARS) -> DeadPage:
        """At most ``limit`` dead letters after the first ``offset``, the newest first.

        A page ends before its inputs have more than ``most_chars``; it has one letter at least, if there is one.
        """
        async with asyncio.timeout(self._read_limit_s):
            ids = await cast(Any, self._client.zrevrange(f"{self._prefix}:dead", offset, offset + limit))
        letters: list[Task] = []
        chars = seen = 0
        for one in ids[:limit]:
            found = await self.get(one)
            chars += len(found.input or "") if found is not None else 0
            if letters and chars > most_chars:
                break
            seen += 1
            letters += [found] if found is not None else []
        return DeadPage(tuple(letters), offset + seen if seen < len(ids) else None)

    async def stats(self) -> dict[TaskClass, ClassStats]:
        rows = await self._run("STATS", int(WORKER_COUNTS_S), *CLASSES)
        return {
            name: ClassStats(
                {"high": high, "normal": normal},
                {"high": high_ms / 1000, "normal": normal_ms / 1000},
                *rest,
            )
            for name, (high, high_ms, normal, normal_ms, *rest) in zip(CLASSES, rows, strict=True)
        }

    async def buried(self) -> dict[tuple[str, str], int]:
        """Dead letters so far, by class and reason."""
        async with asyncio.timeout(self._read_limit_s):
            told = await cast(Any, self._client.hgetall(f"{self._prefix}:buried"))
        return {(name.partition("/")[0], name.partition("/")[2]): int(n) for name, n in told.items()}

    async def loses(self) -> list[str]:
        """How this Redis would lose tasks, and what to set."""
        async with asyncio.timeout(self._read_limit_s):
            memory = await cast(Any, self._client.info("memory"))
            kept = await cast(Any, self._client.info("persistence"))
        policy = str(memory.get("maxmemory_policy", "noeviction"))
        told = []
        if policy != "noeviction" and memory.get("maxmemory"):
            told.append(f"when it is full: maxmemory-policy is {policy}, set noeviction")
        if not kept.get("aof_enabled", 1):
            told.append("when it ends: appendonly is no, set yes")
        return told
