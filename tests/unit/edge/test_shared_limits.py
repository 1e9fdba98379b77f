"""Limits in a real Valkey: several Routers share them, and what happens when it dies, hangs or forgets."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from serve_app.core.admission import (
    NO_LIMITS,
    Admitted,
    Allowance,
    Ask,
    Bucket,
    Left,
    Refused,
    Slot,
    Spent,
    State,
    decide,
    give_back,
)
from serve_app.edge import shared_limits
from serve_app.edge.limits import LocalLimits
from serve_app.edge.redis_client import connect
from serve_app.edge.region_limits import RegionLimits
from serve_app.edge.shared_limits import SharedLimits
from serve_app.ports import Grant
from tests.valkey_store import Store

SLOT = Slot("tenant/acme", 3, "concurrency_limit")
OPEN = Ask("free", 1, 1_000_000)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other things proves nothing about Redis; what a beat finds out is waited for less."""
    for name in ("CALL_LIMIT_S", "BACKGROUND_LIMIT_S"):
        monkeypatch.setattr(shared_limits, name, 10.0)
    monkeypatch.setattr(shared_limits, "BEAT_S", 0.1)
    monkeypatch.setattr(shared_limits, "TRY_AGAIN_S", 0.05)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    made.begin()
    yield made
    made.end()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not holds():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def router(store: Store, *, up: bool = True) -> AsyncIterator[SharedLimits]:
    made = SharedLimits(connect(store.url, store.password_file), "cloud-a", LocalLimits(time.monotonic))
    made.start()
    try:
        if up:
            await until(lambda: made.up)
        yield made
    finally:
        await made.close()


async def granted(limits: SharedLimits, ask: Ask, by: str = "region") -> Grant:
    answer = await limits.admit(ask)
    assert isinstance(answer, Grant) and answer.decided_by == by, answer
    return answer


def levels(left: Left) -> list[float]:
    assert left.requests is not None and left.tokens is not None
    assert (left.requests.per_minute, left.tokens.per_minute) == (6_000, 100_000)
    return [left.requests.level, left.tokens.level]


async def redis_s(limits: SharedLimits) -> float:
    seconds, micros = await limits._client.time()
    return float(seconds + micros / 1e6)


async def settled(limits: SharedLimits) -> None:
    await until(lambda: not limits._later)
    # One call later everything that was sent before has been done.
    await limits._client.ping()


async def test_routers_share_every_limit(store: Store) -> None:
    ask = Ask("acme", 10, 100, 1_000, (SLOT,))
    async with router(store) as one, router(store) as two:
        held = [await granted(r, ask) for r in (one, two, one)]
        for limits in (one, two):
            refused = await limits.admit(ask)
            assert isinstance(refused, Refused) and refused.reason == "concurrency_limit"
        two.settle(held[1], Spent(True, 10, 1.0))
        await settled(two)
        await granted(one, ask)
        for _ in range(3):
            await granted(two, Ask("sakura", 1, 3))
        refused = await one.admit(Ask("sakura", 1, 3))
        assert isinstance(refused, Refused) and refused.reason == "requests_limit" and 0 < refused.retry_after_s <= 20


async def test_at_once_from_many_sides_no_more_get_in_than_may(store: Store) -> None:
    ask = Ask("acme", 1, 7, 10_000, (Slot("tenant/acme", 5, "concurrency_limit"),))
    async with router(store) as one, router(store) as two:
        answers = await asyncio.gather(*(r.admit(ask) for _ in range(20) for r in (one, two)))
        assert sum(isinstance(a, Grant) for a in answers) == 5


async def test_what_is_left_is_told_of_the_limits_that_there_are(store: Store) -> None:
    async with router(store) as limits:
        tokens = (await granted(limits, Ask("acme", 800, None, 1_000))).left
        assert tokens.requests is None and tokens.tokens is not None
        assert (tokens.tokens.per_minute, round(tokens.tokens.level)) == (1_000, 200)
        slots = await granted(limits, Ask("sakura", 800, slots=(replace(SLOT, limit=1),)))
        assert slots.left == NO_LIMITS
        refused = await limits.admit(Ask("sakura", 800, 5, slots=(replace(SLOT, limit=1),)))
        assert isinstance(refused, Refused) and refused.left == Left(Allowance(5, 5.0))


