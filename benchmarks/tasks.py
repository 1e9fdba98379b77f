"""The task bus under fire and under load: ``python -m benchmarks.tasks (--chaos --tasks 2000 | --instances 1,3,5)``.

``--chaos``: real worker processes are killed at random, the Redis is killed and started again, and tasks are submitted
twice. Afterwards every task that was accepted has to have ended, with the right result, and once. ``takeover_max_s`` is
the longest time that a task of a killed worker was with nobody.

``--instances``: 100 tasks, 7 light to 3 heavy, over N worker processes. Their engine only waits (a light task 0.4 s, a
heavy one 0.9 s), so that the curve is the bus's own: what an engine shares of the machine is not in it.
``queue_overhead_ms`` is the median time from a submission to the start of the work while workers are idle.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.processes import free_port
from benchmarks.tasks_worker import answer
from serve_app.core.tasks import ENDED, Event, NewTask, Priority, TaskClass
from serve_app.edge import valkey
from serve_app.edge.task_bus import CLAIM_HOLDS_S, TaskBus
from serve_app.edge.task_seals import Seals, read_secret
from serve_app.edge.task_store import FAILURES, connect

PASSWORD: Final = "of-a-benchmark"
REGION: Final = "bench"
WORKERS: Final = 5
SLOTS: Final = 4
#: Of submissions, those that are made again.
TWICE_SHARE: Final = 0.3
#: Nothing is told after so long without an end of a task.
STALL_S: Final = 180.0
#: Nothing is killed any more after so long, so that the run ends.
FIRE_S: Final = 600.0
#: Tasks a minute of the field report, by instances.
FIELD_REPORT: Final = {1: 2.1, 3: 6.7, 5: 11.1}
OVERHEAD_TASKS: Final = 30


@dataclass
class Scene:
    """A Redis and workers, all children of this process."""

    folder: Path
    claim_holds_s: float
    slots: int
    server: valkey.Valkey | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: int = 0

    def open(self) -> TaskBus:
        port = free_port()
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "secret").write_text(secrets.token_hex(32))
        self.server = valkey.start(port, PASSWORD, self.folder / "valkey.log", self.folder, {}, tasks=True)
        seals = Seals(read_secret(str(self.folder / "secret")))
        return TaskBus(connect(self.server.url, str(self.folder / "password")), REGION, seals)

    def add_worker(self) -> None:
        assert self.server is not None
        self.started += 1
        settings = {
            "url": self.server.url,
            "password_file": str(self.folder / "password"),
            "secret_file": str(self.folder / "secret"),
            "region": REGION,
            "owner": f"w{self.started}",
            "slots": self.slots,
            "claim_holds_s": self.claim_holds_s,
            "log": str(self._log(self.started)),
        }
        command = [sys.executable, "-m", "benchmarks.tasks_worker", json.dumps(settings)]
        with (self.folder / "workers.log").open("ab") as log:
            self.workers.append(subprocess.Popen(command, stdout=log, stderr=log))

    def kill_worker(self, draw: random.Random) -> None:
        """Ends one that works, most often without a word, and starts another. Killed as they start, none would work."""
        at_work = [w for n, w in enumerate(self.workers, 1) if w.poll() is None and self._log(n).exists()]
        if at_work:
            draw.choice(at_work).send_signal(draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            self.add_worker()

    def _log(self, n: int) -> Path:
        """Of the ``n``-th worker that was started, from 1; it is there from when it works."""
        return self.folder / f"w{n}.jsonl"

    def restart_redis(self) -> None:
        """Kills the server; its keeper starts it again."""
        assert self.server is not None
        for child in psutil.Process(self.server.pid).children():
            child.kill()

    def told(self) -> list[dict[str, Any]]:
        """What all workers told, the killed ones too."""
        lines = [line for log in self.folder.glob("w*.jsonl") for line in log.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.endswith("}")]

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        if self.server is not None:
            valkey.stop(self.server.pid, self.server.started_unix_s)


def a_task(n: int, takes_s: float, task_class: TaskClass, priority: Priority) -> NewTask:
    return NewTask(f"bench/t{n}", "bench", task_class, priority, json.dumps({"n": n, "takes_s": takes_s}))


async def insist(call: Any) -> Any:
    """The answer, however long Redis is away."""
    while True:
        try:
            return await call()
        except FAILURES:
            await asyncio.sleep(0.1)


async def submit_all(bus: TaskBus, tasks: Sequence[NewTask], draw: random.Random) -> set[str]:
    """Submits each once, and some twice; the ids that were accepted."""
    again: list[NewTask] = []
    accepted: set[str] = set()
    for task in tasks:
        for one in [task, *([again.pop(draw.randrange(len(again)))] if again and draw.random() < TWICE_SHARE else [])]:
            told = await insist(lambda one=one: bus.submit(one))
            assert told.how in ("new", "known"), told
            accepted.add(one.id)
        again.append(task)
        await asyncio.sleep(0)
    return accepted


async def until_ended(bus: TaskBus, ids: Sequence[str]) -> list[str]:
    """Waits until all have ended, or nothing moves any more; those that have not."""
    left, moved_s = list(ids), time.monotonic()
    while left and time.monotonic() - moved_s < STALL_S:
        still = []
        for one in left:
            found = await insist(lambda one=one: bus.get(one))
            if found is None or found.state not in ENDED:
                still.append(one)
        if len(still) < len(left):
            left, moved_s = still, time.monotonic()
        await asyncio.sleep(0.5)
    return left


async def fire(scene: Scene, bus: TaskBus, draw: random.Random, kill_s: float, restart_s: float) -> None:
    """Kills workers, and now and then the Redis, until it is cancelled or :data:`FIRE_S` have passed."""
    began_s = time.monotonic()
    restart_at_s = began_s + restart_s
    while time.monotonic() < began_s + FIRE_S:
        await asyncio.sleep(draw.uniform(0.5, 1.5) * kill_s)
        scene.kill_worker(draw)
        if time.monotonic() >= restart_at_s:
            scene.restart_redis()
            await insist(bus.stats)
            # From its return on: nothing is taken over soon after it.
            restart_at_s = time.monotonic() + restart_s


async def chaos(scene: Scene, tasks: int, seed: int, kill_s: float, restart_s: float) -> dict[str, Any]:
    draw = random.Random(seed)
    bus = scene.open()
    for _ in range(WORKERS):
        scene.add_worker()
    asked = [
        a_task(
            n,
            draw.uniform(0.01, 0.4),
            "light" if draw.random() < 0.7 else "heavy",
            "high" if draw.random() < 0.3 else "normal",
        )
        for n in range(tasks)
    ]
    killing = asyncio.create_task(fire(scene, bus, draw, kill_s, restart_s))
    accepted = await submit_all(bus, asked, draw)
    lost = await until_ended(bus, sorted(accepted))
    killing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await killing
    completed = doubled = dead = wrong = 0
    for task in asked:
        found = await insist(lambda task=task: bus.get(task.id))
        events: list[Event] = await insist(lambda task=task: bus.events(task.id, "0"))
        doubled += sum(event.state == "done" for event in events) > 1
        if found is not None and found.state == "done":
            completed += 1
            wrong += json.loads(found.result or "null") != answer(json.loads(task.input))
        elif found is not None and found.state == "failed":
            dead += 1
    await bus.close()
    silent_s = [line["silent_s"] for line in scene.told() if line["silent_s"] is not None]
    return {
        "submitted": len(accepted),
        "completed": completed,
        "dead": dead,
        "lost": len(lost),
        "doubled": doubled,
        "wrong": wrong,
        "takeover_max_s": round(max(silent_s, default=0.0), 1),
        "takeovers": len(silent_s),
        "workers_killed": scene.started - WORKERS,
    }


async def curve(folder: Path, instances: Sequence[int], tasks: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for n in instances:
        (folder / str(n)).mkdir()
        scene = Scene(folder / str(n), CLAIM_HOLDS_S, slots=1)
        try:
            rows[str(n)] = await one_point(scene, n, tasks)
        finally:
            scene.close()
    return {"instances": rows, "field_report_tasks_per_minute": {str(n): FIELD_REPORT.get(n) for n in instances}}


async def one_point(scene: Scene, instances: int, tasks: int) -> dict[str, Any]:
    bus = scene.open()
    for _ in range(instances):
        scene.add_worker()
    while (await bus.stats())["heavy"].workers < instances:
        await asyncio.sleep(0.05)
    overhead_ms = []
    for n in range(OVERHEAD_TASKS):
        task = a_task(100_000 + n, 0.0, "light", "normal")
        await bus.submit(task)
        await until_ended(bus, [task.id])
        at_ms = {e.state: int(e.id.partition("-")[0]) for e in await bus.events(task.id, "0")}
        overhead_ms.append(at_ms["running"] - at_ms["queued"])
    asked = [a_task(n, *((0.9, "heavy") if n % 10 >= 7 else (0.4, "light")), "normal") for n in range(tasks)]
    began_s = time.monotonic()
    for task in asked:
        await bus.submit(task)
    assert await until_ended(bus, [task.id for task in asked]) == []
    found = [await bus.get(task.id) for task in asked]
    await bus.close()
    first_s = min(task.submitted_unix_s for task in found if task)
    total_s = max(task.ended_unix_s or 0.0 for task in found if task) - first_s
    assert total_s <= time.monotonic() - began_s + 1.0
    return {
        "total_s": round(total_s, 2),
        "mean_latency_s": round(
            statistics.mean((task.ended_unix_s or 0.0) - task.submitted_unix_s for task in found if task), 2
        ),
        "tasks_per_minute": round(60 * tasks / total_s, 1),
        "queue_overhead_ms": statistics.median(overhead_ms),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 1 when a task was lost, doubled or wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--chaos", action="store_true", help="kill workers and the Redis meanwhile")
    parser.add_argument("--tasks", type=int, help="how many (2000 with --chaos, else 100)")
    parser.add_argument("--instances", default="1,3,5", help="worker processes, one curve point each (1,3,5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-s", type=float, default=2.0, help="a worker is killed about this often (2)")
    parser.add_argument("--restart-s", type=float, default=20.0, help="the Redis is killed this often (20)")
    parser.add_argument("--claim-holds-s", type=float, default=CLAIM_HOLDS_S, help=f"({CLAIM_HOLDS_S:g})")
    parser.add_argument("--json", action="store_true", help="as one line of JSON")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="grix-tasks-") as name:
        os.chmod(name, 0o700)
        if args.chaos:
            scene = Scene(Path(name), args.claim_holds_s, SLOTS)
            try:
                report = asyncio.run(chaos(scene, args.tasks or 2000, args.seed, args.kill_s, args.restart_s))
            finally:
                scene.close()
            failed = any(report[key] for key in ("lost", "doubled", "wrong"))
        else:
            instances = [int(n) for n in args.instances.split(",")]
            report, failed = asyncio.run(curve(Path(name), instances, args.tasks or 100)), False
    print(json.dumps(report) if args.json else json.dumps(report, indent=2))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
