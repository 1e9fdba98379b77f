"""Sessions in a real Valkey: several Routers share them, and what happens when it dies, fills up or hangs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import OutOfMemoryError

from serve_app.core.admission import Ask
from serve_app.core.sessions import MAX_TURNS, TEXT_BYTES, Held, History, Turn, add_turn, carry, pack
from serve_app.edge import redis_calls, redis_sessions, shared_limits, valkey
from serve_app.edge.limits import LocalLimits
from serve_app.edge.local_sessions import LocalSessions
from serve_app.edge.redis_client import connect
from serve_app.edge.redis_sessions import RedisSessions, _held
from serve_app.edge.region_sessions import RegionSessions
from serve_app.edge.shared_limits import SharedLimits
from serve_app.ports import Grant, Opened
from tests.fakes import FakeMeter
from tests.valkey_store import Store

KEY = "acme/s1"
_REGIONS = itertools.count()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other things proves nothing about Redis."""
    for module in (redis_calls, redis_sessions, shared_limits):
        for name in {"CALL_LIMIT_S", "BACKGROUND_LIMIT_S"} & vars(module).keys():
            monkeypatch.setattr(module, name, 10.0)
    monkeypatch.setattr(redis_calls, "TRY_AGAIN_S", 0.02)


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """For tests that leave the server as it was; each has a region of its own in it."""
    made = Store(tmp_path_factory.mktemp("valkey"), tasks=False)
    made.begin()
    yield made
    made.end()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path, tasks=False)
    made.begin()
    yield made
    made.end()


@pytest.fixture
def region() -> str:
    return f"region-{next(_REGIONS)}"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not holds():
            await asyncio.sleep(0.005)


class Failures(list[tuple[str, str]]):
    def __call__(self, op: str, why: str) -> None:
        self.append((op, why))


@asynccontextmanager
async def router(store: Store, region: str, failures: Failures | None = None) -> AsyncIterator[RedisSessions]:
    """One Router's sessions, in use."""
    told = Failures() if failures is None else failures
    local = LocalSessions(time.monotonic)
    made = RedisSessions(connect(store.url, store.password_file), region, local, told)
    made.start()
    try:
        await until(lambda: made.up)
        yield made
    finally:
        await made.close()
    if failures is None:
        assert told == []


async def written(sessions: RedisSessions) -> None:
    await until(lambda: not sessions._writes)


async def test_what_one_router_learnt_another_knows(shared_store: Store, region: str) -> None:
    async with router(shared_store, region) as one, router(shared_store, region) as two:
        new = await one.open(KEY, history=True)
        assert new == Opened(KEY, store="kept")
        kept = await one.keep_pick(new, "qwen-chat", "cloud-b")
        assert kept.picks == {"qwen-chat": "cloud-b"}
        one.remember(kept, "ja", Turn("こんにちは", "どうも"))
        await written(one)
        history = add_turn(History(), "こんにちは", "どうも")
        assert await two.open(KEY, history=True) == Opened(KEY, "ja", {"qwen-chat": "cloud-b"}, history, "kept")
        assert await two.open(KEY, history=False) == Opened(KEY, "ja", {"qwen-chat": "cloud-b"}, store="kept")


async def test_the_agent_that_a_session_is_with_is_known_to_all_routers(shared_store: Store, region: str) -> None:
    async with router(shared_store, region) as one, router(shared_store, region) as two:
        for held in (Held("qwen-doc"), Held("qwen-doc", 2), Held("qwen-chat")):
            one.remember(await one.open(KEY, history=False), "en", held=held)
            await written(one)
            assert (await two.open(KEY, history=False)).held == held
        # A turn that says nothing of it leaves it.
        one.remember(await one.open(KEY, history=False), "ja")
        await written(one)
        assert await two.open(KEY, history=False) == Opened(KEY, "ja", store="kept", held=Held("qwen-chat"))


@pytest.mark.parametrize(
    ("told", "held"), [("a 3", Held("a", 3)), ("", None), ("a", None), (" 1", None), ("a -1", None), ("a x", None)]
)
def test_what_is_held_is_read_or_left(told: str, held: Held | None) -> None:
    assert _held(told) == held


async def test_rte_06_the_first_pick_wins_across_routers(shared_store: Store, region: str) -> None:
    async with router(shared_store, region) as one, router(shared_store, region) as two:
        seen = [await r.open(KEY, history=False) for r in (one, two)]
        first, second = await one.keep_pick(seen[0], "a", "x"), await two.keep_pick(seen[1], "a", "y")
        assert (first.picks, second.picks) == ({"a": "x"}, {"a": "x"})
        # Nor does a choice that another Router has moved meanwhile.
        moved = await two.keep_pick(second, "a", "z")
        late = await one.keep_pick(first, "a", "w")
        assert (moved.picks, late.picks) == ({"a": "z"}, {"a": "z"})
    async with router(shared_store, region) as again:
        assert (await again.open(KEY, history=False)).picks == {"a": "z"}