async def test_tokens_come_back_when_they_were_not_used(store: Store) -> None:
    ask = Ask("acme", 800, None, 1_000)
    async with router(store) as limits:
        first = await granted(limits, ask)
        refused = await limits.admit(ask)
        assert isinstance(refused, Refused) and 30 < refused.retry_after_s <= 36
        limits.settle(first, Spent(True, 100, 1.0))
        await settled(limits)
        second = await granted(limits, ask)
        limits.settle(second, Spent(False, None, 1.0))
        await settled(limits)
        await granted(limits, ask)


async def test_the_script_decides_as_the_function_does(store: Store) -> None:
    """Random asks at both, from the state that Redis holds and at the times that Redis tells."""
    draw, refusals = random.Random(7), 0
    ask_slots = (Slot("tenant/acme", 20, "concurrency_limit"),)
    async with router(store) as limits:
        client, held = limits._client, list[Grant]()
        key = limits._keys(Ask("acme", 1))[0]

        async def buckets() -> tuple[Bucket | None, Bucket | None]:
            told = await client.hgetall(key)
            found = [(told.get(n), told.get(f"{n}_at")) for n in ("requests", "tokens")]
            requests, tokens = (Bucket(float(a), float(b)) if a and b else None for a, b in found)
            return requests, tokens

        for _ in range(150):
            ask = Ask("acme", draw.randint(1, 300), 6_000, 100_000, ask_slots)
            if draw.random() < 0.05:
                ask = replace(ask, tokens=150_000)
            state = State(*await buckets(), {"tenant/acme": len(held)})
            began_s = await redis_s(limits)
            theirs = await limits.admit(ask)
            ended_s = await redis_s(limits)
            first, last = (decide(ask, state, t, slot_free_s=1.0) for t in (began_s, ended_s))
            if isinstance(theirs, Grant):
                held.append(theirs)
                after = await buckets()
                assert after[0] is not None
                mine = decide(ask, state, after[0].at_s, slot_free_s=1.0)
                assert isinstance(mine, Admitted) and mine.tokens is not None and after[1] is not None
                assert after[1].level == pytest.approx(mine.tokens.level, abs=1e-3)
                assert levels(theirs.left) == pytest.approx(levels(mine.left), abs=1e-3)
            else:
                refusals += 1
                assert isinstance(first, Refused) and first.reason == theirs.reason
                assert all(a - 1e-3 <= b for a, b in zip(levels(first.left), levels(theirs.left), strict=True))
                if isinstance(last, Refused):
                    assert all(b <= a + 1e-3 for a, b in zip(levels(last.left), levels(theirs.left), strict=True))
                if theirs.reason == "tokens_limit" and isinstance(last, Refused):
                    assert last.retry_after_s - 1e-3 <= theirs.retry_after_s <= first.retry_after_s + 1e-3
            while held and (isinstance(theirs, Refused) or draw.random() < 0.3):
                grant = held.pop()
                used = None if draw.random() < 0.3 else draw.randint(0, 400)
                before, spent = (await buckets())[1], Spent(draw.random() < 0.8, used, 1.0)
                limits.settle(grant, spent)
                await settled(limits)
                back, after_tokens = spent.tokens_back(grant.ask), (await buckets())[1]
                if back and after_tokens is not None:
                    mine_tokens = give_back(before, back, 100_000, after_tokens.at_s)
                    assert mine_tokens is not None
                    assert after_tokens.level == pytest.approx(mine_tokens.level, abs=1e-3)
    assert refusals


async def test_a_redis_that_dies_is_no_outage_and_no_way_around_the_limits(store: Store) -> None:
    ask = Ask("acme", 1, 4, slots=(Slot("tenant/acme", 3, "concurrency_limit"),))
    async with router(store) as one, router(store) as two:
        await until(lambda: one._local.share == 2)
        held = await granted(one, ask)
        store.end()
        # Half of four, of which one was taken; and the slot that is held counts on.
        await granted(one, Ask("acme", 1, 4), "router")
        assert isinstance(await one.admit(Ask("acme", 1, 4)), Refused)
        assert isinstance(await one.admit(Ask("slot", 1, slots=(SLOT,))), Refused)
        await granted(two, Ask("acme", 1, 4), "router")
        one.settle(held, Spent(True, 1, 1.0))
        await granted(one, Ask("slot", 1, slots=(SLOT,)), "router")
        # What came and went does not fill the local buckets again.
        store.begin()
        await until(lambda: one.up)
        store.end()
        assert isinstance(await one._local.admit(Ask("acme", 1, 4)), Refused)


