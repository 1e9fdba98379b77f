"""A Router's tasks through its bundles, in a real Valkey: where they are, and what is said when they are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_app.core.tasks import NewTask
from serve_app.edge.region_tasks import BusOfRegion, RegionTasks
from serve_app.edge.task_jobs import Job
from serve_app.outcomes import GrixError
from tests.valkey_store import Store

TASK = NewTask("acme/t1", "acme", "light", "normal", "{}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    made.begin()
    yield made
    made.end()


def region(store: Store, **changes: Any) -> dict[str, Any]:
    redis = {"url": store.url, "passwordFile": store.password_file}
    tasks = {"light": {"agent": "a"}, "secretFile": store.task_secret_file}
    return {"name": "eu-1", "redis": redis, "tasks": tasks, **changes}


async def is_away(tasks: RegionTasks) -> bool:
    for call in (tasks.submit(TASK), tasks.get("acme/t1"), tasks.events("acme/t1", "0"), tasks.cancel("acme/t1")):
        with pytest.raises(GrixError) as away:
            await call
        assert away.value.reason == "tasks_away"
    return True


async def test_tasks_are_where_the_settings_say(store: Store) -> None:
    tasks = RegionTasks()
    assert await is_away(tasks)
    await tasks.configure(region(store))
    assert (await tasks.submit(TASK)).how == "new"
    await tasks.configure(region(store))
    assert (await tasks.submit(TASK)).how == "known"
    assert (await tasks.stats())["light"].waiting == {"high": 0, "normal": 1}
    assert (await tasks.dead(0, 100)).letters == ()
    assert (await tasks.replay("acme/t1"), await tasks.drop("acme/t1")) == (False, False)
    assert [event.state for event in await tasks.events("acme/t1", "0")] == ["queued"]
    assert await tasks.cancel("acme/t1") == "cancelled"
    await tasks.configure(region(store, tasks=None))
    assert await is_away(tasks)
    await tasks.configure(region(store))
    found = await tasks.get("acme/t1")
    assert found is not None and found.state == "cancelled"
    store.end()
    assert await is_away(tasks)
    with pytest.raises(OSError, match="no-such-file"):
        await tasks.configure(region(store, redis={"url": store.url, "passwordFile": "/no-such-file"}))


async def test_without_a_secret_there_are_no_tasks(store: Store, tmp_path: Path) -> None:
    tasks = RegionTasks()
    await tasks.configure(region(store, tasks={"light": {"agent": "a"}}))
    assert await is_away(tasks)
    short = tmp_path / "short"
    short.write_text("x" * 31)
    with pytest.raises(OSError, match="has 31 characters; allowed: 32 or more"):
        await tasks.configure(region(store, tasks={"light": {"agent": "a"}, "secretFile": str(short)}))


async def test_who_leaves_a_bus_hands_back_by_it(store: Store) -> None:
    of_region = BusOfRegion()
    await of_region.configure(region(store))
    old = of_region.bus
    assert old is not None and (await old.submit(TASK)).how == "new"
    await old.beat("light", "w1", 1, [])
    job = await old.claim("light", "w1", "high")
    assert isinstance(job, Job)
    said: list[bool] = []

    async def leave() -> None:
        # What a client opens again after it was closed, nobody closes.
        assert not closed
        said.append(await old.hand_back(job))

    closed: list[bool] = []
    close = old.close

    async def seen() -> None:
        closed.append(True)
        await close()

    old.close = seen  # type: ignore[method-assign]
    assert await of_region.configure(region(store, tasks=None), leave)
    assert (said, closed, of_region.bus) == ([True], [True], None)
