"""Router: the region's entry. A shell that holds the table, handles and journal, and gives them to the path."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from cluster_configs.table import table_of
from deployments.fleet_agents import FleetAgents
from deployments.fleet_watch import FleetWatch
from deployments.handles import REFRESH_S, HandleAgents, HandleDetector
from deployments.peer_handle import PeerAgents
from deployments.region_handle import RegionHandle
from serve_app import openai_api
from serve_app.admission import Admission
from serve_app.attempts import Attempts
from serve_app.core.breaker import RouterBreakers
from serve_app.core.known_targets import KnownTargets
from serve_app.core.retry import RetryBudget
from serve_app.core.router_view import fitted, is_drained, via_peers
from serve_app.core.snapshots import Snapshot, local_snapshot
from serve_app.core.table import Table
from serve_app.core.tenants import ANYBODY, Caller, KeyIndex
from serve_app.edge.clock import RealClock
from serve_app.edge.health_key import health_key
from serve_app.edge.journal import RequestJournal
from serve_app.edge.local_detector import LocalDetector
from serve_app.edge.ray_cluster import HAPROXY_VARIABLE
from serve_app.edge.region_limits import RegionLimits
from serve_app.edge.region_sessions import RegionSessions
from serve_app.edge.region_tasks import RegionTasks
from serve_app.edge.router_trial import RouterTrial
from serve_app.edge.serve_metrics import ServeMeter, scrape
from serve_app.edge.tracing import tracer, write_span
from serve_app.outcomes import GrixError
from serve_app.ports import Detector, RequestRecord, World
from serve_app.request_path import RequestPath

log = logging.getLogger("ray.serve")

#: A deep health check answers from the last probe when it is younger than this.
DEEP_FRESH_S: Final = 1.0
#: How long a Router that starts waits for its first snapshot: without a RegionAgent it serves its own region.
FIRST_SNAPSHOT_S: Final = 1.0
#: How often a Router without a RegionAgent looks for one.
LOOK_S: Final = 2.0


@serve.deployment
@serve.ingress()
class Router:
    """Parse, authenticate, route, relay. Its user_config is the region's bundle; it changes in place."""

    def __init__(self, detector: DeploymentHandle | None) -> None:
        self._handles, self._peers = HandleAgents(), PeerAgents()
        self._agents = FleetAgents(self._handles, self._peers, lambda: self._now().table.region.name)
        self._clock = RealClock()
        self._breakers = RouterBreakers()
        self._fleet = FleetWatch(
            ask=RegionHandle(LOOK_S).ask,
            router=serve.get_replica_context().replica_id.unique_id,
            region=lambda: self._now().table.region.name,
            report=lambda router, now_s: self._trial.counts.on(self._breakers.report(router, now_s)),
            on_snapshot=self._see,
            now_s=self._clock.now_s,
        )
        self._targets = KnownTargets(self._breakers, self._fleet.hurry)
        self._trial = RouterTrial()
        self._snapshot: Snapshot | None = None
        #: Apps that have no replica, and those that have one, as this Router knows by itself.
        self._bereft: frozenset[str] = frozenset()
        self._running: frozenset[str] = frozenset()
        self._apps: dict[str, int] = {}
        meter = ServeMeter()
        self._spans = tracer()
        self._journal = RequestJournal(meter, self._ended)
        self._detector: Detector = HandleDetector(detector) if detector is not None else LocalDetector(self._now)
        self._generation = 0
        self._world: World | None = None
        self._keys = KeyIndex({})
        self._limits = RegionLimits(self._clock.now_s)
        self._sessions = RegionSessions(self._clock.now_s, meter)
        self._tasks_of_region = RegionTasks()
        self._path = RequestPath(
            world=self._now,
            keys=lambda: self._keys,
            detector=self._detector,
            admission=Admission(self._limits.now, self._clock, random.random),
            attempts=Attempts(self._agents, self._clock, RetryBudget(), random.random, self._targets),
            sessions=self._sessions.now,
            clock=self._clock,
            journal=self._journal,
        )
        self._deep: tuple[float, dict[str, Any]] | None = None
        self._deep_lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Takes a new bundle whole, or refuses it and keeps the old one."""
        # Serve may hand over the next one meanwhile, and the last one shall hold.
        async with self._changing:
            await self._take(user_config)

    async def _take(self, user_config: dict[str, Any]) -> None:
        table = table_of(user_config)
        await self._limits.configure(user_config["region"])
        await self._sessions.configure(user_config["region"])
        await self._tasks_of_region.configure(user_config["region"])
        # A request that is decided by the new table finds the handles of its engines.
        apps = {a.app: a.min_replicas for a in table.own_agents.values()}
        self._apps = {**self._apps, **apps}
        await self._handles.keep(self._apps)
        self._apps = apps
        self._generation += 1
        self._trial.configure(user_config)
        self._keys = KeyIndex.of(table.tenants)
        self._world = self._world_of(table)
        log.setLevel(user_config.get("logLevel", "INFO"))
        if table.open_access:
            log.warning("API keys are OFF for region %s: anybody who reaches it may use it", table.region.name)
        if not self._tasks:
            await self._fleet.watch_once(FIRST_SNAPSHOT_S)
            work = (self._refresh(), self._fleet.watch_on(), self._fleet.push_on())
            self._tasks = [asyncio.create_task(one) for one in work]
        log.info(
            "bundle %d of region %s: %d agents, %d rules",
            self._generation,
            table.region.name,
            len(table.agents),
            len(table.rules),
        )

    def _seen_with(self, table: Table) -> Snapshot:
        """What this Router knows of the fleet; nothing but its own region before a RegionAgent has answered."""
        seen = local_snapshot(table, self._generation) if self._snapshot is None else self._snapshot
        return fitted(seen, table, self._bereft, self._running)

    def _see(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._world = self._world_of(self._now().table)

    def _world_of(self, table: Table) -> World:
        return self._trial.world(table, self._seen_with(table))

    def _ended(self, record: RequestRecord) -> None:
        write_span(self._spans, record, time.time())
        if record.tried is None:
            return
        world = self._now()
        self._trial.ended(record, world.table)
        if record.canary_break:
            # The user's next request is on the release in force, before the region has told so.
            self._world = self._world_of(world.table)

    def check_health(self) -> None:
        """Serve replaces a Router that no longer learns of the fleet."""
        for task in self._tasks:
            if task.done():
                raise RuntimeError(f"a task has ended: {task.exception()!r}")

    def _now(self) -> World:
        assert self._world is not None
        bereft, running = self._handles.bereft(), self._handles.running()
        if (bereft, running) != (self._bereft, self._running):
            self._bereft, self._running = bereft, running
            self._world = self._world_of(self._world.table)
        return self._world

    async def _refresh(self) -> None:
        """Keeps handles in step with the table, off the request path."""
        while True:
            # A region alone has no gateway to look for.
            if self._snapshot is not None and len(self._snapshot.regions) > 1:
                await self._peers.keep()
            await self._handles.keep(self._apps)
            await asyncio.sleep(REFRESH_S)

    async def run_task(
        self, tenant: str, body: bytes, request_id: str, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        """A task's chat request, on the way of every other; its key is not asked again.

        Returns:
            Status, headers and body.
        """
        table = self._now().table
        found = ANYBODY if table.open_access else next((t for t in table.tenants if t.name == tenant), None)
        known = GrixError("not_allowed", "The tenant of this task is gone.") if found is None else Caller(found, "task")
        answer = await self._path.run("chat", known, body, headers, request_id)
        assert isinstance(answer.body, bytes)
        return answer.status, answer.headers, answer.body

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return openai_api.Api(
            openai_api.Surface(
                path=self._path,
                deep_health=self.deep_health,
                metrics=self._metrics,
                find_record=self._find,
                tasks=self._tasks_of_region,
                peers=self._peers,
                created_unix_s=int(time.time()),
                health_key=health_key(os.environ),
                sees_callers=os.environ.get(HAPROXY_VARIABLE) != "1",
                plan_age_s=lambda: self._fleet.plan_age_s,
            )
        )

    async def deep_health(self) -> dict[str, Any]:
        """Whether each engine makes tokens: from the last probe if young enough, asked once for all who wait."""
        async with self._deep_lock:
            now_s = self._clock.now_s()
            if self._deep is not None and now_s - self._deep[0] <= DEEP_FRESH_S:
                return self._deep[1]
            table, snapshot = self._now().table, self._now().snapshot
            region = table.region.name
            # An agent at zero is not woken by a health check.
            apps = {a.app: a.min_replicas for a in table.own_agents.values()}
            awake = sorted(app for app, replicas in apps.items() if replicas > 0)
            alive = await asyncio.gather(*(self._agents.probe(app) for app in awake))
            engines = dict(zip(awake, alive, strict=True))
            report = {
                "local": all(alive),
                "viaPeers": via_peers(snapshot, region),
                "drained": is_drained(snapshot, region),
                "region": region,
                "engines": engines,
                "redis": self._limits.redis,
            }
            self._deep = (self._clock.now_s(), report)
            return report

    async def _metrics(self) -> bytes:
        """The exports of this node's metrics agent."""
        nodes = await asyncio.to_thread(ray.nodes)
        here = ray.get_runtime_context().get_node_id()
        urls = [
            f"http://{n['NodeManagerAddress']}:{n['MetricsExportPort']}/metrics"
            for n in nodes
            if n["Alive"] and n["NodeID"] == here
        ]
        return await scrape(urls, {})

    async def smoke(self, revision: str, tests: Sequence[Mapping[str, Any]]) -> list[str] | None:
        """What a release that is tried fails at, ``None`` while its tests cannot run here."""
        return await self._trial.smoke(self._path, self._now(), revision, tests)

    def find_here(self, request_id: str) -> dict[str, Any] | None:
        """The record of a request this Router ended."""
        return self._journal.find(request_id)

    async def _find(self, request_id: str) -> dict[str, Any] | None:
        """The record of a request any Router of the region ended."""
        found = self.find_here(request_id)
        if found is not None:
            return found
        try:
            routers = serve.get_deployment_handle("Router", serve.get_replica_context().app_name)
            async with asyncio.timeout(2.0):
                answers = await routers.broadcast("find_here", request_id).results_async()
        except (TimeoutError, RayError, RayServeException) as error:
            log.warning("asking the other Routers failed: %s", type(error).__name__)
            return None
        return next((a for a in answers if a is not None), None)
