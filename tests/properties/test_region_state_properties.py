"""Whatever comes in whatever order, a region's picture stays ordered, bounded, and no better than what is known."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.reports import FleetRegion, PeerView, Plan, RegionState, ReplicaReport, RouterReport, Trip
from serve_app.core.snapshots import Load
from tests.region_fakes import CHAT, THERE, core

numbers = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.integers(-5, 500).map(float)
loads = st.builds(Load, numbers, numbers, st.none() | st.integers(-5, 100), st.none() | st.integers(-5, 100), numbers)
healths = st.sampled_from(["healthy", "slow", "ejected", "probing", "stale", "unknown"])
replicas = st.builds(
    ReplicaReport, st.just(CHAT.app), st.sampled_from(["r1", "r2"]), st.just("e" * 64), st.booleans(), loads
)
states = st.builds(
    lambda health, load, age_s: RegionState(
        "cloud-b", health, "", (replace(THERE, health=health, load=load),), age_s=age_s
    ),
    healths,
    loads,
    st.floats(0, 10),
)
views = st.builds(
    PeerView, st.just("cloud-b"), st.none() | st.floats(0, 5), st.none() | st.floats(0, 500), st.none() | states
)
trips = st.builds(
    lambda seconds: RouterReport("r1", trips=(Trip("cloud-b/qwen-chat@cccccccc", seconds, "x"),)), st.floats(0, 60)
)
plans = st.builds(
    lambda epoch, generation, phase, drained: Plan(epoch, generation, (FleetRegion("cloud-b", phase, "", drained),)),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from(["joining", "ready", "slow", "failed", "lost", "drained"]),
    st.booleans(),
)
events = st.lists(st.tuples(st.floats(0, 4), replicas | views | trips | plans), max_size=25)


def play(happened: list[tuple[float, object]]):  # type: ignore[no-untyped-def]
    """The core, then after each event: the time, the event and the snapshot."""
    made, now_s = core(), 0.0
    for wait_s, event in happened:
        now_s += wait_s
        if isinstance(event, ReplicaReport):
            made.replica(event, now_s)
        elif isinstance(event, PeerView):
            made.peers([event], now_s)
        elif isinstance(event, RouterReport):
            made.router(event, now_s)
        elif isinstance(event, Plan):
            made.plan(event, now_s)
        yield made, now_s, event, made.snapshot_for("r", now_s)


@given(events)
def test_snapshots_are_ordered_and_what_cannot_be_never_shows(happened: list[tuple[float, object]]) -> None:
    last = (0, 0)
    for _, _, _, snapshot in play(happened):
        order = (snapshot.epoch, snapshot.generation)
        assert order >= last
        last = order
        for target in snapshot.targets:
            assert 0.0 < target.weight <= 1.0
            for name in ("queue_wait_p95_ms", "oldest_wait_ms", "waiting", "running", "kv_cache_used_ratio"):
                value = getattr(target.load, name)
                assert value is None or 0 <= value < float("inf")


@given(events)
def test_a_peer_that_is_silent_is_never_offered_as_well(happened: list[tuple[float, object]]) -> None:
    view: PeerView | None = None
    for _, _, event, snapshot in play(happened):
        view = event if isinstance(event, PeerView) else view
        silent = view is not None and (view.silent_s is None or view.silent_s > 1.0)
        for target in snapshot.targets:
            if target.region == "cloud-b" and (view is None or silent):
                assert target.health in ("ejected", "unknown")


@settings(max_examples=30)
@given(events)
def test_asking_again_changes_nothing(happened: list[tuple[float, object]]) -> None:
    for made, now_s, _, snapshot in play(happened):
        again = made.snapshot_for("r", now_s)
        assert (again.epoch, again.generation, again.targets) == (
            snapshot.epoch,
            snapshot.generation,
            snapshot.targets,
        )
