"""Regions as the coordinator's benchmark plays them: real links and certificates, and reports that always change."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import grpc

from cluster_configs.bundle import to_documents
from cluster_configs.load import load_paths, local_paths
from serve_app.core.reports import Node, PeerView, RegionState, TargetReport
from serve_app.core.snapshots import Load
from serve_app.edge.grpc_tls import TlsFolder
from serve_app.edge.identity import Identity
from serve_app.edge.wire_link import MOST_LINK_BYTES, Up, up_message

FEDERATION: Final = "bench"
HEARTBEAT_S: Final = 1.0


def documents(regions: int, agents: int) -> list[dict[str, Any]]:
    """The shipped set with so many regions, and so many agents on its one engine."""
    shipped = to_documents(load_paths(local_paths(), {}))
    names = [d["metadata"]["name"] for d in shipped if d["kind"] == "AgentPolicy"]
    alias = next(d for d in shipped if d["kind"] == "AgentPolicy" and "engineOf" in d["spec"])
    more = [alias | {"metadata": {"name": f"agent-{n}"}} for n in range(len(names), agents)]
    facts = {"location": "here", "gpuHourUsd": 1.0, "role": "primary", "residency": ["sg", "jp"]}
    spec = {
        "coordinator": {"address": "127.0.0.1:7443"},
        # The clouds that the set has an affinity to, in turn.
        "regions": [
            {"name": name, "gateway": f"{name}:7543", "cloud": ("cloud-a", "cloud-b")[n % 2], **facts}
            for n, name in enumerate(region_names(regions))
        ],
        "health": {"heartbeat": f"{HEARTBEAT_S:g}s"},
    }
    federation = {"apiVersion": "grix.io/v1", "kind": "Federation", "metadata": {"name": FEDERATION}, "spec": spec}
    return [federation, *(d for d in shipped if d["kind"] not in ("Federation", "Tenant")), *more]


def region_names(count: int) -> list[str]:
    return [f"region-{n:03}" for n in range(count)]


@dataclass(slots=True)
class Traffic:
    """What all regions sent and got."""

    sent: int = 0
    sent_bytes: int = 0
    got: int = 0
    got_bytes: int = 0
    longest_gap_s: float = 0.0
    ended: list[str] = field(default_factory=list)


class Region:
    """One region: reports each heartbeat, and reads what comes."""

    def __init__(
        self, name: str, names: Sequence[str], agents: Sequence[str], rng: random.Random, traffic: Traffic
    ) -> None:
        self.name = name
        self.revision = ""
        self._rng = rng
        self._traffic = traffic
        self._peers = [n for n in names if n != name]
        self._targets = [_target(agent, n) for n, agent in enumerate(agents)]
        self._heard_s: float | None = None

    def change(self) -> None:
        """What plans show of one target becomes something else."""
        n = self._rng.randrange(len(self._targets))
        self._targets[n] = replace(self._targets[n], replicas=self._targets[n].replicas % 9 + 1)

    def report(self, seq: int) -> bytes:
        draw = self._rng.random
        targets = tuple(
            replace(t, load=Load(draw() * 500, draw() * 500, int(draw() * 9), 9, draw(), draw() * 900, 0.0))
            for t in self._targets
        )
        state = RegionState(self.name, "healthy", "", targets, self.revision, 0.0, {"qwen-chat": draw()})
        peers = tuple(PeerView(name, draw() * 0.3, 20.0 + draw()) for name in self._peers)
        node = Node("n1", "cloud-a", self.name, cpus=8, memory_bytes=1 << 34)
        nodes = (node,) if seq == 1 else None
        return up_message(Up(self.name, seq, state, nodes, peers)).SerializeToString()

    async def run(self, address: str, folder: Path, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        tls = TlsFolder(folder / "region" / self.name)
        async with tls.channel(address, Identity(FEDERATION, "coordinator"), MOST_LINK_BYTES) as channel:
            call = channel.stream_stream("/grix.v1.Region/Link")()
            writing = asyncio.create_task(self._write(call))
            try:
                while (raw := await call.read()) is not grpc.aio.EOF:
                    self._note(raw)
                self._traffic.ended.append(self.name)
            except grpc.aio.AioRpcError:
                self._traffic.ended.append(self.name)
            finally:
                writing.cancel()
                await asyncio.wait([writing])

    async def _write(self, call: Any) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        for seq in range(1, 1 << 30):
            raw = self.report(seq)
            await call.write(raw)
            self._traffic.sent += 1
            self._traffic.sent_bytes += len(raw)
            next_s += HEARTBEAT_S
            await asyncio.sleep(max(0.0, next_s - loop.time()))

    def _note(self, raw: bytes) -> None:
        now_s = time.monotonic()
        if self._heard_s is not None:
            self._traffic.longest_gap_s = max(self._traffic.longest_gap_s, now_s - self._heard_s)
        self._heard_s = now_s
        self._traffic.got += 1
        self._traffic.got_bytes += len(raw)


def _target(agent: str, n: int) -> TargetReport:
    digest = f"{n:064x}"
    return TargetReport(agent, f"{agent}--{digest[-8:]}", digest, digest, "healthy", "", 1, 16, 4096, Load())
