"""From a RegionAgent's user_config to what it is told of the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster_configs import schema
from cluster_configs.table import table_of
from serve_app.core.region_facts import FleetFacts, RegionFacts


def fleet_facts(user_config: Mapping[str, Any]) -> FleetFacts:
    """The facts in ``federationDocument``, and the agents of this region's table.

    Raises:
        ConfigError, ValidationError: for documents that are none.
    """
    federation = schema.Federation.model_validate(user_config["federationDocument"])
    health = federation.spec.health
    table = table_of(user_config)
    return FleetFacts(
        me=table.region.name,
        regions={r.name: _facts(r) for r in federation.spec.regions},
        agents=table.own_agents,
        heartbeat_s=health.heartbeat_s,
        peer_silence_s=health.peer_silence_s,
        plan_stale_s=health.heartbeat_s * health.missed_heartbeats,
        stale_s=health.stale_after_s,
        link_s=health.link_timeout_s,
    )


def _facts(region: schema.Region) -> RegionFacts:
    reachable = region.gateway is not None
    return RegionFacts(
        region.name, region.cloud, frozenset(region.residency), region.gpu_hour_usd, region.accepts_spill and reachable
    )
