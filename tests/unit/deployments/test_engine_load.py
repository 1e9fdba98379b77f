"""A replica's load from its calls and its engine's steps: what is known when, and who counts."""

from __future__ import annotations

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


def test_before_the_first_step_the_scheduler_is_unknown() -> None:
    assert EngineLoad().read(100.0, idle=False) == Load(oldest_wait_ms=0.0)


def test_an_engine_without_work_has_nothing_whatever_its_last_step_said() -> None:
    load = EngineLoad()
    load.stepped(SimpleNamespace(num_waiting_reqs=2, num_running_reqs=3, kv_cache_usage=0.25))
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


def test_the_autoscaler_is_told_what_is_known_of_calls_and_nothing_else() -> None:
    load, call, later = EngineLoad(), Call(95.0), Call(99.0)
    nothing = {"oldest_wait_ms": 0.0, "kv_cache_used_ratio": 0.0, "ongoing_requests": 0.0, "started_rps": 0.0}
    assert load.for_scaling(100.0) == nothing
    load.entered(call)
    assert load.for_scaling(100.0) == {"oldest_wait_ms": 5000.0, "ongoing_requests": 1.0, "started_rps": 0.0}
    load.entered(later)
    load.stepped(SimpleNamespace(num_waiting_reqs=0, num_running_reqs=9, kv_cache_usage=0.5))
    call.scheduled_s, call.first_token_s = 97.0, 98.0
    load.heard(call, (Head(), Body(b"x")), 100.0)
    assert load.for_scaling(100.0) == {
        "queue_wait_p95_ms": 2000.0,
        "oldest_wait_ms": 1000.0,
        "kv_cache_used_ratio": 0.5,
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
