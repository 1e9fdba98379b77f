"""A region's breakers: what one of its Routers found out holds for all, and one at a time finds out what is over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from serve_app.core.breaker import OPEN_S, Window
from serve_app.core.reports import RouterReport
from serve_app.core.snapshots import BreakerState

#: How long a Router may keep a lent probe before it goes to another one: no request may have come its way.
LEND_S: Final = 10.0
#: The Router that let its probe lapse leaves it to the others for so long.
PASS_OVER_S: Final = 1.0


@dataclass(slots=True)
class _Shared:
    """What the region knows of one target's breaker. ``lender`` is the Router that last got its probe."""

    window: Window = field(default_factory=Window)
    open_until_s: float | None = None
    lender: str | None = None
    lent_s: float = 0.0

    def open(self, until_s: float) -> None:
        self.open_until_s = until_s if self.open_until_s is None else max(self.open_until_s, until_s)
        self.window, self.lender = Window(), None


@dataclass(slots=True)
class SharedBreakers:
    """The region's breakers, kept by its RegionAgent: what one Router found out holds for all."""

    _shared: dict[str, _Shared] = field(default_factory=dict)
    _known: frozenset[str] | None = None

    def take(self, report: RouterReport, now_s: float) -> frozenset[str]:
        """Takes in one push; the targets whose probe has passed, which may ramp up from now on."""
        for target_id, outcomes in report.outcomes.items():
            shared = self._shared.setdefault(target_id, _Shared())
            if shared.open_until_s is None:
                shared.window.add(outcomes.succeeded, outcomes.failed, now_s)
                if shared.window.verdict(now_s, streaks=False) is not None:
                    shared.open(now_s + OPEN_S)
        closed = set()
        for probe in report.probes:
            if probe.passed and self._holds(probe.target, report.router, now_s):
                self._shared[probe.target] = _Shared()
                closed.add(probe.target)
            elif not probe.passed:
                self._shared.setdefault(probe.target, _Shared()).open(now_s + OPEN_S)
        for trip in (t for t in report.trips if t.open_for_s > 0):
            self._shared.setdefault(trip.target, _Shared()).open(now_s + trip.open_for_s)
            closed.discard(trip.target)
        self._shared = {i: shared for i, shared in self._shared.items() if not self._is_over(i, shared, now_s)}
        return frozenset(closed)

    def state(self, target_id: str, now_s: float) -> BreakerState:
        shared = self._shared.get(target_id)
        if shared is None or shared.open_until_s is None:
            return "closed"
        return "open" if now_s < shared.open_until_s else "probing"

    def lend(self, router: str, now_s: float) -> frozenset[str]:
        """The targets whose one probe this Router has, those included that it gets now."""
        return frozenset(
            target_id
            for target_id, shared in self._shared.items()
            if self.state(target_id, now_s) == "probing" and _lent(shared, router, now_s)
        )

    def open_for_s(self, now_s: float) -> dict[str, float]:
        """By target how long until somebody may find out about it; those that are closed are not in it."""
        opened = ((i, s.open_until_s) for i, s in self._shared.items() if s.open_until_s is not None)
        return {target_id: max(0.0, until_s - now_s) for target_id, until_s in opened}

    def retain(self, known: Collection[str]) -> None:
        """Only these are still targets; others go with the next push, when they have sat out their cool-down.

        A target that comes back meanwhile is still in it.
        """
        self._known = frozenset(known)

    def __len__(self) -> int:
        return len(self._shared)

    def _is_over(self, target_id: str, shared: _Shared, now_s: float) -> bool:
        if shared.open_until_s is None:
            return shared.window.is_idle(now_s)
        return now_s >= shared.open_until_s and self._known is not None and target_id not in self._known

    def _holds(self, target_id: str, router: str, now_s: float) -> bool:
        return self.state(target_id, now_s) == "probing" and self._shared[target_id].lender == router


def _lent(shared: _Shared, router: str, now_s: float) -> bool:
    """Whether the probe is this Router's, after it has been given to it if it is free."""
    held_s = now_s - shared.lent_s
    if shared.lender is None or held_s >= LEND_S + (PASS_OVER_S if shared.lender == router else 0.0):
        shared.lender, shared.lent_s = router, now_s
        return True
    return shared.lender == router and held_s < LEND_S
