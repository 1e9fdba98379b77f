"""A region's gateway without Serve: dials the peers, serves theirs, and tells the RegionAgent what it sees of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from cluster_configs import schema
from serve_app.core.reports import FRESH_S, PeerView, RegionState
from serve_app.core.table import Table
from serve_app.edge.beats import OwnState, Watch
from serve_app.edge.door import Door
from serve_app.edge.grpc_tls import LINK_S, TlsError, TlsFolder, start_server
from serve_app.edge.identity import Identity
from serve_app.edge.peer_calls import PeerCalls, Served
from serve_app.edge.peer_client import PeerLink
from serve_app.edge.peer_server import PeerServer
from serve_app.edge.peer_tasks import PeerTasks
from serve_app.edge.protos.grix_pb2_grpc import add_PeerServicer_to_server
from serve_app.edge.wire_calls import MOST_PEER_BYTES
from serve_app.outcomes import GrixError
from serve_app.ports import AgentCall, Agents, Clock, Failure, Head, Limits, Packet, Tail
from serve_app.task_desk import Tasks
from serve_app.task_forward import TaskCall, TaskPart

log = logging.getLogger("ray.serve")

Exchange = Callable[[tuple[PeerView, ...]], Awaitable[RegionState]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a gateway's user_config comes to."""

    served: Served
    federation: str
    tls_folder: Path
    listen: str | None
    peers: Mapping[str, str | None]
    beat_s: float
    silence_s: float
    total_s: float
    link_s: float = LINK_S

    @property
    def me(self) -> Identity:
        return Identity(self.federation, "region", self.served.me)


def plan_of(user_config: Mapping[str, Any], table: Table) -> Plan:
    """The plan of a user_config with these keys: ``region``, ``federation``, ``pkiFolder`` and ``listen``.

    Raises:
        ValidationError: for regions or health that no Federation could have.
    """
    federation = user_config["federation"]
    regions = [schema.Region.model_validate(r) for r in federation["regions"]]
    health = schema.Health.model_validate(federation["health"])
    mine = schema.Region.model_validate(user_config["region"])
    return Plan(
        served=Served.of(table, (r.name for r in regions), mine.accepts_spill),
        federation=federation["name"],
        tls_folder=Path(user_config["pkiFolder"]),
        listen=user_config["listen"],
        peers={r.name: r.gateway for r in regions if r.name != mine.name},
        beat_s=health.peer_beat_s,
        silence_s=health.peer_silence_s,
        total_s=max((a.timeouts.total_s for a in table.agents.values()), default=0.0),
        link_s=health.link_timeout_s,
    )


def _listens(plan: Plan) -> tuple[object, ...]:
    """What the server was made with."""
    return plan.listen, plan.tls_folder, plan.link_s


