"""The task bus in a real Valkey: one result a task, whoever dies, and whatever is in the streams."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from serve_app.core.tasks import MOST_ATTEMPTS, ClassStats, DeadPage, NewParts, NewTask, Submitted
from serve_app.edge.task_bus import TaskBus
from serve_app.edge.task_jobs import Bounds, Job, Nothing, NotRegistered
from serve_app.edge.task_seals import Seals
from serve_app.edge.task_store import FAILURES, connect
from tests.valkey_store import TASK_SECRET, Store

_REGIONS = itertools.count()
SEALS = Seals(TASK_SECRET.encode())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Each test has a region of its own in it."""
    made = Store(tmp_path_factory.mktemp("valkey"))
    made.begin()
    # A server that is younger than a claim holds calls nobody lost.
    while time.time() - made.process().create_time() < 2.0:
        time.sleep(0.05)
    yield made
    made.end()


@pytest.fixture
def region() -> str:
    return f"region-{next(_REGIONS)}"


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Redis]:
    made = connect(store.url, store.password_file)
    yield made
    await made.aclose()


@pytest.fixture
def bus(client: Redis, region: str) -> TaskBus:
    return TaskBus(client, region, SEALS)


@pytest.fixture
def hasty(client: Redis, region: str) -> TaskBus:
    """The same tasks for one who does not wait: a claim holds for a millisecond."""
    return TaskBus(client, region, SEALS, claim_holds_s=0.001)


def task(n: int = 0, **changes: Any) -> NewTask:
    return replace(NewTask(f"acme/t{n}", "acme", "light", "normal", json.dumps({"n": n})), **changes)


async def look(bus: TaskBus, first: str = "high", owner: str = "w1") -> Job | Nothing:
    """What a worker gets that has registered."""
    await bus.beat("light", owner, 4, [])
    return await bus.claim("light", owner, first)  # type: ignore[arg-type]


async def take(bus: TaskBus, first: str = "high") -> Job:
    got = await look(bus, first)
    assert isinstance(got, Job), got
    return got


async def states(bus: TaskBus, task_id: str) -> list[str]:
    return [event.state for event in await bus.events(task_id, "0")]


async def test_a_task_runs_and_has_its_result(bus: TaskBus, client: Redis, region: str) -> None:
    assert await bus.submit(task()) == Submitted("new", "queued")
    job = await take(bus)
    assert (job.id, job.input, job.attempts, job.silent_s) == ("acme/t0", '{"n": 0}', 1, None)
    await bus.tell(job, "half")
    assert await bus.finish(job, '"ok"')
    done = await bus.get("acme/t0")
    assert done is not None and (done.state, done.result, done.input) == ("done", '"ok"', None)
    assert await states(bus, "acme/t0") == ["queued", "running", "progress", "done"]
    # Nothing is left of it in the stream, nor among what counts against a limit.
    assert await client.xlen(f"grix:{{{region}}}:tasks:q:light:normal") == 0
    assert await client.hgetall(f"grix:{{{region}}}:tasks:held") == {"done_bytes": "4"}
    assert await look(bus) == Nothing(None)


async def test_submitted_twice_it_is_one_task(bus: TaskBus) -> None:
    assert (await bus.submit(task())).how == "new"
    assert await bus.submit(task()) == Submitted("known", "queued")
    job = await take(bus)
    assert await bus.submit(task()) == Submitted("known", "running")
    assert await bus.submit(task(input="{}")) == Submitted("conflict", "running")
    assert await bus.finish(job, "1")
    assert await bus.submit(task()) == Submitted("known", "done")
    assert isinstance(await look(bus), Nothing)


async def test_a_result_is_stored_once_however_often_it_is_said(bus: TaskBus) -> None:
    await bus.submit(task())
    job = await take(bus)
    assert await bus.finish(job, "1") and await bus.finish(job, "1")
    assert await states(bus, "acme/t0") == ["queued", "running", "done"]
    assert not await bus.finish(replace(job, claim="of somebody else"), "2")


