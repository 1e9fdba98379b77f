"""Breakers under any sequence of events: never shortened, one lender at a time, the past forgotten, bounded memory."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.breaker import (
    FORGET_S,
    OPEN_S,
    SAMPLES,
    WINDOW_S,
    RouterBreakers,
    Window,
)
from serve_app.core.reports import Outcomes, ProbeResult, RouterReport, Trip
from serve_app.core.shared_breakers import SharedBreakers

TARGETS = ("a", "b", "c")
ROUTERS = ("r1", "r2", "r3")
STEPS = st.floats(0.0, 20.0)
EVENTS = st.lists(
    st.tuples(STEPS, st.sampled_from(["good", "bad", "full", "begin", "lent", "report"]), st.sampled_from(TARGETS)),
    max_size=120,
)
TRIPS = st.builds(Trip, st.sampled_from(TARGETS), st.floats(-5.0, 120.0), st.just("no"))
PROBES = st.builds(ProbeResult, st.sampled_from(TARGETS), st.booleans())
REPORTS = st.builds(
    RouterReport,
    st.sampled_from(ROUTERS),
    st.dictionaries(st.sampled_from(TARGETS), st.builds(Outcomes, st.integers(0, 30), st.integers(0, 30)), max_size=2),
    trips=st.tuples(TRIPS) | st.tuples(TRIPS, TRIPS) | st.just(()),
    probes=st.tuples(PROBES) | st.just(()),
)
SHARED = st.lists(
    st.tuples(STEPS, st.one_of(REPORTS, st.sampled_from(ROUTERS), st.frozensets(st.sampled_from(TARGETS)))), max_size=60
)


@given(EVENTS)
def test_a_router_asks_nobody_in_a_cool_down_and_has_one_probe_out(events: list[tuple[float, str, str]]) -> None:
    breakers, now_s = RouterBreakers(), 1000.0
    until_s: dict[str, float] = {}
    out: set[str] = set()
    for step_s, event, target in events:
        now_s += step_s
        probe = target in out
        if event in ("begin", "lent"):
            began = breakers.begin(target, now_s, half_open=event == "lent")
            if now_s < until_s.get(target, 0.0) or target in out:
                assert began is None
            if began == "probe":
                out.add(target)
        elif event == "good":
            breakers.succeeded(target, now_s, probe=probe)
        elif event == "bad":
            trip = breakers.failed(target, "upstream_failed", now_s, probe=probe)
            assert trip is not None or not probe
            if trip is not None:
                # Times are sums of floats.
                assert trip.open_for_s >= OPEN_S - 1e-6
                assert now_s + trip.open_for_s >= until_s.get(target, 0.0) - 1e-6
                until_s[target] = now_s + trip.open_for_s
        elif event == "full":
            assert breakers.failed(target, "overloaded", now_s, probe=probe) is None
        else:
            told = breakers.report("r", now_s)
            assert {t.target for t in told.trips} == {t for t, at in until_s.items() if at > now_s}
        if event in ("good", "bad", "full"):
            out.discard(target)
        for name in TARGETS:
            assert breakers.blocked(name, now_s) or now_s >= until_s.get(name, 0.0)


@given(st.lists(st.floats(0.0, WINDOW_S), min_size=1, max_size=SAMPLES - 1), st.floats(0.0, 1000.0))
def test_failures_outside_the_window_are_forgotten(ages_s: list[float], later_s: float) -> None:
    """Fewer failures than count, a success, then as many again when the first are too old: never a trip."""
    breakers = RouterBreakers()
    for at_s in sorted(ages_s):
        assert breakers.failed("a", "upstream_failed", 1000.0 + at_s) is None
    breakers.succeeded("a", 1000.0 + WINDOW_S)
    again_s = 1000.0 + 2 * WINDOW_S + 1.0 + later_s
    assert [breakers.failed("a", "upstream_failed", again_s) for _ in range(SAMPLES - 1)] == [None] * (SAMPLES - 1)


@given(SHARED)
def test_shared_cool_downs_are_never_shortened_and_one_router_has_a_probe(events: list[tuple[float, Any]]) -> None:
    shared, now_s = SharedBreakers(), 1000.0
    until_s: dict[str, float] = {}
    for step_s, event in events:
        now_s += step_s
        if isinstance(event, RouterReport):
            passed = shared.take(event, now_s)
            for trip in event.trips:
                until_s[trip.target] = max(until_s.get(trip.target, 0.0), now_s + trip.open_for_s)
            for target in passed:
                assert shared.state(target, now_s) == "closed"
        elif isinstance(event, frozenset):
            shared.retain(event)
        else:
            holds = {router: shared.lend(router, now_s) for router in ROUTERS}
            for target in TARGETS:
                assert sum(target in lent for lent in holds.values()) <= 1
                assert shared.state(target, now_s) == "probing" or not any(target in lent for lent in holds.values())
            assert shared.lend(event, now_s) == holds[event]
        for target in TARGETS:
            assert shared.state(target, now_s) == "open" or now_s >= until_s.get(target, 0.0)
        assert len(shared) <= len(TARGETS)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 10_000), st.booleans()), max_size=400))
def test_memory_is_bounded_by_the_targets_of_the_last_minutes(calls: list[tuple[float, int, bool]]) -> None:
    breakers, now_s = RouterBreakers(), 1000.0
    seen: dict[str, float] = {}
    for step_s, number, good in calls:
        now_s += step_s
        target = f"t{number}"
        seen[target] = now_s
        if good:
            breakers.succeeded(target, now_s)
        else:
            breakers.failed(target, "upstream_failed", now_s)
        breakers.report("r", now_s)
        assert len(breakers) <= sum(now_s - at <= OPEN_S + FORGET_S for at in seen.values())
    breakers.report("r", now_s + OPEN_S + FORGET_S + WINDOW_S)
    assert len(breakers) == 0


@given(st.lists(st.floats(0.0, 3.0), max_size=500))
def test_a_window_has_a_bucket_a_second_at_most(steps_s: list[float]) -> None:
    window, now_s = Window(), 1000.0
    for step_s in steps_s:
        now_s += step_s
        window.add(1, 1, now_s)
        assert len(window) <= WINDOW_S + 1
