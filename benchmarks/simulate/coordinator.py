"""The coordinator beside the regions: reports up each heartbeat, plans down."""

from __future__ import annotations

from typing import Final

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.region import SimRegion
from serve_app.core.fleet import Fleet
from serve_app.core.fleet_events import Facts, KnownRegion, LinkOpened, Reported, SendPlan, Tick, Wanted
from serve_app.core.reports import Plan

HEARTBEAT_S: Final = 1.0
TICK_S: Final = 0.25
ONE_WAY_S: Final = 0.05


class SimCoordinator:
    """The production :class:`Fleet`, fed by all regions. ``plans`` counts what it has sent."""

    def __init__(self, clock: Clock, regions: dict[str, SimRegion]) -> None:
        self._clock, self._regions = clock, regions
        wanted = Wanted(tuple(KnownRegion(name) for name in regions), HEARTBEAT_S)
        self._fleet = Fleet(wanted, Facts(epoch=1), clock.now_s)
        self._links: dict[str, tuple[int, int]] = {}
        self._seq = self._link = 0
        self._plan: Plan | None = None
        self.plans = 0

    def begin(self) -> None:
        self._clock.every(TICK_S, self._clock.now_s + TICK_S, self._tick)
        self._clock.every(HEARTBEAT_S, self._clock.now_s, self._heartbeat)

    def phase_of(self, region: str) -> str:
        return self._fleet.members[region].shown.phase

    def _heartbeat(self) -> None:
        """Every region that can be heard reports, and what is the plan now is confirmed to it."""
        now_s = self._clock.now_s
        for region in self._regions.values():
            if region.is_dark:
                continue
            link, epoch = self._links.get(region.name, (0, 0))
            if epoch != region.epoch:
                self._link += 1
                link = self._link
                self._links[region.name] = (link, region.epoch)
                self._clock.at(now_s + ONE_WAY_S, self._handle, LinkOpened(region.name, link))
            self._seq += 1
            plan = region.core.current_plan
            report = Reported(
                region.name,
                link,
                self._seq,
                state=region.core.own_state(now_s),
                peers=region.views,
                seen=plan.order if plan is not None else (0, 0),
            )
            self._clock.at(now_s + ONE_WAY_S, self._handle, report)
        self._send()

    def _tick(self) -> None:
        self._handle(Tick())

    def _handle(self, event: LinkOpened | Reported | Tick) -> None:
        for effect in self._fleet.handle(event, self._clock.now_s):
            if isinstance(effect, SendPlan):
                self._plan = effect.plan
                self.plans += 1
                self._send()

    def _send(self) -> None:
        if self._plan is not None:
            for region in self._regions.values():
                self._clock.at(self._clock.now_s + ONE_WAY_S, self._arrive, region, self._plan)

    def _arrive(self, region: SimRegion, plan: Plan) -> None:
        if not region.is_dark:
            region.core.plan(plan, self._clock.now_s)
