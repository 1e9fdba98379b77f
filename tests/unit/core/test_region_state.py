"""A region's picture of the fleet: its own replicas, its peers' beats, the coordinator's plan, and what Routers see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_app.core import pick, preempt
from serve_app.core.preempt import Engine
from serve_app.core.region_state import RegionCore
from serve_app.core.reports import (
    FailedStart,
    Outcomes,
    PeerView,
    ProbeResult,
    RegionState,
    ReplicaReport,
    RouterReport,
    TargetReport,
    Trip,
)
from serve_app.core.scorers import default_weights
from serve_app.core.snapshots import Health, Load, Snapshot, Target
from serve_app.core.table import Tenant
from tests.region_fakes import CHAT, FACTS, THERE, agent, beat, core, plan, push, ready


def found(snapshot: Snapshot, region: str, name: str = "qwen-chat") -> Target:
    (target,) = [t for t in snapshot.targets if (t.region, t.agent) == (region, name)]
    return target


def seen(made: RegionCore, now_s: float, region: str = "cloud-b") -> tuple[str, str]:
    target = found(made.snapshot_for("r", now_s), region)
    return target.health, target.why


def test_before_any_report_the_own_targets_are_there_and_nothing_is_claimed() -> None:
    snapshot = core().snapshot_for("r", 0.0)
    assert [(t.id, t.health, t.load, t.weight) for t in snapshot.targets] == [
        ("cloud-a/qwen-chat@aaaaaaaa", "unknown", Load(), 1.0),
        ("cloud-a/qwen-doc@bbbbbbbb", "unknown", Load(), 1.0),
    ]
    assert (snapshot.epoch, snapshot.generation) == (7, 1)
    assert [(r.name, r.health, r.why) for r in snapshot.regions] == [
        ("cloud-a", "unknown", "qwen-chat--12345678 is unknown: starting: no replica has reported yet"),
        ("cloud-b", "unknown", "no beat yet"),
        ("edge-1", "unknown", "no beat yet"),
    ]


def test_replicas_without_room_are_told_to_everybody_until_they_have_it() -> None:
    made = core()
    made.replica(push(waiting=2), 0.0)
    before = made.snapshot_for("r", 0.0)
    made.room({CHAT.app: 2, "gone--99999999": 1}, {"edge-chat": "at most 1 replica, for qwen-chat"})
    after, state = made.snapshot_for("r", 0.1), made.own_state(0.1)
    # With its own load unchanged: Routers hear of it at once.
    assert after.generation > before.generation
    assert [(t.short, t.health, t.why) for t in after.targets] == [
        (True, "healthy", "wants 2 more than there is room for")
    ] * 2
    assert [t.missing for t in state.targets] == [2, 2]
    assert state.lowered == {"edge-chat": "at most 1 replica, for qwen-chat"}
    assert made.missing == {"qwen-chat": 2, "qwen-doc": 2}
    made.room({}, {})
    assert [(t.short, t.why) for t in made.snapshot_for("r", 0.2).targets] == [(False, "")] * 2
    assert (made.own_state(0.2).lowered, made.missing) == ({}, {"qwen-chat": 0, "qwen-doc": 0})


def test_a_peer_without_room_is_seen_so() -> None:
    made = core()
    made.peers([beat(0.1, replace(THERE, missing=1))], 0.0)
    assert found(made.snapshot_for("r", 0.0), "cloud-b").short
    made.peers([beat(0.1, THERE)], 0.1)
    assert not found(made.snapshot_for("r", 0.1), "cloud-b").short


@pytest.mark.parametrize(
    ("missing", "residency", "order"),
    [
        (1, {"any"}, ["cloud-b", "cloud-a"]),
        # While there is room for its replicas, so short a wait is not worth a way to another region.
        (0, {"any"}, ["cloud-a", "cloud-b"]),
        # What may only be here waits here, however long.
        (1, {"sg"}, ["cloud-a"]),
    ],
)
def test_what_would_wait_where_nobody_can_give_way_goes_to_another_region_that_may_have_it(
    missing: int, residency: set[str], order: list[str]
) -> None:
    """From a replica that is pending, over the beat that tells it, to the choice in both regions."""
    engine = Engine(
        app=CHAT.app, priority=1, min_replicas=1, max_replicas=2, needs={"GPU": 1.0}, placed=1, pending=missing
    )
    first = preempt.decide([engine], {"GPU": 0.0}, preempt.Memory(), 0.0)
    short = preempt.decide([engine], {"GPU": 0.0}, first.memory, preempt.PENDING_S).short
    here, there = core(), core(me="cloud-b")
    for now_s in (0.0, 0.1):
        here.replica(push(queue_wait_p95_ms=100.0, waiting=1, running=CHAT.slots), now_s)
        there.replica(push(queue_wait_p95_ms=0.0, waiting=0, running=0), now_s)
        here.room(short, {})
        here.peers([PeerView("cloud-b", 0.1, 12.0, there.own_state(now_s))], now_s)
        there.peers([PeerView("cloud-a", 0.1, 12.0, here.own_state(now_s))], now_s)
    tenant = Tenant("acme", (), frozenset(residency))
    for made, entry in ((here, "cloud-a"), (there, "cloud-b")):
        wish = pick.Wish(CHAT, tenant, "en", 10, preferred_cloud="cloud-a", region=entry)
        choice = pick.choose(made.snapshot_for("r", 0.1), wish, default_weights())
        assert [target.region for target in choice.order] == order


def test_agents_that_share_an_engine_share_its_load_and_health() -> None:
    made = core()
    made.replica(push(waiting=2, running=3), 0.0)
    snapshot = made.snapshot_for("r", 0.0)
    for name in ("qwen-chat", "qwen-doc"):
        target = found(snapshot, "cloud-a", name)
        assert (target.health, target.load, target.app) == ("healthy", Load(waiting=2, running=3), CHAT.app)


@pytest.mark.parametrize(
    ("pushed", "health", "before"),
    [(push(), "healthy", ""), (push(proven=False), "ejected", "no token from 1 replica; "), (None, "unknown", None)],
)
def test_what_fails_to_start_is_told_of_every_agent_of_its_engine(
    pushed: ReplicaReport | None, health: str, before: str | None
) -> None:
    one = core()
    if pushed is not None:
        one.replica(pushed, 0.0)
    one.failed_start(FailedStart(CHAT.app, "r2", "warm_up", "does not get warm"), 0.0)
    said = "starting: no replica has reported yet; " if before is None else before
    told = [(t.health, t.why) for t in one.own_state(0.0).targets]
    assert told == [(health, f"{said}a replica failed to start once: does not get warm")] * 2
    assert [t.why for t in one.refresh(0.0).targets] == [why for _, why in told]


def test_slots_are_those_of_the_replicas_that_give_tokens() -> None:
    made = core()
    made.replica(push(), 0.0)
    made.replica(replace(push(), replica="r2"), 0.0)
    made.replica(replace(push(proven=False), replica="r3"), 0.0)
    assert found(made.snapshot_for("r", 0.0), "cloud-a").slots == 2 * CHAT.slots


def test_what_the_last_start_took_is_known_of_an_engine_that_is_gone() -> None:
    made = core()
    assert found(made.snapshot_for("r", 0.0), "cloud-a").start_s is None
    made.replica(replace(push(), start_s=40.0), 0.0)
    made.replica(replace(push(), replica="r2", start_s=70.0), 1.0)
    made.replica(replace(push(), start_s=40.0), 1.5)
    gone = found(made.snapshot_for("r", 9.0), "cloud-a")
    assert (gone.health, gone.start_s) == ("stale", 70.0)


def test_a_slow_target_has_less_weight() -> None:
    made = core()
    made.replica(push(waiting=21), 0.0)
    target = found(made.snapshot_for("r", 0.0), "cloud-a")
    assert (target.health, target.weight, target.why) == ("slow", 0.3, "21 wait for 1 replica")


def test_a_peers_target_comes_with_the_federations_facts_and_our_own_round_trip() -> None:
    made = core()
    made.peers([beat()], 0.0)
    assert found(made.snapshot_for("r", 0.0), "cloud-b") == Target(
        region="cloud-b",
        cloud="cloud-b",
        agent="qwen-chat",
        app="qwen-chat--99999999",
        release="c" * 64,
        max_model_len=4096,
        slots=32,
        residency=frozenset({"eu"}),
        gpu_hour_usd=1.15,
        health="healthy",
        load=Load(waiting=1, network_ms=12.0),
    )


def test_a_silent_peer_is_out_at_once_with_the_reason() -> None:
    made = core()
    made.peers([beat(1.0)], 0.0)
    assert seen(made, 0.0) == ("healthy", "")
    made.peers([beat(1.2, fault="connection refused")], 0.2)
    assert seen(made, 0.2) == ("ejected", "peer silent for 1.2 s: connection refused")
    assert made.snapshot_for("r", 0.2).regions[1].health == "ejected"


def test_a_peer_that_is_back_comes_by_the_ramp() -> None:
    made = core()
    for now_s, silent_s in ((0.0, 0.1), (1.0, 1.2), (2.0, 0.1)):
        made.peers([beat(silent_s)], now_s)
        made.refresh(now_s)
    shares = []
    for now_s in (2.0, 12.0, 22.0):
        made.peers([beat()], now_s)
        shares.append(found(made.snapshot_for("r", now_s), "cloud-b").weight)
    assert shares == [pytest.approx(x) for x in (0.1, 0.55, 1.0)]


@pytest.mark.parametrize("planned", [True, False])
def test_a_peer_that_begins_anew_comes_by_the_ramp_from_when_it_is_ready(planned: bool) -> None:
    made = core()
    state = RegionState("cloud-b", "healthy", "", (THERE,))
    if planned:
        made.plan(plan(cloud_b=ready(state=state)), 0.0)
    anew = replace(THERE, health="unknown", why="no replica has reported yet")
    script = [
        (0.0, beat()),
        (1.0, beat(1.2)),
        # Its new gateway beats, and has no word of its RegionAgent yet; then its engine loads for a minute.
        (9.0, beat(0.1, state=None)),
        (10.0, beat(0.1, anew, state=replace(state, health="unknown", targets=(anew,)))),
        (70.0, beat(0.1, anew, state=replace(state, health="unknown", targets=(anew,)))),
    ]
    for now_s, view in script:
        made.peers([view], now_s)
        usable = [t.id for t in made.snapshot_for("r", now_s).targets if t.health in ("healthy", "slow")]
        assert usable == (["cloud-b/qwen-chat@cccccccc"] if now_s == 0.0 else [])
    shares = []
    for now_s in (71.0, 81.0, 91.0):
        made.peers([beat()], now_s)
        shares.append(found(made.snapshot_for("r", now_s), "cloud-b").weight)
    assert shares == [pytest.approx(x) for x in (0.1, 0.55, 1.0)]


def test_a_peer_that_was_seen_well_and_then_says_nothing_of_itself_comes_by_the_ramp() -> None:
    made = core()
    for now_s, health in ((0.0, "healthy"), (1.0, "unknown"), (2.0, "healthy")):
        made.peers([beat(0.1, replace(THERE, health=health))], now_s)
        made.refresh(now_s)
    assert found(made.snapshot_for("r", 2.0), "cloud-b").weight == pytest.approx(0.1)


def test_a_peer_that_starts_for_the_first_time_needs_no_ramp() -> None:
    made = core()
    for now_s, health in ((0.0, "unknown"), (60.0, "unknown"), (61.0, "healthy")):
        made.peers([beat(0.1, replace(THERE, health=health))], now_s)
        made.refresh(now_s)
    assert found(made.snapshot_for("r", 61.0), "cloud-b").weight == 1.0


def test_a_peer_of_which_nothing_was_heard_yet_from_here_needs_no_ramp() -> None:
    made = core()
    made.plan(plan(cloud_b=ready(state=RegionState("cloud-b", "healthy", "", (THERE,)))), 0.0)
    made.peers([PeerView("cloud-b", None)], 0.1)
    assert seen(made, 0.1)[0] == "unknown"
    made.peers([beat()], 0.4)
    assert found(made.snapshot_for("r", 0.4), "cloud-b").weight == 1.0


def test_a_gateway_of_our_own_that_tells_nothing_makes_backups_of_the_peers_and_no_ramp() -> None:
    made = core()
    made.peers([beat()], 0.0)
    assert seen(made, 3.0)[0] == "healthy"
    assert seen(made, 3.1) == ("stale", "the gateway here has told nothing for 3.1 s")
    made.peers([beat()], 3.2)
    target = found(made.snapshot_for("r", 3.2), "cloud-b")
    assert (target.health, target.weight) == ("healthy", 1.0)


def test_a_gateway_of_our_own_that_tells_nothing_takes_back_no_peer_that_was_silent_or_failed() -> None:
    made = core()
    made.peers([beat(1.2)], 0.0)
    assert seen(made, 9.0)[0] == "ejected"
    made.peers([beat()], 10.0)
    made.plan(plan(cloud_b=ready(phase="failed", why="no token for anyone")), 13.5)
    assert seen(made, 13.5)[0] == "ejected"


def test_a_process_that_stood_still_has_lost_neither_replicas_nor_peers() -> None:
    made = core()
    made.replica(push(), 0.0)
    made.peers([beat()], 0.0)
    made.plan(plan(cloud_b=ready()), 0.0)
    made.refresh(0.0)
    made.stood_still(30.0, 30.5)
    snapshot = made.snapshot_for("r", 30.5)
    assert {(t.health, t.weight) for t in snapshot.targets} == {("healthy", 1.0)}
    assert made.plan_age_s(30.5) == pytest.approx(0.5)
    # From now on silence counts again.
    assert {t.health for t in made.snapshot_for("r", 33.6).targets} == {"stale"}


def test_a_peer_whose_agent_is_silent_is_a_backup() -> None:
    made = core()
    state = RegionState("cloud-b", "healthy", "", (THERE,), age_s=4.0)
    made.peers([beat(state=state)], 0.0)
    assert seen(made, 0.0) == ("stale", "its report is 4.0 s old")
    made.configure(replace(made._facts, stale_s=4.0))
    assert seen(made, 0.0)[0] == "healthy"


def test_what_a_peer_says_of_its_targets_holds() -> None:
    made = core()
    made.peers([beat(0.1, replace(THERE, health="ejected", why="no token from 1 replica"))], 0.0)
    assert seen(made, 0.0) == ("ejected", "no token from 1 replica")


def test_a_report_in_the_name_of_another_region_is_none() -> None:
    made = core()
    forged = RegionState("edge-1", "healthy", "", (THERE,))
    made.peers([beat(state=forged), PeerView("moon", 0.1, 1.0, forged), PeerView("cloud-a", 0.1, 1.0, forged)], 0.0)
    snapshot = made.snapshot_for("r", 0.0)
    assert {t.region for t in snapshot.targets} == {"cloud-a"}
    assert (snapshot.regions[1].health, snapshot.regions[1].why) == (
        "unknown",
        "beats without a report: its report is in the name of edge-1",
    )


def test_the_coordinator_widens_a_failure_and_never_mends_one() -> None:
    made = core()
    made.peers([beat()], 0.0)
    made.plan(plan(cloud_b=ready(phase="failed", why="no token for anyone")), 0.0)
    assert seen(made, 0.0) == ("ejected", "coordinator: no token for anyone")
    made.peers([beat(1.5)], 1.0)
    made.plan(plan(2, cloud_b=ready()), 1.0)
    assert seen(made, 1.0) == ("ejected", "peer silent for 1.5 s")


def test_a_peer_that_only_the_coordinator_has_lost_stays() -> None:
    made = core()
    made.peers([beat()], 0.0)
    made.plan(plan(cloud_b=ready(phase="lost", why="3 heartbeats missed")), 0.0)
    assert seen(made, 0.0) == ("healthy", "")
    made.peers([beat(1.3)], 1.0)
    assert seen(made, 1.0) == ("ejected", "peer silent for 1.3 s; the coordinator has lost it too")


def test_a_plan_that_nobody_confirms_changes_nothing_for_fresh_beats() -> None:
    made = core()
    made.plan(plan(cloud_b=ready(phase="failed")), 0.0)
    made.peers([beat()], 3.0)
    assert seen(made, 3.0)[0] == "ejected"
    made.peers([beat()], 3.1)
    assert seen(made, 3.1)[0] == "healthy"
    assert made.plan_age_s(3.1) == 3.1


def test_a_drain_outlives_the_coordinator() -> None:
    made = core()
    made.plan(plan(cloud_a=ready(drained=True), cloud_b=ready(drained=True, accepts_spill=False)), 0.0)
    made.peers([beat()], 100.0)
    snapshot = made.snapshot_for("r", 100.0)
    assert [found(snapshot, r).drained for r in ("cloud-a", "cloud-b")] == [True, True]
    assert [r.drained for r in snapshot.regions] == [True, True, False]
    assert found(snapshot, "cloud-b").accepts_spill is False


@pytest.mark.parametrize("older", [(5, 2), (4, 9)])
def test_an_older_plan_is_not_taken(older: tuple[int, int]) -> None:
    made = core()
    assert made.plan(plan(3, cloud_a=ready(drained=True)), 0.0)
    assert not made.plan(plan(older[1], older[0], cloud_a=ready()), 1.0)
    assert made.plan(plan(3, cloud_a=ready(drained=True)), 2.0)
    assert found(made.snapshot_for("r", 2.0), "cloud-a").drained
    assert made.plan_age_s(2.0) == 0.0


def test_what_serves_another_release_than_the_plan_says_has_drifted() -> None:
    made = core()
    made.peers([beat()], 0.0)
    made.plan(replace(plan(), expected={("cloud-b", "qwen-chat"): "f" * 64, ("cloud-a", "qwen-chat"): "a" * 64}), 0.0)
    snapshot = made.snapshot_for("r", 0.0)
    there = found(snapshot, "cloud-b")
    assert (there.drifted, there.why) == (True, f"serves release {'c' * 12}, the plan says {'f' * 12}")
    assert not found(snapshot, "cloud-a").drifted


def test_a_region_that_is_on_its_way_to_the_plans_revision_has_not_drifted() -> None:
    made = core()
    made.peers([beat()], 0.0)
    expected = {("cloud-b", "qwen-chat"): "f" * 64, ("cloud-a", "qwen-chat"): "f" * 64}
    made.plan(replace(plan(), revision="r2", expected=expected), 0.0)
    assert [t.drifted for t in made.snapshot_for("r", 0.0).targets] == [False, False, False]
    made.revision = "r2"
    assert found(made.snapshot_for("r", 0.0), "cloud-a").drifted


def test_a_region_without_beats_is_known_from_the_plan_and_not_used() -> None:
    made = core()
    state = RegionState("cloud-b", "healthy", "", (THERE,))
    made.plan(plan(cloud_b=ready(state=state)), 0.0)
    assert seen(made, 0.0) == ("unknown", "no beat yet")


def test_an_edge_accepts_no_spill() -> None:
    made = core()
    state = RegionState("edge-1", "healthy", "", (THERE,))
    made.peers([PeerView("edge-1", 0.1, 80.0, state)], 0.0)
    assert found(made.snapshot_for("r", 0.0), "edge-1").accepts_spill is False


def test_a_trip_of_one_router_is_in_the_snapshot_of_all_and_its_end_is_a_ramp() -> None:
    made = core()
    made.peers([beat()], 0.0)
    target = found(made.snapshot_for("r1", 0.0), "cloud-b").id
    made.router(RouterReport("r1", {target: Outcomes(0, 10)}, trips=(Trip(target, 30.0, "10 failures"),)), 0.0)
    snapshot = made.snapshot_for("r2", 0.0)
    assert (snapshot.open_for_s, snapshot.lent) == ({target: 30.0}, frozenset())
    assert found(snapshot, "cloud-b").breaker == "open"
    made.peers([beat()], 31.0)
    half = made.snapshot_for("r2", 31.0)
    assert (found(half, "cloud-b").breaker, half.lent) == ("probing", frozenset({target}))
    assert made.snapshot_for("r1", 31.0).lent == frozenset()
    made.router(RouterReport("r2", probes=(ProbeResult(target, passed=True),)), 31.5)
    closed = found(made.snapshot_for("r1", 31.5), "cloud-b")
    assert (closed.breaker, closed.weight) == ("closed", 0.1)


def test_spilled_requests_are_told_to_the_engine_that_was_wanted() -> None:
    made = core()
    report = RouterReport(
        "r1", wanted_spilled={"qwen-chat": 20, "qwen-doc": 10, "embed": 5}, spilled_to={"cloud-b": 35}
    )
    made.router(report, 0.0)
    assert made.replica(push(), 1.0) == 3.0
    assert made.replica(push(app="embed--00000000"), 1.0) == 0.0
    assert made.own_state(1.0).spilled_rps == {"cloud-b": 3.5}
    assert made.replica(push(), 10.1) == 0.0


def test_the_own_summary() -> None:
    made = core()
    made.revision = "abc"
    made.replica(push(waiting=1, running=2), 0.0)
    state = made.own_state(0.0)
    assert (state.region, state.health, state.why, state.revision) == ("cloud-a", "healthy", "", "abc")
    assert state.targets[1] == TargetReport(
        "qwen-doc", CHAT.app, "b" * 64, "e" * 64, "healthy", "", 1, 4, 1000, Load(waiting=1, running=2)
    )


@pytest.mark.parametrize(
    ("chat", "doc", "health"),
    [
        ({"proven": False}, {"proven": False}, "ejected"),
        ({"proven": False}, {}, "healthy"),
        ({"waiting": 50}, {"proven": False}, "slow"),
        ({"waiting": 50}, {}, "healthy"),
    ],
)
def test_a_regions_health_is_its_best_engines(chat: dict[str, Any], doc: dict[str, Any], health: str) -> None:
    made = core(agents={"qwen-chat": CHAT, "qwen-doc": agent("qwen-doc")})
    made.replica(push(**chat), 0.0)
    made.replica(push(app="qwen-doc--12345678", **doc), 0.0)
    assert made.own_state(0.0).health == health


def test_late_reports_beside_an_engine_that_never_reported_are_a_backup_and_no_ejection() -> None:
    made = core(agents={"qwen-chat": CHAT, "qwen-doc": agent("qwen-doc")})
    made.replica(push(), 0.0)
    assert made.own_state(3.5).health == "stale"


@pytest.mark.parametrize(
    ("region", "target", "shown"),
    [
        ("stale", "healthy", "stale"),
        ("stale", "unknown", "unknown"),
        ("stale", "ejected", "ejected"),
        ("unknown", "healthy", "unknown"),
        ("unknown", "stale", "unknown"),
        ("unknown", "ejected", "ejected"),
        ("ejected", "healthy", "ejected"),
        ("slow", "healthy", "healthy"),
    ],
)
def test_the_worse_of_a_peer_and_its_target_counts(region: Health, target: Health, shown: Health) -> None:
    made = core()
    state = RegionState("cloud-b", region, "as a whole", (replace(THERE, health=target, why="itself"),))
    made.peers([beat(state=state)], 0.0)
    assert seen(made, 0.0) == (shown, "itself" if shown == target else "as a whole")


def test_the_generation_grows_at_once_when_something_turns() -> None:
    made = core()
    first = made.snapshot_for("r", 0.0)
    made.replica(push(), 0.01)
    second = made.snapshot_for("r", 0.01)
    made.replica(push(proven=False), 0.02)
    third = made.snapshot_for("r", 0.02)
    assert [s.generation for s in (first, second, third)] == [1, 2, 3]


def test_numbers_alone_wait_for_300_ms_and_must_differ_enough() -> None:
    made = core()
    made.replica(push(queue_wait_p95_ms=10.0), 0.0)
    assert made.snapshot_for("r", 0.0).generation == 1
    made.replica(push(queue_wait_p95_ms=100.0), 0.1)
    assert made.snapshot_for("r", 0.29).generation == 1
    changed = made.snapshot_for("r", 0.3)
    assert (changed.generation, changed.targets[0].load.queue_wait_p95_ms) == (2, 100.0)
    made.replica(push(queue_wait_p95_ms=101.0), 1.0)
    assert made.snapshot_for("r", 2.0).generation == 2


def test_a_router_that_has_seen_a_later_epoch_gets_one_that_is_later_still() -> None:
    made = core()
    assert made.snapshot_for("r", 0.0).epoch == 7
    made.outrank((7, 1))
    assert made.snapshot_for("r", 0.0).epoch == 7
    # One that began in the same second as the one before it.
    made.outrank((7, 57))
    assert made.snapshot_for("r", 0.0).epoch == 8
    made.outrank((3600, 1))
    assert made.snapshot_for("r", 0.0).epoch == 3601


def test_a_region_that_left_the_federation_is_forgotten_and_the_rest_is_not() -> None:
    made = core()
    made.replica(push(), 0.0)
    made.peers([beat()], 0.0)
    left = {name: facts for name, facts in FACTS.regions.items() if name != "cloud-b"}
    made.configure(replace(FACTS, regions=left))
    snapshot = made.snapshot_for("r", 0.0)
    assert ([t.region for t in snapshot.targets], made.views(0.0)) == (["cloud-a", "cloud-a"], {})
    assert snapshot.targets[0].health == "healthy"


def test_an_engine_is_idle_when_its_replicas_say_so_or_are_gone() -> None:
    made = core()
    made.replica(push(waiting=0, running=1), 0.0)
    assert [made.is_idle(CHAT.app, t) for t in (0.0, 20.0)] == [False, True]
    made.replica(push(waiting=0, running=0), 30.0)
    assert made.is_idle(CHAT.app, 30.0)


def test_no_data_is_not_idle() -> None:
    made = core()
    made.replica(push(waiting=0, running=0), 0.0)
    # A report that is late may have work by now, until nobody can be there any more.
    assert [made.is_idle(CHAT.app, t) for t in (3.0, 3.1, 10.0, 10.1)] == [True, False, False, True]
    made.replica(push(running=0), 20.0)
    assert not made.is_idle(CHAT.app, 20.0)
    made.replica(push(waiting=0, running=0), 21.0)
    made.replica(replace(push(waiting=0, running=1), replica="r2"), 21.0)
    assert not made.is_idle(CHAT.app, 21.0)
    # A RegionAgent that begins anew has not heard of anybody yet.
    assert [made.is_idle("embed--00000000", t) for t in (30.0, 40.0, 40.1)] == [False, False, True]


def test_what_a_peers_report_does_not_change_is_used_again() -> None:
    made = core()
    made.peers([beat(network_ms=12.0)], 0.0)
    first = found(made.snapshot_for("r", 0.0), "cloud-b")
    made.peers([beat(network_ms=12.3)], 0.3)
    assert found(made.snapshot_for("r", 1.0), "cloud-b") is first
    made.plan(plan(cloud_b=ready(drained=True)), 1.0)
    assert found(made.snapshot_for("r", 1.0), "cloud-b").drained


def test_a_breaker_that_opens_or_ends_is_seen_without_another_report() -> None:
    made = core()
    made.peers([beat()], 0.0)
    target = found(made.snapshot_for("r", 0.0), "cloud-b").id
    made.router(RouterReport("r", trips=(Trip(target, 2.0, "x"),)), 0.1)
    states = [found(made.snapshot_for("r", t), "cloud-b").breaker for t in (0.1, 2.0, 2.2)]
    assert states == ["open", "open", "probing"]


def test_a_ratio_that_is_none_is_published_all_the_same() -> None:
    made = core()
    made.replica(push(kv_cache_used_ratio=1.7e308), 0.0)
    assert made.snapshot_for("r", 0.0).targets[0].load.kv_cache_used_ratio == 1.7e308
