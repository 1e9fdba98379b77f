"""A worker on a real Valkey: where long work gives way and goes on, and what a Redis that hangs costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from serve_app.core.tasks import NewParts, NewTask
from serve_app.edge.task_bus import TaskBus
from serve_app.edge.task_jobs import Nothing
from serve_app.edge.task_seals import Seals
from serve_app.edge.task_store import connect
from serve_app.edge.task_worker import Result, TaskWorker, Work
from tests.valkey_store import TASK_SECRET, Store


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[tuple[Store, Redis]]:
    store = Store(tmp_path)
    store.begin()
    client = connect(store.url, store.password_file)
    yield store, client
    await client.aclose()
    store.end()


def part(n: int) -> NewTask:
    return NewTask(f"acme/long:{n}", "acme", "light", "normal", f"{n}")


async def test_long_work_gives_way_after_a_part_and_goes_on_from_there(opened: tuple[Store, Redis]) -> None:
    bus = TaskBus(opened[1], "r", Seals(TASK_SECRET.encode()))
    ran: list[str] = []

    async def work(work: Work) -> Result:
        ran.append(work.job.id)
        if work.job.id == "acme/long:0":
            # It comes while the only slot is taken.
            await bus.submit(NewTask("acme/urgent", "acme", "light", "high", "{}"))
        return Result(f'"{work.job.id}"')

    await bus.fan_out(NewParts("acme/long", "acme", "normal", tuple(part(n) for n in range(3))))
    worker = TaskWorker(bus, "light", "w1", 1, work, 60.0, lambda: 0.0)
    worker.start()
    async with asyncio.timeout(20.0):
        while (root := await bus.get("acme/long")) is None or root.state != "done":
            await asyncio.sleep(0.01)
    await worker.stop(0.0)
    # No part ran twice, and what the first one came to was kept meanwhile.
    assert ran == ["acme/long:0", "acme/urgent", "acme/long:1", "acme/long:2"]
    assert [done.result for done in await bus.parts("acme/long")] == [f'"acme/long:{n}"' for n in range(3)]


async def test_an_answer_of_a_redis_that_hangs_is_waited_for_as_long_as_is_set(opened: tuple[Store, Redis]) -> None:
    store, client = opened
    seals = Seals(TASK_SECRET.encode())
    bus, hasty = TaskBus(client, "r", seals), TaskBus(client, "r", seals, read_limit_s=0.05)
    await bus.beat("light", "w1", 1, [])
    store.process().suspend()
    try:
        with pytest.raises(TimeoutError):
            await hasty.get("acme/t0")
        with pytest.raises(TimeoutError):
            await hasty.claim("light", "w1", "high")
    finally:
        store.process().resume()
    assert await bus.claim("light", "w1", "high") == Nothing(None)