async def test_a_lost_worker_is_replaced_and_cannot_store_what_it_has(bus: TaskBus, hasty: TaskBus) -> None:
    await bus.submit(task())
    first = await take(bus)
    assert isinstance(await look(bus, owner="w2"), Nothing)
    await asyncio.sleep(0.01)
    second = await take(hasty)
    assert second.id == first.id and second.attempts == 2 and 0 < (second.silent_s or 0) < 60
    assert not await bus.finish(first, "1")
    assert await bus.beat("light", "w1", 4, [first]) == {first.claim}
    assert await bus.finish(second, "2")
    found = await bus.get("acme/t0")
    assert found is not None and found.result == "2"


async def test_a_beat_renews_a_claim(bus: TaskBus, client: Redis, region: str) -> None:
    await bus.submit(task())
    job = await take(bus)
    pending = f"grix:{{{region}}}:tasks:q:light:normal"

    async def idle_ms() -> int:
        return int((await client.xpending_range(pending, "workers", "-", "+", 1))[0]["time_since_delivered"])

    while await idle_ms() < 30:
        await asyncio.sleep(0.01)
    assert await bus.beat("light", "w1", 4, [job]) == frozenset()
    assert await idle_ms() < 30
    assert (await bus.stats())["light"] == ClassStats(
        {"high": 0, "normal": 0}, {"high": 0, "normal": 0}, running=1, workers=1, slots=4
    )


async def test_a_beat_tells_a_claim_that_is_lost_from_the_same_workers_next_one(bus: TaskBus, hasty: TaskBus) -> None:
    await bus.submit(task())
    lost = await take(hasty)
    await asyncio.sleep(0.01)
    held = await take(hasty)
    assert held.id == lost.id and await bus.beat("light", "w1", 4, [lost, held]) == {lost.claim}


async def test_what_kills_each_worker_becomes_a_dead_letter(bus: TaskBus, hasty: TaskBus) -> None:
    await bus.submit(task())
    for attempt in range(1, MOST_ATTEMPTS + 1):
        assert (await take(hasty)).attempts == attempt
        await asyncio.sleep(0.01)
    assert isinstance(await look(hasty), Nothing)
    (dead,) = (await bus.dead()).letters
    assert (dead.id, dead.reason, dead.attempts, dead.input) == ("acme/t0", "worker_lost", 4, '{"n": 0}')
    assert await bus.buried() == {("light", "worker_lost"): 1}


async def test_a_dead_letter_is_replayed_or_dropped(bus: TaskBus) -> None:
    await bus.submit(task())
    assert await bus.bury(await take(bus), "failed", "no luck")
    assert await bus.replay("acme/t0") and not await bus.replay("acme/t0")
    job = await take(bus)
    assert job.attempts == 1
    assert await bus.bury(job, "failed", "again")
    assert await bus.drop("acme/t0") and not await bus.drop("acme/t0")
    assert await bus.get("acme/t0") is None and await bus.dead() == DeadPage((), None)
    # It may come again, as it is not known any more.
    assert (await bus.submit(task())).how == "new"


def key_of(region: str, rest: str) -> str:
    return f"grix:{{{region}}}:tasks:{rest}"


async def inject(client: Redis, region: str, task_id: str, **fields: str) -> None:
    """A task as somebody puts it there who has the password of the Redis and not the secret."""
    row = {
        "id": task_id,
        "tenant": "acme",
        "class": "light",
        "priority": "normal",
        "input": '{"n": 0}',
        "state": "queued",
        "attempts": "0",
        "submitted_ms": "1",
        **fields,
    }
    entry = await client.xadd(key_of(region, "q:light:normal"), {"id": task_id})
    await client.hset(key_of(region, f"t:{task_id}"), mapping={**row, "entry": entry})


async def test_what_has_no_seal_of_the_region_is_not_run(bus: TaskBus, client: Redis, region: str) -> None:
    await bus.submit(task(0))
    stolen = await client.hget(key_of(region, "t:acme/t0"), "seal")
    assert isinstance(await look(bus), Job)
    await inject(client, region, "acme/injected")
    await inject(client, region, "acme/guessed", seal="0" * 64)
    # A seal is of one task, of one tenant, of one input.
    await inject(client, region, "acme/copied", seal=stolen or "")
    await inject(client, region, "acme/half", attempts="many")
    await bus.submit(task(1))
    assert (await take(bus)).id == "acme/t1"
    page = await bus.dead()
    assert {(letter.id, letter.reason) for letter in page.letters if not letter.id.startswith("bad/")} == {
        (f"acme/{name}", "bad_payload") for name in ("injected", "guessed", "copied")
    }
    assert len(page.letters) == 4 and not await bus.replay("acme/injected")
    # What nobody submitted counts against nobody.
    held = await client.hgetall(key_of(region, "held"))
    assert (held["live"], held["live/acme"]) == ("2", "2")


