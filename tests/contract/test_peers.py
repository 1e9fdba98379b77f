"""A real gateway and a peer that the test plays: calls both ways through Ray Serve, gRPC and real certificates."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from cluster_configs.load import load_paths
from serve_app.core import table
from serve_app.core.reports import PeerView, RegionState, TargetReport
from serve_app.core.snapshots import Load
from serve_app.edge.clock import RealClock
from serve_app.edge.gateway import Gateway, Plan
from serve_app.edge.limits import LocalLimits
from serve_app.edge.peer_calls import Served
from serve_app.ports import Accepted, AgentCall, Body, Frame, Head, Origin, Packet, Tail, Usage
from tests.fake_tasks import FakeTasks
from tests.fakes import FakeAgents, a_table
from tests.stub_region import StubRegion, running_stub_region

ORIGIN = Origin("tester", frozenset({"any"}), None, None, None, False, 30, 60.0, 5.0)
TENANT = table.Tenant("tester", (), frozenset({"any"}))


def event(text: str) -> bytes:
    return f'data: {{"choices": [{{"index": 0, "delta": {{"content": "{text}"}}}}]}}\n\n'.encode()


THEIRS = (Accepted("t", "r"), Head(max_tokens=9), Body(event("from b")))
GOOD = (*THEIRS, Body(b"data: [DONE]\n\n"), Tail("success", "stop", Usage(7, 3), 1.0, 2.0))


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def region(port: int) -> Iterator[StubRegion]:
    with running_stub_region(federated=True, peers={"cloud-b": f"127.0.0.1:{port}"}) as made:
        yield made


class Peer:
    """Region cloud-b: a real gateway over faked engines."""

    def __init__(self, *scripts: Any) -> None:
        clock = RealClock()
        limits = LocalLimits(clock.now_s)
        self.agents = FakeAgents(list(scripts))
        self.table = a_table(region=table.Region("cloud-b", "cloud-b", frozenset(), 2.0), tenants=(TENANT,))
        self.tasks = FakeTasks()
        self.gateway = Gateway(
            self.agents,
            self.exchange,
            lambda: limits,
            lambda key, carry: None,
            self.tasks,
            clock,
            random.Random(1).random,
        )

    async def exchange(self, views: tuple[PeerView, ...]) -> RegionState:
        agent = self.table.agents["qwen-chat"]
        load = Load(queue_wait_p95_ms=0.0, oldest_wait_ms=0.0, waiting=0, running=0)
        report = TargetReport(
            agent.name, agent.app, agent.release, agent.engine_digest, "healthy", "", 1, 4, agent.max_model_len, load
        )
        return RegionState("cloud-b", "healthy", "", (report,))

    @property
    def hears(self) -> bool:
        (view,) = self.gateway.views()
        return view.silent_s is not None and view.silent_s < 1.0


@asynccontextmanager
async def playing(region: StubRegion, port: int, *scripts: Any) -> AsyncIterator[Peer]:
    peer = Peer(*scripts)
    federation = load_paths([region.folder / "region.yaml"], {}).federation
    cloud_a = federation.region("cloud-a")
    assert cloud_a is not None
    await peer.gateway.configure(
        Plan(
            served=Served.of(peer.table, ("cloud-a", "cloud-b"), True),
            federation="stubs",
            tls_folder=region.folder / "pki/region/cloud-b",
            listen=f"127.0.0.1:{port}",
            peers={"cloud-a": cloud_a.gateway},
            beat_s=0.3,
            silence_s=1.0,
            total_s=5.0,
        )
    )
    try:
        await until(lambda: peer.hears, 20.0)
        yield peer
    finally:
        peer.gateway._plan = replace(peer.gateway.plan, total_s=0.0)
        await peer.gateway.drain()


async def until(holds: Callable[[], bool], limit_s: float) -> None:
    async with asyncio.timeout(limit_s):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.02)


def call_of(request_id: str, *steps: list[Any]) -> AgentCall:
    script = json.dumps({"attempts": [list(steps)]})
    body = {"messages": [{"role": "user", "content": script}]}
    return AgentCall(request_id, "chat", "qwen-chat", body, True, 16, 100, origin=ORIGIN)


async def test_a_peers_call_runs_in_the_regions_own_engine(region: StubRegion, port: int) -> None:
    async with playing(region, port, GOOD) as peer:
        call = call_of(region.new_id("spill"), ["accepted"], ["head"], ["say", "hello"], ["tail"])
        frames: list[Frame] = [f async for packet in peer.gateway.call("cloud-a", call) for f in packet]
        accepted = frames[0]
        assert isinstance(accepted, Accepted) and accepted.target.startswith("cloud-a/qwen-chat@")
        assert [type(frame) for frame in frames[1:]] == [Head, Body, Tail]
        assert isinstance(frames[-1], Tail) and frames[-1].outcome == "success"


async def test_who_leaves_at_the_entry_stops_the_engine_of_the_peer_within_a_second(
    region: StubRegion, port: int
) -> None:
    async with playing(region, port, GOOD) as peer:
        call = call_of(region.new_id("spill"), ["accepted"], ["head"], ["say", "hello"], ["hang"])
        packets = peer.gateway.call("cloud-a", call)
        await _to_body(packets)
        assert region.whats(call.request_id) == ["called"]
        await packets.aclose()
        await until(lambda: region.whats(call.request_id)[-1] == "aborted", 1.0)


async def _to_body(packets: AsyncIterator[Packet]) -> None:
    async for packet in packets:
        if any(isinstance(frame, Body) for frame in packet):
            return


def _knows_b(region: StubRegion) -> bool:
    return any(t["region"] == "cloud-b" and t["health"] == "healthy" for t in region.fleet()["targets"])


async def test_a_request_that_its_own_region_cannot_answer_is_answered_by_the_peer(
    region: StubRegion, port: int
) -> None:
    async with playing(region, port, GOOD) as peer:
        await until(lambda: _knows_b(region), 20.0)
        _, reply = await asyncio.to_thread(region.ask, [["fail", "overloaded"]])
        assert (reply.status, reply.text) == (200, "from b")
        assert (reply.headers["x-grix-region"], reply.headers["x-grix-hops"]) == ("cloud-b", "1")
        assert len(peer.agents.calls) == 1 and peer.agents.calls[0][1].origin is None


async def test_a_client_that_leaves_frees_the_engine_in_the_other_region(region: StubRegion, port: int) -> None:
    async with playing(region, port, (*THEIRS, "hang")) as peer:
        await until(lambda: _knows_b(region), 20.0)
        _, connection = await asyncio.to_thread(region.begin, [["fail", "overloaded"]])
        await asyncio.to_thread(_first_bytes, connection)
        assert peer.agents.closed == 0
        began_s = time.monotonic()
        connection.close()
        await until(lambda: peer.agents.closed == 1, 5.0)
        assert time.monotonic() - began_s < 1.0


def _first_bytes(connection: http.client.HTTPConnection) -> None:
    answer = connection.getresponse()
    assert answer.status == 200 and b"from b" in answer.read(len(event("from b")))
    # What is still open of the socket is the connection's alone.
    answer.close()


async def test_a_killed_gateway_costs_no_request_of_its_region_and_comes_back(region: StubRegion, port: int) -> None:
    async with playing(region, port, GOOD) as peer:
        details = region.rest.details()["applications"]["grix-region"]["deployments"]["RegionGateway"]
        (pid,) = [replica["pid"] for replica in details["replicas"]]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not peer.hears, 5.0)
        for _ in range(20):
            _, reply = await asyncio.to_thread(region.ask)
            assert (reply.status, reply.headers["x-grix-region"]) == (200, "cloud-a")
        await until(lambda: peer.hears, 60.0)
