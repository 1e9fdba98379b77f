"""A region's link over real gRPC with real certificates: what is told when, what comes back, and dialling again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from serve_app.core.region_state import RegionCore
from serve_app.core.reports import FleetRegion, Node, PeerView, Plan, RegionState
from serve_app.edge import pki, tcp_relay
from serve_app.edge.coordinator_link import CoordinatorLink, Told, backoff_s
from serve_app.edge.grpc_tls import LINK_S, TlsFolder, start_server
from serve_app.edge.protos import grix_pb2_grpc
from serve_app.edge.wire_link import Up, plan_message, up_of
from tests.pki import made
from tests.region_fakes import FACTS, THERE

BEAT_S = 0.02
NODES = (Node("n1", "cloud-a", "cloud-a", cpus=2.0),)
STATE = RegionState("cloud-a", "healthy", "")
PLAN = Plan(9, 1, (FleetRegion("cloud-a", "ready", ""), FleetRegion("cloud-b", "ready", "")))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("pki"))


@dataclass
class Coordinator(grix_pb2_grpc.RegionServicer):
    """Hears each message and answers it with the plan of the moment, as changes since its last."""

    plans: list[Plan] = field(default_factory=lambda: [PLAN])
    heard: list[Up] = field(default_factory=list)
    links: int = 0
    #: Ends a link after so many messages.
    hang_up_after: int | None = None

    async def Link(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        self.links += 1
        told: Plan | None = None
        async for message in requests:
            self.heard.append(up_of(message))
            plan = self.plans[-1]
            yield plan_message(plan, told)
            told = plan
            if self.hang_up_after is not None and self.heard[-1].seq >= self.hang_up_after:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "I am going")


@dataclass
class Region:
    """What a region tells now, and the plans it got."""

    told: Told = field(default_factory=lambda: Told(STATE, NODES, (PeerView("cloud-b", 0.1, 5.0),), (0, 0)))
    plans: list[Plan] = field(default_factory=list)
    also: Callable[[Plan], object] = lambda plan: None

    def on_plan(self, plan: Plan) -> None:
        self.plans.append(plan)
        self.also(plan)


@asynccontextmanager
async def linked(
    root: Path, coordinator: Coordinator, *, delay_ms: float = 0.0, link_s: float = LINK_S
) -> AsyncIterator[Any]:
    """A region's link to a coordinator, over a line that takes ``delay_ms`` each way."""
    server, port = await start_server(
        "127.0.0.1:0",
        TlsFolder(root / "coordinator"),
        lambda s: grix_pb2_grpc.add_RegionServicer_to_server(coordinator, s),
        most_bytes=10**6,
        busy_s=0,
        link_s=link_s,
    )
    line = tcp_relay._Link(["127.0.0.1:0"], tcp_relay.Setting(f"127.0.0.1:{port}", delay_ms=delay_ms))
    region = Region()
    link = CoordinatorLink(
        f"127.0.0.1:{line.port}",
        TlsFolder(root / "region/cloud-a"),
        heartbeat_s=BEAT_S,
        told=lambda: region.told,
        on_plan=region.on_plan,
        jitter=lambda: 0.0,
        link_s=link_s,
    )
    tasks = [asyncio.create_task(work) for work in (line.serve(), link.run())]
    try:
        yield region, link
    finally:
        line.apply(line.setting.changed(flow="cut"))
        for task in tasks:
            task.cancel()
        await server.stop(0)


async def until(holds: Any, limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.005)


async def test_the_first_message_tells_everything_and_the_next_only_what_changed(root: Path) -> None:
    coordinator = Coordinator()
    async with linked(root, coordinator) as (region, link):
        await until(lambda: len(coordinator.heard) >= 2)
        first, second = coordinator.heard[:2]
        assert first == Up("cloud-a", 1, STATE, NODES, (PeerView("cloud-b", 0.1, 5.0),), (0, 0))
        assert second == Up("cloud-a", 2, None, None, (PeerView("cloud-b", 0.1, 5.0),), (0, 0))
        slow = replace(STATE, health="slow")
        region.told = replace(region.told, state=slow, seen=(9, 1))
        await until(lambda: any(up.state == slow for up in coordinator.heard))
        changed = next(up for up in coordinator.heard if up.state == slow)
        assert (changed.nodes, changed.seen) == (None, (9, 1))
        assert link.status.up