async def test_agents_and_tenants_are_kept_apart(shared_store: Store, region: str) -> None:
    async with router(shared_store, region) as sessions:
        kept = await sessions.keep_pick(await sessions.open("acme/s1", history=False), "a", "x")
        kept = await sessions.keep_pick(kept, "b", "y")
        sessions.remember(kept, "ja")
        await written(sessions)
        assert (await sessions.open("acme/s1", history=False)).picks == {"a": "x", "b": "y"}
        assert await sessions.open("ops/s1", history=True) == Opened("ops/s1", store="kept")


async def test_sessions_end_half_an_hour_after_the_last_request(shared_store: Store, region: str) -> None:
    async with router(shared_store, region) as sessions:
        opened = await sessions.keep_pick(await sessions.open(KEY, history=True), "a", "x")
        sessions.remember(opened, "ja", Turn("q", "a"))
        await written(sessions)
        client = sessions._calls._client
        keys = sessions._keys(KEY)
        assert [await client.ttl(k) for k in keys] == [pytest.approx(1800, abs=20)] * 2
        for key in keys:
            await client.expire(key, 60)
        sessions.remember(await sessions.open(KEY, history=False), "ja")
        await written(sessions)
        assert [await client.ttl(k) for k in keys] == [pytest.approx(1800, abs=20)] * 2


async def test_turns_of_several_routers_at_once_are_all_kept(shared_store: Store, region: str) -> None:
    async with router(shared_store, region) as one, router(shared_store, region) as two:
        opened = await one.open(KEY, history=True)
        for i in range(8):
            for name, sessions in (("one", one), ("two", two)):
                sessions.remember(opened, "en", Turn(f"{name} {i}", "yes"))
        await written(one)
        await written(two)
        history = (await one.open(KEY, history=True)).history
        assert history.count == 16 and len(history.turns) == MAX_TURNS
        said = {line.split(" | ")[0].removeprefix("User: ") for line in history.summary.splitlines()}
        said |= {t.user for t in history.turns}
        assert said == {f"{name} {i}" for name in ("one", "two") for i in range(8)}


async def test_a_carry_is_taken_over_once_and_never_over_what_is_newer(shared_store: Store, region: str) -> None:
    history = add_turn(add_turn(add_turn(History(), "q1", "a1"), "q2", "a2"), "q3", "a3")
    carried = carry(history, "ja")
    async with router(shared_store, region) as sessions:
        for _ in range(2):
            sessions.take_over(KEY, carried)
            await written(sessions)
            opened = await sessions.open(KEY, history=True)
            assert (opened.language, opened.history.count) == ("ja", 3)
            assert opened.history.summary == "User: q1 | Assistant: a1"
            assert opened.history.turns == history.turns[1:]
        sessions.remember(opened, "en", Turn("q4", "a4"))
        await written(sessions)
        sessions.take_over(KEY, carried)
        sessions.take_over(KEY, b"\x00 no carry")
        await written(sessions)
        opened = await sessions.open(KEY, history=True)
        assert (opened.language, opened.history.count, opened.history.turns[-1]) == ("en", 4, Turn("q4", "a4"))


async def test_turns_that_cannot_be_read_are_written_over(shared_store: Store, region: str) -> None:
    async with router(shared_store, region) as sessions:
        await sessions._calls._client.hset(sessions._keys(KEY)[1], mapping={"count": 7, "packed": "not ours"})
        opened = await sessions.open(KEY, history=True)
        assert opened.history == History(7)
        sessions.remember(opened, None, Turn("q", "a"))
        await written(sessions)
        assert (await sessions.open(KEY, history=True)).history == History(8, "", (Turn("q", "a"),))


async def test_what_redis_holds_names_no_session(shared_store: Store, region: str) -> None:
    async with router(shared_store, region) as sessions:
        opened = await sessions.open("acme/Ms Smith's \ud83e secret\0", history=True)
        sessions.remember(opened, "en", Turn("a\0b", "c"))
        await written(sessions)
        assert (await sessions.open(opened.key, history=True)).history.turns == (Turn("a b", "c"),)
        keys = [k async for k in sessions._calls._client.scan_iter(match=f"grix:{{{region}}}:session:*")]
        assert len(keys) == 2 and not any("Smith" in k for k in keys)


