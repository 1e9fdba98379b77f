"""When calls to a peer end that has fallen silent, to the beat: a link whose time moves by hand, without a line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from serve_app.edge.identity import Identity
from serve_app.edge.peer_client import PeerLink, _Line
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire_calls import packet_message
from serve_app.outcomes import GrixError
from serve_app.ports import Accepted, AgentCall, Body, Head, Origin, Tail
from tests.fakes import FakeClock

#: A silence as in local.yaml, and a beat that adds up without a rest.
BEAT_S, SILENCE_S = 0.25, 2.0
CALL = AgentCall(
    "r1", "chat", "qwen-chat", {}, True, 64, 100, origin=Origin("acme", frozenset(), None, None, None, False, 30, 60, 5)
)
ACCEPTED, HEAD, DELTA = Accepted("inner", "inner"), Head(max_tokens=64), Body(b"one")


class HandClock(FakeClock):
    """Sleepers wake when the hand has passed their time, and never by themselves."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self.time_s + seconds, woken))
        await woken.wait()

    async def jump(self, at_s: float) -> None:
        """Nobody ran in between; whoever was due by then wakes late."""
        self.time_s = at_s
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= at_s]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper not in due]
        for _, woken in due:
            woken.set()
        await settled()

    async def go(self, to_s: float) -> None:
        while (next_s := min(at_s for at_s, _ in self._sleepers)) <= to_s:
            await self.jump(next_s)
        await self.jump(to_s)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Stream:
    """A call's packets, as they are put into it."""

    def __init__(self) -> None:
        self._packets: asyncio.Queue[pb.Packet] = asyncio.Queue()

    def put(self, *frames: Any) -> None:
        self._packets.put_nowait(packet_message(frames))

    async def __aiter__(self) -> AsyncIterator[pb.Packet]:
        while True:
            yield await self._packets.get()

    def cancel(self) -> None: ...


@dataclass
class World:
    """One link, and every call over it with what it brought and when it ended how."""

    clock: HandClock = field(default_factory=HandClock)
    streams: list[Stream] = field(default_factory=list)
    ends: list[tuple[float, str]] = field(default_factory=list)
    brought: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        peer, me = Identity("demo", "region", "cloud-b"), cast(Any, self)
        self.link = PeerLink(peer, "", me, lambda: None, BEAT_S, SILENCE_S, 60.0, self.clock, lambda: 0.5)
        self.link._line = _Line(me.pair(), me, me)

    def pair(self) -> Any:
        return self.clock

    def Call(self, _: Any, timeout: float) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    def beat(self) -> None:
        self.link.watch.heard(None, None)

    async def _ask(self) -> None:
        try:
            async for packet in self.link.call(CALL):
                self.brought += packet
            self.ends.append((self.clock.time_s, "whole"))
        except GrixError as error:
            self.ends.append((self.clock.time_s, error.message))


@asynccontextmanager
async def asked(*began: tuple[Any, ...]) -> AsyncIterator[World]:
    """A world at 0 s with a beat just heard and one call each, which has just brought these frames."""
    world = World()
    world.beat()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(world.link._judge_on())]
        for frames in began:
            running.append(tasks.create_task(world._ask()))
            await settled()
            world.streams[-1].put(ACCEPTED)
            await settled()
            if frames:
                world.streams[-1].put(*frames)
                await settled()
        try:
            yield world
        finally:
            for task in running:
                task.cancel()


SILENT, CUT = "Region cloud-b fell silent.", "Region cloud-b fell silent in its answer."


async def test_a_stream_ends_one_beat_after_those_that_still_wait() -> None:
    """With a silence of 2 s: a region that is cut off right after a beat and a delta holds nobody for long."""
    async with asked((), (HEAD, DELTA)) as world:
        await world.clock.go(20.0)
        assert world.ends == [(2.25, SILENT), (2.5, CUT)]


async def test_a_stream_whose_peer_was_cut_off_between_two_beats_ends_no_later() -> None:
    """The silence of both counts, each from when it was heard last: the later one decides."""
    async with asked((HEAD, DELTA)) as world:
        await world.clock.go(0.2)
        world.streams[0].put(DELTA)
        await settled()
        await world.clock.go(20.0)
        assert world.ends == [(2.5, CUT)]


async def test_a_beat_that_is_just_late_saves_the_stream_under_way() -> None:
    async with asked((), (HEAD, DELTA)) as world:
        await world.clock.go(2.3)
        assert world.ends == [(2.25, SILENT)]
        world.beat()
        await world.clock.go(4.5)
        world.streams[1].put(Tail("success", "stop"))
        await settled()
        assert world.brought[-1] == Tail("success", "stop")


async def test_a_slow_peer_that_beats_keeps_its_stream_however_long_it_says_nothing() -> None:
    async with asked((HEAD, DELTA)) as world:
        for second in range(1, 60):
            await world.clock.go(float(second))
            world.beat()
        assert world.ends == []


async def test_a_stream_that_brings_more_goes_on_without_any_beat() -> None:
    async with asked((HEAD, DELTA)) as world:
        for second in range(1, 11):
            await world.clock.go(float(second))
            world.streams[0].put(DELTA)
            await settled()
        await world.clock.go(20.0)
        assert (len(world.brought), world.ends) == (13, [(12.5, CUT)])


async def test_a_process_that_stood_still_loses_no_stream_by_it() -> None:
    async with asked((HEAD, DELTA)) as world:
        await world.clock.jump(60.0)
        assert world.ends == []
        # The peer is gone, however: what counts is what was listened to.
        await world.clock.go(80.0)
        assert world.ends == [(62.25, CUT)]
