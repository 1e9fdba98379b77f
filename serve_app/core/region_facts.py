"""What a RegionAgent is told, not what it finds out: the regions of the fleet, its own agents, and its patience."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serve_app.core.reports import FRESH_S
from serve_app.core.table import Agent


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """What the Federation document says of one region, as far as it concerns others.

    ``accepts_spill`` is ``False`` as well where no gateway can be reached.
    """

    name: str
    cloud: str
    residency: frozenset[str] = frozenset()
    gpu_hour_usd: float = 0.0
    accepts_spill: bool = True


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """All regions by name, which of them this one is, its agents, and how long silence is suffered.

    ``stale_s``: a report that is older is no data. ``plan_stale_s``: a plan that was not confirmed for longer says
    nothing about who is well. ``link_s``: the coordinator's line is dead when it does not answer for so long.
    """

    me: str
    regions: Mapping[str, RegionFacts]
    agents: Mapping[str, Agent]
    heartbeat_s: float = 1.0
    peer_silence_s: float = 1.0
    plan_stale_s: float = 3.0
    stale_s: float = FRESH_S
    link_s: float = 10.0
