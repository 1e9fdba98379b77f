"""RegionGateway: sends a region's calls to its peers and serves theirs. One per node.

Its user_config is the Router's (``region``, ``engines``, ``documents``, ``openAccess``, ``logLevel``) and three keys
more:

* ``federation``: ``{"name", "regions": [...], "health": {...}}``, regions and health whole, as in the document;
* ``pkiFolder``: this region's folder of ``ca.pem``, ``cert.pem`` and ``key.pem``;
* ``listen``: ``HOST:PORT`` of its gRPC server, or ``null`` in a region that no peer can reach.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster_configs.table import table_of
from deployments.handles import REFRESH_S, HandleAgents
from serve_app.core.reports import PeerView, RegionState
from serve_app.edge.clock import RealClock
from serve_app.edge.federation_apps import REGION_APP
from serve_app.edge.gateway import Gateway, plan_of
from serve_app.edge.region_limits import RegionLimits
from serve_app.edge.region_sessions import RegionSessions
from serve_app.edge.region_tasks import RegionTasks
from serve_app.edge.serve_metrics import ServeMeter
from serve_app.ports import AgentCall, Packet
from serve_app.task_forward import TaskCall, TaskPart

log = logging.getLogger("ray.serve")


class AgentExchange:
    """Tells the region's RegionAgent what is seen of peers. The caller limits the time."""

    def __init__(self) -> None:
        self._handle: DeploymentHandle | None = None

    async def __call__(self, views: tuple[PeerView, ...]) -> RegionState:
        if self._handle is None:
            found = await asyncio.to_thread(serve.get_deployment_handle, "RegionAgent", REGION_APP)
            # The first .options() must run on the loop that will use the handle.
            self._handle = found.options(
                method_name="exchange", request_serialization="pickle", response_serialization="pickle"
            )
        state: RegionState = await self._handle.remote(views)
        return state


@serve.deployment
class RegionGateway:
    """A shell: everything is in :class:`serve_app.edge.gateway.Gateway`."""

    async def __init__(self) -> None:
        clock = RealClock()
        self._agents = HandleAgents()
        self._limits = RegionLimits(clock.now_s)
        self._sessions = RegionSessions(clock.now_s, ServeMeter())
        self._tasks = RegionTasks()
        self._gateway = Gateway(
            agents=self._agents,
            exchange=AgentExchange(),
            limits=self._limits.now,
            keep_session=self._sessions.take_over,
            tasks=self._tasks,
            clock=clock,
            jitter=random.random,
        )
        self._apps: dict[str, int] = {}
        self._changing = asyncio.Lock()
        self._refresher = asyncio.create_task(self._refresh())

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Takes a new configuration whole, or refuses it."""
        # Serve may hand over the next one meanwhile, and the last one shall hold.
        async with self._changing:
            await self._take(user_config)

    async def _take(self, user_config: dict[str, Any]) -> None:
        table = table_of(user_config)
        plan = plan_of(user_config, table)
        await self._limits.configure(user_config["region"])
        await self._sessions.configure(user_config["region"])
        await self._tasks.configure(user_config["region"])
        self._apps = {a.app: a.min_replicas for a in table.own_agents.values()}
        await self._agents.keep(self._apps)
        log.setLevel(user_config.get("logLevel", "INFO"))
        await self._gateway.configure(plan)

    async def _refresh(self) -> None:
        """Keeps handles in step with the table, off the path of calls."""
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._agents.keep(self._apps)

    async def call(self, peer: str, call: AgentCall) -> AsyncIterator[Packet]:
        """One attempt at a target of region ``peer``. Closing it cancels the work there."""
        async with aclosing(self._gateway.call(peer, call)) as packets:
            async for packet in packets:
                yield packet

    async def task(self, peer: str, call: TaskCall) -> AsyncIterator[TaskPart]:
        """What region ``peer`` answers about a task of its own."""
        async with aclosing(self._gateway.task(peer, call)) as parts:
            async for part in parts:
                yield part

    def views(self) -> tuple[PeerView, ...]:
        """Each peer as this gateway sees it."""
        return self._gateway.views()

    def check_health(self) -> None:
        """Serve calls this every 2 s; raising replaces this replica."""
        self._gateway.check()
        if self._refresher.done():
            raise RuntimeError("the gateway's handles are no longer kept")

    async def __del__(self) -> None:
        """Serve awaits this before the process ends."""
        gateway = getattr(self, "_gateway", None)
        if gateway is not None:
            self._refresher.cancel()
            await gateway.drain()
