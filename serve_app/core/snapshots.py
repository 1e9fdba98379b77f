"""An immutable picture of the targets of the fleet, read once per request and replaced whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from serve_app.core.table import Table

#: ``unknown`` is a value of its own: no report has come, so nothing is claimed.
Health = Literal["healthy", "slow", "ejected", "probing", "stale", "unknown"]


@dataclass(frozen=True, slots=True)
class Load:
    """What a target reported. ``None`` is "no data", never zero."""

    queue_wait_p95_ms: float | None = None
    waiting: int | None = None
    running: int | None = None
    network_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One (region, agent, release) that could answer."""

    region: str
    cloud: str
    agent: str
    app: str
    release: str
    max_model_len: int
    slots: int
    residency: frozenset[str]
    gpu_hour_usd: float
    health: Health = "unknown"
    load: Load = field(default_factory=Load)

    @property
    def id(self) -> str:
        return f"{self.region}/{self.agent}@{self.release[:8]}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The targets known now, ordered by (epoch, generation)."""

    epoch: int
    generation: int
    targets: tuple[Target, ...]


def local_snapshot(table: Table, generation: int) -> Snapshot:
    """The region's own targets, from its table: nothing is claimed about load that nobody reported."""
    region = table.region
    targets = tuple(
        Target(
            region=region.name,
            cloud=region.cloud,
            agent=agent.name,
            app=agent.app,
            release=agent.release,
            max_model_len=agent.max_model_len,
            slots=agent.slots,
            residency=region.residency,
            gpu_hour_usd=region.gpu_hour_usd,
        )
        for agent in table.agents.values()
    )
    return Snapshot(epoch=0, generation=generation, targets=targets)
