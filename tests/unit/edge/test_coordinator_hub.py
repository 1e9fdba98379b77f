"""The hub without gRPC: what each link is told and when, and what happens while the store does not take facts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise

import pytest

from serve_app.core.fleet import Fleet
from serve_app.core.fleet_events import Audit, CloseLink, Drain, Facts, KnownRegion, LinkOpened, Reported, Tick, Wanted
from serve_app.core.reports import Plan, RegionState
from serve_app.edge import coordinator_hub
from serve_app.edge.coordinator_hub import FULL_AT_ONCE, FULL_EVERY_S, LONGEST_TEXT, Hub, Link
from serve_app.edge.facts_store import FencedError, StoreError
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire_link import plan_of

AB = Wanted((KnownRegion("a"), KnownRegion("b")))


class Memory:
    """A store that remembers what it took, unless it is told to fail."""

    def __init__(self) -> None:
        self.saved: list[Facts] = []
        self.lines: list[str] = []
        self.fault: StoreError | None = None

    async def load(self) -> Facts | None:
        return None

    async def save(self, facts: Facts) -> None:
        if self.fault is not None:
            raise self.fault
        self.saved.append(facts)

    async def append(self, lines: Sequence[str]) -> None:
        if self.fault is not None:
            raise self.fault
        self.lines.extend(lines)

    async def last(self, count: int) -> list[str]:
        return self.lines[-count:]

    async def close(self) -> None: ...


class Desk:
    """A hub whose regions a and b have reported, and a reader of what links get."""

    def __init__(self, wanted: Wanted = AB) -> None:
        self.now_s = 100.0
        self.store = Memory()
        self.hub = Hub(Fleet(wanted, Facts(epoch=7), self.now_s), self.store, lambda: self.now_s, lambda: 5.0)
        self.got: dict[int, list[bytes]] = {}
        self.plans: dict[int, Plan] = {}
        self.links = [self.open(r.name, n) for n, r in enumerate(wanted.regions)]

    def open(self, region: str, number: int) -> Link:
        link = self.hub.opened(region, number)
        self.hub.handle(LinkOpened(region, number))
        self.hub.handle(Reported(region, number, 1, RegionState(region, "healthy", "")))
        return link

    async def tick(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        for link in self.links:
            self.hub.handle(Reported(link.region, link.number, int(self.now_s * 1000)))
        self.hub.handle(Tick())
        await self.hub.settle()

    async def send(self, link: Link) -> pb.RegionDown | None:
        """One turn of the link's writer; the message, if there was one."""
        sent: list[bytes] = []

        async def write(message: bytes) -> None:
            sent.append(message)

        await self.hub.send(link, write)
        if not sent:
            return None
        self.got.setdefault(link.number, []).append(sent[0])
        message = pb.RegionDown.FromString(sent[0])
        self.plans[link.number] = plan_of(message, self.plans.get(link.number))
        return message


async def test_nothing_is_told_before_there_is_a_plan() -> None:
    desk = Desk()
    assert await desk.send(desk.links[0]) is None
    await desk.tick()
    message = await desk.send(desk.links[0])
    assert message is not None and message.full and message.generation == 1


async def test_a_slow_link_gets_the_latest_plan_and_no_backlog() -> None:
    desk = Desk()
    await desk.tick()
    slow, quick = desk.links
    await desk.send(slow)
    await desk.send(quick)
    for n, who in enumerate(["a", "b", "a"]):
        desk.hub.handle(Drain("ops", who, back=n == 2))
        await desk.tick()
        await desk.send(quick)
    assert len(desk.got[quick.number]) == 4
    message = await desk.send(slow)
    assert message is not None and (message.generation, message.full) == (4, False)
    # What was taken out and put back meanwhile is as it was.
    assert [r.name for r in message.regions] == ["b"]
    assert desk.plans[slow.number] == desk.plans[quick.number]
    assert [r.drained for r in desk.plans[slow.number].regions] == [False, True]


async def test_links_that_were_told_the_same_share_one_message() -> None:
    desk = Desk()
    await desk.tick()
    for link in desk.links:
        await desk.send(link)
    desk.hub.handle(Drain("ops", "a"))
    await desk.tick()
    for link in desk.links:
        await desk.send(link)
    assert desk.got[0][1] is desk.got[1][1]


async def test_who_was_told_nothing_for_a_heartbeat_is_woken() -> None:
    desk = Desk()
    await desk.tick()
    a, b = desk.links
    await desk.send(a)
    await desk.send(b)
    for link in desk.links:
        link.wake.clear()
    desk.now_s += 0.5
    await desk.send(b)
    desk.now_s += 0.5
    desk.hub.wake_links()
    assert (a.wake.is_set(), b.wake.is_set()) == (True, False)
    message = await desk.send(a)
    assert message is not None and not message.regions and message.generation == 1


