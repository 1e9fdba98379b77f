"""Beats: silence, the round trip, and what is old news; by a clock that moves only when told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_app.core.reports import BEGIN_S, PeerView, RegionState
from serve_app.edge.beats import ROUND_TRIPS, BeatLine, OwnState, Watch
from serve_app.edge.wire import Beat, WireError
from tests.fakes import FakeClock
from tests.region_fakes import THERE

STATE = RegionState("cloud-b", "healthy", "")
OTHER = replace(STATE, health="slow")


class Pair:
    """Both ends of one stream of beats; a beat takes ``way_s`` to the other side."""

    def __init__(self, way_s: float = 0.01) -> None:
        self.clock, self.way_s = FakeClock(), way_s
        self.watch = Watch("cloud-b", self.clock.now_s)
        self.here = BeatLine("cloud-b", self.watch, self.clock.now_s)
        self.there = BeatLine("cloud-a", None, self.clock.now_s)

    def over(self, to: BeatLine, beat: Beat) -> None:
        self.clock.time_s += self.way_s
        to.take(beat)

    def round(self, held_s: float = 0.2, state: RegionState | None = None) -> None:
        self.over(self.there, self.here.next(None))
        self.clock.time_s += held_s
        self.over(self.here, self.there.next(state))


def test_a_peer_that_never_came_is_no_number() -> None:
    assert Pair().watch.view() == PeerView("cloud-b", None)


def test_the_round_trip_is_what_was_not_held() -> None:
    pair = Pair(0.04)
    pair.round(held_s=0.25, state=STATE)
    assert pair.watch.view() == PeerView("cloud-b", 0.0, 80.0, STATE)
    pair.clock.time_s += 0.7
    assert pair.watch.silent_s == pytest.approx(0.7)


def test_a_busy_process_is_not_a_long_network_and_a_longer_network_is_seen() -> None:
    pair = Pair(0.04)
    pair.round()
    pair.way_s = 0.5
    pair.round()
    assert pair.watch.view().network_ms == 80.0
    for _ in range(ROUND_TRIPS):
        pair.round()
    assert pair.watch.view().network_ms == 1000.0


def test_a_state_travels_when_it_has_changed() -> None:
    line = Pair().there
    told = [line.next(state).state for state in (None, STATE, STATE, OTHER, OTHER, STATE)]
    assert told == [None, STATE, None, OTHER, None, STATE]


def test_what_is_known_of_a_peer_outlives_a_stream_until_the_next_one_begins() -> None:
    pair = Pair()
    pair.round(state=STATE)
    pair.clock.time_s += 5
    assert pair.watch.view() == PeerView("cloud-b", pytest.approx(5.0), 20.0, STATE)  # type: ignore[arg-type]
    again = BeatLine("cloud-b", pair.watch, pair.clock.now_s)
    again.take(Beat(1, 0, 0.0, OTHER))
    again.take(Beat(2, 0, 0.0))
    assert pair.watch.view() == PeerView("cloud-b", 0.0, 20.0, OTHER)


def test_a_peer_that_begins_anew_has_no_state_of_before() -> None:
    pair = Pair()
    pair.round(state=STATE)
    again = BeatLine("cloud-b", pair.watch, pair.clock.now_s)
    again.take(Beat(1, 0, 0.0))
    assert pair.watch.view().state is None
    again.take(Beat(2, 0, 0.0, STATE))
    again.take(Beat(3, 0, 0.0))
    assert pair.watch.view().state == STATE


def test_a_beat_that_was_before_is_no_sign_of_life() -> None:
    pair = Pair()
    pair.here.take(Beat(5, 0, 0.0, STATE))
    pair.clock.time_s += 2
    pair.here.take(Beat(5, 0, 0.0, OTHER))
    pair.here.take(Beat(4, 0, 0.0, OTHER))
    assert pair.watch.view() == PeerView("cloud-b", 2.0, None, STATE)


def test_a_process_that_stood_still_has_not_lost_its_peers() -> None:
    pair = Pair()
    pair.watch.stood_still(9.0)
    assert pair.watch.silent_s is None
    pair.round()
    pair.clock.time_s += 10.0
    pair.watch.stood_still(9.5)
    assert pair.watch.silent_s == pytest.approx(0.5)
    pair.watch.stood_still(9.5)
    assert pair.watch.silent_s == 0.0


def test_a_report_in_the_name_of_another_region_is_refused() -> None:
    pair = Pair()
    with pytest.raises(WireError, match=r"^state\.region: 'edge-1' is not cloud-b, who sent it$"):
        pair.here.take(Beat(1, 0, 0.0, replace(STATE, region="edge-1")))
    assert pair.watch.view() == PeerView("cloud-b", None)


def test_a_beat_clears_the_fault() -> None:
    pair = Pair()
    pair.watch.fault = "cut"
    assert pair.watch.view().fault == "cut"
    pair.round()
    assert pair.watch.view().fault == ""


@pytest.mark.parametrize(("echo", "held_s"), [(99, 0.0), (1, 3600.0)])
def test_an_answer_to_no_beat_measures_nothing_and_one_from_the_future_no_less_than_nothing(
    echo: int, held_s: float
) -> None:
    pair = Pair()
    pair.here.next(None)
    pair.here.take(Beat(1, echo, held_s))
    assert pair.watch.view().network_ms == (None if echo == 99 else 0.0)


WELL = replace(STATE, targets=(THERE, replace(THERE, agent="qwen-doc", health="slow")))
ANEW = replace(STATE, health="unknown", targets=tuple(replace(t, health="unknown", why="new") for t in WELL.targets))


def told(own: OwnState, clock: FakeClock, state: RegionState, seconds: float) -> tuple[str, ...]:
    """Health of the region and of its targets when this is told so much later."""
    clock.time_s += seconds
    own.tell(state)
    now = own.now()
    assert now is not None
    return (now.health, *(t.health for t in now.targets))


def test_a_regionagent_that_begins_anew_takes_no_healthy_region_away() -> None:
    clock = FakeClock()
    own = OwnState(clock.now_s, 1.0)
    own.tell(WELL)
    assert told(own, clock, ANEW, 1.0) == ("healthy", "healthy", "slow")
    # One replica pushes before the others do.
    some = replace(WELL, targets=(WELL.targets[0], ANEW.targets[1]))
    assert told(own, clock, some, 0.5) == ("healthy", "healthy", "slow")
    assert told(own, clock, some, BEGIN_S - 0.5) == ("healthy", "healthy", "stale")
    assert told(own, clock, some, 0.1) == ("healthy", "healthy", "unknown")


def test_what_an_old_regionagent_told_is_a_backup_and_what_failed_stays_failed() -> None:
    clock = FakeClock()
    own = OwnState(clock.now_s, 1.0)
    own.tell(replace(WELL, targets=(WELL.targets[0], replace(WELL.targets[1], health="ejected"))))
    assert told(own, clock, ANEW, 8.0) == ("stale", "stale", "ejected")
    assert told(own, clock, ANEW, BEGIN_S) == ("stale", "stale", "ejected")
    assert told(own, clock, ANEW, 0.1) == ("unknown", "unknown", "unknown")


def test_a_gateway_that_begins_anew_and_another_release_know_of_nothing_before() -> None:
    clock = FakeClock()
    own = OwnState(clock.now_s, 1.0)
    assert told(own, clock, ANEW, 0.0) == ("unknown", "unknown", "unknown")
    own.tell(WELL)
    other = replace(ANEW, targets=tuple(replace(t, release="f" * 64) for t in ANEW.targets))
    assert told(own, clock, other, 0.1)[1:] == ("unknown", "unknown")


def test_a_silent_regionagent_gives_its_last_state_an_age() -> None:
    clock = FakeClock()
    own = OwnState(clock.now_s, 1.0)
    assert own.now() is None
    own.tell(STATE)
    clock.time_s += 1.0
    assert own.now() is STATE
    clock.time_s += 1.5
    assert own.now() == replace(STATE, age_s=2.5)
    own.tell(OTHER)
    assert own.now() is OTHER
