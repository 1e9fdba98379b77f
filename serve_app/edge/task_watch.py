"""What is exported of a class of tasks, and what the scaling policy is told of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from serve_app.core.tasks import PRIORITIES, ClassStats, TaskClass
from serve_app.edge.task_bus import TaskBus
from serve_app.edge.task_jobs import Job

#: Tasks that were begun within so long make the rate that the scaling policy knows.
RATE_S: Final = 30.0


class Meter(Protocol):
    def add(self, name: str, labels: Mapping[str, str], value: float) -> None: ...
    def set(self, name: str, labels: Mapping[str, str], value: float) -> None: ...


@dataclass(slots=True)
class TaskWatch:
    """One worker's view of its class: its own tasks, and what the bus says of all."""

    region: str
    task_class: TaskClass
    meter: Meter
    now_s: Callable[[], float]
    _stats: ClassStats | None = None
    _ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))

    def ended(self, job: Job, how: str) -> None:
        """Counts the end of an attempt."""
        labels = {"region": self.region, "class": self.task_class}
        self.meter.add("grix_task_attempts_total", {**labels, "how": how}, 1)
        if job.silent_s is not None:
            self.meter.add("grix_task_takeovers_total", labels, 1)
        self._ends_s.append(self.now_s())

    async def look(self, bus: TaskBus) -> None:
        """Reads how the class is, and exports it."""
        self._stats = stats = (await bus.stats())[self.task_class]
        labels = {"region": self.region, "class": self.task_class}
        for priority in PRIORITIES:
            which = {**labels, "priority": priority}
            self.meter.set("grix_tasks_waiting", which, stats.waiting[priority])
            self.meter.set("grix_task_oldest_wait_s", which, stats.oldest_s[priority])
        self.meter.set("grix_task_workers", labels, stats.workers)
        for (task_class, reason), count in (await bus.buried()).items():
            if task_class == self.task_class:
                self.meter.set("grix_task_dead_letters", {**labels, "reason": reason}, count)

    def for_scaling(self, running: int) -> dict[str, float]:
        """For the scaling policy: this worker's tasks, and its part of those that wait; nothing before a look."""
        if self._stats is None:
            return {}
        now_s = self.now_s()
        while self._ends_s and now_s - self._ends_s[0] > RATE_S:
            self._ends_s.popleft()
        tasks = running + sum(self._stats.waiting.values()) / max(1, self._stats.workers)
        return {
            "oldest_wait_ms": 1000.0 * max(self._stats.oldest_s.values()),
            "ongoing_requests": tasks,
            "uncounted_requests": tasks,
            "started_rps": len(self._ends_s) / RATE_S,
        }