@pytest.mark.parametrize(("field", "value"), [("tenant", "ops"), ("input", '{"n": 1}'), ("priority", "high")])
async def test_a_task_that_was_changed_is_not_run(
    bus: TaskBus, client: Redis, region: str, field: str, value: str
) -> None:
    await bus.submit(task(0))
    await client.hset(key_of(region, "t:acme/t0"), field, value)
    assert isinstance(await look(bus), Nothing)
    assert {letter.reason for letter in (await bus.dead()).letters} == {"bad_payload"}


async def test_parts_have_seals_too(bus: TaskBus, client: Redis, region: str) -> None:
    await bus.fan_out(in_parts(2))
    await client.hset(key_of(region, "t:acme/root:0"), "input", "{}")
    assert (await take(bus)).id == "acme/root:1"


async def test_only_registered_workers_of_the_region_take_tasks(bus: TaskBus, client: Redis, region: str) -> None:
    stranger = TaskBus(client, region, Seals(b"of another region, which is as long"))
    await bus.submit(task(0))
    with pytest.raises(NotRegistered):
        await bus.claim("light", "w1", "high")
    with pytest.raises(NotRegistered):
        await stranger.beat("light", "w1", 4, [])
    await bus.beat("light", "w1", 4, [])
    # Neither by a name that is registered, nor for another class.
    with pytest.raises(NotRegistered):
        await stranger.claim("light", "w1", "high")
    with pytest.raises(NotRegistered):
        await bus.claim("heavy", "w1", "high")
    assert await client.get(key_of(region, "gate")) == SEALS.gate != SEALS.worker_token
    assert (await take(bus)).id == "acme/t0"


async def test_a_secret_that_is_replaced_lets_the_new_workers_in(bus: TaskBus, client: Redis, region: str) -> None:
    new = TaskBus(client, region, Seals(b"the next secret, which is as long as it"))
    await bus.submit(task(0))
    await bus.beat("light", "w1", 4, [])
    await new.submit(task(1))
    with pytest.raises(NotRegistered):
        await bus.claim("light", "w1", "high")
    assert (await take(new)).id == "acme/t1"
    assert [(letter.id, letter.reason) for letter in (await new.dead()).letters] == [("acme/t0", "bad_payload")]


async def test_a_task_is_noted_to_be_in_one_region_however_often_it_is_sent(bus: TaskBus) -> None:
    first = await bus.send("acme/t0", "acme", "eu-1")
    again = await bus.send("acme/t0", "acme", "eu-2")
    assert (first.region, first.is_new, again.region, again.is_new) == ("eu-1", True, "eu-1", False)
    assert await bus.sent("acme/t0") == "eu-1" and await bus.sent("acme/t1") is None
    # It was sent again since, so the first one's failure does not take the note away.
    await bus.unsend("acme/t0", "acme", first)
    assert await bus.submit(task()) == Submitted("elsewhere", None, "eu-1")
    await bus.unsend("acme/t0", "acme", again)
    assert await bus.sent("acme/t0") is None and (await bus.submit(task())).how == "new"
    here = await bus.send("acme/t0", "acme", "eu-1")
    assert (here.region, here.is_new) == (None, False) and await bus.sent("acme/t0") is None


async def test_parts_of_a_task_that_is_elsewhere_stay_there(bus: TaskBus) -> None:
    await bus.send("acme/root", "acme", "eu-1")
    assert await bus.fan_out(in_parts(2)) == Submitted("elsewhere", None, "eu-1")
    assert await bus.get("acme/root:0") is None


async def test_notes_of_a_tenant_are_bounded_and_end(client: Redis, region: str) -> None:
    bus = TaskBus(client, region, SEALS, bounds=Bounds(results=2))
    for n in range(3):
        await bus.send(f"acme/t{n}", "acme", "eu-1")
        await asyncio.sleep(0.002)
    await bus.send("b/t0", "b", "eu-1")
    assert [await bus.sent(key) for key in ("acme/t0", "acme/t1", "acme/t2", "b/t0")] == [None, *["eu-1"] * 3]
    brief = TaskBus(client, region, SEALS, bounds=Bounds(dead_ttl_s=0.001))
    await brief.send("c/t0", "c", "eu-1")
    await asyncio.sleep(0.01)
    assert await bus.sent("c/t0") is None
    assert not await client.exists(key_of(region, "sent:c"))


