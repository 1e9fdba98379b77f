"""A region's link to the coordinator: dialled by the region, outbound only, and dialled again for ever.

Nothing of a request waits for it. Whether it is up or not, the region goes on with the last plan it had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import grpc

from serve_app.core.reports import Node, PeerView, Plan, RegionState
from serve_app.edge.grpc_tls import LINK_S, Pair, TlsFolder
from serve_app.edge.identity import Identity
from serve_app.edge.protos import grix_pb2_grpc
from serve_app.edge.tls_faults import fault_of
from serve_app.edge.wire import WireError
from serve_app.edge.wire_link import MOST_LINK_BYTES, Up, plan_of, up_message

log = logging.getLogger("ray.serve")

#: What has not changed is told again this often: a coordinator that missed something learns of it.
WHOLE_EVERY_S: Final = 30.0
BACKOFF_FIRST_S: Final = 0.25
BACKOFF_MOST_S: Final = 5.0
#: A link that stood for so long was a good one: the next failure is the first again.
GOOD_AFTER_S: Final = 5.0
#: The same fault of the link is logged again after this long.
TOLD_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a region has to tell at one moment."""

    state: RegionState
    nodes: tuple[Node, ...]
    peers: tuple[PeerView, ...]
    seen: tuple[int, int]


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """How the link is now, for operators. ``fault`` says why it is not up."""

    up: bool
    fault: str = ""


def backoff_s(failures: int, jitter: float) -> float:
    """How long to wait after so many failures in a row; ``jitter`` in [0, 1) spreads regions that lost it together."""
    most_s = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 10))
    return most_s * (0.5 + 0.5 * jitter)


class CoordinatorLink:
    """One region's link. ``told`` is asked each heartbeat; ``on_plan`` gets each plan that comes, the same one too."""

    def __init__(
        self,
        address: str,
        tls: TlsFolder,
        *,
        heartbeat_s: float,
        told: Callable[[], Told],
        on_plan: Callable[[Plan], None],
        jitter: Callable[[], float],
        link_s: float = LINK_S,
    ) -> None:
        self._address, self._tls = address, tls
        self._heartbeat_s, self._link_s = heartbeat_s, link_s
        self._told, self._on_plan, self._jitter = told, on_plan, jitter
        self._said: tuple[str, float] = ("", float("-inf"))
        self.status = LinkStatus(False, "not dialled yet")

    async def run(self) -> None:
        """Keeps the link until cancelled."""
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began_s = loop.time()
            try:
                fault = await self._once()
                if fault is None:
                    continue
            except grpc.aio.AioRpcError as error:
                fault = await self._in_words(error)
            except (WireError, OSError) as error:
                fault = f"{type(error).__name__}: {error}"
            failures = 1 if loop.time() - began_s > GOOD_AFTER_S else failures + 1
            self.status = LinkStatus(False, fault)
            self._say(fault, loop.time())
            await asyncio.sleep(backoff_s(failures, self._jitter()))

    async def _in_words(self, error: grpc.aio.AioRpcError) -> str:
        """What gRPC says; where it only says that nobody is there, what a connection tried by hand says."""
        words = ""
        if error.code() is grpc.StatusCode.UNAVAILABLE and not self.status.up:
            whom = Identity(self._tls.identity.federation, "coordinator")
            words = await fault_of(self._address, whom, self._tls)
        return words or f"{error.code().name}: {(error.details() or '')[:300]}"

    def _say(self, fault: str, now_s: float) -> None:
        before, at_s = self._said
        if fault != before or now_s - at_s >= TOLD_EVERY_S:
            self._said = (fault, now_s)
            log.warning("no link to the coordinator at %s: %s", self._address, fault)

    async def _once(self) -> str | None:
        """One link from dialling to its end; why it ended, ``None`` for a certificate that is no longer that of now."""
        whom = Identity(self._tls.identity.federation, "coordinator")
        pair = self._tls.pair()
        # To dial takes a few ways there and back.
        channel = self._tls.channel(
            self._address, whom, MOST_LINK_BYTES, link_s=self._link_s, dial_s=2.0 * self._link_s
        )
        async with channel:
            call = grix_pb2_grpc.RegionStub(channel).Link()
            writing = asyncio.create_task(self._write_on(call, pair))
            reading = asyncio.create_task(self._read_on(call))
            try:
                await asyncio.wait({writing, reading}, return_when=asyncio.FIRST_COMPLETED)
                if writing.done() and writing.result() == "renewed":
                    return None
                return await reading
            finally:
                writing.cancel()
                reading.cancel()
                call.cancel()
                await asyncio.gather(writing, reading, return_exceptions=True)

    async def _read_on(self, call: Any) -> str:
        """Takes plans until the call ends; why it did."""
        before: Plan | None = None
        while (message := await call.read()) is not grpc.aio.EOF:
            before = plan_of(message, before)
            if not self.status.up:
                log.info("the coordinator at %s answers: epoch %d", self._address, before.epoch)
                self.status, self._said = LinkStatus(True), ("", float("-inf"))
            self._on_plan(before)
        return f"{(await call.code()).name}: {await call.details() or 'the coordinator closed the link'}"

    async def _write_on(self, call: Any, pair: Pair) -> Literal["ended", "renewed"]:
        """Tells each heartbeat what has changed, and everything now and then. Ends with the call or the certificate."""
        loop = asyncio.get_running_loop()
        seq, last, whole_s = 0, None, 0.0
        while self._tls.pair() is pair:
            told, now_s = self._told(), loop.time()
            whole = last is None or now_s - whole_s >= WHOLE_EVERY_S
            whole_s = now_s if whole else whole_s
            seq += 1
            up = Up(told.state.region, seq, told.state, told.nodes, told.peers, told.seen)
            if last is not None and not whole:
                up = replace(
                    up,
                    state=None if told.state == last.state else told.state,
                    nodes=None if told.nodes == last.nodes else told.nodes,
                )
            last = told
            try:
                await call.write(up_message(up))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return "ended"
            await asyncio.sleep(self._heartbeat_s)
        return "renewed"
