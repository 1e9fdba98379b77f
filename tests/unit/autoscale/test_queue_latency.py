"""One decision: which trigger holds, how far a step goes, and what is no evidence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from autoscale.load import COMPUTED_MS, STALE_S
from autoscale.queue_latency import Memory, ReplicaLoad, decide
from tests.unit.autoscale.loads import PARAMETERS, QUIET, load, parameters, replica

BUSY = replica(ongoing_requests=16.0, started_rps=2.0)


def said(*args: Any) -> tuple[int, str]:
    decision = decide(*args)
    return decision.replicas, decision.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"queue_wait_p95_ms": 251.0}, "queue_wait"),
        ({"oldest_wait_ms": 251.0}, "queue_wait"),
        ({"kv_cache_used_ratio": 0.86}, "kv_cache"),
        ({"offered_spilled_rps": 0.3}, "spilled"),
    ],
)
def test_each_trigger_alone_asks_for_one_more_at_once(changes: dict[str, float], reason: str) -> None:
    one = replica(ongoing_requests=16.0, started_rps=2.0, **changes)
    assert said(load(one, ongoing_requests=16.0), PARAMETERS) == (2, reason)


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_wait_p95_ms": 250.0},
        {"oldest_wait_ms": 250.0},
        {"kv_cache_used_ratio": 0.85},
        {"offered_spilled_rps": 0.1},
    ],
)
def test_at_the_threshold_nothing_happens(changes: dict[str, float]) -> None:
    one = replica(ongoing_requests=16.0, started_rps=2.0, **changes)
    assert said(load(one, ongoing_requests=16.0), PARAMETERS) == (1, "steady")


def test_without_a_trigger_its_metric_is_only_shown() -> None:
    none = parameters(queue_above_ms=None, kv_above_ratio=None)
    one = replica(ongoing_requests=16.0, oldest_wait_ms=9e5, queue_wait_p95_ms=9e5, kv_cache_used_ratio=1.0)
    assert said(load(one, ongoing_requests=16.0, queued_requests=90.0), none) == (1, "steady")


@pytest.mark.parametrize(("wait_ms", "wanted"), [(300.0, 11), (3000.0, 11), (9000.0, 13), (30_000.0, 20), (9e6, 20)])
def test_a_step_is_as_far_as_the_wait_is_long_and_at_most_double(wait_ms: float, wanted: int) -> None:
    ten = [replica(ongoing_requests=20.0, oldest_wait_ms=wait_ms)] * 10
    assert said(load(*ten, ongoing_requests=200.0), parameters(max_replicas=99)) == (wanted, "queue_wait")


def test_what_was_ordered_a_moment_ago_is_not_multiplied() -> None:
    waiting = [replica(ongoing_requests=40.0, oldest_wait_ms=30_000.0)] * 2
    memory = None
    for tick in range(50):
        seen = load(*waiting, ongoing_requests=80.0, target_replicas=4 if tick else 2, now_s=1000.0 + tick / 10)
        decision = decide(seen, PARAMETERS, memory)
        memory = decision.memory
        assert (decision.replicas, decision.reason) == (4, "queue_wait")


def test_the_most_that_is_allowed_is_said_to_be_the_most() -> None:
    eight = [replica(ongoing_requests=40.0, oldest_wait_ms=900.0)] * 8
    assert said(load(*eight, ongoing_requests=320.0), PARAMETERS) == (8, "at_max")


def test_a_bound_that_was_lowered_below_what_is_wanted_holds() -> None:
    eight = [replica(ongoing_requests=40.0, oldest_wait_ms=900.0)] * 8
    assert said(load(*eight, ongoing_requests=320.0), parameters(max_replicas=3)) == (3, "at_max")


def test_a_queue_before_full_replicas_is_seen_although_nobody_measures_it() -> None:
    silent = load(BUSY, replicas=(), ongoing_requests=80.0, queued_requests=16.0)
    first = decide(silent, PARAMETERS)
    assert (first.replicas, first.reason) == (1, "no_data")
    later = load(BUSY, replicas=(), ongoing_requests=80.0, queued_requests=16.0, now_s=1000.3)
    assert said(later, PARAMETERS, first.memory) == (2, "handle_queue")


def test_a_queue_whose_callers_left_adds_nothing() -> None:
    memory = Memory(queued_since_s=990.0)
    assert said(load(QUIET, ongoing_requests=60.0, queued_requests=60.0), PARAMETERS, memory) == (1, "steady")
    assert decide(load(QUIET, queued_requests=0.4), PARAMETERS, memory).memory.queued_since_s is None


def test_waits_add_nothing_while_a_replica_is_free() -> None:
    old = replica(ongoing_requests=60.0, oldest_wait_ms=4000.0, queue_wait_p95_ms=4000.0)
    assert said(load(old, QUIET, ongoing_requests=60.0), PARAMETERS) == (2, "uneven")
    for busy in ({"ongoing_requests": 16.0}, {"oldest_wait_ms": COMPUTED_MS}, {"ongoing_requests": None}):
        assert said(load(old, replica(**busy), ongoing_requests=76.0), PARAMETERS) == (3, "queue_wait")


def test_a_prompt_that_is_computed_is_no_wait_until_it_takes_too_long() -> None:
    computing = replica(ongoing_requests=15.0, oldest_wait_ms=COMPUTED_MS - 1)
    assert said(load(computing, ongoing_requests=15.0), PARAMETERS) == (1, "steady")
    stuck = replica(ongoing_requests=1.0, oldest_wait_ms=COMPUTED_MS)
    assert said(load(stuck, ongoing_requests=1.0), PARAMETERS) == (2, "queue_wait")


@pytest.mark.parametrize(("spilled", "started", "wanted"), [(0.1, 2.0, 1), (0.5, 2.0, 2), (9.0, 2.0, 2), (1.0, 0.0, 2)])
def test_what_went_elsewhere_is_load_of_this_region(spilled: float, started: float, wanted: int) -> None:
    one = replica(offered_spilled_rps=spilled, started_rps=started, ongoing_requests=12.0)
    assert decide(load(one, ongoing_requests=12.0), PARAMETERS).replicas == wanted


def test_spilled_requests_are_told_by_each_replica_and_counted_once() -> None:
    ten = [replica(offered_spilled_rps=4.0, started_rps=2.0, ongoing_requests=12.0)] * 10
    assert said(load(*ten, ongoing_requests=120.0), parameters(max_replicas=99)) == (12, "spilled")


@pytest.mark.parametrize(("ongoing", "wanted"), [(10.7, 2), (21.3, 2), (21.4, 3), (32.0, 3), (900.0, 3)])
def test_headroom_is_kept_free_before_anybody_waits(ongoing: float, wanted: int) -> None:
    two = [replica(ongoing_requests=ongoing / 2, started_rps=1.0)] * 2
    assert decide(load(*two, ongoing_requests=ongoing), parameters(headroom_ratio=0.5)).replicas == wanted


@pytest.mark.parametrize(
    ("ongoing", "wanted"), [(0.0, 1), (12.8, 1), (51.2, 4), (52.0, 5), (64.0, 5), (76.8, 6), (89.6, 7), (89.7, 8)]
)
def test_down_to_what_carries_the_load_with_some_to_spare(ongoing: float, wanted: int) -> None:
    eight = [replica(ongoing_requests=ongoing / 8, started_rps=1.0)] * 8
    assert decide(load(*eight, ongoing_requests=ongoing), PARAMETERS).replicas == wanted


@pytest.mark.parametrize(("step_down", "wanted"), [(0.0, 1), (0.5, 4), (0.51, 5), (0.9, 8)])
def test_a_step_down_leaves_as_many_as_it_has_to(step_down: float, wanted: int) -> None:
    eight = [replica(started_rps=1.0)] * 8
    assert decide(load(*eight), parameters(step_down_ratio=step_down)).replicas == wanted


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_wait_p50_ms": 50.0},
        {"queue_wait_p95_ms": 50.0},
        {"oldest_wait_ms": 60.0, "ongoing_requests": 16.0},
        {"kv_cache_used_ratio": 0.8},
    ],
)
def test_what_is_not_quiet_keeps_all(changes: dict[str, float]) -> None:
    both = replica(**{"started_rps": 1.0, **changes})
    assert said(load(both, both), PARAMETERS) == (2, "steady")


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_wait_p50_ms": 49.0, "queue_wait_p95_ms": 249.0},
        {"queue_wait_p50_ms": 49.0, "queue_wait_p95_ms": 9000.0},
        {"oldest_wait_ms": 1000.0, "ongoing_requests": 2.0},
        {"offered_spilled_rps": 0.05},
    ],
)
def test_one_long_prompt_or_one_request_elsewhere_does_not_end_the_quiet(changes: dict[str, float]) -> None:
    both = replica(**{"started_rps": 1.0, **changes})
    assert said(load(both, both, ongoing_requests=4.0), PARAMETERS) == (1, "quiet")


def test_the_quiet_period_ends_with_what_its_busiest_moment_needed() -> None:
    memory = None
    for second, ongoing in ((0, 0.0), (20, 35.0), (40, 0.0), (1000, 0.0)):
        four = [replica(ongoing_requests=ongoing / 4, started_rps=1.0)] * 4
        decision = decide(load(*four, ongoing_requests=ongoing, now_s=1000.0 + second), PARAMETERS, memory)
        memory = decision.memory
    assert (decision.replicas, decision.reason) == (3, "quiet")


def test_what_the_average_still_tells_when_it_becomes_quiet_is_no_moment_of_it() -> None:
    memory = None
    for second, ongoing in ((0, 35.0), (5, 20.0), (10, 0.0), (11, 0.0)):
        four = [replica(ongoing_requests=0.0, started_rps=1.0)] * 4
        decision = decide(load(*four, ongoing_requests=ongoing, now_s=1000.0 + second), PARAMETERS, memory)
        memory = decision.memory
    assert (decision.replicas, decision.reason) == (1, "quiet")


def test_a_peak_of_before_the_quiet_period_does_not_count() -> None:
    four = [replica(started_rps=1.0)] * 4
    memory = decide(load(*four, ongoing_requests=35.0), PARAMETERS).memory
    assert memory.quiet_peak == 3
    loud = [replica(started_rps=1.0, queue_wait_p50_ms=100.0)] * 4
    memory = decide(load(*loud, ongoing_requests=35.0), PARAMETERS, memory).memory
    assert memory.quiet_target is None
    assert decide(load(*four, ongoing_requests=1.0), PARAMETERS, memory).replicas == 1


def test_the_last_replica_goes_only_where_none_are_allowed_and_nothing_was_asked() -> None:
    none = parameters(min_replicas=0)
    assert said(load(QUIET), none) == (0, "quiet")
    assert said(load(QUIET), PARAMETERS) == (1, "steady")
    assert said(load(replica(started_rps=0.1)), none) == (1, "steady")
    assert said(load(replica(ongoing_requests=1.0)), none) == (1, "steady")
    assert said(load(QUIET, queued_requests=1.0), none) == (1, "steady")


def test_who_only_asks_for_health_keeps_no_replica_awake() -> None:
    none = parameters(min_replicas=0)
    assert said(load(QUIET, ongoing_requests=0.3), none) == (0, "quiet")
    assert said(load(replica(ongoing_requests=None), ongoing_requests=0.3), none) == (1, "steady")


@pytest.mark.parametrize(
    ("target", "ongoing", "queued", "expected"),
    [
        (0, 0.0, 0.0, (0, "asleep")),
        (0, 3.0, 3.0, (1, "wake")),
        (0, 0.0, 1.0, (1, "wake")),
        (0, None, None, (0, "asleep")),
        (0, math.nan, 2.0, (1, "wake")),
        (2, 9.0, 9.0, (2, "starting")),
        (1, 0.0, 0.0, (1, "starting")),
    ],
)
def test_without_replicas(target: int, ongoing: float | None, queued: float | None, expected: tuple[int, str]) -> None:
    asleep = load(
        replicas=(), running_replicas=0, target_replicas=target, ongoing_requests=ongoing, queued_requests=queued
    )
    assert said(asleep, parameters(min_replicas=0)) == expected


def test_an_agent_that_must_not_sleep_is_woken_without_a_request() -> None:
    assert said(load(replicas=(), running_replicas=0, target_replicas=0), PARAMETERS) == (1, "asleep")


BAD: list[ReplicaLoad] = [
    replica(age_s=STALE_S + 0.1),
    replica(age_s=3600.0),
    replica(age_s=-1.0),
    replica(age_s=math.nan),
    replica(oldest_wait_ms=math.nan),
    replica(queue_wait_p95_ms=-5.0),
    replica(queue_wait_p95_ms=math.inf, oldest_wait_ms=9000.0),
    replica(kv_cache_used_ratio=85.0),
    replica(offered_spilled_rps=-1.0),
    replica(ongoing_requests=math.nan),
    replica(oldest_wait_ms=None),
    replica(started_rps=None),
]


@pytest.mark.parametrize("bad", BAD)
def test_a_replica_without_sane_fresh_data_stops_the_way_down_and_nothing_else(bad: ReplicaLoad) -> None:
    assert said(load(QUIET, bad), PARAMETERS) == (2, "no_data")
    waiting, full = replica(ongoing_requests=16.0, oldest_wait_ms=900.0), replace(bad, ongoing_requests=16.0)
    assert said(load(waiting, full, ongoing_requests=32.0), PARAMETERS) == (3, "queue_wait")


def test_a_replica_that_tells_nothing_at_all_is_missed() -> None:
    assert said(load(QUIET, running_replicas=2, target_replicas=2), PARAMETERS) == (2, "no_data")


@pytest.mark.parametrize("ongoing", [None, math.nan, -4.0, math.inf])
def test_without_the_sum_of_requests_nobody_goes(ongoing: float | None) -> None:
    assert said(load(ongoing_requests=ongoing), PARAMETERS) == (2, "no_data")


def test_a_clock_set_back_forgets_what_is_still_to_come() -> None:
    memory = Memory(queued_since_s=5000.0)
    waiting = load(BUSY, ongoing_requests=40.0, queued_requests=8.0)
    decision = decide(waiting, PARAMETERS, memory)
    assert (decision.replicas, decision.memory.queued_since_s) == (1, 1000.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"min_replicas": 9},
        {"min_replicas": -1},
        {"min_replicas": 0, "max_replicas": 0},
        {"slots_per_replica": 0},
        {"queue_below_ms": 250.0},
        {"queue_above_ms": math.nan},
        {"queue_above_ms": -1.0},
        {"kv_below_ratio": 0.9},
        {"headroom_ratio": -0.1},
        {"spare_ratio": math.inf},
        {"step_up_ratio": 1.0},
        {"step_down_ratio": 1.0},
    ],
)
def test_parameters_that_contradict_each_other_are_none(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"{'max' if 'max_replicas' in changes else next(iter(changes))}"):
        parameters(**changes)