async def test_dead_letters_come_in_pages_of_bounded_size(bus: TaskBus) -> None:
    for n in range(4):
        await bus.submit(task(n, input="x" * 10))
        await bus.bury(await take(bus), "failed", "no luck")
        await asyncio.sleep(0.002)

    async def page(offset: int, limit: int, most_chars: int) -> tuple[list[str], int | None]:
        got = await bus.dead(offset, limit, most_chars)
        return [letter.id for letter in got.letters], got.next_offset

    assert await page(0, 3, 1000) == (["acme/t3", "acme/t2", "acme/t1"], 3)
    assert await page(3, 3, 1000) == (["acme/t0"], None)
    assert await page(0, 4, 1000) == (["acme/t3", "acme/t2", "acme/t1", "acme/t0"], None)
    # As many as have room, and never none.
    assert await page(0, 4, 25) == (["acme/t3", "acme/t2"], 2) and await page(1, 4, 5) == (["acme/t2"], 2)
    assert await page(4, 4, 1000) == ([], None)


async def test_a_retry_waits_for_its_time(bus: TaskBus) -> None:
    await bus.submit(task())
    assert await bus.retry(await take(bus), 3600.0, "failed", "no luck")
    nothing = await look(bus)
    assert isinstance(nothing, Nothing) and 3500 < (nothing.due_s or 0) <= 3600
    found = await bus.get("acme/t0")
    assert found is not None and (found.state, found.reason) == ("retrying", "failed")
    assert await bus.cancel("acme/t0") == "cancelled"
    assert await look(bus) == Nothing(None)
    await bus.submit(task(1))
    assert await bus.retry(await take(bus), 0.0, "failed", "no luck")
    assert (await take(bus)).attempts == 2


async def test_what_is_put_off_has_made_no_attempt(bus: TaskBus) -> None:
    await bus.submit(task())
    for _ in range(2 * MOST_ATTEMPTS):
        job = await take(bus)
        assert job.attempts == 1 and await bus.put_off(job, 0.0, "waits: tasks_limit")
    found = await bus.get("acme/t0")
    assert found is not None and (found.state, found.attempts, found.reason) == ("retrying", 0, None)
    assert (await bus.events("acme/t0", "0"))[-1].data == "waits: tasks_limit"


async def test_what_is_handed_back_goes_on_elsewhere_as_if_it_had_not_been_taken(bus: TaskBus) -> None:
    await bus.submit(task())
    await bus.submit(task(1))
    first = await take(bus)
    assert await bus.hand_back(first)
    again = await take(bus)
    assert (again.id, again.attempts, again.silent_s) == ("acme/t0", 1, None)
    assert not await bus.finish(first, "1")
    assert (await take(bus)).id == "acme/t1"


async def test_cancelled_while_claimed(bus: TaskBus) -> None:
    await bus.submit(task())
    job = await take(bus)
    assert await bus.cancel("acme/t0") == "cancelled"
    assert await bus.beat("light", "w1", 4, [job]) == {job.claim}
    assert not await bus.finish(job, "1")
    assert await bus.cancel("acme/t0") == "cancelled"
    assert await bus.cancel("acme/unknown") is None


async def test_high_goes_first_unless_it_is_the_turn_of_the_others(bus: TaskBus) -> None:
    for n in range(3):
        await bus.submit(task(n))
    await bus.submit(task(9, priority="high"))
    assert [(await take(bus)).id, (await take(bus)).id] == ["acme/t9", "acme/t0"]
    await bus.submit(task(8, priority="high"))
    assert (await take(bus, "normal")).id == "acme/t1"
    stats = (await bus.stats())["light"]
    assert (stats.waiting, stats.running) == ({"high": 1, "normal": 1}, 3)
    assert stats.oldest_s["normal"] >= stats.oldest_s["high"] >= 0