async def test_a_redis_that_forgot_everything_learns_what_runs(store: Store) -> None:
    ask = Ask("acme", 1, slots=(SLOT,))
    async with router(store) as one, router(store) as two:
        running = [await granted(one, ask) for _ in range(3)]
        store.end()
        for limits in (one, two):
            await granted(limits, OPEN, "router")
        store.begin()
        await until(lambda: one.up and two.up)
        assert isinstance(await two.admit(ask), Refused)
        one.settle(running[0], Spent(True, 1, 1.0))
        await settled(one)
        await granted(two, ask)


async def test_a_redis_that_hangs_costs_one_call_its_limit_and_the_next_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CALL_LIMIT_S", "BACKGROUND_LIMIT_S"):
        monkeypatch.setattr(shared_limits, name, 0.5)
    async with router(store) as limits:
        frozen = store.process()
        frozen.suspend()
        try:
            await granted(limits, OPEN, "router")
            assert not limits.up
            await granted(limits, OPEN, "router")
        finally:
            frozen.resume()
        await until(lambda: limits.up)
        await granted(limits, OPEN)


async def test_a_router_that_died_holds_its_slots_for_a_lease_and_no_longer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "LEASE_S", 0.3)
    monkeypatch.setattr(shared_limits, "RENEW_EVERY_BEATS", 1)
    monkeypatch.setattr(shared_limits, "BEAT_S", 0.05)
    ask = Ask("acme", 1, slots=(Slot("tenant/acme", 1, "concurrency_limit"),))
    async with router(store) as two:
        async with router(store) as one:
            await granted(one, ask)
            began_s = await redis_s(two)
            while await redis_s(two) < began_s + 1.2:
                # Well beyond its lease the slot of a Router that lives is held.
                assert isinstance(await two.admit(ask), Refused)
                await asyncio.sleep(0.05)
        answer = await two.admit(ask)
        async with asyncio.timeout(20.0):
            while isinstance(answer, Refused):
                await asyncio.sleep(0.05)
                answer = await two.admit(ask)


async def test_nobody_opens_it_without_the_password(store: Store) -> None:
    (store.folder / "password").write_text("wrong")
    async with router(store, up=False) as limits:
        await until(lambda: limits._told_down)
        await granted(limits, OPEN, "router")
    with socket.create_connection(("127.0.0.1", store.port), timeout=5) as plain:
        plain.sendall(b"PING\r\n")
        assert plain.recv(200).startswith(b"-NOAUTH")


async def test_a_missing_password_file_is_a_fault_of_the_bundle(store: Store) -> None:
    limits = RegionLimits(time.monotonic)
    before = limits.now()
    with pytest.raises(OSError, match="nowhere"):
        await limits.configure({"name": "a", "redis": {"url": store.url, "passwordFile": "/nowhere/password"}})
    assert limits.now() is before


async def test_a_bundle_that_takes_redis_away_leaves_the_count_of_what_runs(store: Store) -> None:
    limits = RegionLimits(time.monotonic)
    named = {"name": "a", "routers": 2, "redis": {"url": store.url, "passwordFile": store.password_file}}
    assert limits.redis is None
    await limits.configure(named)
    assert limits.redis == "down"
    shared = limits.now()
    assert isinstance(shared, SharedLimits)
    await until(lambda: limits.redis == "up")
    ask = Ask("acme", 1, slots=(Slot("tenant/acme", 2, "concurrency_limit"),))
    held = await granted(shared, ask)
    await limits.configure(named)
    assert limits.now() is shared
    await limits.configure({"name": "a", "routers": 2})
    assert limits.redis is None and isinstance(await limits.now().admit(ask), Refused)
    shared.settle(held, Spent(True, 1, 1.0))
    assert isinstance(await limits.now().admit(ask), Grant)


async def test_what_redis_holds_names_no_session(store: Store) -> None:
    async with router(store) as limits:
        await granted(limits, Ask("acme", 1, slots=(Slot("session/acme/Ms Smith's \ud83e secret", 1, "root_limit"),)))
        keys = [k async for k in limits._client.scan_iter()]
        assert keys and all(k.startswith("grix:{cloud-a}:limits:") and "Smith" not in k for k in keys)
        assert all([await limits._client.ttl(k) > 0 for k in keys if ":slots:" in k])


async def test_a_cancellation_that_is_lost_in_a_call_does_not_keep_it_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def one_beat(self: SharedLimits, *, renew: bool) -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("lost")
            raise RedisError("connection closed") from None

    monkeypatch.setattr(SharedLimits, "_one_beat", one_beat)
    async with router(store, up=False) as limits:
        await until(lambda: seen == ["begun"])
        await limits.close()
        assert seen == ["begun", "lost"]
        assert all(task.done() for task in limits._tasks)
