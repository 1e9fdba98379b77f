"""What outlives a coordinator: written whole, read strictly, and by one at a time."""

from __future__ import annotations

import asyncio
import json
import random
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from cluster_configs.kind_federation import Store as StoreSettings
from serve_app.core.fleet_events import Facts
from serve_app.edge import facts_store, lease, redis_client
from serve_app.edge.facts_store import (
    FencedError,
    FileStore,
    RedisStore,
    StoreError,
    facts_json,
    facts_of,
    opened,
)
from serve_app.edge.lease import FileLease, RedisLease
from serve_app.edge.ports_free import free_block
from tests.valkey_store import Store

FACTS = Facts(7, {"cloud-a": "ops"}, "r1", "[]")


# ---- a folder ----


async def test_facts_come_back_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    store = opened(StoreSettings(url=f"file://{tmp_path}/deep/er"), "demo").store
    assert await store.load() is None
    await store.save(FACTS)
    assert await store.load() == FACTS
    file = tmp_path / "deep" / "er" / "facts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [p.name for p in file.parent.iterdir()] == ["facts.json"]


async def test_an_earlier_epoch_stores_nothing_more(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.save(FACTS)
    with pytest.raises(FencedError, match=r"epoch 7 has stored after 6$"):
        await store.save(Facts(epoch=6))
    assert await store.load() == FACTS


async def test_a_write_that_breaks_off_leaves_the_old_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path)
    await store.save(FACTS)
    monkeypatch.setattr(facts_store.json, "dump", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(StoreError, match="No space left"):
        await store.save(Facts(epoch=8))
    assert await FileStore(tmp_path).load() == FACTS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epoch": -1}, "epoch: '-1' is none"),
        ({"epoch": True}, "epoch: 'True' is none"),
        ({"epoch": 2**54}, "epoch: "),
        ({"epoch": "9"}, "epoch: '9' is none"),
        ({"drains": ["a"]}, "drains: is no object of texts"),
        ({"drains": {"a": 1}}, "drains: is no object of texts"),
        ({"documents": []}, "documents: is list; allowed: text"),
        ({"revision": None}, "revision: is NoneType; allowed: text"),
        ({"format": 2}, "format: 2 is not known; allowed: 1"),
        ({"extra": 1}, "extra: unknown or missing"),
    ],
)
def test_garbage_is_refused_by_its_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(StoreError) as error:
        facts_of(facts_json(FACTS) | change)
    assert str(error.value).startswith(said)


def test_what_is_no_object_is_refused() -> None:
    for garbage in (None, [], "x", 3):
        with pytest.raises(StoreError, match="allowed: an object"):
            facts_of(garbage)
    assert facts_of(json.loads(json.dumps(facts_json(FACTS)))) == FACTS


async def test_a_broken_file_is_an_error_with_its_name_and_not_a_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text('{"format": 1')
    with pytest.raises(StoreError, match=r"facts\.json: .*; move it away to begin with nothing"):
        await FileStore(tmp_path).load()


async def test_the_audit_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_store, "LOG_BYTES", 100)
    store = FileStore(tmp_path)
    assert await store.last(10) == []
    for n in range(60):
        await store.append([f"line {n:02} {'x' * 20}", f"more {n:02}"])
    files = sorted(p.name for p in tmp_path.iterdir())
    assert set(files) <= {"audit.jsonl", *(f"audit.{n}.jsonl" for n in range(1, 5))} and len(files) >= 4
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 5 * 150
    assert (await store.last(3)) == ["more 58", f"line 59 {'x' * 20}", "more 59"]
    assert len(await store.last(10_000)) < 40
    assert stat.S_IMODE((tmp_path / files[0]).stat().st_mode) == 0o600


async def test_a_folder_that_cannot_be_made_is_told() -> None:
    with pytest.raises(StoreError, match="file:///proc/none: "):
        opened(StoreSettings(url="file:///proc/none"), "demo")


