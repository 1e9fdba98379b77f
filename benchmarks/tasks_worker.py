"""A task worker as a process of its own, for :mod:`benchmarks.tasks`: real bus, real worker, and work that only waits.

Every end of a task and every takeover is a line in its log, which is there from when it works. It ends with SIGTERM,
which hands back what it holds.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

from serve_app.core.tasks import CLASSES
from serve_app.edge.task_bus import TaskBus
from serve_app.edge.task_jobs import Job
from serve_app.edge.task_seals import Seals, read_secret
from serve_app.edge.task_store import connect
from serve_app.edge.task_worker import Result, TaskWorker, Work

#: How long one that is told to end lets its tasks run.
GRACE_S = 1.0
LIMIT_S = 600.0


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What the task with this input has to come to."""
    return {"n": asked["n"], "square": asked["n"] ** 2}


async def work(work: Work) -> Result:
    """Waits as long as the task says, as one whose engine is elsewhere."""
    asked = json.loads(work.job.input)
    await work.reached("asked")
    await asyncio.sleep(asked["takes_s"])
    return Result(json.dumps(answer(asked)))


async def serve(settings: dict[str, Any]) -> None:
    """One instance: a worker for each class, until SIGTERM."""
    log = Path(settings["log"])

    def told(job: Job, how: str) -> None:
        with log.open("a") as file:
            file.write(json.dumps({"id": job.id, "how": how, "silent_s": job.silent_s}) + "\n")

    client = connect(settings["url"], settings["password_file"])
    seals = Seals(read_secret(settings["secret_file"]))
    bus = TaskBus(client, settings["region"], seals, claim_holds_s=settings["claim_holds_s"])
    workers = [
        TaskWorker(
            bus,
            name,
            f"{settings['owner']}-{name}",
            settings["slots"],
            work,
            LIMIT_S,
            random.random,
            told,
            beat_s=settings["claim_holds_s"] / 6,
        )
        for name in CLASSES
    ]
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    for worker in workers:
        worker.start()
    log.touch()
    await ended.wait()
    await asyncio.gather(*(worker.stop(GRACE_S) for worker in workers))
    await bus.close()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
