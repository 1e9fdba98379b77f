"""The gRPC side of a gateway that answers: calls, tasks and beats of peers, by the identity of their certificates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import grpc

from serve_app.core.reports import RegionState
from serve_app.edge.beats import BeatLine, Watch
from serve_app.edge.door import Door, Refused
from serve_app.edge.peer_calls import PeerCalls, Served
from serve_app.edge.peer_tasks import PeerTasks
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.protos.grix_pb2_grpc import PeerServicer
from serve_app.edge.wire import WireError, beat_message, beat_of
from serve_app.edge.wire_calls import call_of, packet_message
from serve_app.edge.wire_tasks import part_message, task_call_of
from serve_app.ports import Clock

log = logging.getLogger("ray.serve")

M = TypeVar("M")
T = TypeVar("T")


@dataclass(slots=True)
class PeerServer(PeerServicer):  # type: ignore[misc]
    """Serves peers. ``watch_of`` gives what is kept of a peer that this region does not dial, ``None`` for others."""

    door: Door
    served: Callable[[], Served]
    calls: PeerCalls
    tasks: PeerTasks
    watch_of: Callable[[str], Watch | None]
    state: Callable[[], RegionState | None]
    beat_s: Callable[[], float]
    clock: Clock
    _ending: asyncio.Event = field(default_factory=asyncio.Event)

    def drain(self) -> None:
        """New calls are sent elsewhere and beats end; calls that run go on."""
        self.calls.draining = self.tasks.draining = True
        self._ending.set()

    async def Call(self, request: pb.CallRequest, context: Any) -> AsyncIterator[pb.Packet]:
        """Runs one call; its end at the other side cancels this task and with it the work."""
        peer = await self._peer(context)
        call = await self._read(context, peer, call_of, request)
        async with aclosing(self.calls.run(peer, call)) as packets:
            async for packet in packets:
                yield packet_message(packet)

    async def Task(self, request: pb.TaskRequest, context: Any) -> AsyncIterator[pb.TaskPart]:
        """Answers about a task of this region."""
        peer = await self._peer(context)
        call = await self._read(context, peer, task_call_of, request)
        async with aclosing(self.tasks.run(peer, call)) as parts:
            async for part in parts:
                yield part_message(part)

    async def Beat(
        self, request_iterator: AsyncIterator[pb.BeatMessage], context: Any
    ) -> AsyncIterator[pb.BeatMessage]:
        """Beats until the peer ends, this region ends, or the peer's certificate does."""
        peer = await self._peer(context)
        line = BeatLine(peer, self.watch_of(peer), self.clock.now_s)
        heard = asyncio.ensure_future(self._hear(line, request_iterator))
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            while not heard.done() and not ending.done():
                yield beat_message(line.next(self.state()))
                await asyncio.wait({heard, ending}, timeout=self.beat_s(), return_when=asyncio.FIRST_COMPLETED)
                await self._peer(context)
            if heard.done():
                heard.result()
        except WireError as error:
            await self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, peer, str(error))
        finally:
            heard.cancel()
            ending.cancel()

    async def _hear(self, line: BeatLine, messages: AsyncIterator[pb.BeatMessage]) -> None:
        async for message in messages:
            line.take(beat_of(message))

    async def _peer(self, context: Any) -> str:
        """The name of the region that calls; anybody else is turned away."""
        try:
            who = self.door.caller(context)
            if who.name not in self.served().regions:
                raise self.door.refused(context, who.uri, "is no region of this federation")
            if who.name == self.served().me:
                raise self.door.refused(context, who.uri, "is this region itself")
        except Refused as refused:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, refused.why)
        return who.name

    async def _read(self, context: Any, peer: str, read: Callable[[M], T], message: M) -> T:
        """What a message says; a peer whose message makes no sense is turned away."""
        try:
            return read(message)
        except WireError as error:
            await self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, peer, str(error))

    async def _abort(self, context: Any, code: grpc.StatusCode, peer: str, why: str) -> NoReturn:
        self.door.refused(context, peer, why)
        await context.abort(code, why)
        raise AssertionError("abort raises")
