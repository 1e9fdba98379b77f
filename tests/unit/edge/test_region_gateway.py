"""Two gateways with real certificates over real gRPC on loopback: calls, beats, and everything that breaks between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from serve_app.core import table
from serve_app.core.reports import PeerView, RegionState
from serve_app.edge import peer_client, pki
from serve_app.edge.clock import RealClock
from serve_app.edge.gateway import Gateway, Plan, plan_of
from serve_app.edge.grpc_tls import LINK_S, TlsError, TlsFolder
from serve_app.edge.limits import LocalLimits
from serve_app.edge.peer_calls import Served
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.protos.grix_pb2_grpc import PeerStub
from serve_app.edge.wire import state_message
from serve_app.edge.wire_calls import MOST_PEER_BYTES, call_message, packet_of
from serve_app.ports import Accepted, AgentCall, Body, Failure, Frame, Head, Origin, Packet, Tail, Usage
from tests.fake_tasks import FakeTasks
from tests.fakes import FakeAgents, Step, a_table
from tests.pki import FEDERATION, made, region, reissue

BEAT_S, SILENCE_S = 0.02, 0.25
ORIGIN = Origin("acme", frozenset({"any"}), None, None, None, False, 30, 60.0, 5.0)
CALL = AgentCall("r1", "chat", "qwen-chat", {"messages": [{"content": "สวัสดี"}]}, True, 64, 100, origin=ORIGIN)
GOOD: tuple[Step, ...] = (
    Accepted("inner", "inner"),
    Head(max_tokens=64),
    Body(b"one"),
    Tail("success", "stop", Usage(7, 3)),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("pki"))


@dataclass
class Side:
    """One region's gateway with faked agents and a faked RegionAgent."""

    name: str
    folder: Path
    agents: FakeAgents = field(default_factory=lambda: FakeAgents([GOOD]))
    tasks: FakeTasks = field(default_factory=FakeTasks)
    told: list[tuple[PeerView, ...]] = field(default_factory=list)
    health: str = "healthy"
    link_s: float = 10.0

    def __post_init__(self) -> None:
        clock = RealClock()
        limits = LocalLimits(clock.now_s)
        self.gateway = Gateway(
            self.agents,
            self.exchange,
            lambda: limits,
            lambda key, carry: None,
            self.tasks,
            clock,
            random.Random(1).random,
            0.1,
        )

    async def exchange(self, views: tuple[PeerView, ...]) -> RegionState:
        self.told.append(views)
        return RegionState(self.name, self.health, "")  # type: ignore[arg-type]

    def plan(self, listen: str | None = "127.0.0.1:0", **peers: str | None) -> Plan:
        mine = a_table(region=table.Region(self.name, self.name, frozenset({"sg"}), 1.0))
        named = {name.replace("_", "-"): address for name, address in peers.items()}
        served = Served.of(mine, (self.name, *named), True)
        return Plan(served, FEDERATION, self.folder, listen, named, BEAT_S, SILENCE_S, total_s=5.0, link_s=self.link_s)

    def view(self, of: str) -> PeerView:
        return next(v for v in self.gateway.views() if v.region == of)

    def hears(self, of: str) -> bool:
        silent_s = self.view(of).silent_s
        return silent_s is not None and silent_s < SILENCE_S and self.view(of).state is not None

    async def frames(self, peer: str, call: AgentCall = CALL) -> list[Frame]:
        return [frame async for packet in self.gateway.call(peer, call) for frame in packet]


async def until(holds: Callable[[], bool], limit_s: float = 15.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.005)


