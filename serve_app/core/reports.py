"""What the parts of a region push to its RegionAgent, and what regions tell each other and the coordinator.

Nothing here has a time of its sender: reports are aged by local receipt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from serve_app.core.snapshots import Health, Load
from serve_app.core.trial import NO_TRIAL, ReleaseCount, Trial, TrialReport

#: Spoken between regions and coordinator; N and N-1 interoperate.
PROTOCOL: Final = 1
#: A report older than this is "no data".
FRESH_S: Final = 3.0
#: A RegionAgent that begins anew has heard of everybody by then: a push that was under way takes up to
#: :data:`FRESH_S` to fail, and the next one comes a second later.
BEGIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """Pushed each second by each replica of an agent. ``proven``: tokens in the last 2 s, or a probe that gave one.

    ``start_s`` is what its start took, from an empty process to a warm engine.
    """

    app: str
    replica: str
    engine_digest: str
    proven: bool
    load: Load
    start_s: float | None = None


#: What a replica was doing when its start failed.
StartStage = Literal["fetch", "turn", "load", "warm_up"]


@dataclass(frozen=True, slots=True)
class FailedStart:
    """Pushed by a replica that ends before it ever served."""

    app: str
    replica: str
    stage: StartStage
    why: str


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What one Router saw of one target since its last push. Only ``failed`` ones count against a breaker."""

    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Trip:
    """A breaker that a Router opened. ``open_for_s`` is from now on; a longer cool-down is never shortened."""

    target: str
    open_for_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How the half-open probe that was lent to this Router ended."""

    target: str
    passed: bool


@dataclass(frozen=True, slots=True)
class RouterReport:
    """Pushed each second by each Router, and at once with a trip or a probe's result.

    ``wanted_spilled`` counts by agent the requests that went to another region because no engine here could take them;
    ``spilled_to`` by region all that went there, those of a region that only comes back slowly too. ``tried`` is the
    revision that ``counts``, since the last push, and ``broken``, the places of users moved back, belong to.
    """

    router: str
    outcomes: Mapping[str, Outcomes] = field(default_factory=dict)
    wanted_spilled: Mapping[str, int] = field(default_factory=dict)
    spilled_to: Mapping[str, int] = field(default_factory=dict)
    trips: tuple[Trip, ...] = ()
    probes: tuple[ProbeResult, ...] = ()
    tried: str = ""
    counts: tuple[ReleaseCount, ...] = ()
    broken: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetReport:
    """One target as its own region reports it, to the coordinator and in beats to peers.

    ``missing`` are replicas that it wants and cannot have: there is no room, and nobody could give way. ``canary``: the
    release is tried, by the same replicas as the one in force.
    """

    agent: str
    app: str
    release: str
    engine_digest: str
    health: Health
    why: str
    replicas: int
    slots: int
    max_model_len: int
    load: Load
    missing: int = 0
    canary: bool = False


@dataclass(frozen=True, slots=True)
class RegionState:
    """A region's own summary: its health and its targets. ``revision`` is the applied configuration's.

    ``age_s`` is how old it was when it was sent, for a gateway whose RegionAgent is silent. ``refused`` is the revision
    that was to be applied and could not be; ``why`` says why. ``lowered`` says of each agent that gives way to a more
    important one how far, and to whom.
    """

    region: str
    health: Health
    why: str
    targets: tuple[TargetReport, ...] = ()
    revision: str = ""
    age_s: float = 0.0
    spilled_rps: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""
    lowered: Mapping[str, str] = field(default_factory=dict)
    trial: TrialReport = NO_TRIAL


@dataclass(frozen=True, slots=True)
class PeerView:
    """A peer as this region's gateway sees it. ``silent_s`` is ``None`` before the first beat ever came."""

    region: str
    silent_s: float | None
    network_ms: float | None = None
    state: RegionState | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """Hardware in one normal form, whatever each cloud calls it (NodeRegistration)."""

    name: str
    cloud: str
    region: str
    instance_type: str = ""
    ready: bool = True
    cpus: float = 0.0
    memory_bytes: int = 0
    gpu_vendor: str | None = None
    gpu_model: str | None = None
    gpu_count: int = 0
    vram_per_gpu_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


#: ``joining``: has never reported since the coordinator's start; ``lost``: missed its heartbeats.
RegionPhase = Literal["joining", "ready", "slow", "failed", "lost", "drained"]


@dataclass(frozen=True, slots=True)
class FleetRegion:
    """One region in the coordinator's plan."""

    name: str
    phase: RegionPhase
    why: str
    drained: bool = False
    accepts_spill: bool = True
    state: RegionState | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the coordinator tells every region, ordered by (epoch, generation), whole.

    ``expected`` is the release each (region, agent) has to serve; what differs is drifted. ``documents`` is the
    configuration to apply as JSON text of a list of documents, empty when nobody has applied one; ``revision`` names
    it.
    """

    epoch: int
    generation: int
    regions: tuple[FleetRegion, ...] = ()
    revision: str = ""
    documents: str = ""
    expected: Mapping[tuple[str, str], str] = field(default_factory=dict)
    trial: Trial | None = None

    @property
    def order(self) -> tuple[int, int]:
        return (self.epoch, self.generation)