async def test_ten_thousand_sessions_with_one_hot(shared_store: Store, region: str) -> None:
    """Who is alone in a session does not wait for the one that everybody uses, and no pick is lost or changed."""
    prefix = f"grix:{{{region}}}:session"
    fill = "for i = 1, 9001 do redis.call('HSET', ARGV[1] .. ':' .. i, 'pick:a', 'region-0') end"
    async with router(shared_store, region) as sessions:
        await sessions._calls._client.eval(fill, 0, prefix)
        hot = await sessions.open("acme/hot", history=False)

        async def ask(i: int) -> str:
            opened = hot if i % 2 else await sessions.open(f"acme/{i}", history=False)
            opened = await sessions.keep_pick(opened, "a", f"region-{i % 7}")
            assert opened.store == "kept"
            return opened.picks["a"]

        picks = await asyncio.gather(*(ask(i) for i in range(1_996)))
        # The first that came decided for all of the hot session.
        assert picks == [f"region-{1 if i % 2 else i % 7}" for i in range(1_996)]
        found = [k async for k in sessions._calls._client.scan_iter(match=f"{prefix}:*", count=5_000)]
        assert len(found) == 9_001 + 998 + 1


async def test_a_redis_that_is_killed_costs_sessions_their_memory_and_nobody_an_answer(
    store: Store, region: str
) -> None:
    failures = Failures()
    async with router(store, region, failures) as sessions:
        opened = await sessions.keep_pick(await sessions.open(KEY, history=True), "a", "x")
        sessions.remember(opened, "ja", Turn("q", "a"))
        await written(sessions)
        store.end()
        # The language is known here too; picks and turns are not.
        assert await sessions.open(KEY, history=True) == Opened(KEY, "ja", store="off")
        assert failures == [("open", "gone")]
        assert not sessions.up
        gone = await sessions.keep_pick(opened, "a", "y")
        assert (gone.picks, gone.store) == ({"a": "x"}, "off")
        sessions.remember(gone, "ko", Turn("q2", "a2"))
        await written(sessions)
        assert failures[1:] == [("pick", "gone"), ("write", "gone"), ("write", "gone")]
        store.begin()
        await until(lambda: sessions.up)
        # It forgot everything; what this Router knows is used and written anew.
        back = await sessions.open(KEY, history=True)
        assert back == Opened(KEY, "ko", store="kept")
        sessions.remember(await sessions.keep_pick(back, "a", "z"), "ko")
        await written(sessions)
        assert (await sessions.open(KEY, history=True)).picks == {"a": "z"}
        assert len(failures) == 4


