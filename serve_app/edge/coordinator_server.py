"""The coordinator's services on one port: ``Region`` for regions that dial in, ``Admin`` for operators."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from serve_app.core.fleet_events import Audit, CloseReason, LinkClosed, LinkOpened, Reported
from serve_app.edge.admin_documents import AdminError
from serve_app.edge.admin_verbs import Verbs
from serve_app.edge.coordinator_hub import Hub, Link
from serve_app.edge.door import Door, Refused
from serve_app.edge.grpc_tls import LINK_S
from serve_app.edge.identity import Identity
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire import MOST_STATE_BYTES, WireError, check_protocol
from serve_app.edge.wire_link import MOST_DOCUMENTS_BYTES, MOST_NODES_BYTES, Up, up_of

log = logging.getLogger("ray.serve")

#: Of one message of a region.
MOST_UP_BYTES: Final = MOST_STATE_BYTES + MOST_NODES_BYTES
#: What gRPC itself takes: an operator's documents as JSON in JSON.
MOST_BYTES: Final = 2 * MOST_DOCUMENTS_BYTES
#: While a region hears all its peers, what it thinks of them is read from one report in so many.
PEERS_EVERY: Final = 5
#: The same refusal is one line of the audit log in so long: who is refused comes back each second.
REFUSED_AGAIN_S: Final = 30.0

_STATUS: Final[dict[CloseReason, grpc.StatusCode]] = {
    "unknown": grpc.StatusCode.PERMISSION_DENIED,
    "removed": grpc.StatusCode.PERMISSION_DENIED,
    "replaced": grpc.StatusCode.ABORTED,
    "silent": grpc.StatusCode.DEADLINE_EXCEEDED,
}


class _NoReport(Exception):
    """A message of a region that ends its link."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class CoordinatorServer:
    """The two services over a hub."""

    def __init__(self, hub: Hub, verbs: Verbs, federation: str, link_s: float = LINK_S) -> None:
        """``link_s``: how long a line may take; a region that dials says who it is within this time."""
        self._hub = hub
        self._verbs = verbs
        self._link_s = link_s
        self._regions = Door(federation, ("region",))
        self._operators = Door(federation, ("operator",))
        self._numbers = itertools.count(1)
        self._refused: dict[tuple[str, str], float] = {}

    def add(self, server: grpc.aio.Server) -> None:
        """Adds the services. Links carry bytes, so that one message is made once for all of them."""
        link = grpc.stream_stream_rpc_method_handler(self.link)
        do = grpc.unary_unary_rpc_method_handler(
            self.admin, pb.AdminRequest.FromString, pb.AdminReply.SerializeToString
        )
        handlers = (("grix.v1.Region", {"Link": link}), ("grix.v1.Admin", {"Do": do}))
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(*pair) for pair in handlers])

    async def _caller(self, door: Door, context: Any) -> Identity:
        try:
            return door.caller(context)
        except Refused as refused:
            self._note_refused(refused.who, "", refused.why)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refused))
            raise AssertionError("abort raises") from None

    async def _serving(self, context: Any) -> None:
        """Ends a call to a coordinator that has lost its place: another one may answer by now."""
        if self._hub.stopped.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this coordinator stops")

    def _note_refused(self, who: str, region: str, why: str) -> None:
        self._hub.counts["refused"] += 1
        now_s = self._hub.now_s()
        if now_s - self._refused.get((who, why), float("-inf")) < REFUSED_AGAIN_S:
            return
        if len(self._refused) >= 1000:
            self._refused.clear()
        self._refused[who, why] = now_s
        self._hub.audit(Audit(who, "refused", region[:100], why=why))

    # ---- Region ----

    async def link(self, _: AsyncIterator[bytes], context: Any) -> None:
        """One region's link, from its first message to its end."""
        identity = await self._caller(self._regions, context)
        link: Link | None = None
        why = "the region hung up"
        try:
            async with asyncio.timeout(self._link_s):
                first = await self._message(identity, context, None)
            if first is None:
                return
            number = next(self._numbers)
            link = self._hub.opened(first.region, number)
            self._hub.handle(LinkOpened(first.region, number))
            self._take(link, first)
            await self._until_end(link, identity, context)
            if link.close is not None:
                why = link.close.why
                await context.abort(_STATUS[link.close.reason], why)
            await self._serving(context)
        except _NoReport as error:
            why = error.why
            self._note_refused(identity.uri, link.region if link else "", why)
            await context.abort(error.code, why)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no message within {self._link_s:g} s")
        finally:
            if link is not None:
                self._hub.links.pop(link.number, None)
                self._hub.handle(LinkClosed(link.region, link.number, why))

    async def _until_end(self, link: Link, identity: Identity, context: Any) -> None:
        """Reads and writes until either ends, or the hub closes the link.

        Raises:
            _NoReport: for a message that ends it.
        """
        tasks = [
            asyncio.create_task(work)
            for work in (self._read(link, identity, context), self._write(link, context), link.closed.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, link: Link, identity: Identity, context: Any) -> None:
        while True:
            up = await self._message(identity, context, link)
            if up is None:
                return
            self._take(link, up)

    def _take(self, link: Link, up: Up) -> None:
        self._hub.counts["reports"] += 1
        report = Reported(link.region, link.number, up.seq, up.state, up.nodes, up.peers, up.seen)
        self._hub.handle(report)

    async def _write(self, link: Link, context: Any) -> None:
        with contextlib.suppress(grpc.RpcError, grpc.aio.InternalError):
            while True:
                await link.wake.wait()
                link.wake.clear()
                await self._hub.send(link, context.write)

    def _peers_matter(self, message: pb.RegionUp, link: Link | None) -> bool:
        """Whether views of peers are read: when one is silent at once, and once more when all is well again."""
        limit_s = self._hub.fleet.wanted.peer_silence_s
        deaf = any(p.silent_s > limit_s or p.fault for p in message.peers)
        before = link is None or link.deaf
        if link is not None:
            link.deaf = deaf
        return deaf or before or message.seq % PEERS_EVERY == 0

    async def _message(self, identity: Identity, context: Any, link: Link | None) -> Up | None:
        """The region's next message; ``None`` at the end.

        Raises:
            _NoReport: for one that is too large, makes no sense, or speaks for another region, or that comes after the
                end of the region's certificate.
        """
        raw = await context.read()
        if raw is grpc.aio.EOF:
            return None
        try:
            # A certificate may end during a link.
            self._regions.caller(context)
        except Refused as refused:
            raise _NoReport(grpc.StatusCode.PERMISSION_DENIED, refused.why) from None
        if len(raw) > MOST_UP_BYTES:
            said = f"report: has {len(raw)} bytes; at most {MOST_UP_BYTES} are allowed"
            raise _NoReport(grpc.StatusCode.RESOURCE_EXHAUSTED, said)
        try:
            message = pb.RegionUp.FromString(raw)
            up = up_of(message, peers=self._peers_matter(message, link))
        except DecodeError:
            raise _NoReport(grpc.StatusCode.INVALID_ARGUMENT, "report: is no message of this protocol") from None
        except WireError as error:
            raise _NoReport(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        for field, name in (("region", up.region), ("state.region", up.state.region if up.state else identity.name)):
            if name != identity.name:
                said = f"{field}: {name[:60]!a} is not the region of this certificate; allowed: {identity.name}"
                raise _NoReport(grpc.StatusCode.PERMISSION_DENIED, said)
        return up

    # ---- Admin ----

    async def admin(self, request: pb.AdminRequest, context: Any) -> pb.AdminReply:
        """One call of an operator."""
        identity = await self._caller(self._operators, context)
        await self._serving(context)
        try:
            check_protocol(request.protocol)
            answer = await self._verbs.do(identity.name, request.verb, request.json)
        except (AdminError, WireError) as error:
            faults = list(error.faults) if isinstance(error, AdminError) else []
            return pb.AdminReply(ok=False, json=json.dumps({"error": str(error), "faults": faults}))
        return pb.AdminReply(ok=True, json=json.dumps(answer))