@pytest.mark.parametrize("fields", [{"x": "y"}, {"id": "acme/unknown"}, {"id": b"\xff\xfe"}])
async def test_what_is_no_task_becomes_a_dead_letter_and_the_rest_goes_on(
    bus: TaskBus, client: Redis, region: str, fields: dict[str, Any]
) -> None:
    await bus.submit(task())
    await client.xadd(f"grix:{{{region}}}:tasks:q:light:normal", fields)
    await bus.submit(task(1))
    assert [(await take(bus)).id, (await take(bus)).id] == ["acme/t0", "acme/t1"]
    assert isinstance(await look(bus), Nothing)
    (dead,) = (await bus.dead()).letters
    assert (dead.reason, dead.tenant, dead.state) == ("bad_payload", "", "failed")
    assert not await bus.replay(dead.id) and await bus.drop(dead.id)


async def test_a_stream_that_is_gone_is_made_again_with_its_tasks(bus: TaskBus, client: Redis, region: str) -> None:
    await bus.submit(task())
    await bus.submit(task(1))
    running = await take(bus)
    await client.delete(f"grix:{{{region}}}:tasks:q:light:normal")
    assert await bus.finish(running, "1")
    assert (await take(bus)).id == "acme/t1"
    assert isinstance(await look(bus), Nothing)


async def test_a_group_that_is_gone_is_made_again(bus: TaskBus, client: Redis, region: str) -> None:
    await bus.submit(task())
    await look(bus)
    await client.xgroup_destroy(f"grix:{{{region}}}:tasks:q:light:normal", "workers")
    again = await take(bus)
    assert again.id == "acme/t0" and await bus.finish(again, "1")


async def test_everything_is_bounded(client: Redis, region: str) -> None:
    small = Bounds(tasks=3, tasks_of_tenant=2, input_bytes=1000, results=2, dead=1)
    bus = TaskBus(client, region, SEALS, bounds=small)
    assert [(await bus.submit(task(n))).how for n in range(3)] == ["new", "new", "tenant_full"]
    assert (await bus.submit(task(3, tenant="b", input="x" * 1001))).how == "full"
    assert [(await bus.submit(task(n, tenant="b"))).how for n in (4, 5)] == ["new", "full"]
    for _ in range(3):
        await bus.finish(await take(bus), "1")
    await look(bus)
    assert [await bus.get(f"acme/t{n}") is None for n in (0, 1, 4)] == [True, False, False]
    for n in (6, 7):
        await bus.submit(task(n))
        await bus.bury(await take(bus), "failed", "")
    await look(bus)
    assert [dead.id for dead in (await bus.dead()).letters] == ["acme/t7"]
    # What is kept is what two results and one input have.
    held = {"done_bytes": "2", "dead_bytes": str(len('{"n": 7}'))}
    assert await client.hgetall(f"grix:{{{region}}}:tasks:held") == held


async def test_results_go_when_there_are_too_many_bytes_of_them_or_they_are_old(client: Redis, region: str) -> None:
    bus = TaskBus(client, region, SEALS, bounds=Bounds(result_bytes=15))
    for n in range(2):
        await bus.submit(task(n))
        await bus.finish(await take(bus), '"ten byte"')
    await look(bus)
    assert [await bus.get(f"acme/t{n}") is None for n in (0, 1)] == [True, False]
    old = TaskBus(client, region, SEALS, bounds=Bounds(result_ttl_s=0.0))
    await asyncio.sleep(0.002)
    await look(old)
    assert await bus.get("acme/t1") is None
    assert await client.hgetall(f"grix:{{{region}}}:tasks:held") == {}


async def test_one_tenant_has_a_quarter_of_the_bytes(client: Redis, region: str) -> None:
    bus = TaskBus(client, region, SEALS, bounds=Bounds(input_bytes=40))
    assert [(await bus.submit(task(n, input="x" * 6))).how for n in (0, 1)] == ["new", "tenant_full"]
    assert (await bus.fan_out(in_parts(1))).how == "tenant_full"
    assert (await bus.submit(task(2, tenant="b", input="x" * 10))).how == "new"
    assert await bus.finish(await take(bus), "1")
    assert (await bus.submit(task(1, input="x" * 6))).how == "new"
    assert await bus.cancel("acme/t1") == await bus.cancel("acme/t2") == "cancelled"
    assert await client.hgetall(f"grix:{{{region}}}:tasks:held") == {"done_bytes": "1"}