async def test_a_whole_plan_comes_again_within_thirty_seconds_and_then_every_thirty() -> None:
    desk = Desk()
    await desk.tick()
    a = desk.links[0]
    await desk.send(a)
    fulls = []
    for second in range(1, 100):
        await desk.tick(1.0)
        message = await desk.send(a)
        assert message is not None
        if message.full:
            fulls.append(second)
    assert fulls[0] <= FULL_EVERY_S
    assert [after - before for before, after in pairwise(fulls)] == [30] * (len(fulls) - 1)


async def test_whole_plans_go_a_few_at_a_time() -> None:
    desk = Desk(Wanted(tuple(KnownRegion(f"r{n}") for n in range(3 * FULL_AT_ONCE))))
    await desk.tick()
    writing, most, go = 0, 0, asyncio.Event()

    async def write(_: bytes) -> None:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        await go.wait()
        writing -= 1

    tasks = [asyncio.create_task(desk.hub.send(link, write)) for link in desk.links]
    while writing < FULL_AT_ONCE:
        await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*tasks)
    assert most == FULL_AT_ONCE


async def test_who_takes_no_message_is_closed_and_keeps_nobody_from_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_hub, "TAKE_LIMIT_S", 0.01)
    desk = Desk()
    await desk.tick()

    async def never(_: bytes) -> None:
        await asyncio.Event().wait()

    await desk.hub.send(desk.links[0], never)
    assert desk.links[0].closed.is_set()
    assert desk.links[0].close == CloseLink(0, "silent", "a took no message for 0.01 s")
    assert await desk.send(desk.links[1]) is not None


async def test_facts_are_stored_before_their_plan_is_told() -> None:
    desk = Desk()
    await desk.tick()
    await desk.send(desk.links[0])
    desk.hub.handle(Drain("ops", "a"))
    message = await desk.send(desk.links[0])
    assert message is not None and message.generation == 1 and desk.store.saved == []
    assert await desk.hub.settle() == ""
    assert desk.store.saved == [Facts(7, {"a": "ops"})]
    message = await desk.send(desk.links[0])
    assert message is not None and message.generation == 2


async def test_a_store_that_fails_is_told_and_tried_again_and_stops_no_plan() -> None:
    desk = Desk()
    await desk.tick()
    desk.store.fault = StoreError("disk full")
    desk.hub.handle(Drain("ops", "a"))
    assert await desk.hub.settle() == "disk full"
    message = await desk.send(desk.links[0])
    assert message is not None and message.regions[0].drained
    assert not desk.hub.stopped.is_set()
    desk.store.fault, before = None, len(desk.store.lines)
    await desk.tick()
    assert desk.store.saved == [Facts(7, {"a": "ops"})] and desk.hub.fault == ""
    assert [json.loads(line)["after"] for line in desk.store.lines[before:]] == ["drained"]


async def test_a_line_that_is_being_written_when_all_ends_is_written_by_the_last_settling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    await desk.tick()
    with monkeypatch.context() as patched:
        begun = asyncio.Event()

        async def hang(lines: Sequence[str]) -> None:
            begun.set()
            await asyncio.Event().wait()

        patched.setattr(desk.store, "append", hang)
        desk.hub.audit(Audit("ops", "admin", "", "drain", "done"))
        task = asyncio.create_task(desk.hub.settle())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    desk.hub.audit(Audit("ops", "admin", "", "undrain", "done"))
    await desk.hub.settle()
    assert [json.loads(line)["before"] for line in desk.store.lines[-2:]] == ["drain", "undrain"]


async def test_who_is_fenced_off_tells_nothing_more() -> None:
    desk = Desk()
    await desk.tick()
    await desk.send(desk.links[0])
    desk.store.fault = FencedError("epoch 9 has stored after 7")
    desk.hub.handle(Drain("ops", "a"))
    assert await desk.hub.settle() == "epoch 9 has stored after 7"
    assert desk.hub.stopped.is_set()
    message = await desk.send(desk.links[0])
    assert message is not None and message.generation == 1


@pytest.mark.parametrize("text", ["x" * 10_000, "line\nfeed \x1b[31m \u202e"])
async def test_a_line_of_the_audit_log_stays_a_short_plain_line(text: str) -> None:
    desk = Desk()
    desk.hub.audit(Audit("a", "phase", why=text))
    await desk.hub.settle()
    line = desk.store.lines[-1]
    assert line.isascii() and line.isprintable() and len(line) < LONGEST_TEXT + 200
    assert json.loads(line)["why"] == text[:LONGEST_TEXT]
    assert (json.loads(line)["at_unix_s"], json.loads(line)["epoch"]) == (5.0, 7)
