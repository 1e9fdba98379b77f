"""RegionAgent: the region's own state, one replica. A shell: the state is ``core.region_state``, the work
``edge.region_service``."""

from __future__ import annotations

import logging
import random
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from serve_app.core.reports import Node, PeerView, RegionState, ReplicaReport, RouterReport
from serve_app.core.snapshots import Snapshot
from serve_app.edge.clock import RealClock
from serve_app.edge.ray_nodes import nodes_of
from serve_app.edge.region_service import RegionService

log = logging.getLogger("ray.serve")


def _nodes(cloud: str, region: str) -> tuple[Node, ...]:
    return nodes_of(ray.nodes(), cloud, region)


@serve.deployment
class RegionAgent:
    """Handle API of the region: pushes, long polls, the gateway's exchange, and a status for operators."""

    async def __init__(self, gateway: DeploymentHandle) -> None:
        """``gateway`` is not called from here: it pushes. An application is one graph, so it is bound here."""
        clock = RealClock()
        self._service = RegionService(now_s=clock.now_s, unix_s=clock.unix_s, jitter=random.random, nodes=_nodes)

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Takes agents, regions, limits and the coordinator's address in place, or refuses them and keeps the old."""
        self._service.configure(user_config)
        log.setLevel(user_config.get("logLevel", "INFO"))

    async def push_replica(self, report: ReplicaReport) -> float:
        """``offered_spilled_rps`` of the replica's engine."""
        return self._service.push_replica(report)

    async def push_router(self, report: RouterReport) -> None:
        self._service.push_router(report)

    async def watch(self, router: str, seen: tuple[int, int]) -> Snapshot | None:
        """A snapshot that differs from ``seen``, or ``None`` after a while."""
        return await self._service.watch(router, seen)

    async def exchange(self, views: tuple[PeerView, ...]) -> RegionState:
        return self._service.exchange(views)

    async def status(self) -> dict[str, Any]:
        return self._service.status()

    async def check_health(self) -> None:
        """Serve replaces a RegionAgent that can no longer do its work."""
        fault = self._service.fault()
        if fault is not None:
            raise RuntimeError(fault)

    async def __del__(self) -> None:
        service = getattr(self, "_service", None)
        if service is not None:
            await service.close()