@dataclass(slots=True)
class Gateway:
    """One gateway. ``exchange`` tells the RegionAgent what is seen and answers with this region's state."""

    agents: Agents
    exchange: Exchange
    limits: Callable[[], Limits]
    keep_session: Callable[[str, bytes], None]
    tasks: Tasks
    clock: Clock
    jitter: Callable[[], float]
    #: A state of the RegionAgent's older than this is told with its age.
    fresh_s: float = 1.0
    port: int | None = None
    _plan: Plan | None = None
    _tls: TlsFolder | None = None
    _own: OwnState = field(init=False)
    _servicer: PeerServer | None = None
    _server: grpc.aio.Server | None = None
    _links: dict[str, PeerLink] = field(default_factory=dict)
    #: Peers that this region cannot dial, as they are heard.
    _heard: dict[str, Watch] = field(default_factory=dict)
    _dialling: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _exchanging: asyncio.Task[None] | None = None
    #: Servers and links of before, which end with their calls.
    _draining: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._own = OwnState(self.clock.now_s, self.fresh_s)

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    async def configure(self, plan: Plan) -> None:
        """Takes a plan whole: links that stay the same stay open, and so does the server; others end with their calls.

        Raises:
            TlsError: when certificates cannot be used, or nobody can listen there.
        """
        if self._tls is None or self._tls.folder != plan.tls_folder:
            tls = TlsFolder(plan.tls_folder)
            if tls.identity != plan.me:
                raise TlsError(f"{tls.folder}: this is the certificate of {tls.identity}, not of {plan.me}")
            self._tls = tls
        before, self._plan = self._plan, plan
        await self._listen(before)
        self._dial()
        if self._exchanging is None:
            self._exchanging = asyncio.create_task(self._exchange_on())

    async def _listen(self, before: Plan | None) -> None:
        plan, tls = self.plan, self._tls
        assert tls is not None
        if before is not None and _listens(before) == _listens(plan):
            return
        old = (self._servicer, self._server)
        same_place = before is not None and before.listen == plan.listen
        if same_place:
            self._drain_apart(*old)
        self._servicer = self._server = None
        if plan.listen is not None:
            await self._serve(plan.listen, plan, tls)
        if not same_place:
            self._drain_apart(*old)

    async def _serve(self, listen: str, plan: Plan, tls: TlsFolder) -> None:
        servicer = PeerServer(
            door=Door(plan.federation, ("region",)),
            served=lambda: self.plan.served,
            calls=PeerCalls(
                lambda: self.plan.served, self.agents, self.limits, self.clock, self.keep_session, self._tried
            ),
            tasks=PeerTasks(lambda: self.plan.served, self.tasks),
            watch_of=lambda peer: self._heard.get(peer),
            state=self._own.now,
            beat_s=lambda: self.plan.beat_s,
            clock=self.clock,
        )
        self._server, self.port = await start_server(
            listen,
            tls,
            lambda server: add_PeerServicer_to_server(servicer, server),
            most_bytes=MOST_PEER_BYTES,
            busy_s=plan.total_s,
            link_s=plan.link_s,
        )
        self._servicer = servicer
        log.info("gateway of %s listens at %s", plan.me, listen)

    def _tried(self) -> Mapping[str, str]:
        """What the RegionAgent says is tried here."""
        own = self._own.now()
        return {} if own is None else {t.agent: t.release for t in own.targets if t.canary}

    def _drain_apart(self, servicer: PeerServer | None, server: grpc.aio.Server | None) -> None:
        """The server of before ends by itself; its port is free at once."""
        if servicer is not None and server is not None:
            servicer.drain()
            self._apart(server.stop(self.plan.total_s))

    def _apart(self, ending: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(ending)
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    def _dial(self) -> None:
        plan, tls = self.plan, self._tls
        assert tls is not None
        left: dict[str, PeerLink] = {}
        for name, link in list(self._links.items()):
            if (plan.peers.get(name), tls, plan.link_s) == (link.address, link.tls, link.link_s):
                link.beat_s, link.silence_s, link.running_s = plan.beat_s, plan.silence_s, plan.total_s
            else:
                left[name] = self._links.pop(name)
                self._apart(link.leave(self._dialling.pop(name)))
        self._heard = {
            name: self._heard.get(name) or Watch(name, self.clock.now_s)
            for name, address in plan.peers.items()
            if address is None
        }
        for name, address in plan.peers.items():
            if address is None or name in self._links:
                continue
            peer = Identity(plan.federation, "region", name)
            link = PeerLink(
                peer,
                address,
                tls,
                self._own.now,
                plan.beat_s,
                plan.silence_s,
                plan.total_s,
                self.clock,
                self.jitter,
                link_s=plan.link_s,
            )
            if name in left:
                link.watch.follow(left[name].watch)
            self._links[name] = link
            self._dialling[name] = asyncio.create_task(link.run())

    def check(self) -> None:
        """Raises what has ended a task that must not end."""
        for task in (self._exchanging, *self._dialling.values()):
            if task is not None and task.done() and not task.cancelled():
                task.result()

    def views(self) -> tuple[PeerView, ...]:
        """Each peer as it is seen now, in the order of the federation."""
        watches = {**self._heard, **{name: link.watch for name, link in self._links.items()}}
        return tuple(watches[name].view() for name in self.plan.peers if name in watches)

    async def _exchange_on(self) -> None:
        told = ""
        while True:
            began_s = self.clock.now_s()
            try:
                async with asyncio.timeout(FRESH_S):
                    self._own.tell(await self.exchange(self.views()))
                fault = ""
            except Exception as error:  # whatever is wrong with the RegionAgent, peers are still beaten to
                fault = type(error).__name__
            if fault != told:
                log.log(logging.WARNING if fault else logging.INFO, "RegionAgent %s", fault or "answers")
            told = fault
            await self._pause(max(0.01, self.plan.beat_s - (self.clock.now_s() - began_s)))

    async def _pause(self, pause_s: float) -> None:
        """Sleeps; again when this process stood still meanwhile, so that what waits to be read is heard first."""
        while True:
            began_s = self.clock.now_s()
            await self.clock.sleep(pause_s)
            late_s = self.clock.now_s() - began_s - pause_s
            if late_s <= self.plan.beat_s:
                return
            for watch in self._heard.values():
                watch.stood_still(late_s)

    async def call(self, peer: str, call: AgentCall) -> AsyncGenerator[Packet, None]:
        """Packets of a call that a peer serves; a failure is one of them. Closing this cancels the work there."""
        link, begun = self._links.get(peer), False
        try:
            if link is None:
                raise GrixError("no_target", f"Region {peer} cannot be dialled from here.")
            packets = link.call(call)
            try:
                async for packet in packets:
                    begun = begun or any(isinstance(frame, Head) for frame in packet)
                    yield packet
            finally:
                await packets.aclose()
        except GrixError as error:
            failure = Failure(error.reason, error.message, error.param, error.retry_after_s)
            tail = Tail(error.status.outcome, failure=failure)
            yield (tail,) if begun else (Head(failure=failure), tail)

    async def task(self, peer: str, call: TaskCall) -> AsyncGenerator[TaskPart, None]:
        """What a peer answers about a task of its own; a failure is one of the parts."""
        link = self._links.get(peer)
        try:
            if link is None:
                raise GrixError("no_target", f"Region {peer} cannot be dialled from here.")
            async with aclosing(link.task(call)) as parts:
                async for part in parts:
                    yield part
        except GrixError as error:
            yield TaskPart(failure=Failure(error.reason, error.message, error.param, error.retry_after_s))

    async def drain(self) -> None:
        """Ends: new calls go elsewhere, those that run may end within the total limit."""
        if self._servicer is not None and self._server is not None:
            self._servicer.drain()
            await self._server.stop(self.plan.total_s)
        if self._draining:
            await asyncio.wait(self._draining)
        await self._end_links()
        if self._exchanging is not None:
            self._exchanging.cancel()

    async def _end_links(self) -> None:
        for name in list(self._links):
            self._dialling.pop(name).cancel()
            await self._links.pop(name).close()