async def test_dead_letters_push_out_dead_letters_and_no_results(client: Redis, region: str) -> None:
    bus = TaskBus(client, region, SEALS, bounds=Bounds(result_bytes=15, dead_bytes=15))
    await bus.submit(task(0))
    await bus.finish(await take(bus), '"ten byte"')
    for n in (1, 2):
        await bus.submit(task(n, input='"ten byte"'))
        await bus.bury(await take(bus), "failed", "no luck")
    await look(bus)
    assert await bus.get("acme/t0") is not None and [dead.id for dead in (await bus.dead()).letters] == ["acme/t2"]
    assert await client.hgetall(f"grix:{{{region}}}:tasks:held") == {"done_bytes": "10", "dead_bytes": "10"}


async def test_a_sleeping_worker_is_woken(bus: TaskBus) -> None:
    waiting = asyncio.create_task(bus.wait("light", 30.0))
    await bus.submit(task())
    await asyncio.wait_for(waiting, 10.0)


async def test_the_embedded_redis_of_tasks_loses_none(bus: TaskBus) -> None:
    assert await bus.loses() == []


def in_parts(count: int) -> NewParts:
    parts = tuple(task(n, id=f"acme/root:{n}") for n in range(count))
    return NewParts("acme/root", "acme", "normal", parts)


async def test_a_task_in_parts_ends_with_the_last_of_them(bus: TaskBus) -> None:
    assert await bus.fan_out(in_parts(3)) == Submitted("new", "running")
    assert await bus.fan_out(in_parts(3)) == Submitted("known", "running")
    assert (await bus.fan_out(in_parts(2))).how == "conflict"
    first, second, third = [await take(bus) for _ in range(3)]
    # In whatever order they end, and whatever becomes of them.
    assert await bus.finish(third, '"c"') and await bus.bury(first, "failed", "no luck")
    root = await bus.get("acme/root")
    assert root is not None and (root.state, root.left) == ("running", 1)
    assert await bus.finish(second, '"b"')
    root = await bus.get("acme/root")
    assert root is not None and (root.state, root.left) == ("done", 0)
    parts = await bus.parts("acme/root")
    assert [(p.id, p.state, p.result) for p in parts] == [
        ("acme/root:0", "failed", None),
        ("acme/root:1", "done", '"b"'),
        ("acme/root:2", "done", '"c"'),
    ]
    assert await states(bus, "acme/root") == ["running", "progress", "progress", "progress", "done"]
    # A dead letter that is replayed makes it whole after all.
    assert await bus.replay("acme/root:0")
    root = await bus.get("acme/root")
    assert root is not None and (root.state, root.left) == ("running", 1)
    assert await bus.finish(await take(bus), '"a"')
    root = await bus.get("acme/root")
    assert root is not None and (root.state, root.left) == ("done", 0)


async def test_a_task_in_parts_is_cancelled_with_all_that_have_not_ended(bus: TaskBus) -> None:
    await bus.fan_out(in_parts(3))
    done, running = await take(bus), await take(bus)
    assert await bus.finish(done, "1")
    assert await bus.cancel("acme/root") == "cancelled"
    assert [part.state for part in await bus.parts("acme/root")] == ["done", "cancelled", "cancelled"]
    assert not await bus.finish(running, "1")
    assert isinstance(await look(bus), Nothing)
    assert (await states(bus, "acme/root"))[-1] == "cancelled"


async def test_a_part_of_its_own_is_cancelled_without_the_others(bus: TaskBus) -> None:
    await bus.fan_out(in_parts(2))
    assert await bus.cancel("acme/root:1") == "cancelled"
    assert await bus.finish(await take(bus), "1")
    root = await bus.get("acme/root")
    assert root is not None and (root.state, root.left) == ("done", 0)


async def test_parts_come_whole_or_not_at_all_and_go_with_their_task(client: Redis, region: str) -> None:
    bus = TaskBus(client, region, SEALS, bounds=Bounds(tasks_of_tenant=2, result_ttl_s=0.0, dead_ttl_s=0.0))
    assert (await bus.fan_out(in_parts(3))).how == "tenant_full"
    assert await bus.get("acme/root:0") is None
    assert (await bus.fan_out(in_parts(2))).how == "new"
    assert await bus.finish(await take(bus), "1") and await bus.bury(await take(bus), "failed", "")
    await asyncio.sleep(0.002)
    assert isinstance(await look(bus), Nothing)
    left = [key async for key in client.scan_iter(f"grix:{{{region}}}:tasks:*")]
    names = sorted(key.partition(":tasks:")[2] for key in left)
    assert names == ["bell:light", "buried", "gate", "q:light:high", "q:light:normal", "w:w1", "workers:light"]


