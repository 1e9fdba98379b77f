"""The coordinator's state: what every region told, what follows from it, and the plan of the fleet.

One mutator, :meth:`Fleet.handle`: an event in, effects out. Regions judge each other by their own beats, so nothing
here is on the way of a request: a plan confirms or widens what regions see, and never takes a region back in that says
of itself that it fails. Load is not in plans: peers have it from beats, several times as often, and it would be the
one part that always changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from serve_app.core.fleet_events import (
    COORDINATOR,
    Apply,
    Audit,
    CloseLink,
    Drain,
    Effect,
    Event,
    Facts,
    KnownRegion,
    LinkClosed,
    LinkOpened,
    Persist,
    Refused,
    Reported,
    Restore,
    Roll,
    SendPlan,
    Steer,
    Tick,
    Wanted,
)
from serve_app.core.fleet_member import Member, admitted, named, weigh_peers
from serve_app.core.fleet_plan import Planner
from serve_app.core.fleet_rollout import Rollouts, Turn
from serve_app.core.nodes import Needs, unmet
from serve_app.core.reports import Node, Plan
from serve_app.core.rollout_store import history_of

#: An epoch that a region has seen is believed up to so much ahead (ten years of seconds); beyond it is nonsense.
MOST_AHEAD: Final = 10 * 365 * 86_400


@dataclass(slots=True)
class Fleet:
    """The state machine. ``facts`` has this start's epoch, which is larger than every one before."""

    wanted: Wanted
    facts: Facts
    began_s: float
    rollouts: Rollouts = field(default_factory=Rollouts)
    members: dict[str, Member] = field(default_factory=dict)
    generation: int = 0
    sending: bool = False
    seen_s: float = 0.0
    #: Policies of the start's documents that no Ready node was seen to carry yet: told, and refused to an ``apply``.
    held: tuple[Needs, ...] = ()
    _told: set[Needs] = field(default_factory=set)
    _changed: bool = True
    _judged_s: float | None = None
    planner: Planner = field(default_factory=Planner)
    _out: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen_s = self.began_s
        # What somebody applied was accepted then.
        self.held = () if self.wanted.documents else self.wanted.needs
        self._admit_regions(self.wanted.regions, self.facts.drains)
        # What was so before the start is no transition: nothing of this is told as an effect.
        for member in self.members.values():
            self._judge(member, self.began_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Takes one event. Effects are to be carried out in their order."""
        self._out = []
        self._catch_up(now_s)
        match event:
            case LinkOpened():
                self._opened(event)
            case Reported():
                self._reported(event, now_s)
            case LinkClosed():
                self._closed(event)
            case Tick():
                self._tick(now_s)
            case Drain():
                self._drain(event, now_s)
            case Apply():
                self._apply(event, now_s)
            case Restore():
                self._restore(event, now_s)
            case Roll() | Steer():
                self._rolled(self.rollouts.handle(event, now_s))
        self._begin_sending(now_s)
        if self._changed and self.sending and not isinstance(event, LinkOpened | Reported | LinkClosed):
            self.generation += 1
            self._changed = False
            self._out.append(SendPlan(self.plan()))
        return self._out

    def _catch_up(self, now_s: float) -> None:
        """There is an event several times in a heartbeat. Who stood still for longer has not seen anybody's silence:
        reports that came meanwhile still wait to be read."""
        late_s = now_s - self.seen_s - self.wanted.heartbeat_s
        self.seen_s = now_s
        if late_s <= 0:
            return
        self.began_s = min(now_s, self.began_s + late_s)
        for member in self.members.values():
            if member.heard_s is not None:
                member.heard_s = min(now_s, member.heard_s + late_s)

    # ---- links and reports ----

    def _opened(self, event: LinkOpened) -> None:
        member = self.members.get(event.region)
        if member is None:
            known = named(self.members)
            self._out.append(CloseLink(event.link, "unknown", f"{event.region} is no region here; allowed: {known}"))
            self._note(event.region, "link", event.region, "", "refused", "is not in the federation")
            return
        if member.link is not None:
            self._out.append(CloseLink(member.link, "replaced", f"{event.region} dialled again"))
        self._note(event.region, "link", event.region, "open" if member.link is not None else "closed", "open")
        member.link, member.seq = event.link, -1

    def _closed(self, event: LinkClosed) -> None:
        member = self.members.get(event.region)
        if member is not None and member.link == event.link:
            member.link = None
            self._note(event.region, "link", event.region, "open", "closed", event.why)

    def _reported(self, event: Reported, now_s: float) -> None:
        member = self.members.get(event.region)
        # A link that was replaced may still deliver, and a message may come twice: neither is news.
        if member is None or member.link != event.link or event.seq <= member.seq:
            return
        nodes, state = member.nodes, member.state
        if member.take(event, self.wanted, now_s):
            self._changed = True
            self._out += member.turns(state, self.wanted)
        if member.nodes != nodes:
            before, after = (f"{sum(n.ready for n in some)} Ready" for some in (nodes, member.nodes))
            self._note(event.region, "nodes", event.region, before, after)
        self._outrun(event)
        self._judge(member, now_s)

    def _outrun(self, event: Reported) -> None:
        """A region has seen a later epoch: the store was lost and the clock is behind. Plans must come after it."""
        seen, before = event.seen[0], self.facts.epoch
        if before < seen <= before + MOST_AHEAD:
            self._store(epoch=seen + 1)
            self._note(COORDINATOR, "epoch", "", str(before), str(seen + 1), f"{event.region} has seen a later one")

    # ---- time ----

    def _tick(self, now_s: float) -> None:
        beat_s = self.wanted.heartbeat_s
        # Peers tell once in a heartbeat: to count more often says nothing new.
        if self._judged_s is None or now_s - self._judged_s >= beat_s:
            self._judged_s = now_s
            weigh_peers(self.members, self.wanted, now_s)
            self._admit_policies(now_s)
        for member in self.members.values():
            self._judge(member, now_s)
            if member.link is not None and not member.fresh(self.wanted, now_s):
                self._out.append(CloseLink(member.link, "silent", f"{member.name} says nothing on it"))
                self._note(COORDINATOR, "link", member.name, "open", "closed", "silent")
                member.link = None
        self._rolled(self.rollouts.look(self.members, self.wanted, now_s))

    def _admit_policies(self, now_s: float) -> None:
        """Nodes first, then policies: one that was carried once keeps its place, one that is not is told of once."""
        for needs, faults in self.unmet(now_s):
            if not faults:
                self.held = tuple(held for held in self.held if held != needs)
                self._note(COORDINATOR, "policy", "", "held", "accepted", f"a Ready node can carry {needs.agent}")
            elif self.sending and needs not in self._told:
                self._told.add(needs)
                self._note(COORDINATOR, "policy", "", "", "held", "; ".join(faults))

    def unmet(self, now_s: float) -> list[tuple[Needs, tuple[str, ...]]]:
        """Each policy that is held, with what no Ready node has."""
        nodes = self._nodes(now_s) if self.held else []
        return [(needs, unmet(needs, nodes)) for needs in self.held]

    def _nodes(self, now_s: float) -> list[Node]:
        return [n for m in self.members.values() if m.fresh(self.wanted, now_s) for n in m.nodes]

    def _judge(self, member: Member, now_s: float, who: str = COORDINATOR) -> None:
        phase, why, note = member.judge(self.wanted, now_s)
        was, before = member.shown, member.cause
        if before == (phase, note):
            return
        if before[0] != phase:
            self._note(who, "phase", member.name, before[0], phase, why)
        else:
            self._note(who, "peers", member.name, before[1], note, why)
        member.cause = (phase, note)
        member.shown = replace(was, phase=phase, why=why, drained=phase == "drained")
        self._changed = True

    # ---- operators ----

    def _drain(self, event: Drain, now_s: float) -> None:
        member = self.members.get(event.region)
        if member is None:
            allowed = named(self.members, len(self.members))
            self._out.append(Refused((f"region: {event.region!r} is not in the federation; allowed: {allowed}",)))
            return
        if (member.drained_by is None) == event.back:
            return
        drains = {name: who for name, who in self.facts.drains.items() if name != event.region}
        self._store(drains=drains if event.back else {**drains, event.region: event.who})
        member.drained_by = None if event.back else event.who
        self._judge(member, now_s, event.who)

    def _apply(self, event: Apply, now_s: float) -> None:
        """A policy that was accepted stays accepted: a region that is dark now must not hinder other changes."""
        nodes = self._nodes(now_s)
        new = [needs for needs in event.wanted.needs if needs not in self.wanted.needs or needs in self.held]
        faults = [said for needs in new for said in unmet(needs, nodes)]
        if not self.rollouts.gives_way and (busy := self.rollouts.busy()) is not None:
            self._out.append(busy)
        elif faults:
            self._out.append(Refused(tuple(faults)))
        elif not event.dry_run and event.wanted != self.wanted:
            self._rolled(self.rollouts.replaced(event.who, now_s))
            self._note(event.who, "apply", "", self.wanted.revision, event.wanted.revision)
            self._want(event.wanted, self.facts.drains)

    def _restore(self, event: Restore, now_s: float) -> None:
        known = {r.name for r in event.wanted.regions}
        foreign = sorted(event.facts.drains.keys() - known)
        if foreign:
            self._out.append(Refused(tuple(f"drains: {name!r} is not in the federation" for name in foreign)))
            return
        epoch = max(self.facts.epoch, event.facts.epoch + 1)
        self._note(event.who, "restore", "", self.wanted.revision, event.wanted.revision, f"epoch {epoch}")
        self._want(event.wanted, event.facts.drains, epoch)
        self.rollouts = Rollouts(history=history_of(event.facts.history))
        self._store(rollout="", history=event.facts.history)
        for member in self.members.values():
            self._judge(member, now_s, event.who)

    def _rolled(self, turn: Turn | Refused | None) -> None:
        if isinstance(turn, Turn):
            self._note(turn.who, "rollout", turn.region, turn.before, turn.after, turn.why)
            if turn.adopt is not None:
                self._want(turn.adopt, self.facts.drains)
            self._store(rollout=turn.rollout, history=turn.history)
        elif turn is not None:
            self._out.append(turn)

    def _want(self, wanted: Wanted, drains: Mapping[str, str], epoch: int | None = None) -> None:
        known = {r.name for r in wanted.regions}
        for name in self.members.keys() - known:
            gone = self.members.pop(name)
            self._note(COORDINATOR, "region", name, gone.shown.phase, "removed", "is no longer in the federation")
            if gone.link is not None:
                self._out.append(CloseLink(gone.link, "removed", f"{name} is no longer in the federation"))
        self.held = () if wanted.documents else wanted.needs
        self.wanted = wanted
        kept = {name: who for name, who in drains.items() if name in known}
        self._store(epoch=epoch, drains=kept, revision=wanted.revision, documents=wanted.documents)
        self._admit_regions(wanted.regions, kept)

    def _admit_regions(self, regions: Iterable[KnownRegion], drains: Mapping[str, str]) -> None:
        self.members = admitted(regions, drains, self.members)
        self._changed = True

    # ---- effects ----

    def _begin_sending(self, now_s: float) -> None:
        """A plan from half the reports would eject the other half."""
        if self.sending:
            return
        heard = all(m.heard_s is not None for m in self.members.values())
        if heard or now_s - self.began_s >= self.wanted.silence_s:
            self.sending = True
            why = "all regions reported" if heard else f"{self.wanted.missed_heartbeats} heartbeats passed"
            self._note(COORDINATOR, "plans", "", "held", "sent", why)

    def plan(self) -> Plan:
        trial = self.rollouts.trial()
        return self.planner.plan(self.facts, self.generation, self.members, self.wanted, trial)

    def _store(self, **changes: Any) -> None:
        self.facts = replace(self.facts, **{k: v for k, v in changes.items() if v is not None})
        self._out.append(Persist(self.facts))
        self._changed = True

    def _note(self, who: str, what: str, region: str, before: str, after: str, why: str = "") -> None:
        self._out.append(Audit(who, what, region, before, after, why))
