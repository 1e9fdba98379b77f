"""An immutable picture of the targets of the fleet, read once per request and replaced whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from serve_app.core.table import Table
from serve_app.core.trial import Tried

#: ``unknown`` is a value of its own: no report has come, so nothing is claimed.
Health = Literal["healthy", "slow", "ejected", "probing", "stale", "unknown"]
#: ``probing``: open for long enough, and one call is lent to one Router to find out.
BreakerState = Literal["closed", "open", "probing"]


@dataclass(frozen=True, slots=True)
class Load:
    """What a target reported. ``None`` is "no data", never zero. ``network_ms`` is the round trip from this region."""

    queue_wait_p95_ms: float | None = None
    oldest_wait_ms: float | None = None
    waiting: int | None = None
    running: int | None = None
    kv_cache_used_ratio: float | None = None
    first_token_p95_ms: float | None = None
    error_ratio: float | None = None
    network_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One (region, agent, release) that could answer.

    ``weight`` in (0, 1] is the share of its score it counts with: less while it is slow or ramping up. ``why`` says
    what its health comes from. ``drained``: an operator took its region out; ``drifted``: it serves another release
    than its plan says; ``short``: it wants more replicas than its region has room for; ``runs``: whoever reads this
    knows by itself that replicas run, whatever is reported; ``canary``: the release is tried beside the one in force.
    ``start_s`` is what its engine's last start took, where that is known.
    """

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
    weight: float = 1.0
    breaker: BreakerState = "closed"
    accepts_spill: bool = True
    drained: bool = False
    drifted: bool = False
    runs: bool = False
    short: bool = False
    canary: bool = False
    why: str = ""
    start_s: float | None = None

    @property
    def id(self) -> str:
        return f"{self.region}/{self.agent}@{self.release[:8]}"


@dataclass(frozen=True, slots=True)
class RegionView:
    """One region as this one sees it. ``fault`` is why there is no link to it now; empty while there is one, and before
    one was tried."""

    name: str
    cloud: str
    health: Health
    why: str
    accepts_spill: bool
    drained: bool = False
    network_ms: float | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The targets known now, ordered by (epoch, generation).

    ``lent`` are the ids of targets whose one half-open probe is lent to the reader of this snapshot. ``open_for_s`` has
    by id how long breakers were still open when it was made, ``received_s`` is when it came, by the reader's clock.
    ``tried`` is the release that some users of this region are on.
    """

    epoch: int
    generation: int
    targets: tuple[Target, ...]
    regions: tuple[RegionView, ...] = ()
    lent: frozenset[str] = frozenset()
    open_for_s: Mapping[str, float] = field(default_factory=dict)
    received_s: float | None = field(default=None, compare=False)
    tried: Tried | None = None

    def recover_s(self, target_id: str, now_s: float) -> float | None:
        """When this target's breaker lets somebody ask; ``None``: it is not open, as far as is known."""
        left_s = self.open_for_s.get(target_id)
        if left_s is None or self.received_s is None:
            return left_s
        return max(0.0, left_s - (now_s - self.received_s))


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
        for agent in table.own_agents.values()
    )
    return Snapshot(epoch=0, generation=generation, targets=targets)