async def test_a_redis_that_is_full_is_read_and_says_so(
    store: Store, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.end()
    monkeypatch.setattr(valkey, "MAX_MEMORY", "3mb")
    store.begin()
    failures = Failures()
    async with router(store, region, failures) as sessions:
        client = sessions._calls._client
        known = await sessions.keep_pick(await sessions.open(KEY, history=True), "a", "x")
        sessions.remember(known, "ja", Turn("q", "a"))
        await written(sessions)
        await client.expire(sessions._keys(KEY)[0], 60)
        for size in (10_000, 1_000, 10):
            with pytest.raises(OutOfMemoryError):
                for i in range(1_000):
                    await client.set(f"grix:filler:{size}:{i}", "x" * size)
        new = await sessions.open("acme/new", history=True)
        assert new.store == "kept"
        refused = await sessions.keep_pick(new, "a", "y")
        assert (refused.picks, refused.store) == ({}, "degraded")
        sessions.remember(refused, "ko", Turn("q", "a"))
        await written(sessions)
        assert failures == [("pick", "full"), ("write", "full"), ("write", "full")]
        assert (await sessions.open("acme/new", history=True)) == Opened("acme/new", "ko", store="degraded")
        # Who was there before goes on, and lives as long as anybody.
        assert await sessions.open(KEY, history=True) == Opened(
            KEY, "ja", {"a": "x"}, add_turn(History(), "q", "a"), "degraded"
        )
        sessions.remember(known, None)
        await written(sessions)
        assert await client.ttl(sessions._keys(KEY)[0]) > 1000
        await client.delete(*(f"grix:filler:10000:{i}" for i in range(100)))
        assert (await sessions.keep_pick(new, "a", "y")).store == "kept"
        assert len(failures) == 3


async def test_a_redis_that_histories_have_filled_up_stops_neither_sessions_nor_limits(
    store: Store, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.end()
    monkeypatch.setattr(valkey, "MAX_MEMORY", "3mb")
    monkeypatch.setattr(shared_limits, "BEAT_S", 0.05)
    monkeypatch.setattr(shared_limits, "TRY_AGAIN_S", 0.02)
    store.begin()
    failures, turn = Failures(), Turn("q" * TEXT_BYTES, "a" * TEXT_BYTES)
    ask = Ask("acme", 1, requests_per_minute=10)
    limits = SharedLimits(connect(store.url, store.password_file), region, LocalLimits(time.monotonic))
    another = SharedLimits(connect(store.url, store.password_file), region, LocalLimits(time.monotonic))
    async with router(store, region, failures) as sessions:
        limits.start()
        another.start()
        try:
            await until(lambda: limits.up and limits._local.share == 2)
            first = await limits.admit(replace(ask, tenant="sakura"))
            assert isinstance(first, Grant) and first.decided_by == "region"
            filled = 0
            while not failures:
                opened = await sessions.open(f"acme/{filled}", history=True)
                sessions.remember(opened, "en", turn)
                await written(sessions)
                filled += 1
                assert filled < 5_000, "it never fills up"
            assert {why for _, why in failures} == {"full"} and filled > 20
            # Small writes may still fit, until none does.
            with pytest.raises(OutOfMemoryError):
                for i in range(100_000):
                    await sessions._calls._client.set(f"grix:filler:{i}", "x")
            # No session makes the next one fail, and what is there is read; each answer says how it stands.
            refused = await sessions.keep_pick(await sessions.open("acme/new", history=True), "a", "x")
            assert (refused.store, sessions.up) == ("degraded", True)
            known = await sessions.open("acme/0", history=True)
            assert (known.store, known.language) == ("degraded", "en")
            assert known.history == add_turn(History(), turn.user, turn.answer)
            # A Router allows its part of a limit, and says so.
            admitted = []
            while isinstance(grant := await limits.admit(ask), Grant):
                admitted.append(grant.decided_by)
            assert admitted == ["router"] * 5 and grant.reason == "requests_limit"
            await sessions._calls._client.delete(*(sessions._keys(f"acme/{i}")[1] for i in range(50)))
            await until(lambda: limits.up)
            again = await limits.admit(replace(ask, tenant="other"))
            assert isinstance(again, Grant) and again.decided_by == "region"
        finally:
            await limits.close()
            await another.close()


async def test_a_redis_that_hangs_costs_one_call_its_limit_and_the_next_nothing(
    store: Store, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_calls, "CALL_LIMIT_S", 0.2)
    monkeypatch.setattr(shared_limits, "BACKGROUND_LIMIT_S", 0.2)
    monkeypatch.setattr(redis_calls, "BACKGROUND_LIMIT_S", 0.2)
    failures = Failures()
    async with router(store, region, failures) as sessions:
        frozen = store.process()
        frozen.suspend()
        try:
            assert (await sessions.open(KEY, history=False)).store == "off"
            assert not sessions.up
            assert (await sessions.open(KEY, history=False)).store == "off"
        finally:
            frozen.resume()
        await until(lambda: sessions.up)
        assert (await sessions.open(KEY, history=False)).store == "kept"
    assert failures == [("open", "gone")] * 2


async def test_more_writes_than_may_wait_are_left_out(
    shared_store: Store, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_sessions, "MOST_WRITES", 3)
    failures = Failures()
    async with router(shared_store, region, failures) as sessions:
        for i in range(5):
            sessions.remember(Opened(f"acme/{i}"), "en")
        assert failures == [("write", "late")] * 2
        await written(sessions)


async def test_a_bundle_may_bring_redis_and_take_it_away(shared_store: Store, region: str) -> None:
    meter = FakeMeter()
    sessions = RegionSessions(time.monotonic, meter)
    sessions.take_over(KEY, pack(History(1, "", (Turn("q", "a"),))))
    named = {"name": region, "redis": {"url": shared_store.url, "passwordFile": shared_store.password_file}}
    await sessions.configure(named)
    shared = sessions.now()
    assert isinstance(shared, RedisSessions)
    await until(lambda: shared.up)
    await sessions.configure(named)
    assert sessions.now() is shared
    sessions.now().remember(await sessions.now().open(KEY, history=False), "ja")
    sessions.take_over(KEY, pack(History(1, "", (Turn("q", "a"),))))
    await written(shared)
    assert (await sessions.now().open(KEY, history=True)).history.count == 1
    await sessions.configure({"name": region})
    assert not shared.up
    assert await sessions.now().open(KEY, history=True) == Opened(KEY, "ja", store="off")
    assert (await shared.open(KEY, history=False)).store == "off"
    assert meter.added == [("grix_session_store_errors_total", {"region": region, "op": "open", "reason": "gone"}, 1)]


async def test_a_missing_password_file_is_a_fault_of_the_bundle(shared_store: Store) -> None:
    sessions = RegionSessions(time.monotonic, FakeMeter())
    before = sessions.now()
    with pytest.raises(OSError, match="nowhere"):
        await sessions.configure({"name": "a", "redis": {"url": shared_store.url, "passwordFile": "/nowhere/password"}})
    assert sessions.now() is before
