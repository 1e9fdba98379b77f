"""A replica's load from its calls and its engine's steps: what is known when, and who counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

from autoscale.load import ReplicaLoad
from deployments.engine_load import EngineLoad
from serve_app.core.snapshots import Load
from serve_app.ports import Body, Failure, Head, Tail


@dataclass
class Call:
    entered_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    sent_s: float | None = None
    queue_until_s: float = math.inf
    priority: int = 100
    width: int = 1
    begun: bool = False
    given_up: int = 0

    def give_up(self) -> None:
        self.given_up += 1


def step(waiting: int = 0, running: int = 1, skipped: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        num_waiting_reqs=waiting, num_skipped_waiting_reqs=skipped, num_running_reqs=running, kv_cache_usage=0.25
    )


def test_before_the_first_step_the_scheduler_is_unknown() -> None:
    assert EngineLoad().read(100.0, idle=False) == Load(oldest_wait_ms=0.0)


def test_an_engine_without_work_has_nothing_whatever_its_last_step_said() -> None:
    load = EngineLoad()
    load.stepped(step(waiting=2, running=3), 99.0)
    busy, idle = load.read(100.0, idle=False), load.read(100.0, idle=True)
    assert (busy.waiting, busy.running, busy.kv_cache_used_ratio) == (2, 3, 0.25)
    assert (idle.waiting, idle.running, idle.kv_cache_used_ratio) == (0, 0, 0.0)


def test_waits_are_known_with_the_first_token() -> None:
    load, call = EngineLoad(), Call(99.0)
    load.entered(call)
    assert load.read(100.0, idle=False).oldest_wait_ms == 1000.0
    call.scheduled_s = 99.5
    assert load.read(100.0, idle=False).oldest_wait_ms == 0.0
    call.first_token_s = 99.75
    load.heard(call, (Head(), Body(b"x")), 100.0)
    load.heard(call, (Body(b"y"),), 100.1)
    reading = load.read(100.1, idle=False)
    assert (reading.queue_wait_p95_ms, reading.first_token_p95_ms, reading.error_ratio) == (500.0, 750.0, None)


def test_failures_count_and_refusals_do_not() -> None:
    load = EngineLoad()
    for failure in (None, Failure("upstream_failed", "x"), Failure("bad_request", "x"), Failure("context_length", "x")):
        call = Call(99.0)
        load.entered(call)
        load.heard(call, (Tail("failed" if failure else "success", failure=failure),), 100.0)
        load.left(call)
    assert load.read(100.0, idle=True).error_ratio == 0.25


def test_who_left_without_a_token_waits_no_longer_and_says_nothing() -> None:
    load, call = EngineLoad(), Call(90.0)
    load.entered(call)
    load.left(call)
    assert load.read(100.0, idle=True) == Load(oldest_wait_ms=0.0, waiting=0, running=0, kv_cache_used_ratio=0.0)


def queued(*calls: Call) -> EngineLoad:
    """Calls that the engine has, some steps after they came: at 100.0."""
    load = EngineLoad()
    for call in calls:
        load.entered(call)
    load.stepped(step(), 99.9)
    return load


def sent(at_s: float = 90.0, **changes: object) -> Call:
    return Call(at_s - 0.1, sent_s=at_s, queue_until_s=100.0, **changes)  # type: ignore[arg-type]


def test_who_waits_in_the_engine_for_longer_than_its_limit_is_given_up_once() -> None:
    runs, waits = sent(90.0), sent(91.0)
    load = queued(runs, waits)
    load.stepped(step(waiting=1), 100.0)
    assert (runs.given_up, waits.given_up) == (0, 0)
    load.stepped(step(waiting=1), 100.1)
    load.stepped(step(waiting=1), 100.2)
    assert (runs.given_up, waits.given_up) == (0, 1)
    assert load.read(100.3, idle=False).oldest_wait_ms == 0.0


def test_a_long_prompt_is_not_given_up_while_it_is_read_whoever_comes_before_it_in_the_queue() -> None:
    long = sent(90.0, priority=10)
    load = queued(long)
    load.stepped(step(), 99.95)
    urgent = sent(99.96, priority=100)
    load.entered(urgent)
    load.stepped(step(), 99.97)
    load.stepped(step(waiting=1), 200.0)
    assert (long.given_up, urgent.given_up) == (0, 1)


def test_the_engine_takes_them_by_priority_and_then_as_they_came() -> None:
    late, early, urgent = sent(92.0), sent(91.0), sent(93.0, priority=200)
    load = queued(late, early, urgent)
    load.stepped(step(waiting=2), 200.0)
    assert [c.given_up for c in (late, early, urgent)] == [1, 1, 0]
    late, early, urgent = sent(92.0), sent(91.0), sent(93.0, priority=200)
    load = queued(late, early, urgent)
    load.stepped(step(waiting=1), 200.0)
    assert [c.given_up for c in (late, early, urgent)] == [1, 0, 0]


def test_who_came_during_a_step_is_not_judged_by_it() -> None:
    load = queued()
    call = sent(99.95)
    load.entered(call)
    load.stepped(step(waiting=0), 200.0)
    assert not call.begun
    load.stepped(step(waiting=0, skipped=1), 200.1)
    assert call.given_up == 1


def test_a_call_that_wants_several_answers_runs_with_the_first_of_them() -> None:
    wide = sent(width=4)
    load = queued(wide)
    load.stepped(step(waiting=3), 200.0)
    assert (wide.begun, wide.given_up) == (True, 0)
    wide = sent(width=4)
    load = queued(wide)
    load.stepped(step(waiting=4), 200.0)
    assert (wide.begun, wide.given_up) == (False, 1)


def test_a_call_that_the_engine_does_not_have_yet_is_not_judged() -> None:
    call = Call(90.0, queue_until_s=95.0)
    load = queued(call)
    load.stepped(step(waiting=1), 200.0)
    assert call.given_up == 0


def test_the_autoscaler_is_told_what_is_known_of_calls_and_nothing_else() -> None:
    load, call, later = EngineLoad(), Call(95.0), Call(99.0)
    nothing = {"oldest_wait_ms": 0.0, "kv_cache_used_ratio": 0.0, "ongoing_requests": 0.0, "started_rps": 0.0}
    assert load.for_scaling(100.0) == nothing
    load.entered(call)
    assert load.for_scaling(100.0) == {"oldest_wait_ms": 5000.0, "ongoing_requests": 1.0, "started_rps": 0.0}
    load.entered(later)
    load.stepped(step(running=9), 99.5)
    call.scheduled_s, call.first_token_s = 97.0, 98.0
    load.heard(call, (Head(), Body(b"x")), 100.0)
    assert load.for_scaling(100.0) == {
        "queue_wait_p50_ms": 2000.0,
        "queue_wait_p95_ms": 2000.0,
        "oldest_wait_ms": 1000.0,
        "kv_cache_used_ratio": 0.25,
        "ongoing_requests": 2.0,
        "started_rps": 0.1,
    }
    load.left(call)
    load.left(later)
    # The last step before the engine was asked for its health only.
    assert load.for_scaling(120.0) == nothing


def test_what_it_tells_are_names_of_the_policy() -> None:
    load, call = EngineLoad(), Call(99.0, 99.5, 99.75)
    load.entered(call)
    load.heard(call, (Head(),), 100.0)
    assert ReplicaLoad(age_s=0.0, **load.for_scaling(100.0)).oldest_wait_ms == 0.0
