"""RegionAgent: the region's own state, one replica. A shell: the state is ``core.region_state``, the work
``edge.region_service``."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.region_handle import RegionHandle
from serve_app.core.names import agent_of
from serve_app.core.preempt import Change
from serve_app.core.reports import FailedStart, Node, PeerView, RegionState, ReplicaReport, RouterReport
from serve_app.core.snapshots import Snapshot
from serve_app.edge.clock import RealClock
from serve_app.edge.desired_config import ConfigWriter
from serve_app.edge.ray_cluster import DASHBOARD_VARIABLE, MARK
from serve_app.edge.ray_nodes import nodes_of
from serve_app.edge.region_service import RegionService
from serve_app.edge.serve_metrics import ServeMeter
from serve_app.edge.serve_rest import ServeRest

log = logging.getLogger("ray.serve")

#: Of a release's smoke tests: whole answers, one after the other, of each agent in each language that it changes.
SMOKE_LIMIT_S: Final = 600.0


def _nodes(cloud: str, region: str) -> tuple[Node, ...]:
    return nodes_of(ray.nodes(), cloud, region)


def _writer(env: Mapping[str, str]) -> ConfigWriter | None:
    """The writer of this cluster's Serve config, where the environment says where its dashboard and its token are."""
    dashboard, token_file = env.get(DASHBOARD_VARIABLE), env.get("RAY_AUTH_TOKEN_PATH")
    if dashboard is None or token_file is None:
        log.warning("%s is not set: the Serve config of this region is not kept", DASHBOARD_VARIABLE)
        return None
    rest = ServeRest(dashboard, Path(token_file).read_text("utf-8").strip())
    return ConfigWriter(rest, _folder(env))


def _folder(env: Mapping[str, str]) -> Path | None:
    """The folder that lives as long as this cluster."""
    return Path(env[MARK]) if MARK in env else None


@serve.deployment
class RegionAgent:
    """Handle API of the region: pushes, long polls, the gateway's exchange, and a status for operators."""

    async def __init__(self, gateway: DeploymentHandle) -> None:
        """``gateway`` is not called from here: it pushes. An application is one graph, so it is bound here."""
        clock, meter = RealClock(), ServeMeter()
        self._region, self._meter = "", meter
        self._routers = RegionHandle(1.0, "Router", "grix")
        self._missing: Mapping[str, int] = {}
        self._service = RegionService(
            now_s=clock.now_s,
            unix_s=clock.unix_s,
            jitter=random.random,
            nodes=_nodes,
            writer=_writer(os.environ),
            folder=_folder(os.environ),
            on_put_back=lambda count: meter.add("grix_config_put_back_total", {"region": self._region}, count),
            resources=ray.cluster_resources,
            on_room=self._tell_room,
            on_failed_start=lambda report: meter.add("grix_failed_starts_total", self._labels(report), 1.0),
            run_smoke=self._run_smoke,
        )

    def _labels(self, report: FailedStart) -> dict[str, str]:
        return {"region": self._region, "agent": agent_of(report.app), "reason": report.stage}

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Takes agents, regions, limits and the coordinator's address in place, or refuses them and keeps the old."""
        self._service.configure(user_config)
        self._region = user_config["region"]["name"]
        log.setLevel(user_config.get("logLevel", "INFO"))

    async def _run_smoke(self, revision: str, tests: Sequence[Mapping[str, Any]]) -> Sequence[str] | None:
        faults: Sequence[str] | None = await self._routers.ask("smoke", revision, tests, limit_s=SMOKE_LIMIT_S)
        return faults

    def _tell_room(self, change: Change | None, missing: Mapping[str, int]) -> None:
        # An agent that is gone lacks nothing any more.
        for agent, replicas in (dict.fromkeys(self._missing, 0) | dict(missing)).items():
            self._meter.set("grix_missing_replicas", {"region": self._region, "agent": agent}, replicas)
        self._missing = missing
        if change is None:
            return
        who = {"region": self._region, "agent": agent_of(change.app)}
        if change.cause is None:
            self._meter.add("grix_preemption_restores_total", who, 1)
        else:
            self._meter.add("grix_preemptions_total", {**who, "to": agent_of(change.cause)}, 1)

    async def push_replica(self, report: ReplicaReport) -> float:
        """``offered_spilled_rps`` of the replica's engine."""
        return self._service.push_replica(report)

    async def push_failed_start(self, report: FailedStart) -> None:
        """The last words of a replica that cannot start."""
        self._service.push_failed_start(report)

    async def push_router(self, report: RouterReport) -> float | None:
        """How old the coordinator's plan is."""
        return self._service.push_router(report)

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
