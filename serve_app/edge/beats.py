"""Beats between two gateways: one stream of them as one side keeps it, and what they say of the peer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from serve_app.core.reports import BEGIN_S, FRESH_S, PeerView, RegionState, TargetReport
from serve_app.core.target_health import summed
from serve_app.edge.wire import Beat, WireError

#: The shortest of the last round trips is the network's; what is above it is a process that was busy.
ROUND_TRIPS: Final = 8
#: Beats that may be on the way; an answer to an older one measures nothing.
_MOST_SENT: Final = 64


class Watch:
    """What this region hears of one peer, through all the streams that come and go."""

    def __init__(self, region: str, now_s: Callable[[], float]) -> None:
        self.region = region
        #: Why there is no stream now; empty while there is one.
        self.fault = ""
        self._now_s = now_s
        self._heard_s: float | None = None
        self._state: RegionState | None = None
        self._trips_s: deque[float] = deque(maxlen=ROUND_TRIPS)

    @property
    def silent_s(self) -> float | None:
        """Since the last beat; ``None`` before the first."""
        return None if self._heard_s is None else self._now_s() - self._heard_s

    def heard(self, state: RegionState | None, trip_s: float | None, *, first: bool = False) -> None:
        """A beat has come; ``None``: nothing new, nothing measured.

        The ``first`` of a stream says all there is: a gateway that begins anew knows of no state yet, and what was
        heard of the one before it is no longer true.
        """
        self._heard_s, self.fault = self._now_s(), ""
        if state is not None or first:
            self._state = state
        if trip_s is not None:
            self._trips_s.append(trip_s)

    def follow(self, before: Watch) -> None:
        """The same peer is dialled in another way: what was heard of it holds, until this one is silent."""
        self._heard_s, self._state = before._heard_s, before._state

    def stood_still(self, late_s: float) -> None:
        """This process did nothing for ``late_s``: what it could not hear is no silence of the peer's."""
        if self._heard_s is not None:
            self._heard_s = min(self._now_s(), self._heard_s + late_s)

    def view(self) -> PeerView:
        network_ms = round(min(self._trips_s) * 1000, 2) if self._trips_s else None
        return PeerView(self.region, self.silent_s, network_ms, self._state, self.fault)


class BeatLine:
    """One stream of beats. ``watch`` is told what comes; ``None`` where another stream says more of this peer."""

    def __init__(self, peer: str, watch: Watch | None, now_s: Callable[[], float]) -> None:
        self._peer = peer
        self._watch = watch
        self._now_s = now_s
        self._sent_s: dict[int, float] = {}
        self._seq = 0
        self._heard_seq = 0
        self._heard_s = 0.0
        self._told: RegionState | None = None

    def next(self, state: RegionState | None) -> Beat:
        """The next beat to send; with the state where that has changed, or is not of this moment."""
        now_s = self._now_s()
        self._seq += 1
        self._sent_s[self._seq] = now_s
        self._sent_s.pop(self._seq - _MOST_SENT, None)
        told = state if state != self._told else None
        self._told = state
        held_s = now_s - self._heard_s if self._heard_seq else 0.0
        return Beat(self._seq, self._heard_seq, held_s, told)

    def take(self, beat: Beat) -> None:
        """A beat of the peer. One that came before says nothing.

        Raises:
            WireError: when it reports in the name of another region.
        """
        if beat.state is not None and beat.state.region != self._peer:
            raise WireError("state.region", f"{beat.state.region[:80]!a} is not {self._peer}, who sent it")
        if beat.seq <= self._heard_seq:
            return
        now_s, first = self._now_s(), self._heard_seq == 0
        self._heard_seq, self._heard_s = beat.seq, now_s
        sent_s = self._sent_s.pop(beat.echo, None)
        trip_s = None if sent_s is None else max(0.0, now_s - sent_s - beat.held_s)
        if self._watch is not None:
            self._watch.heard(beat.state, trip_s, first=first)


class OwnState:
    """This region's state as its RegionAgent last told it, with its age: a silent RegionAgent is not a dead region.

    Nor is one that begins anew: of an engine that it has not heard yet, what was told before stands for
    :data:`BEGIN_S`, as a backup where that is old.
    """

    def __init__(self, now_s: Callable[[], float], fresh_s: float) -> None:
        self._now_s = now_s
        self._fresh_s = fresh_s
        self._told: tuple[float, RegionState] | None = None
        #: By agent, and whether its release is tried, what was known last and when, and since when nothing is known.
        self._known: dict[tuple[str, bool], tuple[float, TargetReport]] = {}
        self._unsure_s: dict[tuple[str, bool], float] = {}

    def tell(self, state: RegionState) -> None:
        now_s = self._now_s()
        targets = tuple(self._with_known(target, now_s) for target in state.targets)
        if targets != state.targets:
            state = replace(state, health=summed(targets)[0], targets=targets)
        self._told = (now_s, state)

    def _with_known(self, target: TargetReport, now_s: float) -> TargetReport:
        key = (target.agent, target.canary)
        if target.health != "unknown":
            self._known[key] = (now_s, target)
            self._unsure_s.pop(key, None)
            return target
        at_s, known = self._known.get(key, (now_s, target))
        unsure_s = self._unsure_s.setdefault(key, now_s)
        if known.release != target.release or now_s - unsure_s > BEGIN_S:
            return target
        if known.health in ("healthy", "slow") and now_s - at_s > FRESH_S:
            return replace(known, health="stale", why=target.why)
        return known

    def now(self) -> RegionState | None:
        """``None`` before the first. An age below a few beats is none: it would be news with each beat."""
        if self._told is None:
            return None
        at_s, state = self._told
        age_s = self._now_s() - at_s
        return state if age_s <= self._fresh_s else replace(state, age_s=round(state.age_s + age_s, 1))
