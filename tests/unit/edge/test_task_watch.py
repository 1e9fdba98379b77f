"""What is told of a class of tasks: to those who watch, and to the scaling policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from serve_app.core.tasks import ClassStats, TaskClass
from serve_app.edge.task_jobs import Job
from serve_app.edge.task_watch import TaskWatch

LIGHT = ClassStats({"high": 2, "normal": 10}, {"high": 0.5, "normal": 42.0}, running=7, workers=3, slots=12)
JOB = Job("acme/t1", "c1", "acme", "light", "normal", "{}", 1, None)


@dataclass
class Bus:
    async def stats(self) -> dict[TaskClass, ClassStats]:
        return {"light": LIGHT, "heavy": ClassStats()}

    async def buried(self) -> dict[tuple[str, str], int]:
        return {("light", "failed"): 2, ("heavy", "failed"): 9, ("light", "worker_lost"): 1}


class Meter(dict[tuple[str, ...], float]):
    def set(self, name: str, labels: dict[str, str], value: float) -> None:
        self[(name, *labels.values())] = value

    def add(self, name: str, labels: dict[str, str], value: float) -> None:
        key = (name, *labels.values())
        self[key] = self.get(key, 0.0) + value


async def test_what_waits_who_works_and_what_died() -> None:
    meter = Meter()
    watch = TaskWatch("eu-1", "light", meter, lambda: 0.0)  # type: ignore[arg-type]
    await watch.look(Bus())  # type: ignore[arg-type]
    watch.ended(JOB, "done")
    watch.ended(replace(JOB, silent_s=31.0), "retried")
    assert meter == {
        ("grix_tasks_waiting", "eu-1", "light", "high"): 2,
        ("grix_tasks_waiting", "eu-1", "light", "normal"): 10,
        ("grix_task_oldest_wait_s", "eu-1", "light", "high"): 0.5,
        ("grix_task_oldest_wait_s", "eu-1", "light", "normal"): 42.0,
        ("grix_task_workers", "eu-1", "light"): 3,
        ("grix_task_dead_letters", "eu-1", "light", "failed"): 2,
        ("grix_task_dead_letters", "eu-1", "light", "worker_lost"): 1,
        ("grix_task_attempts_total", "eu-1", "light", "done"): 1,
        ("grix_task_attempts_total", "eu-1", "light", "retried"): 1,
        ("grix_task_takeovers_total", "eu-1", "light"): 1,
    }


async def test_a_worker_tells_its_tasks_and_its_part_of_those_that_wait() -> None:
    now_s = 100.0
    watch = TaskWatch("eu-1", "light", Meter(), lambda: now_s)  # type: ignore[arg-type]
    assert watch.for_scaling(2) == {}
    for _ in range(3):
        watch.ended(JOB, "done")
    await watch.look(Bus())  # type: ignore[arg-type]
    # 12 wait for 3 workers.
    told = {"oldest_wait_ms": 42_000.0, "ongoing_requests": 6.0, "uncounted_requests": 6.0}
    assert watch.for_scaling(2) == {**told, "started_rps": 0.1}
    now_s = 131.0
    assert watch.for_scaling(2) == {**told, "started_rps": 0.0}
