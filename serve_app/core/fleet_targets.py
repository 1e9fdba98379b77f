"""Targets of regions, made from what regions report: with breakers, ramps, drains and drift. What has not changed is
used again: of hundreds of regions few change between two looks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from serve_app.core.published import Part
from serve_app.core.region_facts import RegionFacts
from serve_app.core.reports import FleetRegion, Plan, RegionState, TargetReport
from serve_app.core.shared_breakers import SharedBreakers
from serve_app.core.snapshots import BreakerState, Health, Target
from serve_app.core.target_health import SLOW_WEIGHT, Ramp, Standing, clean

_USABLE: Final = frozenset({"healthy", "slow"})
#: What a region as a whole is goes over its targets' own health where it is as bad.
_BAD: Final[Mapping[Health, int]] = {"healthy": 0, "slow": 0, "probing": 0, "stale": 1, "unknown": 2, "ejected": 3}


@dataclass(frozen=True, slots=True)
class PlanView:
    """The coordinator's plan as far as targets are concerned; without one nothing is drained and nothing drifts."""

    plan: Plan | None = None
    regions: Mapping[str, FleetRegion] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> PlanView:
        return cls(plan, {region.name: region for region in plan.regions})

    def is_drained(self, region: str) -> bool:
        planned = self.regions.get(region)
        return planned is not None and planned.drained

    def accepts_spill(self, region: RegionFacts) -> bool:
        planned = self.regions.get(region.name)
        return region.accepts_spill and (planned is None or planned.accepts_spill)

    def expected(self, region: str, target: TargetReport, revision: str) -> str | None:
        """The release that a region must serve; a region that has another revision is on its way, and may differ.

        Of a release that is tried no region differs that does not try it any more: it is on its way too.
        """
        if self.plan is None:
            return None
        if target.canary:
            return None if self.plan.trial is None else self.plan.trial.expected.get((region, target.agent))
        if self.plan.revision != revision:
            return None
        return self.plan.expected.get((region, target.agent))


@dataclass(frozen=True, slots=True)
class PeerSight:
    """A peer as this region sees it: its facts, its own report, what is thought of it as a whole, and its distance.

    ``heard``: it is the peer that says no more, not that nothing was heard yet from here.
    """

    facts: RegionFacts
    state: RegionState
    health: Health
    why: str
    network_ms: float | None
    heard: bool = True


@dataclass(frozen=True, slots=True)
class _Kept:
    """A part, and everything that it was made from."""

    sight: PeerSight
    plan: PlanView
    open: Hashable
    part: Part


class FleetTargets:
    """Makes the parts of a picture. A target that was out comes back by a ramp, whatever took it out."""

    def __init__(self, breakers: SharedBreakers) -> None:
        self._breakers = breakers
        self._ramps: dict[tuple[str, str, bool], Ramp] = {}
        self._kept: dict[str, _Kept] = {}

    def own(
        self,
        facts: RegionFacts,
        told: Iterable[tuple[TargetReport, Standing]],
        revision: str,
        plan: PlanView,
        now_s: float,
    ) -> Part:
        """This region's targets, as their replicas stand."""
        targets = []
        for report, standing in told:
            target = replace(_plain(facts, report, plan, revision, None), start_s=standing.start_s)
            if standing.lost:
                self._ramp(target).out()
            targets.append(self._judged(target, report.health, report.why, now_s))
        return Part.of(tuple(targets))

    def peer(self, sight: PeerSight, plan: PlanView, now_s: float) -> Part:
        """A peer's targets; what the peer says of them holds unless the peer as a whole is worse."""
        name = sight.facts.name
        kept = self._kept.get(name)
        same = kept is not None and kept.plan is plan and _same(kept.sight, sight)
        if kept is not None and same and kept.open == self._open(kept.part, now_s):
            return kept.part
        bad = _BAD[sight.health]
        targets = []
        for report in sight.state.targets:
            target = _plain(sight.facts, report, plan, sight.state.revision, sight.network_ms)
            health, why = report.health, report.why
            if bad and bad >= _BAD[report.health]:
                health, why = sight.health, sight.why
            if health == "unknown" and sight.heard:
                self._ramp(target).anew()
            targets.append(self._judged(target, health, why, now_s))
        part = Part.of(tuple(targets))
        if any(self._ramp(target).is_rising for target in targets):
            self._kept.pop(name, None)
        else:
            self._kept[name] = _Kept(sight, plan, self._open(part, now_s), part)
        return part

    def _open(self, part: Part, now_s: float) -> tuple[tuple[str, BreakerState], ...]:
        """The breakers of a part that are not closed."""
        states = ((name, self._breakers.state(name, now_s)) for name in part.ids)
        return tuple((name, state) for name, state in states if state != "closed")

    def _ramp(self, target: Target) -> Ramp:
        key = (target.region, target.agent, target.canary)
        ramp = self._ramps.get(key)
        if ramp is None:
            ramp = self._ramps[key] = Ramp()
        return ramp

    def _judged(self, target: Target, health: Health, why: str, now_s: float) -> Target:
        breaker, ramp, weight = self._breakers.state(target.id, now_s), self._ramp(target), 1.0
        if health == "ejected" or breaker != "closed":
            ramp.out()
        elif health in _USABLE:
            weight = ramp.fit(now_s)
        if not why:
            why = target.why or ("was out, comes back slowly" if weight < 1.0 else "")
        weight *= SLOW_WEIGHT if health == "slow" else 1.0
        return replace(target, health=health, why=why, weight=weight, breaker=breaker)


def _same(one: PeerSight, other: PeerSight) -> bool:
    """Whether the same would be made of both. Reports are compared by identity: who receives them keeps equal ones."""
    return (
        one.state is other.state
        and one.facts is other.facts
        and (one.health, one.why, one.network_ms) == (other.health, other.why, other.network_ms)
        and one.heard == other.heard
    )


def _plain(facts: RegionFacts, report: TargetReport, plan: PlanView, revision: str, network_ms: float | None) -> Target:
    """A target with its facts and its load; nothing is said of its health yet, but ``why`` of a drift."""
    expected = plan.expected(facts.name, report, revision)
    drifted = expected is not None and expected != report.release
    return Target(
        region=facts.name,
        cloud=facts.cloud,
        agent=report.agent,
        app=report.app,
        release=report.release,
        max_model_len=report.max_model_len,
        slots=report.slots,
        residency=facts.residency,
        gpu_hour_usd=facts.gpu_hour_usd,
        load=replace(clean(report.load), network_ms=network_ms),
        accepts_spill=plan.accepts_spill(facts),
        drained=plan.is_drained(facts.name),
        drifted=drifted,
        short=report.missing > 0,
        canary=report.canary,
        why=f"serves release {report.release[:12]}, the plan says {str(expected)[:12]}" if drifted else "",
    )
