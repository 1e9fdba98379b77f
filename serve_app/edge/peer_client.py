"""The gRPC side of a gateway that dials: one link to one peer, with its beats and this region's calls."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import grpc

from serve_app.core.reports import RegionState
from serve_app.edge.beats import BeatLine, Watch
from serve_app.edge.grpc_tls import LINK_S, Pair, TlsFolder
from serve_app.edge.identity import Identity
from serve_app.edge.protos.grix_pb2_grpc import PeerStub
from serve_app.edge.tls_faults import fault_of
from serve_app.edge.wire import WireError, beat_message, beat_of
from serve_app.edge.wire_calls import MOST_PEER_BYTES, call_message, packet_of
from serve_app.edge.wire_tasks import part_of, task_message
from serve_app.outcomes import GrixError, Reason
from serve_app.ports import AgentCall, Body, Clock, Packet, Tail
from serve_app.task_forward import TaskCall, TaskPart

log = logging.getLogger("ray.serve")

#: A peer that has not admitted a call by then is not asked any longer.
ACCEPT_LIMIT_S: Final = 1.0
#: What is asked about a task is answered after a few steps of the peer's Redis.
TASK_LIMIT_S: Final = 10.0
#: Between two tries to reach a peer: at most, and at least this share of it.
BACKOFF_S: Final = 1.0
BACKOFF_RATIO: Final = 0.3
#: A peer that is silent for so long is dialled anew: on a line that was dead for a while, TCP tries ever more rarely.
REDIAL_S: Final = 5.0
#: Why a peer cannot be reached is looked into at the first try that fails and then at each of this many.
LOOK_EVERY: Final = 10

_REASONS: Final[dict[grpc.StatusCode, Reason]] = {
    grpc.StatusCode.UNAVAILABLE: "replica_lost",
    grpc.StatusCode.CANCELLED: "replica_lost",
    grpc.StatusCode.DEADLINE_EXCEEDED: "total_timeout",
    grpc.StatusCode.PERMISSION_DENIED: "no_target",
    # An older peer has no tasks to be asked about.
    grpc.StatusCode.UNIMPLEMENTED: "no_target",
}


T = TypeVar("T")


def _begins(packet: Packet) -> bool:
    """Whether an answer is under way: of a whole one nothing comes between its head and its end."""
    return any(isinstance(frame, Body | Tail) for frame in packet)


@dataclass(slots=True)
class _Line:
    """A channel and the certificate it was made with."""

    pair: Pair
    channel: grpc.aio.Channel
    stub: Any


@dataclass(slots=True)
class PeerLink:
    """Dials one peer. ``jitter`` draws from [0, 1); ``running_s`` is how long calls may go on over an old channel."""

    peer: Identity
    address: str
    tls: TlsFolder
    state: Callable[[], RegionState | None]
    beat_s: float
    silence_s: float
    running_s: float
    clock: Clock
    jitter: Callable[[], float]
    accept_limit_s: float | None = ACCEPT_LIMIT_S
    link_s: float = LINK_S
    watch: Watch = field(init=False)
    #: Judged beat by beat: a process that stood still has not lost its peer.
    _silent: bool = False
    _line: _Line | None = None
    _closing: set[asyncio.Task[None]] = field(default_factory=set)
    _calls: set[Any] = field(default_factory=set)
    #: The patience of calls that have nothing of their answer yet.
    _waiting: set[asyncio.Timeout] = field(default_factory=set)
    #: The patience of the others, and since when they wait for more.
    _under_way: dict[asyncio.Timeout, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watch = Watch(self.peer.name, self.clock.now_s)

    async def run(self) -> None:
        """Beats and judges the peer's silence, for as long as it is not cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._beat_on())
            both.create_task(self._judge_on())

    async def _judge_on(self) -> None:
        while True:
            began_s = self.clock.now_s()
            await self.clock.sleep(self.beat_s)
            late_s = self.clock.now_s() - began_s - self.beat_s
            if late_s > self.beat_s:
                self.watch.stood_still(late_s)
            self._silent = not self._is_heard()
            if self._silent:
                self._lose_patience()

    def _lose_patience(self) -> None:
        """A call under way has one beat more, which may just be late: no other region can tell its client the rest.

        It ends when neither it nor the beats bring anything; a line that is dead for good is noticed much later.
        """
        long_s, silent_s = self.silence_s + self.beat_s, self.watch.silent_s
        over_s = self.clock.now_s() - long_s
        is_long = silent_s is None or silent_s > long_s
        stuck = [patience for patience, since_s in self._under_way.items() if is_long and since_s < over_s]
        for patience in (*self._waiting, *stuck):
            # One that has just ended by itself takes no other end.
            if not patience.expired():
                patience.reschedule(0.0)

    async def _beat_on(self) -> None:
        """One stream after the other."""
        failed = 0
        while True:
            try:
                how = await self._beat()
                if how == "renewed":
                    continue
                fault = f"{self.peer} {'ended the beats' if how == 'ended' else 'fell silent'}"
            except grpc.aio.AioRpcError as error:
                fault = f"{self.peer} at {self.address}: {error.details()}"
                if error.code() == grpc.StatusCode.UNAVAILABLE and failed % LOOK_EVERY == 0:
                    fault = await fault_of(self.address, self.peer, self.tls) or fault
                elif error.code() == grpc.StatusCode.UNAVAILABLE:
                    fault = self.watch.fault or fault
            except WireError as error:
                fault = f"{self.peer} at {self.address} sends what makes no sense: {error}"
            failed = 0 if self._is_heard() else failed + 1
            self._tell(fault)
            await self.clock.sleep(BACKOFF_S * (BACKOFF_RATIO + (1 - BACKOFF_RATIO) * self.jitter()))

    async def leave(self, running: asyncio.Task[None]) -> None:
        """Ends with the last of its calls; until then it beats on, so that those of a peer that is lost end too."""
        while self._calls:
            await self.clock.sleep(self.beat_s)
        running.cancel()
        await self.close()

    async def close(self) -> None:
        """Ends the channels, with the calls that still run over them."""
        # The channels of before close with their last call; a cancelled close leaves one open for good.
        for stream in self._calls:
            stream.cancel()
        line, self._line = self._line, None
        await asyncio.gather(*self._closing, return_exceptions=True)
        if line is not None:
            await line.channel.close()

    def _is_heard(self) -> bool:
        silent_s = self.watch.silent_s
        return silent_s is not None and silent_s <= self.silence_s

    def _tell(self, fault: str) -> None:
        if fault != self.watch.fault:
            log.warning("no link: %s", fault)
        self.watch.fault = fault

    def _now(self) -> _Line:
        """The channel of this moment's certificate; calls over the one before end by themselves."""
        pair = self.tls.pair()
        if self._line is None or self._line.pair is not pair:
            self._leave_line()
            channel = self.tls.channel(self.address, self.peer, MOST_PEER_BYTES, link_s=self.link_s)
            self._line = _Line(pair, channel, PeerStub(channel))
        return self._line

    def _leave_line(self) -> None:
        if self._line is not None:
            task = asyncio.create_task(self._line.channel.close(self.running_s))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._line = None

    async def _beat(self) -> Literal["ended", "renewed", "silent"]:
        """One stream of beats, until it ends, the certificate changes or nothing comes."""
        line, beats = self._now(), BeatLine(self.peer.name, self.watch, self.clock.now_s)
        began_s = self.clock.now_s()
        stream = line.stub.Beat()
        hearing = asyncio.ensure_future(self._hear(stream, beats))
        try:
            while not hearing.done() and self._now() is line:
                await stream.write(beat_message(beats.next(self.state())))
                await asyncio.wait({hearing}, timeout=self.beat_s)
                silent_s = self.watch.silent_s
                if min(self.clock.now_s() - began_s, math.inf if silent_s is None else silent_s) > REDIAL_S:
                    self._leave_line()
                    return "silent"
            if not hearing.done():
                return "renewed"
            hearing.result()
        except asyncio.InvalidStateError:
            # The stream has ended; why is what reading it says.
            await hearing
        finally:
            hearing.cancel()
            stream.cancel()
        return "ended"

    async def _hear(self, stream: Any, beats: BeatLine) -> None:
        async for message in stream:
            was = self.watch.fault
            beats.take(beat_of(message))
            self._silent = False
            if was and not self.watch.fault:
                log.info("link to %s at %s is there again", self.peer, self.address)

    async def call(self, call: AgentCall) -> AsyncGenerator[Packet, None]:
        """Packets of a call that the peer serves. Closing this cancels the work there.

        Raises:
            GrixError: ``no_target`` at once when the peer is not heard, ``peer_silent`` or ``replica_lost``.
        """
        self._check_heard()
        try:
            message = call_message(call)
        except WireError as error:
            raise GrixError("body_too_large", f"The request is too large for another region: {error}") from None
        assert call.origin is not None
        stream = self._now().stub.Call(message, timeout=call.origin.deadline_s)
        received = self._received(stream, packet_of, self.accept_limit_s, _begins)
        async with aclosing(received) as packets:
            async for packet in packets:
                yield packet

    async def task(self, call: TaskCall) -> AsyncGenerator[TaskPart, None]:
        """What the peer answers about a task of its own.

        Raises:
            GrixError: ``no_target`` when it was not asked, else as :meth:`call`.
        """
        self._check_heard()
        try:
            message = task_message(call)
        except WireError as error:
            raise GrixError("body_too_large", f"The request is too large for another region: {error}") from None
        received = self._received(self._now().stub.Task(message), part_of, TASK_LIMIT_S, lambda part: True)
        async with aclosing(received) as parts:
            async for part in parts:
                yield part

    def _check_heard(self) -> None:
        if self._silent or self.watch.silent_s is None:
            raise GrixError("no_target", f"Region {self.peer.name} cannot be reached.")

    async def _received(
        self, stream: Any, read: Callable[[Any], T], limit_s: float | None, begins: Callable[[T], bool]
    ) -> AsyncGenerator[T, None]:
        """What comes over a stream, the first within a limit; its end with a reason where it is no good one."""
        self._calls.add(stream)
        messages, begun = aiter(stream), False
        try:
            while not begun:
                one = read(await self._patiently(messages, limit_s))
                begun, limit_s = begins(one), None
                yield one
            while (more := await self._more(messages)) is not None:
                yield read(more)
        except grpc.aio.AioRpcError as error:
            reason = _REASONS.get(error.code(), "upstream_failed")
            log.warning("call to %s failed: %s: %a", self.peer, error.code().name, (error.details() or "")[-300:])
            raise GrixError(reason, f"Region {self.peer.name} was lost, or has failed.") from None
        except StopAsyncIteration:
            raise GrixError("upstream_failed", f"Region {self.peer.name} ended the call without a tail.") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The call was cancelled with its link, not who waits for it.
            raise GrixError("replica_lost", f"The link to region {self.peer.name} has ended.") from None
        finally:
            self._calls.discard(stream)
            stream.cancel()

    async def _patiently(self, messages: Any, limit_s: float | None) -> Any:
        """The next message, within a limit and as long as the peer is heard."""
        patience = asyncio.timeout(limit_s)
        try:
            async with patience:
                self._waiting.add(patience)
                return await anext(messages)
        except TimeoutError:
            raise GrixError("peer_silent", f"Region {self.peer.name} fell silent.") from None
        finally:
            self._waiting.discard(patience)

    async def _more(self, messages: Any) -> Any | None:
        """The next message of a call that is under way, or ``None`` at its end."""
        patience = asyncio.timeout(None)
        try:
            async with patience:
                self._under_way[patience] = self.clock.now_s()
                return await anext(messages)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise GrixError("peer_silent", f"Region {self.peer.name} fell silent in its answer.") from None
        finally:
            del self._under_way[patience]
