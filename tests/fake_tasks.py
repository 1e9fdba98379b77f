"""Fakes behind the Tasks port, and behind the one to other regions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

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
from serve_app.outcomes import GrixError
from serve_app.task_forward import TaskCall, TaskPart


@dataclass
class FakeTasks:
    """Tasks in memory, with one event for each change; ``away``: their store does not answer."""

    kept: dict[str, Task] = field(default_factory=dict)
    told: dict[str, list[Event]] = field(default_factory=dict)
    of: dict[str, list[str]] = field(default_factory=dict)
    refuse: str | None = None
    away: bool = False
    #: Region and nonce of tasks that were sent elsewhere.
    at: dict[str, tuple[str, str]] = field(default_factory=dict)
    nonces: int = 0

    def put(self, task: Task, data: str = "") -> None:
        self.kept[task.id] = task
        events = self.told.setdefault(task.id, [])
        events.append(Event(f"{len(events) + 1}-0", task.state, data))

    def _asked(self) -> None:
        if self.away:
            raise GrixError("tasks_away", "away", retry_after_s=2.0)

    async def submit(self, task: NewTask) -> Submitted:
        self._asked()
        if task.id in self.at:
            return Submitted("elsewhere", None, self.at[task.id][0])
        if self.refuse is not None:
            return Submitted(self.refuse, None)  # type: ignore[arg-type]
        known = self.kept.get(task.id)
        if known is not None:
            return Submitted("known" if known.input == task.input else "conflict", known.state)
        times = (1_800_000_000.5, None, None)
        rest = (task.input, None, None, None, None)
        self.put(Task(task.id, task.tenant, task.task_class, task.priority, "queued", 0, *times, *rest))
        return Submitted("new", "queued")

    async def fan_out(self, task: NewParts) -> Submitted:
        self._asked()
        whole = NewTask(task.id, task.tenant, task.parts[0].task_class, task.priority, str(task.parts))
        root = await self.submit(whole)
        if root.how == "new":
            for part in task.parts:
                await self.submit(part)
            self.put(replace(self.kept[task.id], state="running", left=len(task.parts)))
            self.of[task.id] = [part.id for part in task.parts]
        return root

    async def parts(self, task_id: str) -> list[Task]:
        return [self.kept[part] for part in self.of[task_id] if part in self.kept]

    async def get(self, task_id: str) -> Task | None:
        self._asked()
        return self.kept.get(task_id)

    async def events(self, task_id: str, after: str) -> list[Event]:
        self._asked()
        return [e for e in self.told.get(task_id, []) if int(e.id.split("-")[0]) > int(after.split("-")[0])]

    async def cancel(self, task_id: str) -> State | None:
        self._asked()
        if self.kept[task_id].state not in ENDED:
            self.put(replace(self.kept[task_id], state="cancelled"))
        return self.kept[task_id].state

    async def send(self, task_id: str, tenant: str, region: str) -> Sent:
        self._asked()
        self.nonces += 1
        if task_id in self.kept:
            return Sent(None, False, "")
        before = self.at.get(task_id)
        at = region if before is None else before[0]
        self.at[task_id] = (at, str(self.nonces))
        return Sent(at, before is None, str(self.nonces))

    async def unsend(self, task_id: str, tenant: str, sent: Sent) -> None:
        if self.at.get(task_id) == (sent.region, sent.nonce):
            del self.at[task_id]

    async def sent(self, task_id: str) -> str | None:
        return self.at.get(task_id, (None,))[0]

    async def stats(self) -> dict[TaskClass, ClassStats]:
        self._asked()
        one = ClassStats({"high": 1, "normal": 2}, {"high": 0.5, "normal": 3.0}, running=4, workers=1, slots=4)
        return {"light": one, "heavy": one}

    def _letters(self) -> list[Task]:
        return [task for task in self.kept.values() if task.state == "failed"]

    async def dead(self, offset: int, limit: int) -> DeadPage:
        self._asked()
        end = offset + limit
        letters = self._letters()
        return DeadPage(tuple(letters[offset:end]), end if end < len(letters) else None)

    async def replay(self, task_id: str) -> bool:
        there = any(task.id == task_id for task in self._letters())
        if there:
            self.put(replace(self.kept[task_id], state="queued", reason=None))
        return there

    async def drop(self, task_id: str) -> bool:
        there = any(task.id == task_id for task in self._letters())
        self.kept.pop(task_id, None)
        return there


@dataclass
class FakeTaskPeers:
    """Other regions: ``answers`` by region, in turn, each parts or an error; no answer is one that nobody reaches."""

    answers: dict[str, list[list[TaskPart] | GrixError]] = field(default_factory=dict)
    asked: list[tuple[str, TaskCall]] = field(default_factory=list)

    async def ask(self, region: str, call: TaskCall) -> AsyncGenerator[TaskPart, None]:
        self.asked.append((region, call))
        answer = (self.answers.get(region) or [GrixError("no_target", "away")]).pop(0)
        if isinstance(answer, GrixError):
            raise answer
        for part in answer:
            if part.failure is not None:
                raise GrixError(part.failure.reason, part.failure.message)
            yield part