async def test_plans_come_whole_however_they_were_sent_and_each_confirms(root: Path) -> None:
    coordinator = Coordinator()
    async with linked(root, coordinator) as (region, _):
        await until(lambda: len(region.plans) >= 2)
        assert region.plans[:2] == [PLAN, PLAN]
        drained = FleetRegion("cloud-b", "drained", "by ops", drained=True)
        coordinator.plans.append(replace(PLAN, generation=2, regions=(PLAN.regions[0], drained)))
        await until(lambda: region.plans[-1].generation == 2)
        assert region.plans[-1] == coordinator.plans[-1]


async def test_a_link_that_ends_is_dialled_again_and_begins_anew(root: Path) -> None:
    coordinator = Coordinator(hang_up_after=1)
    async with linked(root, coordinator) as (region, link):
        await until(lambda: coordinator.links >= 2 and len(coordinator.heard) >= 2)
        assert [(up.seq, up.state, up.nodes) for up in coordinator.heard[:2]] == [(1, STATE, NODES)] * 2
        assert region.plans[0] == PLAN
        await until(lambda: link.status.fault == "UNAVAILABLE: I am going")


async def test_an_older_plan_on_the_same_link_ends_it(root: Path) -> None:
    coordinator = Coordinator()
    async with linked(root, coordinator) as (region, link):
        await until(lambda: region.plans)
        coordinator.plans.append(replace(PLAN, epoch=8))
        await until(lambda: "generation: 8.1 is older than 9.1" in link.status.fault)
        assert all(plan.epoch == 9 for plan in region.plans)


async def test_rte_34_a_slow_line_costs_no_link_no_plan_and_no_target_of_a_peer(root: Path) -> None:
    """All times are a tenth of those of a line that takes 1.5 s each way."""
    loop, core = asyncio.get_running_loop(), RegionCore(FACTS, 7)
    there = RegionState("cloud-b", "healthy", "", (THERE,))
    coordinator = Coordinator([replace(PLAN, regions=(PLAN.regions[0], replace(PLAN.regions[1], state=there)))])
    async with linked(root, coordinator, delay_ms=150.0, link_s=LINK_S / 10) as (region, link):
        region.also = lambda plan: core.plan(plan, loop.time())
        await until(lambda: region.plans, 20.0)
        until_s = loop.time() + 3 * LINK_S / 10
        while loop.time() < until_s:
            assert link.status.up and coordinator.links == 1
            assert core.plan_age_s(loop.time()) < FACTS.plan_stale_s
            assert "cloud-b" in {target.region for target in core.refresh(loop.time()).targets}
            await asyncio.sleep(0.05)


async def test_a_renewed_certificate_makes_a_new_link_without_a_fault(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(root, tmp_path / "pki", symlinks=True)
    coordinator = Coordinator()
    async with linked(tmp_path / "pki", coordinator) as (region, link):
        await until(lambda: region.plans)
        pki.renew(tmp_path / "pki", datetime.now(UTC))
        await until(lambda: coordinator.links == 2)
        before = len(region.plans)
        await until(lambda: len(region.plans) > before + 1)
        assert link.status.up and coordinator.links == 2
        assert [up.nodes for up in coordinator.heard if up.seq == 1] == [NODES, NODES]
    assert "no link" not in caplog.text


async def test_nobody_there_is_a_fault_that_names_why(root: Path) -> None:
    link = CoordinatorLink(
        "127.0.0.1:1",
        TlsFolder(root / "region/cloud-a"),
        heartbeat_s=BEAT_S,
        told=lambda: Told(STATE, (), (), (0, 0)),
        on_plan=lambda plan: None,
        jitter=lambda: 0.0,
    )
    task = asyncio.create_task(link.run())
    try:
        said = "grix://demo/coordinator at 127.0.0.1:1 cannot be reached: Connection refused"
        await until(lambda: link.status.fault == said)
        assert not link.status.up
    finally:
        task.cancel()


@pytest.mark.parametrize(
    ("failures", "jitter", "wait_s"),
    [(1, 0.0, 0.125), (1, 1.0, 0.25), (2, 1.0, 0.5), (5, 1.0, 4.0), (6, 1.0, 5.0), (1000, 0.0, 2.5)],
)
def test_waits_grow_to_five_seconds_and_are_spread(failures: int, jitter: float, wait_s: float) -> None:
    assert backoff_s(failures, jitter) == wait_s
