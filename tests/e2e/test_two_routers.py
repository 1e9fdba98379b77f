"""Two Routers of one region: what one of them finds out holds for both, and a session is one session."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from serve_app.core.breaker import OPEN_S, STREAK
from tests.contract.test_peers import GOOD, playing
from tests.e2e.test_region import eventually
from tests.stub_region import Reply, StubRegion, running_stub_region
from tests.valkey_store import Store

#: What a trip in one Router takes to be known in the other.
KNOWN_S = 0.3
#: How long the call takes that finds out whether the agent is well again.
PROBE_S = 1.5
HANG: list[list[Any]] = [["accepted"], ["hang"]]
FAILS: list[list[Any]] = [["accepted"], ["fail", "upstream_failed"]]
SLOW: list[list[Any]] = [["accepted"], ["wait", PROBE_S], ["head"], ["say", "well"], ["end"]]


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[StubRegion]:
    """Beside it a region at the same price, which tests play."""
    store = Store(tmp_path_factory.mktemp("valkey"))
    store.begin()
    redis = f"{{url: '{store.url}', passwordFile: '{store.password_file}'}}"
    peers = {"cloud-b": f"127.0.0.1:{port}"}
    try:
        with running_stub_region(redis=redis, federated=True, peers=peers, peer_usd=1.0, routers=2) as made:
            yield made
    finally:
        store.end()


def ended(region: StubRegion, request_ids: Iterable[str]) -> dict[str, str]:
    """Of the requests that have ended, the logs of the Routers that had them."""
    logs = (region.temp_dir / "r/session_latest/logs/serve").glob("replica_grix_Router_*.log")
    texts = {log.name: log.read_text() for log in logs}
    return {i: name for i in request_ids for name, text in texts.items() if f'"{i}"' in text}


def routers_of(region: StubRegion, request_ids: list[str]) -> set[str]:
    """The Routers that had the requests."""
    eventually(lambda: len(ended(region, request_ids)) == len(request_ids), 5.0, "all have ended")
    return set(ended(region, request_ids).values())


def ask_doc(region: StubRegion, *script: list[list[Any]], **headers: str) -> tuple[str, Reply]:
    return region.ask(*script, model="qwen-doc", headers=headers)


def is_refused(reply: Reply) -> bool:
    return reply.status == 503 and reply.json["error"]["code"] == "no_target"


def test_as_many_may_wait_for_a_replica_as_each_routers_handle_holds(region: StubRegion) -> None:
    """Serve's limit of what is queued is of each handle, and each Router has one."""
    places, queue = region.room("qwen-doc")
    hanging = dict(region.begin(HANG, model="qwen-doc") for _ in range(places + 2 * queue + 20))
    eventually(lambda: len(ended(region, hanging)) >= 20, 5.0, "what is more is refused")
    held = len(hanging) - len(ended(region, hanging))
    assert places + queue < held <= places + 2 * queue
    for connection in hanging.values():
        connection.close()
    eventually(lambda: ask_doc(region)[1].status == 200, 10.0, "there is room again")


@dataclass(frozen=True)
class Trip:
    """When a first Router refused, and of each later request when it began, and whether it was refused."""

    known_s: float
    later: list[tuple[float, str, bool]]


@pytest.fixture(scope="module")
def trip(region: StubRegion) -> Trip:
    """Fails one call after the other until a Router refuses, then asks until both do."""
    for _ in range(4 * STREAK):
        began_s = time.monotonic()
        # No time to try again.
        if is_refused(ask_doc(region, FAILS, **{"x-grix-total-timeout": "400ms"})[1]):
            break
    later: list[tuple[float, str, bool]] = []
    while len({router for _, router, refused in later if refused}) < 2 and time.monotonic() < began_s + 10.0:
        asked_s = time.monotonic()
        request_id, reply = ask_doc(region)
        later.append((asked_s, *routers_of(region, [request_id]), is_refused(reply)))
    return Trip(began_s, later)


def test_a_trip_in_one_router_is_known_in_the_other(trip: Trip) -> None:
    assert len({router for _, router, refused in trip.later if refused}) == 2
    assert [row for row in trip.later if not row[2] and row[0] > trip.known_s + KNOWN_S] == []


async def test_ten_turns_through_both_routers_go_to_one_region(region: StubRegion, port: int) -> None:
    def has_both() -> bool:
        """Both Routers know both regions, with their full share, and keep sessions."""
        rows = [t for _ in range(8) for t in region.fleet()["targets"] if t["region"] == "cloud-b"]
        replies = [region.ask(headers={"x-session-id": "first"})[1] for _ in range(8)]
        knows = [(t["health"], t["weight"]) == ("healthy", 1.0) for t in rows]
        return len(knows) == 8 and all(knows) and all(r.headers.get("x-grix-session") == "kept" for r in replies)

    homes = set()
    async with playing(region, port, GOOD):
        async with asyncio.timeout(30.0):
            while not await asyncio.to_thread(has_both):
                await asyncio.sleep(0.2)
        for number in range(8):
            headers = {"x-session-id": f"turns-{number}"}
            turns = [await asyncio.to_thread(region.ask, headers=headers) for _ in range(10)]
            assert len(await asyncio.to_thread(routers_of, region, [i for i, _ in turns])) == 2
            (home,) = {reply.headers["x-grix-region"] for _, reply in turns}
            homes.add(home)
    assert homes == {"cloud-a", "cloud-b"}


def test_one_router_is_lent_the_probe(region: StubRegion, trip: Trip) -> None:
    """While one call finds out whether the agent is well again, nobody else asks it, through either Router."""
    time.sleep(max(0.0, trip.known_s + OPEN_S - 1.0 - time.monotonic()))
    until_s = time.monotonic() + 15.0
    asked: list[tuple[str, float, Reply]] = []

    def ask_on(_: int) -> None:
        while time.monotonic() < until_s and not any(reply.status == 200 for _, _, reply in asked):
            request_id, reply = ask_doc(region, SLOW)
            asked.append((request_id, time.time(), reply))
            time.sleep(0.1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask_on, range(4)))
    calls = sorted(line["unix_s"] for i, _, _ in asked for line in region.seen(i) if line["what"] == "called")
    during = [(i, reply) for i, ended_s, reply in asked if calls[0] < ended_s < calls[0] + PROBE_S]
    assert [at_s for at_s in calls if at_s < calls[0] + PROBE_S] == calls[:1]
    assert all(is_refused(reply) for _, reply in during)
    assert len(routers_of(region, [i for i, _ in during])) == 2

    def serving() -> set[str]:
        answers = [ask_doc(region) for _ in range(8)]
        return routers_of(region, [i for i, reply in answers if reply.status == 200])

    eventually(lambda: len(serving()) == 2, 10.0, "both Routers ask it again")