# ---- the lease on a file ----


async def test_one_holds_the_file_and_the_next_comes_when_it_is_free(tmp_path: Path) -> None:
    first, second = FileLease(tmp_path), FileLease(tmp_path)
    assert await first.take() and await first.keep()
    assert not await second.take() and not await second.keep()
    await first.free()
    assert not await first.keep()
    assert await second.take()
    assert stat.S_IMODE((tmp_path / "lease").stat().st_mode) == 0o600


async def test_a_lease_whose_file_is_gone_is_lost(tmp_path: Path) -> None:
    first, second = FileLease(tmp_path), FileLease(tmp_path)
    assert await first.take()
    (tmp_path / "lease").unlink()
    assert not await first.keep()
    assert await second.take() and await second.keep()


# ---- Redis ----


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Store(tmp_path_factory.mktemp("valkey"))
    server.begin()
    yield f"{server.url} {server.password_file}"
    server.end()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    # A machine that is busy with other things proves nothing about Redis.
    made = redis_client.connect(*redis_url.split(), wait_limit_s=5.0, answer_limit_s=5.0)
    for key in ("facts", "audit", "lease"):
        await made.delete(f"grix:{{demo}}:control:{key}")
    yield made
    await made.aclose()


def place(client: Redis, clock: list[float]) -> tuple[RedisStore, RedisLease]:
    prefix = "grix:{demo}:control"
    held = RedisLease(client, f"{prefix}:lease", lambda: clock[0])
    return RedisStore(client, prefix, held), held


async def test_facts_in_redis_need_the_lease(client: Redis) -> None:
    store, held = place(client, [0.0])
    with pytest.raises(FencedError, match="the lease in Redis has run out, or is another coordinator's"):
        await store.save(FACTS)
    assert await held.take()
    await store.save(FACTS)
    assert await store.load() == FACTS
    with pytest.raises(FencedError, match="epoch 7 has stored after 6"):
        await store.save(Facts(epoch=6))
    other, other_lease = place(client, [0.0])
    assert not await other_lease.take()
    with pytest.raises(FencedError):
        await other.save(Facts(epoch=99))
    await held.free()
    assert await other_lease.take()
    await other.save(Facts(epoch=99))
    with pytest.raises(FencedError):
        await store.save(Facts(epoch=100))


async def test_a_lease_in_redis_runs_out_by_its_own_clock_too(client: Redis) -> None:
    clock = [0.0]
    _, held = place(client, clock)
    assert await held.take()
    clock[0] = lease.LEASE_S - 0.1
    assert await held.keep()
    clock[0] = 2 * lease.LEASE_S
    assert not await held.keep()


async def test_a_lease_that_another_took_is_lost_at_the_next_look(client: Redis) -> None:
    _, held = place(client, [0.0])
    assert await held.take()
    await client.set(held.key, "somebody else")
    assert not await held.keep()
    # Freeing takes nothing away from who has it now.
    await held.free()
    assert await client.get(held.key) == "somebody else"


async def test_a_redis_that_is_away_ends_a_lease_only_when_it_has_run_out(tmp_path: Path) -> None:
    clock = [0.0]
    gone = redis_client.connect(f"redis://127.0.0.1:{free_block(1, random.SystemRandom())}/0", None)
    store, held = place(gone, clock)
    held._until_s = lease.LEASE_S
    assert await held.keep()
    clock[0] = lease.LEASE_S
    assert not await held.keep()
    with pytest.raises(StoreError, match="Redis does not do it: ConnectionError"):
        await store.load()
    await held.free()
    await store.close()


async def test_the_audit_log_in_redis_is_bounded(client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_store, "LINES_KEPT", 3)
    store, _ = place(client, [0.0])
    await asyncio.gather(*(store.append([f"{n}"]) for n in range(2)))
    await store.append(["2", "3", "4"])
    assert await store.last(10) == ["2", "3", "4"]
    assert await store.last(1) == ["4"]
