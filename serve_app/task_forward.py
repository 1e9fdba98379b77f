"""Tasks of other regions: submitted here, because their data may not be kept here or their caller said where, and told
of here.

Before a task goes to another region it is noted here that it does, so that however often it is submitted it goes to one
region. It makes one hop: a region that was sent a task does not send it on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from serve_app.core import tenants
from serve_app.core.snapshots import Snapshot
from serve_app.core.table import Tenant
from serve_app.openai_request import bad
from serve_app.openai_rules import shown
from serve_app.outcomes import GrixError
from serve_app.ports import Failure, World
from serve_app.task_desk import Answer, Tasks, Verb
from serve_app.task_request import TASK_ID, AskedTask

#: Of a submission, what says how its body is to be read.
FORWARDED_HEADERS: Final[tuple[str, ...]] = ("content-type", "x-data-class")
RETRY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class TaskCall:
    """What is asked of another region about a task of its own, for a tenant of this one. Never has a key."""

    verb: Verb | Literal["submit"]
    tenant: str
    residency: frozenset[str]
    task_id: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskPart:
    """Of an answer, its head or some of its body. ``failure``: the region was not asked, or did not answer."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    data: bytes = b""
    failure: Failure | None = None


class TaskPeers(Protocol):
    """Asks other regions."""

    def ask(self, region: str, call: TaskCall) -> AsyncGenerator[TaskPart, None]:
        """The head of the answer, then its body.

        Raises:
            GrixError: ``no_target`` or ``body_too_large`` when nothing was asked; else nobody knows what became of it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Forwards:
    """Which region a task goes to, and what it says there."""

    world: Callable[[], World]
    tasks: Tasks
    peers: TaskPeers

    def region_of(self, tenant: Tenant, asked: AskedTask) -> str | None:
        """The region that a task goes to; ``None``: it stays here.

        Raises:
            GrixError: ``residency`` when no region may keep it, ``bad_request`` for one that is not there.
        """
        world = self.world()
        table = world.table
        me, others = table.region.name, table.task_regions
        if asked.region not in (None, me, *others):
            raise bad("region", f"is {shown(asked.region)}; allowed: {', '.join((me, *others))}.")
        if asked.region in (None, me) and _may_keep(tenant, table.region.residency, asked):
            return None
        allowed = [name for name in others if asked.region in (None, name) and _may_keep(tenant, others[name], asked)]
        if not allowed:
            where = asked.region or f"{me}, nor in another region that takes tasks"
            raise GrixError("residency", f"This tenant's data may not be kept in region {where}.")
        return next((name for name in allowed if _is_well(world.snapshot, name)), allowed[0])

    async def submit(self, region: str, call: TaskCall, tenant: Tenant, asked: AskedTask) -> Answer | None:
        """The answer of the region that has the task; ``None``: it is here already.

        Raises:
            GrixError: ``tasks_away`` when the region was not reached, or did not answer.
        """
        key = f"{call.tenant}/{call.task_id}"
        sent = await self.tasks.send(key, call.tenant, region)
        if sent.region is None:
            return None
        zones = self.world().table.task_regions.get(sent.region)
        if zones is None or not _may_keep(tenant, zones, asked):
            raise GrixError("residency", f"This task is in region {sent.region}, where its data may not be kept now.")
        try:
            answer = await self._asked(sent.region, call)
        except GrixError as error:
            not_asked = error.reason in ("no_target", "body_too_large")
            if not_asked and sent.is_new:
                await self.tasks.unsend(key, call.tenant, sent)
            if error.status.http < 500:
                raise
            raise _away(sent.region, call.task_id) from None
        if 400 <= answer.status < 500 and sent.is_new:
            # It was refused there, so it is nowhere.
            await self.tasks.unsend(key, call.tenant, sent)
        return answer

    async def ask(self, call: TaskCall) -> Answer | None:
        """The answer of the region that a task was sent to; ``None``: it was sent nowhere.

        Raises:
            GrixError: ``tasks_away``.
        """
        known = TASK_ID.fullmatch(call.task_id)
        region = await self.tasks.sent(f"{call.tenant}/{call.task_id}") if known else None
        if region is None or region not in self.world().table.task_regions:
            return None
        try:
            return await self._asked(region, call)
        except GrixError:
            raise _away(region, call.task_id) from None

    async def _asked(self, region: str, call: TaskCall) -> Answer:
        parts = self.peers.ask(region, call)
        try:
            head = await anext(parts)
        except StopAsyncIteration:
            raise GrixError("upstream_failed", f"Region {region} said nothing.") from None
        except BaseException:
            await parts.aclose()
            raise
        if call.verb == "events":
            return Answer(head.status, _rest(parts), head.headers)
        async with aclosing(parts):
            data = [part.data async for part in parts]
        return Answer(head.status, b"".join(data), head.headers)


async def _rest(parts: AsyncGenerator[TaskPart, None]) -> AsyncGenerator[bytes, None]:
    """The body; one that breaks off ends, and whoever reads it asks again from where it did."""
    async with aclosing(parts):
        try:
            async for part in parts:
                yield part.data
        except GrixError:
            return


def _may_keep(tenant: Tenant, zones: frozenset[str], asked: AskedTask) -> bool:
    return all(tenants.check_residency(tenant, zones, part.parsed.data_class) for part in asked.parts)


def _is_well(snapshot: Snapshot, region: str) -> bool:
    seen = next((one for one in snapshot.regions if one.name == region), None)
    return seen is not None and seen.health in ("healthy", "slow") and not seen.drained


def _away(region: str, task_id: str) -> GrixError:
    said = f"Region {region} cannot be reached now. Ask again for task {task_id}: submitted again it is the same one."
    return GrixError("tasks_away", said, retry_after_s=RETRY_S)