class Cable:
    """A line between two ends that can hang, with every connection left open."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self.passes = asyncio.Event()
        self.passes.set()
        self._ends: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def strand(self) -> None:
        """What is connected now hangs for good; new connections pass."""
        self.passes.clear()
        self.passes = asyncio.Event()
        self.passes.set()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passes = self.passes
        there, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        self._ends += [writer, back]
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._carry(reader, back, passes), self._carry(there, writer, passes))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
        while data := await reader.read(65536):
            await passes.wait()
            writer.write(data)
        writer.close()

    async def close(self) -> None:
        self._server.close()
        for end in self._ends:
            end.transport.abort()


@asynccontextmanager
async def two(root: Path, cabled: bool = False, *scripts: tuple[Step, ...], link_s: float = 10.0) -> AsyncIterator[Any]:
    """cloud-a, which dials cloud-b; cloud-b only hears cloud-a."""
    a, b = (Side(name, root / "region" / name, link_s=link_s) for name in ("cloud-a", "cloud-b"))
    if scripts:
        b.agents.scripts = list(scripts)
    await b.gateway.configure(b.plan(cloud_a=None))
    address, cable = f"127.0.0.1:{b.gateway.port}", None
    if cabled:
        cable = Cable(b.gateway.port or 0)
        address = await cable.start()
    try:
        await a.gateway.configure(a.plan(None, cloud_b=address))
        await until(lambda: a.hears("cloud-b") and b.hears("cloud-a"))
        yield (a, b, cable) if cabled else (a, b)
    finally:
        if cable is not None:
            await cable.close()
        b.gateway._plan = replace(b.gateway.plan, total_s=0.0)
        await a.gateway.drain()
        await b.gateway.drain()


async def test_a_call_is_served_by_the_peer(root: Path) -> None:
    async with two(root) as (a, b):
        release = a_table().agents["qwen-chat"].release
        assert await a.frames("cloud-b") == [Accepted("cloud-b/qwen-chat@abcdef12", release), *GOOD[1:]]
        target, call = b.agents.calls[0]
        assert (target.region, call.body, call.origin) == ("cloud-b", CALL.body, None)


async def test_both_see_each_other_and_tell_their_regionagents(root: Path) -> None:
    async with two(root) as (a, b):
        for side, other in ((a, "cloud-b"), (b, "cloud-a")):
            await until(lambda side=side, other=other: side.view(other).network_ms is not None)
            view = side.view(other)
            assert 0 <= view.network_ms < 1000 and view.fault == ""
            assert view.state is not None and replace(view.state, age_s=0.0) == RegionState(other, "healthy", "")
        await until(lambda: any(v.state is not None for v in a.told[-1]))
        b.health = "slow"
        await until(lambda: a.view("cloud-b").state.health == "slow")


async def test_a_call_to_who_is_not_dialled_ends_at_once(root: Path) -> None:
    async with two(root) as (_, b):
        failure = Failure("no_target", "Region cloud-a cannot be dialled from here.")
        assert await b.frames("cloud-a") == [Head(failure=failure), Tail("rejected", failure=failure)]


async def test_who_leaves_cancels_the_work_in_the_peer_within_a_second(root: Path) -> None:
    async with two(root, False, (*GOOD[:3], "hang")) as (a, b):
        packets = a.gateway.call("cloud-b", CALL)
        async for packet in packets:
            if any(isinstance(frame, Body) for frame in packet):
                break
        assert b.agents.closed == 0
        await packets.aclose()
        await until(lambda: b.agents.closed == 1, 1.0)


async def test_a_call_that_waits_for_its_first_token_leaves_a_peer_that_falls_silent(root: Path) -> None:
    async with two(root, True, (GOOD[0], "hang")) as (a, b, cable):
        packets = a.gateway.call("cloud-b", CALL)
        assert isinstance((await anext(packets))[0], Accepted)
        cable.passes.clear()
        rest = [packet async for packet in packets]
        failure = Failure("peer_silent", "Region cloud-b fell silent.")
        assert rest == [(Head(failure=failure), Tail("failed", failure=failure))]
        # The next one is not even tried.
        failure = Failure("no_target", "Region cloud-b cannot be reached.")
        assert await a.frames("cloud-b") == [Head(failure=failure), Tail("rejected", failure=failure)]
        assert a.view("cloud-b").silent_s > SILENCE_S
        cable.passes.set()
        await until(lambda: a.hears("cloud-b"))
        await until(lambda: b.agents.closed == 1)


async def test_a_whole_answer_that_is_being_made_leaves_a_peer_that_falls_silent(root: Path) -> None:
    async with two(root, True, (*GOOD[:2], "hang")) as (a, b, cable):
        packets = a.gateway.call("cloud-b", replace(CALL, stream=False))
        failure = Failure("peer_silent", "Region cloud-b fell silent.")
        async with asyncio.timeout(15.0):
            assert isinstance((await anext(packets))[0], Accepted)
            assert await anext(packets) == (Head(max_tokens=64),)
            cable.passes.clear()
            assert [packet async for packet in packets] == [(Tail("failed", failure=failure),)]
        cable.passes.set()
        await until(lambda: b.agents.closed == 1)


async def test_a_stream_under_way_ends_with_a_peer_that_stays_silent(root: Path) -> None:
    async with two(root, True, (*GOOD[:3], "hang")) as (a, b, cable):
        packets = a.gateway.call("cloud-b", CALL)
        async with asyncio.timeout(15.0):
            async for packet in packets:
                if any(isinstance(frame, Body) for frame in packet):
                    break
            cable.passes.clear()
            failure = Failure("peer_silent", "Region cloud-b fell silent in its answer.")
            assert [packet async for packet in packets] == [(Tail("failed", failure=failure),)]
        assert a.view("cloud-b").silent_s > SILENCE_S + BEAT_S
        cable.passes.set()
        await until(lambda: b.agents.closed == 1)


async def test_a_call_that_runs_out_of_time_as_its_peer_falls_silent_leaves_the_link_alive(root: Path) -> None:
    async with two(root) as (a, _):
        link = a.gateway._links["cloud-b"]

        async def wait() -> None:
            async with asyncio.timeout(None) as patience:
                link._waiting.add(patience)
                await asyncio.Event().wait()

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        link._lose_patience()
        # Between the end of the time and the end of the wait.
        await asyncio.sleep(0)
        assert not waiting.done()
        link._lose_patience()
        with pytest.raises(TimeoutError):
            await waiting
        link._waiting.clear()


async def test_a_half_open_connection_ends_by_itself(root: Path) -> None:
    async with two(root, True, (*GOOD[:3], "hang"), link_s=0.1) as (a, b, cable):
        packets = a.gateway.call("cloud-b", CALL)
        async for packet in packets:
            if any(isinstance(frame, Body) for frame in packet):
                break
        cable.passes.clear()
        # By the connection, or by the beats: whoever is sooner.
        ((tail,),) = [packet async for packet in packets]
        assert isinstance(tail, Tail) and tail.failure is not None
        assert tail.failure.reason in {"replica_lost", "peer_silent"}
        # The serving side notices too, and frees its engine.
        await until(lambda: b.agents.closed == 1)


async def test_a_peer_that_is_silent_for_long_is_dialled_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_client, "REDIAL_S", 0.5)
    async with two(root, True) as (a, b, cable):
        cable.strand()
        await until(lambda: not a.hears("cloud-b"))
        await until(lambda: a.hears("cloud-b") and b.hears("cloud-a"), 8.0)
        assert (await a.frames("cloud-b"))[1:] == list(GOOD[1:])


async def test_a_peer_that_dies_under_a_stream_is_a_tail(root: Path) -> None:
    async with two(root, False, (*GOOD[:3], "hang")) as (a, b):
        packets = a.gateway.call("cloud-b", CALL)
        async for packet in packets:
            if any(isinstance(frame, Body) for frame in packet):
                break
        await b.gateway._server.stop(0)
        failure = Failure("replica_lost", "Region cloud-b was lost, or has failed.")
        assert [packet async for packet in packets] == [(Tail("failed", failure=failure),)]
        await until(lambda: "cannot be reached: Connection refused" in a.view("cloud-b").fault)


class Waits(FakeAgents):
    """Holds each answer back before its body until it may go."""

    def __init__(self) -> None:
        super().__init__([GOOD])
        self.go = asyncio.Event()

    async def call(self, target: Any, call: AgentCall) -> AsyncIterator[Frame]:
        async for frame in super().call(target, call):
            if isinstance(frame, Body):
                await self.go.wait()
            yield frame


async def test_a_region_that_ends_sends_new_calls_elsewhere_and_finishes_what_runs(root: Path) -> None:
    async with two(root) as (a, b):
        b.agents = b.gateway._servicer.calls.agents = Waits()
        packets = a.gateway.call("cloud-b", CALL)
        await anext(packets)
        await until(lambda: bool(b.agents.calls))
        draining = asyncio.ensure_future(b.gateway.drain())
        await until(lambda: b.gateway._servicer.calls.draining)
        rest = asyncio.ensure_future(_all(packets))
        failure = (await a.frames("cloud-b"))[0].failure
        assert failure.reason in ("no_target", "replica_lost")
        b.agents.go.set()
        assert [frame for packet in await rest for frame in packet] == list(GOOD[1:])
        await draining


@pytest.mark.parametrize("changed", ["address", "link_s", "silence_s", "peers"])
async def test_a_call_that_runs_ends_over_the_link_of_before(root: Path, changed: str) -> None:
    async with two(root) as (a, b):
        cable = Cable(b.gateway.port or 0)
        other_way = await cable.start()
        b.agents = b.gateway._servicer.calls.agents = Waits()
        link = a.gateway._links["cloud-b"]
        plan = a.plan(None, cloud_b=other_way if changed == "address" else link.address)
        changes = {"link_s": {"link_s": 5.0}, "silence_s": {"silence_s": 0.5, "beat_s": 0.03}, "peers": {"peers": {}}}
        packets = a.gateway.call("cloud-b", CALL)
        assert isinstance((await anext(packets))[0], Accepted)
        await a.gateway.configure(replace(plan, **changes.get(changed, {})))
        now = a.gateway._links.get("cloud-b")
        assert (now is link) == (changed == "silence_s")
        if now is not None:
            # What was heard of the peer holds: the next call does not wait for a beat.
            rest = asyncio.ensure_future(a.frames("cloud-b"))
            await until(lambda: len(b.agents.calls) == 2 or rest.done())
            assert (now.silence_s, now.beat_s) == ((0.5, 0.03) if changed == "silence_s" else (SILENCE_S, BEAT_S))
        assert bool(cable._ends) == (changed == "address")
        b.agents.go.set()
        assert [frame for packet in await _all(packets) for frame in packet] == list(GOOD[1:])
        if now is not None:
            assert (await rest)[1:] == list(GOOD[1:])
        # Nobody calls over the link of before any more: it is closed.
        await until(lambda: not a.gateway._draining)
        await cable.close()


async def test_a_call_over_the_link_of_before_still_leaves_a_peer_that_falls_silent(root: Path) -> None:
    async with two(root, True, (GOOD[0], "hang")) as (a, b, cable):
        packets = a.gateway.call("cloud-b", CALL)
        assert isinstance((await anext(packets))[0], Accepted)
        await a.gateway.configure(a.plan(None, cloud_b=f"127.0.0.1:{b.gateway.port}"))
        cable.passes.clear()
        failure = Failure("peer_silent", "Region cloud-b fell silent.")
        assert await _all(packets) == [(Head(failure=failure), Tail("failed", failure=failure))]
        assert a.hears("cloud-b")
        await until(lambda: not a.gateway._draining)


async def _all(packets: AsyncIterator[Packet]) -> list[Packet]:
    return [packet async for packet in packets]


async def test_certificates_are_renewed_while_calls_and_beats_run(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = tmp_path / "pki"
    shutil.copytree(root, mine, symlinks=True)
    async with two(mine, False, (*GOOD[:3], "hang"), GOOD) as (a, b):
        caplog.clear()
        packets = a.gateway.call("cloud-b", CALL)
        async for packet in packets:
            if any(isinstance(frame, Body) for frame in packet):
                break
        link = a.gateway._links["cloud-b"]
        before = link._line
        pki.renew(mine, datetime.now(UTC))
        await until(lambda: link._line is not before and link._line is not None)
        await until(lambda: a.hears("cloud-b") and b.hears("cloud-a"))
        assert (await a.frames("cloud-b"))[1:] == list(GOOD[1:])
        # The call of before runs over the channel of before until it ends.
        assert b.agents.closed == 1
        # A link that ends takes the channel of before with it.
        await a.gateway._end_links()
        async with asyncio.timeout(5.0):
            (tail,) = [frame for packet in await _all(packets) for frame in packet]
        assert isinstance(tail, Tail) and tail.outcome == "failed"
        await until(lambda: b.agents.closed == 2)
    assert "no link" not in caplog.text


@asynccontextmanager
async def stranger(folder: Path, side: Side) -> AsyncIterator[Any]:
    """A hand-made client with the certificates in ``folder``."""
    async with TlsFolder(folder).channel(f"127.0.0.1:{side.gateway.port}", region(side.name), 100 << 20) as channel:
        yield PeerStub(channel)


async def refusal(calling: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in calling:
            pass
    return f"{caught.value.code().name}: {caught.value.details()}"


@pytest.mark.parametrize(
    ("who", "said"),
    [
        (region("cloud-z"), "PERMISSION_DENIED: is no region of this federation"),
        (region("cloud-b"), "PERMISSION_DENIED: is this region itself"),
        (region("cloud-a", "evil"), "PERMISSION_DENIED: belongs to another federation than demo"),
    ],
)
async def test_who_is_no_peer_is_refused_and_logged(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, who: Any, said: str
) -> None:
    folder = reissue(root, who, tmp_path / "stranger")
    async with two(root) as (_, b), stranger(folder, b) as stub:
        assert await refusal(stub.Call(call_message(CALL))) == said
        assert await refusal(stub.Beat(iter([pb.BeatMessage(protocol=1, seq=1)]))) == said
        assert b.agents.calls == []
    assert f"refused {who} at ipv4:127.0.0.1:" in caplog.text


async def test_a_report_in_the_name_of_another_region_is_refused_and_logged(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(root) as (_, b):
        async with stranger(root / "region/cloud-a", b) as stub:
            forged = state_message(RegionState("cloud-b", "healthy", ""))
            said = await refusal(stub.Beat(iter([pb.BeatMessage(protocol=1, seq=10**6, state=forged)])))
        assert said == "INVALID_ARGUMENT: state.region: 'cloud-b' is not cloud-a, who sent it"
        assert b.view("cloud-a").state.region == "cloud-a"
    assert "refused cloud-a at ipv4:127.0.0.1:" in caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protocol": 3}, "INVALID_ARGUMENT: protocol: 3 is not understood here; allowed: 1 to 2"),
        ({"body": b"x" * MOST_PEER_BYTES}, "RESOURCE_EXHAUSTED: "),
        ({"kind": "seance"}, "INVALID_ARGUMENT: kind: 'seance' is not understood here; allowed: chat, completion"),
        ({"queue_s": float("nan")}, "INVALID_ARGUMENT: queue_s: nan is no time; allowed: seconds from 0 on"),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused(root: Path, changes: dict[str, Any], said: str) -> None:
    async with two(root) as (_, b), stranger(root / "region/cloud-a", b) as stub:
        message = call_message(CALL)
        for name, value in changes.items():
            setattr(message, name, value)
        assert (await refusal(stub.Call(message))).startswith(said)
        assert b.agents.calls == []


@pytest.mark.parametrize(("changes", "outcome"), [({"protocol": 2}, "success"), ({"hops": 2}, "rejected")])
async def test_a_neighbouring_protocol_is_served_and_a_second_hop_is_not(
    root: Path, changes: dict[str, int], outcome: str
) -> None:
    async with two(root) as (_, b), stranger(root / "region/cloud-a", b) as stub:
        message = call_message(CALL)
        for name, value in changes.items():
            setattr(message, name, value)
        tail = [packet_of(packet) async for packet in stub.Call(message)][-1][-1]
        assert isinstance(tail, Tail) and tail.outcome == outcome
        assert len(b.agents.calls) == (1 if outcome == "success" else 0)


async def test_a_region_that_answers_for_another_is_not_believed(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, impostor = Side("cloud-a", root / "region/cloud-a"), Side("edge-1", root / "region/edge-1")
    await impostor.gateway.configure(impostor.plan(cloud_a=None))
    try:
        await a.gateway.configure(a.plan(None, cloud_b=f"127.0.0.1:{impostor.gateway.port}"))
        await until(lambda: "refused grix://demo/region/edge-1" in a.view("cloud-b").fault)
        assert a.view("cloud-b").silent_s is None
    finally:
        await a.gateway.drain()
        await impostor.gateway.drain()
    assert "no link: refused grix://demo/region/edge-1 (certificate of " in caplog.text


async def test_a_gateway_does_not_start_with_the_certificate_of_another(root: Path) -> None:
    side = Side("cloud-a", root / "region/cloud-b")
    with pytest.raises(
        TlsError, match=r"this is the certificate of grix://demo/region/cloud-b, not of grix://demo/reg"
    ):
        await side.gateway.configure(side.plan())


async def test_a_silent_regionagent_is_told_and_does_not_stop_the_beats(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(root) as (a, b):

        async def broken(views: tuple[PeerView, ...]) -> RegionState:
            raise RuntimeError("gone")

        with caplog.at_level(logging.INFO, "ray.serve"):
            b.gateway.exchange = broken
            await until(lambda: "RegionAgent RuntimeError" in caplog.text)
            await until(lambda: a.view("cloud-b").state.age_s > 0 and a.hears("cloud-b"))
            b.gateway.exchange = b.exchange
            await until(lambda: "RegionAgent answers" in caplog.text)
            await until(lambda: a.view("cloud-b").state.age_s == 0)


async def test_a_regionagent_has_as_long_as_a_report_is_fresh(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with two(root) as (_, b):
        asked = asyncio.Event()

        async def slow(views: tuple[PeerView, ...]) -> RegionState:
            asked.set()
            await asyncio.sleep(1.4)
            return await b.exchange(views)

        b.gateway.exchange = slow
        told = await asyncio.wait_for(asked.wait(), 5.0) and len(b.told)
        await until(lambda: len(b.told) > told)
    assert "RegionAgent" not in caplog.text


async def test_a_peer_may_have_any_name(root: Path) -> None:
    a = Side("cloud-a", root / "region/cloud-a")
    await a.gateway.configure(a.plan(None, exchange="127.0.0.1:1", drain="127.0.0.1:1"))
    try:
        await a.gateway.configure(a.plan(None, cloud_b="127.0.0.1:1"))
        before = len(a.told)
        await until(lambda: len(a.told) > before + 1)
        a.gateway.check()
    finally:
        await a.gateway.drain()


async def test_links_that_stay_the_same_stay_open(root: Path) -> None:
    async with two(root) as (a, b):
        link, server = a.gateway._links["cloud-b"], b.gateway._server
        await a.gateway.configure(a.plan(None, cloud_b=link.address, edge_1="127.0.0.1:1"))
        await b.gateway.configure(b.plan(cloud_a=None))
        assert a.gateway._links["cloud-b"] is link and b.gateway._server is server
        assert [v.region for v in a.gateway.views()] == ["cloud-b", "edge-1"]
        await a.gateway.configure(a.plan(None, edge_1=None))
        assert [v.region for v in a.gateway.views()] == ["edge-1"]


def test_a_plan_is_what_the_configuration_says() -> None:
    facts = {"cloud": "c", "location": "l", "gpuHourUsd": 1.0, "role": "primary"}
    mine = {**facts, "name": "cloud-a", "gateway": "10.0.0.1:7543", "acceptsSpill": False}
    others = [{**facts, "name": "cloud-b", "gateway": "10.0.0.2:7543"}, {**facts, "name": "edge-1"}]
    health = {"peerBeat": "300ms", "peerSilence": "1s"}
    plan = plan_of(
        {
            "region": mine,
            "federation": {"name": "demo", "regions": [mine, *others], "health": health},
            "pkiFolder": "/etc/grix/pki/region/cloud-a",
            "listen": "0.0.0.0:7543",
        },
        a_table(),
    )
    assert plan.me == region("cloud-a") and plan.peers == {"cloud-b": "10.0.0.2:7543", "edge-1": None}
    assert (plan.listen, plan.beat_s, plan.silence_s, plan.total_s) == ("0.0.0.0:7543", 0.3, 1.0, 600.0)
    assert plan.link_s == LINK_S
    assert (plan.served.regions, plan.served.accepts_spill) == (frozenset({"cloud-a", "cloud-b", "edge-1"}), False)
