"""Breakers: who is not asked for a while because it failed, as each Router counts it (shared: ``shared_breakers``).

A breaker opens after :data:`STREAK` failures in a row within :data:`WINDOW_S`, or when more than :data:`SHARE_ABOVE` of
at least :data:`SAMPLES` calls of that window failed. Where fewer calls than that come, or each takes longer than the
window to fail, :data:`SAMPLES` failures in a row open it, however old. It stays open for :data:`OPEN_S`; then one call
at a time may find out (half-open): passed, it closes; failed, it opens again. A longer cool-down is never shortened.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from serve_app.core.reports import Outcomes, ProbeResult, RouterReport, Trip
from serve_app.outcomes import STATUS, Reason

WINDOW_S: Final = 30.0
STREAK: Final = 10
SHARE_ABOVE: Final = 0.4
SAMPLES: Final = 5
OPEN_S: Final = 30.0
#: One lost replica, or one line that was cut, takes along at once all calls that it had, and Serve or the missing beats
#: have already taken it out: that is one failure. A call that begins after it and is lost is another.
LOST: Final[frozenset[Reason]] = frozenset({"replica_lost", "peer_silent"})
LOSS_S: Final = 1.0
#: A target that nobody has asked for so long since its cool-down is forgotten.
FORGET_S: Final = 300.0

#: How a call may begin: as any call, or as the one that finds out.
Entry = Literal["call", "probe"]


@dataclass(slots=True)
class Window:
    """Calls of the last :data:`WINDOW_S`, in buckets of a second, and the times of the last failures in a row.

    A row is remembered for :data:`FORGET_S` after its last failure, calls are not.
    """

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
        return not self._buckets and not (self._streak and self._streak[-1] > now_s - FORGET_S)

    def verdict(self, now_s: float, *, streaks: bool = True) -> str | None:
        """Why the breaker opens now, or ``None``. Calls of several Routers are in no order: no ``streaks`` there."""
        if streaks and len(self._streak) == STREAK and self._streak[0] > now_s - WINDOW_S:
            return f"{STREAK} failures in a row"
        self._forget(now_s)
        failed = sum(bad for _, _, bad in self._buckets)
        calls = failed + sum(good for _, good, _ in self._buckets)
        if calls >= SAMPLES and failed > SHARE_ABOVE * calls:
            return f"{failed} of {calls} calls failed in {WINDOW_S:g} s"
        if calls < SAMPLES <= len(self._streak):
            return f"{len(self._streak)} failures and no success between them"
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

    def begin(self, target_id: str, now_s: float, *, half_open: bool = False, is_closed: bool = False) -> Entry | None:
        """How a call may begin, or ``None``: it must not. ``half_open``: the region lent this Router its probe.

        ``is_closed``: the region knows that the target is well; then a cool-down of this Router's that is over leaves
        nothing to find out. A ``probe`` has to end in :meth:`succeeded`, :meth:`failed` or :meth:`rejected`, with
        ``probe`` set.
        """
        if self.blocked(target_id, now_s):
            return None
        own = self._own.get(target_id)
        if is_closed and own is not None and own.open_until_s is not None:
            del self._own[target_id]
            own = None
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

    def failed(
        self, target_id: str, reason: Reason, now_s: float, *, began_s: float | None = None, probe: bool = False
    ) -> Trip | None:
        """The target failed; the trip, when that opens its breaker. Other reasons are :meth:`rejected`.

        ``began_s`` is when the call began; ``None``: now.
        """
        if STATUS[reason].outcome != "failed":
            self.rejected(target_id, probe=probe)
            return None
        own = self._own.setdefault(target_id, _Own())
        if reason in LOST and not probe:
            had = now_s if began_s is None else began_s
            if own.lost_s is not None and had < own.lost_s and now_s - own.lost_s < LOSS_S:
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

    def wanted(self, agent: str, region: str, *, is_load: bool) -> None:
        """A request was wanted in this region and went to ``region``; ``is_load``: more replicas would have kept it."""
        if is_load:
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
