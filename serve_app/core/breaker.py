"""Breakers: who is not asked for a while because it failed, counted by each Router and shared by its region.

A breaker opens after :data:`STREAK` failures in a row within :data:`WINDOW_S`, or when more than :data:`SHARE_ABOVE` of
at least :data:`SAMPLES` calls of that window failed. It stays open for :data:`OPEN_S`; then one call at a time may find
out (half-open): passed, it closes; failed, it opens again. A longer cool-down is never shortened.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from serve_app.core.reports import Outcomes, ProbeResult, RouterReport, Trip
from serve_app.core.snapshots import BreakerState
from serve_app.outcomes import STATUS, Reason

WINDOW_S: Final = 30.0
STREAK: Final = 10
SHARE_ABOVE: Final = 0.4
SAMPLES: Final = 10
OPEN_S: Final = 30.0
#: How long a Router may keep a lent probe before it goes to another one: no request may have come its way.
LEND_S: Final = 10.0
#: The Router that let its probe lapse leaves it to the others for so long.
PASS_OVER_S: Final = 1.0
#: One lost replica, or one line that was cut, takes all its calls along at once, and Serve or the missing beats have
#: already taken it out: that is one failure.
LOST: Final[frozenset[Reason]] = frozenset({"replica_lost", "peer_silent"})
LOSS_S: Final = 1.0
#: A target that nobody has asked for so long since its cool-down is forgotten.
FORGET_S: Final = 300.0

#: How a call may begin: as any call, or as the one that finds out.
Entry = Literal["call", "probe"]


@dataclass(slots=True)
class Window:
    """Calls of the last :data:`WINDOW_S`, in buckets of a second, and the times of the last failures in a row."""

    _buckets: deque[tuple[int, int, int]] = field(default_factory=deque)
    _streak: deque[float] = field(default_factory=lambda: deque(maxlen=STREAK))

    def add(self, succeeded: int, failed: int, now_s: float) -> None:
        self._forget(now_s)
        second = int(now_s)
        if self._buckets and self._buckets[-1][0] >= second:
            at, good, bad = self._buckets.pop()
            self._buckets.append((at, good + succeeded, bad + failed))
        else:
            self._buckets.append((second, succeeded, failed))
        if succeeded:
            self._streak.clear()
        self._streak.extend([now_s] * min(failed, STREAK))

    def _forget(self, now_s: float) -> None:
        while self._buckets and self._buckets[0][0] <= now_s - WINDOW_S:
            self._buckets.popleft()

    def is_idle(self, now_s: float) -> bool:
        self._forget(now_s)
        return not self._buckets

    def verdict(self, now_s: float, *, streaks: bool = True) -> str | None:
        """Why the breaker opens now, or ``None``. Calls of several Routers are in no order: no ``streaks`` there."""
        if streaks and len(self._streak) == STREAK and self._streak[0] > now_s - WINDOW_S:
            return f"{STREAK} failures in a row"
        self._forget(now_s)
        failed = sum(bad for _, _, bad in self._buckets)
        calls = failed + sum(good for _, good, _ in self._buckets)
        if calls >= SAMPLES and failed > SHARE_ABOVE * calls:
            return f"{failed} of {calls} calls failed in {WINDOW_S:g} s"
        return None

    def __len__(self) -> int:
        return len(self._buckets)


@dataclass(slots=True)
class _Own:
    """What one Router counted of one target. ``open_until_s`` is ``None`` while closed."""

    window: Window = field(default_factory=Window)
    open_until_s: float | None = None
    probing: bool = False
    lost_s: float | None = None


@dataclass(slots=True)
class RouterBreakers:
    """One Router's own counting. What it counted since its last report is told once; what is open is told each time.

    Told again, a trip changes nothing where it is known, and a RegionAgent that has started anew learns of it.
    """

    _own: dict[str, _Own] = field(default_factory=dict)
    _told: dict[str, list[int]] = field(default_factory=dict)
    _probes: dict[str, bool] = field(default_factory=dict)
    _wanted: Counter[str] = field(default_factory=Counter)
    _spilled_to: Counter[str] = field(default_factory=Counter)
    _urgent: bool = False

    @property
    def is_urgent(self) -> bool:
        """Whether there is a trip or a probe's result that the region does not know yet."""
        return self._urgent

    def blocked(self, target_id: str, now_s: float) -> bool:
        """Whether this Router must not ask now: open, or its one probe is out."""
        own = self._own.get(target_id)
        return own is not None and (own.probing or (own.open_until_s is not None and now_s < own.open_until_s))

    def all_blocked(self, now_s: float) -> frozenset[str]:
        """Everything that is :meth:`blocked`; mostly empty."""
        return frozenset(target_id for target_id in self._own if self.blocked(target_id, now_s))

    def begin(self, target_id: str, now_s: float, *, half_open: bool = False) -> Entry | None:
        """How a call may begin, or ``None``: it must not. ``half_open``: the region lent this Router its probe.

        A ``probe`` has to end in :meth:`succeeded`, :meth:`failed` or :meth:`rejected`, with ``probe`` set.
        """
        if self.blocked(target_id, now_s):
            return None
        own = self._own.get(target_id)
        if not half_open and (own is None or own.open_until_s is None):
            return "call"
        self._own.setdefault(target_id, _Own()).probing = True
        return "probe"

    def succeeded(self, target_id: str, now_s: float, *, probe: bool = False) -> None:
        """The target answered. While it is open only a probe says anything about it."""
        self._tell(target_id, 0)
        own = self._own.setdefault(target_id, _Own())
        if probe:
            self._own[target_id] = _Own()
            self._probes[target_id] = True
            self._urgent = True
        elif own.open_until_s is None:
            own.window.add(1, 0, now_s)

    def failed(self, target_id: str, reason: Reason, now_s: float, *, probe: bool = False) -> Trip | None:
        """The target failed; the trip, when that opens its breaker. Other reasons are :meth:`rejected`."""
        if STATUS[reason].outcome != "failed":
            self.rejected(target_id, probe=probe)
            return None
        own = self._own.setdefault(target_id, _Own())
        if reason in LOST and not probe:
            if own.lost_s is not None and now_s - own.lost_s < LOSS_S:
                return None
            own.lost_s = now_s
        self._tell(target_id, 1)
        if probe:
            own.probing = False
            self._probes[target_id] = False
            return self._open(target_id, own, f"the probe failed: {reason}", now_s)
        if own.open_until_s is not None:
            return None
        own.window.add(0, 1, now_s)
        why = own.window.verdict(now_s)
        return None if why is None else self._open(target_id, own, f"{why}, the last: {reason}", now_s)

    def rejected(self, target_id: str, *, probe: bool = False) -> None:
        """The call said nothing about the target: back-pressure, a refusal, a client that left. Counts nothing."""
        if probe and target_id in self._own:
            self._own[target_id].probing = False

    def wanted(self, agent: str, region: str) -> None:
        """A request was wanted in this region and went to ``region``."""
        self._wanted[agent] += 1
        self._spilled_to[region] += 1

    def recover_s(self, target_ids: Collection[str], now_s: float) -> float | None:
        """When the soonest of these may be asked again; ``None``: none of them is open here."""
        left = [own.open_until_s - now_s for i, own in self._opened() if i in target_ids and own.open_until_s]
        return max(0.0, min(left)) if left else None

    def report(self, router: str, now_s: float) -> RouterReport:
        """What to push; forgets what it tells, and targets that nobody asks any more."""
        trips = tuple(
            Trip(target_id, own.open_until_s - now_s, "still open")
            for target_id, own in self._opened()
            if own.open_until_s is not None and own.open_until_s > now_s
        )
        made = RouterReport(
            router=router,
            outcomes={target_id: Outcomes(good, bad) for target_id, (good, bad) in self._told.items()},
            wanted_spilled=dict(self._wanted),
            spilled_to=dict(self._spilled_to),
            trips=trips,
            probes=tuple(ProbeResult(target_id, passed) for target_id, passed in self._probes.items()),
        )
        self._told, self._probes, self._wanted, self._spilled_to = {}, {}, Counter(), Counter()
        self._urgent = False
        self._own = {i: own for i, own in self._own.items() if not self._is_over(own, now_s)}
        return made

    def __len__(self) -> int:
        return len(self._own)

    def _opened(self) -> Iterator[tuple[str, _Own]]:
        return ((i, own) for i, own in self._own.items() if own.open_until_s is not None)

    def _open(self, target_id: str, own: _Own, why: str, now_s: float) -> Trip:
        own.open_until_s = max(own.open_until_s or 0.0, now_s + OPEN_S)
        own.window, own.lost_s = Window(), None
        self._urgent = True
        return Trip(target_id, own.open_until_s - now_s, why)

    def _tell(self, target_id: str, failed: int) -> None:
        self._told.setdefault(target_id, [0, 0])[failed] += 1

    @staticmethod
    def _is_over(own: _Own, now_s: float) -> bool:
        if own.probing:
            return False
        if own.open_until_s is not None:
            return now_s > own.open_until_s + FORGET_S
        return own.window.is_idle(now_s)


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

    def recover_s(self, now_s: float) -> float | None:
        """How long until the soonest open target may be tried; ``None`` when none is open."""
        left = [s.open_until_s - now_s for s in self._shared.values() if s.open_until_s is not None]
        return max(0.0, min(left)) if left else None

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
