"""The world of the autoscaling benchmark: waits, prompts, draining and costs that can be worked out by hand."""

from __future__ import annotations

import random

import pytest

from autoscale.latency_window import LatencyWindow
from benchmarks.autoscale_replica import Engine, Waits
from benchmarks.autoscale_seen import Metrics, Outcome, Seen
from benchmarks.autoscale_traces import Trace
from benchmarks.autoscale_world import World, capacity_rps

#: A prompt of 10 tokens takes 0.1 s, an answer of 10 tokens a second.
ENGINE = Engine(slots=2, admitted=4, prefill_tokens_s=100.0, decode_tokens_s=10.0, start_s=30.0, give_up_s=10.0)
METRICS = Metrics(interval_s=1.0, look_back_s=5.0)


def trace(at_s: list[float], span_s: float = 60.0, prompt: int = 10, output: int = 10) -> Trace:
    return Trace("hand", span_s, at_s, [prompt] * len(at_s), [output] * len(at_s))


def run(load: Trace, scale=lambda seen: 1, replicas: int = 1, engine: Engine = ENGINE) -> Outcome:
    return World(load, engine, METRICS, scale, 250.0).run(replicas)


def test_prompts_are_computed_one_after_another() -> None:
    # The second waits 0.1 s for the prompt of the first; that is not over target.
    assert run(trace([1.0, 1.0])).late_ratio == 0.0
    assert run(trace([1.0, 1.0], prompt=30)).late_ratio == 0.5


def test_answers_stand_still_while_a_prompt_is_computed() -> None:
    # The first answer ends at 2.1 + 0.1 for the second prompt; a third has its slot only then.
    world = World(trace([1.0, 1.5, 2.0]), ENGINE, METRICS, lambda seen: 1, 100.0)
    world.begun_s = []
    world.run(1)
    assert world.begun_s == pytest.approx([1.0, 1.5, 2.2])
    assert world.outcome.over == [1]


def test_more_than_slots_wait_and_those_who_wait_too_long_leave() -> None:
    outcome = run(trace([1.0] * 40))
    # Two slots, 1.2 s each: about 17 begin within ten seconds.
    assert 20 <= outcome.left <= 26
    assert outcome.over_ratio == 1.0


def test_a_replica_that_starts_serves_after_its_start_and_costs_from_its_order() -> None:
    wanted = {True: 2, False: 1}
    outcome = run(trace([1.0]), lambda seen: wanted[seen.now_s >= 10.0])
    assert outcome.steps == [(0.0, 1, 1), (10.0, 2, 1), (40.0, 2, 2)]
    assert outcome.gpu_s == pytest.approx(60.0 + 50.0)


def test_a_replica_that_goes_ends_what_it_has() -> None:
    # Both replicas have a long answer each; one goes at 5 s, and the answer that it has ends at about 21 s.
    outcome = run(trace([1.0, 1.0], output=200), lambda seen: 2 if seen.now_s < 5.0 else 1, replicas=2)
    assert outcome.left == 0 and outcome.late_ratio == 0.0
    assert outcome.gpu_s == pytest.approx(60.0 + 21.1, abs=0.2)


def test_those_that_start_go_first() -> None:
    outcome = run(trace([1.0]), lambda seen: {1.0: 1, 2.0: 3}.get(seen.now_s, 2), replicas=1)
    assert outcome.steps[1:4] == [(2.0, 3, 1), (3.0, 2, 1), (32.0, 2, 2)]


def test_what_an_autoscaler_sees_is_one_interval_old() -> None:
    seen: list[Seen] = []
    run(trace([1.5] * 6), lambda one: seen.append(one) or 1)
    by_time = {one.now_s: one for one in seen}
    assert by_time[2.0].reports == () or by_time[2.0].reports[0].ongoing_requests == 0
    third = by_time[3.0]
    # Four are admitted, two wait in the handle.
    assert (third.reports[0].ongoing_requests, third.age_s) == (4, 1.0)
    assert third.queued == pytest.approx(2 / 2) and third.ongoing == pytest.approx(6 / 2)
    assert by_time[10.0].arrivals_rps == pytest.approx(6 / 8)
    # The one who waits longest was sent at 1.5 s; three reports later nobody waits.
    assert third.reports[0].oldest_wait_ms == pytest.approx(500.0)
    assert by_time[20.0].reports[0].queue_wait_p95_ms is None


def test_a_new_replica_begins_the_aggregate_again() -> None:
    seen: list[Seen] = []
    run(trace([1.0, 1.0], output=1000), lambda one: seen.append(one) or 2)
    assert {one.now_s: one.ongoing for one in seen}[32.0] == 2.0


def test_its_window_is_the_production_window() -> None:
    chance = random.Random(1)
    waits, window, now_s = Waits(), LatencyWindow(), 0.0
    for _ in range(2000):
        now_s += chance.expovariate(1.0)
        ms = max(0.0, chance.gauss(0.0, 200.0))
        waits.waited(ms, now_s)
        window.waited(ms, now_s)
        if chance.random() < 0.5:
            now_s += chance.choice((0.1, 1.0, 12.0))
            found = window.read(now_s)
            assert waits.read(now_s)[:2] == (found.queue_wait_p50_ms, found.queue_wait_p95_ms)


def test_capacity_is_what_slots_and_prompts_allow() -> None:
    # Two slots: prompts take 0.1 s of the replica, and answers 1 s beside each other.
    assert capacity_rps(lambda: (10, 10), ENGINE) == pytest.approx(2 / 1.2, rel=0.02)
    # Prompts alone fill it.
    assert capacity_rps(lambda: (100, 1), ENGINE) == pytest.approx(1.0, rel=0.11)


def test_time_over_target_is_a_share_of_minutes() -> None:
    outcome = Outcome(sent=[20, 20, 0, 100], over=[1, 2, 0, 6])
    assert outcome.over_ratio == 0.5
    assert outcome.late_ratio == pytest.approx(9 / 140)
