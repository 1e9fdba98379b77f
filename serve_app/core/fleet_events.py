"""What happens to the coordinator, and what is to be done about it. Times of senders are nowhere in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from serve_app.core.nodes import Needs
from serve_app.core.reports import Node, PeerView, Plan, RegionState
from serve_app.core.rollout import Rollout

#: Who acts when no operator and no region does.
COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class KnownRegion:
    """A region as the Federation document names it."""

    name: str
    accepts_spill: bool = True


@dataclass(frozen=True, slots=True)
class Wanted:
    """What documents ask of the fleet. ``revision`` and ``documents`` are empty before anybody applied one."""

    regions: tuple[KnownRegion, ...]
    heartbeat_s: float = 1.0
    missed_heartbeats: int = 3
    peer_silence_s: float = 1.0
    needs: tuple[Needs, ...] = ()
    revision: str = ""
    documents: str = ""
    expected: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def silence_s(self) -> float:
        """A region that says nothing for so long is lost."""
        return self.heartbeat_s * self.missed_heartbeats


@dataclass(frozen=True, slots=True)
class Facts:
    """What outlives the coordinator. ``drains`` names who drained each region.

    ``begun`` names the documents it was started with: who starts it with others wants these, whatever was applied.
    ``rollout`` and ``history`` are texts of ``rollout_store``.
    """

    epoch: int = 0
    drains: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""
    documents: str = ""
    begun: str = ""
    rollout: str = ""
    history: str = ""


# ---- events ----


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """A region dialled. ``link`` is the server's own number, which never comes twice."""

    region: str
    link: int


@dataclass(frozen=True, slots=True)
class Reported:
    """A message on a link; ``None``: unchanged. ``seen`` is the order of the plan that the region has."""

    region: str
    link: int
    seq: int
    state: RegionState | None = None
    nodes: tuple[Node, ...] | None = None
    peers: tuple[PeerView, ...] | None = None
    seen: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class LinkClosed:
    region: str
    link: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes. A few times per heartbeat: what changed since the last one goes out as one plan."""


@dataclass(frozen=True, slots=True)
class Drain:
    """An operator takes a region out, or (``back``) puts it in again."""

    who: str
    region: str
    back: bool = False


@dataclass(frozen=True, slots=True)
class Apply:
    """Documents that are valid by themselves. ``dry_run``: only say whether the fleet can carry them."""

    who: str
    wanted: Wanted
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Restore:
    """Durable facts from a backup, with what their documents ask for."""

    who: str
    facts: Facts
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Roll:
    """A rollout begins. ``new`` and ``before`` are what its documents, and those before, ask for."""

    rollout: Rollout
    new: Wanted
    before: Wanted


@dataclass(frozen=True, slots=True)
class Steer:
    """An operator's word to the rollout that runs."""

    who: str
    act: Literal["pause", "resume", "abort"]


Event = LinkOpened | Reported | LinkClosed | Tick | Drain | Apply | Restore | Roll | Steer

# ---- effects ----


@dataclass(frozen=True, slots=True)
class SendPlan:
    """The plan of every link from now on."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Audit:
    """One line of the audit log: who did what to which region (empty: to the fleet)."""

    who: str
    what: str
    region: str = ""
    before: str = ""
    after: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Persist:
    """To be stored before anything that follows from it is told."""

    facts: Facts


#: ``replaced``: the region dialled again; ``silent``: half-open, or its region stands still.
CloseReason = Literal["unknown", "replaced", "silent", "removed"]


@dataclass(frozen=True, slots=True)
class CloseLink:
    link: int
    reason: CloseReason
    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """What an operator asked for is not done, with every reason."""

    faults: tuple[str, ...]


Effect = SendPlan | Audit | Persist | CloseLink | Refused
