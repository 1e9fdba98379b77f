"""Whatever happens to the coordinator in whatever order: plans only move on, phases only with a trace, drains stay."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.fleet import Fleet
from serve_app.core.fleet_events import (
    Apply,
    Audit,
    Drain,
    Event,
    Facts,
    KnownRegion,
    LinkClosed,
    LinkOpened,
    Persist,
    Reported,
    Restore,
    SendPlan,
    Tick,
    Wanted,
)
from serve_app.core.reports import PeerView, RegionState
from serve_app.core.snapshots import Health

NAMES = ("a", "b", "c", "unknown")
names = st.sampled_from(NAMES)
links = st.integers(0, 3)
seconds = st.none() | st.floats(0, 30)
wanteds = st.builds(
    lambda some, revision: Wanted(tuple(KnownRegion(n) for n in some), revision=revision),
    st.lists(st.sampled_from(NAMES[:3]), min_size=1, max_size=3, unique=True),
    st.sampled_from(["", "r1", "r2"]),
)
states = st.builds(lambda name, health: RegionState(name, health, "why"), names, st.sampled_from(get_args(Health)))
views = st.builds(PeerView, names, seconds, fault=st.sampled_from(["", "refused"]))
orders = st.tuples(st.integers(0, 5000), st.integers(0, 50))
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(LinkOpened, names, links),
    st.builds(
        Reported,
        names,
        links,
        st.integers(0, 9),
        st.none() | states,
        st.none() | st.just(()),
        st.lists(views, max_size=3).map(tuple),
        orders,
    ),
    st.builds(LinkClosed, names, links),
    st.just(Tick()),
    st.builds(Drain, st.just("ops"), names, st.booleans()),
    st.builds(Apply, st.just("ops"), wanteds, st.booleans()),
    st.builds(
        Restore,
        st.just("ops"),
        st.builds(Facts, st.integers(0, 5000), st.dictionaries(st.sampled_from(NAMES[:3]), st.just("ops"))),
        wanteds,
    ),
)
scripts = st.lists(st.tuples(events, st.floats(0, 5)), max_size=40)


@given(wanteds, st.dictionaries(st.sampled_from(NAMES[:3]), st.just("before")), scripts)
def test_any_interleaving_moves_plans_on_and_leaves_a_trace(
    wanted: Wanted, drains: dict[str, str], script: list[tuple[Event, float]]
) -> None:
    fleet = Fleet(wanted, Facts(10, drains), 0.0)
    now_s, last, told = 0.0, (10, 0), {n: m.shown.phase for n, m in fleet.members.items()}
    for event, passed_s in script:
        now_s += passed_s
        effects = fleet.handle(event, now_s)
        for effect in effects:
            if isinstance(effect, SendPlan):
                assert effect.plan.order > last
                assert effect.plan.generation > last[1]
                last = effect.plan.order
        traced = {(e.region, e.before, e.after) for e in effects if isinstance(e, Audit) and e.what == "phase"}
        phases = {n: m.shown.phase for n, m in fleet.members.items()}
        for name in phases.keys() & told.keys():
            assert phases[name] == told[name] or (name, told[name], phases[name]) in traced
        told = phases
        stored = [e.facts for e in effects if isinstance(e, Persist)]
        assert not stored or stored[-1] == fleet.facts


@given(scripts)
def test_drained_never_comes_back_by_itself(script: list[tuple[Event, float]]) -> None:
    fleet = Fleet(Wanted(tuple(KnownRegion(n) for n in "abc")), Facts(10, {"a": "ops"}), 0.0)
    now_s = 0.0
    for event, passed_s in script:
        now_s += passed_s
        if isinstance(event, Restore) or event == Drain("ops", "a", back=True):
            continue
        if isinstance(event, Apply) and "a" not in {r.name for r in event.wanted.regions}:
            continue
        for effect in fleet.handle(event, now_s):
            if isinstance(effect, SendPlan):
                shown = next(r for r in effect.plan.regions if r.name == "a")
                assert (shown.phase, shown.drained) == ("drained", True)
        assert fleet.facts.drains["a"] == "ops"
