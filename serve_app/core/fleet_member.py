"""One region as the coordinator knows it, and what regions think of each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from serve_app.core.fleet_events import Audit, KnownRegion, Reported, Wanted
from serve_app.core.reports import FleetRegion, Node, PeerView, RegionPhase, RegionState, TargetReport
from serve_app.core.snapshots import Health, Load
from serve_app.core.trial import NO_TRIAL

#: What a region says of itself, as its phase. One that is unsure of itself keeps a part of its weight.
PHASE_OF: Final[Mapping[Health, RegionPhase]] = {
    "healthy": "ready",
    "slow": "slow",
    "probing": "slow",
    "stale": "slow",
    "ejected": "failed",
    "unknown": "joining",
}
NOT_REPORTED: Final = "has not reported since the coordinator began"
#: Names that a reason lists.
NAMED: Final = 5
_NO_LOAD: Final = Load()


@dataclass(slots=True)
class Member:
    """What a region told, on which link, and what follows. Times are of local receipt, monotonic.

    ``shown`` is the region in plans; ``note`` what most of its peers say that the coordinator does not see itself;
    ``cause`` what ``shown`` was made from, so that only a change of it is a transition.
    """

    name: str
    shown: FleetRegion
    link: int | None = None
    seq: int = -1
    heard_s: float | None = None
    state: RegionState | None = None
    nodes: tuple[Node, ...] = ()
    seen: tuple[int, int] = (0, 0)
    drained_by: str | None = None
    note: str = ""
    cause: tuple[RegionPhase, str] = ("joining", "")
    peers: tuple[PeerView, ...] = ()
    judges: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    drifted: frozenset[str] = frozenset()

    def fresh(self, wanted: Wanted, now_s: float) -> bool:
        return self.heard_s is not None and now_s - self.heard_s <= wanted.silence_s

    def take(self, event: Reported, wanted: Wanted, now_s: float) -> bool:
        """Notes a report; whether plans show something else now."""
        self.seq, self.heard_s, self.seen = event.seq, now_s, event.seen
        self.nodes = self.nodes if event.nodes is None else event.nodes
        if event.peers is not None:
            self.peers = event.peers
            judged = [p for p in event.peers if p.fault or p.silent_s is not None]
            silent = [p for p in judged if p.fault or (p.silent_s or 0.0) > wanted.peer_silence_s]
            self.judges, self.silent = (frozenset([p.region for p in some]) for some in (judged, silent))
        if event.state is None:
            return False
        self.state = event.state
        if same_facts(event.state, self.shown.state):
            return False
        self.shown = replace(self.shown, state=without_load(event.state))
        return True

    def turns(self, before: RegionState | None, wanted: Wanted) -> list[Audit]:
        """What the audit log says of a report: at most a line of its configuration, its targets, drift, who gives
        way and of who lacks room, however many have turned."""
        state, lines = self.state, []
        assert state is not None
        if before is not None and state.refused and state.refused != before.refused:
            lines.append(Audit(self.name, "revision", self.name, state.revision, f"{state.refused} refused", state.why))
        elif before is not None and state.revision != before.revision:
            lines.append(Audit(self.name, "revision", self.name, before.revision, state.revision))
        old = {} if before is None else {t.agent: t.health for t in in_force(before)}
        some = [t for t in in_force(state) if old.get(t.agent, t.health) != t.health]
        if some:
            was, is_ = named(f"{t.agent} {old[t.agent]}" for t in some), named(f"{t.agent} {t.health}" for t in some)
            lines.append(Audit(self.name, "targets", self.name, was, is_, _said(t.why for t in some)))
        drift = _drift(state, wanted)
        if drift.keys() != self.drifted:
            was, is_ = named(self.drifted), named(drift)
            lines.append(Audit(self.name, "drift", self.name, was, is_, _said(drift.values())))
            self.drifted = frozenset(drift)
        return lines + _room(self.name, before, state)

    def judge(self, wanted: Wanted, now_s: float) -> tuple[RegionPhase, str, str]:
        """Phase, reason, and the part of the reason that peers gave. Reasons have no numbers that always change."""
        if self.drained_by is not None:
            return "drained", f"drained by {self.drained_by}", self.drained_by
        if self.heard_s is None:
            return "joining", NOT_REPORTED, ""
        if not self.fresh(wanted, now_s):
            why = f"no report for {wanted.missed_heartbeats} heartbeats"
            return "lost", f"{why}; {self.note}" if self.note else why, self.note
        if self.state is None:
            return "joining", "has not told its state", ""
        phase, why = PHASE_OF[self.state.health], self.state.why
        if not self.note:
            return phase, why, ""
        return phase, f"partition: {self.note}" + (f"; {why}" if why else ""), self.note


def admitted(regions: Iterable[KnownRegion], drains: Mapping[str, str], old: Mapping[str, Member]) -> dict[str, Member]:
    """Members in the order of the documents, old ones with what they told."""
    members = {}
    for region in regions:
        shown = FleetRegion(region.name, "joining", NOT_REPORTED)
        member = old.get(region.name) or Member(region.name, shown)
        member.drained_by = drains.get(region.name)
        member.shown = replace(member.shown, accepts_spill=region.accepts_spill)
        members[region.name] = member
    return members


def weigh_peers(members: Mapping[str, Member], wanted: Wanted, now_s: float) -> None:
    """Sets each member's note: the peers it is silent to, when these are a majority of those that watch it.

    For a region whose own link is silent, the peers that hear it are worth a note too: only its link is cut.
    """
    watching = [m for m in members.values() if m.judges and m.fresh(wanted, now_s)]
    silent_to: dict[str, list[str]] = {}
    for watcher in watching:
        for name in watcher.silent:
            silent_to.setdefault(name, []).append(watcher.name)
    for member in members.values():
        deaf = silent_to.get(member.name, [])
        fresh = member.fresh(wanted, now_s)
        member.note = ""
        if not deaf and fresh:
            continue
        hearing = [w.name for w in watching if member.name in w.judges and member.name not in w.silent]
        if len(deaf) > len(hearing):
            member.note = f"silent to {named(deaf)}"
        elif hearing and not fresh:
            member.note = f"heard by {named(hearing)}"


def without_load(state: RegionState) -> RegionState:
    """What of a report is in plans: what stays the same while all goes well."""
    targets = tuple(replace(t, load=_NO_LOAD, why="") for t in state.targets)
    return replace(state, targets=targets, why="", age_s=0.0, spilled_rps={}, trial=NO_TRIAL)


def same_facts(state: RegionState, shown: RegionState | None) -> bool:
    """Whether a report says nothing else than plans show. Compared in place, as it is done for every report."""
    if shown is None or len(state.targets) != len(shown.targets):
        return False
    if _said_of(state) != _said_of(shown):
        return False
    return all(_facts(a) == _facts(b) for a, b in zip(state.targets, shown.targets, strict=True))


def _said_of(state: RegionState) -> tuple[Any, ...]:
    return (state.health, state.revision, state.refused, state.lowered)


def _facts(t: Any) -> tuple[Any, ...]:
    what = (t.agent, t.app, t.release, t.engine_digest, t.canary)
    return (*what, t.health, t.replicas, t.slots, t.max_model_len, t.missing)


def in_force(state: RegionState) -> list[TargetReport]:
    """One target for each agent: without those whose release is only tried."""
    return [t for t in state.targets if not t.canary]


def _drift(state: RegionState, wanted: Wanted) -> dict[str, str]:
    """By agent that serves another release than it has to, which ones these are."""
    if state.revision != wanted.revision:
        return {}
    due = [(t.agent, t.release, wanted.expected.get((state.region, t.agent), t.release)) for t in in_force(state)]
    return {
        agent: f"{agent} serves {release[:12]}, the plan says {planned[:12]}"
        for agent, release, planned in due
        if release != planned
    }


def _room(name: str, before: RegionState | None, state: RegionState) -> list[Audit]:
    """Who gives way to whom since this report, or no more; and who asks other regions for help, as nobody can."""
    lines = []
    old = {} if before is None else before.lowered
    turned = [agent for agent in old.keys() | state.lowered.keys() if old.get(agent) != state.lowered.get(agent)]
    if turned:
        was, is_ = (named(f"{a} {some[a]}" for a in turned if a in some) for some in (old, state.lowered))
        lines.append(Audit(name, "preempt", name, was, is_))
    lacked = {} if before is None else {t.agent: t.missing for t in in_force(before)}
    some = [t for t in in_force(state) if lacked.get(t.agent, 0) != t.missing]
    if some:
        was = named(f"{t.agent} lacks {lacked.get(t.agent, 0)}" for t in some)
        lines.append(Audit(name, "room", name, was, named(f"{t.agent} lacks {t.missing}" for t in some)))
    return lines


def _said(whys: Iterable[str]) -> str:
    """Reasons for people, each once, the first few of them."""
    return "; ".join(list(dict.fromkeys(why for why in whys if why))[:NAMED])


def named(names: Iterable[str], most: int = NAMED) -> str:
    """Names for people, the first few of them."""
    ordered: Sequence[str] = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more
