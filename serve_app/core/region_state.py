"""What a region knows of the fleet, and what it makes of it: the picture its Routers choose from, and its own summary.

Events come in with the time of their receipt; nothing here has a clock. A region judges its peers by what it hears of
them itself. The coordinator's plan adds what it cannot hear: drains, releases, and failures that others see. A plan
that has not been confirmed for a while says nothing any more about who is well.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from serve_app.core.fleet_targets import FleetTargets, PeerSight, PlanView
from serve_app.core.published import Part, Publisher, coarse
from serve_app.core.region_facts import FleetFacts
from serve_app.core.region_trial import RegionTrial
from serve_app.core.reports import (
    FailedStart,
    PeerView,
    Plan,
    RegionState,
    ReplicaReport,
    RouterReport,
    TargetReport,
)
from serve_app.core.shared_breakers import SharedBreakers
from serve_app.core.snapshots import Health, Load, RegionView, Snapshot
from serve_app.core.table import Agent
from serve_app.core.target_health import Replicas, Standing, summed

#: Rates of spilled requests are over so long.
RATE_S: Final = 10.0


@dataclass(slots=True)
class _Rates:
    """Requests a second by name, over the last :data:`RATE_S`."""

    counted: deque[tuple[float, str, int]] = field(default_factory=deque)

    def add(self, counts: Mapping[str, int], now_s: float) -> None:
        self.counted.extend((now_s, name, count) for name, count in counts.items() if count > 0)

    def now(self, now_s: float) -> dict[str, float]:
        while self.counted and now_s - self.counted[0][0] > RATE_S:
            self.counted.popleft()
        sums: Counter[str] = Counter()
        for _, name, count in self.counted:
            sums[name] += count
        return {name: total / RATE_S for name, total in sums.items()}


class RegionCore:
    """The state of one RegionAgent. ``epoch`` orders its snapshots after those of the RegionAgent before it."""

    def __init__(self, facts: FleetFacts, epoch: int) -> None:
        self._facts = facts
        self._replicas: dict[str, Replicas] = {}
        self._views: dict[str, tuple[float, PeerView]] = {}
        self._plan = PlanView()
        self._plan_s = 0.0
        self._breakers = SharedBreakers()
        self._targets = FleetTargets(self._breakers)
        self._known: tuple[tuple[str, ...], ...] = ()
        self._wanted, self._spilled = _Rates(), _Rates()
        self._publisher = Publisher(epoch)
        self._short: Mapping[str, int] = {}
        self._lowered: Mapping[str, str] = {}
        #: The release that is tried here, if any.
        self.trial = RegionTrial()
        #: Name of the configuration that is applied here.
        self.revision = ""

    # ---- what comes in ----

    def configure(self, facts: FleetFacts) -> None:
        """Other agents, regions or limits; what was heard of those that are still there stays."""
        self._facts = facts
        self._views = {name: seen for name, seen in self._views.items() if name in facts.regions}

    def outrank(self, seen: tuple[int, int]) -> None:
        """A Router has seen this order: what comes from here must be later, whatever the clock said at the start."""
        self._publisher.outrank(seen)

    def replica(self, report: ReplicaReport, now_s: float) -> float:
        """Takes a replica's push; requests a second that were wanted of its engine but served elsewhere."""
        self._replicas.setdefault(report.app, Replicas()).take(report, now_s)
        rates = self._wanted.now(now_s)
        return sum(rates.get(agent.name, 0.0) for agent in self._facts.agents.values() if agent.app == report.app)

    def failed_start(self, report: FailedStart, now_s: float) -> None:
        """Takes the last words of a replica that cannot start."""
        self._replicas.setdefault(report.app, Replicas()).failed_start(report.why, now_s)

    def router(self, report: RouterReport, now_s: float) -> None:
        """Takes a Router's push."""
        self._breakers.take(report, now_s)
        self._wanted.add(report.wanted_spilled, now_s)
        self._spilled.add(report.spilled_to, now_s)
        self.trial.take(report)

    def peers(self, views: Iterable[PeerView], now_s: float) -> None:
        """Takes what the gateway sees of the peers; a report in the name of another region is none."""
        for view in views:
            if view.region not in self._facts.regions or view.region == self._facts.me:
                continue
            if view.state is not None and view.state.region != view.region:
                fault = f"its report is in the name of {view.state.region}"
                view = replace(view, state=None, fault=fault)
            self._views[view.region] = (now_s, self._steady(view))

    def plan(self, plan: Plan, now_s: float) -> bool:
        """Takes the coordinator's plan, the same one again too, which confirms it; an older one is not taken."""
        known = self._plan.plan
        if known is not None and plan.order < known.order:
            return False
        if plan != known:
            self._plan = PlanView.of(plan)
        self._plan_s = now_s
        return True

    def room(self, short: Mapping[str, int], lowered: Mapping[str, str]) -> None:
        """By app, replicas that find no room and for whom nobody can give way; by agent that does, what is said of it.

        Routers of all regions then take another region sooner: as soon as calls wait here at all.
        """
        self._short, self._lowered = short, lowered

    def stood_still(self, late_s: float, now_s: float) -> None:
        """Nothing ran here for ``late_s``: what could not be heard meanwhile is nobody's silence."""
        for told in self._replicas.values():
            told.stood_still(late_s, now_s)
        self._views = {name: (min(now_s, at_s + late_s), view) for name, (at_s, view) in self._views.items()}
        self._plan_s = min(now_s, self._plan_s + late_s)

    def _steady(self, view: PeerView) -> PeerView:
        """The view, with the very report and round trip of the one before where these are as good as the same."""
        if view.region not in self._views:
            return view
        before = self._views[view.region][1]
        if view.state == before.state:
            view = replace(view, state=before.state)
        if coarse(Load(network_ms=view.network_ms)) == coarse(Load(network_ms=before.network_ms)):
            view = replace(view, network_ms=before.network_ms)
        return view

    # ---- what is made of it ----

    def snapshot_for(self, router: str, now_s: float) -> Snapshot:
        """The fleet as this Router shall see it; the generation grows when any Router would see another one."""
        shared = self.refresh(now_s)
        lent, open_for_s = self._breakers.lend(router, now_s), self._breakers.open_for_s(now_s)
        return replace(shared, lent=lent, open_for_s=open_for_s)

    def refresh(self, now_s: float) -> Snapshot:
        """The picture without what is lent to one Router."""
        own = self._own(now_s)
        mine = self._facts.regions[self._facts.me]
        parts = [self._targets.own(mine, own, self.revision, self._plan, now_s), *self._peer_parts(now_s)]
        known = tuple(part.ids for part in parts)
        if known != self._known:
            self._known = known
            self._breakers.retain({name for ids in known for name in ids})
        return self._publisher.publish(parts, self._region_views(own, now_s), now_s, self.trial.tried)

    def own_state(self, now_s: float) -> RegionState:
        """This region's summary, for its peers and the coordinator."""
        reports = tuple(report for report, _ in self._own(now_s))
        health, why = _summed(reports)
        spilled_rps, trial = self._spilled.now(now_s), self.trial.report()
        told = (self._facts.me, health, why, reports, self.revision, 0.0, spilled_rps)
        return RegionState(*told, lowered=self._lowered, trial=trial)

    @property
    def missing(self) -> dict[str, int]:
        """By agent, replicas that its engine wants and cannot have."""
        return {agent.name: self._short.get(agent.app, 0) for agent in self._facts.agents.values()}

    @property
    def current_plan(self) -> Plan | None:
        return self._plan.plan

    def plan_age_s(self, now_s: float) -> float | None:
        """How long ago the plan was confirmed; ``None`` without one."""
        return None if self._plan.plan is None else now_s - self._plan_s

    def views(self, now_s: float) -> dict[str, tuple[float, PeerView]]:
        """By peer, the gateway's last view of it and how old that is."""
        return {name: (now_s - at_s, view) for name, (at_s, view) in self._views.items()}

    def is_idle(self, app: str, now_s: float) -> bool:
        """Whether an engine may go: its replicas have nothing to do, or are gone."""
        return self._replicas.setdefault(app, Replicas()).is_idle(now_s, self._facts.stale_s)

    def _own(self, now_s: float) -> list[tuple[TargetReport, Standing]]:
        made = []
        for agent in self._facts.agents.values():
            told = self._replicas.get(agent.app, Replicas())
            standing = told.standing(now_s, may_sleep=agent.min_replicas == 0, stale_s=self._facts.stale_s)
            why = "; ".join(said for said in (standing.why, told.failing(now_s)) if said)
            standing = replace(standing, why=why, start_s=told.start_s)
            report = _report(agent, standing, self._short.get(agent.app, 0))
            made.append((report, standing))
            if (canary := self.trial.canary(agent)) is not None:
                made.append((replace(report, release=canary.release, canary=True), standing))
        return made

    def _peer_parts(self, now_s: float) -> Iterable[Part]:
        for region in self._facts.regions.values():
            state = self._state_of(region.name)
            if region.name != self._facts.me and state is not None:
                health, why = self._peer(region.name, now_s)
                view = self._views.get(region.name)
                heard = view is not None and view[1].silent_s is not None
                sight = PeerSight(region, state, health, why, self._network_ms(region.name), heard)
                yield self._targets.peer(sight, self._plan, now_s)

    def _state_of(self, name: str) -> RegionState | None:
        """The newest summary of a peer: its own beats carry it, else the coordinator may have one."""
        view = self._views.get(name)
        if view is not None and view[1].state is not None:
            return view[1].state
        planned = self._plan.regions.get(name)
        return planned.state if planned is not None else None

    def _peer(self, name: str, now_s: float) -> tuple[Health, str]:
        """What this region thinks of a peer as a whole, and why."""
        if name not in self._views:
            return "unknown", "no beat yet"
        at_s, view = self._views[name]
        fault = f": {view.fault}" if view.fault else ""
        if view.silent_s is None:
            return "unknown", f"no beat yet{fault}"
        planned = self._plan.regions.get(name) if now_s - self._plan_s <= self._facts.plan_stale_s else None
        if view.silent_s > self._facts.peer_silence_s:
            lost = planned is not None and planned.phase in ("lost", "failed")
            agreed = "; the coordinator has lost it too" if lost else ""
            return "ejected", f"peer silent for {view.silent_s:.1f} s{fault}{agreed}"
        if planned is not None and planned.phase == "failed":
            return "ejected", f"coordinator: {planned.why or 'failed'}"
        if view.state is None:
            return "unknown", f"beats without a report{fault}"
        if now_s - at_s > self._facts.stale_s:
            # That our own gateway is mute says nothing of the peer: it is a backup, and comes back without a ramp.
            return "stale", f"the gateway here has told nothing for {now_s - at_s:.1f} s"
        if view.state.age_s > self._facts.stale_s:
            return "stale", f"its report is {view.state.age_s:.1f} s old"
        return view.state.health, view.state.why

    def _network_ms(self, name: str) -> float | None:
        view = self._views.get(name)
        return view[1].network_ms if view is not None else None

    def _region_views(self, own: Iterable[tuple[TargetReport, Standing]], now_s: float) -> tuple[RegionView, ...]:
        mine = _summed([report for report, _ in own])
        views = []
        for region in self._facts.regions.values():
            health, why = mine if region.name == self._facts.me else self._peer(region.name, now_s)
            drained, network_ms = self._plan.is_drained(region.name), self._network_ms(region.name)
            spill, seen = self._plan.accepts_spill(region), self._views.get(region.name)
            fault = "" if seen is None else seen[1].fault
            views.append(RegionView(region.name, region.cloud, health, why, spill, drained, network_ms, fault))
        return tuple(views)


def _summed(reports: Iterable[TargetReport]) -> tuple[Health, str]:
    """The region as a whole. A release that is tried has the replicas of the one in force."""
    return summed([report for report in reports if not report.canary])


def _report(agent: Agent, standing: Standing, missing: int) -> TargetReport:
    """One agent as its region reports it; agents that share an engine have the same load."""
    short = f"wants {missing} more than there is room for" if missing else ""
    return TargetReport(
        agent=agent.name,
        app=agent.app,
        release=agent.release,
        engine_digest=agent.engine_digest,
        health=standing.health,
        why="; ".join(part for part in (standing.why, short) if part),
        replicas=standing.replicas,
        slots=agent.slots * max(1, standing.replicas),
        max_model_len=agent.max_model_len,
        load=standing.load,
        missing=missing,
    )
