"""The tasks of a region through all its bundles, for the Router: the Tasks port over the bus."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from cluster_configs.kind_tasks import Tasks
from serve_app.core.tasks import ClassStats, DeadPage, Event, NewParts, NewTask, Sent, State, Submitted, Task, TaskClass
from serve_app.edge.task_bus import TaskBus
from serve_app.edge.task_seals import Seals, read_secret
from serve_app.edge.task_store import FAILURES, connect
from serve_app.outcomes import GrixError

T = TypeVar("T")

log = logging.getLogger("ray.serve")

#: Tasks and workers are counted again after so long.
COUNTED_S: Final = 1.0
RETRY_S: Final = 2.0


async def _asked(call: Awaitable[T]) -> T:
    try:
        return await call
    except FAILURES:
        raise _away() from None


def _away() -> GrixError:
    return GrixError("tasks_away", "The region's tasks cannot be reached now.", retry_after_s=RETRY_S)


class BusOfRegion:
    """The bus that a region's settings name, opened again when they change."""

    def __init__(self) -> None:
        self.bus: TaskBus | None = None
        self._opened: tuple[object, ...] | None = None

    async def configure(self, region: Mapping[str, Any], leave: Callable[[], Awaitable[None]] | None = None) -> bool:
        """Takes a region's ``name``, ``redis`` and ``tasks``; on the loop that serves. Whether the bus is another one.

        There is none in a region without a Redis, or whose tasks have no secret.

        ``leave`` is awaited before the bus that was there is closed.

        Raises:
            OSError: when the file of the password or of the secret cannot be read. Nothing has changed then.
        """
        redis, tasks, made, opened = region.get("redis"), region.get("tasks"), None, None
        secret = (tasks or {}).get("secretFile")
        if tasks is not None and (redis is None or secret is None):
            log.warning("region %s has no redis, or no tasks.secretFile: it takes no tasks", region["name"])
        elif tasks is not None and redis is not None:
            file = redis.get("passwordFile")
            # Files' times tell a password or a secret that was changed in place.
            limit_s = Tasks.model_validate(tasks).read_limit_s
            files = ((one, Path(one).stat().st_mtime_ns if one else 0) for one in (file, secret))
            opened = (redis["url"], limit_s, *files)
            if opened == self._opened:
                return False
            client, seals = connect(redis["url"], file, limit_s), Seals(read_secret(secret))
            made = TaskBus(client, region["name"], seals, read_limit_s=limit_s)
        before, self.bus, self._opened = self.bus, made, opened
        if before is not None:
            if leave is not None:
                await leave()
            await before.close()
        return before is not made


class RegionTasks:
    """In the region's Redis; where there is none, tasks cannot be reached."""

    def __init__(self) -> None:
        self._of_region = BusOfRegion()
        self._counted: tuple[float, Mapping[TaskClass, ClassStats]] | None = None

    async def configure(self, region: Mapping[str, Any]) -> None:
        """See :meth:`BusOfRegion.configure`."""
        await self._of_region.configure(region)

    def _bus(self) -> TaskBus:
        if self._of_region.bus is None:
            raise _away()
        return self._of_region.bus

    async def submit(self, task: NewTask) -> Submitted:
        return await _asked(self._bus().submit(task))

    async def fan_out(self, task: NewParts) -> Submitted:
        return await _asked(self._bus().fan_out(task))

    async def parts(self, task_id: str) -> list[Task]:
        return await _asked(self._bus().parts(task_id))

    async def get(self, task_id: str) -> Task | None:
        return await _asked(self._bus().get(task_id))

    async def events(self, task_id: str, after: str) -> list[Event]:
        return await _asked(self._bus().events(task_id, after))

    async def cancel(self, task_id: str) -> State | None:
        return await _asked(self._bus().cancel(task_id))

    async def send(self, task_id: str, tenant: str, region: str) -> Sent:
        return await _asked(self._bus().send(task_id, tenant, region))

    async def unsend(self, task_id: str, tenant: str, sent: Sent) -> None:
        await _asked(self._bus().unsend(task_id, tenant, sent))

    async def sent(self, task_id: str) -> str | None:
        return await _asked(self._bus().sent(task_id))

    async def stats(self) -> Mapping[TaskClass, ClassStats]:
        now_s = time.monotonic()
        if self._counted is None or now_s - self._counted[0] > COUNTED_S:
            self._counted = (now_s, await _asked(self._bus().stats()))
        return self._counted[1]

    async def dead(self, offset: int, limit: int) -> DeadPage:
        return await _asked(self._bus().dead(offset, limit))

    async def replay(self, task_id: str) -> bool:
        return await _asked(self._bus().replay(task_id))

    async def drop(self, task_id: str) -> bool:
        return await _asked(self._bus().drop(task_id))
