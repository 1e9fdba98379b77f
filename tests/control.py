"""A real coordinator on loopback for tests, with regions that dial it by hand and a clock that moves when told."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc

from cluster_configs.bundle import to_documents
from cluster_configs.load import load_paths, local_paths
from serve_app.core.reports import Node, Plan, RegionState, TargetReport
from serve_app.core.snapshots import Health, Load
from serve_app.edge.admin_client import Admin
from serve_app.edge.coordinator import Coordinator, settings_of
from serve_app.edge.grpc_tls import TlsFolder
from serve_app.edge.identity import Identity
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire_link import MOST_LINK_BYTES, Up, plan_of, up_message
from tests.pki import FEDERATION, REGIONS

#: Whoever waits longer for what happens in this process waits in vain.
PATIENCE_S = 20.0
TARGET = TargetReport("qwen-chat", "qwen-chat--1", "r" * 64, "e" * 64, "healthy", "", 1, 16, 4096, Load(waiting=1))


def state(region: str, health: Health = "healthy", why: str = "") -> RegionState:
    return RegionState(region, health, why, (TARGET,))


def node(region: str) -> Node:
    return Node("n1", "cloud", region, cpus=8, memory_bytes=1 << 34)


def documents(**federation: Any) -> list[dict[str, Any]]:
    """The shipped set for one machine, under a federation of three regions whose heart beats fast."""
    regions = [
        {
            "name": name,
            "cloud": name,
            "location": "here",
            "gpuHourUsd": 1.0,
            "role": "primary",
            "residency": ["sg"],
            "acceptsSpill": False,
        }
        for name in REGIONS
    ]
    spec = {
        "coordinator": {"address": "127.0.0.1:7443"},
        "regions": regions,
        "health": {"heartbeat": "200ms", "missedHeartbeats": 3},
        **federation,
    }
    made = {"apiVersion": "grix.io/v1", "kind": "Federation", "metadata": {"name": FEDERATION}, "spec": spec}
    return [made, *copy.deepcopy([d for d in _shipped() if d["kind"] != "Federation"])]


@cache
def _shipped() -> list[dict[str, Any]]:
    return to_documents(load_paths(local_paths(), {}))


@dataclass
class Dialled:
    """A region's link, driven by hand."""

    region: str
    call: Any
    seq: int = 0
    plan: Plan | None = None
    messages: list[pb.RegionDown] = field(default_factory=list)

    async def tell(self, told: RegionState | None = None, **more: Any) -> None:
        self.seq += 1
        await self.say(up_message(Up(self.region, self.seq, told, **more)))

    async def say(self, message: pb.RegionUp | bytes) -> None:
        raw = message if isinstance(message, bytes) else message.SerializeToString()
        # Who is refused may be told so before anything was said; :meth:`end` tells how.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.call.write(raw)

    async def hear(self, wanted: Callable[[Plan], bool] = lambda _: True) -> Plan:
        """Reads until a plan is as wanted."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                raw = await self.call.read()
                assert raw is not grpc.aio.EOF, self.call
                message = pb.RegionDown.FromString(raw)
                self.messages.append(message)
                self.plan = plan_of(message, self.plan)
                if wanted(self.plan):
                    return self.plan

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """How the coordinator ended the link."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(grpc.aio.AioRpcError):
                # The status comes after what was sent before it.
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            return await self.call.code(), await self.call.details()


@dataclass
class Control:
    """A coordinator that serves from ``folder``, with the certificates in ``root``."""

    root: Path
    folder: Path
    now_s: float = 1000.0
    unix_s: float = 5000.0
    more: dict[str, Any] = field(default_factory=dict)
    coordinator: Coordinator | None = None
    _channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def address(self) -> str:
        assert self.coordinator is not None
        return f"127.0.0.1:{self.coordinator.port}"

    async def begin(self, *, serves: bool = True) -> None:
        settings = settings_of(
            {
                "documents": documents(),
                "pkiFolder": str(self.root / "coordinator"),
                "listen": "127.0.0.1:0",
                "store": {"url": f"file://{self.folder}"},
                **self.more,
            }
        )
        self.coordinator = Coordinator(settings, lambda: self.now_s, lambda: self.unix_s)
        self.coordinator.start()
        if serves:
            await self.until(lambda: self.coordinator is not None and self.coordinator.hub is not None)

    async def end(self) -> None:
        for channel in self._channels:
            await channel.close()
        self._channels.clear()
        if self.coordinator is not None:
            await self.coordinator.close()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                await asyncio.sleep(0.01)

    async def passed(self, seconds: float) -> None:
        """Time passes while the coordinator ticks."""
        assert self.coordinator is not None
        hub = self.coordinator.hub
        assert hub is not None
        while seconds > 1e-6:
            step_s = min(seconds, hub.fleet.wanted.heartbeat_s)
            self.now_s, seconds = self.now_s + step_s, seconds - step_s
            await self.until(lambda: hub.fleet.seen_s == self.now_s)

    def dial(self, region: str, whose: str = "") -> Dialled:
        """A link that says nothing yet, with the certificate of ``whose`` (below the folder of certificates)."""
        tls = TlsFolder(self.root / (whose or f"region/{region}"))
        channel = tls.channel(self.address, Identity(FEDERATION, "coordinator"), MOST_LINK_BYTES)
        self._channels.append(channel)
        return Dialled(region, channel.stream_stream("/grix.v1.Region/Link")())

    async def join(self, *regions: str) -> list[Dialled]:
        """Regions that have dialled and reported."""
        links = [self.dial(name) for name in regions]
        for link in links:
            await link.tell(state(link.region), nodes=(node(link.region),))
        return links

    async def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        return await Admin(self.address, self.root / "operator" / "admin").ask(verb, **fields)

    async def audited(self, what: str) -> list[dict[str, Any]]:
        return [e for e in (await self.ask("audit", last=500))["entries"] if e["what"] == what]


@contextlib.asynccontextmanager
async def control(root: Path, folder: Path, **more: Any) -> AsyncIterator[Control]:
    made = Control(root, folder, more=more)
    await made.begin()
    try:
        yield made
    finally:
        await made.end()