async def test_a_task_in_parts_that_comes_again_has_nothing_of_the_forgotten_one(client: Redis, region: str) -> None:
    bus = TaskBus(client, region, SEALS, bounds=Bounds(result_ttl_s=0.0))
    await bus.fan_out(in_parts(2))
    assert await bus.finish(await take(bus), "1") and await bus.bury(await take(bus), "failed", "no luck")
    await asyncio.sleep(0.002)
    assert isinstance(await look(bus), Nothing)
    assert await bus.get("acme/root") is None and [dead.id for dead in (await bus.dead()).letters] == ["acme/root:1"]
    assert (await bus.fan_out(in_parts(2))).how == "new"
    assert (await bus.dead()).letters == () and not await bus.replay("acme/root:1")
    part = await bus.get("acme/root:1")
    assert part is not None and (part.state, part.reason, part.ended_unix_s) == ("queued", None, None)
    assert await states(bus, "acme/root:1") == ["queued"]
    size = 2 * len('{"n": 0}')
    held = {"live": "2", "live/acme": "2", "live_bytes": str(size), "live_bytes/acme": str(size)}
    assert await client.hgetall(f"grix:{{{region}}}:tasks:held") == held


async def test_high_tasks_go_between_the_parts_of_a_long_one(bus: TaskBus) -> None:
    await bus.fan_out(in_parts(3))
    assert (await take(bus)).id == "acme/root:0"
    await bus.submit(task(9, priority="high"))
    assert [(await take(bus)).id for _ in range(3)] == ["acme/t9", "acme/root:1", "acme/root:2"]


async def test_tasks_outlive_their_redis(tmp_path: Path, region: str) -> None:
    """One killed and started again has everything, and calls nobody lost who could not tell it that he lives."""
    store = Store(tmp_path)
    store.begin()
    client = connect(store.url, store.password_file)
    bus = TaskBus(client, region, SEALS, claim_holds_s=3600.0)
    try:
        await bus.submit(task())
        await bus.submit(task(1))
        job = await take(bus)
        queue = f"grix:{{{region}}}:tasks:q:light:normal"
        (pending,) = await client.xpending_range(queue, "workers", "-", "+", 1)
        await client.xclaim(queue, "workers", "workers", 0, [pending["message_id"]], idle=7_200_000, justid=True)
        process = store.process()
        process.kill()
        process.wait(10)
        async with asyncio.timeout(20.0):
            while await gone(bus):
                await asyncio.sleep(0.02)
        # The task that waited is next, not the one that runs.
        assert (await take(bus)).id == "acme/t1"
        assert await bus.finish(job, "1")
    finally:
        await client.aclose()
        store.end()


async def test_a_full_redis_renews_claims_and_forgets_what_is_old(tmp_path: Path, region: str) -> None:
    store = Store(tmp_path, tasks=False)
    store.begin()
    client = connect(store.url, store.password_file)
    bus, old = TaskBus(client, region, SEALS), TaskBus(client, region, SEALS, bounds=Bounds(dead_ttl_s=0.0))
    try:
        await bus.submit(task())
        await bus.submit(task(1))
        await bus.bury(await take(bus), "failed", "no luck")
        job = await take(bus)
        await bus.beat("light", "w1", 4, [job])
        assert await bus.loses() == ["when it ends: appendonly is no, set yes"]
        await client.setrange("grix:full", 256 << 20, "x")
        assert (await bus.submit(task(2))).how == "full"
        assert await bus.beat("light", "w1", 4, [job]) == frozenset()
        assert await old.drop("acme/t0") and await bus.dead() == DeadPage((), None)
        assert await bus.finish(job, '"ok"')
    finally:
        await client.aclose()
        store.end()


async def gone(bus: TaskBus) -> bool:
    try:
        return await bus.get("acme/t0") is None
    except FAILURES:
        return True
