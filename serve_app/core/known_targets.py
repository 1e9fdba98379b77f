"""What one Router knows of targets by itself: its own breakers, and what it has sent since they last reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from serve_app.core.breaker import Entry, RouterBreakers
from serve_app.core.reports import Trip
from serve_app.core.snapshots import Load, Snapshot, Target
from serve_app.outcomes import Reason


@dataclass(frozen=True, slots=True)
class Known:
    """For one choice: ids of targets not to ask, and by id the calls begun since the last report less those ended."""

    blocked: frozenset[str]
    in_flight: Mapping[str, int]


@dataclass(slots=True)
class KnownTargets:
    """The Targets port of a Router. ``hurry`` is called when its region should hear of a trip or a probe at once."""

    breakers: RouterBreakers
    hurry: Callable[[], None]
    _since: Counter[str] = field(default_factory=Counter)
    _loads: dict[str, Load] = field(default_factory=dict)
    _seen: Snapshot | None = None

    def known(self, snapshot: Snapshot, now_s: float) -> Known:
        """What to choose by; a target that has reported again has counted our calls itself."""
        if snapshot is not self._seen:
            loads = {t.id: t.load for t in snapshot.targets}
            for target_id in [i for i in self._since if i not in loads or loads[i] != self._loads.get(i)]:
                del self._since[target_id]
            self._seen, self._loads = snapshot, loads
        return Known(self.breakers.all_blocked(now_s), self._since)

    def begin(self, target: Target, now_s: float) -> Entry | None:
        """How a call may begin, or ``None``. One that begins has to end in :meth:`ended`, whatever it was."""
        half_open, is_fit = target.breaker == "probing", target.health in ("healthy", "slow")
        is_closed = is_fit and target.breaker == "closed"
        entry = self.breakers.begin(target.id, now_s, half_open=half_open, is_closed=is_closed)
        if entry is not None:
            self._since[target.id] += 1
        return entry

    def succeeded(self, target: Target, entry: Entry, now_s: float) -> None:
        self.breakers.succeeded(target.id, now_s, probe=entry == "probe")
        self._hurry()

    def failed(self, target: Target, entry: Entry, reason: Reason, began_s: float, now_s: float) -> Trip | None:
        """The trip, when this failure of a call that began at ``began_s`` opens the target's breaker."""
        trip = self.breakers.failed(target.id, reason, now_s, began_s=began_s, probe=entry == "probe")
        self._hurry()
        return trip

    def left(self, target: Target, entry: Entry) -> None:
        """The client left before the target said anything."""
        self.breakers.rejected(target.id, probe=entry == "probe")

    def ended(self, target: Target) -> None:
        self._since[target.id] -= 1

    def spilled(self, agent: str, region: str, *, is_load: bool) -> None:
        self.breakers.wanted(agent, region, is_load=is_load)

    def recover_s(self, targets: Iterable[Target], now_s: float) -> float | None:
        """When the soonest of those that this Router's own breakers keep out may be asked again."""
        return self.breakers.recover_s({t.id for t in targets}, now_s)

    def _hurry(self) -> None:
        if self.breakers.is_urgent:
            self.hurry()
